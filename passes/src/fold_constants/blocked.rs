//! Weights of a few bits in blocks with a scale each, which stay packed: constants `(code - zero point) · scale` that only
//! products read. The result is an f32 constant in the form of [`BlockedWeights`], of the same values.

mod source;

use std::sync::Arc;

use tensorc_abi::content::{BlockedMatrix, Content};
use tensorc_abi::{BlockedParts, BlockedWeights, DType};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::{DenseType, TensorData};

use crate::manager::PassCx;
use source::{Codes, Flat, Place, number};

/// Least number of elements of a matrix that stays packed; a smaller one takes little memory as f32.
const MIN_ELEMENTS: u64 = 1 << 14;
/// Fewest terms with one scale.
const MIN_BLOCK: u64 = BlockedWeights::LANES as u64;

/// Replaces weights that are computed from constants by packed ones, if the target multiplies with these. The sums of
/// products with them have an order of their own.
pub(super) fn pack_weights(graph: &mut Graph, cx: &PassCx<'_>) -> Result<bool> {
    if cx.options.target.is_gpu() || !cx.options.reassociate {
        return Ok(false);
    }
    let mut changed = false;
    for node in graph.order() {
        let Some(weights) = Weights::of(graph, node) else { continue };
        let Some(matrix) = weights.packed().map_err(|d| d.at(&graph.node(node).name))? else { continue };
        weights.replace(graph, matrix)?;
        changed = true;
    }
    if changed {
        // Nobody computes what they were made of.
        graph.remove_dead();
    }
    Ok(changed)
}

/// Whether a constant stays packed: views of it are left to the products that read them.
pub(super) fn stays_packed(prim: &Prim, inputs: &[&TensorData]) -> bool {
    matches!(prim, Prim::View(_)) && inputs.iter().any(|data| data.is_packed())
}

/// Weights that a map computes.
struct Weights {
    /// The result of the map, a matrix.
    result: Value,
    /// The axis of terms, which blocks divide.
    terms: usize,
    /// Columns and terms.
    dims: [u64; 2],
    form: BlockedWeights,
    codes: Codes,
    /// Elements of `codes` from one column to the next, and from one term to the next.
    strides: [usize; 2],
    /// Scales, and zero points if blocks have them.
    scales: Blocks<TensorData>,
    zeros: Option<Blocks<Codes>>,
}

/// A number for each block.
struct Blocks<T> {
    data: T,
    /// Elements from one column to the next, and from one block to the next.
    strides: [usize; 2],
}

impl Weights {
    /// The weights that a node computes, if it does and only products read them.
    fn of(graph: &Graph, node: NodeId) -> Option<Weights> {
        let result = Value { node, port: 0 };
        let NodeKind::Prim(Prim::Map(f)) = &graph.node(node).kind else { return None };
        let [a, b] = graph.args(node)[..] else { return None };
        if binary(f, ScalarOp::Mul).is_none() || !feeds_products(graph, node) {
            return None;
        }
        let ty = graph.dense(result).ok()?;
        let [d0, d1] = ty.dims.all().map(|n| n.known()).collect::<Option<Vec<_>>>()?[..] else { return None };
        let dims = [u64::try_from(d0).ok()?, u64::try_from(d1).ok()?];
        if ty.dtype != DType::F32 || dims[0].checked_mul(dims[1])? < MIN_ELEMENTS {
            return None;
        }
        let root = Place { ranges: dims, index: vec![Index::var(0), Index::var(1)] };
        [(a, b), (b, a)].into_iter().find_map(|(steps, scale)| {
            let (scale, place) = root.operand(graph, scale, &ty)?;
            let scales = place.floats(graph, scale)?;
            let centred = Centred::of(graph, root.operand(graph, steps, &ty)?)?;
            (0..2).find_map(|terms| Weights::along(result, terms, dims, &centred, &scales))
        })
    }

    /// The weights with several blocks along an axis.
    fn along(
        result: Value,
        terms: usize,
        dims: [u64; 2],
        centred: &Centred,
        scales: &(TensorData, Flat),
    ) -> Option<Weights> {
        let (n, k) = (dims[1 - terms], dims[terms]);
        let codes = centred.codes.1.strides().filter(|strides| strides[terms] > 0)?;
        let blocks = |flat: &Flat, block: u64, padded: u64| flat.blocks([1 - terms, terms], [n, k], block, padded);
        let (block, strides) = (MIN_BLOCK.ilog2()..k.next_power_of_two().ilog2()).find_map(|log2| {
            let block = 1u64 << log2;
            Some((block, blocks(&scales.1, block, k.div_ceil(block))?))
        })?;
        let (data, zeros) = (scales.0.clone(), &centred.zeros);
        let zeros = match zeros {
            Some((codes, flat)) => {
                let (blocks_of, each) = (k.div_ceil(block), codes.each());
                let strides =
                    blocks(flat, block, blocks_of).or_else(|| blocks(flat, block, blocks_of.next_multiple_of(each)))?;
                Some(Blocks { data: codes.clone(), strides })
            }
            None => None,
        };
        let zero = centred.zero + f64::from(centred.codes.0.flip());
        let whole = zero.fract() == 0.0 && (0.0..=255.0).contains(&zero);
        let form = BlockedWeights::new(centred.codes.0.bits(), block, zeros.is_some(), zero as u8);
        Some(Weights {
            result,
            terms,
            dims: [n, k],
            form: form.filter(|_| whole)?,
            codes: centred.codes.0.clone(),
            strides: [codes[1 - terms], codes[terms]],
            scales: Blocks { data, strides },
            zeros,
        })
    }

    /// The packed form; `None` if there is no memory for it.
    fn packed(&self) -> Result<Option<BlockedMatrix>> {
        let [n, k] = self.dims.map(|n| n as usize);
        let blocks = k.div_ceil(self.form.block() as usize);
        let of_block =
            |strides: [usize; 2]| (0..n).flat_map(move |j| (0..blocks).map(move |b| j * strides[0] + b * strides[1]));
        let data = self.scales.data.content().whole().map_err(Diagnostic::unreadable)?;
        let size = self.scales.data.dtype().size();
        let scales: Vec<u8> = of_block(self.scales.strides)
            .flat_map(|at| {
                let scale = Scalar::read(self.scales.data.dtype(), &data[at * size..]).cast(DType::F32);
                (scale.bits as u32).to_le_bytes()
            })
            .collect();
        let zeros = match &self.zeros {
            Some(Blocks { data, strides }) => {
                let codes = data.unpacked().map_err(Diagnostic::unreadable)?;
                Some(of_block(*strides).map(|at| codes[at]).collect::<Vec<u8>>())
            }
            None => None,
        };
        let codes = self.codes.unpacked().map_err(Diagnostic::unreadable)?;
        let parts = BlockedParts {
            codes: &codes,
            strides: self.strides,
            flip: self.codes.flip(),
            scales: &scales,
            block_strides: [blocks, 1],
            zeros: zeros.as_deref(),
        };
        // Whoever has no memory for them has none for f32.
        Ok(BlockedMatrix::pack(self.form, [n, k], &parts).ok().flatten())
    }

    /// Puts the packed weights in place of what the map computes.
    fn replace(&self, graph: &mut Graph, matrix: BlockedMatrix) -> Result<()> {
        let internal = || Diagnostic::new(DiagnosticCode::Internal, "packed weights have another size");
        let ty = DenseType::new(DType::F32, self.dims);
        let data = TensorData::of(ty, Content::Blocked(Arc::new(matrix))).ok_or_else(internal)?;
        let (name, whole) = (graph.node(self.result.node).name.clone(), graph.dense(self.result)?);
        let mut packed = graph.add_const(name.clone(), data);
        if self.terms == 0 {
            let view = View { map: vec![Index::var(1), Index::var(0)], fill: None };
            let turned = graph.add_prim(name, Prim::View(view.into()), &[packed], &[whole]);
            packed = Value { node: turned, port: 0 };
        }
        graph.replace_uses(self.result, packed);
        Ok(())
    }
}

/// Codes less a zero point.
struct Centred {
    codes: (Codes, Flat),
    zeros: Option<(Codes, Flat)>,
    /// The zero point of all, unless there are several.
    zero: f64,
}

impl Centred {
    fn of(graph: &Graph, (value, place): (Value, Place)) -> Option<Centred> {
        let (value, place) = place.behind_views(graph, value)?;
        let NodeKind::Prim(Prim::Map(f)) = &graph.node(value.node).kind else { return None };
        let ty = graph.dense(value).ok()?;
        let args = graph.args(value.node);
        let operand = |v: Value| place.operand(graph, v, &ty);
        let codes = |v: Value| {
            let (v, place) = operand(v)?;
            place.codes(graph, v)
        };
        match args[..] {
            [a, b] => {
                let subtracts = binary(f, ScalarOp::Sub) == Some([0, 1]);
                let (steps, zero) = match (number(graph, a), number(graph, b)) {
                    (None, Some(zero)) if subtracts => (a, zero),
                    (None, Some(less)) if binary(f, ScalarOp::Add).is_some() => (a, -less),
                    (Some(less), None) if binary(f, ScalarOp::Add).is_some() => (b, -less),
                    (None, None) if subtracts => {
                        let (codes, zeros) = (codes(a)?, codes(b)?);
                        let alike = codes.0.dtype() == zeros.0.dtype();
                        return alike.then_some(Centred { codes, zeros: Some(zeros), zero: 0.0 });
                    }
                    _ => return None,
                };
                Some(Centred { codes: codes(steps)?, zeros: None, zero })
            }
            _ => Some(Centred { codes: place.codes(graph, value)?, zeros: None, zero: 0.0 }),
        }
    }
}

/// The operands, in order, of a function that is one operation of two of f32.
fn binary(f: &ScalarFn, op: ScalarOp) -> Option<[u32; 2]> {
    let of = |id: ScalarId| if let ScalarNode::Input(i) = f.nodes[id.0 as usize] { Some(i) } else { None };
    match (&f.inputs[..], &f.outputs[..]) {
        ([DType::F32, DType::F32], [out]) => match &f.nodes[out.0 as usize] {
            ScalarNode::Op(found, args) if *found == op => {
                let [a, b] = args[..] else { return None };
                Some([of(a)?, of(b)?]).filter(|[a, b]| a != b)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether only products read a result, or views that only products read.
fn feeds_products(graph: &Graph, node: NodeId) -> bool {
    let uses = graph.uses(node);
    let product = |user: NodeId| match &graph.node(user).kind {
        NodeKind::Prim(Prim::Contract(_)) => true,
        NodeKind::Prim(Prim::View(_)) => feeds_products(graph, user),
        _ => false,
    };
    !uses.is_empty() && !graph.is_root(node) && uses.iter().all(|(user, ..)| product(*user))
}
