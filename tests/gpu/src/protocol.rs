//! What a step tells the runner: lines of JSON on standard output, and exit statuses.

use serde::{Deserialize, Deserializer, Serialize};

/// Exit status of a step that lost the device's context in the case it ended last: it is started again.
pub const CONTEXT_LOST: i32 = 3;

/// A measured number of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    /// A number that is not finite is `null` in JSON, which is read as not a number.
    #[serde(deserialize_with = "number_or_null")]
    pub value: f64,
    pub unit: String,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// A line of a step's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// How many cases the step has in all, those that earlier runs finished included: once, before all else.
    Count {
        cases: usize,
    },
    Begin {
        case: String,
    },
    End {
        case: String,
        outcome: Outcome,
        /// One line, empty where nothing is to be said.
        note: String,
        figures: Vec<Figure>,
        #[serde(deserialize_with = "number_or_null")]
        seconds: f64,
    },
}

/// The name of the folder in which a step leaves what explains the failure of a case.
pub fn folder_name(case: &str) -> String {
    case.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect()
}

/// Ends this process when the thread of the runner that started it dies, so that no step holds the device behind a run
/// that is over. A step calls this first.
///
/// # Errors
/// The system refuses.
#[cfg(target_os = "linux")]
pub fn end_with_runner() -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_finite_does_not_cost_the_case() {
        for value in [f64::NAN, f64::INFINITY, 0.1 + 0.2] {
            let figures = vec![Figure { name: "rate".into(), value, unit: "GB/s".into() }];
            let line =
                Line::End { case: "a".into(), outcome: Outcome::Passed, note: String::new(), figures, seconds: value };
            let text = serde_json::to_string(&line).unwrap();
            let Line::End { figures, seconds, .. } = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
            let expected = if value.is_finite() { value.to_bits() } else { f64::NAN.to_bits() };
            assert_eq!((figures[0].value.to_bits(), seconds.to_bits()), (expected, expected), "{text}");
        }
    }

    #[test]
    fn lines_are_those_of_the_contract() {
        let text = r#"{"event":"begin","case":"f32 copy"}"#;
        assert_eq!(serde_json::from_str::<Line>(text).unwrap(), Line::Begin { case: "f32 copy".into() });
        assert_eq!(serde_json::to_string(&Line::Count { cases: 7 }).unwrap(), r#"{"event":"count","cases":7}"#);
    }
}
