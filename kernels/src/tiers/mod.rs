//! The inner kernels, one set for each instruction-set tier, behind plain argument structs.
//!
//! All tiers read the same packed layouts and add in the same order, so their results are equal
//! bit for bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_data;
mod portable;

use crate::Isa;

/// Most rows of one packed panel of the left operand.
pub(crate) const MR: usize = 12;
/// Columns of one packed panel of the right operand.
pub(crate) const NR: usize = 32;
/// Lanes described by one [`Runs`].
pub(crate) const LANES: usize = 16;

/// One tile of C: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < mr ≤ MR`, `j < nr ≤ NR`.
pub(crate) struct Tile {
    pub k: usize,
    /// Packed panel: element (i, k) at `a[k·mr + i]`.
    pub a: *const f32,
    pub mr: usize,
    /// Element (k, j) at `b[k·ldb + j]`.
    pub b: *const f32,
    pub ldb: usize,
    pub nr: usize,
    /// Element (i, j) at `c[i·ldc + j]`.
    pub c: *mut f32,
    pub ldc: isize,
    /// Whether the sum continues from what C holds instead of zero.
    pub continued: bool,
    /// Whether each row of B is readable up to NR columns.
    pub padded: bool,
}

/// `C[i, j] = Σ_k A[i, k]·B[k, j]` for `i < m ≤ SKINNY_ROWS` and all `j < n`, reading B once.
pub(crate) struct Skinny {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Element (i, k) at `a[i·a_row + k·a_col]`.
    pub a: *const f32,
    pub a_row: isize,
    pub a_col: isize,
    /// Element (k, j) at `b[(j / NR)·b_panel + k·b_row + j % NR]`.
    pub b: *const f32,
    pub b_row: isize,
    pub b_panel: isize,
    pub c: *mut f32,
    pub ldc: isize,
}

/// Most rows of a [`Skinny`] product.
pub(crate) const SKINNY_ROWS: usize = 3;

/// `dst[k·ld + j] = src[k·k_stride + j·j_stride]` for `j < width`, zero for `width ≤ j < pad`.
///
/// `pad ≤ NR`; the source may be unaligned.
pub(crate) struct Panel {
    pub src: *const f32,
    pub k_stride: isize,
    pub j_stride: isize,
    pub k: usize,
    pub width: usize,
    pub dst: *mut f32,
    pub ld: usize,
    pub pad: usize,
}

/// Where the 16 lanes of one vector of image pixels come from: lane l of run i reads
/// `offset[i] + l·step` when bit l of `mask[i]` is set. Lanes in no run are zero.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    pub count: usize,
    pub offset: [isize; LANES],
    pub mask: [u16; LANES],
    pub step: usize,
}

impl Runs {
    pub(crate) const fn empty(step: usize) -> Self {
        Runs { count: 0, offset: [0; LANES], mask: [0; LANES], step }
    }

    pub(crate) fn push(&mut self, offset: isize, mask: u16) {
        if mask != 0 {
            self.offset[self.count] = offset;
            self.mask[self.count] = mask;
            self.count += 1;
        }
    }
}

/// Copies the vector described by `runs` out of each of `planes` consecutive image planes.
pub(crate) struct Fetch<'a> {
    pub runs: &'a Runs,
    pub src: *const f32,
    pub plane: usize,
    pub planes: usize,
    pub dst: *mut f32,
    pub dst_step: usize,
}

/// Rows of one plane of a depthwise convolution (see [`crate::conv`] for the sum).
pub(crate) struct Depthwise<'a> {
    /// Input plane, `input[0] × input[1]`.
    pub x: *const f32,
    /// Filter, `kernel[0] × kernel[1]`.
    pub w: *const f32,
    /// Output plane.
    pub y: *mut f32,
    /// Output rows to compute.
    pub rows: std::ops::Range<usize>,
    pub shape: &'a DepthwiseShape,
}

/// What all planes of a depthwise convolution have in common.
pub(crate) struct DepthwiseShape {
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
    /// For filter column s, the half-open range of output columns whose tap lies in the image.
    pub columns: Vec<(usize, usize)>,
    /// Lanes in the image of output vector v at filter column s, at `[v·kernel[1] + s]`.
    pub masks: Vec<u16>,
}

/// The inner kernels of one tier.
///
/// # Safety
/// Every function needs its tier to be available and every element its arguments describe to be
/// readable (writable for the output).
pub(crate) struct Tier {
    pub tile: unsafe fn(&Tile),
    pub skinny: unsafe fn(&Skinny),
    pub panel: unsafe fn(&Panel),
    pub fetch: unsafe fn(&Fetch<'_>),
    pub depthwise: unsafe fn(&Depthwise<'_>),
}

/// The kernels of `isa`.
///
/// # Panics
/// If this machine cannot execute the tier.
pub(crate) fn tier(isa: Isa) -> &'static Tier {
    assert!(isa == crate::isa() || isa.is_available(), "this machine does not have the tier {isa:?}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::TIER,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::TIER,
        _ => &portable::TIER,
    }
}
