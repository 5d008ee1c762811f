//! Executors: symbols bound to arrays, run forward and backward.
//!
//! ```no_run
//! # fn main() -> Result<(), tensorc_nd::Error> {
//! use tensorc_nd::executor::Executor;
//! use tensorc_nd::{Runtime, RuntimeOptions};
//! use tensorc::symbol::Symbol;
//!
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let x = Symbol::variable("x");
//! let net = (&x * &x)?;
//! let mut exec = Executor::simple_bind(&rt, &net).shape("x", &[3]).build()?;
//! exec.argument("x")?.fill(5.0)?;
//! exec.forward(true)?;
//! exec.backward(&[&rt.ones(&[3], tensorc::DType::F32)?])?;
//! assert_eq!(exec.gradient("x")?.to_vec::<f32>()?, [10.0; 3]);
//! # Ok(())
//! # }
//! ```
//!
//! Forward and backward are two phases of one compiled plan, so one memory plan covers both. Each is one
//! operation of the engine: calls return at once, and errors wait in the arrays they concern. On processors, an output or
//! a gradient that is written can be read as soon as no later step uses it, while the operation goes on.

mod binder;
mod divided;
mod fixed;
mod memory;
mod monitor;
mod part_gradient;
mod place;
mod program;
mod request;
mod reshape;
mod step;
mod training_graph;
mod types;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_frontend::symbol::{Lowering, Symbol};
use tensorc_ir::{DenseType, TensorType};
use tensorc_runtime::Device;

pub use binder::Binder;
pub use program::PlannedMemory;
pub use reshape::Reshape;
pub use step::{FusedStep, ParameterStates};
pub use update::{Emission, UpdateRule};

pub use crate::grad_req::GradReq;

use crate::error::Error;
use crate::ndarray::{NDArray, Runtime};
use binder::{Bound, group_devices};
use divided::{DividedGraph, DividedPass, refuse_devices};
use fixed::Fixed;
use memory::{Pass, SharedMemory};
use monitor::Monitor;
use place::ProgramPhase;
use program::{Arrays, Keys, PlacedGraph};
use training_graph::{GradientRequests, TrainingGraph, TypedSymbol, input_types};
use types::before_any;

/// A symbol bound to arrays.
pub struct Executor {
    rt: Runtime,
    symbol: Symbol,
    bound: Bound,
    device: Device,
    /// Whose stream random nodes draw from.
    stream: Device,
    groups: BTreeMap<String, Device>,
    memory: SharedMemory,
    outputs: Vec<NDArray>,
    /// Forward without gradients: for inference, and as in training.
    forward_only: [Option<ExecutorGraph>; 2],
    /// Forward and backward; made when the symbol is bound, if a gradient is wanted, and compiled later.
    training: Option<ExecutorGraph>,
    /// The last training forward pass, and its random keys.
    pass: Option<(LastPass, Keys)>,
    monitor: Option<Monitor>,
    fixed: Fixed,
}

/// What computes the outputs.
#[derive(Clone)]
enum ExecutorGraph {
    /// One plan, or one for each device.
    Placed(Arc<PlacedGraph>),
    /// Several in turn, as shapes depend on values.
    Divided(Arc<DividedGraph>),
}

/// A training forward pass, with the values that the backward pass takes.
enum LastPass {
    /// In memory that others may use.
    Placed(Pass),
    /// `None` once they are used up.
    Divided(Option<DividedPass>),
}

impl Executor {
    /// Begins to bind a symbol to arrays that exist. Gradients are computed where a gradient array or a
    /// request is given.
    pub fn bind<'a>(rt: &'a Runtime, symbol: &Symbol) -> Binder<'a> {
        Binder::new(rt, symbol, false)
    }

    /// Begins to bind a symbol, with arrays that are not given allocated as zeros in the inferred shapes.
    /// Gradients of all arguments are computed unless a request says otherwise.
    pub fn simple_bind<'a>(rt: &'a Runtime, symbol: &Symbol) -> Binder<'a> {
        Binder::new(rt, symbol, true)
    }

    fn new(
        rt: Runtime,
        symbol: Symbol,
        bound: Bound,
        device: Device,
        groups: BTreeMap<String, Device>,
        memory: SharedMemory,
    ) -> Result<Executor, Error> {
        let mut outputs = vec![];
        for (_, ty) in &bound.outputs {
            let ty = before_any(ty);
            outputs.push(rt.empty(device, ty.dtype, &ty.dims)?);
        }
        let fixed = Fixed::new(&symbol, &bound);
        let mut executor = Executor {
            fixed,
            rt,
            symbol,
            bound,
            device,
            stream: device,
            groups,
            memory,
            outputs,
            forward_only: [None, None],
            training: None,
            pass: None,
            monitor: None,
        };
        if executor.bound.requests.iter().any(|r| *r != GradReq::Null) {
            executor.training = Some(executor.differentiated()?);
        }
        Ok(executor)
    }

    /// The symbol that is bound.
    pub fn symbol(&self) -> &Symbol {
        &self.symbol
    }

    /// Where nodes without a group are placed.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The runtime of its arrays.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Names and arrays of the arguments, in the symbol's order.
    pub fn arguments(&self) -> &[(String, NDArray)] {
        &self.bound.arguments
    }

    /// Names and arrays of the auxiliary states, in the symbol's order.
    pub fn auxiliaries(&self) -> &[(String, NDArray)] {
        &self.bound.auxiliaries
    }

    /// Names and gradient arrays of the arguments that have one.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &NDArray)> {
        let pairs = self.bound.arguments.iter().zip(&self.bound.gradients);
        pairs.filter_map(|((name, _), gradient)| Some((name.as_str(), gradient.as_ref()?)))
    }

    /// Names of arguments in the order in which the backward pass is done with their gradients, those it adds to excepted.
    /// Compiles it.
    ///
    /// # Errors
    /// The symbol does not compile for training.
    pub fn gradients_in_order(&self) -> Result<Vec<&str>, Error> {
        let order = match &self.training {
            Some(ExecutorGraph::Placed(program)) => program.gradients_in_order(&self.rt, &self.memory)?,
            // Those of the last layers come first.
            Some(ExecutorGraph::Divided(_)) => {
                (0..self.bound.requests.len()).rev().filter(|at| self.bound.requests[*at] == GradReq::Write).collect()
            }
            None => vec![],
        };
        Ok(order.into_iter().map(|at| self.bound.arguments[at].0.as_str()).collect())
    }

    /// Whether shapes depend on values, so that forward passes wait for these; as far as passes are compiled: an executor without
    /// gradients compiles its pass when it first runs.
    pub fn has_parts(&self) -> bool {
        let graphs = self.training.iter().chain(self.forward_only.iter().flatten());
        graphs.into_iter().any(|graph| matches!(graph, ExecutorGraph::Divided(_)))
    }

    /// The outputs, in the symbol's order. Forward passes write these arrays; where their shapes depend on values, a pass that finds
    /// others puts new arrays in their places.
    pub fn outputs(&self) -> &[NDArray] {
        &self.outputs
    }

    /// Names and types of the outputs; extents are not known that depend on values.
    pub fn output_types(&self) -> &[(String, TensorType)] {
        &self.bound.outputs
    }

    /// The array of an argument.
    ///
    /// # Errors
    /// The symbol has no argument of this name.
    pub fn argument(&self, name: &str) -> Result<&NDArray, Error> {
        find(&self.bound.arguments, "argument", name)
    }

    /// The array of an auxiliary state.
    ///
    /// # Errors
    /// The symbol has no auxiliary state of this name.
    pub fn auxiliary(&self, name: &str) -> Result<&NDArray, Error> {
        find(&self.bound.auxiliaries, "auxiliary state", name)
    }

    /// The gradient array of an argument.
    ///
    /// # Errors
    /// The symbol has no argument of this name, or its gradient is not computed.
    pub fn gradient(&self, name: &str) -> Result<&NDArray, Error> {
        self.argument(name)?;
        let found = self.gradients().find(|(n, _)| *n == name).map(|(_, array)| array);
        found.ok_or_else(|| Error::Bind(format!("the gradient of `{name}` is not computed: its request is null")))
    }

    /// What happens to the gradient of an argument.
    ///
    /// # Errors
    /// The symbol has no argument of this name.
    pub fn grad_req(&self, name: &str) -> Result<GradReq, Error> {
        self.argument(name)?;
        let at = self.bound.arguments.iter().position(|(n, _)| n == name);
        Ok(at.map_or(GradReq::Null, |at| self.bound.requests[at]))
    }

    /// Bytes of memory that intermediate values take, shared memory counted whole.
    pub fn intermediate_bytes(&self) -> usize {
        let divided = |graph: &ExecutorGraph| match graph {
            ExecutorGraph::Divided(divided) => divided.intermediate_bytes(),
            ExecutorGraph::Placed(_) => 0,
        };
        let graphs = self.training.iter().chain(self.forward_only.iter().flatten());
        self.memory.bytes() + graphs.map(divided).sum::<usize>()
    }

    /// Memory planned for forward and backward together; compiles them. Gradient arrays are not part of it.
    ///
    /// # Errors
    /// The graph does not compile, or shapes depend on values, so that there is no single plan.
    pub fn planned_memory(&self) -> Result<PlannedMemory, Error> {
        match &self.training {
            Some(graph) => self.planned(graph),
            None => Ok(PlannedMemory::default()),
        }
    }

    /// Memory planned for a forward pass without training; compiles it.
    ///
    /// # Errors
    /// As [`Executor::planned_memory`].
    pub fn planned_inference_memory(&mut self) -> Result<PlannedMemory, Error> {
        let program = self.forward_program(false)?;
        self.planned(&program)
    }

    fn planned(&self, graph: &ExecutorGraph) -> Result<PlannedMemory, Error> {
        match graph {
            ExecutorGraph::Placed(program) => program.planned(&self.rt, &self.memory),
            ExecutorGraph::Divided(divided) => Err(tensorc::Error::Parts { model: divided.name().into() }.into()),
        }
    }

    /// Copies arrays to the arguments and auxiliary states of these names.
    ///
    /// # Errors
    /// A name is unknown, or a type differs.
    pub fn copy_params<'n>(&self, arrays: impl IntoIterator<Item = (&'n str, &'n NDArray)>) -> Result<(), Error> {
        for (name, array) in arrays {
            let to = self.argument(name).or_else(|_| self.auxiliary(name))?;
            array.copy_into(to)?;
        }
        Ok(())
    }

    /// Computes the outputs. `training` decides how operators such as dropout and batch normalisation
    /// behave; auxiliary states change with the backward pass only. Arguments that an operator takes as one
    /// value whatever they hold, such as a gamma that is fixed, hold that value afterwards.
    ///
    /// # Errors
    /// The graph does not compile. What goes wrong while running stays with the outputs.
    pub fn forward(&mut self, training: bool) -> Result<&[NDArray], Error> {
        let (graph, pass) = match (training, &self.training) {
            (true, Some(graph)) => (graph.clone(), true),
            (true, None) => (self.forward_program(true)?, false),
            (false, _) => (self.forward_program(false)?, false),
        };
        self.fixed.write(&self.bound)?;
        let keys = graph.draw_keys(&self.rt, self.stream);
        if let Some(monitor) = &self.monitor {
            self.observe(monitor, training, &keys)?;
        }
        let made = match &graph {
            ExecutorGraph::Placed(program) => {
                let phase = if pass { ProgramPhase::Forward } else { ProgramPhase::Whole };
                let number = self.memory.begin();
                program.launch(&self.rt, self.arrays(&[]), &keys, phase, &self.memory)?;
                LastPass::Placed(number)
            }
            ExecutorGraph::Divided(divided) => {
                if pass {
                    // The values of the last one are overwritten, even if this one fails.
                    self.pass = None;
                }
                LastPass::Divided(Some(self.divided_forward(divided, &keys)?))
            }
        };
        self.pass = pass.then_some((made, keys));
        Ok(&self.outputs)
    }

    fn divided_forward(&mut self, divided: &DividedGraph, keys: &Keys) -> Result<DividedPass, Error> {
        let pass = divided.forward(&self.rt, self.arrays(&[]), keys)?;
        self.outputs.clone_from(&pass.outputs);
        Ok(pass)
    }

    /// Lets random nodes draw from the stream of another device.
    pub fn draw_from(&mut self, stream: Device) {
        self.stream = stream;
    }

    /// Draws the random keys of forward passes in training mode that are computed elsewhere.
    pub fn pass_over_keys(&self, passes: usize) {
        if let Some(program) = &self.training {
            (0..passes).for_each(|_| drop(program.draw_keys(&self.rt, self.stream)));
        }
    }

    /// Copies values to arguments, then computes the outputs.
    ///
    /// # Errors
    /// As [`Executor::forward`], or an argument is unknown or has another type.
    pub fn forward_with(&mut self, training: bool, values: &[(&str, &NDArray)]) -> Result<&[NDArray], Error> {
        for (name, value) in values {
            value.copy_into(self.argument(name)?)?;
        }
        self.forward(training)
    }

    /// Computes the gradients that are wanted, from those of the outputs: one for each output, or none if
    /// every output that matters is a loss. Losses ignore theirs.
    ///
    /// The backward pass takes the intermediate values that the forward pass left. If they are gone, after a
    /// first backward pass or because an executor that shares the memory ran, the forward pass runs again
    /// before it, with the same random numbers.
    ///
    /// # Errors
    /// No training forward pass precedes, a gradient of an output is missing or has another type.
    pub fn backward(&mut self, heads: &[&NDArray]) -> Result<(), Error> {
        let Some(graph) = self.training.clone() else { return Ok(()) };
        let Some((pass, keys)) = self.pass.take() else {
            return Err(Error::Backward("no forward pass in training mode precedes it".into()));
        };
        let (pass, result) = self.backward_of(&graph, pass, &keys, heads);
        self.pass = Some((pass, keys));
        result
    }

    /// What is left of the pass, and whether the gradients are under way.
    fn backward_of(
        &mut self,
        graph: &ExecutorGraph,
        mut pass: LastPass,
        keys: &Keys,
        heads: &[&NDArray],
    ) -> (LastPass, Result<(), Error>) {
        let mut run = || {
            self.check_heads(&graph.heads(), heads)?;
            match (graph, &mut pass) {
                (ExecutorGraph::Placed(program), LastPass::Placed(pass)) => {
                    if !self.memory.holds(*pass) {
                        program.launch(&self.rt, self.arrays(&[]), keys, ProgramPhase::Forward, &self.memory)?;
                    }
                    program.launch(&self.rt, self.arrays(heads), keys, ProgramPhase::Backward, &self.memory)?;
                    // The values are used up.
                    self.memory.begin();
                    Ok(())
                }
                (ExecutorGraph::Divided(divided), LastPass::Divided(values)) => {
                    let pass = match values.take() {
                        Some(pass) => pass,
                        None => self.divided_forward(divided, keys)?,
                    };
                    // The shapes of outputs may be others than when the forward pass ran first.
                    self.check_heads(&graph.heads(), heads)?;
                    divided.backward(&self.rt, &pass, self.arrays(heads))
                }
                _ => Err(Error::Internal("a forward pass of another graph".into())),
            }
        };
        let result = run();
        (pass, result)
    }

    fn check_heads(&self, taken: &[usize], heads: &[&NDArray]) -> Result<(), Error> {
        if heads.is_empty() {
            return match taken.first() {
                None => Ok(()),
                Some(output) => Err(Error::Backward(format!(
                    "output `{}` is not a loss, so its gradient must be given; `make_loss` makes a loss of it",
                    self.bound.outputs[*output].0
                ))),
            };
        }
        if heads.len() != self.outputs.len() {
            let (given, outputs) = (heads.len(), self.outputs.len());
            return Err(Error::Backward(format!(
                "{given} gradients of outputs are given, there are {outputs} outputs"
            )));
        }
        for (((name, _), output), head) in self.bound.outputs.iter().zip(&self.outputs).zip(heads) {
            let ty = output.ty();
            if ty != head.ty() {
                return Err(Error::Backward(format!("output `{name}` is {ty}, its gradient is {head:?}")));
            }
        }
        Ok(())
    }

    fn arrays<'e>(&'e self, heads: &'e [&'e NDArray]) -> Arrays<'e> {
        Arrays { bound: &self.bound, outputs: &self.outputs, heads, step: None }
    }

    /// The types of the arguments and auxiliary states, as graphs take them.
    fn input_types(&self, random_nodes: usize) -> Vec<DenseType> {
        let types = |list: &[(String, NDArray)]| -> Vec<DenseType> {
            list.iter().map(|(_, array)| DenseType::new(array.dtype(), array.dims())).collect()
        };
        input_types(&types(&self.bound.arguments), &types(&self.bound.auxiliaries), random_nodes)
    }

    fn program(&self, training_graph: TrainingGraph) -> Result<PlacedGraph, Error> {
        let devices = group_devices(&self.symbol, &self.groups);
        PlacedGraph::new(&self.rt, training_graph, &devices, self.device)
    }

    /// A graph whose shapes depend on values.
    fn divided(&self, typed: TypedSymbol, requests: Option<&[GradReq]>) -> Result<DividedGraph, Error> {
        let devices = group_devices(&self.symbol, &self.groups);
        if devices.values().any(|device| *device != self.device) {
            return Err(refuse_devices(&typed.graph));
        }
        DividedGraph::new(self.rt.compiler(), typed, self.device, requests)
    }

    fn typed(&self, training: bool) -> Result<TypedSymbol, Error> {
        let compiler = self.rt.compiler();
        let symbol = self.symbol.to_graph(compiler.registry(), &Lowering { training, ..Lowering::default() })?;
        let types = self.input_types(symbol.random_nodes);
        TypedSymbol::new(compiler, symbol, &types)
    }

    fn forward_program(&mut self, training: bool) -> Result<ExecutorGraph, Error> {
        if let Some(graph) = &self.forward_only[usize::from(training)] {
            return Ok(graph.clone());
        }
        let typed = self.typed(training)?;
        let graph = match typed.is_divided {
            true => ExecutorGraph::Divided(Arc::new(self.divided(typed, None)?)),
            false => ExecutorGraph::Placed(Arc::new(self.program(TrainingGraph::forward(typed))?)),
        };
        Ok(self.forward_only[usize::from(training)].insert(graph).clone())
    }

    fn differentiated(&self) -> Result<ExecutorGraph, Error> {
        let typed = self.typed(true)?;
        if typed.is_divided {
            let divided = self.divided(typed, Some(&self.bound.requests))?;
            return Ok(ExecutorGraph::Divided(Arc::new(divided)));
        }
        let backward = GradientRequests { requests: &self.bound.requests, update: None };
        let training_graph = TrainingGraph::training(self.rt.compiler(), typed, &backward)?;
        Ok(ExecutorGraph::Placed(Arc::new(self.program(training_graph)?)))
    }
}

impl ExecutorGraph {
    fn draw_keys(&self, rt: &Runtime, device: Device) -> Keys {
        match self {
            ExecutorGraph::Placed(program) => program.draw_keys(rt, device),
            ExecutorGraph::Divided(divided) => divided.draw_keys(rt, device),
        }
    }

    /// Outputs whose gradients must be given.
    fn heads(&self) -> Vec<usize> {
        match self {
            ExecutorGraph::Placed(program) => program.heads().to_vec(),
            ExecutorGraph::Divided(divided) => divided.heads(),
        }
    }
}

fn find<'l>(list: &'l [(String, NDArray)], what: &str, name: &str) -> Result<&'l NDArray, Error> {
    let found = list.iter().find(|(n, _)| n == name).map(|(_, array)| array);
    found.ok_or_else(|| {
        let names: Vec<&str> = list.iter().map(|(n, _)| n.as_str()).collect();
        Error::Bind(format!("the symbol has no {what} `{name}`; it has: {}", names.join(", ")))
    })
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("arguments", &self.bound.arguments).finish_non_exhaustive()
    }
}
