//! What imperative arrays cost: calls that depend on each other, and loops that never wait.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Args;
use tensorc::ir::DType;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_runtime::engine::EngineConfig;

use crate::allocations;
use tensorc_bench::summary::summarize;

/// Adds 1 to an array of 64 elements again and again: the cost of one small call.
#[derive(Args)]
pub struct ChainArguments {
    /// Calls of one round.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Elements of the array.
    #[arg(long, default_value_t = 64)]
    elements: u64,
}

fn runtime(fuse: bool, threads: usize) -> Result<Runtime, Box<dyn Error>> {
    let engine = EngineConfig { cpu_workers: threads, ..EngineConfig::default() };
    Ok(Runtime::new(RuntimeOptions { engine, fuse, ..RuntimeOptions::default() })?)
}

pub fn chain(arguments: &ChainArguments) -> Result<(), Box<dyn Error>> {
    for fuse in [false, true] {
        let rt = runtime(fuse, arguments.threads)?;
        let mut x = rt.zeros(&[arguments.elements], DType::F32)?;
        let mut round = || -> Result<(f64, f64), Box<dyn Error>> {
            let (before, start) = (allocations::count(), Instant::now());
            for _ in 0..arguments.ops {
                x += 1.0;
            }
            x.wait_to_read()?;
            let ns = start.elapsed().as_nanos() as f64;
            Ok((ns / arguments.ops as f64, (allocations::count() - before) as f64 / arguments.ops as f64))
        };
        // The first round compiles.
        round()?;
        let rounds = (0..arguments.rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
        let time = summarize(rounds.iter().map(|(ns, _)| *ns).collect());
        let allocated = summarize(rounds.iter().map(|(_, count)| *count).collect());
        let expected = ((1 + arguments.rounds.max(1)) as u64 * arguments.ops) as f32;
        if x.to_vec::<f32>()?.iter().any(|&value| value != expected) {
            return Err(format!("the sum is not {expected}").into());
        }
        println!(
            "{}: ns per call best {:.0}, median {:.0}; allocations per call {:.2}",
            if fuse { "deferred" } else { "each call by itself" },
            time.best,
            time.median,
            allocated.median
        );
    }
    Ok(())
}

/// Trains a small network and never waits, to see whether memory stays flat.
#[derive(Args)]
pub struct LoopArguments {
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Rows of a batch.
    #[arg(long, default_value_t = 32)]
    batch: u64,
    /// Width of the hidden layer.
    #[arg(long, default_value_t = 256)]
    width: u64,
    /// Do not defer element-wise calls.
    #[arg(long)]
    no_fuse: bool,
}

const INPUTS: u64 = 784;

/// A perceptron with one hidden layer that learns to give back the mean of its inputs, by gradient
/// descent.
struct Net {
    rt: Runtime,
    first: NDArray,
    second: NDArray,
    batch: u64,
}

impl Net {
    fn weights(rt: &Runtime, rows: u64, columns: u64) -> Result<NDArray, Box<dyn Error>> {
        let scale = 0.1 / rows as f32;
        let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 7919 % 997) as f32 / 498.5 - 1.0) * scale).collect();
        Ok(rt.array(&[rows, columns], &values)?)
    }

    fn new(arguments: &LoopArguments) -> Result<Net, Box<dyn Error>> {
        let rt = runtime(!arguments.no_fuse, arguments.threads)?;
        let first = Net::weights(&rt, INPUTS, arguments.width)?;
        let second = Net::weights(&rt, arguments.width, 1)?;
        Ok(Net { rt, first, second, batch: arguments.batch })
    }

    fn call(&self, operator: &str, operands: &[&NDArray]) -> Result<NDArray, Box<dyn Error>> {
        let call = self.rt.op(operator)?;
        Ok(operands.iter().fold(call, |call, operand| call.arg(*operand)).invoke()?)
    }

    /// One step on a batch that comes from the host, as data does. Returns before it is done.
    fn step(&mut self, number: u64) -> Result<(), Box<dyn Error>> {
        let pixels = (0..self.batch * INPUTS).map(|i| ((i * 31 + number * 17) % 256) as f32 / 256.0);
        let x = self.rt.array(&[self.batch, INPUTS], &pixels.collect::<Vec<_>>())?;
        let mean = self.rt.full(x.device(), DType::F32, &[self.batch, 1], 0.5)?;
        let hidden = self.call("relu", &[&self.call("matmul", &[&x, &self.first])?])?;
        let error = (&self.call("matmul", &[&hidden, &self.second])? - &mean)?;
        let back = self.call("matmul", &[&error, &self.call("transpose", &[&self.second])?])?;
        let back = (&back * &self.call("sign", &[&hidden])?)?;
        let rate = 0.1 / self.batch as f64;
        let second = self.call("matmul", &[&self.call("transpose", &[&hidden])?, &error])?;
        let first = self.call("matmul", &[&self.call("transpose", &[&x])?, &back])?;
        self.second -= &(second * rate)?;
        self.first -= &(first * rate)?;
        Ok(())
    }
}

/// Resident memory of the process in MiB, as Linux tells it.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or(0.0) / 1024.0
}

pub fn training_loop(arguments: &LoopArguments) -> Result<(), Box<dyn Error>> {
    let mut net = Net::new(arguments)?;
    let (start, length) = (Instant::now(), Duration::try_from_secs_f64(arguments.seconds)?);
    let (mut steps, mut told) = (0u64, 0);
    println!("{:>8} {:>10} {:>12} {:>12} {:>12}", "seconds", "steps", "resident MiB", "in use MiB", "held MiB");
    while start.elapsed() < length {
        net.step(steps)?;
        steps += 1;
        let tenth = (start.elapsed().as_secs_f64() / arguments.seconds * 10.0) as u64;
        if tenth > told {
            told = tenth;
            let memory = net.rt.memory(net.first.device());
            let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
            println!(
                "{:>8.1} {steps:>10} {:>12.1} {:>12.1} {:>12.1}",
                start.elapsed().as_secs_f64(),
                resident_mib(),
                mib(memory.in_use),
                mib(memory.held)
            );
        }
    }
    net.rt.wait_all()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{steps} steps in {seconds:.1} s, {:.0} in a second", steps as f64 / seconds);
    Ok(())
}
