//! A step as a process: its group, what it prints, and how it is ended.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::error::RunnerError;
use super::{Job, Step};
use crate::protocol::Line;

/// The longest line of a step.
const LINE_BYTES: u64 = 1 << 20;
/// How much of what a step last wrote to standard error is kept.
const TAIL_BYTES: usize = 16 << 10;
/// How many lines may wait: a step that prints faster than its records are written has to wait.
const QUEUE: usize = 256;
/// How long a killed process is waited for. One that is stuck in a driver cannot be killed.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// What a process did.
#[derive(Debug)]
pub(super) enum Event {
    /// A line of the protocol, and when it was read.
    Line(Instant, Line),
    /// The first line that is none.
    Stray(String),
    /// A line exceeds the length limit; the rest of the output is discarded.
    LineTooLong,
    /// Standard output or standard error is closed.
    Closed,
    /// The process has ended; others of its group may live on.
    Exited,
}

/// A running step. It is killed when dropped.
pub(super) struct Process {
    child: Child,
    group: Pid,
    events: Receiver<Event>,
    tail: Arc<Mutex<Vec<u8>>>,
    exited: bool,
    /// Whether the system has forgotten the process, after which its number may be that of another.
    reaped: bool,
}

impl Process {
    /// Starts a step, which leaves out the cases named in the file `done`.
    ///
    /// # Errors
    /// The program or a thread cannot be started.
    pub fn start(job: &Job, step: &Step, done: &Path) -> Result<Process, RunnerError> {
        let failed = |source| RunnerError::Start { program: job.program.clone(), source };
        let mut command = Command::new(&job.program);
        command.args(["step", step.name, "--device", &job.device, "--done"]).arg(done);
        command.arg("--failures").arg(job.out.join("failures").join(step.name));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;

        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let group = Pid::from_child(&child);
        let (sender, events) = sync_channel(QUEUE);
        let tail = Arc::new(Mutex::new(vec![]));
        // From here on an error ends the process, too.
        let process = Process { child, group, events, tail: tail.clone(), exited: false, reaped: false };
        let to = sender.clone();
        spawn("step's output", move || forward(stdout, &to)).map_err(failed)?;
        let to = sender.clone();
        spawn("step's errors", move || drain(stderr, &tail, &to)).map_err(failed)?;
        spawn("step's end", move || wait(group, &sender)).map_err(failed)?;
        Ok(process)
    }

    /// The next event, if there is one before `patience` ends.
    pub fn next(&mut self, patience: Duration) -> Option<Event> {
        match self.events.recv_timeout(patience) {
            Ok(event) => {
                self.exited |= matches!(event, Event::Exited);
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // All threads are done, which is told by their last events.
                thread::sleep(patience);
                None
            }
        }
    }

    /// Kills the process and all of its group.
    pub fn kill(&self) {
        // The group can only be gone already: until the process is waited for, its number is not given to another.
        let _ = kill_process_group(self.group, Signal::KILL);
    }

    /// How long a killed process is worth waiting for.
    pub fn kill_wait() -> Duration {
        KILL_WAIT
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended; none if it has not.
    ///
    /// # Errors
    /// The system does not say.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.reaped |= status.is_some();
        Ok(status)
    }

    /// Leaves a process that cannot be killed to itself.
    pub fn give_up(&mut self) {
        self.reaped = true;
    }

    /// What the process last wrote to standard error.
    pub fn tail(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.kill();
        let end = Instant::now() + KILL_WAIT;
        while !self.exited && Instant::now() < end {
            self.next(end.saturating_duration_since(Instant::now()));
        }
        let _ = self.child.try_wait();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Sends the lines of a step until its output ends or nobody listens.
fn forward(stdout: Option<impl Read>, to: &SyncSender<Event>) {
    let Some(stdout) = stdout else { return };
    let mut reader = BufReader::new(stdout);
    let (mut line, mut strayed) = (vec![], false);
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if line.len() as u64 > LINE_BYTES => {
                let _ = to.send(Event::LineTooLong);
                break;
            }
            Ok(_) => {}
        }
        let event = match parse(&line) {
            Some(line) => Event::Line(Instant::now(), line),
            None if strayed || line.trim_ascii().is_empty() => continue,
            None => {
                strayed = true;
                Event::Stray(String::from_utf8_lossy(&line).into_owned())
            }
        };
        if to.send(event).is_err() {
            return;
        }
    }
    let _ = to.send(Event::Closed);
}

/// A line of the protocol whose case has a name that fits on a line of its own.
fn parse(text: &[u8]) -> Option<Line> {
    let line: Line = serde_json::from_slice(text).ok()?;
    match &line {
        Line::Begin { case } | Line::End { case, .. } if case.is_empty() || case.contains(char::is_control) => None,
        _ => Some(line),
    }
}

/// Reads what a step writes to standard error, so that it never waits for that, and keeps the end.
fn drain(stderr: Option<impl Read>, tail: &Mutex<Vec<u8>>, to: &SyncSender<Event>) {
    let Some(mut stderr) = stderr else { return };
    let mut block = [0; 4096];
    loop {
        match stderr.read(&mut block) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(read) => {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(&block[..read]);
                let over = tail.len().saturating_sub(TAIL_BYTES);
                tail.drain(..over);
            }
        }
    }
    let _ = to.send(Event::Closed);
}

/// Tells of the end of a process and leaves it to be waited for, so that its group can still be killed.
fn wait(process: Pid, to: &SyncSender<Event>) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(Errno::INTR) = waitid(WaitId::Pid(process), options) {}
    let _ = to.send(Event::Exited);
}

/// Adds to the text that a step left for people in its folder of failures.
///
/// # Errors
/// It cannot be written.
pub(super) fn keep_tail(folder: &Path, note: &str, tail: &str) -> Result<(), RunnerError> {
    use io::Write;
    let path = folder.join("stderr.txt");
    let write = || {
        fs::create_dir_all(folder)?;
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&path)?;
        writeln!(file, "== {note}\n{}", tail.trim_end())
    };
    write().map_err(RunnerError::file(&path))
}
