//! Weights of a few bits in blocks with a scale each, as the kernel library reads them.
//!
//! A matrix of n columns with k terms each lies in three sections, one behind the other: codes, scales, zero points.
//! Panels of [`BlockedWeights::ROWS`] columns follow each other, in each of them *chunks* of terms whose codes take 64
//! bytes, and in a chunk the columns of the panel. Code t of a chunk, of `bits` bits, lies in the dword t mod 16, at bit
//! `bits`·(t / 16): a vector of 16 dwords, shifted, holds 16 neighbouring terms. Terms and columns that there are not have
//! codes and scales of 0.

use core::ops::Range;

/// The form of weights of a few bits: weight (term t, column j) is `(code[t, j] - zero[t / block, j]) · scale[t / block, j]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockedWeights {
    /// Bits of a code, which is unsigned: 2, 4 or 8.
    pub bits: u8,
    /// Log2 of the number of terms with one scale, which is at least [`BlockedWeights::LANES`].
    pub block_log2: u8,
    /// Zero point of all blocks, unless each has one.
    pub zero: u8,
    /// Whether each block has a zero point.
    pub zeros: bool,
}

/// Most terms of a chunk.
const MAX_CHUNK: usize = 256;

/// What weights are packed from, by column and then term or block.
#[derive(Clone, Copy, Debug)]
pub struct BlockedParts<'a> {
    /// Codes, one in the low bits of a byte, at `column·strides[0] + term·strides[1]`.
    pub codes: &'a [u8],
    /// Elements of `codes` from one column to the next, and from one term to the next.
    pub strides: [usize; 2],
    /// Bits to change in codes and zero points as they are stored: the sign of signed ones, which makes them unsigned.
    pub flip: u8,
    /// Bytes of f32 scales, at `column·block_strides[0] + block·block_strides[1]`.
    pub scales: &'a [u8],
    /// Elements of `scales` and `zeros` from one column to the next, and from one block to the next.
    pub block_strides: [usize; 2],
    /// Zero points, if each block has one, stored as codes are.
    pub zeros: Option<&'a [u8]>,
}

impl BlockedWeights {
    /// Columns of a panel.
    pub const ROWS: usize = 4;
    /// Neighbouring terms that are unpacked together.
    pub const LANES: usize = 16;
    /// Bytes of the codes of a chunk of one column.
    pub const CHUNK_BYTES: usize = 64;
    /// Sections begin at multiples of so many bytes, and behind the last element of one so many are readable.
    pub const ALIGN: usize = 64;

    /// The form of codes of `bits` bits in blocks of `block` terms, if weights have it.
    pub fn new(bits: u64, block: u64, zeros: bool, zero: u8) -> Option<BlockedWeights> {
        let fits = matches!(bits, 2 | 4 | 8) && block.is_power_of_two() && block >= Self::LANES as u64;
        fits.then_some(BlockedWeights { bits: bits as u8, block_log2: block.trailing_zeros() as u8, zero, zeros })
    }

    /// Whether the fields are ones that [`BlockedWeights::new`] gives.
    pub fn is_valid(&self) -> bool {
        self.block_log2 < 63 && BlockedWeights::new(self.bits.into(), self.block(), self.zeros, self.zero).is_some()
    }

    /// Terms with one scale.
    pub const fn block(&self) -> u64 {
        1 << (self.block_log2 & 63)
    }

    /// Terms of a chunk.
    pub const fn chunk(&self) -> usize {
        8 * Self::CHUNK_BYTES / self.bits as usize
    }

    /// Scales of a chunk of one column. That of a block of several chunks stands in each of them.
    pub const fn groups(&self) -> usize {
        let groups = self.chunk() as u64 / self.block();
        if groups == 0 { 1 } else { groups as usize }
    }

    /// Chunks of a column of `k` terms.
    pub const fn chunks(&self, k: usize) -> usize {
        k.div_ceil(self.chunk())
    }

    /// Where the sections of a matrix lie, in bytes: codes, scales and zero points, which may be none; `None` where that
    /// is more than there can be.
    pub fn sections(&self, k: usize, n: usize) -> Option<[Range<usize>; 3]> {
        let columns = n.div_ceil(Self::ROWS).checked_mul(Self::ROWS * self.chunks(k))?;
        let codes = columns.checked_mul(Self::CHUNK_BYTES)?;
        let groups = columns.checked_mul(self.groups())?;
        let after = |bytes: usize| bytes.checked_add(Self::ALIGN)?.checked_next_multiple_of(Self::ALIGN);
        let scales_end = codes.checked_add(after(groups.checked_mul(size_of::<f32>())?)?)?;
        let zeros_end = if self.zeros { scales_end.checked_add(after(groups)?)? } else { scales_end };
        Some([0..codes, codes..scales_end, scales_end..zeros_end])
    }

    /// Bytes of a matrix.
    pub fn bytes(&self, k: usize, n: usize) -> Option<usize> {
        self.sections(k, n).map(|[.., zeros]| zeros.end)
    }

    /// Packs a matrix of a [valid](BlockedWeights::is_valid) form into memory that is zero.
    ///
    /// # Panics
    /// The memory is not [`BlockedWeights::bytes`] long, or the parts do not hold all of k×n.
    pub fn pack(&self, k: usize, n: usize, parts: &BlockedParts<'_>, to: &mut [u8]) {
        let Some([codes, scales, points]) = self.sections(k, n) else { return };
        assert_eq!(to.len(), points.end, "memory as long as the packed form");
        let (codes, rest) = to.split_at_mut(codes.end);
        let (scales, points) = rest.split_at_mut(scales.len());
        let (chunk, chunks, groups) = (self.chunk(), self.chunks(k), self.groups());
        let mask = 0xffu8 >> (8 - self.bits);
        let mut row = [0; MAX_CHUNK];
        for (j, c) in (0..n).flat_map(|j| (0..chunks).map(move |c| (j, c))) {
            let place = (j / Self::ROWS * chunks + c) * Self::ROWS + j % Self::ROWS;
            let terms = c * chunk..k.min((c + 1) * chunk);
            row[terms.len()..].fill(parts.flip);
            let from = &parts.codes[j * parts.strides[0] + terms.start * parts.strides[1]..];
            match parts.strides[1] {
                1 => row[..terms.len()].copy_from_slice(&from[..terms.len()]),
                step => row.iter_mut().zip(from.iter().step_by(step)).take(terms.len()).for_each(|(to, x)| *to = *x),
            }
            let mut dwords = [0u32; Self::LANES];
            for (i, codes) in row[..chunk].chunks_exact(Self::LANES).enumerate() {
                for (dword, code) in dwords.iter_mut().zip(codes) {
                    *dword |= u32::from((code ^ parts.flip) & mask) << (i * usize::from(self.bits));
                }
            }
            let to = &mut codes[place * Self::CHUNK_BYTES..][..Self::CHUNK_BYTES];
            to.chunks_exact_mut(4).zip(dwords).for_each(|(to, dword)| to.copy_from_slice(&dword.to_le_bytes()));
            for (group, t) in terms.step_by(chunk / groups).enumerate() {
                let from = j * parts.block_strides[0] + (t >> self.block_log2) * parts.block_strides[1];
                let at = place * groups + group;
                scales[4 * at..][..4].copy_from_slice(&parts.scales[4 * from..][..4]);
                if let Some(zeros) = parts.zeros.filter(|_| self.zeros) {
                    points[at] = (zeros[from] ^ parts.flip) & mask;
                }
            }
        }
    }

    /// Unpacks terms of a column, from `first` on, as f32 in little-endian bytes.
    ///
    /// # Panics
    /// `packed` is not such a matrix, or has no such terms.
    pub fn unpack(&self, [n, k]: [usize; 2], packed: &[u8], column: usize, first: usize, to: &mut [u8]) {
        let Some([_, scales, points]) = self.sections(k, n) else { return };
        let (chunk, chunks, groups) = (self.chunk(), self.chunks(k), self.groups());
        let mask = 0xffu8 >> (8 - self.bits);
        for (to, t) in to.chunks_exact_mut(size_of::<f32>()).zip(first..) {
            let (c, i) = (t / chunk, t % chunk);
            let place = (column / Self::ROWS * chunks + c) * Self::ROWS + column % Self::ROWS;
            let bit = i / Self::LANES * usize::from(self.bits);
            let code = packed[place * Self::CHUNK_BYTES + 4 * (i % Self::LANES) + bit / 8] >> (bit % 8) & mask;
            let at = place * groups + i / (chunk / groups);
            let zero = if self.zeros { packed[points.start + at] } else { self.zero };
            let scale = &packed[scales.start + 4 * at..][..4];
            let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
            to.copy_from_slice(&((f32::from(code) - f32::from(zero)) * scale).to_le_bytes());
        }
    }

    /// The form as a word of 32 bits.
    pub const fn to_word(self) -> u32 {
        let [bits, block, zero, zeros] = [self.bits, self.block_log2, self.zero, self.zeros as u8];
        u32::from_le_bytes([bits, block, zero, zeros])
    }

    /// The inverse of [`BlockedWeights::to_word`]; the form may not be [valid](BlockedWeights::is_valid).
    pub const fn from_word(word: u32) -> BlockedWeights {
        let [bits, block_log2, zero, zeros] = word.to_le_bytes();
        BlockedWeights { bits, block_log2, zero, zeros: zeros != 0 }
    }
}
