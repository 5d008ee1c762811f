//! Factorisations and what is solved with them. Kernels compute in f64, one matrix (or column) to an iteration.
//!
//! Derivatives are those collected by Giles (2008) and, of the Cholesky factor, Murray (2016).

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::products::{sided, sided_shapes};
use super::{matmul, scaled, transposed, transposed_if, triangle};
use crate::nest::Scalars;
use crate::prelude::*;

pub(super) const F64: DType = DType::F64;

pub fn ops() -> Vec<OpDef> {
    vec![solve_triangular(), trsm(), potrf(), potri(), lu_inverse(), inverse(), det(), slogdet()]
}

pub(super) fn real(x: f64) -> Operand {
    Operand::Const(Scalar::from_f64(F64, x))
}

/// Number of matrices, and their extent.
pub(super) fn matrices(dims: &[u64]) -> (u64, u64) {
    let n = dims[dims.len() - 1];
    (dims[..dims.len() - 2].iter().product(), n)
}

pub(super) fn square(cx: &mut InferCtx<'_>) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(None) };
    cx.unify_dims(x[x.len() - 2], x[x.len() - 1], &format!("{}, last axis", cx.input_name(0)))?;
    Ok(Some(x))
}

pub(super) type SolveBody<'a> = &'a mut dyn FnMut(&mut KernelBuilder, Index) -> Result<(), OpError>;

/// A serial loop over `lo..hi`.
pub(super) fn over(k: &mut KernelBuilder, lo: Index, hi: Index, body: SolveBody<'_>) -> Result<(), OpError> {
    k.for_loop("i", (lo, hi, 1), LoopKind::Serial, |k, i| body(k, i))
}

/// `total += a · b`.
pub(super) fn accumulate(k: &mut KernelBuilder, total: Buf, at: Index, a: Operand, b: Operand) {
    let old = k.load(total, at.clone());
    let term = k.bin(ScalarOp::Mul, a, b);
    let new = k.bin(ScalarOp::Add, old, term);
    k.store(total, at, new);
}

/// `total -= a · b`.
fn subtract(k: &mut KernelBuilder, total: Buf, at: Index, a: Operand, b: Operand) {
    let old = k.load(total, at.clone());
    let term = k.bin(ScalarOp::Mul, a, b);
    let new = k.bin(ScalarOp::Sub, old, term);
    k.store(total, at, new);
}

/// X in `op(A) · X = B` by substitution, a column to an iteration. `forward`: op(A) is lower.
fn substitution(a: &DenseType, x: &DenseType, transpose: bool, forward: bool) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&a.dims);
    let columns = x.dims[x.rank() - 1];
    let mut k = KernelBuilder::new("solve_triangular");
    let (lhs, rhs) = (k.param("a", F64, a.len(), false), k.param("b", F64, x.len(), false));
    let out = k.param("x", F64, x.len(), true);
    let count = (batch * columns) as i64;
    k.for_range("column", batch * columns, LoopKind::Parallel, |k, p| {
        let range = |_: u32| (0, (count - 1).max(0));
        let (which, column) = (p.floor_div(columns.max(1) as i64, &range), p.modulo(columns.max(1) as i64, &range));
        let element = |row: &Index| which.scale((n * columns) as i64).add(&row.scale(columns as i64)).add(&column);
        let entry = |row: &Index, col: &Index| {
            let (row, col) = if transpose { (col, row) } else { (row, col) };
            which.scale((n * n) as i64).add(&row.scale(n as i64)).add(col)
        };
        let total = k.alloc("total", F64, 1, MemorySpace::Stack);
        k.for_range("step", n, LoopKind::Serial, |k, step| {
            let row = if forward { step.clone() } else { Index::constant(n as i64 - 1).sub(&step) };
            let start = k.load(rhs, element(&row));
            k.store(total, Index::default(), start);
            over(k, Index::default(), step.clone(), &mut |k, done| {
                let col = if forward { done } else { Index::constant(n as i64 - 1).sub(&done) };
                let (factor, known) = (k.load(lhs, entry(&row, &col)), k.load(out, element(&col)));
                subtract(k, total, Index::default(), factor, known);
                Ok(())
            })?;
            let (sum, pivot) = (k.load(total, Index::default()), k.load(lhs, entry(&row, &row)));
            let value = k.bin(ScalarOp::Div, sum, pivot);
            k.store(out, element(&row), value);
            Ok::<(), OpError>(())
        })
    })?;
    Ok(k.finish())
}

fn flag(params: &Params, name: &str) -> bool {
    params.bool(name) == Some(true)
}

fn triangular(lower: bool, transpose: bool) -> Params {
    Params::new().with("lower", ParamValue::Bool(lower)).with("transpose", ParamValue::Bool(transpose))
}

fn solve_triangular() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (a, x) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let (a, x) = (cast(b, a, F64)?, cast(b, x, F64)?);
        let (lower, transpose) = (cx.params.bool("lower") != Some(false), flag(cx.params, "transpose"));
        let (at, xt) = (b.ty(a)?, b.ty(x)?);
        let kernel = substitution(&at, &xt, transpose, lower != transpose).or_fail(b)?;
        let out = b.kernel(kernel, &[a, x], &[xt])[0];
        cast(b, out, cx.outputs[0].dtype)
    });
    let doc = "X in `A · X = B` (`Aᵀ · X = B` if `transpose`) with a triangular A.";
    define("solve_triangular", doc, compute, rule(sided_shapes))
        .group("A", FLOATS)
        .group("B", FLOATS)
        .param("lower", ParamValue::Bool(true), "which triangle of A is used")
        .param("transpose", ParamValue::Bool(false), "whether A is transposed")
        .gradient(|b, cx| {
            let (a, head, x) = (cx.input(0)?, cx.head(b, 0)?, cx.outputs[0]);
            let (lower, transpose) = (cx.node.params.bool("lower") != Some(false), flag(cx.node.params, "transpose"));
            let back = b.op("solve_triangular", &[a, head], triangular(lower, !transpose))?;
            let (left, right) = if transpose { (x, back) } else { (back, x) };
            let right = transposed(b, right)?;
            let outer = matmul(b, left, right)?;
            let outer = triangle(b, outer, lower)?;
            Ok(vec![Some(b.call("neg", &[outer])?), Some(back)])
        })
        .ulp(64.0)
}

/// X in `op(A) · X = B`, or `X · op(A) = B` on the right, as the transpose of the former.
pub(super) fn solve(b: &mut Builder<'_>, a: Value, x: Value, lower: bool, flags: [bool; 2]) -> Result<Value> {
    let [transpose, right] = flags;
    let x = transposed_if(b, x, right)?;
    let out = b.op("solve_triangular", &[a, x], triangular(lower, transpose != right))?;
    transposed_if(b, out, right)
}

fn trsm() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (a, x) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let x = scaled(b, x, cx.params.float("alpha").unwrap_or(1.0))?;
        let flags = ["transpose", "rightside"].map(|name| flag(cx.params, name));
        solve(b, a, x, cx.params.bool("lower") != Some(false), flags)
    });
    let doc = "X in `op(A) · X = alpha · B`, or `X · op(A) = alpha · B` on the right, with a triangular A.";
    sided(define("mx_linalg_trsm", doc, compute, rule(sided_shapes)))
        .ulp(64.0)
        .mxnet("_linalg_trsm")
        .mxnet("linalg_trsm")
}

/// The lower factor, row by row; NaN where the matrix is not positive definite.
fn cholesky(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let mut k = KernelBuilder::new("cholesky");
    let (a, out) = (k.param("a", F64, ty.len(), false), k.param("l", F64, ty.len(), true));
    k.for_range("matrix", batch, LoopKind::Parallel, |k, which| {
        let at = |row: &Index, col: &Index| which.scale((n * n) as i64).add(&row.scale(n as i64)).add(col);
        let total = k.alloc("total", F64, 1, MemorySpace::Stack);
        k.for_range("row", n, LoopKind::Serial, |k, row| {
            k.for_range("zero", n, LoopKind::Serial, |k, col| {
                k.store(out, at(&row, &col), real(0.0));
                Ok::<(), OpError>(())
            })?;
            over(k, Index::default(), row.offset(1), &mut |k, col| {
                let start = k.load(a, at(&row, &col));
                k.store(total, Index::default(), start);
                over(k, Index::default(), col.clone(), &mut |k, i| {
                    let (x, y) = (k.load(out, at(&row, &i)), k.load(out, at(&col, &i)));
                    subtract(k, total, Index::default(), x, y);
                    Ok(())
                })?;
                let sum = k.load(total, Index::default());
                let root = k.op(ScalarOp::Sqrt, &[sum]);
                let pivot = k.load(out, at(&col, &col));
                let share = k.bin(ScalarOp::Div, sum, pivot);
                let (r, c) = (k.index_value(row.clone()), k.index_value(col.clone()));
                let diagonal = k.cmp(CmpOp::Eq, r, c);
                let value = k.select(diagonal, root, share);
                k.store(out, at(&row, &col), value);
                Ok(())
            })
        })
    })?;
    Ok(k.finish())
}

fn potrf() -> OpDef {
    let compute = composite(|b, cx, args| {
        let a = operand(b, args, 0)?;
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let kernel = cholesky(&ty).or_fail(b)?;
        let out = b.kernel(kernel, &[a], &[ty])[0];
        cast(b, out, cx.outputs[0].dtype)
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        square(cx).map(|_| ())
    });
    define("mx_linalg_potrf", "The lower Cholesky factor L of A = L · Lᵀ; NaN if there is none.", compute, infer)
        .operand("A", FLOATS)
        .gradient(|b, cx| {
            // ½ · L⁻ᵀ · P · L⁻¹ with P the lower triangle of Lᵀ · dL, mirrored.
            let (l, head) = (cx.outputs[0], cx.head(b, 0)?);
            let head = triangle(b, head, true)?;
            let lt = transposed(b, l)?;
            let p = matmul(b, lt, head)?;
            let (pt, rank) = (transposed(b, p)?, b.dims(p)?.len());
            let ty = b.ty(p)?;
            let mirrored = b.map_as(&[p, pt], ty.dtype, &ty.dims, |s, a| {
                s.coord(rank - 1).le(&s.coord(rank - 2)).select(&a[0], &a[1])
            })?;
            let left = solve(b, l, mirrored, true, [true, false])?;
            let both = solve(b, l, left, true, [false, true])?;
            Ok(vec![Some(scaled(b, both, 0.5)?)])
        })
        .ulp(64.0)
        .mxnet("_linalg_potrf")
        .mxnet("linalg_potrf")
}

fn potri() -> OpDef {
    let compute = composite(|b, cx, args| {
        let l = operand(b, args, 0)?;
        let out = &cx.outputs[0];
        let rank = out.rank();
        let one = b.map_as(&[], out.dtype, &out.dims, |s, _| {
            let wide = compute_type(out.dtype);
            s.coord(rank - 1).eq(&s.coord(rank - 2)).select(&s.number(wide, 1.0), &s.number(wide, 0.0))
        })?;
        let inverse = solve(b, l, one, true, [false, false])?;
        let t = transposed(b, inverse)?;
        matmul(b, t, inverse)
    });
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        square(cx).map(|_| ())
    });
    define("mx_linalg_potri", "The inverse of L · Lᵀ, given the lower L.", compute, infer)
        .operand("A", FLOATS)
        .ulp(64.0)
        .mxnet("_linalg_potri")
        .mxnet("linalg_potri")
}

/// Buffers of the elimination: the matrix that is reduced, the inverse that grows, and by matrix the sign of the
/// determinant and the logarithm of its magnitude.
#[derive(Clone, Copy)]
struct Elimination {
    n: u64,
    work: Buf,
    inverse: Buf,
    sign: Buf,
    log: Buf,
}

impl Elimination {
    fn at(&self, which: &Index, row: &Index, col: &Index) -> Index {
        which.scale((self.n * self.n) as i64).add(&row.scale(self.n as i64)).add(col)
    }

    /// The row of the greatest magnitude in a column, from the diagonal down.
    fn pivot(&self, k: &mut KernelBuilder, which: &Index, col: &Index, best: Buf) -> Result<Index, OpError> {
        let start = k.index_value(col.clone());
        k.store(best, Index::default(), start);
        let last = self.n as i64 - 1;
        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        let row_of = |k: &KernelBuilder, x: Operand| {
            k.as_index(x).maximum(&Index::default(), &free).minimum(&Index::constant(last), &free)
        };
        over(k, col.offset(1), Index::constant(self.n as i64), &mut |k, row| {
            let held = k.load(best, Index::default());
            let held_row = row_of(k, held);
            let (x, y) =
                (k.load(self.work, self.at(which, &row, col)), k.load(self.work, self.at(which, &held_row, col)));
            let (x, y) = (k.op(ScalarOp::Abs, &[x]), k.op(ScalarOp::Abs, &[y]));
            let larger = k.cmp(CmpOp::Gt, x, y);
            let here = k.index_value(row.clone());
            let chosen = k.select(larger, here, held);
            k.store(best, Index::default(), chosen);
            Ok(())
        })?;
        let found = k.load(best, Index::default());
        Ok(row_of(k, found))
    }

    fn swap(&self, k: &mut KernelBuilder, which: &Index, [r, s]: [&Index; 2]) -> Result<(), OpError> {
        k.for_range("c", self.n, LoopKind::Serial, |k, c| {
            for buf in [self.work, self.inverse] {
                let (x, y) = (k.load(buf, self.at(which, r, &c)), k.load(buf, self.at(which, s, &c)));
                k.store(buf, self.at(which, r, &c), y);
                k.store(buf, self.at(which, s, &c), x);
            }
            Ok(())
        })
    }

    /// One column: pivot, scale its row, and clear it in the other rows.
    fn column(&self, k: &mut KernelBuilder, which: &Index, col: &Index, best: Buf) -> Result<(), OpError> {
        let pivot = self.pivot(k, which, col, best)?;
        let (p, c) = (k.load(best, Index::default()), k.index_value(col.clone()));
        let moved = k.cmp(CmpOp::Ne, p, c);
        let value = k.load(self.work, self.at(which, &pivot, col));
        let sign = k.load(self.sign, which.clone());
        let negated = k.op(ScalarOp::Neg, &[sign]);
        let sign = k.select(moved, negated, sign);
        let negated = k.op(ScalarOp::Neg, &[sign]);
        let negative = k.cmp(CmpOp::Lt, value, real(0.0));
        let sign = k.select(negative, negated, sign);
        let none = k.cmp(CmpOp::Eq, value, real(0.0));
        let sign = k.select(none, real(0.0), sign);
        k.store(self.sign, which.clone(), sign);
        let magnitude = k.op(ScalarOp::Abs, &[value]);
        let log = k.op(ScalarOp::Math(tensorc_ir::scalar::MathFn::Log), &[magnitude]);
        let old = k.load(self.log, which.clone());
        let sum = k.bin(ScalarOp::Add, old, log);
        k.store(self.log, which.clone(), sum);
        k.if_then(moved, |k| self.swap(k, which, [col, &pivot]))?;
        k.for_range("c", self.n, LoopKind::Serial, |k, c| {
            for buf in [self.work, self.inverse] {
                let x = k.load(buf, self.at(which, col, &c));
                let x = k.bin(ScalarOp::Div, x, value);
                k.store(buf, self.at(which, col, &c), x);
            }
            Ok::<(), OpError>(())
        })?;
        k.for_range("row", self.n, LoopKind::Serial, |k, row| {
            let (r, c) = (k.index_value(row.clone()), k.index_value(col.clone()));
            let other = k.cmp(CmpOp::Ne, r, c);
            k.if_then(other, |k| {
                let factor = k.load(self.work, self.at(which, &row, col));
                k.for_range("c", self.n, LoopKind::Serial, |k, c| {
                    for buf in [self.work, self.inverse] {
                        let x = k.load(buf, self.at(which, col, &c));
                        subtract(k, buf, self.at(which, &row, &c), factor, x);
                    }
                    Ok::<(), OpError>(())
                })
            })
        })
    }
}

/// Gauss-Jordan elimination with partial pivoting.
fn elimination(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let mut k = KernelBuilder::new("elimination");
    let a = k.param("a", F64, ty.len(), false);
    let inverse = k.param("inverse", F64, ty.len(), true);
    let (sign, log) = (k.param("sign", F64, batch, true), k.param("log", F64, batch, true));
    let work = k.param("work", F64, ty.len(), true);
    let e = Elimination { n, work, inverse, sign, log };
    k.for_range("matrix", batch, LoopKind::Parallel, |k, which| {
        k.store(sign, which.clone(), real(1.0));
        k.store(log, which.clone(), real(0.0));
        let best = k.alloc("best", DType::I64, 1, MemorySpace::Stack);
        k.for_range("row", n, LoopKind::Serial, |k, row| {
            k.for_range("col", n, LoopKind::Serial, |k, col| {
                let at = e.at(&which, &row, &col);
                let value = k.load(a, at.clone());
                k.store(work, at.clone(), value);
                let (r, c) = (k.index_value(row.clone()), k.index_value(col.clone()));
                let same = k.cmp(CmpOp::Eq, r, c);
                let one = k.select(same, real(1.0), real(0.0));
                k.store(inverse, at, one);
                Ok::<(), OpError>(())
            })
        })?;
        k.for_range("col", n, LoopKind::Serial, |k, col| e.column(k, &which, &col, best))
    })?;
    Ok(k.finish())
}

/// Inverse, sign and logarithm of the magnitude of the determinant, all by one elimination.
fn lu_inverse() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let a = operand(b, args, 0)?;
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let (batch, _) = matrices(&ty.dims);
        let kernel = elimination(&ty).or_fail(b)?;
        let scalar = DenseType::new(F64, &[batch]);
        let made = b.kernel(kernel, &[a], &[ty.clone(), scalar.clone(), scalar, ty]);
        let mut out = vec![];
        for (value, ty) in made.iter().zip(cx.outputs) {
            let value = b.reshaped(*value, &ty.dims)?;
            out.push(cast(b, value, ty.dtype)?);
        }
        Ok(out)
    }));
    let infer = rule(|cx| {
        for i in 0..3 {
            cx.same_dtype(i, 0)?;
        }
        let Some(x) = square(cx)? else { return Ok(()) };
        cx.set_output_dims(0, x.iter().copied())?;
        for i in 1..3 {
            cx.set_output_dims(i, x[..x.len() - 2].iter().copied())?;
        }
        Ok(())
    });
    let doc = "The inverse of square matrices, the sign of the determinant, and the logarithm of its magnitude.";
    define("inverse_with_determinant", doc, compute, infer)
        .operand("A", FLOATS)
        .outputs(3, 3)
        .gradient(|b, cx| {
            let inverse = transposed(b, cx.outputs[0])?;
            let mut total = None;
            if let Some(head) = cx.heads[0] {
                let left = matmul(b, inverse, head)?;
                let both = matmul(b, left, inverse)?;
                total = Some(b.call("neg", &[both])?);
            }
            if let Some(head) = cx.heads[2] {
                let mut dims = b.dims(head)?;
                dims.extend([1, 1]);
                let head = b.reshaped(head, &dims)?;
                let part = b.call("mul", &[inverse, head])?;
                total = Some(match total {
                    Some(sum) => b.call("add", &[sum, part])?,
                    None => part,
                });
            }
            Ok(vec![total])
        })
        .ulp(256.0)
}

/// Results of [`lu_inverse`].
fn eliminated(b: &mut Builder<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let a = operand(b, args, 0)?;
    Ok(b.op_multi("inverse_with_determinant", &[Some(a)], Params::new(), 3)?.to_vec())
}

fn inverse() -> OpDef {
    let compute = composite(|b, _, args| Ok(eliminated(b, args)?[0]));
    let infer = rule(|cx| {
        same(cx, 0, 0)?;
        square(cx).map(|_| ())
    });
    define("mx_linalg_inverse", "The inverse of square matrices.", compute, infer)
        .operand("A", FLOATS)
        .ulp(256.0)
        .mxnet("_linalg_inverse")
        .mxnet("linalg_inverse")
}

/// One matrix has a determinant of shape [1].
fn per_matrix(x: &[Dim]) -> Vec<Dim> {
    let batch = &x[..x.len() - 2];
    if batch.is_empty() { vec![Dim::Const(1)] } else { batch.to_vec() }
}

fn det() -> OpDef {
    let compute = composite(|b, cx, args| {
        let made = eliminated(b, args)?;
        let size = b.call("exp", &[made[2]])?;
        let out = b.call("mul", &[size, made[1]])?;
        b.reshaped(out, &cx.outputs[0].dims)
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        match square(cx)? {
            Some(x) => cx.set_output_dims(0, per_matrix(&x)),
            None => Ok(()),
        }
    });
    define("mx_linalg_det", "The determinant of square matrices.", compute, infer)
        .operand("A", FLOATS)
        .ulp(256.0)
        .mxnet("_linalg_det")
        .mxnet("linalg_det")
}

fn slogdet_body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let made = eliminated(b, args)?;
    let sign = b.call("stop_gradient", &[made[1]])?;
    Ok(vec![b.reshaped(sign, &cx.outputs[0].dims)?, b.reshaped(made[2], &cx.outputs[1].dims)?])
}

fn slogdet() -> OpDef {
    let infer = rule(|cx| {
        for i in 0..2 {
            cx.same_dtype(i, 0)?;
        }
        let Some(x) = square(cx)? else { return Ok(()) };
        (0..2).try_for_each(|i| cx.set_output_dims(i, per_matrix(&x)))
    });
    let doc = "The sign of the determinant and the logarithm of its magnitude.";
    define("mx_linalg_slogdet", doc, Compute::Composite(Box::new(slogdet_body)), infer)
        .operand("A", FLOATS)
        .outputs(2, 2)
        .ulp(256.0)
        .mxnet("_linalg_slogdet")
        .mxnet("linalg_slogdet")
}
