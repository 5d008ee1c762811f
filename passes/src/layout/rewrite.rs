//! Rewrites the nodes that are computed in other layouts, with conversions between them and the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::{Conv2d, ImageLayout};
use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Prim, Reduction, View};
use tensorc_ir::views::compose;
use tensorc_schedule::recognise::contract::image_convolution;

use super::choose::{Choice, convolution};
use super::forms::{form, from_planes, last_axis, moved, to_planes};

/// Values of the original graph in other forms.
#[derive(Default)]
struct Forms {
    /// For results of one rank, in one layout.
    values: BTreeMap<(Value, usize, ImageLayout), Value>,
    /// Where they are computed, if that is not in planes.
    computed: BTreeMap<Value, ImageLayout>,
}

/// Rewrites `nodes`, in topological order.
pub(super) fn run(graph: &mut Graph, nodes: &[(NodeId, Choice)]) -> Result<()> {
    let mut forms = Forms::default();
    let mut patch = graph.patch("image-layout");
    for &(node, choice) in nodes {
        let old = Value { node, port: 0 };
        let ty = patch.graph.dense(old)?;
        let new = match choice.algorithm {
            None => {
                let (source, view) = origin(patch.graph, old, &forms)?;
                seen_as(patch.graph, source, view, old, ty.clone())?
            }
            Some(algorithm) => {
                let (prim, args) = computed(patch.graph, node, choice, algorithm, &mut forms)?;
                let name = patch.graph.node(node).name.clone();
                let ty = form(&ty, ty.rank(), choice.layout);
                Value { node: patch.graph.add_prim(name, prim, &args, &[ty]), port: 0 }
            }
        };
        forms.values.insert((old, ty.rank(), choice.layout), new);
        if choice.layout != ImageLayout::Nchw {
            forms.computed.insert(old, choice.layout);
        }
    }
    for &(node, Choice { layout, .. }) in nodes {
        let old = Value { node, port: 0 };
        let ty = patch.graph.dense(old)?;
        let new = forms.values[&(old, ty.rank(), layout)];
        let new = seen_as(patch.graph, new, to_planes(&ty, layout), old, ty)?;
        patch.replace(old, new);
    }
    patch.commit();
    graph.remove_dead();
    Ok(())
}

/// Where the elements of a value come from, through all views, and the view of that.
fn origin(graph: &Graph, v: Value, forms: &Forms) -> Result<(Value, View)> {
    let ty = graph.dense(v)?;
    if let Some(layout) = forms.computed.get(&v) {
        return Ok((forms.values[&(v, ty.rank(), *layout)], to_planes(&ty, *layout)));
    }
    if let NodeKind::Prim(Prim::View(view)) = &graph.node(v.node).kind {
        let through = graph.args(v.node)[0];
        let (source, first) = origin(graph, through, forms)?;
        let [from, middle] = [graph.dense(source)?, graph.dense(through)?];
        if let Some(both) = compose(&first, &from.dims, view, &middle.dims, &ty.dims) {
            return Ok((source, both));
        }
    }
    Ok((v, to_planes(&ty, ImageLayout::Nchw)))
}

/// An operand for a result of rank `rank` in a layout: what computes it so, or a view.
fn operand(graph: &mut Graph, v: Value, rank: usize, layout: ImageLayout, forms: &mut Forms) -> Result<Value> {
    if let Some(found) = forms.values.get(&(v, rank, layout)) {
        return Ok(*found);
    }
    if layout == ImageLayout::Nchw {
        return Ok(v);
    }
    let (ty, wanted) = (graph.dense(v)?, from_planes(&graph.dense(v)?, rank, layout));
    let to = form(&ty, rank, layout);
    let (source, view) = origin(graph, v, forms)?;
    let new = match compose(&view, &graph.dense(source)?.dims, &wanted, &ty.dims, &to.dims) {
        Some(both) => seen_as(graph, source, both, v, to)?,
        None => seen_as(graph, v, wanted, v, to)?,
    };
    forms.values.insert((v, rank, layout), new);
    Ok(new)
}

/// A view of a value, named as another; the value itself if the view is none.
fn seen_as(graph: &mut Graph, source: Value, view: View, named: Value, to: DenseType) -> Result<Value> {
    if view.is_identity(&graph.dense(source)?.dims, &to.dims) {
        return Ok(source);
    }
    let name = graph.node(named.node).name.clone();
    let node = graph.add_prim(name, Prim::View(Arc::new(view)), &[source], &[to]);
    Ok(Value { node, port: 0 })
}

/// The computation of a node in a layout, and its operands.
fn computed(
    graph: &mut Graph,
    node: NodeId,
    choice: Choice,
    algorithm: ConvAlgorithm,
    forms: &mut Forms,
) -> Result<(Prim, SmallVec<[Value; 4]>)> {
    let out = graph.dense(Value { node, port: 0 })?;
    let NodeKind::Prim(prim) = graph.node(node).kind.clone() else { return Err(internal(graph, node)) };
    let args = graph.args(node);
    let layout = choice.layout;
    let prim = match prim {
        Prim::Contract(c) => {
            let conv = convolution(graph, node)?.ok_or_else(|| internal(graph, node))?;
            let conv = Conv2d { layouts: [choice.data, layout], ..conv };
            let x = operand(graph, args[0], 4, choice.data, forms)?;
            let c = if conv.in_planes() { c.as_ref().clone() } else { image_convolution(&conv) };
            let c = Contraction { algorithm, ..c };
            return Ok((Prim::Contract(Arc::new(c)), [x, args[1]].into_iter().collect()));
        }
        Prim::View(view) => Prim::View(Arc::new(seen(&view, &out, layout))),
        Prim::Reduce(r) if layout == ImageLayout::Nhwc => {
            let rank = graph.dense(args[0])?.rank();
            let mut axes: Vec<usize> = r.axes.iter().map(|axis| last_axis(*axis, rank)).collect();
            axes.sort_unstable();
            Prim::Reduce(Arc::new(Reduction { axes: axes.into_iter().collect(), ..r.as_ref().clone() }))
        }
        Prim::Concat { axis } if layout == ImageLayout::Nhwc => Prim::Concat { axis: last_axis(axis, out.rank()) },
        other => other,
    };
    let mut operands = SmallVec::new();
    for v in args {
        let rank = match prim {
            // Operands broadcast to the result.
            Prim::Map(_) => out.rank(),
            _ => graph.dense(v)?.rank(),
        };
        operands.push(operand(graph, v, rank, layout, forms)?);
    }
    Ok((prim, operands))
}

/// A view that leaves channels where they are, of an image in a layout; `out` is its result in planes.
fn seen(view: &View, out: &DenseType, layout: ImageLayout) -> View {
    let rank = out.rank();
    let mut map = view.map.clone();
    match layout {
        ImageLayout::Nchw => {}
        ImageLayout::Nchw16c => map.push(Index::var(rank as u32)),
        ImageLayout::Nhwc => {
            let dims = form(out, rank, layout).dims;
            let rename = |axis: u32| moved(axis as usize, rank);
            map.iter_mut().for_each(|index| *index = index.substitute(&rename, &dims));
            map[1..].rotate_left(1);
        }
    }
    View { map, fill: view.fill }
}

fn internal(graph: &Graph, node: NodeId) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Internal, "a node that cannot be computed in a layout was chosen")
        .at(&graph.node(node).name)
}
