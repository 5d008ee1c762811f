//! Random kernels that obey every rule of the kernel verifier and never leave their buffers.

use std::convert::Infallible;

use tensorc_abi::DType;
use tensorc_ir::Rng;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarOp};

const LANES: u64 = 4;

/// What the body of a loop returns: it cannot fail.
const DONE: Result<(), Infallible> = Ok(());

/// A kernel from one or two read-only parameters to one written parameter, all of type `dtype`
/// (f32, f64 or a signed integer). With `parallel`, its only statement is a parallel loop.
///
/// Every element of the written parameter is stored exactly once, so results of a parallel run are
/// defined.
pub fn random_kernel(rng: &mut Rng, dtype: DType, parallel: bool) -> Kernel {
    let mut k = KernelBuilder::new(format!("k{}", rng.below(1000)));
    let (rows, cols) = (1 + rng.below(5), LANES * (1 + rng.below(4)));
    let len = rows * cols;
    let inputs: Vec<Buf> = (0..1 + rng.below(2)).map(|i| k.param(format!("x{i}"), dtype, len, false)).collect();
    let output = k.param("y", dtype, len, true);
    let mut body = KernelBody { rng, inputs, output, dtype, len };
    let kind = if parallel { LoopKind::Parallel } else { LoopKind::Serial };
    let Ok(()) = k.for_range("r", rows, kind, |k, r| {
        body.row(k, &r, cols);
        DONE
    });
    k.finish()
}

struct KernelBody<'r> {
    rng: &'r mut Rng,
    inputs: Vec<Buf>,
    output: Buf,
    dtype: DType,
    len: u64,
}

impl KernelBody<'_> {
    /// Writes `cols` elements from `row * cols` on in one of several loop structures.
    fn row(&mut self, k: &mut KernelBuilder, row: &Index, cols: u64) {
        let base = row.scale(cols as i64);
        let Ok(()) = match self.rng.below(4) {
            0 => k.for_range("i", cols, LoopKind::Serial, |k, i| {
                self.element(k, &base.add(&i), true);
                DONE
            }),
            1 => k.for_range("u", cols, LoopKind::Unroll, |k, i| {
                self.element(k, &base.add(&i), false);
                DONE
            }),
            2 => {
                let bounds = (Index::constant(0), Index::constant(cols as i64), LANES as i64);
                k.for_loop("i", bounds, LoopKind::Serial, |k, i| {
                    k.for_range("l", LANES, LoopKind::Vector, |k, l| {
                        self.element(k, &base.add(&i).add(&l), false);
                        DONE
                    })
                })
            }
            _ => self.folded(k, &base, cols),
        };
        if self.dtype == DType::F32 && self.rng.one_in(3) {
            let f = *self.rng.pick(&[MathFn::Exp, MathFn::Tanh, MathFn::Erf, MathFn::Log]);
            k.apply_strip(f, self.output, base, Index::constant(self.rng.below(cols + 1) as i64));
        }
    }

    /// Folds the row in a local array, then writes every element plus the sum.
    fn folded(&mut self, k: &mut KernelBuilder, base: &Index, cols: u64) -> Result<(), Infallible> {
        let acc = k.alloc("acc", self.dtype, LANES, MemorySpace::Register);
        k.for_range("l", LANES, LoopKind::Vector, |k, l| {
            k.store(acc, l, Operand::Const(Scalar::zero(self.dtype)));
            DONE
        })?;
        let bounds = (Index::constant(0), Index::constant(cols as i64), LANES as i64);
        k.for_loop("i", bounds, LoopKind::Serial, |k, i| {
            k.for_range("l", LANES, LoopKind::Vector, |k, l| {
                let x = k.load(self.inputs[0], base.add(&i).add(&l));
                let old = k.load(acc, l.clone());
                let new = k.op(ScalarOp::Add, &[old, x]);
                k.store(acc, l, new);
                DONE
            })
        })?;
        let total = k.alloc("total", self.dtype, 1, MemorySpace::Stack);
        let first = k.load(acc, Index::constant(0));
        k.store(total, Index::constant(0), first);
        k.for_range("l", LANES - 1, LoopKind::Unroll, |k, l| {
            let (a, b) = (k.load(total, Index::constant(0)), k.load(acc, l.offset(1)));
            let sum = k.op(ScalarOp::Add, &[a, b]);
            k.store(total, Index::constant(0), sum);
            DONE
        })?;
        let total = k.load(total, Index::constant(0));
        k.for_range("i", cols, LoopKind::Serial, |k, i| {
            let at = base.add(&i);
            let x = k.load(self.inputs[0], at.clone());
            let y = k.op(ScalarOp::Add, &[x, total]);
            k.store(self.output, at, y);
            DONE
        })
    }

    /// Writes the element at `at`; `branches` allows `if`.
    fn element(&mut self, k: &mut KernelBuilder, at: &Index, branches: bool) {
        let mut value = k.load(self.inputs[0], at.clone());
        for _ in 0..self.rng.below(4) {
            value = self.step(k, value, at);
        }
        if branches && self.rng.one_in(3) {
            let zero = Operand::Const(Scalar::zero(self.dtype));
            let cond = k.op(ScalarOp::Cmp(CmpOp::Lt), &[value, zero]);
            let not = k.op(ScalarOp::Not, &[cond]);
            let (output, negated) = (self.output, k.op(ScalarOp::Neg, &[value]));
            for (cond, value) in [(cond, negated), (not, value)] {
                let Ok(()) = k.if_then(cond, |k| {
                    k.store(output, at.clone(), value);
                    DONE
                });
            }
            return;
        }
        k.store(self.output, at.clone(), value);
    }

    fn step(&mut self, k: &mut KernelBuilder, value: Operand, at: &Index) -> Operand {
        let c = Operand::Const(self.rng.element(self.dtype));
        match self.rng.below(5) {
            // The neighbour to the left or right, guarded at the ends.
            0 => {
                let shifted = at.offset(if self.rng.one_in(2) { -1 } else { 1 });
                let inside = k.in_range(&shifted, 0, self.len as i64);
                let other = *self.rng.pick(&self.inputs);
                let fill = self.rng.element(self.dtype);
                let neighbour = k.load_guarded(other, shifted, Some((inside, fill)));
                k.op(ScalarOp::Max, &[value, neighbour])
            }
            1 => {
                let wrapped = at.scale(3).modulo(self.len as i64, &|_| (0, i64::MAX / 16));
                let other = k.load(*self.rng.pick(&self.inputs), wrapped);
                k.op(ScalarOp::Sub, &[value, other])
            }
            2 => {
                let less = k.op(ScalarOp::Cmp(CmpOp::Le), &[value, c]);
                k.op(ScalarOp::Select, &[less, value, c])
            }
            3 => {
                let place = k.index_value(at.clone());
                let place = if self.dtype == DType::I64 { place } else { k.op(ScalarOp::Cast(self.dtype), &[place]) };
                k.op(ScalarOp::Add, &[value, place])
            }
            _ => k.op(*self.rng.pick(&[ScalarOp::Mul, ScalarOp::Add, ScalarOp::Min]), &[value, c]),
        }
    }
}
