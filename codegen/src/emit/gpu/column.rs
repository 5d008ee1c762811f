//! Folds across memory: neighbouring threads fold neighbouring columns. Long ones are cut among the warps of a block,
//! whose results meet in shared memory.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, WARP};
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::access::product::total;
use tensorc_schedule::access::space::{Analysis, IterationSpace};

use super::loops::{below, launch, set_groups};
use crate::emit::cluster::Cluster;
use crate::emit::fold::{Fold, bind_folded, levels, results};
use crate::emit::inline::Inliner;

/// Threads of a block that does not cut columns.
const THREADS: u64 = 128;
/// Warps that share a column: so many, or more if it is long.
const PARTS: [u64; 2] = [8, 32];
/// Elements of a column from which on it is cut into parts, few and many.
const MIN_SPLIT_ROWS: [u64; 2] = [64, 512];
/// Elements that a thread of a part reads at once, so that many reads are under way.
const READ_AT_ONCE: u64 = 8;

/// What a thread folds.
struct ThreadColumn<'a> {
    space: &'a IterationSpace,
    folds: &'a [Fold],
    reduced: Vec<MergedAxes>,
    /// Elements of a column.
    length: Extent,
}

pub fn emit(cluster: &Cluster<'_>, space: &IterationSpace, name: &str) -> Result<Kernel> {
    let folds = Fold::all(cluster)?;
    let Analysis { kept, reduced, .. } = Analysis::of(cluster, space)?;
    let full = !results(cluster, space)?.0.is_empty();
    let columns = total(&kept);
    let levels = levels(cluster, &folds);
    let mut e = Inliner::new(cluster, name, &space.dims)?;
    let length = total(&reduced);
    let column = ThreadColumn { space, folds: &folds, reduced, length };
    // Products have the bits of sums in order, whichever emitter writes them.
    let combines = folds.iter().all(|f| matches!(f, Fold::Reduce(..)));
    match levels.len() == 1 && !full && combines && length >= MIN_SPLIT_ROWS[0] {
        true => column.shared(&mut e, &kept, columns)?,
        false => column.alone(&mut e, &kept, columns, &levels)?,
    }
    Ok(e.finish())
}

impl ThreadColumn<'_> {
    /// Every thread folds a column from its first element to its last.
    fn alone(&self, e: &mut Inliner<'_>, kept: &[MergedAxes], columns: Extent, levels: &[Vec<Fold>]) -> Result<()> {
        let blocks = columns.div_ceil(THREADS);
        launch(e, blocks, THREADS, &[], |e, b, t, _| {
            let p = e.b.let_index("p", b.scale(THREADS as i64).add(&t));
            below(e, &p, columns, blocks * THREADS, |e| {
                set_groups(e, kept, &p, columns);
                for folds in levels {
                    let acc: Vec<Vec<Buf>> = folds.iter().map(|f| f.alloc(e, 1)).collect();
                    self.accumulate(e, folds, &acc, Index::default(), (1, 1))?;
                    folds.iter().zip(&acc).for_each(|(f, a)| f.finish(e, a, &Index::default()));
                    bind_folded(e, self.space, self.folds)?;
                }
                self.store(e)
            })
        })
    }

    /// The warps of a block fold parts of 32 columns.
    fn shared(&self, e: &mut Inliner<'_>, kept: &[MergedAxes], columns: Extent) -> Result<()> {
        let width = WARP as u64;
        let parts = PARTS[usize::from(self.length.is_surely_from(MIN_SPLIT_ROWS[1]))];
        let blocks = columns.div_ceil(width);
        let types: Vec<Vec<DType>> = self.folds.iter().map(Fold::accumulators).collect();
        let arrays: Vec<(DType, u64)> = types.iter().flatten().map(|d| (*d, width * parts)).collect();
        launch(e, blocks, width * parts, &arrays, |e, b, t, shared| {
            let limits = move |_: u32| (0, (width * parts) as i64 - 1);
            let part = e.b.let_index("part", t.floor_div(width as i64, &limits));
            let lane = e.b.let_index("lane", t.modulo(width as i64, &limits));
            let p = e.b.let_index("p", b.scale(width as i64).add(&lane));
            let acc: Vec<Vec<Buf>> = self.folds.iter().map(|f| f.alloc(e, 1)).collect();
            below(e, &p, columns, blocks * width, |e| {
                set_groups(e, kept, &p, columns);
                self.accumulate(e, self.folds, &acc, part.clone(), (parts, READ_AT_ONCE))?;
                let own = part.scale(width as i64).add(&lane);
                for (register, array) in acc.iter().flatten().zip(shared) {
                    let value = e.b.load(*register, Index::default());
                    e.b.store(*array, own.clone(), value);
                }
                Ok(())
            })?;
            e.b.push(tensorc_ir::kir::Stmt::Barrier);
            below(e, &t, width, width * parts, |e| {
                below(e, &p, columns, blocks * width, |e| {
                    set_groups(e, kept, &p, columns);
                    let range = (Index::constant(1), Index::constant(parts as i64), 1);
                    e.looped("other", range, LoopKind::Serial, |e, other| {
                        let mut arrays = shared.iter();
                        for (f, registers) in self.folds.iter().zip(&acc) {
                            let others: Vec<Buf> = arrays.by_ref().take(registers.len()).copied().collect();
                            let from = other.scale(width as i64).add(&lane);
                            f.combine(e, registers, &Index::default(), &others, &from);
                        }
                        Ok(())
                    })?;
                    self.folds.iter().zip(&acc).for_each(|(f, a)| f.finish(e, a, &Index::default()));
                    bind_folded(e, self.space, self.folds)?;
                    self.store(e)
                })
            })
        })
    }

    /// Folds the elements `first`, `first + step`, … of the column at hand, `at_once` of them in a round.
    fn accumulate(
        &self,
        e: &mut Inliner<'_>,
        folds: &[Fold],
        acc: &[Vec<Buf>],
        first: Index,
        (step, at_once): (u64, u64),
    ) -> Result<()> {
        folds.iter().zip(acc).for_each(|(f, a)| f.store_init(e, a, &Index::default()));
        self.elements(e, first, (step, at_once), &mut |e| {
            folds.iter().zip(acc).try_for_each(|(f, a)| f.accumulate(e, self.space, a, &Index::default()))
        })
    }

    fn elements(
        &self,
        e: &mut Inliner<'_>,
        first: Index,
        (step, at_once): (u64, u64),
        body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut element = |e: &mut Inliner<'_>, r: Index| {
            set_groups(e, &self.reduced, &r, self.length);
            body(e)
        };
        let round = step * at_once;
        let whole = if at_once == 1 { Extent::ZERO } else { self.length / round * round };
        if !whole.is_surely(0) {
            let rounds = (Index::default(), Index::constant(whole), round as i64);
            e.looped("start", rounds, LoopKind::Serial, |e, start| {
                e.looped("r", (Index::default(), Index::constant(at_once as i64), 1), LoopKind::Unroll, |e, r| {
                    element(e, start.add(&first).add(&r.scale(step as i64)))
                })
            })?;
        }
        let rest = (first.offset(whole), Index::constant(self.length), step as i64);
        e.looped("r", rest, LoopKind::Serial, |e, r| element(e, r))
    }

    /// Stores outputs: those of one element per column here, full ones in a last loop.
    fn store(&self, e: &mut Inliner<'_>) -> Result<()> {
        let (full, single) = results(e.cluster, self.space)?;
        e.store_values(&single)?;
        if full.is_empty() {
            return Ok(());
        }
        self.elements(e, Index::default(), (1, 1), &mut |e| e.store_values(&full))
    }
}
