//! Emitter for an operand of a concatenation that is not computed in its place: runs are copied there.

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind};
use tensorc_ir::{DType, Extent};

use tensorc_schedule::layout::{Runs, span};

/// Elements one parallel iteration copies at most.
const MAX_COPY_ELEMENTS: u64 = 4096;
const LANES: i64 = 16;

/// Copies `outer` runs of `run` elements, given how far runs lie apart in the operand and in the result.
/// Parameters: the operand, its part of the result.
pub fn emit_concat_part(
    name: &str,
    dtype: DType,
    outer: Extent,
    run: Extent,
    [from_stride, to_stride]: [Extent; 2],
) -> Kernel {
    let mut b = KernelBuilder::new(name);
    let len = |stride| span(outer * run, Some(Runs { run, stride }));
    let from = b.param("in0", dtype, len(from_stride), false);
    let to = b.param("out0", dtype, len(to_stride), true);
    let blocks = run.div_ceil(MAX_COPY_ELEMENTS);
    let (total, single) = (outer * blocks, blocks.is_surely(1));
    let limits = move |_: u32| (0, total - 1);
    let p = b.open_for("p", (Index::default(), Index::constant(total), 1), LoopKind::Parallel);
    let o = b.let_index("o", p.floor_div(blocks, &limits));
    let lo = b.let_index("lo", p.modulo(blocks, &limits).scale(MAX_COPY_ELEMENTS));
    let wide = move |_: u32| (0, run);
    let end = |cap: Extent| match single {
        true => Index::constant(cap),
        false => lo.offset(MAX_COPY_ELEMENTS).minimum(&Index::constant(cap), &wide),
    };
    let whole = b.let_index("whole", end(run / LANES * LANES));
    let hi = b.let_index("hi", end(run));
    let source = b.let_index("source", o.scale(from_stride));
    let target = b.let_index("target", o.scale(to_stride));
    let i = b.open_for("i", (lo.clone(), whole.clone(), LANES), LoopKind::Serial);
    let l = b.open_for("l", (Index::default(), Index::constant(LANES), 1), LoopKind::Vector);
    let value = b.load(from, source.add(&i).add(&l));
    b.store(to, target.add(&i).add(&l), value);
    b.close_for();
    b.close_for();
    let tail = b.open_for("i", (lo.maximum(&whole, &wide), hi, 1), LoopKind::Serial);
    let value = b.load(from, source.add(&tail));
    b.store(to, target.add(&tail), value);
    b.close_for();
    b.close_for();
    b.finish()
}
