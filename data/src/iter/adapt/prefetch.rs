//! Batches read ahead by a thread of its own, for sources that are not a [`crate::Loader`].

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// What the thread read.
struct Read {
    item: Result<Option<Batch>, DataError>,
    /// Where the source stands behind it: behind the end of an epoch, at the beginning of the next one.
    after: Result<BatchPosition, DataError>,
}

/// A position, and the batches of its epoch.
type BatchPosition = (Position, Option<u64>);

/// Takes up to a number of batches ahead of its user, over the ends of epochs.
pub struct Prefetch<I: DataIter + 'static> {
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
    depth: usize,
    place: BatchPosition,
    /// At the end of an epoch, where the next one begins.
    upcoming: Option<Result<BatchPosition, DataError>>,
    state: PrefetchState<I>,
}

enum PrefetchState<I> {
    Idle(I),
    Running {
        read: Receiver<Read>,
        thread: JoinHandle<I>,
    },
    /// The source panicked.
    Lost,
}

fn place<I: DataIter>(iter: &I) -> BatchPosition {
    (iter.position(), iter.batches())
}

/// Most batches that are read ahead.
const MAX_DEPTH: usize = 1 << 12;

impl<I: DataIter + 'static> Prefetch<I> {
    /// Reads up to `depth` batches ahead, from 1 to 4096. The thread ends with this.
    pub fn new(iter: I, depth: usize) -> Prefetch<I> {
        Prefetch {
            data: iter.provide_data().to_vec(),
            labels: iter.provide_label().to_vec(),
            depth: depth.clamp(1, MAX_DEPTH),
            place: place(&iter),
            upcoming: None,
            state: PrefetchState::Idle(iter),
        }
    }

    fn start(&mut self) -> Result<&Receiver<Read>, DataError> {
        let state = std::mem::replace(&mut self.state, PrefetchState::Lost);
        self.state = match state {
            PrefetchState::Idle(iter) => {
                // One batch more is in the hands of the thread.
                let (sender, read) = sync_channel(self.depth - 1);
                let thread = std::thread::Builder::new().name("tensorc-prefetch".into());
                let started = thread.spawn(move || run(iter, &sender));
                let thread = started.map_err(|e| DataError::options("prefetch", format!("no thread: {e}")))?;
                PrefetchState::Running { read, thread }
            }
            other => other,
        };
        match &self.state {
            PrefetchState::Running { read, .. } => Ok(read),
            _ => Err(panicked()),
        }
    }

    /// The source, at some later position.
    fn stop(&mut self) -> Result<&mut I, DataError> {
        let state = std::mem::replace(&mut self.state, PrefetchState::Lost);
        self.state = match state {
            PrefetchState::Running { read, thread } => {
                // The thread ends where it hands out the next batch.
                drop(read);
                PrefetchState::Idle(thread.join().map_err(|_| panicked())?)
            }
            other => other,
        };
        match &mut self.state {
            PrefetchState::Idle(iter) => Ok(iter),
            _ => Err(panicked()),
        }
    }
}

impl<I: DataIter + 'static> Drop for Prefetch<I> {
    fn drop(&mut self) {
        // A source that panicked has said so, or nobody asked.
        let _ = self.stop();
    }
}

fn panicked() -> DataError {
    DataError::Panic { name: "prefetch".into(), message: "the source panicked".into() }
}

fn run<I: DataIter>(mut iter: I, sender: &SyncSender<Read>) -> I {
    loop {
        let item = iter.next();
        let reset = if matches!(item, Ok(None)) { iter.reset() } else { Ok(()) };
        let failed = reset.is_err();
        let read = Read { item, after: reset.map(|()| place(&iter)) };
        if sender.send(read).is_err() || failed {
            return iter;
        }
    }
}

impl<I: DataIter + 'static> DataIter for Prefetch<I> {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.labels
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        if self.upcoming.is_some() {
            return Ok(None);
        }
        let Ok(read) = self.start()?.recv() else {
            self.stop()?;
            return Err(panicked());
        };
        match read.item {
            Ok(None) => self.upcoming = Some(read.after),
            _ => self.place = read.after?,
        }
        read.item
    }

    fn reset(&mut self) -> Result<(), DataError> {
        match self.upcoming.take() {
            Some(Ok(place)) => {
                self.place = place;
                Ok(())
            }
            Some(Err(error)) => {
                // The thread has ended.
                self.stop()?;
                self.upcoming = Some(Err(error.clone()));
                Err(error)
            }
            None if self.place.0.batch > 0 => self.seek(Position::new(self.place.0.epoch + 1, 0)),
            None => Ok(()),
        }
    }

    fn position(&self) -> Position {
        self.place.0
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        let before = self.place.0;
        let iter = self.stop()?;
        let sought = iter.seek(position);
        if sought.is_err() {
            // What was read ahead is given once more.
            iter.seek(before)?;
        }
        self.place = place(iter);
        self.upcoming = None;
        sought
    }

    fn batches(&self) -> Option<u64> {
        self.place.1
    }
}
