//! Who accessed memory last, and who has been told of it: finds races whatever order threads are executed in (PTX ISA, "Memory
//! consistency model").
//!
//! *Actors* are the threads of a block, and for each of its warps the copy engine and the matrix units that work on its behalf. A
//! barrier of the block begins a new *epoch*, which orders all accesses of threads; everything else orders by what actors have
//! been told: up to which time of every other one. Two accesses, one of them a write, race unless the later one's actor knows of
//! the earlier one, or both are atomic.

/// Threads of a warp.
pub(super) const WARP: usize = 32;

/// Times of all actors.
pub(super) type Times = Vec<u32>;

/// The time of something that is not finished: nobody has been told of it.
pub(super) const UNDER_WAY: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(super) struct Clocks {
    pub threads: usize,
    epoch: u32,
    /// The first epoch of the block: what is older was another block's.
    first: u32,
    time: Times,
    /// Of each thread; empty if it has been told nothing since the epoch began.
    told: Vec<Times>,
    /// For each thread, the number of its last fence between threads and the engines.
    fenced: Vec<u32>,
    fences: u32,
}

impl Clocks {
    pub fn new(threads: usize) -> Clocks {
        let actors = threads + 2 * threads.div_ceil(WARP);
        Clocks {
            threads,
            epoch: 1,
            first: 1,
            time: vec![1; actors],
            told: vec![vec![]; threads],
            fenced: vec![0; threads],
            fences: 1,
        }
    }

    pub fn begin_block(&mut self) {
        self.epoch += 1;
        self.first = self.epoch;
        self.told.iter_mut().for_each(Vec::clear);
    }

    /// The copy engine on behalf of a thread's warp.
    pub fn engine(&self, thread: usize) -> usize {
        self.threads + thread / WARP
    }

    /// The matrix units on behalf of a thread's warp.
    pub fn matrix(&self, thread: usize) -> usize {
        self.threads + self.threads.div_ceil(WARP) + thread / WARP
    }

    pub fn now(&self, actor: usize) -> u32 {
        self.time[actor]
    }

    fn knows(&self, me: usize, actor: usize, time: u32, epoch: u32) -> bool {
        (actor < self.threads && (epoch < self.epoch || actor == me))
            || (time != UNDER_WAY && self.told[me].get(actor).is_some_and(|told| *told >= time))
    }

    /// What a thread knows and did, for others.
    pub fn release(&mut self, thread: usize, into: &mut Times) {
        into.resize(self.time.len(), 0);
        into.iter_mut().zip(&self.told[thread]).for_each(|(a, b)| *a = (*a).max(*b));
        into[thread] = into[thread].max(self.time[thread]);
        self.time[thread] += 1;
    }

    /// A thread is told something.
    pub fn acquire(&mut self, thread: usize, told: &Times) {
        let own = &mut self.told[thread];
        own.resize(self.time.len(), 0);
        own.iter_mut().zip(told).for_each(|(a, b)| *a = (*a).max(*b));
    }

    /// An engine finishes something: its time, which goes on.
    pub fn finish(&mut self, actor: usize) -> u32 {
        self.time[actor] += 1;
        self.time[actor] - 1
    }

    /// Threads tell each other everything.
    pub fn meet(&mut self, threads: &[usize]) {
        let mut all = vec![];
        threads.iter().for_each(|t| self.release(*t, &mut all));
        threads.iter().for_each(|t| self.acquire(*t, &all));
    }

    /// All threads of the block meet; what the engines do is ordered only by what was told.
    pub fn meet_all(&mut self) {
        self.epoch += 1;
        let mut all: Times = vec![];
        for told in self.told.iter_mut().filter(|told| !told.is_empty()) {
            all.resize(told.len(), 0);
            all.iter_mut().zip(told.iter()).for_each(|(a, b)| *a = (*a).max(*b));
        }
        if !all.is_empty() {
            all[..self.threads].fill(0);
            self.told.fill(all);
        }
    }

    pub fn fence(&mut self, thread: usize) {
        self.fences += 1;
        self.fenced[thread] = self.fences;
    }
}

/// Why an access is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// With an earlier one of an actor.
    Race(usize),
    OtherBlock,
    Unwritten,
    /// Of what a copy writes that nobody awaited.
    Pending,
    /// Of a barrier as if it were plain memory, or of plain memory as if it were a barrier.
    Barrier,
    /// A load past the nearest cache of what is written.
    Constant,
    /// What a thread wrote, by an engine without a fence.
    Unfenced,
}

/// Readers that are remembered one by one.
const READERS: usize = 8;

/// What is known of the accesses to some bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    write: Trace,
    /// Number of the last fence when a thread wrote.
    fences: u32,
    /// Epoch of the readers; more than are remembered count as all.
    read_epoch: u32,
    readers: u8,
    reader: [u16; READERS],
    reader_time: [u32; READERS],
    pub written: bool,
    pub pending: bool,
    pub barrier: bool,
    atomic: bool,
    constant: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Trace {
    /// 0: never.
    epoch: u32,
    actor: u16,
    time: u32,
}

/// An access: who makes it, in whose knowledge, at what time of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit<'c> {
    clocks: &'c Clocks,
    actor: usize,
    thread: usize,
    time: u32,
}

impl<'c> Visit<'c> {
    pub fn of(clocks: &'c Clocks, thread: usize) -> Visit<'c> {
        Visit { clocks, actor: thread, thread, time: clocks.time[thread] }
    }

    /// By an engine, which knows what a thread knows.
    pub fn by(clocks: &'c Clocks, actor: usize, thread: usize, time: u32) -> Visit<'c> {
        Visit { clocks, actor, thread, time }
    }

    fn is_engine(&self) -> bool {
        self.actor >= self.clocks.threads
    }

    fn after(&self, epoch: u32, actor: usize, time: u32) -> Result<(), Conflict> {
        match epoch {
            0 => Ok(()),
            e if e < self.clocks.first => Err(Conflict::OtherBlock),
            e if self.clocks.knows(self.thread, actor, time, e) => Ok(()),
            _ => Err(Conflict::Race(actor)),
        }
    }
}

impl Cell {
    /// Of memory that somebody wrote before the launch.
    pub fn written() -> Cell {
        Cell { written: true, ..Cell::default() }
    }

    fn check_state(&self, visit: &Visit<'_>) -> Result<(), Conflict> {
        if self.pending {
            return Err(Conflict::Pending);
        }
        if self.barrier {
            return Err(Conflict::Barrier);
        }
        let fenced = |cell: &Cell| visit.clocks.fenced[usize::from(cell.write.actor)] > cell.fences;
        let by_thread = self.write.epoch > 0 && usize::from(self.write.actor) < visit.clocks.threads;
        if visit.is_engine() && by_thread && !fenced(self) { Err(Conflict::Unfenced) } else { Ok(()) }
    }

    fn after_write(&self, visit: &Visit<'_>) -> Result<(), Conflict> {
        visit.after(self.write.epoch, self.write.actor.into(), self.write.time)
    }

    fn after_reads(&self, visit: &Visit<'_>) -> Result<(), Conflict> {
        if self.read_epoch == 0 {
            return Ok(());
        }
        if usize::from(self.readers) > READERS {
            let first = usize::from(self.reader[0]);
            return match self.read_epoch == visit.clocks.epoch {
                true => Err(Conflict::Race(first)),
                false => visit.after(self.read_epoch, first, UNDER_WAY),
            };
        }
        for i in 0..usize::from(self.readers) {
            visit.after(self.read_epoch, self.reader[i].into(), self.reader_time[i])?;
        }
        Ok(())
    }

    pub fn read(&mut self, visit: Visit<'_>, constant: bool) -> Result<(), Conflict> {
        self.check_state(&visit)?;
        if !self.written {
            return Err(Conflict::Unwritten);
        }
        if constant && self.write.epoch > 0 {
            return Err(Conflict::Constant);
        }
        self.constant |= constant;
        self.after_write(&visit)?;
        self.note_reader(visit);
        Ok(())
    }

    fn note_reader(&mut self, visit: Visit<'_>) {
        let engines = |cell: &Cell| {
            let known = usize::from(cell.readers).min(READERS);
            cell.reader[..known].iter().any(|actor| usize::from(*actor) >= visit.clocks.threads)
        };
        // Reads of threads in earlier epochs are ordered before everything from now on; those of engines are not.
        if self.read_epoch != visit.clocks.epoch && !(self.read_epoch >= visit.clocks.first && engines(self)) {
            self.readers = 0;
        }
        self.read_epoch = visit.clocks.epoch;
        let known = usize::from(self.readers).min(READERS);
        let own = self.reader[..known].iter().position(|actor| usize::from(*actor) == visit.actor);
        let at = own.unwrap_or(known);
        if at < READERS {
            (self.reader[at], self.reader_time[at]) = (visit.actor as u16, visit.time);
        }
        if own.is_none() {
            self.readers = (self.readers + 1).min(READERS as u8 + 1);
        }
    }

    /// An engine's read that was under way is finished.
    pub fn finish_read(&mut self, actor: usize, time: u32) {
        for i in 0..usize::from(self.readers).min(READERS) {
            if usize::from(self.reader[i]) == actor {
                self.reader_time[i] = time;
            }
        }
    }

    /// Whether a write may happen now; it is noted by [`Cell::note_write`].
    pub fn check_write(&self, visit: Visit<'_>) -> Result<(), Conflict> {
        self.check_state(&visit)?;
        if self.constant {
            return Err(Conflict::Constant);
        }
        self.after_write(&visit)?;
        self.after_reads(&visit)
    }

    pub fn note_write(&mut self, visit: Visit<'_>) {
        self.write = Trace { epoch: visit.clocks.epoch, actor: visit.actor as u16, time: visit.time };
        self.fences = visit.clocks.fences;
        (self.read_epoch, self.readers) = (0, 0);
        (self.written, self.atomic) = (true, false);
    }

    /// Reads and writes at once; others that do so may come at any time.
    pub fn update(&mut self, visit: Visit<'_>) -> Result<(), Conflict> {
        self.check_state(&visit)?;
        if !self.written {
            return Err(Conflict::Unwritten);
        }
        if !self.atomic {
            self.after_write(&visit)?;
        }
        self.after_reads(&visit)?;
        if self.constant {
            return Err(Conflict::Constant);
        }
        self.note_write(visit);
        self.atomic = true;
        Ok(())
    }

    /// Use of a barrier, which somebody set up before.
    pub fn use_barrier(&self, visit: Visit<'_>) -> Result<(), Conflict> {
        if !self.barrier {
            return Err(Conflict::Barrier);
        }
        self.after_write(&visit)
    }
}
