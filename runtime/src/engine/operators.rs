//! Reusable operators: their functions, and the table in which the scheduler keeps them.
//!
//! What pushes of an operator have in common is here once, so that a push is but a number in the
//! inbox, and running one moves nothing but a pointer.

use std::sync::Arc;

use super::error::Failure;
use super::op::{Name, RunContext};
use super::state::Access;
use crate::device::Device;

/// The function of an operator.
pub type Function = dyn Fn(&RunContext<'_>) -> Result<(), Failure> + Send + Sync;

/// What is needed to run an operator.
pub struct OperatorBody<F: ?Sized = Function> {
    pub name: Name,
    pub device: Device,
    pub bytes: u64,
    pub f: F,
}

/// What is needed to schedule an operator.
pub struct Terms {
    /// No variable twice.
    pub accesses: Box<[Access]>,
    pub staged_bytes: u64,
    pub priority: i32,
    pub lane: u16,
}

struct Slot {
    /// None in a free slot.
    body: Option<Arc<OperatorBody>>,
    /// A second reference for whoever runs the operator. Handing out and taking back one that
    /// exists costs less than counting references, which is an atomic operation.
    spare: Option<Arc<OperatorBody>>,
    terms: Terms,
    /// Pushed and not finished.
    pending: u64,
    /// The handle was dropped.
    retired: bool,
}

/// The operators of an engine, by number; numbers are used again.
#[derive(Default)]
pub struct Operators {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Operators {
    pub fn add(&mut self, body: Arc<OperatorBody>, terms: Terms) -> u32 {
        let slot = Slot { spare: Some(body.clone()), body: Some(body), terms, pending: 0, retired: false };
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = slot;
            return number;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    #[inline]
    pub fn terms(&self, number: u32) -> &Terms {
        &self.slots[number as usize].terms
    }

    /// Counts a push of the operator.
    #[inline]
    pub fn begin(&mut self, number: u32) -> &Terms {
        let slot = &mut self.slots[number as usize];
        slot.pending += 1;
        &slot.terms
    }

    /// Counts a push of the operator as done.
    #[inline]
    pub fn end(&mut self, number: u32, dropped: &mut Vec<Arc<OperatorBody>>) {
        let slot = &mut self.slots[number as usize];
        slot.pending -= 1;
        if slot.retired {
            self.free(number, dropped);
        }
    }

    /// The handle of the operator is gone. Its body comes to `dropped` once no push is pending.
    pub fn retire(&mut self, number: u32, dropped: &mut Vec<Arc<OperatorBody>>) {
        self.slots[number as usize].retired = true;
        self.free(number, dropped);
    }

    fn free(&mut self, number: u32, dropped: &mut Vec<Arc<OperatorBody>>) {
        let slot = &mut self.slots[number as usize];
        if slot.pending == 0 {
            slot.spare = None;
            dropped.extend(slot.body.take());
            self.free.push(number);
        }
    }

    /// The body, to run a push that is pending.
    #[inline]
    pub fn lend(&mut self, number: u32) -> Option<Arc<OperatorBody>> {
        let slot = &mut self.slots[number as usize];
        slot.spare.take().or_else(|| slot.body.clone())
    }

    /// Takes back what was lent, while the push is still pending.
    #[inline]
    pub fn give_back(&mut self, number: u32, body: Arc<OperatorBody>) {
        self.slots[number as usize].spare = Some(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_kept_until_no_push_is_pending() {
        let mut operators = Operators::default();
        let add = |operators: &mut Operators| {
            let name = Name::from_static("test");
            let body =
                Arc::new(OperatorBody { name, device: Device::default(), bytes: 0, f: |_: &RunContext<'_>| Ok(()) });
            let terms = Terms { accesses: Box::default(), staged_bytes: 0, priority: 0, lane: 0 };
            (operators.add(body.clone(), terms), body)
        };
        let (number, body) = add(&mut operators);
        let mut dropped = Vec::new();
        (0..3).for_each(|_| _ = operators.begin(number));
        let lent: Vec<_> = (0..2).filter_map(|_| operators.lend(number)).collect();
        assert_eq!((lent.len(), Arc::strong_count(&body)), (2, 4));
        operators.retire(number, &mut dropped);
        for (left, body) in lent.into_iter().enumerate() {
            operators.give_back(number, body);
            operators.end(number, &mut dropped);
            assert!(dropped.is_empty(), "{left}");
        }
        assert_eq!(Arc::strong_count(&body), 3);
        // Skipped: ended without having been lent.
        operators.end(number, &mut dropped);
        assert_eq!((dropped.drain(..).count(), Arc::strong_count(&body)), (1, 1));
        assert_eq!(add(&mut operators).0, number);
    }
}
