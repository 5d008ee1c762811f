//! Batches of a dataset, read ahead on rayon's threads.
//!
//! A batch is one task, which reads its examples in parallel; at most [`LoaderBuilder::prefetch`] batches are under way
//! or waiting. Batches are handed out in order, so that what comes does not depend on threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

pub use super::assemble::OnError;
use super::assemble::{AssembledBatch, Assembler, panicked};
use super::schedule::{BatchSchedule, LastBatch, Shuffle};
use super::{Batch, DataIter, Position};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::DataError;

/// What was skipped in the batches handed out so far.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Examples that were left out.
    pub skipped: u64,
    /// The first errors, under [`OnError::Count`].
    pub first: Vec<DataError>,
}

/// Errors that are kept.
const MAX_KEPT_ERRORS: usize = 100;

/// Reads the examples of a dataset in batches.
pub struct Loader {
    assembler: Arc<Assembler>,
    schedule: BatchSchedule,
    threads: Threads,
    prefetch: usize,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
    /// The batch that is handed out next.
    next: Position,
    /// The batch that is begun next.
    ahead: Position,
    pending: VecDeque<Receiver<Result<AssembledBatch, DataError>>>,
    keeps_errors: bool,
    faults: Faults,
    /// Tasks of an earlier number are not wanted any more.
    generation: Arc<AtomicU64>,
}

/// Where examples are read.
#[derive(Clone)]
enum Threads {
    /// Rayon's threads for everything.
    Shared,
    Own(Arc<rayon::ThreadPool>),
}

/// How a dataset becomes batches; [`LoaderBuilder::build`] begins to read.
#[must_use = "nothing is read until `build`"]
pub struct LoaderBuilder {
    dataset: Box<dyn Dataset>,
    batch: usize,
    last: LastBatch,
    shuffle: Shuffle,
    part: (usize, usize),
    equal_parts: bool,
    /// Examples of the largest part where the dataset is a part itself.
    counted: Option<usize>,
    threads: Option<usize>,
    prefetch: usize,
    on_error: OnError,
    /// What was found to be damaged before any example is read.
    damage: Vec<DataError>,
}

/// Most batches that are read ahead, and most examples of a batch.
const MAX_PREFETCH: usize = 1 << 12;
const MAX_BATCH: usize = 1 << 24;

/// Batches that are read ahead unless the caller says otherwise, as MXNet's.
pub(crate) const DEFAULT_PREFETCH: usize = 4;

impl Loader {
    /// Batches of `batch` examples of a dataset.
    pub fn of(dataset: impl Dataset + 'static, batch: usize) -> LoaderBuilder {
        LoaderBuilder {
            dataset: Box::new(dataset),
            batch,
            last: LastBatch::Pad,
            shuffle: Shuffle::None,
            part: (0, 1),
            equal_parts: false,
            counted: None,
            threads: None,
            prefetch: DEFAULT_PREFETCH,
            on_error: OnError::Fail,
            damage: vec![],
        }
    }

    /// Examples of an epoch.
    pub fn examples(&self) -> usize {
        self.schedule.examples()
    }

    /// What was skipped in the batches handed out so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn note(&mut self, skipped: Vec<DataError>) {
        self.faults.skipped += skipped.len() as u64;
        if self.keeps_errors {
            let room = MAX_KEPT_ERRORS.saturating_sub(self.faults.first.len());
            self.faults.first.extend(skipped.into_iter().take(room));
        }
    }

    fn begin_batches(&mut self) {
        while self.pending.len() < self.prefetch.max(1) {
            let at = self.schedule.normal(self.ahead);
            let cut = self.schedule.cut(at);
            self.ahead = Position::new(at.epoch, at.batch + 1);
            let (done, made) = sync_channel(1);
            self.pending.push_back(made);
            let task = BatchTask {
                assembler: self.assembler.clone(),
                generation: self.generation.clone(),
                of: self.generation.load(Ordering::Relaxed),
                done,
            };
            let run = move || task.run(&cut.samples, cut.pad);
            match &self.threads {
                Threads::Shared => rayon::spawn_fifo(run),
                Threads::Own(pool) => pool.spawn_fifo(run),
            }
        }
    }

    fn go_to(&mut self, position: Position) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.pending.clear();
        (self.next, self.ahead) = (position, position);
    }
}

/// What a task made. A thread of a rayon pool does other work of the pool meanwhile, which may be that task.
fn wait<T>(made: Receiver<T>) -> Option<T> {
    if rayon::current_thread_index().is_none() {
        return made.recv().ok();
    }
    loop {
        match made.try_recv() {
            Ok(made) => return Some(made),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if rayon::yield_now() == Some(rayon::Yield::Executed) => {}
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
}

/// A batch under way.
struct BatchTask {
    assembler: Arc<Assembler>,
    generation: Arc<AtomicU64>,
    of: u64,
    done: SyncSender<Result<AssembledBatch, DataError>>,
}

impl BatchTask {
    fn run(self, samples: &[Sample], pad: usize) {
        if self.generation.load(Ordering::Relaxed) == self.of {
            let made = catch_unwind(AssertUnwindSafe(|| self.assembler.batch(samples, pad)));
            let made = made.unwrap_or_else(|payload| Err(panicked("a source of examples".into(), payload)));
            // Nobody waits any more if this fails.
            let _ = self.done.send(made);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl DataIter for Loader {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.labels
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        while self.next.batch < self.schedule.batches(self.next.epoch) {
            self.begin_batches();
            self.next.batch += 1;
            let made = self.pending.pop_front().and_then(wait);
            self.begin_batches();
            let lost = || DataError::Panic { name: self.assembler.name(), message: "a batch was lost".into() };
            let AssembledBatch { batch, skipped } = made.ok_or_else(lost)??;
            self.note(skipped);
            if batch.is_some() {
                return Ok(batch);
            }
        }
        Ok(None)
    }

    fn reset(&mut self) -> Result<(), DataError> {
        let begin = Position::new(self.next.epoch + 1, 0);
        if self.next.batch >= self.schedule.batches(self.next.epoch) {
            // What was begun last belongs to the next epoch.
            self.next = begin;
        } else if self.next.batch > 0 {
            self.go_to(begin);
        }
        Ok(())
    }

    fn position(&self) -> Position {
        self.next
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.schedule.check(&self.assembler.name(), position)?;
        if position != self.next {
            self.go_to(position);
        }
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        Some(self.schedule.batches(self.next.epoch))
    }
}

impl LoaderBuilder {
    /// What becomes of the last batch of an epoch.
    pub fn last(self, last: LastBatch) -> LoaderBuilder {
        LoaderBuilder { last, ..self }
    }

    /// In which order examples come.
    pub fn shuffle(self, shuffle: Shuffle) -> LoaderBuilder {
        LoaderBuilder { shuffle, ..self }
    }

    /// Only part `index` of `count`: consecutive examples, ⌈n / count⌉ of them in all parts but the last ones.
    pub fn part(self, index: usize, count: usize) -> LoaderBuilder {
        LoaderBuilder { part: (index, count), ..self }
    }

    /// As many batches in every part as in the largest: the missing examples are repeated and do not count.
    pub fn equal_parts(self) -> LoaderBuilder {
        LoaderBuilder { equal_parts: true, ..self }
    }

    #[cfg(feature = "images")]
    /// Number of batches of a dataset of `examples` examples; for a dataset that is itself one of several parts.
    pub(crate) fn equal_to(self, examples: usize) -> LoaderBuilder {
        LoaderBuilder { counted: Some(examples), ..self }
    }

    /// Threads of the loader's own. Without, examples are read on rayon's shared threads, one for each core.
    pub fn threads(self, threads: usize) -> LoaderBuilder {
        LoaderBuilder { threads: Some(threads), ..self }
    }

    /// Batches that are under way or waiting, at least 1.
    pub fn prefetch(self, batches: usize) -> LoaderBuilder {
        LoaderBuilder { prefetch: batches, ..self }
    }

    /// What happens when an example cannot be read.
    pub fn on_error(self, policy: OnError) -> LoaderBuilder {
        LoaderBuilder { on_error: policy, ..self }
    }

    #[cfg(feature = "images")]
    /// Damage that was found when the dataset was opened, and was passed over: it counts as skipped.
    pub(crate) fn damage(self, damage: Vec<DataError>) -> LoaderBuilder {
        LoaderBuilder { damage, ..self }
    }

    /// # Errors
    /// There are too few examples for a batch or no such part, sizes are too large, or threads cannot be made.
    pub fn build(self) -> Result<Loader, DataError> {
        let name = self.dataset.name();
        let (index, count) = self.part;
        if index >= count {
            return Err(DataError::options(name, format!("there is no part {index} of {count}")));
        }
        if self.prefetch > MAX_PREFETCH || self.batch > MAX_BATCH {
            let why = format!("{} batches of {} examples are too many at once", self.prefetch, self.batch);
            return Err(DataError::options(name, why));
        }
        let total = self.dataset.len();
        let step = total.div_ceil(count);
        let begin = (index * step).min(total);
        let examples = (begin + step).min(total) - begin;
        let mut schedule = BatchSchedule::new(&name, examples, self.batch, self.last, self.shuffle)?;
        if let Some(counted) = self.counted.or(self.equal_parts.then_some(step)) {
            schedule = schedule.equal_to(&name, counted)?;
        }
        let threads = match self.threads {
            None => Threads::Shared,
            Some(threads) => Threads::Own(Arc::new(pool(&name, threads)?)),
        };
        let batched = |descs: &[DataDesc]| -> Vec<DataDesc> {
            descs.iter().map(|desc| desc.batched(self.batch as u64)).collect()
        };
        let (data, labels) = (batched(self.dataset.data()), batched(self.dataset.labels()));
        let buffers = (self.prefetch.max(1) + 2) * (data.len() + labels.len());
        let mut loader = Loader {
            assembler: Arc::new(Assembler::new(self.dataset, begin, self.batch, self.on_error, buffers)),
            schedule,
            threads,
            prefetch: self.prefetch,
            data,
            labels,
            next: Position::default(),
            ahead: Position::default(),
            pending: VecDeque::new(),
            keeps_errors: self.on_error == OnError::Count,
            faults: Faults::default(),
            generation: Arc::default(),
        };
        loader.note(self.damage);
        Ok(loader)
    }
}

fn pool(name: &str, threads: usize) -> Result<rayon::ThreadPool, DataError> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(threads.max(1));
    let named = builder.thread_name(|i| format!("tensorc-data-{i}"));
    named.build().map_err(|e| DataError::options(name, format!("{threads} threads cannot be started: {e}")))
}
