//! Loop nests for operators with kernels of their own.

use tensorc_ir::index::{delinearize, linearize};
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::prelude::*;

/// One parallel loop over all elements of `dims`; the body sees their coordinates.
pub fn parallel(
    k: &mut KernelBuilder,
    dims: &[u64],
    body: impl FnOnce(&mut KernelBuilder, &[Index]) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let n: u64 = dims.iter().product();
    k.for_range("p", n, LoopKind::Parallel, |k, p| body(k, &coordinates(&p, dims)))
}

/// Row-major coordinates of `offset`, which lies in `0..dims.product()`.
pub fn coordinates(offset: &Index, dims: &[u64]) -> Vec<Index> {
    let n = dims.iter().product::<u64>() as i64;
    delinearize(offset, dims, &|_: u32| (0, (n - 1).max(0)))
}

/// What a nest does at given coordinates.
type NestBody<'a> = &'a mut dyn FnMut(&mut KernelBuilder, &[Index]) -> Result<(), OpError>;

/// Serial loops over `dims`, outermost first.
pub fn serial(k: &mut KernelBuilder, dims: &[u64], body: NestBody<'_>) -> Result<(), OpError> {
    fn level(k: &mut KernelBuilder, dims: &[u64], at: &mut Vec<Index>, body: NestBody<'_>) -> Result<(), OpError> {
        let Some(&n) = dims.get(at.len()) else { return body(k, at) };
        k.for_range("i", n, LoopKind::Serial, |k, i| {
            at.push(i);
            let result = level(k, dims, at, body);
            at.pop();
            result
        })
    }
    level(k, dims, &mut vec![], body)
}

/// Row-major offset.
pub fn flat(coords: &[Index], dims: &[u64]) -> Index {
    linearize(coords, dims)
}

pub fn int(x: i64) -> Operand {
    Operand::Const(Scalar::i64(x))
}

/// Short names for scalar operations in kernels.
pub trait Scalars {
    fn bin(&mut self, op: ScalarOp, a: Operand, b: Operand) -> Operand;
    fn cmp(&mut self, op: CmpOp, a: Operand, b: Operand) -> Operand;
    fn select(&mut self, cond: Operand, yes: Operand, no: Operand) -> Operand;
    fn cast(&mut self, x: Operand, to: DType) -> Operand;
    /// An element of an index operand as a position on an axis of extent `n`: negative values
    /// count from the end, and what is out of range is clamped.
    fn position(&mut self, value: Operand, n: u64) -> Index;
    /// A load as i64.
    fn load_i64(&mut self, buf: Buf, at: Index) -> Operand;
}

impl Scalars for KernelBuilder {
    fn bin(&mut self, op: ScalarOp, a: Operand, b: Operand) -> Operand {
        self.op(op, &[a, b])
    }

    fn cmp(&mut self, op: CmpOp, a: Operand, b: Operand) -> Operand {
        self.op(ScalarOp::Cmp(op), &[a, b])
    }

    fn select(&mut self, cond: Operand, yes: Operand, no: Operand) -> Operand {
        self.op(ScalarOp::Select, &[cond, yes, no])
    }

    fn cast(&mut self, x: Operand, to: DType) -> Operand {
        if self.dtype(x) == to { x } else { self.op(ScalarOp::Cast(to), &[x]) }
    }

    fn position(&mut self, value: Operand, n: u64) -> Index {
        let value = self.cast(value, DType::I64);
        let last = (n as i64 - 1).max(0);
        let wrapped = self.bin(ScalarOp::Add, value, int(n as i64));
        let negative = self.cmp(CmpOp::Lt, value, int(0));
        let chosen = self.select(negative, wrapped, value);
        let low = self.bin(ScalarOp::Max, chosen, int(0));
        let clamped = self.bin(ScalarOp::Min, low, int(last));
        // The bound is stated in the index as well, where bounds checks see it.
        let unbounded = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        self.as_index(clamped).maximum(&Index::constant(0), &unbounded).minimum(&Index::constant(last), &unbounded)
    }

    fn load_i64(&mut self, buf: Buf, at: Index) -> Operand {
        let value = self.load(buf, at);
        self.cast(value, DType::I64)
    }
}

/// A kernel as a primitive.
pub fn kernel_prim(k: KernelBuilder) -> Prim {
    let kernel: Kernel = k.finish();
    Prim::Kernel(kernel.into())
}

/// Declares the operand and result parameters of a kernel.
pub fn buffers(k: &mut KernelBuilder, inputs: &[(&str, &DenseType)], outputs: &[(&str, &DenseType)]) -> Vec<Buf> {
    let inputs = inputs.iter().map(|(n, t)| (n, t, false));
    let outputs = outputs.iter().map(|(n, t)| (n, t, true));
    inputs.chain(outputs).map(|(n, t, w)| k.param(*n, t.dtype, t.len(), w)).collect()
}
