//! The dependency rules: variables with queues of accesses, operations that wait for them.
//!
//! A pure state machine. It knows no threads, locks, clocks or closures; it is told what was pushed
//! and what finished, and answers what may run. Each variable has any number of running readers or
//! one running exclusive access, and a first-in-first-out queue of accesses that wait. Completing an
//! exclusive access grants the run of reads that follows, or the next exclusive access.
//!
//! An operation that enqueues work on a device's stream is *issued* when it has done so, and finished when the device
//! has passed it. Accesses that are ordered on streams ([`VarAccess::ahead`]) are *cleared* before they are granted: when
//! those before them are such and issued. An operation runs when all its accesses are cleared; whatever it reports, it
//! ends only when they are granted, so all else is as if it had run then.
//!
//! All records live in slabs whose free slots are reused last-in-first-out, and queues are links in
//! the records, so that a machine that has reached its largest size allocates nothing.

mod early;

pub use super::access::{AccessKind, VarAccess, VarId};

/// No slot.
const NIL: u32 = u32::MAX;

/// Number of an operation that has not finished; numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

#[derive(Clone, Hash)]
struct PendingOp {
    var: u32,
    op: u32,
    /// Next in the queue of the variable.
    next: u32,
    /// Next access of the operation; next free slot.
    sibling: u32,
    kind: AccessKind,
    /// See [`VarAccess::ahead`].
    ahead: bool,
    cleared: bool,
    granted: bool,
    issued: bool,
}

#[derive(Clone, Hash)]
struct VarSlot<E> {
    /// Ends of the queue of waiting accesses.
    head: u32,
    tail: u32,
    /// The first of them that is not cleared.
    uncleared: u32,
    readers: u32,
    /// Accesses that are cleared, and neither issued nor finished: shared and exclusive ones.
    reading: u32,
    writing: u32,
    /// Most recent access, and the number of the push it belongs to: to recognise a second one of
    /// the same operation.
    last: u32,
    last_push: u64,
    /// An exclusive access is granted.
    exclusive: bool,
    version: u64,
    error: Option<E>,
}

impl<E> VarSlot<E> {
    /// Accesses of a kind that are cleared, and neither issued nor finished.
    #[inline]
    fn open(&mut self, kind: AccessKind) -> &mut u32 {
        if kind.exclusive() { &mut self.writing } else { &mut self.reading }
    }

    fn new() -> VarSlot<E> {
        VarSlot {
            head: NIL,
            tail: NIL,
            uncleared: NIL,
            readers: 0,
            reading: 0,
            writing: 0,
            last: NIL,
            last_push: FINISHED,
            exclusive: false,
            version: 0,
            error: None,
        }
    }
}

#[derive(Clone, Hash)]
struct OpSlot<T, E> {
    /// First access; next free slot.
    first: u32,
    /// Accesses not granted yet, and those of them that are not cleared either.
    missing: u32,
    uncleared: u32,
    /// It was told to run.
    began: bool,
    /// What came of it, while accesses are not granted.
    outcome: Option<Result<(), E>>,
    /// That came before they were.
    late: bool,
    /// Number of the push, or [`FINISHED`].
    serial: u64,
    payload: Option<T>,
}

const FINISHED: u64 = u64::MAX;

/// What became possible. Entries are appended; the caller removes them.
pub struct Ready<T, E> {
    /// Operations whose accesses are all cleared, in the order in which that happened.
    pub run: Vec<OpId>,
    /// Operations that met an error and are finished with it: they must not run.
    pub skipped: Vec<(T, E)>,
    /// Errors of operations that ended with one of their own, in the order in which they did.
    pub failed: Vec<E>,
    /// Operations that were finished before they could end ([`State::finish`]) and have ended now.
    pub ended: Vec<OpId>,
    /// Variables whose numbers may be used again.
    pub freed: Vec<VarId>,
}

impl<T, E> Ready<T, E> {
    pub fn new() -> Ready<T, E> {
        Ready { run: Vec::new(), skipped: Vec::new(), failed: Vec::new(), ended: Vec::new(), freed: Vec::new() }
    }
}

impl<T, E> Default for Ready<T, E> {
    fn default() -> Ready<T, E> {
        Ready::new()
    }
}

/// Operations with a payload `T` over variables that can hold an error `E`.
#[derive(Clone, Hash)]
pub struct State<T, E> {
    vars: Vec<VarSlot<E>>,
    ops: Vec<OpSlot<T, E>>,
    nodes: Vec<PendingOp>,
    free_op: u32,
    free_node: u32,
    /// Operations pushed so far.
    pushed: u64,
    /// Operations pushed and not finished.
    live: usize,
    /// Variables that hold an error.
    failed: usize,
    /// Operations that met an error or have run, whose accesses are granted and still to be released.
    ending: Vec<u32>,
    /// Operations whose accesses are all cleared, and were not all granted when they became so.
    cleared: Vec<u32>,
}

impl<T, E: Clone> State<T, E> {
    pub fn new() -> State<T, E> {
        State {
            vars: Vec::new(),
            ops: Vec::new(),
            nodes: Vec::new(),
            free_op: NIL,
            free_node: NIL,
            pushed: 0,
            live: 0,
            failed: 0,
            ending: Vec::new(),
            cleared: Vec::new(),
        }
    }

    /// Operations pushed and not finished.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Operations pushed so far: the number of the next push.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Whether the push of this number made this operation and it has not finished.
    pub fn is_live(&self, op: OpId, push: u64) -> bool {
        self.ops.get(op.0 as usize).is_some_and(|slot| slot.serial == push)
    }

    /// Finished writes and updates of a variable, whatever their outcome.
    pub fn version(&self, var: VarId) -> u64 {
        self.vars.get(var.0 as usize).map_or(0, |slot| slot.version)
    }

    /// The error that a read pushed now would meet if nothing else were pending.
    pub fn error(&self, var: VarId) -> Option<&E> {
        self.vars.get(var.0 as usize).and_then(|slot| slot.error.as_ref())
    }

    /// Whether an exclusive access is granted or waits.
    pub fn write_pending(&self, var: VarId) -> bool {
        self.vars.get(var.0 as usize).is_some_and(|slot| slot.exclusive || slot.head != NIL)
    }

    /// Whether any access is granted or waits.
    pub fn in_use(&self, var: VarId) -> bool {
        self.write_pending(var) || self.vars.get(var.0 as usize).is_some_and(|slot| slot.readers > 0)
    }

    /// The payload of an operation, unless it was taken.
    pub fn payload(&self, op: OpId) -> Option<&T> {
        self.ops.get(op.0 as usize).and_then(|slot| slot.payload.as_ref())
    }

    /// Whether an operation that was in [`Ready::run`] and has not been taken meets an error that came since. Then it must
    /// not run, and ends by itself.
    pub fn recall(&mut self, op: OpId, ready: &mut Ready<T, E>) -> bool {
        if self.observed_error(op.0).is_none() {
            return false;
        }
        let slot = &mut self.ops[op.0 as usize];
        slot.began = false;
        if slot.missing == 0 {
            self.ending.push(op.0);
            self.end_all(ready);
        }
        true
    }

    /// Moves the payload out; the operation stays until [`State::finish`].
    pub fn take(&mut self, op: OpId) -> Option<T> {
        self.ops.get_mut(op.0 as usize).and_then(|slot| slot.payload.take())
    }

    /// Adds an operation after all earlier ones.
    ///
    /// Accesses to one variable that stand in the list more than once are joined: a read and a
    /// write are an update. A variable comes into being with its first access.
    pub fn push(&mut self, accesses: &[VarAccess], payload: T, ready: &mut Ready<T, E>) -> OpId {
        let op = self.new_op(payload);
        let mut last = NIL;
        for access in accesses {
            last = self.request(op, *access, last);
        }
        if self.ops[op as usize].missing == 0 {
            self.granted(op, ready);
            self.end_all(ready);
        } else {
            accesses.iter().filter(|access| access.ahead).for_each(|access| self.clear(access.var.0));
            self.begin_cleared(ready);
        }
        self.pushed += 1;
        OpId(op)
    }

    /// An operation that was in [`Ready::run`] has enqueued its work: what streams order behind it may run.
    pub fn issue(&mut self, op: OpId, ready: &mut Ready<T, E>) {
        let mut next = self.ops[op.0 as usize].first;
        while next != NIL {
            let node = &mut self.nodes[next as usize];
            let (index, kind, first) = (node.var, node.kind, node.ahead && !node.issued);
            next = node.sibling;
            if first {
                node.issued = true;
                *self.vars[index as usize].open(kind) -= 1;
                self.clear(index);
            }
        }
        self.begin_cleared(ready);
    }

    /// Ends an operation that was in [`Ready::run`], and releases its accesses; if some are not granted yet, as soon as
    /// they are: then the result is false, and it comes to [`Ready::ended`].
    ///
    /// What it writes holds the error of `outcome` from now on, or none; or the error that it meets, if it ran ahead of
    /// that.
    pub fn finish(&mut self, op: OpId, outcome: Result<(), E>, ready: &mut Ready<T, E>) -> bool {
        let slot = &mut self.ops[op.0 as usize];
        slot.outcome = Some(outcome);
        slot.late = slot.missing > 0;
        if slot.late {
            return false;
        }
        self.ending.push(op.0);
        self.end_all(ready);
        true
    }

    /// Releases the operations that have run or met an error, and those that thereby meet it.
    fn end_all(&mut self, ready: &mut Ready<T, E>) {
        while let Some(op) = self.ending.pop() {
            let met = self.observed_error(op);
            let slot = &mut self.ops[op as usize];
            if slot.late {
                ready.ended.push(OpId(op));
            }
            let error = match (slot.outcome.take(), met) {
                (Some(_), Some(error)) => Some(error),
                (Some(outcome), None) => {
                    let own = outcome.err();
                    ready.failed.extend(own.clone());
                    own
                }
                (None, met) => {
                    ready.skipped.extend(slot.payload.take().zip(met.clone()));
                    met
                }
            };
            self.release(op, error, ready);
        }
        self.begin_cleared(ready);
    }

    /// Requests one access after `last`, the operation's access requested before.
    fn request(&mut self, op: u32, access: VarAccess, last: u32) -> u32 {
        let index = access.var.0 as usize;
        if index >= self.vars.len() {
            self.vars.resize_with(index + 1, VarSlot::new);
        }
        let push = self.pushed;
        if self.vars[index].last_push == push {
            self.join(op, access);
            return last;
        }
        let node = self.new_node(access, op);
        match last {
            NIL => self.ops[op as usize].first = node,
            last => self.nodes[last as usize].sibling = node,
        }
        let var = &mut self.vars[index];
        (var.last, var.last_push) = (node, push);
        if var.head != NIL || var.exclusive || (access.kind.exclusive() && var.readers > 0) {
            self.enqueue(index, node, op);
            return node;
        }
        if access.kind.exclusive() {
            var.exclusive = true;
        } else {
            var.readers += 1;
        }
        *var.open(access.kind) += 1;
        let node_slot = &mut self.nodes[node as usize];
        (node_slot.cleared, node_slot.granted) = (true, true);
        node
    }

    fn enqueue(&mut self, index: usize, node: u32, op: u32) {
        let var = &mut self.vars[index];
        match var.tail {
            NIL => var.head = node,
            tail => self.nodes[tail as usize].next = node,
        }
        var.tail = node;
        if var.uncleared == NIL {
            var.uncleared = node;
        }
        let slot = &mut self.ops[op as usize];
        (slot.missing, slot.uncleared) = (slot.missing + 1, slot.uncleared + 1);
    }

    /// Joins an access to the earlier one of the same operation to the same variable.
    fn join(&mut self, op: u32, access: VarAccess) {
        let index = access.var.0 as usize;
        let node = self.vars[index].last;
        let before = self.nodes[node as usize].kind;
        let kind = before.join(access.kind);
        self.nodes[node as usize].kind = kind;
        let var = &mut self.vars[index];
        if var.tail == node || before.exclusive() || !kind.exclusive() {
            return;
        }
        // It was granted as a read, so nothing waits.
        (var.readers, var.reading) = (var.readers - 1, var.reading - 1);
        if var.readers == 0 {
            (var.exclusive, var.writing) = (true, var.writing + 1);
            return;
        }
        let node_slot = &mut self.nodes[node as usize];
        (node_slot.cleared, node_slot.granted) = (false, false);
        self.enqueue(index, node, op);
    }

    /// Ends an operation and grants what waits for its variables.
    fn release(&mut self, op: u32, error: Option<E>, ready: &mut Ready<T, E>) {
        let mut node = self.ops[op as usize].first;
        self.free_op(op);
        self.live -= 1;
        while node != NIL {
            node = self.end_access(node, error.as_ref(), ready);
        }
    }

    /// Ends a granted access, leaves `error` in what it has written, and grants what waits. The operation's next access.
    #[inline(always)]
    fn end_access(&mut self, node: u32, error: Option<&E>, ready: &mut Ready<T, E>) -> u32 {
        let PendingOp { var: index, kind, sibling, issued, .. } = self.nodes[node as usize];
        self.free_node(node);
        let var = &mut self.vars[index as usize];
        *var.open(kind) -= u32::from(!issued);
        if !kind.exclusive() {
            var.readers -= 1;
            if var.readers == 0 && var.head != NIL {
                self.grant(index, ready);
            }
            self.clear(index);
            return sibling;
        }
        var.exclusive = false;
        match kind {
            AccessKind::Write | AccessKind::Update => {
                var.version += 1;
                if error.is_some() || var.error.is_some() {
                    self.failed += usize::from(error.is_some());
                    self.failed -= usize::from(var.error.is_some());
                    var.error = error.cloned();
                }
            }
            AccessKind::Delete => {
                self.failed -= usize::from(var.error.is_some());
                (var.version, var.error) = (0, None);
                ready.freed.push(VarId(index));
            }
            AccessKind::Read | AccessKind::Barrier => {}
        }
        if self.vars[index as usize].head != NIL {
            self.grant(index, ready);
            self.clear(index);
        }
        sibling
    }

    /// Grants the first waiting access of a variable nobody uses, and all following ones if it and
    /// they are reads.
    fn grant(&mut self, index: u32, ready: &mut Ready<T, E>) {
        loop {
            let var = &mut self.vars[index as usize];
            let node = var.head;
            if node == NIL {
                return;
            }
            let PendingOp { op, next, kind, cleared, .. } = self.nodes[node as usize];
            if kind.exclusive() {
                if var.readers > 0 {
                    return;
                }
                var.exclusive = true;
            } else {
                var.readers += 1;
            }
            var.head = next;
            if next == NIL {
                var.tail = NIL;
            }
            if !cleared {
                // All before it are granted and so were cleared.
                var.uncleared = next;
                *var.open(kind) += 1;
            }
            let slot = &mut self.ops[op as usize];
            slot.missing -= 1;
            slot.uncleared -= u32::from(!cleared);
            let (missing, uncleared) = (slot.missing, slot.uncleared);
            let node = &mut self.nodes[node as usize];
            (node.cleared, node.granted) = (true, true);
            if missing == 0 {
                self.granted(op, ready);
            } else if uncleared == 0 && !cleared {
                self.cleared.push(op);
            }
            if kind.exclusive() {
                return;
            }
        }
    }

    /// Clears the accesses of a variable, one after the other, that need wait no longer for those before them to be
    /// issued.
    #[inline]
    fn clear(&mut self, index: u32) {
        while self.vars[index as usize].uncleared != NIL {
            let var = &mut self.vars[index as usize];
            let node = &mut self.nodes[var.uncleared as usize];
            if !node.ahead || var.writing > 0 || (node.kind.exclusive() && var.reading > 0) {
                return;
            }
            node.cleared = true;
            var.uncleared = node.next;
            *var.open(node.kind) += 1;
            let op = node.op;
            let slot = &mut self.ops[op as usize];
            slot.uncleared -= 1;
            if slot.uncleared == 0 {
                self.cleared.push(op);
            }
        }
    }

    /// Operations whose accesses are all cleared run, unless there is an error that they will meet; when all that ends has
    /// ended, so that the error is there.
    #[inline]
    fn begin_cleared(&mut self, ready: &mut Ready<T, E>) {
        while let Some(op) = self.cleared.pop() {
            let slot = &self.ops[op as usize];
            // It may have been granted everything since, and even be over.
            if !slot.began && slot.serial != FINISHED && self.observed_error(op).is_none() {
                self.ops[op as usize].began = true;
                ready.run.push(OpId(op));
            }
        }
    }

    /// All accesses of an operation are granted: it runs if it has not begun, or meets an error.
    fn granted(&mut self, op: u32, ready: &mut Ready<T, E>) {
        let slot = &mut self.ops[op as usize];
        if slot.began {
            if slot.outcome.is_some() {
                self.ending.push(op);
            }
            return;
        }
        match self.observed_error(op) {
            None => {
                self.ops[op as usize].began = true;
                ready.run.push(OpId(op));
            }
            Some(_) => self.ending.push(op),
        }
    }

    /// The error of the first variable in the operation's list that holds one, of those whose accesses are granted.
    fn observed_error(&self, op: u32) -> Option<E> {
        if self.failed == 0 {
            return None;
        }
        let mut next = self.ops[op as usize].first;
        while next != NIL {
            let node = &self.nodes[next as usize];
            if node.granted
                && node.kind.observes()
                && let Some(error) = &self.vars[node.var as usize].error
            {
                return Some(error.clone());
            }
            next = node.sibling;
        }
        None
    }

    fn new_op(&mut self, payload: T) -> u32 {
        let (serial, payload) = (self.pushed, Some(payload));
        let (first, missing, uncleared) = (NIL, 0, 0);
        let new = OpSlot { first, missing, uncleared, began: false, outcome: None, late: false, serial, payload };
        self.live += 1;
        if self.free_op == NIL {
            self.ops.push(new);
            return slot_number(self.ops.len() - 1);
        }
        let op = self.free_op;
        let slot = &mut self.ops[op as usize];
        self.free_op = slot.first;
        *slot = new;
        op
    }

    fn free_op(&mut self, op: u32) {
        let slot = &mut self.ops[op as usize];
        slot.payload = None;
        slot.serial = FINISHED;
        slot.first = self.free_op;
        self.free_op = op;
    }

    fn new_node(&mut self, access: VarAccess, op: u32) -> u32 {
        let VarAccess { var, kind, ahead } = access;
        let (cleared, granted, issued) = (false, false, false);
        let node = PendingOp { var: var.0, op, next: NIL, sibling: NIL, kind, ahead, cleared, granted, issued };
        if self.free_node == NIL {
            self.nodes.push(node);
            return slot_number(self.nodes.len() - 1);
        }
        let index = self.free_node;
        let slot = &mut self.nodes[index as usize];
        self.free_node = slot.sibling;
        *slot = node;
        index
    }

    fn free_node(&mut self, index: u32) {
        let slot = &mut self.nodes[index as usize];
        slot.sibling = self.free_node;
        self.free_node = index;
    }
}

impl<T, E: Clone> Default for State<T, E> {
    fn default() -> State<T, E> {
        State::new()
    }
}

/// A slot needs tens of bytes, so memory ends long before the numbers do.
#[inline]
fn slot_number(index: usize) -> u32 {
    index as u32
}
