//! Dynamic quantisation: weights are bytes, and activations are quantised in each run by their range in that run.

use std::collections::BTreeMap;

use tensorc_frontend::onnx::edit::EditedNode;
use tensorc_frontend::onnx::proto::{DataType, NodeProto};
use tensorc_ir::TensorData;

use super::document::{Document, int, is_standard, node};
use super::product::{Product, matrix};
use super::scale::{floats, quantise_weights};

/// Rewrites the products of a model whose right operand is constant; which these are.
pub(super) fn rewrite(document: &mut Document, products: Vec<Product>) -> Vec<Product> {
    let mut inputs: BTreeMap<String, [String; 3]> = BTreeMap::new();
    let (mut replaced, mut done) = (BTreeMap::new(), vec![]);
    for product in products {
        let Some(weights) = weights(document, &product) else { continue };
        replaced.insert(product.node, nodes(document, &product, weights, &mut inputs));
        done.push(product);
    }
    document.replace(replaced);
    done
}

/// The weights of a product as bytes, with the factors of the sums.
struct Weights {
    bytes: TensorData,
    scales: TensorData,
    op: &'static str,
    /// Axes behind that of the channels.
    behind: usize,
}

fn weights(document: &Document, product: &Product) -> Option<Weights> {
    let node = document.node(product.node);
    if is_standard(node, &["Conv"]) {
        let weight = product.weight.as_ref().filter(|w| w.at == 1)?;
        let found = quantise_weights(&weight.data, Some(0), &|_| 0.0);
        let behind = weight.data.dims().len() - 2;
        let dims = [vec![found.scales.len() as u64], vec![1; behind]].concat();
        return Some(Weights { bytes: found.data, scales: floats(&dims, &found.scales), op: "ConvInteger", behind });
    }
    let (k, n, values) = matrix(document, product)?;
    let found = quantise_weights(&floats(&[k as u64, n as u64], &values), Some(1), &|_| 0.0);
    let scales = floats(&[n as u64], &found.scales);
    Some(Weights { bytes: found.data, scales, op: "MatMulInteger", behind: 0 })
}

/// The nodes in place of that of a product. Values that several products read are quantised once.
fn nodes(
    document: &mut Document,
    product: &Product,
    weights: Weights,
    inputs: &mut BTreeMap<String, [String; 3]>,
) -> Vec<EditedNode> {
    let old = document.node(product.node).clone();
    let (x, result) = (old.input[0].clone(), product.result.as_str());
    let mut nodes = vec![];
    let entry = inputs.entry(x.clone()).or_insert_with(|| {
        let names = ["quantized", "scale", "zero_point"].map(|what| document.fresh(&format!("{x}.{what}")));
        let name = document.fresh(&format!("{x}.quantize"));
        nodes.push(EditedNode::new(NodeProto {
            output: names.to_vec(),
            ..node("DynamicQuantizeLinear", &name, &[&x], "", vec![]).proto().clone()
        }));
        names
    });
    let [bytes, scale, zero] = entry.clone();
    let base = &old.input[1];
    let constants = [("quantized", &weights.bytes), ("scale", &weights.scales)];
    let [integers, factors] = constants.map(|(what, data)| document.add_constant(&format!("{base}.{what}"), data));
    let mut made = |what: &str| document.fresh(&format!("{result}.{what}"));
    let [sums, cast, by, product_name] = ["sums", "cast", "factors", "product"].map(&mut made);
    let attributes = if weights.op == "ConvInteger" { old.attribute.clone() } else { vec![] };
    nodes.push(node(weights.op, old.name(), &[&bytes, &integers, &zero], &sums, attributes));
    nodes.push(node("Cast", &cast.clone(), &[&sums], &cast, vec![int("to", DataType::Float as i64)]));
    nodes.push(node("Mul", &by.clone(), &[&scale, &factors], &by, vec![]));
    let bias = old.input.get(2).filter(|name| !name.is_empty());
    let Some(bias) = bias else {
        nodes.push(node("Mul", &product_name, &[&cast, &by], result, vec![]));
        return nodes;
    };
    // The channels of an image are not its last axis.
    let bias = match &product.bias {
        Some(data) if weights.behind > 0 => {
            let dims = [vec![data.len()], vec![1; weights.behind]].concat();
            document.add_constant(&format!("{bias}.reshaped"), &floats(&dims, &data.to_f32s()))
        }
        _ => bias.clone(),
    };
    let add = document.fresh(&format!("{result}.bias"));
    nodes.push(node("Mul", &product_name.clone(), &[&cast, &by], &product_name, vec![]));
    nodes.push(node("Add", &add, &[&product_name, &bias], result, vec![]));
    nodes
}
