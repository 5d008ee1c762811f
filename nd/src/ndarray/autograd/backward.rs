//! Gradients of what was recorded: one graph, one program, one operation.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::{Compute, Grad, Infer, InputSpec, OpDef, OpRef, Registry, TypeRule};
use tensorc_ir::params::Params;
use tensorc_passes::differentiate::differentiate;
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayOperand, ArrayView};
use tensorc_runtime::engine::OpName;

use super::linear::{Goal, Input, Linear, TapeCall, ValueSource, describe_goal};
use crate::error::{AutogradError, Error};
use crate::grad_req::GradReq;
use crate::ndarray::array::NDArray;
use crate::ndarray::inline::inline;
use crate::ndarray::program::ArrayProgram;
use crate::ndarray::recording::attach;
use crate::ndarray::runtime::Runtime;
use crate::ndarray::tape::RecordedOperand;
use tensorc::ProgramKey;

/// How gradients are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backward {
    /// Keep what was recorded, so that gradients can be taken again.
    pub retain_graph: bool,
}

/// A gradient that is asked for.
struct Order {
    goal: Goal,
    ty: DenseType,
    /// The input that it is added to.
    add_to: Option<usize>,
}

struct Head {
    goal: Goal,
    ty: DenseType,
    /// The input that is its gradient; ones if there is none.
    gradient: Option<usize>,
}

/// Takes the gradient of `Σ headᵢ · gradientᵢ` by every variable it depends on, and writes or adds it to the
/// variable's array. A gradient that is not given is ones; an empty list gives none.
///
/// # Errors
/// A head was not recorded, or was differentiated before; something it was computed from has no gradient, or was
/// overwritten since. What goes wrong while computing stays with the gradient arrays.
pub fn backward(heads: &[&NDArray], gradients: &[Option<&NDArray>], options: Backward) -> Result<(), Error> {
    let Some(first) = heads.first() else { return Ok(()) };
    let rt = first.runtime().clone();
    let mut work = BackwardPass::new(&rt, heads, gradients)?;
    let variables = work.linear.variables.clone();
    let mut orders = vec![];
    for (i, variable) in variables.iter().enumerate() {
        let add_to =
            (variable.request == GradReq::Add).then(|| work.linear.array(variable.gradient.clone(), None, None));
        orders.push(Order { goal: Goal::Variable(i), ty: variable.ty(), add_to });
    }
    let targets: Vec<ArrayView> = variables.iter().map(|variable| variable.gradient.clone()).collect();
    work.run(&*work.program(&orders)?, &targets)?;
    if !options.retain_graph {
        work.linear.steps.iter().for_each(|step| step.call.free());
    }
    Ok(())
}

/// The gradient of `Σ headᵢ · gradientᵢ` by each variable, or by arrays computed on the way, as new arrays. With
/// `create_graph` these are recorded themselves, so that they can be differentiated.
///
/// What was recorded is kept with `create_graph`, and gone without.
///
/// # Errors
/// As [`backward`], or the heads do not depend on a variable.
pub fn grad(
    heads: &[&NDArray],
    variables: &[&NDArray],
    gradients: &[Option<&NDArray>],
    create_graph: bool,
) -> Result<Vec<NDArray>, Error> {
    let Some(first) = heads.first() else { return Ok(vec![]) };
    let rt = first.runtime().clone();
    let work = BackwardPass::new(&rt, heads, gradients)?;
    let mut orders = vec![];
    for (position, variable) in variables.iter().enumerate() {
        let goal = work.linear.find(variable).ok_or(AutogradError::Unreached { position })?;
        orders.push(Order { goal, ty: variable.ty(), add_to: None });
    }
    let program = work.program(&orders)?;
    let make = |variable: &&NDArray| -> Result<NDArray, Error> {
        Ok(NDArray::new(rt.clone(), rt.programs().fresh(variable.device(), &variable.ty())?))
    };
    let mut results = variables.iter().map(make).collect::<Result<Vec<_>, _>>()?;
    let targets: Vec<ArrayView> = results.iter().map(|result| result.view().clone()).collect();
    work.run(&program, &targets)?;
    match create_graph {
        true => work.record(&program, &mut results),
        false => work.linear.steps.iter().for_each(|step| step.call.free()),
    }
    Ok(results)
}

struct BackwardPass {
    rt: Runtime,
    device: Device,
    linear: Linear,
    heads: Vec<Head>,
}

impl BackwardPass {
    fn new(rt: &Runtime, heads: &[&NDArray], gradients: &[Option<&NDArray>]) -> Result<BackwardPass, Error> {
        if !gradients.is_empty() && gradients.len() != heads.len() {
            return Err(AutogradError::Heads { heads: heads.len(), given: gradients.len() }.into());
        }
        rt.check("backward", heads.iter().chain(gradients.iter().flatten()).copied())?;
        let mut linear = Linear::new(heads)?;
        let mut seeds = vec![];
        for (position, head) in heads.iter().enumerate() {
            let goal = linear.head(head)?.ok_or(AutogradError::NotRecorded { position })?;
            let gradient = gradients.get(position).copied().flatten();
            if let Some(gradient) = gradient.filter(|gradient| gradient.ty() != head.ty()) {
                let (expected, found) = (head.ty().to_string(), gradient.ty().to_string());
                return Err(AutogradError::Head { position, expected, found }.into());
            }
            let gradient = gradient.map(|g| linear.array(g.view().clone(), g.entry().cloned(), None));
            seeds.push(Head { goal, ty: head.ty(), gradient });
        }
        let device = heads.first().map_or(rt.options().device, |head| head.device());
        Ok(BackwardPass { rt: rt.clone(), device, linear, heads: seeds })
    }

    /// The gradients of this structure, compiled at the first use.
    fn program(&self, orders: &[Order]) -> Result<Arc<ArrayProgram>, Error> {
        let mut key = ProgramKey::of("backward");
        key.device(self.rt.space(), self.device);
        self.linear.describe(&mut key);
        let position = |at: Option<usize>| at.map_or(0, |i| i as u64 + 1);
        key.number(self.heads.len() as u64);
        for head in &self.heads {
            describe_goal(&mut key, Some(head.goal));
            key.ty(head.ty.dtype, &head.ty.dims);
            key.number(position(head.gradient));
        }
        key.number(orders.len() as u64);
        for order in orders {
            describe_goal(&mut key, Some(order.goal));
            key.ty(order.ty.dtype, &order.ty.dims);
            key.number(position(order.add_to));
        }
        self.rt.programs().get_or_make(&key, || self.derive(orders))
    }

    /// The gradients as a graph of what they read.
    fn derive(&self, orders: &[Order]) -> Result<ArrayProgram, Error> {
        let registry = self.rt.compiler().registry();
        let mut tape = TapeGraph::new(&self.linear)?;
        let mut heads = vec![];
        for Head { goal, ty, gradient } in &self.heads {
            let seed = match gradient {
                Some(i) => tape.inputs[*i],
                None => tape.build(registry, |b| b.filled(ty, 1.0))?,
            };
            heads.push((tape.value(*goal), Some(seed)));
        }
        let wanted: Vec<Value> = orders.iter().map(|order| tape.value(order.goal)).collect();
        let gradients = differentiate(&mut tape.graph, registry, &heads, &wanted)?;
        let mut roots = vec![];
        for (Order { ty, add_to, .. }, gradient) in orders.iter().zip(gradients) {
            let old = add_to.map(|at| tape.inputs[at]);
            roots.push(match (gradient, old) {
                (Some(gradient), Some(old)) => tape.build(registry, |b| b.call("add", &[old, gradient]))?,
                (Some(gradient), None) => gradient,
                (None, Some(old)) => old,
                (None, None) => tape.build(registry, |b| b.filled(ty, 0.0))?,
            });
        }
        let (graph, reads) = tape.finish(roots);
        let mut program = ArrayProgram::new(self.device, OpName::from_static("backward"), graph);
        program.reads = reads;
        Ok(program)
    }

    fn reads<'a>(&'a self, program: &'a ArrayProgram) -> impl Iterator<Item = &'a Input> {
        program.reads.iter().map(|i| &self.linear.inputs[*i])
    }

    /// Pushes the operation that computes gradients to arrays.
    fn run(&self, program: &ArrayProgram, targets: &[ArrayView]) -> Result<(), Error> {
        for Input { source, seen, .. } in self.reads(program) {
            let Some(view) = source.view() else { continue };
            if view.device() != self.device {
                let (first, second) = (self.device, view.device());
                return Err(Error::Devices { op: "backward".into(), first, second });
            }
            if let Some((version, call)) = seen
                && view.chunk().version() != *version
            {
                return Err(AutogradError::Overwritten { op: call.program.name.to_string() }.into());
            }
        }
        if targets.is_empty() {
            return Ok(());
        }
        let inputs = self.reads(program).map(|input| input.source.clone()).collect();
        self.rt.run(program, self.device, inputs, targets.iter())?;
        targets.iter().for_each(|target| target.chunk().touch());
        Ok(())
    }

    /// Records the gradients as results of a call of what computes them.
    fn record(&self, program: &Arc<ArrayProgram>, results: &mut [NDArray]) {
        let operand = |input: &Input| match &input.source {
            ArrayOperand::View(view) => {
                let (view, entry) = (view.clone(), input.entry.clone());
                RecordedOperand::Array { version: view.chunk().version(), view, entry }
            }
            constant => RecordedOperand::Constant(constant.clone()),
        };
        attach(program, self.reads(program).map(operand).collect(), results);
    }
}

/// The recorded calls as one graph.
///
/// An operand through which a gradient flows is a node of its own, the *link*: its value is what was kept, its gradient
/// that of the result that was kept. So every call is differentiated where it stands, from values that are there, and what is
/// computed again is what nobody kept.
struct TapeGraph<'a> {
    linear: &'a Linear,
    graph: Graph,
    /// By input of the structure.
    inputs: Vec<Value>,
    /// In place of variables, so that their detached memory is constant.
    variables: Vec<Value>,
    results: Vec<Vec<Value>>,
    links: Vec<Value>,
}

impl<'a> TapeGraph<'a> {
    fn new(linear: &'a Linear) -> Result<TapeGraph<'a>, Error> {
        let mut graph = Graph::new("backward");
        let mut add = |name: &str, i, ty: DenseType| graph.add_input(format!("{name}{i}"), ty.into());
        let of = |source: &ArrayOperand| DenseType::new(source.dtype(), source.dims());
        let inputs = linear.inputs.iter().enumerate().map(|(i, input)| add("in", i, of(&input.source))).collect();
        let variables = linear.variables.iter().enumerate().map(|(i, v)| add("variable", i, v.ty())).collect();
        let mut tape = TapeGraph { linear, graph, inputs, variables, results: vec![], links: vec![] };
        let (link, mut order) = (link(), vec![]);
        for TapeCall { call, operands, .. } in &linear.steps {
            let operands = operands.iter().map(|operand| Ok(Some(tape.operand(&link, *operand)?)));
            let operands = operands.collect::<Result<Vec<_>, Error>>()?;
            let of = &call.program.graph;
            let roots: Vec<Value> = of.outputs().iter().map(|(_, v)| *v).collect();
            let results = inline(&mut tape.graph, of, &roots, &operands)?;
            // Gradients arrive in the opposite order: call by call, and operand by operand of each.
            order.extend(operands.iter().rev().flatten().chain(&results).map(|v| ("".into(), *v)));
            tape.results.push(results);
        }
        tape.graph.set_outputs(order);
        Ok(tape)
    }

    fn value(&self, goal: Goal) -> Value {
        match goal {
            Goal::Variable(i) => self.variables[i],
            Goal::Step(i, port) => self.results[i][port],
        }
    }

    fn operand(&mut self, link: &OpRef, (place, goal): (ValueSource, Option<Goal>)) -> Result<Value, Error> {
        let kept = match place {
            ValueSource::Source(i) => self.inputs[i],
            ValueSource::Step(i, port) => self.results[i][port],
        };
        let Some(goal) = goal else { return Ok(kept) };
        let ty = self.graph.dense(kept)?;
        let node = self.graph.add_op("link", link, &[Some(kept), Some(self.value(goal))], Params::new(), 1)?;
        self.graph.node_mut(node).types = [ty.into()].into_iter().collect();
        self.links.push(Value { node, port: 0 });
        Ok(Value { node, port: 0 })
    }

    fn build<T>(
        &mut self,
        registry: &Registry,
        body: impl FnOnce(&mut Builder<'_>) -> tensorc_ir::diag::Result<T>,
    ) -> Result<T, Error> {
        let unknown = |_: &Graph, _: Value| None;
        Ok(body(&mut Builder::new(&mut self.graph, registry, "backward".into(), &unknown))?)
    }

    /// The graph of the gradients, and the positions of the inputs that it reads.
    fn finish(mut self, roots: Vec<Value>) -> (Graph, Vec<usize>) {
        let names = (0..).map(|i| format!("gradient{i}").into());
        self.graph.set_outputs(names.zip(roots));
        for link in self.links {
            let kept = self.graph.args(link.node)[0];
            self.graph.replace_uses(link, kept);
        }
        for (TapeCall { call, results, .. }, made) in self.linear.steps.iter().zip(&self.results) {
            for ((kept, (_, v)), made) in results.iter().zip(call.program.graph.outputs()).zip(made) {
                if call.program.keeps(*v) {
                    self.graph.replace_uses(*made, self.inputs[*kept]);
                }
            }
        }
        self.graph.remove_dead();
        self.variables.iter().for_each(|v| self.graph.remove_input(v.node));
        let mut reads = vec![];
        for (i, Value { node, .. }) in self.inputs.iter().enumerate() {
            match self.graph.is_root(*node) || !self.graph.uses(*node).is_empty() {
                true => reads.push(i),
                false => self.graph.remove_input(*node),
            }
        }
        (self.graph, reads)
    }
}

/// The operator of links. It is in graphs of the tape only while they are differentiated.
fn link() -> OpRef {
    let compute = Compute::Composite(Box::new(|_, _, args| Ok(args.iter().take(1).flatten().copied().collect())));
    let operand = |name| InputSpec { name, ty: TypeRule::Any, optional: false };
    let mut def = OpDef::new("link", "The first operand, with the gradient of the second.", compute, Infer::Derived);
    def.inputs = vec![operand("kept"), operand("made")];
    def.grad = Grad::Rule(Box::new(|_, cx| Ok(vec![None, cx.heads[0]])));
    Arc::new(def)
}
