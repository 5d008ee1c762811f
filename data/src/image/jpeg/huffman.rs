//! Huffman tables (ITU-T T.81 annex C), made for decoding several symbols with one look-up.

use super::JpegError;
use super::markers::HuffmanSpec;

/// Bits that index [`AcTable::entries`].
pub(super) const AC_BITS: u32 = 10;
const AC_SIZE: usize = 1 << AC_BITS;
/// Bits that index the table of single codes.
const CODE_BITS: u32 = 9;
const CODE_SIZE: usize = 1 << CODE_BITS;

/// An offset that takes every position in a block, 1..=63, out of the block.
pub(super) const NOWHERE: u64 = 64;
/// What the end of a block adds to the position in it.
pub(super) const END: u64 = 128;

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

    /// Assigns the codes, calling `each` with every code of at most `bits` bits: its length, itself and its symbol.
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
        for length in CODE_BITS + 1..=16 {
            if bits < self.limit[length as usize] {
                let index = (bits >> (16 - length)) as i32 + self.first[length as usize];
                return (length, self.symbols.get(index as usize).map_or(0, |&s| u32::from(s)));
            }
        }
        (0, 0)
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

/// A table of codes for AC coefficients.
pub(super) struct AcTable {
    codes: Codes,
    /// By the next [`AC_BITS`] bits: see [`Entry`]. 0: what these bits begin with is longer.
    pub entries: [u64; AC_SIZE],
}

/// What some bits mean: up to two coefficients and the end of the block.
///
/// From the lowest bit: number of bits (8); what to add to the position (8), [`END`] more where the block ends;
/// offsets of the coefficients from the position (8 each, [`NOWHERE`] for none); the coefficients (16 each).
pub(super) struct Entry;

impl Entry {
    /// One symbol with the bits that follow it, which `value` holds.
    #[inline(always)]
    fn symbol(length: u32, symbol: u32, value: i32) -> u64 {
        let (run, size) = (u64::from(symbol >> 4), symbol & 15);
        let bits = u64::from(length + size);
        let coefficient = u64::from(value as u16) << 32;
        if size > 0 {
            bits | (run + 1) << 8 | run << 16 | NOWHERE << 24 | coefficient
        } else {
            // Sixteen zeros, or the end of the block.
            bits | if run == 15 { 16 } else { END } << 8 | NOWHERE << 16 | NOWHERE << 24
        }
    }

    /// `first` and then `second`, if that is one entry of at most [`AC_BITS`] bits.
    fn join(first: u64, second: u64) -> Option<u64> {
        let bits = (first & 0xff) + (second & 0xff);
        let (advance, then) = (first >> 8 & 0xff, second >> 8 & 0xff);
        let (one, two) = (first >> 16 & 0xff, first >> 24 & 0xff);
        let (run, value) = (second >> 16 & 0xff, second >> 32 & 0xffff);
        if bits > u64::from(AC_BITS) || second == 0 || advance >= END || (two != NOWHERE && run != NOWHERE) {
            return None;
        }
        let head = bits | (advance + then) << 8;
        Some(match run {
            NOWHERE => head | first & !0xffff,
            _ if one == NOWHERE => head | (advance + run) << 16 | NOWHERE << 24 | value << 32,
            _ => head | one << 16 | (advance + run) << 24 | first & 0xffff << 32 | value << 48,
        })
    }
}

impl AcTable {
    pub fn new() -> AcTable {
        AcTable { codes: Codes::new(), entries: [0; AC_SIZE] }
    }

    /// Becomes the table that the file holds; costs next to nothing if it is that already.
    pub fn set(&mut self, spec: HuffmanSpec<'_>) -> Result<(), JpegError> {
        if self.codes.is(spec) {
            return Ok(());
        }
        self.codes.assign(spec)?;
        let mut single = [0u64; AC_SIZE];
        self.codes.for_each(|length, code, symbol| {
            let (symbol, size) = (u32::from(symbol), u32::from(symbol & 15));
            if length + size > AC_BITS {
                return;
            }
            let width = 1usize << (AC_BITS - length - size);
            for bits in 0..1usize << size {
                let at = ((code as usize) << size | bits) * width;
                let value = extend((bits as u64) << (63 - size) << 1, size);
                single[at..at + width].fill(Entry::symbol(length, symbol, value));
            }
        });
        for (bits, entry) in self.entries.iter_mut().enumerate() {
            *entry = single[bits];
            while let Some(joined) = Entry::join(*entry, single[bits << (*entry & 15) & (AC_SIZE - 1)]) {
                *entry = joined;
            }
        }
        Ok(())
    }

    /// The entry of the one symbol that `buffer` begins with, of at most 31 bits; 0: there is none.
    #[inline(never)]
    pub fn find(&self, buffer: u64) -> u64 {
        let (length, symbol) = self.codes.find(buffer);
        if length == 0 { 0 } else { Entry::symbol(length, symbol, extend(buffer << length, symbol & 15)) }
    }
}
