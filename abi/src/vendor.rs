//! Calls of the libraries that a GPU's maker has: matrix products of cuBLASLt, convolutions of cuDNN.
//!
//! The libraries take fewer layouts than kernels of our own: matrices lie by rows or by columns ([`LibraryMatrix`]), paddings are the same
//! on both sides. What a call says is all a driver needs beyond the addresses of its operands.

use crate::conv::ConvPass;
use crate::dtype::DType;
use crate::library::GEMM_BATCH_RANK;
use crate::library::{BatchedGemm, Conv2d, MatrixLayout};

/// Most calls of the library that a step makes for batches that are not at one distance.
const MAX_CALLS: u64 = 32;

/// A contraction of f32, f16 or bf16, with sums in f32. Operands and result have the same type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VendorCall {
    /// What is computed.
    pub contraction: VendorContraction,
    /// Type of the operands and the result.
    pub dtype: DType,
    /// Whether operands of f32 may be rounded to 10 bits of fraction (tf32).
    pub tf32: bool,
    /// Bytes of working memory, the last argument; 0: there is none.
    pub workspace: u64,
}

/// What a call computes, and by which library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VendorContraction {
    /// By cuBLASLt. With `bias` a vector of `n` elements is added to every row before the result is rounded; it is the third argument.
    Product {
        /// The product.
        call: BatchedGemm,
        /// Whether a vector is added.
        bias: bool,
    },
    /// By cuDNN, of [`ConvPass::Forward`].
    Convolution(Conv2d),
}

impl VendorCall {
    /// The name of the library.
    pub const fn library(&self) -> &'static str {
        match self.contraction {
            VendorContraction::Product { .. } => "cuBLASLt",
            VendorContraction::Convolution(_) => "cuDNN",
        }
    }

    /// Whether a vector is added to every row of a product.
    pub const fn has_bias(&self) -> bool {
        matches!(self.contraction, VendorContraction::Product { bias: true, .. })
    }

    /// Position of the result among the arguments: operands come before it, working memory after it.
    pub const fn result(&self) -> usize {
        if self.has_bias() { 3 } else { 2 }
    }

    /// Number of arguments.
    pub const fn arguments(&self) -> usize {
        self.result() + 1 + (self.workspace > 0) as usize
    }

    /// Whether the library computes elements of the type, and the contraction in its layout.
    pub fn fits(&self) -> bool {
        let typed =
            matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16) && (!self.tf32 || self.dtype == DType::F32);
        typed
            && match &self.contraction {
                VendorContraction::Product { call, .. } => LibraryBatch::of(call).is_some(),
                VendorContraction::Convolution(conv) => convolves(conv),
            }
    }
}

/// A matrix as the libraries see it: rows or columns side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryMatrix {
    /// Whether elements of a row lie side by side, rather than those of a column.
    pub by_rows: bool,
    /// Elements from a row, or column, to the next.
    pub leading: u64,
}

impl LibraryMatrix {
    /// A matrix of `rows` × `columns` elements; `None` if neighbours lie side by side neither in rows nor in columns, or
    /// some elements are one.
    pub fn of(layout: &MatrixLayout, rows: u64, columns: u64) -> Option<LibraryMatrix> {
        let (down, across) = (layout.row_stride, layout.col_stride);
        let by = |by_rows: bool, leading: i64, least: u64| {
            let leading = u64::try_from(leading).ok().filter(|leading| *leading >= least.max(1))?;
            Some(LibraryMatrix { by_rows, leading })
        };
        match (rows, columns) {
            (1, _) if across == 1 || columns == 1 => by(true, columns as i64, columns),
            (1, _) => by(false, across, 1),
            (_, 1) => by(true, down, 1),
            _ if across == 1 => by(true, down, columns),
            _ if down == 1 => by(false, across, rows),
            _ => None,
        }
    }
}

/// A batched product as calls of a library, whose batches are at one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryBatch {
    /// Left operand, right operand and result.
    pub matrices: [LibraryMatrix; 3],
    /// Batches of a call.
    pub count: u64,
    /// Elements from one batch of a call to the next in each of the three; 0 if there is one.
    pub strides: [i64; 3],
    /// The extents that calls walk, the one of `count` being 1 among them.
    pub outer: [u64; GEMM_BATCH_RANK],
}

impl LibraryBatch {
    /// The calls of a product; `None` if the library does not take the operands where they lie, or it would take too many
    /// calls.
    pub fn of(call: &BatchedGemm) -> Option<LibraryBatch> {
        let BatchedGemm { batch, m, n, k, a, b, c, b_packed, elements: _ } = call;
        let matrices = [LibraryMatrix::of(a, *m, *k)?, LibraryMatrix::of(b, *k, *n)?, LibraryMatrix::of(c, *m, *n)?];
        // Extents that libraries count in 32 bits.
        let small = [*m, *n, *k].iter().chain(batch).all(|extent| (1..=i32::MAX as u64).contains(extent));
        let inner = (0..GEMM_BATCH_RANK).max_by_key(|i| batch[*i])?;
        let mut outer = *batch;
        outer[inner] = 1;
        let few = outer.iter().try_fold(1u64, |all, extent| all.checked_mul(*extent))? <= MAX_CALLS;
        let fits = !b_packed && small && few && matrices[2].by_rows;
        let strides = [a, b, c].map(|layout| if batch[inner] == 1 { 0 } else { layout.batch_strides[inner] });
        fits.then_some(LibraryBatch { matrices, count: batch[inner], strides, outer })
    }

    /// Where each call's left operand, right operand and result begin, in elements.
    pub fn offsets(&self, call: &BatchedGemm) -> impl Iterator<Item = [i64; 3]> {
        let [x, y, z] = self.outer;
        let layouts = [call.a, call.b, call.c];
        (0..x * y * z).map(move |i| {
            let at = [i / (y * z), i / z % y, i % z];
            layouts
                .map(|l| l.offset + at.iter().zip(l.batch_strides).map(|(i, stride)| *i as i64 * stride).sum::<i64>())
        })
    }
}

/// Whether cuDNN computes a convolution: dense planes, and a padding that is the same on both sides.
fn convolves(conv: &Conv2d) -> bool {
    let plain = conv.pass == ConvPass::Forward && conv.in_planes();
    let dense = conv.batch == 1 || conv.image_strides() == conv.image_sizes();
    let symmetric = |axis: usize| {
        let reach = (conv.kernel[axis].checked_sub(1)?).checked_mul(conv.dilations[axis])?;
        let padded = conv.input[axis].checked_add(conv.pads[axis].checked_mul(2)?)?;
        let places = padded.checked_sub(reach)?.checked_sub(1)?;
        Some(places / conv.strides[axis].max(1) + 1 == conv.output[axis])
    };
    let small = conv.sizes().iter().all(|size| size.is_some_and(|size| (1..=i32::MAX as u64).contains(&size)));
    plain && dense && small && (0..2).all(|axis| symmetric(axis) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::{GemmElements, ImageLayout};

    fn matrix(offset: i64, batch: [i64; 3], row: i64, col: i64) -> MatrixLayout {
        MatrixLayout { offset, batch_strides: batch, row_stride: row, col_stride: col }
    }

    #[test]
    fn matrices_lie_by_rows_or_by_columns() {
        let of = |rows, columns, row, col| {
            LibraryMatrix::of(&matrix(0, [0; 3], row, col), rows, columns).map(|m| (m.by_rows, m.leading))
        };
        assert_eq!(of(4, 6, 8, 1), Some((true, 8)));
        assert_eq!(of(4, 6, 1, 5), Some((false, 5)));
        assert_eq!(of(4, 6, 5, 1), None, "rows overlap");
        assert_eq!(of(4, 6, 12, 2), None);
        assert_eq!(of(4, 6, 0, 1), None, "one row for all");
        assert_eq!(of(1, 6, 0, 1), Some((true, 6)));
        assert_eq!(of(1, 6, 0, 3), Some((false, 3)));
        assert_eq!(of(4, 1, 9, 0), Some((true, 9)));
        assert_eq!(of(1, 1, 0, 0), Some((true, 1)));
    }

    #[test]
    fn the_longest_batch_is_one_call() {
        let layout = matrix(3, [1000, 0, 7], 8, 1);
        let call = BatchedGemm {
            batch: [2, 1, 5],
            m: 1,
            n: 4,
            k: 4,
            a: layout,
            b: layout,
            c: layout,
            b_packed: false,
            elements: GemmElements::F32,
        };
        let batch = LibraryBatch::of(&call).unwrap();
        assert_eq!((batch.count, batch.strides, batch.outer), (5, [7; 3], [2, 1, 1]));
        assert_eq!(batch.offsets(&call).collect::<Vec<_>>(), [[3; 3], [1003; 3]]);
        assert!(LibraryBatch::of(&BatchedGemm { batch: [40, 40, 1], ..call }).is_none(), "too many calls");
        assert!(LibraryBatch::of(&BatchedGemm { b_packed: true, ..call }).is_none());
        assert!(LibraryBatch::of(&BatchedGemm { k: 0, ..call }).is_none());
    }

    #[test]
    fn paddings_are_the_same_on_both_sides() {
        let conv = Conv2d {
            batch: 1,
            groups: 1,
            in_channels: 3,
            out_channels: 4,
            input: [9, 8],
            output: [9, 8],
            kernel: [3, 3],
            strides: [1, 1],
            dilations: [1, 1],
            pads: [1, 1],
            pass: ConvPass::Forward,
            images: [0; 2],
            layouts: [ImageLayout::Nchw; 2],
        };
        let fits = |conv| {
            let contraction = VendorContraction::Convolution(conv);
            VendorCall { contraction, dtype: DType::F16, tf32: false, workspace: 0 }.fits()
        };
        assert!(fits(conv));
        assert!(!fits(Conv2d { pads: [0, 1], output: [8, 8], ..conv }), "one row behind, none before");
        assert!(fits(Conv2d { strides: [2, 2], output: [5, 4], ..conv }), "what is behind is not read");
        assert!(!fits(Conv2d { pass: ConvPass::DataGradient, ..conv }));
        assert!(!fits(Conv2d { pads: [u64::MAX, 1], ..conv }));
        assert!(!fits(Conv2d { kernel: [12, 3], ..conv }));
    }
}
