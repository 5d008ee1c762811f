//! The transforms of Winograd convolution over blocks of channels, for patches of 6×6 and of 4×4 elements.
//!
//! F(m, 3) computes m outputs of a filter of three taps from m + 2 products: those of the values of two polynomials
//! at m + 1 points and infinity. The points are 0, ±√½, ±√2 for m = 4, which keeps rounding small (their
//! magnitudes multiply to 1), and 0, ±1 for m = 2. In two dimensions columns are transformed, then rows.
//! One body for all ISA levels, over their vectors.

use super::vector::Lanes;
use super::{LANES, PatchIn, PatchOut};

/// One block of channels.
const BLOCK: usize = LANES;

/// Points a and b of F(4, 3); a·b = 1.
const A: f32 = core::f32::consts::FRAC_1_SQRT_2;
const B: f32 = core::f32::consts::SQRT_2;

/// The transforms of one size, along one axis.
trait Filtering<X: Lanes, const N: usize, const M: usize> {
    /// Values of a polynomial with coefficients `d`, dual.
    unsafe fn winograd_input_transform(d: [X; N]) -> [X; N];
    /// Outputs of the products.
    unsafe fn winograd_output_transform(p: [X; N]) -> [X; M];
}

/// F(4, 3).
struct Four;
/// F(2, 3).
struct Two;

impl<X: Lanes> Filtering<X, 6, 4> for Four {
    #[inline(always)]
    unsafe fn winograd_input_transform(d: [X; 6]) -> [X; 6] {
        // SAFETY: passed on from the caller.
        unsafe {
            let (a, b, neg_a, neg_b) = (X::splat(A), X::splat(B), X::splat(-A), X::splat(-B));
            let (neg_half, neg_two, neg_sum) = (X::splat(-0.5), X::splat(-2.0), X::splat(-2.5));
            // Even and odd terms at ±a, less the root ±b, and the other way round.
            let (even_a, odd_a) = (neg_two.mul_add(d[2], d[4]), neg_two.mul_add(d[1], d[3]));
            let (even_b, odd_b) = (neg_half.mul_add(d[2], d[4]), neg_half.mul_add(d[1], d[3]));
            [
                neg_sum.mul_add(d[2], d[0].add(d[4])),
                a.mul_add(odd_a, even_a),
                neg_a.mul_add(odd_a, even_a),
                b.mul_add(odd_b, even_b),
                neg_b.mul_add(odd_b, even_b),
                neg_sum.mul_add(d[3], d[1].add(d[5])),
            ]
        }
    }

    #[inline(always)]
    unsafe fn winograd_output_transform(p: [X; 6]) -> [X; 4] {
        // SAFETY: passed on from the caller.
        unsafe {
            let (a, b) = (X::splat(A), X::splat(B));
            let (half, two) = (X::splat(0.5), X::splat(2.0));
            let (even_a, odd_a) = (p[1].add(p[2]), p[1].sub(p[2]));
            let (even_b, odd_b) = (p[3].add(p[4]), p[3].sub(p[4]));
            let zero = X::splat(0.0);
            // a·odd and b·odd once: their cubes are half and twice that.
            let (odd_a, odd_b) = (a.mul_add(odd_a, zero), b.mul_add(odd_b, zero));
            [
                p[0].add(even_a).add(even_b),
                odd_a.add(odd_b),
                half.mul_add(even_a, two.mul_add(even_b, zero)),
                half.mul_add(odd_a, two.mul_add(odd_b, p[5])),
            ]
        }
    }
}

impl<X: Lanes> Filtering<X, 4, 2> for Two {
    #[inline(always)]
    unsafe fn winograd_input_transform(d: [X; 4]) -> [X; 4] {
        // SAFETY: passed on from the caller.
        unsafe { [d[0].sub(d[2]), d[1].add(d[2]), d[2].sub(d[1]), d[3].sub(d[1])] }
    }

    #[inline(always)]
    unsafe fn winograd_output_transform(p: [X; 4]) -> [X; 2] {
        // SAFETY: passed on from the caller.
        unsafe { [p[0].add(p[1]).add(p[2]), p[1].sub(p[2]).add(p[3])] }
    }
}

/// Row `r` of columns.
#[inline(always)]
fn across<X: Lanes, const N: usize, const R: usize>(columns: &[[X; R]; N], r: usize) -> [X; N] {
    let mut row = [columns[0][r]; N];
    for (value, column) in row.iter_mut().zip(columns) {
        *value = column[r];
    }
    row
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn winograd_input_transform<X: Lanes, F: Filtering<X, N, M>, const N: usize, const M: usize>(t: &PatchIn) {
    for i in 0..t.count {
        for part in (0..BLOCK).step_by(X::LANES) {
            let x = t.x.wrapping_add(i * t.step + part);
            let v = t.v.wrapping_add(i * BLOCK + part);
            // SAFETY: all addresses are of elements of the patch.
            unsafe {
                let mut columns = [[X::splat(0.0); N]; N];
                for (c, column) in columns.iter_mut().enumerate() {
                    for (r, value) in column.iter_mut().enumerate() {
                        *value = X::load(x.add(r * t.row + c * t.pixel));
                    }
                    *column = F::winograd_input_transform(*column);
                }
                for r in 0..N {
                    let row = F::winograd_input_transform(across(&columns, r));
                    for (c, value) in row.iter().enumerate() {
                        value.store(v.add((r * N + c) * t.plane));
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn winograd_output_transform<X: Lanes, F: Filtering<X, N, M>, const N: usize, const M: usize>(t: &PatchOut) {
    for i in 0..t.count {
        for part in (0..BLOCK).step_by(X::LANES) {
            let p = t.p.wrapping_add(i * BLOCK + part);
            let y = t.y.wrapping_add(i * M * t.pixel + part);
            // SAFETY: all addresses are of elements of the patch.
            unsafe {
                let mut columns = [[X::splat(0.0); M]; N];
                for (c, column) in columns.iter_mut().enumerate() {
                    let mut sums = [X::splat(0.0); N];
                    for (r, value) in sums.iter_mut().enumerate() {
                        *value = X::load(p.add((r * N + c) * t.plane));
                    }
                    *column = F::winograd_output_transform(sums);
                }
                for r in 0..M {
                    let row = F::winograd_output_transform(across(&columns, r));
                    for (c, value) in row.iter().enumerate() {
                        value.store(y.add(r * t.row + c * t.pixel));
                    }
                }
            }
        }
    }
}

/// Both transforms in both sizes, compiled for the vectors of a ISA level.
macro_rules! level {
    ($vector:ty $(, $feature:literal)?) => {
        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        pub(in crate::isa_levels) unsafe fn winograd_input_transform(t: &PatchIn) {
            // SAFETY: passed on from the caller.
            unsafe {
                match t.size {
                    4 => super::winograd_input_transform::<$vector, super::Four, 6, 4>(t),
                    _ => super::winograd_input_transform::<$vector, super::Two, 4, 2>(t),
                }
            }
        }

        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        pub(in crate::isa_levels) unsafe fn winograd_output_transform(t: &PatchOut) {
            // SAFETY: passed on from the caller.
            unsafe {
                match t.size {
                    4 => super::winograd_output_transform::<$vector, super::Four, 6, 4>(t),
                    _ => super::winograd_output_transform::<$vector, super::Two, 4, 2>(t),
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {

    use core::arch::x86_64::*;

    use super::super::avx512_data::first;
    use super::super::vector::Lanes;
    use super::{PatchIn, PatchOut};

    impl Lanes for __m512 {
        const LANES: usize = 16;
        const SUMS: usize = 24;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: passed on from the caller, as below.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(p) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(p, self) }
        }

        #[inline(always)]
        unsafe fn load_few(p: *const f32, count: usize) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_maskz_loadu_ps(first(count), p) }
        }

        #[inline(always)]
        unsafe fn store_few(self, p: *mut f32, count: usize) {
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(p, first(count), self) }
        }

        #[inline(always)]
        unsafe fn fetch(p: *const f32) {
            // SAFETY: any address will do.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }

        #[inline(always)]
        unsafe fn deinterleave(self, b: Self) -> [Self; 2] {
            // SAFETY: as above.
            unsafe {
                let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
                [even, odd].map(|places| _mm512_permutex2var_ps(self, places, b))
            }
        }

        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_sub_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }
    }

    level!(__m512, "avx512f");
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {

    use core::arch::x86_64::__m256;

    use super::{PatchIn, PatchOut};

    level!(__m256, "avx2,fma");
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use core::arch::aarch64::float32x4_t;

    use super::{PatchIn, PatchOut};

    level!(float32x4_t);
}

pub(super) mod portable {

    use crate::fused::{Baseline, FusedMultiplyAdd};

    use super::super::vector::Lanes;
    use super::{PatchIn, PatchOut};

    impl Lanes for f32 {
        const LANES: usize = 1;
        const SUMS: usize = 12;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            x
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: passed on from the caller.
            unsafe { *p }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: as above.
            unsafe { *p = self }
        }

        #[inline(always)]
        unsafe fn load_few(p: *const f32, count: usize) -> Self {
            // SAFETY: as above.
            if count > 0 { unsafe { *p } } else { 0.0 }
        }

        #[inline(always)]
        unsafe fn store_few(self, p: *mut f32, count: usize) {
            if count > 0 {
                // SAFETY: as above.
                unsafe { *p = self }
            }
        }

        #[inline(always)]
        unsafe fn deinterleave(self, b: Self) -> [Self; 2] {
            [self, b]
        }

        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            self + b
        }

        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            self - b
        }

        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            Baseline.mul_add(self, b, c)
        }
    }

    level!(f32);
}
