//! Factorisations and what is solved with them. Kernels compute in f64, one matrix (or column) to an iteration.
//!
//! Derivatives are those collected by Giles (2008) and, of the Cholesky factor, Murray (2016).

use super::products::{sided, sided_shapes};
use super::{alpha, is_lower, matmul, mirrored, scaled, transposed, transposed_if, triangle};
use crate::kernel::{KernelCell, coordinates};
use crate::prelude::*;

pub(super) const F64: DType = DType::F64;

pub fn ops() -> Vec<OpDef> {
    vec![solve_triangular(), trsm(), potrf(), potri(), lu_inverse(), inverse(), mx_det(), det(), slogdet()]
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

/// The result is like the operand, which holds square matrices.
fn like_square(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    same(cx, 0, 0)?;
    square(cx).map(drop)
}

/// The results of a kernel on matrices in f64; `types` are those of its results and working memory.
pub(super) fn by_kernel(
    kernel: fn(&DenseType) -> Result<Kernel, OpError>,
    types: fn(&DenseType, &[DenseType]) -> Vec<DenseType>,
) -> Compute {
    formulas(move |g, cx| {
        let a = g.operand(0).cast(F64);
        let ty = a.ty()?;
        let made = g.kernel(kernel(&ty), &[a], &types(&ty, cx.outputs))?;
        Ok(made.into_iter().zip(cx.outputs).map(|(value, ty)| value.as_type(ty)).collect())
    })
}

/// The position in reverse order.
pub(super) fn from_end(n: u64, at: &Index) -> Index {
    Index::constant(n as i64 - 1).sub(at)
}

/// X in `op(A) · X = B` by substitution, a column to an iteration. `forward`: op(A) is lower.
fn substitution(a: &DenseType, x: &DenseType, transpose: bool, forward: bool) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&a.dims);
    let columns = x.dims[x.rank() - 1];
    let (square, right) = (DenseType::new(F64, [batch, n, n]), DenseType::new(F64, [batch, n, columns]));
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

fn triangular(lower: bool, transpose: bool) -> Params {
    Params::new().with("lower", lower).with("transpose", transpose)
}

fn solve_triangular() -> OpDef {
    let compute = formula(|g, cx| {
        let [a, x] = g.operands().map(|x| x.cast(F64));
        let (lower, transpose) = (is_lower(cx.params), cx.params.flag("transpose"));
        let (at, xt) = (a.ty()?, x.ty()?);
        let out = g.kernel(substitution(&at, &xt, transpose, lower != transpose), &[a, x], &[xt])?[0];
        Ok(out.cast(cx.outputs[0].dtype))
    });
    let doc = "X in `A · X = B` (`Aᵀ · X = B` if `transpose`) with a triangular A.";
    define("solve_triangular", doc, compute, rule(sided_shapes))
        .groups(&["A", "B"], FLOATS)
        .param("lower", true, "which triangle of A is used")
        .param("transpose", false, "whether A is transposed")
        .gradient(derivative(|g, cx| {
            let (a, head, x) = (g.operand(0), g.head(cx, 0), g.value(cx.outputs[0]));
            let (lower, transpose) = (is_lower(cx.node.params), cx.node.params.flag("transpose"));
            let back = g.op("solve_triangular", &[a, head], triangular(lower, !transpose));
            let (left, right) = if transpose { (x, back) } else { (back, x) };
            let outer = triangle(matmul(left, transposed(right)), lower)?;
            Ok(vec![Some(-outer), Some(back)])
        }))
        .ulp(64.0)
}

/// X in `op(A) · X = B`, or `X · op(A) = B` on the right, as the transpose of the former.
pub(super) fn solve<'g>(a: Tensor<'g>, x: Tensor<'g>, lower: bool, [transpose, right]: [bool; 2]) -> Tensor<'g> {
    let x = transposed_if(x, right);
    let out = x.graph().op("solve_triangular", &[a, x], triangular(lower, transpose != right));
    transposed_if(out, right)
}

fn trsm() -> OpDef {
    let compute = formula(|g, cx| {
        let x = scaled(g.operand(1), alpha(cx.params));
        let flags = ["transpose", "rightside"].map(|name| cx.params.flag(name));
        Ok(solve(g.operand(0), x, is_lower(cx.params), flags))
    });
    let doc = "X in `op(A) · X = alpha · B`, or `X · op(A) = alpha · B` on the right, with a triangular A.";
    sided(define("mx_linalg_trsm", doc, compute, rule(sided_shapes))).ulp(64.0).named(&["_linalg_trsm", "linalg_trsm"])
}

/// The lower factor, row by row; NaN where the matrix is not positive definite.
fn cholesky(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let square = DenseType::new(F64, [batch, n, n]);
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
    let compute = by_kernel(cholesky, |ty, _| vec![ty.clone()]);
    define(
        "mx_linalg_potrf",
        "The lower Cholesky factor L of A = L · Lᵀ; NaN if there is none.",
        compute,
        rule(like_square),
    )
    .operand("A", FLOATS)
    .gradient(derivative(|g, cx| {
        // ½ · L⁻ᵀ · P · L⁻¹ with P the lower triangle of Lᵀ · dL, mirrored.
        let l = g.value(cx.outputs[0]);
        let head = triangle(g.head(cx, 0), true)?;
        let p = mirrored(matmul(transposed(l), head))?;
        let left = solve(l, p, true, [true, false]);
        Ok(vec![Some(scaled(solve(l, left, true, [false, true]), 0.5))])
    }))
    .ulp(64.0)
    .named(&["_linalg_potrf", "linalg_potrf"])
}

fn potri() -> OpDef {
    let compute = formula(|g, cx| {
        let out = &cx.outputs[0];
        let (rank, wide) = (out.rank(), compute_type(out.dtype));
        let one = g.map(&[], out.dtype, &out.dims, |s, _| {
            s.coord(rank - 1).eq(&s.coord(rank - 2)).select(&s.number(wide, 1.0), &s.number(wide, 0.0))
        });
        let inverse = solve(g.operand(0), one, true, [false, false]);
        Ok(matmul(transposed(inverse), inverse))
    });
    define("mx_linalg_potri", "The inverse of L · Lᵀ, given the lower L.", compute, rule(like_square))
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

/// The row of the greatest magnitude in a column of a matrix of `n` rows, from the diagonal down. Both are held in registers: what
/// is found in memory would wait for what was written there last.
fn pivot(
    k: &KernelScope,
    (work, n): (KernelTensor<'_>, u64),
    [which, col]: [&Index; 2],
    [best, most]: [KernelCell<'_>; 2],
) -> Index {
    best.set(col);
    most.set(work.get([which, col, col]).abs());
    k.range("i", (&col.offset(1), &Index::constant(n as i64)), |row| {
        let (x, y) = (work.get([which, row, col]).abs(), most.get());
        let greater = x.gt(y);
        best.set(greater.select(row, best.get()));
        most.set(greater.select(x, y));
    });
    best.get().clamped(n)
}

/// Memory for [`pivot`].
fn pivot_cells(k: &KernelScope) -> [KernelCell<'_>; 2] {
    [k.register("best", DType::I64), k.register("most", F64)]
}

impl Elimination<'_> {
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
    fn column(&self, which: &Index, col: &Index, cells: [KernelCell<'_>; 2]) {
        let k = self.k;
        let pivot = pivot(k, (self.work, self.n), [which, col], cells);
        let moved = cells[0].get().ne(col);
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
    let (square, each) = (DenseType::new(F64, [batch, n, n]), DenseType::new(F64, [batch]));
    let k = &KernelScope::new("elimination");
    let a = k.input("a", &square);
    let [inverse, sign, log, work] = k.outputs(["inverse", "sign", "log", "work"], [&square, &each, &each, &square]);
    let e = Elimination { k, n, work, inverse, sign, log };
    k.parallel_each("matrix", batch, |which| {
        sign.set(which, 1.0);
        log.set(which, 0.0);
        let cells = pivot_cells(k);
        k.each("row", n, |row| {
            k.each("col", n, |col| {
                let at = [which, row, col];
                work.set(at, a.get(at));
                inverse.set(at, k.position(row).eq(col).select(1.0, 0.0));
            });
        });
        k.each("col", n, |col| e.column(which, col, cells));
    });
    k.finish()
}

/// Inverse, sign and logarithm of the magnitude of the determinant, all by one elimination.
fn lu_inverse() -> OpDef {
    let compute = by_kernel(elimination, |ty, _| {
        let scalar = DenseType::new(F64, [matrices(&ty.dims).0]);
        vec![ty.clone(), scalar.clone(), scalar, ty.clone()]
    });
    let infer = rule(|cx| {
        (0..3).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(x) = square(cx)? else { return Ok(()) };
        cx.set_output_dims(0, x.iter().copied())?;
        (1..3).try_for_each(|i| cx.set_output_dims(i, x[..x.len() - 2].iter().copied()))
    });
    let doc = "The inverse of square matrices, the sign of the determinant, and the logarithm of its magnitude.";
    define("inverse_with_determinant", doc, compute, infer)
        .operand("A", FLOATS)
        .outputs(3, 3)
        .gradient(derivative(|g, cx| {
            let inverse = transposed(g.value(cx.outputs[0]));
            let head = |i: usize| cx.heads[i].map(|head| g.value(head));
            let by_inverse = head(0).map(|head| -matmul(matmul(inverse, head), inverse));
            let by_log = match head(2) {
                Some(head) => Some(inverse * head.reshape([&head.dims()?[..], &[1, 1]].concat())),
                None => None,
            };
            Ok(vec![by_inverse.zip(by_log).map(|(x, y)| x + y).or(by_inverse).or(by_log)])
        }))
        .ulp(256.0)
}

/// Results of [`lu_inverse`].
fn eliminated(g: GraphScope<'_>) -> Vec<Tensor<'_>> {
    g.op_multi("inverse_with_determinant", &[Some(g.operand(0))], Params::new(), 3)
}

fn inverse() -> OpDef {
    let compute = formula(|g, _| Ok(eliminated(g)[0]));
    define("mx_linalg_inverse", "The inverse of square matrices.", compute, rule(like_square))
        .operand("A", FLOATS)
        .ulp(256.0)
        .named(&["_linalg_inverse", "linalg_inverse"])
        .contrib("Inverse")
}

/// One matrix has a determinant of shape [1].
fn per_matrix(x: &[Dim]) -> Vec<Dim> {
    let batch = &x[..x.len() - 2];
    if batch.is_empty() { vec![Dim::Const(1)] } else { batch.to_vec() }
}

fn mx_det() -> OpDef {
    let compute = formula(|g, cx| {
        let made = eliminated(g);
        Ok((made[2].exp() * made[1]).reshape(&cx.outputs[0].dims))
    });
    let infer = shape_rule(|cx| match square(cx)? {
        Some(x) => cx.set_output_dims(0, per_matrix(&x)),
        None => Ok(()),
    });
    let doc = "The determinant of square matrices, of one matrix in a list.";
    define("mx_linalg_det", doc, compute, infer).operand("A", FLOATS).ulp(256.0).named(&["_linalg_det", "linalg_det"])
}

/// The product of the pivots of an elimination below the diagonal.
fn determinant(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let (square, each) = (DenseType::new(F64, [batch, n, n]), DenseType::new(F64, [batch]));
    let k = &KernelScope::new("determinant");
    let a = k.input("a", &square);
    let [value, work] = k.outputs(["value", "work"], [&each, &square]);
    let end = Index::constant(n as i64);
    k.parallel_each("matrix", batch, |which| {
        value.set(which, 1.0);
        let cells = pivot_cells(k);
        k.each("row", n, |row| k.each("col", n, |col| work.set([which, row, col], a.get([which, row, col]))));
        k.each("col", n, |col| {
            let from = pivot(k, (work, n), [which, col], cells);
            let (x, moved) = (work.get([which, &from, col]), cells[0].get().ne(col));
            let product = value.get(which) * x;
            let negated = -product;
            value.set(which, moved.select(negated, product));
            k.when(moved, || {
                k.range("c", (col, &end), |c| {
                    let (x, y) = (work.get([which, col, c]), work.get([which, &from, c]));
                    work.set([which, col, c], y);
                    work.set([which, &from, c], x);
                });
            });
            // Without a pivot the determinant is 0, whatever is left.
            k.when(x.ne(0.0), || {
                k.range("row", (&col.offset(1), &end), |row| {
                    let factor = work.get([which, row, col]) / x;
                    k.range("c", (&col.offset(1), &end), |c| {
                        let rest = work.get([which, row, c]) - factor * work.get([which, col, c]);
                        work.set([which, row, c], rest);
                    });
                });
            });
        });
    });
    k.finish()
}

fn det() -> OpDef {
    let compute = by_kernel(determinant, |ty, _| {
        let batch = matrices(&ty.dims).0;
        vec![DenseType::new(F64, [batch]), ty.clone()]
    });
    let infer = shape_rule(|cx| match square(cx)? {
        Some(x) => cx.set_output_dims(0, x[..x.len() - 2].to_vec()),
        None => Ok(()),
    });
    define("det", "The determinant of square matrices: of [..., n, n], [...].", compute, infer)
        .operand("A", FLOATS)
        .gradient(derivative(|g, cx| {
            let slope = g.head(cx, 0) * g.value(cx.outputs[0]);
            let slope = slope.reshape([&slope.dims()?[..], &[1, 1]].concat());
            Ok(vec![Some(transposed(eliminated(g)[0]) * slope)])
        }))
        .ulp(256.0)
        .onnx("Det", 11)
}

fn slogdet() -> OpDef {
    let compute = formulas(|g, cx| {
        let made = eliminated(g);
        let sign = made[1].call("stop_gradient", &[]);
        Ok(vec![sign.reshape(&cx.outputs[0].dims), made[2].reshape(&cx.outputs[1].dims)])
    });
    let infer = rule(|cx| {
        (0..2).try_for_each(|i| cx.same_dtype(i, 0))?;
        let Some(x) = square(cx)? else { return Ok(()) };
        (0..2).try_for_each(|i| cx.set_output_dims(i, per_matrix(&x)))
    });
    let doc = "The sign of the determinant and the logarithm of its magnitude.";
    define("mx_linalg_slogdet", doc, compute, infer)
        .operand("A", FLOATS)
        .outputs(2, 2)
        .ulp(256.0)
        .named(&["_linalg_slogdet", "linalg_slogdet"])
}
