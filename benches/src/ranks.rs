//! Training steps over the processes of an MPI job: their time, and how much of the communication the backward pass hides.

use std::error::Error;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tensorc::runtime::Profiler;
use tensorc::runtime::engine::EngineConfig;
use tensorc::runtime::profiler::{EventKind, Recording};
use tensorc::{DType, Options};
use tensorc_bench::nets;
use tensorc_data::{Batch, DataDesc, HostTensor};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::kvstore::{GroupOptions, KVStore};
use tensorc_train::{Initializer, Module, Optimizer};

use tensorc_bench::summary::{TimingSummary, summarize};

#[derive(Args)]
pub struct RanksArgs {
    /// resnet18, transformer, or a name of `nets`
    workload: String,
    /// Examples of a batch of all processes
    #[arg(long, default_value_t = 32)]
    batch: u64,
    /// Threads of each process
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Without a store, one process trains alone
    #[arg(long)]
    kv_store: Option<String>,
    #[arg(long)]
    micro_batches: Option<usize>,
    /// Writes a trace of rank 0
    #[arg(long)]
    trace: Option<std::path::PathBuf>,
}

pub fn run(arguments: &RanksArgs) -> Result<(), Box<dyn Error>> {
    let (name, classes) = match arguments.workload.as_str() {
        "resnet18" => ("resnet18-cifar", 10),
        "transformer" => ("transformer", 4),
        other => (other, 10),
    };
    let profiler = Profiler::default();
    let options = Options { threads: Some(arguments.threads), profiler: Some(profiler.clone()), ..Options::default() };
    let engine = EngineConfig { profiler: Some(profiler.clone()), ..EngineConfig::default() };
    let runtime = RuntimeOptions { engine, ..RuntimeOptions::default() };
    let rt = Runtime::with_compiler(tensorc::Compiler::new(options)?, runtime)?;
    let kind = arguments.kv_store.as_ref().map(|name| name.parse()).transpose()?;
    let store = kind.map(|kind| KVStore::with_options(&rt, kind, GroupOptions::default())).transpose()?;
    let ranks = store.as_ref().map_or(1, KVStore::num_workers) as u64;
    let examples = arguments.batch / ranks;
    let net = nets::net(name, examples).ok_or_else(|| format!("there is no network `{name}`"))??;
    let mut builder = Module::of(&rt, &net.symbol);
    let is_label = |name: &str| name == "softmax_label";
    let desc = |(name, dims): &(&str, Vec<u64>)| DataDesc::new(*name, DType::F32, dims);
    let (labels, data): (Vec<_>, Vec<_>) = net.inputs.iter().partition(|(name, _)| is_label(name));
    let labels = match labels.is_empty() {
        true => vec![DataDesc::new("softmax_label", DType::F32, &[examples])],
        false => labels.into_iter().map(desc).collect(),
    };
    let data: Vec<DataDesc> = data.into_iter().map(desc).collect();
    builder = builder.inputs(data.clone(), labels.clone());
    if let Some(store) = &store {
        builder = builder.kvstore(store);
    }
    if let Some(count) = arguments.micro_batches {
        builder = builder.micro_batches(count);
    }
    let mut module = builder.bind()?;
    module.init_params(&Initializer::xavier(2.0))?;
    module.init_optimizer(Optimizer::sgd(0.001, 0.9))?;
    let words = net.vocabulary.unwrap_or(0);
    let batch = Batch {
        data: data.iter().map(|desc| fill(desc, words)).collect::<Result<_, _>>()?,
        labels: labels.iter().map(|desc| fill(desc, classes)).collect::<Result<_, _>>()?,
        pad: 0,
        index: vec![],
    };
    let mut times = vec![];
    for step in 0..arguments.steps + 3 {
        if step == 3 {
            profiler.start();
        }
        let start = Instant::now();
        module.step(&batch)?;
        rt.wait_all()?;
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    profiler.stop();
    let recording = profiler.recording();
    let moving = Hidden::of(&recording);
    let rank = store.as_ref().map_or(0, KVStore::rank);
    let shares = shares(store.as_ref(), moving.hidden / moving.communication.max(1e-9))?;
    if let (0, Some(path)) = (rank, &arguments.trace) {
        recording.write_trace(&mut std::io::BufWriter::new(std::fs::File::create(path)?))?;
    }
    if rank == 0 {
        let TimingSummary { best, median } = summarize(times.split_off(3));
        let seconds = |time: f64| 1e3 * time / arguments.steps as f64;
        let report = json!({
            "workload": arguments.workload, "ranks": ranks, "threads": arguments.threads, "batch": arguments.batch,
            "step_ms": median, "best_ms": best, "communication_ms": seconds(moving.communication),
            "hidden_shares": shares,
        });
        println!("{report}");
    }
    if let Some(store) = store {
        store.close()?;
    }
    Ok(())
}

/// A number of each rank.
fn shares(store: Option<&KVStore>, own: f64) -> Result<Vec<f64>, Box<dyn Error>> {
    let Some(group) = store.and_then(KVStore::group) else { return Ok(vec![own]) };
    let all = group.gather("share", own.to_le_bytes().to_vec())?;
    let number = |bytes: &[u8]| Ok(f64::from_le_bytes(bytes.try_into()?));
    all.iter().map(|bytes| number(bytes)).collect()
}

/// Values that differ: integers below the limit, or without one (0) numbers from -1 to 1.
fn fill(desc: &DataDesc, limit: u64) -> Result<HostTensor, Box<dyn Error>> {
    let count = desc.dims.iter().product::<u64>();
    let value = |at: u64| match limit {
        0 => (at * 7919 % 1000) as f32 / 500.0 - 1.0,
        limit => (at * 7919 % limit) as f32,
    };
    let bytes: Vec<u8> = (0..count).flat_map(|at| value(at).to_le_bytes()).collect();
    Ok(HostTensor::new(desc.dtype, &desc.dims, bytes)?)
}

/// Communication time of collectives, and the part of it that overlaps computation, in seconds.
struct Hidden {
    communication: f64,
    hidden: f64,
}

impl Hidden {
    fn of(recording: &Recording) -> Hidden {
        let mut moving = vec![];
        let mut computing = vec![];
        for (_, event) in recording.events() {
            let EventKind::Span { end, .. } = event.kind else { continue };
            match &*event.category {
                "communication" => moving.push((event.time, end)),
                "step" => computing.push((event.time, end)),
                _ => {}
            }
        }
        let (moving, computing) = (union(moving), union(computing));
        let length = |spans: &[(u64, u64)]| spans.iter().map(|(begin, end)| (end - begin) as f64).sum::<f64>() / 1e9;
        let mut both = vec![];
        for (begin, end) in &moving {
            let common = computing.iter().map(|(from, to)| ((*from).max(*begin), (*to).min(*end)));
            both.extend(common.filter(|(from, to)| from < to));
        }
        Hidden { communication: length(&moving), hidden: length(&both) }
    }
}

/// Spans that do not overlap, in order.
fn union(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut joined: Vec<(u64, u64)> = vec![];
    for (begin, end) in spans {
        match joined.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    joined
}
