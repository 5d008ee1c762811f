//! Products of tiles in shared memory by ordinary multiplications: each thread multiplies a small tile in registers.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, LoopKind, MemorySpace as Memory};
use tensorc_ir::scalar::ScalarOp;

use super::loops::range;
use crate::emit::inline::Inliner;

/// Threads along each side of a tile.
pub const SIDE: u64 = 16;
/// Elements between rows of a tile in shared memory beyond its width, against conflicts of banks.
pub const PAD: u64 = 4;

/// One side of a tile as a thread has it: `parts` pieces of `width` neighbours each.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTile {
    pub parts: u64,
    pub width: u64,
}

impl ThreadTile {
    /// For tiles of a length that [`SIDE`] divides.
    pub fn of(tile: u64) -> ThreadTile {
        let own = tile / SIDE;
        let width = [4, 2].into_iter().find(|w| own.is_multiple_of(*w)).unwrap_or(1);
        ThreadTile { parts: own / width, width }
    }

    pub fn own(self) -> u64 {
        self.parts * self.width
    }

    /// Elements between rows of a tile in shared memory.
    pub fn stride(self) -> u64 {
        SIDE * self.own() + PAD
    }

    /// The position in the tile of the first element of a piece.
    pub fn first(self, part: &Index, thread: &Index) -> Index {
        part.scale((SIDE * self.width) as i64).add(&thread.scale(self.width as i64))
    }
}

/// A tile of an operand in shared memory, a row of its length for each term, and the number of the thread along it.
pub struct TileBuffer<'a> {
    pub from: BufferPlace,
    pub side: ThreadTile,
    pub thread: &'a Index,
}

/// Adds products of `terms` terms to the sums of a thread, row by row of its small tile.
pub fn multiply(
    e: &mut Inliner<'_>,
    [left, right]: [&TileBuffer<'_>; 2],
    terms: u64,
    (sums, wide): (Buf, DType),
) -> Result<()> {
    let (down, across) = (left.side, right.side);
    let a = e.alloc("a", wide, down.own(), Memory::Register);
    let b = e.alloc("b", wide, across.own(), Memory::Register);
    e.looped("kk", range(terms), LoopKind::Unroll, |e, kk| {
        take(e, left, &kk, (a, wide))?;
        take(e, right, &kk, (b, wide))?;
        e.looped("i", range(down.own()), LoopKind::Unroll, |e, i| {
            e.looped("j", range(across.own()), LoopKind::Unroll, |e, j| {
                let at = i.scale(across.own() as i64).add(&j);
                let (x, y) = (e.b.load(a, i.clone()), e.b.load(b, j));
                let old = e.b.load(sums, at.clone());
                let new = match wide.is_float() {
                    true => e.b.op(ScalarOp::Fma, &[x, y, old]),
                    false => {
                        let product = e.b.op(ScalarOp::Mul, &[x, y]);
                        e.b.op(ScalarOp::Add, &[product, old])
                    }
                };
                e.b.store(sums, at, new);
                Ok(())
            })
        })
    })
}

/// Reads a thread's elements of one term into registers.
fn take(e: &mut Inliner<'_>, operand: &TileBuffer<'_>, term: &Index, (into, wide): (Buf, DType)) -> Result<()> {
    let side = operand.side;
    let row = operand.from.index.add(&term.scale(side.stride() as i64));
    e.looped("part", range(side.parts), LoopKind::Unroll, |e, part| {
        let first = row.add(&side.first(&part, operand.thread));
        let one = |e: &mut Inliner<'_>, l: &Index| {
            let value = e.b.load(operand.from.buf, first.add(l));
            let value = if e.b.dtype(value) == wide { value } else { e.b.op(ScalarOp::Cast(wide), &[value]) };
            e.b.store(into, part.scale(side.width as i64).add(l), value);
            Ok(())
        };
        match side.width {
            1 => one(e, &Index::default()),
            n => e.looped("l", range(n), LoopKind::Vector, |e, l| one(e, &l)),
        }
    })
}
