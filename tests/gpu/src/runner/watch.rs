//! One start of a step: follows its process until it ends or has to be ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::RunnerError;
use super::process::{Event, Process};
use crate::protocol::Line;

/// The longest time without a look at signals and the console.
const TICK: Duration = Duration::from_millis(100);
/// How long what an ended process has printed is waited for: one it started may keep its output open for ever.
const DRAIN_IDLE: Duration = Duration::from_secs(1);
const DRAIN_ALL: Duration = Duration::from_secs(30);

/// When a step has to be ended.
#[derive(Clone, Copy)]
pub(super) struct Limits<'r> {
    /// End of the time of the whole run; none if that is beyond what a clock can tell.
    pub run: Option<Instant>,
    pub step: Option<Instant>,
    pub quiet: Duration,
    /// Set by a signal.
    pub interrupted: &'r AtomicBool,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    Status(i32),
    Signal(i32),
    /// It was killed when it had been quiet for too long in this case, or outside of one.
    Quiet(Option<String>),
    LineTooLong,
    Limit,
    TimeOver,
    Interrupted,
}

/// What became of a process.
pub(super) struct Ending {
    pub how: How,
    /// Its id if it could not be killed.
    pub stuck: Option<u32>,
    /// The end of its standard error.
    pub tail: String,
}

/// Who is told what a process says.
pub(super) trait Listener {
    /// A line of the protocol.
    fn line(&mut self, line: Line) -> Result<(), RunnerError>;
    /// The first line that is none.
    fn stray(&mut self, text: &str);
    /// The case that was begun and has not ended.
    fn open_case(&self) -> Option<&str>;
    /// Called several times a second.
    fn tick(&mut self);
}

struct Watch<'r> {
    limits: Limits<'r>,
    /// When the process started, or a case began or ended last.
    since: Instant,
    /// Why and when the process was killed.
    killed: Option<(How, Instant)>,
    exited: Option<Instant>,
    /// Whether standard output and standard error are closed.
    closed: usize,
    last_event: Instant,
}

/// Follows a process to its end.
///
/// # Errors
/// Those of the listener, or the system does not say how the process ended.
pub(super) fn watch(mut process: Process, limits: Limits<'_>, to: &mut dyn Listener) -> Result<Ending, RunnerError> {
    let now = Instant::now();
    let mut watch = Watch { limits, since: now, killed: None, exited: None, closed: 0, last_event: now };
    while !watch.is_over(Instant::now()) {
        let event = process.next(watch.patience(Instant::now()));
        to.tick();
        let idle = event.is_none();
        if let Some(event) = event {
            watch.handle(event, &process, to)?;
        }
        if watch.killed.is_none() && watch.exited.is_none() {
            watch.killed = watch.due(idle, to).map(|how| (how, Instant::now()));
            if watch.killed.is_some() {
                process.kill();
            }
        }
    }
    watch.ending(process)
}

impl Watch<'_> {
    fn handle(&mut self, event: Event, process: &Process, to: &mut dyn Listener) -> Result<(), RunnerError> {
        self.last_event = Instant::now();
        match event {
            Event::Line(at, line) => {
                if !matches!(line, Line::Count { .. }) {
                    self.since = at;
                }
                to.line(line)?;
            }
            Event::Stray(text) => to.stray(&text),
            Event::LineTooLong => {
                process.kill();
                self.killed.get_or_insert((How::LineTooLong, Instant::now()));
            }
            Event::Closed => self.closed += 1,
            Event::Exited => {
                self.exited = Some(Instant::now());
                // What the process has started must not keep the device.
                process.kill();
            }
        }
        Ok(())
    }

    /// Why the process has to be ended now. Whether it is quiet is known only once all it said has been heard.
    fn due(&self, idle: bool, to: &dyn Listener) -> Option<How> {
        let now = Instant::now();
        let past = |end: Option<Instant>| end.is_some_and(|end| end <= now);
        if self.limits.interrupted.load(Ordering::Relaxed) {
            Some(How::Interrupted)
        } else if past(self.limits.run) {
            Some(How::TimeOver)
        } else if past(self.limits.step) {
            Some(How::Limit)
        } else if idle && past(self.quiet_end()) {
            Some(How::Quiet(to.open_case().map(str::to_owned)))
        } else {
            None
        }
    }

    fn quiet_end(&self) -> Option<Instant> {
        self.since.checked_add(self.limits.quiet)
    }

    /// How long to wait for an event.
    fn patience(&self, now: Instant) -> Duration {
        let ends = [self.limits.run, self.limits.step, self.quiet_end()];
        let next = ends.into_iter().flatten().map(|end| end.saturating_duration_since(now)).min();
        match self.killed.is_some() || self.exited.is_some() {
            true => TICK,
            false => next.map_or(TICK, |next| next.min(TICK)),
        }
    }

    /// Whether nothing more is to be heard of the process.
    fn is_over(&self, now: Instant) -> bool {
        let passed = |since: Instant, time: Duration| now.saturating_duration_since(since) >= time;
        match (self.exited, &self.killed) {
            (Some(exited), _) => self.closed == 2 || passed(self.last_event, DRAIN_IDLE) || passed(exited, DRAIN_ALL),
            (None, Some((_, killed))) => passed(*killed, Process::kill_wait()),
            (None, None) => false,
        }
    }

    fn ending(self, mut process: Process) -> Result<Ending, RunnerError> {
        use std::os::unix::process::ExitStatusExt;
        let status = process.status().map_err(RunnerError::Wait)?;
        let how = match (self.killed, status) {
            (Some((how, _)), _) => how,
            (None, Some(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => How::Status(code),
                (None, signal) => How::Signal(signal.unwrap_or(0)),
            },
            (None, None) => return Err(RunnerError::Wait(std::io::Error::other("no exit status"))),
        };
        let stuck = if status.is_none() { Some(process.id()) } else { None };
        let tail = process.tail();
        if stuck.is_some() {
            process.give_up();
        }
        Ok(Ending { how, stuck, tail })
    }
}
