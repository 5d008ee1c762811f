//! Records the steps of a run.

use std::time::Instant;

use super::executable::{Executable, Prepared};
use crate::profiler::{Name, Span};
use crate::{Device, Profiler};

/// Where the steps of one run are recorded.
#[derive(Clone, Copy)]
pub(super) struct Trace<'a> {
    pub profiler: &'a Profiler,
    pub device: Device,
    pub executable: &'a Executable,
    pub names: &'a StepNames,
}

/// Names of spans.
pub(super) struct StepNames {
    /// By position in the plan.
    pub steps: Vec<Name>,
    pub regions: Vec<Name>,
}

/// A span that has begun.
pub(super) struct Begun<'a> {
    trace: Trace<'a>,
    start: Instant,
}

impl<'a> Trace<'a> {
    pub fn begin(self) -> Option<Begun<'a>> {
        let start = self.profiler.begin()?;
        Some(Begun { trace: self, start })
    }

    /// Ends the span of steps that ran side by side.
    pub fn region(begun: Option<Begun<'a>>, number: usize) {
        let Some(begun) = begun else { return };
        let executable = begun.trace.executable;
        let steps = &executable.prepared[executable.regions[number].clone()];
        let bytes = steps.iter().map(|prepared| executable.plan().steps[prepared.step].bytes).sum();
        begun.end(&begun.trace.names.regions[number], "step", bytes);
    }

    /// Ends the span of a step.
    pub fn step(begun: Option<Begun<'a>>, prepared: &Prepared) {
        let Some(begun) = begun else { return };
        let bytes = begun.trace.executable.plan().steps[prepared.step].bytes;
        begun.end(&begun.trace.names.steps[prepared.step], "step", bytes);
    }

    /// Ends the span of a part of a step.
    pub fn chunk(begun: Option<Begun<'a>>, prepared: &Prepared) {
        let Some(begun) = begun else { return };
        begun.end(&begun.trace.names.steps[prepared.step], "chunk", 0);
    }
}

impl Begun<'_> {
    fn end(&self, name: &Name, category: &'static str, bytes: u64) {
        let span = Span::new(name, category, self.start, Instant::now());
        self.trace.profiler.record(Span { device: self.trace.device, bytes, ..span });
    }
}
