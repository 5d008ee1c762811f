//! Static quantisation: values and weights between `QuantizeLinear` and `DequantizeLinear`, with scales from calibration.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;
use tensorc_frontend::onnx::edit::EditedNode;
use tensorc_ir::TensorData;

use super::choose::{Role, Step};
use super::document::{Document, int, is_standard, node};
use super::histogram::Range;
use super::product::Product;
use super::scale::{ActivationType, Scale, floats, quantise_weights, tensor};

/// Rewrites the steps of a model.
pub(super) struct StaticRewrite<'a> {
    pub document: &'a mut Document,
    pub ranges: &'a BTreeMap<String, Range>,
    pub activations: ActivationType,
}

/// What is known of values while nodes are rewritten.
#[derive(Default)]
struct Values {
    /// Values that quantised nodes compute.
    made: BTreeSet<String>,
    /// The value whose scale another has.
    roots: BTreeMap<String, String>,
    /// Names of the constants of a scale, by root.
    scales: BTreeMap<String, [String; 2]>,
    /// Values of other nodes, as they are when quantised.
    entries: BTreeMap<String, String>,
}

impl Values {
    fn root(&self, value: &str) -> String {
        self.roots.get(value).map_or(value, String::as_str).to_owned()
    }
}

impl StaticRewrite<'_> {
    /// Puts quantised nodes in place of those of the steps.
    pub fn apply(mut self, steps: &[Step]) {
        let mut values = Values::default();
        let mut replaced = BTreeMap::new();
        for step in steps {
            if let (Role::Passing, [(_, operand)]) = (&step.role, &step.operands[..]) {
                let root = values.root(operand);
                values.roots.insert(step.result.clone(), root);
            }
            let (nodes, activation) = self.step(step, &mut values);
            replaced.insert(step.node, nodes);
            if let Some((at, nodes)) = activation {
                replaced.insert(at, nodes);
            }
            values.made.insert(step.result.clone());
        }
        self.document.replace(replaced);
    }

    fn scale(&self, root: &str) -> Scale {
        Scale::of_range(self.ranges[root], self.activations)
    }

    /// The names of scale and zero point of a value.
    fn scale_names(&mut self, value: &str, values: &mut Values) -> [String; 2] {
        let root = values.root(value);
        if let Some(names) = values.scales.get(&root) {
            return names.clone();
        }
        let scale = self.scale(&root);
        let dtype = self.activations.dtype();
        let names = [
            self.document.add_constant(&format!("{root}.scale"), &floats(&[], &[scale.scale])),
            self.document.add_constant(&format!("{root}.zero_point"), &tensor(dtype, &[], vec![scale.zero as u8])),
        ];
        values.scales.insert(root, names.clone());
        names
    }

    /// Nodes that quantise `from` and give it back as `to`.
    fn rounded(&mut self, value: &str, from: &str, to: &str, values: &mut Values) -> [EditedNode; 2] {
        let [scale, zero] = self.scale_names(value, values);
        let quantised = self.document.fresh(&format!("{value}.quantized"));
        let [q, dq] = ["quantize", "dequantize"].map(|what| self.document.fresh(&format!("{value}.{what}")));
        [
            node("QuantizeLinear", &q, &[from, &scale, &zero], &quantised, vec![]),
            node("DequantizeLinear", &dq, &[&quantised, &scale, &zero], to, vec![]),
        ]
    }

    /// What takes the place of a node, and of the activation behind it if there is one.
    fn step(&mut self, step: &Step, values: &mut Values) -> (Vec<EditedNode>, Option<(usize, Vec<EditedNode>)>) {
        let mut nodes = vec![];
        let mut inner = self.document.model.nodes[step.node].clone();
        for (at, value) in &step.operands {
            if values.made.contains(value) {
                continue;
            }
            let entry = match values.entries.get(value) {
                Some(entry) => entry.clone(),
                None => {
                    let entry = self.document.fresh(&format!("{value}.dequantized"));
                    nodes.extend(self.rounded(value, value, &entry, values));
                    values.entries.insert(value.clone(), entry.clone());
                    entry
                }
            };
            inner.set_input(*at, &entry);
        }
        if let Role::Product(product) = &step.role {
            self.weights(product, &step.operands, &mut inner, &mut nodes, values);
        }
        let float = self.document.fresh(&format!("{}.float", step.result));
        let ends = self.rounded(&step.result, &float, &step.result, values);
        let activation = match step.activation {
            Some(at) if !self.is_implied(at, &values.root(&step.result)) => {
                let mut activation = self.document.model.nodes[at].clone();
                activation.set_output(0, &float);
                nodes.push(inner);
                Some((at, [vec![activation], ends.into()].concat()))
            }
            // The integers end where the activation cuts off.
            Some(at) => {
                inner.set_output(0, &float);
                nodes.push(inner);
                nodes.extend(ends);
                Some((at, vec![]))
            }
            None => {
                inner.set_output(0, &float);
                nodes.push(inner);
                nodes.extend(ends);
                None
            }
        };
        (nodes, activation)
    }

    /// Whether quantising a value cuts it off where an activation does.
    fn is_implied(&self, activation: usize, root: &str) -> bool {
        let node = self.document.node(activation);
        let (low, high) = self.activations.limits();
        let scale = self.scale(root);
        let ends = |x: f32, end: i32| scale.quantised(x, self.activations) == end;
        if is_standard(node, &["Relu"]) {
            return ends(0.0, low);
        }
        let bound = |at: usize| match node.input.get(at).filter(|name| !name.is_empty()) {
            Some(name) => self.document.weights(name)?.to_f32s().first().copied().map(Some),
            None => Some(None),
        };
        let (Some(min), Some(max)) = (bound(1), bound(2)) else { return false };
        min.is_none_or(|x| ends(x, low)) && max.is_none_or(|x| ends(x, high))
    }

    /// Makes the weights and the bias of a product quantised constants.
    fn weights(
        &mut self,
        product: &Product,
        operands: &[(usize, String)],
        inner: &mut EditedNode,
        nodes: &mut Vec<EditedNode>,
        values: &Values,
    ) {
        let (Some(weight), [(_, operand)]) = (&product.weight, operands) else { return };
        let activation = self.scale(&values.root(operand)).scale;
        // The bias has a scale for each channel only if the weights have.
        let bias = product.bias.as_ref().filter(|b| is_bias(b, weight.axis.map(|axis| weight.data.dims()[axis])));
        let biases = bias.map(TensorData::to_f32s).unwrap_or_default();
        let least = |c: usize| biases.get(c).map_or(0.0, |b| b.abs() / activation / LARGEST_BIAS);
        let whole = (0..biases.len()).map(least).fold(0.0, f32::max);
        let per_channel = |c: usize| if weight.axis.is_some() { least(c) } else { whole };
        let found = quantise_weights(&weight.data, weight.axis, &per_channel);
        let name = self.dequantised(&weight.name, &found.data, &found.scales, weight.axis, nodes);
        inner.set_input(weight.at, &name);
        if bias.is_none() {
            return;
        }
        let of = |c: usize| activation * found.scales[if found.scales.len() == 1 { 0 } else { c }];
        let sum = |(c, b): (usize, &f32)| (f64::from(*b) / f64::from(of(c))).round_ties_even() as i32;
        let sums: Vec<i32> = biases.iter().enumerate().map(sum).collect();
        let data = tensor(DType::I32, &[sums.len() as u64], sums.iter().flat_map(|s| s.to_le_bytes()).collect());
        let scales: Vec<f32> = (0..found.scales.len()).map(of).collect();
        let bias_name = inner.proto().input[2].clone();
        let axis = weight.axis.map(|_| 0);
        let name = self.dequantised(&bias_name, &data, &scales, axis, nodes);
        inner.set_input(2, &name);
    }

    /// A node that gives constant integers as floats; its result.
    fn dequantised(
        &mut self,
        base: &str,
        data: &TensorData,
        scales: &[f32],
        axis: Option<usize>,
        nodes: &mut Vec<EditedNode>,
    ) -> String {
        let dims = if axis.is_some() { vec![scales.len() as u64] } else { vec![] };
        let zeros = vec![0; scales.len() * data.dtype().size()];
        let document = &mut *self.document;
        let integers = document.add_constant(&format!("{base}.quantized"), data);
        let scale = document.add_constant(&format!("{base}.scale"), &floats(&dims, scales));
        let zero = document.add_constant(&format!("{base}.zero_point"), &tensor(data.dtype(), &dims, zeros));
        let output = document.fresh(&format!("{base}.dequantized"));
        let name = document.fresh(&format!("{base}.dequantize"));
        let attributes = axis.map(|axis| int("axis", axis as i64)).into_iter().collect();
        nodes.push(node("DequantizeLinear", &name, &[&integers, &scale, &zero], &output, attributes));
        output
    }
}

/// The largest bias, in steps of the sums: with room for what the sums add.
const LARGEST_BIAS: f32 = (1u32 << 30) as f32;

/// Whether a bias has an element for each output channel.
fn is_bias(bias: &TensorData, channels: Option<u64>) -> bool {
    channels.is_none_or(|n| bias.len() == n)
}
