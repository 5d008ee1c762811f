//! Contractions of f16 and bf16 by matrix units, with sums in f32; of f32, too, where it may be rounded to tf32.
//!
//! Tiles of both operands lie in shared memory as they lie in global memory, by rows of terms or by rows of what is not
//! folded; loads of matrices transpose where they must. Operands that are inputs in aligned pieces of 16 bytes are
//! copied asynchronously, some steps ahead of their use; others are computed element by element.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, Kernel, LoopKind, MemorySpace as Memory, Operand, Stmt, WARP};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, Extent};
use tensorc_schedule::access::product::{MatrixProduct, is_contiguous, total};
use tensorc_schedule::recipe::tiles::{UNIT_COLUMNS, UNIT_ROWS, unit_terms};

use super::fragments::{FragmentRole, SharedTile, multiply, piece};
use super::loops::{below, inside, launch, range, set_groups};
use super::product::{operand_element, store_run};
use crate::emit::cluster::Cluster;
use crate::emit::inline::Inliner;

/// Warps down and across a block.
const WARPS: [u64; 2] = [2, 4];
const THREADS: u64 = WARPS[0] * WARPS[1] * WARP as u64;
/// Bytes of the terms of a step.
const STEP: u64 = 64;
/// Elements behind each row of a tile of neighbouring rows or columns, so that what is loaded at a time lies in different
/// banks: 16 bytes more for loads of matrices, a quarter of the banks for loads of words.
const PAD: u64 = 8;
/// Steps of which tiles are in shared memory at a time, where copies run ahead.
const STAGES: u64 = 3;

/// How the tiles of one operand are kept.
#[derive(Clone, Copy, Debug)]
struct OperandTiles {
    /// Position among the contraction's operands.
    operand: usize,
    dtype: DType,
    /// Rows or columns of a tile.
    length: u64,
    /// Whether neighbouring terms lie side by side.
    along_terms: bool,
    /// Whether pieces of 16 bytes can be copied.
    copied: bool,
}

impl OperandTiles {
    /// Elements of a row of a tile, and how far rows lie apart.
    fn row(self) -> (u64, u64) {
        match self.along_terms {
            true => (depth(self.dtype), depth(self.dtype) + piece(self.dtype)),
            false => (self.length, self.length + PAD),
        }
    }

    fn elements(self) -> u64 {
        let (row, stride) = self.row();
        self.length * depth(self.dtype) / row * stride
    }

    /// Where in a tile the element of a row or column `at` and a term is.
    fn place(self, at: &Index, term: &Index) -> Index {
        let stride = self.row().1 as i64;
        if self.along_terms { at.scale(stride).add(term) } else { term.scale(stride).add(at) }
    }
}

/// Terms of a step.
fn depth(dtype: DType) -> u64 {
    STEP / dtype.size() as u64
}

struct Matrices<'a> {
    product: &'a MatrixProduct,
    sides: [OperandTiles; 2],
    dtype: DType,
    stages: u64,
}

/// The numbers of a thread: in its warp, and of its warp down and across the block.
struct ThreadPosition {
    thread: Index,
    lane: Index,
    down: Index,
    across: Index,
    /// First row and column of the tile.
    first: [Index; 2],
}

/// Emits a product with what surrounds it, in square tiles of the result.
pub fn emit(cluster: &Cluster<'_>, product: &MatrixProduct, length: u64, name: &str) -> Result<Kernel> {
    let mut e = Inliner::new(cluster, name, &product.space.dims)?;
    write(&mut e, product, length)?;
    Ok(e.finish())
}

fn write(e: &mut Inliner<'_>, product: &MatrixProduct, length: u64) -> Result<()> {
    let (rows, columns, batch) = (product.rows(), product.columns(), product.batch());
    let dtype = e.cluster.ty(product.operands[0])?.dtype;
    let side = |operand: usize| {
        let along_terms = product.is_contiguous(operand);
        let copied = copies(e.cluster, product, operand, along_terms)?;
        Ok(OperandTiles { operand, dtype, length, along_terms, copied })
    };
    let sides = [side(0)?, side(1)?];
    let stages = if sides.iter().all(|s| s.copied) { STAGES } else { 1 };
    let matrices = Matrices { product, sides, dtype, stages };
    let arrays = sides.map(|s| (dtype, s.elements() * stages));
    let (down, across) = (rows.div_ceil(length), columns.div_ceil(length));
    let blocks = batch * down * across;
    launch(e, blocks, THREADS, &arrays, |e, b, thread, shared| {
        let limits = move |_: u32| (0, blocks - 1);
        let threads = |_: u32| (0, THREADS as i64 - 1);
        let item = e.b.let_index("item", b.floor_div(down * across, &limits));
        set_groups(e, &product.axes.batch, &item, batch);
        let row = b.floor_div(across, &limits).modulo(down, &limits).scale(length as i64);
        let column = b.modulo(across, &limits).scale(length as i64);
        let first = [e.b.let_index("rows", row), e.b.let_index("columns", column)];
        let warp = e.b.let_index("warp", thread.floor_div(WARP as i64, &threads));
        let warps = |_: u32| (0, (WARPS[0] * WARPS[1]) as i64 - 1);
        let own = ThreadPosition {
            lane: e.b.let_index("lane", thread.modulo(WARP as i64, &threads)),
            down: e.b.let_index("down", warp.floor_div(WARPS[1] as i64, &warps)),
            across: e.b.let_index("across", warp.modulo(WARPS[1] as i64, &warps)),
            thread,
            first,
        };
        let sums = matrices.sums(e, &own, shared)?;
        matrices.results(e, &own, sums)
    })
}

/// Whether an operand is an input whose neighbours come in aligned pieces.
fn copies(cluster: &Cluster<'_>, product: &MatrixProduct, operand: usize, along_terms: bool) -> Result<bool> {
    let groups = if along_terms { &product.axes.terms[..] } else { product.own_axes(operand) };
    let piece = piece(cluster.ty(product.operands[operand])?.dtype);
    let aligned = |n: Extent| n.sure_quotient(piece).is_some();
    let Some(inner) = groups.last().filter(|g| aligned(g.extent)) else { return Ok(false) };
    let Some(flat) = product.plain_read(cluster, operand)? else { return Ok(false) };
    // The alignment of the whole tensor is that of its parts.
    Ok(is_contiguous(flat, inner.axis as u32)
        && aligned(flat.constant)
        && flat.terms.iter().filter(|(_, c)| !c.is_surely(1)).all(|(_, c)| aligned(*c))
        && flat.terms.iter().filter(|(_, c)| c.is_surely(1)).count() == 1)
}

impl Matrices<'_> {
    /// Rows and columns of the result of one warp.
    fn warp_tile(&self) -> [u64; 2] {
        [self.sides[0].length / WARPS[0], self.sides[1].length / WARPS[1]]
    }

    /// The sums of a thread: its parts of the products of its warp, row by row of these.
    fn sums(&self, e: &mut Inliner<'_>, own: &ThreadPosition, shared: &[Buf]) -> Result<Buf> {
        let [rows, columns] = self.warp_tile();
        let count = rows / UNIT_ROWS * (columns / UNIT_COLUMNS) * 4;
        let sums = e.alloc("sums", DType::F32, count, Memory::Register);
        e.looped("i", range(count), LoopKind::Unroll, |e, i| {
            e.b.store(sums, i, Operand::Const(Scalar::f32(0.0)));
            Ok(())
        })?;
        let steps = self.product.terms().div_ceil(depth(self.dtype));
        if self.stages == 1 {
            e.looped("k", range(steps), LoopKind::Serial, |e, k| {
                for (side, array) in self.sides.iter().zip(shared) {
                    self.fetch(e, *side, own, &k, &Index::default(), *array)?;
                }
                self.await_all(e);
                e.b.push(Stmt::Barrier);
                self.multiply(e, own, shared, [&Index::default(), &Index::default()], sums)?;
                e.b.push(Stmt::Barrier);
                Ok(())
            })?;
            return Ok(sums);
        }
        let ahead = self.stages - 1;
        for stage in 0..ahead {
            if !steps.is_surely(0) && !steps.is_surely_below(stage + 1) {
                let step = Index::constant(stage);
                below(e, &step, steps, stage + 1, |e| self.copy_stage(e, own, shared, &step, steps))?;
            }
            e.b.push(Stmt::CommitCopies);
        }
        e.looped("k", range(steps), LoopKind::Serial, |e, k| {
            e.b.push(Stmt::AwaitCopies { pending: ahead as u8 - 1 });
            // The tile is there for all, and nobody reads the one that is copied over next.
            e.b.push(Stmt::Barrier);
            let next = e.b.let_index("next", k.offset(ahead as i64));
            below(e, &next, steps, steps + ahead, |e| self.copy_stage(e, own, shared, &next, steps))?;
            e.b.push(Stmt::CommitCopies);
            let slot = self.slot(e, &k, steps);
            let at = [0, 1].map(|i| slot.scale(self.sides[i].elements() as i64));
            self.multiply(e, own, shared, [&at[0], &at[1]], sums)
        })?;
        Ok(sums)
    }

    /// The place of a step's tiles in shared memory.
    fn slot(&self, e: &mut Inliner<'_>, step: &Index, steps: Extent) -> Index {
        let last = steps + self.stages;
        let slot = step.modulo(self.stages as i64, &move |_: u32| (0, last));
        e.b.let_index("slot", slot)
    }

    fn copy_stage(
        &self,
        e: &mut Inliner<'_>,
        own: &ThreadPosition,
        shared: &[Buf],
        step: &Index,
        steps: Extent,
    ) -> Result<()> {
        let slot = self.slot(e, step, steps);
        for (side, array) in self.sides.iter().zip(shared) {
            let at = slot.scale(side.elements() as i64);
            self.fetch(e, *side, own, step, &at, *array)?;
        }
        Ok(())
    }

    fn await_all(&self, e: &mut Inliner<'_>) {
        if self.sides.iter().any(|s| s.copied) {
            e.b.push(Stmt::CommitCopies);
            e.b.push(Stmt::AwaitCopies { pending: 0 });
        }
    }

    /// Fetches a tile of an operand for a step, to `at` in an array; zeros where there is nothing.
    fn fetch(
        &self,
        e: &mut Inliner<'_>,
        side: OperandTiles,
        own: &ThreadPosition,
        step: &Index,
        at: &Index,
        array: Buf,
    ) -> Result<()> {
        let piece = if side.copied { piece(self.dtype) } else { 1 };
        let pieces = side.length * depth(self.dtype) / piece;
        let row = side.row().0 / piece;
        let limits = move |_: u32| (0, pieces as i64 - 1);
        e.looped("f", range(pieces.div_ceil(THREADS)), LoopKind::Unroll, |e, f| {
            let i = e.b.let_index("f", f.scale(THREADS as i64).add(&own.thread));
            let major = e.b.let_index("major", i.floor_div(row as i64, &limits));
            let minor = e.b.let_index("minor", i.modulo(row as i64, &limits).scale(piece as i64));
            let (here, term) = if side.along_terms { (major, minor) } else { (minor, major) };
            let place = at.add(&side.place(&here, &term));
            let position = e.b.let_index("m", own.first[side.operand].add(&here));
            let term = e.b.let_index("n", step.scale(depth(self.dtype) as i64).add(&term));
            self.element(e, side, (&position, &term), BufferPlace::new(array, place))
        })
    }

    /// Fetches one element, or one piece from it on.
    fn element(
        &self,
        e: &mut Inliner<'_>,
        side: OperandTiles,
        (position, term): (&Index, &Index),
        into: BufferPlace,
    ) -> Result<()> {
        if !side.copied {
            let tile = [side.length, depth(self.dtype)];
            let value = operand_element(e, self.product, side.operand, (position, term), tile)?;
            e.b.store(into.buf, into.index, value);
            return Ok(());
        }
        let (groups, index) = (self.product.own_axes(side.operand), self.product.index_map(side.operand));
        let (extent, terms) = (total(groups), self.product.terms());
        let inside = inside(e, &[(position, extent, side.length), (term, terms, depth(self.dtype))]);
        set_groups(e, groups, position, extent);
        set_groups(e, &self.product.axes.terms, term, terms);
        let v = self.product.operands[side.operand];
        let from = BufferPlace::new(e.input(v.node)?, e.kernel_index(&e.cluster.input_address(v, index)?));
        e.b.push(Stmt::CopyAsync { into, from, len: piece(self.dtype) as u8, cond: inside });
        Ok(())
    }

    /// Multiplies the tiles that begin at the given places.
    fn multiply(
        &self,
        e: &mut Inliner<'_>,
        own: &ThreadPosition,
        shared: &[Buf],
        at: [&Index; 2],
        sums: Buf,
    ) -> Result<()> {
        let [rows, columns] = self.warp_tile();
        let counts = [rows / UNIT_ROWS, columns / UNIT_COLUMNS];
        let first = [own.down.scale(rows as i64), own.across.scale(columns as i64)];
        let tiles = [(0, FragmentRole::Left), (1, FragmentRole::Right)].map(|(i, role)| SharedTile {
            role,
            dtype: self.dtype,
            from: BufferPlace::new(shared[i], at[i].clone()),
            stride: self.sides[i].row().1,
            along_terms: self.sides[i].along_terms,
            paired: false,
        });
        e.looped("kk", range(depth(self.dtype) / unit_terms(self.dtype)), LoopKind::Unroll, |e, kk| {
            let term = kk.scale(unit_terms(self.dtype) as i64);
            let mut alloc = |name: &str, i: usize| {
                BufferPlace::new(
                    e.alloc(name, self.dtype, tiles[i].registers(counts[i]), Memory::Register),
                    Index::default(),
                )
            };
            let (a, b) = (alloc("a", 0), alloc("b", 1));
            tiles[0].load(e, &own.lane, (&first[0], &term), (&a, counts[0]))?;
            tiles[1].load(e, &own.lane, (&first[1], &term), (&b, counts[1]))?;
            multiply(e, (&a, counts[0]), (&b, counts[1]), &BufferPlace::new(sums, Index::default()), self.dtype)
        })
    }

    /// Stores what follows the contraction at every element of the thread's part of the result.
    fn results(&self, e: &mut Inliner<'_>, own: &ThreadPosition, sums: Buf) -> Result<()> {
        let [rows, columns] = self.warp_tile();
        let (tall, wide) = (rows / UNIT_ROWS, columns / UNIT_COLUMNS);
        let lanes = |_: u32| (0, WARP as i64 - 1);
        let group = e.b.let_index("group", own.lane.floor_div(4, &lanes));
        let pair = e.b.let_index("pair", own.lane.modulo(4, &lanes).scale(2));
        let (down, across) = (own.down.scale(rows as i64), own.across.scale(columns as i64));
        let first = [own.first[0].add(&down).add(&group), own.first[1].add(&across).add(&pair)];
        e.looped("i", range(tall * 2), LoopKind::Unroll, |e, i| {
            // Each product of matrices has two rows of a thread, 8 apart.
            let row = e.b.let_index("row", first[0].add(&i.scale(UNIT_ROWS as i64 / 2)));
            e.looped("j", range(wide), LoopKind::Unroll, |e, j| {
                let column = e.b.let_index("column", first[1].add(&j.scale(UNIT_COLUMNS as i64)));
                let limits = move |_: u32| (0, tall as i64 * 2 - 1);
                let block = i.floor_div(2, &limits).scale(wide as i64 * 4).add(&j.scale(4));
                let at = block.add(&i.modulo(2, &limits).scale(2));
                let tile = self.sides.map(|s| s.length);
                store_run(e, self.product, (sums, &at), (&row, &column), tile, 2)
            })
        })
    }
}
