//! What a measurement reports: figures with their units, and how it ended.

/// A measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    /// `GB/s` are 10⁹ bytes, `TFLOP/s` 10¹² operations, `MB` 10⁶ bytes in a second.
    pub unit: &'static str,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// What it needs is not here.
    Skipped,
}

/// What a case measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub outcome: Outcome,
    /// Empty if there is nothing to say; one line.
    pub note: String,
    pub figures: Vec<Figure>,
}

impl Report {
    pub fn skipped(note: impl Into<String>) -> Report {
        Report { outcome: Outcome::Skipped, note: note.into(), figures: vec![] }
    }

    pub fn failed(error: &dyn std::fmt::Display) -> Report {
        let note = error.to_string().lines().collect::<Vec<_>>().join(" / ");
        Report { outcome: Outcome::Failed, note, figures: vec![] }
    }

    pub fn with(mut self, name: &'static str, value: f64, unit: &'static str) -> Report {
        self.figures.push(Figure { name, value, unit });
        self
    }

    pub fn noting(mut self, note: impl Into<String>) -> Report {
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
