//! Emitter for folds over the innermost axes: each row is processed by one iteration, in vectors
//! along the row. Softmax, normalisations, sums over trailing axes.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{FusionClass, NodeId, Value};
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace as Memory, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarOp};
use tensorc_ir::{Extent, Extents};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::access::in_place::in_place;
use tensorc_schedule::access::space::{Analysis, IterationSpace};
use tensorc_schedule::cost::work::Ops;

use super::cluster::Cluster;
use super::fold::{Fold, bind_folded, fed_by_folds, levels, results};
use super::inline::{Bound, Inliner, LaneOf};
use super::nest::parallel;
use super::vector_math;

/// Longest row kept in thread-private memory, in elements.
const MAX_ROW_BUFFER: u64 = 8192;
/// Elements from which on a row has [`LONG_LANES`] partial results.
const MIN_LONG_ROW: u64 = 256;
const LONG_LANES: u64 = 32;
/// Partial results of a long row where their number does not matter.
const FREE_LANES: u64 = 64;
/// Elements that vectors of so many lanes may leave over: fewer than that.
const MAX_LEFT_OVER: u64 = 16;
/// A value is worth keeping for a later pass if recomputing it takes more operations.
const RECOMPUTE: u64 = 8;

pub fn emit(cluster: &Cluster<'_>, space: &IterationSpace, name: &str) -> Result<Kernel> {
    let plan = Analysis::of(cluster, space)?;
    let folds = Fold::all(cluster)?;
    let levels = levels(cluster, &folds);
    let mut e = Inliner::new(cluster, name, &space.dims)?;
    let row = RowKernel { space, plan: &plan, folds: &folds, keep: kept_values(cluster, space, &levels)? };
    let places = in_place(FusionClass::Reduce, cluster)?;
    let early = row.early_output(cluster)?.filter(|early| !taken(cluster, &folds, &places, early));
    parallel(&mut e, &plan.kept, 1, |e, _| row.emit(e, &levels, early.as_ref()))?;
    Ok(e.finish())
}

/// Whether an output may take the place of an input that is read after the output's memory is first written.
fn taken(cluster: &Cluster<'_>, folds: &[Fold], places: &[(usize, usize)], early: &Early) -> bool {
    let read = inputs_beside(cluster, folds, early.value);
    places.iter().any(|(i, o)| *o == early.output && read.contains(&cluster.body.inputs()[*i]))
}

/// The calls of library functions a row emitter applies to whole rows.
pub fn vector_calls(cluster: &Cluster<'_>, space: &IterationSpace) -> Result<BTreeMap<NodeId, MathFn>> {
    if cluster.calls.is_empty() {
        return Ok(BTreeMap::new());
    }
    let length = space.length();
    let called = Extent::from(vector_math::MIN_CALL_ELEMENTS)..=MAX_ROW_BUFFER.into();
    if !called.contains(&length) {
        return Ok(BTreeMap::new());
    }
    vector_math::choose(cluster, &space.dims, |calls| length * (4 * calls) <= vector_math::MAX_RESULT_BYTES)
}

/// Element values computed in one pass and needed again in a later one: by first pass.
fn kept_values(
    cluster: &Cluster<'_>,
    space: &IterationSpace,
    levels: &[Vec<Fold>],
) -> Result<BTreeMap<usize, Vec<Value>>> {
    let length = space.length();
    let mut first: BTreeMap<Value, usize> = BTreeMap::new();
    let mut again: BTreeSet<Value> = BTreeSet::new();
    for pass in 0..=levels.len() {
        let roots: Vec<Value> = match levels.get(pass) {
            Some(folds) => folds.iter().flat_map(|f| cluster.body.args(f.node())).collect(),
            None => cluster.outputs(),
        };
        let mut stack = roots;
        let mut seen = BTreeSet::new();
        while let Some(v) = stack.pop() {
            let full = space.is_full(&cluster.ty(v)?.dims);
            let Some(Prim::Map(_)) = cluster.prim(v.node).filter(|_| full && seen.insert(v)) else { continue };
            if *first.entry(v).or_insert(pass) < pass {
                again.insert(v);
                continue;
            }
            stack.extend(cluster.body.args(v.node));
        }
    }
    let mut keep: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    for v in again {
        let is_call = |n| cluster.vector_calls.contains_key(&n);
        if length <= MAX_ROW_BUFFER && !is_call(v.node) && total_cost(cluster, v, is_call)? > RECOMPUTE {
            keep.entry(first[&v]).or_default().push(v);
        }
    }
    Ok(keep)
}

/// Operations to compute a value from the cluster's inputs, folds and vector-math calls.
fn total_cost(cluster: &Cluster<'_>, v: Value, is_call: impl Fn(NodeId) -> bool) -> Result<u64> {
    let mut sum = 0;
    let mut stack = vec![v.node];
    let mut seen = BTreeSet::new();
    while let Some(n) = stack.pop() {
        let inline = seen.insert(n) && !is_call(n);
        if let Some(Prim::Map(_)) = cluster.prim(n).filter(|_| inline) {
            sum += Ops::of_function(cluster.function(n)?.as_ref()).total();
            stack.extend(cluster.body.args(n).iter().map(|a| a.node));
        }
    }
    Ok(sum)
}

/// The inputs that folds and results are computed from other than through `v`.
fn inputs_beside(cluster: &Cluster<'_>, folds: &[Fold], v: Value) -> BTreeSet<NodeId> {
    // Folds that `v` needs are done before it is stored.
    let before = ancestors(cluster, v);
    let later = folds.iter().filter(|f| !before.contains(&f.node()));
    let mut found = BTreeSet::new();
    let mut stack: Vec<Value> = later.flat_map(|f| cluster.body.args(f.node())).chain(cluster.outputs()).collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = stack.pop() {
        if next == v || !seen.insert(next.node) || folds.iter().any(|f| f.node() == next.node) {
            continue;
        }
        match cluster.body.inputs().contains(&next.node) {
            true => drop(found.insert(next.node)),
            false => stack.extend(cluster.body.args(next.node)),
        }
    }
    found
}

/// The nodes that a value is computed from, with its own.
fn ancestors(cluster: &Cluster<'_>, v: Value) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut stack = vec![v];
    while let Some(v) = stack.pop() {
        if found.insert(v.node) {
            stack.extend(cluster.body.args(v.node));
        }
    }
    found
}

/// A value that lies where a result will, from the pass that computes it to the one that stores the result.
struct Early {
    value: Value,
    output: usize,
    /// Position of the row in the result, in axes.
    base: Index,
}

/// Where a row of values is kept.
struct RowStorage {
    buf: Buf,
    base: Index,
}

type RowStorages = BTreeMap<Value, RowStorage>;

/// How many partial results a fold has.
enum FoldLanes {
    Known(u64),
    /// It depends on the length of the row, which symbols decide.
    ByLength {
        short: u64,
        long: u64,
    },
}

struct RowKernel<'a> {
    space: &'a IterationSpace,
    plan: &'a Analysis,
    folds: &'a [Fold],
    keep: BTreeMap<usize, Vec<Value>>,
}

impl RowKernel<'_> {
    /// Rows of values that one pass leaves to a later one.
    fn kept<'k>(&'k self, cluster: &'k Cluster<'_>) -> impl Iterator<Item = Value> + 'k {
        let applied = cluster.vector_calls.keys().map(|n| Value { node: *n, port: 0 });
        self.keep.values().flatten().copied().chain(applied)
    }

    /// The only kept row, if it can lie in the only result of full shape: the memory that is written at the end
    /// is then fetched while there is much to compute.
    fn early_output(&self, cluster: &Cluster<'_>) -> Result<Option<Early>> {
        let kept: Vec<Value> = self.kept(cluster).collect();
        let (full, _) = results(cluster, self.space)?;
        let ([value], [(output, v, dims, coords)]) = (&kept[..], &full[..]) else { return Ok(None) };
        let same =
            cluster.ty(*value)?.dtype == cluster.ty(*v)?.dtype && !vector_math::moved(cluster).contains(&value.node);
        let at: Vec<Index> = self.space.reduced.iter().map(|a| self.space.coords()[*a].clone()).collect();
        let base = cluster.output_address(*output, dims, coords).sub(&linearize(&at, &self.reduced_dims()));
        let contiguous = !self.space.reduced.iter().any(|a| base.mentions(*a as u32));
        Ok((same && contiguous).then_some(Early { value: *value, output: *output, base }))
    }

    fn emit(&self, e: &mut Inliner<'_>, levels: &[Vec<Fold>], early: Option<&Early>) -> Result<()> {
        let varying: Vec<usize> = self.space.reduced.clone();
        // Only what the folds do not feed can be hoisted before they ran.
        let fed = fed_by_folds(e.cluster, self.folds);
        e.hoist_if(&self.plan.uses, &varying, &|v| !fed.contains(&v.node))?;
        let mut row_buffers = BTreeMap::new();
        for v in self.kept(e.cluster) {
            let place = match early {
                Some(early) => RowStorage { buf: e.output(early.output), base: early.base.clone() },
                None => {
                    let dtype = e.cluster.ty(v)?.dtype;
                    let buf = e.alloc("row", dtype, self.longest(), Memory::Stack);
                    RowStorage { buf, base: Index::default() }
                }
            };
            row_buffers.insert(v, place);
        }
        for (pass, folds) in levels.iter().enumerate() {
            self.fold_pass(e, pass, folds, &row_buffers)?;
            bind_folded(e, self.space, self.folds)?;
        }
        self.store_pass(e, &row_buffers)
    }

    /// The position of the current element in a place.
    fn at(&self, e: &Inliner<'_>, place: &RowStorage) -> Index {
        let coords = self.space.coords();
        let at: Vec<Index> = self.space.reduced.iter().map(|a| coords[*a].clone()).collect();
        e.kernel_index(&place.base.add(&linearize(&at, &self.reduced_dims())))
    }

    fn reduced_dims(&self) -> Extents {
        self.space.reduced.iter().map(|a| self.space.dims.at(*a)).collect()
    }

    /// Elements of the longest row that is kept: its length, if that is known.
    fn longest(&self) -> u64 {
        self.space.length().known().map_or(MAX_ROW_BUFFER, |n| n as u64)
    }

    fn bind_row(&self, e: &mut Inliner<'_>, v: Value, place: &RowStorage) {
        let (axes, dims) = (self.space.reduced.clone(), self.reduced_dims());
        e.bind(v, Bound::Row { buf: place.buf, base: place.base.clone(), axes, dims });
    }

    /// Applies the library functions that `roots` need to the row.
    fn apply_vector_calls(&self, e: &mut Inliner<'_>, roots: &[Value], rows: &RowStorages) -> Result<()> {
        let cluster = e.cluster;
        let lanes = advice(|| cluster.lanes(self.inner().extent));
        for stage in vector_math::stages(cluster, roots, &|v| e.is_bound(v)) {
            self.elements(e, lanes, &mut |e, _| {
                stage.iter().try_for_each(|v| {
                    let value = vector_math::argument(e, *v, &self.space.coords())?;
                    let at = self.at(e, &rows[v]);
                    e.b.store(rows[v].buf, at, value);
                    Ok(())
                })
            })?;
            for v in stage {
                let length = Index::constant(self.space.length());
                let start = e.kernel_index(&rows[&v].base);
                e.b.apply_strip(cluster.vector_calls[&v.node], rows[&v].buf, start, length);
                self.bind_row(e, v, &rows[&v]);
            }
        }
        Ok(())
    }

    fn inner(&self) -> MergedAxes {
        self.plan.reduced.last().cloned().unwrap_or(MergedAxes { axis: self.space.reduced[0], extent: Extent::ONE })
    }

    /// Partial results of a pass: enough to overlap the latency of additions where a long row is folded as it lies
    /// in memory, unless more elements would be left over.
    fn fold_lanes(&self, e: &Inliner<'_>, folds: &[Fold]) -> Result<FoldLanes> {
        let extent = self.inner().extent;
        let lanes = e.cluster.row_lanes(extent);
        let [fold] = folds else { return Ok(FoldLanes::Known(lanes)) };
        let mut operands = 0;
        for v in e.cluster.body.args(fold.node()) {
            operands += total_cost(e.cluster, v, |n| e.cluster.may_be_vector_call(n))?;
        }
        if lanes != 16 || operands > 0 {
            return Ok(FoldLanes::Known(lanes));
        }
        if extent.is_open() && self.keep.is_empty() {
            return Ok(FoldLanes::ByLength { short: lanes, long: LONG_LANES });
        }
        let long = extent >= MIN_LONG_ROW && extent % LONG_LANES < MAX_LEFT_OVER;
        Ok(FoldLanes::Known(if long { LONG_LANES } else { lanes }))
    }

    /// Partial results where their number does not matter to results: with wide vectors, enough to overlap the latency of
    /// several instructions.
    fn free_lanes(&self, e: &Inliner<'_>) -> u64 {
        match e.cluster.lanes(self.inner().extent) {
            16 if e.cluster.is_wide() && self.inner().extent >= MIN_LONG_ROW => FREE_LANES,
            lanes => lanes,
        }
    }

    fn fold_pass(&self, e: &mut Inliner<'_>, pass: usize, folds: &[Fold], rows: &RowStorages) -> Result<()> {
        let roots: Vec<Value> = folds.iter().flat_map(|f| e.cluster.body.args(f.node())).collect();
        self.apply_vector_calls(e, &roots, rows)?;
        let lanes = match folds.iter().all(Fold::is_order_free) {
            true => FoldLanes::Known(advice(|| self.free_lanes(e))),
            false => self.fold_lanes(e, folds)?,
        };
        let acc = match lanes {
            FoldLanes::Known(lanes) => self.folded(e, pass, folds, rows, lanes)?,
            FoldLanes::ByLength { short, long } => {
                let total: Vec<_> = folds.iter().map(|f| f.alloc(e, 1)).collect();
                let is_long = self.is_long(e);
                let is_short = e.b.op(ScalarOp::Not, &[is_long]);
                for (is_so, lanes) in [(is_long, long), (is_short, short)] {
                    e.when(is_so, |e| {
                        let acc = self.folded(e, pass, folds, rows, lanes)?;
                        folds.iter().zip(&acc).zip(&total).for_each(|((f, from), to)| f.copy(e, from, to));
                        Ok(())
                    })?;
                }
                total
            }
        };
        folds.iter().zip(&acc).for_each(|(f, acc)| f.finish(e, acc, &Index::default()));
        Ok(())
    }

    /// Whether a row has [`LONG_LANES`] partial results, where its length is known when the kernel is called.
    fn is_long(&self, e: &mut Inliner<'_>) -> Operand {
        let number = |n: u64| Operand::Const(Scalar::i64(n as i64));
        let n = e.b.index_value(Index::constant(self.inner().extent));
        let many = e.b.op(ScalarOp::Cmp(CmpOp::Ge), &[n, number(MIN_LONG_ROW)]);
        let left = e.b.op(ScalarOp::Rem, &[n, number(LONG_LANES)]);
        let few = e.b.op(ScalarOp::Cmp(CmpOp::Lt), &[left, number(MAX_LEFT_OVER)]);
        e.b.op(ScalarOp::And, &[many, few])
    }

    /// Folds the elements of a row by so many partial results; the accumulators, of which the first have the results.
    fn folded(
        &self,
        e: &mut Inliner<'_>,
        pass: usize,
        folds: &[Fold],
        rows: &RowStorages,
        lanes: u64,
    ) -> Result<Vec<Vec<Buf>>> {
        let acc: Vec<_> = folds.iter().map(|f| f.alloc(e, lanes)).collect();
        let rest: Vec<_> = folds.iter().map(|f| f.alloc(e, 1)).collect();
        let (n, whole) = (self.inner().extent, self.inner().extent / lanes * lanes);
        let kept = self.keep.get(&pass).map(Vec::as_slice).unwrap_or_default();
        // What vectors leave over is folded with the last whole vector, again, where that does not matter.
        let again = lanes > 1 && kept.is_empty() && folds.iter().all(Fold::is_idempotent);
        let again = again && Extent::ZERO.is_surely_below(whole) && (whole.is_surely(n) || whole.is_surely_below(n));
        let tail = if again { Extent::ZERO } else { n % lanes };
        let has_tail = !tail.is_surely(0);
        if has_tail {
            folds.iter().zip(&rest).for_each(|(f, a)| f.store_init(e, a, &Index::default()));
        }
        each_lane(e, lanes, &mut |e, l| {
            folds.iter().zip(&acc).for_each(|(f, a)| f.store_init(e, a, l));
            Ok(())
        })?;
        let coords = self.space.coords();
        let keep = |e: &mut Inliner<'_>| {
            kept.iter().try_for_each(|v| {
                let value = e.value(*v, &coords, None)?;
                let index = self.at(e, &rows[v]);
                e.b.store(rows[v].buf, index, value);
                Ok(())
            })
        };
        let accumulate = |e: &mut Inliner<'_>, lane: LaneOf| {
            folds.iter().enumerate().try_for_each(|(i, f)| match &lane {
                LaneOf::Vector(l) => f.accumulate(e, self.space, &acc[i], l),
                LaneOf::Scalar if lanes == 1 => f.accumulate(e, self.space, &acc[i], &Index::default()),
                LaneOf::Scalar => f.accumulate(e, self.space, &rest[i], &Index::default()),
            })
        };
        let bind = |e: &mut Inliner<'_>| kept.iter().for_each(|v| self.bind_row(e, *v, &rows[v]));
        let both = &mut |e: &mut Inliner<'_>, lane: LaneOf| {
            keep(e)?;
            accumulate(e, lane)
        };
        if again {
            self.element_loops(e, lanes, true, both)?;
        } else if kept.is_empty() || self.plan.reduced.len() > 1 || advice(|| n - whole < 4) {
            self.elements(e, lanes, both)?;
            bind(e);
        } else {
            // What the vectors leave over is added up one by one, but need not be computed so.
            self.vectors(e, (Extent::ZERO, whole), lanes, both)?;
            self.pieces(e, whole, 8, &mut |e, _| keep(e))?;
            bind(e);
            self.vectors(e, (whole, n), 1, &mut |e, lane| accumulate(e, lane))?;
        }
        for (i, f) in folds.iter().enumerate() {
            fold_lanes(e, f, &acc[i], lanes)?;
            match tail.known() {
                Some(0) => {}
                Some(_) => f.combine(e, &acc[i], &Index::default(), &rest[i], &Index::default()),
                // Initial values, where nothing is left over, may change the sign of a zero.
                None => {
                    let left = e.b.index_value(Index::constant(tail));
                    let any = e.b.op(ScalarOp::Cmp(CmpOp::Gt), &[left, Operand::Const(Scalar::i64(0))]);
                    e.when(any, |e| {
                        f.combine(e, &acc[i], &Index::default(), &rest[i], &Index::default());
                        Ok(())
                    })?;
                }
            }
        }
        Ok(acc)
    }

    /// Stores outputs: those of one element per row here, full ones in a last pass.
    fn store_pass(&self, e: &mut Inliner<'_>, rows: &RowStorages) -> Result<()> {
        let (full, single) = results(e.cluster, self.space)?;
        e.store_values(&single)?;
        if full.is_empty() {
            return Ok(());
        }
        e.hoist(&self.plan.uses, &self.space.reduced)?;
        let roots: Vec<Value> = full.iter().map(|(_, v, ..)| *v).collect();
        self.apply_vector_calls(e, &roots, rows)?;
        let lanes = advice(|| e.cluster.lanes(self.inner().extent));
        match self.plan.reduced.len() {
            ..=1 => self.pieces(e, Extent::ZERO, lanes, &mut |e, _| e.store_values(&full)),
            _ => self.elements(e, lanes, &mut |e, _| e.store_values(&full)),
        }
    }

    /// Vectors of the row's only axis from `lo` on, ever narrower ones for what is left over.
    fn pieces(
        &self,
        e: &mut Inliner<'_>,
        lo: Extent,
        lanes: u64,
        body: &mut dyn FnMut(&mut Inliner<'_>, LaneOf) -> Result<()>,
    ) -> Result<()> {
        let (mut at, n) = (lo, self.inner().extent);
        for width in [lanes, 8, 4, 1].into_iter().filter(|w| *w <= lanes) {
            let end = at + (n - at) / width * width;
            self.vectors(e, (at, end), width, body)?;
            at = end;
        }
        Ok(())
    }

    /// Vectors of the row's only axis, of which there are a whole number.
    fn vectors(
        &self,
        e: &mut Inliner<'_>,
        (lo, hi): (Extent, Extent),
        lanes: u64,
        body: &mut dyn FnMut(&mut Inliner<'_>, LaneOf) -> Result<()>,
    ) -> Result<()> {
        let (lo, hi) = (Index::constant(lo), Index::constant(hi));
        e.vectorized(self.inner().axis, (lo, hi.clone()), hi, lanes, body)
    }

    /// Loops over the elements of the row.
    fn elements(
        &self,
        e: &mut Inliner<'_>,
        lanes: u64,
        body: &mut dyn FnMut(&mut Inliner<'_>, LaneOf) -> Result<()>,
    ) -> Result<()> {
        self.element_loops(e, lanes, false, body)
    }

    /// Loops over the elements of the row, of which some may be taken `again`.
    fn element_loops(
        &self,
        e: &mut Inliner<'_>,
        lanes: u64,
        again: bool,
        body: &mut dyn FnMut(&mut Inliner<'_>, LaneOf) -> Result<()>,
    ) -> Result<()> {
        let outer = self.plan.reduced.len().saturating_sub(1);
        self.nested_loops(e, &self.plan.reduced[..outer], (lanes, again), body)
    }

    fn nested_loops(
        &self,
        e: &mut Inliner<'_>,
        outer: &[MergedAxes],
        (lanes, again): (u64, bool),
        body: &mut dyn FnMut(&mut Inliner<'_>, LaneOf) -> Result<()>,
    ) -> Result<()> {
        match outer.split_first() {
            Some((g, rest)) => {
                let range = (Index::default(), Index::constant(g.extent), 1);
                e.looped("r", range, LoopKind::Serial, |e, i| {
                    e.set_axis(g.axis, i);
                    self.nested_loops(e, rest, (lanes, again), body)
                })
            }
            None => {
                let inner = self.inner();
                e.covered(inner.axis, (Extent::ZERO, inner.extent), lanes, again, body)
            }
        }
    }
}

/// Runs the body for every lane, as one vector loop if there are several.
fn each_lane(
    e: &mut Inliner<'_>,
    lanes: u64,
    body: &mut dyn FnMut(&mut Inliner<'_>, &Index) -> Result<()>,
) -> Result<()> {
    match lanes {
        1 => body(e, &Index::default()),
        _ => e.looped("l", (Index::default(), Index::constant(lanes as i64), 1), LoopKind::Vector, |e, l| body(e, &l)),
    }
}

/// Combines the lanes' accumulators into lane 0, halving each time.
fn fold_lanes(e: &mut Inliner<'_>, f: &Fold, acc: &[tensorc_ir::kir::Buf], lanes: u64) -> Result<()> {
    let mut width = lanes / 2;
    while width >= 1 {
        let half = width as i64;
        if width >= 4 {
            each_lane(e, width, &mut |e, l| {
                f.combine(e, acc, l, acc, &l.offset(half));
                Ok(())
            })?;
        } else {
            for i in 0..half {
                f.combine(e, acc, &Index::constant(i), acc, &Index::constant(i + half));
            }
        }
        width /= 2;
    }
    Ok(())
}
