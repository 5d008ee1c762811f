//! Runs steps, each as a process of its own, and keeps what they say, so that a run that is killed at any moment is
//! gone on with by the next.
//!
//! The output folder holds `results.jsonl`, the records, which alone are the truth while steps run; `results.json` and
//! `table.md`, which are made of them; `failures/STEP/`, where steps leave what explains a failure, and the runner in
//! `stderr.txt` what a crashed process wrote last; and `done`, the cases that the step running now leaves out.

mod console;
mod error;
mod journal;
mod process;
mod record;
mod report;
mod step;
mod text;
mod watch;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};

use console::Console;
pub use error::RunnerError;
use journal::Journal;
pub use record::{Counts, StepOutcome};
use record::{End, Record, Results};
use step::run_step;
use text::one_line;
use watch::Limits;

/// The step that says whether there is a device.
const DEVICE: &str = "device";
const TIME_OVER: &str = "time is over";

/// A step of the bundle.
#[derive(Clone, Debug)]
pub struct Step {
    /// Also the name of a folder.
    pub name: &'static str,
    pub about: &'static str,
    /// The longest time of the whole step in a run.
    pub limit: Duration,
    /// The longest time from the start to the first case, in a case, and from its end to the next or the end.
    pub quiet: Duration,
    /// Whether it is left out where the step named `device` fails.
    pub needs_device: bool,
}

/// What to run, and where results go.
#[derive(Clone, Debug)]
pub struct Job {
    /// Started as `PROGRAM step NAME --device D --done FILE --failures DIR`.
    pub program: PathBuf,
    pub device: String,
    /// What tells this bundle from others: results of different ones are not mixed.
    pub bundle: String,
    pub out: PathBuf,
    /// The longest time of the whole run.
    pub time: Duration,
    /// Names of the steps to run; empty for all.
    pub only: Vec<String>,
    /// Whether failed cases of finished steps are repeated, and steps that failed as a whole.
    pub again: bool,
    /// Whether the console is a terminal, where lines are rewritten.
    pub terminal: bool,
}

/// What the records say when a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Counts over all steps, including earlier runs.
    pub cases: Counts,
    /// Whether a case or a step has failed or run into its limit.
    pub failed: bool,
    /// Whether nothing is left to a next run of the same steps.
    pub complete: bool,
    /// Whether SIGINT or SIGTERM ended the run.
    pub interrupted: bool,
    /// The table for people.
    pub table: PathBuf,
}

impl Summary {
    /// 0, 1 if anything failed, 130 if a signal ended the run.
    pub fn exit_status(&self) -> u8 {
        match (self.interrupted, self.failed) {
            (true, _) => 130,
            (false, failed) => u8::from(failed),
        }
    }
}

/// Runs the steps that no earlier run with this output folder has finished, in order.
///
/// # Errors
/// The folder is in use or of another bundle or device, a step named in `only` is not there, or the machine refuses:
/// a file cannot be written, the program not be started. What was recorded before stays.
pub fn run(job: &Job, steps: &[Step], console: &mut dyn Write) -> Result<Summary, RunnerError> {
    let selected = select(job, steps)?;
    let deadline = Instant::now().checked_add(job.time);
    let interrupt = Interrupt::new()?;
    let mut journal = Journal::open(&job.out, &job.bundle, &job.device)?;
    let mut console = Console::new(console, job.terminal, selected.len());
    for step in &selected {
        if interrupt.requested() {
            break;
        }
        console.next_step();
        let known = journal.results().step(step.name);
        let again = known.has_failed() && (job.again || step.name == DEVICE);
        let earlier = known.is_finished() && !again;
        if !earlier {
            match why_not(step, &selected, journal.results(), deadline) {
                // A step that has only failed cases to repeat keeps its end.
                Some(_) if known.is_finished() => {}
                Some(end) => journal.append(Record::Ended { step: step.name.into(), end })?,
                None => {
                    let limits =
                        Limits { run: deadline, step: None, quiet: step.quiet, interrupted: &interrupt.requested };
                    let ran = run_step(job, step, again, limits, &mut journal, &mut console);
                    ran.inspect_err(|_| console.leave_line())?;
                }
            }
            report::write(job, steps, journal.results())?;
        }
        console.ended(step.name, journal.results().step(step.name), earlier);
    }
    report::write(job, steps, journal.results())?;
    let summary = summary(job, steps, &selected, journal.results(), interrupt.requested());
    say(&summary, &mut console);
    Ok(summary)
}

fn select<'s>(job: &Job, steps: &'s [Step]) -> Result<Vec<&'s Step>, RunnerError> {
    let names: BTreeSet<&str> = steps.iter().map(|step| step.name).collect();
    if let Some(name) = job.only.iter().find(|name| !names.contains(name.as_str())) {
        let known = steps.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
        return Err(RunnerError::UnknownStep { name: name.clone(), known });
    }
    Ok(steps.iter().filter(|step| job.only.is_empty() || job.only.iter().any(|name| name == step.name)).collect())
}

/// The end of a step that is not started now; the next run tries again.
fn why_not(step: &Step, selected: &[&Step], results: &Results, deadline: Option<Instant>) -> Option<End> {
    let end = |outcome, note| Some(End { outcome, note, seconds: 0.0, broken: false, finished: false });
    let device = results.step(DEVICE);
    let asked = selected.iter().any(|step| step.name == DEVICE);
    if step.needs_device && step.name != DEVICE && asked && device.outcome().is_failure() {
        let case = device.failures().map(|case| case.note.as_str()).find(|note| !note.is_empty());
        let why = case.unwrap_or(if device.note().is_empty() { "step device failed" } else { device.note() });
        return end(StepOutcome::Skipped, format!("no device: {}", one_line(why, 300)));
    }
    match deadline {
        Some(deadline) if deadline <= Instant::now() => end(StepOutcome::NotRun, TIME_OVER.to_owned()),
        _ => None,
    }
}

fn summary(job: &Job, steps: &[Step], selected: &[&Step], results: &Results, interrupted: bool) -> Summary {
    let cases = report::counts(steps, results);
    Summary {
        cases,
        failed: steps.iter().any(|step| results.step(step.name).has_failed()),
        complete: selected.iter().all(|step| results.step(step.name).is_finished()),
        interrupted,
        table: job.out.join("table.md"),
    }
}

fn say(summary: &Summary, console: &mut Console<'_>) {
    let Counts { passed, failed, skipped, not_run } = summary.cases;
    console.line(&format!("{passed} cases passed, {failed} failed, {skipped} skipped, {not_run} not run"));
    if !summary.complete {
        console.line("not all is run: the same command goes on where this run ended");
    }
    console.line(&format!("table: {}", summary.table.display()));
}

/// Listens to SIGINT and SIGTERM.
struct Interrupt {
    requested: Arc<AtomicBool>,
    listeners: Vec<SigId>,
}

impl Interrupt {
    fn new() -> Result<Interrupt, RunnerError> {
        let mut interrupt = Interrupt { requested: Arc::new(AtomicBool::new(false)), listeners: vec![] };
        for signal in [SIGINT, SIGTERM] {
            let listener = signal_hook::flag::register(signal, interrupt.requested.clone());
            interrupt.listeners.push(listener.map_err(RunnerError::Signals)?);
        }
        Ok(interrupt)
    }

    fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for listener in self.listeners.drain(..) {
            signal_hook::low_level::unregister(listener);
        }
    }
}
