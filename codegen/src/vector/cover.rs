//! Whether a kernel is well served by loops over wide vectors, so that it may be written for these.

use tensorc_ir::kir::{Kernel, LoopKind, Stmt};
use tensorc_ir::scalar::ScalarOp;
use tensorc_schedule::target::VectorLevel;

use super::loop_at;

/// Whether a kernel has loops here, and every one in which much is computed is one.
pub(crate) fn covers(kernel: &Kernel, level: VectorLevel) -> bool {
    let mut found = 0;
    covers_block(kernel, &kernel.body, (level, &mut found)) && found > 0
}

/// Operations of a vector loop that are few enough for narrow vectors.
const FEW_OPERATIONS: usize = 6;

fn covers_block(kernel: &Kernel, block: &[Stmt], (level, found): (VectorLevel, &mut usize)) -> bool {
    let mut at = 0;
    while at < block.len() {
        if let Some(l) = loop_at(kernel, &block[at..], level) {
            at += l.source.statements;
            *found += 1;
            continue;
        }
        let covered = match &block[at] {
            // Scalar code calls a function for it.
            Stmt::Let { op: ScalarOp::Scale, .. } => false,
            Stmt::For { kind: LoopKind::Vector, body, .. } => {
                let operations = body.iter().filter(|s| matches!(s, Stmt::Let { .. })).count();
                let simple =
                    |s: &Stmt| !matches!(s, Stmt::For { .. } | Stmt::If { .. } | Stmt::Let { op: ScalarOp::Scale, .. });
                operations <= FEW_OPERATIONS && body.iter().all(simple)
            }
            Stmt::For { body, .. } => covers_block(kernel, body, (level, found)),
            Stmt::If { then, otherwise, .. } => {
                covers_block(kernel, then, (level, found)) && covers_block(kernel, otherwise, (level, found))
            }
            _ => true,
        };
        if !covered {
            return false;
        }
        at += 1;
    }
    true
}
