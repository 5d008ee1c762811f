//! What groups of four warps do on GPUs that have it: tiles that the copy engine fetches, and products of tiles.
//!
//! A tile is a matrix of 16-bit elements in [`Space::Tile`], in *panels*: rows of 64 elements (128 bytes) one behind the
//! other. The pieces of 16 bytes of a row are permuted by its number ([`swizzled`]), so that neither rows nor columns of pieces
//! lie in one group of banks. Threads do not access tiles; the copy engine writes them and matrix units read them.
//!
//! [`Space::Tile`]: super::Space::Tile

use tensorc_abi::DType;

use super::{Buf, Kernel, Place, Stmt, WARP};
use crate::index::Index;

/// Threads of a group of warps, which begins at a multiple of its size.
pub const GROUP: usize = 4 * WARP;
/// Elements of a row of a panel.
pub const PANEL: usize = 64;
/// Rows of a product of a group.
pub const GROUP_ROWS: usize = 64;
/// Bytes at whose multiples tiles begin, and at which the permutation of pieces repeats: 8 rows.
pub const TILE_ALIGNMENT: u64 = 1024;

/// Where in a tile the element at a position in its rows lies: pieces of 8 elements are permuted within each row by the
/// number of the row modulo 8.
pub const fn swizzled(at: usize) -> usize {
    at ^ (((at / PANEL) % 8) * 8)
}

/// A parameter as a matrix, and the box of it that one copy moves: what the copy engine is told before a launch.
/// Counts are of elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorMap {
    pub buf: Buf,
    pub rows: u64,
    pub columns: u64,
    /// From one row to the next.
    pub stride: u64,
    /// Rows of the box, whose columns are [`PANEL`].
    pub box_rows: u32,
}

impl TensorMap {
    /// Bytes that one copy moves.
    pub fn box_bytes(&self) -> u64 {
        u64::from(self.box_rows) * PANEL as u64 * 2
    }
}

/// A copy of a box of a matrix to a panel; zeros for what lies outside of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TileCopy {
    pub into: Place,
    pub map: TensorMap,
    /// The row and column of the box in the matrix.
    pub at: [Index; 2],
    /// Counts the bytes that have come.
    pub barrier: Place,
}

/// An operand of a product of a group, from an element of a tile on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TileOperand {
    pub at: Place,
    /// `None` if the rows of the tile are rows of `a` or columns of `b`, side by side with their terms. Otherwise the rows are
    /// terms, and this is the distance, in elements, of panels that hold 64 rows of `a` or columns of `b` each.
    pub panels: Option<u32>,
}

impl TileOperand {
    /// Where row (or column) `i` and term `k` lie, before pieces are permuted.
    pub fn place(&self, first: usize, i: usize, k: usize) -> usize {
        match self.panels {
            None => first + i * PANEL + k,
            Some(distance) => first + i / PANEL * distance as usize + k * PANEL + i % PANEL,
        }
    }
}

/// `acc += a · b` by the matrix units, for a group of warps: `a` of [`GROUP_ROWS`] rows, `b` of `columns` columns, both of
/// `depth` terms, in tiles; `acc` in registers as [`group_acc`] lays them out, f32. It begins the product; see
/// [`Stmt::AwaitProducts`]. Sums are those of [`super::Mma`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupMma {
    pub acc: Place,
    pub a: TileOperand,
    pub b: TileOperand,
    /// A multiple of 8 up to 256; of 64 if `b` is in several panels.
    pub columns: u32,
    /// A multiple of 16 up to 64.
    pub depth: u32,
}

impl GroupMma {
    /// Terms of one instruction.
    pub const TERMS: usize = 16;

    /// The types of operands.
    pub const fn takes(dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16)
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
pub struct Role {
    /// The first warp and the one behind the last: whole groups.
    pub warps: (u32, u32),
    /// Registers that each thread asks for or gives up to.
    pub registers: u32,
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
        let places: BTreeSet<_> = (0..1024).map(swizzled).collect();
        assert_eq!(places, (0..1024).collect());
        // A column of pieces of eight rows: each in another group of banks.
        let banks: BTreeSet<_> = (0..8).map(|row| swizzled(row * PANEL) % PANEL).collect();
        assert_eq!(banks.len(), 8);
    }
}
