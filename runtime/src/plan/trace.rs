//! Records the steps of a run.

use std::time::Instant;

use super::executable::{Executable, Prepared};
use crate::device::Device;
use crate::profiler::Profiler;
use crate::profiler::{Span, SpanName};

/// What is told of a run while it goes on.
pub(super) trait Watch: Copy + Sync {
    /// The time, where it is wanted.
    fn begin(self) -> Option<Instant>;
    /// Steps that ran side by side, or one, are done.
    fn steps(self, start: Option<Instant>, steps: &[Prepared]);
    /// A thread has done its part of a step.
    fn chunk(self, start: Option<Instant>, step: &Prepared);
}

/// Nobody is told.
#[derive(Clone, Copy)]
pub(super) struct Unwatched;

impl Watch for Unwatched {
    fn begin(self) -> Option<Instant> {
        None
    }

    fn steps(self, _: Option<Instant>, _: &[Prepared]) {}

    fn chunk(self, _: Option<Instant>, _: &Prepared) {}
}

/// Where the steps of one run are recorded.
#[derive(Clone, Copy)]
pub(super) struct StepTrace<'a> {
    pub profiler: &'a Profiler,
    pub device: Device,
    pub executable: &'a Executable,
    pub names: &'a StepNames,
}

/// Names of spans, by position in the plan.
pub(super) struct StepNames {
    pub steps: Vec<SpanName>,
    /// Of the regions that begin with the step.
    pub regions: Vec<SpanName>,
}

impl Watch for StepTrace<'_> {
    fn begin(self) -> Option<Instant> {
        self.profiler.begin()
    }

    fn steps(self, start: Option<Instant>, steps: &[Prepared]) {
        let plan = self.executable.plan();
        let bytes = steps.iter().map(|prepared| plan.steps[prepared.step].bytes).sum();
        match steps {
            [] => {}
            [one] => self.span(start, &self.names.steps[one.step], "step", bytes),
            [first, ..] => self.span(start, &self.names.regions[first.step], "step", bytes),
        }
    }

    fn chunk(self, start: Option<Instant>, step: &Prepared) {
        self.span(start, &self.names.steps[step.step], "chunk", 0);
    }
}

impl StepTrace<'_> {
    fn span(self, start: Option<Instant>, name: &SpanName, category: &'static str, bytes: u64) {
        if let Some(start) = start {
            let span = Span::new(name, category, start, Instant::now());
            self.profiler.record(Span { device: self.device, bytes, ..span });
        }
    }
}
