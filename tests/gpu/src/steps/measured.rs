//! Measurements of `tensorc-bench`, case by case.

use tensorc_bench::figures::{Outcome as Measured, Report};
use tensorc_bench::gpu::{GROUPS, Setup};

use super::{Case, Ended};
use crate::context::{Context, Fault};
use crate::protocol::{Figure, Outcome};

/// The cases of a kind of measurement.
pub fn cases(cx: &Context, group: &str) -> Result<Vec<Case>, Fault> {
    let (_, list) =
        GROUPS.iter().find(|(name, _)| *name == group).ok_or_else(|| format!("nothing measures {group}"))?;
    let case = |case: tensorc_bench::gpu::Case| {
        Case::new(case.name.clone(), move |cx| {
            let mut report = case.run(&Setup::new(cx.driver()?, cx.size()));
            if cx.is_interpreted() && report.outcome == Measured::Passed {
                // What was measured is how fast the interpreter is.
                report.figures.clear();
                report.note = "runs; times mean nothing in the interpreter".into();
            }
            ended(report)
        })
    };
    Ok(list(cx.size()).into_iter().map(case).collect())
}

fn ended(report: Report) -> Result<Ended, Fault> {
    let outcome = match report.outcome {
        Measured::Passed => Outcome::Passed,
        Measured::Skipped => Outcome::Skipped,
        Measured::Failed => return Err(report.note.into()),
    };
    let figure = |figure: tensorc_bench::figures::Figure| Figure {
        name: figure.name.into(),
        value: figure.value,
        unit: figure.unit.into(),
    };
    Ok(Ended { outcome, note: report.note, figures: report.figures.into_iter().map(figure).collect() })
}
