//! Tiles of queries, keys and values: from global into shared memory.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, LoopKind, Stmt};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, Extent};

use super::super::fragments::piece;
use super::super::loops::{below, inside, range};
use crate::emit::inline::Inliner;

/// Fetches of a thread that are written one after the other.
const MAX_UNROLLED_FETCHES: u64 = 16;

/// A matrix in memory.
pub struct SourceMatrix {
    pub input: Buf,
    pub dtype: DType,
    pub base: Index,
    /// Rows and columns, and elements from one to the next.
    pub extents: [Extent; 2],
    pub strides: [Extent; 2],
    /// What the base may be made of.
    pub offsets: Vec<Extent>,
}

impl SourceMatrix {
    /// Whether pieces of 16 bytes of its rows can be copied.
    fn copies(&self) -> bool {
        let piece = piece(self.dtype);
        let aligned = |x: &Extent| x.sure_quotient(piece).is_some();
        self.strides[1].is_surely(1)
            && aligned(&self.extents[1])
            && aligned(&self.strides[0])
            && self.offsets.iter().all(aligned)
    }
}

/// A tile in shared memory: rows and columns, and where each element is.
pub struct Into<'a> {
    pub array: Buf,
    pub rows: u64,
    pub columns: u64,
    pub place: &'a dyn Fn(&Index, &Index) -> Index,
    /// Whether neighbours of a row lie side by side, so that they may be copied asynchronously.
    pub in_pieces: bool,
}

/// Fetches the rows of a matrix from `first` on by the threads of a block; zeros where there is nothing.
pub fn fetch(
    e: &mut Inliner<'_>,
    from: &SourceMatrix,
    first: &Index,
    into: &Into<'_>,
    (thread, threads): (&Index, u64),
) -> Result<()> {
    let copied = into.in_pieces && from.copies();
    let width = if copied { piece(from.dtype) } else { 1 };
    let row = into.columns / width;
    let pieces = into.rows * row;
    // Neighbouring threads read neighbouring elements.
    let by_rows = from.strides[1].is_surely(1) || !from.strides[0].is_surely(1);
    let limits = move |_: u32| (0, pieces as i64 - 1);
    let each = pieces.div_ceil(threads);
    let kind = if each <= MAX_UNROLLED_FETCHES { LoopKind::Unroll } else { LoopKind::Serial };
    e.looped("f", range(each), kind, |e, f| {
        let i = e.b.let_index("f", f.scale(threads as i64).add(thread));
        let (at, column) = match by_rows {
            true => (i.floor_div(row as i64, &limits), i.modulo(row as i64, &limits)),
            false => (i.modulo(into.rows as i64, &limits), i.floor_div(into.rows as i64, &limits)),
        };
        let (at, column) = (e.b.let_index("at", at), e.b.let_index("column", column.scale(width as i64)));
        below(e, &i, pieces, each * threads, |e| {
            let number = e.b.let_index("row", first.add(&at));
            let bounds = [(&number, from.extents[0], into.rows), (&column, from.extents[1], into.columns)];
            let cond = inside(e, &bounds);
            let source = from.base.add(&number.scale(from.strides[0])).add(&column.scale(from.strides[1]));
            let to = BufferPlace::new(into.array, (into.place)(&at, &column));
            if copied {
                let from = BufferPlace::new(from.input, source);
                e.b.push(Stmt::CopyAsync { into: to, from, len: width as u8, cond });
                return Ok(());
            }
            let value = e.b.load_guarded(from.input, source, cond.map(|c| (c, Scalar::zero(from.dtype))));
            e.b.store(to.buf, to.index, value);
            Ok(())
        })
    })
}
