//! Operations that fail in every way, on plain memory that only the engine's order protects.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use tensorc_runtime::engine::{Completion, Engine, Failure, Op, OpName, RunContext, Var};
use tensorc_runtime::{Device, MemoryBlock, Storage};

use super::oracle::{Outcome, Record, result};
use super::random_programs::Random;

/// Memory of one variable, allocated when it is first written.
pub struct Cell(UnsafeCell<Option<MemoryBlock>>);

// SAFETY: accesses go through operations that name the cell's variable, which the engine orders.
unsafe impl Sync for Cell {}

impl Cell {
    pub fn new() -> Cell {
        Cell(UnsafeCell::new(None))
    }

    /// # Safety
    /// Nobody writes the cell meanwhile.
    pub unsafe fn get(&self) -> u64 {
        // SAFETY: the caller's promise.
        let block = unsafe { &*self.0.get() };
        block.as_ref().map_or(0, |block| u64::from_ne_bytes(block.as_slice()[..8].try_into().unwrap()))
    }

    /// # Safety
    /// Nobody else uses the cell meanwhile.
    unsafe fn set(&self, storage: &Storage, value: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let block = unsafe { &mut *self.0.get() };
        if block.is_none() {
            *block = Some(storage.alloc(Device::default(), 8)?);
        }
        if let Some(block) = block {
            block.as_mut_slice()[..8].copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    }
}

/// Counts values that are alive.
pub struct Guard(Arc<AtomicI64>);

impl Guard {
    pub fn new(alive: &Arc<AtomicI64>) -> Guard {
        alive.fetch_add(1, Ordering::Relaxed);
        Guard(alive.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How an operation behaves. What it computes may fail besides, for want of memory.
#[derive(Clone, Copy, Debug)]
pub enum Behaviour {
    Succeed,
    Slow,
    Fail,
    Panic,
    /// Pushes another operation.
    Nest,
    /// The completion is called on the engine's thread.
    AsyncHere {
        fails: bool,
    },
    /// On another thread.
    AsyncElsewhere {
        fails: bool,
    },
    /// On another thread, while the function panics.
    AsyncThenPanic {
        fails: bool,
    },
    /// The completion is dropped.
    DropHere,
    DropElsewhere,
    DropByPanic,
}

impl Behaviour {
    pub fn random(random: &mut Random) -> Behaviour {
        let fails = random.one_in(3);
        match random.below(40) {
            0 => Behaviour::Fail,
            1 => Behaviour::Panic,
            2 | 3 => Behaviour::Slow,
            4 | 5 => Behaviour::Nest,
            6 | 7 => Behaviour::AsyncHere { fails },
            8..=11 => Behaviour::AsyncElsewhere { fails },
            12 => Behaviour::AsyncThenPanic { fails },
            13 => Behaviour::DropHere,
            14 => Behaviour::DropElsewhere,
            15 => Behaviour::DropByPanic,
            _ => Behaviour::Succeed,
        }
    }
}

/// The message of panics that are meant.
pub const PANIC: &str = "as the program wants it";

#[derive(Debug, thiserror::Error)]
#[error("as the program wants it")]
struct Wanted;

fn outcome_of(result: &Result<(), Failure>) -> Outcome {
    if result.is_ok() { Outcome::Succeeded } else { Outcome::Failed }
}

type Errand = Box<dyn FnOnce() + Send>;

/// Does what operations hand to a thread that the engine does not know, in another order.
pub fn serve(errands: &Receiver<Errand>, mut random: Random) {
    let mut held: Vec<Errand> = vec![];
    loop {
        match errands.recv_timeout(Duration::from_micros(100)) {
            Ok(errand) if random.one_in(2) => held.push(errand),
            Ok(errand) => errand(),
            Err(RecvTimeoutError::Timeout) => {
                while let Some(errand) = held.pop() {
                    errand();
                }
                // Sleeps until there is something, to wait for a program's end in peace.
                match errands.recv() {
                    Ok(errand) => held.push(errand),
                    Err(_) => return,
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                held.drain(..).for_each(|errand| errand());
                return;
            }
        }
    }
}

/// What nested operations count, on a variable of their own.
pub struct Nested {
    pub var: Var,
    pub name: OpName,
    runs: UnsafeCell<u64>,
}

// SAFETY: operations that name `var` as written touch the counter, and who waited for them.
unsafe impl Sync for Nested {}

impl Nested {
    pub fn new(var: Var) -> Nested {
        Nested { var, name: OpName::from_static("nested"), runs: UnsafeCell::new(0) }
    }

    /// # Safety
    /// No operation is pending.
    pub unsafe fn runs(&self) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { *self.runs.get() }
    }
}

/// What operations of one program share.
pub struct World {
    pub records: Vec<Record>,
    pub storage: Storage,
    pub alive: Arc<AtomicI64>,
    /// Nested operations pushed.
    pub nested: AtomicU64,
}

/// One operation.
pub struct Action {
    pub world: Arc<World>,
    pub number: usize,
    pub behaviour: Behaviour,
    pub reads: Vec<Arc<Cell>>,
    pub writes: Vec<Arc<Cell>>,
    /// Where nested operations go.
    pub nest: Option<(Engine, Arc<Nested>)>,
    pub _guard: Guard,
    /// Dropped after the rest.
    pub errands: Sender<Errand>,
}

impl Action {
    fn record(&self) -> &Record {
        &self.world.records[self.number]
    }

    fn compute(&self) -> Result<(), Failure> {
        // SAFETY: the operation reads the variables of these cells.
        let reads: Vec<u64> = self.reads.iter().map(|read| unsafe { read.get() }).collect();
        for (position, write) in self.writes.iter().enumerate() {
            // SAFETY: the operation writes the variables of these cells.
            unsafe { write.set(&self.world.storage, result(self.number, position, reads.iter().copied()))? };
        }
        Ok(())
    }

    fn push_nested(&self) {
        let Some((engine, nested)) = &self.nest else { return };
        self.world.nested.fetch_add(1, Ordering::Relaxed);
        let inner = nested.clone();
        let op = Op { reads: &[&nested.var], writes: &[&nested.var], ..Op::new(&nested.name) };
        let run = move |_: &RunContext<'_>| {
            // SAFETY: the operation updates the counter's variable.
            unsafe { *inner.runs.get() += 1 };
            Ok(())
        };
        engine.push(op, run).unwrap();
    }

    /// The function of an operation that ends when it returns.
    pub fn run(&self) -> Result<(), Failure> {
        match self.behaviour {
            Behaviour::Slow => std::thread::sleep(Duration::from_micros(200)),
            Behaviour::Nest => self.push_nested(),
            _ => {}
        }
        let computed = self.compute();
        let result = if matches!(self.behaviour, Behaviour::Fail) { Err(Wanted.into()) } else { computed };
        if matches!(self.behaviour, Behaviour::Panic) {
            self.record().ended(Outcome::Panicked);
            panic!("{PANIC}");
        }
        self.record().ended(outcome_of(&result));
        result
    }

    /// Computes and completes.
    fn complete(&self, completion: Completion, fails: bool) {
        let computed = self.compute();
        let result = if fails { Err(Wanted.into()) } else { computed };
        self.record().ended(outcome_of(&result));
        completion.complete(result);
    }

    fn abandon(&self, completion: Completion) {
        // It may fail or not, what it wrote must not be seen.
        let _ = self.compute();
        self.record().ended(Outcome::Abandoned);
        drop(completion);
    }

    fn send(self, errand: impl FnOnce(Action) + Send + 'static) {
        let errands = self.errands.clone();
        errands.send(Box::new(move || errand(self))).unwrap();
    }

    pub fn is_async(&self) -> bool {
        use Behaviour::*;
        !matches!(self.behaviour, Succeed | Slow | Fail | Panic | Nest)
    }

    /// The function of an asynchronous operation.
    pub fn run_async(self, completion: Completion) {
        match self.behaviour {
            Behaviour::AsyncElsewhere { fails } => self.send(move |action| action.complete(completion, fails)),
            Behaviour::AsyncThenPanic { fails } => {
                self.record().late_panics.fetch_add(1, Ordering::Relaxed);
                self.send(move |action| action.complete(completion, fails));
                panic!("{PANIC}");
            }
            Behaviour::DropHere => self.abandon(completion),
            Behaviour::DropElsewhere => self.send(move |action| action.abandon(completion)),
            Behaviour::DropByPanic => {
                let _completion = completion;
                self.record().ended(Outcome::Panicked);
                panic!("{PANIC}");
            }
            Behaviour::AsyncHere { fails } => self.complete(completion, fails),
            _ => self.complete(completion, false),
        }
    }
}
