//! Tiles: copies of the copy engine, and products of groups of warps.

use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::{
    Buf, GROUP, GROUP_ROWS, GroupMma, TILE_ALIGNMENT, TileCopy, TileOperand, WARP, group_acc, panel, swizzled, tf32,
};
use tensorc_ir::scalar::Scalar;

use super::counts::BufferTraffic;
use super::machine::{Coming, PendingProduct, SimtMachine};
use super::shadow::Cell;
use super::shadow::engine;
use super::values::{Mask, ThreadIndices};

impl SimtMachine<'_> {
    pub(super) fn copy_tile(&mut self, copy: &TileCopy, mask: &Mask) -> Result<()> {
        let [row, column] = [0, 1].map(|i| self.places(&copy.at[i]));
        let batch: Vec<ThreadIndices> = copy.batch.iter().map(|i| self.places(i)).collect();
        let (into, barrier) = (self.places(&copy.into.index), self.places(&copy.barrier.index));
        for first in self.warps("a copy of a tile", mask)? {
            let at = ([row.of(first), column.of(first)], batch.iter().map(|i| i.of(first)).collect());
            self.copy_box(copy, at, &into, &barrier, first)?;
        }
        Ok(())
    }

    fn copy_box(
        &mut self,
        copy: &TileCopy,
        ([row, column], batch): ([i64; 2], Vec<i64>),
        into: &ThreadIndices,
        barrier: &ThreadIndices,
        first: usize,
    ) -> Result<()> {
        let (map, warp) = (&copy.map, first / WARP);
        let dtype = self.kernel.buf(map.buf).dtype;
        let (size, panel) = (dtype.size(), panel(dtype));
        let to = self.element(copy.into.buf, into.of(first), map.box_rows as usize * panel, first)?;
        if !((to * size) as u64).is_multiple_of(TILE_ALIGNMENT) {
            let name = &self.kernel.buf(copy.into.buf).name;
            return self.fail(format!("element {to} of `{name}` is not aligned to {TILE_ALIGNMENT} bytes"));
        }
        let told = self.clocks.engage(warp);
        let mut values = Vec::with_capacity(map.box_rows as usize * panel);
        let axes = || map.batch.iter().zip(&batch);
        let matrix: i64 = axes().map(|(axis, at)| axis.stride as i64 * at).sum();
        let exists = axes().all(|(axis, at)| (0..axis.extent as i64).contains(at));
        let mut rows = vec![];
        for r in 0..map.box_rows as usize {
            let y = row.saturating_add(r as i64);
            let inside_row = exists && (0..map.rows as i64).contains(&y);
            let present = |c: usize| inside_row && (0..map.columns as i64).contains(&column.saturating_add(c as i64));
            let address = |c: usize| (matrix + y * map.stride as i64 + column + c as i64) as usize;
            for c in 0..panel {
                let value = match present(c) {
                    true => Scalar::read(dtype, &self.params[map.buf.0 as usize][address(c) * size..]),
                    false => Scalar::zero(dtype),
                };
                let value = if dtype == DType::F32 { Scalar::f32(tf32(value.as_f32())) } else { value };
                values.push((swizzled(dtype, to + r * panel + c), value));
            }
            if let (Some(from), Some(last)) = ((0..panel).find(|c| present(*c)), (0..panel).rfind(|c| present(*c))) {
                rows.push(((address(from) * size) as u64, ((last - from + 1) * size) as u64));
            }
        }
        let moment = self.clocks.moment(self.block, engine(warp));
        let shared = &mut self.shared[copy.into.buf.0 as usize];
        for (at, _) in &values {
            let free = shared.cells.get_mut(*at).is_some_and(|cell| cell.write(moment));
            if !free || std::mem::replace(&mut shared.pending[*at], true) {
                return self.race(copy.into.buf, *at, first);
            }
        }
        self.counts.global((map.buf, BufferTraffic::Tile), &rows);
        self.expect(&copy.barrier, barrier, warp, Coming { buf: copy.into.buf, values, told })
    }

    /// Groups of a mask by their first threads; an error if one is not complete.
    fn groups_of(&self, what: &str, mask: &Mask) -> Result<Vec<usize>> {
        match mask.is_whole(GROUP) {
            true => Ok(mask.threads().filter(|t| t % GROUP == 0).collect()),
            false => self.fail(format!("{what} that some threads of a group of warps do not reach")),
        }
    }

    pub(super) fn group_mma(&mut self, mma: &GroupMma, mask: &Mask) -> Result<()> {
        let [acc, a, b] = [&mma.acc, &mma.a.at, &mma.b.at].map(|p| self.places(&p.index));
        let (columns, depth) = (mma.columns as usize, mma.depth as usize);
        for first in self.groups_of("a product of a group of warps", mask)? {
            let sums = mma.elements() as usize;
            let acc = self.element(mma.acc.buf, acc.of(first), sums, first)?;
            let a = self.tile_start(&mma.a, &a, GROUP_ROWS, depth, first)?;
            let b = self.tile_start(&mma.b, &b, columns, depth, first)?;
            let local = &self.locals[mma.acc.buf.0 as usize];
            let ready = (acc..acc + sums).all(|i| {
                let all = i * self.threads + first..i * self.threads + first + GROUP;
                local.written.get(all).is_some_and(|written| written.iter().all(|w| *w))
            });
            if !ready {
                let name = &self.kernel.buf(mma.acc.buf).name;
                return self.fail(format!("elements of `{name}` are added to before they are written"));
            }
            let product = PendingProduct { mma: mma.clone(), acc, a, b };
            // The tiles are there now, and are still when the product is finished.
            self.factors(&product, first)?;
            self.busy[mma.acc.buf.0 as usize] += 1;
            self.products[first / GROUP].push_back(product);
            self.counts.group_products += 1;
        }
        Ok(())
    }

    /// The position of an operand, checked.
    fn tile_start(
        &self,
        x: &TileOperand,
        places: &ThreadIndices,
        extent: usize,
        depth: usize,
        thread: usize,
    ) -> Result<usize> {
        let dtype = self.kernel.buf(x.at.buf).dtype;
        let at = self.element(x.at.buf, places.of(thread), x.place(dtype, 0, extent - 1, depth - 1) + 1, thread)?;
        let within = at % panel(dtype);
        let fits = match x.panels {
            None => within.is_multiple_of(GroupMma::terms(dtype)) && within + depth <= panel(dtype),
            Some(_) => within == 0,
        };
        match fits && (((at - within) * dtype.size()) as u64).is_multiple_of(TILE_ALIGNMENT) {
            true => Ok(at),
            false => {
                let name = &self.kernel.buf(x.at.buf).name;
                self.fail(format!("a product from element {at} of `{name}` on, which begins no tile"))
            }
        }
    }

    /// Both operands of a product by rows of terms, each warp reading its rows of the first and all of the second.
    fn factors(&mut self, p: &PendingProduct, first: usize) -> Result<[Vec<f64>; 2]> {
        let (columns, depth) = (p.mma.columns as usize, p.mma.depth as usize);
        let dtype = self.kernel.buf(p.mma.a.at.buf).dtype;
        let place = |x: &TileOperand, first: usize, i: usize, k: usize| swizzled(dtype, x.place(dtype, first, i, k));
        let (mut a, mut b) = (Vec::with_capacity(GROUP_ROWS * depth), Vec::with_capacity(columns * depth));
        let rows_of_warp = GROUP_ROWS / (GROUP / WARP);
        for row in 0..GROUP_ROWS {
            let thread = first + row / rows_of_warp * WARP;
            for k in 0..depth {
                a.push(self.read(p.mma.a.at.buf, place(&p.mma.a, p.a, row, k), thread)?.as_f64());
            }
        }
        for column in 0..columns {
            for k in 0..depth {
                let at = place(&p.mma.b, p.b, column, k);
                b.push(self.read(p.mma.b.at.buf, at, first)?.as_f64());
                for warp in 1..GROUP / WARP {
                    let moment = self.clocks.moment(self.block, first + warp * WARP);
                    let cell: Option<&mut Cell> = self.shared[p.mma.b.at.buf.0 as usize].cells.get_mut(at);
                    if !cell.is_some_and(|cell| cell.read(moment)) {
                        return self.race(p.mma.b.at.buf, at, first + warp * WARP);
                    }
                }
            }
        }
        Ok([a, b])
    }

    pub(super) fn await_products(&mut self, sums: Buf, pending: usize, mask: &Mask) -> Result<()> {
        for first in self.groups_of("a wait for products", mask)? {
            while self.products[first / GROUP].len() > pending {
                let Some(product) = self.products[first / GROUP].pop_front() else { break };
                if product.mma.acc.buf != sums {
                    let [other, sums] = [product.mma.acc.buf, sums].map(|b| self.kernel.buf(b).name.clone());
                    return self.fail(format!("await_products names `{sums}`, but pending products write `{other}`"));
                }
                self.busy[sums.0 as usize] -= 1;
                self.finish_product(&product, first)?;
            }
        }
        Ok(())
    }

    fn finish_product(&mut self, p: &PendingProduct, first: usize) -> Result<()> {
        let [a, b] = self.factors(p, first)?;
        let depth = p.mma.depth as usize;
        let terms = GroupMma::terms(self.kernel.buf(p.mma.a.at.buf).dtype);
        let local = &mut self.locals[p.mma.acc.buf.0 as usize];
        for thread in 0..GROUP {
            for i in 0..p.mma.elements() as usize {
                let (row, column) = group_acc(thread, i);
                let sum = &mut local.values[(p.acc + i) * self.threads + first + thread];
                for k in (0..depth).step_by(terms) {
                    let products = (k..k + terms).map(|k| a[row * depth + k] * b[column * depth + k]);
                    *sum = Scalar::f32((sum.as_f64() + products.sum::<f64>()) as f32);
                }
            }
        }
        Ok(())
    }

    /// Whether an array is the sums of a product under way, of the thread's group.
    pub(super) fn is_busy(&self, buf: Buf, thread: usize) -> bool {
        self.busy[buf.0 as usize] > 0 && self.products[thread / GROUP].iter().any(|p| p.mma.acc.buf == buf)
    }

    pub(super) fn busy_error<T>(&self, buf: Buf) -> Result<T> {
        let name = &self.kernel.buf(buf).name;
        self.fail(format!("`{name}` is used before its products are awaited"))
    }
}
