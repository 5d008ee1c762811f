//! Recognition of attention: a product of queries and keys, element-wise work on the scores, a softmax of their
//! rows, and a product with values.
//!
//! [`attention_of`] knows the body of a cluster. [`attention_at`] looks at the primitives around the second product, in a graph or in the body of a cluster,
//! and says what a library kernel would have to compute. [`pattern`] matches the softmax, [`layout`] the memory
//! accesses. A row of scores is everything along their last axis; shapes may change on the way as long as rows
//! stay rows.

mod layout;
mod nodes;
mod pattern;

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{Attention, DType};
use tensorc_ir::extent::{Axes, Fixed};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Prim};
use tensorc_ir::views::{keeps_linear_order, strides_in_result};
use tensorc_ir::{Extent, Extents};

use layout::AttentionLayouts;
use nodes::{factor, float_of, prim};
use pattern::{Matcher, Softmax};

/// Attention found in a graph.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The call of the kernel.
    pub call: Attention<Extent>,
    /// The type of operands and result; scores and weights of f16 and bf16 are computed in f32.
    pub dtype: DType,
    /// The operands the kernel reads.
    pub q: Value,
    /// The keys.
    pub k: Value,
    /// The values.
    pub v: Value,
    /// What the kernel computes before the epilogue: the product of queries and keys, scaled.
    pub accumulated: Value,
    /// What the softmax takes.
    pub scores: Value,
    /// The result.
    pub result: Value,
    /// All nodes that the kernel stands for.
    pub members: BTreeSet<NodeId>,
    /// The axes of the scores, those of rows as far as batches and queries tell them apart, then keys.
    pub space: Extents,
    /// The axes that make up each batch dimension and the queries, outermost first; without those of extent 1.
    pub batch_axes: [Vec<usize>; GEMM_BATCH_RANK],
    /// The axes of the result's rows.
    pub row_axes: Vec<usize>,
}

impl Attended {
    /// The call with its numbers fixed ([`Extent::fixed`]).
    pub fn fixed_call(&self) -> Attention {
        self.call.convert(&Fixed)
    }
}

/// Most nodes between the two products.
const MAX_NODES: usize = 48;

/// The attention that all of a cluster's body computes; `None` if the body is anything else.
pub(crate) fn attention_of(body: &Graph) -> Option<Attended> {
    let prims: Vec<NodeId> =
        body.node_ids().into_iter().filter(|n| matches!(body.node(*n).kind, NodeKind::Prim(_))).collect();
    let covers =
        |found: &Attended| found.members.len() == prims.len() && body.outputs().iter().all(|(_, v)| *v == found.result);
    prims.iter().find_map(|n| attention_at(body, *n).filter(covers))
}

/// The attention whose second product is `product`, if it is one of f32, f16 or bf16 that one kernel can compute.
///
/// All nodes between its operands and its result are read inside it only.
pub fn attention_at(graph: &Graph, product: NodeId) -> Option<Attended> {
    let Prim::Contract(second) = prim(graph, product)? else { return None };
    let args = graph.args(product);
    [0, 1].into_iter().find_map(|side| {
        let probabilities = args[side];
        let ty = float_of(graph, probabilities)?;
        let matcher = Matcher::new(graph, ty.dims.count(), last(&ty.dims)?)?;
        let (softmax, after) = match matcher.softmax(probabilities) {
            Some(found) => (found, None),
            None => matcher.divided_later(product, probabilities)?,
        };
        let second = Second { node: product, contraction: second, side, after };
        first_products(graph, &softmax).into_iter().find_map(|first| attended(graph, &second, &softmax, first))
    })
}

/// The product with the values.
struct Second<'a> {
    node: NodeId,
    contraction: &'a Contraction,
    /// Which operand the weights are.
    side: usize,
    /// The map that divides the product, where weights are not divided before.
    after: Option<NodeId>,
}

/// Contractions that the scores may be made of.
fn first_products(graph: &Graph, softmax: &Softmax) -> Vec<NodeId> {
    let (mut seen, mut found) = (BTreeSet::new(), vec![]);
    let mut stack = vec![softmax.scores.node];
    while let Some(node) = stack.pop() {
        if seen.len() > MAX_NODES || !seen.insert(node) {
            continue;
        }
        match prim(graph, node) {
            Some(Prim::Contract(_)) => found.push(node),
            Some(Prim::Map(_) | Prim::View(_)) => stack.extend(graph.args(node).iter().map(|v| v.node)),
            _ => {}
        }
    }
    found
}

fn attended(graph: &Graph, second: &Second<'_>, softmax: &Softmax, first: NodeId) -> Option<Attended> {
    let Prim::Contract(contraction) = prim(graph, first)? else { return None };
    let product = Value { node: first, port: 0 };
    let (scores, keys) = (graph.dense(softmax.scores).ok()?, softmax.keys);
    let out = float_of(graph, product)?;
    let rows = |dims: &Extents| last(dims).is_some_and(|n| n == keys);
    if out.dims.count() != scores.dims.count() || !rows(&out.dims) || !rows(&scores.dims) {
        return None;
    }
    let mut members = between(graph, first, second)?;
    if !members.iter().filter(|n| **n != second.node).all(|n| follows_rows(graph, *n, first, softmax, &members)) {
        return None;
    }
    let mut last = second.after.unwrap_or(second.node);
    let moved = final_view(graph, last, &members);
    let mut layouts = AttentionLayouts::new(graph, contraction, first, second.contraction, second.node, second.side)?;
    let strides = moved.and_then(|view| {
        let Prim::View(v) = prim(graph, view)? else { return None };
        let product = graph.dense(Value { node: second.node, port: 0 }).ok()?;
        let result = graph.dense(Value { node: view, port: 0 }).ok()?.dims;
        strides_in_result(v, &product.dims, &result)
    });
    if let (Some(view), Some(strides)) = (moved, &strides)
        && layouts.set_result(Some(strides)).is_some()
    {
        members.insert(view);
        last = view;
    } else {
        layouts.set_result(None)?;
    }
    let form = layouts.finish()?;
    members.extend(form.members.iter().copied());
    let (mut accumulated, mut scale) = (product, form.scale);
    if let Some((value, factor)) = scaled_product(graph, product, softmax.scores) {
        (accumulated, scale) = (value, scale * factor);
    }
    let call = Attention {
        scale: (scale as f32).to_bits(),
        shifted: softmax.shifted,
        empty_is_zero: softmax.empty_is_zero,
        rounded: [contraction, second.contraction].iter().all(|c| c.algorithm == ConvAlgorithm::Bf16),
        ..form.call
    };
    let result = Value { node: last, port: 0 };
    let dtype = out.dtype;
    let same = |v: Value| graph.dense(v).is_ok_and(|ty| ty.dtype == dtype);
    if ![form.q, form.k, form.v, Value { node: second.node, port: 0 }, result].into_iter().all(same) {
        return None;
    }
    let scores = softmax.scores;
    let sealed =
        |n: &NodeId| *n == last || !graph.is_root(*n) && graph.uses(*n).iter().all(|(user, ..)| members.contains(user));
    (scale.is_finite() && members.iter().all(sealed)).then(|| Attended {
        call,
        dtype,
        q: form.q,
        k: form.k,
        v: form.v,
        accumulated,
        scores,
        result,
        space: form.space,
        batch_axes: form.batch_axes,
        row_axes: form.row_axes,
        members: members.clone(),
    })
}

/// The nodes on ways from the first product to the second and what divides it.
fn between(graph: &Graph, first: NodeId, second: &Second<'_>) -> Option<BTreeSet<NodeId>> {
    let mut known = BTreeMap::from([(first, true)]);
    let mut stack = vec![second.after.unwrap_or(second.node)];
    while let Some(&node) = stack.last() {
        if known.contains_key(&node) {
            stack.pop();
            continue;
        }
        if known.len() > 4 * MAX_NODES {
            return None;
        }
        let inside =
            node == second.node || matches!(prim(graph, node), Some(Prim::Map(_) | Prim::View(_) | Prim::Reduce(_)));
        let args = match (inside, node == second.node) {
            (false, _) => vec![],
            (true, true) => vec![graph.args(node)[second.side].node],
            (true, false) => graph.args(node).iter().map(|v| v.node).collect(),
        };
        let open: Vec<NodeId> = args.iter().copied().filter(|n| !known.contains_key(n)).collect();
        if open.is_empty() {
            known.insert(node, args.iter().any(|n| known.get(n) == Some(&true)));
            stack.pop();
        }
        stack.extend(open);
    }
    let members: BTreeSet<NodeId> = known.into_iter().filter(|(_, inside)| *inside).map(|(n, _)| n).collect();
    (members.len() <= MAX_NODES && members.contains(&second.node)).then_some(members)
}

/// Whether a member before the softmax works on scores element by element.
fn follows_rows(graph: &Graph, node: NodeId, first: NodeId, softmax: &Softmax, members: &BTreeSet<NodeId>) -> bool {
    if node == first || softmax.members.contains(&node) {
        return true;
    }
    let v = Value { node, port: 0 };
    let Ok(out) = graph.dense(v) else { return false };
    let dims = |v: &Value| graph.dense(*v).map_or(Extents::default(), |ty| ty.dims);
    match prim(graph, node) {
        Some(Prim::Map(f)) => {
            let args = graph.args(node);
            f.outputs.len() == 1 && args.iter().filter(|a| members.contains(&a.node)).all(|a| dims(a) == out.dims)
        }
        Some(Prim::View(view)) => graph
            .dense(graph.args(node)[0])
            .is_ok_and(|input| keeps_linear_order(view, &input, &out.dims) && same_last(&input.dims, &out.dims)),
        _ => false,
    }
}

/// The last extent.
fn last(dims: &Extents) -> Option<Extent> {
    dims.all().next_back()
}

/// Whether the last extents are equal.
fn same_last(a: &Extents, b: &Extents) -> bool {
    match (last(a), last(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => true,
        _ => false,
    }
}

/// A view that alone reads the result.
fn final_view(graph: &Graph, last: NodeId, members: &BTreeSet<NodeId>) -> Option<NodeId> {
    let uses = graph.uses(last);
    let [(user, ..)] = uses[..] else { return None };
    let free = !graph.is_root(last) && !members.contains(&user);
    (free && matches!(prim(graph, user), Some(Prim::View(_)))).then_some(user)
}

/// A map that does nothing but scale the product, and alone reads it.
fn scaled_product(graph: &Graph, product: Value, scores: Value) -> Option<(Value, f64)> {
    let uses = graph.uses(product.node);
    let [(user, ..)] = uses[..] else { return None };
    let value = Value { node: user, port: 0 };
    let factor = factor(graph, user).filter(|_| product != scores)?;
    (graph.dense(value).ok()?.dims == graph.dense(product).ok()?.dims).then_some((value, factor))
}
