//! A process of a job that pushes and pulls values whose sums have a closed form, with the shapes, repetitions and factors of
//! MXNet's test of synchronous stores.
//!
//! `mpirun -n N closed_forms KIND`; the first rank prints how many values were compared. Anything else is a failure.

use std::process::ExitCode;

use tensorc::DType;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_train::kvstore::{Compression, KVStore};

type Failure = Box<dyn std::error::Error>;

/// What the updater multiplies sums by.
const RATE: f64 = 2.0;
const REPEATS: usize = 3;
/// Sent whole, cut in pieces, and cut in pieces that are not equal.
const SHAPES: [&[u64]; 4] = [&[2, 3], &[1200, 1200], &[1211, 1211], &[2, 0, 3]];

struct Checks {
    rt: Runtime,
    store: KVStore,
    compared: u64,
}

impl Checks {
    fn full(&self, dtype: DType, dims: &[u64], value: f64) -> Result<NDArray, Failure> {
        Ok(self.rt.full(self.rt.options().device, dtype, dims, value)?)
    }

    /// Pulls a value to two arrays, and compares every element.
    fn expect(&mut self, key: &str, like: &NDArray, value: f64) -> Result<(), Failure> {
        let out = [self.full(like.dtype(), like.dims(), -1.0)?, self.full(like.dtype(), like.dims(), -1.0)?];
        self.store.pull(key, &[&out[0], &out[1]], 0)?;
        for array in &out {
            let found = array.cast(DType::F64)?.to_vec::<f64>()?;
            if let Some(other) = found.iter().find(|found| **found != value) {
                return Err(format!("`{key}` has {other}, not {value}").into());
            }
            self.compared += found.len() as u64;
        }
        Ok(())
    }

    /// The first value is rank 0's; rank r pushes r + 1, from one and from two devices.
    fn sums(&mut self) -> Result<(), Failure> {
        let (rank, ranks) = (self.store.rank() as f64, self.store.num_workers() as f64);
        let all = ranks * (ranks + 1.0) / 2.0;
        let mut keys = vec![];
        for dtype in [DType::F32, DType::F64, DType::F16, DType::I32] {
            for dims in SHAPES {
                let key = format!("{dtype:?} {dims:?}");
                let own = self.full(dtype, dims, rank + 1.0)?;
                self.store.init(key.as_str(), &own)?;
                self.expect(&key, &own, 1.0)?;
                self.store.push(key.as_str(), &[&own], 0)?;
                self.expect(&key, &own, all)?;
                self.store.push(key.as_str(), &[&own, &own], 0)?;
                self.expect(&key, &own, 2.0 * all)?;
                keys.push((key, own, 2.0 * all));
            }
        }
        self.store.set_updater(|_, pushed, value| {
            let scaled = (pushed * RATE)?;
            Ok((value + &scaled)?.copy_into(value)?)
        })?;
        for repeat in 1..=REPEATS {
            for (key, own, _) in &keys {
                self.store.push(key.as_str(), &[own], 0)?;
            }
            for (key, own, before) in &keys {
                self.expect(key, own, before + RATE * all * repeat as f64)?;
            }
        }
        Ok(())
    }

    /// Two bits an element with a threshold of 0.5: what was not sent waits.
    fn codes(&mut self) -> Result<(), Failure> {
        let ranks = self.store.num_workers() as f64;
        self.store.set_gradient_compression(Compression::TwoBit { threshold: 0.5 })?;
        for dims in SHAPES {
            let key = format!("codes {dims:?}");
            let zeros = self.full(DType::F32, dims, 0.0)?;
            self.store.init(key.as_str(), &zeros)?;
            let mut sum = 0.0;
            // Left over: 0.25, 0, 0.25, -1.25, -0.75, -0.25, -0.25.
            let pushes = [(0.25, 0.0), (0.25, 0.5), (0.25, 0.0), (-2.0, -0.5), (0.0, -0.5), (0.0, -0.5), (0.0, 0.0)];
            for (pushed, sent) in pushes {
                self.store.push(key.as_str(), &[&self.full(DType::F32, dims, pushed)?], 0)?;
                sum += RATE * ranks * sent;
                self.expect(&key, &zeros, sum)?;
            }
        }
        Ok(())
    }
}

fn run() -> Result<(), Failure> {
    let kind = std::env::args().nth(1).unwrap_or_else(|| "dist_sync".into());
    let rt = Runtime::new(RuntimeOptions::default())?;
    let store = KVStore::create(&rt, &kind)?;
    let mut checks = Checks { rt, store, compared: 0 };
    checks.sums()?;
    checks.codes()?;
    checks.store.barrier()?;
    checks.store.close()?;
    if checks.store.rank() == 0 {
        println!("{} values", checks.compared);
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
