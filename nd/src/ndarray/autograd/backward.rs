//! Gradients of what was recorded: one graph, one program, one operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::graph::{Graph, Value};
use tensorc_runtime::Device;
use tensorc_runtime::array::ArrayOperand;
use tensorc_runtime::engine::OpName;

use super::formula::inline;
use super::linear::{Goal, Input, Linear, ValueSource, describe_goal};
use super::tape::{RecordedOperand, attach};
use super::{AutogradError, GradReq};
use crate::Error;
use crate::ndarray::front::fresh;
use crate::ndarray::program::ArrayProgram;
use crate::ndarray::{NDArray, Runtime};
use tensorc::{Compiler, ProgramKey};

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
            (variable.request == GradReq::Add).then(|| work.linear.array(variable.gradient.view().clone(), None, None));
        orders.push(Order { goal: Goal::Variable(i), ty: variable.gradient.ty(), add_to });
    }
    let targets: Vec<NDArray> = variables.iter().map(|variable| variable.gradient.clone()).collect();
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
        Ok(NDArray::new(rt.clone(), fresh(&rt, variable.device(), &variable.ty())?))
    };
    let mut results = variables.iter().map(make).collect::<Result<Vec<_>, _>>()?;
    work.run(&program, &results)?;
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
        self.rt.programs().get_or_make(&key, || Ok(Arc::new(self.derive(orders)?)))
    }

    /// The gradients as a graph of what they read.
    fn derive(&self, orders: &[Order]) -> Result<ArrayProgram, Error> {
        let compiler = self.rt.compiler();
        let mut sweep = Sweep::new(compiler, &self.linear)?;
        for head in &self.heads {
            let seed = match head.gradient {
                Some(i) => sweep.inputs[i],
                None => sweep.build(|b| b.filled(&head.ty, 1.0))?,
            };
            sweep.adjoints.entry(head.goal).or_default().push(seed);
        }
        for step in (0..self.linear.steps.len()).rev() {
            sweep.step(step)?;
        }
        let mut roots = vec![];
        for Order { goal, ty, add_to } in orders {
            let old = add_to.map(|at| sweep.inputs[at]);
            roots.push(match (sweep.total(*goal)?, old) {
                (Some(total), Some(old)) => sweep.build(|b| b.call("add", &[old, total]))?,
                (Some(total), None) => total,
                (None, Some(old)) => old,
                (None, None) => sweep.build(|b| b.filled(ty, 0.0))?,
            });
        }
        let (graph, reads) = sweep.finish(&roots);
        let mut program = ArrayProgram::new(self.device, OpName::from_static("backward"), graph);
        program.reads = reads;
        Ok(program)
    }

    fn reads<'a>(&'a self, program: &'a ArrayProgram) -> impl Iterator<Item = &'a Input> {
        program.reads.iter().map(|i| &self.linear.inputs[*i])
    }

    /// Pushes the operation that computes gradients to arrays.
    fn run(&self, program: &ArrayProgram, targets: &[NDArray]) -> Result<(), Error> {
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
        program.run(&self.rt, self.device, inputs, targets.iter().map(NDArray::view))?;
        targets.iter().for_each(|target| target.view().chunk().touch());
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

/// The graph of gradients while it grows, from the last call to the first.
struct Sweep<'a> {
    compiler: &'a Compiler,
    linear: &'a Linear,
    graph: Graph,
    /// By input of the structure.
    inputs: Vec<Value>,
    /// Results of element-wise calls that others read, computed again.
    values: BTreeMap<usize, Vec<Value>>,
    /// What each has received so far, in order of arrival.
    adjoints: BTreeMap<Goal, Vec<Value>>,
}

impl<'a> Sweep<'a> {
    fn new(compiler: &'a Compiler, linear: &'a Linear) -> Result<Sweep<'a>, Error> {
        let mut graph = Graph::new("backward");
        let add = |(i, input): (usize, &Input)| {
            let ty = DenseType::new(input.source.dtype(), input.source.dims());
            graph.add_input(format!("in{i}"), ty.into())
        };
        let inputs = linear.inputs.iter().enumerate().map(add).collect();
        let (values, adjoints) = (BTreeMap::new(), BTreeMap::new());
        let mut sweep = Sweep { compiler, linear, graph, inputs, values, adjoints };
        let reads = linear.steps.iter().flat_map(|step| &step.operands);
        let mut again: Vec<usize> =
            reads.filter_map(|(place, _)| if let ValueSource::Step(i, _) = place { Some(*i) } else { None }).collect();
        again.sort_unstable();
        again.dedup();
        for step in again {
            let program = &linear.steps[step].call.program;
            let operands = sweep.operands(step)?;
            let roots: Vec<Value> = program.graph.outputs().iter().map(|(_, v)| *v).collect();
            let results = inline(&mut sweep.graph, &program.graph, &roots, &operands)?;
            sweep.values.insert(step, results);
        }
        Ok(sweep)
    }

    fn operands(&self, step: usize) -> Result<Vec<Option<Value>>, Error> {
        let missing = || Error::Internal("a recorded value is used before it is made".into());
        let find = |(place, _): &(ValueSource, Option<Goal>)| match *place {
            ValueSource::Source(i) => Ok(Some(self.inputs[i])),
            ValueSource::Step(i, port) => {
                self.values.get(&i).and_then(|v| v.get(port)).copied().map(Some).ok_or_else(missing)
            }
        };
        self.linear.steps[step].operands.iter().map(find).collect()
    }

    fn build<T>(&mut self, body: impl FnOnce(&mut Builder<'_>) -> tensorc_ir::diag::Result<T>) -> Result<T, Error> {
        let unknown = |_: &Graph, _: Value| None;
        Ok(body(&mut Builder::new(&mut self.graph, self.compiler.registry(), "backward".into(), &unknown))?)
    }

    /// The sum of what a goal has received.
    fn total(&mut self, goal: Goal) -> Result<Option<Value>, Error> {
        let Some(parts) = self.adjoints.get(&goal).cloned() else { return Ok(None) };
        let mut rest = parts.into_iter();
        let Some(mut sum) = rest.next() else { return Ok(None) };
        for part in rest {
            sum = self.build(|b| b.call("add", &[sum, part]))?;
        }
        self.adjoints.insert(goal, vec![sum]);
        Ok(Some(sum))
    }

    /// Sends the gradients of a call's results on to its operands.
    fn step(&mut self, at: usize) -> Result<(), Error> {
        let step = &self.linear.steps[at];
        let program = &step.call.program;
        let wanted: Vec<bool> = step.operands.iter().map(|(_, goal)| goal.is_some()).collect();
        let types = &program.outputs;
        let heads = (0..types.len()).map(|port| self.total(Goal::Step(at, port))).collect::<Result<Vec<_>, _>>()?;
        if heads.iter().all(Option::is_none) || !wanted.contains(&true) {
            return Ok(());
        }
        let gradient = program.gradient(self.compiler.registry(), &wanted)?;
        let mut inputs = self.operands(at)?;
        inputs.extend((0..types.len()).map(|port| step.results.get(port).map(|i| self.inputs[*i])));
        for (port, head) in heads.into_iter().enumerate() {
            let node = gradient.graph.inputs()[inputs.len()];
            let used = gradient.graph.is_root(node) || !gradient.graph.uses(node).is_empty();
            inputs.push(match head {
                None if used => Some(self.build(|b| b.filled(&types[port], 0.0))?),
                head => head,
            });
        }
        let roots: Vec<Value> = gradient.graph.outputs().iter().map(|(_, v)| *v).collect();
        let parts = inline(&mut self.graph, &gradient.graph, &roots, &inputs)?;
        for (of, part) in gradient.of.iter().zip(parts) {
            if let (_, Some(goal)) = step.operands[*of] {
                self.adjoints.entry(goal).or_default().push(part);
            }
        }
        Ok(())
    }

    /// The graph of the outputs, and the positions of the inputs that it reads.
    fn finish(mut self, roots: &[Value]) -> (Graph, Vec<usize>) {
        self.graph.set_outputs(roots.iter().enumerate().map(|(i, v)| (format!("gradient{i}").into(), *v)));
        self.graph.remove_dead();
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
