//! Attention of f32 by ordinary multiplications: 16×16 threads share tiles of scores and of sums, and hand weights to each
//! other in shared memory.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, LoopKind, MemorySpace as Memory, Operand as Value, Stmt};
use tensorc_ir::scalar::Scalar;

use super::super::loops::range;
use super::super::tiles::{SIDE, ThreadTile, TileBuffer, multiply};
use super::fetch::{Into, SourceMatrix, fetch};
use super::{BlockState, Core, FlashTile, Held, ThreadRows};
use crate::emit::inline::Inliner;

/// Keys of a tile.
const KEYS: u64 = 4 * SIDE;
/// Terms that are multiplied by one pass of a loop.
const TERMS: u64 = 8;

pub struct Plain {
    shape: FlashTile,
    queries: ThreadTile,
    keys: ThreadTile,
    values: ThreadTile,
    /// Terms of a score, up to whole passes.
    depth: u64,
}

impl Plain {
    pub fn new([depth, size]: [u64; 2], shape: FlashTile) -> Plain {
        Plain {
            shape,
            queries: ThreadTile::of(shape.queries),
            keys: ThreadTile::of(KEYS),
            values: ThreadTile::of(size.next_multiple_of(SIDE)),
            depth: depth.next_multiple_of(TERMS),
        }
    }

    /// Fetches rows of a matrix; `turned`: a row of the tile for each column.
    fn bring(
        &self,
        e: &mut Inliner<'_>,
        block: &BlockState<'_>,
        (from, first): (&SourceMatrix, &Index),
        (array, rows, columns): (Buf, u64, u64),
        place: &dyn Fn(&Index, &Index) -> Index,
    ) -> Result<()> {
        let into = Into { array, rows, columns, place, in_pieces: false };
        fetch(e, from, first, &into, (&block.thread, SIDE * SIDE))
    }

    /// Adds a product of two tiles of `terms` terms.
    fn multiply(
        &self,
        e: &mut Inliner<'_>,
        block: &BlockState<'_>,
        [left, right]: [(Buf, ThreadTile); 2],
        terms: u64,
        sums: Buf,
    ) -> Result<()> {
        let [y, x] = numbers(e, &block.thread);
        let passes = (Index::default(), Index::constant(terms as i64), TERMS as i64);
        e.looped("k", passes, LoopKind::Serial, |e, k| {
            let operand = |(array, side): (Buf, ThreadTile), thread| TileBuffer {
                from: BufferPlace::new(array, k.scale(side.stride() as i64)),
                side,
                thread,
            };
            multiply(e, [&operand(left, &y), &operand(right, &x)], TERMS, (sums, DType::F32))
        })
    }
}

/// The numbers of a thread down and across the block.
fn numbers(e: &mut Inliner<'_>, thread: &Index) -> [Index; 2] {
    let threads = |_: u32| (0, (SIDE * SIDE) as i64 - 1);
    let (y, x) = (thread.floor_div(SIDE as i64, &threads), thread.modulo(SIDE as i64, &threads));
    [e.b.let_index("y", y), e.b.let_index("x", x)]
}

impl Core for Plain {
    fn shape(&self) -> FlashTile {
        self.shape
    }

    /// Queries; keys, then values; weights.
    fn arrays(&self) -> Vec<(DType, u64)> {
        let keys = (self.depth * self.keys.stride()).max(KEYS * self.values.stride());
        [self.depth * self.queries.stride(), keys, KEYS * self.queries.stride()].map(|n| (DType::F32, n)).to_vec()
    }

    fn own(&self, e: &mut Inliner<'_>, thread: &Index) -> ThreadRows {
        let [y, x] = numbers(e, thread);
        let sums = e.alloc("sums", DType::F32, self.queries.own() * self.values.own(), Memory::Register);
        let scores = e.alloc("scores", DType::F32, self.queries.own() * self.keys.own(), Memory::Register);
        ThreadRows {
            // Keys 16 apart, so that neighbouring threads have neighbouring ones.
            scores: Held {
                registers: scores,
                row_step: self.keys.own(),
                piece_step: 1,
                pieces: self.keys.own(),
                width: 1,
                first: x.clone(),
                apart: SIDE,
            },
            sums: Held {
                registers: sums,
                row_step: self.values.own(),
                piece_step: self.values.width,
                pieces: self.values.parts,
                width: self.values.width,
                first: x.scale(self.values.width as i64),
                apart: SIDE * self.values.width,
            },
            rows: self.queries.own(),
            first: y.scale(self.queries.own() as i64),
            apart: 1,
            lanes: &[1, 2, 4, 8],
        }
    }

    fn begin(&self, e: &mut Inliner<'_>, block: &BlockState<'_>) -> Result<()> {
        let stride = self.queries.stride() as i64;
        let place = |row: &Index, column: &Index| column.scale(stride).add(row);
        let tile = (block.shared[0], self.queries.own() * SIDE, self.depth);
        self.bring(e, block, (&block.q, &block.first), tile, &place)
    }

    fn scores(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, step: &Index) -> Result<()> {
        let first = e.b.let_index("key", step.scale(KEYS as i64));
        let stride = self.keys.stride() as i64;
        let limits = |_: u32| (0, KEYS as i64 - 1);
        // The neighbours that a thread reads are its keys.
        let place = |row: &Index, column: &Index| {
            let (group, within) = (row.floor_div(SIDE as i64, &limits), row.modulo(SIDE as i64, &limits));
            column.scale(stride).add(&within.scale(4)).add(&group)
        };
        self.bring(e, block, (&block.k, &first), (block.shared[1], KEYS, self.depth), &place)?;
        e.b.push(Stmt::Barrier);
        let scores = own.scores.registers;
        e.looped("i", range(own.rows * self.keys.own()), LoopKind::Unroll, |e, i| {
            e.b.store(scores, i, Value::Const(Scalar::f32(0.0)));
            Ok(())
        })?;
        let operands = [(block.shared[0], self.queries), (block.shared[1], self.keys)];
        self.multiply(e, block, operands, self.depth, scores)?;
        // Values come where the keys are.
        e.b.push(Stmt::Barrier);
        Ok(())
    }

    fn values(&self, e: &mut Inliner<'_>, block: &BlockState<'_>, own: &ThreadRows, step: &Index) -> Result<()> {
        let first = e.b.let_index("key", step.scale(KEYS as i64));
        let (stride, weights) = (self.values.stride() as i64, self.queries.stride() as i64);
        let place = |row: &Index, column: &Index| row.scale(stride).add(column);
        let tile = (block.shared[1], KEYS, self.values.own() * SIDE);
        self.bring(e, block, (&block.v, &first), tile, &place)?;
        e.looped("j", range(own.scores.pieces), LoopKind::Unroll, |e, j| {
            let line = e.b.let_index("line", own.scores.column(&j).scale(weights).add(&own.first));
            let one = |e: &mut Inliner<'_>, row: &Index| {
                let weight = e.b.load(own.scores.registers, own.scores.at(row, &j, &Index::default()));
                e.b.store(block.shared[2], line.add(row), weight);
                Ok(())
            };
            match own.rows {
                1 => one(e, &Index::default()),
                n => e.looped("l", range(n), LoopKind::Unroll, |e, l| one(e, &l)),
            }
        })?;
        e.b.push(Stmt::Barrier);
        let operands = [(block.shared[2], self.queries), (block.shared[1], self.values)];
        self.multiply(e, block, operands, KEYS, own.sums.registers)?;
        e.b.push(Stmt::Barrier);
        Ok(())
    }
}
