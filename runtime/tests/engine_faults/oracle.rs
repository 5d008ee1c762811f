//! What a program means: its operations one after the other, in the order in which they were pushed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tensorc_runtime::engine::{Cause, OpError, OpName};

/// How a run of an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
    Panicked,
    Abandoned,
}

impl Outcome {
    pub fn of(cause: &Cause) -> Outcome {
        match cause {
            Cause::Failed(_) => Outcome::Failed,
            Cause::Panicked(_) => Outcome::Panicked,
            Cause::Abandoned => Outcome::Abandoned,
        }
    }
}

/// What happened to one operation.
pub struct Record {
    pub name: OpName,
    /// One for each run, in the order in which they ended. Runs of one record are ordered by what they
    /// write, unless they write nothing and all end alike.
    outcomes: Mutex<Vec<Outcome>>,
    /// Panics of functions whose completion had been handed on.
    pub late_panics: AtomicU64,
}

impl Record {
    pub fn new(number: usize) -> Record {
        Record { name: OpName::from(format!("op{number}")), outcomes: Mutex::default(), late_panics: AtomicU64::new(0) }
    }

    pub fn ended(&self, outcome: Outcome) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.lock().unwrap().clone()
    }
}

/// The number of the operation with this error.
pub fn number_of(error: &OpError) -> usize {
    error.op.operator().strip_prefix("op").unwrap().parse().unwrap()
}

/// What operation `op` writes to the variable at `position` of its list.
pub fn result(op: usize, position: usize, reads: impl Iterator<Item = u64>) -> u64 {
    let start = (op * 31 + position) as u64;
    reads.fold(start, |x, read| (x.rotate_left(13) ^ read).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
}

/// What waiting for a variable told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The operation that failed, or the variable's value.
    pub value: Result<u64, (usize, Outcome)>,
    /// The variable's version, where no other use was pending.
    pub version: Option<u64>,
}

/// An entry of a thread's log. Variables have a number for life.
pub enum Event {
    Push { op: usize, reads: Vec<usize>, writes: Vec<usize> },
    Wait { var: usize, found: Found },
}

#[derive(Clone, Default)]
struct Model {
    value: u64,
    error: Option<(usize, Outcome)>,
    version: u64,
}

/// Replays the events, sorted by the order of pushing, and compares everything that was seen.
/// Returns the number of failures of each operation that the engine must tell.
pub fn replay(events: &[Event], vars: usize, records: &[Record]) -> Vec<u64> {
    let mut models = vec![Model::default(); vars];
    let outcomes: Vec<Vec<Outcome>> = records.iter().map(Record::outcomes).collect();
    let mut consumed = vec![0; records.len()];
    let mut failures = vec![0; records.len()];
    for event in events {
        match event {
            Event::Wait { var, found } => {
                let model = &models[*var];
                let value = model.error.map_or(Ok(model.value), Err);
                let version = found.version.map(|_| model.version);
                assert_eq!(*found, Found { value, version }, "what a wait for variable {var} found");
            }
            Event::Push { op, reads, writes } => {
                let updated = writes.iter().filter(|write| reads.contains(write));
                let met = updated.chain(reads).find_map(|&var| models[var].error);
                let outcome = met.is_none().then(|| {
                    consumed[*op] += 1;
                    *outcomes[*op].get(consumed[*op] - 1).unwrap_or_else(|| panic!("operation {op} did not run"))
                });
                let failed = outcome.filter(|&outcome| outcome != Outcome::Succeeded).map(|outcome| (*op, outcome));
                failures[*op] += u64::from(failed.is_some());
                let inputs: Vec<u64> = reads.iter().map(|&read| models[read].value).collect();
                for (position, &write) in writes.iter().enumerate() {
                    let model = &mut models[write];
                    model.version += 1;
                    model.error = met.or(failed);
                    model.value = result(*op, position, inputs.iter().copied());
                }
            }
        }
    }
    for (op, record) in records.iter().enumerate() {
        assert_eq!(outcomes[op].len(), consumed[op], "operation {op} ran although it had met an error, or twice");
        failures[op] += record.late_panics.load(Ordering::Relaxed);
    }
    failures
}
