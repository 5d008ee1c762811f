//! Operands of matrix units: how the threads of a warp load them from tiles in shared memory.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{BufferPlace, LoopKind, Mma, Stmt, WARP, warp_matrix};

use tensorc_schedule::recipe::tiles::{UNIT_COLUMNS, UNIT_ROWS, unit_terms};

use super::loops::range;
use crate::emit::inline::Inliner;

/// Bytes that are copied at once.
const PIECE: u64 = 16;

/// Elements that are copied at once.
pub fn piece(dtype: DType) -> u64 {
    PIECE / dtype.size() as u64
}

/// Which operand of a product a tile holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentRole {
    Left,
    Right,
}

/// A tile of an operand in shared memory.
#[derive(Clone, Debug)]
pub struct SharedTile {
    pub role: FragmentRole,
    pub dtype: DType,
    /// Where it begins.
    pub from: BufferPlace,
    /// Elements between its rows: those of terms if neighbouring terms lie side by side, else those of rows or columns.
    pub stride: u64,
    pub along_terms: bool,
    /// Whether terms come in the order in which sums have them, two neighbours to a thread: right operands of f32.
    pub paired: bool,
}

impl SharedTile {
    /// Elements of a thread's part of one operand.
    fn own(&self) -> usize {
        let (a, b, _) = warp_matrix::elements(self.dtype);
        if self.role == FragmentRole::Left { a } else { b }
    }

    /// Registers for the operands of `count` products.
    pub fn registers(&self, count: u64) -> u64 {
        count * self.own() as u64
    }

    fn place(&self, across: &Index, term: &Index) -> BufferPlace {
        let stride = self.stride as i64;
        let at = if self.along_terms { across.scale(stride).add(term) } else { term.scale(stride).add(across) };
        BufferPlace::new(self.from.buf, self.from.index.add(&at))
    }

    /// Loads the operands of `count` products side by side into registers from a place on: rows or columns from
    /// `first` on, terms from `term` on. `count` is even for right operands.
    pub fn load(
        &self,
        e: &mut Inliner<'_>,
        lane: &Index,
        (first, term): (&Index, &Index),
        (into, count): (&BufferPlace, u64),
    ) -> Result<()> {
        match self.along_terms || self.dtype.size() == 2 {
            true => self.load_matrices(e, lane, (first, term), (into, count)),
            false => self.load_words(e, lane, (first, term), (into, count)),
        }
    }

    /// Four matrices at a time: those of one left operand, or of two right ones.
    fn load_matrices(
        &self,
        e: &mut Inliner<'_>,
        lane: &Index,
        (first, term): (&Index, &Index),
        (into, count): (&BufferPlace, u64),
    ) -> Result<()> {
        let lanes = |_: u32| (0, WARP as i64 - 1);
        let half = unit_terms(self.dtype) as i64 / 2;
        // Threads of eight give the rows of a matrix, which are rows or columns of the tile, or terms.
        let bit = |n: i64| lane.floor_div(n, &lanes).modulo(2, &lanes);
        let (low, eight, sixteen) = (lane.modulo(8, &lanes), bit(8), bit(16));
        // Of a left operand the second matrix lies below the first, of a right one behind it.
        let (across, deep) = if self.role == FragmentRole::Left { (&eight, &sixteen) } else { (&sixteen, &eight) };
        let (across, deep) = (across.scale(8), deep.scale(half));
        let (across, deep) = match self.along_terms {
            true => (across.add(&low), deep),
            false => (across, deep.add(&low)),
        };
        let (across, deep) = (e.b.let_index("across", across), e.b.let_index("deep", deep));
        let (each, loads) =
            if self.role == FragmentRole::Left { (UNIT_ROWS, count) } else { (2 * UNIT_COLUMNS, count / 2) };
        let loaded = 4 * (4 / self.dtype.size() as i64);
        e.looped("i", range(loads), LoopKind::Unroll, |e, i| {
            let from = self.place(&first.add(&i.scale(each as i64)).add(&across), &term.add(&deep));
            let into = BufferPlace::new(into.buf, into.index.add(&i.scale(loaded)));
            e.b.push(Stmt::LoadMatrix { into, from, count: 4, transposed: !self.along_terms });
            Ok(())
        })
    }

    /// Elements of 32 bits whose neighbours are rows or columns, one by one.
    fn load_words(
        &self,
        e: &mut Inliner<'_>,
        lane: &Index,
        (first, term): (&Index, &Index),
        (into, count): (&BufferPlace, u64),
    ) -> Result<()> {
        let lanes = |_: u32| (0, WARP as i64 - 1);
        let (group, quad) = (lane.floor_div(4, &lanes), lane.modulo(4, &lanes));
        let quad = if self.paired { quad.scale(2) } else { quad };
        let (group, quad) = (e.b.let_index("group", group), e.b.let_index("quad", quad));
        let (each, own) = (if self.role == FragmentRole::Left { UNIT_ROWS } else { UNIT_COLUMNS }, self.own());
        e.looped("i", range(count), LoopKind::Unroll, |e, i| {
            for r in 0..own {
                // What the first thread has says how far the elements of any thread lie apart.
                let (across, deep) = match (self.role, self.paired) {
                    (FragmentRole::Left, _) => warp_matrix::a(self.dtype, 0, r),
                    (FragmentRole::Right, true) => (0, r),
                    (FragmentRole::Right, false) => {
                        (warp_matrix::b(self.dtype, 0, r).1, warp_matrix::b(self.dtype, 0, r).0)
                    }
                };
                let at = first.add(&i.scale(each as i64)).add(&group).offset(across as i64);
                let from = self.place(&at, &term.add(&quad).offset(deep as i64));
                let value = e.b.load(from.buf, from.index);
                e.b.store(into.buf, into.index.add(&i.scale(own as i64)).offset(r as i64), value);
            }
            Ok(())
        })
    }
}

/// Adds products of `tall` left and `wide` right operands to sums from a place on, row by row of these.
pub fn multiply(
    e: &mut Inliner<'_>,
    (left, tall): (&BufferPlace, u64),
    (right, wide): (&BufferPlace, u64),
    sums: &BufferPlace,
    dtype: DType,
) -> Result<()> {
    let (a, b, acc) = warp_matrix::elements(dtype);
    let part = |place: &BufferPlace, i: Index| BufferPlace::new(place.buf, place.index.add(&i));
    e.looped("i", range(tall), LoopKind::Unroll, |e, i| {
        e.looped("j", range(wide), LoopKind::Unroll, |e, j| {
            let to = i.scale(wide as i64).add(&j).scale(acc as i64);
            let (a, b) = (part(left, i.scale(a as i64)), part(right, j.scale(b as i64)));
            e.b.push(Stmt::Mma(Box::new(Mma { a, b, acc: part(sums, to) })));
            Ok(())
        })
    })
}
