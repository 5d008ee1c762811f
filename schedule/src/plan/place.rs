//! Concatenations in place: which operands are computed where the result holds them.
//!
//! An operand that is computed by a step whose result may be laid out in runs, and read only by such
//! steps, becomes a part of the concatenation's buffer and needs no copy. Others are copied: the caller's
//! tensors, what is delivered, operands of a second concatenation, and those whose runs do not end where
//! an axis of every tensor ends that is seen there. So are those that would be in the way: a concatenation is
//! live from the first of its parts on, and at the peak of memory a copy may be cheaper.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::views::keeps_linear_order;

use super::kept::KeptParts;
use crate::layout::{Layouts, Runs};
use crate::recipe::library_of;
use crate::target::Target;

/// Where a value lies in another one, in elements, as [`tensorc_abi::SubBuffer`].
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedView {
    pub whole: Value,
    pub offset: Extent,
    pub runs: Runs,
}

impl StridedView {
    /// Where `len` elements lie that lie at `offset`, in runs, in something of `outer` elements that itself lies
    /// in this place. `None` if they are no runs of equal length and distance.
    pub(super) fn within(&self, outer: Extent, (offset, inner): (Extent, Runs), len: Extent) -> Option<StridedView> {
        let Runs { run, stride } = self.runs;
        let place = |offset, run, stride| Some(StridedView { offset, runs: Runs { run, stride }, ..*self });
        if outer <= run || run == stride {
            return place(self.offset + offset, inner.run, inner.stride);
        }
        let (first, at) = (self.offset + offset / run * stride + offset % run, offset % run);
        match len <= inner.run || inner.run == inner.stride {
            true if at + len <= run => place(first, len, len),
            true if at == 0 && run.divides(len) => place(first, run, stride),
            false if at + inner.run <= run && run.divides(inner.stride) => {
                place(first, inner.run, inner.stride / run * stride)
            }
            _ => None,
        }
    }

    /// The runs, if `len` elements that lie here are not side by side.
    pub(super) fn apart(&self, len: Extent) -> Option<Runs> {
        Some(self.runs).filter(|r| r.run < len && r.run < r.stride)
    }
}

/// Where each operand of a concatenation lies in it.
pub(super) fn operands(graph: &Graph, node: NodeId, axis: usize) -> Result<Vec<(Extent, Runs)>> {
    let out = graph.dense(Value { node, port: 0 })?;
    let inner = out.dims.range(axis + 1..).count();
    let mut offset = Extent::ZERO;
    let mut all = vec![];
    for v in graph.args(node) {
        let run = graph.dense(v)?.dims.at(axis) * inner;
        all.push((offset, Runs { run, stride: out.dims.at(axis) * inner }));
        offset = offset + run;
    }
    Ok(all)
}

/// At what multiple of bytes the arguments of a kernel for a GPU begin, as vectors and asynchronous copies need.
const GPU_ALIGNMENT: u64 = 16;

/// Whether kernels for a GPU can take what begins at an element of a buffer, in every shape.
pub(super) fn is_aligned(offset: Extent, dtype: DType) -> bool {
    (offset * dtype.size()).sure_quotient(GPU_ALIGNMENT).is_some()
}

/// Whether kernels for a GPU can take each operand of a concatenation where it lies in the result.
pub(super) fn all_aligned(graph: &Graph, node: NodeId, axis: usize) -> Result<bool> {
    let dtype = graph.dense(Value { node, port: 0 })?.dtype;
    Ok(operands(graph, node, axis)?.iter().all(|(offset, _)| is_aligned(*offset, dtype)))
}

/// The values that are computed in their place in a concatenation, by the value they rename.
pub(super) struct ConcatElimination {
    /// What a view that keeps the order renames.
    names: BTreeMap<Value, Value>,
    places: BTreeMap<Value, StridedView>,
    /// What lies in each concatenation, and the concatenation it is an operand of.
    members: BTreeMap<Value, Vec<(Value, NodeId)>>,
    /// Nodes that read a value or a view of it, and the value they read.
    readers: BTreeMap<Value, Vec<(NodeId, Value)>>,
    /// Delivered values, and others that are in no concatenation.
    bound: BTreeSet<Value>,
    /// Operands of next values of states that lie there already.
    pub(super) kept: KeptParts,
    target: Target,
}

impl ConcatElimination {
    /// All values in place that can be, without some.
    pub(super) fn without(graph: &Graph, without: &BTreeSet<Value>, target: Target) -> Result<ConcatElimination> {
        let mut p = ConcatElimination {
            names: BTreeMap::new(),
            places: BTreeMap::new(),
            members: BTreeMap::new(),
            readers: BTreeMap::new(),
            bound: without.clone(),
            kept: if target.is_gpu() { KeptParts::default() } else { KeptParts::of(graph)? },
            target,
        };
        p.bound.extend(p.kept.values());
        let order = graph.order();
        for &node in &order {
            let args = graph.args(node);
            if let (NodeKind::Prim(Prim::View(view)), [v]) = (&graph.node(node).kind, &args[..])
                && keeps_linear_order(view, &graph.dense(*v)?, &graph.dense(Value { node, port: 0 })?.dims)
            {
                let origin = p.origin(*v);
                p.names.insert(Value { node, port: 0 }, origin);
                continue;
            }
            for v in args {
                p.readers.entry(p.origin(v)).or_default().push((node, v));
            }
        }
        p.bound.extend(graph.roots().map(|v| p.names.get(&v).copied().unwrap_or(v)));
        for &node in &order {
            if let NodeKind::Prim(Prim::Concat { axis }) = graph.node(node).kind {
                p.concat(graph, node, axis)?;
            }
        }
        Ok(p)
    }

    /// The values that are computed in a concatenation.
    pub(super) fn values(&self) -> impl Iterator<Item = Value> {
        self.places.keys().copied()
    }

    /// The value whose memory a value has.
    fn origin(&self, v: Value) -> Value {
        self.names.get(&v).copied().unwrap_or(v)
    }

    pub(super) fn of(&self, v: Value) -> Option<StridedView> {
        self.places.get(&self.origin(v)).copied()
    }

    /// Whether a value is to be in a place of its own: in a concatenation, or delivered.
    pub(super) fn is_bound(&self, v: Value) -> bool {
        self.places.contains_key(&self.origin(v)) || self.bound.contains(&self.origin(v))
    }

    /// The layout of a value, where it is not dense.
    pub(super) fn runs(&self, graph: &Graph, v: Value) -> Result<Option<Runs>> {
        let len = graph.dense(v)?.dims.count();
        Ok(self.of(v).and_then(|p| p.apart(len)))
    }

    /// The layouts of the operands and results of a node.
    pub(super) fn layouts(&self, graph: &Graph, node: NodeId) -> Result<Layouts> {
        let runs = |v: Value| self.runs(graph, v);
        let results = (0..graph.node(node).types.len() as u16).map(|port| Value { node, port });
        Ok(Layouts {
            inputs: graph.args(node).into_iter().map(runs).collect::<Result<_>>()?,
            outputs: results.map(runs).collect::<Result<_>>()?,
        })
    }

    fn concat(&mut self, graph: &Graph, node: NodeId, axis: usize) -> Result<()> {
        if self.target.is_gpu() && !all_aligned(graph, node, axis)? {
            return Ok(());
        }
        let whole = Value { node, port: 0 };
        let args = graph.args(node);
        for (&v, (offset, runs)) in args.iter().zip(operands(graph, node, axis)?) {
            let origin = self.origin(v);
            let once = args.iter().filter(|a| self.origin(**a) == origin).count() == 1;
            if graph.dense(v)?.is_empty() || !once || self.is_bound(origin) {
                continue;
            }
            let place = StridedView { whole, offset, runs };
            let Some(moved) = self.nested(graph, origin, place)? else { continue };
            let mut fits = self.accepts(graph, origin, place, node)?;
            for (member, place, of) in &moved {
                fits = fits && self.accepts(graph, *member, *place, *of)?;
            }
            if fits {
                self.places.insert(origin, place);
                let mut inside = vec![(origin, node)];
                for (member, place, of) in moved {
                    self.places.insert(member, place);
                    inside.push((member, of));
                }
                self.members.entry(whole).or_default().extend(inside);
            }
        }
        Ok(())
    }

    /// Where what lies in a concatenation would lie if that lay in a larger one, and the concatenation that each
    /// value is an operand of; `None` if their runs do not nest.
    fn nested(&self, graph: &Graph, v: Value, outer: StridedView) -> Result<Option<Vec<(Value, StridedView, NodeId)>>> {
        let len = graph.dense(v)?.dims.count();
        let mut moved = vec![];
        for &(member, of) in self.members.get(&v).into_iter().flatten() {
            let Some(StridedView { offset, runs, .. }) = self.places.get(&member).copied() else { continue };
            let Some(place) = outer.within(len, (offset, runs), graph.dense(member)?.dims.count()) else {
                return Ok(None);
            };
            moved.push((member, place, of));
        }
        Ok(Some(moved))
    }

    /// Whether the step that computes a value and all that read it can find it there. It is an operand of the
    /// concatenation `of`.
    fn accepts(&self, graph: &Graph, v: Value, place: StridedView, of: NodeId) -> Result<bool> {
        if self.target.is_gpu() && !is_aligned(place.offset, graph.dense(v)?.dtype) {
            return Ok(false);
        }
        let own = std::iter::once((v.node, v));
        let readers = self.readers.get(&v).into_iter().flatten().copied().filter(|(node, _)| *node != of);
        for (node, seen) in own.chain(readers) {
            let fits = match graph.node(node).kind {
                NodeKind::Prim(Prim::Concat { axis }) if node == v.node => self.holds(graph, node, axis, place)?,
                NodeKind::Prim(Prim::Concat { axis }) => {
                    self.copies(graph, node, axis, self.of(Value { node, port: 0 }), Some((v, place)))?
                }
                _ => addresses(graph, node, (seen, node == v.node), place.runs, &self.target)?,
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a concatenation can be made in a place, its copied operands copied there.
    fn holds(&self, graph: &Graph, node: NodeId, axis: usize, place: StridedView) -> Result<bool> {
        self.copies(graph, node, axis, Some(place), None)
    }

    /// Whether the operands of a concatenation in a place can be copied there, of which one is moved.
    fn copies(
        &self,
        graph: &Graph,
        node: NodeId,
        axis: usize,
        place: Option<StridedView>,
        moved: Option<(Value, StridedView)>,
    ) -> Result<bool> {
        let out = graph.dense(Value { node, port: 0 })?;
        let (len, dtype) = (out.dims.count(), out.dtype);
        for (v, at) in graph.args(node).into_iter().zip(operands(graph, node, axis)?) {
            let size = graph.dense(v)?.dims.count();
            let to = match place {
                Some(place) => place.within(len, at, size),
                None => Some(StridedView { whole: Value { node, port: 0 }, offset: at.0, runs: at.1 }),
            };
            let Some(to) = to.filter(|to| !self.target.is_gpu() || is_aligned(to.offset, dtype)) else {
                return Ok(false);
            };
            let from = match moved {
                Some((moved, place)) if moved == self.origin(v) => Some(place),
                _ => self.of(v),
            };
            let (from, to) = (from.and_then(|p| p.apart(size)), to.apart(size));
            if from.zip(to).is_some_and(|(from, to)| from.run != to.run) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a node can read, or write, a value that lies in these runs. The answer is the same before recipes are stated
/// and after, so that a plan has the layouts for which its recipes were decided.
fn addresses(graph: &Graph, node: NodeId, (v, writes): (Value, bool), runs: Runs, target: &Target) -> Result<bool> {
    let ty = graph.dense(v)?;
    let apart = runs.run < ty.dims.count() && runs.run < runs.stride;
    Ok(match &graph.node(node).kind {
        NodeKind::Fused(fused) if apart => {
            // Operands and result of attention are dense.
            if fused.class == FusionClass::Attention {
                return Ok(false);
            }
            let library = library_of(graph, node, target)?;
            let positions: Vec<usize> = match writes {
                true => vec![],
                false => (0..graph.args(node).len()).filter(|i| graph.args(node)[*i] == v).collect(),
            };
            match library {
                Some(library) => {
                    let read = positions.iter().all(|i| match library.operands().contains(i) {
                        true => library.laid_out(*i, runs).is_some(),
                        false => runs.fits(&ty.dims),
                    });
                    // An operand may be read by the epilogue as well.
                    let result = !writes || library.result_laid_out(runs).is_some();
                    read && result && (writes || runs.fits(&ty.dims))
                }
                None => runs.fits(&ty.dims),
            }
        }
        NodeKind::Fused(_) => true,
        NodeKind::Prim(Prim::View(_)) => !apart || runs.fits(&ty.dims),
        NodeKind::Prim(Prim::Kernel(_)) => !apart,
        _ => false,
    })
}

/// How operands get into concatenations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcatOperands {
    /// They are computed there where that can be and costs no memory.
    #[default]
    InPlace,
    /// All are copied.
    Copied,
}
