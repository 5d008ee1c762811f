//! A loop over rows around a loop over elements: one call computes all rows, which may be short.

use std::collections::HashMap;

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, LoopKind, Operand, Stmt};
use tensorc_schedule::target::VectorLevel;

use super::find::{find, unbounded};
use super::{LoopForm, MAX_INDEX_SCALE, Pointer, Rows, UniformValue, VectorLoop};

/// The loop over rows that a statement is, if nothing but elements is computed in it.
pub(super) fn rows(kernel: &Kernel, stmt: &Stmt, level: VectorLevel) -> Option<VectorLoop> {
    let Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body } = stmt else { return None };
    let names = body.iter().take_while(|s| matches!(s, Stmt::LetIndex { .. })).count();
    let (names, elements) = body.split_at(names);
    // Only what is the outermost loop over elements.
    elements.first().filter(|s| matches!(s, Stmt::For { .. }))?;
    let whole = |l: &VectorLoop| l.statements == elements.len() && l.form != LoopForm::Iterations;
    let near = |p: &Pointer| p.per_lane * p.bytes <= MAX_INDEX_SCALE;
    let plain = |l: &VectorLoop| {
        l.rows.is_none() && l.loops.is_empty() && l.accumulators.is_empty() && l.pointers.iter().all(near)
    };
    let mut l = find(kernel, elements, level).into_iter().find(|l| whole(l) && plain(l))?;
    let mut known: HashMap<u32, Index> = HashMap::new();
    for name in names {
        if let Stmt::LetIndex { var, index } = name {
            let index = resolve(index, &known);
            known.insert(var.0, index);
        }
    }
    (l.lo, l.hi) = (resolve(&l.lo, &known), resolve(&l.hi, &known));
    for p in &mut l.pointers {
        let start = resolve(&p.start, &known);
        p.per_row = start.coefficient(var.0)?.known()?;
        p.start = start.add(&lo.sub(&Index::var(var.0)).scale(p.per_row));
    }
    for uniform in &mut l.uniforms {
        match uniform {
            UniformValue::Operand(operand, _) => {
                let inside = |v: u32| v == var.0 || known.contains_key(&v);
                if matches!(operand, Operand::Var(v) if inside(v.0)) {
                    return None;
                }
            }
            UniformValue::Index(index) => {
                *index = resolve(index, &known);
                if index.mentions(var.0) {
                    return None;
                }
            }
        }
    }
    let same = !l.lo.mentions(var.0) && !l.hi.mentions(var.0);
    l.rows = Some(Rows { lo: lo.clone(), hi: hi.clone() });
    l.statements = 1;
    same.then_some(l)
}

fn resolve(index: &Index, known: &HashMap<u32, Index>) -> Index {
    index.substitute(&|v| known.get(&v).cloned().unwrap_or_else(|| Index::var(v)), &unbounded)
}
