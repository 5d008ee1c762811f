//! Folds along memory: softmax, normalisations, sums over trailing axes. A warp folds a short row, a block a long one.
//!
//! A thread folds what it reads; the threads of a warp meet by shuffles, warps in shared memory. What several passes over
//! the row need stays in registers if the row is short enough.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace as Memory, Operand, Stmt, WARP};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::ClusterAccesses;
use tensorc_schedule::access::product::total;
use tensorc_schedule::access::space::{Analysis, IterationSpace};

use super::loops::{below, launch, range, set_groups};
use super::{fixed, next_multiple, vector_width};
use crate::emit::cluster::Cluster;
use crate::emit::fold::{Fold, bind_folded, fed_by_folds, levels, results};
use crate::emit::inline::{Bound, Inliner};

const LANES: u64 = WARP as u64;
/// Rows up to this many elements are folded by a warp.
const MAX_WARP_ROW: u64 = 1024;
/// Warps of a block that each fold a row.
const ROWS: u64 = 4;
/// Most threads that fold one row.
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
    /// Rows of a block.
    rows: u64,
    /// Accesses of a thread in one pass.
    steps: Extent,
    /// How many there are at most, if that is known and few: then they are expanded, and registers may hold their values.
    expanded: Option<u64>,
}

impl GpuRowTiling {
    /// For rows of a length that `vector` divides. Lengths are compared on conditions, as the order of a sum depends on them.
    fn of(length: Extent, vector: u64) -> GpuRowTiling {
        let units = length / vector;
        let (threads, rows, most) = match length <= MAX_WARP_ROW {
            true => (LANES, ROWS, Some(MAX_WARP_ROW.div_ceil(vector * LANES))),
            false => {
                let wanted = next_multiple(units.div_ceil(MIN_ACCESSES_PER_THREAD), LANES);
                (fixed(wanted.greatest(4 * LANES).least(MAX_THREADS)), 1, None)
            }
        };
        let steps = units.div_ceil(threads);
        let most = steps.known().map_or(most, |steps| Some(steps as u64));
        GpuRowTiling { vector, threads, rows, steps, expanded: most.filter(|most| *most <= MAX_REGISTER_ACCESSES) }
    }
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
    let vector = vector_width(&e, |n| Extent::from(n).divides(inner))?;
    let schedule = GpuRowTiling::of(space.length(), vector);
    let held = held_values(cluster, space, &levels, &plan.uses, schedule)?;
    let row = GpuRowKernel { space, plan: &plan, folds: &folds, schedule, held };
    row.emit(&mut e, &levels)?;
    Ok(e.finish())
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
    fn emit(&self, e: &mut Inliner<'_>, levels: &[Vec<Fold>]) -> Result<()> {
        let rows = total(&self.plan.kept);
        let s = self.schedule;
        let blocks = rows.div_ceil(s.rows);
        let warps = s.threads / LANES;
        let types: Vec<DType> = self.folds.iter().flat_map(Fold::accumulators).collect();
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
                set_groups(e, &self.plan.kept, &row, rows);
                self.passes(e, levels, &lane, shared)
            })
        })
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
        let (steps, kind) = match s.expanded {
            Some(most) => (most.into(), LoopKind::Unroll),
            None => (s.steps, LoopKind::Serial),
        };
        let mut counted = self.plan.reduced.clone();
        if let Some(inner) = counted.last_mut() {
            inner.extent = inner.extent / s.vector;
        }
        let inner = counted.last().map(|g| g.axis);
        e.looped("s", range(steps), kind, |e, step| {
            let unit = e.b.let_index("unit", step.scale(s.threads as i64).add(lane));
            below(e, &unit, units, steps * s.threads, |e| {
                set_groups(e, &counted, &unit, units);
                let first = inner.map(|axis| (axis, e.axis(axis).scale(s.vector as i64)));
                self.each_lane(e, &mut |e, l| {
                    if let Some((axis, first)) = &first {
                        e.set_axis(*axis, first.add(l));
                    }
                    self.hold(e, pass, registers, &step.scale(s.vector as i64).add(l))?;
                    body(e, l)
                })
            })
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
        for ((f, a), arrays) in folds.iter().zip(acc).zip(shared) {
            f.store_init(e, a, &Index::default());
            below(e, &lane, threads / LANES, LANES, |e| {
                for (register, array) in a.iter().zip(arrays) {
                    let value = e.b.load(*array, lane.clone());
                    e.b.store(*register, Index::default(), value);
                }
                Ok(())
            })?;
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
