//! Folds along memory: softmax, normalisations, sums over trailing axes. A warp folds a short row, a block a long one.
//!
//! A thread folds what it reads; the threads of a warp meet by shuffles, warps in shared memory. What several passes over
//! the row need stays in registers if the row is short enough.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace as Memory, Operand, Stmt, WARP};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::ClusterAccesses;
use tensorc_schedule::access::product::total;
use tensorc_schedule::access::space::{Analysis, IterationSpace};

use super::loops::{below, launch, range, set_groups, under};
use super::{next_multiple, vector_width};
use crate::emit::cluster::Cluster;
use crate::emit::fold::{Fold, bind_folded, fed_by_folds, levels, results};
use crate::emit::inline::{Bound, Inliner};

const LANES: u64 = WARP as u64;
/// Rows up to this many elements are folded by a warp.
const MAX_WARP_ROW: u64 = 1024;
/// Warps of a block that each fold a row.
const ROWS: u64 = 4;
/// Fewest and most threads that fold a row longer than that.
const MIN_THREADS: u64 = 4 * LANES;
const MAX_THREADS: u64 = 512;
/// Accesses of a thread in one pass that are worth another thread.
const MIN_ACCESSES_PER_THREAD: u64 = 4;
/// Most accesses of a thread in one pass whose values stay in registers.
const MAX_REGISTER_ACCESSES: u64 = 8;
/// Values of one element that stay in registers, at most.
const MAX_REGISTER_VALUES: usize = 3;

/// How rows are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GpuRowTiling {
    vector: u64,
    /// Threads of a row, a multiple of the warp.
    threads: u64,
    /// How many of them fold, before it is brought between [`MIN_THREADS`] and [`MAX_THREADS`], if symbols decide.
    folding: Option<Extent>,
    /// Rows of a block.
    rows: u64,
    /// Accesses of a thread in one pass, of those that fold.
    steps: Extent,
    /// How many there are at most, if that is known and few: then they are expanded, and registers may hold their values.
    expanded: Option<u64>,
}

impl GpuRowTiling {
    /// For rows of a length that `vector` divides. Where the order in which elements are folded matters, it is that of the length
    /// alone, whether symbols decide that or not.
    fn of(length: Extent, vector: u64, order_free: bool) -> GpuRowTiling {
        let units = length / vector;
        let is_short = || length <= MAX_WARP_ROW;
        let is_short = if order_free { advice(is_short) } else { is_short() };
        let wanted = next_multiple(units.div_ceil(MIN_ACCESSES_PER_THREAD), LANES);
        let (threads, folding, rows) = match is_short {
            true => (LANES, None, ROWS),
            false if wanted.is_open() && !order_free => (MAX_THREADS, Some(wanted), 1),
            false => ((wanted.example() as u64).clamp(MIN_THREADS, MAX_THREADS), None, 1),
        };
        let steps = units.div_ceil(threads);
        let bound = (is_short && !order_free).then_some(MAX_WARP_ROW.div_ceil(vector * LANES));
        let most = steps.known().map(|steps| steps as u64).or(bound);
        let expanded = most.filter(|most| folding.is_none() && *most <= MAX_REGISTER_ACCESSES);
        GpuRowTiling { vector, threads, folding, rows, steps, expanded }
    }
}

/// Widths of vectors along rows of an innermost extent: the widest that divides it; where symbols decide, all that may be it, from
/// the widest on, unless the order in which elements are folded does not matter.
fn widths(e: &Inliner<'_>, inner: Extent, order_free: bool) -> Result<Vec<u64>> {
    let sure = vector_width(e, |n| inner.sure_quotient(n).is_some())?;
    if order_free || !inner.is_open() {
        return Ok(vec![sure]);
    }
    let widest = vector_width(e, |_| true)?;
    Ok(std::iter::successors(Some(widest), |width| Some(width / 2)).take_while(|width| *width >= sure).collect())
}

struct GpuRowKernel<'a> {
    space: &'a IterationSpace,
    plan: &'a Analysis,
    folds: &'a [Fold],
    schedule: GpuRowTiling,
    /// Values that stay in registers, by the pass that computes them.
    held: BTreeMap<usize, Vec<Value>>,
}

pub fn emit(cluster: &Cluster<'_>, space: &IterationSpace, name: &str) -> Result<Kernel> {
    let plan = Analysis::of(cluster, space)?;
    let folds = Fold::all(cluster)?;
    let levels = levels(cluster, &folds);
    let mut e = Inliner::new(cluster, name, &space.dims)?;
    let inner = plan.reduced.last().map_or(Extent::ONE, |g| g.extent);
    let order_free = folds.iter().all(Fold::is_order_free);
    let mut ways = vec![];
    for vector in widths(&e, inner, order_free)? {
        let schedule = GpuRowTiling::of(space.length(), vector, order_free);
        let held = held_values(cluster, space, &levels, &plan.uses, schedule)?;
        ways.push(GpuRowKernel { space, plan: &plan, folds: &folds, schedule, held });
    }
    launch_rows(&mut e, &ways, inner, &levels)?;
    Ok(e.finish())
}

/// Emits the launch: rows by the way whose vectors are the widest that divide their innermost extent.
fn launch_rows(e: &mut Inliner<'_>, ways: &[GpuRowKernel<'_>], inner: Extent, levels: &[Vec<Fold>]) -> Result<()> {
    // All have the same threads.
    let Some(GpuRowKernel { plan, folds, schedule: s, .. }) = ways.first() else { return Ok(()) };
    let rows = total(&plan.kept);
    let blocks = rows.div_ceil(s.rows);
    let warps = s.threads / LANES;
    let types: Vec<DType> = folds.iter().flat_map(Fold::accumulators).collect();
    let arrays: Vec<(DType, u64)> = match warps {
        1 => vec![],
        n => types.into_iter().map(|dtype| (dtype, n)).collect(),
    };
    launch(e, blocks, s.threads * s.rows, &arrays, |e, b, t, shared| {
        let limits = move |_: u32| (0, (s.threads * s.rows) as i64 - 1);
        let (row, lane) = match s.rows {
            1 => (b, t.clone()),
            n => {
                let row = e.b.let_index("warp", t.floor_div(LANES as i64, &limits));
                let row = e.b.let_index("row", b.scale(n as i64).add(&row));
                (row, e.b.let_index("lane", t.modulo(LANES as i64, &limits)))
            }
        };
        below(e, &row, rows, blocks * s.rows, |e| {
            set_groups(e, &plan.kept, &row, rows);
            let mut wider: Option<u64> = None;
            for (i, way) in ways.iter().enumerate() {
                let last = i + 1 == ways.len();
                let divides = (!last).then(|| is_multiple(e, inner, way.schedule.vector, true));
                let no_wider = wider.map(|width| is_multiple(e, inner, width, false));
                let cond = match (divides, no_wider) {
                    (Some(a), Some(b)) => Some(e.b.op(ScalarOp::And, &[a, b])),
                    (one, other) => one.or(other),
                };
                match cond {
                    Some(cond) => e.when(cond, |e| way.passes(e, levels, &lane, shared))?,
                    None => way.passes(e, levels, &lane, shared)?,
                }
                wider = Some(way.schedule.vector);
            }
            Ok(())
        })
    })
}

/// Whether a number is a multiple of another, or whether it is not.
fn is_multiple(e: &mut Inliner<'_>, n: Extent, of: u64, wanted: bool) -> Operand {
    let rest = e.b.index_value(Index::constant(n.rem_floor(of)));
    let op = if wanted { CmpOp::Eq } else { CmpOp::Ne };
    e.b.op(ScalarOp::Cmp(op), &[rest, Operand::Const(Scalar::i64(0))])
}

/// Inputs and maps of elements that several passes need, if registers hold them.
fn held_values(
    cluster: &Cluster<'_>,
    space: &IterationSpace,
    levels: &[Vec<Fold>],
    uses: &ClusterAccesses,
    schedule: GpuRowTiling,
) -> Result<BTreeMap<usize, Vec<Value>>> {
    let (mut first, mut again): (BTreeMap<Value, usize>, BTreeSet<Value>) = Default::default();
    for pass in 0..=levels.len() {
        let mut stack: Vec<Value> = match levels.get(pass) {
            Some(folds) => folds.iter().flat_map(|f| cluster.body.args(f.node())).collect(),
            None => cluster.outputs(),
        };
        let mut seen = BTreeSet::new();
        while let Some(v) = stack.pop() {
            let full = space.is_full(&cluster.ty(v)?.dims);
            let is_input = matches!(cluster.body.node(v.node).kind, NodeKind::Input);
            let followed = is_input || matches!(cluster.prim(v.node), Some(Prim::Map(_)));
            if !full || !followed || !seen.insert(v) {
                continue;
            }
            if *first.entry(v).or_insert(pass) < pass {
                again.insert(v);
                continue;
            }
            stack.extend(cluster.body.args(v.node));
        }
    }
    let mut held: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    if schedule.expanded.is_none() {
        return Ok(held);
    }
    // An input that is read elsewhere than at the element at hand, too, is not one value of the element.
    let own = tensorc_ir::index::linearize(&space.coords(), &space.dims);
    let moved = |v: Value| {
        let is_input = matches!(cluster.body.node(v.node).kind, NodeKind::Input);
        is_input && (cluster.input_runs(v.node).is_some() || uses.flats.iter().any(|(u, f)| *u == v && *f != own))
    };
    for v in again.into_iter().filter(|v| !moved(*v)).take(MAX_REGISTER_VALUES) {
        held.entry(first[&v]).or_default().push(v);
    }
    Ok(held)
}

impl GpuRowKernel<'_> {
    /// The number of threads that fold a row, if symbols decide.
    fn folding(&self, e: &mut Inliner<'_>) -> Option<Index> {
        let wanted = Index::constant(self.schedule.folding?);
        let [fewest, most] = [MIN_THREADS, MAX_THREADS].map(Index::constant);
        let limits = |_: u32| (0, 0);
        Some(e.b.let_index("folding", wanted.maximum(&fewest, &limits).minimum(&most, &limits)))
    }

    fn passes(&self, e: &mut Inliner<'_>, levels: &[Vec<Fold>], lane: &Index, shared: &[Buf]) -> Result<()> {
        let mut registers = BTreeMap::new();
        for v in self.held.values().flatten() {
            let len = self.schedule.expanded.unwrap_or(0) * self.schedule.vector;
            registers.insert(*v, e.alloc("held", e.cluster.ty(*v)?.dtype, len, Memory::Register));
        }
        let fed = fed_by_folds(e.cluster, self.folds);
        e.hoist_if(&self.plan.uses, &self.space.reduced, &|v| !fed.contains(&v.node))?;
        let mut arrays = shared.iter().copied();
        for (pass, folds) in levels.iter().enumerate() {
            let acc: Vec<Vec<Buf>> = folds.iter().map(|f| f.alloc(e, self.schedule.vector)).collect();
            self.each_lane(e, &mut |e, l| {
                folds.iter().zip(&acc).for_each(|(f, a)| f.store_init(e, a, l));
                Ok(())
            })?;
            self.elements(e, lane, pass, &registers, &mut |e, l| {
                folds.iter().zip(&acc).try_for_each(|(f, a)| f.accumulate(e, self.space, a, l))
            })?;
            for (f, a) in folds.iter().zip(&acc) {
                self.fold_vector(e, f, a);
                fold_warp(e, f, a);
            }
            if self.schedule.threads > LANES {
                let shared: Vec<Vec<Buf>> = acc.iter().map(|a| arrays.by_ref().take(a.len()).collect()).collect();
                self.fold_block(e, folds, &acc, lane, &shared)?;
            }
            folds.iter().zip(&acc).for_each(|(f, a)| f.finish(e, a, &Index::default()));
            bind_folded(e, self.space, self.folds)?;
        }
        self.store_pass(e, lane, levels.len(), &registers)
    }

    /// The elements of a row that belong to a thread: `body` takes the place in the vector of accumulators.
    fn elements(
        &self,
        e: &mut Inliner<'_>,
        lane: &Index,
        pass: usize,
        registers: &BTreeMap<Value, Buf>,
        body: &mut dyn FnMut(&mut Inliner<'_>, &Index) -> Result<()>,
    ) -> Result<()> {
        let s = self.schedule;
        let units = self.space.length() / s.vector;
        let mut counted = self.plan.reduced.clone();
        if let Some(inner) = counted.last_mut() {
            inner.extent = inner.extent / s.vector;
        }
        let inner = counted.last().map(|g| g.axis);
        let mut element = |e: &mut Inliner<'_>, step: &Index, unit: &Index| {
            set_groups(e, &counted, unit, units);
            let first = inner.map(|axis| (axis, e.axis(axis).scale(s.vector as i64)));
            self.each_lane(e, &mut |e, l| {
                if let Some((axis, first)) = &first {
                    e.set_axis(*axis, first.add(l));
                }
                self.hold(e, pass, registers, &step.scale(s.vector as i64).add(l))?;
                body(e, l)
            })
        };
        if let Some(folding) = self.folding(e) {
            let number = |e: &mut Inliner<'_>, index: Index| e.b.index_value(index);
            let (threads, most) = (number(e, folding.clone()), number(e, Index::constant(units)));
            let most = e.b.as_index(most).add(&folding).offset(-1);
            let most = number(e, most);
            let steps = e.b.op(ScalarOp::Div, &[most, threads]);
            let steps = (Index::default(), e.b.as_index(steps), 1);
            return under(e, lane, &folding, |e| {
                e.looped("s", steps, LoopKind::Serial, |e, step| {
                    let first = number(e, step.clone());
                    let first = e.b.op(ScalarOp::Mul, &[first, threads]);
                    let unit = e.b.let_index("unit", e.b.as_index(first).add(lane));
                    under(e, &unit, &Index::constant(units), |e| element(e, &step, &unit))
                })
            });
        }
        let (steps, kind) = match s.expanded {
            Some(most) => (most.into(), LoopKind::Unroll),
            None => (s.steps, LoopKind::Serial),
        };
        e.looped("s", range(steps), kind, |e, step| {
            let unit = e.b.let_index("unit", step.scale(s.threads as i64).add(lane));
            below(e, &unit, units, steps * s.threads, |e| element(e, &step, &unit))
        })
    }

    /// Puts values of the element into registers that this pass computes first, and takes others from there.
    fn hold(&self, e: &mut Inliner<'_>, pass: usize, registers: &BTreeMap<Value, Buf>, at: &Index) -> Result<()> {
        for (first, values) in &self.held {
            for v in values {
                if *first < pass {
                    let value = e.b.load(registers[v], at.clone());
                    e.bind(*v, Bound::Operand(value));
                } else if *first == pass {
                    let value = e.value(*v, &self.space.coords(), None)?;
                    e.b.store(registers[v], at.clone(), value);
                }
            }
        }
        Ok(())
    }

    fn each_lane(
        &self,
        e: &mut Inliner<'_>,
        body: &mut dyn FnMut(&mut Inliner<'_>, &Index) -> Result<()>,
    ) -> Result<()> {
        match self.schedule.vector {
            1 => body(e, &Index::default()),
            n => e.looped("l", (Index::default(), Index::constant(n as i64), 1), LoopKind::Vector, |e, l| body(e, &l)),
        }
    }

    /// Combines the accumulators of a thread into the first.
    fn fold_vector(&self, e: &mut Inliner<'_>, f: &Fold, acc: &[Buf]) {
        let mut width = self.schedule.vector as i64 / 2;
        while width >= 1 {
            for i in 0..width {
                f.combine(e, acc, &Index::constant(i), acc, &Index::constant(i + width));
            }
            width /= 2;
        }
    }

    /// Combines the accumulators of the warps of a block; every warp does it for itself.
    fn fold_block(
        &self,
        e: &mut Inliner<'_>,
        folds: &[Fold],
        acc: &[Vec<Buf>],
        thread: &Index,
        shared: &[Vec<Buf>],
    ) -> Result<()> {
        let threads = self.schedule.threads;
        let limits = move |_: u32| (0, threads as i64 - 1);
        let warp = e.b.let_index("warp", thread.floor_div(LANES as i64, &limits));
        let lane = e.b.let_index("lane", thread.modulo(LANES as i64, &limits));
        below(e, &lane, 1, LANES, |e| {
            for (register, array) in acc.iter().flatten().zip(shared.iter().flatten()) {
                let value = e.b.load(*register, Index::default());
                e.b.store(*array, warp.clone(), value);
            }
            Ok(())
        })?;
        e.b.push(Stmt::Barrier);
        // Warps that do not fold have nothing to give.
        let most = |_: u32| (0, MAX_THREADS as i64);
        let folding = self.folding(e).map(|threads| threads.floor_div(LANES as i64, &most));
        for ((f, a), arrays) in folds.iter().zip(acc).zip(shared) {
            f.store_init(e, a, &Index::default());
            let fetch = |e: &mut Inliner<'_>| {
                for (register, array) in a.iter().zip(arrays) {
                    let value = e.b.load(*array, lane.clone());
                    e.b.store(*register, Index::default(), value);
                }
                Ok(())
            };
            match &folding {
                None => below(e, &lane, threads / LANES, LANES, fetch)?,
                Some(folding) => under(e, &lane, folding, fetch)?,
            }
            fold_warp(e, f, a);
        }
        Ok(())
    }

    /// Stores outputs: those of one element per row by one thread, full ones in a last pass.
    fn store_pass(
        &self,
        e: &mut Inliner<'_>,
        lane: &Index,
        pass: usize,
        registers: &BTreeMap<Value, Buf>,
    ) -> Result<()> {
        let (full, single) = results(e.cluster, self.space)?;
        if !single.is_empty() {
            let zero = Operand::Const(Scalar::i64(0));
            let lane = e.b.index_value(lane.clone());
            let first = e.b.op(ScalarOp::Cmp(CmpOp::Eq), &[lane, zero]);
            e.when(first, |e| e.store_values(&single))?;
        }
        if full.is_empty() {
            return Ok(());
        }
        e.hoist(&self.plan.uses, &self.space.reduced)?;
        self.elements(e, lane, pass, registers, &mut |e, _| e.store_values(&full))
    }
}

/// Combines the first accumulators of the threads of a warp; all get the result.
fn fold_warp(e: &mut Inliner<'_>, f: &Fold, acc: &[Buf]) {
    let zero = Index::default();
    let mut distance = WARP as u32 / 2;
    while distance >= 1 {
        let others: Vec<Operand> = acc
            .iter()
            .map(|register| {
                let own = e.b.load(*register, zero.clone());
                e.b.shuffle(own, distance)
            })
            .collect();
        f.combine_values(e, acc, &zero, &others);
        distance /= 2;
    }
}
