//! Library functions apart from the expressions around them: a loop stores the arguments of a
//! stretch of elements, the library replaces them by its results at the full width of the
//! machine, and later loops read these.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, MemorySpace, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::MathFn;
use tensorc_ir::{DType, Extent, Extents};
use tensorc_schedule::access::broadcast_coords;

use super::cluster::Cluster;
use super::inline::{Bound, Inliner};

/// Shorter stretches of elements keep the function in the expression.
pub const MIN_CALL_ELEMENTS: u64 = 32;
/// Most memory for results of one iteration, in bytes.
pub const MAX_RESULT_BYTES: u64 = 128 << 10;
/// Elements of a call in a loop that may be longer: its results stay in the nearest cache.
const CALL_ELEMENTS: u64 = 1024;
/// Most calls of that length.
pub const MAX_CALLS: u64 = MAX_RESULT_BYTES / (4 * CALL_ELEMENTS);

/// Nodes whose elements are read elsewhere than where they are computed.
pub fn moved(cluster: &Cluster<'_>) -> BTreeSet<NodeId> {
    let mut moved = BTreeSet::new();
    for &n in cluster.order.iter().rev() {
        if moved.contains(&n) || matches!(cluster.prim(n), Some(Prim::View(_) | Prim::Gather(_))) {
            moved.extend(cluster.body.args(n).iter().map(|v| v.node));
        }
    }
    moved
}

/// Chooses function calls of a cluster that become vector-math calls, as long as so many fit. A call qualifies if its result has
/// extents `dims` and no view reads it.
pub fn choose(cluster: &Cluster<'_>, dims: &Extents, fit: impl Fn(u64) -> bool) -> Result<BTreeMap<NodeId, MathFn>> {
    let moved = moved(cluster);
    let mut chosen = BTreeMap::new();
    for (&n, &f) in &cluster.calls {
        let full = cluster.ty(Value { node: n, port: 0 })?.dims == *dims;
        if full && !moved.contains(&n) && fit(chosen.len() as u64 + 1) {
            chosen.insert(n, f);
        }
    }
    Ok(chosen)
}

/// The results of calls that `roots` need and that are not bound, in stages: each needs results of
/// earlier ones only.
pub fn stages(cluster: &Cluster<'_>, roots: &[Value], bound: &dyn Fn(Value) -> bool) -> Vec<Vec<Value>> {
    let mut walk = StageWalk { cluster, bound, depths: BTreeMap::new(), stages: vec![] };
    for v in roots {
        walk.depth(*v);
    }
    walk.stages
}

/// The argument of the call that computes `v`, for its result at `coords`.
pub fn argument(e: &mut Inliner<'_>, v: Value, coords: &[Index]) -> Result<Operand> {
    let operand = e.cluster.body.args(v.node)[0];
    let at = broadcast_coords(&e.cluster.ty(operand)?.dims, &e.cluster.ty(v)?.dims, coords);
    e.value(operand, &at, None)
}

/// What is computed by a loop over columns.
pub struct VectorLoop<'a> {
    pub roots: &'a [Value],
    /// Coordinates of an element, in axes.
    pub coords: &'a [Index],
    /// Most columns of the loop; too few for a call keep functions in the expression.
    pub block: Extent,
    pub lanes: u64,
}

/// A loop over the columns `lo..hi`, in vectors up to `whole`; library functions set apart are
/// applied to arrays of columns first. `place` prepares a column, `last` uses the roots there.
pub fn columns(
    e: &mut Inliner<'_>,
    s: &VectorLoop<'_>,
    (lo, hi, whole): (Index, Index, Index),
    place: &dyn Fn(&mut Inliner<'_>, Index),
    last: &dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
) -> Result<()> {
    let stages = match advice(|| s.block >= MIN_CALL_ELEMENTS) {
        true => stages(e.cluster, s.roots, &|v| e.is_bound(v)),
        false => vec![],
    };
    let all = s.block.known().filter(|n| *n <= CALL_ELEMENTS as i64);
    let length = all.unwrap_or(CALL_ELEMENTS as i64);
    let mut calls = ColumnCalls { s, place, last, buffers: BTreeMap::new() };
    for v in stages.iter().flatten() {
        calls.buffers.insert(*v, e.alloc("strip", DType::F32, length, MemorySpace::Stack));
    }
    if stages.is_empty() || all.is_some() {
        return calls.strip(e, &stages, &(lo, hi, whole));
    }
    e.looped("s", (lo, hi.clone(), length), LoopKind::Serial, |e, from| {
        let wide = |_: u32| (0, i64::MAX / 8);
        let end = from.offset(length);
        let to = e.b.let_index("to", end.minimum(&hi, &wide));
        let whole = e.b.let_index("whole", end.minimum(&whole, &wide));
        calls.strip(e, &stages, &(from, to, whole))
    })
}

struct ColumnCalls<'a> {
    s: &'a VectorLoop<'a>,
    place: &'a dyn Fn(&mut Inliner<'_>, Index),
    last: &'a dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
    buffers: BTreeMap<Value, Buf>,
}

impl ColumnCalls<'_> {
    fn strip(&self, e: &mut Inliner<'_>, stages: &[Vec<Value>], range: &(Index, Index, Index)) -> Result<()> {
        let (from, to, _) = range;
        for (i, stage) in stages.iter().enumerate() {
            self.elements(e, &stages[..i], range, &|e, i| {
                let at = i.sub(from);
                stage.iter().try_for_each(|v| {
                    let value = argument(e, *v, self.s.coords)?;
                    e.b.store(self.buffers[v], at.clone(), value);
                    Ok(())
                })
            })?;
            for v in stage {
                e.b.apply_strip(e.cluster.vector_calls[&v.node], self.buffers[v], Index::default(), to.sub(from));
            }
        }
        self.elements(e, stages, range, self.last)
    }

    /// A loop over the columns of a call, with the results of the given stages at hand.
    fn elements(
        &self,
        e: &mut Inliner<'_>,
        ready: &[Vec<Value>],
        (from, to, whole): &(Index, Index, Index),
        body: &dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
    ) -> Result<()> {
        e.columns((from.clone(), to.clone()), whole.clone(), self.s.lanes, &mut |e, i| {
            (self.place)(e, i.clone());
            let at = i.sub(from);
            for v in ready.iter().flatten() {
                let result = e.b.load(self.buffers[v], at.clone());
                e.bind(*v, Bound::Operand(result));
            }
            body(e, &i)
        })
    }
}

struct StageWalk<'a> {
    cluster: &'a Cluster<'a>,
    bound: &'a dyn Fn(Value) -> bool,
    depths: BTreeMap<Value, usize>,
    stages: Vec<Vec<Value>>,
}

impl StageWalk<'_> {
    /// How many calls in a row lead to a value.
    fn depth(&mut self, v: Value) -> usize {
        if (self.bound)(v) || !matches!(self.cluster.prim(v.node), Some(Prim::Map(_))) {
            return 0;
        }
        if let Some(depth) = self.depths.get(&v) {
            return *depth;
        }
        let below = self.cluster.body.args(v.node).iter().map(|a| self.depth(*a)).max().unwrap_or(0);
        let mut depth = below;
        if self.cluster.vector_calls.contains_key(&v.node) {
            self.stages.resize_with(self.stages.len().max(below + 1), Vec::new);
            self.stages[below].push(v);
            depth += 1;
        }
        self.depths.insert(v, depth);
        depth
    }
}
