//! `tensorc-bench`: one verb for each measurement. `benches/README.md` has the figures.

#[path = "../../runtime/tests/common/allocations.rs"]
mod allocations;
mod backends;
mod decode;
mod engine;
mod engine_cost;
mod fit_machine;
mod fork_join;
mod host;
mod kvstore;
mod list_nets;
mod load;
mod loading;
mod measure;
mod memory;
mod ndarray;
mod ranks;
mod shapes;
mod tiny_mlp;
mod train;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures parts of tensorc.
#[derive(Parser)]
struct Measurement {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The back ends against each other.
    Backends(backends::BackendsArgs),
    BenchEngine(engine::EngineArgs),
    EngineCost(engine_cost::EngineCostArgs),
    FitMachine(fit_machine::FitMachineArgs),
    /// The pool of plans against rayon.
    ForkJoin(fork_join::ForkJoinArgs),
    /// Kernels, models and launches on a GPU, kernels against cuBLASLt and cuDNN.
    Gpu(measure::MeasureArgs),
    Kvstore(kvstore::KvstoreArgs),
    NdarrayChain(ndarray::ChainArguments),
    NdarrayLoop(ndarray::LoopArguments),
    /// Time of training steps.
    BenchTrain(train::TrainArgs),
    /// Time from a compiled library on disk to its first result.
    Load(load::LoadArgs),
    /// Training from a file of records against training on images in memory.
    Loading(loading::LoadingArgs),
    /// Memory planned for inference and training.
    Memory(memory::MemoryArgs),
    Nets(list_nets::ListNetsArgs),
    /// Training steps over the processes of an MPI job.
    Ranks(ranks::RanksArgs),
    /// Steps of a decoder whose caches are states.
    Decode(decode::DecodeArgs),
    /// Requests of many shapes to one model.
    Shapes(shapes::ShapesArgs),
    /// Latency of a perceptron of about a thousand parameters through the Rust API.
    TinyMlp,
}

fn run(verb: Verb) -> Result<(), Box<dyn Error>> {
    match verb {
        Verb::Backends(arguments) => backends::run(&arguments)?,
        Verb::BenchEngine(arguments) => engine::run(&arguments)?,
        Verb::EngineCost(arguments) => engine_cost::run(&arguments)?,
        Verb::FitMachine(arguments) => fit_machine::run(&arguments)?,
        Verb::ForkJoin(arguments) => fork_join::run(&arguments)?,
        Verb::Gpu(arguments) => measure::run(&arguments)?,
        Verb::Kvstore(arguments) => kvstore::run(&arguments)?,
        Verb::NdarrayChain(arguments) => ndarray::chain(&arguments)?,
        Verb::NdarrayLoop(arguments) => ndarray::training_loop(&arguments)?,
        Verb::BenchTrain(arguments) => train::run(&arguments)?,
        Verb::Load(arguments) => load::run(&arguments)?,
        Verb::Loading(arguments) => loading::run(&arguments)?,
        Verb::Memory(arguments) => memory::run(&arguments)?,
        Verb::Nets(arguments) => list_nets::run(&arguments)?,
        Verb::Ranks(arguments) => ranks::run(&arguments)?,
        Verb::Decode(arguments) => decode::run(&arguments)?,
        Verb::Shapes(arguments) => shapes::run(&arguments)?,
        Verb::TinyMlp => tiny_mlp::run()?,
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Measurement::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
