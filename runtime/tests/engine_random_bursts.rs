//! Operations pushed in bursts, with pauses in which workers fall asleep: no burst is left lying.
//!
//! The pushing thread looks at the results itself. The waits of an engine would wake its workers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/random_programs.rs"]
mod random_programs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use random_programs::{Random, Watchdog, seeds};
use tensorc_runtime::Device;
use tensorc_runtime::engine::{Engine, EngineConfig, EngineKind, Op, OpName, Property, RunContext, Var};

static NAME: OpName = OpName::from_static("count");

/// Bursts of one thread, for each seed. Idle workers spin for some 50 microseconds before they sleep, and
/// pauses are up to three times that.
const BURSTS: usize = if cfg!(miri) { 20 } else { 500 };

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Waits without telling the engine.
fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        match start.elapsed() < Duration::from_micros(20) {
            true => std::hint::spin_loop(),
            false => std::thread::yield_now(),
        }
    }
}

fn push_bursts(engine: &Engine, vars: &[Var], mut random: Random) {
    let done = Arc::new(AtomicU64::new(0));
    let mut pushed = 0;
    for _ in 0..BURSTS {
        for _ in 0..1 + random.below(3) {
            let device = [Device::cpu(0), Device::cpu(1)][random.below(2)];
            let property = if random.one_in(5) { Property::Prioritized } else { Property::Normal };
            let (write, read) = (&vars[random.below(vars.len())], &vars[random.below(vars.len())]);
            let (done, long) = (done.clone(), random.one_in(10));
            let op = Op { reads: &[read], writes: &[write], device, property, ..Op::new(&NAME) };
            let run = move |_: &RunContext<'_>| {
                if long {
                    spin(Duration::from_micros(5));
                }
                done.fetch_add(1, Ordering::Release);
                Ok(())
            };
            engine.push(op, run).unwrap();
            pushed += 1;
        }
        until(|| done.load(Ordering::Acquire) == pushed);
        match random.below(4) {
            0 => std::thread::sleep(Duration::from_micros(60)),
            _ => spin(Duration::from_micros(random.below(150) as u64)),
        }
    }
}

fn check(seed: u64) {
    let random = &mut Random(seed);
    let kind = [EngineKind::Pooled, EngineKind::PerDevice][random.below(2)];
    let config = EngineConfig { kind, cpu_workers: 1 + random.below(3), ..EngineConfig::default() };
    let _watchdog = Watchdog::new(format!("the bursts of seed {seed} with {config:?}"));
    let engine = Engine::new(config).unwrap();
    let vars: Vec<Var> = (0..5).map(|_| engine.new_var()).collect();
    std::thread::scope(|scope| {
        for _ in 0..1 + random.below(2) {
            let (engine, vars, random) = (&engine, &vars, Random(random.next()));
            scope.spawn(move || push_bursts(engine, vars, random));
        }
    });
    engine.wait_all().unwrap();
}

#[test]
fn no_burst_is_left_lying() {
    seeds(4).for_each(check);
}

/// What is pushed to one device runs although another device's worker is busy, also if that worker
/// took both out of the inbox.
#[test]
fn devices_do_not_wait_for_each_other() {
    let rounds = if cfg!(miri) { 5 } else { 500 };
    for seed in seeds(1) {
        let _watchdog = Watchdog::new(format!("the devices of seed {seed}"));
        let random = &mut Random(seed);
        let engine = Engine::new(EngineConfig { cpu_workers: 1, ..EngineConfig::default() }).unwrap();
        let on = |device, f: Box<dyn FnOnce() + Send>| {
            let run = move |_: &RunContext<'_>| {
                f();
                Ok(())
            };
            engine.push(Op { device, ..Op::new(&NAME) }, run).unwrap();
        };
        for _ in 0..rounds {
            let open = Arc::new(AtomicBool::new(false));
            let opened = open.clone();
            on(Device::cpu(0), Box::new(move || until(|| opened.load(Ordering::Acquire))));
            (0..random.below(200)).for_each(|_| on(Device::cpu(0), Box::new(|| {})));
            let opens = open.clone();
            on(Device::cpu(1), Box::new(move || opens.store(true, Ordering::Release)));
            until(|| open.load(Ordering::Acquire));
            spin(Duration::from_micros(random.below(150) as u64));
        }
        engine.wait_all().unwrap();
    }
}
