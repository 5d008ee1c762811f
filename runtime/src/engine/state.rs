//! The dependency rules: variables with queues of accesses, operations that wait for them.
//!
//! A pure state machine. It knows no threads, locks, clocks or closures; it is told what was pushed
//! and what finished, and answers what may run. Each variable has any number of running readers or
//! one running exclusive access, and a first-in-first-out queue of accesses that wait. Completing an
//! exclusive access grants the run of reads that follows, or the next exclusive access.
//!
//! All records live in slabs whose free slots are reused last-in-first-out, and queues are links in
//! the records, so that a machine that has reached its largest size allocates nothing.

/// No slot.
const NIL: u32 = u32::MAX;

/// Number of a variable; numbers of deleted variables are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(pub u32);

/// Number of an operation that has not finished; numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// What an operation does with a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Shared with other reads. An operation that reads an error does not run.
    Read,
    /// Pure overwrite: runs whatever the variable held, and success clears an error.
    Write,
    /// Read-modify-write: as a read and a write.
    Update,
    /// Waits for all uses and changes nothing; meets the error of the variable as a read does.
    Barrier,
    /// Ends the variable, with or without an error.
    Delete,
}

impl AccessKind {
    #[inline]
    fn exclusive(self) -> bool {
        self != AccessKind::Read
    }

    /// Whether an error of the variable stops the operation.
    #[inline]
    fn observes(self) -> bool {
        matches!(self, AccessKind::Read | AccessKind::Update | AccessKind::Barrier)
    }

    /// The one access that stands for two of the same operation to the same variable.
    fn join(self, other: AccessKind) -> AccessKind {
        match (self, other) {
            (a, b) if a == b => a,
            (AccessKind::Delete, _) | (_, AccessKind::Delete) => AccessKind::Delete,
            (AccessKind::Barrier, AccessKind::Read) | (AccessKind::Read, AccessKind::Barrier) => AccessKind::Barrier,
            _ => AccessKind::Update,
        }
    }
}

/// One entry of an operation's list of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub var: VarId,
    pub kind: AccessKind,
}

#[derive(Clone, Hash)]
struct Node {
    var: u32,
    op: u32,
    /// Next in the queue of the variable.
    next: u32,
    /// Next access of the operation; next free slot.
    sibling: u32,
    kind: AccessKind,
}

#[derive(Clone, Hash)]
struct VarSlot<E> {
    /// Ends of the queue of waiting accesses.
    head: u32,
    tail: u32,
    readers: u32,
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
    fn new() -> VarSlot<E> {
        VarSlot {
            head: NIL,
            tail: NIL,
            readers: 0,
            last: NIL,
            last_push: FINISHED,
            exclusive: false,
            version: 0,
            error: None,
        }
    }
}

#[derive(Clone, Hash)]
struct OpSlot<T> {
    /// First access; next free slot.
    first: u32,
    /// Accesses not granted yet.
    missing: u32,
    /// Number of the push, or [`FINISHED`].
    serial: u64,
    payload: Option<T>,
}

const FINISHED: u64 = u64::MAX;

/// What became possible. Entries are appended; the caller removes them.
pub struct Ready<T, E> {
    /// Operations whose accesses are all granted, in the order in which that happened.
    pub run: Vec<OpId>,
    /// Operations that met an error and are finished with it: they must not run.
    pub skipped: Vec<(T, E)>,
    /// Variables whose numbers may be used again.
    pub freed: Vec<VarId>,
}

impl<T, E> Ready<T, E> {
    pub fn new() -> Ready<T, E> {
        Ready { run: Vec::new(), skipped: Vec::new(), freed: Vec::new() }
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
    ops: Vec<OpSlot<T>>,
    nodes: Vec<Node>,
    free_op: u32,
    free_node: u32,
    /// Operations pushed so far.
    pushed: u64,
    /// Operations pushed and not finished.
    live: usize,
    /// Variables that hold an error.
    failed: usize,
    /// Operations that met an error and whose accesses are still to be released.
    skipping: Vec<(u32, E)>,
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
            skipping: Vec::new(),
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

    /// Moves the payload out; the operation stays until [`State::finish`].
    pub fn take(&mut self, op: OpId) -> Option<T> {
        self.ops.get_mut(op.0 as usize).and_then(|slot| slot.payload.take())
    }

    /// Adds an operation after all earlier ones.
    ///
    /// Accesses to one variable that stand in the list more than once are joined: a read and a
    /// write are an update. A variable comes into being with its first access.
    pub fn push(&mut self, accesses: &[Access], payload: T, ready: &mut Ready<T, E>) -> OpId {
        let op = self.new_op(payload);
        let mut last = NIL;
        for access in accesses {
            last = self.request(op, *access, last);
        }
        if self.ops[op as usize].missing == 0 {
            self.granted(op, ready);
            self.skip_all(ready);
        }
        self.pushed += 1;
        OpId(op)
    }

    /// Ends an operation that was in [`Ready::run`], and releases its accesses.
    ///
    /// What it writes holds the error of `outcome` from now on, or none.
    pub fn finish(&mut self, op: OpId, outcome: Result<(), E>, ready: &mut Ready<T, E>) {
        self.release(op.0, outcome.err(), ready);
        self.skip_all(ready);
    }

    /// Releases the operations that met an error, and those that thereby meet it.
    fn skip_all(&mut self, ready: &mut Ready<T, E>) {
        while let Some((op, error)) = self.skipping.pop() {
            if let Some(payload) = self.ops[op as usize].payload.take() {
                ready.skipped.push((payload, error.clone()));
            }
            self.release(op, Some(error), ready);
        }
    }

    /// Requests one access after `last`, the operation's access requested before.
    fn request(&mut self, op: u32, access: Access, last: u32) -> u32 {
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
        } else if access.kind.exclusive() {
            var.exclusive = true;
        } else {
            var.readers += 1;
        }
        node
    }

    fn enqueue(&mut self, index: usize, node: u32, op: u32) {
        let var = &mut self.vars[index];
        match var.tail {
            NIL => var.head = node,
            tail => self.nodes[tail as usize].next = node,
        }
        var.tail = node;
        self.ops[op as usize].missing += 1;
    }

    /// Joins an access to the earlier one of the same operation to the same variable.
    fn join(&mut self, op: u32, access: Access) {
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
        var.readers -= 1;
        match var.readers {
            0 => var.exclusive = true,
            _ => self.enqueue(index, node, op),
        }
    }

    /// Ends an operation and grants what waits for its variables.
    fn release(&mut self, op: u32, error: Option<E>, ready: &mut Ready<T, E>) {
        let mut node = self.ops[op as usize].first;
        self.free_op(op);
        self.live -= 1;
        while node != NIL {
            let Node { var: index, kind, sibling, .. } = self.nodes[node as usize];
            self.free_node(node);
            node = sibling;
            let var = &mut self.vars[index as usize];
            if !kind.exclusive() {
                var.readers -= 1;
                if var.readers == 0 && var.head != NIL {
                    self.grant(index, ready);
                }
                continue;
            }
            var.exclusive = false;
            match kind {
                AccessKind::Write | AccessKind::Update => {
                    var.version += 1;
                    if error.is_some() || var.error.is_some() {
                        self.failed += usize::from(error.is_some());
                        self.failed -= usize::from(var.error.is_some());
                        var.error.clone_from(&error);
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
            }
        }
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
            let Node { op, next, kind, .. } = self.nodes[node as usize];
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
            let slot = &mut self.ops[op as usize];
            slot.missing -= 1;
            if slot.missing == 0 {
                self.granted(op, ready);
            }
            if kind.exclusive() {
                return;
            }
        }
    }

    /// All accesses of an operation are granted: it runs, or meets an error.
    fn granted(&mut self, op: u32, ready: &mut Ready<T, E>) {
        match self.observed_error(op) {
            None => ready.run.push(OpId(op)),
            Some(error) => self.skipping.push((op, error)),
        }
    }

    /// The error of the first variable in the operation's list that holds one.
    fn observed_error(&self, op: u32) -> Option<E> {
        if self.failed == 0 {
            return None;
        }
        let mut next = self.ops[op as usize].first;
        while next != NIL {
            let node = &self.nodes[next as usize];
            if node.kind.observes()
                && let Some(error) = &self.vars[node.var as usize].error
            {
                return Some(error.clone());
            }
            next = node.sibling;
        }
        None
    }

    fn new_op(&mut self, payload: T) -> u32 {
        let new = OpSlot { first: NIL, missing: 0, serial: self.pushed, payload: Some(payload) };
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

    fn new_node(&mut self, access: Access, op: u32) -> u32 {
        let node = Node { var: access.var.0, op, next: NIL, sibling: NIL, kind: access.kind };
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

/// The accesses with one for each variable, which mean the same.
pub fn joined(accesses: impl Iterator<Item = Access>) -> Box<[Access]> {
    let mut joined: Vec<Access> = Vec::new();
    for access in accesses {
        match joined.iter_mut().find(|earlier| earlier.var == access.var) {
            Some(earlier) => earlier.kind = earlier.kind.join(access.kind),
            None => joined.push(access),
        }
    }
    joined.into()
}
