//! What the kernels in `narrow` and `narrow_blocked` need of the vectors of an instruction set.

/// A vector of f32.
///
/// # Safety
/// Every function needs the instructions of its vector, and to be inlined into code compiled for them to be
/// fast; the elements that are loaded or stored must be valid.
pub(super) trait Vector: Copy {
    const LANES: usize;
    /// Which lanes are the first few.
    type First: Copy;

    /// The first `count` lanes, at least one.
    unsafe fn first(count: usize) -> Self::First;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Zero in the other lanes, whose elements are not read.
    unsafe fn load_first(p: *const f32, first: Self::First) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn store_first(self, p: *mut f32, first: Self::First);
    /// `self·b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
}
