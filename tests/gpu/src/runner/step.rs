//! A step from its first start to its end: what a crash means for its cases, and when it is started again.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::console::Console;
use super::error::RunnerError;
use super::journal::Journal;
use super::process::{Process, keep_tail};
use super::record::{CaseResult, End, Record, StepOutcome, StepResults};
use super::text::{one_line, seconds};
use super::watch::{Ending, How, Limits, Listener, watch};
use super::{Job, Step};
use crate::protocol::{CONTEXT_LOST, Line, Outcome};

/// How often a step is started again.
const RESTARTS: usize = 50;
/// The most characters of a note that the runner makes of what a step printed.
const NOTE: usize = 300;

/// A step that is being run.
struct StepRun<'r, 'c> {
    job: &'r Job,
    step: &'r Step,
    journal: &'r mut Journal,
    console: &'r mut Console<'c>,
    started: Instant,
    /// Cases to be repeated that have not been yet.
    again: BTreeSet<String>,
    /// The case that was begun and has not ended, and when it began.
    open: Option<(String, Instant)>,
    /// Cases that ended since the last start.
    ended: usize,
    /// Whether the step said since the last start how many cases it has.
    counted: bool,
    strayed: bool,
    notes: Vec<String>,
    /// Whether the step failed as a whole.
    broken: bool,
}

/// What follows a start.
enum Next {
    Restart,
    /// All is said; the cases decide whether the step has failed.
    Finished,
    Cut(StepOutcome),
}

/// Runs what is left of a step, with its failed cases if they are to be repeated. All that comes of it is recorded.
///
/// # Errors
/// Those of the machine: programs that cannot be started, files that cannot be written.
pub(super) fn run_step<'r>(
    job: &'r Job,
    step: &'r Step,
    again: bool,
    mut limits: Limits<'r>,
    journal: &'r mut Journal,
    console: &'r mut Console<'_>,
) -> Result<(), RunnerError> {
    let started = Instant::now();
    limits.step = started.checked_add(step.limit);
    limits.quiet = step.quiet;
    let known = journal.results().step(step.name);
    let again = known.failures().filter(|_| again).map(|case| case.case.clone()).collect();
    journal.append(Record::Started { step: step.name.into() })?;
    let mut run = StepRun {
        job,
        step,
        journal,
        console,
        started,
        again,
        open: None,
        ended: 0,
        counted: false,
        strayed: false,
        notes: vec![],
        broken: false,
    };
    let cut = run.start_until_over(limits)?;
    run.end(cut)
}

impl StepRun<'_, '_> {
    fn results(&self) -> &StepResults {
        self.journal.results().step(self.step.name)
    }

    /// Starts the step until it is through; an outcome if it was cut off.
    fn start_until_over(&mut self, limits: Limits<'_>) -> Result<Option<StepOutcome>, RunnerError> {
        let mut restarts = 0;
        let cut = loop {
            (self.open, self.ended, self.counted) = (None, 0, false);
            let process = Process::start(self.job, self.step, &self.write_done()?)?;
            let ending = watch(process, limits, self)?;
            match self.judge(ending)? {
                Next::Restart if restarts == RESTARTS => {
                    self.fail(format!("started again {RESTARTS} times and not through"));
                    return Ok(None);
                }
                Next::Restart => restarts += 1,
                Next::Finished => break None,
                Next::Cut(outcome) => break Some(outcome),
            }
        };
        if restarts > 0 {
            self.notes.push(format!("restarts: {restarts}"));
        }
        Ok(cut)
    }

    /// The file with the names of the cases that the step leaves out.
    fn write_done(&self) -> Result<PathBuf, RunnerError> {
        let path = self.job.out.join("done");
        let done = self.results().cases.iter().filter(|case| !self.again.contains(&case.case));
        let text: String = done.flat_map(|case| [&case.case, "\n"]).collect();
        fs::write(&path, text).map_err(RunnerError::file(&path))?;
        Ok(path)
    }

    /// What the end of a process means for the case that was begun and for the step.
    fn judge(&mut self, ending: Ending) -> Result<Next, RunnerError> {
        let Ending { how, stuck, tail } = ending;
        if let Some(id) = stuck {
            self.notes.push(format!("process {id} cannot be ended, as if the driver holds it"));
        }
        let last = last_line(&tail);
        let fault = match &how {
            How::Status(0) if self.open.is_none() => return Ok(self.leave()),
            How::Status(0) => "exit status 0 before the case ended".to_owned(),
            How::Status(CONTEXT_LOST) if self.open.is_none() && self.ended > 0 => return Ok(self.restart()),
            How::Status(CONTEXT_LOST) => with_line("the device's context was lost (exit status 3)", &last),
            How::Status(code) => with_line(&format!("exit status {code}"), &last),
            How::Signal(signal) => with_line(&format!("crashed: signal {signal}{}", signal_name(*signal)), &last),
            How::Quiet(Some(_)) => format!("did not end within {}, killed", seconds(self.step.quiet)),
            How::Quiet(None) => format!("no case began or ended within {}, killed", seconds(self.step.quiet)),
            How::LineTooLong => {
                self.fail("a line of output is longer than 1 MiB, killed".to_owned());
                return Ok(Next::Finished);
            }
            How::Limit => {
                self.note_limit();
                return Ok(Next::Cut(StepOutcome::Incomplete));
            }
            How::TimeOver | How::Interrupted => {
                self.notes.push(if how == How::TimeOver { "time is over" } else { "interrupted" }.to_owned());
                return Ok(Next::Cut(StepOutcome::Interrupted));
            }
        };
        let open = self.open.as_ref().map(|(case, _)| case.clone());
        let blamed = match (how, open) {
            // What was said after the decision to kill is no fault of the next case.
            (How::Quiet(Some(case)), open) if open.as_ref() != Some(&case) => return Ok(self.restart()),
            (_, open) => open,
        };
        self.keep_tail(blamed.as_deref(), &fault, &tail)?;
        match blamed {
            Some(case) => {
                self.fail_case(case, fault)?;
                Ok(self.restart())
            }
            None if self.ended > 0 => {
                self.fail(fault);
                Ok(self.restart())
            }
            None => {
                self.fail(fault);
                Ok(Next::Finished)
            }
        }
    }

    /// A process that ended well must have said and ended all.
    fn leave(&mut self) -> Next {
        let (ended, missing) = (self.results().cases.len(), self.results().missing());
        match missing {
            _ if !self.counted => self.fail("it ended without saying how many cases it has".to_owned()),
            Some(missing) if missing > 0 => self.fail(format!("it ended with {ended} of {} cases", ended + missing)),
            _ if !self.again.is_empty() => {
                self.fail(format!("it ended without {} of the cases to be repeated", self.again.len()));
            }
            _ => {}
        }
        Next::Finished
    }

    /// Starts again if cases are left.
    fn restart(&self) -> Next {
        match self.results().missing() {
            Some(0) if self.again.is_empty() => Next::Finished,
            _ => Next::Restart,
        }
    }

    fn note_limit(&mut self) {
        let mut note = format!("did not end within {}, killed", seconds(self.step.limit));
        if let Some((case, _)) = &self.open {
            note += &format!(" in case {case}");
        }
        if let Some(missing) = self.results().missing() {
            note += &format!("; {missing} cases not run");
        }
        self.notes.push(note);
    }

    fn fail(&mut self, note: String) {
        self.broken = true;
        // Each start may fail in the same way.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn fail_case(&mut self, case: String, note: String) -> Result<(), RunnerError> {
        let began = self.open.take().map_or(Duration::ZERO, |(_, began)| began.elapsed());
        let outcome = Outcome::Failed;
        self.record(CaseResult { case, outcome, note, figures: vec![], seconds: milliseconds(began) })
    }

    fn record(&mut self, result: CaseResult) -> Result<(), RunnerError> {
        self.again.remove(&result.case);
        self.journal.append(Record::Case { step: self.step.name.into(), result })
    }

    fn keep_tail(&self, case: Option<&str>, fault: &str, tail: &str) -> Result<(), RunnerError> {
        if tail.is_empty() {
            return Ok(());
        }
        let note = case.map_or_else(|| fault.to_owned(), |case| format!("{case}: {fault}"));
        keep_tail(&self.job.out.join("failures").join(self.step.name), &note, tail)
    }

    /// Records the end of the step.
    fn end(self, cut: Option<StepOutcome>) -> Result<(), RunnerError> {
        let counts = self.results().counts();
        let (mut notes, finished) = (self.notes, cut.is_none());
        let broken = self.broken || cut == Some(StepOutcome::Incomplete);
        if finished && counts.all() == 0 && !broken {
            notes.push("no cases".to_owned());
        }
        let outcome = match cut {
            Some(outcome) => outcome,
            None if broken || counts.failed > 0 => StepOutcome::Failed,
            None if counts.passed > 0 => StepOutcome::Passed,
            None => StepOutcome::Skipped,
        };
        let (note, seconds) = (notes.join("; "), milliseconds(self.started.elapsed()));
        let end = End { outcome, note, seconds, broken, finished };
        self.journal.append(Record::Ended { step: self.step.name.into(), end })
    }
}

impl Listener for StepRun<'_, '_> {
    fn line(&mut self, line: Line) -> Result<(), RunnerError> {
        match line {
            Line::Count { cases } => {
                self.counted = true;
                if self.results().counted != Some(cases) {
                    self.journal.append(Record::Counted { step: self.step.name.into(), cases })?;
                }
            }
            Line::Begin { case } => {
                if let Some((before, _)) = &self.open {
                    let before = before.clone();
                    self.fail_case(before, "the next case began before it ended".to_owned())?;
                }
                self.open = Some((case, Instant::now()));
            }
            Line::End { case, outcome, note, figures, seconds } => {
                self.open.take_if(|(open, _)| *open == case);
                self.ended += 1;
                self.record(CaseResult { case, outcome, note, figures, seconds })?;
            }
        }
        Ok(())
    }

    fn stray(&mut self, text: &str) {
        if !self.strayed {
            self.strayed = true;
            self.notes.push(format!("it printed: {}", one_line(text, NOTE)));
        }
    }

    fn open_case(&self) -> Option<&str> {
        self.open.as_ref().map(|(case, _)| case.as_str())
    }

    fn tick(&mut self) {
        let results = self.journal.results().step(self.step.name);
        self.console.progress(self.step.name, results, self.started.elapsed());
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e3).round() / 1e3
}

fn with_line(text: &str, line: &str) -> String {
    if line.is_empty() { text.to_owned() } else { format!("{text}: {line}") }
}

/// The last line that says something; of a panic the message, as a stack trace or advice follows it.
fn last_line(tail: &str) -> String {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let panic = lines.iter().rposition(|line| line.starts_with("thread '") && line.contains(" panicked at "));
    let message = panic.and_then(|at| lines.get(at + 1));
    one_line(message.or(lines.last()).unwrap_or(&""), NOTE)
}

/// Signals that end programs, by their number on Linux.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        25 => " (SIGXFSZ)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_one_that_says_something() {
        assert_eq!(last_line("\n \n"), "");
        assert_eq!(last_line("loading\nno such file\n\n"), "no such file");
        let panic =
            "thread 'main' (7) panicked at src/a.rs:1:2:\nout of range\nstack backtrace:\n   0: main\nnote: some";
        assert_eq!(last_line(&format!("first\n{panic}")), "out of range");
        assert_eq!(last_line("thread 'main' panicked at src/a.rs:1:2:"), "thread 'main' panicked at src/a.rs:1:2:");
    }
}
