//! Time of training steps: forward, backward and SGD with momentum as one plan.

use std::error::Error;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tensorc::Options;
use tensorc::executor::{Executor, FusedStep, GradReq};
use tensorc::ndarray::{Runtime, RuntimeOptions};
use tensorc::runtime::Profiler;
use tensorc::runtime::engine::EngineConfig;
use tensorc::train::{FusedUpdate, Optimizer};

use crate::summary::summarize;
use tensorc_bench::nets::{self, Net};

const RATE: f64 = 0.01;
const MOMENTUM: f64 = 0.9;

#[derive(Args)]
pub struct Arguments {
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

/// A network with random weights and data, and its training step.
pub struct Training {
    rt: Runtime,
    pub executor: Executor,
    pub step: FusedStep,
    numbers: Vec<f32>,
    labels: Vec<usize>,
}

/// Uniform numbers in [-1, 1), always the same.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        ((f64::from(self.next()) + 1.0) / 2.0 * limit as f64) as u64 % limit.max(1)
    }
}

impl Training {
    pub fn new(rt: Runtime, net: &Net, classes: u64) -> Result<Training, Box<dyn Error>> {
        let mut binder = Executor::simple_bind(&rt, &net.symbol);
        for (name, dims) in &net.inputs {
            binder = binder.shape(name, dims).grad_req_of(name, GradReq::Null);
        }
        let executor = binder.grad_req_of("softmax_label", GradReq::Null).build()?;
        let mut noise = Noise(1);
        let mut labels = vec![];
        for (name, array) in executor.arguments().iter().chain(executor.auxiliaries()) {
            let count = array.len() as usize;
            let values: Vec<f32> = match name.as_str() {
                "softmax_label" => {
                    labels = (0..count).map(|_| noise.below(classes) as usize).collect();
                    labels.iter().map(|l| *l as f32).collect()
                }
                "data" => match net.vocabulary {
                    Some(words) => (0..count).map(|_| noise.below(words) as f32).collect(),
                    None => (0..count).map(|_| 1.7 * noise.next()).collect(),
                },
                n if n.ends_with("gamma") || n.ends_with("var") => vec![1.0; count],
                n if n.ends_with("weight") => {
                    let fan = array.dims()[1..].iter().product::<u64>().max(1) as f32;
                    (0..count).map(|_| noise.next() / fan.sqrt()).collect()
                }
                _ => vec![0.0; count],
            };
            rt.array(array.dims(), &values)?.copy_into(array)?;
        }
        // The gradient of the mean over the samples, as the peers compute it.
        let samples = net.inputs.first().map_or(1, |(_, dims)| dims[0]);
        let optimizer = Optimizer::sgd(RATE, MOMENTUM).rescale_grad(1.0 / samples as f64);
        let parameters = executor.arguments().iter().map(|(name, array)| (name.as_str(), array.dtype()));
        let rule = FusedUpdate::new(&optimizer, rt.compiler().registry(), parameters)?;
        let step = executor.fuse(&rule, None)?;
        // Learning rate and weight decay of every parameter.
        let numbers = [RATE as f32, 0.0].repeat(step.parameters().len());
        rt.wait_all()?;
        Ok(Training { rt, executor, step, numbers, labels })
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        self.executor.step(&self.step, &self.numbers)?;
        Ok(self.rt.wait_all()?)
    }

    /// Mean cross-entropy of the last step's outputs.
    fn loss(&self) -> Result<f64, Box<dyn Error>> {
        let probabilities = self.executor.outputs()[0].to_vec::<f32>()?;
        let classes = probabilities.len() / self.labels.len();
        let of = |(i, label): (usize, &usize)| -f64::from(probabilities[i * classes + label].max(1e-12)).ln();
        Ok(self.labels.iter().enumerate().map(of).sum::<f64>() / self.labels.len() as f64)
    }
}

pub fn runtime(threads: usize, profiler: Option<Profiler>) -> Result<Runtime, tensorc::Error> {
    let options = Options { threads: Some(threads), profiler, ..Options::default() };
    let runtime = RuntimeOptions { engine: EngineConfig::default(), ..RuntimeOptions::default() };
    Runtime::with_compiler(tensorc::Compiler::new(options)?, runtime)
}

pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
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
