//! Contractions as tiled matrix products by ordinary multiplications.
//!
//! A block computes one tile of the result. Its threads fetch tiles of both operands into shared memory, whatever computes
//! their elements, and each multiplies a small tile in registers. What follows the contraction is computed where the
//! sums are. Terms are added in the order of the folded axes.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, Kernel, LoopKind, MemorySpace as Memory, Operand, Stmt};
use tensorc_ir::scalar::Scalar;
use tensorc_schedule::access::product::MatrixProduct;

use super::loops::{below, launch, range, set_groups};
use super::product::{operand_element, store_run};
use super::tiles::{self, PAD, SIDE, ThreadTile};
use crate::emit::cluster::Cluster;
use crate::emit::fold::accumulator;
use crate::emit::inline::Inliner;

const THREADS: u64 = SIDE * SIDE;

/// The size of a tile: rows, columns, terms at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TileSize {
    rows: u64,
    columns: u64,
    terms: u64,
}

/// Emits a product with what surrounds it, in tiles of so many rows and columns of the result.
pub fn emit(cluster: &Cluster<'_>, product: &MatrixProduct, [rows, columns]: [u64; 2], name: &str) -> Result<Kernel> {
    let tile = TileSize { rows, columns, terms: if rows.max(columns) == 128 { 8 } else { 16 } };
    let mut e = Inliner::new(cluster, name, &product.space.dims)?;
    ContractTiles { product, tile }.emit(&mut e)?;
    Ok(e.finish())
}

struct ContractTiles<'a> {
    product: &'a MatrixProduct,
    tile: TileSize,
}

/// The places of a thread and its block.
struct ThreadPlaces {
    /// First row and column of the tile.
    rows: Index,
    columns: Index,
    /// The thread's row and column of threads.
    y: Index,
    x: Index,
}

impl ContractTiles<'_> {
    fn emit(&self, e: &mut Inliner<'_>) -> Result<()> {
        let t = self.tile;
        let product = self.product;
        let (down, across) = (product.rows().div_ceil(t.rows), product.columns().div_ceil(t.columns));
        let batch = product.batch();
        let dtype = |e: &Inliner<'_>, i: usize| e.cluster.ty(product.operands[i]).map(|ty| ty.dtype);
        let arrays = [(dtype(e, 0)?, t.terms * (t.rows + PAD)), (dtype(e, 1)?, t.terms * (t.columns + PAD))];
        let blocks = batch * down * across;
        launch(e, blocks, THREADS, &arrays, |e, b, thread, shared| {
            let limits = move |_: u32| (0, blocks - 1);
            let threads = |_: u32| (0, THREADS as i64 - 1);
            let item = e.b.let_index("item", b.floor_div(down * across, &limits));
            set_groups(e, &product.axes.batch, &item, batch);
            let row = b.floor_div(across, &limits).modulo(down, &limits);
            let column = b.modulo(across, &limits);
            let own = ThreadPlaces {
                rows: e.b.let_index("rows", row.scale(t.rows as i64)),
                columns: e.b.let_index("columns", column.scale(t.columns as i64)),
                y: e.b.let_index("y", thread.floor_div(SIDE as i64, &threads)),
                x: e.b.let_index("x", thread.modulo(SIDE as i64, &threads)),
            };
            let sums = self.sums(e, &thread, &own, shared)?;
            self.results(e, &own, sums)
        })
    }

    /// The type of sums.
    fn wide(&self, e: &Inliner<'_>) -> Result<DType> {
        Ok(accumulator(e.cluster.ty(self.product.value)?.dtype))
    }

    /// The sums of a thread, in registers: row by row of its small tile.
    fn sums(&self, e: &mut Inliner<'_>, thread: &Index, own: &ThreadPlaces, shared: &[Buf]) -> Result<Buf> {
        let (t, wide) = (self.tile, self.wide(e)?);
        let (down, across) = (ThreadTile::of(t.rows), ThreadTile::of(t.columns));
        let count = down.own() * across.own();
        let sums = e.alloc("sums", wide, count, Memory::Register);
        e.looped("i", range(count), LoopKind::Unroll, |e, i| {
            e.b.store(sums, i, Operand::Const(Scalar::zero(wide)));
            Ok(())
        })?;
        let terms = self.product.terms();
        let range_of_terms = (Index::default(), Index::constant(terms), t.terms as i64);
        e.looped("k", range_of_terms, LoopKind::Serial, |e, k| {
            self.fetch(e, 0, thread, (&own.rows, &k), shared[0])?;
            self.fetch(e, 1, thread, (&own.columns, &k), shared[1])?;
            e.b.push(Stmt::Barrier);
            let operand = |i: usize, side, thread| tiles::TileBuffer {
                from: BufferPlace::new(shared[i], Index::default()),
                side,
                thread,
            };
            let operands = [&operand(0, down, &own.y), &operand(1, across, &own.x)];
            tiles::multiply(e, operands, t.terms, (sums, wide))?;
            e.b.push(Stmt::Barrier);
            Ok(())
        })?;
        Ok(sums)
    }

    /// Fetches a tile of an operand into shared memory: `terms` rows of the tile's length, zeros where there is nothing.
    fn fetch(
        &self,
        e: &mut Inliner<'_>,
        operand: usize,
        thread: &Index,
        (first, k): (&Index, &Index),
        shared: Buf,
    ) -> Result<()> {
        let length = if operand == 0 { self.tile.rows } else { self.tile.columns };
        let depth = self.tile.terms;
        let along_terms = self.product.is_contiguous(operand);
        let each = (length * depth).div_ceil(THREADS);
        e.looped("f", (Index::default(), Index::constant(each as i64), 1), LoopKind::Unroll, |e, f| {
            let limits = |_: u32| (0, (length * depth) as i64 - 1);
            let i = e.b.let_index("f", f.scale(THREADS as i64).add(thread));
            let (at, term) = match along_terms {
                true => (i.floor_div(depth as i64, &limits), i.modulo(depth as i64, &limits)),
                false => (i.modulo(length as i64, &limits), i.floor_div(length as i64, &limits)),
            };
            let (at, term) = (e.b.let_index("at", at), e.b.let_index("term", term));
            below(e, &i, length * depth, each * THREADS, |e| {
                let position = e.b.let_index("m", first.add(&at));
                let place = e.b.let_index("n", k.add(&term));
                let value = operand_element(e, self.product, operand, (&position, &place), [length, depth])?;
                e.b.store(shared, term.scale((length + PAD) as i64).add(&at), value);
                Ok(())
            })
        })
    }

    /// Stores what follows the contraction at every element of the thread's tile.
    fn results(&self, e: &mut Inliner<'_>, own: &ThreadPlaces, sums: Buf) -> Result<()> {
        let (down, across) = (ThreadTile::of(self.tile.rows), ThreadTile::of(self.tile.columns));
        e.looped("i", range(down.own()), LoopKind::Unroll, |e, i| {
            let limits = |_: u32| (0, down.own() as i64 - 1);
            let part = i.floor_div(down.width as i64, &limits);
            let within = i.modulo(down.width as i64, &limits);
            let row = e.b.let_index("row", own.rows.add(&down.first(&part, &own.y)).add(&within));
            e.looped("part", range(across.parts), LoopKind::Unroll, |e, part| {
                let column = e.b.let_index("column", own.columns.add(&across.first(&part, &own.x)));
                let at = i.scale(across.own() as i64).add(&part.scale(across.width as i64));
                let tile = [self.tile.rows, self.tile.columns];
                store_run(e, self.product, (sums, &at), (&row, &column), tile, across.width)
            })
        })
    }
}
