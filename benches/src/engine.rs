//! Throughput of the dependency engine on streams of tiny operations.
//!
//! The streams are those of a driver of MXNet's engine (`compare_mxnet_engine.py`), down to the
//! random numbers, so that both engines do the same work.

use std::error::Error;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use tensorc_runtime::engine::{Engine, EngineConfig, EngineKind, Op, OpName, Var};

/// Pushes a stream of tiny operations and waits until all have run.
#[derive(Args)]
pub struct EngineArgs {
    pattern: Pattern,
    /// Operations to push.
    #[arg(long, default_value_t = 200_000)]
    ops: u64,
    /// Time each operation spends, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    work_ns: u64,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Kind of engine: naive, pooled or per_device.
    #[arg(long, default_value_t, value_parser = EngineKind::from_str)]
    kind: EngineKind,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Which variables the operations use; 64 variables unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    /// Every operation writes variable 0.
    Chain,
    /// Operation i writes variable i mod 64.
    Indep,
    /// Every operation reads variable 0 and writes one of the others in turn.
    Fan,
    /// Every operation reads two and writes one, drawn at random.
    Mix,
    /// Every operation reads three and writes one of 1024, drawn at random.
    #[value(name = "mix1k")]
    Mix1k,
    /// One variable: nine reads, one write, and so on.
    Rdwr,
}

/// A linear congruential generator with the multiplier of Knuth's MMIX.
struct LinearCongruential(u64);

impl LinearCongruential {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 as usize % n
    }
}

/// Variables of one operation, by number.
#[derive(Clone, Copy, Default)]
struct OperationVars {
    reads: [usize; 3],
    read_count: usize,
    write: Option<usize>,
}

impl Pattern {
    fn vars(self) -> usize {
        if self == Pattern::Mix1k { 1024 } else { 64 }
    }

    fn uses(self, op: usize, random: &mut LinearCongruential) -> OperationVars {
        let write = |var| OperationVars { write: Some(var), ..OperationVars::default() };
        match self {
            Pattern::Chain => write(0),
            Pattern::Indep => write(op % 64),
            Pattern::Fan => OperationVars { read_count: 1, ..write(1 + op % 63) },
            Pattern::Rdwr if op % 10 < 9 => OperationVars { read_count: 1, ..OperationVars::default() },
            Pattern::Rdwr => write(0),
            Pattern::Mix => Pattern::draw(2, 64, random),
            Pattern::Mix1k => Pattern::draw(3, 1024, random),
        }
    }

    fn draw(reads: usize, vars: usize, random: &mut LinearCongruential) -> OperationVars {
        let write = random.below(vars);
        let mut uses = OperationVars { write: Some(write), ..OperationVars::default() };
        while uses.read_count < reads {
            let read = random.below(vars);
            if read != write && !uses.reads[..uses.read_count].contains(&read) {
                uses.reads[uses.read_count] = read;
                uses.read_count += 1;
            }
        }
        uses
    }
}

static DONE: AtomicU64 = AtomicU64::new(0);

fn work(ns: u64) {
    if ns > 0 {
        let start = Instant::now();
        while start.elapsed() < Duration::from_nanos(ns) {}
    }
    DONE.fetch_add(1, Ordering::Relaxed);
}

struct OperationStream {
    engine: Engine,
    vars: Vec<Var>,
    name: OpName,
    work_ns: u64,
}

impl OperationStream {
    /// Calls `f` with the operation that uses these variables.
    fn with_op<R>(&self, uses: &OperationVars, f: impl FnOnce(Op<'_>) -> R) -> R {
        let reads = uses.reads.map(|var| &self.vars[var]);
        let write = [&self.vars[uses.write.unwrap_or(0)]];
        let writes = if uses.write.is_some() { &write[..] } else { &[] };
        f(Op { reads: &reads[..uses.read_count], writes, ..Op::new(&self.name) })
    }

    fn push(&self, uses: &OperationVars) -> Result<(), Box<dyn Error>> {
        let ns = self.work_ns;
        Ok(self.with_op(uses, |op| {
            self.engine.push(op, move |_| {
                work(ns);
                Ok(())
            })
        })?)
    }
}

pub fn run(arguments: &EngineArgs) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig { kind: arguments.kind, cpu_workers: arguments.threads, ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let vars = (0..arguments.pattern.vars()).map(|_| engine.new_var()).collect();
    let stream = OperationStream { engine, vars, name: OpName::from_static("op"), work_ns: arguments.work_ns };
    let random = &mut LinearCongruential(1);
    for var in 0..1000 {
        stream.push(&OperationVars { write: Some(var % stream.vars.len()), ..OperationVars::default() })?;
    }
    stream.engine.wait_all()?;
    DONE.store(0, Ordering::Relaxed);

    let start = Instant::now();
    for op in 0..arguments.ops as usize {
        stream.push(&arguments.pattern.uses(op, random))?;
    }
    let pushed = start.elapsed().as_secs_f64();
    stream.engine.wait_all()?;
    let total = start.elapsed().as_secs_f64();
    let (ops, done) = (arguments.ops, DONE.load(Ordering::Relaxed));
    if arguments.json {
        let pattern = arguments.pattern.to_possible_value().map(|value| value.get_name().to_owned());
        let work_ns = arguments.work_ns;
        let object = json!({ "pattern": pattern, "ops": ops, "done": done, "work_ns": work_ns,
            "push_s": pushed, "total_s": total });
        println!("{object}");
    } else {
        println!("{done} of {ops} operations in {total:.6} s: {:.0} ns each", total * 1e9 / ops.max(1) as f64);
        println!("pushed in {pushed:.6} s");
    }
    Ok(())
}
