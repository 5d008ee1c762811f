//! Bits of the entropy-coded data: stuffed bytes are taken out a window at a time, bits come from a register.

use super::error::JpegError;

/// Bytes of a window; less than the first-level cache, as it is filled over and over.
const WINDOW: usize = 8192;
/// Most bytes in it but one: eight can be read at the last one, and what is written in steps of 16 has room.
const FULL: usize = WINDOW - 16;
/// More bytes than any MCU takes: 6 blocks of 64 codes of at most 31 bits. So many are there before one is decoded.
const MCU_BYTES: usize = 1536;

/// A window of data without stuffed bytes. Zeros follow its last byte.
pub(super) type UnstuffedWindow = [u8; WINDOW];

pub(super) const EMPTY: UnstuffedWindow = [0; WINDOW];

/// The entropy-coded data of a scan, up to the next marker.
pub(super) struct EntropyInput<'a> {
    file: &'a [u8],
    /// Offset in the file of the next byte that is not in the window; of a marker's code where `ended`.
    at: usize,
    pub window: &'a mut UnstuffedWindow,
    /// Bytes in the window.
    length: usize,
    /// A marker or the end of the file follows the window.
    ended: bool,
}

/// The next bits, taken from a window.
///
/// `buffer` holds `left` bits, aligned left, and perhaps the bits that follow them.
#[derive(Clone, Copy, Default)]
pub(super) struct Bits {
    pub buffer: u64,
    left: u64,
    /// Offset in the window of the byte after the `left` bits.
    at: usize,
}

impl Bits {
    /// Makes at least 56 bits ready.
    #[inline(always)]
    pub fn refill(&mut self, window: &UnstuffedWindow) {
        if let Some(bytes) = window.get(self.at..).and_then(|w| w.first_chunk::<8>()) {
            self.buffer |= u64::from_be_bytes(*bytes) >> (self.left & 63);
            self.at += ((63 - (self.left & 63)) >> 3) as usize;
            self.left |= 56;
        }
    }

    /// Passes over bits that are ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u64) {
        self.buffer <<= count & 63;
        self.left = self.left.wrapping_sub(count);
    }

    /// What to give [`Bits::go_back`] before the next refill.
    #[inline(always)]
    pub fn mark(&self) -> (u64, u64) {
        (self.buffer, self.left)
    }

    #[inline(always)]
    pub fn go_back(&mut self, (buffer, left): (u64, u64)) {
        (self.buffer, self.left) = (buffer, left);
    }

    /// Offset in the window of the first byte of which no bit has been passed over. It lies before the window where
    /// that was filled since; `left` is negative where more bits were taken than the window has.
    #[inline(always)]
    fn position(&self) -> i64 {
        self.at as i64 - (self.left as i64 >> 3)
    }
}

/// Offset of the first byte 0xff; 16: there is none.
#[inline(always)]
fn find_ff(bytes: &[u8; 16]) -> usize {
    let (bytes, ones) = (u128::from_le_bytes(*bytes), u128::MAX / 255);
    // The lowest one that is marked is right.
    let marks = (!bytes).wrapping_sub(ones) & bytes & (ones << 7);
    (marks.trailing_zeros() / 8) as usize
}

impl<'a> EntropyInput<'a> {
    /// The data of a file from offset `at` on.
    pub fn new(file: &'a [u8], at: usize, window: &'a mut UnstuffedWindow) -> EntropyInput<'a> {
        EntropyInput { file, at, window, length: 0, ended: false }
    }

    /// Makes the window hold the data of at least one MCU, as far as the file does.
    #[inline(always)]
    pub fn prepare(&mut self, bits: &mut Bits) {
        if self.length < bits.at + MCU_BYTES && !self.ended {
            self.fill(bits.at);
            bits.at = 0;
        }
    }

    /// # Errors
    ///
    /// More bits were taken than there are before the next marker or the end of the file.
    #[inline(always)]
    pub fn check(&self, bits: &Bits) -> Result<(), JpegError> {
        if bits.position() <= self.length as i64 {
            return Ok(());
        }
        Err(if self.at < self.file.len() {
            JpegError::Invalid("the data ends before a marker")
        } else {
            JpegError::Invalid("the file ends inside of its data")
        })
    }

    /// Fills the window again, from the byte at `from` on.
    #[inline(never)]
    fn fill(&mut self, from: usize) {
        let from = from.min(self.length);
        self.window.copy_within(from..self.length, 0);
        self.length -= from;
        self.copy();
        self.window[self.length..].fill(0);
    }

    /// Appends bytes to the window until it is as full as it gets, sixteen at a time.
    fn copy(&mut self) {
        while !self.ended && self.length + 16 <= FULL {
            let (file, window) = (self.file.get(self.at..).unwrap_or(&[]), &mut self.window[self.length..FULL]);
            let mut count = 0;
            for (from, to) in file.as_chunks::<16>().0.iter().zip(window.as_chunks_mut::<16>().0) {
                *to = *from;
                let found = find_ff(from);
                count += found;
                if found < 16 {
                    break;
                }
            }
            (self.length, self.at) = (self.length + count, self.at + count);
            self.copy_next();
        }
    }

    /// Appends one byte.
    fn copy_next(&mut self) {
        match self.file.get(self.at) {
            None => self.ended = true,
            Some(0xff) => self.copy_ff(),
            Some(&byte) => {
                self.window[self.length] = byte;
                (self.length, self.at) = (self.length + 1, self.at + 1);
            }
        }
    }

    /// Takes a byte 0xff: with a zero after it is data, else there is a marker, perhaps after fill bytes.
    fn copy_ff(&mut self) {
        while self.file.get(self.at) == Some(&0xff) {
            self.at += 1;
        }
        if self.file.get(self.at) == Some(&0) {
            self.window[self.length] = 0xff;
            (self.length, self.at) = (self.length + 1, self.at + 1);
        } else {
            self.ended = true;
        }
    }

    /// Passes over all data up to the next marker, which must be restart marker `number` (modulo 8), and over it.
    ///
    /// # Errors
    ///
    /// There is another marker, or none.
    pub fn restart(&mut self, number: usize, bits: &mut Bits) -> Result<(), JpegError> {
        while !self.ended {
            self.length = 0;
            self.at += self.file.get(self.at..).map_or(0, |f| f.iter().take_while(|&&b| b != 0xff).count());
            self.copy_next();
        }
        if self.file.get(self.at) != Some(&(0xd0 | (number & 7) as u8)) {
            return Err(JpegError::Invalid("a restart marker is missing"));
        }
        self.at += 1;
        (self.length, self.ended, *bits) = (0, false, Bits::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;

    /// All bytes up to the marker, taken eight bits at a time, and whether an error follows them.
    fn read(file: &[u8], length: usize) -> (Vec<u8>, bool) {
        let mut window = Box::new(EMPTY);
        let (mut input, mut bits) = (EntropyInput::new(file, 0, &mut window), Bits::default());
        let mut next = || {
            input.prepare(&mut bits);
            bits.refill(input.window);
            let byte = (bits.buffer >> 56) as u8;
            bits.skip(8);
            (byte, input.check(&bits).is_ok())
        };
        let found: Vec<_> = (0..length).map(|_| next()).collect();
        assert!(found.iter().all(|(_, good)| *good));
        (found.into_iter().map(|(byte, _)| byte).collect(), next() == (0, false))
    }

    #[test]
    fn bytes_come_without_stuffing_wherever_the_window_ends() {
        let mut draws = Draws::new(5, 0, 0);
        let near = |length: usize| length - 40..length + 40;
        for length in (0..40).chain(near(FULL)).chain(near(WINDOW)).chain(near(WINDOW + FULL)).chain(near(3 * WINDOW)) {
            for share in [0, 1, 40, 256] {
                let byte = |_| if draws.below(256) < share { 0xff } else { draws.below(255) as u8 };
                let bytes: Vec<u8> = (0..length).map(byte).collect();
                let stuffed = |&b: &u8| if b == 0xff { vec![0xff, 0] } else { vec![b] };
                let mut file: Vec<u8> = bytes.iter().flat_map(stuffed).collect();
                assert!(read(&file, length) == (bytes.clone(), true), "{length} {share}");
                file.extend([0xff, 0xff, 0xd9, 1, 2, 3]);
                assert!(read(&file, length) == (bytes, true), "{length} {share}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_stuffed_comes_first_behind_a_full_window() {
        for zeros in WINDOW - 40..WINDOW + 40 {
            let mut file = vec![0; zeros];
            file.extend([0xff, 0, 0xff, 0, 7]);
            let (bytes, _) = read(&file, zeros + 3);
            assert_eq!(bytes[zeros..], [0xff, 0xff, 7]);
        }
    }

    #[test]
    fn restart_markers_are_found_behind_any_data() {
        for length in (0..40).chain(WINDOW - 40..WINDOW + 40) {
            let file = [&vec![1; length][..], &[0xff, 0, 5, 0xff, 0xd3, 9, 9, 0xff, 0xd4]].concat();
            let mut window = Box::new(EMPTY);
            let (mut input, mut bits) = (EntropyInput::new(&file, 0, &mut window), Bits::default());
            input.prepare(&mut bits);
            assert!(input.restart(3, &mut bits).is_ok());
            input.prepare(&mut bits);
            bits.refill(input.window);
            assert_eq!(bits.buffer >> 48, 0x0909);
            assert!(input.restart(3, &mut bits).is_err());
        }
    }
}
