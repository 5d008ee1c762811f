//! Emitter for one operand of a concatenation: runs copied into a strided place of the result.

use tensorc_ir::DType;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind};

/// Elements one parallel iteration copies at most.
const BLOCK: u64 = 4096;
const LANES: i64 = 16;

/// Copies `outer` runs of `run` elements to `offset` of each `stride` elements of the result.
/// Parameters: the operand, the result.
pub fn emit_concat_part(name: &str, dtype: DType, outer: u64, run: u64, stride: u64, offset: u64) -> Kernel {
    let mut b = KernelBuilder::new(name);
    let from = b.param("in0", dtype, outer * run, false);
    let to = b.param("out0", dtype, outer * stride, true);
    let blocks = run.div_ceil(BLOCK);
    let total = (outer * blocks) as i64;
    let limits = move |_: u32| (0, total - 1);
    let p = b.open_for("p", (Index::default(), Index::constant(total), 1), LoopKind::Parallel);
    let o = b.let_index("o", p.floor_div(blocks as i64, &limits));
    let lo = b.let_index("lo", p.modulo(blocks as i64, &limits).scale(BLOCK as i64));
    let n = run as i64;
    let wide = move |_: u32| (0, n);
    let end = |cap: i64| match blocks {
        1 => Index::constant(cap),
        _ => lo.offset(BLOCK as i64).minimum(&Index::constant(cap), &wide),
    };
    let whole = b.let_index("whole", end(n / LANES * LANES));
    let hi = b.let_index("hi", end(n));
    let source = b.let_index("source", o.scale(n));
    let target = b.let_index("target", o.scale(stride as i64).offset(offset as i64));
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
