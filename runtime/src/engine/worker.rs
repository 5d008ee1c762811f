//! The loop of a worker, and threads that run operations while they wait.
//!
//! Empty operations are fastest on one worker: two would spend more on each other's cache lines than
//! on operations. So while operations are short, one worker of a lane runs them and another is on
//! the *watch*: it sleeps and looks after some microseconds whether the first one is still making
//! progress. If not, the first counts as *stalled* in a long operation, and the watcher takes over.
//! Once operations are long enough, all workers run.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::complete::enter;
use super::lane::{Activity, Doorbell, MAX_SHORT_OP_NS};
use super::run::{Seat, run};
use super::sched::{Effects, Sched, Shared};
use super::state::OpId;
use crate::pool::sync::Backoff;

/// First and longest time between two looks of a watcher.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));
/// Short operations of which one is measured.
const SAMPLE: u32 = 8;

/// A worker's view while it holds the lock.
struct Worker<'a> {
    shared: &'a Arc<Shared>,
    doorbell: Arc<Doorbell>,
    lane: usize,
    seat: Seat,
    effects: Effects,
    until_sample: u32,
    nap: Duration,
}

/// Serves a lane until the engine stops.
pub fn work(shared: &Arc<Shared>, lane: usize, seat: Seat) {
    enter(shared);
    let mut sched = shared.lock();
    let doorbell = sched.doorbells[lane].clone();
    let effects = Effects::default();
    let mut worker = Worker { shared, doorbell, lane, seat, effects, until_sample: 0, nap: NAPS.0 };
    loop {
        shared.take_in(&mut sched, lane, &mut worker.effects);
        if worker.may_run(&mut sched)
            && let Some(op) = sched.lanes[lane].ready.pop()
        {
            sched = worker.run(sched, op);
            continue;
        }
        if sched.exiting && sched.lanes[lane].ready.is_empty() {
            sched.lanes[lane].set(seat.worker, Activity::Gone);
            shared.leave(sched, &mut worker.effects);
            return;
        }
        sched = worker.idle(sched);
    }
}

impl<'a> Worker<'a> {
    /// Whether this worker should run what is ready: it is the only one, or there is enough to do.
    fn may_run(&mut self, sched: &mut Sched) -> bool {
        let lane = &sched.lanes[self.lane];
        let me = lane.activity(self.seat.worker);
        let others = lane.count(Activity::Running) - usize::from(me == Activity::Running);
        !lane.ready.is_empty() && (others == 0 || lane.spreads() || sched.exiting)
    }

    fn run(&mut self, mut sched: MutexGuard<'a, Sched>, op: OpId) -> MutexGuard<'a, Sched> {
        let Some((receipt, mut job)) = sched.take(op, &mut self.effects) else { return sched };
        self.nap = NAPS.0;
        self.change(&mut sched, Activity::Running);
        let lane = &mut sched.lanes[self.lane];
        lane.taken += 1;
        let measure = self.until_sample == 0 || lane.spreads();
        self.until_sample = if measure { SAMPLE } else { self.until_sample - 1 };
        self.shared.leave(sched, &mut self.effects);
        let start = measure.then(Instant::now);
        let outcome = run(self.shared, self.seat, receipt, &mut job);
        let elapsed = start.map(|start| start.elapsed());
        let mut sched = self.shared.lock();
        if let Some(elapsed) = elapsed {
            sched.lanes[self.lane].measured(elapsed.as_nanos() as u64);
        }
        sched.lanes[self.lane].revive(self.seat.worker);
        sched.done(receipt, outcome, &mut self.effects);
        sched
    }

    /// Changes what this worker does, and what pushing threads must know about the lane.
    fn change(&mut self, sched: &mut Sched, activity: Activity) {
        let lane = &mut sched.lanes[self.lane];
        lane.set(self.seat.worker, activity);
        let wake = lane.unwatched();
        if lane.wake == wake {
            return;
        }
        let mut inbox = self.shared.lock_inbox();
        if wake && !inbox.halted && !inbox.batch.is_empty() {
            // Pushed before anybody could know that it must be announced.
            self.effects.rings.push(self.doorbell.clone());
            return;
        }
        lane.wake = wake;
        inbox.routes[self.lane].wake = wake;
    }

    /// Waits, in the way that suits the lane, until there may be something to do.
    fn idle(&mut self, mut sched: MutexGuard<'a, Sched>) -> MutexGuard<'a, Sched> {
        let lane = &sched.lanes[self.lane];
        let me = lane.activity(self.seat.worker);
        let others = lane.count(Activity::Running) - usize::from(me == Activity::Running);
        if others > 0 && !lane.spreads() {
            return self.watch(sched);
        }
        if lane.count(Activity::Spinning) == 0 && me != Activity::Asleep {
            if let Some(sched) = self.spin(sched) {
                return sched;
            }
            sched = self.shared.lock();
            // Another lane's worker may have taken the inbox and left some of it.
            if !sched.lanes[self.lane].ready.is_empty()
                || sched.has_incoming()
                || (!sched.halted && self.shared.mail.0.any.load(Ordering::Relaxed))
            {
                return sched;
            }
        }
        self.sleep(sched)
    }

    fn publish(&mut self, mut sched: MutexGuard<'a, Sched>, activity: Activity) {
        self.change(&mut sched, activity);
        self.shared.leave(sched, &mut self.effects);
    }

    /// Looks for work without sleeping; none if that took too long.
    fn spin(&mut self, sched: MutexGuard<'a, Sched>) -> Option<MutexGuard<'a, Sched>> {
        self.doorbell.attention.store(false, Ordering::Relaxed);
        let halted = sched.halted;
        self.publish(sched, Activity::Spinning);
        let mut backoff = Backoff::new();
        loop {
            let mail = !halted && self.shared.mail.0.any.load(Ordering::Relaxed);
            if mail || self.doorbell.attention.load(Ordering::Relaxed) {
                return Some(self.shared.lock());
            }
            if !backoff.spin() {
                return None;
            }
        }
    }

    fn sleep(&mut self, sched: MutexGuard<'a, Sched>) -> MutexGuard<'a, Sched> {
        self.publish(sched, Activity::Asleep);
        self.doorbell.sleep(None);
        self.got_up()
    }

    fn got_up(&mut self) -> MutexGuard<'a, Sched> {
        let mut sched = self.shared.lock();
        let lane = &mut sched.lanes[self.lane];
        // Who rang may have been a push, which took back the announcement.
        (lane.called, lane.wake) = (false, false);
        lane.set(self.seat.worker, Activity::Looking);
        sched
    }

    fn watch(&mut self, sched: MutexGuard<'a, Sched>) -> MutexGuard<'a, Sched> {
        let (before, start) = (sched.lanes[self.lane].taken, Instant::now());
        self.publish(sched, Activity::Watching);
        self.doorbell.sleep(Some(self.nap));
        self.nap = (self.nap * 2).min(NAPS.1);
        let mut sched = self.got_up();
        let lane = &mut sched.lanes[self.lane];
        let taken = lane.taken - before;
        if taken == 0 {
            lane.stall_running();
        } else if !lane.ready.is_empty() {
            let each = start.elapsed().as_nanos() as u64 / taken;
            if each >= MAX_SHORT_OP_NS {
                lane.measured(each);
            }
        }
        sched
    }
}

/// Runs ready operations on a thread that is no worker until `done`, sleeping while there are none.
pub fn help(shared: &Arc<Shared>, mut done: impl FnMut(&Sched) -> bool) {
    let seat = Seat { worker: 0, stream: 0 };
    let mut effects = Effects::default();
    let mut sched = shared.lock();
    loop {
        shared.take_in_all(&mut sched, &mut effects);
        let lane = sched.lanes.iter().position(|lane| !lane.ready.is_empty());
        if let Some(op) = lane.and_then(|lane| sched.lanes[lane].ready.pop()) {
            let Some((receipt, mut job)) = sched.take(op, &mut effects) else { continue };
            shared.leave(sched, &mut effects);
            let outcome = run(shared, seat, receipt, &mut job);
            sched = shared.lock();
            sched.done(receipt, outcome, &mut effects);
            continue;
        }
        let finished = done(&sched);
        if finished || effects.any() || sched.rounds.is_due() {
            shared.leave(sched, &mut effects);
            if finished {
                return;
            }
            sched = shared.lock();
            continue;
        }
        sched.helpers += 1;
        sched = shared.progress.wait(sched).unwrap_or_else(PoisonError::into_inner);
        sched.helpers -= 1;
    }
}
