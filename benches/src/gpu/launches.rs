//! What a launch costs: of operators on arrays, of plans, and in recorded plans; and training steps, with what the host does for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorc::ir::DenseType;
use tensorc::ir::build::Builder;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::params::{ParamValue, Params};
use tensorc::{DType, VendorLibraries};
use tensorc_nd::Error;
use tensorc_nd::{CompiledFunction, Runtime};
use tensorc_simulator::{CountingDriver, Counts};

use super::clock::{Clock, TimedWork};
use super::models::{known, small_encoder};
use super::{Case, MeasurementFailure, Precision, Setup, Size};
use crate::figures::Report;
use crate::nets::Net;
use crate::summary::summarize;
use crate::training::Training;

/// Rows and columns of what tiny kernels compute.
const TINY: [u64; 2] = [4, 64];
/// How long nothing is enqueued before the host counts as waiting.
const PATIENCE: Duration = Duration::from_secs(1);
/// Waits of a step beyond which they are not counted.
const MAX_WAITS: u64 = 20;
/// Steps that are enqueued while the host hears of nothing.
const HELD: usize = 5;

fn launches(size: Size) -> u32 {
    match size {
        Size::Device => 1000,
        Size::Small => 20,
    }
}

/// A runtime whose driver counts.
fn counted(setup: &Setup, precision: Precision) -> Result<(Runtime, Arc<Counts>), MeasurementFailure> {
    let driver = CountingDriver::new(setup.driver.clone());
    let counts = driver.counts.clone();
    let setup = Setup { driver: Arc::new(driver), ..setup.clone() };
    Ok((setup.runtime(precision, VendorLibraries::default())?, counts))
}

/// Softmax along rows and columns in turn: kernels that are not fused, since each waits for all of the other's result.
fn folds(rt: &Runtime, kernels: u32) -> Result<CompiledFunction, Error> {
    let ty = DenseType::new(DType::F32, TINY);
    let mut graph = Graph::new("folds");
    let mut y = graph.add_input("x", ty.clone().into());
    let values = |g: &Graph, v: Value| g.constant(v).cloned();
    let mut b = Builder::new(&mut graph, rt.compiler().registry(), "folds".into(), &values);
    for kernel in 0..kernels {
        let axis = ParamValue::Int(i64::from(kernel % 2));
        y = b.op("softmax", &[y], Params::new().with("axis", axis))?;
    }
    graph.add_output("y", y);
    rt.function(&rt.compiler().model(graph), &[ty])
}

/// Seconds until everything is pushed, and until it is done, for each of `count` calls.
fn pushed(
    setup: &Setup,
    rt: &Runtime,
    count: u32,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<[f64; 2], MeasurementFailure> {
    let mut pushes = vec![];
    let done = Clock::new(setup).median(|| {
        let start = Instant::now();
        (0..count).try_for_each(|_| call())?;
        pushes.push(start.elapsed().as_secs_f64());
        Ok(rt.wait_all()?)
    })?;
    let pushing = summarize(pushes).median;
    Ok([pushing / f64::from(count), done / f64::from(count)])
}

fn report([pushing, done]: [f64; 2]) -> Report {
    Report::default().with("pushing", pushing * 1e6, "µs").with("launch", done * 1e6, "µs")
}

/// Operators on arrays.
fn on_arrays(setup: &Setup) -> Result<Report, MeasurementFailure> {
    let rt = setup.runtime(Precision::F32, VendorLibraries::default())?;
    let (x, y) = (rt.ones(&TINY, DType::F32)?, rt.zeros(&TINY, DType::F32)?);
    Ok(report(pushed(setup, &rt, launches(setup.size), || rt.op("add")?.arg(&x).arg(&x).into(&[&y]))?))
}

/// A plan of one kernel.
fn of_plans(setup: &Setup) -> Result<Report, MeasurementFailure> {
    let rt = setup.runtime(Precision::F32, VendorLibraries::default())?;
    let (x, y) = (rt.ones(&TINY, DType::F32)?, rt.zeros(&TINY, DType::F32)?);
    let function = folds(&rt, 1)?;
    Ok(report(pushed(setup, &rt, launches(setup.size), || function.call_into(&[&x], &[&y]))?))
}

/// A plan of many kernels, recorded and not.
fn recorded(setup: &Setup) -> Result<Report, MeasurementFailure> {
    let (rt, counts) = counted(setup, Precision::F32)?;
    let (x, y) = (rt.ones(&TINY, DType::F32)?, rt.zeros(&TINY, DType::F32)?);
    let run = |function: &CompiledFunction| -> Result<(), MeasurementFailure> {
        function.call_into(&[&x], &[&y])?;
        Ok(rt.wait_all()?)
    };
    rt.wait_all()?;
    let both = [folds(&rt, launches(setup.size))?, folds(&rt, launches(setup.size))?];
    let before = counts.launches.load(Ordering::Relaxed);
    run(&both[0])?;
    let kernels = (counts.launches.load(Ordering::Relaxed) - before) as f64;
    counts.record(false);
    (0..3).try_for_each(|_| run(&both[1]))?;
    counts.record(true);
    let mut contenders: [TimedWork<'_>; 2] = [Box::new(|| run(&both[0])), Box::new(|| run(&both[1]))];
    let medians = Clock::new(setup).medians(&mut contenders)?;
    let report = Report::default().with("replayed", medians[0] / kernels * 1e6, "µs");
    Ok(report.with("one by one", medians[1] / kernels * 1e6, "µs").with("kernels", kernels, ""))
}

/// A network with its classes.
struct ClassifierNet {
    name: &'static str,
    make: fn() -> Result<Net, MeasurementFailure>,
    classes: u64,
}

const DEVICE: [ClassifierNet; 4] = [
    ClassifierNet { name: "lenet, batch 64", make: || known("lenet", 64), classes: 10 },
    ClassifierNet { name: "resnet18-cifar, batch 8", make: || known("resnet18-cifar", 8), classes: 10 },
    ClassifierNet { name: "resnet18-cifar, batch 128", make: || known("resnet18-cifar", 128), classes: 10 },
    ClassifierNet { name: "transformer, batch 16", make: || known("transformer", 16), classes: 4 },
];

const SMALL: [ClassifierNet; 1] = [ClassifierNet { name: "encoder, batch 2", make: || small_encoder(2), classes: 3 }];

/// Seconds until a step of so many operations is enqueued while the host hears of no end, and how often it has to.
fn enqueue_held(training: &mut Training, counts: &Counts, operations: u64) -> Result<(f64, u64), MeasurementFailure> {
    let now = counts.operations.load(Ordering::SeqCst);
    counts.hold();
    let start = Instant::now();
    let begun = training.begin();
    let waits = counts.host_waits(now + operations, PATIENCE, MAX_WAITS);
    let host = start.elapsed().as_secs_f64();
    counts.release();
    begun?;
    training.wait()?;
    let waits = waits.ok_or_else(|| format!("a step waits for the device more than {MAX_WAITS} times"))?;
    Ok((host, waits))
}

/// Training steps one by one and enqueued without waiting, what the host does for one, and how often it waits for the device.
fn training(setup: &Setup, step: &ClassifierNet, precision: Precision) -> Result<Report, MeasurementFailure> {
    let (rt, counts) = counted(setup, precision)?;
    let mut training = Training::new(rt, &(step.make)()?, step.classes)?;
    (0..4).try_for_each(|_| training.run())?;
    let operations = || counts.operations.load(Ordering::SeqCst);
    let before = operations();
    training.run()?;
    let each = operations() - before;
    let held = (0..HELD).map(|_| enqueue_held(&mut training, &counts, each)).collect::<Result<Vec<_>, _>>()?;
    let (host, waits): (Vec<f64>, Vec<u64>) = held.into_iter().unzip();
    let clock = Clock::new(setup);
    let alone = clock.median(|| training.run())?;
    let many = if setup.size == Size::Device { 10 } else { 2 };
    let streak = clock.median(|| {
        (0..many).try_for_each(|_| training.begin())?;
        training.wait()
    })?;
    Ok(Report::default()
        .with("step", alone * 1e3, "ms")
        .with("step_enqueued", streak / f64::from(many) * 1e3, "ms")
        .with("host", summarize(host).median * 1e3, "ms")
        .with("host_waits", waits.into_iter().max().unwrap_or_default() as f64, "")
        .with("operations", each as f64, ""))
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = vec![
        Case::new("operators on arrays".into(), on_arrays),
        Case::new("plans of a kernel".into(), of_plans),
        Case::new("kernels of a plan".into(), recorded),
    ];
    let steps: &'static [ClassifierNet] = match size {
        Size::Device => &DEVICE,
        Size::Small => &SMALL,
    };
    for step in steps {
        for precision in [Precision::Tf32, Precision::F32] {
            let name = format!("training {}, {}", step.name, precision.name());
            all.push(Case::new(name, move |setup| training(setup, step, precision)));
        }
    }
    all
}
