//! Random programs on every kind of engine, equal to running them one operation after the other.
//!
//! Operations work on plain memory, without atomics or locks, so that a detector of data races sees
//! every order that the engine fails to keep.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/random_programs.rs"]
mod random_programs;

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::Duration;

use random_programs::{Random, Watchdog, seeds};
use tensorc_runtime::Device;
use tensorc_runtime::engine::{Engine, EngineConfig, EngineKind, Op, OpName, Property, RunContext, Var};

static NAME: OpName = OpName::from_static("mean");

/// Numbers that only the operations that an engine runs touch.
struct Numbers(Vec<UnsafeCell<f64>>);

// SAFETY: accesses go through operations that name the number's variable, which the engine orders.
unsafe impl Sync for Numbers {}

impl Numbers {
    fn new(count: usize) -> Numbers {
        Numbers((0..count).map(|i| UnsafeCell::new(1.0 + i as f64)).collect())
    }

    /// # Safety
    /// Nobody writes the number meanwhile.
    unsafe fn get(&self, index: usize) -> f64 {
        // SAFETY: the caller's promise.
        unsafe { *self.0[index].get() }
    }

    /// # Safety
    /// Nobody else uses the number meanwhile.
    unsafe fn set(&self, index: usize, value: f64) {
        // SAFETY: the caller's promise.
        unsafe { *self.0[index].get() = value }
    }
}

#[derive(Clone)]
struct Step {
    reads: Vec<usize>,
    write: usize,
    /// Gives up the number before it pauses.
    gives_up: bool,
    pause: Duration,
    priority: i32,
    device: Device,
    property: Property,
}

impl Step {
    fn random(random: &mut Random, numbers: usize) -> Step {
        let (write, count) = (random.below(numbers), 1 + random.below(19));
        let mut reads: Vec<usize> = (0..count).map(|_| random.below(numbers)).collect();
        // Half of those that read what they write say so; it is an update then.
        if random.one_in(2) {
            reads.retain(|&read| read != write);
        }
        let properties = [Property::Normal, Property::CopyToDevice, Property::CopyFromDevice, Property::Prioritized];
        let devices = [Device::cpu(0), Device::cpu(1), Device::accelerator(0)];
        let pause = Duration::from_micros(random.below(10) as u64);
        let (usual, priority) = (random.one_in(2), random.below(7) as i32 - 3);
        Step {
            reads,
            write,
            gives_up: random.one_in(3),
            pause,
            priority: if usual { 0 } else { priority },
            device: devices[if usual { 0 } else { random.below(3) }],
            property: properties[if usual { 0 } else { random.below(4) }],
        }
    }

    /// Writes a mean of what it reads, made such that no number fades away and every rounding counts.
    ///
    /// # Safety
    /// Nobody else writes what is read or uses what is written meanwhile.
    unsafe fn execute(&self, numbers: &Numbers) {
        // SAFETY: the caller's promise.
        let sum: f64 = self.reads.iter().map(|&read| unsafe { numbers.get(read) }).sum();
        let value = (sum / (self.reads.len() + 1) as f64 + 3.7).sqrt() + self.write as f64;
        // SAFETY: the caller's promise.
        unsafe { numbers.set(self.write, value) };
    }
}

struct Size {
    steps: usize,
    numbers: usize,
}

/// Ten thousand operations over a hundred numbers. The interpreter that looks for undefined behaviour
/// is some thousand times slower.
const SIZE: Size = if cfg!(miri) { Size { steps: 60, numbers: 8 } } else { Size { steps: 10_000, numbers: 100 } };

fn check(seed: u64, config: EngineConfig) {
    let _watchdog = Watchdog::new(format!("the program of seed {seed} with {config:?}"));
    let random = &mut Random(seed);
    let steps: Vec<Step> = (0..SIZE.steps).map(|_| Step::random(random, SIZE.numbers)).collect();

    let serial = Numbers::new(SIZE.numbers);
    // SAFETY: there is only this thread.
    steps.iter().for_each(|step| unsafe { step.execute(&serial) });

    let engine = Engine::new(config).unwrap();
    let numbers = Arc::new(Numbers::new(SIZE.numbers));
    let vars: Arc<Vec<Var>> = Arc::new((0..SIZE.numbers).map(|_| engine.new_var()).collect());
    for step in &steps {
        let reads: Vec<&Var> = step.reads.iter().map(|&read| &vars[read]).collect();
        let Step { priority, device, property, .. } = *step;
        let op = Op { reads: &reads, writes: &[&vars[step.write]], priority, device, property, ..Op::new(&NAME) };
        let (step, numbers, vars) = (step.clone(), numbers.clone(), vars.clone());
        let run = move |context: &RunContext<'_>| {
            let pause = |now: bool| {
                if now && !cfg!(miri) && !step.pause.is_zero() {
                    std::thread::sleep(step.pause);
                }
            };
            pause(!step.gives_up);
            // SAFETY: the engine keeps others away, which is what is tested.
            unsafe { step.execute(&numbers) };
            if step.gives_up {
                let (given, reads_it) = (context.release(&vars[step.write]), step.reads.contains(&step.write));
                assert_eq!(given, !reads_it);
            }
            pause(step.gives_up);
            Ok(())
        };
        engine.push(op, run).unwrap();
    }
    engine.wait_all().unwrap();
    let value = |numbers: &Numbers, i| {
        // SAFETY: nothing is pending.
        unsafe { numbers.get(i) }.to_bits()
    };
    for (i, var) in vars.iter().enumerate() {
        assert_eq!(value(&numbers, i), value(&serial, i), "number {i}, seed {seed}");
        let writes = steps.iter().filter(|step| step.write == i).count() as u64;
        let version = engine.version(var);
        assert_eq!(version, writes, "number {i}, seed {seed}");
    }
}

fn check_kind(kind: EngineKind) {
    for seed in seeds(1) {
        for cpu_workers in [1, 3] {
            check(seed, EngineConfig { kind, cpu_workers, ..EngineConfig::default() });
        }
    }
}

#[test]
fn naive_engine_equals_serial() {
    check_kind(EngineKind::Naive);
}

#[test]
fn pooled_engine_equals_serial() {
    check_kind(EngineKind::Pooled);
}

#[test]
fn engine_per_device_equals_serial() {
    check_kind(EngineKind::PerDevice);
}

#[test]
fn short_run_ahead_equals_serial() {
    for seed in seeds(1) {
        for max_pending in [1, 5] {
            check(seed, EngineConfig { cpu_workers: 2, max_pending, ..EngineConfig::default() });
        }
    }
}
