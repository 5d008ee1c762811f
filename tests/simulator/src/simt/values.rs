//! Values of a variable in the threads of a block.

use tensorc_ir::scalar::Scalar;

/// One value for all threads, or one for each.
#[derive(Clone, Debug)]
pub(super) enum ThreadValues {
    One(Scalar),
    Each(Vec<Scalar>),
}

impl ThreadValues {
    pub fn of(&self, thread: usize) -> Scalar {
        match self {
            ThreadValues::One(value) => *value,
            ThreadValues::Each(values) => values[thread],
        }
    }
}

/// An index for all threads, or one for each.
#[derive(Clone, Debug)]
pub(super) enum ThreadIndices {
    One(i64),
    Each(Vec<i64>),
}

impl ThreadIndices {
    pub fn of(&self, thread: usize) -> i64 {
        match self {
            ThreadIndices::One(place) => *place,
            ThreadIndices::Each(places) => places[thread],
        }
    }

    pub fn map(self, f: impl Fn(i64) -> i64) -> ThreadIndices {
        match self {
            ThreadIndices::One(place) => ThreadIndices::One(f(place)),
            ThreadIndices::Each(mut places) => {
                places.iter_mut().for_each(|p| *p = f(*p));
                ThreadIndices::Each(places)
            }
        }
    }

    pub fn join(self, other: ThreadIndices, f: impl Fn(i64, i64) -> i64) -> ThreadIndices {
        match (self, other) {
            (ThreadIndices::One(a), ThreadIndices::One(b)) => ThreadIndices::One(f(a, b)),
            (ThreadIndices::One(a), b) => b.map(|b| f(a, b)),
            (a, ThreadIndices::One(b)) => a.map(|a| f(a, b)),
            (ThreadIndices::Each(mut a), ThreadIndices::Each(b)) => {
                a.iter_mut().zip(&b).for_each(|(a, b)| *a = f(*a, *b));
                ThreadIndices::Each(a)
            }
        }
    }
}

/// The threads that execute a statement.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    on: Vec<bool>,
    count: usize,
}

impl Mask {
    pub fn all(threads: usize) -> Mask {
        Mask { on: vec![true; threads], count: threads }
    }

    /// Those of them for which a condition holds.
    pub fn only(&self, mut cond: impl FnMut(usize) -> bool) -> Mask {
        let on: Vec<bool> = self.on.iter().enumerate().map(|(t, on)| *on && cond(t)).collect();
        let count = on.iter().filter(|on| **on).count();
        Mask { on, count }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn is_full(&self) -> bool {
        self.count == self.on.len()
    }

    pub fn threads(&self) -> impl Iterator<Item = usize> + '_ {
        self.on.iter().enumerate().filter(|(_, on)| **on).map(|(t, _)| t)
    }

    /// Whether of every `group` threads all or none are in it.
    pub fn is_whole(&self, group: usize) -> bool {
        self.on.chunks(group).all(|threads| threads.iter().all(|on| *on == threads[0]))
    }
}
