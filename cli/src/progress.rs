//! A line on the terminal that says what a long command is doing.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

/// Work that is done before is not announced.
const DELAY: Duration = Duration::from_millis(500);
/// How often the line changes while one phase goes on: seldom, since runs may be measured meanwhile.
const TICK: Duration = Duration::from_millis(500);

struct Line {
    /// What is done; `None` if nothing is shown and nothing is going to be.
    phase: Option<String>,
    /// How many lines there were: a thread that is to show an earlier one finds out that it is too late.
    number: u64,
    bar: Option<ProgressBar>,
}

static LINE: Mutex<Line> = Mutex::new(Line { phase: None, number: 0, bar: None });

fn line() -> MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows the phase of a command. Nothing appears unless standard error is a terminal and the work takes over half a second.
pub fn phase(name: &str) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let mut line = line();
    if let Some(bar) = &line.bar {
        bar.set_message(name.to_owned());
    }
    if line.phase.replace(name.to_owned()).is_none() {
        line.number += 1;
        let number = line.number;
        // Without a thread there is no line.
        let _ = thread::Builder::new().name("progress".to_owned()).spawn(move || {
            thread::sleep(DELAY);
            show(number);
        });
    }
}

/// Begins to draw a line, unless it is removed already.
fn show(number: u64) {
    let mut line = line();
    let Some(phase) = line.phase.clone().filter(|_| line.number == number) else { return };
    let bar = ProgressBar::new_spinner().with_message(phase);
    bar.enable_steady_tick(TICK);
    line.bar = Some(bar);
}

/// Removes the line.
pub fn clear() {
    let mut line = line();
    line.phase = None;
    if let Some(bar) = line.bar.take() {
        bar.finish_and_clear();
    }
}
