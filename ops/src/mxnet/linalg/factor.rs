//! Orthogonal factorisations: A = L · Q by Householder reflections, and symmetric eigenvalues by Jacobi rotations.
//! Kernels compute in f64, one matrix to an iteration.
//!
//! Derivatives are those of Seeger and others, "Auto-differentiating linear algebra" (2017).

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::solve::{F64, accumulate, matrices, over, real, solve, square};
use super::{matmul, transposed};
use crate::nest::Scalars;
use crate::prelude::*;

type FactorOutcome = Result<(), OpError>;

pub fn ops() -> Vec<OpDef> {
    vec![gelqf(), syevd()]
}

/// Buffers of the factorisation A = L · Q, and extents of a matrix.
struct Reflections {
    rows: u64,
    columns: u64,
    /// What is left of A; row k holds the tail of reflection k once that is found.
    work: Buf,
    /// By row, twice the inverse of the reflection's squared length, for a vector that begins with 1.
    factor: Buf,
    q: Buf,
    l: Buf,
    total: Buf,
}

impl Reflections {
    fn at(&self, which: &Index, row: &Index, column: &Index) -> Index {
        which.scale((self.rows * self.columns) as i64).add(&row.scale(self.columns as i64)).add(column)
    }

    fn left(&self, which: &Index, row: &Index, column: &Index) -> Index {
        which.scale((self.rows * self.rows) as i64).add(&row.scale(self.rows as i64)).add(column)
    }

    /// Finds the reflection that clears row `k` right of the diagonal, with LAPACK's signs.
    fn find(&self, k: &mut KernelBuilder, which: &Index, row: &Index) -> FactorOutcome {
        let zero = Index::default();
        k.store(self.total, zero.clone(), real(0.0));
        over(k, row.offset(1), Index::constant(self.columns as i64), &mut |k, i| {
            let x = k.load(self.work, self.at(which, row, &i));
            accumulate(k, self.total, Index::default(), x, x);
            Ok(())
        })?;
        let (rest, head) = (k.load(self.total, zero.clone()), k.load(self.work, self.at(which, row, row)));
        let square = k.bin(ScalarOp::Mul, head, head);
        let square = k.bin(ScalarOp::Add, square, rest);
        let norm = k.op(ScalarOp::Sqrt, &[square]);
        let negated = k.op(ScalarOp::Neg, &[norm]);
        let negative = k.cmp(CmpOp::Lt, head, real(0.0));
        let signed = k.select(negative, norm, negated);
        let none = k.cmp(CmpOp::Eq, rest, real(0.0));
        let pivot = k.select(none, head, signed);
        k.store(self.l, self.left(which, row, row), pivot);
        let difference = k.bin(ScalarOp::Sub, pivot, head);
        let safe = k.select(none, real(1.0), pivot);
        let factor = k.bin(ScalarOp::Div, difference, safe);
        k.store(self.factor, which.scale(self.rows as i64).add(row), factor);
        let negated = k.op(ScalarOp::Neg, &[difference]);
        let divisor = k.select(none, real(1.0), negated);
        over(k, row.offset(1), Index::constant(self.columns as i64), &mut |k, i| {
            let x = k.load(self.work, self.at(which, row, &i));
            let x = k.bin(ScalarOp::Div, x, divisor);
            k.store(self.work, self.at(which, row, &i), x);
            Ok(())
        })
    }

    /// Applies reflection `by` from the right to a row of a buffer.
    fn apply(&self, k: &mut KernelBuilder, which: &Index, by: &Index, (buf, row): (Buf, &Index)) -> FactorOutcome {
        let zero = Index::default();
        let first = k.load(buf, self.at(which, row, by));
        k.store(self.total, zero.clone(), first);
        over(k, by.offset(1), Index::constant(self.columns as i64), &mut |k, i| {
            let (x, v) = (k.load(buf, self.at(which, row, &i)), k.load(self.work, self.at(which, by, &i)));
            accumulate(k, self.total, Index::default(), x, v);
            Ok(())
        })?;
        let (sum, factor) = (k.load(self.total, zero), k.load(self.factor, which.scale(self.rows as i64).add(by)));
        let share = k.bin(ScalarOp::Mul, sum, factor);
        let old = k.load(buf, self.at(which, row, by));
        let new = k.bin(ScalarOp::Sub, old, share);
        k.store(buf, self.at(which, row, by), new);
        let negated = k.op(ScalarOp::Neg, &[share]);
        over(k, by.offset(1), Index::constant(self.columns as i64), &mut |k, i| {
            let v = k.load(self.work, self.at(which, by, &i));
            accumulate(k, buf, self.at(which, row, &i), negated, v);
            Ok(())
        })
    }
}

fn reflections(ty: &DenseType) -> Result<Kernel, OpError> {
    let rank = ty.rank();
    let (rows, columns) = (ty.dims[rank - 2], ty.dims[rank - 1]);
    let batch: u64 = ty.dims[..rank - 2].iter().product();
    let mut k = KernelBuilder::new("gelqf");
    let a = k.param("a", F64, ty.len(), false);
    let (q, l) = (k.param("q", F64, ty.len(), true), k.param("l", F64, batch * rows * rows, true));
    let (work, factor) = (k.param("work", F64, ty.len(), true), k.param("factor", F64, batch * rows, true));
    k.for_range("matrix", batch, LoopKind::Parallel, |k, which| {
        let total = k.alloc("total", F64, 1, MemorySpace::Stack);
        let r = Reflections { rows, columns, work, factor, q, l, total };
        k.for_range("row", rows, LoopKind::Serial, |k, row| {
            k.for_range("column", columns, LoopKind::Serial, |k, column| {
                let at = r.at(&which, &row, &column);
                let value = k.load(a, at.clone());
                k.store(work, at.clone(), value);
                let (i, j) = (k.index_value(row.clone()), k.index_value(column.clone()));
                let diagonal = k.cmp(CmpOp::Eq, i, j);
                let one = k.select(diagonal, real(1.0), real(0.0));
                k.store(r.q, at, one);
                Ok::<(), OpError>(())
            })?;
            k.for_range("column", rows, LoopKind::Serial, |k, column| {
                k.store(r.l, r.left(&which, &row, &column), real(0.0));
                Ok::<(), OpError>(())
            })
        })?;
        k.for_range("by", rows, LoopKind::Serial, |k, by| {
            r.find(k, &which, &by)?;
            over(k, by.offset(1), Index::constant(rows as i64), &mut |k, row| {
                r.apply(k, &which, &by, (r.work, &row))?;
                let value = k.load(r.work, r.at(&which, &row, &by));
                k.store(r.l, r.left(&which, &row, &by), value);
                Ok(())
            })
        })?;
        k.for_range("back", rows, LoopKind::Serial, |k, back| {
            let by = Index::constant(rows as i64 - 1).sub(&back);
            k.for_range("row", rows, LoopKind::Serial, |k, row| r.apply(k, &which, &by, (r.q, &row)))
        })
    })?;
    Ok(k.finish())
}

/// L⁻ᵀ · (dQ + mirrored(Lᵀ · dL - dQ · Qᵀ) · Q), the lower triangle mirrored.
fn gelqf_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (q, l) = (cx.outputs[0], cx.outputs[1]);
    let (of_q, of_l) = (cx.head(b, 0)?, cx.head(b, 1)?);
    let (lt, qt) = (transposed(b, l)?, transposed(b, q)?);
    let (first, second) = (matmul(b, lt, of_l)?, matmul(b, of_q, qt)?);
    let m = b.call("sub", &[first, second])?;
    let mt = transposed(b, m)?;
    let (ty, rank) = (b.ty(m)?, b.dims(m)?.len());
    let mirrored =
        b.map_as(&[m, mt], ty.dtype, &ty.dims, |s, a| s.coord(rank - 1).le(&s.coord(rank - 2)).select(&a[0], &a[1]))?;
    let product = matmul(b, mirrored, q)?;
    let sum = b.call("add", &[of_q, product])?;
    Ok(vec![Some(solve(b, l, sum, true, [true, false])?)])
}

fn gelqf() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let a = operand(b, args, 0)?;
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let kernel = reflections(&ty).or_fail(b)?;
        let rank = ty.rank();
        let left = DenseType::new(F64, &cx.outputs[1].dims);
        let factors = DenseType::new(F64, &ty.dims[..rank - 1]);
        let made = b.kernel(kernel, &[a], &[ty.clone(), left, ty, factors]);
        let dtype = cx.outputs[0].dtype;
        Ok(vec![cast(b, made[0], dtype)?, cast(b, made[1], dtype)?])
    }));
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        cx.same_dtype(1, 0)?;
        let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(()) };
        let (rows, columns) = (cx.resolve(x[x.len() - 2]), cx.resolve(x[x.len() - 1]));
        if let (Some(rows), Some(columns)) = (rows.as_const(), columns.as_const())
            && rows > columns
        {
            return Err(OpError(format!("{}: {rows} rows are more than {columns} columns", cx.input_name(0))));
        }
        cx.set_output_dims(0, x.iter().copied())?;
        let square: Vec<_> = x[..x.len() - 1].iter().copied().chain([rows]).collect();
        cx.set_output_dims(1, square)
    });
    let doc = "Q and L of A = L · Q: rows of Q are orthonormal, L is lower, with signs as LAPACK's.";
    define("mx_linalg_gelqf", doc, compute, infer)
        .operand("A", FLOATS)
        .outputs(2, 2)
        .gradient(gelqf_gradient)
        .ulp(256.0)
        .mxnet("_linalg_gelqf")
        .mxnet("linalg_gelqf")
}

/// Rounds over all pairs of axes. Convergence is quadratic, so that far fewer are needed for f64.
const JACOBI_SWEEPS: u64 = 14;

/// Buffers of the rotations.
struct Rotations {
    n: u64,
    work: Buf,
    vectors: Buf,
}

impl Rotations {
    fn at(&self, which: &Index, row: &Index, column: &Index) -> Index {
        which.scale((self.n * self.n) as i64).add(&row.scale(self.n as i64)).add(column)
    }

    /// Clears the element `(p, q)` of the matrix.
    fn rotate(&self, k: &mut KernelBuilder, which: &Index, p: &Index, q: &Index) -> FactorOutcome {
        let load = |k: &mut KernelBuilder, i: &Index, j: &Index| k.load(self.work, self.at(which, i, j));
        let (x, y, off) = (load(k, p, p), load(k, q, q), load(k, p, q));
        let none = k.cmp(CmpOp::Eq, off, real(0.0));
        let safe = k.select(none, real(1.0), off);
        let difference = k.bin(ScalarOp::Sub, y, x);
        let twice = k.bin(ScalarOp::Add, safe, safe);
        let theta = k.bin(ScalarOp::Div, difference, twice);
        let size = k.op(ScalarOp::Abs, &[theta]);
        let square = k.bin(ScalarOp::Mul, theta, theta);
        let square = k.bin(ScalarOp::Add, square, real(1.0));
        let root = k.op(ScalarOp::Sqrt, &[square]);
        let sum = k.bin(ScalarOp::Add, size, root);
        let tangent = k.bin(ScalarOp::Div, real(1.0), sum);
        let negated = k.op(ScalarOp::Neg, &[tangent]);
        let negative = k.cmp(CmpOp::Lt, theta, real(0.0));
        let tangent = k.select(negative, negated, tangent);
        let tangent = k.select(none, real(0.0), tangent);
        let square = k.bin(ScalarOp::Mul, tangent, tangent);
        let square = k.bin(ScalarOp::Add, square, real(1.0));
        let root = k.op(ScalarOp::Sqrt, &[square]);
        let cosine = k.bin(ScalarOp::Div, real(1.0), root);
        let sine = k.bin(ScalarOp::Mul, tangent, cosine);
        let turn = |k: &mut KernelBuilder, buf: Buf, [first, second]: [Index; 2]| {
            let (x, y) = (k.load(buf, first.clone()), k.load(buf, second.clone()));
            let (cx, sy) = (k.bin(ScalarOp::Mul, cosine, x), k.bin(ScalarOp::Mul, sine, y));
            let (sx, cy) = (k.bin(ScalarOp::Mul, sine, x), k.bin(ScalarOp::Mul, cosine, y));
            let (x, y) = (k.bin(ScalarOp::Sub, cx, sy), k.bin(ScalarOp::Add, sx, cy));
            k.store(buf, first, x);
            k.store(buf, second, y);
        };
        k.for_range("i", self.n, LoopKind::Serial, |k, i| {
            turn(k, self.work, [self.at(which, &i, p), self.at(which, &i, q)]);
            Ok::<(), OpError>(())
        })?;
        k.for_range("i", self.n, LoopKind::Serial, |k, i| {
            turn(k, self.work, [self.at(which, p, &i), self.at(which, q, &i)]);
            turn(k, self.vectors, [self.at(which, p, &i), self.at(which, q, &i)]);
            Ok::<(), OpError>(())
        })
    }

    /// Where an eigenvalue belongs in ascending order, and the sign that makes the greatest element of its vector
    /// positive.
    fn place(&self, k: &mut KernelBuilder, which: &Index, row: &Index, [rank, best]: [Buf; 2]) -> FactorOutcome {
        let zero = Index::default();
        k.store(rank, zero.clone(), tensorc_ir::kir::Operand::Const(Scalar::i64(0)));
        k.store(best, zero.clone(), real(0.0));
        let own = k.load(self.work, self.at(which, row, row));
        k.for_range("i", self.n, LoopKind::Serial, |k, i| {
            let other = k.load(self.work, self.at(which, &i, &i));
            let (less, equal) = (k.cmp(CmpOp::Lt, other, own), k.cmp(CmpOp::Eq, other, own));
            let (at, here) = (k.index_value(i.clone()), k.index_value(row.clone()));
            let earlier = k.cmp(CmpOp::Lt, at, here);
            let tie = k.bin(ScalarOp::And, equal, earlier);
            let before = k.bin(ScalarOp::Or, less, tie);
            let old = k.load(rank, Index::default());
            let next = k.bin(ScalarOp::Add, old, crate::nest::int(1));
            let new = k.select(before, next, old);
            k.store(rank, Index::default(), new);
            let (x, held) = (k.load(self.vectors, self.at(which, row, &i)), k.load(best, Index::default()));
            let (size, most) = (k.op(ScalarOp::Abs, &[x]), k.op(ScalarOp::Abs, &[held]));
            let larger = k.cmp(CmpOp::Gt, size, most);
            let new = k.select(larger, x, held);
            k.store(best, Index::default(), new);
            Ok::<(), OpError>(())
        })
    }
}

fn rotations(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let mut k = KernelBuilder::new("syevd");
    let a = k.param("a", F64, ty.len(), false);
    let (u, values) = (k.param("u", F64, ty.len(), true), k.param("values", F64, batch * n, true));
    let (work, vectors) = (k.param("work", F64, ty.len(), true), k.param("vectors", F64, ty.len(), true));
    let r = Rotations { n, work, vectors };
    k.for_range("matrix", batch, LoopKind::Parallel, |k, which| {
        k.for_range("row", n, LoopKind::Serial, |k, row| {
            k.for_range("column", n, LoopKind::Serial, |k, column| {
                let at = r.at(&which, &row, &column);
                let (x, y) = (k.load(a, at.clone()), k.load(a, r.at(&which, &column, &row)));
                let sum = k.bin(ScalarOp::Add, x, y);
                let half = k.bin(ScalarOp::Mul, sum, real(0.5));
                k.store(r.work, at.clone(), half);
                let (i, j) = (k.index_value(row.clone()), k.index_value(column.clone()));
                let diagonal = k.cmp(CmpOp::Eq, i, j);
                let one = k.select(diagonal, real(1.0), real(0.0));
                k.store(r.vectors, at, one);
                Ok::<(), OpError>(())
            })
        })?;
        k.for_range("round", JACOBI_SWEEPS, LoopKind::Serial, |k, _| {
            k.for_range("p", n, LoopKind::Serial, |k, p| {
                over(k, p.offset(1), Index::constant(n as i64), &mut |k, q| r.rotate(k, &which, &p, &q))
            })
        })?;
        let rank = k.alloc("rank", DType::I64, 1, MemorySpace::Stack);
        let best = k.alloc("best", F64, 1, MemorySpace::Stack);
        k.for_range("row", n, LoopKind::Serial, |k, row| {
            r.place(k, &which, &row, [rank, best])?;
            let (place, leader) = (k.load(rank, Index::default()), k.load(best, Index::default()));
            let to = k.position(place, n);
            let value = k.load(r.work, r.at(&which, &row, &row));
            k.store(values, which.scale(n as i64).add(&to), value);
            let negative = k.cmp(CmpOp::Lt, leader, real(0.0));
            let sign = k.select(negative, real(-1.0), real(1.0));
            k.for_range("i", n, LoopKind::Serial, |k, i| {
                let x = k.load(r.vectors, r.at(&which, &row, &i));
                let x = k.bin(ScalarOp::Mul, x, sign);
                k.store(u, r.at(&which, &to, &i), x);
                Ok::<(), OpError>(())
            })
        })
    })?;
    Ok(k.finish())
}

/// Uᵀ · (sym(X) + diag(dλ)) · U with X the products dU · Uᵀ divided by the differences of eigenvalues, row less
/// column; equal eigenvalues share nothing.
fn syevd_gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let (u, values) = (cx.outputs[0], cx.outputs[1]);
    let (of_u, of_values) = (cx.head(b, 0)?, cx.head(b, 1)?);
    let ut = transposed(b, u)?;
    let products = matmul(b, of_u, ut)?;
    let (ty, rank) = (b.ty(products)?, b.dims(products)?.len());
    let column = |b: &mut Builder<'_>, v: Value| {
        let mut dims = ty.dims.clone();
        dims[rank - 1] = 1;
        b.reshaped(v, &dims)
    };
    let (down, share) = (column(b, values)?, column(b, of_values)?);
    let across = transposed(b, down)?;
    let x = b.map_as(&[products, down, across], ty.dtype, &ty.dims, |_, a| {
        let difference = &a[1] - &a[2];
        let (zero, one) = (difference.lit(0.0), difference.lit(1.0));
        let none = difference.eq(&zero);
        none.select(&zero, &(&a[0] / none.select(&one, &difference)))
    })?;
    let xt = transposed(b, x)?;
    let inner = b.map_as(&[x, xt, share], ty.dtype, &ty.dims, |s, a| {
        let diagonal = s.coord(rank - 1).eq(&s.coord(rank - 2));
        diagonal.select(&a[2], &((&a[0] + &a[1]) * 0.5))
    })?;
    let left = matmul(b, ut, inner)?;
    Ok(vec![Some(matmul(b, left, u)?)])
}

fn syevd() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let a = operand(b, args, 0)?;
        let a = cast(b, a, F64)?;
        let ty = b.ty(a)?;
        let kernel = rotations(&ty).or_fail(b)?;
        let values = DenseType::new(F64, &cx.outputs[1].dims);
        let made = b.kernel(kernel, &[a], &[ty.clone(), values, ty.clone(), ty]);
        let dtype = cx.outputs[0].dtype;
        Ok(vec![cast(b, made[0], dtype)?, cast(b, made[1], dtype)?])
    }));
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        cx.same_dtype(1, 0)?;
        let Some(x) = square(cx)? else { return Ok(()) };
        cx.set_output_dims(0, x.iter().copied())?;
        cx.set_output_dims(1, x[..x.len() - 1].iter().copied())
    });
    let doc = "U and λ of A = Uᵀ · diag(λ) · U, of the symmetric part of A: rows of U are eigenvectors, the greatest \
               element of each positive; eigenvalues ascend.";
    define("mx_linalg_syevd", doc, compute, infer)
        .operand("A", FLOATS)
        .outputs(2, 2)
        .gradient(syevd_gradient)
        .ulp(256.0)
        .mxnet("_linalg_syevd")
        .mxnet("linalg_syevd")
}
