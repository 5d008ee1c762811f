//! `Loop` and `Scan`: those that cannot stay loops ([`super::flow`]), or are short, are written out, with a copy of the body
//! for each iteration. Their number must be known when the model is imported.
//!
//! Shapes of inputs, and small integers among them, may decide the number; a model is imported anew for those
//! ([`super::unsupported::Unsupported::only_undecided`]). Constants of the body are there once.

use std::rc::Rc;
use std::sync::Arc;

use tensorc_ir::flow::is_short;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{Extent, TensorData};

use super::attribute;
use super::control::rename_graph;
use super::error::OnnxError;
use super::flow::LoopSite;
use super::import::{Importer, stored_values};
use super::load::{NEWEST_OPSET, Opsets, STANDARD_DOMAIN};
use super::meaning::Meaning;
use super::proto::{GraphProto, NodeProto};
use super::unsupported::{Stop, UNDECIDED, unsupported};
use super::upgrade::{ValueFacts, int};
use super::weight::graph_weight;
use super::writer::NodeWriter;

/// Added to the number of nodes for each iteration, beside the nodes of its body: constants and names are made for it.
const NODES_PER_ITERATION: u64 = 4;

/// The body of a node, and where it stands.
pub(super) struct Body<'b> {
    graph: GraphProto,
    opsets: &'b Rc<Opsets>,
    label: &'b Arc<str>,
    /// Bytes of a copy.
    weight: u64,
}

impl<'b> Body<'b> {
    /// Takes the body out of a node.
    pub fn of(
        importer: &mut Importer<'_>,
        node: &mut NodeProto,
        opsets: &'b Rc<Opsets>,
        label: &'b Arc<str>,
    ) -> Result<Body<'b>, Stop> {
        let body = node.attribute.iter_mut().find(|a| a.name() == "body").and_then(|a| a.g.take());
        let Some(graph) = body else { return unsupported("its body is missing") };
        let graph = importer.hoisted(graph, label)?;
        Ok(Body { weight: graph_weight(&graph), graph, opsets, label })
    }

    /// The name of the node.
    pub fn label(&self) -> &'b Arc<str> {
        self.label
    }

    /// What it computes. Constants are values around it.
    pub fn graph(&self) -> &GraphProto {
        &self.graph
    }

    /// The operator sets of its nodes.
    pub fn opsets(&self) -> &'b Rc<Opsets> {
        self.opsets
    }

    /// Whether the body takes so many values and returns at least so many.
    pub fn expect(&self, inputs: usize, outputs: usize) -> Result<(), Stop> {
        match self.graph.input.len() == inputs && self.graph.output.len() >= outputs {
            true => Ok(()),
            false => unsupported("its body has other inputs or results than the node"),
        }
    }
}

/// How a `Scan` goes through a tensor, or builds one.
#[derive(Clone, Copy, Default)]
pub(super) struct Direction {
    pub axis: i64,
    pub backwards: bool,
}

impl Direction {
    /// From the first element to the last.
    pub fn along(axis: i64) -> Direction {
        Direction { axis, backwards: false }
    }
}

/// What is known of an operand that says how often a loop runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    Absent,
    /// It may depend on symbols.
    Known(Extent),
    /// Its name.
    Open(String),
}

impl Bound {
    fn known(&self) -> Option<Extent> {
        if let Bound::Known(number) = self { Some(*number) } else { None }
    }

    /// Whether no iteration runs.
    fn is_none(&self) -> bool {
        self.known().is_some_and(|n| n <= Extent::ZERO)
    }

    fn open(&self) -> Option<String> {
        if let Bound::Open(name) = self { Some(name.clone()) } else { None }
    }
}

/// What iterations leave behind.
struct Iterated {
    carried: Vec<String>,
    /// For each further result of the body its values, one for each iteration.
    collected: Vec<Vec<String>>,
}

impl Iterated {
    /// Before the first iteration.
    fn new(carried: Vec<String>, collected: usize) -> Iterated {
        Iterated { carried, collected: vec![vec![]; collected] }
    }

    fn take(&mut self, mut results: Vec<String>) {
        let collected = results.split_off(self.carried.len());
        self.carried = results;
        self.collected.iter_mut().zip(collected).for_each(|(list, value)| list.push(value));
    }
}

impl Importer<'_> {
    /// Imports a `Loop` or `Scan`; the inner error lists what is not supported.
    pub(super) fn repeated(
        &mut self,
        mut node: NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        let results = self.written_out(&mut node, opsets, label);
        self.settle(node.output, results)
    }

    /// What a `Loop` or `Scan` gives.
    pub(super) fn written_out(
        &mut self,
        node: &mut NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Vec<Meaning>, Stop> {
        self.meanings(node.input.iter().filter(|i| !i.is_empty()))?;
        let body = Body::of(self, node, opsets, label)?;
        let results = match node.op_type() {
            "Loop" => self.loop_results(node, &body)?,
            _ if opsets.version(STANDARD_DOMAIN).unwrap_or(NEWEST_OPSET) < 9 => {
                self.batched_scan_results(node, &body)?
            }
            _ => self.scan_results(node, &body)?,
        };
        self.meanings(&results)
    }

    /// A body whose constants are values around it, which its copies share.
    fn hoisted(&mut self, mut body: GraphProto, label: &str) -> Result<GraphProto, OnnxError> {
        let dense = std::mem::take(&mut body.initializer);
        let stored = stored_values(dense, std::mem::take(&mut body.sparse_initializer))?;
        let prefix = self.fresh_name(label);
        let names = stored.keys().map(|name| (name.clone(), format!("{prefix}/{name}"))).collect();
        rename_graph(&mut body, &names);
        self.stored.extend(stored.into_iter().map(|(name, value)| (names[&name].clone(), value)));
        Ok(body)
    }

    fn loop_results(&mut self, node: &NodeProto, body: &Body<'_>) -> Result<Vec<String>, Stop> {
        let initial = node.input.get(2..).unwrap_or_default().to_vec();
        body.expect(initial.len() + 2, initial.len() + 1)?;
        let collected = body.graph.output.len() - 1 - initial.len();
        let (most, condition) = (self.bound(node, 0)?, self.bound(node, 1)?);
        let ends_at_once = condition.is_none() || most.is_none();
        let site = LoopSite {
            body,
            trips: most.known(),
            limit: most.open().map(|name| self.single(name, body.label)).transpose()?,
            condition: condition.open(),
            conditioned: condition != Bound::Absent,
            initial,
            scanned: vec![],
            stacked: vec![Direction::default(); collected],
            cut: false,
            counts: true,
        };
        let in_plan = self.loop_in_plan(&site, &most, &condition);
        self.or_hosted(in_plan, &site, !ends_at_once)
    }

    /// What a loop gives, or the loop that the host runs if too little is known of it.
    fn or_hosted(
        &mut self,
        results: Result<Vec<String>, Stop>,
        site: &LoopSite<'_>,
        runs: bool,
    ) -> Result<Vec<String>, Stop> {
        match results {
            Err(Stop::Unsupported(why)) if why == UNDECIDED && runs && self.options.hosted => self.hosted_loop(site),
            results => results,
        }
    }

    /// A `Loop` as a loop of a plan, or as copies of its body.
    fn loop_in_plan(&mut self, site: &LoopSite<'_>, most: &Bound, condition: &Bound) -> Result<Vec<String>, Stop> {
        let ends_at_once = condition.is_none() || most.is_none();
        let ends = *most != Bound::Absent || *condition != Bound::Absent;
        if ends
            && !ends_at_once
            && let Some(results) = self.kept(site)?
        {
            return Ok(results);
        }
        let is_open = most.open().is_some() || condition.open().is_some();
        let copied = match is_open {
            true => unsupported(UNDECIDED),
            false => {
                let most = most.known().map(copies).transpose()?;
                let condition = condition.known().map(|n| n != Extent::ZERO);
                let done = Iterated::new(site.initial.clone(), site.stacked.len());
                self.loop_copies(site.body, done, most, condition)
            }
        };
        match copied {
            Err(Stop::Unsupported(why)) if why == UNDECIDED && self.options.analysis.is_some() && !ends_at_once => {
                // All that is known of shapes and values does not decide it.
                let cut = site.conditioned && site.trips.is_some();
                let results = if cut { self.tried(&LoopSite { cut, ..site.clone() })? } else { None };
                results.map_or_else(|| unsupported(UNDECIDED), Ok)
            }
            copied => copied,
        }
    }

    /// A `Loop` with a copy of the body for each iteration.
    fn loop_copies(
        &mut self,
        body: &Body<'_>,
        mut done: Iterated,
        most: Option<i64>,
        condition: Option<bool>,
    ) -> Result<Vec<String>, Stop> {
        let (mut count, mut goes_on) = (0, condition != Some(false));
        let always = NodeWriter { importer: self, label: body.label }.constant(TensorData::scalar(Scalar::bool(true)));
        while goes_on && most.is_none_or(|most| count < most) {
            self.admit_copies(body, count.unsigned_abs() + 1)?;
            let results = self.loop_iteration(body, count, &always, &done.carried)?;
            self.meanings(&results)?;
            goes_on = self.decided(&results[0])? != 0;
            if condition.is_none() && !goes_on {
                // By the specification a body's condition has no effect then; other run times end the loop.
                return unsupported("it has no condition, and its body computes one that is false");
            }
            done.take(results[1..].to_vec());
            count += 1;
        }
        let mut results = done.carried.clone();
        for (i, parts) in done.collected.iter().enumerate() {
            results.push(match parts.is_empty() {
                true => self.without_iterations(body, &always, &done.carried, i)?,
                false => self.stacked(parts, Direction::default(), body.label)?,
            });
        }
        Ok(results)
    }

    /// The loop as it is, if it can stay one. Where types are not known, short ones are written out all the same, and others if
    /// all that is known of shapes and values is not enough.
    fn kept(&mut self, site: &LoopSite<'_>) -> Result<Option<Vec<String>>, Stop> {
        let nodes = site.body.graph.node.len() as u64;
        let last = self.options.analysis.is_some();
        match self.tried(site) {
            Err(Stop::Unsupported(why)) if why == UNDECIDED && (last || site.is_short(nodes)) => Ok(None),
            results => results,
        }
    }

    /// What is known of an operand of a `Loop` that says how often it runs.
    fn bound(&mut self, node: &NodeProto, i: usize) -> Result<Bound, Stop> {
        let Some(name) = node.input.get(i).filter(|n| !n.is_empty()) else { return Ok(Bound::Absent) };
        match self.decided_extent(name) {
            Ok(number) => Ok(Bound::Known(number)),
            Err(Stop::Unsupported(why)) if why == UNDECIDED => Ok(Bound::Open(name.clone())),
            Err(stop) => Err(stop),
        }
    }

    /// A copy of the body of a `Loop`, with the number of the iteration and a condition that holds.
    fn loop_iteration(
        &mut self,
        body: &Body<'_>,
        count: i64,
        always: &str,
        carried: &[String],
    ) -> Result<Vec<String>, Stop> {
        let number = NodeWriter { importer: self, label: body.label }.constant(TensorData::scalar(Scalar::i64(count)));
        let front = [number, always.to_owned()];
        self.iteration(body, front.into_iter().chain(carried.iter().cloned()).collect())
    }

    /// A result of a `Loop` that collects values of no iteration: empty, of the shape of one that is not computed.
    fn without_iterations(
        &mut self,
        body: &Body<'_>,
        always: &str,
        carried: &[String],
        i: usize,
    ) -> Result<String, Stop> {
        let outside = std::mem::replace(&mut self.speculative, true);
        let results = self.loop_iteration(body, 0, always, carried)?;
        self.speculative = outside;
        let Some(element) = self.analysed_type(&results[1 + carried.len() + i])?.dense() else {
            return unsupported(UNDECIDED);
        };
        let dims: Vec<u64> = std::iter::once(0).chain(element.dims.iter().copied()).collect();
        let empty = TensorData::splat(&dims, Scalar::zero(element.dtype));
        Ok(NodeWriter { importer: self, label: body.label }.constant(empty))
    }

    fn scan_results(&mut self, node: &NodeProto, body: &Body<'_>) -> Result<Vec<String>, Stop> {
        let (initial, scanned) = operands(node, &node.input)?;
        body.expect(node.input.len(), initial.len())?;
        let through = directions(node, "scan_input", scanned.len())?;
        let built = directions(node, "scan_output", body.graph.output.len() - initial.len())?;
        let mut site = LoopSite {
            body,
            trips: None,
            limit: None,
            condition: None,
            conditioned: false,
            initial: initial.to_vec(),
            scanned: scanned.iter().cloned().zip(through.iter().copied()).collect(),
            stacked: built.clone(),
            cut: false,
            counts: false,
        };
        let in_plan = self.scan_in_plan(&mut site);
        self.or_hosted(in_plan, &site, true)
    }

    /// A `Scan` as a loop of a plan, or as copies of its body.
    fn scan_in_plan(&mut self, site: &mut LoopSite<'_>) -> Result<Vec<String>, Stop> {
        for (name, direction) in &site.scanned {
            let extent = self.open_extent(name, direction.axis)?;
            if *site.trips.get_or_insert(extent) != extent {
                return unsupported("the tensors that it goes through have different lengths");
            }
        }
        if site.trips.is_some_and(|n| n > Extent::ZERO)
            && let Some(results) = self.kept(site)?
        {
            return Ok(results);
        }
        let scanned: Vec<_> = site.scanned.iter().map(|(name, direction)| (name, *direction)).collect();
        self.scan(site.body, site.initial.clone(), &scanned, &site.stacked)
    }

    /// The form of version 8: all values have a batch before the axis that is gone through, and each element of the batch is
    /// computed by itself.
    fn batched_scan_results(&mut self, node: &NodeProto, body: &Body<'_>) -> Result<Vec<String>, Stop> {
        if node.input.first().is_some_and(|lengths| !lengths.is_empty()) {
            return unsupported("lengths of sequences are not supported");
        }
        let values = node.input.get(1..).unwrap_or_default();
        let carried = operands(node, values)?.0.len();
        body.expect(values.len(), carried)?;
        let backwards = integers(node, "directions", values.len() - carried)?;
        let through = backwards.iter().map(|b| Direction { axis: 0, backwards: *b != 0 });
        let through: Vec<Direction> = through.collect();
        let slices = values.iter().map(|name| self.slices(name, 0, body.label)).collect::<Result<Vec<_>, _>>()?;
        let built = vec![Direction::default(); body.graph.output.len() - carried];
        let mut results: Vec<Vec<String>> = vec![vec![]; body.graph.output.len()];
        for element in transposed(&slices)? {
            let (initial, scanned) = element.split_at(carried);
            let scanned: Vec<_> = scanned.iter().zip(through.iter().copied()).collect();
            let own = self.scan(body, initial.to_vec(), &scanned, &built)?;
            results.iter_mut().zip(own).for_each(|(list, value)| list.push(value));
        }
        results.iter().map(|parts| self.stacked(parts, Direction::default(), body.label)).collect()
    }

    /// Goes through tensors side by side.
    fn scan(
        &mut self,
        body: &Body<'_>,
        initial: Vec<String>,
        scanned: &[(&String, Direction)],
        built: &[Direction],
    ) -> Result<Vec<String>, Stop> {
        let mut slices = vec![];
        for (name, direction) in scanned {
            let mut parts = self.slices(name, direction.axis, body.label)?;
            if direction.backwards {
                parts.reverse();
            }
            slices.push(parts);
        }
        let mut done = Iterated::new(initial, built.len());
        let copies = transposed(&slices)?;
        self.admit_copies(body, copies.len() as u64)?;
        for own in copies {
            let results = self.iteration(body, done.carried.iter().cloned().chain(own).collect())?;
            self.meanings(&results)?;
            done.take(results);
        }
        let Iterated { carried: mut results, collected } = done;
        for (parts, direction) in collected.iter().zip(built) {
            results.push(self.stacked(parts, *direction, body.label)?);
        }
        Ok(results)
    }

    /// Imports a copy of the body.
    pub(super) fn iteration(&mut self, body: &Body<'_>, arguments: Vec<String>) -> Result<Vec<String>, Stop> {
        let budget = &mut self.files.budget;
        budget.take_nodes(NODES_PER_ITERATION).map_err(OnnxError::from)?;
        budget.take_copy(body.weight).map_err(OnnxError::from)?;
        Ok(self.inline(body.graph.clone(), &arguments, body.opsets, body.label)?)
    }

    /// Whether the body is written out so often.
    fn admit_copies(&self, body: &Body<'_>, count: u64) -> Result<(), Stop> {
        match self.options.only_short && !is_short(count, body.graph.node.len() as u64) {
            true => unsupported(UNDECIDED),
            false => Ok(()),
        }
    }

    /// The extent of a tensor along an axis, as a number of copies.
    pub(super) fn extent(&mut self, name: &str, axis: i64) -> Result<u64, Stop> {
        Ok(copies(self.open_extent(name, axis)?)?.unsigned_abs())
    }

    /// The extent of a tensor along an axis, which may depend on symbols.
    pub(super) fn open_extent(&mut self, name: &str, axis: i64) -> Result<Extent, Stop> {
        let rank = self.axis_in(name, axis)?;
        let ty = self.analysed_type(name)?;
        let extent = ty.shape.dims().and_then(|dims| dims.get(axis.rem_euclid(rank) as usize)?.as_extent());
        extent.map_or_else(|| unsupported(UNDECIDED), Ok)
    }

    /// The rank of a tensor, which has the axis.
    pub(super) fn axis_in(&mut self, name: &str, axis: i64) -> Result<i64, Stop> {
        let Some(rank) = self.analysed_type(name)?.shape.rank() else { return unsupported(UNDECIDED) };
        let rank = rank as i64;
        match (-rank..rank).contains(&axis) {
            true => Ok(rank),
            false => unsupported(&format!("it goes along axis {axis} of a tensor of rank {rank}")),
        }
    }

    /// Parts of a tensor along an axis, of equal sizes if none are given.
    pub(super) fn split(
        &mut self,
        name: &str,
        axis: i64,
        count: u64,
        sizes: Option<&[i64]>,
        label: &Arc<str>,
    ) -> Result<Vec<String>, Stop> {
        self.files.budget.take_nodes(count).map_err(OnnxError::from)?;
        let parts: Vec<String> = (0..count).map(|_| self.fresh_name(name)).collect();
        if parts.is_empty() {
            return Ok(parts);
        }
        let mut writer = NodeWriter { importer: self, label };
        let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
        match sizes.map(|sizes| writer.i64s(sizes)) {
            None => {
                let attributes = vec![int("axis", axis), int("num_outputs", count as i64)];
                writer.node_to("Split", &[name], attributes, &outputs)?;
            }
            Some(sizes) => writer.node_to("Split", &[name, &sizes], vec![int("axis", axis)], &outputs)?,
        }
        Ok(parts)
    }

    /// The elements of a tensor along an axis.
    pub(super) fn slices(&mut self, name: &str, axis: i64, label: &Arc<str>) -> Result<Vec<String>, Stop> {
        let extent = self.extent(name, axis)?;
        let parts = self.split(name, axis, extent, None, label)?;
        let mut writer = NodeWriter { importer: self, label };
        let axes = writer.i64s(&[axis]);
        let squeezed = parts.iter().map(|part| writer.node("Squeeze", &[part, &axes], vec![]));
        Ok(squeezed.collect::<Result<_, _>>()?)
    }

    /// A tensor of values along a new axis.
    pub(super) fn stacked<N: AsRef<str>>(
        &mut self,
        parts: &[N],
        direction: Direction,
        label: &Arc<str>,
    ) -> Result<String, Stop> {
        self.files.budget.take_nodes(parts.len() as u64).map_err(OnnxError::from)?;
        let mut writer = NodeWriter { importer: self, label };
        let axes = writer.i64s(&[direction.axis]);
        let rows = parts.iter().map(|part| writer.node("Unsqueeze", &[part.as_ref(), &axes], vec![]));
        let mut rows: Vec<String> = rows.collect::<Result<_, _>>()?;
        if direction.backwards {
            rows.reverse();
        }
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        Ok(writer.node("Concat", &rows, vec![int("axis", direction.axis)])?)
    }

    /// A value that is known when the model is imported.
    pub(super) fn known(&mut self, name: &str) -> Result<TensorData, Stop> {
        let constant = self.lookup(name)?.and_then(|value| self.handed_on(value));
        let known = if constant.is_some() { constant } else { self.analyse(name)?.value };
        known.map_or_else(|| unsupported(UNDECIDED), Ok)
    }

    /// The one element of a value that is known when the model is imported.
    pub(super) fn decided(&mut self, name: &str) -> Result<i64, Stop> {
        Ok(self.decided_extent(name)?.fixed())
    }

    /// As [`Importer::decided`], of a number that may depend on symbols.
    fn decided_extent(&mut self, name: &str) -> Result<Extent, Stop> {
        let known = self.known(name)?;
        match (known.len() == 1).then(|| known.extents()).as_deref() {
            Some([element]) => Ok(*element),
            _ => unsupported(&format!("`{name}` is not a single number")),
        }
    }
}

/// A number of copies of something, which must not depend on symbols.
fn copies(number: Extent) -> Result<i64, Stop> {
    number.known().map_or_else(|| unsupported(UNDECIDED), Ok)
}

/// The operands of a `Scan` that are carried, and those that it goes through.
fn operands<'n>(node: &NodeProto, values: &'n [String]) -> Result<(&'n [String], &'n [String]), Stop> {
    let count = node.attribute.iter().find(|a| a.name() == "num_scan_inputs").and_then(|a| usize::try_from(a.i()).ok());
    match count.filter(|count| (1..=values.len()).contains(count)) {
        Some(count) => Ok(values.split_at(values.len() - count)),
        None => unsupported("attribute `num_scan_inputs` is missing, or does not fit the operands"),
    }
}

/// Axes and directions of the tensors that a `Scan` goes through or builds.
fn directions(node: &NodeProto, of: &str, count: usize) -> Result<Vec<Direction>, Stop> {
    let axes = integers(node, &format!("{of}_axes"), count)?;
    let backwards = integers(node, &format!("{of}_directions"), count)?;
    Ok(axes.into_iter().zip(backwards).map(|(axis, b)| Direction { axis, backwards: b != 0 }).collect())
}

/// An attribute with an integer for each of so many tensors, 0 by default.
fn integers(node: &NodeProto, name: &str, count: usize) -> Result<Vec<i64>, Stop> {
    let Some(attribute) = node.attribute.iter().find(|a| a.name() == name) else { return Ok(vec![0; count]) };
    match attribute::ints(attribute) {
        Ok(list) if list.len() == count => Ok(list),
        Ok(list) => unsupported(&format!("attribute `{name}` has {} integers for {count} tensors", list.len())),
        Err(why) => unsupported(&format!("attribute `{name}`: {why}")),
    }
}

/// From the elements of each tensor to the tensors' elements of each step.
fn transposed(slices: &[Vec<String>]) -> Result<Vec<Vec<String>>, Stop> {
    let count = slices.first().map_or(0, Vec::len);
    match slices.iter().all(|parts| parts.len() == count) {
        true if count == 0 => unsupported("it goes through a tensor without elements"),
        true => Ok((0..count).map(|i| slices.iter().map(|parts| parts[i].clone()).collect()).collect()),
        false => unsupported("the tensors that it goes through have different lengths"),
    }
}
