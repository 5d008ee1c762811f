//! Factorisations and what is solved with them. Kernels compute in f64, one matrix (or column) to an iteration.
//!
//! Derivatives are those collected by Giles (2008) and, of the Cholesky factor, Murray (2016).

use super::products::{sided, sided_shapes};
use super::{matmul, scaled, transposed, transposed_if, triangle};
use crate::kernel::{KernelCell, coordinates};
use crate::prelude::*;

pub(super) const F64: DType = DType::F64;

pub fn ops() -> Vec<OpDef> {
    vec![solve_triangular(), trsm(), potrf(), potri(), lu_inverse(), inverse(), det(), slogdet()]
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

/// The position in reverse order.
pub(super) fn from_end(n: u64, at: &Index) -> Index {
    Index::constant(n as i64 - 1).sub(at)
}

/// X in `op(A) · X = B` by substitution, a column to an iteration. `forward`: op(A) is lower.
fn substitution(a: &DenseType, x: &DenseType, transpose: bool, forward: bool) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&a.dims);
    let columns = x.dims[x.rank() - 1];
    let (square, right) = (DenseType::new(F64, &[batch, n, n]), DenseType::new(F64, &[batch, n, columns]));
    let k = &KernelScope::new("solve_triangular");
    let ([lhs, rhs], out) = (k.inputs(["a", "b"], [&square, &right]), k.output("x", &right));
    k.parallel_each("column", batch * columns, |p| {
        let at = coordinates(p, &[batch, columns]);
        let (which, column) = (&at[0], &at[1]);
        let entry = |row: &Index, col: &Index| lhs.get(if transpose { [which, col, row] } else { [which, row, col] });
        let total = k.cell("total", F64);
        k.each("step", n, |step| {
            let in_order = |i: &Index| if forward { i.clone() } else { from_end(n, i) };
            let row = in_order(step);
            total.set(rhs.get([which, &row, column]));
            k.range("i", (&Index::default(), step), |done| {
                let col = in_order(done);
                let (factor, known) = (entry(&row, &col), out.get([which, &col, column]));
                total.set(total.get() - factor * known);
            });
            out.set([which, &row, column], total.get() / entry(&row, &row));
        });
    });
    k.finish()
}

fn flag(params: &Params, name: &str) -> bool {
    params.bool(name) == Some(true)
}

fn triangular(lower: bool, transpose: bool) -> Params {
    Params::new().with("lower", lower).with("transpose", transpose)
}

fn solve_triangular() -> OpDef {
    let compute = composite_of(|b, cx, [a, x]| {
        let (a, x) = (cast(b, a, F64)?, cast(b, x, F64)?);
        let (lower, transpose) = (cx.params.bool("lower") != Some(false), flag(cx.params, "transpose"));
        let (at, xt) = (b.ty(a)?, b.ty(x)?);
        let out = b.kernel(substitution(&at, &xt, transpose, lower != transpose), &[a, x], &[xt])?[0];
        cast(b, out, cx.outputs[0].dtype)
    });
    let doc = "X in `A · X = B` (`Aᵀ · X = B` if `transpose`) with a triangular A.";
    define("solve_triangular", doc, compute, rule(sided_shapes))
        .groups(&["A", "B"], FLOATS)
        .param("lower", true, "which triangle of A is used")
        .param("transpose", false, "whether A is transposed")
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
    let compute = composite_of(|b, cx, [a, x]| {
        let x = scaled(b, x, cx.params.float("alpha").unwrap_or(1.0))?;
        let flags = ["transpose", "rightside"].map(|name| flag(cx.params, name));
        solve(b, a, x, cx.params.bool("lower") != Some(false), flags)
    });
    let doc = "X in `op(A) · X = alpha · B`, or `X · op(A) = alpha · B` on the right, with a triangular A.";
    sided(define("mx_linalg_trsm", doc, compute, rule(sided_shapes))).ulp(64.0).named(&["_linalg_trsm", "linalg_trsm"])
}

/// The lower factor, row by row; NaN where the matrix is not positive definite.
fn cholesky(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let square = DenseType::new(F64, &[batch, n, n]);
    let k = &KernelScope::new("cholesky");
    let (a, out) = (k.input("a", &square), k.output("l", &square));
    k.parallel_each("matrix", batch, |which| {
        let total = k.cell("total", F64);
        k.each("row", n, |row| {
            k.each("zero", n, |col| out.set([which, row, col], 0.0));
            k.range("i", (&Index::default(), &row.offset(1)), |col| {
                total.set(a.get([which, row, col]));
                k.range("i", (&Index::default(), col), |i| {
                    let (x, y) = (out.get([which, row, i]), out.get([which, col, i]));
                    total.set(total.get() - x * y);
                });
                let sum = total.get();
                let (root, share) = (sum.sqrt(), sum / out.get([which, col, col]));
                out.set([which, row, col], k.position(row).eq(col).select(root, share));
            });
        });
    });
    k.finish()
}

fn potrf() -> OpDef {
    let compute = composite_of(|b, cx, [a]| {
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let out = b.kernel(cholesky(&ty), &[a], &[ty])?[0];
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
        .named(&["_linalg_potrf", "linalg_potrf"])
}

fn potri() -> OpDef {
    let compute = composite_of(|b, cx, [l]| {
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
        .named(&["_linalg_potri", "linalg_potri"])
}

/// Buffers of the elimination: the matrix that is reduced, the inverse that grows, and by matrix the sign of the
/// determinant and the logarithm of its magnitude.
struct Elimination<'k> {
    k: &'k KernelScope,
    n: u64,
    work: KernelTensor<'k>,
    inverse: KernelTensor<'k>,
    sign: KernelTensor<'k>,
    log: KernelTensor<'k>,
}

impl Elimination<'_> {
    /// The row of the greatest magnitude in a column, from the diagonal down.
    fn pivot(&self, which: &Index, col: &Index, best: KernelCell<'_>) -> Index {
        let (k, work) = (self.k, self.work);
        best.set(col);
        k.range("i", (&col.offset(1), &Index::constant(self.n as i64)), |row| {
            let held = best.get();
            let (x, y) = (work.get([which, row, col]), work.get([which, &held.clamped(self.n), col]));
            best.set(x.abs().gt(y.abs()).select(row, held));
        });
        best.get().clamped(self.n)
    }

    fn swap(&self, which: &Index, r: &Index, s: &Index) {
        self.k.each("c", self.n, |c| {
            for buf in [self.work, self.inverse] {
                let (x, y) = (buf.get([which, r, c]), buf.get([which, s, c]));
                buf.set([which, r, c], y);
                buf.set([which, s, c], x);
            }
        });
    }

    /// One column: pivot, scale its row, and clear it in the other rows.
    fn column(&self, which: &Index, col: &Index, best: KernelCell<'_>) {
        let k = self.k;
        let pivot = self.pivot(which, col, best);
        let moved = best.get().ne(col);
        let value = self.work.get([which, &pivot, col]);
        let sign = self.sign.get(which);
        let negated = -sign;
        let sign = moved.select(negated, sign);
        let negated = -sign;
        let sign = value.lt(0.0).select(negated, sign);
        self.sign.set(which, value.eq(0.0).select(0.0, sign));
        let log = value.abs().log();
        self.log.set(which, self.log.get(which) + log);
        k.when(moved, || self.swap(which, col, &pivot));
        k.each("c", self.n, |c| {
            for buf in [self.work, self.inverse] {
                buf.set([which, col, c], buf.get([which, col, c]) / value);
            }
        });
        k.each("row", self.n, |row| {
            k.when(k.position(row).ne(col), || {
                let factor = self.work.get([which, row, col]);
                k.each("c", self.n, |c| {
                    for buf in [self.work, self.inverse] {
                        let x = buf.get([which, col, c]);
                        buf.set([which, row, c], buf.get([which, row, c]) - factor * x);
                    }
                });
            });
        });
    }
}

/// Gauss-Jordan elimination with partial pivoting.
fn elimination(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let (square, each) = (DenseType::new(F64, &[batch, n, n]), DenseType::new(F64, &[batch]));
    let k = &KernelScope::new("elimination");
    let a = k.input("a", &square);
    let [inverse, sign, log, work] = k.outputs(["inverse", "sign", "log", "work"], [&square, &each, &each, &square]);
    let e = Elimination { k, n, work, inverse, sign, log };
    k.parallel_each("matrix", batch, |which| {
        sign.set(which, 1.0);
        log.set(which, 0.0);
        let best = k.cell("best", DType::I64);
        k.each("row", n, |row| {
            k.each("col", n, |col| {
                let at = [which, row, col];
                work.set(at, a.get(at));
                inverse.set(at, k.position(row).eq(col).select(1.0, 0.0));
            });
        });
        k.each("col", n, |col| e.column(which, col, best));
    });
    k.finish()
}

/// Inverse, sign and logarithm of the magnitude of the determinant, all by one elimination.
fn lu_inverse() -> OpDef {
    let compute = composites_of(|b, cx, [a]| {
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let (batch, _) = matrices(&ty.dims);
        let scalar = DenseType::new(F64, &[batch]);
        let made = b.kernel(elimination(&ty), &[a], &[ty.clone(), scalar.clone(), scalar, ty])?;
        let mut out = vec![];
        for (value, ty) in made.iter().zip(cx.outputs) {
            let value = b.reshaped(*value, &ty.dims)?;
            out.push(cast(b, value, ty.dtype)?);
        }
        Ok(out)
    });
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
        .named(&["_linalg_inverse", "linalg_inverse"])
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
    let infer = shape_rule(|cx| match square(cx)? {
        Some(x) => cx.set_output_dims(0, per_matrix(&x)),
        None => Ok(()),
    });
    define("mx_linalg_det", "The determinant of square matrices.", compute, infer)
        .operand("A", FLOATS)
        .ulp(256.0)
        .named(&["_linalg_det", "linalg_det"])
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
        .named(&["_linalg_slogdet", "linalg_slogdet"])
}
