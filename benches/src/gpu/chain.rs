//! Equal layers one behind the other, on arrays of a device: by our kernels, and by a vendor library.
//!
//! A layer's other operands are arrays, too, several sets of them in turn where one fits into the caches of a GPU: in a model
//! each layer has its own. Plans are pushed without waiting, many enough that what the host does is hidden behind what runs.

use tensorc::ir::DenseType;
use tensorc::ir::build::Builder;
use tensorc::ir::graph::{Graph, Value};
use tensorc::{DType, VendorLibraries};
use tensorc_nd::Error;
use tensorc_nd::{CompiledFunction, NDArray, Runtime};

use super::clock::{Clock, TimedWork};
use super::{MeasurementFailure, Peer, Precision, Setup, Size};
use crate::figures::Report;

/// Operands beyond these bytes are in no cache when it is their turn again.
const UNCACHED: u64 = 256 << 20;
/// Bytes in a second, to choose how much is measured at a time.
const EXPECTED_BANDWIDTH: f64 = 2.5e12;
/// A launch at least takes so many seconds.
const MIN_LAUNCH_SECONDS: f64 = 3e-6;
/// Seconds of a plan, and of a measurement.
const PLAN: f64 = 1e-3;
const MEASUREMENT: f64 = 1e-2;

/// A layer with the values of its other operands.
pub(super) type ChainLayer = dyn Fn(&mut Builder<'_>, Value, &[Value]) -> Result<Value, Error> + Send;

pub(super) struct LayerChain {
    pub precision: Precision,
    /// Of what a layer takes and gives.
    pub dims: Vec<u64>,
    /// Of its other operands, with the deviation of their elements.
    pub operands: Vec<(Vec<u64>, f64)>,
    pub layer: Box<ChainLayer>,
    /// Operations of a layer, two for each product that is added.
    pub flops: f64,
}

/// A chain that is ready to run.
struct CompiledChain {
    rt: Runtime,
    function: CompiledFunction,
    inputs: Vec<NDArray>,
    output: NDArray,
}

impl CompiledChain {
    fn run(&self, calls: u32) -> Result<(), MeasurementFailure> {
        let inputs: Vec<&NDArray> = self.inputs.iter().collect();
        (0..calls).try_for_each(|_| self.function.call_into(&inputs, &[&self.output]))?;
        Ok(self.rt.wait_all()?)
    }
}

fn bytes_of(dtype: DType, dims: &[u64]) -> u64 {
    dims.iter().product::<u64>() * dtype.size() as u64
}

impl LayerChain {
    fn dtype(&self) -> DType {
        self.precision.dtype()
    }

    fn operand_bytes(&self) -> u64 {
        self.operands.iter().map(|(dims, _)| bytes_of(self.dtype(), dims)).sum()
    }

    /// Bytes that a layer reads and writes: its operands, and what it takes and gives.
    pub fn bytes(&self) -> f64 {
        (self.operand_bytes() + 2 * bytes_of(self.dtype(), &self.dims)) as f64
    }

    /// Layers of a plan, sets of operands, and runs of a measurement.
    fn counts(&self, size: Size) -> (u64, u64, u32) {
        if size == Size::Small {
            return (2, 2, 1);
        }
        let layer = (self.flops / self.precision.expected_rate())
            .max(self.bytes() / EXPECTED_BANDWIDTH)
            .max(MIN_LAUNCH_SECONDS);
        let layers = ((PLAN / layer).ceil() as u64).clamp(2, 32);
        let sets = UNCACHED.div_ceil(self.operand_bytes().max(1)).clamp(1, layers);
        let calls = (MEASUREMENT / (layer * layers as f64)).ceil().clamp(1.0, 1000.0) as u32;
        (layers, sets, calls)
    }

    fn graph(&self, rt: &Runtime, (layers, sets): (u64, u64)) -> Result<Graph, Error> {
        let mut graph = Graph::new("chain");
        let mut y = graph.add_input("x", DenseType::new(self.dtype(), &self.dims).into());
        let mut others = vec![];
        for set in 0..sets {
            let named = |(i, (dims, _)): (usize, &(Vec<u64>, f64))| {
                graph.add_input(format!("operand {i} of {set}"), DenseType::new(self.dtype(), dims).into())
            };
            others.push(self.operands.iter().enumerate().map(named).collect::<Vec<_>>());
        }
        let values = |g: &Graph, v: Value| g.constant(v).cloned();
        let registry = rt.compiler().registry();
        let mut b = Builder::new(&mut graph, registry, "layer".into(), &values);
        for layer in 0..layers {
            y = (self.layer)(&mut b, y, &others[(layer % sets) as usize])?;
        }
        graph.add_output("y", y);
        Ok(graph)
    }

    fn ready(&self, setup: &Setup, libraries: VendorLibraries) -> Result<CompiledChain, MeasurementFailure> {
        let rt = setup.runtime(self.precision, libraries)?;
        let (layers, sets, _) = self.counts(setup.size);
        let graph = self.graph(&rt, (layers, sets))?;
        let mut inputs = vec![rt.normal(&self.dims, self.dtype(), 0.0, 1.0)?];
        for _ in 0..sets {
            for (dims, deviation) in &self.operands {
                inputs.push(rt.normal(dims, self.dtype(), 0.0, *deviation)?);
            }
        }
        let types: Vec<DenseType> = inputs.iter().map(|array| DenseType::new(self.dtype(), array.dims())).collect();
        let function = rt.function(&rt.compiler().model(graph), &types)?;
        let output = rt.zeros(&self.dims, self.dtype())?;
        rt.wait_all()?;
        Ok(CompiledChain { rt, function, inputs, output })
    }

    /// Seconds of a layer, by each of the contenders.
    fn times(&self, setup: &Setup, contenders: &[CompiledChain]) -> Result<Vec<f64>, MeasurementFailure> {
        let (layers, _, calls) = self.counts(setup.size);
        let mut work: Vec<TimedWork<'_>> =
            contenders.iter().map(|ready| Box::new(|| ready.run(calls)) as TimedWork<'_>).collect();
        let medians = Clock::new(setup).medians(&mut work)?;
        Ok(medians.iter().map(|time| time / (layers as f64 * f64::from(calls))).collect())
    }

    /// Measures and reports the time of a layer, its operations and bytes in a second, and the ratio of times, own by library's:
    /// below 1 ours is faster. A library that is not installed is a note, one that refuses a call a failure beside own figures.
    pub fn report(&self, setup: &Setup, peer: Option<Peer>) -> Result<Report, MeasurementFailure> {
        let mut contenders = vec![self.ready(setup, VendorLibraries::default())?];
        let mut report = Report::default();
        match peer {
            None => {}
            Some(peer) if !peer.is_installed(&*setup.driver) => {
                report = report.noting(format!("{}: not installed", peer.name()));
            }
            Some(peer) => match self.ready(setup, peer.libraries()) {
                Ok(ready) => contenders.push(ready),
                Err(error) => report = Report::failed(&error),
            },
        }
        let times = self.times(setup, &contenders)?;
        let rate = |seconds: f64| self.flops / seconds / 1e12;
        if let Some(&own) = times.first() {
            let bandwidth = self.bytes() / own / 1e9;
            report = report.with("time", own * 1e6, "µs").with("rate", rate(own), "TFLOP/s");
            report = report.with("bandwidth", bandwidth, "GB/s");
            if let Some(&other) = times.get(1) {
                report = report.with("library_time", other * 1e6, "µs").with("library_rate", rate(other), "TFLOP/s");
                report = report.with("own/library", own / other, "");
            }
        }
        Ok(report)
    }
}
