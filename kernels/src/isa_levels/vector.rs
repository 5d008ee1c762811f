//! What the kernels in `narrow`, `narrow_blocked`, `staged` and `winograd` need of the vectors of an
//! instruction set.

/// A few f32.
///
/// # Safety
/// Every function needs the instructions of its vector, and to be inlined into code compiled for them to be
/// fast; the elements that are loaded or stored must be valid.
pub(super) trait Lanes: Copy {
    const LANES: usize;
    /// Vectors of sums that leave registers for what is multiplied.
    const SUMS: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// The first `count` lanes, or all if there are fewer, and zero in the others, whose elements are not read.
    unsafe fn load_few(p: *const f32, count: usize) -> Self;
    /// Stores the first `count` lanes, or all if there are fewer.
    unsafe fn store_few(self, p: *mut f32, count: usize);
    /// Brings the cache line of an address, which need not be valid, into the first-level cache.
    unsafe fn fetch(_: *const f32) {}
    /// The elements at even and at odd places of two vectors in turn.
    unsafe fn deinterleave(self, b: Self) -> [Self; 2];
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    /// `self·b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
}

/// A vector of which the first few elements can be read or written alone.
///
/// # Safety
/// As for [`Lanes`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) trait Vector: Lanes {
    /// Which lanes are the first few.
    type First: Copy;

    /// The first `count` lanes, at least one.
    unsafe fn first(count: usize) -> Self::First;
    /// Zero in the other lanes, whose elements are not read.
    unsafe fn load_first(p: *const f32, first: Self::First) -> Self;
    unsafe fn store_first(self, p: *mut f32, first: Self::First);

    /// Copies a square of as many rows as a vector has lanes: element j of row i, of rows `stride` apart, becomes
    /// element i of row j, of rows `ld` apart.
    unsafe fn copy_transposed(src: *const f32, stride: isize, dst: *mut f32, ld: isize);
    /// Brings the cache line of an address, which need not be valid, into the second-level cache.
    unsafe fn fetch_far(_: *const f32) {}
}
