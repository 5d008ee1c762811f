//! Quantisation of weights alone: blocks of 4 or 8 bits with a scale each, in `MatMulNBits` of ONNX Runtime.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;
use tensorc_frontend::onnx::edit::EditedNode;
use tensorc_frontend::onnx::proto::NodeProto;
use tensorc_ir::op::OnnxName;

use super::calibrate::{Sample, observe};
use super::document::{Document, int, node};
use super::gptq::{Correlation, Grid, InverseFactor, quantise_matrix};
use super::product::{Product, matrix};
use super::scale::{floats, tensor};
use crate::compiler::Compiler;
use crate::error::Error;

/// Correlations of inputs that are collected in one pass over the data, in bytes.
const MAX_CORRELATIONS: usize = 1 << 30;

/// Rewrites the products of a model with a constant matrix on the right; which these are. With samples, the error of weights
/// is made up for by the weights behind them.
///
/// # Errors
/// The model does not run on the samples.
pub(super) fn rewrite(
    compiler: &Compiler,
    document: &mut Document,
    products: Vec<Product>,
    runs: &[Sample],
    grid: Grid,
) -> Result<Vec<Product>, Error> {
    let rows = |product: &Product| matrix(document, product).map(|(k, ..)| k);
    let sized: Vec<(Product, usize)> = products.into_iter().filter_map(|p| rows(&p).map(|k| (p, k))).collect();
    let (mut replaced, mut done) = (BTreeMap::new(), vec![]);
    let mut rest = sized.into_iter().peekable();
    while rest.peek().is_some() {
        let mut group: Vec<Product> = vec![];
        let mut widths: BTreeMap<String, usize> = BTreeMap::new();
        let mut taken = 0;
        while let Some((product, k)) =
            rest.next_if(|(_, k)| taken == 0 || taken + k * k * size_of::<f64>() <= MAX_CORRELATIONS)
        {
            let input = document.node(product.node).input[0].clone();
            if widths.insert(input, k).is_none() {
                taken += k * k * size_of::<f64>();
            }
            group.push(product);
        }
        let factors = correlations(compiler, document, &widths, runs)?;
        for product in group {
            let factor = factors.get(&document.node(product.node).input[0]);
            let Some((k, n, weights)) = matrix(document, &product) else { continue };
            let found = quantise_matrix(compiler, (k, n), &weights, grid, factor)?;
            replaced.insert(product.node, nodes(document, &product, (k, n), grid, &found));
            done.push(product);
        }
    }
    document.replace(replaced);
    if !done.is_empty() && document.model.opset(OnnxName::MICROSOFT).is_none() {
        document.model.set_opset(OnnxName::MICROSOFT, 1);
    }
    Ok(done)
}

/// What the inputs of products have in common, by name; nothing without runs.
fn correlations(
    compiler: &Compiler,
    document: &Document,
    widths: &BTreeMap<String, usize>,
    runs: &[Sample],
) -> Result<BTreeMap<String, InverseFactor>, Error> {
    if runs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let values: BTreeSet<String> = widths.keys().cloned().collect();
    let mut found: BTreeMap<&str, Correlation> =
        widths.iter().map(|(name, k)| (name.as_str(), Correlation::new(*k))).collect();
    observe(compiler, document, &values, runs, &mut |_, name, x| match found.get_mut(name) {
        Some(correlation) => correlation.add(compiler, &x.to_f32()?),
        None => Ok(()),
    })?;
    let factors = found.into_iter().filter_map(|(name, c)| Some((name.to_owned(), c.factor()?)));
    Ok(factors.collect())
}

/// The nodes in place of that of a product.
fn nodes(
    document: &mut Document,
    product: &Product,
    (k, n): (usize, usize),
    grid: Grid,
    found: &super::gptq::PackedMatrix,
) -> Vec<EditedNode> {
    let old = document.node(product.node).clone();
    let base = &old.input[1];
    let blocks = k.div_ceil(grid.block) as u64;
    let bytes =
        tensor(DType::U8, &[n as u64, blocks, found.bytes.len() as u64 / n as u64 / blocks], found.bytes.clone());
    let scales = floats(&[n as u64 * blocks], &found.scales);
    let packed = document.add_constant(&format!("{base}.packed"), &bytes);
    let scales = document.add_constant(&format!("{base}.scales"), &scales);
    let bias = old.input.get(2).filter(|name| !name.is_empty());
    let result = match bias {
        Some(_) => document.fresh(&format!("{}.product", product.result)),
        None => product.result.clone(),
    };
    let numbers = [("K", k), ("N", n), ("bits", grid.bits as usize), ("block_size", grid.block)];
    let attributes = numbers.map(|(name, value)| int(name, value as i64)).to_vec();
    let made = node("MatMulNBits", old.name(), &[&old.input[0], &packed, &scales], &result, attributes);
    let domain = Some(OnnxName::MICROSOFT.to_owned());
    let mut nodes = vec![EditedNode::new(NodeProto { domain, ..made.proto().clone() })];
    if let Some(bias) = bias {
        let name = document.fresh(&format!("{}.bias", product.result));
        nodes.push(node("Add", &name, &[&result, bias], &product.result, vec![]));
    }
    nodes
}
