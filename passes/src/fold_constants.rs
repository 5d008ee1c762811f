//! Constant folding of primitives, under a byte and work allowance.

use tensorc_abi::DType;
use tensorc_ir::DenseType;
use tensorc_ir::TensorData;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::interp::eval_prim;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{ScalarNode, ScalarOp};

use crate::infer::replace_by_constants;
use crate::manager::{Pass, PassCx};

/// Evaluates primitives over constants.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoldConstants;

/// Elementary steps the interpreter may spend on one node; beyond, the node stays for run time.
const WORK_LIMIT: u64 = 4 << 20;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "fold-constants"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let mut changed = false;
        for node in graph.order() {
            changed |= fold_node(graph, node, cx)?;
        }
        changed |= graph.remove_dead() > 0;
        Ok(changed)
    }
}

/// Replaces one primitive by its value if all operands are constants and the result stays small.
pub(crate) fn fold_node(graph: &mut Graph, node: NodeId, cx: &PassCx<'_>) -> Result<bool> {
    let NodeKind::Prim(prim) = &graph.node(node).kind else { return Ok(false) };
    if let Prim::Extern(_) = prim {
        return Ok(false);
    }
    let args = graph.args(node);
    let Some(inputs) = args.iter().map(|v| graph.constant(*v)).collect::<Option<Vec<&TensorData>>>() else {
        return Ok(false);
    };
    let ports = 0..graph.node(node).types.len() as u16;
    let outputs = ports.map(|port| graph.dense(Value { node, port })).collect::<Result<Vec<_>>>()?;
    let before: u64 = inputs.iter().map(|d| d.ty.bytes()).sum();
    let after: u64 = outputs.iter().map(|t| t.bytes()).sum();
    if after > before.saturating_add(cx.options.fold_bytes) {
        return Ok(false);
    }
    let results = match fast(prim, &inputs, &outputs) {
        Some(data) => vec![data],
        None if work(prim, &inputs, &outputs) > WORK_LIMIT => return Ok(false),
        None => eval_prim(prim, &inputs, &outputs, cx.registry.math()).map_err(|d| d.at(&graph.node(node).name))?,
    };
    replace_by_constants(graph, node, &results);
    Ok(true)
}

/// About how many scalar steps the interpreter takes.
fn work(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> u64 {
    let out: u64 = outputs.iter().map(DenseType::len).sum();
    match prim {
        Prim::Map(f) => out.saturating_mul(f.nodes.len() as u64),
        Prim::Reduce(r) => {
            let elements: u64 = inputs.first().map_or(0, |d| d.len());
            elements.saturating_mul((r.map.nodes.len() + r.combine.nodes.len()) as u64)
        }
        Prim::Contract(c) => c.extents.iter().fold(1u64, |a, &e| a.saturating_mul(e)).saturating_mul(4),
        Prim::View(_) | Prim::Gather(_) | Prim::Concat { .. } => out.saturating_mul(2),
        Prim::Kernel(_) | Prim::Extern(_) => out.saturating_mul(64),
    }
}

/// Transformations whole weights go through, without the interpreter.
fn fast(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<TensorData> {
    let (&[input], [output]) = (inputs, outputs) else { return None };
    match prim {
        Prim::View(view) => fast_view(view, input, output),
        Prim::Map(f) if input.dims() == output.dims => match (&f.nodes[..], f.outputs.len()) {
            ([ScalarNode::Input(0), ScalarNode::Op(ScalarOp::Cast(DType::F32), _)], 1) => widen(input, output),
            _ => None,
        },
        _ => None,
    }
}

/// f16 or bf16 to f32.
fn widen(input: &TensorData, output: &DenseType) -> Option<TensorData> {
    let convert: fn(u16) -> f32 = match input.dtype() {
        DType::F16 => |b| half::f16::from_bits(b).to_f32(),
        DType::BF16 => |b| half::bf16::from_bits(b).to_f32(),
        _ => return None,
    };
    let halves = input.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let bytes: Vec<u8> = halves.flat_map(|b| convert(b).to_le_bytes()).collect();
    TensorData::new(output.clone(), bytes.into())
}

/// A view whose position in the operand is affine in the result's coordinates, by strides.
fn fast_view(view: &View, input: &TensorData, output: &DenseType) -> Option<TensorData> {
    if view.is_identity(input.dims(), &output.dims)
        || tensorc_ir::views::keeps_linear_order(view, &input.ty, &output.dims)
    {
        return input.reshape(&output.dims);
    }
    if view.fill.is_some() || output.is_empty() || output.rank() == 0 {
        return None;
    }
    let flat = tensorc_ir::index::linearize(&view.map, input.dims());
    if !flat.is_affine() || !tensorc_ir::views::in_bounds(&view.map, input.dims(), &output.dims) {
        return None;
    }
    let strides: Vec<i64> = (0..output.rank() as u32).map(|v| flat.coefficient(v)).collect::<Option<_>>()?;
    let (size, source) = (output.dtype.size(), input.bytes());
    let mut bytes: Vec<u8> = Vec::with_capacity(output.bytes() as usize);
    let inner = output.rank() - 1;
    let mut at = vec![0u64; inner];
    loop {
        let row: i64 = flat.constant + at.iter().zip(&strides).map(|(c, s)| *c as i64 * s).sum::<i64>();
        for i in 0..output.dims[inner] as i64 {
            let position = (row + i * strides[inner]) as usize * size;
            bytes.extend_from_slice(&source[position..position + size]);
        }
        let Some(axis) = (0..inner).rev().find(|a| at[*a] + 1 < output.dims[*a]) else { break };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
    TensorData::new(output.clone(), bytes.into())
}
