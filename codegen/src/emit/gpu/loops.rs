//! Loops of a launch, and what every thread begins with: which part of the work is its own.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, LoopRange, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::MergedAxes;

use crate::emit::inline::Inliner;

/// `0..n` by 1.
pub fn range(n: impl Into<Extent>) -> LoopRange {
    (Index::default(), Index::constant(n.into()), 1)
}

/// The loops over blocks and threads; `body` takes the numbers of both, and the shared arrays.
pub fn launch(
    e: &mut Inliner<'_>,
    blocks: impl Into<Extent>,
    threads: u64,
    shared: &[(DType, u64)],
    body: impl FnOnce(&mut Inliner<'_>, Index, Index, &[Buf]) -> Result<()>,
) -> Result<()> {
    e.looped("b", range(blocks), LoopKind::Grid, |e, b| {
        let arrays: Vec<Buf> =
            shared.iter().map(|(dtype, n)| e.alloc("shared", *dtype, *n, MemorySpace::Shared)).collect();
        e.looped("t", range(threads), LoopKind::Threads, |e, t| body(e, b, t, &arrays))
    })
}

/// The body where `index < bound`, which is tested only if it can fail: `index` is below `most`.
pub fn below(
    e: &mut Inliner<'_>,
    index: &Index,
    bound: impl Into<Extent>,
    most: impl Into<Extent>,
    body: impl FnOnce(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let bound = bound.into();
    if bound.is_surely_from(most) {
        return body(e);
    }
    under(e, index, &Index::constant(bound), body)
}

/// The body where `index < bound`.
pub fn under(
    e: &mut Inliner<'_>,
    index: &Index,
    bound: &Index,
    body: impl FnOnce(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let [value, bound] = [index, bound].map(|n| e.b.index_value(n.clone()));
    let inside = e.b.op(ScalarOp::Cmp(CmpOp::Lt), &[value, bound]);
    e.when(inside, body)
}

/// Whether positions lie below their bounds, as a bool; `None` if steps of the given sizes divide all bounds, so that they
/// always do.
pub fn inside(e: &mut Inliner<'_>, positions: &[(&Index, Extent, u64)]) -> Option<Operand> {
    let mut inside = None;
    for (index, bound, step) in positions {
        if bound.sure_quotient(*step).is_some() {
            continue;
        }
        let [index, bound] = [(*index).clone(), Index::constant(*bound)].map(|n| e.b.index_value(n));
        let test = e.b.op(ScalarOp::Cmp(CmpOp::Lt), &[index, bound]);
        inside = Some(match inside {
            Some(other) => e.b.op(ScalarOp::And, &[other, test]),
            None => test,
        });
    }
    inside
}

/// Sets the axes of groups to the digits of a counter below `total`, which it gives in the order of the groups; the last group
/// changes fastest.
pub fn set_groups(e: &mut Inliner<'_>, groups: &[MergedAxes], counter: &Index, total: Extent) -> Vec<Index> {
    let limits = move |_: u32| (Extent::ZERO, total.last_position());
    let mut stride = Extent::ONE;
    let mut digits = vec![Index::default(); groups.len()];
    for (i, g) in groups.iter().enumerate().rev() {
        let extent = g.extent.as_divisor();
        let rest = counter.floor_div(stride, &limits);
        // What is above the first group's digit cannot be.
        let digit = if i == 0 { rest } else { rest.modulo(extent, &limits) };
        let digit = e.b.let_index("g", digit);
        e.set_axis(g.axis, digit.clone());
        digits[i] = digit;
        stride = stride * extent;
    }
    digits
}
