//! The reports made of the records: `results.json` for programs and `table.md` for people.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::error::RunnerError;
use super::record::{CaseResult, Counts, FORMAT, Results, StepOutcome, StepResults};
use super::text::{Grid, digits, one_line};
use super::{Job, Step};
use crate::protocol::{Figure, folder_name};

/// The most characters of a failure's note.
const NOTE: usize = 400;

#[derive(Serialize)]
struct Report<'r> {
    format: u32,
    bundle: &'r str,
    device: &'r str,
    counts: Counts,
    steps: Vec<StepReport<'r>>,
}

#[derive(Serialize)]
struct StepReport<'r> {
    step: &'r str,
    about: &'r str,
    outcome: StepOutcome,
    note: &'r str,
    seconds: f64,
    counts: Counts,
    cases: &'r [CaseResult],
}

/// Writes both reports, each as a whole: readers see the old one or the new one.
///
/// # Errors
/// A file cannot be written.
pub(super) fn write(job: &Job, steps: &[Step], results: &Results) -> Result<(), RunnerError> {
    let mut json = json(job, steps, results).map_err(|e| RunnerError::file(&job.out)(e.into()))?;
    json.push(b'\n');
    replace(&job.out.join("results.json"), &json)?;
    replace(&job.out.join("table.md"), table(job, steps, results).as_bytes())
}

/// The cases of all steps together.
pub(super) fn counts(steps: &[Step], results: &Results) -> Counts {
    let mut counts = Counts::default();
    steps.iter().for_each(|step| counts.add(results.step(step.name).counts()));
    counts
}

fn replace(path: &Path, text: &[u8]) -> Result<(), RunnerError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let new = Path::new(&name);
    let write = || {
        let mut file = File::create(new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(new);
        RunnerError::file(path)(source)
    })
}

fn json(job: &Job, steps: &[Step], results: &Results) -> serde_json::Result<Vec<u8>> {
    let reports = steps.iter().map(|step| {
        let results = results.step(step.name);
        StepReport {
            step: step.name,
            about: step.about,
            outcome: results.outcome(),
            note: results.note(),
            seconds: results.seconds,
            counts: results.counts(),
            cases: &results.cases,
        }
    });
    serde_json::to_vec_pretty(&Report {
        format: FORMAT,
        bundle: &job.bundle,
        device: &job.device,
        counts: counts(steps, results),
        steps: reports.collect(),
    })
}

fn table(job: &Job, steps: &[Step], results: &Results) -> String {
    let mut text = format!("# Results\n\nBundle {}, device {}.\n\n", job.bundle, job.device);
    text += &steps_table(steps, results);
    for step in steps {
        text += &figures_table(step, results.step(step.name)).unwrap_or_default();
    }
    let failures: String = steps.iter().flat_map(|step| failures(job, step, results.step(step.name))).collect();
    if !failures.is_empty() {
        text += &format!("\n## Failures\n\n{failures}");
    }
    text
}

fn steps_table(steps: &[Step], results: &Results) -> String {
    let columns = [
        ("step", false),
        ("outcome", false),
        ("passed/failed/skipped", true),
        ("of", true),
        ("seconds", true),
        ("note", false),
    ];
    let mut grid = Grid::new(columns.map(|(name, number)| (name.to_owned(), number)));
    for step in steps {
        let results = results.step(step.name);
        let counts = results.counts();
        let Counts { passed, failed, skipped, .. } = counts;
        grid.row([
            step.name.to_owned(),
            results.outcome().name().to_owned(),
            format!("{passed}/{failed}/{skipped}"),
            counts.all().to_string(),
            format!("{:.1}", results.seconds),
            results.note().to_owned(),
        ]);
    }
    grid.markdown()
}

/// The cases of a step with their figures; none if it has measured nothing.
fn figures_table(step: &Step, results: &StepResults) -> Option<String> {
    let mut columns: Vec<(&str, &str)> = vec![];
    for figure in results.cases.iter().flat_map(|case| &case.figures) {
        if !columns.contains(&key(figure)) {
            columns.push(key(figure));
        }
    }
    if columns.is_empty() {
        return None;
    }
    let title =
        |(name, unit): &(&str, &str)| if unit.is_empty() { (*name).to_owned() } else { format!("{name} [{unit}]") };
    let heads = columns.iter().map(|column| (title(column), true));
    let mut grid = Grid::new([("case".to_owned(), false)].into_iter().chain(heads));
    for case in results.cases.iter().filter(|case| !case.figures.is_empty()) {
        let value = |column: &(&str, &str)| {
            let figure = case.figures.iter().find(|figure| key(figure) == *column);
            figure.map_or_else(String::new, |figure| digits(figure.value))
        };
        grid.row([case.case.clone()].into_iter().chain(columns.iter().map(value)));
    }
    Some(format!("\n## {}\n\n{}\n\n{}", step.name, step.about, grid.markdown()))
}

/// What makes a column.
fn key(figure: &Figure) -> (&str, &str) {
    (&figure.name, &figure.unit)
}

/// A line for the step if it failed as a whole or was cut off, and one for each failed case.
fn failures(job: &Job, step: &Step, results: &StepResults) -> Vec<String> {
    let mut lines = vec![];
    if results.is_broken() {
        lines.push(format!("- {}: {}{}\n", step.name, one_line(results.note(), NOTE), folder(job, step, None)));
    }
    for case in results.failures() {
        let (name, note) = (one_line(&case.case, NOTE), one_line(&case.note, NOTE));
        let colon = if note.is_empty() { "" } else { ": " };
        lines.push(format!("- {}, `{name}`{colon}{note}{}\n", step.name, folder(job, step, Some(&case.case))));
    }
    lines
}

/// The folder that the step left for a case, or else for all of its cases.
fn folder(job: &Job, step: &Step, case: Option<&str>) -> String {
    let shared = Path::new("failures").join(step.name);
    let own = case.map(|case| shared.join(folder_name(case)));
    let found = own.into_iter().chain([shared]).find(|path| job.out.join(path).is_dir());
    found.map_or_else(String::new, |path| format!(" (see {})", path.display()))
}
