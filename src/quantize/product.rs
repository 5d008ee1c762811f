//! Which nodes are products of activations and weights.

use std::collections::BTreeSet;

use tensorc_ir::TensorData;

use super::document::{Document, float_of, int_of, is_standard};

/// A node that multiplies: a convolution or a matrix product.
pub(super) struct Product {
    /// Position of the node.
    pub node: usize,
    /// Positions of the operands that runs decide.
    pub operands: Vec<usize>,
    /// The constant operand, if there is one.
    pub weight: Option<Weight>,
    /// The bias, if it is a constant vector of f32.
    pub bias: Option<TensorData>,
    /// The value that it computes.
    pub result: String,
}

/// A constant operand.
pub(super) struct Weight {
    /// Position of the operand.
    pub at: usize,
    /// Its name.
    pub name: String,
    pub data: TensorData,
    /// The axis of the output channels, if each can have a scale.
    pub axis: Option<usize>,
}

const PRODUCTS: &[&str] = &["Conv", "ConvTranspose", "MatMul", "Gemm"];

/// The products of the main graph that are not to be kept as they are, in the order of nodes.
pub(super) fn products(document: &Document, keep: &BTreeSet<usize>) -> Vec<Product> {
    let all = (0..document.model.nodes.len()).filter(|i| !keep.contains(i));
    all.filter_map(|i| product(document, i)).collect()
}

fn product(document: &Document, at: usize) -> Option<Product> {
    let node = document.node(at);
    if !is_standard(node, PRODUCTS) || node.input.len() < 2 {
        return None;
    }
    let [result] = &node.output[..] else { return None };
    let constants: Vec<usize> = (0..2).filter(|i| document.is_constant(&node.input[*i])).collect();
    let op = node.op_type();
    let is_matmul = op == "MatMul";
    let weight = match constants[..] {
        [at] if at == 1 || is_matmul => Some(weight(document, node, at)?),
        [] if is_matmul => None,
        _ => return None,
    };
    if op == "Gemm" && !is_plain(node) {
        return None;
    }
    let given = node.input.get(2).map_or("", String::as_str);
    let bias = document.weights(given).filter(|b| b.dims().len() == 1);
    // The sums of a convolution have a bias of the same scale, or none.
    if op.starts_with("Conv") && !given.is_empty() && bias.is_none() {
        return None;
    }
    let operands = (0..2).filter(|i| weight.as_ref().is_none_or(|w| w.at != *i)).collect();
    Some(Product { node: at, operands, weight, bias, result: result.clone() })
}

/// Whether a product has no factors and no transposed rows.
fn is_plain(node: &tensorc_frontend::onnx::proto::NodeProto) -> bool {
    let factors = [float_of(node, "alpha", 1.0), float_of(node, "beta", 1.0)];
    factors == [1.0, 1.0] && int_of(node, "transA", 0) == 0
}

fn weight(document: &Document, node: &tensorc_frontend::onnx::proto::NodeProto, at: usize) -> Option<Weight> {
    let name = node.input[at].clone();
    let data = document.weights(&name)?;
    let rank = data.dims().len();
    let (least, axis) = match node.op_type() {
        "Conv" => (3, Some(0)),
        // Groups have the same output channels.
        "ConvTranspose" => (3, (int_of(node, "group", 1) == 1).then_some(1)),
        "Gemm" => (2, Some(if int_of(node, "transB", 0) == 0 { 1 } else { 0 })),
        _ => (2, (at == 1 && rank == 2).then_some(1)),
    };
    (rank >= least).then_some(Weight { at, name, data, axis })
}

/// A matrix of weights as `[k, n]`, row-major, of a product with such a matrix on the right.
pub(super) fn matrix(document: &Document, product: &Product) -> Option<(usize, usize, Vec<f32>)> {
    let node = document.node(product.node);
    let weight = product.weight.as_ref().filter(|w| w.at == 1 && is_standard(node, &["MatMul", "Gemm"]))?;
    let [rows, columns] = weight.data.dims() else { return None };
    let (rows, columns) = (*rows as usize, *columns as usize);
    let values = weight.data.to_f32s();
    if node.op_type() == "MatMul" || int_of(node, "transB", 0) == 0 {
        return Some((rows, columns, values));
    }
    let turned = (0..columns).flat_map(|k| (0..rows).map(move |n| n * columns + k)).map(|i| values[i]).collect();
    Some((columns, rows, turned))
}
