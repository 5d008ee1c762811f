//! Attention on a GPU: how queries and keys are divided among blocks of threads, and where parts of the keys leave what
//! they come to.

use tensorc_abi::{Attention, DType};
use tensorc_ir::Extent;
use tensorc_ir::index::Index;
use tensorc_ir::kir::WARP;

use crate::recognise::attention::Attended;
use crate::target::{Gpu, Target};

/// Threads along each side of a block that multiplies without matrix units.
const SIDE: u64 = 16;
/// Rows of a product of matrix units.
const ROWS: u64 = 16;
/// Most warps of a block that multiplies by matrix units.
const MAX_WARPS: u64 = 4;
/// Columns of values from which on a tile has fewer keys, for want of registers.
const MIN_WIDE_VALUES: u64 = 128;
/// Fewest tiles of keys that are worth a block of their own.
const MIN_TILES: u64 = 4;

/// How many queries and keys a block works on at a time, and by how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashTile {
    /// Queries of a block.
    pub queries: u64,
    /// Keys of a step.
    pub keys: u64,
    /// Threads of a block.
    pub threads: u64,
}

/// Whether matrix units compute both products.
pub fn uses_matrix_units(found: &Attended, target: &Target) -> bool {
    found.dtype != DType::F32 || target.tf32
}

impl FlashTile {
    /// That of attention on a target. Results do not depend on how many queries a block has; an open number may be large.
    pub fn of(found: &Attended, target: &Target) -> FlashTile {
        let (queries, size) = (found.call.queries.known().map(|n| n as u64), found.call.size);
        if uses_matrix_units(found, target) {
            let warps = queries.map_or(MAX_WARPS, |n| n.div_ceil(ROWS).clamp(1, MAX_WARPS));
            let keys = if found.dtype.size() == 2 && size <= MIN_WIDE_VALUES { 64 } else { 32 };
            return FlashTile { queries: warps * ROWS, keys, threads: warps * WARP as u64 };
        }
        let queries = [1, 2].into_iter().find(|n| queries.is_some_and(|all| n * SIDE >= all)).unwrap_or(4);
        FlashTile { queries: queries * SIDE, keys: 4 * SIDE, threads: SIDE * SIDE }
    }
}

/// How keys are divided among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySplits {
    /// Tiles of all keys.
    pub tiles: Extent,
    /// Tiles of a part; the last may have fewer.
    pub each: Extent,
}

impl KeySplits {
    /// All keys in one.
    pub fn one(call: &Attention<Extent>, shape: FlashTile) -> KeySplits {
        let tiles = call.keys.div_ceil(shape.keys);
        KeySplits { tiles, each: tiles }
    }

    /// As many as keep a GPU busy, of [`MIN_TILES`] tiles or more. Where there are several, numbers are fixed.
    pub fn busy(call: &Attention<Extent>, shape: FlashTile, gpu: &Gpu) -> KeySplits {
        let one = KeySplits::one(call, shape);
        let blocks = call.batch.iter().copied().product::<Extent>() * call.queries.div_ceil(shape.queries);
        if blocks * 2 > gpu.multiprocessors() || one.tiles < 2 * MIN_TILES {
            return one;
        }
        let [blocks, tiles] = [blocks, one.tiles].map(|n| n.fixed().max(0) as u64);
        let count = (gpu.multiprocessors() / blocks.max(1)).min(tiles / MIN_TILES).max(1);
        KeySplits { each: tiles.div_ceil(count).into(), ..one }
    }

    /// Number of parts.
    pub fn count(self) -> u64 {
        if self.each.is_surely(self.tiles) { 1 } else { self.tiles.div_ceil(self.each).fixed().max(0) as u64 }
    }
}

/// Where parts are left: for each query of each batch and each part the sums of weighted values, then for all the
/// maxima of scores, then for all the sums of weights.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    /// The attention.
    pub call: &'a Attention,
    /// Number of parts of the keys.
    pub parts: u64,
}

impl Left<'_> {
    /// Queries of all batches.
    pub fn queries(&self) -> u64 {
        self.call.batch.iter().product::<u64>() * self.call.queries
    }

    /// Rows of all parts.
    fn rows(&self) -> i64 {
        (self.queries() * self.parts) as i64
    }

    /// Elements of f32 that parts take.
    pub fn elements(&self) -> u64 {
        self.rows() as u64 * (self.call.size + 2)
    }

    /// The row of a part of a query of a batch, which is given by its digits.
    pub fn row(&self, batch: &[Index], query: &Index, part: &Index) -> Index {
        let digits = batch.iter().zip(self.call.batch);
        let item = digits.fold(Index::default(), |item, (digit, extent)| item.scale(extent as i64).add(digit));
        item.scale(self.call.queries as i64).add(query).scale(self.parts as i64).add(part)
    }

    /// Where the weighted sum of a row and column is stored.
    pub fn sum(&self, row: &Index, column: &Index) -> Index {
        row.scale(self.call.size as i64).add(column)
    }

    /// Where the largest score of a row is stored.
    pub fn maximum(&self, row: &Index) -> Index {
        row.offset(self.rows() * self.call.size as i64)
    }

    /// Where the sum of a row's weights is stored.
    pub fn total(&self, row: &Index) -> Index {
        self.maximum(row).offset(self.rows())
    }
}
