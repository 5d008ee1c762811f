//! Who accessed an element last: finds races between threads, whatever order they are interpreted in.
//!
//! Time in a block is cut into *epochs* by its barriers. Two accesses to one element, one of them a write, race if
//! they are of different blocks, or of different threads of a block in one epoch.

/// A thread of a launch at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub block: u32,
    pub thread: u32,
    pub epoch: u32,
}

/// What is known of the accesses to one element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// Of the last write; block and thread are counted from 1, and 0 is nobody.
    write: Trace,
    /// Of reads since then.
    read: Trace,
}

#[derive(Clone, Copy, Debug, Default)]
struct Trace {
    block: u32,
    thread: u32,
    epoch: u32,
}

/// In place of a block or thread: several.
const MANY: u32 = u32::MAX;

impl Trace {
    fn of(at: Moment) -> Trace {
        Trace { block: at.block + 1, thread: at.thread + 1, epoch: at.epoch }
    }

    /// Whether another thread made this access without a barrier in between.
    fn conflicts(self, at: Moment) -> bool {
        match self.block {
            0 => false,
            block if block != at.block + 1 => true,
            _ => self.epoch == at.epoch && self.thread != at.thread + 1,
        }
    }

    fn joined(self, at: Moment) -> Trace {
        let new = Trace::of(at);
        match self {
            Trace { block: 0, .. } => new,
            Trace { block, .. } if block != new.block => Trace { block: MANY, ..new },
            Trace { epoch, thread, .. } if epoch == new.epoch && thread != new.thread => Trace { thread: MANY, ..new },
            _ => new,
        }
    }
}

impl Cell {
    pub fn is_written(self) -> bool {
        self.write.block != 0
    }

    /// Notes a read; false if it races with a write.
    pub fn read(&mut self, at: Moment) -> bool {
        if self.write.conflicts(at) {
            return false;
        }
        self.read = self.read.joined(at);
        true
    }

    /// Notes a write; false if it races with another access.
    pub fn write(&mut self, at: Moment) -> bool {
        if self.write.conflicts(at) || self.read.conflicts(at) {
            return false;
        }
        *self = Cell { write: Trace::of(at), read: Trace::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u32, thread: u32, epoch: u32) -> Moment {
        Moment { block, thread, epoch }
    }

    #[test]
    fn barriers_order_threads_of_a_block_and_nothing_orders_blocks() {
        let mut cell = Cell::default();
        assert!(cell.write(at(0, 1, 0)) && cell.read(at(0, 1, 0)) && cell.write(at(0, 1, 0)));
        assert!(!cell.clone().read(at(0, 2, 0)), "a read of what another thread writes");
        assert!(cell.read(at(0, 2, 1)) && cell.read(at(0, 3, 1)));
        assert!(!cell.clone().write(at(0, 2, 1)), "a write where another thread reads");
        assert!(cell.clone().write(at(0, 2, 2)));
        assert!(!cell.clone().read(at(1, 0, 9)) && !cell.clone().write(at(1, 0, 9)), "another block");
        let mut only_read = Cell::default();
        assert!(only_read.read(at(0, 0, 0)) && only_read.read(at(1, 0, 0)));
        assert!(!only_read.write(at(0, 0, 5)), "a write where another block reads");
    }
}
