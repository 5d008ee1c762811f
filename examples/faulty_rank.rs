//! A process of a training job that does something wrong on purpose, to see what it and the others say.
//!
//! ```text
//! cargo build --release --features mpi --example faulty_rank
//! mpirun -n 3 target/release/examples/faulty_rank --rank 1 --fault operator --step 20
//! ```
//!
//! Trains without end. From `--step` on, process `--rank` has an operator that fails, an array of another shape, or takes no
//! more part (the others have a batch more then). Without `--fault`, wait for a signal to one of the processes.
//! Prints the process's number when training begins, and one line that begins with `error: ` in the end.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tensorc::op::{Closure, Define, closure, like};
use tensorc::symbol::{Symbol, op, op_in};
use tensorc::{Compiler, DType, Options};
use tensorc_data::{Batch, DataDesc, HostTensor};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::kvstore::{GroupOptions, KVStore, StoreKind};
use tensorc_train::{Initializer, Module, Optimizer};

type Failure = Box<dyn std::error::Error>;

const ROWS: u64 = 16;
const WIDTH: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// An operator fails while the network runs.
    Operator,
    /// An array of the store has another shape.
    Shape,
    /// The process has no more batches.
    Batch,
}

#[derive(Parser)]
struct Args {
    /// The process that goes wrong
    #[arg(long, default_value_t = 0)]
    rank: usize,
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// When it does
    #[arg(long, default_value_t = 10)]
    step: usize,
    /// Seconds in which all processes must come to a collective
    #[arg(long, default_value_t = 30.0)]
    deadline: f64,
}

/// Passes its operand on so many times, and fails from then on.
fn gate(passes: usize) -> Closure {
    let left = Arc::new(AtomicUsize::new(passes));
    closure("gate", &["x"], like(0), move |call| {
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            return Err("the gate is closed".into());
        }
        let x = call.read::<f32>(0)?;
        call.write::<f32>(0)?.copy_from_slice(x);
        Ok(())
    })
    .types(&[DType::F32])
}

fn network(rt: &Runtime) -> Result<Symbol, Failure> {
    let x = op_in(rt.compiler().registry(), "gate").input(&Symbol::variable("data")).build()?;
    let x = op("FullyConnected").input(&x).param("num_hidden", 256).name("hidden").build()?;
    let x = op("Activation").input(&x).param("act_type", "relu").build()?;
    let x = op("FullyConnected").input(&x).param("num_hidden", 10).name("scores").build()?;
    Ok(op("SoftmaxOutput").input(&x).name("softmax").build()?)
}

fn host(dims: &[u64], values: &[f32]) -> Result<HostTensor, Failure> {
    Ok(HostTensor::new(DType::F32, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?)
}

/// The compiler is there before the store, which knows the rank: the launcher says it as well.
fn rank_of_launcher() -> usize {
    let found = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().find_map(|name| std::env::var(name).ok());
    found.and_then(|rank| rank.parse().ok()).unwrap_or(0)
}

fn train(args: &Args, rank: usize) -> Result<(), Failure> {
    let fault = args.fault.filter(|_| rank == args.rank);
    let passes = if fault == Some(Fault::Operator) { args.step } else { usize::MAX };
    let compiler =
        Compiler::with_operators(Options { threads: Some(1), ..Options::default() }, [gate(passes).build()])?;
    let rt = Runtime::with_compiler(compiler, RuntimeOptions::default())?;
    let deadline = Duration::try_from_secs_f64(args.deadline)?;
    let store = KVStore::with_options(&rt, StoreKind::DistSync, GroupOptions { deadline, ..GroupOptions::default() })?;
    if (store.rank(), store.num_workers() > 1) != (rank, true) {
        return Err(format!("rank {} of {}, by its launcher rank {rank}", store.rank(), store.num_workers()).into());
    }

    let data = vec![DataDesc::new("data", DType::F32, &[ROWS, WIDTH])];
    let labels = vec![DataDesc::new("softmax_label", DType::F32, &[ROWS])];
    let mut module = Module::of(&rt, &network(&rt)?).inputs(data, labels).kvstore(&store).bind()?;
    module.init_params(&Initializer::xavier(2.24))?;
    module.init_optimizer(Optimizer::sgd(0.01, 0.9))?;
    let number = |i: u64| (i * 7919 % 1000) as f32 / 1000.0;
    let values: Vec<f32> = (0..ROWS * WIDTH).map(number).collect();
    let classes: Vec<f32> = (0..ROWS).map(|i| (i % 10) as f32).collect();
    let batch = Batch {
        data: vec![host(&[ROWS, WIDTH], &values)?],
        labels: vec![host(&[ROWS], &classes)?],
        pad: 0,
        index: vec![],
    };
    println!("{rank}");
    for step in 0.. {
        if fault == Some(Fault::Batch) && step == args.step {
            break;
        }
        module.step(&batch)?;
        let wrong = fault == Some(Fault::Shape) && step == args.step;
        let dims = if wrong { [2, 3] } else { [3, 2] };
        store.init(format!("array of step {step}"), &rt.zeros(&dims, DType::F32)?)?;
        rt.wait_all()?;
    }
    Ok(store.close()?)
}

fn main() -> ExitCode {
    let rank = rank_of_launcher();
    match train(&Args::parse(), rank) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: rank {rank}: {error}");
            ExitCode::FAILURE
        }
    }
}
