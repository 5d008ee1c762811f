//! PyTorch on the same models and sizes, where it is installed: a script of the bundle prints cases, which are passed on.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Case, Ended};
use crate::context::{Context, Fault, data};
use crate::protocol::{Line, Outcome};

/// Name of the script in the bundle's data.
const SCRIPT: &str = "compare_torch.py";
/// What names of the script's cases begin with: each part is a process.
const PARTS: [&str; 4] = ["products:", "attention:", "models: resnet50", "models: bert_base"];

fn script() -> PathBuf {
    data().join(SCRIPT)
}

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    Ok(PARTS.map(|part| Case::new(part, move |cx| run(cx, part))).into())
}

fn run(cx: &Context, part: &str) -> Result<Ended, Fault> {
    if cx.is_interpreted() {
        return Ok(Ended::skipped("nothing to compare the interpreter with"));
    }
    let installed = Command::new("python3").args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        return Ok(Ended::skipped("PyTorch is not installed"));
    }
    let mut command = Command::new("python3");
    command.arg(script()).args(["--jsonl", "--only", part, "--device", &format!("cuda:{}", cx.name())]);
    let output = command.stdin(Stdio::null()).output()?;
    let mut ended = Ended::passed();
    let mut failures = vec![];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Ok(Line::End { case, outcome, note, figures, .. }) = serde_json::from_str(line) {
            if outcome == Outcome::Failed {
                failures.push(format!("{case}: {note}"));
            }
            for figure in figures {
                ended = ended.figure(&format!("{case} {}", figure.name), figure.value, &figure.unit);
            }
        }
    }
    match output.status.success() && !ended.figures.is_empty() {
        true => Ok(ended.note(failures.join("; "))),
        false => Err(String::from_utf8_lossy(&output.stderr).lines().next_back().unwrap_or("no output").into()),
    }
}
