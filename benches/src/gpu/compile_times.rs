//! What it takes to compile a model for two generations of GPUs: passes and lowering, PTX by LLVM, and its translation by the driver.
//!
//! A driver may keep translations on disk; NVIDIA's does not where `CUDA_CACHE_DISABLE=1` is set.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorc::ir::DenseType;
use tensorc::runtime::gpu::CodeForm;
use tensorc::{Compiler, Model, Options, VendorLibraries};
use tensorc_simulator::{CountingDriver, Counts};

use super::models::{Spec, model, specs};
use super::{Case, MeasurementFailure, Precision, Setup, Size};
use crate::figures::Report;

const GENERATIONS: [(&str, u32); 2] = [("sm_90a", 90), ("sm_80", 80)];

const PRECISION: Precision = Precision::Bf16;

/// A model to be compiled, and what its driver counts.
struct CompiledModel {
    model: Model,
    types: Vec<DenseType>,
    counts: Arc<Counts>,
}

/// What compiling took, in seconds.
struct Took {
    total: f64,
    lowering: f64,
    weights: f64,
    /// PTX, its translation, and copies of weights to the device.
    codegen: f64,
    /// Of all threads together in the driver, translating.
    loading: f64,
}

impl CompiledModel {
    fn new(
        setup: &Setup,
        spec: &Spec,
        number: u32,
        threads: Option<usize>,
    ) -> Result<CompiledModel, MeasurementFailure> {
        let driver = CountingDriver::new(setup.driver.clone()).of_capability(number);
        let counts = driver.counts.clone();
        let setup = Setup { driver: Arc::new(driver), ..setup.clone() };
        let options = Options { threads, ..setup.options(PRECISION, VendorLibraries::default()) };
        let (model, inputs) = model(&Compiler::new(options)?, &(spec.make)(1)?, PRECISION.dtype())?;
        Ok(CompiledModel { model, types: inputs.iter().map(|input| input.ty.clone()).collect(), counts })
    }

    /// Compiles, with the PTX that was made before.
    fn compile(&self) -> Result<Took, MeasurementFailure> {
        let before = self.counts.load_nanos.load(Ordering::Relaxed);
        let start = Instant::now();
        let session = self.model.compile(&self.types)?;
        let total = start.elapsed().as_secs_f64();
        let loading = self.counts.load_nanos.load(Ordering::Relaxed) - before;
        let (mut lowering, mut weights, mut codegen) = (0.0, 0.0, 0.0);
        for (step, time) in &session.report().timings {
            let part = match step.as_str() {
                "codegen" => &mut codegen,
                "pack-weights" => &mut weights,
                _ => &mut lowering,
            };
            *part += time.as_secs_f64();
        }
        Ok(Took { total, lowering, weights, codegen, loading: loading as f64 / 1e9 })
    }
}

fn measure(setup: &Setup, spec: &Spec, (generation, number): (&str, u32)) -> Result<Report, MeasurementFailure> {
    let form = setup.driver.form();
    if let CodeForm::Ptx { capability } = form
        && (capability < number || number == 90 && capability != 90)
    {
        let [major, minor] = [capability / 10, capability % 10];
        return Ok(Report::skipped(format!("compute capability {major}.{minor} does not execute {generation}")));
    }
    let all = CompiledModel::new(setup, spec, number, None)?;
    let took = all.compile()?;
    let report = Report::default()
        .with("total", took.total, "s")
        .with("lowering", took.lowering, "s")
        .with("weights", took.weights, "s")
        .with("codegen", took.codegen, "s")
        .with("driver_threads", took.loading, "s")
        .with("kernels", all.counts.loads.load(Ordering::Relaxed) as f64, "");
    if matches!(form, CodeForm::Ir { .. }) {
        return Ok(report);
    }
    // In one thread, what is not the driver's is LLVM's and copying; the latter alone where the PTX is there.
    drop(all);
    let alone = CompiledModel::new(setup, spec, number, Some(1))?;
    let rest = |took: Took| took.codegen - took.loading;
    let (first, second) = (rest(alone.compile()?), rest(alone.compile()?));
    Ok(report.with("llvm_one_thread", first - second, "s"))
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let mut all = vec![];
    for generation in GENERATIONS {
        for spec in specs(size) {
            let name = format!("{} {} for {}", spec.name, PRECISION.name(), generation.0);
            all.push(Case::new(name, move |setup| measure(setup, spec, generation)));
        }
    }
    all
}
