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

    /// Passes over the number of bits that the low byte of `count` says, which are ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u64) {
        self.buffer <<= count & 63;
        self.left = self.left.wrapping_sub(count & 0xff);
    }

    /// Offset in the window of the first byte of which no bit has been passed over. It lies before the window where
    /// that was filled since; `left` is negative where more bits were taken than the window has.
    #[inline(always)]
    fn position(&self) -> i64 {
        self.at as i64 - (self.left as i64 >> 3)
    }
}

/// Offset of the first byte 0xff in eight bytes, read in little-endian order; 8: there is none.
#[inline(always)]
fn find_ff(bytes: u64) -> usize {
    let zeros = !bytes;
    let marks = zeros.wrapping_sub(0x0101_0101_0101_0101) & !zeros & 0x8080_8080_8080_8080;
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
            self.fill(bits);
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

    #[inline(never)]
    fn fill(&mut self, bits: &mut Bits) {
        self.window.copy_within(bits.at.min(self.length)..self.length, 0);
        self.length -= bits.at.min(self.length);
        bits.at = 0;
        self.copy();
        self.window[self.length..].fill(0);
    }

    /// Appends bytes to the window until it is as full as it gets, eight at a time.
    fn copy(&mut self) {
        while self.length + 16 <= WINDOW {
            let Some(bytes) = self.file.get(self.at..).and_then(|f| f.first_chunk::<8>()) else {
                return self.copy_last();
            };
            self.window[self.length..self.length + 8].copy_from_slice(bytes);
            let count = find_ff(u64::from_le_bytes(*bytes));
            (self.length, self.at) = (self.length + count, self.at + count);
            if count < 8 {
                self.copy_ff();
                if self.ended {
                    return;
                }
            }
        }
    }

    fn copy_last(&mut self) {
        while self.length + 16 <= WINDOW && !self.ended {
            match self.file.get(self.at) {
                None => self.ended = true,
                Some(0xff) => self.copy_ff(),
                Some(&byte) => {
                    self.window[self.length] = byte;
                    (self.length, self.at) = (self.length + 1, self.at + 1);
                }
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
            match self.file.get(self.at..).and_then(|f| f.first_chunk::<8>()) {
                Some(bytes) => {
                    let count = find_ff(u64::from_le_bytes(*bytes));
                    self.at += count;
                    if count == 8 {
                        continue;
                    }
                }
                None if self.at >= self.file.len() => break,
                None if self.file[self.at] != 0xff => {
                    self.at += 1;
                    continue;
                }
                None => {}
            }
            self.length = 0;
            self.copy_ff();
        }
        if self.file.get(self.at) != Some(&(0xd0 | (number & 7) as u8)) {
            return Err(JpegError::Invalid("a restart marker is missing"));
        }
        self.at += 1;
        (self.length, self.ended, *bits) = (0, false, Bits::default());
        Ok(())
    }
}
