//! What the memory of a GPU has to do for the accesses of a warp.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tensorc_ir::kir::{Buf, Kernel};

/// Bytes that global memory delivers at once.
const SECTOR: u64 = 32;
/// Banks of shared memory, each of which delivers one word of 4 bytes at a time.
const BANKS: u64 = 32;
const WORD: u64 = 4;

/// How one buffer is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BufferTraffic {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// By [`tensorc_ir::kir::Stmt::CopyAsync`].
    Copy,
    /// By [`tensorc_ir::kir::Stmt::LoadMatrix`].
    Matrix,
    /// By [`tensorc_ir::kir::Stmt::CopyTile`].
    Tile,
}

/// Sums over the warps of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Instructions of a warp.
    pub requests: u64,
    /// Bytes that threads asked for.
    pub bytes: u64,
    /// Global memory: sectors of 32 bytes touched. Shared memory: passes over its banks.
    pub pieces: u64,
    /// Least number of pieces for as many bytes.
    pub least: u64,
}

/// What a launch did, for tests of its performance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchCounts {
    /// Traffic by buffer and direction.
    pub memory: BTreeMap<(Buf, BufferTraffic), Traffic>,
    /// Barriers that blocks reached.
    pub barriers: u64,
    /// Products of matrices by warps.
    pub products: u64,
    /// Products of tiles by groups of warps.
    pub group_products: u64,
}

impl LaunchCounts {
    /// Adds one instruction of a warp on global memory: the first byte and the number of bytes of each access.
    pub(super) fn global(&mut self, key: (Buf, BufferTraffic), accesses: &[(u64, u64)]) {
        let mut sectors = BTreeSet::new();
        for (first, bytes) in accesses {
            sectors.extend(first / SECTOR..=(first + bytes - 1) / SECTOR);
        }
        self.add(key, accesses, sectors.len() as u64, SECTOR);
    }

    /// Adds one instruction of a warp on shared memory. Accesses of 8 and 16 bytes are served in halves and
    /// quarters of the warp.
    pub(super) fn shared(&mut self, key: (Buf, BufferTraffic), accesses: &[(u64, u64)]) {
        let width = accesses.iter().map(|(_, bytes)| *bytes).max().unwrap_or(WORD).max(WORD);
        let together = (BANKS * WORD / width).max(1) as usize;
        let passes = accesses.chunks(together).map(passes).sum();
        self.add(key, accesses, passes, BANKS * WORD);
    }

    fn add(&mut self, key: (Buf, BufferTraffic), accesses: &[(u64, u64)], pieces: u64, piece: u64) {
        let bytes: u64 = accesses.iter().map(|(_, bytes)| bytes).sum();
        let traffic = self.memory.entry(key).or_default();
        traffic.requests += 1;
        traffic.bytes += bytes;
        traffic.pieces += pieces;
        traffic.least += bytes.div_ceil(piece);
    }

    /// A line for every kind of access to every buffer.
    pub fn describe<'a>(&'a self, kernel: &'a Kernel) -> impl fmt::Display + 'a {
        Description { counts: self, kernel }
    }
}

/// Passes over the banks that some accesses take: different words of one bank come one after the other.
fn passes(accesses: &[(u64, u64)]) -> u64 {
    let mut words: BTreeSet<u64> = BTreeSet::new();
    for (first, bytes) in accesses {
        words.extend(first / WORD..=(first + bytes - 1) / WORD);
    }
    let mut banks = [0u64; BANKS as usize];
    words.iter().for_each(|word| banks[(word % BANKS) as usize] += 1);
    banks.into_iter().max().unwrap_or(0)
}

struct Description<'a> {
    counts: &'a LaunchCounts,
    kernel: &'a Kernel,
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((buf, access), t) in &self.counts.memory {
            let info = self.kernel.buf(*buf);
            let (verb, unit) = match (access, info.space) {
                (BufferTraffic::Tile, _) => ("copy_tile from", "sectors"),
                (BufferTraffic::Matrix, _) => ("load_matrix", "passes"),
                (BufferTraffic::Copy, tensorc_ir::kir::MemorySpace::Shared) => ("copy_async to", "passes"),
                (BufferTraffic::Copy, _) => ("copy_async from", "sectors"),
                (BufferTraffic::Load, tensorc_ir::kir::MemorySpace::Shared) => ("load", "passes"),
                (BufferTraffic::Store, tensorc_ir::kir::MemorySpace::Shared) => ("store", "passes"),
                (BufferTraffic::Load, _) => ("load", "sectors"),
                (BufferTraffic::Store, _) => ("store", "sectors"),
            };
            let per = t.pieces as f64 / t.requests.max(1) as f64;
            writeln!(
                f,
                "{verb} {}: {} requests, {} bytes, {per:.2} {unit}/request, {} of at least {}",
                info.name, t.requests, t.bytes, t.pieces, t.least
            )?;
        }
        write!(f, "barriers: {}, matrix products: {}", self.counts.barriers, self.counts.products)?;
        match self.counts.group_products {
            0 => writeln!(f),
            n => writeln!(f, ", products of tiles: {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(accesses: &[(u64, u64)]) -> (u64, u64) {
        let mut counts = LaunchCounts::default();
        counts.shared((Buf(0), BufferTraffic::Load), accesses);
        let t = counts.memory[&(Buf(0), BufferTraffic::Load)];
        (t.pieces, t.least)
    }

    fn lanes(f: impl Fn(u64) -> (u64, u64)) -> Vec<(u64, u64)> {
        (0..32).map(f).collect()
    }

    #[test]
    fn banks_conflict_where_different_words_share_one() {
        assert_eq!(shared(&lanes(|l| (4 * l, 4))), (1, 1), "neighbours");
        assert_eq!(shared(&lanes(|_| (64, 4))), (1, 1), "one word for all");
        assert_eq!(shared(&lanes(|l| (8 * l, 4))), (2, 1), "every second word");
        assert_eq!(shared(&lanes(|l| (128 * l, 4))), (32, 1), "a column of 32");
        assert_eq!(shared(&lanes(|l| (132 * l, 4))), (1, 1), "a column of 33");
        assert_eq!(shared(&lanes(|l| (16 * l, 16))), (4, 4), "16 bytes each");
        assert_eq!(shared(&lanes(|l| (128 * l, 16))), (32, 4), "16 bytes each, one group of banks");
    }

    #[test]
    fn sectors_are_counted_once_a_request() {
        let mut counts = LaunchCounts::default();
        let key = (Buf(0), BufferTraffic::Load);
        counts.global(key, &lanes(|l| (4 * l, 4)));
        counts.global(key, &lanes(|l| (128 * l, 4)));
        assert_eq!(counts.memory[&key], Traffic { requests: 2, bytes: 256, pieces: 4 + 32, least: 8 });
    }
}
