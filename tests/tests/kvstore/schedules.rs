//! Random programs of a store in random schedules: no update is lost or overtaken.

use std::time::Duration;

use tensorc::DType;
use tensorc::runtime::Device;
use tensorc::runtime::engine::{EngineConfig, EngineKind};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_train::kvstore::{KVStore, Key};

use crate::support::backend::new_runtime;

/// Numbers that are always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

const KEYS: usize = 3;
const DEVICES: u16 = 3;

/// What a program does to values that are numbers: the sequence of its updates decides every digit.
struct Model {
    values: [f64; KEYS],
    adds: bool,
}

impl Model {
    fn push(&mut self, key: usize, sum: f64) {
        let value = &mut self.values[key];
        *value = if self.adds { (*value * 3.0 + sum) % 1021.0 } else { sum };
    }
}

fn update(_: &Key, pushed: &NDArray, value: &NDArray) -> Result<(), tensorc_train::Error> {
    let moved = (&(value * 3.0)? + pushed)?;
    Ok((&moved % 1021.0)?.copy_into(value)?)
}

/// Runs a random program and compares what was pulled with the model.
fn run(rt: &Runtime, seed: u64) {
    let mut random = Random(seed);
    let store = KVStore::create(rt, ["local", "device"][random.below(2) as usize]).unwrap();
    let mut model = Model { values: [0.0; KEYS], adds: random.below(2) == 0 };
    if model.adds {
        store.set_updater(update).unwrap();
    }
    let array = |device: u16, value: f64| rt.full(Device::cpu(device), DType::F64, &[2], value).unwrap();
    for key in 0..KEYS {
        model.values[key] = random.below(100) as f64;
        store.init(key as i32, &array(0, model.values[key])).unwrap();
    }
    let mut pulled: Vec<(NDArray, f64)> = vec![];
    for _ in 0..4 + random.below(12) {
        let (key, priority) = (random.below(KEYS as u64) as usize, random.below(5) as i32 - 2);
        match random.below(3) {
            0 | 1 => {
                let values: Vec<f64> = (0..=random.below(3)).map(|_| random.below(50) as f64).collect();
                let arrays: Vec<NDArray> =
                    values.iter().map(|value| array(random.below(u64::from(DEVICES)) as u16, *value)).collect();
                store.push(key as i32, &arrays.iter().collect::<Vec<_>>(), priority).unwrap();
                model.push(key, values.iter().sum());
                // What was pushed may be overwritten at once.
                arrays.iter().for_each(|array| array.fill(-1e9).unwrap());
            }
            _ => {
                let outs: Vec<NDArray> = (0..=random.below(2) as u16).map(|device| array(device, -5.0)).collect();
                store.pull(key as i32, &outs.iter().collect::<Vec<_>>(), priority).unwrap();
                pulled.extend(outs.into_iter().map(|out| (out, model.values[key])));
            }
        }
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(60)));
        }
    }
    for (at, (out, expected)) in pulled.iter().enumerate() {
        assert_eq!(out.to_vec::<f64>().unwrap(), [*expected; 2], "pull {at} of program {seed}");
    }
}

/// Ten thousand programs on engines of every kind, whose workers race each other.
#[test]
fn no_update_is_lost_or_overtaken() {
    for (kind, share) in EngineKind::ALL.into_iter().zip([1u64, 3, 6].into_iter().cycle()) {
        let engine = EngineConfig { kind, cpu_workers: 3, ..EngineConfig::default() };
        let rt = new_runtime(RuntimeOptions { engine, ..RuntimeOptions::default() });
        for program in 0..1000 * share {
            run(&rt, program * 31 + share);
        }
        rt.wait_all().unwrap();
    }
}
