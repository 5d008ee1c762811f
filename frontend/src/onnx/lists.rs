//! Sequences and optional values. A graph has tensors alone, so that the length of a sequence, and whether an optional value
//! has an element, must be known when the model is imported: it follows from shapes and constants, and for inputs the
//! caller says it ([`super::ImportOptions::lengths`]).

use std::rc::Rc;
use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;

use super::error::OnnxError;
use super::import::Importer;
use super::load::{OnnxModel, Opsets};
use super::meaning::{Meaning, element_name};
use super::proto::{
    AttributeProto, AttributeType, DimensionValue, ElementTypeProto, NodeProto, TensorTypeProto, TypeValue,
    ValueInfoProto,
};
use super::unroll::{Body, Direction};
use super::unsupported::{Stop, UNDECIDED, UNKNOWN_LENGTH, unsupported};
use super::upgrade::{ValueFacts, int};
use super::writer::NodeWriter;

/// An input of a model that is a sequence of tensors, optional, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListInput {
    /// Its name in the model.
    pub name: String,
    /// Whether it may have no element.
    pub optional: bool,
    /// Whether it is a sequence, or an optional one; else it is an optional tensor.
    pub sequence: bool,
}

/// The inputs of a model that are sequences or optional.
pub fn list_inputs(model: &OnnxModel) -> Vec<ListInput> {
    let one = |info: &super::proto::ValueInfoProto| {
        let list = ListType::of(info.r#type.as_ref()?.value.as_ref()?)?;
        Some(ListInput { name: info.name().to_owned(), optional: list.optional, sequence: list.sequence })
    };
    model.graph.input.iter().filter_map(one).collect()
}

/// A type that [`ListInput`] describes.
struct ListType<'t> {
    optional: bool,
    sequence: bool,
    tensor: &'t TensorTypeProto,
}

impl ListType<'_> {
    /// `None` for other types.
    fn of(declared: &TypeValue) -> Option<ListType<'_>> {
        fn inner(element: &ElementTypeProto) -> Option<&TypeValue> {
            element.elem_type.as_deref()?.value.as_ref()
        }
        match declared {
            TypeValue::Sequence(element) => match inner(element)? {
                TypeValue::Tensor(tensor) => Some(ListType { optional: false, sequence: true, tensor }),
                _ => None,
            },
            TypeValue::Optional(element) => match inner(element)? {
                TypeValue::Tensor(tensor) => Some(ListType { optional: true, sequence: false, tensor }),
                other => ListType::of(other).filter(|list| !list.optional).map(|l| ListType { optional: true, ..l }),
            },
            _ => None,
        }
    }

    /// The type of each tensor of a sequence: extents of one name may differ between them.
    fn element(&self) -> TensorTypeProto {
        let mut tensor = self.tensor.clone();
        for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
            if matches!(dim.value, Some(DimensionValue::Param(_))) {
                dim.value = None;
            }
        }
        tensor
    }
}

/// Operators on sequences and optional values.
const LIST_OPERATORS: &[&str] = &[
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
];

impl Importer<'_> {
    /// Adds the inputs of the graph that a list has; the inner error says why it is not supported.
    pub(super) fn list_input(
        &mut self,
        name: &str,
        declared: &TypeValue,
    ) -> Result<Result<Meaning, String>, OnnxError> {
        let Some(list) = ListType::of(declared) else {
            return Ok(Err(format!("its type is a {}", declared.describe())));
        };
        let Some(&(_, length)) = self.options.lengths.iter().find(|(n, _)| *n == name) else {
            return Ok(Err(UNKNOWN_LENGTH.to_owned()));
        };
        match (list.sequence, length) {
            (_, 0) if list.optional => Ok(Ok(Meaning::Absent)),
            (false, 1) => self.tensor_input(name, list.tensor),
            (false, _) => Ok(Err("it is one tensor at most".to_owned())),
            (true, _) => {
                let (element, mut names) = (list.element(), vec![]);
                for name in (0..length).map(|i| element_name(name, i)) {
                    match self.tensor_input(&name, &element)? {
                        Ok(tensor) => self.define_input(&name, tensor)?,
                        Err(why) => return Ok(Err(why)),
                    }
                    names.push(name.into());
                }
                Ok(Ok(Meaning::Sequence(names.into())))
            }
        }
    }

    /// Whether [`Importer::list_node`] imports a node.
    pub(super) fn is_list_node(&self, node: &NodeProto) -> bool {
        let of_list = || node.input.first().and_then(|name| self.values.get(name)?.other_than_tensor()).is_some();
        LIST_OPERATORS.contains(&node.op_type()) || (node.op_type() == "Identity" && of_list())
    }

    /// Imports a node with operands or results that are sequences or optional; the inner error lists what is not supported.
    pub(super) fn list_node(
        &mut self,
        mut node: NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        let results = match node.op_type() {
            "SequenceMap" => self.mapped(&mut node, opsets, label),
            _ => self.list_or_packed(&node, label).map(|result| vec![result]),
        };
        self.settle(node.output, results)
    }

    /// What an operator gives: of known lengths and positions as long as they are known.
    fn list_or_packed(&mut self, node: &NodeProto, label: &Arc<str>) -> Result<Meaning, Stop> {
        let operands = self.meanings(node.input.iter().filter(|i| !i.is_empty()))?;
        if let Some(Meaning::Packed(_)) = operands.first() {
            return self.packed_result(node, &operands, label);
        }
        match self.list_result(node, operands.clone(), label) {
            Err(Stop::Unsupported(why)) if why == UNDECIDED && self.options.hosted => {
                self.packed_result(node, &operands, label)
            }
            result => result,
        }
    }

    fn list_result(&mut self, node: &NodeProto, operands: Vec<Meaning>, label: &Arc<str>) -> Result<Meaning, Stop> {
        let sequence = || match operands.first() {
            Some(Meaning::Sequence(tensors)) => Ok(tensors),
            _ => unsupported("its operand is not a sequence"),
        };
        Ok(match node.op_type() {
            "SequenceEmpty" => Meaning::Sequence(Rc::new([])),
            "SequenceConstruct" => self.sequence(node.input.iter().map(|name| name.as_str().into()).collect())?,
            "SequenceInsert" => {
                let (mut tensors, Some(tensor)) = (sequence()?.to_vec(), node.input.get(1)) else {
                    return unsupported("it has nothing to insert");
                };
                let at = self.position(node, 2, tensors.len(), tensors.len() + 1)?;
                tensors.insert(at.unwrap_or(tensors.len()), tensor.as_str().into());
                self.sequence(tensors)?
            }
            "SequenceErase" => {
                let mut tensors = sequence()?.to_vec();
                match self.position(node, 1, tensors.len(), tensors.len())? {
                    Some(at) => drop(tensors.remove(at)),
                    None if tensors.pop().is_some() => {}
                    None => return unsupported("its sequence is empty"),
                }
                self.sequence(tensors)?
            }
            "SequenceAt" => {
                let tensors = sequence()?;
                match self.position(node, 1, tensors.len(), tensors.len())? {
                    Some(at) => self.meaning(&tensors[at])?,
                    None => return unsupported("it has no position"),
                }
            }
            "SequenceLength" => self.constant(Scalar::i64(sequence()?.len() as i64), label)?,
            "ConcatFromSequence" => self.joined(node, sequence()?, label)?,
            "SplitToSequence" => self.divided(node, label)?,
            "OptionalHasElement" => {
                let there = operands.first().is_some_and(|operand| !matches!(operand, Meaning::Absent));
                self.constant(Scalar::bool(there), label)?
            }
            "OptionalGetElement" if matches!(operands.first(), None | Some(Meaning::Absent)) => {
                return unsupported("its operand has no element");
            }
            // Those that make an optional value, take its element, or hand it on.
            _ => operands.into_iter().next().unwrap_or(Meaning::Absent),
        })
    }

    /// A sequence of tensors that could all be imported.
    fn sequence(&mut self, tensors: Vec<Rc<str>>) -> Result<Meaning, Stop> {
        self.files.budget.take_copy(size_of_val(&tensors[..]) as u64).map_err(OnnxError::from)?;
        for name in &tensors {
            if self.imported(name)?.tensor().is_none() {
                return unsupported(&format!("`{name}`, an element, is not a tensor"));
            }
        }
        Ok(Meaning::Sequence(tensors.into()))
    }

    fn constant(&mut self, scalar: Scalar, label: &Arc<str>) -> Result<Meaning, OnnxError> {
        let name = NodeWriter { importer: self, label }.constant(TensorData::scalar(scalar));
        self.meaning(&name)
    }

    /// The position in a sequence of `length` tensors that an operand gives, below `most`; negative numbers count from the
    /// end. `None` without the operand.
    fn position(
        &mut self,
        node: &NodeProto,
        operand: usize,
        length: usize,
        most: usize,
    ) -> Result<Option<usize>, Stop> {
        let Some(name) = node.input.get(operand).filter(|name| !name.is_empty()) else { return Ok(None) };
        let position = self.decided(name)?;
        let counted = if position < 0 { position.checked_add(length as i64) } else { Some(position) };
        match counted.and_then(|n| usize::try_from(n).ok()).filter(|n| *n < most) {
            Some(at) => Ok(Some(at)),
            None => unsupported(&format!("position {position} is outside of a sequence of {length} tensors")),
        }
    }

    fn joined(&mut self, node: &NodeProto, tensors: &[Rc<str>], label: &Arc<str>) -> Result<Meaning, Stop> {
        let Some(axis) = integer(node, "axis") else { return unsupported("attribute `axis` is missing") };
        if tensors.is_empty() {
            return unsupported("its sequence is empty");
        }
        let joined = match integer(node, "new_axis").unwrap_or(0) {
            0 => {
                self.files.budget.take_nodes(tensors.len() as u64).map_err(OnnxError::from)?;
                let names: Vec<&str> = tensors.iter().map(|name| &**name).collect();
                NodeWriter { importer: self, label }.node("Concat", &names, vec![int("axis", axis)])?
            }
            _ => self.stacked(tensors, Direction::along(axis), label)?,
        };
        Ok(self.meaning(&joined)?)
    }

    fn divided(&mut self, node: &NodeProto, label: &Arc<str>) -> Result<Meaning, Stop> {
        let Some(name) = node.input.first() else { return unsupported("it has no operand") };
        let axis = integer(node, "axis").unwrap_or(0);
        let parts = match node.input.get(1).filter(|sizes| !sizes.is_empty()) {
            None if integer(node, "keepdims") == Some(0) => self.slices(name, axis, label)?,
            None => {
                let extent = self.extent(name, axis)?;
                self.split(name, axis, extent, None, label)?
            }
            Some(sizes) => {
                let sizes = self.known(sizes)?;
                let given: Vec<i64> = sizes.iter().map(|size| size.as_i64()).collect();
                let sizes = match (sizes.dims(), &given[..]) {
                    ([], [size]) => self.chunks(name, axis, *size)?,
                    _ => given,
                };
                self.split(name, axis, sizes.len() as u64, Some(&sizes), label)?
            }
        };
        self.sequence(parts.into_iter().map(Rc::from).collect())
    }

    /// Sizes of the parts of a tensor along an axis: all the same but for the last.
    fn chunks(&mut self, name: &str, axis: i64, size: i64) -> Result<Vec<i64>, Stop> {
        let extent = self.extent(name, axis)?;
        let Some(size) = u64::try_from(size).ok().filter(|size| *size > 0) else {
            return unsupported(&format!("it divides into parts of {size} elements"));
        };
        let count = extent.div_ceil(size);
        // An extent is as large as the model says.
        self.files.budget.allows_nodes(count).map_err(OnnxError::from)?;
        Ok((0..count).map(|i| size.min(extent - i * size) as i64).collect())
    }

    /// The results of a `SequenceMap`: its body applied to the tensors of sequences side by side, and to other operands as
    /// they are.
    fn mapped(&mut self, node: &mut NodeProto, opsets: &Rc<Opsets>, label: &Arc<str>) -> Result<Vec<Meaning>, Stop> {
        let body = Body::of(self, node, opsets, label)?;
        body.expect(node.input.len(), node.output.len())?;
        let operands = self.meanings(&node.input)?;
        if operands.iter().any(|operand| matches!(operand, Meaning::Packed(_))) {
            return self.mapped_in_run(node, &body, &operands);
        }
        let Some(Meaning::Sequence(first)) = operands.first() else {
            return unsupported("its first operand is not a sequence");
        };
        let mut results: Vec<Vec<Rc<str>>> = vec![vec![]; node.output.len()];
        for i in 0..first.len() {
            let mut arguments = vec![];
            for (name, operand) in node.input.iter().zip(&operands) {
                arguments.push(match operand {
                    Meaning::Sequence(tensors) => match tensors.get(i) {
                        Some(tensor) if tensors.len() == first.len() => tensor.to_string(),
                        _ => return unsupported("its sequences have different lengths"),
                    },
                    _ => name.clone(),
                });
            }
            let own = self.iteration(&body, arguments)?;
            results.iter_mut().zip(own).for_each(|(list, tensor)| list.push(tensor.into()));
        }
        results.into_iter().map(|tensors| self.sequence(tensors)).collect()
    }

    /// As [`Importer::mapped`], of sequences whose length a run decides: a loop over their positions.
    fn mapped_in_run(&mut self, node: &NodeProto, body: &Body<'_>, operands: &[Meaning]) -> Result<Vec<Meaning>, Stop> {
        let label = body.label().as_ref();
        let named = |op: &str, inputs: &[&str], output: &str| NodeProto {
            output: vec![output.to_owned()],
            ..NodeProto::of(op, inputs, "", Some(label.to_owned()))
        };
        let info = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
        let (number, condition) = (self.fresh_name(label), self.fresh_name(label));
        let mut graph = body.graph().clone();
        let mut nodes = vec![];
        for ((input, operand), name) in graph.input.iter().zip(operands).zip(&node.input) {
            nodes.push(match operand {
                Meaning::Sequence(_) | Meaning::Packed(_) => named("SequenceAt", &[name, &number], input.name()),
                _ => named("Identity", &[name], input.name()),
            });
        }
        nodes.append(&mut graph.node);
        (graph.input, graph.node) = (vec![info(&number), info(&condition)], nodes);
        let results = std::mem::replace(&mut graph.output, vec![info(&condition)]);
        let length =
            NodeWriter { importer: self, label: body.label() }.node("SequenceLength", &[&node.input[0]], vec![])?;
        let mut inputs = vec![length, String::new()];
        for result in results.iter().take(node.output.len()) {
            let [list, longer, empty] = [(); 3].map(|()| self.fresh_name(label));
            graph.node.push(named("SequenceInsert", &[&list, result.name()], &longer));
            graph.input.push(info(&list));
            graph.output.push(info(&longer));
            self.values.insert(empty.clone(), Meaning::Sequence(Rc::new([])));
            inputs.push(empty);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attribute = vec![AttributeProto { g: Some(graph), ..AttributeProto::of("body", AttributeType::Graph) }];
        let mut repeated = NodeProto { attribute, ..NodeProto::of("Loop", &inputs, "", Some(label.to_owned())) };
        self.written_out(&mut repeated, body.opsets(), body.label())
    }
}

pub(super) fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|a| a.name() == name).map(|a| a.i())
}
