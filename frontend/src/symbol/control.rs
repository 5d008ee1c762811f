//! Control flow: nodes that run graphs of their own. Each becomes an operator that expands to a branch or loop
//! ([`tensorc_ir::flow`]), or, if it is short, to copies of its graph.
//!
//! Trip counts are static: the extent of the data for `_foreach`, `max_iterations` for `_while_loop`, of which the iterations
//! after its condition failed are computed and not selected.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::Extent;
use tensorc_ir::build::{BodyBuilder, Builder, IterationInputs, LoopOperands, LoopResults};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::flow::{Flow, FlowKind};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::infer::{InferCtx, infer_node};
use tensorc_ir::op::{Compute, NodeCtx, OpDef, OpError, ResultCount};
use tensorc_ir::params::{ParamKind, Params};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, Dim, Shape, TensorType};
use tensorc_ops::def::{Define, define, rule};

use super::Symbol;
use super::error::SymbolError;
use super::lower::Lowering;
use super::operator::operators;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ControlKind {
    Foreach,
    While,
    Cond,
}

/// A graph of a node, as it is in inference and in training.
struct BranchGraphs {
    inference: Graph,
    training: Graph,
}

/// The entry for one node with graphs of its own; `None` if the operator is none of those that have them.
pub(super) fn definition(op: &str, node: &str, graphs: &[Symbol]) -> Result<Option<OpDef>, SymbolError> {
    let (kind, name, count) = match op {
        "_foreach" => (ControlKind::Foreach, "_foreach", 1),
        "_while_loop" => (ControlKind::While, "_while_loop", 2),
        "_cond" => (ControlKind::Cond, "_cond", 3),
        _ => return Ok(None),
    };
    let wrong = |problem: &str| SymbolError::Structure { place: format!("node `{node}`"), problem: problem.to_owned() };
    if graphs.len() != count {
        return Err(wrong(&format!("{op} runs {count} graphs, {} are given", graphs.len())));
    }
    let mut bodies = vec![];
    for graph in graphs {
        let lowered = |training| graph.to_graph(operators()?, &Lowering { training, ..Lowering::default() });
        let (inference, training) = (lowered(false)?, lowered(true)?);
        if !training.aux.is_empty() || training.random_nodes > 0 {
            return Err(wrong("auxiliary states and random numbers inside of control flow are not supported"));
        }
        bodies.push(BranchGraphs { inference: inference.graph, training: training.graph });
    }
    let flow = Arc::new(ControlNode { kind, bodies });
    let of_inference = flow.clone();
    let compute = Compute::Composite(Box::new(move |b, cx, args| flow.expand(b, cx, args)));
    let infer = rule(move |cx| of_inference.infer(cx));
    let locations = match kind {
        ControlKind::Foreach => &["in_data_locs", "in_state_locs", "remain_locs"],
        ControlKind::While => &["cond_input_locs", "func_input_locs", "func_var_locs"],
        ControlKind::Cond => &["cond_input_locs", "then_input_locs", "else_input_locs"],
    };
    let counts: &[&str] = match kind {
        ControlKind::Foreach => &["num_outputs", "num_out_data"],
        ControlKind::While => &["num_outputs", "num_out_data", "max_iterations"],
        ControlKind::Cond => &["num_outputs"],
    };
    let def = define(name, "Control flow over graphs of the node.", compute, infer).operand("data", &[]).variadic();
    let def = locations.iter().fold(def, |def, name| def.required(name, ParamKind::Ints, ""));
    let def = counts.iter().fold(def, |def, name| def.required(name, ParamKind::Int, ""));
    let def = def.param(OpDef::TRAINING, false, "").outputs(0, usize::from(u16::MAX)).results(|params| {
        let n = params.int("num_outputs").unwrap_or(0).clamp(0, i64::from(u16::MAX)) as usize;
        ResultCount { visible: n, listed: n }
    });
    Ok(Some(def))
}

/// A parameter that lists positions below `count`.
fn places(params: &Params, name: &str, count: usize) -> Result<Vec<usize>, OpError> {
    let list = params.ints(name).ok_or_else(|| OpError(format!("parameter `{name}` is no list of positions")))?;
    let place = |i: &i64| usize::try_from(*i).ok().filter(|i| *i < count);
    let found: Option<Vec<usize>> = list.iter().map(place).collect();
    found.ok_or_else(|| OpError(format!("parameter `{name}` is {list:?}, expected positions below {count}")))
}

fn number(params: &Params, name: &str) -> Result<usize, OpError> {
    let found = params.int(name).and_then(|n| usize::try_from(n).ok());
    found.ok_or_else(|| OpError(format!("parameter `{name}` is not a number that counts")))
}

struct ControlNode {
    kind: ControlKind,
    bodies: Vec<BranchGraphs>,
}

impl ControlNode {
    fn graph(&self, at: usize, params: &Params) -> &Graph {
        match params.bool(OpDef::TRAINING) {
            Some(true) => &self.bodies[at].training,
            _ => &self.bodies[at].inference,
        }
    }

    /// By operand of a graph, the operand of the node it is.
    fn sources(&self, at: usize, params: &Params, count: usize) -> Result<Vec<usize>, OpError> {
        let needed = self.bodies[at].inference.inputs().len();
        let found = match (self.kind, at) {
            (ControlKind::Foreach, _) => {
                let lists = ["in_data_locs", "in_state_locs", "remain_locs"].map(|name| places(params, name, needed));
                let mut sources = vec![None; needed];
                let mut next = 0;
                for list in lists {
                    for place in list? {
                        sources[place] = Some(next);
                        next += 1;
                    }
                }
                if next != count {
                    return Err(OpError(format!("{count} operands are given, its graph takes {next}")));
                }
                sources.into_iter().flatten().collect()
            }
            (ControlKind::While, 0) | (ControlKind::Cond, 0) => places(params, "cond_input_locs", count)?,
            (ControlKind::While, _) => places(params, "func_input_locs", count)?,
            (ControlKind::Cond, 1) => places(params, "then_input_locs", count)?,
            (ControlKind::Cond, _) => places(params, "else_input_locs", count)?,
        };
        match found.len() == needed {
            true => Ok(found),
            false => Err(OpError(format!("graph {at} takes {needed} operands, {} are named", found.len()))),
        }
    }

    /// Operands that are iterated over.
    fn data(&self, params: &Params) -> usize {
        match self.kind {
            ControlKind::Foreach => params.ints("in_data_locs").map_or(0, <[i64]>::len),
            _ => 0,
        }
    }

    /// Results that are collected from all iterations; a condition has none.
    fn stacked(&self, params: &Params) -> Result<usize, OpError> {
        if self.kind == ControlKind::Cond { Ok(0) } else { number(params, "num_out_data") }
    }

    /// By loop variable, the operand of the node that is its first value.
    fn variables(&self, params: &Params, count: usize) -> Result<Vec<usize>, OpError> {
        match self.kind {
            ControlKind::Foreach => {
                let data = self.data(params);
                Ok((data..data + params.ints("in_state_locs").map_or(0, <[i64]>::len)).collect())
            }
            ControlKind::While => {
                let sources = self.sources(1, params, count)?;
                Ok(places(params, "func_var_locs", sources.len())?.into_iter().map(|i| sources[i]).collect())
            }
            ControlKind::Cond => Ok(vec![]),
        }
    }

    fn infer(&self, cx: &mut InferCtx<'_>) -> Result<(), OpError> {
        let (params, count) = (cx.params, cx.input_count());
        let data = self.data(params);
        let mut steps = match self.kind {
            ControlKind::While => Some(Dim::Const(number(params, "max_iterations")? as u64)),
            _ => None,
        };
        for i in 0..data {
            if let Some(dims) = cx.open_dims(i) {
                let Some(first) = dims.first().copied() else {
                    return Err(OpError(format!("{} has no axis to iterate over", cx.input_name(i))));
                };
                match steps {
                    Some(steps) => cx.unify_dims(steps, first, "the number of iterations")?,
                    None => steps = Some(first),
                }
            }
        }
        for at in 0..self.bodies.len() {
            let sources = self.sources(at, params, count)?;
            let given = sources.iter().map(|&i| {
                match (i < data, TensorType { dtype: cx.input_dtype(i), shape: cx.input_shape(i) }) {
                    (true, TensorType { dtype, shape: Shape::Ranked(dims) }) => {
                        TensorType { dtype, shape: Shape::Ranked(dims[1..].iter().copied().collect()) }
                    }
                    (_, ty) => ty,
                }
            });
            let given: Vec<TensorType> = given.collect();
            let (inputs, outputs) = inferred(self.graph(at, params), &given)?;
            for (&i, ty) in sources.iter().zip(inputs) {
                if let Some(dtype) = ty.dtype {
                    cx.set_input_dtype(i, dtype)?;
                }
                if let (Some(dims), Some(lead)) = (constants(&ty), if i < data { steps.map(Some) } else { Some(None) })
                {
                    cx.set_input_shape(i, Shape::Ranked(lead.into_iter().chain(dims).collect()))?;
                }
            }
            if (self.kind, at) == (ControlKind::While, 0) || (self.kind, at) == (ControlKind::Cond, 0) {
                continue;
            }
            if outputs.len() != cx.output_count() {
                let (found, expected) = (outputs.len(), cx.output_count());
                return Err(OpError(format!("graph {at} has {found} results, `num_outputs` says {expected}")));
            }
            let stacked = self.stacked(params)?;
            for (i, ty) in outputs.iter().enumerate() {
                if let Some(dtype) = ty.dtype {
                    cx.set_output_dtype(i, dtype)?;
                }
                let Some(dims) = constants(ty) else { continue };
                match (i < stacked, steps) {
                    (true, Some(steps)) => cx.set_output_dims(i, [steps].into_iter().chain(dims))?,
                    (true, None) => {}
                    (false, _) => cx.set_output_dims(i, dims)?,
                }
            }
        }
        Ok(())
    }

    fn expand(&self, b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>, Diagnostic> {
        let held: Vec<Value> = args.iter().copied().flatten().collect();
        let fail = |b: &Builder<'_>, e: OpError| b.error(DiagnosticCode::Operands, e.0);
        let sources = (0..self.bodies.len()).map(|at| self.sources(at, cx.params, held.len()));
        let sources = sources.collect::<Result<Vec<_>, _>>().map_err(|e| fail(b, e))?;
        if self.kind == ControlKind::Cond {
            return self.branch(b, cx, &sources, &held);
        }
        let variables = self.variables(cx.params, held.len()).map_err(|e| fail(b, e))?;
        let (data, stacked) = (self.data(cx.params), self.stacked(cx.params).map_err(|e| fail(b, e))?);
        let steps = match self.kind {
            ControlKind::Foreach => held.first().map(|v| b.ty(*v)).transpose()?.and_then(|ty| ty.dims.all().next()),
            _ => Some((number(cx.params, "max_iterations").map_err(|e| fail(b, e))? as u64).into()),
        };
        let steps = steps
            .filter(|n| *n >= 1 && n.is_surely_below(i64::MAX))
            .ok_or_else(|| b.error(DiagnosticCode::Unsupported, "there is no iteration"))?;
        let site = LoopSite { flow: self, params: cx.params, sources: &sources, variables, data, stacked };
        site.expand(b, &held, steps)
    }

    /// What one branch computes, that of the condition.
    fn branch(
        &self,
        b: &mut Builder<'_>,
        cx: &NodeCtx<'_>,
        sources: &[Vec<usize>],
        held: &[Value],
    ) -> Result<Vec<Value>, Diagnostic> {
        let operands: Vec<Value> = sources[0].iter().map(|&i| held[i]).collect();
        let condition = copied(b, self.graph(0, cx.params), &operands)?;
        let holds = truth(b, &condition)?;
        let mut bodies = vec![];
        let mut types = vec![];
        for (at, name) in [(1, "then"), (2, "else")] {
            let mut body = BodyBuilder::new(b, name);
            let inputs = held.iter().map(|v| Ok(body.input(&b.ty(*v)?))).collect::<Result<Vec<_>, Diagnostic>>()?;
            let operands: Vec<Value> = sources[at].iter().map(|&i| inputs[i]).collect();
            let results = body.build(|b| copied(b, self.graph(at, cx.params), &operands))?;
            let found = results.iter().map(|v| body.graph.dense(*v)).collect::<Result<Vec<_>, _>>()?;
            if at == 2 && found != types {
                return Err(b.error(DiagnosticCode::TypeConflict, "the branches give values of different types"));
            }
            types = found;
            results.into_iter().for_each(|v| body.graph.add_output("result", v));
            bodies.push(body.graph);
        }
        let operands: Vec<Value> = [holds].into_iter().chain(held.iter().copied()).collect();
        Ok(b.prim(Prim::Flow(Flow { kind: FlowKind::If, bodies, by_host: false }.into()), &operands, &types)?.to_vec())
    }
}

/// A loop that is expanded.
struct LoopSite<'s> {
    flow: &'s ControlNode,
    params: &'s Params,
    /// By graph and operand of it, the operand of the node.
    sources: &'s [Vec<usize>],
    /// By loop variable, the operand of the node that it begins as.
    variables: Vec<usize>,
    /// Operands that are iterated over.
    data: usize,
    /// Results that are collected.
    stacked: usize,
}

impl LoopSite<'_> {
    fn run(&self, b: &mut Builder<'_>, at: usize, held: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let operands: Vec<Value> = self.sources[at].iter().map(|&i| held[i]).collect();
        copied(b, self.flow.graph(at, self.params), &operands)
    }

    /// Whether there is an operand that says whether the condition has held so far.
    fn is_conditional(&self) -> bool {
        self.flow.kind == ControlKind::While
    }

    /// One iteration. Where the condition of a `_while_loop` does not hold any more, rows are zeros and variables stay.
    fn iteration(
        &self,
        b: &mut Builder<'_>,
        inputs: &IterationInputs,
        fixed: &[usize],
    ) -> Result<LoopResults, Diagnostic> {
        let mut held: BTreeMap<usize, Value> = inputs.rows.iter().copied().enumerate().collect();
        held.extend(self.variables.iter().copied().zip(inputs.carried.iter().copied()));
        held.extend(fixed.iter().copied().zip(inputs.fixed.iter().copied()));
        let held: Vec<Value> = held.into_values().collect();
        let mut active = None;
        if self.is_conditional() {
            let condition = self.run(b, 0, &held)?;
            let before = inputs.carried[self.variables.len()];
            let holds = truth(b, &condition)?;
            active = Some(b.call("and", &[before, holds])?);
        }
        let mut rows = self.run(b, self.flow.bodies.len() - 1, &held)?;
        let mut next = rows.split_off(self.stacked.min(rows.len()));
        if let Some(active) = active {
            for value in &mut rows {
                let zero = Scalar::zero(b.ty(*value)?.dtype);
                let zero = b.scalar(zero);
                *value = b.call("where", &[active, *value, zero])?;
            }
            for (value, &place) in next.iter_mut().zip(&self.variables) {
                *value = b.call("where", &[active, *value, held[place]])?;
            }
            next.push(active);
        }
        Ok(LoopResults { carried: next, stacked: rows })
    }

    /// The results of the node.
    fn expand(&self, b: &mut Builder<'_>, held: &[Value], trips: Extent) -> Result<Vec<Value>, Diagnostic> {
        let fixed: Vec<usize> = (self.data..held.len()).filter(|i| !self.variables.contains(i)).collect();
        let at = |places: &[usize]| places.iter().map(|&i| held[i]).collect::<Vec<Value>>();
        let mut carried = at(&self.variables);
        if self.is_conditional() {
            carried.push(b.scalar(Scalar::bool(true)));
        }
        let operands = LoopOperands { trips, carried: &carried, scanned: &held[..self.data], fixed: &at(&fixed) };
        let made = b.repeat(operands, &|b, inputs| self.iteration(b, inputs, &fixed))?;
        Ok(made.stacked.into_iter().chain(made.carried.into_iter().take(self.variables.len())).collect())
    }
}

/// The extents, if all are known.
fn constants(ty: &TensorType) -> Option<Vec<Dim>> {
    let dims = ty.shape.dims()?;
    dims.iter().map(|d| (!matches!(d, Dim::Sym(_))).then_some(*d)).collect()
}

/// What follows for the operands and results of a graph from what is known of its operands.
fn inferred(graph: &Graph, given: &[TensorType]) -> Result<(Vec<TensorType>, Vec<TensorType>), OpError> {
    let mut graph = graph.clone();
    for (&node, ty) in graph.inputs().to_vec().iter().zip(given) {
        let shape = match constants(ty) {
            Some(dims) => Shape::Ranked(dims.into_iter().collect()),
            None => Shape::Unranked,
        };
        graph.node_mut(node).types = [TensorType { dtype: ty.dtype, shape }].into_iter().collect();
    }
    let value_of = |graph: &Graph, v: Value| graph.constant(v).cloned();
    let order = graph.order();
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().chain(order.iter().rev()) {
            changed |= infer_node(&mut graph, node, &value_of).map_err(|d| OpError(d.to_string()))?;
        }
    }
    let of = |v: Value| graph.resolved(v);
    let inputs = graph.inputs().iter().map(|n| of(Value { node: *n, port: 0 })).collect();
    Ok((inputs, graph.outputs().iter().map(|(_, v)| of(*v)).collect()))
}

/// The operators of a graph, applied to operands.
fn copied(b: &mut Builder<'_>, graph: &Graph, operands: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    let inputs = graph.inputs().iter().map(|n| Value { node: *n, port: 0 });
    let mut made: std::collections::BTreeMap<Value, Value> = inputs.zip(operands.iter().copied()).collect();
    for id in graph.order() {
        let node = graph.node(id);
        let results = match &node.kind {
            NodeKind::Const(data) => vec![b.constant(data.clone())],
            NodeKind::Op(op) => {
                let operands: Vec<Option<Value>> =
                    graph.operands(id).iter().map(|v| v.and_then(|v| made.get(&v).copied())).collect();
                b.apply(&op.def, &operands, op.params.clone(), node.types.len())?.to_vec()
            }
            _ => vec![],
        };
        made.extend(results.into_iter().enumerate().map(|(port, v)| (Value { node: id, port: port as u16 }, v)));
    }
    let result = |(name, v): &(Arc<str>, Value)| {
        made.get(v).copied().ok_or_else(|| b.error(DiagnosticCode::Internal, format!("`{name}` is not computed")))
    };
    graph.outputs().iter().map(result).collect()
}

/// The one element of a condition as a boolean of rank 0.
fn truth(b: &mut Builder<'_>, condition: &[Value]) -> Result<Value, Diagnostic> {
    let [condition] = condition else {
        return Err(b.error(DiagnosticCode::Operands, "a condition is one value"));
    };
    let ty = b.ty(*condition)?;
    if ty.len() != 1 {
        return Err(b.error(DiagnosticCode::TypeConflict, format!("a condition has one element, not {ty}")));
    }
    let shape = b.i64s(&[]);
    let flat = b.call("reshape", &[*condition, shape])?;
    if ty.dtype == DType::Bool {
        return Ok(flat);
    }
    let zero = b.scalar(Scalar::zero(ty.dtype));
    b.call("not_equal", &[flat, zero])
}
