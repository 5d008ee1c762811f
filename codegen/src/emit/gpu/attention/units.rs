//! Attention by matrix units: each warp has 16 queries; weights become operands of the second product where they are.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, LoopKind, MemorySpace as Memory, Operand, Stmt, WARP, warp_matrix};
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_schedule::recipe::tiles::{UNIT_COLUMNS, UNIT_ROWS, unit_terms};

use super::super::fragments::{FragmentRole, SharedTile, multiply, piece};
use super::super::loops::range;
use super::fetch::{Into, SourceMatrix, fetch};
use super::{BlockState, Core, FlashTile, Held, ThreadRows};
use crate::emit::inline::Inliner;

/// Right operands that are in registers at a time.
const MAX_LIVE_OPERANDS: u64 = 16;

pub struct Units {
    dtype: DType,
    shape: FlashTile,
    /// Terms of a score and columns of the values, up to whole products of matrices.
    depth: u64,
    size: u64,
}

impl Units {
    pub fn new([depth, size]: [u64; 2], dtype: DType, shape: FlashTile) -> Units {
        Units {
            dtype,
            shape,
            depth: depth.next_multiple_of(unit_terms(dtype)),
            // Right operands are loaded two at a time.
            size: size.next_multiple_of(2 * UNIT_COLUMNS),
        }
    }

    /// Elements between the rows of tiles of queries and keys: an odd number of pieces of 16 bytes, so that the rows of a
    /// matrix lie in different banks.
    fn stride(&self) -> u64 {
        self.depth + piece(self.dtype)
    }

    /// The same for values, whose rows are terms: for f32, loaded by words from every second row, an odd multiple of 4.
    fn value_stride(&self) -> u64 {
        self.size + piece(self.dtype)
    }

    fn bring(
        &self,
        e: &mut Inliner<'_>,
        block: &BlockState<'_>,
        from: &SourceMatrix,
        first: &Index,
        (array, rows, columns, stride): (Buf, u64, u64, u64),
    ) -> Result<()> {
        let place = |row: &Index, column: &Index| row.scale(stride as i64).add(column);
        let into = Into { array, rows, columns, place: &place, in_pieces: true };
        fetch(e, from, first, &into, (&block.thread, self.shape.threads))
    }

    fn keys(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, step: &Index) -> Result<()> {
        let first = e.b.let_index("key", step.scale(self.shape.keys as i64));
        self.bring(e, block, &block.k, &first, (block.shared[1], self.shape.keys, self.depth, self.stride()))
    }

    fn tile(&self, role: FragmentRole, array: Buf, stride: u64, along_terms: bool) -> SharedTile {
        let from = BufferPlace::new(array, Index::default());
        // Weights have their columns in the order of sums.
        let paired = !along_terms && self.dtype.size() == 4;
        SharedTile { role, dtype: self.dtype, from, stride, along_terms, paired }
    }

    fn lane(&self, e: &mut Inliner<'_>, block: &BlockState<'_>) -> (Index, Index) {
        let threads = self.shape.threads as i64 - 1;
        let limits = move |_: u32| (0, threads);
        let warp = e.b.let_index("warp", block.thread.floor_div(WARP as i64, &limits));
        (warp, e.b.let_index("lane", block.thread.modulo(WARP as i64, &limits)))
    }

    /// Loads the queries of a warp for the products `from` on.
    fn queries(
        &self,
        e: &mut Inliner<'_>,
        block: &BlockState<'_>,
        (warp, lane): (&Index, &Index),
        (product, into): (&Index, &BufferPlace),
    ) -> Result<()> {
        let tile = self.tile(FragmentRole::Left, block.shared[0], self.stride(), true);
        let (first, term) = (warp.scale(UNIT_ROWS as i64), product.scale(unit_terms(self.dtype) as i64));
        tile.load(e, lane, (&first, &term), (into, 1))
    }

    /// Products of matrices along the terms of a score.
    fn products(&self) -> u64 {
        self.depth / unit_terms(self.dtype)
    }

    /// Registers of an operand of queries.
    fn own_queries(&self) -> u64 {
        warp_matrix::elements(self.dtype).0 as u64
    }

    /// Weights of keys as left operands.
    fn weights(&self, e: &mut Inliner<'_>, own: &ThreadRows, product: &Index, into: Buf) {
        let wide = unit_terms(self.dtype) / UNIT_COLUMNS;
        let order: &[(i64, i64)] = match self.dtype.size() {
            // Two neighbours of two rows, of two tiles of sums.
            2 => &[(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)],
            // The neighbours of a row are terms 4 apart, as the values are loaded.
            _ => &[(0, 0), (0, 2), (0, 1), (0, 3)],
        };
        for (i, (tile, element)) in order.iter().enumerate() {
            let at = product.scale(wide as i64).offset(*tile).scale(4).offset(*element);
            let mut weight = e.b.load(own.scores.registers, at);
            if self.dtype != DType::F32 {
                weight = e.b.op(ScalarOp::Cast(self.dtype), &[weight]);
            }
            e.b.store(into, Index::constant(i as i64), weight);
        }
    }
}

impl Core for Units {
    fn shape(&self) -> FlashTile {
        self.shape
    }

    fn arrays(&self) -> Vec<(DType, u64)> {
        let FlashTile { queries, keys, .. } = self.shape;
        [queries * self.stride(), keys * self.stride(), keys * self.value_stride()].map(|n| (self.dtype, n)).to_vec()
    }

    fn own(&self, e: &mut Inliner<'_>, thread: &Index) -> ThreadRows {
        let most = self.shape.threads as i64 - 1;
        let limits = move |_: u32| (0, most);
        let lanes = |_: u32| (0, WARP as i64 - 1);
        let lane = e.b.let_index("lane", thread.modulo(WARP as i64, &limits));
        let warp = e.b.let_index("warp", thread.floor_div(WARP as i64, &limits));
        let pair = e.b.let_index("pair", lane.modulo(4, &lanes).scale(2));
        let first = warp.scale(UNIT_ROWS as i64).add(&lane.floor_div(4, &lanes));
        let held = |registers, columns: u64| Held {
            registers,
            row_step: 2,
            piece_step: 4,
            pieces: columns / UNIT_COLUMNS,
            width: 2,
            first: pair.clone(),
            apart: UNIT_COLUMNS,
        };
        let sums = e.alloc("sums", DType::F32, self.size / 2, Memory::Register);
        let scores = e.alloc("scores", DType::F32, self.shape.keys / 2, Memory::Register);
        ThreadRows {
            scores: held(scores, self.shape.keys),
            sums: held(sums, self.size),
            rows: 2,
            first: e.b.let_index("row", first),
            apart: UNIT_ROWS / 2,
            lanes: &[1, 2],
        }
    }

    fn begin(&self, e: &mut Inliner<'_>, block: &BlockState<'_>) -> Result<()> {
        let first = block.first.clone();
        self.bring(e, block, &block.q, &first, (block.shared[0], self.shape.queries, self.depth, self.stride()))?;
        self.keys(e, block, &block.tiles[0])?;
        e.b.push(Stmt::CommitCopies);
        Ok(())
    }

    fn scores(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, step: &Index) -> Result<()> {
        let first = e.b.let_index("key", step.scale(self.shape.keys as i64));
        self.bring(e, block, &block.v, &first, (block.shared[2], self.shape.keys, self.size, self.value_stride()))?;
        e.b.push(Stmt::CommitCopies);
        e.b.push(Stmt::AwaitCopies { pending: 1 });
        e.b.push(Stmt::Barrier);
        let (warp, lane) = self.lane(e, block);
        let wide = self.shape.keys / UNIT_COLUMNS;
        let sums = own.scores.registers;
        e.looped("i", range(wide * 4), LoopKind::Unroll, |e, i| {
            e.b.store(sums, i, Operand::Const(Scalar::f32(0.0)));
            Ok(())
        })?;
        let tile = self.tile(FragmentRole::Right, block.shared[1], self.stride(), true);
        let count = tile.registers(wide);
        e.looped("kk", range(self.products()), LoopKind::Unroll, |e, kk| {
            let a = e.alloc("a", self.dtype, self.own_queries(), Memory::Register);
            let b = e.alloc("b", self.dtype, count, Memory::Register);
            let (a, b) = (BufferPlace::new(a, Index::default()), BufferPlace::new(b, Index::default()));
            self.queries(e, block, (&warp, &lane), (&kk, &a))?;
            let term = kk.scale(unit_terms(self.dtype) as i64);
            tile.load(e, &lane, (&Index::default(), &term), (&b, wide))?;
            multiply(e, (&a, 1), (&b, wide), &BufferPlace::new(sums, Index::default()), self.dtype)
        })?;
        // All have read the keys: the next may come.
        e.b.push(Stmt::Barrier);
        let next = e.b.let_index("next", step.offset(1));
        block.ahead(e, &next, |e| self.keys(e, block, &next))?;
        e.b.push(Stmt::CommitCopies);
        Ok(())
    }

    fn values(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, _step: &Index) -> Result<()> {
        e.b.push(Stmt::AwaitCopies { pending: 1 });
        e.b.push(Stmt::Barrier);
        let (_, lane) = self.lane(e, block);
        let wide = self.size / UNIT_COLUMNS;
        let tile = self.tile(FragmentRole::Right, block.shared[2], self.value_stride(), false);
        e.looped("kk", range(self.shape.keys / unit_terms(self.dtype)), LoopKind::Unroll, |e, kk| {
            let a = e.alloc("weights", self.dtype, self.own_queries(), Memory::Register);
            self.weights(e, own, &kk, a);
            let (a, term) = (BufferPlace::new(a, Index::default()), kk.scale(unit_terms(self.dtype) as i64));
            for first in (0..wide).step_by(MAX_LIVE_OPERANDS as usize) {
                let count = MAX_LIVE_OPERANDS.min(wide - first);
                let b = e.alloc("b", self.dtype, tile.registers(count), Memory::Register);
                let b = BufferPlace::new(b, Index::default());
                let column = Index::constant((first * UNIT_COLUMNS) as i64);
                tile.load(e, &lane, (&column, &term), (&b, count))?;
                let sums = BufferPlace::new(own.sums.registers, Index::constant(first as i64 * 4));
                multiply(e, (&a, 1), (&b, count), &sums, self.dtype)?;
            }
            Ok(())
        })?;
        // The next values may come.
        e.b.push(Stmt::Barrier);
        Ok(())
    }
}
