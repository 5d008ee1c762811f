//! What is left over by a loop over vectors: the same computation for fewer elements, in the statements behind it.

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, Stmt};

use super::find::{elements, unbounded};
use super::{LoopForm, Op, UniformValue, VectorLoop};

/// The loop together with the statements behind it that go on with it.
pub(super) fn with_rest(kernel: &Kernel, first: &VectorLoop, rest: &[Stmt]) -> Option<VectorLoop> {
    if first.form != LoopForm::Elements {
        return None;
    }
    let mut whole = first.clone();
    for stmt in rest {
        let Some(next) = elements(kernel, stmt).filter(|next| goes_on(&whole, next)) else { break };
        // Vectors that end where their loop does, or single elements.
        let even = next.hi.sub(&next.lo).as_constant().is_some_and(|n| n >= 0 && n % next.step == 0);
        if next.step != 1 && !even {
            break;
        }
        whole.hi = next.hi;
        whole.statements += 1;
    }
    // Behind exact ends nothing is a multiple of anything.
    (whole.form, whole.step, whole.lanes) = (LoopForm::ElementsTo, 1, 1);
    (whole.statements > 1).then_some(whole)
}

fn goes_on(whole: &VectorLoop, next: &VectorLoop) -> bool {
    let begins = next.lo == whole.hi || next.lo == whole.lo.maximum(&whole.hi, &unbounded);
    begins && next.form == LoopForm::Elements && same(whole, next)
}

/// Whether two loops do the same at each element.
fn same(a: &VectorLoop, b: &VectorLoop) -> bool {
    let pointers = a.pointers.len() == b.pointers.len()
        && a.pointers.iter().zip(&b.pointers).all(|(p, q)| {
            let from = |start: &Index, lo: &Index| start.sub(&lo.scale(p.per_lane));
            p.buf == q.buf && p.per_lane == q.per_lane && from(&p.start, &a.lo) == from(&q.start, &b.lo)
        });
    let code = a.code.len() == b.code.len()
        && a.code.iter().zip(&b.code).all(|(p, q)| p.dtype == q.dtype && same_op(&p.op, &q.op));
    let inner = a.loops == b.loops && a.offsets == b.offsets;
    let accumulators = a.accumulators.len() == b.accumulators.len()
        && a.accumulators.iter().zip(&b.accumulators).all(|(p, q)| p.dtype == q.dtype);
    pointers && code && inner && accumulators && a.uniforms.len() == b.uniforms.len() && {
        let factors = positions(a);
        a.uniforms.iter().zip(&b.uniforms).enumerate().all(|(i, (u, v))| match (u, v) {
            (UniformValue::Index(u), UniformValue::Index(v)) => {
                u.sub(&a.lo.scale(factors[i])) == v.sub(&b.lo.scale(factors[i]))
            }
            _ => u == v,
        })
    }
}

/// How positions grow by element.
fn positions(l: &VectorLoop) -> Vec<i64> {
    let mut factors = vec![0; l.uniforms.len()];
    for i in &l.code {
        if let Op::Positions { uniform, per_lane, .. } = &i.op {
            factors[*uniform as usize] = *per_lane;
        }
    }
    factors
}

fn same_op(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (
            Op::Positions { uniform, per_lane, turns, .. },
            Op::Positions { uniform: other, per_lane: lane, turns: others, .. },
        ) => uniform == other && per_lane == lane && turns == others,
        _ => a == b,
    }
}
