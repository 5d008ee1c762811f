//! An output folder, a run of fake steps in it, and what the reports say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tensorc_gpu::runner::{Job, RunnerError, Step, Summary, run};

pub struct Bench {
    /// Removed with this.
    _folder: TempDir,
    pub job: Job,
    pub steps: Vec<Step>,
    /// What the console showed in all runs.
    pub shown: String,
}

pub fn step(name: &'static str) -> Step {
    let limit = Duration::from_secs(20);
    // Short where it is waited for, and else beyond what a busy machine needs to start a process.
    let quiet = if name.starts_with("hangs") { Duration::from_millis(800) } else { Duration::from_secs(15) };
    Step { name, about: "A step of the tests.", limit, quiet, needs_device: false }
}

impl Bench {
    pub fn new(steps: &[&'static str]) -> Bench {
        // In memory where that is possible: waiting for a disk tests nothing here.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let job = Job {
            program: env!("CARGO_BIN_EXE_fake-step").into(),
            device: "fake".into(),
            bundle: "b1".into(),
            out: folder.path().join("out"),
            time: Duration::MAX,
            only: vec![],
            again: false,
            terminal: false,
        };
        fs::create_dir(&job.out).unwrap();
        Bench { _folder: folder, job, steps: steps.iter().map(|name| step(name)).collect(), shown: String::new() }
    }

    pub fn try_run(&mut self) -> Result<Summary, RunnerError> {
        let mut shown = vec![];
        let result = run(&self.job, &self.steps, &mut shown);
        self.shown += &String::from_utf8(shown).unwrap();
        result
    }

    #[track_caller]
    pub fn run(&mut self) -> Summary {
        self.try_run().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.job.out.join(name)
    }

    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn step(&self, name: &str) -> Value {
        step_of(&self.job.out, name)
    }

    /// Outcome, note and cases of a step, as `passed | note | c0 passed, c1 failed (note)`.
    pub fn told(&self, name: &str) -> String {
        told(&self.step(name))
    }

    /// The cases that a step began, in all its starts.
    pub fn ran(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("ran.{name}"))).unwrap_or_default().replace('\n', " ").trim().to_owned()
    }
}

pub fn step_of(out: &Path, name: &str) -> Value {
    let report: Value = serde_json::from_slice(&fs::read(out.join("results.json")).unwrap()).unwrap();
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == name).unwrap().clone()
}

pub fn told(step: &Value) -> String {
    let case = |case: &Value| {
        let note = case["note"].as_str().unwrap();
        let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
        format!("{} {}{note}", case["case"].as_str().unwrap(), case["outcome"].as_str().unwrap())
    };
    let cases: Vec<String> = step["cases"].as_array().unwrap().iter().map(case).collect();
    format!("{} | {} | {}", step["outcome"].as_str().unwrap(), step["note"].as_str().unwrap(), cases.join(", "))
}

/// The runner as a process; `runner-once OUT SECONDS STEP…`.
pub fn runner_once(out: &Path, seconds: &str, steps: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner-once"));
    command.arg(out).arg(seconds).args(steps).stdout(Stdio::null());
    command
}

/// Waits for the process that a step named in the file `pid` to be gone.
#[track_caller]
pub fn wait_gone(out: &Path) {
    wait_for(&out.join("pid"), "\n");
    let process = PathBuf::from("/proc").join(fs::read_to_string(out.join("pid")).unwrap().trim());
    let began = Instant::now();
    // A process that nobody has waited for yet is gone, too.
    while fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(began.elapsed() < Duration::from_secs(10), "{} runs on", process.display());
        sleep(Duration::from_millis(5));
    }
}

/// Waits for a file to hold a text.
#[track_caller]
pub fn wait_for(path: &Path, text: &str) {
    let began = Instant::now();
    while !fs::read_to_string(path).is_ok_and(|found| found.contains(text)) {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", path.display());
        sleep(Duration::from_millis(5));
    }
}
