//! Mutants in processes of their own, under limits: a process that dies, hangs or takes too much memory costs one mutant.
//!
//! A worker writes a line before each mutant, with each phase of compilation, and after the mutant. The process that started
//! it kills it when too long passes after the first of these lines, takes what is missing for a crash, and goes on with the
//! next mutant in another worker.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use tensorc::ir::Rng;
use tensorc::{Compiler, Limits, Options};
use tensorc_frontend::onnx::proto::ModelProto;

use crate::mutate::mutate;
use crate::operators::standard_names;
use crate::trial::{Outcome, trial};

/// What mutants are made of and may take.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The program `onnx_fuzz`, which is started for every worker.
    pub program: PathBuf,
    /// A folder of models, of which each mutant changes one.
    pub corpus: PathBuf,
    /// Where mutants are written; those that fail stay there.
    pub folder: PathBuf,
    /// Time for one mutant, of which compiling and running each have a fifth as their limit.
    pub time: Duration,
    /// Memory for one mutant, beyond what the process had before.
    pub memory: u64,
    /// Address space of a worker.
    pub address_space: u64,
}

/// The models of a corpus, in order of their names.
///
/// # Errors
/// The folder cannot be read.
pub fn corpus(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
    found.retain(|p| p.extension().is_some_and(|e| e == "onnx"));
    found.sort();
    Ok(found)
}

/// The bytes of a mutant and what was done, from the model that its seed chooses; `None` if that file is no model.
pub fn mutant(corpus: &[PathBuf], seed: u64, operators: &[&str]) -> Option<(Vec<u8>, String)> {
    let base = Rng::new(seed ^ 0x5eed).pick(corpus).clone();
    let mut model = ModelProto::decode(Bytes::from(fs::read(&base).ok()?)).ok()?;
    let done = mutate(&mut model, seed, operators);
    let name = base.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Some((model.encode_to_vec(), format!("{name}: {}", done.join("; "))))
}

/// A number from the status of this process, in bytes.
fn status(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever reads the lines may be gone; then there is nobody to tell.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Tries the mutants of the seeds `first..end`, one after the other, and writes how it goes.
///
/// # Errors
/// The corpus cannot be read, a mutant cannot be written, or no compiler can be made.
pub fn work(campaign: &Campaign, first: u64, end: u64) -> Result<(), Box<dyn std::error::Error>> {
    let progress = |phase: &str| say(&format!("PHASE {phase}"));
    let models = corpus(&campaign.corpus)?;
    let limits = Limits { memory: Some(campaign.memory), time: Some(campaign.time / 5), ..Limits::default() };
    let compiler = Compiler::new(Options { threads: Some(1), progress: Some(progress), limits, ..Options::default() })?;
    let names = standard_names(compiler.registry());
    for seed in first..end {
        say(&format!("START {seed}"));
        let Some((bytes, about)) = mutant(&models, seed, &names) else {
            say("END skipped 0 0");
            continue;
        };
        let path = campaign.folder.join(format!("{seed}.onnx"));
        fs::write(&path, bytes)?;
        say(&format!("ABOUT {}", about.replace('\n', " ")));
        // The greatest memory of the process counts from here.
        let _ = fs::write("/proc/self/clear_refs", "5");
        let before = status("VmRSS").unwrap_or(0);
        let started = Instant::now();
        let outcome = trial(&compiler, &path, seed);
        let took = started.elapsed().as_millis();
        let grown = status("VmHWM").unwrap_or(0).saturating_sub(before);
        let (word, detail) = match outcome {
            Outcome::Done => ("done", String::new()),
            Outcome::Refused => ("refused", String::new()),
            Outcome::Internal(why) => ("internal", why),
            Outcome::Panicked(why) => ("panic", why),
        };
        if matches!(word, "done" | "refused") && grown <= campaign.memory {
            let _ = fs::remove_file(&path);
        }
        say(&format!("END {word} {took} {grown} {}", detail.replace('\n', " | ")));
    }
    Ok(())
}

/// How many mutants ended how, and those that ended badly.
#[derive(Debug, Default)]
pub struct Tally {
    /// Ran or compiled.
    pub done: u64,
    /// Typed errors about the model.
    pub refused: u64,
    /// Bases that are no models.
    pub skipped: u64,
    /// Everything else: kind, seed, phase, what was done, and what is known of the failure.
    pub failures: Vec<Failure>,
}

/// A mutant that ended badly.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `panic`, `internal`, `crash`, `time`, `memory` or `slow`.
    pub kind: String,
    /// The seed, which names its file.
    pub seed: u64,
    /// The phase of compilation that began last.
    pub phase: String,
    /// The base and the mutations.
    pub about: String,
    /// Message, place, exit status or amount.
    pub detail: String,
}

struct Worker {
    child: Child,
    lines: Receiver<String>,
}

fn forward(out: ChildStdout) -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn start(campaign: &Campaign, first: u64, end: u64) -> std::io::Result<Worker> {
    let limit = format!("ulimit -c 0; ulimit -v {}; exec \"$0\" \"$@\"", campaign.address_space / 1024);
    let errors = fs::File::create(campaign.folder.join("stderr.txt"))?;
    let mut child = Command::new("sh")
        .args(["-c", &limit])
        .arg(&campaign.program)
        .arg("worker")
        .arg("--corpus")
        .arg(&campaign.corpus)
        .arg("--folder")
        .arg(&campaign.folder)
        .args(["--seed", &first.to_string(), "--count", &(end - first).to_string()])
        .args(["--memory", &campaign.memory.to_string()])
        .env("RUST_BACKTRACE", "1")
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()?;
    let Some(out) = child.stdout.take() else { return Err(std::io::Error::other("a worker has no output")) };
    Ok(Worker { child, lines: forward(out) })
}

/// The message of a process that died, and the first functions of the project on its stack.
fn cause(errors: &str) -> String {
    let message = errors.lines().next().unwrap_or_default();
    let frames = errors.lines().filter_map(|l| Some(l.trim_start().split_once(": ")?.1));
    let ours: Vec<&str> = frames.filter(|f| f.contains("tensorc")).take(3).collect();
    format!("{message} in {}", ours.join(" < "))
}

/// Tries the mutants of `first..end`; `report` hears of each failure at once.
///
/// # Errors
/// A worker cannot be started.
pub fn run(campaign: &Campaign, first: u64, end: u64, mut report: impl FnMut(&Failure)) -> std::io::Result<Tally> {
    let mut tally = Tally::default();
    let mut next = first;
    while next < end {
        let mut worker = start(campaign, next, end)?;
        let failure = follow(campaign, &mut worker, &mut next, &mut tally, &mut report);
        // A worker that ended by itself is no longer there to be killed.
        let _ = worker.child.kill();
        let status = worker.child.wait()?;
        let Some(mut failure) = failure else {
            // It ended by itself after the last mutant; or it could not even begin.
            if next < end {
                let errors = fs::read_to_string(campaign.folder.join("stderr.txt")).unwrap_or_default();
                return Err(std::io::Error::other(format!("a worker ended between mutants: {status}; {errors}")));
            }
            continue;
        };
        if failure.kind == "crash" {
            let errors = fs::read_to_string(campaign.folder.join("stderr.txt")).unwrap_or_default();
            failure.detail = format!("{status}; {}", cause(&errors));
        }
        next = failure.seed + 1;
        report(&failure);
        tally.failures.push(failure);
    }
    Ok(tally)
}

/// Reads what a worker writes until it ends; the mutant at which it ended or was too slow.
fn follow(
    campaign: &Campaign,
    worker: &mut Worker,
    next: &mut u64,
    tally: &mut Tally,
    report: &mut impl FnMut(&Failure),
) -> Option<Failure> {
    let mut current: Option<Failure> = None;
    let mut deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let line = match worker.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return current.map(|f| Failure { kind: "time".into(), ..f }),
            Err(RecvTimeoutError::Disconnected) => return current,
        };
        match (line.split_once(' ').unwrap_or((&line, "")), &mut current) {
            (("START", seed), _) => {
                deadline = Instant::now() + campaign.time;
                let seed = seed.parse().unwrap_or(*next);
                let empty = String::new;
                current = Some(Failure { kind: "crash".into(), seed, phase: empty(), about: empty(), detail: empty() });
            }
            (("PHASE", phase), Some(f)) => f.phase = phase.into(),
            (("ABOUT", about), Some(f)) => f.about = about.into(),
            (("END", rest), Some(_)) => {
                deadline = Instant::now() + Duration::from_secs(60);
                let Some(failure) = current.take() else { continue };
                *next = failure.seed + 1;
                if let Some(failure) = ended(campaign, failure, rest, tally) {
                    report(&failure);
                    tally.failures.push(failure);
                }
            }
            _ => {}
        }
    }
}

/// Counts a mutant that ended by itself; it failed if it panicked, or took too much.
fn ended(campaign: &Campaign, failure: Failure, rest: &str, tally: &mut Tally) -> Option<Failure> {
    let mut words = rest.splitn(4, ' ');
    let outcome = words.next().unwrap_or_default();
    let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
    let (millis, grown) = (number(), number());
    let detail = words.next().unwrap_or_default().to_owned();
    match outcome {
        "panic" | "internal" => return Some(Failure { kind: outcome.into(), detail, ..failure }),
        _ if grown > campaign.memory => {
            return Some(Failure {
                kind: "memory".into(),
                detail: format!("{outcome}, {} MiB", grown >> 20),
                ..failure
            });
        }
        _ if millis > campaign.time.as_millis() as u64 / 2 => {
            return Some(Failure { kind: "slow".into(), detail: format!("{outcome}, {millis} ms"), ..failure });
        }
        "done" => tally.done += 1,
        "refused" => tally.refused += 1,
        _ => tally.skipped += 1,
    }
    None
}
