//! Models as quantised operators need them: of an operator set that has these, with normalisations folded into convolutions.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;
use tensorc_frontend::onnx::edit::EditedNode;
use tensorc_frontend::onnx::proto::{DataType, NodeProto, TypeValue};
use tensorc_frontend::onnx::upgrade::{ValueFacts, upgrade_to};
use tensorc_ir::TensorData;
use tensorc_ir::op::OnnxName;

use super::document::{Document, Uses, float_of, is_standard};
use super::error::QuantizeError;
use crate::error::Error;

/// The first IR version in which initializers are no inputs.
const CONSTANTS_IR_VERSION: i64 = 4;
/// The IR version that came with operator set 13, the first with scales for each channel.
const CHANNELS_IR_VERSION: i64 = 7;

/// Makes initializers of models constants that had to list them as inputs, and raises the operator set to `opset` at least.
///
/// # Errors
/// A node has no form in that operator set.
pub(super) fn modernise(document: &mut Document, opset: i64) -> Result<(), Error> {
    let model = &mut document.model;
    if model.ir_version < CONSTANTS_IR_VERSION {
        let stored: BTreeSet<String> = model.initializers.iter().map(|t| t.proto().name().to_owned()).collect();
        model.inputs.retain(|(info, _)| !stored.contains(info.name()));
        model.ir_version = CONSTANTS_IR_VERSION;
    }
    let from = model.opset(OnnxName::STANDARD).unwrap_or(1);
    document.find_constants();
    if from < opset {
        raise(document, from, opset)?;
        let model = &mut document.model;
        model.set_opset("", opset);
        model.ir_version = model.ir_version.max(CHANNELS_IR_VERSION);
    }
    Ok(())
}

fn raise(document: &mut Document, from: i64, to: i64) -> Result<(), Error> {
    let mut replaced = BTreeMap::new();
    let mut facts = Facts { document: document.clone() };
    for i in 0..document.model.nodes.len() {
        let node = document.node(i).clone();
        let fail = |why: String| QuantizeError::Opset {
            node: format!("{} `{}`", node.op_type(), document.label(i)),
            from,
            to,
            why,
        };
        if node.nested().next().is_some() {
            return Err(fail("nodes in its graphs would change, too".to_owned()).into());
        }
        // Positions that these had are no attribute of later forms.
        if is_standard(&node, &["Resize", "Upsample"]) && from < 11 {
            return Err(fail("its positions are computed in another way".to_owned()).into());
        }
        let upgraded = upgrade_to(node.clone(), from, to, &mut facts).map_err(fail)?;
        if !upgraded.rewritten {
            continue;
        }
        let mut names = BTreeMap::new();
        for (name, data) in &upgraded.constants {
            names.insert(name.clone(), document.add_constant(name, data));
        }
        let mut renamed = |mut upgraded: NodeProto| {
            upgraded.input.iter_mut().for_each(|input| {
                if let Some(name) = names.get(input) {
                    input.clone_from(name);
                }
            });
            // Nodes that were added beside it have names of their own: in some run times two nodes of a name are an error.
            if upgraded.op_type() != node.op_type() {
                upgraded.name = Some(document.fresh(&format!("{}.{}", node.name(), upgraded.op_type())));
            }
            EditedNode::new(upgraded)
        };
        let nodes: Vec<EditedNode> = upgraded.nodes.into_iter().map(&mut renamed).collect();
        nodes.iter().flat_map(|n| &n.proto().output).for_each(|name| document.take(name));
        replaced.insert(i, nodes);
    }
    document.replace(replaced);
    Ok(())
}

/// What the file says of values.
struct Facts {
    document: Document,
}

impl ValueFacts for Facts {
    fn dims(&mut self, value: &str) -> Option<Vec<Option<u64>>> {
        Some(self.document.constant(value)?.dims().iter().map(|d| Some(*d)).collect())
    }

    fn dtype(&mut self, value: &str) -> Option<DType> {
        if let Some(data) = self.document.constant(value) {
            return Some(data.dtype());
        }
        // A model of which nothing is of another type of float is one of f32.
        let model = &self.document.model;
        let stored = model.initializers.iter().map(|t| t.proto().data_type());
        let stated = model.inputs.iter().chain(&model.value_infos).filter_map(|(info, _)| {
            match info.r#type.as_ref()?.value.as_ref()? {
                TypeValue::Tensor(tensor) => tensor.elem_type,
                _ => None,
            }
        });
        let others = [DataType::Float16 as i32, DataType::Bfloat16 as i32, DataType::Double as i32];
        (!stored.chain(stated).any(|code| others.contains(&code))).then_some(DType::F32)
    }

    fn constant(&mut self, value: &str) -> Option<TensorData> {
        self.document.constant(value)
    }

    fn fresh_name(&mut self, base: &str) -> String {
        self.document.fresh(base)
    }
}

/// Folds normalisations with constant statistics into the convolutions before them.
pub(super) fn fold_normalisations(document: &mut Document, keep: &BTreeSet<usize>) {
    let uses = document.uses();
    let mut replaced = BTreeMap::new();
    for i in 0..document.model.nodes.len() {
        let Some(folded) = folded(document, &uses, i, keep) else { continue };
        let weights = document.add_constant(&format!("{}.folded", document.node(i).input[1]), &folded.weights);
        let bias = document.add_constant(&format!("{}.bias", folded.output), &folded.bias);
        let mut node = document.model.nodes[i].clone();
        node.set_input(1, &weights);
        node.set_input(2, &bias);
        node.set_output(0, &folded.output);
        replaced.insert(i, vec![node]);
        replaced.insert(folded.normalisation, vec![]);
    }
    document.replace(replaced);
}

/// A convolution with the normalisation behind it.
struct Folded {
    normalisation: usize,
    weights: TensorData,
    bias: TensorData,
    output: String,
}

fn folded(document: &Document, uses: &Uses, at: usize, keep: &BTreeSet<usize>) -> Option<Folded> {
    let conv = document.node(at);
    let (next, position) = uses.only(conv.output.first()?)?;
    let norm = document.node(next);
    let fits = is_standard(conv, &["Conv"]) && is_standard(norm, &["BatchNormalization"]) && position == 0;
    if !fits || keep.contains(&at) || keep.contains(&next) || norm.output.iter().skip(1).any(|o| !o.is_empty()) {
        return None;
    }
    let weights = document.weights(conv.input.get(1)?)?;
    let (dims, channels) = (weights.dims().to_vec(), *weights.dims().first()? as usize);
    let vector = |name: &String| Some(document.weights(name)?.to_f32s()).filter(|v| v.len() == channels);
    let [gamma, beta, mean, variance] = [1, 2, 3, 4].map(|i| norm.input.get(i).and_then(vector));
    let (gamma, beta, mean, variance) = (gamma?, beta?, mean?, variance?);
    let before = match conv.input.get(2).filter(|name| !name.is_empty()) {
        Some(name) => vector(name)?,
        None => vec![0.0; channels],
    };
    let epsilon = f64::from(float_of(norm, "epsilon", 1e-5));
    let factor = |c: usize| f64::from(gamma[c]) / (f64::from(variance[c]) + epsilon).sqrt();
    let each = weights.len() as usize / channels;
    let scaled: Vec<f32> =
        weights.to_f32s().iter().enumerate().map(|(i, w)| (f64::from(*w) * factor(i / each)) as f32).collect();
    let bias = |c: usize| ((f64::from(before[c]) - f64::from(mean[c])) * factor(c) + f64::from(beta[c])) as f32;
    let bias: Vec<f32> = (0..channels).map(bias).collect();
    if !scaled.iter().chain(&bias).all(|x| x.is_finite()) {
        return None;
    }
    let weights = TensorData::f32s(&dims, &scaled)?;
    let bias = TensorData::f32s(&[channels as u64], &bias)?;
    Some(Folded { normalisation: next, weights, bias, output: norm.output.first()?.clone() })
}
