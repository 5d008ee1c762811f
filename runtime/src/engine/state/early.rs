//! Variables that an operation gives up before it finishes.

use super::{AccessKind, FINISHED, NIL, OpId, Ready, State, VarId};

impl<T, E: Clone> State<T, E> {
    /// A running operation gives up a variable that it has overwritten, before it finishes. The variable's version grows,
    /// it holds no error, and what waits for it is granted. How the operation ends does not concern it any more.
    ///
    /// False, and nothing changes, unless the access is an [`AccessKind::Write`] that was not given up. The operation must
    /// have begun and not be finished, with all accesses granted and no error met: what runs ahead of others may end as if
    /// it had not run.
    pub fn release_early(&mut self, op: OpId, var: VarId, ready: &mut Ready<T, E>) -> bool {
        let runs = |slot: &&super::OpSlot<T, E>| {
            slot.serial != FINISHED && slot.began && slot.outcome.is_none() && slot.missing == 0
        };
        if self.ops.get(op.0 as usize).filter(runs).is_none() || self.observed_error(op.0).is_some() {
            return false;
        }
        let Some(node) = self.unlink(op.0, var) else { return false };
        self.end_access(node, None, ready);
        self.end_all(ready);
        true
    }

    /// Takes the overwriting of a variable out of an operation's accesses.
    fn unlink(&mut self, op: u32, var: VarId) -> Option<u32> {
        let (mut before, mut node) = (NIL, self.ops[op as usize].first);
        while node != NIL && self.nodes[node as usize].var != var.0 {
            (before, node) = (node, self.nodes[node as usize].sibling);
        }
        let found = self.nodes.get(node as usize).filter(|found| found.kind == AccessKind::Write)?;
        let next = found.sibling;
        match before {
            NIL => self.ops[op as usize].first = next,
            before => self.nodes[before as usize].sibling = next,
        }
        Some(node)
    }
}
