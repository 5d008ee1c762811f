//! What a person sees while steps run: a line for each step, which a terminal rewrites in place.

use std::io::Write;
use std::time::{Duration, Instant};

use super::record::{Counts, StepResults};
use super::text::one_line;

/// The shortest time between two states of a line.
const REWRITE: Duration = Duration::from_millis(200);
/// The most characters of a line that is rewritten: one that wraps cannot be.
const WIDTH: usize = 79;
/// The most characters of a note.
const NOTE: usize = 160;

/// Where the lines go. What cannot be written is left out: results do not depend on who looks on.
pub(super) struct Console<'c> {
    out: &'c mut dyn Write,
    terminal: bool,
    /// Steps of this run, and the place of the one that runs among them, from 1.
    steps: usize,
    place: usize,
    written: Option<Instant>,
}

impl<'c> Console<'c> {
    pub fn new(out: &'c mut dyn Write, terminal: bool, steps: usize) -> Console<'c> {
        Console { out, terminal, steps, place: 0, written: None }
    }

    /// The next step comes.
    pub fn next_step(&mut self) {
        self.place += 1;
        self.written = None;
    }

    /// Rewrites the line of the step that runs, on a terminal and not too often.
    pub fn progress(&mut self, name: &str, results: &StepResults, elapsed: Duration) {
        if !self.terminal || self.written.is_some_and(|at| at.elapsed() < REWRITE) {
            return;
        }
        self.written = Some(Instant::now());
        let text = format!("{}  {}, {} s", self.head(name), cases(results), elapsed.as_secs());
        let _ = write!(self.out, "\r{}\x1b[K", one_line(&text, WIDTH));
        let _ = self.out.flush();
    }

    /// The last line of a step.
    pub fn ended(&mut self, name: &str, results: &StepResults, earlier: bool) {
        let note = match (results.note(), earlier) {
            ("", true) => " (in an earlier run)".to_owned(),
            ("", false) => String::new(),
            (note, _) => format!(": {}", one_line(note, NOTE)),
        };
        let outcome = results.outcome().name();
        let text = format!("{}  {outcome}, {}, {:.0} s{note}", self.head(name), cases(results), results.seconds);
        self.line(&text);
    }

    pub fn line(&mut self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(self.out, "{clear}{text}");
        let _ = self.out.flush();
    }

    /// Ends the line of a step that came to no end.
    pub fn leave_line(&mut self) {
        if self.written.is_some() {
            self.line("");
        }
    }

    fn head(&self, name: &str) -> String {
        let width = self.steps.to_string().len();
        format!("[{:>width$}/{}] {name}", self.place, self.steps)
    }
}

/// Cases that ended of all, and how many failed.
fn cases(results: &StepResults) -> String {
    let counts = results.counts();
    let Counts { failed, not_run, .. } = counts;
    let failures = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    format!("{}/{}{failures}", counts.all() - not_run, counts.all())
}
