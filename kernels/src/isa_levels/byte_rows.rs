//! Sums of depthwise convolutions of bytes: an image unsigned, filters signed, exact in i32.
//!
//! With AVX-512 VNNI and VBMI a permutation puts four neighbouring taps of sixteen pixels side by side, which `vpdpbusd`
//! multiplies. AVX2 multiplies pairs of taps in 16 bits, which hold every byte of both signs (`vpmaddwd`).

use super::TERMS;

/// Bytes behind the last one of an image that are readable.
pub(crate) const READABLE: usize = 64;

/// Rows of pixels of one channel.
pub(crate) struct ByteRows {
    /// What tap (r, s) reads for pixel p of row q: `x[q·next + r·row + s·dilation + p·step]`.
    pub x: *const u8,
    pub next: usize,
    pub row: usize,
    pub dilation: usize,
    pub step: usize,
    /// Rows of taps, and groups of four in each: weight (r, s) at `w[r·4·groups + s]`.
    pub taps: [usize; 2],
    pub w: *const i8,
    /// Sum of pixel p of row q at `y[q·pixels + p]`.
    pub rows: usize,
    pub pixels: usize,
    pub y: *mut i32,
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    use super::super::LANES;
    use super::{ByteRows, TERMS};
    use crate::isa::has_byte_permutations;

    /// # Safety
    /// As [`super::super::IsaLevel`].
    pub unsafe fn byte_rows(b: &ByteRows) {
        let farthest = (LANES - 1) * b.step + (TERMS - 1) * b.dilation;
        // SAFETY: passed on from the caller; the instructions exist where they are used.
        unsafe {
            match has_byte_permutations() && farthest < size_of::<__m512i>() {
                true => permuted(b),
                false => super::avx2::byte_rows(b),
            }
        }
    }

    /// # Safety
    /// As [`byte_rows`], with AVX-512 VNNI and VBMI, and all that the taps of sixteen pixels read in 64 bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    unsafe fn permuted(b: &ByteRows) {
        let places: [u8; 64] = core::array::from_fn(|byte| (byte / TERMS * b.step + byte % TERMS * b.dilation) as u8);
        // SAFETY: by the caller's contract; pixels that there are not are masked off.
        unsafe {
            let order = _mm512_loadu_si512(places.as_ptr().cast());
            for row in 0..b.rows {
                for first in (0..b.pixels).step_by(LANES) {
                    let x = b.x.wrapping_add(row * b.next + first * b.step);
                    let mut sums = _mm512_setzero_si512();
                    let mut w = b.w;
                    for r in 0..b.taps[0] {
                        for group in 0..b.taps[1] {
                            let bytes = x.wrapping_add(r * b.row + group * TERMS * b.dilation);
                            let bytes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(bytes.cast()));
                            let weights = _mm512_set1_epi32(w.cast::<i32>().read_unaligned());
                            sums = _mm512_dpbusd_epi32(sums, bytes, weights);
                            w = w.wrapping_add(TERMS);
                        }
                    }
                    let mask = ((1u32 << (b.pixels - first).min(LANES)) - 1) as u16;
                    _mm512_mask_storeu_epi32(b.y.wrapping_add(row * b.pixels + first), mask, sums);
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
    pub unsafe fn byte_rows(b: &ByteRows) {
        // SAFETY: passed on from the caller.
        unsafe {
            match b.step {
                1 => pairs::<1>(b),
                2 => pairs::<2>(b),
                _ => super::portable::byte_rows(b),
            }
        }
    }

    /// # Safety
    /// As [`byte_rows`], with this step.
    #[target_feature(enable = "avx2")]
    unsafe fn pairs<const STEP: usize>(b: &ByteRows) {
        // SAFETY: by the caller's contract; pixels that there are not are masked off.
        unsafe {
            for row in 0..b.rows {
                for first in (0..b.pixels).step_by(PIXELS) {
                    let x = b.x.wrapping_add(row * b.next + first * STEP);
                    let mut sums = [_mm256_setzero_si256(); 2];
                    for r in 0..b.taps[0] {
                        for tap in (0..b.taps[1] * TERMS).step_by(2) {
                            let w = b.w.wrapping_add(r * b.taps[1] * TERMS + tap);
                            let [even, odd] = [0, 1].map(|i| i32::from(*w.add(i)));
                            let weights = _mm256_set1_epi32((even & 0xffff) | odd << 16);
                            let x = x.wrapping_add(r * b.row + tap * b.dilation);
                            let pair = [words::<STEP>(x), words::<STEP>(x.wrapping_add(b.dilation))];
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
    pub unsafe fn byte_rows(b: &ByteRows) {
        let taps = b.taps[1] * TERMS;
        for (row, first) in (0..b.rows).flat_map(|row| (0..b.pixels).step_by(PIXELS).map(move |first| (row, first))) {
            let (count, mut sums) = (PIXELS.min(b.pixels - first), [0i32; PIXELS]);
            let x = b.x.wrapping_add(row * b.next + first * b.step);
            for (r, s) in (0..b.taps[0]).flat_map(|r| (0..taps).map(move |s| (r, s))) {
                // SAFETY: by the caller's contract.
                let weight = unsafe { i32::from(*b.w.wrapping_add(r * taps + s)) };
                if weight == 0 {
                    continue;
                }
                let x = x.wrapping_add(r * b.row + s * b.dilation);
                for (p, sum) in sums.iter_mut().enumerate().take(count) {
                    // SAFETY: as above; taps that there are not have no weight.
                    *sum += unsafe { i32::from(*x.wrapping_add(p * b.step)) } * weight;
                }
            }
            let y = b.y.wrapping_add(row * b.pixels + first);
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(sums.as_ptr(), y, count) };
        }
    }
}
