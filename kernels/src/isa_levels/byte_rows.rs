//! Sums of depthwise convolutions of bytes: an image unsigned, filters signed, exact in i32.
//!
//! With AVX-512 VNNI and VBMI a permutation puts four neighbouring taps of sixteen pixels side by side, which `vpdpbusd`
//! multiplies; bytes outside of the image are masked off. Elsewhere images are copied as words: one and the next are what a pair of
//! taps reads, which AVX2 multiplies together (`vpmaddwd`).

use super::{IsaLevel, TERMS};

/// Bytes behind the last one of an image that are readable.
pub(crate) const READABLE: usize = 64;

/// Rows of pixels of one channel, of an image in its place.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AVX-512"))]
pub(crate) struct ByteRows<'a> {
    /// What tap (r, s) reads for pixel p of row q: row `first[0] + q·step[0] + r·dilation[0]` and column
    /// `first[1] + p·step[1] + s·dilation[1]` of the image, whose rows lie side by side. What lies outside is 0.
    pub x: *const u8,
    pub image: [usize; 2],
    pub first: [isize; 2],
    pub step: [usize; 2],
    pub dilation: [usize; 2],
    /// [`tap_places`] of the step and dilation along columns.
    pub places: &'a [u8; 64],
    /// Rows of taps, and groups of four in each: weight (r, s) at `w[r·4·groups + s]`.
    pub taps: [usize; 2],
    pub w: *const i8,
    /// Sum of pixel p of row q at `y[q·pixels + p]`.
    pub rows: usize,
    pub pixels: usize,
    pub y: *mut i32,
}

/// Computes [`ByteRows`].
pub(crate) type PermutedRows = unsafe fn(&ByteRows<'_>);

/// Rows of pixels of one channel, of an image that has been copied with zeros around it.
pub(crate) struct WordRows {
    /// Pixel p of row q reads `x[(q·step[0] + r·dilation[0])·row + p·step[1] + s·dilation[1]]` with tap (r, s). So many words are
    /// readable for [`PIXELS`] pixels at a time, also beyond the last one, and for two more taps.
    pub x: *const u16,
    pub row: usize,
    pub step: [usize; 2],
    pub dilation: [usize; 2],
    /// Rows of taps, and taps in each: weight (r, s) at `w[r·taps₁ + s]`, with taps₁ rounded up to whole groups of four.
    pub taps: [usize; 2],
    pub w: *const i8,
    /// Sum of pixel p of row q at `y[q·pixels + p]`.
    pub rows: usize,
    pub pixels: usize,
    pub y: *mut i32,
}

/// Pixels that are computed together.
pub(crate) const PIXELS: usize = 16;

/// Distances of the bytes that four taps of sixteen pixels read from the first one, if they are less than 64.
pub(crate) fn tap_places(step: usize, dilation: usize) -> [u8; 64] {
    core::array::from_fn(|byte| (byte / TERMS * step + byte % TERMS * dilation).min(63) as u8)
}

impl IsaLevel {
    /// What computes [`ByteRows`] of so many groups in a row of taps, if the processor can.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "for AVX-512"))]
    pub fn permuted_rows(self, groups: usize, step: usize, dilation: usize) -> Option<PermutedRows> {
        match self.isa() {
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Amx | crate::isa::Isa::Avx512 => avx512::permuted_rows(groups, step, dilation),
            _ => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::LANES;
    use super::{ByteRows, PermutedRows, TERMS};
    use crate::isa::has_byte_permutations;

    /// What computes rows where a permutation of 64 bytes has what four taps of sixteen pixels read.
    pub fn permuted_rows(groups: usize, step: usize, dilation: usize) -> Option<PermutedRows> {
        let farthest = (LANES - 1) * step + (TERMS - 1) * dilation;
        match groups {
            _ if farthest >= size_of::<__m512i>() || !has_byte_permutations() => None,
            1 => Some(permuted::<1>),
            2 => Some(permuted::<2>),
            _ => None,
        }
    }

    /// # Safety
    /// As [`super::super::IsaLevel`], with AVX-512 VNNI and VBMI, so many groups in a row of taps, and all that the taps of sixteen pixels
    /// read of a group in 64 bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    unsafe fn permuted<const GROUPS: usize>(b: &ByteRows<'_>) {
        let ByteRows { x, image: [height, width], first, step, dilation, taps, w, rows, pixels, y, .. } = *b;
        let low = |bits: isize| if bits >= 64 { u64::MAX } else { (1u64 << bits.max(0)) - 1 };
        let (row_bytes, next_tap) = (step[0] * width, dilation[0] * width);
        // SAFETY: by the caller's contract; what lies outside and pixels that there are not are masked off.
        unsafe {
            let order = _mm512_loadu_si512(b.places.as_ptr().cast());
            for pixel in (0..pixels).step_by(LANES) {
                let column = first[1] + (pixel * step[1]) as isize;
                let inside: [u64; GROUPS] = core::array::from_fn(|group| {
                    let column = column + (group * TERMS * dilation[1]) as isize;
                    low(width as isize - column) & !low(-column)
                });
                let mask = ((1u32 << (pixels - pixel).min(LANES)) - 1) as u16;
                let mut from = x.wrapping_offset(first[0] * width as isize + column);
                let (mut top, mut y) = (first[0], y.wrapping_add(pixel));
                for _ in 0..rows {
                    let mut sums = _mm512_setzero_si512();
                    let (mut bytes, mut w, mut row) = (from, w, top);
                    for _ in 0..taps[0] {
                        if (row as usize) < height {
                            for (group, inside) in inside.into_iter().enumerate() {
                                let bytes = bytes.wrapping_add(group * TERMS * dilation[1]).cast();
                                let bytes = _mm512_permutexvar_epi8(order, _mm512_maskz_loadu_epi8(inside, bytes));
                                let weights = w.wrapping_add(group * TERMS).cast::<i32>().read_unaligned();
                                sums = _mm512_dpbusd_epi32(sums, bytes, _mm512_set1_epi32(weights));
                            }
                        }
                        (bytes, w) = (bytes.wrapping_add(next_tap), w.wrapping_add(GROUPS * TERMS));
                        row += dilation[0] as isize;
                    }
                    _mm512_mask_storeu_epi32(y, mask, sums);
                    (from, y) = (from.wrapping_add(row_bytes), y.wrapping_add(pixels));
                    top += step[0] as isize;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;
    use core::mem::MaybeUninit;

    use super::{PIXELS, TERMS, WordRows};

    /// Most weights, in pairs or alone.
    const WEIGHTS: usize = 1024;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn word_rows(b: &WordRows) {
        let groups = b.taps[1].div_ceil(TERMS);
        let mut memory = [MaybeUninit::<i32>::uninit(); WEIGHTS];
        // SAFETY: passed on from the caller; there is room for the weights.
        unsafe {
            match b.step[1] {
                1 | 2 if b.taps[0] * groups * TERMS <= WEIGHTS => {}
                _ => return super::portable::word_rows(b),
            }
            let weights = WordWeights::new(b, memory.as_mut_ptr().cast());
            match (b.step[1], weights.count) {
                (1, 1) => sums::<1, 1>(b, weights),
                (1, 2) => sums::<1, 2>(b, weights),
                (1, 3) => sums::<1, 3>(b, weights),
                (1, 4) => sums::<1, 4>(b, weights),
                (1, _) => sums::<1, 0>(b, weights),
                (_, 1) => sums::<2, 1>(b, weights),
                (_, 2) => sums::<2, 2>(b, weights),
                (_, 3) => sums::<2, 3>(b, weights),
                (_, 4) => sums::<2, 4>(b, weights),
                _ => sums::<2, 0>(b, weights),
            }
        }
    }

    /// Weights in 16 bits: two neighbouring taps in a pair, or with a dilation one tap and a zero.
    #[derive(Clone, Copy)]
    struct WordWeights {
        first: *const i32,
        /// How many there are in a row of taps, and how far the next row is.
        count: usize,
        row: usize,
        /// Words from what one is multiplied with to the next.
        apart: usize,
    }

    impl WordWeights {
        /// # Safety
        /// The weights are readable, and there is room for one word each, of whole groups.
        #[target_feature(enable = "avx2")]
        unsafe fn new(b: &WordRows, to: *mut i32) -> WordWeights {
            let groups = b.taps[1].div_ceil(TERMS);
            let pairs = b.dilation[1] == 1;
            let in_group = if pairs { TERMS / 2 } else { TERMS };
            for group in 0..b.taps[0] * groups {
                // SAFETY: by the caller's contract.
                unsafe {
                    let weights = _mm_cvtsi32_si128(b.w.add(group * TERMS).cast::<i32>().read_unaligned());
                    let to = to.add(group * in_group).cast::<__m128i>();
                    match pairs {
                        true => _mm_storel_epi64(to, _mm_cvtepi8_epi16(weights)),
                        false => {
                            let words = _mm_and_si128(_mm_cvtepi8_epi32(weights), _mm_set1_epi32(0xffff));
                            _mm_storeu_si128(to, words);
                        }
                    }
                }
            }
            let (count, apart) = if pairs { (b.taps[1].div_ceil(2), 2) } else { (b.taps[1], b.dilation[1]) };
            WordWeights { first: to, count, row: groups * in_group, apart }
        }
    }

    /// # Safety
    /// As [`word_rows`], with this step, and `COUNT` weights in a row of taps unless that is 0.
    #[target_feature(enable = "avx2")]
    unsafe fn sums<const STEP: usize, const COUNT: usize>(b: &WordRows, weights: WordWeights) {
        let count = if COUNT > 0 { COUNT } else { weights.count };
        // Sums of the pixels at even places and of those at odd ones, or of the first ones and the others.
        let second = if STEP == 1 { 1 } else { PIXELS };
        // SAFETY: by the caller's contract.
        unsafe {
            for row in 0..b.rows {
                for first in (0..b.pixels).step_by(PIXELS) {
                    let mut from = b.x.add(row * b.step[0] * b.row + first * STEP);
                    let mut weight = weights.first;
                    let mut sums = [_mm256_setzero_si256(); 2];
                    for _ in 0..b.taps[0] {
                        for s in 0..count {
                            let weight = _mm256_set1_epi32(weight.add(s).read());
                            let from = from.add(s * weights.apart);
                            let products = [from, from.add(second)]
                                .map(|from| _mm256_madd_epi16(_mm256_loadu_si256(from.cast()), weight));
                            sums = [_mm256_add_epi32(sums[0], products[0]), _mm256_add_epi32(sums[1], products[1])];
                        }
                        from = from.wrapping_add(b.dilation[0] * b.row);
                        weight = weight.wrapping_add(weights.row);
                    }
                    if STEP == 1 {
                        let low = _mm256_unpacklo_epi32(sums[0], sums[1]);
                        let high = _mm256_unpackhi_epi32(sums[0], sums[1]);
                        sums = [
                            _mm256_permute2x128_si256::<0x20>(low, high),
                            _mm256_permute2x128_si256::<0x31>(low, high),
                        ];
                    }
                    let (y, pixels) = (b.y.wrapping_add(row * b.pixels + first), b.pixels - first);
                    store(y, pixels, sums[0]);
                    if pixels > PIXELS / 2 {
                        store(y.wrapping_add(PIXELS / 2), pixels - PIXELS / 2, sums[1]);
                    }
                }
            }
        }
    }

    /// Writes the first so many sums.
    ///
    /// # Safety
    /// They are writable.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn store(y: *mut i32, count: usize, sums: __m256i) {
        // SAFETY: by the caller's contract.
        unsafe {
            if count >= 8 {
                return _mm256_storeu_si256(y.cast(), sums);
            }
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_maskstore_epi32(y, _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes), sums);
        }
    }
}

pub(super) mod portable {
    use super::{PIXELS, TERMS, WordRows};

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn word_rows(b: &WordRows) {
        let taps = b.taps[1].next_multiple_of(TERMS);
        for (row, first) in (0..b.rows).flat_map(|row| (0..b.pixels).step_by(PIXELS).map(move |first| (row, first))) {
            let (count, mut sums) = (PIXELS.min(b.pixels - first), [0i32; PIXELS]);
            for (r, s) in (0..b.taps[0]).flat_map(|r| (0..b.taps[1]).map(move |s| (r, s))) {
                // SAFETY: by the caller's contract.
                unsafe {
                    let weight = i32::from(*b.w.wrapping_add(r * taps + s));
                    let word = (row * b.step[0] + r * b.dilation[0]) * b.row + first * b.step[1] + s * b.dilation[1];
                    for (p, sum) in sums.iter_mut().enumerate().take(count) {
                        *sum += i32::from(*b.x.wrapping_add(word + p * b.step[1])) * weight;
                    }
                }
            }
            let y = b.y.wrapping_add(row * b.pixels + first);
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(sums.as_ptr(), y, count) };
        }
    }
}
