//! The rules of the engine, stated without regard to how it keeps them.

use tensorc_runtime::engine::state::{AccessKind, VarAccess, VarId};

pub const MAX_OPS: usize = 4;
pub const MAX_VARS: usize = 3;

/// An operation of the programs, with what the rules need to know about it.
#[derive(Clone)]
pub struct OpSpec {
    pub list: Vec<VarAccess>,
    /// One access for each variable, in the order of the first mentions, in which errors are looked
    /// for.
    pub joined: Vec<VarAccess>,
    /// Variables accessed, and those accessed exclusively, as bits.
    pub used: u32,
    pub exclusive: u32,
    /// Variables on which streams order the operation.
    pub ahead: u32,
}

fn is_exclusive(kind: AccessKind) -> bool {
    kind != AccessKind::Read
}

/// What a list that mentions a variable several times means.
fn join(kinds: &[AccessKind]) -> AccessKind {
    let any = |kind| kinds.contains(&kind);
    let all = |kind| kinds.iter().all(|&k| k == kind);
    match () {
        () if any(AccessKind::Delete) => AccessKind::Delete,
        () if all(AccessKind::Read) => AccessKind::Read,
        () if all(AccessKind::Write) => AccessKind::Write,
        () if any(AccessKind::Write) || any(AccessKind::Update) => AccessKind::Update,
        () => AccessKind::Barrier,
    }
}

impl OpSpec {
    pub fn new(list: Vec<VarAccess>) -> OpSpec {
        let mut order: Vec<VarId> = vec![];
        for access in &list {
            if !order.contains(&access.var) {
                order.push(access.var);
            }
        }
        let kinds = |var| list.iter().filter(|a| a.var == var).map(|a| a.kind).collect::<Vec<_>>();
        let joined: Vec<VarAccess> = order.iter().map(|&var| VarAccess::new(var, join(&kinds(var)))).collect();
        let bits = |keep: fn(AccessKind) -> bool| {
            joined.iter().filter(|access| keep(access.kind)).fold(0, |bits, access| bits | 1 << access.var.0)
        };
        let (used, exclusive) = (bits(|_| true), bits(is_exclusive));
        let ahead = list.iter().filter(|access| access.ahead).fold(0, |bits, access| bits | 1 << access.var.0);
        OpSpec { list, joined, used, exclusive, ahead }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Unpushed,
    Waiting,
    Granted,
    Started,
    /// Finished while an earlier one is not.
    Reported,
    Done,
}

/// The rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    pub phases: [Phase; MAX_OPS],
    pub issued: [bool; MAX_OPS],
    /// Variables that each operation gave up before it finished, as bits.
    pub released: [u32; MAX_OPS],
    /// Whether those reported have failed.
    pub fails: [bool; MAX_OPS],
    /// The operation whose error each variable holds.
    pub errors: [Option<u8>; MAX_VARS],
    pub versions: [u8; MAX_VARS],
}

/// What an event must cause.
#[derive(Default)]
pub struct Expected {
    pub granted: u32,
    pub skipped: [Option<u8>; MAX_OPS],
    /// Operations that end with an error of their own.
    pub failed: u32,
    /// Operations that end after they finished.
    pub ended: u32,
    pub freed: [u8; MAX_VARS],
}

impl Rules {
    pub fn new() -> Rules {
        Rules {
            phases: [Phase::Unpushed; MAX_OPS],
            issued: [false; MAX_OPS],
            released: [0; MAX_OPS],
            fails: [false; MAX_OPS],
            errors: [None; MAX_VARS],
            versions: [0; MAX_VARS],
        }
    }

    pub fn unfinished(&self, op: usize) -> bool {
        !matches!(self.phases[op], Phase::Unpushed | Phase::Done)
    }

    /// Ends an operation: what it writes holds `error`.
    pub fn end(&mut self, program: &[&OpSpec], op: usize, error: Option<u8>, expected: &mut Expected) {
        self.phases[op] = Phase::Done;
        for access in &program[op].joined {
            let var = access.var.0 as usize;
            match access.kind {
                _ if self.released[op] >> var & 1 == 1 => {}
                AccessKind::Read | AccessKind::Barrier => {}
                AccessKind::Write | AccessKind::Update => {
                    self.errors[var] = error;
                    self.versions[var] += 1;
                }
                AccessKind::Delete => {
                    (self.errors[var], self.versions[var]) = (None, 0);
                    expected.freed[var] += 1;
                }
            }
        }
    }

    /// Gives up a variable of an operation that runs, if it overwrites it and nothing can keep the operation from having
    /// run.
    pub fn release(&mut self, program: &[&OpSpec], op: usize, var: u32) -> bool {
        let writes = |access: &VarAccess| (access.var.0, access.kind) == (var, AccessKind::Write);
        let releases = program[op].joined.iter().any(writes)
            && self.released[op] >> var & 1 == 0
            && self.granted(program, op) == program[op].used
            && self.met(program, op).is_none();
        if releases {
            self.released[op] |= 1 << var;
            self.errors[var as usize] = None;
            self.versions[var as usize] += 1;
        }
        releases
    }

    /// Variables that an unfinished operation uses still, and those that it uses exclusively.
    pub fn held(&self, program: &[&OpSpec], op: usize) -> (u32, u32) {
        (program[op].used & !self.released[op], program[op].exclusive & !self.released[op])
    }

    /// Variables of an operation on which no earlier unfinished one conflicts with it.
    pub fn granted(&self, program: &[&OpSpec], op: usize) -> u32 {
        let this = program[op];
        (0..op).filter(|earlier| self.unfinished(*earlier)).fold(this.used, |free, earlier| {
            let (used, exclusive) = self.held(program, earlier);
            free & !(this.exclusive & used) & !(this.used & exclusive)
        })
    }

    /// Those, and the variables on which every earlier unfinished one that conflicts is issued, one after the other.
    pub fn cleared(&self, program: &[&OpSpec], op: usize) -> u32 {
        let this = program[op];
        let waits = (0..op).filter(|earlier| self.unfinished(*earlier)).fold(0, |waits, earlier| {
            let (used, exclusive) = self.held(program, earlier);
            let conflicts = this.exclusive & used | this.used & exclusive;
            let passed = if self.issued[earlier] { program[earlier].ahead } else { 0 };
            waits | conflicts & !passed | used & !self.cleared(program, earlier)
        });
        self.granted(program, op) | this.ahead & !waits
    }

    /// The error that an operation meets in the first of its variables that are granted and hold one.
    pub fn met(&self, program: &[&OpSpec], op: usize) -> Option<u8> {
        let granted = self.granted(program, op);
        let observes = |kind| matches!(kind, AccessKind::Read | AccessKind::Update | AccessKind::Barrier);
        let mut observed = program[op].joined.iter().filter(|a| granted >> a.var.0 & 1 == 1 && observes(a.kind));
        observed.find_map(|access| self.errors[access.var.0 as usize])
    }

    /// Grants what can run, and ends what meets an error instead, or has run.
    pub fn settle(&mut self, program: &[&OpSpec], expected: &mut Expected) {
        // Only later operations depend on an ended one, so one pass reaches all.
        for op in 0..program.len() {
            let granted = self.granted(program, op) == program[op].used;
            let met = self.met(program, op);
            match self.phases[op] {
                Phase::Waiting if granted && met.is_some() => {
                    expected.skipped[op] = met;
                    self.end(program, op, met, expected);
                }
                Phase::Waiting if met.is_none() && self.cleared(program, op) == program[op].used => {
                    self.phases[op] = Phase::Granted;
                    expected.granted |= 1 << op;
                }
                Phase::Reported if granted => {
                    let own = (self.fails[op] && met.is_none()).then_some(op as u8);
                    expected.failed |= u32::from(own.is_some()) << op;
                    expected.ended |= 1 << op;
                    self.end(program, op, met.or(own), expected);
                }
                _ => {}
            }
        }
    }
}
