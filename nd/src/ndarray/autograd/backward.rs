//! Gradients of what was recorded: one graph, one program, one operation.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::{Compute, Grad, Infer, InputSpec, OpDef, OpRef, Registry, TypeRule};
use tensorc_ir::params::Params;
use tensorc_passes::differentiate::differentiate;
use tensorc_passes::parts::PartShape;
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayOperand, ArrayView};
use tensorc_runtime::engine::OpName;

use super::linear::{Goal, Input, Linear, TapeCall, ValueSource, describe_goal};
use crate::error::{AutogradError, Error};
use crate::grad_req::GradReq;
use crate::ndarray::array::NDArray;
use crate::ndarray::inline::inline;
use crate::ndarray::program::{ArrayProgram, KeyKind};
use crate::ndarray::recording::attach;
use crate::ndarray::runtime::Runtime;
use crate::ndarray::tape::RecordedOperand;
use tensorc::{ProgramFamily, ProgramKey};

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
        self.rt.programs().get_or_make(&self.key(orders, KeyKind::Program), || self.derive(orders))
    }

    fn key(&self, orders: &[Order], kind: KeyKind) -> ProgramKey {
        let mut key = ProgramKey::of("backward");
        key.device(self.rt.space(), self.device);
        self.linear.describe(&mut key, kind);
        let position = |at: Option<usize>| at.map_or(0, |i| i as u64 + 1);
        key.number(self.heads.len() as u64);
        for head in &self.heads {
            describe_goal(&mut key, Some(head.goal));
            kind.ty(&mut key, head.ty.dtype, &head.ty.dims);
            key.number(position(head.gradient));
        }
        key.number(orders.len() as u64);
        for order in orders {
            describe_goal(&mut key, Some(order.goal));
            kind.ty(&mut key, order.ty.dtype, &order.ty.dims);
            key.number(position(order.add_to));
        }
        key
    }

    /// The gradients as a graph of what they read.
    fn derive(&self, orders: &[Order]) -> Result<ArrayProgram, Error> {
        let mut tape = TapeGraph::new(&self.linear)?;
        for Head { goal, gradient, .. } in &self.heads {
            gradient.iter().for_each(|i| tape.know(*i, *goal));
        }
        for Order { goal, add_to, .. } in orders {
            add_to.iter().for_each(|i| tape.know(*i, *goal));
        }
        let heads = self.heads.iter().map(|head| (tape.value(head.goal), head.gradient)).collect();
        let wanted = orders.iter().map(|order| (tape.value(order.goal), order.add_to)).collect();
        let (mut graph, roles) = tape.finish();
        let adjoint = TapeAdjoint { heads, wanted, roles };
        let untyped = graph.clone();
        let compiler = self.rt.compiler().clone();
        let reads = adjoint.replace(&mut graph, compiler.registry())?;
        let mut program = ArrayProgram::new(self.device, OpName::from_static("backward"), graph);
        program.reads = reads;
        let types = untyped.inputs().iter().map(|node| untyped.dense(Value { node: *node, port: 0 }));
        let types = types.collect::<Result<_, _>>()?;
        program.member = self.rt.programs().member(&self.key(orders, KeyKind::Family), types, || {
            let all_members = self.linear.steps.iter().all(|step| step.call.program.member.is_some());
            let family = all_members.then(|| ProgramFamily::of(&untyped)).flatten()?;
            let derive = move |graph: &mut Graph, _: &PartShape| adjoint.replace(graph, compiler.registry()).map(drop);
            Some(family.deriving(Arc::new(derive)))
        });
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
///
/// Kept results, gradients of heads and old gradients are not inputs of this graph: [`TapeAdjoint`] adds them, with the types that
/// inference gives the values that they belong to.
struct TapeGraph<'a> {
    linear: &'a Linear,
    graph: Graph,
    /// By input of the structure.
    inputs: Vec<TapeInput>,
    /// In place of variables, so that their detached memory is constant.
    variables: Vec<Value>,
    results: Vec<Vec<Value>>,
    links: Vec<(Value, Option<usize>)>,
}

/// What an input of the structure is in the graph.
#[derive(Clone, Copy)]
enum TapeInput {
    Unknown,
    /// An input.
    Own(Value),
    /// Of the type of this value.
    Like(Value),
}

impl<'a> TapeGraph<'a> {
    fn new(linear: &'a Linear) -> Result<TapeGraph<'a>, Error> {
        let mut graph = Graph::new("backward");
        let variables = linear.variables.iter().enumerate();
        let variables = variables.map(|(i, v)| graph.add_input(format!("variable{i}"), v.ty().into())).collect();
        let inputs = vec![TapeInput::Unknown; linear.inputs.len()];
        let mut tape = TapeGraph { linear, graph, inputs, variables, results: vec![], links: vec![] };
        let (link, mut order) = (link(), vec![]);
        for (at, TapeCall { call, operands, results: kept }) in linear.steps.iter().enumerate() {
            let operands = operands.iter().map(|operand| Ok(Some(tape.operand(&link, *operand)?)));
            let operands = operands.collect::<Result<Vec<_>, Error>>()?;
            let of = &call.program.graph;
            let roots: Vec<Value> = of.outputs().iter().map(|(_, v)| *v).collect();
            let results = inline(&mut tape.graph, of, &roots, &operands)?;
            // Gradients arrive in the opposite order: call by call, and operand by operand of each.
            order.extend(operands.iter().rev().flatten().chain(&results).map(|v| ("".into(), *v)));
            tape.results.push(results);
            kept.iter().enumerate().for_each(|(port, i)| tape.know(*i, Goal::Step(at, port)));
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

    /// Notes that an input has the type of a value, unless something is known of it.
    fn know(&mut self, input: usize, goal: Goal) {
        if let TapeInput::Unknown = self.inputs[input] {
            self.inputs[input] = TapeInput::Like(self.value(goal));
        }
    }

    /// An input in the graph.
    fn own(&mut self, input: usize) -> Value {
        if let TapeInput::Own(value) = self.inputs[input] {
            return value;
        }
        let source = &self.linear.inputs[input].source;
        let ty = DenseType::new(source.dtype(), source.dims());
        let value = self.graph.add_input(format!("in{input}"), ty.into());
        self.inputs[input] = TapeInput::Own(value);
        value
    }

    fn operand(&mut self, link: &OpRef, (place, goal): (ValueSource, Option<Goal>)) -> Result<Value, Error> {
        if let (ValueSource::Source(i), Some(goal @ Goal::Step(..))) = (place, goal) {
            self.know(i, goal);
        }
        let (kept, input) = match place {
            ValueSource::Source(i) => match (self.inputs[i], goal) {
                (TapeInput::Like(value), Some(_)) => (value, Some(i)),
                _ => (self.own(i), None),
            },
            ValueSource::Step(i, port) => (self.results[i][port], None),
        };
        let Some(goal) = goal else { return Ok(kept) };
        let ty = self.graph.dense(kept)?;
        let node = self.graph.add_op("link", link, &[Some(kept), Some(self.value(goal))], Params::new(), 1)?;
        self.graph.node_mut(node).types = [ty.into()].into_iter().collect();
        self.links.push((Value { node, port: 0 }, input));
        Ok(Value { node, port: 0 })
    }

    fn finish(mut self) -> (Graph, TapeRoles) {
        for i in 0..self.inputs.len() {
            if let TapeInput::Unknown = self.inputs[i] {
                self.own(i);
            }
        }
        let mut kept = vec![];
        for (TapeCall { call, results, .. }, made) in self.linear.steps.iter().zip(&self.results) {
            let all = results.iter().zip(call.program.graph.outputs()).zip(made);
            kept.extend(all.filter(|((_, (_, v)), _)| call.program.keeps(*v)).map(|((i, _), made)| (*made, *i)));
        }
        let TapeGraph { graph, inputs, variables, links, .. } = self;
        (graph, TapeRoles { inputs, variables, links, kept })
    }
}

/// What values of a tape's graph are.
struct TapeRoles {
    inputs: Vec<TapeInput>,
    variables: Vec<Value>,
    /// Links, with the input that each is if that is none of the graph.
    links: Vec<(Value, Option<usize>)>,
    /// Results that are inputs as well, because they were kept.
    kept: Vec<(Value, usize)>,
}

/// The gradients that are asked for, as values of a tape's graph.
struct TapeAdjoint {
    /// What is differentiated, and the input that is the gradient of it: ones if there is none.
    heads: Vec<(Value, Option<usize>)>,
    /// Whose gradients are results, and the input that each is added to.
    wanted: Vec<(Value, Option<usize>)>,
    roles: TapeRoles,
}

impl TapeAdjoint {
    /// Puts the gradients in place of what a tape's graph computes. Its inputs are what they read, and nothing else: inputs of the
    /// structure, whose positions are returned.
    fn replace(&self, graph: &mut Graph, registry: &Registry) -> Result<Vec<usize>, Diagnostic> {
        let mut inputs = vec![];
        for (i, input) in self.roles.inputs.iter().enumerate() {
            inputs.push(match *input {
                TapeInput::Own(value) => value,
                TapeInput::Like(value) => graph.add_input(format!("in{i}"), graph.dense(value)?.into()),
                TapeInput::Unknown => return Err(Diagnostic::new(DiagnosticCode::Internal, "an input has no type")),
            });
        }
        let mut heads = vec![];
        for (head, gradient) in &self.heads {
            let seed = match gradient {
                Some(i) => inputs[*i],
                None => filled(graph, registry, *head, 1.0)?,
            };
            heads.push((*head, Some(seed)));
        }
        let wanted: Vec<Value> = self.wanted.iter().map(|(v, _)| *v).collect();
        let gradients = differentiate(graph, registry, &heads, &wanted)?;
        let mut roots = vec![];
        for ((of, add_to), gradient) in self.wanted.iter().zip(gradients) {
            roots.push(match (gradient, add_to.map(|i| inputs[i])) {
                (Some(gradient), Some(old)) => build(graph, registry, |b| b.call("add", &[old, gradient]))?,
                (Some(gradient), None) => gradient,
                (None, Some(old)) => old,
                (None, None) => filled(graph, registry, *of, 0.0)?,
            });
        }
        let names = (0..).map(|i| format!("gradient{i}").into());
        graph.set_outputs(names.zip(roots));
        for (link, input) in &self.roles.links {
            let kept = input.map_or_else(|| graph.args(link.node)[0], |i| inputs[i]);
            graph.replace_uses(*link, kept);
        }
        self.roles.kept.iter().for_each(|(made, i)| graph.replace_uses(*made, inputs[*i]));
        graph.remove_dead();
        self.roles.variables.iter().for_each(|v| graph.remove_input(v.node));
        for Value { node, .. } in &inputs {
            if !graph.is_root(*node) && graph.uses(*node).is_empty() {
                graph.remove_input(*node);
            }
        }
        let position = |node: &NodeId| inputs.iter().position(|input| input.node == *node);
        Ok(graph.inputs().iter().filter_map(position).collect())
    }
}

fn build<T>(
    graph: &mut Graph,
    registry: &Registry,
    body: impl FnOnce(&mut Builder<'_>) -> Result<T, Diagnostic>,
) -> Result<T, Diagnostic> {
    let unknown = |_: &Graph, _: Value| None;
    body(&mut Builder::new(graph, registry, "backward".into(), &unknown))
}

/// A number throughout, in the type of a value.
fn filled(graph: &mut Graph, registry: &Registry, like: Value, x: f64) -> Result<Value, Diagnostic> {
    let ty = graph.dense(like)?;
    build(graph, registry, |b| b.filled(&ty, x))
}

/// The operator of links. It is in graphs of the tape only while they are differentiated.
fn link() -> OpRef {
    let compute = Compute::Composite(Box::new(|_, _, args| Ok(args.iter().take(1).flatten().copied().collect())));
    let operand = |name| InputSpec { name, ty: TypeRule::Any, optional: false };
    let infer = Infer::Rule(Box::new(|cx| {
        cx.same_dtype(0, 0)?;
        cx.copy_shape(0, 0)
    }));
    let mut def = OpDef::new("link", "The first operand, with the gradient of the second.", compute, infer);
    def.inputs = vec![operand("kept"), operand("made")];
    def.grad = Grad::Rule(Box::new(|_, cx| Ok(vec![None, cx.heads[0]])));
    Arc::new(def)
}
