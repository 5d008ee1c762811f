//! Who accessed an element last: finds races between threads, whatever order they are interpreted in.
//!
//! Each warp of a block, and the copy engine on behalf of each, is an *actor* with a time of its own, which goes on when the
//! actor tells others what it did: at a barrier. [`Clocks`] hold up to which time of every actor an actor has been told.
//! Two accesses to one element, one of them a write, race if they are of different blocks, or of different threads of a block and
//! the earlier one is not among what the later one's actor has been told.

use tensorc_ir::kir::WARP;

/// Warps of a block.
const WARPS: usize = 32;

/// Times of all actors: warps, then copy engines.
pub(super) type Times = [u32; 2 * WARPS];

/// The number by which accesses of the copy engine on behalf of a warp go, beyond those of threads.
pub(super) const fn engine(warp: usize) -> usize {
    WARPS * WARP + warp
}

const fn actor(thread: usize) -> usize {
    if thread < WARPS * WARP { thread / WARP } else { thread - WARPS * WARP + WARPS }
}

/// A thread of a launch at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    pub block: u32,
    pub thread: usize,
    time: u32,
    /// What its actor has been told.
    known: &'a Times,
}

/// What the actors of a block know of each other.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    time: Times,
    known: Vec<Times>,
}

impl Clocks {
    pub fn new() -> Clocks {
        Clocks { time: [1; 2 * WARPS], known: vec![[0; 2 * WARPS]; 2 * WARPS] }
    }

    pub fn moment(&self, block: u32, thread: usize) -> Moment<'_> {
        let actor = actor(thread);
        Moment { block, thread, time: self.time[actor], known: &self.known[actor] }
    }

    /// All of a warp's threads meet and tell each other; what the warp knows and did.
    pub fn release(&mut self, warp: usize) -> Times {
        self.advance(warp);
        self.known[warp]
    }

    /// A warp is told something.
    pub fn acquire(&mut self, warp: usize, told: &Times) {
        join(&mut self.known[warp], told);
    }

    /// The copy engine begins something for a warp, knowing what that knows and did; what it will tell when it is done.
    pub fn engage(&mut self, warp: usize) -> Times {
        let known = self.release(warp);
        let engine = actor(engine(warp));
        join(&mut self.known[engine], &known);
        self.time[engine] += 1;
        let mut told = [0; 2 * WARPS];
        told[engine] = self.time[engine];
        told
    }

    /// All warps tell each other.
    pub fn meet(&mut self) {
        let mut all = [0; 2 * WARPS];
        for warp in 0..WARPS {
            self.advance(warp);
            join(&mut all, &self.known[warp]);
        }
        self.known[..WARPS].fill(all);
    }

    fn advance(&mut self, actor: usize) {
        self.known[actor][actor] = self.time[actor];
        self.time[actor] += 1;
    }
}

/// Adds what one has been told to what another has.
pub(super) fn join(times: &mut Times, other: &Times) {
    times.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(*b));
}

/// What is known of the accesses to one element.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    /// Of the last write; block and thread are counted from 1, and 0 is nobody.
    write: AccessTrace,
    /// Of the last read since then, and of earlier ones that its actor has not been told of.
    read: AccessTrace,
    others: Vec<AccessTrace>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AccessTrace {
    block: u32,
    actor: u16,
    thread: u16,
    time: u32,
}

/// In place of a block or thread: several.
const MANY: u16 = u16::MAX;
const MANY_BLOCKS: u32 = u32::MAX;

impl AccessTrace {
    fn of(at: Moment<'_>) -> AccessTrace {
        AccessTrace { block: at.block + 1, actor: actor(at.thread) as u16, thread: at.thread as u16 + 1, time: at.time }
    }

    /// Whether another thread made this access and nobody has told.
    fn conflicts(self, at: Moment<'_>) -> bool {
        match self.block {
            0 => false,
            block if block != at.block + 1 => true,
            _ => {
                let own = usize::from(self.thread) == at.thread + 1 && at.thread < engine(0);
                !own && self.time > at.known[usize::from(self.actor)]
            }
        }
    }
}

impl Cell {
    pub fn is_written(&self) -> bool {
        self.write.block != 0
    }

    /// Whether the last write, if any, does not race with an access.
    pub fn is_visible(&self, at: Moment<'_>) -> bool {
        !self.write.conflicts(at)
    }

    /// Notes a read; false if it races with a write.
    pub fn read(&mut self, at: Moment<'_>) -> bool {
        if self.write.conflicts(at) {
            return false;
        }
        let new = AccessTrace::of(at);
        let old = self.read;
        self.read = match old {
            AccessTrace { block: 0, .. } => new,
            AccessTrace { block, .. } if block != new.block => AccessTrace { block: MANY_BLOCKS, ..new },
            AccessTrace { actor, time, thread, .. }
                if actor == new.actor && time == new.time && thread != new.thread =>
            {
                AccessTrace { thread: MANY, ..new }
            }
            _ => {
                if old.conflicts(at) {
                    self.others.push(old);
                }
                new
            }
        };
        self.others.retain(|other| other.conflicts(at));
        true
    }

    /// Notes a write; false if it races with another access.
    pub fn write(&mut self, at: Moment<'_>) -> bool {
        let mut earlier = [self.write, self.read].into_iter().chain(self.others.iter().copied());
        if earlier.any(|trace| trace.conflicts(at)) {
            return false;
        }
        *self = Cell { write: AccessTrace::of(at), ..Cell::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_threads_of_a_block_and_nothing_orders_blocks() {
        let mut clocks = Clocks::new();
        let mut cell = Cell::default();
        let at = |c: &Clocks, thread: usize, f: &mut dyn FnMut(Moment<'_>) -> bool| f(c.moment(0, thread));
        assert!(at(&clocks, 1, &mut |m| cell.write(m) && cell.read(m) && cell.write(m)));
        assert!(!at(&clocks, 2, &mut |m| cell.clone().read(m)), "a read of what another thread writes");
        clocks.meet();
        assert!(at(&clocks, 2, &mut |m| cell.read(m)) && at(&clocks, 40, &mut |m| cell.read(m)));
        assert!(!at(&clocks, 2, &mut |m| cell.clone().write(m)), "a write where another thread reads");
        clocks.meet();
        assert!(at(&clocks, 2, &mut |m| cell.clone().write(m)));
        let other = clocks.moment(1, 0);
        assert!(!cell.clone().read(other) && !cell.clone().write(other), "another block");
        let mut only_read = Cell::default();
        assert!(only_read.read(clocks.moment(0, 0)) && only_read.read(clocks.moment(1, 0)));
        assert!(!only_read.write(clocks.moment(0, 0)), "a write where another block reads");
    }

    /// Warps 0 and 1 read, and tell warp 2 one after the other.
    #[test]
    fn a_writer_must_be_told_by_every_reader() {
        let mut clocks = Clocks::new();
        let mut cell = Cell::default();
        assert!(cell.write(clocks.moment(0, 0)));
        clocks.meet();
        assert!(cell.read(clocks.moment(0, 0)) && cell.read(clocks.moment(0, 32)) && cell.read(clocks.moment(0, 33)));
        let told = clocks.release(1);
        clocks.acquire(2, &told);
        assert!(!cell.clone().write(clocks.moment(0, 64)), "warp 0 has told nothing");
        let told = clocks.release(0);
        clocks.acquire(2, &told);
        assert!(cell.clone().write(clocks.moment(0, 64)));
        // The copy engine knows what its warp does; others know what it did when they are told.
        let told = clocks.engage(2);
        assert!(cell.write(clocks.moment(0, engine(2))));
        assert!(!cell.clone().write(clocks.moment(0, engine(2))), "copies of one warp are in no order");
        assert!(!cell.clone().read(clocks.moment(0, 64)) && !cell.clone().read(clocks.moment(0, 0)));
        clocks.acquire(0, &told);
        assert!(cell.clone().read(clocks.moment(0, 0)) && !cell.clone().read(clocks.moment(0, 64)));
    }
}
