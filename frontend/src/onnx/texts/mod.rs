//! Texts, of which graphs have no tensors: a text is a number, its position among the texts of the model in the order in which nodes
//! use them. So labels of the only classifier are their positions in its list. Texts of inputs that the model has not are numbers
//! behind those; who runs the model gives equal texts equal numbers.
//!
//! What is known to be text may be chosen, moved and compared, and encoded by lists ([`encode`]). Operators that read or make texts are
//! calls of the host between graphs ([`calls`]). Everything else is refused, since numbers stand for no other text.

mod calls;
mod encode;
mod maps;

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::TensorData;
use tensorc_ir::op::OnnxName;
use tensorc_ops::texts::TextOpDef;

pub use calls::TextCall;
pub use maps::MapKeys;

use super::import::{Importer, StoredTensor};
use super::load::{OnnxModel, STANDARD_DOMAIN, canonical_domain};
use super::proto::{AttributeProto, AttributeType, DataType, NodeProto, TensorProto, TypeProto, TypeValue};
use super::upgrade::int;

/// What an imported model has to do with texts.
#[derive(Debug, Default)]
pub struct ImportedTexts {
    /// The texts of the model, such as labels and categories. Tensors of texts have elements i64, positions in this list; texts of
    /// inputs that are not in it are other numbers.
    pub list: Vec<String>,
    /// The inputs of the graph that are texts.
    pub inputs: BTreeSet<String>,
    /// The outputs of the graph that are texts.
    pub outputs: BTreeSet<String>,
    /// The keys of results that are maps in the model and have a column for each key in the graph.
    pub maps: BTreeMap<String, MapKeys>,
    /// What the host computes, in the order of data flow. Results are inputs of the graph.
    pub calls: Vec<TextCall>,
}

impl ImportedTexts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.inputs.is_empty() && self.maps.is_empty() && self.calls.is_empty()
    }
}

/// The texts of a model, and which of its values are texts.
#[derive(Debug, Default)]
pub(super) struct Texts {
    numbers: BTreeMap<String, i64>,
    list: Vec<String>,
    values: BTreeSet<String>,
    calls: Vec<TextCall>,
    maps: BTreeMap<String, MapKeys>,
    /// Outputs of the graph.
    outputs: BTreeSet<String>,
}

/// Operators whose results are elements of some operands, at these positions: all if there are none. Other operands are numbers.
const MOVING: &[(&str, &[usize])] = &[
    ("ArrayFeatureExtractor", &[0]),
    ("Compress", &[0]),
    ("Concat", &[]),
    ("Expand", &[0]),
    ("Flatten", &[0]),
    ("Gather", &[0]),
    ("GatherElements", &[0]),
    ("GatherND", &[0]),
    ("Identity", &[]),
    ("Reshape", &[0]),
    ("ReverseSequence", &[0]),
    ("ScatterElements", &[0, 2]),
    ("ScatterND", &[0, 2]),
    ("Slice", &[0]),
    ("Split", &[0]),
    ("Squeeze", &[0]),
    ("Tile", &[0]),
    ("Transpose", &[0]),
    ("Unique", &[0]),
    ("Unsqueeze", &[0]),
    ("Where", &[1, 2]),
];

/// Operators on texts that give numbers and look at no text but to compare it.
const COMPARING: &[&str] = &["Equal", "Shape", "Size"];

const NESTED: &str = "texts in branches and loops are not supported";

impl Texts {
    fn number(&mut self, text: String) -> i64 {
        let next = self.list.len() as i64;
        *self.numbers.entry(text).or_insert_with_key(|text| {
            self.list.push(text.clone());
            next
        })
    }

    /// Notes that a value is texts.
    pub fn add_value(&mut self, name: &str) {
        self.values.insert(name.to_owned());
    }

    /// Notes that an output of the graph is texts.
    pub fn add_output(&mut self, name: &str) {
        self.outputs.insert(name.to_owned());
    }

    /// All that is known of them, for a graph with inputs of these names.
    pub fn finish<'n>(self, inputs: impl Iterator<Item = &'n str>) -> ImportedTexts {
        let made: BTreeSet<&str> = self.calls.iter().flat_map(TextCall::result_names).collect();
        let is_given = |name: &&str| self.values.contains(*name) && !made.contains(*name);
        let inputs = inputs.filter(is_given).map(str::to_owned).collect();
        ImportedTexts { list: self.list, inputs, outputs: self.outputs, maps: self.maps, calls: self.calls }
    }
}

/// An input or output of a model that is texts, as it is stated.
pub fn stated_texts(model: &OnnxModel) -> Option<String> {
    fn is_text(ty: Option<&TypeProto>) -> bool {
        match ty.and_then(|ty| ty.value.as_ref()) {
            Some(TypeValue::Tensor(tensor)) => tensor.elem_type() == DataType::String as i32,
            Some(TypeValue::Sequence(element) | TypeValue::Optional(element)) => is_text(element.elem_type.as_deref()),
            _ => false,
        }
    }
    let mut values = model.graph.input.iter().chain(&model.graph.output);
    values.find(|info| is_text(info.r#type.as_ref())).map(|info| info.name().to_owned())
}

/// Whether a list or tensor of a node holds texts that become numbers.
fn names_texts(node: &NodeProto) -> bool {
    let lists = ["classlabels_strings", "keys_strings", "values_strings", "classes_strings", "cats_strings"];
    let is_list = |a: &AttributeProto| lists.contains(&a.name()) && !a.strings.is_empty();
    node.attribute.iter().any(|a| is_list(a) || is_text_tensor(a))
}

fn is_text_tensor(attribute: &AttributeProto) -> bool {
    attribute.t.as_ref().is_some_and(|tensor| tensor.data_type() == DataType::String as i32)
}

fn typed(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..Default::default() }
}

impl Importer<'_> {
    pub(super) fn is_text(&self, name: &str) -> bool {
        let stored = match self.stored.get(name) {
            Some(StoredTensor::Dense(proto)) => proto.data_type() == DataType::String as i32,
            _ => false,
        };
        stored || self.texts.values.contains(name)
    }

    /// Puts numbers in the place of texts in a node, and notes which of its results are texts. The operator that computes the node if
    /// that is for the host.
    ///
    /// # Errors
    /// Why texts are not supported there.
    pub(super) fn with_texts(&mut self, node: &mut NodeProto) -> Result<Option<TextOpDef>, String> {
        let operand = node.input.iter().find(|name| self.is_text(name)).cloned();
        let is_ml = canonical_domain(node.domain()) == OnnxName::ML;
        let call = calls::host_operator(node, operand.is_some());
        let is_constant = node.op_type() == "Constant" && canonical_domain(node.domain()) == STANDARD_DOMAIN;
        let has_texts = operand.is_some() || call.is_some() || is_ml && names_texts(node);
        if self.depth > 0 && (has_texts || is_constant && is_constant_text(node)) {
            return Err(NESTED.to_owned());
        }
        match operand {
            _ if call.is_some() => return Ok(call),
            _ if is_constant => self.constant_texts(node)?,
            _ if is_ml && self.encoded(node, operand.as_deref())? => {}
            Some(_) if self.moved(node)? => {}
            Some(_) if COMPARING.contains(&node.op_type()) => self.check_compared(node)?,
            Some(operand) => return Err(format!("its operand `{operand}` is a tensor of texts")),
            None => {}
        }
        Ok(None)
    }

    /// Notes that results of a node are elements of its operands, which are texts; whether they are.
    fn moved(&mut self, node: &NodeProto) -> Result<bool, String> {
        let Some((op, from)) = MOVING.iter().find(|(op, _)| *op == node.op_type()) else { return Ok(false) };
        let moves = |at: usize| from.is_empty() || from.contains(&at);
        for (at, name) in node.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match (moves(at), self.is_text(name)) {
                (true, false) => return Err(format!("its operand `{name}` holds numbers, another one texts")),
                (false, true) => return Err(format!("its operand `{name}` holds texts, not numbers")),
                _ => {}
            }
        }
        let sorts = *op == "Unique" && canonical_domain(node.domain()) == STANDARD_DOMAIN;
        if sorts && !node.attribute.iter().any(|a| a.name() == "sorted" && a.i() == 0) {
            return Err("texts are not sorted: `sorted` must be 0".to_owned());
        }
        let count = if *op == "Split" { node.output.len() } else { 1 };
        let results = node.output.iter().take(count).filter(|name| !name.is_empty());
        self.texts.values.extend(results.cloned());
        Ok(true)
    }

    fn check_compared(&self, node: &NodeProto) -> Result<(), String> {
        match node.input.iter().find(|name| !self.is_text(name)) {
            Some(name) => Err(format!("its operand `{name}` holds numbers, another one texts")),
            None => Ok(()),
        }
    }

    /// A constant of texts as one of numbers.
    fn constant_texts(&mut self, node: &mut NodeProto) -> Result<(), String> {
        if !is_constant_text(node) {
            return Ok(());
        }
        let [attribute] = node.attribute.as_slice() else { return Err("it needs exactly one attribute".to_owned()) };
        let why = |why: String| format!("attribute `{}`: {why}", attribute.name());
        let constant = match attribute.name() {
            "value_string" => {
                let number = self.texts.number(super::attribute::text(attribute).map_err(why)?);
                int("value_int", number)
            }
            "value_strings" => {
                let given = super::attribute::texts(attribute).map_err(why)?;
                let ints = given.into_iter().map(|text| self.texts.number(text)).collect();
                AttributeProto { ints, ..typed("value_ints", AttributeType::Ints) }
            }
            _ => {
                let tensor = attribute.t.clone().unwrap_or_default();
                AttributeProto { t: Some(self.numbers_in(&tensor).map_err(why)?), ..attribute.clone() }
            }
        };
        node.attribute = vec![constant];
        self.texts.values.extend(node.output.first().cloned());
        Ok(())
    }

    /// A tensor of texts as one of numbers.
    fn numbers_in(&mut self, proto: &TensorProto) -> Result<TensorProto, String> {
        let mut numbers = vec![];
        for text in &proto.string_data {
            let text = String::from_utf8(text.to_vec()).map_err(|_| "an element is not UTF-8 text".to_owned())?;
            numbers.push(self.texts.number(text));
        }
        let (data_type, string_data) = (Some(DataType::Int64 as i32), vec![]);
        Ok(TensorProto { data_type, int64_data: numbers, string_data, ..proto.clone() })
    }

    /// The numbers of a stored tensor of texts, or why it is not supported.
    pub(super) fn text_constant(&mut self, name: &str, proto: &TensorProto) -> Result<TensorData, String> {
        if self.depth > 0 {
            return Err(NESTED.to_owned());
        }
        let dims: Option<Vec<u64>> = proto.dims.iter().map(|n| u64::try_from(*n).ok()).collect();
        let count = dims.as_ref().and_then(|dims| dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim)));
        let numbers = self.numbers_in(proto)?.int64_data;
        let fits = count == Some(numbers.len() as u64);
        let data = dims.filter(|_| fits).and_then(|dims| TensorData::i64s(&dims, &numbers));
        self.texts.values.insert(name.to_owned());
        data.ok_or_else(|| format!("its shape {:?} does not hold {} texts", proto.dims, numbers.len()))
    }

    /// Refuses texts among the results of a nested graph.
    pub(super) fn refuse_texts(&mut self, results: &[String]) {
        for name in results {
            if self.is_text(name) {
                self.unsupported.value(name, NESTED.to_owned());
            }
        }
    }
}

/// Whether a `Constant` is texts.
fn is_constant_text(node: &NodeProto) -> bool {
    let is_text = |a: &AttributeProto| matches!(a.name(), "value_string" | "value_strings") || is_text_tensor(a);
    node.attribute.iter().any(is_text)
}
