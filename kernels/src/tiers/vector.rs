//! What the kernels in `narrow`, `narrow_blocked` and `narrow_depthwise` need of the vectors of an instruction set.

/// A vector of f32.
///
/// # Safety
/// Every function needs the instructions of its vector, and to be inlined into code compiled for them to be
/// fast; the elements that are loaded or stored must be valid.
pub(super) trait Vector: Copy {
    const LANES: usize;
    /// Which lanes are the first few.
    type First: Copy;
    /// Some of the lanes.
    type Lanes: Copy;
    /// Which elements [`Vector::load_taps`] reads.
    type Taps: Copy;

    /// The first `count` lanes, at least one.
    unsafe fn first(count: usize) -> Self::First;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Zero in the other lanes, whose elements are not read.
    unsafe fn load_first(p: *const f32, first: Self::First) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn store_first(self, p: *mut f32, first: Self::First);
    /// Lane l if bit l is set.
    unsafe fn lanes(bits: u8) -> Self::Lanes;
    /// `a` in these lanes, `b` in the others.
    unsafe fn select(lanes: Self::Lanes, a: Self, b: Self) -> Self;
    /// Those of the lanes whose bits are set.
    unsafe fn taps<const STEP: usize>(bits: u8) -> Self::Taps;
    /// Element `STEP·l` in lane l, `STEP` being 1 or 2; zero in lanes without.
    unsafe fn load_taps<const STEP: usize>(p: *const f32, taps: Self::Taps) -> Self;
    /// `self·b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
}
