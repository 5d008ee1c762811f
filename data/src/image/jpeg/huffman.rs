//! Huffman tables (ITU-T T.81 annex C), made for decoding several symbols with one look-up.

use super::error::JpegError;
use super::markers::HuffmanSpec;

/// Bits that index [`AcTable::entries`].
pub(super) const AC_BITS: u32 = 10;
const AC_SIZE: usize = 1 << AC_BITS;
/// Bits that index the table of single codes.
const CODE_BITS: u32 = 9;
const CODE_SIZE: usize = 1 << CODE_BITS;

/// An offset that takes every position in a block, 1..=63, out of the block.
pub(super) const NOWHERE: u8 = 64;
/// What the end of a block adds to the position in it.
pub(super) const END: u8 = 128;

/// The codes of a table: short ones by look-up, long ones by comparing.
struct Codes {
    /// Counts and symbols that the table was made of.
    counts: [u8; 16],
    symbols: [u8; 256],
    /// By the next bits: length of the code << 8 | symbol; 0: no code, or a longer one.
    short: [u16; CODE_SIZE],
    /// For every length: the code after the last one, aligned left in 16 bits.
    limit: [u32; 17],
    /// For every length: index of its first symbol minus its first code.
    first: [i32; 17],
}

impl Codes {
    fn new() -> Codes {
        Codes { counts: [0; 16], symbols: [0; 256], short: [0; CODE_SIZE], limit: [0; 17], first: [0; 17] }
    }

    fn is(&self, (counts, symbols): HuffmanSpec<'_>) -> bool {
        self.counts == *counts && self.symbols.starts_with(symbols)
    }

    /// Assigns the codes of a file's table.
    fn assign(&mut self, (counts, symbols): HuffmanSpec<'_>) -> Result<(), JpegError> {
        const BAD: JpegError = JpegError::Invalid("a Huffman table that no code fits");
        if symbols.len() > 256 {
            return Err(BAD);
        }
        // Until all is well, the table is that of no file.
        self.counts = [0xff; 16];
        self.short.fill(0);
        let (mut code, mut index) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            self.first[length as usize] = index as i32 - code as i32;
            for &symbol in &symbols[index..index + usize::from(count)] {
                if length <= CODE_BITS {
                    let width = 1usize << (CODE_BITS - length);
                    let entries = self.short.get_mut(code as usize * width..(code as usize + 1) * width).ok_or(BAD)?;
                    entries.fill((length as u16) << 8 | u16::from(symbol));
                }
                code += 1;
            }
            index += usize::from(count);
            if code > 1 << length {
                return Err(BAD);
            }
            self.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.counts = *counts;
        Ok(())
    }

    /// The code that `buffer`, aligned left, begins with: its length and symbol. Length 0: there is none.
    #[inline(always)]
    fn find(&self, buffer: u64) -> (u32, u32) {
        let entry = u32::from(self.short[(buffer >> (64 - CODE_BITS)) as usize]);
        if entry != 0 { (entry >> 8, entry & 0xff) } else { self.find_long(buffer) }
    }

    #[inline(never)]
    fn find_long(&self, buffer: u64) -> (u32, u32) {
        let bits = (buffer >> 48) as u32;
        // The limits grow with the length.
        let limits = &self.limit[CODE_BITS as usize + 1..];
        let length = CODE_BITS + 1 + limits.iter().map(|&limit| u32::from(bits >= limit)).sum::<u32>();
        if length > 16 {
            return (0, 0);
        }
        let index = (bits >> (16 - length)) as i32 + self.first[length as usize];
        (length, self.symbols.get(index as usize).map_or(0, |&s| u32::from(s)))
    }

    /// Calls `each` with every code: its length, itself and its symbol.
    fn for_each(&self, mut each: impl FnMut(u32, u32, u8)) {
        let (mut code, mut index) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(&self.counts) {
            for &symbol in &self.symbols[index..index + usize::from(count)] {
                each(length, code, symbol);
                code += 1;
            }
            index += usize::from(count);
            code <<= 1;
        }
    }
}

/// The number that the first `size` bits of `buffer` mean (T.81 figure F.12); 0 for no bits.
#[inline(always)]
fn extend(buffer: u64, size: u32) -> i32 {
    let value = ((buffer >> 1) >> (63 - size)) as i32;
    let negative = !(buffer as i64 >> 63) as i32;
    value + (negative & (1 - (1 << size)))
}

/// A table of codes for differences of DC coefficients.
pub(super) struct DcTable(Codes);

impl DcTable {
    pub fn new() -> DcTable {
        DcTable(Codes::new())
    }

    /// Becomes the table that the file holds; costs next to nothing if it is that already.
    pub fn set(&mut self, spec: HuffmanSpec<'_>) -> Result<(), JpegError> {
        if self.0.is(spec) {
            return Ok(());
        }
        self.0.assign(spec)?;
        if spec.1.iter().any(|&size| size > 15) {
            self.0.counts = [0xff; 16];
            return Err(JpegError::Invalid("a Huffman table for DC with sizes above 15"));
        }
        Ok(())
    }

    /// The difference that `buffer` begins with, and the number of its bits: at most 31; 0: there is no such code.
    #[inline(always)]
    pub fn find(&self, buffer: u64) -> (u32, i32) {
        let (length, size) = self.0.find(buffer);
        let size = size & 15;
        (if length == 0 { 0 } else { length + size }, extend(buffer << length, size))
    }
}

/// What some bits mean: up to two coefficients and the end of the block.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct AcEntry {
    /// Number of the bits; 0: no entry.
    pub bits: u8,
    /// What to add to the position in the block; [`END`] more where the block ends.
    pub advance: u8,
    /// Offsets of the coefficients from the position; [`NOWHERE`]: there is none.
    pub places: [u8; 2],
    pub values: [i16; 2],
}

impl AcEntry {
    const NONE: AcEntry = AcEntry { bits: 0, advance: 0, places: [NOWHERE; 2], values: [0; 2] };

    /// One symbol with the bits that follow it, which `value` holds.
    #[inline(always)]
    fn symbol(length: u32, symbol: u32, value: i32) -> AcEntry {
        let (run, size) = (symbol as u8 >> 4, symbol & 15);
        let bits = (length + size) as u8;
        if size > 0 {
            AcEntry { bits, advance: run + 1, places: [run, NOWHERE], values: [value as i16, 0] }
        } else {
            // Sixteen zeros, or the end of the block.
            AcEntry { bits, advance: if run == 15 { 16 } else { END }, ..AcEntry::NONE }
        }
    }

    /// This and then `next`, if that is one entry of at most [`AC_BITS`] bits.
    fn join(&self, next: &AcEntry) -> Option<AcEntry> {
        let bits = self.bits + next.bits;
        let (empty, full) = (self.places[0] == NOWHERE, self.places[1] != NOWHERE);
        let more = next.places[0] != NOWHERE;
        if u32::from(bits) > AC_BITS || next.bits == 0 || self.advance >= END || (full && more) {
            return None;
        }
        let mut joined = AcEntry { bits, advance: self.advance + next.advance, ..*self };
        if more {
            let to = usize::from(!empty);
            (joined.places[to], joined.values[to]) = (self.advance + next.places[0], next.values[0]);
        }
        Some(joined)
    }
}

/// A table of codes for AC coefficients.
pub(super) struct AcTable {
    codes: Codes,
    /// By the next [`AC_BITS`] bits: the symbols that fit in them; none if the first one has more.
    pub entries: [AcEntry; AC_SIZE],
}

impl AcTable {
    pub fn new() -> AcTable {
        AcTable { codes: Codes::new(), entries: [AcEntry::NONE; AC_SIZE] }
    }

    /// Becomes the table that the file holds; costs next to nothing if it is that already.
    pub fn set(&mut self, spec: HuffmanSpec<'_>) -> Result<(), JpegError> {
        if self.codes.is(spec) {
            return Ok(());
        }
        self.codes.assign(spec)?;
        let mut single = [AcEntry::NONE; AC_SIZE];
        self.codes.for_each(|length, code, symbol| {
            let (symbol, size) = (u32::from(symbol), u32::from(symbol & 15));
            if length + size > AC_BITS {
                return;
            }
            let width = 1usize << (AC_BITS - length - size);
            for bits in 0..1usize << size {
                let at = ((code as usize) << size | bits) * width;
                let value = extend((bits as u64) << (63 - size) << 1, size);
                single[at..at + width].fill(AcEntry::symbol(length, symbol, value));
            }
        });
        for (bits, entry) in self.entries.iter_mut().enumerate() {
            *entry = single[bits];
            while let Some(joined) = entry.join(&single[bits << entry.bits & (AC_SIZE - 1)]) {
                *entry = joined;
            }
        }
        Ok(())
    }

    /// The one symbol that `buffer` begins with, of at most 31 bits, or none.
    #[inline(always)]
    pub fn find(&self, buffer: u64) -> AcEntry {
        let (length, symbol) = self.codes.find(buffer);
        if length == 0 {
            return AcEntry::NONE;
        }
        AcEntry::symbol(length, symbol, extend(buffer << length, symbol & 15))
    }
}
