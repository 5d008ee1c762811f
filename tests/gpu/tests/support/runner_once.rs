//! The runner as a program of its own, which tests kill: `runner-once OUT SECONDS STEP…`.
#![allow(clippy::unwrap_used)]

use std::io::stdout;
use std::process::ExitCode;
use std::time::Duration;

use tensorc_gpu::runner::{Job, Step, run};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (out, seconds) = (args.next().unwrap(), args.next().unwrap());
    let step = |name: String| Step {
        name: name.leak(),
        about: "A step of the tests.",
        limit: Duration::from_secs(20),
        quiet: Duration::from_secs(10),
        needs_device: false,
    };
    let steps: Vec<Step> = args.map(step).collect();
    let job = Job {
        program: std::env::current_exe().unwrap().with_file_name("fake-step"),
        device: "fake".into(),
        bundle: "b1".into(),
        out: out.into(),
        time: Duration::from_secs_f64(seconds.parse().unwrap()),
        only: vec![],
        again: false,
        terminal: false,
    };
    match run(&job, &steps, &mut stdout()) {
        Ok(summary) => ExitCode::from(summary.exit_status()),
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}
