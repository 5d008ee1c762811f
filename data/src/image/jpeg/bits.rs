//! Bits of the entropy-coded data: stuffed bytes are taken out a window at a time, bits come from a register.

use super::JpegError;

/// Bytes of a window; less than the first-level cache, as it is filled over and over.
const WINDOW: usize = 8192;
/// More bytes than any MCU takes: 6 blocks of 64 codes of at most 31 bits. So many are there before one is decoded.
const MCU_BYTES: usize = 1536;

/// A window of data without stuffed bytes. Zeros follow its last byte.
pub(super) type Window = [u8; WINDOW];

pub(super) const EMPTY: Window = [0; WINDOW];

/// The entropy-coded data of a scan, up to the next marker.
pub(super) struct Feed<'a> {
    file: &'a [u8],
    /// Offset in the file of the next byte that is not in the window; of a marker's code where `ended`.
    at: usize,
    pub window: &'a mut Window,
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
    pub fn refill(&mut self, window: &Window) {
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

impl<'a> Feed<'a> {
    /// The data of a file from offset `at` on.
    pub fn new(file: &'a [u8], at: usize, window: &'a mut Window) -> Feed<'a> {
        Feed { file, at, window, length: 0, ended: false }
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
        while !self.ended && self.length + 16 <= WINDOW {
            let (file, window) = (self.file.get(self.at..).unwrap_or(&[]), &mut self.window[self.length..]);
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

    /// Appends one byte if there is room.
    fn copy_next(&mut self) {
        match self.file.get(self.at) {
            None => self.ended = true,
            Some(0xff) => self.copy_ff(),
            Some(&byte) if self.length < WINDOW => {
                self.window[self.length] = byte;
                (self.length, self.at) = (self.length + 1, self.at + 1);
            }
            Some(_) => {}
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
