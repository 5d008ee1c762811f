//! Time of training steps: forward, backward and SGD with momentum as one plan.

use std::error::Error;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tensorc::runtime::Profiler;

use crate::host::runtime;
use tensorc_bench::nets;
use tensorc_bench::summary::summarize;
use tensorc_bench::training::Training;

#[derive(Args)]
pub struct TrainArgs {
    /// mlp, lenet, resnet18 or transformer, or a name of `nets`.
    workload: String,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Most steps timed; at least five, and not longer than `seconds`.
    #[arg(long, default_value_t = 200)]
    repeat: usize,
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    #[arg(long)]
    batch: Option<u64>,
    #[arg(long)]
    json: bool,
    /// Prints what takes how long, and writes a trace to this file.
    #[arg(long)]
    trace: Option<std::path::PathBuf>,
}

pub fn run(arguments: &TrainArgs) -> Result<(), Box<dyn Error>> {
    let (name, batch, classes) = match arguments.workload.as_str() {
        "mlp" | "lenet" => (arguments.workload.as_str(), 64, 10),
        "resnet18" => ("resnet18-cifar", 8, 10),
        "transformer" => ("transformer", 16, 4),
        other => (other, crate::memory::batch(other), 1000),
    };
    let net =
        nets::net(name, arguments.batch.unwrap_or(batch)).ok_or_else(|| format!("there is no network `{name}`"))??;
    let profiler = arguments.trace.as_ref().map(|_| Profiler::default());
    let rt = runtime(arguments.threads, profiler.clone())?;
    let start = Instant::now();
    let mut training = Training::new(rt, &net, classes)?;
    let compile = start.elapsed();
    let start = Instant::now();
    training.run()?;
    let first = start.elapsed();
    let loss_first = training.loss()?;
    for _ in 0..3 {
        training.run()?;
    }
    if let Some(profiler) = &profiler {
        profiler.start();
    }
    let (mut times, start) = (vec![], Instant::now());
    while times.len() < arguments.repeat.max(1)
        && (times.len() < 5 || start.elapsed().as_secs_f64() < arguments.seconds)
    {
        let step = Instant::now();
        training.run()?;
        times.push(step.elapsed());
    }
    let (loss_last, runs) = (training.loss()?, times.len());
    if let (Some(profiler), Some(path)) = (&profiler, &arguments.trace) {
        profiler.stop();
        println!("{}", profiler.recording().summary());
        profiler.recording().save_trace(path)?;
    }
    let summary = summarize(times);
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    if arguments.json {
        let report = json!({
            "compile_ms": ms(compile), "first_step_ms": ms(first), "median_ms": ms(summary.median),
            "min_ms": ms(summary.best), "runs": runs, "peak_rss_mb": peak_rss_mb(),
            "loss_first": loss_first, "loss_last": loss_last,
        });
        println!("{report}");
    } else {
        println!(
            "{name}, batch {}, {} thread(s): median {:.3} ms, least {:.3} ms of {runs} steps; loss {loss_first:.4} -> {loss_last:.4}; {:.1} MB of intermediate values",
            arguments.batch.unwrap_or(batch),
            arguments.threads,
            ms(summary.median),
            ms(summary.best),
            training.executor.intermediate_bytes() as f64 / 1e6
        );
    }
    Ok(())
}

/// Greatest resident size of this process so far.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
