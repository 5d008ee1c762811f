//! A fused body prepared for emission: types at hand, library functions expanded, and the accesses
//! of an iteration analysed before any statement is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{MathFn, ScalarFn, ScalarNode, ScalarOp};

use super::Math;
use super::layout::{self, Layouts, Runs};

/// The body of one cluster.
pub struct Cluster<'a> {
    pub body: &'a Graph,
    pub order: Vec<NodeId>,
    /// Nodes that are nothing but a library function that can be applied to strips.
    pub calls: BTreeMap<NodeId, MathFn>,
    /// Calls that the emitter applies to strips; others are part of the expression.
    pub apart: BTreeMap<NodeId, MathFn>,
    functions: BTreeMap<NodeId, Arc<ScalarFn>>,
    reductions: BTreeMap<NodeId, Arc<Reduction>>,
    layouts: &'a Layouts,
    /// Whether vectors are as wide as the processor's.
    wide: bool,
    /// Whether matrix units may multiply f32, rounded to 10 bits of fraction.
    pub tf32: bool,
    /// Whether what is emitted is called on blocks by a library.
    pub on_blocks: bool,
    /// Operations by which lanes are counted, where their number decides the order of additions, and the calls
    /// that are not among them.
    counted: Option<(usize, BTreeSet<NodeId>)>,
}

impl<'a> Cluster<'a> {
    pub fn new(body: &'a Graph, math: Math<'_>, layouts: &'a Layouts) -> Result<Cluster<'a>> {
        let order = body.order();
        let (mut functions, mut reductions, mut calls) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let expand = |f: &ScalarFn| f.expand_math(math.library).map_err(|why| Diagnostic::new(Code::Internal, why));
        for &n in &order {
            match &body.node(n).kind {
                NodeKind::Prim(Prim::Map(f)) => {
                    functions.insert(n, Arc::new(expand(f)?));
                    calls.extend(super::strips::call(f, math.library).map(|call| (n, call)));
                }
                NodeKind::Prim(Prim::Reduce(r)) => {
                    let expanded = Reduction {
                        map: expand(&r.map)?,
                        combine: expand(&r.combine)?,
                        finish: expand(&r.finish)?,
                        ..(**r).clone()
                    };
                    reductions.insert(n, Arc::new(expanded));
                }
                _ => {}
            }
        }
        Ok(Cluster {
            body,
            order,
            calls,
            apart: BTreeMap::new(),
            functions,
            reductions,
            layouts,
            wide: !math.applies_strips(),
            tf32: math.target.tf32,
            on_blocks: false,
            counted: None,
        })
    }

    pub fn ty(&self, v: Value) -> Result<DenseType> {
        self.body.dense(v)
    }

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
    pub fn output_address(&self, output: usize, dims: &[u64], coords: &[Index]) -> Index {
        layout::address(coords, dims, self.output_runs(output))
    }

    /// The expanded body of a map node.
    pub fn function(&self, node: NodeId) -> Result<Arc<ScalarFn>> {
        self.functions.get(&node).cloned().ok_or_else(|| internal("not a map"))
    }

    /// The expanded reduction of a node, if it is one.
    pub fn reduction(&self, node: NodeId) -> Option<&Arc<Reduction>> {
        self.reductions.get(&node)
    }

    pub fn prim(&self, node: NodeId) -> Option<&Prim> {
        match &self.body.node(node).kind {
            NodeKind::Prim(p) => Some(p),
            _ => None,
        }
    }

    /// Scalar operations of the expanded bodies, per element, without calls applied to strips.
    pub fn ops(&self) -> usize {
        // A scaling counts as what does it otherwise, because the number of lanes must not depend on it.
        let weight = |n: &ScalarNode| match n {
            ScalarNode::Op(ScalarOp::Scale, _) => 9,
            ScalarNode::Op(..) => 1,
            _ => 0,
        };
        let count = |f: &ScalarFn| f.nodes.iter().map(weight).sum::<usize>();
        let inline = self.functions.iter().filter(|(n, _)| !self.apart.contains_key(n));
        let maps: usize = inline.map(|(_, f)| count(f)).sum();
        maps + self.reductions.values().map(|r| count(&r.map) + count(&r.combine)).sum::<usize>()
    }

    /// Whether every value is 32 bits wide or bool, so that vectors of one lane count fit all.
    pub fn is_word_sized(&self) -> bool {
        let word = |f: &ScalarFn| {
            f.dtypes
                .iter()
                .zip(&f.nodes)
                .all(|(d, n)| d.size() == 4 || d.size() == 1 || matches!(n, ScalarNode::Const(_)))
        };
        self.functions.values().all(|f| word(f)) && self.reductions.values().all(|r| word(&r.map) && word(&r.combine))
    }

    /// Whether a call is set apart, or would be in the style that sets most apart.
    pub fn may_be_apart(&self, node: NodeId) -> bool {
        self.apart.contains_key(&node) || self.counted.as_ref().is_some_and(|(_, apart)| apart.contains(&node))
    }

    /// Makes the number of lanes what it is now in every style.
    pub fn fix_lanes(&mut self) {
        self.counted = Some((self.ops(), self.apart.keys().copied().collect()));
    }

    /// Lanes of a vector loop over `extent` iterations; 1 if it is too short for vectors.
    pub fn lanes(&self, extent: u64) -> u64 {
        let counted = self.counted.as_ref().map(|(ops, _)| *ops);
        let widest = match (counted, self.is_word_sized()) {
            (None, words) if self.wide => [8, 16][usize::from(words)],
            (_, false) => 4,
            (counted, true) if counted.unwrap_or_else(|| self.ops()) <= 24 => 16,
            _ => 8,
        };
        [16, 8, 4].into_iter().find(|l| *l <= widest && *l <= extent).unwrap_or(1)
    }
}

pub fn internal(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::Internal, why)
}

/// Coordinates of an operand of shape `dims` read by an element at `coords` (numpy broadcasting).
pub fn broadcast_coords(dims: &[u64], coords: &[Index]) -> Vec<Index> {
    let pad = coords.len() - dims.len();
    let pick = |(i, n): (usize, &u64)| if *n == 1 { Index::default() } else { coords[pad + i].clone() };
    dims.iter().enumerate().map(pick).collect()
}

/// Every access of one iteration over a space of axes, in variables that count the axes.
#[derive(Default)]
pub struct Uses {
    /// Flat position read of an operand or written of a result.
    pub flats: Vec<(Value, Index)>,
    /// Coordinates that may leave `0..n` and then read a fill value.
    pub guards: Vec<(Index, u64)>,
    /// Axes whose coordinate itself is a value.
    pub exact: BTreeSet<u32>,
    /// Values computed without a guard, operands first, and where.
    pub sites: Vec<(Value, Vec<Index>)>,
    seen: BTreeSet<(Value, Vec<Index>, bool)>,
}

impl Uses {
    /// Adds what computing `v` at `coords` touches. Values in `stop` are available already.
    pub fn collect(
        &mut self,
        cluster: &Cluster<'_>,
        v: Value,
        coords: &[Index],
        space: &[u64],
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
        cluster: &Cluster<'_>,
        v: Value,
        coords: &[Index],
        space: &[u64],
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
            NodeKind::Prim(Prim::Map(_)) => {
                for node in &cluster.function(v.node)?.nodes {
                    if let ScalarNode::Coord(a) = node {
                        coords[*a as usize].visit_vars(&mut |x| self.exact.extend([x]));
                    }
                }
                for arg in args {
                    let at = broadcast_coords(&cluster.ty(arg)?.dims, coords);
                    self.visit(cluster, arg, &at, space, stop, guarded)?;
                }
            }
            NodeKind::Prim(Prim::View(view)) => {
                let at: Vec<Index> =
                    view.map.iter().map(|m| m.substitute(&|d| coords[d as usize].clone(), space)).collect();
                let mut inside = true;
                for (index, n) in at.iter().zip(&cluster.ty(args[0])?.dims) {
                    let (lo, hi) = index.interval(space);
                    if view.fill.is_some() && (lo < 0 || hi >= *n as i64) {
                        self.guards.push((index.clone(), *n));
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
pub struct Group {
    /// The innermost axis, which stands for the whole group.
    pub axis: usize,
    pub extent: u64,
}

/// Merges the axes for which `mergeable(outer, inner)` holds and all uses agree; axes of extent 1
/// vanish.
pub fn group_axes(space: &[u64], uses: &Uses, mergeable: &dyn Fn(usize, usize) -> bool) -> Vec<Group> {
    let agree = |outer: usize, inner: usize| {
        let free =
            |a: usize| !uses.exact.contains(&(a as u32)) && !uses.guards.iter().any(|(g, _)| g.mentions(a as u32));
        let strided = |flat: &Index| match (flat.coefficient(outer as u32), flat.coefficient(inner as u32)) {
            (Some(o), Some(i)) => o == i * space[inner] as i64,
            _ => false,
        };
        free(outer) && free(inner) && uses.flats.iter().all(|(_, f)| strided(f))
    };
    let mut groups: Vec<Group> = vec![];
    for axis in (0..space.len()).filter(|&a| space[a] != 1) {
        match groups.last_mut() {
            Some(g) if mergeable(g.axis, axis) && agree(g.axis, axis) => {
                *g = Group { axis, extent: g.extent * space[axis] };
            }
            _ => groups.push(Group { axis, extent: space[axis] }),
        }
    }
    groups
}
