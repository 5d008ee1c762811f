//! A loop with accumulators together with the statements around it: the constants that accumulators begin with, and the
//! halves of them that are joined behind the loop. So they need not go through memory.

use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Operand, Stmt};
use tensorc_ir::scalar::Scalar;
use tensorc_schedule::target::VectorLevel;

use super::find::{accesses, lone, vectors};
use super::{LoopForm, VectorLoop, vector_lanes};

/// A loop that begins with a statement that sets all lanes of accumulators, and joins halves of them at the end.
pub(super) fn reduction(kernel: &Kernel, block: &[Stmt], level: VectorLevel) -> Option<VectorLoop> {
    let [first, main, behind @ ..] = block else { return None };
    let initial = constants(first)?;
    let mut l = vectors(kernel, main).filter(|l| l.form == LoopForm::Iterations && l.lanes == initial.lanes)?;
    l.statements = 2;
    for (buf, value) in &initial.values {
        let a = l.accumulators.iter_mut().find(|a| a.buf == *buf && a.first == 0)?;
        a.initial = Some(*value);
    }
    let width = vector_lanes(&l.code, level);
    let mut rest = behind;
    while let [stmt, behind @ ..] = rest
        && let Some(join) = lone(kernel, stmt)
        && vector_lanes(&join.code, level) >= width
        && joins(&l, &join, width)
    {
        l.joins.push(join);
        l.statements += 1;
        rest = behind;
    }
    let here = &block[..l.statements];
    for a in &mut l.accumulators {
        let all = accesses(&kernel.body, a.buf) == accesses(here, a.buf) + accesses(rest, a.buf);
        if let (true, Some(last)) = (all, last_element(rest, a.buf)) {
            a.needed = (last - a.first + 1).clamp(0, i64::from(l.lanes)) as u32;
        }
    }
    Some(l)
}

/// Constants that a statement stores to all lanes of buffers.
struct Constants {
    lanes: u32,
    values: Vec<(Buf, Scalar)>,
}

fn constants(stmt: &Stmt) -> Option<Constants> {
    let Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body } = stmt else { return None };
    let lanes = hi.as_constant().filter(|_| lo.as_constant() == Some(0))?;
    let value = |stmt: &Stmt| match stmt {
        Stmt::Store { buf, index, value: Operand::Const(c) } if index.as_var() == Some(var.0) => Some((*buf, *c)),
        _ => None,
    };
    let values = body.iter().map(value).collect::<Option<Vec<_>>>()?;
    Some(Constants { lanes: u32::try_from(lanes).ok()?, values })
}

/// Whether a loop over lanes needs nothing but whole vectors of the accumulators.
fn joins(l: &VectorLoop, join: &VectorLoop, width: u32) -> bool {
    let within = |a: &super::Accumulator| {
        let of = l.accumulators.iter().find(|of| of.buf == a.buf && of.dtype == a.dtype && of.first == 0);
        let end = a.first + i64::from(join.lanes);
        of.is_some() && a.first % i64::from(width) == 0 && a.first >= 0 && end <= i64::from(l.lanes)
    };
    let pure = join.pointers.is_empty() && join.uniforms.is_empty() && join.loops.is_empty();
    pure && join.lanes >= width && join.accumulators.iter().all(within)
}

/// The last element of a register buffer that statements access.
fn last_element(body: &[Stmt], buf: Buf) -> Option<i64> {
    fn visit(body: &[Stmt], buf: Buf, lanes: &mut Vec<(u32, i64)>, last: &mut i64) -> Option<()> {
        for stmt in body {
            match stmt {
                Stmt::Load { buf: b, index, .. } | Stmt::Store { buf: b, index, .. } if *b == buf => {
                    *last = (*last).max(greatest(index, lanes)?);
                }
                Stmt::For { var, lo, hi, body, .. } => {
                    let most = hi.as_constant().filter(|_| lo.as_constant() == Some(0));
                    let known = lanes.len();
                    lanes.extend(most.map(|n| (var.0, n - 1)));
                    visit(body, buf, lanes, last)?;
                    lanes.truncate(known);
                }
                Stmt::If { then, otherwise, .. } => {
                    visit(then, buf, lanes, last)?;
                    visit(otherwise, buf, lanes, last)?;
                }
                _ => {}
            }
        }
        Some(())
    }
    let mut last = -1;
    visit(body, buf, &mut vec![], &mut last)?;
    Some(last)
}

/// The greatest value of an index over variables with known limits, of which it has none or one.
fn greatest(index: &Index, limits: &[(u32, i64)]) -> Option<i64> {
    if let Some(c) = index.as_constant() {
        return Some(c);
    }
    let (var, most) = limits.iter().find(|(var, _)| index.mentions(*var))?;
    let rest = index.sub(&Index::var(*var)).as_constant()?;
    Some(rest + most)
}
