//! Operations on single f32 values that `core` does not have: fused multiply-adds and square roots.
//!
//! What computes a multiply-add is a value of type [`FusedMultiplyAdd`], which the bodies shared by all ISA levels take: the
//! compiler makes vectors of the instructions behind it, but not of calls of a library.

/// A way to compute `a·b + c`, rounded once.
pub(crate) trait FusedMultiplyAdd: Copy {
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32;
}

/// What every machine of the target has: its instruction, or a function of the `libm` crate.
#[derive(Clone, Copy)]
pub(crate) struct Baseline;

impl FusedMultiplyAdd for Baseline {
    #[inline(always)]
    #[cfg(target_arch = "aarch64")]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        use core::arch::aarch64::{vdup_n_f32, vfmas_lane_f32};
        // SAFETY: every target of this architecture has NEON.
        unsafe { vfmas_lane_f32::<0>(c, a, vdup_n_f32(b)) }
    }

    #[inline(always)]
    #[cfg(all(target_arch = "riscv64", target_feature = "f"))]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        let result;
        // SAFETY: the instruction computes a value of values.
        unsafe {
            core::arch::asm!(
                "fmadd.s {result}, {a}, {b}, {c}",
                result = lateout(freg) result,
                a = in(freg) a,
                b = in(freg) b,
                c = in(freg) c,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        result
    }

    #[inline(always)]
    #[cfg(not(any(target_arch = "aarch64", all(target_arch = "riscv64", target_feature = "f"))))]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        libm::fmaf(a, b, c)
    }
}

/// The instructions of x86-64, on machines that have them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Fma(());

#[cfg(target_arch = "x86_64")]
impl Fma {
    /// # Safety
    /// The machine has the feature `fma`.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Fma {
        Fma(())
    }
}

#[cfg(target_arch = "x86_64")]
impl FusedMultiplyAdd for Fma {
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_fmadd_ss, _mm_set_ss};
        // SAFETY: whoever made `self` has promised the feature.
        unsafe { _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))) }
    }
}

/// The square root, rounded to nearest.
#[inline(always)]
pub(crate) fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_set_ss, _mm_sqrt_ss};
        // SAFETY: every target of this architecture has SSE.
        unsafe { _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))) }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use core::arch::aarch64::{vdup_n_f32, vget_lane_f32, vsqrt_f32};
        // SAFETY: every target of this architecture has NEON.
        unsafe { vget_lane_f32::<0>(vsqrt_f32(vdup_n_f32(x))) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        libm::sqrtf(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_adds_round_once() {
        let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        let exact = -f32::EPSILON * f32::EPSILON;
        assert_eq!(Baseline.mul_add(a, b, -1.0), exact);
        #[cfg(target_arch = "x86_64")]
        if crate::Isa::Avx2.is_available() {
            // SAFETY: the ISA level has the feature.
            assert_eq!(unsafe { Fma::new() }.mul_add(a, b, -1.0), exact);
        }
        assert_eq!(sqrt(2.0), core::f32::consts::SQRT_2);
    }
}
