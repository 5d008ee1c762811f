//! Sums of depthwise convolutions of bytes: an image unsigned, filters signed, exact in i32.
//!
//! With AVX-512 VNNI and VBMI a permutation puts four neighbouring taps of sixteen pixels side by side, which `vpdpbusd`
//! multiplies; bytes outside of the image are masked off. AVX2 multiplies pairs of taps in 16 bits, which hold every byte of
//! both signs (`vpmaddwd`).

use super::{IsaLevel, TERMS};

/// Bytes behind the last one of an image that are readable.
pub(crate) const READABLE: usize = 64;

/// Rows of pixels of one channel.
pub(crate) struct ByteRows<'a> {
    /// What tap (r, s) reads for pixel p of row q: row `first[0] + q·step[0] + r·dilation[0]` and column
    /// `first[1] + p·step[1] + s·dilation[1]` of the image, whose rows lie side by side. What lies outside is 0, and is read
    /// only where [`IsaLevel::reads_outside`].
    pub x: *const u8,
    pub image: [usize; 2],
    pub first: [isize; 2],
    pub step: [usize; 2],
    pub dilation: [usize; 2],
    /// [`tap_places`] of the step and dilation along columns.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AVX-512"))]
    pub places: &'a [u8; 64],
    /// Rows of taps, and groups of four in each: weight (r, s) at `w[r·4·groups + s]`.
    pub taps: [usize; 2],
    pub w: *const i8,
    /// Sum of pixel p of row q at `y[q·pixels + p]`.
    pub rows: usize,
    pub pixels: usize,
    pub y: *mut i32,
}

impl ByteRows<'_> {
    /// Where tap (r, s) of a pixel lies, in an image that holds it.
    fn at(&self, [row, pixel]: [usize; 2], [r, s]: [usize; 2]) -> *const u8 {
        let along =
            |d: usize, of: usize, tap: usize| self.first[d] + (of * self.step[d] + tap * self.dilation[d]) as isize;
        self.x.wrapping_offset(along(0, row, r) * self.image[1] as isize + along(1, pixel, s))
    }
}

/// Distances of the bytes that four taps of sixteen pixels read from the first one, if they are less than 64.
pub(crate) fn tap_places(step: usize, dilation: usize) -> [u8; 64] {
    core::array::from_fn(|byte| (byte / TERMS * step + byte % TERMS * dilation).min(63) as u8)
}

impl IsaLevel {
    /// Whether [`ByteRows`] of so many groups in a row of taps may read outside of an image.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "for AVX-512"))]
    pub fn reads_outside(self, groups: usize, step: usize, dilation: usize) -> bool {
        match self.isa() {
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Amx | crate::isa::Isa::Avx512 => avx512::permutes(groups, step, dilation),
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::LANES;
    use super::{ByteRows, TERMS};
    use crate::isa::has_byte_permutations;

    /// Whether a permutation of 64 bytes has what four taps of sixteen pixels read, for one or two groups in a row of taps.
    pub fn permutes(groups: usize, step: usize, dilation: usize) -> bool {
        let farthest = (LANES - 1) * step + (TERMS - 1) * dilation;
        groups <= 2 && farthest < size_of::<__m512i>() && has_byte_permutations()
    }

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn byte_rows(b: &ByteRows<'_>) {
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match b.taps[1] {
                groups if !permutes(groups, b.step[1], b.dilation[1]) => super::avx2::byte_rows(b),
                1 => permuted::<1>(b),
                _ => permuted::<2>(b),
            }
        }
    }

    /// # Safety
    /// As [`byte_rows`], with AVX-512 VNNI and VBMI, so many groups in a row of taps, and all that the taps of sixteen pixels
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

    use super::{ByteRows, TERMS};

    /// Pixels that are computed together.
    const PIXELS: usize = 16;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn byte_rows(b: &ByteRows<'_>) {
        // SAFETY: passed on from the caller.
        unsafe {
            match b.step[1] {
                1 => pairs::<1>(b),
                2 => pairs::<2>(b),
                _ => super::portable::byte_rows(b),
            }
        }
    }

    /// # Safety
    /// As [`byte_rows`], with this step.
    #[target_feature(enable = "avx2")]
    unsafe fn pairs<const STEP: usize>(b: &ByteRows<'_>) {
        // SAFETY: by the caller's contract; pixels that there are not are masked off.
        unsafe {
            for row in 0..b.rows {
                for first in (0..b.pixels).step_by(PIXELS) {
                    let mut sums = [_mm256_setzero_si256(); 2];
                    for r in 0..b.taps[0] {
                        for tap in (0..b.taps[1] * TERMS).step_by(2) {
                            let w = b.w.wrapping_add(r * b.taps[1] * TERMS + tap);
                            let [even, odd] = [0, 1].map(|i| i32::from(*w.add(i)));
                            let weights = _mm256_set1_epi32((even & 0xffff) | odd << 16);
                            let x = b.at([row, first], [r, tap]);
                            let pair = [words::<STEP>(x), words::<STEP>(x.wrapping_add(b.dilation[1]))];
                            let halves =
                                [_mm256_unpacklo_epi16(pair[0], pair[1]), _mm256_unpackhi_epi16(pair[0], pair[1])];
                            for (sum, half) in sums.iter_mut().zip(halves) {
                                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(half, weights));
                            }
                        }
                    }
                    let y = b.y.wrapping_add(row * b.pixels + first);
                    store(y, b.pixels - first, _mm256_permute2x128_si256::<0x20>(sums[0], sums[1]));
                    if b.pixels - first > PIXELS / 2 {
                        let left = b.pixels - first - PIXELS / 2;
                        let behind = _mm256_permute2x128_si256::<0x31>(sums[0], sums[1]);
                        store(y.wrapping_add(PIXELS / 2), left, behind);
                    }
                }
            }
        }
    }

    /// Sixteen bytes, each so far behind the one before it, as words.
    ///
    /// # Safety
    /// They are readable, and so is the byte behind the last one.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn words<const STEP: usize>(x: *const u8) -> __m256i {
        // SAFETY: by the caller's contract.
        unsafe {
            match STEP {
                1 => _mm256_cvtepu8_epi16(_mm_loadu_si128(x.cast())),
                _ => _mm256_and_si256(_mm256_loadu_si256(x.cast()), _mm256_set1_epi16(0xff)),
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
    use super::{ByteRows, TERMS};

    /// Pixels that are computed together.
    const PIXELS: usize = 16;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn byte_rows(b: &ByteRows<'_>) {
        let taps = b.taps[1] * TERMS;
        for (row, first) in (0..b.rows).flat_map(|row| (0..b.pixels).step_by(PIXELS).map(move |first| (row, first))) {
            let (count, mut sums) = (PIXELS.min(b.pixels - first), [0i32; PIXELS]);
            for (r, s) in (0..b.taps[0]).flat_map(|r| (0..taps).map(move |s| (r, s))) {
                // SAFETY: by the caller's contract.
                let weight = unsafe { i32::from(*b.w.wrapping_add(r * taps + s)) };
                if weight == 0 {
                    continue;
                }
                let x = b.at([row, first], [r, s]);
                for (p, sum) in sums.iter_mut().enumerate().take(count) {
                    // SAFETY: as above; taps that there are not have no weight.
                    *sum += unsafe { i32::from(*x.wrapping_add(p * b.step[1])) } * weight;
                }
            }
            let y = b.y.wrapping_add(row * b.pixels + first);
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(sums.as_ptr(), y, count) };
        }
    }
}
