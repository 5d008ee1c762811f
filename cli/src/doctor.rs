//! `tensorc doctor`: features of this machine, their effects, and how to install missing ones. A missing feature is no error.

mod accelerators;
mod machine;
mod programs;

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::failure::CliFailure;
use super::output::print;

#[derive(Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One thing that a machine or a build may have.
struct Check {
    topic: &'static str,
    /// Whether it is there and usable.
    works: bool,
    /// What was found.
    found: String,
    /// What follows: what works, or what does not.
    means: String,
    /// The command, feature or package that would change it.
    remedy: Option<String>,
    /// The same for programs.
    facts: Value,
}

impl Check {
    /// Something that works.
    fn works(topic: &'static str, found: impl Into<String>, means: impl Into<String>) -> Check {
        Check { topic, works: true, found: found.into(), means: means.into(), remedy: None, facts: json!({}) }
    }

    /// Something that is not there, and what would bring it.
    fn lacks(
        topic: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { works: false, remedy: Some(remedy.into()), ..Check::works(topic, found, means) }
    }

    fn facts(self, facts: Value) -> Check {
        Check { facts, ..self }
    }
}

pub fn run(args: &DoctorArgs) -> Result<(), CliFailure> {
    super::progress::phase("look at this machine");
    let checks: Vec<Check> = [build()]
        .into_iter()
        .chain(machine::checks())
        .chain(accelerators::checks())
        .chain(programs::checks())
        .collect();
    super::progress::clear();
    print(&if args.json { object(&checks) } else { table(&checks)? })
}

/// A path in JSON, which is text.
fn text_of(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.to_string_lossy().into_owned())
}

/// The optional parts of this program.
const FEATURES: [(&str, bool); 5] = [
    ("all-processors", cfg!(feature = "all-processors")),
    ("cuda", cfg!(feature = "cuda")),
    ("images", cfg!(feature = "images")),
    ("llvm", cfg!(feature = "llvm")),
    ("nccl", cfg!(feature = "nccl")),
];

fn build() -> Check {
    let (version, target) = (env!("CARGO_PKG_VERSION"), tensorc::aot::link::OWN_TARGET);
    let names =
        |built: bool| FEATURES.iter().filter(|(_, has)| *has == built).map(|(name, _)| *name).collect::<Vec<_>>();
    let (with, without) = (names(true), names(false));
    let listed = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let found = format!("tensorc {version} for {target}; features: {}", listed(&with));
    let means = format!("features that it was built without: {}", listed(&without));
    Check::works("build", found, means).facts(json!({"version": version, "target": target, "features": with}))
}

/// For people: a block for each topic.
fn table(checks: &[Check]) -> Result<String, std::fmt::Error> {
    let width = checks.iter().map(|check| check.topic.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { topic, works, found, means, remedy, .. } in checks {
        writeln!(text, "{:<3}  {topic:width$}  {found}", if *works { "yes" } else { "no" })?;
        writeln!(text, "{:5}{:width$}  {means}", "", "")?;
        if let Some(remedy) = remedy {
            writeln!(text, "{:5}{:width$}  to have it: {remedy}", "", "")?;
        }
    }
    Ok(text)
}

/// For programs.
fn object(checks: &[Check]) -> String {
    let one = |check: &Check| {
        let Check { topic, works, found, means, remedy, facts } = check;
        json!({"topic": topic, "works": works, "found": found, "means": means, "remedy": remedy, "facts": facts})
    };
    format!("{}\n", json!({"checks": checks.iter().map(one).collect::<Vec<_>>()}))
}
