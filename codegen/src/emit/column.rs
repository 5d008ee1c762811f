//! Emitter for folds with vectors along a kept axis: every lane folds a column of its own. Sums
//! over outer axes, pooling windows, and contractions no library kernel covers.
//!
//! Accumulators of one vector of columns are registers, and the loop over vectors is the outer one. Where rows are longer than that,
//! accumulators of a part of a row lie in memory, and the loop over rows is the outer one: memory is read in its order.

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::FusionClass;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, MemorySpace};
use tensorc_ir::{DType, Extent, Extents};
use tensorc_schedule::access::in_place::in_place;
use tensorc_schedule::access::space::{Analysis, IterationSpace};
use tensorc_schedule::access::{ClusterAccesses, MergedAxes};

use super::cluster::Cluster;
use super::fold::{Fold, bind_folded, is_written_out, levels, looped_over, results};
use super::inline::{Inliner, LaneOf};
use super::nest::parallel;
use super::windows::Windows;

/// Longest innermost extent one parallel iteration walks, and the longest if columns are [`MIN_TALL_ROWS`].
const MAX_BLOCK_EXTENT: u64 = 512;
const MAX_TALL_BLOCK_EXTENT: u64 = 128;
/// Rows from which on a column is work enough.
const MIN_TALL_ROWS: u64 = 64;
/// Lanes of a fold of tall columns: each row is far from the next, so two cache lines of it are read at a time.
const TALL_LANES: u64 = 32;
/// Most operations of such a fold, whose lanes must stay in registers.
const MAX_TALL_OPS: usize = 4;
/// Most bytes of accumulators in memory for a part of a row: they leave room in the first-level cache.
const ROW_BYTES: u64 = 8192;
/// Rows that are folded together, so that accumulators in memory are loaded and stored once for all of them.
const ROWS_TOGETHER: i64 = 4;
/// Columns of a row, or elements of a tensor, for which that is faster than one row at a time: memory is slower to read as four
/// short streams than as one, a cache is not.
const LONG_ROW: u64 = 1024;
const CACHED_ELEMENTS: u64 = 1 << 20;

pub fn emit(cluster: &Cluster<'_>, space: &IterationSpace, name: &str) -> Result<Kernel> {
    let folds = Fold::all(cluster)?;
    let plan = Analysis::of(cluster, space)?;
    let windows = Windows::of(cluster, space, &plan, &folds)?;
    let Analysis { uses, mut kept, mut reduced } = plan;
    let in_place = in_place(FusionClass::Reduce, cluster)?;
    let mut e = Inliner::new(cluster, name, &space.dims)?;
    let levels = match windows.as_ref().and_then(Windows::of_rows) {
        Some(fold) => {
            reduced.pop();
            vec![vec![fold]]
        }
        None => levels(cluster, &folds),
    };
    // A vector is cut off for nothing where a loop over vectors has no loop within.
    let cut = cluster.is_wide() && is_written_out(&reduced);
    let column = ColumnFold { space, folds: &folds, levels, reduced, again: in_place.is_empty() && !cut };
    match (windows, kept.pop()) {
        (_, None) => parallel(&mut e, &kept, 1, |e, _| {
            let acc = column.alloc(e, 1);
            column.element(e, &acc, &LaneOf::Scalar)
        })?,
        (Some(windows), Some(inner)) => {
            kept.push(inner.clone());
            column.windows(&mut e, &windows, windows.outer(&kept), &inner)?;
        }
        (None, Some(inner)) => column.nest(&mut e, &kept, &inner, &uses)?,
    }
    Ok(e.finish())
}

/// Accumulators of every fold of every level, for vectors of positions and for single ones.
struct Accumulators {
    vector: Vec<Vec<Vec<Buf>>>,
    scalar: Vec<Vec<Vec<Buf>>>,
}

impl Accumulators {
    fn new(column: &ColumnFold<'_>, e: &mut Inliner<'_>, lanes: u64) -> Accumulators {
        let vector = column.alloc(e, lanes);
        let scalar = if lanes > 1 { column.alloc(e, 1) } else { vector.clone() };
        Accumulators { vector, scalar }
    }

    fn of(&self, lane: &LaneOf) -> &[Vec<Vec<Buf>>] {
        match lane {
            LaneOf::Vector(_) => &self.vector,
            LaneOf::Scalar => &self.scalar,
        }
    }
}

struct ColumnFold<'a> {
    space: &'a IterationSpace,
    folds: &'a [Fold],
    levels: Vec<Vec<Fold>>,
    reduced: Vec<MergedAxes>,
    /// Whether elements may be computed and stored again, rather than one by one.
    again: bool,
}

impl ColumnFold<'_> {
    fn alloc(&self, e: &mut Inliner<'_>, lanes: u64) -> Vec<Vec<Vec<Buf>>> {
        let written_out = is_written_out(&self.reduced);
        let mut alloc = |f: &Fold| if written_out { vec![] } else { f.alloc(e, lanes) };
        self.levels.iter().map(|folds| folds.iter().map(&mut alloc).collect()).collect()
    }

    /// Positions of windows that read a copy.
    fn windows(&self, e: &mut Inliner<'_>, windows: &Windows, outer: &[MergedAxes], inner: &MergedAxes) -> Result<()> {
        let lanes = e.cluster.lanes(inner.extent);
        parallel(e, outer, windows.bands(), |e, band| {
            let acc = Accumulators::new(self, e, lanes);
            windows.walk(e, &band, &mut |e| {
                e.covered(inner.axis, (Extent::ZERO, inner.extent), lanes, self.again, &mut |e, lane| {
                    self.element(e, acc.of(&lane), &lane)
                })
            })
        })
    }

    fn nest(&self, e: &mut Inliner<'_>, kept: &[MergedAxes], inner: &MergedAxes, uses: &ClusterAccesses) -> Result<()> {
        let (lo, hi) = interior(inner, uses, &self.space.dims);
        let axis = inner.axis;
        let whole = lo.is_surely(0) && hi.is_surely(inner.extent);
        if whole && let Some(part) = self.part_of_row(e, inner) {
            return self.by_rows(e, kept, inner, part);
        }
        // A lane folds a column of its own: how many there are does not change results.
        let (block, lanes) = advice(|| {
            let tall = self.reduced.iter().map(|g| g.extent).product::<Extent>() >= MIN_TALL_ROWS;
            let block = if tall { MAX_TALL_BLOCK_EXTENT } else { MAX_BLOCK_EXTENT };
            let wide = tall && e.cluster.ops() <= MAX_TALL_OPS && hi - lo >= TALL_LANES;
            match e.cluster.lanes((hi - lo).greatest(0)) {
                16 if wide => (block, TALL_LANES),
                lanes => (block, lanes),
            }
        });
        let blocks = if whole { inner.extent.div_ceil(block) } else { Extent::ONE };
        parallel(e, kept, blocks, |e, q| {
            let acc = Accumulators::new(self, e, lanes);
            let mut element = |e: &mut Inliner<'_>, lane: LaneOf| self.element(e, acc.of(&lane), &lane);
            if !blocks.is_surely(1) {
                let n = inner.extent;
                let wide = move |_: u32| (0, n);
                let lo = e.b.let_index("lo", q.scale(block));
                let end = lo.offset(block);
                let hi = e.b.let_index("hi", end.minimum(&Index::constant(n), &wide));
                let whole = e.b.let_index("whole", end.minimum(&Index::constant(n / lanes * lanes), &wide));
                return e.vectorized(axis, (lo, hi), whole, lanes, &mut element);
            }
            let all = |n: Extent| Index::constant(n);
            let full = e.set_range(axis, (Extent::ZERO, lo - 1));
            e.vectorized(axis, (Index::default(), all(lo)), Index::default(), 1, &mut element)?;
            if hi > lo {
                // The counter of merged axes goes further than the innermost axis does.
                e.set_range(axis, (lo, full.1.least(hi - 1)));
                e.covered(axis, (lo, hi), lanes, self.again, &mut element)?;
            }
            e.set_range(axis, (hi, full.1));
            e.vectorized(axis, (all(hi), all(inner.extent)), all(hi), 1, &mut element)?;
            e.set_range(axis, full);
            Ok(())
        })
    }

    /// Columns whose accumulators lie in memory, if rows are read one after the other.
    fn part_of_row(&self, e: &Inliner<'_>, inner: &MergedAxes) -> Option<u64> {
        let [folds] = &self.levels[..] else { return None };
        let simple = folds.iter().all(|f| matches!(f, Fold::Reduce(..))) && !is_written_out(&self.reduced);
        let single = results(e.cluster, self.space).is_ok_and(|(full, _)| full.is_empty());
        let bytes: usize = folds.iter().flat_map(Fold::accumulators).map(DType::size).sum();
        let long = advice(|| inner.extent > TALL_LANES);
        (simple && single && long).then(|| ROW_BYTES / bytes.max(1).next_power_of_two() as u64)
    }

    /// How many rows are folded together.
    fn rows_together(&self, e: &Inliner<'_>, kept: &[MergedAxes], inner: &MergedAxes) -> i64 {
        advice(|| {
            let groups = kept.iter().chain(&self.reduced).map(|g| g.extent);
            let cached = inner.extent >= LONG_ROW || groups.product::<Extent>() * inner.extent <= CACHED_ELEMENTS;
            if cached && e.cluster.ops() <= MAX_TALL_OPS { ROWS_TOGETHER } else { 1 }
        })
    }

    /// Folds rows into accumulators of parts of a row.
    fn by_rows(&self, e: &mut Inliner<'_>, kept: &[MergedAxes], inner: &MergedAxes, part: u64) -> Result<()> {
        let (folds, axis, n) = (&self.levels[0], inner.axis, inner.extent);
        let (lanes, together) = (advice(|| e.cluster.lanes(n)), self.rows_together(e, kept, inner));
        parallel(e, kept, n.div_ceil(part), |e, q| {
            let room = n.known().map_or(part, |n| part.min(n as u64));
            let acc: Vec<Vec<Buf>> = folds.iter().map(|f| f.alloc_in(e, room, MemorySpace::Stack)).collect();
            let lo = q.scale(part);
            let rest = Index::constant(n).sub(&lo);
            let range = move |_: u32| (Extent::ZERO, n);
            let len = e.b.let_index("len", rest.minimum(&Index::constant(part), &range));
            let whole = e.b.let_index("whole", len.floor_div(lanes, &range).scale(lanes));
            let pass = |e: &mut Inliner<'_>, body: &mut dyn FnMut(&mut Inliner<'_>, &Index) -> Result<()>| {
                e.columns((Index::default(), len.clone()), whole.clone(), lanes, &mut |e, i| {
                    e.set_axis(axis, lo.add(&i));
                    body(e, &i)
                })
            };
            let of_folds = || folds.iter().zip(&acc);
            pass(e, &mut |e, at| {
                of_folds().for_each(|(f, a)| f.store_init(e, a, at));
                Ok(())
            })?;
            let (rows, outer) = self.reduced.split_last().unwrap_or_else(|| unreachable!("not written out"));
            looped_over(e, outer, &mut |e| {
                let whole = rows.extent / together;
                let parts = [(Extent::ZERO, whole, together), (whole * together, rows.extent, 1)];
                for (from, to, together) in parts.into_iter().filter(|(from, to, _)| !from.is_surely(*to)) {
                    let range = (Index::constant(from), Index::constant(to), 1);
                    e.looped("r", range, LoopKind::Serial, |e, r| {
                        let first = r.scale(together);
                        pass(e, &mut |e, at| self.accumulate_rows(e, (rows.axis, &first, together), &acc, at))
                    })?;
                }
                Ok(())
            })?;
            pass(e, &mut |e, at| {
                of_folds().for_each(|(f, a)| f.finish(e, a, at));
                bind_folded(e, self.space, self.folds)?;
                let (_, single) = results(e.cluster, self.space)?;
                e.store_values(&single)
            })
        })
    }

    /// Folds some rows, which an axis counts, into the accumulators at `at`.
    fn accumulate_rows(
        &self,
        e: &mut Inliner<'_>,
        (axis, first, count): (usize, &Index, i64),
        acc: &[Vec<Buf>],
        at: &Index,
    ) -> Result<()> {
        let mut values: Vec<_> = acc.iter().map(|acc| Fold::load(e, acc, at)).collect();
        for row in 0..count {
            e.at(axis, first.offset(row), |e| {
                let mut folds = self.levels[0].iter().zip(&mut values);
                folds.try_for_each(|(f, v)| f.joined(e, self.space, std::mem::take(v)).map(|new| *v = new))
            })?;
        }
        acc.iter().zip(values).for_each(|(acc, values)| Fold::store(e, acc, at, values));
        Ok(())
    }

    /// All passes for one position (or one vector of positions).
    fn element(&self, e: &mut Inliner<'_>, acc: &[Vec<Vec<Buf>>], lane: &LaneOf) -> Result<()> {
        let at = match lane {
            LaneOf::Vector(l) => l.clone(),
            LaneOf::Scalar => Index::default(),
        };
        for (folds, acc) in self.levels.iter().zip(acc) {
            if is_written_out(&self.reduced) {
                for f in folds {
                    let values = f.over(e, self.space, &self.reduced, (&[], &at))?;
                    f.finish_with(e, values);
                }
            } else {
                folds.iter().zip(acc).for_each(|(f, a)| f.store_init(e, a, &at));
                looped_over(e, &self.reduced, &mut |e| {
                    folds.iter().zip(acc).try_for_each(|(f, a)| f.accumulate(e, self.space, a, &at))
                })?;
                folds.iter().zip(acc).for_each(|(f, a)| f.finish(e, a, &at));
            }
            bind_folded(e, self.space, self.folds)?;
        }
        let (full, single) = results(e.cluster, self.space)?;
        e.store_values(&single)?;
        if full.is_empty() {
            return Ok(());
        }
        looped_over(e, &self.reduced, &mut |e| e.store_values(&full))
    }
}

/// The part of the innermost axis where no read that depends on it can leave its operand.
fn interior(inner: &MergedAxes, uses: &ClusterAccesses, dims: &Extents) -> (Extent, Extent) {
    let none = (Extent::ZERO, Extent::ZERO);
    let (mut first, mut last) = (Extent::ZERO, inner.extent - 1);
    for (index, size) in &uses.guards {
        if !index.mentions(inner.axis as u32) {
            continue;
        }
        let Some(c) = index.coefficient(inner.axis as u32).filter(|c| *c > 0) else { return none };
        let (lo, hi) = index.sub(&Index::var(inner.axis as u32).scale(c)).interval(dims);
        first = first.greatest((c - 1 - lo) / c);
        last = last.least((*size - 1 - hi) / c);
    }
    if first > last { none } else { (first, last + 1) }
}
