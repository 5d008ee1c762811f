//! Sums of rows at positions given by a tensor, the adjoint of `gather`.

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind};
use tensorc_ir::op::{Grain, OpRole};
use tensorc_ir::scalar::ScalarOp;

use crate::nest::{Scalars, buffers, flat, parallel};
use crate::owners::{Owners, Updates, zeros};
use crate::prelude::*;
use crate::rules::axis_of;

/// Columns that one iteration of a kernel for processors adds up, a few cache lines.
const COLUMNS: u64 = 64;

/// Runs `body` for the columns `first..last`, in vectors of `lanes` as far as they fill any.
fn columns(
    k: &mut KernelBuilder,
    (first, last): (&Index, &Index),
    lanes: i64,
    mut body: impl FnMut(&mut KernelBuilder, Index),
) -> Result<(), OpError> {
    let free = |_: u32| (0, i64::MAX / 8);
    let whole = first.add(&last.sub(first).floor_div(lanes, &free).scale(lanes));
    let mut tail = first.clone();
    if lanes > 1 {
        k.for_loop("c", (first.clone(), whole.clone(), lanes), LoopKind::Serial, |k, c| {
            k.for_range("l", lanes as u64, LoopKind::Vector, |k, l| {
                body(k, c.add(&l));
                Ok::<(), OpError>(())
            })
        })?;
        tail = whole;
    }
    k.for_loop("c", (tail, last.clone(), 1), LoopKind::Serial, |k, c| {
        body(k, c);
        Ok(())
    })
}

/// The sum of `count` rows of `inner` elements, `outer` times, at positions below `extent`.
struct RowSum {
    /// Updates, indices and result.
    bufs: Vec<Buf>,
    sums: DenseType,
    outer: u64,
    count: u64,
    inner: u64,
    extent: u64,
    /// Elements of a vector.
    lanes: i64,
}

impl RowSum {
    fn position(&self, k: &mut KernelBuilder, i: &Index) -> Index {
        let index = k.load(self.bufs[1], i.clone());
        k.position(index, self.extent)
    }

    /// Adds an element of row `i` to one of the result.
    fn add(&self, k: &mut KernelBuilder, [outer, i, column]: [&Index; 3], to: Index) {
        let from = flat(&[outer.clone(), i.clone(), column.clone()], &[self.outer, self.count, self.inner]);
        let value = k.load(self.bufs[0], from);
        let (old, value) = (k.load(self.bufs[2], to.clone()), k.cast(value, self.sums.dtype));
        let sum = k.bin(ScalarOp::Add, old, value);
        k.store(self.bufs[2], to, sum);
    }

    /// For many threads.
    fn fine(&self, k: &mut KernelBuilder) -> Result<(), OpError> {
        let updates = Updates {
            dims: &[self.count],
            position: &|k, _, at| self.position(k, &at[0]),
            store: &|k, column, at, to| {
                self.add(k, [&column.outer[0], &at[0], &column.inner[0]], to);
                Ok(())
            },
        };
        let (outer, inner) = ([self.outer], [self.inner]);
        Owners::new(&outer, self.extent, &inner).scatter(
            k,
            self.bufs[2],
            &zeros(&self.sums),
            [&outer, &inner],
            &updates,
        )
    }

    /// For few threads, some columns each.
    fn coarse(&self, k: &mut KernelBuilder) -> Result<(), OpError> {
        parallel(k, &[self.outer, self.inner.div_ceil(COLUMNS)], |k, at| {
            let free = |_: u32| (0, i64::MAX / 8);
            let first = at[1].scale(COLUMNS as i64);
            let last = first.offset(COLUMNS as i64).minimum(&Index::constant(self.inner as i64), &free);
            let to = |row: &Index, c: &Index| {
                flat(&[at[0].clone(), row.clone(), c.clone()], &[self.outer, self.extent, self.inner])
            };
            k.for_range("z", self.extent, LoopKind::Serial, |k, row| {
                columns(k, (&first, &last), self.lanes, |k, c| {
                    let zero = zeros(&self.sums)(k, Index::default());
                    k.store(self.bufs[2], to(&row, &c), zero);
                })
            })?;
            k.for_range("i", self.count, LoopKind::Serial, |k, i| {
                let row = self.position(k, &i);
                columns(k, (&first, &last), self.lanes, |k, c| self.add(k, [&at[0], &i, &c], to(&row, &c)))
            })
        })
    }

    fn kernel(&self, mut k: KernelBuilder, grain: Grain) -> Result<Kernel, OpError> {
        match grain {
            Grain::Fine => self.fine(&mut k)?,
            Grain::Coarse => self.coarse(&mut k)?,
        }
        Ok(k.finish())
    }
}

pub fn scatter_sum() -> OpDef {
    let compute = composite(|b, cx, args| {
        let (updates, indices) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let (from, index_ty, out) = (b.ty(updates)?, b.ty(indices)?, &cx.outputs[0]);
        let axis = axis_of(cx, out.rank()).or_fail(b)?;
        let extent = out.dims[axis];
        let sums = DenseType::new(compute_type(out.dtype), &out.dims);
        let mut k = KernelBuilder::new("scatter_sum");
        let sum = RowSum {
            bufs: buffers(&mut k, &[("updates", &from), ("indices", &index_ty)], &[("out", &sums)]),
            outer: out.dims[..axis].iter().product(),
            count: if extent == 0 { 0 } else { index_ty.len() },
            inner: out.dims[axis + 1..].iter().product(),
            extent,
            // Vectors hold elements of one width.
            lanes: if from.dtype.size() == 4 && sums.dtype.size() == 4 { 16 } else { 1 },
            sums,
        };
        let kernel = sum.kernel(k, cx.grain).or_fail(b)?;
        let sums = b.kernel(kernel, &[updates, indices], std::slice::from_ref(&sum.sums))[0];
        b.converted(sums, out.dtype)
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let (Some(updates), Some(indices)) = (cx.input_dims(0), cx.input_dims(1)) else { return Ok(()) };
        let rank = (updates.len() + 1).checked_sub(indices.len()).filter(|r| *r > 0);
        let Some(rank) = rank else { return Err("operand `updates`: its rank is below that of `indices`".into()) };
        let axis = cx.axis(cx.params.int("axis").unwrap_or(0), rank)?;
        for (i, n) in indices.iter().enumerate() {
            cx.unify_dims(*n, updates[axis + i], &format!("operand `updates`, axis {}", axis + i))?;
        }
        let extent = Dim::Const(cx.params.int("extent").unwrap_or(0).max(0) as u64);
        if extent == Dim::Const(0) && !indices.contains(&Dim::Const(0)) {
            return Err("parameter `extent`: an axis without elements is indexed".into());
        }
        cx.set_output_dims(0, [&updates[..axis], &[extent], &updates[axis + indices.len()..]].concat())
    });
    define(
        "scatter_sum",
        "The adjoint of `gather`: zeros with `extent` positions along `axis`, to which the slices of `updates` are added in order.",
        compute,
        infer,
    )
    .operand("updates", NUMBERS)
    .operand("indices", INDICES)
    .param("axis", ParamValue::Int(0), "")
    .required("extent", ParamKind::Int, "Positions along `axis`.")
    .gradient(|b, cx| {
        let head = cx.head(b, 0)?;
        let axis = cx.node.params.int("axis").unwrap_or(0);
        let back = b.op("gather", &[head, cx.input(1)?], Params::new().with("axis", ParamValue::Int(axis)))?;
        Ok(vec![Some(back)])
    })
    .ulp(1.0)
    .edit(|def| def.role = Some(OpRole::GatherAdjoint))
}
