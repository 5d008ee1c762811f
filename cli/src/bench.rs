//! `tensorc bench`.

use std::fmt::Write;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tensorc::inspect::step_text;
use tensorc::runtime::{AlignedBuffer, TensorMut, TensorRef};
use tensorc::{Array, Model, Options, Session, Tensor};

use super::args::{CacheArgs, CompileArgs, InputArgs};
use super::arrays::borrowed;
use super::failure::CliFailure;
use super::npz;
use super::output::{print, warn};

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    compile: CompileArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Timed runs
    #[arg(long, default_value_t = 50, help_heading = "Measuring", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Save the outputs, named by graph output
    #[arg(long, value_name = "NPZ", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Time every kernel
    #[arg(long, help_heading = "Measuring")]
    profile: bool,
    /// Also run from N threads at once, each as often as --repeat says
    #[arg(long, value_name = "N", help_heading = "Measuring", value_parser = clap::value_parser!(u32).range(1..=1024))]
    callers: Option<u32>,
}

/// Seconds of warm-up before the timed runs, at most.
const WARM_UP: Duration = Duration::from_millis(500);

pub fn run(args: &BenchArgs) -> Result<(), CliFailure> {
    let start = Instant::now();
    let compiler =
        args.compile.compiler_with(None, Options { code_cache: args.cache.folder(), ..Options::default() })?;
    let model = args.inputs.load(&compiler)?;
    let loaded = start.elapsed();
    let inputs = args.inputs.arrays(&model)?.numbers(&model)?;
    let named = borrowed(&inputs);
    let ordered = model.ordered(&named)?;
    let start = Instant::now();
    let mut session = model.compile_for(&ordered)?;
    let compile = loaded + start.elapsed();
    super::progress::clear();
    warn(&compiler);
    if args.profile && session.has_parts() {
        return Err("--profile: shapes of the model depend on values, so it runs in parts; `tensorc report` has the times of their steps".into());
    }
    super::progress::phase(&format!("run {} times", args.repeat));
    let start = Instant::now();
    let outputs = session.run(&ordered)?;
    let first = start.elapsed();
    let buffers = outputs.iter().map(|t| AlignedBuffer::zeroed(t.bytes().len() as u64, "outputs"));
    let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let refs: Vec<TensorRef<'_>> = ordered.iter().map(|t| TensorRef::new(t.dtype(), t.dims(), t.bytes())).collect();
    let mut results: Vec<TensorMut<'_>> =
        outputs.iter().zip(&mut buffers).map(|(t, b)| TensorMut::new(t.dtype(), t.dims(), b.as_mut_slice())).collect();
    let times = timed(&mut session, &refs, &mut results, args.repeat)?;
    let (median, min) = (times[times.len() / 2], times[0]);
    if let Some(path) = &args.output {
        let named = session.outputs().iter().cloned().zip(outputs.iter().cloned().map(Array::from));
        npz::write(path, &named.collect::<Vec<_>>())?;
    }
    let served = args.callers.map(|callers| serve(&model, &named, callers, args.repeat)).transpose()?;
    super::progress::clear();
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let (plan, workers) = (session.plan(), compiler.pool().threads());
    let (activations, planned, bound) =
        (plan.arena_bytes, plan.run_bytes(workers), plan.run_lower_bound_bytes(workers));
    let steps = &session.plan().steps;
    let (launched, moved): (usize, u64) = (steps.len(), steps.iter().map(|s| s.bytes).sum());
    if args.json {
        let mut object = json!({
            "compile_ms": ms(compile), "first_run_ms": ms(first), "median_ms": ms(median), "min_ms": ms(min),
            "peak_rss_mb": peak_rss_mb(), "planned_activation_bytes": activations, "workers": workers,
            "planned_peak_bytes": planned, "planned_lower_bound_bytes": bound,
            "planned_ratio": planned as f64 / bound.max(1) as f64,
            "kernels_launched": launched, "moved_bytes": moved,
        });
        if let Some(Served { per_second, median, worst }) = served {
            object["served_per_s"] = json!(per_second);
            object["served_median_ms"] = json!(ms(median));
            object["served_worst_ms"] = json!(ms(worst));
        }
        return print(&format!("{object}\n"));
    }
    let mut text = String::new();
    writeln!(text, "compile {:>10.3} ms", ms(compile))?;
    for (step, time) in &session.report().timings {
        writeln!(text, "  {step:<16} {:>8.3} ms", ms(*time))?;
    }
    writeln!(text, "first run {:>8.3} ms", ms(first))?;
    writeln!(text, "median {:>11.3} ms   min {:.3} ms   {} runs", ms(median), ms(min), times.len())?;
    writeln!(
        text,
        "planned {:>10.2} MB, {:.2} MB of it activations, peak memory {:.0} MB",
        planned as f64 / 1e6,
        activations as f64 / 1e6,
        peak_rss_mb()
    )?;
    writeln!(text, "launched {:>9} kernels, {:.2} MB moved", launched, moved as f64 / 1e6)?;
    if let Some(Served { per_second, median, worst }) = served {
        writeln!(text, "served {per_second:>11.1} runs/s   median {:.3} ms   worst {:.3} ms", ms(median), ms(worst))?;
    }
    if args.profile {
        super::progress::phase("run with a clock at every step");
        profile(&mut session, &refs, &mut results, args.repeat.min(20), &mut text)?;
    }
    super::progress::clear();
    print(&text)
}

/// Times of runs, ascending, after some that warm up.
fn timed(
    session: &mut Session,
    inputs: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
    repeat: u32,
) -> Result<Vec<Duration>, CliFailure> {
    let warm = Instant::now();
    for _ in 0..repeat / 10 + 1 {
        if warm.elapsed() > WARM_UP {
            break;
        }
        session.run_into(inputs, outputs)?;
    }
    let mut times = Vec::with_capacity(repeat as usize);
    for _ in 0..repeat {
        let start = Instant::now();
        session.run_into(inputs, outputs)?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times)
}

/// What threads that call a model at once get.
struct Served {
    per_second: f64,
    /// Of the time between call and return.
    median: Duration,
    worst: Duration,
}

/// Runs a model from several threads at once, each of them so many times.
fn serve(model: &Model, inputs: &[(&str, Tensor)], callers: u32, repeat: u32) -> Result<Served, CliFailure> {
    model.run(inputs)?;
    let caller = || {
        let timed = || {
            let start = Instant::now();
            model.run(inputs).map(|_| start.elapsed())
        };
        (0..repeat).map(|_| timed()).collect::<Result<Vec<Duration>, _>>()
    };
    let (all, took) = std::thread::scope(|scope| {
        let start = Instant::now();
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, caller);
        let threads = (0..callers).map(spawn).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<_> = threads.into_iter().map(|t| t.join().unwrap_or_else(|e| resume_unwind(e))).collect();
        Ok::<_, std::io::Error>((all, start.elapsed()))
    })?;
    let mut times: Vec<Duration> = all.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    times.sort();
    let per_second = times.len() as f64 / took.as_secs_f64().max(1e-9);
    Ok(Served { per_second, median: times[times.len() / 2], worst: times[times.len() - 1] })
}

/// A line for every step: median time, rates, and what it is.
fn profile(
    session: &mut Session,
    inputs: &[TensorRef<'_>],
    outputs: &mut [TensorMut<'_>],
    repeat: u32,
    text: &mut String,
) -> Result<(), CliFailure> {
    let runs: Vec<Vec<Duration>> =
        (0..repeat).map(|_| session.run_profiled(inputs, outputs)).collect::<Result<_, _>>()?;
    let plan = session.plan();
    let mut rows: Vec<(Duration, usize)> = (0..plan.steps.len())
        .map(|i| {
            let mut times: Vec<Duration> = runs.iter().map(|r| r[i]).collect();
            times.sort();
            (times[times.len() / 2], i)
        })
        .collect();
    let total: Duration = rows.iter().map(|(t, _)| *t).sum();
    rows.sort_by_key(|(t, i)| (std::cmp::Reverse(*t), *i));
    writeln!(text, "\n{:>10} {:>6} {:>9} {:>8}  step", "us", "%", "GFLOP/s", "GB/s")?;
    for (time, i) in rows {
        let step = &plan.steps[i];
        let seconds = time.as_secs_f64().max(1e-9);
        let share = seconds / total.as_secs_f64().max(1e-9) * 100.0;
        let (gflops, gbs) = (step.flops as f64 / seconds / 1e9, step.bytes as f64 / seconds / 1e9);
        writeln!(
            text,
            "{:>10.1} {share:>6.1} {gflops:>9.1} {gbs:>8.1}  {} {}",
            seconds * 1e6,
            step_text(plan, &step.op),
            step.name
        )?;
    }
    Ok(())
}

/// Peak resident memory of this process, in MB of 2²⁰ bytes; 0 where the system does not tell.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}
