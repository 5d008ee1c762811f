//! The parts of a model whose shapes depend on values ([`tensorc_passes::parts`]), each for ranges of the numbers that are known
//! before it: extents of inputs, and what earlier parts tell.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use tensorc_abi::FindOp;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::{DType, DenseType, Extent};
use tensorc_passes::parts::{Facts, HostCall, HostOperand, MAX_EXTENT, PartShape, ShapeSource, SourceKind, next_part};
use tensorc_passes::template::{Place, Template};

use super::common::{check_types, common_shape, divided_differently};
use super::constants::Constants;
use super::cover::{OpenTypes, Ranges};
use super::decided::holds_for_all;
use super::elements::find_ranges;
use super::flows::{FlowRequest, HostedBodies};
use super::variants::{self, Variant};
use super::{AotRequest, ExtentRange};
use crate::binding;
use crate::compile::Report;
use crate::error::Error;
use crate::model::Model;
use crate::templates::OpenModel;

/// How often a part is compiled until it is the same for all numbers.
const MAX_ATTEMPTS: usize = 16;

/// Where a number comes from that decides shapes.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub value: Value,
    /// Whether it is an element of the value, rather than an extent.
    pub is_element: bool,
    /// Which element, or the axis.
    pub position: usize,
    /// Whether numbers beyond the greatest are as good as that.
    pub saturates: bool,
}

/// A part of a model, and the numbers that it is compiled for.
pub struct PartRequest<'a> {
    pub model: &'a Model,
    pub request: &'a AotRequest,
    /// What is known before it, without numbers.
    facts: Facts,
    /// Where the numbers come from.
    pub origins: Vec<Origin>,
    /// The numbers that its shapes depend on.
    pub names: Vec<String>,
    pub ranges: Ranges,
    /// The types of sources by those.
    pub types: OpenTypes,
    /// Whether a shape in the ranges that the model does not take is an error, rather than one that a run refuses.
    pub refuses: bool,
}

impl<'a> PartRequest<'a> {
    /// The first part, for the ranges that a request states of inputs.
    fn first(model: &'a Model, request: &'a AotRequest, refuses: bool) -> Result<PartRequest<'a>, Error> {
        let is_input = |name: &&String| !OpenTypes::places(model.graph(), name).is_empty();
        let names: Vec<String> = request.ranges.keys().filter(is_input).cloned().collect();
        let ranges: Ranges = names.iter().map(|name| request.ranges[name]).collect();
        let least: Vec<u64> = ranges.iter().map(|range| range.first).collect();
        let types = input_types(model, request, &names, &least)?;
        let facts = Facts::of_inputs(model.graph(), &[]);
        let types = OpenTypes::new(model.graph(), &names, types);
        let origin = |(input, position): Place| {
            let value = facts.sources[input].value;
            Origin { value, is_element: false, position, saturates: false }
        };
        let origins = types.dimensions().map(origin).collect();
        Ok(PartRequest { model, request, facts, origins, names, ranges, types, refuses })
    }

    /// What is known where sources have these types.
    fn facts(&self, types: &[DenseType]) -> Facts {
        Facts { types: types.to_vec(), ..self.facts.clone() }
    }

    /// Whether nothing is known but types of inputs.
    pub fn is_first(&self) -> bool {
        self.facts.sources.len() == self.model.graph().inputs().len()
    }

    /// What is compiled for these numbers and many others.
    pub fn open(&self, types: &[DenseType], report: &mut Report) -> Option<Arc<OpenModel>> {
        self.model.open_part(&self.facts(types), report)
    }

    /// The fused graph for these numbers, if what was compiled for others holds for them, too.
    pub fn fused(&self, types: &[DenseType], report: &mut Report) -> Option<(Graph, PartShape)> {
        let model = self.open(types, report)?;
        let mut graph = model.template().graph_for(types)?;
        self.add_numbers(&mut graph, &|place| Some(number_at(types, place)));
        Some((graph, model.shape().clone()))
    }

    /// The typed graph for these numbers.
    ///
    /// # Errors
    /// The model does not take them.
    pub fn typed(&self, types: &[DenseType]) -> Result<(Graph, PartShape), Error> {
        let inputs = &types[..self.model.graph().inputs().len()];
        let mut graph = self.model.graph_for(inputs).map_err(|error| match error {
            Error::Binding(diagnostic) => Error::Diagnostic(diagnostic),
            error => error,
        })?;
        let facts = match self.is_first() {
            true => Facts { required: self.facts.required.clone(), ..Facts::of_inputs(&graph, types) },
            false => self.facts(types),
        };
        let shape = next_part(&mut graph, self.model.compiler().typing(), &facts)?;
        self.add_numbers(&mut graph, &|place| Some(number_at(types, place)));
        Ok((graph, shape))
    }

    /// Adds the inputs that are numbers to the graph of a template; of each symbol, an input and an axis whose extent it is.
    pub fn add_to_template(&self, template: &mut Template) -> Vec<Place> {
        if self.is_first() {
            return template.places().collect();
        }
        let numbers: BTreeMap<Place, Option<Extent>> =
            self.types.dimensions().map(|place| (place, template.number_at(place))).collect();
        template.change(|graph| self.add_numbers(graph, &|place| numbers[&place]));
        let dimension = |place: Place| (self.types.dimension(place).unwrap_or(0), 0);
        template.places().map(dimension).collect()
    }

    /// Adds an input in front for each number, whose extent it is, to the graph of a part behind the first.
    fn add_numbers(&self, graph: &mut Graph, number: &dyn Fn(Place) -> Option<Extent>) {
        if self.is_first() {
            return;
        }
        for (i, (name, place)) in self.names.iter().zip(self.types.dimensions()).enumerate() {
            let extents: Vec<Extent> = number(place).into_iter().collect();
            let ty = DenseType { dtype: DType::U8, dims: extents.into_iter().collect() };
            graph.insert_input(i, name.as_str(), ty.into());
        }
    }

    /// The error with the numbers at which it came up.
    pub fn within(&self, extents: &[u64], error: Error) -> Error {
        match error {
            Error::Diagnostic(diagnostic) if !extents.is_empty() => {
                let stated = self.names.iter().zip(extents).map(|(name, extent)| format!("{name} = {extent}"));
                Error::Artifact(format!("with {}: {diagnostic}", stated.collect::<Vec<_>>().join(", ")))
            }
            error => error,
        }
    }

    /// Adds a source of shapes, with the ranges of its open numbers.
    fn add(&mut self, source: &ShapeSource, ranges: Ranges) {
        let name = &self.model.graph().node(source.value.node).name;
        let names = source.open_positions().iter().map(|position| source.number_name(name, *position));
        let is_element = source.kind == SourceKind::Elements;
        // A whole number has two halves.
        let origin = |position: &usize| {
            let position = if is_element { position / 2 } else { *position };
            Origin { value: source.value, is_element, position, saturates: false }
        };
        self.names.extend(names);
        self.origins.extend(source.open_positions().iter().map(origin));
        self.ranges.extend(ranges);
        self.types.add(source.numbers.clone(), source.open_positions());
        self.facts.sources.push(source.clone());
    }
}

fn number_at(types: &[DenseType], (source, position): Place) -> Extent {
    types[source].dims.at(position)
}

/// The types of the inputs for some extents of the dynamic dimensions.
fn input_types(
    model: &Model,
    request: &AotRequest,
    names: &[String],
    extents: &[u64],
) -> Result<Vec<DenseType>, Error> {
    let mut graph = model.graph().clone();
    let mut shapes: BTreeMap<String, Vec<u64>> = request.shapes.clone();
    shapes.extend(names.iter().cloned().zip(extents.iter().map(|extent| vec![*extent])));
    binding::bind(&mut graph, &shapes)?;
    binding::input_types(&graph)
}

/// A part, compiled.
pub struct CompiledPart {
    /// The numbers that are known before it, and what they may be.
    pub names: Vec<String>,
    pub ranges: Ranges,
    /// What it reads, gives and is followed by.
    pub shape: PartShape,
    /// Which variants are its own.
    pub variants: Range<usize>,
}

/// What a value has at most.
#[derive(Clone, Debug)]
pub struct Most {
    pub dtype: DType,
    pub dims: Vec<u64>,
    pub bytes: u64,
}

impl Most {
    /// Of a tensor with these extents.
    pub fn of(dtype: DType, dims: Vec<u64>) -> Most {
        let bytes = dims.iter().fold(dtype.size() as u64, |n: u64, dim| n.saturating_mul(*dim));
        Most { dtype, dims, bytes }
    }

    /// Takes the greater of both extents of each axis.
    pub fn widen(&mut self, others: &[u64]) {
        let dims = self.dims.iter().zip(others).map(|(n, other)| *n.max(other)).collect();
        *self = Most::of(self.dtype, dims);
    }
}

/// A model, compiled in parts.
pub struct Division {
    pub graph: Graph,
    pub parts: Vec<CompiledPart>,
    /// What parts and the host compute, and inputs.
    pub most: BTreeMap<Value, Most>,
    /// Where the numbers come from that the last part knows.
    pub origins: Vec<Origin>,
    /// Branches and loops that the host runs, by their nodes.
    pub flows: BTreeMap<NodeId, HostedBodies>,
}

impl Division {
    /// Compiles the parts of a model one after the other, and the variants of all. Branches and loops that neither types nor the model
    /// itself decide belong to the host.
    ///
    /// # Errors
    /// The request does not fit the model, or a part does not compile.
    pub fn compile(model: &Model, request: &AotRequest) -> Result<(Division, Vec<Variant>), Error> {
        check_ranges(request)?;
        let hosted = hosted_model(model, request)?;
        let mut divider = Divider::default();
        let division = match divider.divide(hosted.as_ref().unwrap_or(model), request, true) {
            Err(error @ Error::Parts { .. }) => {
                let Some(hosted) = by_host(model, request)? else { return Err(error) };
                divider = Divider::default();
                divider.divide(&hosted, request, true)?
            }
            made => made?,
        };
        if let Some((name, range)) = request.ranges.iter().find(|(name, _)| !division.knows(name)) {
            let unknown = BTreeMap::from([(name.clone(), vec![range.first])]);
            binding::bind(&mut model.graph().clone(), &unknown)?;
        }
        Ok((division, divider.variants))
    }

    /// Whether a number of this name decides shapes.
    fn knows(&self, name: &String) -> bool {
        let mut bodies = self.flows.values().flat_map(|flow| &flow.bodies);
        self.parts.iter().any(|part| part.names.contains(name)) || bodies.any(|body| body.knows(name))
    }

    /// The parts, then those of bodies.
    pub fn all_parts(&self) -> Vec<&CompiledPart> {
        let bodies = self.flows.values().flat_map(|flow| &flow.bodies);
        self.parts.iter().chain(bodies.flat_map(Division::all_parts)).collect()
    }
}

/// The model with branches and loops for the host, if the least or the greatest types of inputs do not decide them, or not all shapes
/// behind.
fn hosted_model(model: &Model, request: &AotRequest) -> Result<Option<Model>, Error> {
    if !model.has_branches() || request.gpu.is_some() {
        return Ok(None);
    }
    let first = PartRequest::first(model, request, true)?;
    for types in first.types.corners(&first.ranges) {
        if !first.typed(&types)?.1.is_last() {
            return by_host(model, request);
        }
    }
    Ok(None)
}

/// The model with branches and loops for the host, but for branches that all shapes of the request take alike.
fn by_host(model: &Model, request: &AotRequest) -> Result<Option<Model>, Error> {
    if request.gpu.is_some() {
        return Ok(None);
    }
    let first = PartRequest::first(model, request, true)?;
    model.by_host(&|graph, condition| holds_for_all(&first, graph, condition)).transpose()
}

/// Compiles a model, and the bodies of its branches and loops.
#[derive(Default)]
pub struct Divider {
    shared: Constants,
    /// Of all parts.
    pub variants: Vec<Variant>,
}

impl Divider {
    /// Compiles the parts of a model one after the other. `refuses` as [`PartRequest::refuses`], of the first.
    ///
    /// # Errors
    /// As [`Division::compile`].
    pub fn divide(&mut self, model: &Model, request: &AotRequest, refuses: bool) -> Result<Division, Error> {
        let mut part = PartRequest::first(model, request, refuses)?;
        let (mut parts, mut most, mut flows) = (vec![], most_of_inputs(&part), BTreeMap::new());
        loop {
            let (variants, shape) = self.variants_of(&mut part)?;
            for (i, v) in shape.outputs.iter().enumerate() {
                most.insert(*v, most_of_output(&variants, i));
            }
            let (names, ranges) = (part.names.clone(), part.ranges.clone());
            let own = self.variants.len()..self.variants.len() + variants.len();
            parts.push(CompiledPart { names, ranges, shape: shape.clone(), variants: own });
            self.variants.extend(variants);
            if shape.is_last() {
                break;
            }
            if request.gpu.is_some() || model.has_lists() {
                return Err(Error::Parts { model: model.graph().name.to_string() });
            }
            for call in &shape.hosts {
                match model.graph().flow(call.node) {
                    Some(flow) => {
                        let (bodies, results) =
                            FlowRequest { model, request, call, flow, most: &most }.compile(self)?;
                        flows.insert(call.node, bodies);
                        most.extend(results);
                    }
                    None => most.extend(most_of_call(model, call, &most)?),
                }
            }
            follow(&mut part, &shape, &most)?;
        }
        Ok(Division { graph: model.graph().clone(), parts, most, origins: part.origins, flows })
    }
}

impl Divider {
    /// The variants of a part, and its shape, which all of them have.
    ///
    /// # Errors
    /// As [`Division::compile`].
    fn variants_of(&self, part: &mut PartRequest<'_>) -> Result<(Vec<Variant>, PartShape), Error> {
        let model = part.model;
        for _ in 0..MAX_ATTEMPTS {
            let variants = variants::compile(part, &self.shared)?;
            // Each shape may take branches of its own, of which nothing is seen from outside of a model that is no parts.
            let is_whole = part.is_first() && variants.iter().all(|variant| variant.shape.is_last());
            let common = if is_whole { Some(&variants[0].shape) } else { common_shape(&variants) };
            let shape = common.cloned();
            if model.has_branches() && shape.as_ref().is_none_or(|shape| !shape.is_last()) {
                return Err(Error::Parts { model: model.graph().name.to_string() });
            }
            if let Some(shape) = shape {
                check_types(part, &variants)?;
                return Ok((variants, shape));
            }
            let shapes = variants.iter().map(|variant| &variant.shape);
            if !part.facts.required.reconcile(model.graph(), shapes) {
                return Err(divided_differently(part, &variants));
            }
            model.compiler().progress("the same parts for all shapes");
        }
        Err(Error::Internal(format!("model `{}` has no common parts for its shapes", model.graph().name)))
    }
}

fn check_ranges(request: &AotRequest) -> Result<(), Error> {
    for (name, range) in &request.ranges {
        let why = match range {
            _ if range.first > range.last => "is empty",
            _ if range.step == 0 => "has a step of 0",
            _ if range.last > MAX_EXTENT => "has extents that no axis has",
            _ if range.at(range.count() - 1) != range.last => "does not end at a step",
            _ => continue,
        };
        return Err(Error::Artifact(format!("the range {range} of `{name}` {why}")));
    }
    Ok(())
}

/// What is known behind a part.
fn follow(part: &mut PartRequest<'_>, shape: &PartShape, most: &BTreeMap<Value, Most>) -> Result<(), Error> {
    part.facts.required = part.facts.required.after();
    part.refuses = false;
    part.facts.available.extend(&shape.outputs);
    part.facts.available.extend(most.keys());
    let mut elements = vec![];
    for source in &shape.sources {
        let known = most.get(&source.value).filter(|_| source.kind == SourceKind::Result);
        // Elements have their ranges when all sources are there.
        let name = &part.model.graph().node(source.value.node).name;
        let stated = |axis: usize| known.and_then(|_| part.request.ranges.get(&source.number_name(name, axis)));
        let range = |axis: &usize| match stated(*axis) {
            Some(range) => *range,
            None => ExtentRange::all(0, known.map_or(0, |most| most.dims[*axis])),
        };
        if source.kind == SourceKind::Elements {
            elements.push((source, part.names.len()));
        }
        part.add(source, source.open_positions().iter().map(range).collect());
    }
    find_ranges(part, &elements)?;
    // What is empty reads less.
    let greatest: Vec<u64> = part.ranges.iter().map(|range| range.last).collect();
    part.facts.required.inputs = match part.typed(&part.types.at(&greatest)) {
        Ok((_, shape)) => shape.inputs.into_iter().collect(),
        Err(_) => BTreeSet::new(),
    };
    Ok(())
}

fn most_of_inputs(part: &PartRequest<'_>) -> BTreeMap<Value, Most> {
    let [_, greatest] = part.types.corners(&part.ranges);
    let inputs = part.facts.sources.iter().zip(&greatest);
    let most = |(source, ty): (&ShapeSource, &DenseType)| {
        (source.value, Most { dtype: ty.dtype, dims: ty.dims.to_vec(), bytes: ty.bytes() })
    };
    inputs.map(most).collect()
}

fn most_of_output(variants: &[Variant], output: usize) -> Most {
    let plan = &variants[0].plan;
    let dtype = plan.buffer(plan.outputs[output]).dtype;
    let all = variants.iter().map(|variant| variant.most(output));
    let most = all.reduce(|(mut dims, bytes), (others, other)| {
        dims.iter_mut().zip(others).for_each(|(n, other)| *n = (*n).max(other));
        (dims, bytes.max(other))
    });
    let (dims, bytes) = most.unwrap_or_default();
    Most { dtype, dims, bytes }
}

/// What an operator of the host looks for.
///
/// # Errors
/// It is none that finds elements as the run-time library does.
pub fn find_op(graph: &Graph, call: &HostCall, first: usize) -> Result<FindOp, Error> {
    let node = graph.node(call.node);
    let refused = |what: &str| {
        Err(Error::Artifact(format!(
            "`{}`: {what} is computed between two parts, which artifacts do not do",
            node.name
        )))
    };
    let NodeKind::Op(op) = &node.kind else { return refused("it") };
    let Some(finds) = &op.def.finds else { return refused(op.def.name) };
    finds(&op.params, first).map_err(|e| Error::Artifact(format!("`{}`: {}", node.name, e.0)))
}

/// The shapes of operands at most.
pub fn most_of_operands<'m>(call: &'m HostCall, most: &'m BTreeMap<Value, Most>) -> Vec<Option<&'m [u64]>> {
    let dims = |operand: &'m HostOperand| match operand {
        HostOperand::Constant(data) => Some(data.dims()),
        HostOperand::Value(v) => most.get(v).map(|most| &most.dims[..]),
    };
    call.operands.iter().map(|operand| operand.as_ref().and_then(dims)).collect()
}

fn most_of_call(model: &Model, call: &HostCall, most: &BTreeMap<Value, Most>) -> Result<Vec<(Value, Most)>, Error> {
    let graph = model.graph();
    let operands = most_of_operands(call, most);
    let first = operands.first().copied().flatten().unwrap_or_default();
    let op = find_op(graph, call, first.len())?;
    let found = op.most(&operands);
    let results = graph.node(call.node).types.len();
    let result = |port: usize| {
        let dims: Vec<u64> = op.result_dims(port, first, found).collect();
        let value = Value { node: call.node, port: port as u16 };
        let first = match &call.operands[0] {
            Some(HostOperand::Constant(data)) => data.dtype(),
            Some(HostOperand::Value(v)) => most.get(v).map_or(DType::I64, |most| most.dtype),
            None => DType::I64,
        };
        let dtype = op.result_dtype(port, first);
        (value, Most::of(dtype, dims))
    };
    Ok((0..results).map(result).collect())
}
