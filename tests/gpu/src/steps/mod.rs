//! The steps of a run, most important first, and how one is executed: its cases one after another, each with a beginning and an end
//! that the runner is told of.

mod arrays;
mod device;
mod kernels;
mod measured;
mod models;
mod onnx;
mod operators;
mod peers;
mod sanitizer;
mod several;
mod training;

use std::collections::BTreeSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tensorc::schedule::target::Capability;

use crate::context::{Context, Fault};
use crate::protocol::{CONTEXT_LOST, Figure, Line, Outcome, end_with_runner};
use crate::runner::Step;
use crate::stored::Stored;

pub use onnx::FILE as ONNX_FILE;

/// How a case went that did not fail.
pub struct Ended {
    outcome: Outcome,
    note: String,
    figures: Vec<Figure>,
}

impl Ended {
    fn passed() -> Ended {
        Ended { outcome: Outcome::Passed, note: String::new(), figures: vec![] }
    }

    /// It makes no sense here; the reason in a few words.
    fn skipped(why: impl Into<String>) -> Ended {
        Ended { outcome: Outcome::Skipped, note: why.into(), figures: vec![] }
    }

    fn note(mut self, note: impl Into<String>) -> Ended {
        self.note = note.into();
        self
    }

    fn figure(mut self, name: &str, value: f64, unit: &str) -> Ended {
        self.figures.push(Figure { name: name.into(), value, unit: unit.into() });
        self
    }
}

/// What a case does.
type Run = Box<dyn FnOnce(&Context) -> Result<Ended, Fault>>;

/// A part of a step that can go wrong by itself.
pub struct Case {
    name: String,
    run: Run,
}

impl Case {
    fn new(name: impl Into<String>, run: impl FnOnce(&Context) -> Result<Ended, Fault> + 'static) -> Case {
        Case { name: name.into(), run: Box::new(run) }
    }
}

/// A step with its cases.
struct Entry {
    step: Step,
    cases: fn(&Context) -> Result<Vec<Case>, Fault>,
}

const fn step(name: &'static str, about: &'static str, limit: u64, quiet: u64) -> Step {
    let (limit, quiet) = (Duration::from_secs(limit), Duration::from_secs(quiet));
    Step { name, about, limit, quiet, needs_device: true }
}

/// Cases of one name.
macro_rules! entry {
    ($name:literal, $about:literal, $limit:literal, $quiet:literal, $cases:expr) => {
        Entry { step: step($name, $about, $limit, $quiet), cases: $cases }
    };
}

/// All steps. Limits are in seconds: of the step, and of a case.
const ENTRIES: [Entry; 19] = [
    entry!("device", "what the device is, and that it runs a kernel", 60, 60, device::cases),
    entry!("clock", "the clock under load", 60, 60, device::clocks),
    entry!("bandwidth", "copies, reads, and kernels that move more than they compute", 180, 60, |cx| {
        measured::cases(cx, "bandwidth")
    }),
    entry!("kernels-sm_80", "every kernel of the corpus has the stored bits", 300, 60, |_| {
        kernels::cases(Capability::Sm80)
    }),
    entry!("kernels-sm_90a", "the same with groups of warps", 300, 60, |_| kernels::cases(Capability::Sm90a)),
    entry!("operators", "every operator against the reference", 400, 120, operators::cases),
    entry!("onnx", "the cases of ONNX against their stored results", 400, 60, onnx::cases),
    entry!("models", "real models against stored results", 200, 120, models::cases),
    entry!("training", "steps of training have the stored bits", 200, 120, training::cases),
    entry!("arrays", "chains of arrays, slices and draws", 100, 60, arrays::cases),
    entry!("several", "several devices: copies, training, exchanges", 100, 60, several::cases),
    entry!("sanitizer", "races and accesses out of bounds, by compute-sanitizer", 240, 200, sanitizer::cases),
    entry!("products", "products by size and type, against cuBLASLt", 240, 60, |cx| measured::cases(cx, "products")),
    entry!("whole-models", "latency and throughput of models", 300, 120, |cx| measured::cases(cx, "models")),
    entry!("attention", "attention by length and type", 120, 60, |cx| measured::cases(cx, "attention")),
    entry!("convolutions", "convolutions, against cuDNN", 180, 60, |cx| measured::cases(cx, "convolutions")),
    entry!("launches", "what the host does for a launch, and how often it waits", 120, 60, |cx| {
        measured::cases(cx, "launches")
    }),
    entry!("compile-times", "seconds from graph to code", 180, 120, |cx| measured::cases(cx, "compile")),
    entry!("peers", "PyTorch on the same models, if it is installed", 600, 400, peers::cases),
];

/// The steps for the runner.
pub fn all() -> Vec<Step> {
    let step = |entry: &Entry| Step { needs_device: entry.step.name != "peers", ..entry.step.clone() };
    ENTRIES.iter().map(step).collect()
}

/// The variable of texts, separated by commas, of which names of cases contain one, where others are not wanted.
const ONLY: &str = "TENSORC_GPU_ONLY";

/// Executes a step's cases but for those in a list, and tells of each on standard output.
///
/// # Errors
/// There is no such step, its cases cannot be listed, or nobody listens.
pub fn execute(name: &str, cx: &Context, done: &Path) -> Result<ExitCode, Fault> {
    end_with_runner()?;
    let entry = ENTRIES.iter().find(|entry| entry.step.name == name);
    let entry = entry.ok_or_else(|| format!("there is no step `{name}`"))?;
    let done = std::fs::read_to_string(done).map_err(|e| format!("{}: {e}", done.display()))?;
    let done: BTreeSet<&str> = done.lines().collect();
    let mut cases = (entry.cases)(cx)?;
    if let Ok(parts) = std::env::var(ONLY) {
        cases.retain(|case| parts.split(',').any(|part| case.name.contains(part)));
    }
    tell(&Line::Count { cases: cases.len() })?;
    for case in cases.into_iter().filter(|case| !done.contains(case.name.as_str())) {
        tell(&Line::Begin { case: case.name.clone() })?;
        let start = Instant::now();
        let ended = outcome(case.run, cx);
        let failed = ended.outcome == Outcome::Failed;
        let Ended { outcome, note, figures } = ended;
        let seconds = (start.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        tell(&Line::End { case: case.name, outcome, note: one_line(&note), figures, seconds })?;
        if failed && cx.is_lost() {
            return Ok(ExitCode::from(CONTEXT_LOST as u8));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What came of a case; a panic is a failure.
fn outcome(run: Run, cx: &Context) -> Ended {
    let failed = |note: String| Ended { outcome: Outcome::Failed, note, figures: vec![] };
    match catch_unwind(AssertUnwindSafe(|| run(cx))) {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => failed(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            failed(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tell(line: &Line) -> Result<(), Fault> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}

/// What the interpreter gives for everything whose bits are promised.
///
/// # Errors
/// A case fails in the interpreter.
pub fn store() -> Result<Stored, Fault> {
    let of = |capability| -> Result<Stored, String> {
        let mut stored = Stored::default();
        let kernels = kernels::store(capability, &mut stored);
        kernels.and_then(|()| training::store(capability, &mut stored)).map_err(|e| e.to_string())?;
        Ok(stored)
    };
    let all: Vec<Stored> = Capability::ALL.into_par_iter().map(of).collect::<Result<_, _>>()?;
    Ok(all.into_iter().collect())
}
