//! Orthogonal factorisations: A = L · Q by Householder reflections, and symmetric eigenvalues by Jacobi rotations.
//! Kernels compute in f64, one matrix to an iteration.
//!
//! Derivatives are those of Seeger and others, "Auto-differentiating linear algebra" (2017).

use super::solve::{F64, by_kernel, from_end, matrices, solve, square};
use super::{matmul, mirrored, transposed};
use crate::kernel::KernelCell;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![gelqf(), syevd()]
}

/// Buffers of the factorisation A = L · Q, and extents of a matrix.
struct Reflections<'k> {
    k: &'k KernelScope,
    columns: Index,
    /// What is left of A; row k holds the tail of reflection k once that is found.
    work: KernelTensor<'k>,
    /// By row, twice the inverse of the reflection's squared length, for a vector that begins with 1.
    factor: KernelTensor<'k>,
    l: KernelTensor<'k>,
    total: KernelCell<'k>,
}

impl<'k> Reflections<'k> {
    /// Finds the reflection that clears row `k` right of the diagonal, with LAPACK's signs.
    fn find(&self, which: &Index, row: &Index) {
        let (k, work) = (self.k, self.work);
        self.total.set(0.0);
        k.range("i", (&row.offset(1), &self.columns), |i| {
            let x = work.get([which, row, i]);
            self.total.set(self.total.get() + x * x);
        });
        let (rest, head) = (self.total.get(), work.get([which, row, row]));
        let norm = (head * head + rest).sqrt();
        let negated = -norm;
        let signed = head.lt(0.0).select(norm, negated);
        let none = rest.eq(0.0);
        let pivot = none.select(head, signed);
        self.l.set([which, row, row], pivot);
        let difference = pivot - head;
        let safe = none.select(1.0, pivot);
        self.factor.set([which, row], difference / safe);
        let negated = -difference;
        let divisor = none.select(1.0, negated);
        k.range("i", (&row.offset(1), &self.columns), |i| {
            work.set([which, row, i], work.get([which, row, i]) / divisor);
        });
    }

    /// Applies reflection `by` from the right to a row of a buffer.
    fn apply(&self, which: &Index, by: &Index, buf: KernelTensor<'k>, row: &Index) {
        let (k, work) = (self.k, self.work);
        self.total.set(buf.get([which, row, by]));
        k.range("i", (&by.offset(1), &self.columns), |i| {
            let (x, v) = (buf.get([which, row, i]), work.get([which, by, i]));
            self.total.set(self.total.get() + x * v);
        });
        let share = self.total.get() * self.factor.get([which, by]);
        buf.set([which, row, by], buf.get([which, row, by]) - share);
        let negated = -share;
        k.range("i", (&by.offset(1), &self.columns), |i| {
            let v = work.get([which, by, i]);
            buf.set([which, row, i], buf.get([which, row, i]) + negated * v);
        });
    }
}

fn reflections(ty: &DenseType) -> Result<Kernel, OpError> {
    let rank = ty.rank();
    let (rows, columns) = (ty.dims[rank - 2], ty.dims[rank - 1]);
    let batch: u64 = ty.dims[..rank - 2].iter().product();
    let [whole, left] = [columns, rows].map(|n| DenseType::new(F64, [batch, rows, n]));
    let factors = DenseType::new(F64, [batch, rows]);
    let k = &KernelScope::new("gelqf");
    let a = k.input("a", &whole);
    let [q, l, work, factor] = k.outputs(["q", "l", "work", "factor"], [&whole, &left, &whole, &factors]);
    k.parallel_each("matrix", batch, |which| {
        let total = k.cell("total", F64);
        let r = Reflections { k, columns: Index::constant(columns as i64), work, factor, l, total };
        k.each("row", rows, |row| {
            k.each("column", columns, |column| {
                let at = [which, row, column];
                work.set(at, a.get(at));
                q.set(at, k.position(row).eq(column).select(1.0, 0.0));
            });
            k.each("column", rows, |column| l.set([which, row, column], 0.0));
        });
        k.each("by", rows, |by| {
            r.find(which, by);
            k.range("i", (&by.offset(1), &Index::constant(rows as i64)), |row| {
                r.apply(which, by, work, row);
                l.set([which, row, by], work.get([which, row, by]));
            });
        });
        k.each("back", rows, |back| {
            let by = from_end(rows, back);
            k.each("row", rows, |row| r.apply(which, &by, q, row));
        });
    });
    k.finish()
}

/// L⁻ᵀ · (dQ + mirrored(Lᵀ · dL - dQ · Qᵀ) · Q), the lower triangle mirrored.
fn gelqf_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> {
    let [q, l] = [0, 1].map(|i| g.value(cx.outputs[i]));
    let [of_q, of_l] = [0, 1].map(|i| g.head(cx, i));
    let (lt, qt) = (transposed(l), transposed(q));
    let m = matmul(lt, of_l) - matmul(of_q, qt);
    let sum = of_q + matmul(mirrored(m)?, q);
    Ok(vec![Some(solve(l, sum, true, [true, false]))])
}

fn gelqf() -> OpDef {
    let compute = by_kernel(reflections, |ty, outputs| {
        let left = DenseType::new(F64, &outputs[1].dims);
        vec![ty.clone(), left, ty.clone(), DenseType::new(F64, &ty.dims[..ty.rank() - 1])]
    });
    let infer = shape_rule(|cx| {
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
        .gradient(derivative(gelqf_gradient))
        .ulp(256.0)
        .named(&["_linalg_gelqf", "linalg_gelqf"])
}

/// Rounds over all pairs of axes. Convergence is quadratic, so that far fewer are needed for f64.
const JACOBI_SWEEPS: u64 = 14;

/// Buffers of the rotations.
struct Rotations<'k> {
    k: &'k KernelScope,
    n: u64,
    work: KernelTensor<'k>,
    vectors: KernelTensor<'k>,
}

impl<'k> Rotations<'k> {
    /// Clears the element `(p, q)` of the matrix.
    fn rotate(&self, which: &Index, p: &Index, q: &Index) {
        let (k, work) = (self.k, self.work);
        let (x, y, off) = (work.get([which, p, p]), work.get([which, q, q]), work.get([which, p, q]));
        let none = off.eq(0.0);
        let safe = none.select(1.0, off);
        let theta = (y - x) / (safe + safe);
        let size = theta.abs();
        let tangent = k.number(F64, 1.0) / (size + (theta * theta + 1.0).sqrt());
        let negated = -tangent;
        let tangent = theta.lt(0.0).select(negated, tangent);
        let tangent = none.select(0.0, tangent);
        let cosine = k.number(F64, 1.0) / (tangent * tangent + 1.0).sqrt();
        let sine = tangent * cosine;
        let turn = |buf: KernelTensor<'k>, first: [&Index; 3], second: [&Index; 3]| {
            let (x, y) = (buf.get(first), buf.get(second));
            let (cx, sy) = (cosine * x, sine * y);
            let (sx, cy) = (sine * x, cosine * y);
            let (x, y) = (cx - sy, sx + cy);
            buf.set(first, x);
            buf.set(second, y);
        };
        k.each("i", self.n, |i| turn(work, [which, i, p], [which, i, q]));
        k.each("i", self.n, |i| {
            turn(work, [which, p, i], [which, q, i]);
            turn(self.vectors, [which, p, i], [which, q, i]);
        });
    }

    /// Where an eigenvalue belongs in ascending order, and the sign that makes the greatest element of its vector
    /// positive.
    fn place(&self, which: &Index, row: &Index, rank: KernelCell<'k>, best: KernelCell<'k>) {
        rank.set(0);
        best.set(0.0);
        let own = self.work.get([which, row, row]);
        self.k.each("i", self.n, |i| {
            let other = self.work.get([which, i, i]);
            let (less, equal) = (other.lt(own), other.eq(own));
            let before = less | (equal & self.k.position(i).lt(row));
            let old = rank.get();
            let next = old + 1;
            rank.set(before.select(next, old));
            let (x, held) = (self.vectors.get([which, row, i]), best.get());
            best.set(x.abs().gt(held.abs()).select(x, held));
        });
    }
}

fn rotations(ty: &DenseType) -> Result<Kernel, OpError> {
    let (batch, n) = matrices(&ty.dims);
    let (square, vector) = (DenseType::new(F64, [batch, n, n]), DenseType::new(F64, [batch, n]));
    let k = &KernelScope::new("syevd");
    let a = k.input("a", &square);
    let [u, values, work, vectors] =
        k.outputs(["u", "values", "work", "vectors"], [&square, &vector, &square, &square]);
    let r = Rotations { k, n, work, vectors };
    k.parallel_each("matrix", batch, |which| {
        k.each("row", n, |row| {
            k.each("column", n, |column| {
                let at = [which, row, column];
                work.set(at, (a.get(at) + a.get([which, column, row])) * 0.5);
                vectors.set(at, k.position(row).eq(column).select(1.0, 0.0));
            });
        });
        k.each("round", JACOBI_SWEEPS, |_| {
            k.each("p", n, |p| {
                k.range("i", (&p.offset(1), &Index::constant(n as i64)), |q| r.rotate(which, p, q));
            });
        });
        let (rank, best) = (k.cell("rank", DType::I64), k.cell("best", F64));
        k.each("row", n, |row| {
            r.place(which, row, rank, best);
            let (place, leader) = (rank.get(), best.get());
            let to = place.position(n);
            values.set([which, &to], work.get([which, row, row]));
            let sign = leader.lt(0.0).select(-1.0, 1.0);
            k.each("i", n, |i| u.set([which, &to, i], vectors.get([which, row, i]) * sign));
        });
    });
    k.finish()
}

/// Uᵀ · (sym(X) + diag(dλ)) · U with X the products dU · Uᵀ divided by the differences of eigenvalues, row less
/// column; equal eigenvalues share nothing.
fn syevd_gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> {
    let [u, values] = [0, 1].map(|i| g.value(cx.outputs[i]));
    let [of_u, of_values] = [0, 1].map(|i| g.head(cx, i));
    let ut = transposed(u);
    let products = matmul(of_u, ut);
    let mut column = products.dims()?;
    let rank = column.len();
    column.set(rank - 1, 1);
    let (down, share) = (values.reshape(&column), of_values.reshape(&column));
    let x = products.map_with(&[down, transposed(down)], |_, a| {
        let difference = &a[1] - &a[2];
        let (zero, one) = (difference.lit(0.0), difference.lit(1.0));
        let none = difference.eq(&zero);
        none.select(&zero, &(&a[0] / none.select(&one, &difference)))
    });
    let inner = x.map_with(&[transposed(x), share], |s, a| {
        let diagonal = s.coord(rank - 1).eq(&s.coord(rank - 2));
        diagonal.select(&a[2], &((&a[0] + &a[1]) * 0.5))
    });
    Ok(vec![Some(matmul(matmul(ut, inner), u))])
}

fn syevd() -> OpDef {
    let compute = by_kernel(rotations, |ty, outputs| {
        vec![ty.clone(), DenseType::new(F64, &outputs[1].dims), ty.clone(), ty.clone()]
    });
    let infer = shape_rule(|cx| {
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
        .gradient(derivative(syevd_gradient))
        .ulp(256.0)
        .named(&["_linalg_syevd", "linalg_syevd"])
}
