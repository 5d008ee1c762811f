//! Texts, of which graphs have no tensors: a text is a number, its position among the texts of the model in the order in which nodes
//! use them. So labels of the only classifier are their positions in its list.
//!
//! What is known to be text may be chosen, moved and compared. Everything else is refused, since numbers stand for no other text.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::TensorData;
use tensorc_ir::op::OnnxName;

use super::attribute::texts;
use super::import::{Importer, StoredTensor};
use super::load::canonical_domain;
use super::proto::{AttributeProto, AttributeType, DataType, NodeProto, TensorProto};

/// The texts of a model, and which of its values are texts.
#[derive(Debug, Default)]
pub(super) struct Texts {
    numbers: BTreeMap<String, i64>,
    list: Vec<String>,
    values: BTreeSet<String>,
}

/// Operators whose results are elements of their operands.
const MOVING: &[&str] = &[
    "ArrayFeatureExtractor",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
    "Where",
];

const NESTED: &str = "texts in branches and loops are not supported";

/// What stands for elements that have no text.
const OTHER: &str = "_Unused";

impl Texts {
    fn number(&mut self, text: String) -> i64 {
        let next = self.list.len() as i64;
        *self.numbers.entry(text).or_insert_with_key(|text| {
            self.list.push(text.clone());
            next
        })
    }

    /// All texts, by their numbers.
    pub fn into_list(self) -> Vec<String> {
        self.list
    }
}

/// Whether a list of a node holds texts that become numbers.
fn names_texts(node: &NodeProto) -> bool {
    let lists = ["classlabels_strings", "keys_strings", "values_strings", "classes_strings", "cats_strings"];
    node.attribute.iter().any(|a| lists.contains(&a.name()) && !a.strings.is_empty())
}

fn list_of(name: &str, ints: Vec<i64>) -> AttributeProto {
    AttributeProto { ints, ..typed(name, AttributeType::Ints) }
}

fn typed(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..Default::default() }
}

impl Importer<'_> {
    fn is_text(&self, name: &str) -> bool {
        let stored = match self.stored.get(name) {
            Some(StoredTensor::Dense(proto)) => proto.data_type() == DataType::String as i32,
            _ => false,
        };
        stored || self.texts.values.contains(name)
    }

    /// Puts numbers in the place of texts in a node, and notes which of its results are texts.
    ///
    /// # Errors
    /// Why texts are not supported there.
    pub(super) fn with_texts(&mut self, node: &mut NodeProto) -> Result<(), String> {
        let operand = node.input.iter().find(|name| self.is_text(name)).cloned();
        let is_ml = canonical_domain(node.domain()) == OnnxName::ML;
        let encodes = is_ml && matches!(node.op_type(), "LabelEncoder" | "OneHotEncoder");
        if self.depth > 0 && (operand.is_some() || is_ml && names_texts(node)) {
            return Err(NESTED.to_owned());
        }
        if let Some(operand) = &operand
            && !encodes
            && !MOVING.contains(&node.op_type())
            && node.op_type() != "Equal"
        {
            return Err(format!("its operand `{operand}` is a tensor of texts"));
        }
        let gives = match node.op_type() {
            _ if !is_ml => false,
            "LabelEncoder" => self.encoder(node, operand.is_some())?,
            "OneHotEncoder" => {
                if self.list(node, "cats_strings", "cats_int64s")? != operand.is_some() {
                    return Err("its operand and its categories must both be texts, or neither".to_owned());
                }
                false
            }
            "LinearClassifier" | "SVMClassifier" => self.list(node, "classlabels_strings", "classlabels_ints")?,
            "TreeEnsembleClassifier" => self.list(node, "classlabels_strings", "classlabels_int64s")?,
            "ZipMap" => {
                self.list(node, "classlabels_strings", "classlabels_int64s")?;
                false
            }
            _ => false,
        };
        if gives || operand.is_some() && MOVING.contains(&node.op_type()) {
            let first = node.output.first().filter(|name| !name.is_empty());
            self.texts.values.extend(first.cloned());
        }
        Ok(())
    }

    /// A list of texts as numbers under another name; whether there is one.
    fn list(&mut self, node: &mut NodeProto, from: &str, to: &str) -> Result<bool, String> {
        let Some(at) = node.attribute.iter().position(|a| a.name() == from) else { return Ok(false) };
        let given = texts(&node.attribute.remove(at)).map_err(|why| format!("attribute `{from}`: {why}"))?;
        if given.is_empty() {
            return Ok(false);
        }
        if node.attribute.iter().any(|a| a.name() == to && !a.ints.is_empty()) {
            return Err(format!("attributes `{from}` and `{to}` are both given"));
        }
        node.attribute.retain(|a| a.name() != to);
        let numbers = given.into_iter().map(|text| self.texts.number(text)).collect();
        node.attribute.push(list_of(to, numbers));
        Ok(true)
    }

    /// The texts of a `LabelEncoder`; whether its values are texts.
    fn encoder(&mut self, node: &mut NodeProto, of_texts: bool) -> Result<bool, String> {
        let classes = node.attribute.iter().find(|a| a.name() == "classes_strings").map_or(0, |a| a.strings.len());
        let (keys, values) = if classes > 0 {
            // The first form of the operator: positions of texts, or texts at positions.
            let [texts, positions] = match of_texts {
                true => ["keys_int64s", "values_int64s"],
                false => ["values_int64s", "keys_int64s"],
            };
            self.list(node, "classes_strings", texts)?;
            node.attribute.push(list_of(positions, (0..classes as i64).collect()));
            (of_texts, !of_texts)
        } else {
            let keys = self.list(node, "keys_strings", "keys_int64s")?;
            (keys, self.list(node, "values_strings", "values_int64s")?)
        };
        if keys != of_texts {
            return Err("its operand and its keys must both be texts, or neither".to_owned());
        }
        if values {
            let given = node.attribute.iter().find(|a| a.name() == "default_string");
            let other = given.map(super::attribute::text).transpose()?.unwrap_or_else(|| OTHER.to_owned());
            node.attribute.retain(|a| a.name() != "default_int64");
            let number = self.texts.number(other);
            node.attribute.push(AttributeProto { i: Some(number), ..typed("default_int64", AttributeType::Int) });
        }
        Ok(values)
    }

    /// The numbers of a stored tensor of texts, or why it is not supported.
    pub(super) fn text_constant(&mut self, name: &str, proto: &TensorProto) -> Result<TensorData, String> {
        if self.depth > 0 {
            return Err(NESTED.to_owned());
        }
        let dims: Option<Vec<u64>> = proto.dims.iter().map(|n| u64::try_from(*n).ok()).collect();
        let count = dims.as_ref().and_then(|dims| dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim)));
        let mut numbers = vec![];
        for text in &proto.string_data {
            let text = String::from_utf8(text.to_vec()).map_err(|_| "an element is not UTF-8 text".to_owned())?;
            numbers.push(self.texts.number(text));
        }
        let fits = count == Some(numbers.len() as u64);
        let data = dims.filter(|_| fits).and_then(|dims| TensorData::i64s(&dims, &numbers));
        self.texts.values.insert(name.to_owned());
        data.ok_or_else(|| format!("its shape {:?} does not hold {} texts", proto.dims, numbers.len()))
    }
}
