//! A step that behaves as its name says, well or badly, for the tests of the runner.
#![allow(clippy::unwrap_used, clippy::zombie_processes)]

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tensorc_gpu::protocol::{CONTEXT_LOST, Figure, Line, Outcome, end_with_runner};

struct Fake {
    name: String,
    /// Cases of earlier starts.
    done: BTreeSet<String>,
    failures: PathBuf,
    /// The output folder of the run, where tests leave files.
    out: PathBuf,
}

fn main() {
    end_with_runner().unwrap();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [step, name, device, _, done, file, failures, folder] = args.as_slice() else { panic!("{args:?}") };
    assert_eq!([&**step, &**device, &**done, &**failures], ["step", "--device", "--done", "--failures"]);
    let failures = PathBuf::from(folder);
    let out = failures.parent().and_then(Path::parent).unwrap().to_owned();
    let done = fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    Fake { name: name.clone(), done, failures, out }.act();
}

fn say(line: &Line) {
    let mut text = serde_json::to_vec(line).unwrap();
    text.push(b'\n');
    stdout().write_all(&text).unwrap();
    stdout().flush().unwrap();
}

fn end(case: &str, outcome: Outcome, note: &str) {
    let figure = |name: &str, value, unit: &str| Figure { name: name.into(), value, unit: unit.into() };
    let figures = match outcome {
        Outcome::Passed => vec![figure("rate", 1234.567, "GB/s"), figure("bytes", 65536.0, "")],
        _ => vec![],
    };
    say(&Line::End { case: case.into(), outcome, note: note.into(), figures, seconds: 0.001 });
}

fn die_of(signal: Signal) -> ! {
    // The handler of Rust takes the first one of some signals.
    loop {
        kill_process(getpid(), signal).unwrap();
        sleep(Duration::from_millis(1));
    }
}

fn hang() -> ! {
    loop {
        sleep(Duration::from_secs(1));
    }
}

impl Fake {
    fn has(&self, file: &str) -> bool {
        self.out.join(file).exists()
    }

    fn act(&self) {
        match self.name.as_str() {
            "silent" => return,
            "dies" => {
                eprintln!("loading\ncannot load libfake.so\n");
                exit(101);
            }
            "hangs-first" => hang(),
            "lost-always" => {
                say(&Line::Count { cases: 4 });
                exit(CONTEXT_LOST);
            }
            "garbage" => stdout()
                .write_all(b"hello \xff\n{\"event\":\"other\"}\n{\"event\":\"begin\",\"case\":\"a\\nb\"}\n")
                .unwrap(),
            "floods" => flood(),
            _ => {}
        }
        let cases = match self.name.as_str() {
            "crashes-each" => 60,
            "slow-a" | "slow-b" => 10,
            "zero" => 0,
            "tiny" => 2,
            _ => 4,
        };
        say(&Line::Count { cases });
        for case in (0..cases).map(|i| format!("c{i}")).filter(|case| !self.done.contains(case)) {
            self.case(&case);
        }
        match self.name.as_str() {
            "crashes-at-exit" => die_of(Signal::ABORT),
            "hangs-at-exit" => hang(),
            _ => {}
        }
    }

    fn case(&self, case: &str) {
        if self.name == "short" && case == "c3" {
            exit(0);
        }
        let log = OpenOptions::new().append(true).create(true).open(self.out.join(format!("ran.{}", self.name)));
        writeln!(log.unwrap(), "{case}").unwrap();
        say(&Line::Begin { case: case.into() });
        if case == "c1" && self.second(case) {
            return;
        }
        match self.name.as_str() {
            "crashes-each" => die_of(Signal::ILL),
            "skips" => return end(case, Outcome::Skipped, "no tensor cores"),
            "slow-a" | "slow-b" => sleep(Duration::from_millis(6)),
            "waits" if case == "c2" && !self.has("go") => hang(),
            "sleepy" => sleep(Duration::from_millis(250)),
            "long-notes" => return end(case, Outcome::Failed, &"long |\nnote ".repeat(20_000)),
            "garbage" => println!("between"),
            "two-begins" if case == "c2" => return,
            _ => {}
        }
        end(case, Outcome::Passed, "");
        if case == "c1" && self.name == "crashes-between" {
            die_of(Signal::BUS);
        }
    }

    /// What goes wrong in the second case; whether that has ended it.
    fn second(&self, case: &str) -> bool {
        match self.name.as_str() {
            "segv" => die_of(Signal::SEGV),
            "panics" => panic!("index 7 out of range"),
            "hangs" => hang(),
            "hangs-flooding" => loop {
                stdout().write_all(b"spinning\n").unwrap();
            },
            "leaves" => exit(0),
            "long-line" => println!("{}", "x".repeat(2 << 20)),
            "lost" => {
                end(case, Outcome::Failed, "context lost");
                exit(CONTEXT_LOST);
            }
            "grandchild" => {
                let child = Command::new("sleep").arg("60").spawn().unwrap();
                fs::write(self.out.join("pid"), format!("{}\n", child.id())).unwrap();
            }
            "hangs-alone" => {
                fs::write(self.out.join("pid"), format!("{}\n", std::process::id())).unwrap();
                hang();
            }
            "escaped" => drop(Command::new("setsid").args(["sleep", "30"]).spawn().unwrap()),
            "device" if self.has("busy") => {
                end(case, Outcome::Failed, "the device is busy\nwith another");
                return true;
            }
            "fails" if !self.has("fixed") => {
                fs::create_dir_all(self.failures.join(case)).unwrap();
                end(case, Outcome::Failed, "off by 3e-2");
                return true;
            }
            _ => {}
        }
        false
    }
}

fn flood() {
    let line = [b"0123456789abcdef".repeat(63), b"\n".to_vec()].concat();
    for _ in 0..10_000 {
        stdout().write_all(&line).unwrap();
        stderr().write_all(&line).unwrap();
    }
    stderr().write_all(b"the last of it\n").unwrap();
}
