//! Element-wise clusters that read across memory what they write along it: tiles go through shared memory, so that both
//! sides are accessed by neighbouring threads at neighbouring elements.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, LoopKind, Stmt, WARP};
use tensorc_schedule::access::axes::IterationAxes;
use tensorc_schedule::access::product::total;
use tensorc_schedule::access::{MergedAxes, group_axes};
use tensorc_schedule::recipe::Transposed;

use super::loops::{below, launch, range, set_groups};
use super::next_multiple;
use crate::emit::cluster::Cluster;
use crate::emit::fold::Results;
use crate::emit::inline::{Bound, Inliner};
use crate::emit::math::internal;

/// Elements along each side of a tile.
const SIDE: u64 = WARP as u64;
/// Elements between rows of a tile in shared memory, so that columns lie in different banks.
const STRIDE: u64 = SIDE + 1;
/// Threads of a block: a warp for every fourth row of the tile.
const WARPS: u64 = 8;
/// Emits a cluster that reads `transposed` across memory.
pub fn emit(cluster: &Cluster<'_>, transposed: &Transposed, name: &str) -> Result<Kernel> {
    let outputs = cluster.outputs();
    let dims = cluster.ty(outputs[0])?.dims;
    let IterationAxes { extents, coords, uses } = IterationAxes::of(cluster, &outputs, &dims)?;
    let mut outer = group_axes(&extents, &uses, &|_| false, &|_, _| true);
    let inner = outer.pop().ok_or_else(|| internal("a cluster of one element reads nothing across memory"))?;
    let stored: Results = outputs.iter().enumerate().map(|(i, v)| (i, *v, dims.clone(), coords.clone())).collect();
    let mut e = Inliner::new(cluster, name, &extents)?;
    TransposeTiles(transposed).emit(&mut e, &outer, &inner, &stored)?;
    Ok(e.finish())
}

/// Tiles of what is read across memory.
struct TransposeTiles<'a>(&'a Transposed);

impl TransposeTiles<'_> {
    /// Emits the cluster; `stored` are its results.
    fn emit(&self, e: &mut Inliner<'_>, outer: &[MergedAxes], inner: &MergedAxes, stored: &Results) -> Result<()> {
        let rest: Vec<MergedAxes> = outer.iter().filter(|g| g.axis != self.0.along.axis).cloned().collect();
        let items = total(&rest);
        let [down, across] = [&self.0.along, inner].map(|g| g.extent.div_ceil(SIDE));
        let arrays: Vec<(DType, u64)> = self.0.operands.iter().map(|(_, dtype, _)| (*dtype, SIDE * STRIDE)).collect();
        let blocks = items * down * across;
        launch(e, blocks, WARPS * SIDE, &arrays, |e, b, t, shared| {
            let limits = move |_: u32| (0, blocks - 1);
            let threads = |_: u32| (0, (WARPS * SIDE) as i64 - 1);
            let item = e.b.let_index("item", b.floor_div(down * across, &limits));
            set_groups(e, &rest, &item, items);
            let row = b.floor_div(across, &limits).modulo(down, &limits).scale(SIDE as i64);
            let column = b.modulo(across, &limits).scale(SIDE as i64);
            let first = [e.b.let_index("rows", row), e.b.let_index("columns", column)];
            let lane = e.b.let_index("lane", t.modulo(SIDE as i64, &threads));
            let warp = e.b.let_index("warp", t.floor_div(SIDE as i64, &threads));
            self.each(e, inner, &first, (&warp, &lane), true, &mut |e, [row, column]| {
                self.fetch(e, shared, &row.scale(STRIDE as i64).add(column))
            })?;
            e.b.push(Stmt::Barrier);
            self.each(e, inner, &first, (&warp, &lane), false, &mut |e, [row, column]| {
                for ((v, ..), array) in self.0.operands.iter().zip(shared) {
                    let value = e.b.load(*array, row.scale(STRIDE as i64).add(column));
                    e.bind(*v, Bound::Operand(value));
                }
                e.store_values(stored)
            })
        })
    }

    /// The elements of a tile that belong to a thread, whose neighbours have those next to it along memory that is read,
    /// or written: `body` takes row and column in the tile.
    fn each(
        &self,
        e: &mut Inliner<'_>,
        inner: &MergedAxes,
        first: &[Index; 2],
        (warp, lane): (&Index, &Index),
        reading: bool,
        body: &mut dyn FnMut(&mut Inliner<'_>, [&Index; 2]) -> Result<()>,
    ) -> Result<()> {
        e.looped("u", range(SIDE / WARPS), LoopKind::Unroll, |e, u| {
            let line = e.b.let_index("line", u.scale(WARPS as i64).add(warp));
            let (row, column) = if reading { (lane, &line) } else { (&line, lane) };
            let along = e.b.let_index("along", first[0].add(row));
            let at = e.b.let_index("i", first[1].add(column));
            let [rows, columns] = [&self.0.along, inner].map(|g| g.extent);
            below(e, &along, rows, next_multiple(rows, SIDE), |e| {
                below(e, &at, columns, next_multiple(columns, SIDE), |e| {
                    e.set_axis(self.0.along.axis, along.clone());
                    e.set_axis(inner.axis, at.clone());
                    body(e, [row, column])
                })
            })
        })
    }

    fn fetch(&self, e: &mut Inliner<'_>, shared: &[Buf], to: &Index) -> Result<()> {
        for ((v, _, flat), array) in self.0.operands.iter().zip(shared) {
            let at = e.kernel_index(flat);
            let value = e.b.load(e.input(v.node)?, at);
            e.b.store(*array, to.clone(), value);
        }
        Ok(())
    }
}
