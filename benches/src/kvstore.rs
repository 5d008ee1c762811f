//! The key-value store: pushes from several devices and pulls to them.

use std::error::Error;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use tensorc::ir::DType;
use tensorc::runtime::Device;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_runtime::engine::EngineConfig;
use tensorc_train::kvstore::{DeviceValues, GroupOptions, KVStore, Key, StoreKind};

use tensorc_bench::summary::summarize;

/// Pushes arrays of several devices for every key, pulls the sums to others, and waits until these can be read.
#[derive(Args)]
pub struct KvstoreArgs {
    /// StoreKind of store: local or device.
    #[arg(long, default_value_t = StoreKind::Local, value_parser = str::parse::<StoreKind>)]
    kind: StoreKind,
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Elements (f32) of each array.
    #[arg(long, default_value_t = 256)]
    elements: u64,
    /// Processor devices.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    devices: u16,
    /// Workers of each device [default: the processors].
    #[arg(long)]
    threads: Option<usize>,
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Push and pull each key by a call of its own, instead of all by one.
    #[arg(long)]
    single: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A key with what it is pushed from and pulled to, on every device.
struct KeyArrays {
    key: Key,
    pushed: Vec<NDArray>,
    pulled: Vec<NDArray>,
}

impl KeyArrays {
    fn new(rt: &Runtime, arguments: &KvstoreArgs, number: u32) -> Result<KeyArrays, Box<dyn Error>> {
        let full = |device, value| rt.full(Device::cpu(device), DType::F32, &[arguments.elements], value);
        let value = |device: u16| f64::from(number) + f64::from(device);
        let pushed = (0..arguments.devices).map(|device| full(device, value(device))).collect::<Result<_, _>>()?;
        let pulled = (0..arguments.devices).map(|device| full(device, 0.0)).collect::<Result<_, _>>()?;
        Ok(KeyArrays { key: Key::from(i64::from(number)), pushed, pulled })
    }

    /// Whether every device has the sum.
    fn check(&self, number: u32) -> Result<(), Box<dyn Error>> {
        let expected: f32 = (0..self.pulled.len()).map(|device| number as f32 + device as f32).sum();
        for array in &self.pulled {
            if array.to_vec::<f32>()?.iter().any(|&value| value != expected) {
                return Err(format!("a pulled array of key {number} is not {expected}").into());
            }
        }
        Ok(())
    }
}

fn values<'a>(all: &'a [KeyArrays], of: impl Fn(&'a KeyArrays) -> &'a [NDArray]) -> Vec<DeviceValues<'a>> {
    all.iter().map(|arrays| (arrays.key.clone(), of(arrays).iter().collect())).collect()
}

/// Milliseconds from the first push until everything pulled can be read.
fn round(
    store: &KVStore,
    pushes: &[DeviceValues<'_>],
    pulls: &[DeviceValues<'_>],
    arguments: &KvstoreArgs,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    if arguments.single {
        for (key, values) in pushes {
            store.push(key.clone(), values, 0)?;
        }
        for (key, to) in pulls {
            store.pull(key.clone(), to, 0)?;
        }
    } else {
        store.push_all(pushes, 0)?;
        store.pull_all(pulls, 0)?;
    }
    for array in pulls.iter().flat_map(|(_, to)| to) {
        array.wait_to_read()?;
    }
    Ok(1e3 * start.elapsed().as_secs_f64())
}

pub fn run(arguments: &KvstoreArgs) -> Result<(), Box<dyn Error>> {
    let mut engine = EngineConfig::default();
    engine.cpu_workers = arguments.threads.unwrap_or(engine.cpu_workers);
    let rt = Runtime::new(RuntimeOptions { engine, ..RuntimeOptions::default() })?;
    let store = KVStore::with_options(&rt, arguments.kind, GroupOptions::default())?;
    let all =
        (0..arguments.keys).map(|number| KeyArrays::new(&rt, arguments, number)).collect::<Result<Vec<_>, _>>()?;
    for arrays in &all {
        store.init(arrays.key.clone(), &arrays.pulled[0])?;
    }
    let (pushes, pulls) = (values(&all, |arrays| &arrays.pushed), values(&all, |arrays| &arrays.pulled));
    // The first round allocates.
    round(&store, &pushes, &pulls, arguments)?;
    all.iter().zip(0..).try_for_each(|(arrays, number)| arrays.check(number))?;
    let times = (0..arguments.rounds.max(1)).map(|_| round(&store, &pushes, &pulls, arguments));
    let times = times.collect::<Result<Vec<_>, _>>()?;
    let found = summarize(times);
    if arguments.json {
        println!("{}", json!({ "best_ms": found.best, "median_ms": found.median }));
    } else {
        let (kind, keys, elements) = (arguments.kind, arguments.keys, arguments.elements);
        println!("{kind}, {keys} keys of {elements}: ms best {:.3}, median {:.3}", found.best, found.median);
    }
    Ok(())
}
