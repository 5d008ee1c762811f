//! Operators of `ai.onnx.ml` with lists of texts, which become lists of their numbers.

use super::super::attribute::{text, texts};
use super::super::import::Importer;
use super::super::proto::{AttributeProto, AttributeType, NodeProto};
use super::super::upgrade::int;
use super::{MapKeys, is_text_tensor, typed};

/// What stands for elements that have no text.
const OTHER: &str = "_Unused";

fn list_of(name: &str, ints: Vec<i64>) -> AttributeProto {
    AttributeProto { ints, ..typed(name, AttributeType::Ints) }
}

impl Importer<'_> {
    /// Puts numbers in the place of texts in a node of the domain, and notes whether its result is texts; whether it takes `operand`,
    /// which is texts.
    pub(super) fn encoded(&mut self, node: &mut NodeProto, operand: Option<&str>) -> Result<bool, String> {
        let of_texts = operand.is_some();
        let (takes, gives) = match node.op_type() {
            "LabelEncoder" => (true, self.encoder(node, of_texts)?),
            "CategoryMapper" => {
                mapper_as_encoder(node, of_texts);
                (true, self.encoder(node, of_texts)?)
            }
            "OneHotEncoder" => {
                if self.list(node, "cats_strings", "cats_int64s")? != of_texts {
                    return Err("its operand and its categories must both be texts, or neither".to_owned());
                }
                (true, false)
            }
            "LinearClassifier" | "SVMClassifier" => {
                (false, self.list(node, "classlabels_strings", "classlabels_ints")?)
            }
            "TreeEnsembleClassifier" => (false, self.list(node, "classlabels_strings", "classlabels_int64s")?),
            "ZipMap" => {
                let named = node.output.first().cloned().zip(MapKeys::of(node));
                self.texts.maps.extend(named);
                self.list(node, "classlabels_strings", "classlabels_int64s")?;
                (false, false)
            }
            _ => (false, false),
        };
        if gives {
            let first = node.output.first().filter(|name| !name.is_empty());
            self.texts.values.extend(first.cloned());
        }
        Ok(takes || !of_texts)
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

    /// A tensor of texts as one of numbers; whether there is one.
    fn tensor_list(&mut self, node: &mut NodeProto, name: &str) -> Result<bool, String> {
        let found = node.attribute.iter().position(|a| a.name() == name && is_text_tensor(a));
        let Some(at) = found else { return Ok(false) };
        let given = node.attribute[at].t.clone().unwrap_or_default();
        let numbers = self.numbers_in(&given).map_err(|why| format!("attribute `{name}`: {why}"))?;
        node.attribute[at].t = Some(numbers);
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
            let keys = self.list(node, "keys_strings", "keys_int64s")? | self.tensor_list(node, "keys_tensor")?;
            (keys, self.list(node, "values_strings", "values_int64s")? | self.tensor_list(node, "values_tensor")?)
        };
        if keys != of_texts {
            return Err("its operand and its keys must both be texts, or neither".to_owned());
        }
        if values {
            self.other_text(node)?;
        }
        Ok(values)
    }

    /// What an encoder of texts gives for other elements: a tensor, else a text.
    fn other_text(&mut self, node: &mut NodeProto) -> Result<(), String> {
        node.attribute.retain(|a| a.name() != "default_int64");
        if self.tensor_list(node, "default_tensor")? {
            return Ok(());
        }
        let given = node.attribute.iter().find(|a| a.name() == "default_string");
        let other = given.map(text).transpose()?.unwrap_or_else(|| OTHER.to_owned());
        let number = self.texts.number(other);
        node.attribute.push(int("default_int64", number));
        Ok(())
    }
}

/// A `CategoryMapper` as an encoder from texts to integers or the other way. Of entries with the same key the last counts, in an encoder
/// the first.
fn mapper_as_encoder(node: &mut NodeProto, of_texts: bool) {
    let [strings, integers, unused] = match of_texts {
        true => ["keys_strings", "values_int64s", "default_string"],
        false => ["values_strings", "keys_int64s", "default_int64"],
    };
    node.op_type = Some("LabelEncoder".to_owned());
    node.attribute.retain(|a| a.name() != unused);
    for attribute in &mut node.attribute {
        let name = match attribute.name() {
            "cats_strings" => strings,
            "cats_int64s" => integers,
            _ => continue,
        };
        attribute.name = Some(name.to_owned());
        attribute.strings.reverse();
        attribute.ints.reverse();
    }
}
