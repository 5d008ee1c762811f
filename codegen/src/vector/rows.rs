//! A loop over rows around a loop over elements: one call computes all rows, which may be short.

use std::collections::HashMap;

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var};
use tensorc_schedule::target::VectorLevel;

use super::find::{find, unbounded};
use super::{Instruction, LoopForm, MAX_INDEX_SCALE, Op, Place, Pointer, Rows, UniformValue, VectorLoop};

/// The loop over rows that a statement is, if nothing but elements is computed in it.
pub(super) fn rows(kernel: &Kernel, stmt: &Stmt, level: VectorLevel) -> Option<VectorLoop> {
    let Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body } = stmt else { return None };
    let outside = |s: &&Stmt| matches!(s, Stmt::LetIndex { .. } | Stmt::Load { guard: None, .. });
    let (names, elements) = body.split_at(body.iter().take_while(outside).count());
    // Only what is the outermost loop over elements.
    elements.first().filter(|s| matches!(s, Stmt::For { .. }))?;
    let whole = |l: &VectorLoop| l.statements == elements.len() && l.form != LoopForm::Iterations;
    let near = |p: &Pointer| p.per_lane * p.bytes <= MAX_INDEX_SCALE;
    let plain = |l: &VectorLoop| {
        l.rows.is_none() && l.loops.is_empty() && l.accumulators.is_empty() && l.pointers.iter().all(near)
    };
    let mut l = find(kernel, elements, level).into_iter().find(|l| whole(l) && plain(l))?;
    let (mut known, mut loads) = (HashMap::new(), vec![]);
    for name in names {
        match name {
            Stmt::LetIndex { var, index } => {
                let index = resolve(index, &known);
                known.insert(var.0, index);
            }
            Stmt::Load { var, buf, index, .. } => loads.push((*var, *buf, resolve(index, &known))),
            _ => return None,
        }
    }
    loads.into_iter().try_for_each(|load| read_in_loop(kernel, &mut l, load))?;
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

/// Reads an element of each row where its value is used.
fn read_in_loop(kernel: &Kernel, l: &mut VectorLoop, (var, buf, start): (Var, Buf, Index)) -> Option<()> {
    let value = |u: &UniformValue| matches!(u, UniformValue::Operand(Operand::Var(v), _) if *v == var);
    let Some(found) = l.uniforms.iter().position(value) else { return Some(()) };
    let of = kernel.buf(buf);
    let stores = |i: &Instruction| match i.op {
        Op::Store { place, .. } | Op::StoreHalf { place, .. } => l.pointers[place.pointer as usize].buf == buf,
        _ => false,
    };
    if of.space == MemorySpace::Register || l.code.iter().any(stores) {
        return None;
    }
    let place = Place { pointer: l.pointers.len() as u32, offset: 0, moving: None, dtype: of.dtype };
    l.pointers.push(Pointer { buf, start, bytes: of.dtype.size() as i64, per_lane: 0, advance: 0, per_row: 0 });
    l.uniforms.remove(found);
    for i in &mut l.code {
        match &mut i.op {
            Op::Uniform(u) if *u as usize == found => i.op = Op::Load { place, guard: None },
            Op::Uniform(u) | Op::Positions { uniform: u, .. } if *u as usize > found => *u -= 1,
            _ => {}
        }
    }
    Some(())
}

fn resolve(index: &Index, known: &HashMap<u32, Index>) -> Index {
    index.substitute(&|v| known.get(&v).cloned().unwrap_or_else(|| Index::var(v)), &unbounded)
}
