//! Groups of a product or convolution between `DequantizeLinear` and `QuantizeLinear`, which are one operator of quantised
//! operands, as ONNX Runtime runs them: the product of bytes is exact, and is rounded once.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::op::OnnxName;
use tensorc_ir::{DType, TensorData};

use super::error::{OnnxError, TensorSite};
use super::functions::ScopedNode;
use super::import::{Importer, StoredTensor};
use super::load::{STANDARD_DOMAIN, canonical_domain};
use super::proto::{NodeProto, ValueInfoProto};
use super::tensor::read_tensor;

/// What the name of a product without its bias has behind that of the sum. A NUL keeps it apart from names of a file.
const PRODUCT: &str = "\0product";
/// How far the scale of a bias may be from the product of the scales of its operands, relative to it.
const SCALE_TOLERANCE: f32 = 1e-4;

/// The nodes of a graph by what they compute, and how often each name is used.
struct Uses<'a> {
    nodes: &'a [ScopedNode],
    makers: BTreeMap<&'a str, usize>,
    counts: BTreeMap<&'a str, usize>,
}

impl<'a> Uses<'a> {
    fn of(nodes: &'a [ScopedNode], outputs: &'a [ValueInfoProto]) -> Uses<'a> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let read = nodes.iter().flat_map(|n| n.node.input.iter().map(String::as_str));
        for name in read.chain(outputs.iter().map(|o| o.name())) {
            *counts.entry(name).or_default() += 1;
        }
        let made = nodes.iter().enumerate().flat_map(|(i, n)| n.node.output.iter().map(move |o| (o.as_str(), i)));
        Uses { nodes, makers: made.collect(), counts }
    }

    /// The node of a standard operator that computes a name.
    fn maker(&self, name: &str, ops: &[&str]) -> Option<(usize, &'a NodeProto)> {
        let index = *self.makers.get(name)?;
        let node = &self.nodes[index].node;
        let standard = canonical_domain(node.domain()) == STANDARD_DOMAIN;
        (standard && ops.contains(&node.op_type())).then_some((index, node))
    }

    /// As [`Uses::maker`], of a name that one node alone uses.
    fn only_maker(&self, name: &str, ops: &[&str]) -> Option<(usize, &'a NodeProto)> {
        (self.counts.get(name) == Some(&1)).then(|| self.maker(name, ops)).flatten()
    }
}

/// Operand, scale and zero point of a node that quantises or dequantises.
struct Quantisation<'a> {
    names: [&'a str; 3],
    scale: TensorData,
    zero: TensorData,
    axis: Option<i64>,
}

/// What is computed between dequantised operands and a quantised result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Product {
    Conv,
    MatMul,
    /// Of a right operand that may be transposed.
    Gemm {
        transposed: bool,
    },
}

impl Product {
    const OPS: [&str; 3] = ["Conv", "MatMul", "Gemm"];

    /// What a node computes. A `Gemm` that scales its operands has other sums.
    fn of(node: &NodeProto) -> Option<Product> {
        let attribute = |name: &str| node.attribute.iter().find(|a| a.name.as_deref() == Some(name));
        let is_one = |name: &str| attribute(name).is_none_or(|a| a.f == Some(1.0));
        match node.op_type() {
            "Conv" => Some(Product::Conv),
            "MatMul" => Some(Product::MatMul),
            "Gemm" if is_one("alpha") && is_one("beta") => {
                Some(Product::Gemm { transposed: attribute("transB").is_some_and(|a| a.i.unwrap_or(0) != 0) })
            }
            _ => None,
        }
    }

    /// Whether a right operand, of that rank if it is known, has one scale, or one for each filter or column.
    fn has_scales_of(self, right: &Quantisation<'_>, rank: Option<i64>) -> bool {
        let along = match self {
            Product::Conv | Product::Gemm { transposed: true } => Some(0),
            Product::Gemm { transposed: false } => Some(1),
            Product::MatMul => rank.map(|rank| rank - 1),
        };
        let axis = right.axis.zip(rank).map(|(axis, rank)| if axis < 0 { axis + rank } else { axis });
        right.scale.len() == 1 || along.is_some() && axis == along
    }
}

impl Importer<'_> {
    /// The nodes, with groups of quantised operands in place of what they are made of. Graphs with nested graphs, which may
    /// use any name, stay as they are.
    pub(super) fn with_quantised_groups(
        &mut self,
        nodes: Vec<ScopedNode>,
        outputs: &[ValueInfoProto],
    ) -> Result<Vec<ScopedNode>, OnnxError> {
        let nests = |n: &ScopedNode| n.node.nested().next().is_some();
        let is = |n: &ScopedNode, op: &str| n.node.op_type() == op;
        if nodes.iter().any(nests) || !nodes.iter().any(|n| is(n, "DequantizeLinear")) {
            return Ok(nodes);
        }
        let uses = Uses::of(&nodes, outputs);
        let (mut made, mut gone) = (BTreeMap::new(), BTreeSet::new());
        for (index, scoped) in nodes.iter().enumerate().filter(|(_, n)| is(n, "QuantizeLinear")) {
            if let Some((node, parts)) = self.group(&uses, &scoped.node)? {
                made.insert(index, vec![node]);
                gone.extend(parts);
            }
        }
        for (index, scoped) in nodes.iter().enumerate().filter(|(index, _)| !gone.contains(index)) {
            if let Some(product) = self.float_product(&uses, &scoped.node)? {
                made.insert(index, product);
            }
        }
        let kept = nodes.into_iter().enumerate().filter(|(index, _)| !gone.contains(index));
        let replaced = |(index, scoped): (usize, ScopedNode)| match made.remove(&index) {
            None => vec![scoped],
            Some(made) => made.into_iter().map(|node| ScopedNode { node, opsets: scoped.opsets.clone() }).collect(),
        };
        Ok(kept.flat_map(replaced).collect())
    }

    /// The operator of quantised operands that ends with a node, and the other nodes that it replaces.
    fn group(&mut self, uses: &Uses<'_>, end: &NodeProto) -> Result<Option<(NodeProto, Vec<usize>)>, OnnxError> {
        let [value, scale, zero] = &end.input[..] else { return Ok(None) };
        let standard = canonical_domain(end.domain()) == STANDARD_DOMAIN;
        let Some(steps) = self.quantisation([value, scale, zero], end)?.filter(|q| standard && q.scale.len() == 1)
        else {
            return Ok(None);
        };
        let mut parts = vec![];
        let mut value = value.as_str();
        // Numbers below the zero point are those that the type does not have.
        if let Some((index, relu)) = uses.only_maker(value, &["Relu"]).filter(|_| is_least(&steps.zero)) {
            parts.push(index);
            value = relu.input.first().map_or("", String::as_str);
        }
        let Some((index, node)) = uses.only_maker(value, &Product::OPS) else { return Ok(None) };
        parts.push(index);
        let Some((kind, [left, right])) = self.product(uses, node)?.filter(|_| is_byte(&steps.zero)) else {
            return Ok(None);
        };
        let mut inputs: Vec<&str> = [left.names, right.names].concat();
        let result = [scale.as_str(), zero.as_str()];
        let bias = match node.input.get(2).filter(|name| !name.is_empty()) {
            None => None,
            Some(bias) => {
                let Some((_, from)) = uses.maker(bias, &["DequantizeLinear"]) else { return Ok(None) };
                let Some(bias) = self.bias(from, &left, &right)? else { return Ok(None) };
                Some(bias)
            }
        };
        match kind {
            Product::Gemm { .. } => inputs.extend([bias.unwrap_or("")].into_iter().chain(result)),
            Product::Conv | Product::MatMul => inputs.extend(result.into_iter().chain(bias)),
        }
        let output = end.output.first().map_or("", String::as_str);
        let made = match kind {
            Product::Conv => NodeProto {
                attribute: node.attribute.clone(),
                ..NodeProto::of("QLinearConv", &inputs, output, node.name.clone())
            },
            Product::MatMul => NodeProto::of("QLinearMatMul", &inputs, output, node.name.clone()),
            Product::Gemm { .. } => quantised_gemm(node, &inputs, output),
        };
        Ok(Some((made, parts)))
    }

    /// What computes a product of dequantised matrices from their bytes, if a node is one.
    fn float_product(&mut self, uses: &Uses<'_>, node: &NodeProto) -> Result<Option<Vec<NodeProto>>, OnnxError> {
        let standard = canonical_domain(node.domain()) == STANDARD_DOMAIN;
        if !standard || !["MatMul", "Gemm"].contains(&node.op_type()) {
            return Ok(None);
        }
        let Some((kind, [left, right])) = self.product(uses, node)? else { return Ok(None) };
        let output = node.output.first().map_or("", String::as_str);
        let [[a, a_scale, a_zero], [b, b_scale, b_zero]] = [left.names, right.names];
        if kind == Product::MatMul {
            let inputs = [a, b, a_scale, b_scale, a_zero, b_zero];
            let made = NodeProto::of("MatMulIntegerToFloat", &inputs, output, node.name.clone());
            return Ok(Some(vec![NodeProto { domain: Some(OnnxName::MICROSOFT.to_owned()), ..made }]));
        }
        let inputs = [left.names, right.names].concat();
        Ok(Some(match node.input.get(2).filter(|name| !name.is_empty()) {
            None => vec![quantised_gemm(node, &inputs, output)],
            Some(bias) => {
                let product = format!("{output}{PRODUCT}");
                let sum = NodeProto::of("Add", &[&product, bias], output, node.name.clone());
                vec![quantised_gemm(node, &inputs, &product), sum]
            }
        }))
    }

    /// What a node computes of two dequantised operands of bytes, if there are kernels for it.
    fn product<'n>(
        &mut self,
        uses: &Uses<'n>,
        node: &'n NodeProto,
    ) -> Result<Option<(Product, [Quantisation<'n>; 2])>, OnnxError> {
        let Some(kind) = Product::of(node).filter(|kind| *kind != Product::Conv || self.has_kernels(uses, node)) else {
            return Ok(None);
        };
        let [left, right, ..] = &node.input[..] else { return Ok(None) };
        let mut operand = |name: &str| -> Result<Option<Quantisation<'n>>, OnnxError> {
            let Some((_, from)) = uses.maker(name, &["DequantizeLinear"]) else { return Ok(None) };
            Ok(self.dequantised(from)?.filter(|o| is_byte(&o.zero)))
        };
        let (Some(left), Some(right)) = (operand(left)?, operand(right)?) else { return Ok(None) };
        let rank = self.constant_dims(right.names[0]).map(|dims| dims.len() as i64);
        let fits = left.scale.len() == 1 && kind.has_scales_of(&right, rank);
        Ok(fits.then_some((kind, [left, right])))
    }

    /// Whether there are kernels of bytes for a convolution: of images or signals whose output channels read all input
    /// channels, or one each.
    fn has_kernels(&self, uses: &Uses<'_>, node: &NodeProto) -> bool {
        let filters = node.input.get(1).and_then(|w| uses.maker(w, &["DequantizeLinear"]));
        let dims = filters.and_then(|(_, from)| self.constant_dims(from.input.first()?));
        let group = node.attribute.iter().find(|a| a.name.as_deref() == Some("group")).and_then(|a| a.i).unwrap_or(1);
        let fits = |d: &[i64]| match group {
            1 => (3..=4).contains(&d.len()) || d.len() > 2 && d[2..].iter().all(|n| *n == 1),
            _ => (3..=4).contains(&d.len()) && d[..2] == [group, 1],
        };
        dims.is_some_and(|d| fits(&d))
    }

    /// The name of the quantised bias, if its scale is that of the sums and its zero point 0.
    fn bias<'n>(
        &mut self,
        from: &'n NodeProto,
        left: &Quantisation<'_>,
        right: &Quantisation<'_>,
    ) -> Result<Option<&'n str>, OnnxError> {
        let (Some(bias), Some(scale)) = (from.input.first(), from.input.get(1)) else { return Ok(None) };
        let Some(scale) = self.small_constant(scale)?.filter(|s| s.dtype() == DType::F32) else { return Ok(None) };
        if let Some(zero) = from.input.get(2).filter(|name| !name.is_empty()) {
            let zeros = self.small_constant(zero)?;
            if !zeros.is_some_and(|z| z.dtype() == DType::I32 && z.bytes().iter().all(|b| *b == 0)) {
                return Ok(None);
            }
        }
        let (left, right, scale) = (left.scale.to_f32s(), right.scale.to_f32s(), scale.to_f32s());
        let count = right.len().max(scale.len());
        let of = |x: &[f32], i: usize| x.get(if x.len() == 1 { 0 } else { i }).copied().unwrap_or(f32::NAN);
        let fits = |i| {
            let sums = left[0] * of(&right, i);
            (of(&scale, i) - sums).abs() <= SCALE_TOLERANCE * sums.abs()
        };
        Ok((0..count).all(fits).then_some(bias))
    }

    fn dequantised<'n>(&mut self, node: &'n NodeProto) -> Result<Option<Quantisation<'n>>, OnnxError> {
        let [x, scale, zero] = &node.input[..] else { return Ok(None) };
        self.quantisation([x, scale, zero], node)
    }

    /// Scale and zero point of a node, where they are constants of f32 and of integers that are not in blocks.
    fn quantisation<'n>(
        &mut self,
        names: [&'n String; 3],
        node: &NodeProto,
    ) -> Result<Option<Quantisation<'n>>, OnnxError> {
        let attribute = |name: &str| node.attribute.iter().find(|a| a.name.as_deref() == Some(name));
        let other = ["block_size", "output_dtype", "precision"];
        if other.into_iter().filter_map(attribute).any(|a| a.i.unwrap_or(0) != 0) {
            return Ok(None);
        }
        let (scale, zero) = (self.small_constant(names[1])?, self.small_constant(names[2])?);
        let (Some(scale), Some(zero)) = (scale, zero) else { return Ok(None) };
        let fits = scale.dtype() == DType::F32 && zero.len() == scale.len() && !scale.is_empty();
        let axis = match attribute("axis") {
            Some(axis) => axis.i,
            None => Some(1),
        };
        let names = names.map(String::as_str);
        Ok(fits.then_some(Quantisation { names, scale, zero, axis }))
    }

    /// The extents of an initialiser, or of a constant that was one.
    fn constant_dims(&self, name: &str) -> Option<Vec<i64>> {
        if let Some(value) = self.values.get(name).and_then(|meaning| meaning.tensor()) {
            return self.graph.constant(value).map(|data| data.dims().iter().map(|n| *n as i64).collect());
        }
        match self.stored.get(name) {
            Some(StoredTensor::Dense(proto)) => Some(proto.dims.clone()),
            _ => None,
        }
    }

    /// The value of an initialiser, or of a constant that was one.
    fn small_constant(&mut self, name: &str) -> Result<Option<TensorData>, OnnxError> {
        if let Some(value) = self.values.get(name).and_then(|meaning| meaning.tensor()) {
            return Ok(self.graph.constant(value).cloned());
        }
        match self.stored.get(name) {
            Some(StoredTensor::Dense(proto)) => {
                Ok(read_tensor(proto, TensorSite::Initializer(name.to_owned()), &mut self.files).ok())
            }
            _ => Ok(None),
        }
    }
}

/// A `Gemm` of bytes with the flags of one of floats.
fn quantised_gemm(node: &NodeProto, inputs: &[&str], output: &str) -> NodeProto {
    let mut made = NodeProto::of("QGemm", inputs, output, node.name.clone());
    made.domain = Some(OnnxName::MICROSOFT.to_owned());
    made.attribute = node.attribute.iter().filter(|a| a.name.as_deref() != Some("beta")).cloned().collect();
    made
}

fn is_byte(zero: &TensorData) -> bool {
    matches!(zero.dtype(), DType::U8 | DType::I8)
}

/// Whether a zero point is the least number of its type.
fn is_least(zero: &TensorData) -> bool {
    let least = if zero.dtype() == DType::I8 { i8::MIN as u8 } else { 0 };
    is_byte(zero) && zero.bytes().iter().all(|b| *b == least)
}
