//! Graphs that an executor runs: forward alone, or forward and backward in one.
//!
//! A training graph has the symbol's outputs as its first phase and the gradients as its second, so that one
//! memory plan covers both and what backward needs stays where forward computed it. A gradient that is added
//! to is an input with an update, as auxiliary state is.

use std::sync::Arc;

use tensorc_frontend::symbol::SymbolGraph;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::{DenseType, TensorType};
use tensorc_passes::differentiate::differentiate;
use tensorc_passes::infer::{bind, infer_graph};
use tensorc_passes::parts::first_part;
use tensorc_passes::values::StaticValues;

use super::update::{Emission, UpdateRule};
use crate::error::Error;
use crate::grad_req::GradReq;
use tensorc::Compiler;

/// Where the array behind a graph input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraphInputRole {
    Argument(usize),
    Auxiliary(usize),
    /// One key for each random node.
    Keys,
    /// The head gradient of an output.
    Head(usize),
    /// The gradient array of an argument, which is added to.
    Gradient(usize),
    /// State of the optimizer: argument, and position among its states.
    State(usize, usize),
    /// What the optimizer computes anew for every step.
    Numbers,
}

/// What a graph output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputRole {
    Output(usize),
    Gradient(usize),
}

/// A graph of known types, with the meaning of its inputs and outputs.
pub(super) struct TrainingGraph {
    pub graph: Graph,
    /// By graph input.
    pub input_roles: Vec<GraphInputRole>,
    /// By graph output.
    pub output_roles: Vec<OutputRole>,
    /// Outputs whose head gradients backward uses.
    pub heads: Vec<usize>,
}

/// Which gradients a training graph computes, and what is done with them.
pub(super) struct GradientRequests<'a> {
    /// By argument.
    pub requests: &'a [GradReq],
    /// Applies the gradients in the same run: there are no gradient arrays and one phase.
    pub update: Option<&'a dyn UpdateRule>,
}

/// The types of a symbol's inputs in the order of its graph: arguments, auxiliary states, keys.
pub(super) fn input_types(arguments: &[DenseType], auxiliaries: &[DenseType], random_nodes: usize) -> Vec<DenseType> {
    let keys = (random_nodes > 0).then(|| DenseType::new(tensorc_abi::DType::U32, [random_nodes as u64, 2]));
    arguments.iter().chain(auxiliaries).cloned().chain(keys).collect()
}

/// The graph of a symbol, typed as far as the types of its inputs tell.
pub(super) struct TypedSymbol {
    pub graph: Graph,
    /// By graph input.
    pub input_roles: Vec<GraphInputRole>,
    /// Whether shapes depend on values.
    pub is_divided: bool,
}

impl TypedSymbol {
    pub fn new(compiler: &Compiler, symbol: SymbolGraph, types: &[DenseType]) -> Result<TypedSymbol, Error> {
        let SymbolGraph { mut graph, arguments, aux, random_nodes } = symbol;
        bind(&mut graph, types)?;
        infer_graph(&mut graph, compiler.registry(), compiler.options().passes.static_bytes)?;
        let is_typed =
            |node| (0..graph.node(node).types.len() as u16).all(|port| graph.dense(Value { node, port }).is_ok());
        let is_divided = !graph.node_ids().into_iter().all(is_typed) && {
            let mut alone = graph.clone();
            alone.clear_updates();
            !first_part(&mut alone, compiler.typing())?.is_last()
        };
        let input_roles =
            (0..arguments.len()).map(GraphInputRole::Argument).chain((0..aux.len()).map(GraphInputRole::Auxiliary));
        let input_roles = input_roles.chain((random_nodes > 0).then_some(GraphInputRole::Keys)).collect();
        Ok(TypedSymbol { graph, input_roles, is_divided })
    }
}

impl TrainingGraph {
    /// The forward pass. Auxiliary states keep their values: they change with the backward pass.
    pub fn forward(typed: TypedSymbol) -> TrainingGraph {
        let mut training_graph = TrainingGraph::of(typed);
        training_graph.graph.clear_updates();
        training_graph.graph.remove_dead();
        training_graph
    }

    /// Forward and backward.
    pub fn training(
        compiler: &Compiler,
        typed: TypedSymbol,
        backward: &GradientRequests<'_>,
    ) -> Result<TrainingGraph, Error> {
        let mut training_graph = TrainingGraph::of(typed);
        let outputs: Vec<(Arc<str>, Value)> = training_graph.graph.outputs().to_vec();
        if backward.update.is_some() && !outputs.iter().any(|(_, v)| is_loss(&training_graph.graph, *v)) {
            let why = "no output is a loss, so there is nothing to train; `make_loss` makes a loss of an output";
            return Err(Error::Backward(why.into()));
        }
        let mut heads = vec![];
        for (i, (name, v)) in outputs.iter().enumerate() {
            let head = match backward.update.is_none() && training_graph.takes_head(*v)? {
                true => Some(training_graph.add_input(&format!("{name}_grad"), *v, GraphInputRole::Head(i))?),
                false => None,
            };
            heads.push((*v, head));
        }
        let wanted: Vec<usize> =
            (0..backward.requests.len()).filter(|a| backward.requests[*a] != GradReq::Null).collect();
        let variables: Vec<Value> =
            wanted.iter().map(|a| Value { node: training_graph.graph.inputs()[*a], port: 0 }).collect();
        let gradients = differentiate(&mut training_graph.graph, compiler.registry(), &heads, &variables)?;
        match backward.update {
            None => {
                training_graph.graph.set_boundary(Some(outputs.len()));
                training_graph.deliver(compiler, backward.requests, &wanted, &gradients)?;
            }
            Some(rule) => training_graph.apply(compiler, rule, backward.requests.len(), &wanted, &gradients)?,
        }
        training_graph.graph.remove_dead();
        let used = |v: Value| training_graph.graph.is_output(v) || !training_graph.graph.uses(v.node).is_empty();
        training_graph.heads =
            heads.iter().enumerate().filter(|(_, (_, head))| head.is_some_and(used)).map(|(i, _)| i).collect();
        Ok(training_graph)
    }

    fn of(typed: TypedSymbol) -> TrainingGraph {
        let TypedSymbol { graph, input_roles, .. } = typed;
        let output_roles = (0..graph.outputs().len()).map(OutputRole::Output).collect();
        TrainingGraph { graph, input_roles, output_roles, heads: vec![] }
    }

    /// Whether an output's gradient has to be given for it to have an effect.
    fn takes_head(&self, v: Value) -> Result<bool, Error> {
        Ok(!is_loss(&self.graph, v) && self.graph.dense(v)?.dtype.is_float())
    }

    /// A graph input of the type of `like`.
    fn add_input(&mut self, name: &str, like: Value, feed: GraphInputRole) -> Result<Value, Error> {
        let ty = self.graph.dense(like)?;
        self.input_roles.push(feed);
        Ok(self.graph.add_input(name, TensorType::from(ty)))
    }

    /// Writes gradients to outputs, or adds them to what is there.
    fn deliver(
        &mut self,
        compiler: &Compiler,
        requests: &[GradReq],
        wanted: &[usize],
        gradients: &[Option<Value>],
    ) -> Result<(), Error> {
        for (&argument, gradient) in wanted.iter().zip(gradients) {
            let variable = Value { node: self.graph.inputs()[argument], port: 0 };
            let name = format!("{}_grad", self.graph.node(variable.node).name);
            match (requests[argument], *gradient) {
                (GradReq::Add, Some(gradient)) => {
                    let old = self.add_input(&name, variable, GraphInputRole::Gradient(argument))?;
                    let sum = self.build(compiler, &name, |b| b.call("add", &[old, gradient]))?;
                    self.graph.add_update(old.node, sum);
                }
                (GradReq::Write, gradient) => {
                    let ty = self.graph.dense(variable)?;
                    let value = match gradient {
                        Some(value) => value,
                        None => self.build(compiler, &name, |b| b.filled(&ty, 0.0))?,
                    };
                    self.graph.add_output(name, value);
                    self.output_roles.push(OutputRole::Gradient(argument));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets the optimizer turn gradients into new weights and states.
    fn apply(
        &mut self,
        compiler: &Compiler,
        rule: &dyn UpdateRule,
        arguments: usize,
        wanted: &[usize],
        gradients: &[Option<Value>],
    ) -> Result<(), Error> {
        let pairs: Vec<(usize, Value)> = wanted.iter().zip(gradients).filter_map(|(a, g)| g.map(|g| (*a, g))).collect();
        let numbers = rule.numbers();
        let table = DenseType::new(tensorc_abi::DType::F32, [arguments as u64, numbers as u64]);
        let table = self.graph.add_input("optimizer_numbers", TensorType::from(table));
        self.input_roles.push(GraphInputRole::Numbers);
        for (argument, gradient) in pairs {
            let weight = Value { node: self.graph.inputs()[argument], port: 0 };
            let name = self.graph.node(weight.node).name.clone();
            let ty = self.graph.dense(weight)?;
            let mut states = vec![];
            for (i, (state, ty)) in rule.states(&ty).into_iter().enumerate() {
                self.input_roles.push(GraphInputRole::State(argument, i));
                states.push(self.graph.add_input(format!("{name}_{state}"), TensorType::from(ty)));
            }
            let emission = self.build(compiler, &name, |b| {
                let numbers = row(b, table, argument as u64, numbers as u64)?;
                rule.emit(b, weight, gradient, &states, &numbers)
            })?;
            let Emission { weight: new_weight, states: new_states } = emission;
            self.graph.add_update(weight.node, new_weight);
            for (old, new) in states.into_iter().zip(new_states) {
                self.graph.add_update(old.node, new);
            }
        }
        Ok(())
    }

    /// Adds operators to the graph, named after what they belong to.
    fn build<T>(
        &mut self,
        compiler: &Compiler,
        name: &str,
        body: impl FnOnce(&mut Builder<'_>) -> Result<T, Diagnostic>,
    ) -> Result<T, Error> {
        let values = StaticValues::new(compiler.registry(), compiler.options().passes.static_bytes);
        let value_of = |graph: &Graph, v: Value| values.get(graph, v);
        let mut builder = Builder::new(&mut self.graph, compiler.registry(), name.into(), &value_of);
        Ok(body(&mut builder)?)
    }
}

/// The numbers of one row of a table, each of rank 0.
fn row(b: &mut Builder<'_>, table: Value, at: u64, count: u64) -> Result<Vec<Value>, Diagnostic> {
    let scalar = DenseType::new(tensorc_abi::DType::F32, []);
    let view = |column: u64| {
        use tensorc_ir::index::Index;
        use tensorc_ir::prim::{Prim, View};
        Prim::View(View { map: vec![Index::constant(at as i64), Index::constant(column as i64)], fill: None }.into())
    };
    let ty = b.ty(table)?;
    if ty.rank() != 2 || at >= ty.dims[0] || count > ty.dims[1] {
        return Err(b.error(DiagnosticCode::Internal, "the table of an optimizer's numbers is too small"));
    }
    (0..count).map(|column| Ok(b.prim(view(column), &[table], std::slice::from_ref(&scalar))?[0])).collect()
}

/// Whether a value brings its own gradient.
pub(super) fn is_loss(graph: &Graph, v: Value) -> bool {
    matches!(&graph.node(v.node).kind, NodeKind::Op(op) if op.def.ignores_heads(&op.params))
}
