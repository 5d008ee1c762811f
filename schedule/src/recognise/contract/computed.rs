//! Which operand of a library contraction may be computed where it is read, and how much of it is computed again.

use tensorc_abi::{BatchedGemm, Conv2d, GemmElements};
use tensorc_ir::extent::Example;
use tensorc_ir::prim::Contraction;
use tensorc_ir::{DenseType, Extent};

use super::{LibraryCall, library_call};

/// Most terms of a product whose rows are computed: a few of them stay in the second-level cache.
const MAX_TERMS: u64 = 3072;
/// Rows of A that a task of a product packs, and columns of B that it multiplies with them, about.
const TASK: [u64; 2] = [192, 256];
/// Pieces that a step is cut into for some threads, about: the rows at their edges are computed for both sides.
const ASSUMED_CHUNKS: u64 = 8;
/// Floating-point operations of a task of a convolution, and tasks of a large one.
const CONVOLUTION_TASK: (u64, u64) = (2_000_000, 16);

/// Which operand of a contraction, 0 or 1, the library that computes it takes as generated code that computes blocks of
/// it; `None`: it reads both in memory. `constant`: whether the filters of a convolution are known. `out_strides`: where
/// the result is stored, as for [`library_call`].
pub fn computed_operand(
    c: &Contraction,
    [lhs, rhs]: [&DenseType; 2],
    constant: bool,
    out_strides: Option<&[Extent]>,
) -> Option<usize> {
    let gemm = match library_call(c, lhs, rhs, out_strides)? {
        LibraryCall::Conv(conv) => return (conv.takes_computed() && constant).then_some(0),
        LibraryCall::Gemm(gemm) => gemm,
    };
    let BatchedGemm { a, batch, m, k, elements, .. } = gemm.call;
    let once = |(extent, stride): (&Extent, &Extent)| *extent == 1 || *stride != 0;
    let rows = batch.iter().zip(&a.batch_strides).all(once) && once((&m, &a.row_stride));
    (rows && elements == GemmElements::F32 && (k == 1 || a.col_stride == 1) && k <= MAX_TERMS)
        .then_some(usize::from(gemm.swapped))
}

/// How many elements of an operand that is computed the library computes, about, of `len` there are, in the example.
pub fn computed_elements(c: &Contraction, lhs: &DenseType, rhs: &DenseType, len: u64) -> u64 {
    let times = |parts: u64, whole: u64| u128::from(len) * u128::from(parts) / u128::from(whole.max(1));
    let elements = match library_call(c, lhs, rhs, None) {
        Some(LibraryCall::Conv(conv)) => {
            let conv = conv.convert(&Example);
            let height = conv.input[0];
            times(height + (bands(&conv) - 1) * overlap(&conv), height)
        }
        Some(LibraryCall::Gemm(gemm)) => {
            let call = gemm.call.convert(&Example);
            let [rows, cols] = [call.m, call.n].map(|n| n.max(1));
            let blocks = call.batch.iter().product::<u64>() * rows.div_ceil(TASK[0]);
            times(blocks * cols.div_ceil(TASK[1]).min(1 + ASSUMED_CHUNKS.div_ceil(blocks)), blocks)
        }
        None => u128::from(len),
    };
    u64::try_from(elements).unwrap_or(u64::MAX)
}

/// Bands of rows that a convolution is computed in, about.
fn bands(conv: &Conv2d) -> u64 {
    let (flops, most) = CONVOLUTION_TASK;
    let images = conv.batch.max(1);
    (conv.flops() / flops).min(most).div_ceil(images).min(conv.output[0] / 3).max(1)
}

/// Rows of the image that neighbouring bands both read.
fn overlap(conv: &Conv2d) -> u64 {
    let reach = conv.kernel[0].saturating_sub(1) * conv.dilations[0] + 1;
    reach.saturating_sub(conv.strides[0])
}
