//! Runs a corpus of text tests and tells what failed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::stage::{StageError, StagedCorpus, TIME_LIMIT_S, TIMED_OUT, TextTest, discover, io_error};
use crate::tidy::violations;

/// Tests that run at the same time.
const JOBS: usize = 2;

/// Folders directly below a corpus that hold no text tests.
const NO_TESTS: &[&str] = &["src", "tests", "target"];

/// Why a corpus could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A folder without tests.
    #[error("{0}: no text test (.tc) below this folder")]
    EmptyCorpus(PathBuf),
    /// No program to compare with.
    #[error("no tool named 'filecheck' was given")]
    NoFilecheck,
    /// A tool that is not there.
    #[error("tool '{name}': {path} is not a file")]
    MissingTool {
        /// The name of the tool.
        name: String,
        /// Where the tool was expected.
        path: PathBuf,
    },
    /// The corpus cannot be staged.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A program that does not start.
    #[error("{path}: cannot start: {error}")]
    Start {
        /// The program.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// A folder that does not exist.
    #[error("{0}: no folder for the stage beside this tool")]
    NoFolder(PathBuf),
}

/// Something wrong with one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestFailure {
    /// The test's path below the corpus folder.
    pub test: String,
    /// Line of the test, from 1.
    pub line: usize,
    /// What went wrong, in a few words.
    pub reason: String,
    /// The command as written, where one failed.
    pub command: Option<String>,
    /// The script that repeats the command.
    pub script: Option<PathBuf>,
    /// The command's standard error: the tools' messages and the explained mismatch.
    pub stderr: String,
    /// What the test wrote to its standard output.
    pub stdout: String,
}

/// What became of the tests of a corpus.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Tests found.
    pub tests: usize,
    /// Tests whose every command passed and that break no rule.
    pub passed: usize,
    /// RUN lines of the tests that ran.
    pub commands: usize,
    /// Tests that need features which are absent, with those features.
    pub skipped: Vec<(String, String)>,
    /// In the order of the tests' names.
    pub failures: Vec<TestFailure>,
}

impl Summary {
    /// Whether nothing failed.
    pub fn is_success(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Runs every `.tc` file below the folder, but not below `src`, `tests` and `target` of it.
///
/// `tools` are the commands that RUN lines may use besides the system's, by name; one of them is `filecheck`, and the
/// staged files go to the folder `text-tests` beside it. `features` are what REQUIRES lines may ask for.
pub fn run_corpus(corpus: &Path, tools: &[(&str, &Path)], features: &[&str]) -> Result<Summary, RunError> {
    for (name, path) in tools {
        if !path.is_file() {
            return Err(RunError::MissingTool { name: (*name).to_owned(), path: (*path).to_owned() });
        }
    }
    let filecheck = tools.iter().find(|(name, _)| *name == "filecheck").ok_or(RunError::NoFilecheck)?.1;
    let corpus = corpus.canonicalize().map_err(io_error(corpus))?;
    let filecheck = filecheck.canonicalize().map_err(io_error(filecheck))?;
    let tests = discover(&corpus, NO_TESTS)?;
    if tests.is_empty() {
        return Err(RunError::EmptyCorpus(corpus));
    }
    let mut summary = Summary { tests: tests.len(), ..Summary::default() };
    let mut staged = Vec::new();
    for test in &tests {
        let unmet = test.unmet(features);
        if unmet.is_empty() {
            staged.push(test);
        } else {
            summary.skipped.push((test.name.clone(), unmet.join(", ")));
        }
    }
    let dir = stage_dir(&filecheck, &corpus)?;
    let stage = StagedCorpus::write(&dir, &staged, tools, JOBS)?;
    let notes = run_shards(&stage, &filecheck)?;
    let mut staged = staged.into_iter().enumerate().peekable();
    for test in &tests {
        let before = summary.failures.len();
        summary.failures.extend(untidy(test));
        let ran = match staged.peek() {
            Some((index, next)) if next.name == test.name => Some(index % stage.shards),
            _ => None,
        };
        if let Some(shard) = ran {
            staged.next();
            summary.commands += test.runs.len();
            for run in 0..test.runs.len() {
                summary.failures.extend(failure(&stage, shard, test, run, &notes[shard])?);
            }
            summary.passed += usize::from(summary.failures.len() == before);
        }
    }
    Ok(summary)
}

/// Lets `lit` run the staged tests below a folder; what they wrote goes to `artifacts`. True if all passed.
pub fn run_staged(folder: &Path, artifacts: &Path) -> bool {
    let events = lit::event_handler::Default::new();
    let run = lit::run::tests(events, |config| {
        config.add_search_path(folder.to_string_lossy());
        config.add_extension("tc");
        config.save_artifacts_to_directory = Some(artifacts.to_owned());
    });
    run.is_ok()
}

/// A folder for each corpus, so that the corpora of one build do not clear each other's files.
fn stage_dir(filecheck: &Path, corpus: &Path) -> Result<PathBuf, RunError> {
    let beside = filecheck.parent().ok_or_else(|| RunError::NoFolder(filecheck.to_owned()))?;
    let name = corpus.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
    Ok(beside.join("text-tests").join(name.trim_start_matches('-')))
}

/// Runs the shards at the same time, each in a process of its own, because `lit` ends its process on some errors.
/// Gives for each shard what it printed.
fn run_shards(stage: &StagedCorpus, filecheck: &Path) -> Result<Vec<String>, RunError> {
    let run = |shard: usize| -> io::Result<Output> {
        let mut command = Command::new(filecheck);
        command.arg("--run-staged").arg(stage.shard(shard)).arg(stage.artifacts(shard)).current_dir(&stage.dir);
        command.output()
    };
    let outputs: Vec<io::Result<Output>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..stage.shards).map(|shard| scope.spawn(move || run(shard))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|output| output.unwrap_or_else(|_| Err(io::Error::other("the waiting thread panicked")))).collect()
    });
    let mut notes = Vec::new();
    for output in outputs {
        let output = output.map_err(|error| RunError::Start { path: filecheck.to_owned(), error })?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        notes.push(format!("{}{}", out.trim_start(), err.trim_start()));
    }
    Ok(notes)
}

fn untidy(test: &TextTest) -> impl Iterator<Item = TestFailure> {
    violations(test).into_iter().map(|violation| TestFailure {
        test: test.name.clone(),
        line: violation.line,
        reason: violation.rule,
        command: None,
        script: None,
        stderr: String::new(),
        stdout: String::new(),
    })
}

/// Reads what lit kept of one RUN line; nothing if it passed.
fn failure(
    stage: &StagedCorpus,
    shard: usize,
    test: &TextTest,
    run: usize,
    note: &str,
) -> Result<Option<TestFailure>, RunError> {
    let mut dir = stage.artifacts(shard).join(&test.name);
    if test.runs.len() > 1 {
        dir = dir.join(format!("run-command-{}", run + 1));
    }
    let read = |name: &str| {
        let path = dir.join(name);
        if path.is_file() { std::fs::read_to_string(&path).map_err(io_error(&path)) } else { Ok(String::new()) }
    };
    let result = read("result.txt")?;
    if result.trim() == "Pass" {
        return Ok(None);
    }
    let (reason, stderr) = if result.is_empty() {
        ("lit did not run the command".to_owned(), note.to_owned())
    } else {
        (reason(&result), read("stderr.txt")?)
    };
    Ok(Some(TestFailure {
        test: test.name.clone(),
        line: test.runs[run].line,
        reason,
        command: Some(test.runs[run].command.clone()),
        script: Some(stage.dir.join(StagedCorpus::script(&test.name, run + 1))),
        stderr,
        stdout: read("stdout.txt")?,
    }))
}

/// Puts lit's result, which carries the exit status as `exit_status: n`, into words.
fn reason(result: &str) -> String {
    let status = result.split_once("exit_status:").and_then(|(_, rest)| {
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<i32>().ok()
    });
    match status {
        Some(TIMED_OUT) => format!("ended after {TIME_LIMIT_S} s"),
        Some(status) => format!("exit status {status}"),
        None => result.trim().to_owned(),
    }
}

impl fmt::Display for TestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FAIL {}:{}: {}", self.test, self.line, self.reason)?;
        if let Some(command) = &self.command {
            writeln!(f, "  command: {command}")?;
        }
        if let Some(script) = &self.script {
            writeln!(f, "  repeat: bash {}", script.display())?;
        }
        for (name, text) in [("stderr", &self.stderr), ("stdout", &self.stdout)] {
            if !text.trim().is_empty() {
                writeln!(f, "  {name}:")?;
                text.trim_end().lines().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        for (test, features) in &self.skipped {
            writeln!(f, "SKIP {test}: requires {features}")?;
        }
        let failed = self.tests - self.passed - self.skipped.len();
        let skipped = self.skipped.len();
        write!(
            f,
            "text tests: {} passed, {failed} failed, {skipped} skipped of {} ({} commands)",
            self.passed, self.tests, self.commands
        )
    }
}
