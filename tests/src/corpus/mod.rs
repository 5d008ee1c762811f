//! Programs for GPUs: graphs with inputs, and the kernels that the compiler writes for them.

pub mod draws;
pub mod emitters;
pub mod groups;
pub mod libraries;
pub mod open;

use std::sync::Arc;

use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::kir::Kernel;
use tensorc::ir::op::Registry;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::verify::verify_kernel;
use tensorc::ir::{DType, TensorData};
use tensorc::passes::{CompilePhase, PassCx, Pipeline};
use tensorc::runtime::gpu::Driver;
use tensorc::{Compiler, Error, Model, Options, Tensor};
use tensorc_codegen::lower::lower_with;
use tensorc_random::Rng;

use crate::compare::{data, tensor};

/// A graph with values of its inputs.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    /// Whether products of f32 may round their operands.
    pub tf32: bool,
    pub inputs: Vec<TensorData>,
}

impl Case {
    /// Results of a compiler's code.
    ///
    /// # Errors
    /// The graph does not compile or its code fails.
    pub fn run(&self, compiler: &Compiler) -> Result<Vec<TensorData>, Error> {
        self.run_as(&compiler.model(self.graph.clone()))
    }

    /// Results of a model of which the graph is a specialisation.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub fn run_as(&self, model: &Model) -> Result<Vec<TensorData>, Error> {
        let names: Vec<String> = self.graph.inputs().iter().map(|n| self.graph.node(*n).name.to_string()).collect();
        let given: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(self.inputs.iter().map(tensor)).collect();
        let outputs = model.run(&given)?;
        Ok(outputs.iter().map(|(_, output)| data(output)).collect())
    }

    /// The largest error of results, as a share of the largest element of a tensor.
    ///
    /// # Errors
    /// A type differs, or an element by more than [`tolerance`].
    pub fn largest_error(&self, expected: &[TensorData], found: &[TensorData]) -> Result<f64, String> {
        let mut most = 0.0f64;
        for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
            if expected.ty != found.ty {
                return Err(format!("result {at}: {} expected, {} found", expected.ty, found.ty));
            }
            let pairs = || expected.iter().map(|x| x.as_f64()).zip(found.iter().map(|x| x.as_f64()));
            let largest = pairs().map(|(x, _)| x.abs()).filter(|x| x.is_finite()).fold(1e-30, f64::max);
            let allowed = if found.dtype().is_float() { tolerance(found.dtype(), self.tf32) } else { 0.0 };
            for (i, (a, b)) in pairs().enumerate().filter(|(_, (a, b))| a != b && !(a.is_nan() && b.is_nan())) {
                let error = (a - b).abs() / largest;
                if error.is_nan() || error > allowed {
                    return Err(format!("result {at}, element {i}: {a} expected, {b} found"));
                }
                most = most.max(error);
            }
        }
        Ok(most)
    }
}

/// All programs.
pub fn all(registry: &Registry) -> Vec<Case> {
    let groups = groups::cases(registry).into_iter().map(|(case, _)| case);
    emitters::cases(registry).into_iter().chain(groups).chain(draws::cases(registry)).collect()
}

fn parsed(registry: &Registry, text: &str) -> Graph {
    let module = parse_module(text, registry).unwrap_or_else(|e| panic!("{e}\n{text}"));
    module.graphs.into_iter().next().unwrap_or_else(|| panic!("no graph in\n{text}"))
}

/// A graph from its inputs and body, in which `T` stands for an element type.
pub fn graph(registry: &Registry, inputs: &str, body: &str, dtype: DType) -> Graph {
    let inputs = inputs.replace('T', dtype.name());
    let body = body.replace("T[", &format!("{}[", dtype.name()));
    parsed(registry, &format!("tensorc-ir 1\ngraph @main({inputs}) {{\n  {body}\n  return %y\n}}\n"))
}

/// Multiples of 0.01 from -2 to 2 for every input.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<TensorData> {
    let mut rng = Rng::new(seed);
    let types = graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }).unwrap());
    let mut number = |dtype| Scalar::from_f64(dtype, rng.below(401) as f64 / 100.0 - 2.0);
    types.map(|ty| TensorData::from_fn(ty.clone(), |_| number(ty.dtype))).collect()
}

/// A compiler for a GPU, or for the processor.
///
/// # Errors
/// The driver's code is of a kind that nothing is compiled for.
pub fn compiler(gpu: Option<Arc<dyn Driver>>, tf32: bool) -> Result<Compiler, Error> {
    let mut options = Options { gpus: gpu.into_iter().collect(), threads: Some(1), ..Options::default() };
    options.passes.tf32 = tf32;
    Compiler::new(options)
}

/// The kernels of a graph as the compiler writes them for its GPU.
///
/// # Errors
/// A pass fails, or a kernel is wrong.
pub fn kernels(compiler: &Compiler, graph: &Graph) -> Result<Vec<Kernel>, Error> {
    let mut graph = graph.clone();
    let mut cx = PassCx::new(compiler.registry()).with_options(compiler.options().passes.clone());
    Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut cx)?;
    let lowered = lower_with(&graph, compiler.registry().math(), compiler.choices(), 1)?;
    lowered.kernels.iter().try_for_each(verify_kernel)?;
    Ok(lowered.kernels)
}

/// Largest error of a sum or function, relative to the largest element.
pub fn tolerance(dtype: DType, tf32: bool) -> f64 {
    match dtype {
        DType::F32 if tf32 => 1e-3,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F64 => 1e-12,
        _ => 2e-6,
    }
}
