//! The records of a run, and what they say together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::{Figure, Outcome, number_or_null};

/// Version of the records and of `results.json`.
pub(super) const FORMAT: u32 = 1;

/// How a step ended, or why it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    Passed,
    Failed,
    /// All cases were skipped, or the device that the step needs is not there.
    Skipped,
    /// The step ran into its limit.
    Incomplete,
    /// The run ended before the step did.
    Interrupted,
    NotRun,
}

impl StepOutcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            StepOutcome::Passed => "passed",
            StepOutcome::Failed => "failed",
            StepOutcome::Skipped => "skipped",
            StepOutcome::Incomplete => "incomplete",
            StepOutcome::Interrupted => "interrupted",
            StepOutcome::NotRun => "not run",
        }
    }

    /// Whether a run with this step has failed; what only ran out of time has not.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, StepOutcome::Failed | StepOutcome::Incomplete)
    }
}

/// A case that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CaseResult {
    pub case: String,
    pub outcome: Outcome,
    pub note: String,
    pub figures: Vec<Figure>,
    #[serde(deserialize_with = "number_or_null")]
    pub seconds: f64,
}

/// The end of a step in one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub outcome: StepOutcome,
    pub note: String,
    pub seconds: f64,
    /// Whether the note says why the step failed as a whole.
    pub broken: bool,
    /// Whether the next run leaves the step out.
    pub finished: bool,
}

/// A line of `results.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(super) enum Record {
    Header { format: u32, bundle: String, device: String },
    Started { step: String },
    Counted { step: String, cases: usize },
    Case { step: String, result: CaseResult },
    Ended { step: String, end: End },
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// Cases that a step counted and that have not ended.
    pub not_run: usize,
}

impl Counts {
    pub fn all(self) -> usize {
        self.passed + self.failed + self.skipped + self.not_run
    }

    pub(super) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.not_run += other.not_run;
    }
}

/// What the records say of a step.
#[derive(Clone, Debug)]
pub(super) struct StepResults {
    /// Whether the newest start has no end yet.
    open: bool,
    /// Cases in all, as the step said last.
    pub counted: Option<usize>,
    /// In the order they first ended, each as it ended last.
    pub cases: Vec<CaseResult>,
    index: BTreeMap<String, usize>,
    end: Option<End>,
    /// Of all runs together.
    pub seconds: f64,
}

/// A step without records.
static NOTHING: StepResults = StepResults::new();

impl StepResults {
    const fn new() -> StepResults {
        StepResults { open: false, counted: None, cases: vec![], index: BTreeMap::new(), end: None, seconds: 0.0 }
    }

    pub fn outcome(&self) -> StepOutcome {
        match &self.end {
            _ if self.open => StepOutcome::Interrupted,
            Some(end) => end.outcome,
            None => StepOutcome::NotRun,
        }
    }

    pub fn note(&self) -> &str {
        self.end.as_ref().filter(|_| !self.open).map_or("", |end| &end.note)
    }

    /// Whether the step failed as a whole, as its note says.
    pub fn is_broken(&self) -> bool {
        !self.open && self.end.as_ref().is_some_and(|end| end.broken)
    }

    /// Whether nothing of the step is left to be run.
    pub fn is_finished(&self) -> bool {
        !self.open && self.end.as_ref().is_some_and(|end| end.finished)
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts { not_run: self.missing().unwrap_or(0), ..Counts::default() };
        for case in &self.cases {
            match case.outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Failed => counts.failed += 1,
                Outcome::Skipped => counts.skipped += 1,
            }
        }
        counts
    }

    /// Cases without an end; none if the step never said how many it has.
    pub fn missing(&self) -> Option<usize> {
        self.counted.map(|all| all.saturating_sub(self.cases.len()))
    }

    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| case.outcome == Outcome::Failed)
    }

    /// Whether the step as a whole or a case of it has failed.
    pub fn has_failed(&self) -> bool {
        self.outcome().is_failure() || self.failures().next().is_some()
    }

    fn put(&mut self, result: CaseResult) {
        match self.index.get(&result.case).and_then(|at| self.cases.get_mut(*at)) {
            Some(known) => *known = result,
            None => {
                self.index.insert(result.case.clone(), self.cases.len());
                self.cases.push(result);
            }
        }
    }
}

/// What all records say.
#[derive(Debug, Default)]
pub(super) struct Results {
    steps: BTreeMap<String, StepResults>,
}

impl Results {
    pub fn step(&self, name: &str) -> &StepResults {
        self.steps.get(name).unwrap_or(&NOTHING)
    }

    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Header { .. } => {}
            Record::Started { step } => self.step_mut(step).open = true,
            Record::Counted { step, cases } => self.step_mut(step).counted = Some(cases),
            Record::Case { step, result } => self.step_mut(step).put(result),
            Record::Ended { step, end } => {
                let step = self.step_mut(step);
                step.open = false;
                step.seconds += end.seconds;
                step.end = Some(end);
            }
        }
    }

    fn step_mut(&mut self, name: String) -> &mut StepResults {
        self.steps.entry(name).or_insert(StepResults::new())
    }
}
