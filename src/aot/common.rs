//! What the variants of a part have in common: which values they read and give, and what the host computes behind them.

use tensorc_ir::graph::{Graph, NodeId};
use tensorc_passes::parts::{PartShape, ShapeSource};

use super::division::PartRequest;
use super::variants::Variant;
use crate::error::Error;

/// What all variants of a part read and give, if that is the same; of shapes that the host computes, what any of them leaves open.
pub fn common_shape(variants: &[Variant]) -> Option<&PartShape> {
    let open = |shape: &PartShape| shape.sources.iter().map(|source| source.open_positions().len()).sum::<usize>();
    let common = variants.iter().map(|variant| &variant.shape).max_by_key(|shape| open(shape))?;
    variants.iter().all(|variant| serves(common, &variant.shape)).then_some(common)
}

/// Whether a part of one shape serves where there is a part of another.
fn serves(common: &PartShape, other: &PartShape) -> bool {
    let like = |(a, b): (&ShapeSource, &ShapeSource)| {
        (a.value, a.kind, a.numbers.rank()) == (b.value, b.kind, b.numbers.rank())
            && b.open_positions().iter().all(|position| a.open_positions().contains(position))
    };
    (&common.inputs, &common.outputs, &common.hosts) == (&other.inputs, &other.outputs, &other.hosts)
        && common.sources.len() == other.sources.len()
        && common.sources.iter().zip(&other.sources).all(like)
}

/// That every result has one element type and rank in all variants.
///
/// # Errors
/// It has not.
pub fn check_types(part: &PartRequest<'_>, variants: &[Variant]) -> Result<(), Error> {
    let Some((first, others)) = variants.split_first() else { return Ok(()) };
    let of = |variant: &Variant, i: usize| {
        let buffer = variant.plan.buffer(variant.plan.outputs[i]);
        (buffer.dtype, buffer.dims.len())
    };
    for other in others {
        let Some(i) = (0..first.plan.outputs.len()).find(|i| of(first, *i) != of(other, *i)) else { continue };
        let text = |variant: &Variant| {
            let (dtype, rank) = of(variant, i);
            format!("{dtype} of rank {rank} where {}", numbers(part, variant))
        };
        let name = &first.plan.buffer(first.plan.outputs[i]).name;
        let both = format!("{} and {}", text(first), text(other));
        let why = format!("`{name}` is {both}; give smaller ranges than {} with --shape", ranges(part));
        return Err(Error::Artifact(format!("model `{}`: {why}", part.model.graph().name)));
    }
    Ok(())
}

/// The numbers that a variant is for, or the largest of them.
fn numbers(part: &PartRequest<'_>, variant: &Variant) -> String {
    let all = part.names.iter().zip(&variant.extents).map(|(name, extent)| format!("{name} = {extent}"));
    all.collect::<Vec<_>>().join(", ")
}

fn ranges(part: &PartRequest<'_>) -> String {
    let all = part.names.iter().zip(&part.ranges).map(|(name, range)| format!("{name} = {range}"));
    all.collect::<Vec<_>>().join(", ")
}

/// That no part serves all numbers: between which numbers it changes, and where.
pub fn divided_differently(part: &PartRequest<'_>, variants: &[Variant]) -> Error {
    let graph = part.model.graph();
    let pair = variants.windows(2).find(|pair| !serves(&pair[0].shape, &pair[1].shape));
    let changes = match pair {
        Some([a, b]) => {
            let place = difference(&a.shape, &b.shape).map_or(String::new(), |node| named(graph, node));
            format!("where {} than where {}{place}", numbers(part, a), numbers(part, b))
        }
        _ => "for some numbers".to_owned(),
    };
    let why = format!("is divided into other parts {changes}; give smaller ranges than {} with --shape", ranges(part));
    Error::Artifact(format!("model `{}` {why}", graph.name))
}

fn named(graph: &Graph, node: NodeId) -> String {
    match graph.contains(node) {
        true => format!(", at `{}`", graph.node(node).name),
        false => String::new(),
    }
}

/// A node by which two parts differ.
fn difference(a: &PartShape, b: &PartShape) -> Option<NodeId> {
    let nodes = |shape: &PartShape| {
        let hosts = shape.hosts.iter().map(|call| call.node);
        let sources = shape.sources.iter().map(|source| source.value.node);
        let values = shape.outputs.iter().chain(&shape.inputs).map(|v| v.node);
        hosts.chain(sources).chain(values).collect::<Vec<_>>()
    };
    let (a, b) = (nodes(a), nodes(b));
    let only = |these: &[NodeId], those: &[NodeId]| these.iter().find(|node| !those.contains(node)).copied();
    only(&a, &b).or_else(|| only(&b, &a))
}
