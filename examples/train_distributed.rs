//! Training on handwritten digits over several devices and processes.
//!
//! ```text
//! cargo build --release --example train_distributed --features mpi
//! mpirun -n 4 target/release/examples/train_distributed --kv-store dist_sync --micro-batches 4
//! ```
//!
//! Every process takes its rows of each batch and computes their gradients, which are summed over all. With the same number
//! of micro-batches, any number of processes and devices ends with the same bits: the last line has a digest of the
//! parameters. It fails if the network reads too few of the held-out digits. docs/distributed.md says more.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tensorc::runtime::engine::EngineConfig;
use tensorc::runtime::{Device, Profiler};
use tensorc::symbol::{Symbol, SymbolError, op};
use tensorc_data::iter::adapt::SplitRows;
use tensorc_data::{Batches, DataIter, Position};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::kvstore::{Compression, GroupOptions, KVStore, StoreKind};
use tensorc_train::{Fit, Initializer, Module, Optimizer, Params, load_checkpoint, metric};
use xxhash_rust::xxh3::Xxh3;

mod digits;

use digits::{enlarged, lenet, perceptron};

type Failure = Box<dyn Error>;

/// Trains a network to read digits, alone or as one of the processes that mpirun starts.
#[derive(Parser)]
struct Args {
    /// local, device, dist_sync, dist_device_sync or dist_async
    #[arg(long, default_value = "local")]
    kv_store: StoreKind,
    #[arg(long, value_enum, default_value_t = Network::Lenet)]
    network: Network,
    /// How gradients travel: none, 2bit, 1bit, fp16 or bf16
    #[arg(long, default_value = "none")]
    compression: String,
    /// Threshold of 2bit and 1bit
    #[arg(long, allow_negative_numbers = true)]
    threshold: Option<String>,
    /// Devices of each process; each is a set of threads here
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    devices: u16,
    /// Parts in which a batch of all processes is computed [default: one for each device]
    #[arg(long)]
    micro_batches: Option<usize>,
    #[arg(long, default_value_t = 8)]
    epochs: u32,
    /// Examples in a step of all processes
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    #[arg(long, default_value_t = 0.03)]
    rate: f64,
    /// Seconds that a process waits for the others
    #[arg(long, default_value_t = 30.0)]
    deadline: f64,
    /// Saves the network, its parameters and the optimizer's states under this prefix after every epoch
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Goes on behind this epoch of the checkpoint
    #[arg(long, requires = "checkpoint")]
    resume: Option<u32>,
    /// Writes what rank 0 does and when, for a viewer of traces
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Share of the held-out digits that must be read in the end [default: 0.93, of mlp 0.88]
    #[arg(long)]
    enough: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Network {
    Mlp,
    Lenet,
    Resnet,
}

impl Network {
    fn symbol(self) -> Result<Symbol, SymbolError> {
        match self {
            Network::Mlp => perceptron(),
            Network::Lenet => lenet(),
            Network::Resnet => resnet(),
        }
    }

    /// Share of the held-out digits, which are of other writers, that it reads after the epochs of a usual run.
    fn enough(self) -> f64 {
        match self {
            Network::Mlp => 0.88,
            Network::Lenet | Network::Resnet => 0.93,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let profiler = args.trace.as_ref().map(|_| Profiler::default());
    let outcome = match join(&args, profiler.clone()) {
        Ok((rt, store)) => train(&args, &rt, &store, profiler).map_err(|e| format!("rank {}: {e}", store.rank())),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A runtime, and the store through which this process trains with the others.
fn join(args: &Args, profiler: Option<Profiler>) -> Result<(Runtime, KVStore), Failure> {
    let deadline = Duration::try_from_secs_f64(args.deadline)?;
    let engine = EngineConfig { profiler, ..EngineConfig::default() };
    let rt = Runtime::new(RuntimeOptions { engine, ..RuntimeOptions::default() })?;
    let store = KVStore::with_options(&rt, args.kv_store, GroupOptions { deadline, ..GroupOptions::default() })?;
    let settings = [("type", args.compression.as_str())].into_iter();
    let threshold = args.threshold.iter().map(|threshold| ("threshold", threshold.as_str()));
    let compression = Compression::from_settings(settings.chain(threshold))?;
    if compression != Compression::None {
        store.set_gradient_compression(compression)?;
    }
    Ok((rt, store))
}

fn train(args: &Args, rt: &Runtime, store: &KVStore, profiler: Option<Profiler>) -> Result<(), Failure> {
    let (rank, ranks) = (store.rank(), store.num_workers());
    let tracing = profiler.filter(|_| rank == 0);
    let (digits, test) = enlarged()?;
    let whole = Batches::labelled(digits.images, digits.labels, args.batch_size)?.shuffle(1);
    let mut batches = SplitRows::new(whole, rank as u64, ranks as u64)?;
    // Every process reads all of the held-out digits, in batches of its own size.
    let mut held_out = Batches::labelled(test.images, test.labels, batches.batch_size())?;

    let mut module = bind(args, rt, store, &batches)?;
    let first = args.resume.unwrap_or(0);
    batches.seek(Position::new(u64::from(first), 0))?;
    if rank == 0 {
        describe(args, &module, ranks);
    }
    let mut fit = Fit::epochs(args.epochs).begin(first).evaluate(&mut held_out);
    fit = match rank {
        0 => fit.on_epoch(|report| println!("{report}")),
        _ => fit.quiet(),
    };
    if let Some(prefix) = &args.checkpoint {
        fit = fit.checkpoint(prefix);
    }
    if let Some(profiler) = &tracing {
        profiler.start();
    }
    module.fit(&mut batches, fit)?.ok_or("there is no epoch left to train")?;
    if let (Some(profiler), Some(path)) = (&tracing, &args.trace) {
        profiler.stop();
        profiler.recording().save_trace(path)?;
    }
    fetch(rt, store, &module)?;
    let scores = module.score(&mut held_out, metric::create("acc")?.as_mut())?;
    let accuracy = scores.first().map_or(0.0, |(_, accuracy)| *accuracy);
    let digest = digest(&module.params()?);
    compare(store, &format!("{accuracy:.4} of the held-out digits right, parameters {digest:016x}"))?;
    store.close()?;
    let enough = args.enough.unwrap_or_else(|| args.network.enough());
    match accuracy < enough {
        true => Err(format!("the network reads {accuracy:.4} of the held-out digits, not {enough}").into()),
        false => Ok(()),
    }
}

fn bind(args: &Args, rt: &Runtime, store: &KVStore, batches: &dyn DataIter) -> Result<Module, Failure> {
    let devices: Vec<Device> = (0..args.devices).map(Device::cpu).collect();
    let symbol = args.network.symbol()?;
    let mut builder = Module::of(rt, &symbol).batches(batches).devices(&devices).kvstore(store);
    if let Some(count) = args.micro_batches {
        builder = builder.micro_batches(count);
    }
    let mut module = builder.bind()?;
    let optimizer = Optimizer::sgd(args.rate, 0.9).weight_decay(1e-4);
    match (&args.checkpoint, args.resume) {
        (Some(prefix), Some(epoch)) => {
            module.set_params(&load_checkpoint(prefix, epoch)?.1, false)?;
            module.init_optimizer(optimizer)?;
            module.load_optimizer_states(prefix, epoch)?;
        }
        _ => {
            rt.seed(1);
            module.init_params(&Initializer::xavier(2.24))?;
            module.init_optimizer(optimizer)?;
        }
    }
    Ok(module)
}

/// Takes the parameters of an asynchronous store after the last push of every process: each has what it pulled last.
fn fetch(rt: &Runtime, store: &KVStore, module: &Module) -> Result<(), Failure> {
    if store.kind().is_async() {
        rt.wait_all()?;
        store.barrier()?;
        module.parameters().try_for_each(|(name, array)| store.pull(name, &[array], 0))?;
    }
    Ok(())
}

fn describe(args: &Args, module: &Module, ranks: usize) {
    let parameters: u64 = module.parameters().map(|(_, array)| array.len()).sum();
    let places = ranks * usize::from(args.devices);
    println!(
        "{parameters} parameters, store {}, {ranks} processes with {} devices each, batches of {} in {} parts",
        args.kv_store,
        args.devices,
        args.batch_size,
        args.micro_batches.unwrap_or(places)
    );
}

/// A number that any change of a parameter changes.
fn digest(params: &Params) -> u64 {
    let mut hash = Xxh3::new();
    for (name, tensor) in params.arguments.iter().chain(&params.auxiliary) {
        hash.update(name.as_bytes());
        hash.update(tensor.bytes());
    }
    hash.digest()
}

/// Prints a result that every process must have, unless averages of batch normalisation were left to each.
fn compare(store: &KVStore, result: &str) -> Result<(), Failure> {
    if let Some(group) = store.group().filter(|_| !store.kind().is_async()) {
        let all = group.gather("result", result.as_bytes().to_vec())?;
        if let Some((rank, other)) = all.iter().enumerate().find(|(_, other)| other[..] != *result.as_bytes()) {
            return Err(format!("{result}, but rank {rank} has {}", String::from_utf8_lossy(other)).into());
        }
    }
    if store.rank() == 0 {
        println!("{result}");
    }
    Ok(())
}

/// Convolutions in three stages of two residual blocks, with batch normalisation.
fn resnet() -> Result<Symbol, SymbolError> {
    let mut x = normalised(&Symbol::variable("data"), "stem", 8, 3, 1)?;
    x = op("Activation").input(&x).param("act_type", "relu").build()?;
    for (stage, filters) in [8, 16, 32].into_iter().enumerate() {
        for block in 0..2 {
            let name = format!("stage{}_block{}", stage + 1, block + 1);
            let narrows = stage > 0 && block == 0;
            x = residual(&x, &name, filters, if narrows { 2 } else { 1 })?;
        }
    }
    let x =
        op("Pooling").input(&x).param("pool_type", "avg").param("global_pool", true).param("kernel", [1, 1]).build()?;
    let scores = op("FullyConnected").input(&x).param("num_hidden", 10).name("fc").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
}

fn residual(x: &Symbol, name: &str, filters: i64, stride: i64) -> Result<Symbol, SymbolError> {
    let relu = |x: &Symbol| op("Activation").input(x).param("act_type", "relu").build();
    let inner = relu(&normalised(x, &format!("{name}_a"), filters, 3, stride)?)?;
    let inner = normalised(&inner, &format!("{name}_b"), filters, 3, 1)?;
    let shortcut = match stride {
        1 => x.clone(),
        _ => normalised(x, &format!("{name}_shortcut"), filters, 1, stride)?,
    };
    relu(&op("elemwise_add").input(&inner).input(&shortcut).build()?)
}

/// A convolution that keeps the size but for its stride, and batch normalisation.
fn normalised(x: &Symbol, name: &str, filters: i64, kernel: i64, stride: i64) -> Result<Symbol, SymbolError> {
    let conv = op("Convolution").input(x).param("kernel", [kernel; 2]).param("pad", [kernel / 2; 2]);
    let conv = conv.param("stride", [stride; 2]).param("num_filter", filters).param("no_bias", true);
    let conv = conv.name(&format!("{name}_conv")).build()?;
    op("BatchNorm").input(&conv).param("fix_gamma", false).name(&format!("{name}_norm")).build()
}
