//! Which part of a convolution is computed, by which algorithm, and by which kernel of the library.

use crate::DType;

/// Algorithms of a convolution with packed filters. They differ by rounding, and in what values that are not finite
/// reach; the meaning is the sum of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConvAlgorithm {
    /// The sum of products.
    #[default]
    Direct,
    /// Winograd convolution F(2×2, 3×3) (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016), where
    /// [`crate::Conv2d::allows`] it.
    WinogradF2,
    /// The same by F(4×4, 3×3).
    WinogradF4,
    /// The sum of products of operands that are rounded to bf16; of matrix products, where [`crate::Conv2d::allows`] it of
    /// convolutions.
    Bf16,
}

impl ConvAlgorithm {
    /// All algorithms.
    pub const ALL: [ConvAlgorithm; 4] =
        [ConvAlgorithm::Direct, ConvAlgorithm::WinogradF2, ConvAlgorithm::WinogradF4, ConvAlgorithm::Bf16];

    /// The names in the text forms of contractions and of plans, and the pixels of an output tile along one axis.
    const fn facts(self) -> (&'static str, &'static str, Option<u64>) {
        match self {
            ConvAlgorithm::Direct => ("sum", "conv", None),
            ConvAlgorithm::WinogradF2 => ("winograd_f2", "conv_winograd_f2", Some(2)),
            ConvAlgorithm::WinogradF4 => ("winograd_f4", "conv_winograd_f4", Some(4)),
            ConvAlgorithm::Bf16 => ("bf16", "conv_bf16", None),
        }
    }

    /// The name in the text form of graphs.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Output pixels of a Winograd tile along one axis; `None` for other algorithms.
    pub const fn tile(self) -> Option<u64> {
        self.facts().2
    }
}

/// What is computed of a convolution, and from which two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConvPass {
    /// y of x and filters in the packed form of the kernel library ([`crate::Packing::Conv`]).
    Packed(ConvAlgorithm),
    /// y of x and filters `[g·oc, ic, kh, kw]`.
    Forward,
    /// The gradient of x, of that of y and the filters `[g·oc, ic, kh, kw]`. The sum runs over
    /// ascending output channels, then ascending rows and columns of y.
    DataGradient,
    /// The gradient of the filters, of x and that of y. The sum runs over ascending n, p, q.
    FilterGradient,
    /// y, of i32, of x of u8 and filters of i8, `[oc, kh, kw, ic]` of one group or `[c, kh, kw]` of a depthwise convolution. The
    /// sum is exact modulo 2³². In artifacts made before version 1.17 there is one group of channels in fours.
    Bytes,
    /// As [`ConvPass::Bytes`], with filters in the packed form of the kernel library.
    PackedBytes,
}

impl Default for ConvPass {
    fn default() -> Self {
        ConvPass::Packed(ConvAlgorithm::Direct)
    }
}

impl ConvPass {
    /// All passes. Images of compiled models hold the position: new ones come last.
    pub const ALL: [ConvPass; 9] = [
        ConvPass::Packed(ConvAlgorithm::Direct),
        ConvPass::Forward,
        ConvPass::DataGradient,
        ConvPass::FilterGradient,
        ConvPass::Packed(ConvAlgorithm::WinogradF2),
        ConvPass::Packed(ConvAlgorithm::WinogradF4),
        ConvPass::Packed(ConvAlgorithm::Bf16),
        ConvPass::Bytes,
        ConvPass::PackedBytes,
    ];

    /// The pass of a convolution of plain filters by an algorithm: packed ones are needed unless it is the sum.
    pub const fn by(algorithm: ConvAlgorithm) -> ConvPass {
        match algorithm {
            ConvAlgorithm::Direct => ConvPass::Forward,
            other => ConvPass::Packed(other),
        }
    }

    /// The algorithm.
    pub const fn algorithm(self) -> ConvAlgorithm {
        match self {
            ConvPass::Packed(algorithm) => algorithm,
            _ => ConvAlgorithm::Direct,
        }
    }

    /// Output pixels of a Winograd tile along one axis; `None` for other algorithms.
    pub const fn tile(self) -> Option<u64> {
        self.algorithm().tile()
    }

    /// Whether filters are packed.
    pub const fn is_packed(self) -> bool {
        matches!(self, ConvPass::Packed(_) | ConvPass::PackedBytes)
    }

    /// Whether operands are bytes, with sums in i32.
    pub const fn is_of_bytes(self) -> bool {
        matches!(self, ConvPass::Bytes | ConvPass::PackedBytes)
    }

    /// The pass for the same convolution of filters that are packed, if there is one.
    pub const fn packed(self) -> Option<ConvPass> {
        match self {
            ConvPass::Packed(_) | ConvPass::PackedBytes => Some(self),
            ConvPass::Forward => Some(ConvPass::Packed(ConvAlgorithm::Direct)),
            ConvPass::Bytes => Some(ConvPass::PackedBytes),
            ConvPass::DataGradient | ConvPass::FilterGradient => None,
        }
    }

    /// Types of x, filters and y, or of the sums that an epilogue makes y of.
    pub const fn types(self) -> [DType; 3] {
        match self {
            ConvPass::Bytes | ConvPass::PackedBytes => [DType::U8, DType::I8, DType::I32],
            _ => [DType::F32; 3],
        }
    }

    /// The word of steps and packings in the text form of plans.
    pub const fn step_word(self) -> &'static str {
        match self {
            ConvPass::Packed(algorithm) => algorithm.facts().1,
            ConvPass::Forward => "conv_forward",
            ConvPass::DataGradient => "conv_data_gradient",
            ConvPass::FilterGradient => "conv_filter_gradient",
            ConvPass::Bytes => "conv_bytes",
            ConvPass::PackedBytes => "conv_packed_bytes",
        }
    }
}

/// Kernels of the library for convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvVariant {
    /// Windows packed into a matrix.
    Windows,
    /// Of one channel each, plane by plane: in artifacts made before version 1.9.
    Planar,
    /// A correlation, for the gradient of filters.
    Correlate,
    /// Blocks of 16 channels.
    Blocked,
    /// Depthwise, in blocks of 16 channels.
    BlockedDepthwise,
    /// Winograd convolution.
    Winograd,
    /// Few channels in a group, over staged rows, with filters that are not packed.
    Grouped,
    /// Few filters in a group, over staged rows, with packed filters. Since version 1.11 of the artifact format.
    Rows,
    /// Blocks of 16 channels, of operands that are rounded to bf16. Since version 1.14 of the artifact format.
    Rounded,
    /// Of bytes, over staged windows. Since version 1.15 of the artifact format.
    Bytes,
}

impl ConvVariant {
    /// All kernels, in the order of their symbols in [`crate::image::LIBRARIES`].
    pub const ALL: [ConvVariant; 10] = [
        ConvVariant::Windows,
        ConvVariant::Planar,
        ConvVariant::Correlate,
        ConvVariant::Blocked,
        ConvVariant::BlockedDepthwise,
        ConvVariant::Winograd,
        ConvVariant::Grouped,
        ConvVariant::Rows,
        ConvVariant::Rounded,
        ConvVariant::Bytes,
    ];

    /// The symbol in the run-time library.
    pub const fn symbol(self) -> &'static str {
        match self {
            ConvVariant::Windows => "tc_rt_conv_windows",
            ConvVariant::Planar => "tc_rt_conv_planar",
            ConvVariant::Correlate => "tc_rt_conv_correlate",
            ConvVariant::Blocked => "tc_rt_conv_blocked",
            ConvVariant::BlockedDepthwise => "tc_rt_conv_blocked_depthwise",
            ConvVariant::Winograd => "tc_rt_conv_winograd",
            ConvVariant::Grouped => "tc_rt_conv_grouped",
            ConvVariant::Rows => "tc_rt_conv_rows",
            ConvVariant::Rounded => "tc_rt_conv_bf16",
            ConvVariant::Bytes => "tc_rt_conv_bytes",
        }
    }
}
