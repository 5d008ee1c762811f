//! Explores everything that the engine's dependency rules can be asked to do, within small bounds.
//!
//! Threads that push and workers that finish reach the state machine one after the other, under a
//! lock. So whatever threads do, the machine sees one sequence of pushes, starts and finishes, and
//! the interleavings of all programs of N operations on any number of threads are the sequences of
//! N operations together with all places where they may start and finish, with or without an error.
//! These are enumerated, programs up to renaming of variables. A state that the same program was in
//! before is not left again on the same ways.
//!
//! After each event the machine is compared with rules stated independently (`engine_rules`): an operation runs
//! exactly when no earlier unfinished one conflicts with it, and what a variable holds is what the
//! operations in the order of pushing leave. Operations that are ordered on streams run when the earlier
//! ones are issued, and change nothing of the rest. Operations that run may give up what they have overwritten.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/engine_rules.rs"]
mod engine_rules;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine_rules::{Expected, MAX_OPS, MAX_VARS, OpSpec, Phase, Rules};
use tensorc_runtime::engine::state::{AccessKind, OpId, Ready, State, VarAccess, VarId};

/// A machine and the rules, in step.
#[derive(Clone, Hash)]
struct Pair {
    machine: State<u8, u8>,
    rules: Rules,
    ids: [OpId; MAX_OPS],
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Push,
    Start(usize),
    Issue(usize),
    Release { op: usize, var: u32 },
    Finish { op: usize, fails: bool },
}

impl Pair {
    fn new() -> Pair {
        Pair { machine: State::new(), rules: Rules::new(), ids: [OpId(0); MAX_OPS] }
    }

    /// Does `event` on both sides and compares.
    fn step(&mut self, program: &[&OpSpec], event: Event, ready: &mut Ready<u8, u8>) {
        let (mut expected, mut over) = (Expected::default(), false);
        match event {
            Event::Push => {
                let op = program.len() - 1;
                self.rules.phases[op] = Phase::Waiting;
                assert_eq!(self.machine.pushed(), op as u64);
                self.ids[op] = self.machine.push(&program[op].list, op as u8, ready);
            }
            Event::Start(op) => {
                // An error may have come since it was granted.
                let recalled = self.rules.met(program, op).is_some();
                self.rules.phases[op] = if recalled { Phase::Waiting } else { Phase::Started };
                assert_eq!(self.machine.recall(self.ids[op], ready), recalled);
                if !recalled {
                    assert_eq!(self.machine.take(self.ids[op]), Some(op as u8));
                }
            }
            Event::Issue(op) => {
                self.rules.issued[op] = true;
                self.machine.issue(self.ids[op], ready);
            }
            Event::Release { op, var } => {
                let released = self.machine.release_early(self.ids[op], VarId(var), ready);
                assert_eq!(released, self.rules.release(program, op, var), "variable {var} of operation {op}");
            }
            Event::Finish { op, fails } => {
                (self.rules.phases[op], self.rules.fails[op]) = (Phase::Reported, fails);
                over = self.machine.finish(self.ids[op], if fails { Err(op as u8) } else { Ok(()) }, ready);
            }
        }
        self.rules.settle(program, &mut expected);
        if let Event::Finish { op, .. } = event {
            assert_eq!(over, self.rules.phases[op] == Phase::Done);
            expected.ended &= !(1 << op);
        }
        self.compare_ready(&expected, ready);
        self.compare_state(program);
    }

    fn compare_ready(&self, expected: &Expected, ready: &mut Ready<u8, u8>) {
        let mut granted = 0;
        for id in ready.run.drain(..) {
            let op = *self.machine.payload(id).unwrap();
            assert_eq!((id, granted & 1 << op), (self.ids[op as usize], 0), "granted twice");
            granted |= 1 << op;
        }
        assert_eq!(granted, expected.granted, "operations granted, as bits");
        let mut skipped = [None; MAX_OPS];
        for (op, error) in ready.skipped.drain(..) {
            assert_eq!(skipped[op as usize].replace(error), None, "skipped twice");
        }
        assert_eq!(skipped, expected.skipped, "operations skipped, with the error they met");
        let failed = ready.failed.drain(..).fold(0, |bits, op| bits | 1 << op);
        assert_eq!(failed, expected.failed, "operations that failed, as bits");
        // Numbers are used again, so the last one counts.
        let number = |id: OpId| {
            let is_it = |op: &usize| self.rules.phases[*op] != Phase::Unpushed && self.ids[*op] == id;
            (0..MAX_OPS).rev().find(is_it).unwrap()
        };
        let ended = ready.ended.drain(..).fold(0, |bits, id| bits | 1 << number(id));
        assert_eq!(ended, expected.ended, "operations that ended, as bits");
        let mut freed = [0; MAX_VARS];
        ready.freed.drain(..).for_each(|var| freed[var.0 as usize] += 1);
        assert_eq!(freed, expected.freed, "variables deleted");
    }

    fn compare_state(&self, program: &[&OpSpec]) {
        let unfinished = |op: &usize| self.rules.unfinished(*op);
        let live = (0..program.len()).filter(unfinished).count();
        assert_eq!(self.machine.live(), live);
        let active = |phase: &Phase| matches!(phase, Phase::Granted | Phase::Started);
        assert!(live == 0 || self.rules.phases.iter().any(active), "nothing can run");
        let held = (0..program.len()).filter(unfinished).map(|op| self.rules.held(program, op));
        let (used, exclusive) = held.fold((0, 0), |(a, b), (used, exclusive)| (a | used, b | exclusive));
        for var in 0..MAX_VARS {
            let id = VarId(var as u32);
            let machine = &self.machine;
            let found =
                (machine.error(id).copied(), machine.version(id), machine.write_pending(id), machine.in_use(id));
            let (error, version) = (self.rules.errors[var], u64::from(self.rules.versions[var]));
            assert_eq!(found, (error, version, exclusive >> var & 1 == 1, used >> var & 1 == 1), "variable {var}");
        }
        for op in 0..program.len() {
            assert_eq!(self.machine.is_live(self.ids[op], op as u64), self.rules.unfinished(op));
        }
    }
}

/// Multiply and rotate: the keys are states of programs, not chosen by an adversary.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let x = (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ x >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u8(&mut self, x: u8) {
        self.write_u64(u64::from(x));
    }

    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }

    fn write_usize(&mut self, x: usize) {
        self.write_u64(x as u64);
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Bounds of an exploration.
struct Bounds {
    ops: usize,
    vars: u32,
    kinds: &'static [AccessKind],
    /// Longest list of accesses.
    mentions: usize,
    /// Lists may mention a variable twice; otherwise each list is in the order of the variables.
    duplicates: bool,
    /// Variables that streams order, as bits; operations that use them are of both kinds.
    streams: u32,
    /// Starting is an event of its own.
    starts: bool,
    /// Running operations give up variables; that they may not is tried as well.
    releases: bool,
    /// States with different free slots and links are different, not only those in which different
    /// operations are finished or variables hold something else.
    slots: bool,
}

const ALL_KINDS: &[AccessKind] =
    &[AccessKind::Read, AccessKind::Write, AccessKind::Update, AccessKind::Barrier, AccessKind::Delete];

impl Bounds {
    fn menu(&self) -> Vec<OpSpec> {
        let mut lists: Vec<Vec<VarAccess>> = vec![vec![]];
        let mut begin = 0;
        for _ in 0..self.mentions {
            let end = lists.len();
            for i in begin..end {
                let first = match lists[i].last() {
                    Some(last) if !self.duplicates => last.var.0 + 1,
                    _ => 0,
                };
                for var in (first..self.vars).map(VarId) {
                    for &kind in self.kinds {
                        let mut list = lists[i].clone();
                        list.push(VarAccess::new(var, kind));
                        lists.push(list);
                    }
                }
            }
            begin = end;
        }
        let on_streams = |list: &Vec<VarAccess>| {
            let ahead = |access: &VarAccess| VarAccess { ahead: self.streams >> access.var.0 & 1 == 1, ..*access };
            let list: Vec<VarAccess> = list.iter().map(ahead).collect();
            list.iter().any(|access| access.ahead).then_some(list)
        };
        let others: Vec<Vec<VarAccess>> = lists.iter().filter_map(on_streams).collect();
        lists.into_iter().skip(1).chain(others).map(OpSpec::new).collect()
    }
}

fn permutations(n: u32) -> Vec<Vec<u32>> {
    let mut found = vec![vec![]];
    for next in 0..n {
        let longer = found.iter().flat_map(|p: &Vec<u32>| {
            (0..=p.len()).map(|at| {
                let mut p = p.clone();
                p.insert(at, next);
                p
            })
        });
        found = longer.collect();
    }
    found
}

/// For every renaming of the variables, the number in the menu of each renamed operation.
fn renamings(bounds: &Bounds, menu: &[OpSpec]) -> Vec<Vec<usize>> {
    type Key = Vec<(u32, AccessKind, bool)>;
    let key = |op: &OpSpec, name: &dyn Fn(u32) -> u32| -> Key {
        op.list.iter().map(|a| (name(a.var.0), a.kind, a.ahead)).collect()
    };
    let numbers: std::collections::HashMap<Key, usize> =
        menu.iter().enumerate().map(|(i, op)| (key(op, &|var| var), i)).collect();
    let keeps = |permutation: &Vec<u32>| {
        let on_streams = |var: u32| bounds.streams >> var & 1;
        permutation.iter().zip(0..).all(|(new, old)| on_streams(*new) == on_streams(old))
    };
    let rename = |permutation: Vec<u32>| {
        let renamed = menu.iter().map(|op| {
            let mut list = key(op, &|var| permutation[var as usize]);
            if !bounds.duplicates {
                list.sort_by_key(|(var, ..)| *var);
            }
            numbers[&list]
        });
        renamed.collect()
    };
    permutations(bounds.vars).into_iter().filter(keeps).map(rename).collect()
}

#[derive(Default)]
struct Found {
    programs: u64,
    states: u64,
    events: u64,
}

struct Search<'a> {
    bounds: &'a Bounds,
    menu: &'a [OpSpec],
    renamings: &'a [Vec<usize>],
    ready: Ready<u8, u8>,
    seen: HashSet<u64, BuildHasherDefault<Mix>>,
    found: Found,
}

impl Search<'_> {
    /// Whether no renaming of variables gives a sequence that is enumerated earlier.
    fn is_first(&self, sequence: &[usize]) -> bool {
        self.renamings.iter().all(|renamed| sequence.iter().map(|&op| renamed[op]).ge(sequence.iter().copied()))
    }

    /// Explores the programs that begin with `sequence`, from all states it can be in.
    fn extend(&mut self, sequence: &mut Vec<usize>, states: &[Pair]) {
        let choices = if sequence.len() == self.bounds.ops { 0..0 } else { 0..self.menu.len() };
        for op in choices {
            sequence.push(op);
            if self.is_first(sequence) {
                let next = self.reach(sequence, states);
                self.extend(sequence, &next);
            }
            sequence.pop();
        }
    }

    /// All states after the last operation of `sequence` is pushed in one of `before`.
    fn reach(&mut self, sequence: &[usize], before: &[Pair]) -> Vec<Pair> {
        let program: Vec<&OpSpec> = sequence.iter().map(|&op| &self.menu[op]).collect();
        let mut states: Vec<Pair> = vec![];
        self.seen.clear();
        for pair in before {
            self.arrive(pair.clone(), &program, Event::Push, &mut states);
        }
        let mut next = 0;
        while next < states.len() {
            for op in 0..program.len() {
                let startable = if self.bounds.starts { Phase::Started } else { Phase::Granted };
                let phase = states[next].rules.phases[op];
                if phase == startable && program[op].ahead != 0 && !states[next].rules.issued[op] {
                    self.arrive(states[next].clone(), &program, Event::Issue(op), &mut states);
                }
                if phase == startable && self.bounds.releases {
                    for var in 0..self.bounds.vars {
                        self.arrive(states[next].clone(), &program, Event::Release { op, var }, &mut states);
                    }
                }
                if phase == startable {
                    let outcomes = if program[op].exclusive == 0 { &[false][..] } else { &[false, true] };
                    for &fails in outcomes {
                        self.arrive(states[next].clone(), &program, Event::Finish { op, fails }, &mut states);
                    }
                } else if phase == Phase::Granted {
                    self.arrive(states[next].clone(), &program, Event::Start(op), &mut states);
                }
            }
            next += 1;
        }
        self.found.programs += 1;
        self.found.states += states.len() as u64;
        states
    }

    fn arrive(&mut self, mut pair: Pair, program: &[&OpSpec], event: Event, states: &mut Vec<Pair>) {
        let ready = &mut self.ready;
        pair.step(program, event, ready);
        self.found.events += 1;
        let mut hasher = Mix::default();
        match self.bounds.slots {
            true => pair.hash(&mut hasher),
            false => pair.rules.hash(&mut hasher),
        }
        if self.seen.insert(hasher.finish()) {
            states.push(pair);
        }
    }
}

/// Explores on all processors, divided by the first operation.
fn explore(bounds: &Bounds) {
    assert!(bounds.ops <= MAX_OPS && bounds.vars as usize <= MAX_VARS);
    let menu = bounds.menu();
    let renamings = renamings(bounds, &menu);
    let next = AtomicUsize::new(0);
    let work = || {
        let seen = HashSet::default();
        let found = Found::default();
        let mut search = Search { bounds, menu: &menu, renamings: &renamings, ready: Ready::new(), seen, found };
        loop {
            let first = next.fetch_add(1, Ordering::Relaxed);
            if first >= menu.len() {
                return search.found;
            }
            if search.is_first(&[first]) {
                let states = search.reach(&[first], &[Pair::new()]);
                search.extend(&mut vec![first], &states);
            }
        }
    };
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..tensorc_runtime::available_threads()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(Found::default(), |a, b| Found {
            programs: a.programs + b.programs,
            states: a.states + b.states,
            events: a.events + b.events,
        })
    });
    println!(
        "{} operations over {} variables, {} different: {} programs, {} states, {} events",
        bounds.ops,
        bounds.vars,
        menu.len(),
        found.programs,
        found.states,
        found.events
    );
    assert!(found.states > found.programs);
}

/// Reads, writes and updates: all programs of four operations over three variables.
#[test]
fn four_operations_over_three_variables() {
    const KINDS: &[AccessKind] = &[AccessKind::Read, AccessKind::Write, AccessKind::Update];
    explore(&Bounds {
        ops: 4,
        vars: 3,
        kinds: KINDS,
        mentions: 3,
        duplicates: false,
        streams: 0,
        starts: false,
        releases: false,
        slots: false,
    });
}

/// With barriers and deletions, and variables that come to life again.
#[test]
fn four_operations_of_all_kinds_over_two_variables() {
    explore(&Bounds {
        ops: 4,
        vars: 2,
        kinds: ALL_KINDS,
        mentions: 2,
        duplicates: false,
        streams: 0,
        starts: false,
        releases: false,
        slots: false,
    });
}

#[test]
fn three_operations_of_all_kinds_over_three_variables() {
    explore(&Bounds {
        ops: 3,
        vars: 3,
        kinds: ALL_KINDS,
        mentions: 3,
        duplicates: false,
        streams: 0,
        starts: false,
        releases: false,
        slots: false,
    });
}

/// Lists that mention a variable up to three times, in any order.
#[test]
fn two_operations_with_duplicates() {
    explore(&Bounds {
        ops: 2,
        vars: 2,
        kinds: ALL_KINDS,
        mentions: 3,
        duplicates: true,
        streams: 0,
        starts: false,
        releases: false,
        slots: true,
    });
}

#[test]
fn three_operations_with_duplicates() {
    explore(&Bounds {
        ops: 3,
        vars: 2,
        kinds: ALL_KINDS,
        mentions: 2,
        duplicates: true,
        streams: 0,
        starts: false,
        releases: false,
        slots: true,
    });
}

/// Starting as an event of its own, at any time between grant and finish.
#[test]
fn operations_start_late() {
    explore(&Bounds {
        ops: 3,
        vars: 2,
        kinds: ALL_KINDS,
        mentions: 2,
        duplicates: false,
        streams: 0,
        starts: true,
        releases: true,
        slots: true,
    });
}

/// Operations on streams and others, over variables of both kinds.
#[test]
fn three_operations_over_variables_that_streams_order() {
    use AccessKind::{Delete, Read, Update, Write};
    for (streams, kinds) in [(0b01, &[Read, Update, Delete]), (0b11, &[Read, Write, Update])] {
        let (ops, vars, mentions, duplicates) = (3, 2, 2, false);
        explore(&Bounds {
            ops,
            vars,
            kinds,
            mentions,
            duplicates,
            streams,
            starts: false,
            releases: false,
            slots: false,
        });
    }
}

#[test]
fn four_operations_over_a_variable_that_streams_order() {
    let (ops, vars, mentions, duplicates, streams) = (4, 1, 1, false, 1);
    explore(&Bounds {
        ops,
        vars,
        kinds: ALL_KINDS,
        mentions,
        duplicates,
        streams,
        starts: false,
        releases: false,
        slots: true,
    });
}

#[test]
fn four_reads_and_writes_over_variables_that_streams_order() {
    let (ops, vars, mentions, duplicates, streams) = (4, 2, 2, false, 0b11);
    let kinds = &[AccessKind::Read, AccessKind::Write];
    explore(&Bounds { ops, vars, kinds, mentions, duplicates, streams, starts: false, releases: false, slots: false });
}

/// Starting late, when an error may have come, and lists that mention a variable twice.
#[test]
fn operations_on_streams_start_late() {
    let (ops, vars, mentions, duplicates, streams) = (3, 1, 2, true, 1);
    let kinds = &[AccessKind::Read, AccessKind::Write, AccessKind::Update];
    explore(&Bounds { ops, vars, kinds, mentions, duplicates, streams, starts: true, releases: true, slots: true });
}

/// Operations that give up what they have overwritten, one variable after the other.
#[test]
fn three_operations_that_give_up_variables() {
    let (mentions, duplicates, streams) = (2, false, 0);
    for (ops, vars, kinds) in [(3, 2, ALL_KINDS), (3, 3, &[AccessKind::Read, AccessKind::Write])] {
        explore(&Bounds {
            ops,
            vars,
            kinds,
            mentions,
            duplicates,
            streams,
            starts: false,
            releases: true,
            slots: true,
        });
    }
}

#[test]
fn four_operations_that_give_up_variables() {
    let (ops, vars, mentions, duplicates, streams) = (4, 2, 2, false, 0);
    let kinds = &[AccessKind::Read, AccessKind::Write];
    let (starts, releases, slots) = (false, true, false);
    explore(&Bounds { ops, vars, kinds, mentions, duplicates, streams, starts, releases, slots });
}

/// They give up what streams order too, but not while something that they have run ahead of may fail.
#[test]
fn operations_on_streams_give_up_variables() {
    use AccessKind::{Read, Update, Write};
    let (ops, vars, mentions, duplicates) = (3, 2, 2, false);
    let (starts, releases, slots) = (false, true, false);
    for streams in [0b01, 0b11] {
        let kinds = &[Read, Write, Update];
        explore(&Bounds { ops, vars, kinds, mentions, duplicates, streams, starts, releases, slots });
    }
}

#[test]
fn operations_with_duplicates_give_up_variables() {
    let (ops, vars, kinds, mentions, duplicates, streams) = (2, 2, ALL_KINDS, 3, true, 0);
    let (starts, releases, slots) = (true, true, true);
    explore(&Bounds { ops, vars, kinds, mentions, duplicates, streams, starts, releases, slots });
}
