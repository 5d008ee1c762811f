//! A fused body prepared for emission: types at hand, library functions expanded, and the accesses
//! of an iteration analysed before any statement is written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{MathFn, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::Located;
use tensorc_schedule::layout::Layouts;

use super::math::{Math, internal, vector_call};

/// Most operations beside which a division of integers takes most of the time.
const MAX_OPS_OF_DIVISION: usize = 8;

/// The body of one cluster.
pub struct Cluster<'a> {
    located: Located<'a>,
    pub order: Vec<NodeId>,
    /// Nodes that are nothing but a library function that takes arrays.
    pub calls: BTreeMap<NodeId, MathFn>,
    /// Calls that the emitter applies to arrays; others are part of the expression.
    pub vector_calls: BTreeMap<NodeId, MathFn>,
    functions: BTreeMap<NodeId, Arc<ScalarFn>>,
    reductions: BTreeMap<NodeId, Arc<Reduction>>,
    /// Whether vectors are as wide as the processor's.
    wide: bool,
    /// Whether what is emitted is called on blocks by a library.
    pub on_blocks: bool,
    /// Operations by which lanes are counted, where their number decides the order of additions, and the calls
    /// that are not among them.
    counted: Option<(usize, BTreeSet<NodeId>)>,
}

impl<'a> Deref for Cluster<'a> {
    type Target = Located<'a>;

    fn deref(&self) -> &Located<'a> {
        &self.located
    }
}

impl<'a> Cluster<'a> {
    pub fn new(body: &'a Graph, math: Math<'_>, layouts: &'a Layouts) -> Result<Cluster<'a>> {
        let order = body.order();
        let (mut functions, mut reductions, mut calls) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let expand =
            |f: &ScalarFn| f.expand_math(math.library).map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why));
        for &n in &order {
            match &body.node(n).kind {
                NodeKind::Prim(Prim::Map(f)) => {
                    functions.insert(n, Arc::new(expand(f)?));
                    calls.extend(vector_call(f, math.library).map(|call| (n, call)));
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
            located: Located { body, layouts },
            order,
            calls,
            vector_calls: BTreeMap::new(),
            functions,
            reductions,
            wide: !math.has_vector_calls(),
            on_blocks: false,
            counted: None,
        })
    }

    /// The expanded body of a map node.
    pub fn function(&self, node: NodeId) -> Result<Arc<ScalarFn>> {
        self.functions.get(&node).cloned().ok_or_else(|| internal("not a map"))
    }

    /// The expanded reduction of a node, if it is one.
    pub fn reduction(&self, node: NodeId) -> Option<&Arc<Reduction>> {
        self.reductions.get(&node)
    }

    /// Scalar operations of the expanded bodies, per element, without vector-math calls.
    pub fn ops(&self) -> usize {
        // A scaling counts as what does it otherwise, because the number of lanes must not depend on it.
        let weight = |n: &ScalarNode| match n {
            ScalarNode::Op(ScalarOp::Scale, _) => 9,
            ScalarNode::Op(..) => 1,
            _ => 0,
        };
        let count = |f: &ScalarFn| f.nodes.iter().map(weight).sum::<usize>();
        let inline = self.functions.iter().filter(|(n, _)| !self.vector_calls.contains_key(n));
        let maps: usize = inline.map(|(_, f)| count(f)).sum();
        maps + self.reductions.values().map(|r| count(&r.map) + count(&r.combine)).sum::<usize>()
    }

    /// Whether every value is 32 bits wide or bool, so that vectors of one lane count fit all.
    pub fn is_word_sized(&self) -> bool {
        self.all_word_sized(|_| true)
    }

    /// The same of the maps for which `counts` holds, and of all reductions.
    fn all_word_sized(&self, counts: impl Fn(NodeId) -> bool) -> bool {
        let word = |f: &ScalarFn| {
            f.dtypes.iter().zip(&f.nodes).enumerate().all(|(i, (d, n))| match n {
                ScalarNode::Const(_) => true,
                ScalarNode::Coord(_) => is_coord_of_word(f, i),
                _ => d.size() == 4 || d.size() == 1,
            })
        };
        self.functions.iter().all(|(node, f)| !counts(*node) || word(f))
            && self.reductions.values().all(|r| word(&r.map) && word(&r.combine))
    }

    /// Whether vectors are as wide as the processor's.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// Whether a call is applied to arrays, or would be in the style that does so most often.
    pub fn may_be_vector_call(&self, node: NodeId) -> bool {
        self.vector_calls.contains_key(&node)
            || self.counted.as_ref().is_some_and(|(_, vector_calls)| vector_calls.contains(&node))
    }

    /// Makes the number of lanes what it is now in every style.
    pub fn fix_lanes(&mut self) {
        self.counted = Some((self.ops(), self.vector_calls.keys().copied().collect()));
    }

    /// Lanes of a vector loop over `extent` iterations; 1 if it is too short for vectors.
    pub fn lanes(&self, extent: Extent) -> u64 {
        self.lanes_of(extent, self.is_word_sized())
    }

    /// The same of a loop that reduces a row: what is made of the results of reductions, once for a row, does not count.
    pub fn row_lanes(&self, extent: Extent) -> u64 {
        let count = |node: NodeId| self.body.dense(Value { node, port: 0 }).map(|ty| ty.dims.count());
        let of_rows: Vec<Extent> = self.reductions.keys().filter_map(|node| count(*node).ok()).collect();
        let in_row = |node: NodeId| count(node).map_or(true, |n| !of_rows.iter().any(|rows| rows.is_surely(n)));
        self.lanes_of(extent, self.all_word_sized(in_row))
    }

    /// Whether most of what is computed are divisions of integers, which narrow vectors do not have.
    fn divides_integers(&self) -> bool {
        let divides = |f: &ScalarFn| {
            f.nodes.iter().zip(&f.dtypes).any(|(node, dtype)| match node {
                ScalarNode::Op(ScalarOp::Div | ScalarOp::Rem, args) => {
                    dtype.is_int() && !matches!(f.nodes[args[1].0 as usize], ScalarNode::Const(_))
                }
                _ => false,
            })
        };
        self.functions.values().any(|f| divides(f)) && self.ops() <= MAX_OPS_OF_DIVISION
    }

    fn lanes_of(&self, extent: Extent, word_sized: bool) -> u64 {
        if !self.wide && self.counted.is_none() && self.divides_integers() {
            return 1;
        }
        let counted = self.counted.as_ref().map(|(ops, _)| *ops);
        let widest = match (counted, word_sized) {
            (None, words) if self.wide => [8, 16][usize::from(words)],
            (_, false) => 4,
            (counted, true) if counted.unwrap_or_else(|| self.ops()) <= 24 => 16,
            _ => 8,
        };
        [16, 8, 4].into_iter().find(|l| *l <= widest && extent >= *l).unwrap_or(1)
    }
}

/// Whether a coordinate, which is an i64, is only used as an i32.
fn is_coord_of_word(f: &ScalarFn, coord: usize) -> bool {
    let is_cast = |n: &ScalarNode| matches!(n, ScalarNode::Op(ScalarOp::Cast(DType::I32), _));
    let uses = |n: &ScalarNode| matches!(n, ScalarNode::Op(_, args) if args.iter().any(|a| a.0 as usize == coord));
    f.nodes.iter().all(|n| !uses(n) || is_cast(n)) && f.outputs.iter().all(|o| o.0 as usize != coord)
}
