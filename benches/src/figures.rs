//! What a measurement reports: figures with their units, and how it ended.

/// A measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What is measured.
    pub name: &'static str,
    /// The measured value, in `unit`.
    pub value: f64,
    /// `GB/s` are 10⁹ bytes, `TFLOP/s` 10¹² operations, `MB` 10⁶ bytes in a second.
    pub unit: &'static str,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every check held.
    Passed,
    /// A check did not hold, or the case could not run.
    Failed,
    /// What it needs is not here.
    Skipped,
}

/// What a case measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// How the case ended.
    pub outcome: Outcome,
    /// Empty if there is nothing to say; one line.
    pub note: String,
    /// The measured figures, in the order of measurement.
    pub figures: Vec<Figure>,
}

impl Report {
    /// A case that this machine cannot run, with the reason.
    pub fn skipped(note: impl Into<String>) -> Report {
        Report { outcome: Outcome::Skipped, note: note.into(), figures: vec![] }
    }

    /// A case that ended with an error.
    pub fn failed(error: &dyn std::fmt::Display) -> Report {
        let note = error.to_string().lines().collect::<Vec<_>>().join(" / ");
        Report { outcome: Outcome::Failed, note, figures: vec![] }
    }

    /// Adds a figure.
    pub fn with(mut self, name: &'static str, value: f64, unit: &'static str) -> Report {
        self.figures.push(Figure { name, value, unit });
        self
    }

    pub(crate) fn noting(mut self, note: impl Into<String>) -> Report {
        self.note = note.into();
        self
    }
}

impl Default for Report {
    /// Passed, without figures.
    fn default() -> Report {
        Report { outcome: Outcome::Passed, note: String::new(), figures: vec![] }
    }
}
