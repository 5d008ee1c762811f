//! NVIDIA's compute-sanitizer over a sample of the corpus: each of its tools runs the step of kernels as a process.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tensorc::schedule::target::Capability;
use tensorc_tests::corpus;

use super::{Case, Ended};
use crate::context::{Context, Fault};
use crate::protocol::{Line, Outcome};

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];
/// Exit status of the tool where it found something.
const FOUND: i32 = 77;
/// One program of the corpus in so many is run: a tool slows kernels down by hundreds.
const EVERY: usize = 24;
/// The same of products by groups of warps, which synchronise most.
const EVERY_GROUP: usize = 8;

/// Where the tool is, if it is installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(usual);
    folders.map(|folder| folder.join("compute-sanitizer")).find(|path| path.is_file())
}

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    Ok(TOOLS.map(|tool| Case::new(tool, move |cx| run(cx, tool))).into())
}

fn run(cx: &Context, tool: &str) -> Result<Ended, Fault> {
    if cx.is_interpreted() {
        return Ok(Ended::skipped("the interpreter checks every access itself"));
    }
    let Some(program) = program() else { return Ok(Ended::skipped("compute-sanitizer is not installed")) };
    let capability = cx.capability()?;
    let step = match capability {
        Capability::Sm80 => "kernels-sm_80",
        Capability::Sm90a => "kernels-sm_90a",
    };
    let registry = tensorc::ops::registry()?;
    let (plain, groups) = (corpus::emitters::cases(&registry), corpus::groups::cases(&registry));
    let sample: BTreeSet<&str> = plain.iter().step_by(EVERY).map(|case| case.name.as_str()).collect();
    let of_groups: BTreeSet<&str> = groups.iter().step_by(EVERY_GROUP).map(|(case, _)| case.name.as_str()).collect();
    let all = corpus::all(&registry);
    let names = all.iter().map(|case| case.name.as_str());
    let names: Vec<&str> = names.filter(|name| !sample.contains(name) && !of_groups.contains(name)).collect();
    let folder = cx.failure_folder(tool)?;
    let done = folder.join("done");
    fs::write(&done, names.join("\n"))?;
    let mut command = Command::new(program);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string(), "--log-file"]).arg(folder.join("log.txt"));
    command.arg(std::env::current_exe()?).args(["step", step, "--device", cx.name(), "--done"]).arg(&done);
    let output = command.arg("--failures").arg(&folder).stdin(Stdio::null()).output()?;
    let log = fs::read_to_string(folder.join("log.txt")).unwrap_or_default();
    let ended: Vec<Outcome> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| match serde_json::from_str(line) {
            Ok(Line::End { outcome, .. }) => Some(outcome),
            _ => None,
        })
        .collect();
    match output.status.code() {
        _ if log.contains("not supported") => Ok(Ended::skipped(format!("{tool}: the device is not supported"))),
        Some(0) if ended.iter().all(|outcome| *outcome != Outcome::Failed) && !ended.is_empty() => {
            fs::remove_dir_all(&folder)?;
            Ok(Ended::passed().figure("programs", ended.len() as f64, ""))
        }
        code => {
            let last = log.lines().rev().find(|line| line.contains("ERROR SUMMARY")).unwrap_or("no summary");
            Err(format!("exit status {code:?} after {} programs: {last}; {}", ended.len(), folder.display()).into())
        }
    }
}
