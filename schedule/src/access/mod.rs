//! What a cluster reads and writes: the memory accesses of one iteration, found before any statement is written.
//!
//! Axes of an iteration space are walked as one where all accesses allow it ([`group_axes`]). [`axes`] divides the space of
//! element-wise clusters, [`space`] is that of folds. [`in_place`] follows from the accesses: the one rule of which results may
//! take the place of operands.

pub mod axes;
pub mod in_place;
pub mod product;
pub mod space;

use std::collections::BTreeSet;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::found;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::{Index, Interval, Ranges};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::ScalarNode;
use tensorc_ir::{DenseType, Extent, Extents};

use crate::layout::{self, Layouts, Runs};

fn internal(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Internal, why)
}

/// The body of a cluster, and where its operands and results lie.
#[derive(Clone, Copy)]
pub struct Located<'a> {
    /// The primitives of the cluster.
    pub body: &'a Graph,
    /// The layouts of its inputs and outputs.
    pub layouts: &'a Layouts,
}

impl Located<'_> {
    /// The type of a value.
    pub fn ty(&self, v: Value) -> Result<DenseType> {
        self.body.dense(v)
    }

    /// The results of the cluster.
    pub fn outputs(&self) -> Vec<Value> {
        self.body.outputs().iter().map(|(_, v)| *v).collect()
    }

    /// The layout of a cluster input.
    pub fn input_runs(&self, node: NodeId) -> Option<Runs> {
        let position = self.body.inputs().iter().position(|n| *n == node)?;
        self.layouts.input(position)
    }

    /// The layout of a result, by position.
    pub fn output_runs(&self, output: usize) -> Option<Runs> {
        self.layouts.output(output)
    }

    /// The position in memory of an element of a cluster input.
    pub fn input_address(&self, v: Value, coords: &[Index]) -> Result<Index> {
        Ok(layout::address(coords, &self.ty(v)?.dims, self.input_runs(v.node)))
    }

    /// The position in memory of an element of a result, seen with extents `dims`.
    pub fn output_address(&self, output: usize, dims: &Extents, coords: &[Index]) -> Index {
        layout::address(coords, dims, self.output_runs(output))
    }

    /// The primitive of a node, if it is one.
    pub fn prim(&self, node: NodeId) -> Option<&Prim> {
        match &self.body.node(node).kind {
            NodeKind::Prim(p) => Some(p),
            _ => None,
        }
    }
}

/// Whether a coordinate is one of `0..n` at every point of a space.
pub fn stays_inside(index: &Index, n: Extent, space: &(impl Ranges + ?Sized)) -> bool {
    let (lo, hi) = index.interval(space);
    found(|| lo >= 0 && hi < n)
}

/// Coordinates of an operand of shape `dims` read by an element at `coords` of a tensor of shape `to` (numpy broadcasting).
pub fn broadcast_coords(dims: &Extents, to: &Extents, coords: &[Index]) -> Vec<Index> {
    let pad = coords.len() - dims.len();
    let pick = |(i, n): (usize, Extent)| match n.is_repeated_along(to.at(pad + i)) {
        true => Index::default(),
        false => coords[pad + i].clone(),
    };
    dims.all().enumerate().map(pick).collect()
}

/// Every access of one iteration over a space of axes, in variables that count the axes.
#[derive(Clone, Debug, Default)]
pub struct ClusterAccesses {
    /// Flat position read of an operand or written of a result.
    pub flats: Vec<(Value, Index)>,
    /// Coordinates that may leave `0..n` and then read a fill value.
    pub guards: Vec<(Index, Extent)>,
    /// Axes whose coordinate itself is a value.
    pub exact: BTreeSet<u32>,
    /// Values computed without a guard, operands first, and where.
    pub sites: Vec<(Value, Vec<Index>)>,
    seen: BTreeSet<(Value, Vec<Index>, bool)>,
}

impl ClusterAccesses {
    /// Adds what computing `v` at `coords` touches. Values in `stop` are available already.
    pub fn collect(
        &mut self,
        cluster: &Located<'_>,
        v: Value,
        coords: &[Index],
        space: &Extents,
        stop: &dyn Fn(Value) -> bool,
    ) -> Result<()> {
        self.visit(cluster, v, coords, space, stop, false)
    }

    /// Adds the store of a result.
    pub fn store(&mut self, v: Value, address: Index) {
        self.flats.push((v, address));
    }

    fn visit(
        &mut self,
        cluster: &Located<'_>,
        v: Value,
        coords: &[Index],
        space: &Extents,
        stop: &dyn Fn(Value) -> bool,
        guarded: bool,
    ) -> Result<()> {
        if stop(v) || !self.seen.insert((v, coords.to_vec(), guarded)) {
            return Ok(());
        }
        let args = cluster.body.args(v.node);
        match &cluster.body.node(v.node).kind {
            NodeKind::Input => self.flats.push((v, cluster.input_address(v, coords)?)),
            NodeKind::Const(_) => return Ok(()),
            NodeKind::Prim(Prim::Map(f)) => {
                for node in &f.nodes {
                    if let ScalarNode::Coord(a) = node {
                        coords[*a as usize].visit_vars(&mut |x| self.exact.extend([x]));
                    }
                }
                for arg in args {
                    let at = broadcast_coords(&cluster.ty(arg)?.dims, &cluster.ty(v)?.dims, coords);
                    self.visit(cluster, arg, &at, space, stop, guarded)?;
                }
            }
            NodeKind::Prim(Prim::View(view)) => {
                let at: Vec<Index> =
                    view.map.iter().map(|m| m.substitute(&|d| coords[d as usize].clone(), space)).collect();
                let mut inside = true;
                for (index, n) in at.iter().zip(cluster.ty(args[0])?.dims.all()) {
                    if view.fill.is_some() && !stays_inside(index, n, space) {
                        self.guards.push((index.clone(), n));
                        inside = false;
                    }
                }
                self.visit(cluster, args[0], &at, space, stop, guarded || !inside)?;
            }
            NodeKind::Prim(Prim::Gather(g)) => {
                let rank = cluster.ty(args[1])?.rank();
                self.visit(cluster, args[1], &coords[g.axis..g.axis + rank], space, stop, guarded)?;
                let mut at = coords[..g.axis].to_vec();
                at.push(Index::default());
                at.extend_from_slice(&coords[g.axis + rank..]);
                self.flats.push((args[0], cluster.input_address(args[0], &at)?));
            }
            _ => {
                return Err(
                    internal("a cluster holds a node its emitter does not know").at(&cluster.body.node(v.node).name)
                );
            }
        }
        if !guarded {
            self.sites.push((v, coords.to_vec()));
        }
        Ok(())
    }
}

/// Neighbouring axes that all accesses walk as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedAxes {
    /// The innermost axis, which stands for the whole group.
    pub axis: usize,
    /// The extent of the merged axis.
    pub extent: Extent,
}

/// Merges the axes for which `mergeable(outer, inner)` holds and all uses agree; axes of extent 1
/// vanish. Axes that are `folded` are merged wherever they can be, because results depend on that; others where they can be for
/// all values of symbols.
pub fn group_axes(
    space: &Extents,
    uses: &ClusterAccesses,
    folded: &dyn Fn(usize) -> bool,
    mergeable: &dyn Fn(usize, usize) -> bool,
) -> Vec<MergedAxes> {
    let agree = |outer: usize, inner: usize| {
        // The order of a sum depends on whether reads of folded axes leave the operand.
        let leaves = |a: usize, (g, n): &(Index, Extent)| {
            let inside = |(lo, hi): Interval| lo >= 0 && hi < *n;
            g.mentions(a as u32) && (!folded(a) || !inside(g.interval(space)))
        };
        let free = |a: usize| !uses.exact.contains(&(a as u32)) && !uses.guards.iter().any(|guard| leaves(a, guard));
        let equal = |a: Extent, b: Extent| if folded(inner) { a == b } else { a.is_surely(b) };
        let strided = |flat: &Index| match (flat.coefficient(outer as u32), flat.coefficient(inner as u32)) {
            (Some(o), Some(i)) => equal(o, i * space.at(inner)),
            _ => false,
        };
        free(outer) && free(inner) && uses.flats.iter().all(|(_, f)| strided(f))
    };
    let mut groups: Vec<MergedAxes> = vec![];
    for axis in (0..space.len()).filter(|&a| !space.at(a).is_surely(1)) {
        match groups.last_mut() {
            Some(g) if mergeable(g.axis, axis) && agree(g.axis, axis) => {
                *g = MergedAxes { axis, extent: g.extent * space.at(axis) };
            }
            _ => groups.push(MergedAxes { axis, extent: space.at(axis) }),
        }
    }
    groups
}
