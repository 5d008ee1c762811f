//! Random programs whose operations fail in every way, pushed by several threads, with deletions in
//! between: every wait must tell what the operations, one after the other, would leave; no error may
//! be lost, nothing may hang, and nothing may be left over.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod oracle;
mod program;
#[path = "../common/random_programs.rs"]
mod random_programs;

use std::num::NonZero;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use oracle::{Event, Found, Outcome, Record, number_of, replay};
use program::{Action, Behaviour, Cell, Guard, Nested, World, serve};
use random_programs::{Random, Watchdog, seeds};
use tensorc_runtime::engine::*;
use tensorc_runtime::storage::PoolConfig;
use tensorc_runtime::{Device, Storage};

/// A variable with its memory, and its number for life.
struct Slot {
    var: Var,
    cell: Arc<Cell>,
    number: usize,
}

/// Numbers that all threads of a program draw.
#[derive(Default)]
struct Counters {
    events: AtomicU64,
    vars: AtomicUsize,
    ops: AtomicUsize,
    deletions: AtomicU64,
    deleted: Arc<AtomicU64>,
    /// Failures that waits for all told, by operation, and those that they only counted.
    failures: Mutex<(Vec<usize>, u64)>,
}

struct Program {
    engine: Engine,
    world: Arc<World>,
    nested: Arc<Nested>,
    counters: Counters,
    /// Variables that all threads use; the lock gives the order of pushing.
    shared: Mutex<Vec<Slot>>,
    /// Whether the engine may be stopped: there is one pushing thread.
    stops: bool,
    devices: usize,
}

/// A pushing thread.
struct Pusher<'a> {
    program: &'a Program,
    random: Random,
    own: Vec<Slot>,
    log: Vec<(u64, Event)>,
    errands: Sender<Box<dyn FnOnce() + Send>>,
}

const MAX_ACTIONS: usize = if cfg!(miri) { 12 } else { 50 };
const MAX_THREADS: usize = 3;

impl Program {
    fn slot(&self) -> Slot {
        let number = self.counters.vars.fetch_add(1, Ordering::Relaxed);
        Slot { var: self.engine.new_var(), cell: Arc::new(Cell::new()), number }
    }

    fn collect_failures(&self, result: Result<(), WaitError>) {
        let failures = match result {
            Ok(()) => return,
            Err(WaitError::Failures(failures)) => failures,
            Err(other) => panic!("waiting for all: {other}"),
        };
        let mut found = self.counters.failures.lock().unwrap();
        found.0.extend(failures.listed.iter().map(|error| number_of(error)));
        found.1 += failures.omitted;
    }

    /// Waits for a variable whose uses no other thread can push meanwhile.
    fn wait(&self, slot: &Slot, all_uses: bool) -> Event {
        let waited = match all_uses {
            true => self.engine.wait_to_write(&slot.var),
            false => self.engine.wait_to_read(&slot.var),
        };
        let value = match waited {
            // SAFETY: all writes are done.
            Ok(()) => Ok(unsafe { slot.cell.get() }),
            Err(WaitError::Failed(error)) => Err((number_of(&error), Outcome::of(&error.cause))),
            Err(other) => panic!("waiting for a variable: {other}"),
        };
        let version = all_uses.then(|| self.engine.version(&slot.var));
        Event::Wait { var: slot.number, found: Found { value, version } }
    }
}

impl Pusher<'_> {
    fn log(&mut self, event: Event) {
        self.log.push((self.program.counters.events.fetch_add(1, Ordering::Relaxed), event));
    }

    /// Some of the variables, without repetition.
    fn choose<'s>(random: &mut Random, slots: &[&'s Slot], most: usize) -> Vec<&'s Slot> {
        let mut rest = slots.to_vec();
        let count = random.below(most + 1).min(rest.len());
        (0..count).map(|_| rest.swap_remove(random.below(rest.len()))).collect()
    }

    fn action(&self, number: usize, behaviour: Behaviour, reads: &[&Slot], writes: &[&Slot]) -> Action {
        let cells = |slots: &[&Slot]| slots.iter().map(|slot| slot.cell.clone()).collect();
        let nests = matches!(behaviour, Behaviour::Nest);
        Action {
            world: self.program.world.clone(),
            number,
            behaviour,
            reads: cells(reads),
            writes: cells(writes),
            errands: self.errands.clone(),
            nest: nests.then(|| (self.program.engine.clone(), self.program.nested.clone())),
            _guard: Guard::new(&self.program.world.alive),
        }
    }

    /// Calls `f` with an operation of random device, priority and property; variables may be
    /// mentioned twice.
    fn with_op<R>(&mut self, name: &OpName, reads: &[&Slot], writes: &[&Slot], f: impl FnOnce(Op<'_>) -> R) -> R {
        let random = &mut self.random;
        let mut list = |slots: &[&'_ Slot]| -> Vec<usize> {
            let mut list: Vec<usize> = (0..slots.len()).collect();
            if !slots.is_empty() && random.one_in(4) {
                list.push(random.below(slots.len()));
            }
            list
        };
        let (reads_at, writes_at) = (list(reads), list(writes));
        let reads: Vec<&Var> = reads_at.iter().map(|&at| &reads[at].var).collect();
        let writes: Vec<&Var> = writes_at.iter().map(|&at| &writes[at].var).collect();
        let devices = [Device::cpu(0), Device::accelerator(0), Device::cpu(1)];
        let properties = [Property::Normal, Property::CopyToDevice, Property::CopyFromDevice, Property::Prioritized];
        let device = devices[random.below(self.program.devices)];
        let property = if random.one_in(4) { properties[random.below(4)] } else { Property::Normal };
        let priority = if random.one_in(4) { random.below(5) as i32 - 2 } else { 0 };
        f(Op { reads: &reads, writes: &writes, device, property, priority, ..Op::new(name) })
    }

    fn push(&mut self, slots: &[&Slot]) {
        let number = self.program.counters.ops.fetch_add(1, Ordering::Relaxed);
        let behaviour = Behaviour::random(&mut self.random);
        let reads = Pusher::choose(&mut self.random, slots, 3);
        let writes = Pusher::choose(&mut self.random, slots, 2);
        let action = self.action(number, behaviour, &reads, &writes);
        let name = self.program.world.records[number].name.clone();
        let engine = &self.program.engine;
        self.with_op(&name, &reads, &writes, |op| match action.is_async() {
            true => engine.push_async(op, move |_, completion| action.run_async(completion)),
            false => engine.push(op, move |_| action.run()),
        })
        .unwrap();
        let numbers = |slots: &[&Slot]| slots.iter().map(|slot| slot.number).collect();
        self.log(Event::Push { op: number, reads: numbers(&reads), writes: numbers(&writes) });
    }

    /// Puts a new variable into the slot.
    fn delete(&mut self, slot: &mut Slot) {
        let old = std::mem::replace(slot, self.program.slot());
        if self.random.one_in(2) {
            return;
        }
        let counters = &self.program.counters;
        counters.deletions.fetch_add(1, Ordering::Relaxed);
        let deleted = counters.deleted.clone();
        // In the order of being dropped.
        let held = (old.cell, self.errands.clone());
        let then = move |_: &RunContext<'_>| {
            let (cell, _) = &held;
            // SAFETY: all uses of the variable are over.
            unsafe { cell.get() };
            deleted.fetch_add(1, Ordering::Relaxed);
        };
        self.program.engine.delete_var(old.var, then).unwrap();
    }

    fn stop_and_start(&mut self, slots: &[&Slot]) {
        self.program.engine.stop().unwrap();
        for _ in 0..self.random.below(4) {
            self.push(slots);
        }
        self.program.engine.start().unwrap();
    }

    fn act(&mut self, own: &mut [Slot]) {
        let program = self.program;
        let mut shared = self.random.one_in(2).then(|| program.shared.lock().unwrap());
        let shared = shared.as_deref_mut().map_or(&mut [][..], |slots| &mut slots[..]);
        let choice = self.random.below(100);
        match choice {
            0..10 => {
                let slots = if shared.is_empty() { own } else { shared };
                let slot = &slots[self.random.below(slots.len())];
                let event = program.wait(slot, choice < 5);
                self.log(event);
            }
            10..17 => {
                let slots = if shared.is_empty() { own } else { shared };
                let at = self.random.below(slots.len());
                self.delete(&mut slots[at]);
            }
            17..20 => program.collect_failures(program.engine.wait_all()),
            _ => {
                let slots: Vec<&Slot> = own.iter().chain(shared.iter()).collect();
                match choice {
                    20..23 if program.stops => self.stop_and_start(&slots),
                    _ => self.push(&slots),
                }
            }
        }
    }

    fn run(mut self, actions: usize) -> (Vec<(u64, Event)>, Vec<Slot>) {
        let mut own = std::mem::take(&mut self.own);
        for _ in 0..actions {
            self.act(&mut own);
        }
        (self.log, own)
    }
}

fn config(random: &mut Random, stops: bool) -> EngineConfig {
    let bounds = [1, 4, EngineConfig::default().max_pending];
    EngineConfig {
        kind: EngineKind::ALL[random.below(3)],
        cpu_workers: 1 + random.below(3),
        accelerator_workers: 1 + random.below(2),
        copy_workers: 1,
        // What is pushed to a stopped engine must have room.
        max_pending: bounds[if stops { 2 } else { random.below(3) }],
        ..EngineConfig::default()
    }
}

impl Program {
    fn random(random: &mut Random, threads: usize, actions: usize) -> Program {
        let stops = threads == 1 && random.one_in(2);
        let engine = Engine::new(config(random, stops)).unwrap();
        let every = [None, None, NonZero::new(2 + random.below(20) as u64)][random.below(3)];
        // Four more operations may be pushed where an engine stops.
        let records = (0..threads * actions * 4).map(Record::new).collect();
        let storage = Storage::new(PoolConfig { fail_every: every, poison: true, ..PoolConfig::default() }.into());
        let (alive, nested) = (Arc::new(AtomicI64::new(0)), AtomicU64::new(0));
        let program = Program {
            nested: Arc::new(Nested::new(engine.new_var())),
            engine,
            world: Arc::new(World { records, storage, alive, nested }),
            counters: Counters::default(),
            shared: Mutex::default(),
            stops,
            devices: 1 + random.below(3),
        };
        let slots = (0..1 + random.below(4)).map(|_| program.slot()).collect();
        *program.shared.lock().unwrap() = slots;
        program
    }

    /// Waits for everything and for each variable.
    fn wait_for_end(&self, slots: &[Slot], log: &mut Vec<(u64, Event)>) {
        self.collect_failures(self.engine.wait_all());
        log.extend(slots.iter().map(|slot| (u64::MAX, self.wait(slot, true))));
        // SAFETY: nothing is pending.
        let nested = unsafe { self.nested.runs() };
        assert_eq!(nested, self.world.nested.load(Ordering::Relaxed), "nested operations");
        // A panic after the completion was handed on is told when its thread comes to it.
        self.engine.stop().unwrap();
        self.collect_failures(self.engine.wait_all());
    }
}

/// Compares what was seen with the oracle.
fn compare(world: &World, counters: &Counters, mut log: Vec<(u64, Event)>, waited: bool) {
    log.sort_by_key(|(at, _)| *at);
    let events: Vec<Event> = log.into_iter().map(|(_, event)| event).collect();
    let expected = replay(&events, counters.vars.load(Ordering::Relaxed), &world.records);
    if waited {
        let (listed, omitted) = &*counters.failures.lock().unwrap();
        let mut told = vec![0; expected.len()];
        listed.iter().for_each(|&op| told[op] += 1);
        assert_eq!(listed.len() as u64 + omitted, expected.iter().sum::<u64>(), "failures told");
        assert!(*omitted > 0 || told == expected, "failures told, by operation: {told:?}, not {expected:?}");
    }
    assert_eq!(counters.deleted.load(Ordering::Relaxed), counters.deletions.load(Ordering::Relaxed), "deletions");
}

/// Pushes from several threads; returns what they logged and the variables that are left.
fn push_all(program: &Program, actions: usize, pushers: Vec<Pusher<'_>>) -> (Vec<(u64, Event)>, Vec<Slot>) {
    let done: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = pushers.into_iter().map(|pusher| scope.spawn(move || pusher.run(actions))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut log, mut slots) = (vec![], std::mem::take(&mut *program.shared.lock().unwrap()));
    for (entries, own) in done {
        log.extend(entries);
        slots.extend(own);
    }
    (log, slots)
}

/// Runs one program and checks it.
fn check(seed: u64) {
    let _watchdog = Watchdog::new(format!("the program of seed {seed}"));
    let random = &mut Random(seed);
    let (threads, actions) = (1 + random.below(MAX_THREADS), 5 + random.below(MAX_ACTIONS));
    let program = Program::random(random, threads, actions);
    let (errands, received) = channel();
    let order = Random(random.next());
    let foreign = std::thread::spawn(move || serve(&received, order));
    let pusher = |_| Pusher {
        program: &program,
        random: Random(random.next()),
        own: (0..1 + random.below(3)).map(|_| program.slot()).collect(),
        log: vec![],
        errands: errands.clone(),
    };
    let pushers = (0..threads).map(pusher).collect();
    let (mut log, mut slots) = push_all(&program, actions, pushers);
    let waited = !random.one_in(4);
    if waited {
        program.wait_for_end(&slots, &mut log);
    }
    if random.one_in(2) {
        slots.clear();
    }
    let Program { engine, world, nested, counters, .. } = program;
    drop((engine, nested, errands));
    drop(slots);
    // Everything that was pushed holds a way to this thread, which ends with the last of them.
    foreign.join().unwrap();
    compare(&world, &counters, log, waited);
    assert_eq!(world.alive.load(Ordering::Relaxed), 0, "values of operations left over");
    assert_eq!(world.storage.stats(Device::default()).in_use, 0, "memory left over");
}

/// Programs for each repeat.
const PROGRAMS: u64 = if cfg!(miri) { 2 } else { 100 };

#[test]
fn random_programs_with_faults() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(program::PANIC) {
            usual(info);
        }
    }));
    for seed in seeds(PROGRAMS) {
        check(seed);
    }
}

/// The thread that completes an operation may thereby drop the last handle of the engine, and must not wait
/// for operations that only it can complete.
#[test]
fn the_last_handle_may_go_with_an_operation_that_is_skipped() {
    let _watchdog = Watchdog::new("completing with the last handle".to_owned());
    let name = OpName::from_static("test");
    for cpu_workers in 1..4 {
        let engine = Engine::new(EngineConfig { cpu_workers, ..EngineConfig::default() }).unwrap();
        let (sender, completions) = channel();
        let vars = [engine.new_var(), engine.new_var()];
        for (number, var) in vars.iter().enumerate() {
            let sender = sender.clone();
            let run = move |_: &RunContext<'_>, completion| sender.send((number, completion)).unwrap();
            engine.push_async(Op { writes: &[var], ..Op::new(&name) }, run).unwrap();
        }
        let held = engine.clone();
        let skipped = move |_: &RunContext<'_>| panic!("must not run, with {held:?}");
        engine.push(Op { reads: &[&vars[0]], ..Op::new(&name) }, skipped).unwrap();
        drop(engine);
        let mut all: Vec<(usize, Completion)> = completions.iter().take(2).collect();
        all.sort_by_key(|(number, _)| *number);
        for (number, completion) in all {
            completion.complete(if number == 0 { Err(program::PANIC.into()) } else { Ok(()) });
        }
    }
}
