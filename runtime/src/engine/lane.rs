//! Queues of ready operations and the accounts of the workers that serve them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::op::{EngineConfig, EngineKind, Property};
use super::state::OpId;
use crate::device::{Device, DeviceKind};

/// What the workers of a lane serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneId {
    pub device: Device,
    pub work: LaneWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneWork {
    Any,
    Compute,
    Copy,
    Prioritized,
}

impl LaneId {
    /// The queue of an operation.
    pub fn of(kind: EngineKind, device: Device, property: Property) -> LaneId {
        if kind != EngineKind::PerDevice {
            return LaneId { device: Device::default(), work: LaneWork::Any };
        }
        let work = match (property, device.kind) {
            (Property::Prioritized, _) => LaneWork::Prioritized,
            (Property::CopyToDevice | Property::CopyFromDevice, DeviceKind::Accelerator) => LaneWork::Copy,
            _ => LaneWork::Compute,
        };
        LaneId { device, work }
    }

    pub fn workers(self, config: &EngineConfig) -> usize {
        match (config.kind, self.work, self.device.kind) {
            (EngineKind::Naive, ..) => 0,
            (_, LaneWork::Prioritized, _) => config.priority_workers,
            (_, LaneWork::Copy, _) => config.copy_workers,
            (_, LaneWork::Compute, DeviceKind::Accelerator) => config.accelerator_workers,
            _ => config.cpu_workers,
        }
    }

    pub fn thread_name(self, worker: usize) -> String {
        let work = match self.work {
            LaneWork::Any | LaneWork::Compute => "",
            LaneWork::Copy => "-copy",
            LaneWork::Prioritized => "-prio",
        };
        format!("{}{work}-{worker}", self.device)
    }
}

/// Ready operations by priority, first-in-first-out among equals.
#[derive(Default)]
pub struct ReadyQueue {
    /// Those of priority 0, the usual one.
    plain: VecDeque<OpId>,
    /// The others, by priority and order of arrival.
    above: BinaryHeap<(i32, Reverse<u64>, OpId)>,
    below: BinaryHeap<(i32, Reverse<u64>, OpId)>,
    arrivals: u64,
}

impl ReadyQueue {
    pub fn push(&mut self, op: OpId, priority: i32) {
        if priority == 0 {
            return self.plain.push_back(op);
        }
        self.arrivals += 1;
        let heap = if priority > 0 { &mut self.above } else { &mut self.below };
        heap.push((priority, Reverse(self.arrivals), op));
    }

    pub fn pop(&mut self) -> Option<OpId> {
        if let Some((_, _, op)) = self.above.pop() {
            return Some(op);
        }
        self.plain.pop_front().or_else(|| self.below.pop().map(|(_, _, op)| op))
    }

    pub fn len(&self) -> usize {
        self.plain.len() + self.above.len() + self.below.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the sleeping workers of a lane are woken.
#[derive(Default)]
pub struct Doorbell {
    /// Workers that may get up.
    permits: Mutex<usize>,
    rung: Condvar,
    /// Tells a spinning worker that its lane has ready operations.
    pub attention: AtomicBool,
}

impl Doorbell {
    pub fn ring(&self) {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        *permits = permits.saturating_add(1);
        drop(permits);
        self.rung.notify_one();
    }

    /// Wakes all workers, and keeps them from sleeping until [`Doorbell::reset`].
    pub fn dismiss(&self) {
        *self.permits.lock().unwrap_or_else(PoisonError::into_inner) = usize::MAX;
        self.rung.notify_all();
    }

    pub fn reset(&self) {
        *self.permits.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    /// Sleeps until rung, or for at most `limit`.
    pub fn sleep(&self, limit: Option<Duration>) {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        while *permits == 0 {
            match limit {
                None => permits = self.rung.wait(permits).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let (guard, timeout) =
                        self.rung.wait_timeout(permits, limit).unwrap_or_else(PoisonError::into_inner);
                    permits = guard;
                    if timeout.timed_out() {
                        break;
                    }
                }
            }
        }
        if *permits != usize::MAX {
            *permits = permits.saturating_sub(1);
        }
    }

    pub fn call_spinner(&self) {
        self.attention.store(true, Ordering::Release);
    }
}

/// What a worker is doing. Guarded by the scheduler's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Not started, or ended.
    Gone,
    /// About to take something or to become idle.
    Looking,
    /// Runs operations.
    Running,
    /// Has been in one operation for long while others were to be run.
    Stalled,
    /// Looks for work all the time.
    Spinning,
    /// Looks for work every now and then, in case that a running worker is stuck.
    Watching,
    /// Waits to be woken.
    Asleep,
}

/// An operation shorter than this is not worth a second worker: what the workers would spend on
/// each other's cache lines is more than that.
pub const MAX_SHORT_OP_NS: u64 = 900;
/// Queued work that is worth waking a worker.
const WAKE_NS: u64 = 10_000;

/// A queue of ready operations with the accounts of its workers.
pub struct WorkQueue {
    pub queue: LaneId,
    pub ready: ReadyQueue,
    activities: Vec<Activity>,
    /// Workers by [`Activity`].
    counts: [usize; 7],
    /// Moving average of the time an operation takes.
    pub cost_ns: u64,
    /// Operations taken by workers so far.
    pub taken: u64,
    /// A worker was called and has not come yet.
    pub called: bool,
    /// The value of [`super::inbox::Route::wake`] as last set.
    pub wake: bool,
}

impl WorkQueue {
    pub fn new(queue: LaneId, workers: usize) -> WorkQueue {
        let mut counts = [0; 7];
        counts[Activity::Gone as usize] = workers;
        WorkQueue {
            queue,
            ready: ReadyQueue::default(),
            activities: vec![Activity::Gone; workers],
            counts,
            cost_ns: MAX_SHORT_OP_NS,
            taken: 0,
            called: false,
            wake: false,
        }
    }

    pub fn workers(&self) -> usize {
        self.activities.len()
    }

    pub fn activity(&self, worker: usize) -> Activity {
        self.activities[worker]
    }

    pub fn count(&self, activity: Activity) -> usize {
        self.counts[activity as usize]
    }

    pub fn set(&mut self, worker: usize, activity: Activity) {
        let before = std::mem::replace(&mut self.activities[worker], activity);
        self.counts[before as usize] -= 1;
        self.counts[activity as usize] += 1;
    }

    /// A worker comes back from an operation.
    pub fn revive(&mut self, worker: usize) {
        if self.activities[worker] == Activity::Stalled {
            self.set(worker, Activity::Running);
        }
    }

    /// All running workers are in long operations.
    pub fn stall_running(&mut self) {
        for worker in 0..self.activities.len() {
            if self.activities[worker] == Activity::Running {
                self.set(worker, Activity::Stalled);
            }
        }
    }

    /// Whether operations are long enough for several workers.
    pub fn spreads(&self) -> bool {
        self.cost_ns >= MAX_SHORT_OP_NS
    }

    fn idle(&self) -> usize {
        self.count(Activity::Watching) + self.count(Activity::Asleep)
    }

    /// Whether a worker sleeps and nobody would find new work in good time.
    pub fn unwatched(&self) -> bool {
        self.idle() > 0
            && self.count(Activity::Spinning) + self.count(Activity::Looking) == 0
            && (self.count(Activity::Running) == 0 || self.count(Activity::Watching) == 0)
    }

    /// Whether to wake a worker for what is ready and nobody has taken.
    pub fn wants_help(&self) -> bool {
        if self.ready.is_empty() || self.called || self.idle() == 0 || self.count(Activity::Spinning) > 0 {
            return false;
        }
        let work = self.cost_ns.saturating_mul(self.ready.len() as u64);
        self.unwatched() || (self.spreads() && work >= WAKE_NS)
    }

    /// Takes one measured operation into the average. A single long one, such as one that the
    /// operating system interrupted, moves it little.
    pub fn measured(&mut self, ns: u64) {
        let ns = ns.min(4 * self.cost_ns + MAX_SHORT_OP_NS / 2);
        self.cost_ns = (3 * self.cost_ns + ns) / 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_come_first_and_equals_in_order() {
        let mut queue = ReadyQueue::default();
        let pushed = [(0, 0), (1, -5), (2, 3), (3, 0), (4, 3), (5, i32::MAX), (6, i32::MIN), (7, -5)];
        pushed.iter().for_each(|&(op, priority)| queue.push(OpId(op), priority));
        assert_eq!(queue.len(), pushed.len());
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|op| op.0).collect();
        assert_eq!(order, [5, 2, 4, 0, 3, 1, 7, 6]);
        assert!(queue.is_empty());
    }
}
