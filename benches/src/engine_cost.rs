//! What the engine itself costs for each operation: time and allocations.

use std::error::Error;
use std::str::FromStr;
use std::time::Instant;

use clap::Args;
use tensorc_runtime::engine::{Engine, EngineConfig, EngineKind, Op, OpName, Var};

use crate::allocations;
use tensorc_bench::summary::summarize;

/// Pushes and runs empty operations with two reads and one write.
#[derive(Args)]
pub struct EngineCostArgs {
    /// Operations of one round.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Kind of engine: naive, pooled or per_device.
    #[arg(long, default_value_t, value_parser = EngineKind::from_str)]
    kind: EngineKind,
}

const VARS: usize = 64;

/// The operation of this number reads two variables and writes a third.
fn op<'a>(name: &'a OpName, uses: &'a [&'a Var; 3]) -> Op<'a> {
    Op { reads: &uses[..2], writes: &uses[2..], ..Op::new(name) }
}

pub fn run(arguments: &EngineCostArgs) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig { kind: arguments.kind, cpu_workers: arguments.threads, ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let vars: Vec<Var> = (0..VARS).map(|_| engine.new_var()).collect();
    let uses: Vec<[&Var; 3]> = (0..VARS).map(|i| [i + 21, i + 42, i].map(|var| &vars[var % VARS])).collect();
    let name = OpName::from_static("empty");
    let round = || -> Result<(f64, u64), Box<dyn Error>> {
        let (before, start) = (allocations::count(), Instant::now());
        for i in 0..arguments.ops as usize {
            engine.push(op(&name, &uses[i % VARS]), |_| Ok(()))?;
        }
        engine.wait_all()?;
        let ns = start.elapsed().as_nanos() as f64 / arguments.ops as f64;
        Ok((ns, allocations::count() - before))
    };
    // Queues and slabs grow to their largest size in the first round.
    round()?;
    let rounds = (0..arguments.rounds.max(1)).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
    let time = summarize(rounds.iter().map(|(ns, _)| *ns).collect());
    let allocated = summarize(rounds.iter().map(|(_, count)| *count as f64 / arguments.ops as f64).collect());
    println!("ns per operation: best {:.1}, median {:.1}", time.best, time.median);
    println!("allocations per operation: best {:.6}, median {:.6}", allocated.best, allocated.median);
    Ok(())
}
