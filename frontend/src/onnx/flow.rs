//! Branches and loops that stay in the graph: what decides them is computed when the model runs.
//!
//! A body is imported like any other nodes, on inputs made up for it, and then taken out of the graph into one of its own
//! ([`outlined`]). All types must be known, and a carried value has one type in all iterations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::flow::{Flow, FlowKind, Loop, is_short};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, Extent, TensorData};

use super::error::OnnxError;
use super::import::Importer;
use super::meaning::Meaning;
use super::unroll::{Body, Direction};
use super::unsupported::{Stop, UNDECIDED, unsupported};
use super::upgrade::ValueFacts;
use super::writer::{NodeWriter, ints};

/// A value and its type.
type Typed = (Value, DenseType);

/// A loop with a body, before it is decided whether it stays one.
#[derive(Clone)]
pub(super) struct LoopSite<'s> {
    pub body: &'s Body<'s>,
    /// The most iterations, if that is known. It may depend on symbols.
    pub trips: Option<Extent>,
    /// The name of a tensor with the most iterations, where they are not known.
    pub limit: Option<String>,
    /// The name of a condition before the first iteration, if it is not known to hold.
    pub condition: Option<String>,
    /// Names of what is carried at first.
    pub initial: Vec<String>,
    pub scanned: Vec<(String, Direction)>,
    pub stacked: Vec<Direction>,
    /// Whether rows are stacked of a loop that a condition ends, up to those that there are at most: how many there are is
    /// known when the model runs, and what uses them is compiled then.
    pub cut: bool,
    /// Whether there is an operand for the condition: without one, operator and run times differ in what a condition of the
    /// body means.
    pub conditioned: bool,
    /// Whether the body takes the number of the iteration and the condition, and gives whether there is a next one.
    pub counts: bool,
}

impl LoopSite<'_> {
    /// Whether the loop is written out, if its body has so many nodes.
    pub fn is_short(&self, nodes: u64) -> bool {
        self.trips.and_then(Extent::known).is_some_and(|trips| is_short(trips.unsigned_abs(), nodes))
    }
}

impl Importer<'_> {
    /// The type of a value, which must be known.
    fn dense_type(&mut self, value: Value) -> Result<DenseType, Stop> {
        self.infer();
        if let Some(ty) = self.graph.resolved(value).dense() {
            return Ok(ty);
        }
        let found = match self.options.analysis {
            Some(analysis) => {
                self.files.budget.take_analysis(self.graph.node_count() as u64).map_err(OnnxError::from)?;
                analysis(&self.graph, value).ty.dense()
            }
            None => None,
        };
        found.map_or_else(|| unsupported(UNDECIDED), Ok)
    }

    /// The tensor of a name, and its type.
    fn dense_tensor(&mut self, name: &str) -> Result<(Value, DenseType), Stop> {
        let value = match self.imported(name)? {
            Meaning::Tensor(value) => value,
            _ => return unsupported(UNDECIDED),
        };
        Ok((value, self.dense_type(value)?))
    }

    /// A scalar with the one number of a tensor.
    pub(super) fn single(&mut self, name: String, label: &Arc<str>) -> Result<String, Stop> {
        self.scalar_of(&name, DType::I64, label)
    }

    /// A scalar with the one element of a tensor. The host takes tensors of one element as they are.
    fn scalar_of(&mut self, name: &str, dtype: DType, label: &Arc<str>) -> Result<String, Stop> {
        let ty = match self.dense_tensor(name) {
            Err(Stop::Unsupported(why)) if why == UNDECIDED && self.options.hosted => return Ok(name.to_owned()),
            found => found?.1,
        };
        match (ty.dtype == dtype && ty.len() == 1, ty.dims.is_empty()) {
            (true, true) => Ok(name.to_owned()),
            (true, false) => Ok(NodeWriter { importer: self, label }.node("Squeeze", &[name], vec![])?),
            (false, _) => unsupported(&format!("`{name}` is not a single {dtype}")),
        }
    }

    /// Adds an `If` of which one branch is computed when it runs: names of the condition, of the results, and of what each
    /// branch computes for them, which was imported from node `first` on.
    pub(super) fn conditional(
        &mut self,
        condition: &str,
        results: &[[&str; 3]],
        first: u32,
        label: &Arc<str>,
    ) -> Result<(), Stop> {
        let condition = self.scalar_of(condition, DType::Bool, label)?;
        let (condition, _) = self.dense_tensor(&condition)?;
        let (mut branches, mut bodies) = (vec![], vec![]);
        for branch in [1, 2] {
            let mut values = vec![];
            for result in results {
                values.push(self.dense_tensor(result[branch])?);
            }
            branches.push(values);
        }
        let types: Vec<DenseType> = branches[0].iter().map(|(_, ty)| ty.clone()).collect();
        let captured =
            Captured::by(self, branches.iter().flatten().map(|(v, _)| *v).collect::<Vec<_>>().into_iter(), first)?;
        for (name, values) in ["then", "else"].into_iter().zip(&branches) {
            let mut body = Outline::new(&self.graph, name, &captured);
            captured.values.iter().for_each(|(value, ty)| body.input(*value, ty));
            for ((value, _), [output, ..]) in values.iter().zip(results) {
                body.output(output, *value)?;
            }
            bodies.push(body.graph);
        }
        let args: Vec<Value> = [condition].into_iter().chain(captured.values.iter().map(|(v, _)| *v)).collect();
        let node = self.graph.add_prim(
            label.clone(),
            Prim::Flow(Flow { kind: FlowKind::If, bodies, by_host: false }.into()),
            &args,
            &types,
        );
        for (port, [output, ..]) in results.iter().enumerate() {
            self.values.insert((*output).to_owned(), Meaning::Tensor(Value { node, port: port as u16 }));
        }
        self.outlines = true;
        Ok(())
    }

    /// Tries [`Importer::repetition`]: what is wrong or not supported in the body is reported when copies of it are imported,
    /// in which more is known.
    pub(super) fn tried(&mut self, site: &LoopSite<'_>) -> Result<Option<Vec<String>>, Stop> {
        let before = (self.unsupported.clone(), self.invalid.take(), self.declared.len());
        let results = self.repetition(site);
        if let Ok(Some(_)) = results {
            self.invalid = before.1.or(self.invalid.take());
            return results;
        }
        (self.unsupported, self.invalid) = (before.0, before.1);
        self.declared.truncate(before.2);
        match results {
            Err(Stop::Reported) => Ok(None),
            results => results,
        }
    }

    /// Adds a loop whose body is there once. `None` if it cannot stay one: types differ from one iteration to the next, or
    /// what it stacks has no known length; or if it is short.
    fn repetition(&mut self, site: &LoopSite<'_>) -> Result<Option<Vec<String>>, Stop> {
        self.outlines = true;
        let label = site.body.label().clone();
        let (mut carried, mut scanned) = (vec![], vec![]);
        for name in &site.initial {
            match self.imported(name)? {
                Meaning::Tensor(_) => carried.push(self.dense_tensor(name)?),
                _ => return Ok(None),
            }
        }
        for (name, direction) in &site.scanned {
            let rows = self.along_first(name, direction.axis, &label)?;
            scanned.push(self.dense_tensor(&rows)?);
        }
        if site.cut {
            let none = NodeWriter { importer: self, label: &label }.constant(TensorData::scalar(Scalar::i64(0)));
            carried.push(self.dense_tensor(&none)?);
        }
        let before = self.graph.node_count() as u64;
        let first = self.next_node();
        let inputs = BodyInputs::new(self, &carried, &scanned);
        let mut arguments: Vec<String> = vec![];
        if site.counts {
            let always = NodeWriter { importer: self, label: &label }.constant(TensorData::scalar(Scalar::bool(true)));
            arguments.extend([inputs.number.clone(), always]);
        }
        arguments.extend(inputs.carried[..site.initial.len()].iter().chain(&inputs.rows).cloned());
        let mut results = self.iteration(site.body, arguments)?;
        if self.meanings(&results)?.iter().any(|m| m.tensor().is_none()) {
            return Ok(None);
        }
        let condition = site.counts.then(|| results.remove(0));
        let goes_on = match &condition {
            Some(name) => self.known(name).ok().and_then(|data| data.item()).is_some_and(|c| c.as_bool()),
            None => true,
        };
        if !goes_on && !site.conditioned {
            return Ok(None);
        }
        let conditional = !goes_on || site.condition.is_some() || site.limit.is_some();
        let nodes = self.graph.node_count() as u64 - before;
        let stacks = !site.stacked.is_empty();
        let unknown = stacks && (site.trips.is_none() || conditional && !site.cut);
        if unknown || site.is_short(nodes) && !conditional {
            return Ok(None);
        }
        if site.trips.is_none() && !conditional {
            return unsupported("nothing ends it");
        }
        let next = match (&condition, conditional) {
            (Some(name), true) => Some(self.next_iteration(site, name, &inputs.number, &label)?),
            _ => None,
        };
        if site.cut {
            let mut writer = NodeWriter { importer: self, label: &label };
            let one = writer.constant(TensorData::scalar(Scalar::i64(1)));
            results.insert(site.initial.len(), writer.node("Add", &[&inputs.number, &one], vec![])?);
        }
        for (name, (_, ty)) in results.iter().zip(&carried) {
            if self.dense_tensor(name)?.1 != *ty {
                return Ok(None);
            }
        }
        let repeat = Loop {
            trips: site.trips,
            conditional,
            carried: carried.len(),
            scanned: site.scanned.iter().map(|(_, d)| d.backwards).collect(),
            stacked: site.stacked.iter().map(|d| d.backwards).collect(),
        };
        let outputs: Vec<String> = next.into_iter().chain(results.iter().skip(carried.len()).cloned()).collect();
        let updates = &results[..carried.len()];
        let made = self.add_loop(site, repeat, (&inputs, first), (&carried, &scanned), (&outputs, updates))?;
        self.named(site, &made, carried.len()).map(Some)
    }

    /// Names of what a loop gives: what is carried, and what is stacked, as long as it is and along its axis.
    pub(super) fn named(&mut self, site: &LoopSite<'_>, made: &[Value], carried: usize) -> Result<Vec<String>, Stop> {
        let label = site.body.label().clone();
        let mut names: Vec<String> = vec![];
        for value in made {
            let name = self.fresh_name(&label);
            self.values.insert(name.clone(), Meaning::Tensor(*value));
            names.push(name);
        }
        let mut stacked = names.split_off(carried);
        if site.cut
            && let Some(count) = names.pop()
        {
            let mut writer = NodeWriter { importer: self, label: &label };
            let front = writer.i64s(&[0]);
            let count = writer.node("Unsqueeze", &[&count, &front], vec![])?;
            for name in &mut stacked {
                *name = writer.node("Slice", &[name, &front, &count, &front], vec![])?;
            }
        }
        for (name, direction) in stacked.into_iter().zip(&site.stacked) {
            names.push(self.restored(&name, direction.axis, &label)?);
        }
        Ok(names)
    }

    /// The condition for a further iteration.
    pub(super) fn next_iteration(
        &mut self,
        site: &LoopSite<'_>,
        condition: &str,
        number: &str,
        label: &Arc<str>,
    ) -> Result<String, Stop> {
        let condition = self.scalar_of(condition, DType::Bool, label)?;
        let Some(limit) = &site.limit else { return Ok(condition) };
        let mut writer = NodeWriter { importer: self, label };
        let one = writer.constant(TensorData::scalar(Scalar::i64(1)));
        let next = writer.node("Add", &[number, &one], vec![])?;
        let more = writer.node("Less", &[&next, limit], vec![])?;
        Ok(writer.node("And", &[&condition, &more], vec![])?)
    }

    /// The condition for the first iteration.
    pub(super) fn first_iteration(&mut self, site: &LoopSite<'_>, label: &Arc<str>) -> Result<String, Stop> {
        let given = site.condition.as_ref().map(|name| self.scalar_of(name, DType::Bool, label)).transpose()?;
        let mut writer = NodeWriter { importer: self, label };
        let Some(limit) = &site.limit else {
            return Ok(given.unwrap_or_else(|| writer.constant(TensorData::scalar(Scalar::bool(true)))));
        };
        let none = writer.constant(TensorData::scalar(Scalar::i64(0)));
        let some = writer.node("Less", &[&none, limit], vec![])?;
        Ok(match given {
            Some(given) => writer.node("And", &[&given, &some], vec![])?,
            None => some,
        })
    }

    fn add_loop(
        &mut self,
        site: &LoopSite<'_>,
        repeat: Loop,
        (inputs, first): (&BodyInputs, u32),
        (carried, scanned): (&[Typed], &[Typed]),
        (outputs, updates): (&[String], &[String]),
    ) -> Result<Vec<Value>, Stop> {
        let label = site.body.label().clone();
        let mut made = vec![];
        for name in outputs.iter().chain(updates) {
            made.push(self.dense_tensor(name)?);
        }
        let (outputs, updates) = made.split_at(outputs.len());
        let captured = Captured::by(self, made.iter().map(|(v, _)| *v), first)?;
        let mut body = Outline::new(&self.graph, "body", &captured);
        inputs.all.iter().chain(&captured.values).for_each(|(value, ty)| body.input(*value, ty));
        for (i, (value, _)) in outputs.iter().enumerate() {
            body.output(&format!("{i}"), *value)?;
        }
        for (i, (value, _)) in updates.iter().enumerate() {
            let (next, of) = (body.value(*value)?, body.graph.inputs()[1 + i]);
            body.graph.add_update(of, next);
        }
        let bodies = vec![body.graph];
        let rows = repeat.trips.unwrap_or(Extent::ZERO);
        let stacked = outputs.iter().skip(usize::from(repeat.conditional));
        let stacked = stacked.map(|(_, ty)| ty.stacked(rows));
        let types: Vec<DenseType> = carried.iter().map(|(_, ty)| ty.clone()).chain(stacked).collect();
        let mut args = vec![];
        if repeat.conditional {
            let name = self.first_iteration(site, &label)?;
            args.push(self.dense_tensor(&name)?.0);
        }
        args.extend(carried.iter().chain(scanned).chain(&captured.values).map(|(v, _)| *v));
        let flow = Flow { kind: FlowKind::Loop(repeat), bodies, by_host: false };
        let node = self.graph.add_prim(label, Prim::Flow(flow.into()), &args, &types);
        self.outlines = true;
        Ok((0..types.len() as u16).map(|port| Value { node, port }).collect())
    }

    /// A tensor with the axis that a loop goes along in front.
    pub(super) fn along_first(&mut self, name: &str, axis: i64, label: &Arc<str>) -> Result<String, Stop> {
        let rank = self.axis_in(name, axis)?;
        let axis = axis.rem_euclid(rank);
        let order: Vec<i64> = [axis].into_iter().chain((0..rank).filter(|a| *a != axis)).collect();
        self.transposed_by(name, &order, label)
    }

    /// The inverse of [`Importer::along_first`].
    fn restored(&mut self, name: &str, axis: i64, label: &Arc<str>) -> Result<String, Stop> {
        if axis == 0 {
            return Ok(name.to_owned());
        }
        let rank = self.axis_in(name, axis)?;
        let axis = axis.rem_euclid(rank);
        let mut order: Vec<i64> = (1..rank).collect();
        order.insert(axis as usize, 0);
        self.transposed_by(name, &order, label)
    }

    fn transposed_by(&mut self, name: &str, order: &[i64], label: &Arc<str>) -> Result<String, Stop> {
        if order.is_sorted() {
            return Ok(name.to_owned());
        }
        Ok(NodeWriter { importer: self, label }.node("Transpose", &[name], vec![ints("perm", order)])?)
    }

    /// The number of the next node that is added.
    pub(super) fn next_node(&self) -> u32 {
        self.graph.node_ids().last().map_or(0, |id| id.0 + 1)
    }
}

/// Inputs made up for the body of a loop.
struct BodyInputs {
    number: String,
    carried: Vec<String>,
    rows: Vec<String>,
    /// In the order of the body.
    all: Vec<Typed>,
}

impl BodyInputs {
    fn new(importer: &mut Importer<'_>, carried: &[Typed], scanned: &[(Value, DenseType)]) -> BodyInputs {
        let mut all = vec![];
        let mut add = |of: &str, ty: DenseType| {
            let name = importer.fresh_name(of);
            let value = importer.graph.add_input(name.as_str(), ty.clone().into());
            importer.made_inputs.push(value.node);
            importer.values.insert(name.clone(), Meaning::Tensor(value));
            all.push((value, ty));
            name
        };
        let number = add("iteration", DenseType::new(DType::I64, []));
        let carried = carried.iter().map(|(_, ty)| add("carried", ty.clone())).collect();
        let row = |ty: &DenseType| DenseType { dtype: ty.dtype, dims: ty.dims.range(1..) };
        let rows = scanned.iter().map(|(_, ty)| add("row", row(ty))).collect();
        BodyInputs { number, carried, rows, all }
    }
}

/// Values of older nodes that bodies use.
struct Captured {
    /// Nodes of bodies have at least this number.
    first: u32,
    values: Vec<Typed>,
    /// Those that are known, which become constants of bodies: shapes may depend on them there.
    known: BTreeMap<Value, TensorData>,
}

/// Most elements of a captured value of integers that is looked at.
const MAX_KNOWN_ELEMENTS: u64 = 64;

impl Captured {
    /// What results are computed from, constants aside.
    fn by(importer: &mut Importer<'_>, results: impl Iterator<Item = Value>, first: u32) -> Result<Captured, Stop> {
        let mut captured = Captured { first, values: vec![], known: BTreeMap::new() };
        let (mut seen, mut outer) = (BTreeSet::new(), vec![]);
        let mut stack: Vec<Value> = results.collect();
        stack.reverse();
        while let Some(value) = stack.pop() {
            let is_new = match value.node.0 < first {
                true => seen.insert(value),
                false => seen.insert(Value { port: u16::MAX, ..value }),
            };
            if is_new && value.node.0 >= first {
                stack.extend(importer.graph.args(value.node).into_iter().rev());
            } else if is_new && importer.graph.constant(value).is_none() {
                outer.push(value);
            }
        }
        for value in outer {
            let ty = importer.dense_type(value)?;
            let small = !ty.dtype.is_float() && !ty.dims.is_open() && ty.len() <= MAX_KNOWN_ELEMENTS;
            let data = match importer.options.analysis.filter(|_| small) {
                Some(analysis) => analysis(&importer.graph, value).value,
                None => importer.handed_on(value).filter(|_| small),
            };
            match data {
                Some(data) => drop(captured.known.insert(value, data)),
                None => captured.values.push((value, ty)),
            }
        }
        match captured.values.len() < usize::from(u16::MAX) / 2 {
            true => Ok(captured),
            false => unsupported("a body uses too many values of the graph around it"),
        }
    }
}

/// A body that is taken out of a graph.
struct Outline<'g> {
    from: &'g Graph,
    graph: Graph,
    /// Nodes of the body have at least this number.
    first: u32,
    copies: BTreeMap<Value, Value>,
}

impl<'g> Outline<'g> {
    fn new(from: &'g Graph, name: &str, captured: &Captured) -> Outline<'g> {
        let mut graph = Graph::new(name);
        let known = captured.known.iter();
        let copies =
            known.map(|(v, data)| (*v, graph.add_const(from.node(v.node).name.clone(), data.clone()))).collect();
        Outline { from, graph, first: captured.first, copies }
    }

    /// The next input stands for a value.
    fn input(&mut self, of: Value, ty: &DenseType) {
        let input = self.graph.add_input(self.from.node(of.node).name.clone(), ty.clone().into());
        self.copies.insert(of, input);
    }

    fn output(&mut self, name: &str, value: Value) -> Result<(), Stop> {
        let value = self.value(value)?;
        self.graph.add_output(name, value);
        Ok(())
    }

    /// The value in the body, with all that it is computed from.
    fn value(&mut self, wanted: Value) -> Result<Value, Stop> {
        let known = |copies: &BTreeMap<Value, Value>, v: &Value| copies.contains_key(v);
        let mut stack = vec![];
        if !known(&self.copies, &wanted) {
            stack.push((wanted.node, false));
        }
        while let Some((node, operands_done)) = stack.pop() {
            match operands_done {
                _ if known(&self.copies, &Value { node, port: 0 }) => {}
                true => self.copy(node)?,
                false => {
                    stack.push((node, true));
                    let missing = self.from.args(node).into_iter().filter(|v| !known(&self.copies, v));
                    stack.extend(missing.map(|v| (v.node, false)));
                }
            }
        }
        self.copies.get(&wanted).copied().map_or_else(|| Err(self.lost(wanted.node)), Ok)
    }

    fn lost(&self, node: NodeId) -> Stop {
        let name = &self.from.node(node).name;
        let why = format!("`{name}` belongs to no body");
        let internal = tensorc_ir::diag::DiagnosticCode::Internal;
        Stop::Invalid(OnnxError::Invalid(tensorc_ir::diag::Diagnostic::new(internal, why).at(name)))
    }

    fn copy(&mut self, node: NodeId) -> Result<(), Stop> {
        let old = self.from.node(node);
        debug_assert!(node.0 >= self.first || matches!(old.kind, NodeKind::Const(_)), "outer values are inputs");
        let ports = old.types.len();
        let operands: Vec<Option<Value>> =
            self.from.operands(node).iter().map(|v| v.and_then(|v| self.copies.get(&v).copied())).collect();
        let made = match &old.kind {
            NodeKind::Const(data) => self.graph.add_const(old.name.clone(), data.clone()).node,
            NodeKind::Op(op) => {
                let added = self.graph.add_op_like(old.name.clone(), op, &operands, ports);
                added.map_err(|diagnostic| Stop::Invalid(OnnxError::Invalid(diagnostic)))?
            }
            NodeKind::Prim(prim) => {
                let args: Vec<Value> = operands.into_iter().flatten().collect();
                let types: Option<Vec<DenseType>> =
                    old.types.iter().map(|ty| self.from.dims.resolve_type(ty).dense()).collect();
                let Some(types) = types else { return Err(self.lost(node)) };
                self.graph.add_prim(old.name.clone(), prim.clone(), &args, &types)
            }
            NodeKind::Input | NodeKind::Fused(_) => return Err(self.lost(node)),
        };
        for port in 0..ports as u16 {
            self.copies.insert(Value { node, port }, Value { node: made, port });
        }
        Ok(())
    }
}
