//! Branches and loops: the gradient of a branch is a branch, that of a loop a loop in the opposite direction.
//!
//! The forward loop stacks what it carries as it is at the start of each iteration, and nothing else. The backward loop
//! computes an iteration anew from that, and then backwards. It carries the adjoints of what the forward loop carries, and
//! the sums of the adjoints of what every iteration reads.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::flow::{Flow, FlowKind, Loop};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::ScalarFn;
use tensorc_ir::{DType, Extent, TensorType};

use super::{Reverse, differentiate, emit};
use crate::results::{result_types, results};

impl Reverse<'_> {
    /// The gradient of each operand of a branch or loop; `None` for zero.
    pub(super) fn flow(&mut self, node: NodeId, flow: &Flow, heads: &[Option<Value>]) -> Result<Vec<Option<Value>>> {
        match (&flow.kind, &flow.bodies[..]) {
            (FlowKind::If, bodies) => self.branch(node, bodies, heads),
            (FlowKind::Loop(repeat), [body]) => match repeat.trips.filter(|_| !repeat.conditional) {
                Some(trips) => self.repeated(node, (repeat, trips), body, heads),
                None => {
                    let why = "a loop that a condition ends has no gradient: it is not known how long it is";
                    Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&self.graph.node(node).name))
                }
            },
            _ => Err(Diagnostic::new(DiagnosticCode::Internal, "a loop without a body")),
        }
    }

    /// Positions of the operands from one on whose gradient is asked for.
    fn wanted(&self, args: &[Value], first: usize) -> Vec<usize> {
        (first..args.len()).filter(|i| self.active.varies.contains(&args[*i])).collect()
    }

    fn add_flow(&mut self, of: NodeId, flow: Flow, operands: &[Value], types: &[DenseType]) -> Vec<Value> {
        let name: Arc<str> = format!("{}_backward", self.graph.node(of).name).into();
        let node = self.graph.add_prim(name, Prim::Flow(flow.into()), operands, types);
        results(self.graph, node).collect()
    }

    /// The gradient of the branch that was taken.
    fn branch(&mut self, node: NodeId, bodies: &[Graph], heads: &[Option<Value>]) -> Result<Vec<Option<Value>>> {
        let args = self.graph.args(node).to_vec();
        let wanted = self.wanted(&args, 1);
        let gradient = |body: &Graph| {
            let mut back = BodyGradient::new(body, self.registry);
            let outputs = body.outputs().iter().zip(heads).filter(|(_, head)| head.is_some());
            let heads = outputs.map(|((_, v), _)| Ok((*v, back.seed(*v)?))).collect::<Result<Vec<_>>>()?;
            let wrt: Vec<Value> = wanted.iter().map(|i| back.inputs[i - 1]).collect();
            let gradients = back.gradients(&heads, &wrt)?;
            for (gradient, of) in gradients.into_iter().zip(&wrt) {
                let gradient = back.or_zero(gradient, *of)?;
                back.graph.add_output("gradient", gradient);
            }
            Ok(back.graph)
        };
        let bodies = bodies.iter().map(gradient).collect::<Result<Vec<Graph>>>()?;
        let types = wanted.iter().map(|i| self.graph.dense(args[*i])).collect::<Result<Vec<_>>>()?;
        let operands: Vec<Value> = args.iter().copied().chain(heads.iter().copied().flatten()).collect();
        let made = self.add_flow(node, Flow { kind: FlowKind::If, bodies, by_host: false }, &operands, &types);
        let mut parts = vec![None; args.len()];
        wanted.into_iter().zip(made).for_each(|(i, gradient)| parts[i] = Some(gradient));
        Ok(parts)
    }

    /// The gradient of a loop of so many iterations.
    fn repeated(
        &mut self,
        node: NodeId,
        (repeat, trips): (&Loop, Extent),
        body: &Graph,
        heads: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let args = self.graph.args(node).to_vec();
        let types = result_types(self.graph, node)?;
        let (carried, rest) = (repeat.carried, repeat.own_operands());
        let wanted = Wanted {
            floats: (0..carried).filter(|i| types[*i].dtype.is_float()).collect(),
            rows: self.wanted(&args[..rest], carried),
            fixed: self.wanted(&args, rest),
            stacked: (0..repeat.stacked.len()).filter(|i| heads[carried + i].is_some()).collect(),
        };
        let back = wanted.body((repeat, trips), body, self.registry)?;
        let tape = self.with_tape(node, repeat, body, &back.taped)?;
        // Adjoints begin as those of the results, sums as zeros.
        let mut operands = vec![];
        let name = self.graph.node(node).name.clone();
        for i in wanted.floats.iter().chain(&back.summed) {
            let ty = self.graph.dense(args[*i])?;
            operands.push(match heads.get(*i).copied().flatten().filter(|_| *i < carried) {
                Some(head) => head,
                None => self.build(&name, |b| b.filled(&ty, 0.0))?,
            });
        }
        operands.extend(tape);
        operands.extend(&args[carried..rest]);
        operands.extend(wanted.stacked.iter().filter_map(|i| heads[carried + i]));
        operands.extend(&args[rest..]);
        // The row of an iteration is that of the forward iteration with the number counted from the end.
        let opposite = |way: &bool| !way;
        let kind = Loop {
            trips: Some(trips),
            conditional: false,
            carried: wanted.floats.len() + back.summed.len(),
            scanned: back
                .taped
                .iter()
                .map(|_| true)
                .chain(repeat.scanned.iter().map(opposite))
                .chain(wanted.stacked.iter().map(|i| !repeat.stacked[*i]))
                .collect(),
            stacked: back.given.iter().map(|i| !repeat.scanned[i - carried]).collect(),
        };
        let positions: Vec<usize> =
            [&wanted.floats, &back.summed, &back.given].into_iter().flatten().copied().collect();
        let types = positions.iter().map(|i| self.graph.dense(args[*i])).collect::<Result<Vec<_>>>()?;
        let flow = Flow { kind: FlowKind::Loop(kind), bodies: vec![back.graph], by_host: false };
        let made = self.add_flow(node, flow, &operands, &types);
        let mut parts = vec![None; args.len()];
        positions.into_iter().zip(made).for_each(|(i, gradient)| parts[i] = Some(gradient));
        Ok(parts)
    }

    /// Lets a loop stack some of what it carries, as it is at the start of each iteration. Returns what is stacked.
    fn with_tape(&mut self, node: NodeId, repeat: &Loop, body: &Graph, taped: &[usize]) -> Result<Vec<Value>> {
        if taped.is_empty() {
            return Ok(vec![]);
        }
        let (mut repeat, mut body) = (repeat.clone(), body.clone());
        let mut types = result_types(self.graph, node)?.to_vec();
        let old = types.len();
        for i in taped {
            let before = Value { node: body.inputs()[1 + i], port: 0 };
            body.add_output("tape", before);
            repeat.stacked.push(false);
            let row = &types[*i];
            types.push(row.stacked(repeat.trips.unwrap_or(Extent::ZERO)));
        }
        let args = self.graph.args(node);
        let flow = Flow { kind: FlowKind::Loop(repeat), bodies: vec![body], by_host: false };
        let made = self.graph.add_prim(self.graph.node(node).name.clone(), Prim::Flow(flow.into()), &args, &types);
        for port in 0..old as u16 {
            let (from, to) = (Value { node, port }, Value { node: made, port });
            self.graph.replace_uses(from, to);
            self.active.wrt.iter_mut().filter(|v| **v == from).for_each(|v| *v = to);
            if let Some(parts) = self.partials.remove(&from) {
                self.partials.insert(to, parts);
            }
        }
        Ok((old as u16..types.len() as u16).map(|port| Value { node: made, port }).collect())
    }
}

/// What of a loop is differentiated: positions of operands, and of stacked results with a gradient.
struct Wanted {
    /// What is carried and has a gradient.
    floats: Vec<usize>,
    /// Scanned operands whose gradient is asked for.
    rows: Vec<usize>,
    /// Those that every iteration reads.
    fixed: Vec<usize>,
    stacked: Vec<usize>,
}

/// The body of a backward loop: it carries adjoints, then sums, and stacks the gradients of rows.
struct BackwardBody {
    graph: Graph,
    /// What the forward loop has to stack of what it carries.
    taped: Vec<usize>,
    /// Operands that every iteration reads, and scanned ones, to which something flows.
    summed: Vec<usize>,
    given: Vec<usize>,
}

impl Wanted {
    fn body(&self, (repeat, trips): (&Loop, Extent), body: &Graph, registry: &Registry) -> Result<BackwardBody> {
        let Wanted { floats, rows, fixed, stacked } = self;
        let (carried, rest) = (repeat.carried, repeat.own_operands());
        let mut back = BodyGradient::new(body, registry);
        let number = back.count_down(trips)?;
        let next: Vec<Value> = body.states().into_iter().map(|(_, v)| v).collect();
        let ends = floats.iter().map(|i| next[*i]).chain(stacked.iter().map(|i| body.outputs()[*i].1));
        let seeds = ends.map(|v| Ok((v, back.seed(v)?))).collect::<Result<Vec<(Value, Value)>>>()?;
        // Inputs of the body are its operands behind the number of the iteration.
        let operands = back.inputs[1..].to_vec();
        let wrt: Vec<Value> = floats.iter().chain(rows).chain(fixed).map(|i| operands[*i]).collect();
        let mut gradients = back.gradients(&seeds, &wrt)?.into_iter();

        let (adjoints, of_rows) = seeds.split_at(floats.len());
        let mut kept: Vec<Value> = adjoints.iter().map(|(_, seed)| *seed).collect();
        for ((adjoint, of), gradient) in kept.iter().zip(&wrt).zip(gradients.by_ref().take(floats.len())) {
            let gradient = back.or_zero(gradient, *of)?;
            back.graph.add_update(adjoint.node, gradient);
        }
        let some = |(i, gradient): (&usize, Option<Value>)| Some((*i, gradient?));
        let given: Vec<(usize, Value)> =
            rows.iter().zip(gradients.by_ref().take(rows.len())).filter_map(some).collect();
        given.iter().for_each(|(_, gradient)| back.graph.add_output("row", *gradient));
        let summed: Vec<(usize, Value)> = fixed.iter().zip(gradients).filter_map(some).collect();
        for (_, gradient) in &summed {
            let sum = back.seed(*gradient)?;
            let next = back.build(|b| emit::sum(b, &[sum, *gradient]))?;
            back.graph.add_update(sum.node, next);
            kept.push(sum);
        }
        back.graph.remove_dead();
        let taped: Vec<usize> = (0..carried).filter(|i| !back.graph.uses(operands[*i].node).is_empty()).collect();
        let scanned = taped.iter().map(|i| operands[*i]).chain(operands[carried..rest].iter().copied());
        let inputs = [number].into_iter().chain(kept).chain(scanned);
        let inputs = inputs.chain(of_rows.iter().map(|(_, seed)| *seed)).chain(operands[rest..].iter().copied());
        back.graph.set_inputs(&inputs.map(|v| v.node).collect::<Vec<NodeId>>());
        let positions = |list: Vec<(usize, Value)>| list.into_iter().map(|(i, _)| i).collect();
        Ok(BackwardBody { graph: back.graph, taped, summed: positions(summed), given: positions(given) })
    }
}

/// The body of a backward branch or loop.
struct BodyGradient<'r> {
    /// The body without outputs and updates, and what is added to it.
    graph: Graph,
    /// Those of the body.
    inputs: Vec<Value>,
    registry: &'r Registry,
}

impl<'r> BodyGradient<'r> {
    fn new(body: &Graph, registry: &'r Registry) -> BodyGradient<'r> {
        let mut graph = body.clone();
        graph.clear_updates();
        graph.set_outputs([]);
        let inputs = body.inputs().iter().map(|node| Value { node: *node, port: 0 }).collect();
        BodyGradient { graph, inputs, registry }
    }

    fn build<T>(&mut self, body: impl FnOnce(&mut Builder<'_>) -> Result<T>) -> Result<T> {
        let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
        body(&mut Builder::new(&mut self.graph, self.registry, "backward".into(), &value_of))
    }

    /// A new input of the type of a value.
    fn seed(&mut self, like: Value) -> Result<Value> {
        let ty = self.graph.dense(like)?;
        Ok(self.graph.add_input(format!("d_{}", self.graph.node(like.node).name), ty.into()))
    }

    /// A new input for the number of the iteration, which counts down where the body counts up.
    fn count_down(&mut self, trips: Extent) -> Result<Value> {
        let ty = DenseType::new(DType::I64, []);
        let number = self.graph.add_input("iteration", TensorType::from(ty.clone()));
        let internal = |why| Diagnostic::new(DiagnosticCode::Internal, why);
        let f = ScalarFn::build(&[DType::I64; 2], |_, a| vec![&a[0] - &a[1]]).map_err(internal)?;
        let forward = self.build(|b| {
            let last = emit::extent(b, trips - 1)?;
            Ok(b.prim(Prim::Map(f.into()), &[last, number], &[ty])?[0])
        })?;
        self.graph.replace_uses(self.inputs[0], forward);
        Ok(number)
    }

    /// Adds gradients for the seeds of some values. What the body demands of values is confirmed by the forward pass.
    fn gradients(&mut self, heads: &[(Value, Value)], wrt: &[Value]) -> Result<Vec<Option<Value>>> {
        let heads: Vec<(Value, Option<Value>)> = heads.iter().map(|(v, seed)| (*v, Some(*seed))).collect();
        let gradients = differentiate(&mut self.graph, self.registry, &heads, wrt)?;
        self.graph.clear_checks();
        Ok(gradients)
    }

    fn or_zero(&mut self, gradient: Option<Value>, like: Value) -> Result<Value> {
        let ty = self.graph.dense(like)?;
        gradient.map_or_else(|| self.build(|b| b.filled(&ty, 0.0)), Ok)
    }
}
