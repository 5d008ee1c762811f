//! The inner kernels, one set for each instruction-set ISA level, behind plain argument structs.
//!
//! All ISA levels read the same packed layouts and add in the same order, so their results are equal
//! bit for bit.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_blocked;
#[cfg(target_arch = "x86_64")]
mod avx512_data;
mod byte_rows;
mod byte_windows;
mod double;
mod excess;
mod integer;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod narrow;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod narrow_blocked;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod narrow_pack;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod portable_blocked;
mod products;
mod quantised;
mod rounded;
mod rounded_blocked;
mod staged;
mod vector;
mod winograd;

use crate::isa::Isa;

pub(crate) use attention::{Dots, Scores};
pub(crate) use byte_rows::{ByteRows, PIXELS, PermutedRows, READABLE, WordRows, tap_places};
pub(crate) use byte_windows::{ColumnRun, QuadWindows, TermWindows};
pub(crate) use double::{DOUBLE_COLS, DOUBLE_ROWS, DoubleTile};
pub(crate) use excess::{Excess, NarrowedRow, Sums16};
pub(crate) use integer::{CHUNK, INTEGER_COLS, IntegerGroup, IntegerTile, NextRows, TERMS};
pub(crate) use products::Products;
pub(crate) use quantised::{CODED_ROWS, CodedPanel, CodedRows, Decoded};
use rounded::RoundedPair;
pub(crate) use rounded::{PAIR, RoundedPanel, RoundedRow, RoundedTile};

/// Most rows of one packed panel of the left operand.
pub(crate) const MR: usize = 12;
/// Most rows of a tile of C whose terms come in groups.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of one packed panel of the right operand.
pub(crate) const NR: usize = 32;
/// Lanes of one vector of pixels.
pub(crate) const LANES: usize = 16;

/// One tile of C: `C[i, j] (+)= Σ_k A[i, k]·B[k, j]` for `i < mr ≤ MR`, `j < nr ≤ NR`.
pub(crate) struct Tile {
    pub k: usize,
    /// Element (i, k) at `a[i·a_row + k·a_step]`: of a packed panel, `a[i + k·mr]`.
    pub a: *const f32,
    pub a_row: isize,
    pub a_step: isize,
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
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, reason = "for vectors"))]
    pub padded: bool,
    /// What to fetch into the cache for later tiles.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, reason = "for vectors"))]
    pub ahead: Ahead,
}

/// Rows of at most [`NR`] elements that will be needed soon; their addresses need not be valid.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, reason = "for vectors"))]
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub first: *const f32,
    /// Elements from one row to the next.
    pub step: isize,
    pub rows: usize,
}

impl Ahead {
    pub(crate) const NOTHING: Ahead = Ahead { first: core::ptr::null(), step: 0, rows: 0 };

    /// Neighbouring elements.
    pub(crate) fn elements(first: *const f32, len: usize) -> Ahead {
        Ahead { first, step: NR as isize, rows: len.div_ceil(NR) }
    }
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
pub(crate) const SKINNY_ROWS: usize = 6;

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
    pub ld: isize,
    pub pad: usize,
}

/// Terms of rows, each of which lies beside the one before it, until all rows begin a line of the cache; 0 if they never do.
pub(crate) fn terms_before_line(src: *const f32, row_stride: isize) -> usize {
    /// Bytes of a line.
    const LINE: usize = LANES * size_of::<f32>();
    if row_stride % LANES as isize == 0 { src.addr().wrapping_neg() % LINE / size_of::<f32>() } else { 0 }
}

/// Output pixels of one vector that lie in one output row of one image: lanes `first..first + len` are the
/// pixels from (row, col) on.
#[derive(Clone, Copy, Default)]
pub(crate) struct Segment {
    pub first: usize,
    pub len: usize,
    /// Elements from the first image to theirs.
    pub image: usize,
    pub row: usize,
    pub col: usize,
}

/// The input elements under every filter tap of one vector of output pixels, for consecutive
/// channels: lane l of tap (r, s) of channel i goes to `dst[(i·taps + r·kernel[1] + s)·NR + l]`,
/// zero for taps in the padding and lanes in no segment.
pub(crate) struct InputWindow<'a> {
    pub segments: &'a [Segment],
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
    /// Plane of the first channel of the first image.
    pub src: *const f32,
    pub channels: usize,
    pub dst: *mut f32,
}

impl InputWindow<'_> {
    /// For filter column s: the input column lane zero would read (possibly outside the image) and
    /// the lanes whose tap lies in the image.
    #[inline(always)]
    pub(crate) fn columns(&self, segment: &Segment, s: usize) -> (isize, u16) {
        let step = self.strides[1];
        let start = (segment.col * step + s * self.dilations[1]) as isize - self.pads[1] as isize;
        let skipped = if start < 0 { start.unsigned_abs().div_ceil(step).min(segment.len) } else { 0 };
        let left = (self.input[1] as isize - start).max(0) as usize;
        let end = if left >= segment.len * step { segment.len } else { left.div_ceil(step).max(skipped) };
        let bits = |count: usize| (1u32 << count) - 1;
        let mask = bits(segment.first + end) & !bits(segment.first + skipped);
        (start - (segment.first * step) as isize, mask as u16)
    }

    /// The input row under filter row r, if it is in the image.
    #[inline(always)]
    pub(crate) fn row(&self, segment: &Segment, r: usize) -> Option<usize> {
        let row = (segment.row * self.strides[0] + r * self.dilations[0]).wrapping_sub(self.pads[0]);
        (row < self.input[0]).then_some(row)
    }

    pub(crate) fn plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }
}

/// Bit i of `mask` at bit 2·i.
#[cfg(target_arch = "x86_64")]
const fn spread(mask: u8) -> u16 {
    let mut bits = mask as u16;
    bits = (bits | bits << 4) & 0x0f0f;
    bits = (bits | bits << 2) & 0x3333;
    (bits | bits << 1) & 0x5555
}

/// Rows of one plane of a convolution that reads one channel.
pub(crate) struct Plane<'a> {
    /// Input plane, `input[0] × input[1]`.
    pub x: *const f32,
    /// Filter, `kernel[0] × kernel[1]`.
    pub w: *const f32,
    /// Output plane.
    pub y: *mut f32,
    /// Output rows to compute.
    pub rows: core::ops::Range<usize>,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
    /// For filter column s, the half-open range of output columns whose tap lies in the image.
    pub columns: &'a [[u32; 2]],
}

/// Rows of a plane with zeros for their padding, of which columns that leave the same remainder lie side by side: column
/// `step·q + phase - pad` of row `first + i` at `to[(i·step + phase)·width + q]`.
pub(crate) struct StagedLines {
    pub x: *const f32,
    /// Rows and columns of the plane.
    pub input: [usize; 2],
    /// Modulo 2⁶⁴; rows outside the plane are zero.
    pub first: usize,
    pub count: usize,
    pub pad: usize,
    pub step: usize,
    pub to: *mut f32,
    /// At least [`LANES`].
    pub width: usize,
    /// Elements from each of x to what will be staged next; any address will do.
    pub ahead: usize,
}

/// Rows of some output channels of a convolution that read the same input channels, which are staged.
pub(crate) struct StagedRows<'a> {
    /// What the first term of the first column of the first row reads. From there on all columns are readable, up to whole vectors of
    /// [`LANES`], for every row and term.
    pub x: *const f32,
    /// Elements of x from an output row to the next.
    pub row: usize,
    /// Elements of x to what each term of the sum reads.
    pub terms: &'a [u32],
    /// Term k of channel o at `w[k·channels + o]`.
    pub w: *const f32,
    /// At most [`MR`].
    pub channels: usize,
    pub rows: usize,
    pub columns: usize,
    /// Column c of row r of channel o at `y[o·plane + r·columns + c]`.
    pub y: *mut f32,
    pub plane: usize,
    /// Whether the sum continues from what y holds instead of zero.
    pub continued: bool,
}

/// Most output pixels of a [`RegisterTile`].
pub(crate) const TILE_PIXELS: usize = 14;

/// A few output pixels of a convolution whose output channels come in blocks, in `rows` neighbouring rows, and one
/// panel of `vectors` blocks.
///
/// Term k of the sum counts channel blocks of x, filter rows, filter columns and channels of a block,
/// the last fastest.
#[derive(Clone, Copy)]
pub(crate) struct RegisterTile {
    /// What the first term of the first pixel reads.
    pub x: *const f32,
    /// Elements of x between neighbouring pixels and between rows.
    pub step: usize,
    pub row: usize,
    /// 1, or 2 with at most half of [`TILE_PIXELS`].
    pub rows: usize,
    /// Pixels of each row.
    pub pixels: usize,
    /// Channel blocks of x, and elements between them.
    pub blocks: usize,
    pub block: usize,
    pub kernel: [usize; 2],
    /// Elements of x between filter rows and columns.
    pub tap: [usize; 2],
    /// Channels of a block of x, which lie side by side.
    pub channels: usize,
    /// Element (k, j) of the panel at `w[k·16·vectors + j]`.
    pub w: *const f32,
    /// 1 or 2.
    pub vectors: usize,
    /// Where to fetch into the cache what later tiles need, 16 elements for each term; any address will do.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for AVX-512"))]
    pub ahead: *const f32,
    /// Pixel i (in row-major order) of channel block v at `y[v·y_block + i·y_step]`.
    pub y: *mut f32,
    pub y_step: usize,
    pub y_block: usize,
    /// Whether the sum continues from what y holds instead of zero.
    pub continued: bool,
}

/// Neighbouring output pixels of one row of a depthwise convolution over a block of channels, all of whose
/// taps `kernel` lie in the image.
pub(crate) struct DepthwiseTile {
    pub x: *const f32,
    /// Elements of x between neighbouring pixels.
    pub step: usize,
    pub pixels: usize,
    pub kernel: [usize; 2],
    /// Elements of x between filter rows and columns.
    pub tap: [usize; 2],
    /// Tap (r, s) of the channels at `w[r·w_row + 16·s]`.
    pub w: *const f32,
    pub w_row: usize,
    /// Pixel i at `y[i·y_step]`.
    pub y: *mut f32,
    pub y_step: usize,
}

/// Patches of (m + 2)×(m + 2) pixels of a block of channels, to be filtered by F(m, 3) with m the `size`.
pub(crate) struct PatchIn {
    /// 2 or 4.
    pub size: usize,
    /// Pixel (r, c) of patch i at `x[i·step + r·row + c·pixel]`.
    pub x: *const f32,
    pub row: usize,
    pub pixel: usize,
    pub step: usize,
    /// Product (r, c) of patch i takes `v[(r·(size + 2) + c)·plane + 16·i]`.
    pub v: *mut f32,
    pub plane: usize,
    pub count: usize,
}

/// Tiles of m×m pixels of a block of channels, from the sums of products of their patches.
pub(crate) struct PatchOut {
    /// 2 or 4.
    pub size: usize,
    /// Sum (r, c) of tile i at `p[(r·(size + 2) + c)·plane + 16·i]`.
    pub p: *const f32,
    pub plane: usize,
    /// Pixel (r, c) of tile i goes to `y[r·row + (i·size + c)·pixel]`.
    pub y: *mut f32,
    pub row: usize,
    pub pixel: usize,
    pub count: usize,
}

/// The inner kernels of one ISA level, which the machine has. Each is looked up by itself, so that a program links only
/// those that its library calls use.
#[derive(Clone, Copy)]
pub(crate) struct IsaLevel(Isa);

impl IsaLevel {
    /// # Panics
    /// If this machine cannot execute the ISA level.
    pub fn new(isa: Isa) -> IsaLevel {
        assert!(isa == crate::isa() || isa.is_available(), "this machine does not have the level");
        IsaLevel(isa)
    }

    /// The ISA level.
    pub fn isa(self) -> Isa {
        self.0
    }
}

/// Defines the inner kernels: the function of each ISA level.
macro_rules! kernels {
    ($($name:ident($args:ty) = $avx512:path, $avx2:path, $neon:path, $portable:path;)*) => {
        impl IsaLevel {
            $(
                /// # Safety
                /// Every element that the arguments describe is readable, and those of the result writable.
                pub unsafe fn $name(self, args: &$args) {
                    // SAFETY: the machine has the ISA level; the rest is the caller's promise.
                    unsafe {
                        match self.0 {
                            #[cfg(target_arch = "x86_64")]
                            Isa::Amx | Isa::Avx512 => $avx512(args),
                            #[cfg(target_arch = "x86_64")]
                            Isa::Avx2 => $avx2(args),
                            #[cfg(target_arch = "aarch64")]
                            Isa::Neon => $neon(args),
                            _ => $portable(args),
                        }
                    }
                }
            )*
        }
    };
}

kernels! {
    tile(Tile) = avx512::tile, avx2::tile, neon::tile, portable::tile;
    double_tile(DoubleTile) =
        double::avx512::double_tile, double::avx2::double_tile, double::neon::double_tile, double::portable::double_tile;
    integer_tile(IntegerTile<'_>) =
        integer::avx512::integer_tile, integer::avx2::integer_tile, integer::portable::integer_tile, integer::portable::integer_tile;
    narrowed_row(NarrowedRow) =
        excess::avx2::narrowed_row, excess::avx2::narrowed_row, excess::portable::narrowed_row, excess::portable::narrowed_row;
    add_excess(Excess<'_>) =
        excess::avx2::add_excess, excess::avx2::add_excess, excess::portable::add_excess, excess::portable::add_excess;
    word_rows(WordRows) =
        byte_rows::avx2::word_rows, byte_rows::avx2::word_rows, byte_rows::portable::word_rows, byte_rows::portable::word_rows;
    quad_windows(QuadWindows<'_>) =
        byte_windows::avx512::quad_windows, byte_windows::avx2::quad_windows, byte_windows::portable::quad_windows, byte_windows::portable::quad_windows;
    term_windows(TermWindows<'_>) =
        byte_windows::avx512::term_windows, byte_windows::avx2::term_windows, byte_windows::portable::term_windows, byte_windows::portable::term_windows;
    integer_group(IntegerGroup) =
        integer::avx2::integer_group, integer::avx2::integer_group, integer::portable::integer_group, integer::portable::integer_group;
    coded_rows(CodedRows) =
        quantised::avx512::coded_rows, quantised::avx2::coded_rows, quantised::neon::coded_rows, quantised::portable::coded_rows;
    decoded_columns(Decoded) =
        quantised::avx512::decoded_columns, quantised::avx2::decoded_columns, quantised::neon::decoded_columns, quantised::portable::decoded_columns;
    rounded_tile(RoundedTile) =
        rounded::avx512::rounded_tile, rounded::avx2::rounded_tile, rounded::portable::rounded_tile, rounded::portable::rounded_tile;
    rounded_row(RoundedRow) =
        rounded::avx512::rounded_row, rounded::avx2::rounded_row, rounded::portable::rounded_row, rounded::portable::rounded_row;
    rounded_pair(RoundedPair) =
        rounded::avx512::rounded_pair, rounded::avx2::rounded_pair, rounded::portable::rounded_pair, rounded::portable::rounded_pair;
    skinny(Skinny) = avx512::skinny, avx2::skinny, neon::skinny, portable::skinny;
    panel(Panel) = avx512_data::panel, avx2::panel, neon::panel, portable::panel;
    fetch(InputWindow<'_>) = avx512_data::fetch, avx2::fetch, portable::fetch, portable::fetch;
    plane(Plane<'_>) = avx512::plane, avx2::plane, portable::baseline_plane, portable::baseline_plane;
    staged_lines(StagedLines) =
        staged::avx512::staged_lines, staged::avx2::staged_lines, staged::neon::staged_lines, staged::portable::staged_lines;
    staged_rows(StagedRows<'_>) =
        staged::avx512::staged_rows, staged::avx2::staged_rows, staged::neon::staged_rows, staged::portable::staged_rows;
    register_tile(RegisterTile) = avx512_blocked::register_tile, avx2::register_tile, neon::register_tile, portable_blocked::register_tile;
    rounded_register_tile(RegisterTile) =
        rounded_blocked::avx512::rounded_register_tile, rounded_blocked::avx2::rounded_register_tile,
        rounded_blocked::portable::rounded_register_tile, rounded_blocked::portable::rounded_register_tile;
    depthwise_tile(DepthwiseTile) =
        avx512_blocked::depthwise_tile, avx2::depthwise_tile, neon::depthwise_tile, portable_blocked::depthwise_tile;
    winograd_input_transform(PatchIn) =
        winograd::avx512::winograd_input_transform, winograd::avx2::winograd_input_transform, winograd::neon::winograd_input_transform, winograd::portable::winograd_input_transform;
    winograd_output_transform(PatchOut) =
        winograd::avx512::winograd_output_transform, winograd::avx2::winograd_output_transform, winograd::neon::winograd_output_transform, winograd::portable::winograd_output_transform;
    softmax_rows(Scores) =
        attention::avx512::softmax_rows, attention::avx2::softmax_rows, attention::portable::softmax_rows, attention::portable::softmax_rows;
    qk_dot(Dots) = attention::avx512::qk_dot, attention::avx2::qk_dot, attention::portable::qk_dot, attention::portable::qk_dot;
}
