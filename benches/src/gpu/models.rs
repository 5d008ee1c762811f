//! Whole models with random weights: how long a run takes, how many go through, and what they need.
//!
//! Tensors of the host are copied by runs of a session, as a server would; arrays of the device are not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorc::ir::graph::Value;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::symbol::{Infer, Lowering, Random, SymbolGraph, name_scope};
use tensorc::{Compiler, DType, Model, Session, Tensor, VendorLibraries};
use tensorc_nd::{CompiledFunction, NDArray, Runtime};
use tensorc_simulator::CountingDriver;

use super::clock::Clock;
use super::{Case, MeasurementFailure, Precision, Setup, Size};
use crate::figures::Report;
use crate::nets::{self, Net, layers, lstm, transformer};
use crate::training::Noise;

/// Seconds for which runs follow each other where throughput is measured, roughly.
const STREAK: f64 = 0.02;
/// Different elements of an array with random numbers; then they come again.
const PERIOD: u64 = 65_521;

/// A network and the name that it is measured under.
pub(super) struct Spec {
    pub name: &'static str,
    pub make: Make,
    /// Samples of a run.
    pub batches: &'static [u64],
    pub precisions: &'static [Precision],
}

/// Makes a network for a batch.
pub(super) type Make = fn(u64) -> Result<Net, MeasurementFailure>;

/// A network that [`nets::net`] knows.
pub(super) fn known(name: &str, batch: u64) -> Result<Net, MeasurementFailure> {
    Ok(nets::net(name, batch).ok_or_else(|| format!("there is no network `{name}`"))??)
}

/// An encoder for the interpreter's GPU.
pub(super) fn small_encoder(batch: u64) -> Result<Net, MeasurementFailure> {
    let of = transformer::Encoder { layers: 1, words: 20, width: 16, heads: 2, classes: 3 };
    Ok(nets::encoder(&of, batch, 8)?)
}

const BATCHES: &[u64] = &[1, 32];

const DEVICE: [Spec; 6] = [
    Spec { name: "resnet50", make: |n| known("resnet50", n), batches: BATCHES, precisions: &Precision::ALL },
    Spec { name: "bert-base", make: |n| known("bert-base", n), batches: BATCHES, precisions: &Precision::ALL },
    Spec { name: "mobilenet1.0", make: |n| known("mobilenet1.0", n), batches: BATCHES, precisions: &Precision::ALL },
    Spec { name: "vgg16", make: |n| known("vgg16", n), batches: BATCHES, precisions: &Precision::ALL },
    Spec { name: "lstm", make: |n| known("lstm", n), batches: BATCHES, precisions: &Precision::ALL },
    Spec { name: "transformer", make: |n| known("transformer", n), batches: BATCHES, precisions: &Precision::ALL },
];

const LANGUAGE: lstm::Language = lstm::Language { steps: 2, words: 20, hidden: 8 };
const TWO: &[Precision] = &[Precision::F32, Precision::Bf16];

const SMALL: [Spec; 3] = [
    Spec { name: "images", make: images, batches: &[2], precisions: TWO },
    Spec { name: "encoder", make: small_encoder, batches: &[2], precisions: TWO },
    Spec { name: "language", make: |n| Ok(nets::language(&LANGUAGE, n)?), batches: &[1], precisions: TWO },
];

/// A convolution with all that may follow one.
fn images(batch: u64) -> Result<Net, MeasurementFailure> {
    let _names = name_scope();
    let x = layers::conv(4, 3).pad(1).no_bias().norm_relu(&layers::data())?;
    let x = layers::global_pool(&layers::pool(&x, "max", 2, 2, 0)?)?;
    let symbol = layers::softmax(&layers::dense(&x, 3)?)?;
    Ok(Net { symbol, inputs: vec![("data", vec![batch, 3, 8, 8])], vocabulary: None })
}

pub(super) fn specs(size: Size) -> &'static [Spec] {
    match size {
        Size::Device => &DEVICE,
        Size::Small => &SMALL,
    }
}

/// Random numbers for a variable of this name: weights by what they are multiplied with, scales and variances 1, the rest 0.
fn values(
    noise: &mut Noise,
    name: &str,
    ty: &DenseType,
    vocabulary: Option<u64>,
) -> Result<TensorData, MeasurementFailure> {
    let fan = ty.dims.get(1..).unwrap_or_default().iter().product::<u64>().max(1) as f64;
    let mut number = || match (name, vocabulary) {
        ("data", Some(words)) => noise.below(words) as f64,
        ("data", None) => 1.7 * f64::from(noise.number()),
        _ if name.ends_with("gamma") || name.ends_with("var") => 1.0,
        _ if name.ends_with("weight") => 1.7 * f64::from(noise.number()) / fan.sqrt(),
        _ => 0.0,
    };
    let count: u64 = ty.dims.iter().product();
    let pattern = DenseType::new(ty.dtype, [count.min(PERIOD)]);
    let pattern = TensorData::from_fn(pattern, |_| Scalar::from_f64(ty.dtype, number()));
    let size = ty.bytes() as usize;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let left = size - bytes.len();
        bytes.extend_from_slice(&pattern.bytes()[..left.min(pattern.bytes().len())]);
    }
    Ok(TensorData::new(ty.clone(), bytes.into()).ok_or("bytes that do not fill a shape")?)
}

/// A network for inference whose parameters are constants, and values of its inputs.
pub(super) fn model(
    compiler: &Compiler,
    net: &Net,
    dtype: DType,
) -> Result<(Model, Vec<TensorData>), MeasurementFailure> {
    let given: Vec<(&str, &[u64])> = net.inputs.iter().map(|(name, dims)| (*name, dims.as_slice())).collect();
    let shapes = net.symbol.infer_shape(&given)?.all().ok_or("shapes do not follow from the data")?;
    let how = Lowering { random: Random::Seed(0), without_labels: true, ..Lowering::default() };
    let SymbolGraph { mut graph, arguments, aux, .. } = net.symbol.to_graph(compiler.registry(), &how)?;
    graph.remove_dead();
    let (mut noise, mut inputs) = (Noise::default(), vec![]);
    let named = arguments.iter().zip(&shapes.arguments).chain(aux.iter().zip(&shapes.auxiliary));
    for (node, (name, dims)) in graph.inputs().to_vec().into_iter().zip(named) {
        let input = Value { node, port: 0 };
        if graph.uses(node).is_empty() && !graph.is_output(input) {
            graph.remove_input(node);
            continue;
        }
        // Positions in a table need more digits than bf16 has.
        let is_position = name == "data" && net.vocabulary.is_some();
        let ty = DenseType::new(if is_position { DType::F32 } else { dtype }, dims);
        let values = values(&mut noise, name, &ty, net.vocabulary)?;
        if net.inputs.iter().any(|(input, _)| input == name) {
            inputs.push(values);
            continue;
        }
        let constant = graph.add_const(name.as_str(), values);
        graph.replace_uses(input, constant);
        graph.remove_input(node);
    }
    Ok((compiler.model(graph), inputs))
}

/// A model compiled for tensors of the host, with room for its results.
struct Served<'a> {
    session: Session,
    inputs: &'a [TensorData],
    outputs: Vec<(DenseType, Vec<u8>)>,
}

impl<'a> Served<'a> {
    fn new(model: &Model, inputs: &'a [TensorData]) -> Result<Served<'a>, MeasurementFailure> {
        let session = model.compile(&inputs.iter().map(|input| input.ty.clone()).collect::<Vec<_>>())?;
        let plan = session.plan();
        let types = plan.outputs.iter().map(|id| plan.buffer(*id)).map(|b| DenseType::new(b.dtype, &b.dims));
        let outputs = types.map(|ty| (ty.clone(), vec![0; ty.bytes() as usize])).collect();
        Ok(Served { session, inputs, outputs })
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut Session, &[TensorRef<'_>], &mut [TensorMut<'_>]) -> T) -> T {
        let given: Vec<_> = self.inputs.iter().map(|t| TensorRef::new(t.dtype(), t.dims(), t.bytes())).collect();
        let mut outputs: Vec<_> =
            self.outputs.iter_mut().map(|(ty, bytes)| TensorMut::new(ty.dtype, &ty.dims, bytes)).collect();
        f(&mut self.session, &given, &mut outputs)
    }

    fn run(&mut self) -> Result<(), MeasurementFailure> {
        Ok(self.with(|session, inputs, outputs| session.run_into(inputs, outputs))?)
    }

    /// Runs of which two are under way at a time.
    fn run_many(&mut self, count: u32) -> Result<(), MeasurementFailure> {
        self.with(|session, inputs, outputs| {
            session.begin(inputs)?;
            for _ in 1..count {
                session.begin(inputs)?;
                session.finish(outputs)?;
            }
            Ok(session.finish(outputs)?)
        })
    }
}

/// A model compiled for arrays of the device.
struct Resident {
    rt: Runtime,
    function: CompiledFunction,
    inputs: Vec<NDArray>,
    outputs: Vec<NDArray>,
}

impl Resident {
    fn new(setup: &Setup, model: &Model, inputs: &[TensorData]) -> Result<Resident, MeasurementFailure> {
        let rt = setup.runtime_of(model.compiler().clone())?;
        let function = rt.function(model, &inputs.iter().map(|input| input.ty.clone()).collect::<Vec<_>>())?;
        let there = |t: &TensorData| {
            rt.from_tensor(&Tensor::from_bytes(t.dtype(), t.dims(), t.bytes().clone())?, setup.driver.device())
        };
        let inputs = inputs.iter().map(there).collect::<Result<_, _>>()?;
        let types: Option<Vec<_>> = function.outputs().iter().map(|(_, ty)| ty.dense()).collect();
        let types = types.ok_or("shapes of outputs depend on values")?;
        let outputs = types.iter().map(|ty| rt.zeros(&ty.dims, ty.dtype)).collect::<Result<_, _>>()?;
        Ok(Resident { rt, function, inputs, outputs })
    }

    /// Runs that are pushed without waiting.
    fn run(&self, count: u32) -> Result<(), MeasurementFailure> {
        let (inputs, outputs): (Vec<_>, Vec<_>) = (self.inputs.iter().collect(), self.outputs.iter().collect());
        (0..count).try_for_each(|_| self.function.call_into(&inputs, &outputs))?;
        Ok(self.rt.wait_all()?)
    }
}

/// Seconds until `work` is over.
fn seconds<T>(work: impl FnOnce() -> Result<T, MeasurementFailure>) -> Result<(T, f64), MeasurementFailure> {
    let start = Instant::now();
    let made = work()?;
    Ok((made, start.elapsed().as_secs_f64()))
}

/// Runs that follow each other for long enough to keep the device busy.
fn streak(size: Size, run: f64) -> u32 {
    match size {
        Size::Device => (STREAK / run).ceil().clamp(4.0, 64.0) as u32,
        Size::Small => 2,
    }
}

fn measure(setup: &Setup, net: &Net, precision: Precision, batch: u64) -> Result<Report, MeasurementFailure> {
    let counting = CountingDriver::new(setup.driver.clone());
    let counts = counting.counts.clone();
    let setup = &Setup { driver: Arc::new(counting), ..setup.clone() };
    let compiler = Compiler::new(setup.options(precision, VendorLibraries::default()))?;
    let (model, inputs) = model(&compiler, net, precision.dtype())?;
    let (mut served, compile) = seconds(|| Served::new(&model, &inputs))?;
    let ((), first) = seconds(|| served.run())?;
    let kernels = counts.launches.load(Ordering::Relaxed);
    let ((), second) = seconds(|| served.run())?;
    served.run_many(2)?;
    let peak = counts.peak_memory();
    counts.record(false);
    let mut unrecorded = Served::new(&model, &inputs)?;
    // The third run is the one that would be recorded.
    (0..3).try_for_each(|_| unrecorded.run())?;
    counts.record(true);
    let mut pipelined = Served::new(&model, &inputs)?;
    let resident = Resident::new(setup, &model, &inputs)?;
    let many = streak(setup.size, second);
    let medians = Clock::new(setup).medians(&mut [
        Box::new(|| served.run()),
        Box::new(|| unrecorded.run()),
        Box::new(|| resident.run(1)),
        Box::new(|| pipelined.run_many(many)),
        Box::new(|| resident.run(many)),
    ])?;
    let samples = |seconds: f64| batch as f64 * f64::from(many) / seconds;
    Ok(Report::default()
        .with("latency", medians[0] * 1e3, "ms")
        .with("latency_unrecorded", medians[1] * 1e3, "ms")
        .with("latency_on_device", medians[2] * 1e3, "ms")
        .with("throughput", samples(medians[3]), "samples/s")
        .with("throughput_on_device", samples(medians[4]), "samples/s")
        .with("compile", compile, "s")
        .with("first_run", first * 1e3, "ms")
        .with("peak_memory", peak as f64 / 1e6, "MB")
        .with("kernels", kernels as f64, ""))
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = vec![];
    for spec in specs(size) {
        for &precision in spec.precisions {
            for &batch in spec.batches {
                let make = spec.make;
                let name = format!("{} {}, batch {batch}", spec.name, precision.name());
                all.push(Case::new(name, move |setup| measure(setup, &make(batch)?, precision, batch)));
            }
        }
    }
    all
}
