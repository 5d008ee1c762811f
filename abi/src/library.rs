//! Parameters of the library kernels (hand-written dense contractions).
//!
//! All strides and offsets count elements of the operand's type, not bytes.

use crate::blocked::BlockedWeights;
use crate::conv::{ConvAlgorithm, ConvPass};
use crate::dtype::DType;
use crate::number::Number;

/// Number of batch dimensions a [`BatchedGemm`] iterates over; unused ones have extent 1.
pub const GEMM_BATCH_RANK: usize = 3;

/// Where the element (batch, row, column) of a matrix operand lies:
/// `offset + Σ batch[i]·batch_strides[i] + row·row_stride + col·col_stride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MatrixLayout<N: Number = u64> {
    /// Position of the element (0, 0) of the first batch.
    pub offset: N::Signed,
    /// Elements from one batch to the next, for each batch dimension; 0: all share a matrix.
    pub batch_strides: [N::Signed; GEMM_BATCH_RANK],
    /// Elements from one row to the next.
    pub row_stride: N::Signed,
    /// Elements from one column to the next.
    pub col_stride: N::Signed,
}

/// `C[b, m, n] = Σ_k A[b, m, k] · B[b, k, n]` for every batch index `b`; of the types that [`GemmElements`] lists, other than in a call of a GPU's library
/// ([`crate::vendor`]), to which the next paragraph does not apply.
///
/// The sum runs over ascending k with one fused multiply-add per term inside a k block; the
/// blocking depends on the shape alone, so results do not depend on the number of threads.
/// `c.col_stride` must be 1. With [`BatchedGemm::b_packed`] the operand B is one matrix shared by
/// all batches, in the packed form of the kernel library, and `b` is ignored. Of few rows and [blocked
/// weights](GemmElements::Blocked), a sum has lanes whose order depends on k and the blocks alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchedGemm<N: Number = u64> {
    /// Extents of the batch dimensions.
    pub batch: [N; GEMM_BATCH_RANK],
    /// Rows of A and C.
    pub m: N,
    /// Columns of B and C.
    pub n: N,
    /// Columns of A and rows of B.
    pub k: N,
    /// Where A lies.
    pub a: MatrixLayout<N>,
    /// Where B lies, unless it is packed.
    pub b: MatrixLayout<N>,
    /// Where C lies.
    pub c: MatrixLayout<N>,
    /// Whether B is in the packed form, [`Packing::GemmB`].
    pub b_packed: bool,
    /// Types of the elements. Only of f32 may A be computed.
    pub elements: GemmElements,
}

/// Types of the elements of a [`BatchedGemm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GemmElements {
    /// All are f32.
    #[default]
    F32,
    /// All are f64.
    F64,
    /// A is of u8, B of i8 and C of i32: sums modulo 2³².
    U8I8,
    /// A is of i8, B of u8 and C of i32.
    I8U8,
    /// All are f32; operands are rounded to bf16, and B is packed.
    Bf16,
    /// A and C are f32. B is one matrix shared by all batches, in the form of these weights, in bytes; `b` is ignored.
    Blocked(BlockedWeights),
}

impl GemmElements {
    /// Every kind without parameters, in the order of its number in words.
    pub const PLAIN: [GemmElements; 5] =
        [GemmElements::F32, GemmElements::F64, GemmElements::U8I8, GemmElements::I8U8, GemmElements::Bf16];

    /// Types of A, B and the sums: C is of that type, or an epilogue makes it of sums that lie
    /// [apart](crate::library::epilogue_scalars).
    pub const fn types(self) -> [DType; 3] {
        match self {
            GemmElements::F32 | GemmElements::Bf16 => [DType::F32; 3],
            GemmElements::F64 => [DType::F64; 3],
            GemmElements::U8I8 => [DType::U8, DType::I8, DType::I32],
            GemmElements::I8U8 => [DType::I8, DType::U8, DType::I32],
            GemmElements::Blocked(_) => [DType::F32, DType::U8, DType::F32],
        }
    }

    /// What a packed B holds, if B may be packed.
    pub const fn packed(self) -> Option<PackedElements> {
        match self {
            GemmElements::F32 => Some(PackedElements::F32),
            GemmElements::Bf16 => Some(PackedElements::Bf16),
            GemmElements::U8I8 | GemmElements::I8U8 => Some(PackedElements::Bytes),
            GemmElements::F64 | GemmElements::Blocked(_) => None,
        }
    }

    /// Whether the elements are bytes, of which sums are i32.
    pub const fn are_bytes(self) -> bool {
        matches!(self, GemmElements::U8I8 | GemmElements::I8U8)
    }
}

/// Two-dimensional convolution, zero padded, or one of its gradients; of f32, other than in a call of a GPU's library:
///
/// `y[n, g·oc + o, p, q] = Σ_{i,r,s} x[n, g·ic + i, p·sh + r·dh - ph, q·sw + s·dw - pw] · w[g·oc + o, i, r, s]`
///
/// `in_channels` and `out_channels` count channels **per group**; all fields describe this sum, also
/// where a gradient is computed. Tensors hold less than 2³¹ elements and are contiguous, but the images
/// of `x` and `y` may lie apart ([`Conv2d::images`]). The sum runs over ascending i, r, s; unless x has its channels
/// in planes, over ascending blocks of 16 of i (the last one may be smaller), then r, s, then i in the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conv2d<N: Number = u64> {
    /// Number of images.
    pub batch: N,
    /// Groups of channels; an output channel is computed from input channels of its group.
    pub groups: N,
    /// Channels of x per group.
    pub in_channels: N,
    /// Channels of y per group.
    pub out_channels: N,
    /// Input height and width.
    pub input: [N; 2],
    /// Output height and width.
    pub output: [N; 2],
    /// Height and width of a filter.
    pub kernel: [N; 2],
    /// Rows and columns of x from one pixel of y to the next.
    pub strides: [N; 2],
    /// Rows and columns of x from one tap of a filter to the next.
    pub dilations: [N; 2],
    /// Padding before the first row and column; what lies after the last follows from `output`.
    pub pads: [N; 2],
    /// What is computed.
    pub pass: ConvPass,
    /// Elements from an image of x to the next, and of y; 0: one follows the other.
    pub images: [N; 2],
    /// How x and y lie in memory.
    pub layouts: [ImageLayout; 2],
}

/// Channels of a block of [`ImageLayout::Nchw16c`].
pub const CHANNEL_BLOCK: u64 = 16;

/// Channels come in so many in a convolution of bytes.
pub const BYTE_TERMS: u64 = 4;

/// Where an image holds its channels. What one filter tap reads of a pixel is a run of elements in all but planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageLayout {
    /// NCHW.
    #[default]
    Nchw,
    /// In blocks of [`CHANNEL_BLOCK`], `[n, channels / 16, h, w, 16]`; there are whole blocks only.
    Nchw16c,
    /// NHWC: those of a pixel side by side.
    Nhwc,
}

impl ImageLayout {
    /// Every layout.
    pub const ALL: [ImageLayout; 3] = [ImageLayout::Nchw, ImageLayout::Nchw16c, ImageLayout::Nhwc];

    /// Whether an image of so many channels can lie so.
    pub fn holds<N: Number>(self, channels: N) -> bool {
        !matches!(self, ImageLayout::Nchw16c) || channels % N::from(CHANNEL_BLOCK) == N::from(0)
    }
}

impl<N: Number> Conv2d<N> {
    /// One filter per input channel, one input channel per group.
    pub fn is_depthwise(&self) -> bool {
        let one = N::from(1);
        self.in_channels == one && self.out_channels == one && self.groups > one
    }

    /// Whether x and y have their channels in planes.
    pub fn in_planes(&self) -> bool {
        matches!(self.layouts, [ImageLayout::Nchw, ImageLayout::Nchw])
    }

    /// The same convolution with its only spatial axis as the width, along which kernels compute with vectors. Nothing
    /// lies elsewhere in memory.
    #[must_use]
    pub fn along_width(self) -> Conv2d<N> {
        let [zero, one] = [0, 1].map(N::from);
        let column = self.kernel[1] == one && self.pads[1] == zero && self.input[1] == one && self.output[1] == one;
        if !column {
            return self;
        }
        let turned = |axes: [N; 2]| [axes[1], axes[0]];
        Conv2d {
            input: turned(self.input),
            output: turned(self.output),
            kernel: turned(self.kernel),
            strides: turned(self.strides),
            dilations: turned(self.dilations),
            pads: turned(self.pads),
            ..self
        }
    }

    /// Whether an algorithm computes the convolution: Winograd convolution F(m×m, 3×3) only some, and one of rounded operands
    /// only dense ones of channels in blocks, or last.
    pub fn allows(&self, algorithm: ConvAlgorithm) -> bool {
        let [one, three] = [1, 3].map(N::from);
        let is_blocked = || self.groups == one && self.in_channels % N::from(CHANNEL_BLOCK) == N::from(0);
        match algorithm {
            ConvAlgorithm::Direct => true,
            ConvAlgorithm::Bf16 => is_blocked() && self.layouts[0] != ImageLayout::Nchw,
            ConvAlgorithm::WinogradF2 | ConvAlgorithm::WinogradF4 => {
                is_blocked() && self.kernel == [three; 2] && self.strides == [one; 2] && self.dilations == [one; 2]
            }
        }
    }

    /// Whether the convolution can be computed in its layouts: other ones than planes go with packed filters of one
    /// group or, on both sides, a depthwise convolution of at least a block of channels.
    pub fn layouts_fit(&self) -> bool {
        if !self.allows(self.pass.algorithm()) {
            return false;
        }
        if self.pass.is_of_bytes() {
            return self.in_planes() && (self.groups == N::from(1) || self.is_depthwise());
        }
        if self.in_planes() {
            return true;
        }
        let [x, y] = self.layouts;
        let whole = x.holds(self.groups.saturating_mul(self.in_channels))
            && y.holds(self.groups.saturating_mul(self.out_channels));
        let sides = match (self.is_depthwise(), x, y) {
            (true, ImageLayout::Nchw, _) | (true, _, ImageLayout::Nchw) => false,
            (true, ..) => self.groups >= N::from(CHANNEL_BLOCK),
            (false, ..) => self.groups == N::from(1),
        };
        self.pass.is_packed() && whole && sides
    }

    /// Whether x may be computed as it is read, instead of lying in memory: if it or the result has its channels in
    /// blocks, but not where Winograd convolution makes blocks of planes or it is rounded.
    pub fn takes_computed(&self) -> bool {
        match self.layouts {
            _ if self.pass.algorithm() == ConvAlgorithm::Bf16 || self.pass.is_of_bytes() => false,
            [ImageLayout::Nchw, ImageLayout::Nchw] | [ImageLayout::Nhwc, _] => false,
            [ImageLayout::Nchw, _] => self.pass.tile().is_none(),
            [ImageLayout::Nchw16c, _] => true,
        }
    }

    /// A 1×1 filter with unit stride and no padding: a matrix product over pixels.
    pub fn is_pointwise(&self) -> bool {
        let [zero, one] = [0, 1].map(N::from);
        self.kernel == [one; 2] && self.strides == [one; 2] && self.pads == [zero; 2] && self.input == self.output
    }

    /// A convolution of one window with these filters, which are packed alike for both.
    #[must_use]
    pub fn of_filters(self) -> Conv2d<N> {
        let [zero, one] = [0, 1].map(N::from);
        Conv2d {
            batch: one,
            input: self.kernel,
            output: [one; 2],
            strides: [one; 2],
            dilations: [one; 2],
            pads: [zero; 2],
            images: [zero; 2],
            ..self
        }
    }

    /// Elements of an image of x and of y.
    pub fn image_sizes(&self) -> [N; 2] {
        let x = self.groups * self.in_channels * self.input[0] * self.input[1];
        [x, self.groups * self.out_channels * self.output[0] * self.output[1]]
    }

    /// Elements from an image of x to the next, and of y.
    pub fn image_strides(&self) -> [N; 2] {
        let (zero, [x, y]) = (N::from(0), self.image_sizes());
        [
            if self.images[0] == zero { x } else { self.images[0] },
            if self.images[1] == zero { y } else { self.images[1] },
        ]
    }
}

impl Conv2d {
    /// Elements of x, the filters and y; `None` where that is more than 2⁶⁴ - 1.
    pub fn sizes(&self) -> [Option<u64>; 3] {
        let product = |factors: [u64; 5]| factors.into_iter().try_fold(1u64, u64::checked_mul);
        let Conv2d { batch, groups, in_channels, out_channels, input, output, kernel, .. } = *self;
        [
            product([batch, groups, in_channels, input[0], input[1]]),
            product([groups, out_channels, in_channels, kernel[0], kernel[1]]),
            product([batch, groups, out_channels, output[0], output[1]]),
        ]
    }

    /// Multiply-accumulates of the sum times two.
    pub const fn flops(&self) -> u64 {
        2 * self.batch
            * self.groups
            * self.out_channels
            * self.output[0]
            * self.output[1]
            * self.in_channels
            * self.kernel[0]
            * self.kernel[1]
    }

    /// Tiles of all images, and coefficients of a tile, if the pass is a Winograd convolution.
    pub const fn tiles(&self) -> Option<[u64; 2]> {
        let Some(size) = self.pass.tile() else { return None };
        let [rows, columns] = self.output;
        Some([self.batch * rows.div_ceil(size) * columns.div_ceil(size), (size + 2) * (size + 2)])
    }

    /// Products that are added up, in whole tiles.
    pub const fn products(&self) -> u64 {
        match self.tiles() {
            None => self.flops() / 2,
            Some([tiles, coefficients]) => tiles * coefficients * self.in_channels * self.out_channels,
        }
    }
}

/// Attention of f32 operands, for every batch index b, query i and column c of the values:
///
/// `out[b, i, c] = Σ_j w[b, i, j] · V[b, j, c] / Σ_j w[b, i, j]`, with weights `w = exp(s - max_j s)` of the
/// scores `s[b, i, j] = f(Σ_d (scale · Q[b, i, d]) · K[b, d, j])`, where f is the call's epilogue.
///
/// Scores exist a tile at a time. Maximum and sums are those of an online softmax (Milakov and Gimelshein,
/// "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022): keys come in
/// ascending blocks of [`Attention::TILE_COLS`], and what was accumulated is scaled whenever the maximum
/// grows. The order of additions depends on the shape alone. A row of scores that are all -∞ has weights
/// 0, and so no result: NaN, or 0 if `empty_is_zero`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attention<N: Number = u64> {
    /// Extents of the batch dimensions; unused ones are 1.
    pub batch: [N; GEMM_BATCH_RANK],
    /// Rows of Q and of the result.
    pub queries: N,
    /// Columns of K and rows of V.
    pub keys: N,
    /// Terms of a score.
    pub depth: N,
    /// Columns of the values and of the result.
    pub size: N,
    /// queries × depth.
    pub q: MatrixLayout<N>,
    /// depth × keys.
    pub k: MatrixLayout<N>,
    /// keys × size.
    pub v: MatrixLayout<N>,
    /// queries × size; `out.col_stride` must be 1.
    pub out: MatrixLayout<N>,
    /// Bits of the f32 factor of Q.
    pub scale: u32,
    /// Whether the maximum is subtracted; if not, weights are `exp(s)`.
    pub shifted: bool,
    /// Rows whose weights have no sum other than 0 and NaN give 0.
    pub empty_is_zero: bool,
    /// Whether Q, scaled, K, the weights and V may be rounded to bf16.
    pub rounded: bool,
}

impl Attention {
    /// Most rows of a tile of scores.
    pub const TILE_ROWS: u64 = 48;
    /// Most columns of a tile of scores, and the distance of its rows in elements.
    pub const TILE_COLS: u64 = 128;
    /// Elements of the memory of a tile.
    pub const TILE: u64 = Attention::TILE_ROWS * Attention::TILE_COLS;

    /// Multiply-adds of both products times two.
    pub const fn flops(&self) -> u64 {
        let scores = self.batch[0] * self.batch[1] * self.batch[2] * self.queries * self.keys;
        2 * scores * (self.depth + self.size)
    }
}

/// What a library kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contraction<N: Number = u64> {
    /// A matrix product.
    Gemm(BatchedGemm<N>),
    /// A convolution, or a gradient of one.
    Conv(Conv2d<N>),
    /// Attention.
    Attention(Attention<N>),
}

/// A [`Contraction`] where it lies.
#[derive(Clone, Copy, Debug)]
pub enum ContractionRef<'c, N: Number = u64> {
    /// A matrix product.
    Gemm(&'c BatchedGemm<N>),
    /// A convolution, or a gradient of one.
    Conv(&'c Conv2d<N>),
    /// Attention.
    Attention(&'c Attention<N>),
}

/// Elements of a packed operand of a [`BatchedGemm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackedElements {
    /// Those of the constant, of f32.
    F32,
    /// Rounded to bf16, of f32.
    Bf16,
    /// Those of the constant, of i8 or u8.
    Bytes,
}

impl PackedElements {
    /// Every kind.
    pub const ALL: [PackedElements; 3] = [PackedElements::F32, PackedElements::Bf16, PackedElements::Bytes];

    /// The word of [`Packing::GemmB`] in the text form.
    pub const fn word(self) -> &'static str {
        match self {
            PackedElements::F32 => "gemm_b",
            PackedElements::Bf16 => "gemm_b_bf16",
            PackedElements::Bytes => "gemm_b_bytes",
        }
    }

    /// Bytes of an element of the constant.
    pub const fn size(self) -> usize {
        match self {
            PackedElements::F32 | PackedElements::Bf16 => size_of::<f32>(),
            PackedElements::Bytes => 1,
        }
    }
}

impl Packing {
    /// Whether a constant with elements of a type can be packed so.
    pub const fn takes(&self, dtype: DType) -> bool {
        match self {
            Packing::Plain => true,
            Packing::GemmB { elements: PackedElements::Bytes, .. } => matches!(dtype, DType::I8 | DType::U8),
            Packing::Conv(call) if call.pass.is_of_bytes() => matches!(dtype, DType::I8),
            Packing::GemmB { .. } | Packing::Conv(_) => matches!(dtype, DType::F32),
        }
    }

    /// Bytes of an element of a constant that is packed so.
    pub const fn element_size(&self) -> usize {
        match self {
            Packing::GemmB { elements, .. } => elements.size(),
            Packing::Conv(call) if call.pass.is_of_bytes() => 1,
            Packing::Plain | Packing::Conv(_) => size_of::<f32>(),
        }
    }
}

/// The layout a weight is stored in at run time. Packed forms are private to the kernel library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Packing {
    /// Row-major, as in the graph.
    Plain,
    /// The right operand of a [`BatchedGemm`]: element (row, col) of the k×n matrix at
    /// `offset + row·row_stride + col·col_stride` of the constant.
    GemmB {
        /// Rows of the matrix.
        k: u64,
        /// Columns of the matrix.
        n: u64,
        /// Position of the element (0, 0) in the constant.
        offset: i64,
        /// Elements of the constant from one row to the next.
        row_stride: i64,
        /// Elements of the constant from one column to the next.
        col_stride: i64,
        /// What the packed elements are.
        elements: PackedElements,
    },
    /// Filters `[groups·out_channels, in_channels, kh, kw]` of the given convolution, or `[oc, kh, kw, ic]` if it is of bytes.
    Conv(Conv2d),
}

/// Most rows of a block of sums that an epilogue reads apart from the result.
pub const SUM_ROWS: u64 = 12;
/// Elements from one row of such a block to the next, and most columns.
pub const SUM_COLS: u64 = 128;
/// Most arguments of an epilogue beside such a block.
pub const MAX_SUM_ARGS: usize = 31;

/// Index parameters of the kernel of an epilogue or a prologue, in order.
///
/// A library kernel calls its epilogue once for every finished block of C, with the block's batch
/// index and its half-open row and column ranges. The epilogue reads the accumulators from C and
/// writes its result in place. For a convolution the batch index is `[n, 0, 0]`, rows are output
/// channels over all groups and columns are output pixels in row-major order; for its data gradient
/// input channels and pixels. For the gradient of filters the batch index is zero, rows are output
/// channels over all groups and columns are (input channel, row, column) of a filter. Where the result of a
/// convolution has its channels in blocks, the batch index is `[n, block, 0]`, rows are pixels and columns channels of
/// the block; where it has them last, `[n, 0, 0]`, pixels and channels.
///
/// An epilogue whose sums lie apart ([`crate::Epilogue::apart`]) reads them from memory of the library, its first buffer: element
/// (i, j) of the block is at `(i - rows.0)·SUM_COLS + j - cols.0` there. A block has at most [`SUM_ROWS`] rows and [`SUM_COLS`]
/// columns.
///
/// The epilogue of an [`Attention`] is called for tiles of scores, which lie in memory of the library:
/// element (i, j) of the block is at `(i - rows.0)·TILE_COLS + j - cols.0` of the first buffer.
///
/// A prologue is called for blocks of the left operand before they are read, with the block's batch index, rows and
/// columns in the operand. It writes element (i, j) at `i·ld + j` of the first buffer, memory of the library that is
/// addressed as if all of that batch index' matrix were there. For a product, rows and columns are those of A, and
/// `ld` is k. For a convolution over blocked channels, the batch index is `[n, block, 0]`, rows are pixels, columns
/// channels of the block, and `ld` is their number; over channels in planes the batch index is `[n, 0, 0]`, rows are
/// channels, columns pixels, and `ld` is the number of pixels.
pub fn epilogue_scalars(batch: [u64; GEMM_BATCH_RANK], rows: (u64, u64), cols: (u64, u64)) -> [i64; 7] {
    [batch[0] as i64, batch[1] as i64, batch[2] as i64, rows.0 as i64, rows.1 as i64, cols.0 as i64, cols.1 as i64]
}
