//! Sums of rows at positions given by a tensor, the adjoint of `gather`.

use tensorc_ir::op::OpRole;

use crate::blocks::in_vectors;
use crate::index::has_none;
use crate::owners::{Owners, Updates};
use crate::prelude::*;
use crate::rules::axis_of;

/// Columns that one iteration of a kernel for processors adds up, a few cache lines.
const COLUMNS: i64 = 64;

/// The sum of `count` rows of `inner` elements, `outer` times, at positions below `extent`.
struct RowSum<'k> {
    k: &'k KernelScope,
    updates: KernelTensor<'k>,
    indices: KernelTensor<'k>,
    sums: KernelTensor<'k>,
    outer: Extent,
    count: Extent,
    inner: Extent,
    extent: Extent,
    /// Elements of a vector.
    lanes: i64,
}

impl RowSum<'_> {
    fn position(&self, i: &Index) -> Index {
        self.indices.position(i, self.extent)
    }

    /// Adds an element of row `i` to one of the result.
    fn add(&self, [outer, i, column]: [&Index; 3], to: &Index) {
        let from = linearize(&[outer.clone(), i.clone(), column.clone()], &[self.outer, self.count, self.inner]);
        let value = self.updates.get(&from);
        self.sums.add(to, value);
    }

    /// For many threads.
    fn fine(&self) {
        let updates = Updates {
            dims: [self.count].into_iter().collect(),
            position: &|_, at| self.position(&at[0]),
            store: &|column, at, to| self.add([&column.outer[0], &at[0], &column.inner[0]], to),
        };
        let [outer, inner] = [self.outer, self.inner].map(|n| [n].into_iter().collect::<Extents>());
        let owners = Owners::new(outer.clone(), self.extent, inner.clone());
        let zero = self.k.constant(Scalar::zero(self.sums.dtype()));
        owners.scatter(self.k, self.sums, &|_| zero, [outer, inner], &updates);
    }

    /// For few threads, some columns each.
    fn coarse(&self) {
        let k = self.k;
        k.parallel(&[self.outer, self.inner.div_ceil(COLUMNS)], |at| {
            let free = |_: u32| (0, i64::MAX / 8);
            let first = at[1].scale(COLUMNS);
            let last = first.offset(COLUMNS).minimum(&Index::constant(self.inner), &free);
            let to = |row: &Index, c: &Index| {
                linearize(&[at[0].clone(), row.clone(), c.clone()], &[self.outer, self.extent, self.inner])
            };
            k.each("z", self.extent, |row| {
                let zero = Scalar::zero(self.sums.dtype());
                in_vectors(k, (&first, &last), self.lanes, |c| self.sums.set(&to(row, c), zero));
            });
            k.each("i", self.count, |i| {
                let row = self.position(i);
                in_vectors(k, (&first, &last), self.lanes, |c| self.add([&at[0], i, c], &to(&row, c)));
            });
        });
    }
}

pub fn scatter_sum() -> OpDef {
    let compute = formula(|g, cx| {
        let ([updates, indices], out) = (g.operands(), &cx.outputs[0]);
        let (from, index_ty) = (updates.ty()?, indices.ty()?);
        let axis = axis_of(cx, out.rank()).or_fail(&g)?;
        let extent = out.dims.at(axis);
        let sums = DenseType::new(compute_type(out.dtype), &out.dims);
        let scope = KernelScope::new("scatter_sum");
        let rows = RowSum {
            k: &scope,
            updates: scope.input("updates", &from),
            indices: scope.input("indices", &index_ty),
            sums: scope.output("out", &sums),
            outer: out.dims.range(..axis).count(),
            count: if extent == 0 { Extent::ZERO } else { index_ty.dims.count() },
            inner: out.dims.range(axis + 1..).count(),
            extent,
            // Vectors hold elements of one width.
            lanes: if from.dtype.size() == 4 && sums.dtype.size() == 4 { 16 } else { 1 },
        };
        match cx.grain {
            Grain::Fine => rows.fine(),
            Grain::Coarse => rows.coarse(),
        }
        let sums = g.kernel(scope.finish(), &[updates, indices], std::slice::from_ref(&sums))?[0];
        Ok(sums.convert(out.dtype))
    });
    let infer = shape_rule(|cx| {
        let (Some(updates), Some(indices)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
        let rank = (updates.len() + 1).checked_sub(indices.len()).filter(|r| *r > 0);
        let Some(rank) = rank else { return Err("operand `updates`: its rank is below that of `indices`".into()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(0), rank)?;
        for (i, n) in indices.iter().enumerate() {
            cx.unify_dims(*n, updates[axis + i], &format!("operand `updates`, axis {}", axis + i))?;
        }
        let extent = match extents(cx, 2).as_deref() {
            Some([n]) if *n >= 0 => Dim::of(*n),
            Some(_) => return Err("operand `extent`: it is not one extent".into()),
            None => return Ok(()),
        };
        if extent == Dim::Const(0) && !has_none(&indices) {
            return Err("operand `extent`: an axis without elements is indexed".into());
        }
        cx.set_output_dims(0, [&updates[..axis], &[extent], &updates[axis + indices.len()..]].concat())
    });
    let doc = "The adjoint of `gather`: zeros with `extent` positions along `axis`, to which the slices of `updates` \
               are added in order.";
    define("scatter_sum", doc, compute, infer)
        .operand("updates", NUMBERS)
        .operand("indices", INDICES)
        .static_operands(&["extent"], INDICES)
        .param("axis", 0, "")
        .gradient(derivative(|g, cx| {
            let axis = Params::new().with("axis", cx.node.params.int("axis").unwrap_or(0));
            Ok(vec![Some(g.op("gather", &[g.head(cx, 0), g.operand(1)], axis)), None, None])
        }))
        .ulp(1.0)
        .edit(|def| def.role = Some(OpRole::GatherAdjoint))
}
