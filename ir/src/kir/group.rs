//! What groups of four warps do on GPUs that have it: tiles that the copy engine fetches, and products of tiles.
//!
//! A tile is a matrix of f16, bf16 or f32 in [`Space::Tile`], in *panels*: rows of 128 bytes one behind the
//! other. The pieces of 16 bytes of a row are permuted by its number ([`swizzled`]), so that neither rows nor columns of pieces
//! lie in one group of banks. The copy engine and stores of threads write them, which know nothing of the permutation, and matrix
//! units read them.
//!
//! [`Space::Tile`]: super::Space::Tile

use tensorc_abi::DType;

use super::{Buf, BufferPlace, Kernel, Stmt, WARP};
use crate::index::Index;

/// Threads of a group of warps, which begins at a multiple of its size.
pub const GROUP: usize = 4 * WARP;
/// Bytes of a row of a panel.
const ROW_BYTES: usize = 128;
/// Rows of a product of a group.
pub const GROUP_ROWS: usize = 64;
/// Bytes at whose multiples tiles begin, and at which the permutation of pieces repeats: 8 rows.
pub const TILE_ALIGNMENT: u64 = 1024;

/// Elements of a row of a panel: 64 of f16 and bf16, 32 of f32.
pub const fn panel(dtype: DType) -> usize {
    ROW_BYTES / dtype.size()
}

/// Where in a tile the element at a position in its rows lies: pieces of 16 bytes are permuted within each row by the
/// number of the row modulo 8.
pub const fn swizzled(dtype: DType, at: usize) -> usize {
    let row = panel(dtype);
    at ^ (((at / row) % 8) * (row / 8))
}

/// A parameter as matrices, and the box that one copy moves: what the copy engine is told before a launch.
/// Counts are of elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorMap {
    /// The buffer that is described.
    pub buf: Buf,
    /// Rows of a matrix.
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    /// From one row to the next.
    pub stride: u64,
    /// Rows of the box, whose columns are those of a [`panel`].
    pub box_rows: u32,
    /// Axes along which there are more such matrices, those of near neighbours first.
    pub batch: Vec<BatchAxis>,
}

/// Matrices beside each other: how many, and elements from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchAxis {
    /// Number of matrices along the axis.
    pub extent: u64,
    /// Elements between them.
    pub stride: u64,
}

impl TensorMap {
    /// Most batch axes: the copy engine knows five.
    pub const MAX_BATCH_AXES: usize = 3;

    /// The coordinates of a box in the order in which the copy engine is told of the axes: the column, then by the distance of
    /// neighbours.
    pub fn ordered<T: Clone>(&self, [row, column]: [T; 2], batch: &[T]) -> Vec<T> {
        let nearer = self.batch.iter().take_while(|axis| axis.stride < self.stride).count();
        let (near, far) = batch.split_at(nearer.min(batch.len()));
        [&[column], near, &[row], far].concat()
    }
}

/// A copy of a box of a matrix to a panel; zeros for what lies outside of the matrix. Elements of f32 are rounded to 10 bits of
/// fraction, to nearest, ties to even ([`tf32`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TileCopy {
    /// Where the tile goes in shared memory.
    pub into: BufferPlace,
    /// The matrices that the tile is cut from.
    pub map: TensorMap,
    /// The row and column of the box in its matrix.
    pub at: [Index; 2],
    /// Which matrix, by batch axes.
    pub batch: Vec<Index>,
    /// Counts the bytes that have come.
    pub barrier: BufferPlace,
}

/// An f32 as the copy engine rounds it on its way to a tile; infinities and NaNs stay.
pub const fn tf32(x: f32) -> f32 {
    let bits = x.to_bits();
    match x.is_finite() {
        true => f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & 0xffff_e000),
        false => x,
    }
}

/// An operand of a product of a group, from an element of a tile on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TileOperand {
    /// The first element of the tile in shared memory.
    pub at: BufferPlace,
    /// `None` if the rows of the tile are rows of `a` or columns of `b`, side by side with their terms. Otherwise, for elements of
    /// 16 bits, the rows are terms, and this is the distance, in elements, of panels that hold 64 rows of `a` or columns of `b`
    /// each.
    pub panels: Option<u32>,
}

impl TileOperand {
    /// Where row (or column) `i` and term `k` lie, before pieces are permuted.
    pub fn place(&self, dtype: DType, first: usize, i: usize, k: usize) -> usize {
        let row = panel(dtype);
        match self.panels {
            None => first + i * row + k,
            Some(distance) => first + i / row * distance as usize + k * row + i % row,
        }
    }
}

/// `acc += a · b` by the matrix units, for a group of warps: `a` of [`GROUP_ROWS`] rows, `b` of `columns` columns, both of
/// `depth` terms, in tiles; `acc` in registers as [`group_acc`] lays them out, f32. It begins the product; see
/// [`Stmt::AwaitProducts`]. Sums are those of [`super::Mma`]; of f32 the upper 19 bits count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupMma {
    /// The sums, in registers.
    pub acc: BufferPlace,
    /// The left factor.
    pub a: TileOperand,
    /// The right factor.
    pub b: TileOperand,
    /// A multiple of 8 up to 256; of 64 if `b` is in several panels.
    pub columns: u32,
    /// A multiple of [`GroupMma::terms`] up to [`panel`].
    pub depth: u32,
}

impl GroupMma {
    /// Terms of one instruction: 32 bytes.
    pub const fn terms(dtype: DType) -> usize {
        panel(dtype) / 4
    }

    /// The types of operands.
    pub const fn takes(dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
    }

    /// Elements of the sum in one thread.
    pub fn elements(&self) -> u64 {
        u64::from(self.columns) / 2
    }
}

/// Row (of 64) and column of element `i` of the sum in thread `thread` of a group, as `wgmma.mma_async` lays them out (PTX ISA,
/// "Asynchronous warpgroup level matrix instructions").
pub const fn group_acc(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / WARP, thread % WARP);
    (16 * warp + lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2)
}

/// What some warps of a block do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WarpRole {
    /// The first warp and the one behind the last: whole groups.
    pub warps: (u32, u32),
    /// Registers that each thread asks for or gives up to.
    pub registers: u32,
    /// What the warps of the role execute.
    pub body: Vec<Stmt>,
}

impl Kernel {
    /// What the copy engine must know, each once, in the order of first use: the arguments of a launch behind the buffers.
    pub fn tensor_maps(&self) -> Vec<TensorMap> {
        let mut maps = vec![];
        collect(&self.body, &mut maps);
        maps
    }
}

fn collect(body: &[Stmt], maps: &mut Vec<TensorMap>) {
    for stmt in body {
        match stmt {
            Stmt::CopyTile(copy) if !maps.contains(&copy.map) => maps.push(copy.map.clone()),
            Stmt::For { body, .. } => collect(body, maps),
            Stmt::If { then, otherwise, .. } => {
                collect(then, maps);
                collect(otherwise, maps);
            }
            Stmt::Roles(roles) => roles.iter().for_each(|role| collect(&role.body, maps)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every element of a sum is in one place of one thread, and every element of a tile in one place.
    #[test]
    fn groups_share_matrices_without_overlap() {
        let all: BTreeSet<_> = (0..GROUP).flat_map(|t| (0..128).map(move |i| group_acc(t, i))).collect();
        assert_eq!(all, (0..64).flat_map(|r| (0..256).map(move |c| (r, c))).collect());
        for dtype in [DType::BF16, DType::F32] {
            let places: BTreeSet<_> = (0..1024).map(|at| swizzled(dtype, at)).collect();
            assert_eq!(places, (0..1024).collect());
            // A column of pieces of eight rows: each in another group of banks.
            let banks: BTreeSet<_> = (0..8).map(|row| swizzled(dtype, row * panel(dtype)) % panel(dtype)).collect();
            assert_eq!(banks.len(), 8);
        }
    }

    /// To the nearest of 10 bits of fraction, to even where two are.
    #[test]
    fn the_copy_engine_rounds_to_even() {
        let unit = 2f32.powi(-10);
        for (x, rounded) in [
            (1.0 + unit / 2.0, 1.0),
            (1.0 + 1.5 * unit, 1.0 + 2.0 * unit),
            (-1.0 - 0.75 * unit, -1.0 - unit),
            (2.0 - unit / 4.0, 2.0),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (0.0, 0.0),
        ] {
            assert_eq!(tf32(x), rounded, "{x}");
        }
        assert!(tf32(f32::NAN).is_nan());
        let map = TensorMap { buf: Buf(0), rows: 9, columns: 8, stride: 24, box_rows: 8, batch: vec![] };
        let batch = [8, 216].map(|stride| BatchAxis { extent: 3, stride }).to_vec();
        assert_eq!(
            TensorMap { batch, ..map }.ordered(["row", "column"], &["head", "image"]),
            ["column", "head", "row", "image"]
        );
    }
}
