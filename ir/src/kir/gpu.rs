//! What kernels for a GPU have beyond others: the launch, and matrices spread over a warp.

use tensorc_abi::DType;

use super::Buf;
use crate::index::Index;

/// Threads that execute in step.
pub const WARP: usize = 32;

/// Most blocks of a launch.
pub const MAX_BLOCKS: u64 = i32::MAX as u64;

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Number of blocks.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block.
    pub shared_bytes: u64,
}

/// An element of a buffer, or the first of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufferPlace {
    /// The buffer.
    pub buf: Buf,
    /// The index of the element.
    pub index: Index,
}

impl BufferPlace {
    /// An element of a buffer.
    pub fn new(buf: Buf, index: Index) -> BufferPlace {
        BufferPlace { buf, index }
    }
}

/// `acc += a · b` by the matrix units, for a warp: `a` 16×k, `b` k×8, `acc` 16×8 of f32. The type of the operands
/// gives k: 16 for f16 and bf16; 8 for f32, whose elements are rounded to 10 bits of fraction (tf32).
///
/// All three are arrays in registers; [`warp_matrix`] says which elements a thread has. Products are exact, sums have at
/// least the precision of f32 with truncation; the interpreter adds in f64 and rounds once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    /// The left factor, in registers.
    pub a: BufferPlace,
    /// The right factor, in registers.
    pub b: BufferPlace,
    /// The sums, in registers.
    pub acc: BufferPlace,
}

impl Mma {
    /// Terms of a sum, by the type of the operands; `None` for types without matrix units.
    pub const fn depth(dtype: DType) -> Option<usize> {
        match dtype {
            DType::F16 | DType::BF16 => Some(16),
            DType::F32 => Some(8),
            _ => None,
        }
    }
}

/// Rows and columns of the elements of one thread's part of a matrix of a warp, as the PTX instruction
/// `mma.sync.aligned.m16n8` lays them out (PTX ISA, "Warp-level matrix instructions").
pub mod warp_matrix {
    use super::Mma;
    use tensorc_abi::DType;

    /// Row (of 16) and column (of k) of element `i` of operand `a` in thread `lane`.
    pub fn a(dtype: DType, lane: usize, i: usize) -> (usize, usize) {
        let (group, quad) = (lane / 4, lane % 4);
        match Mma::depth(dtype) {
            Some(16) => (group + 8 * (i / 2 % 2), 2 * quad + i % 2 + 8 * (i / 4)),
            _ => (group + 8 * (i % 2), quad + 4 * (i / 2)),
        }
    }

    /// Row (of k) and column (of 8) of element `i` of operand `b`.
    pub fn b(dtype: DType, lane: usize, i: usize) -> (usize, usize) {
        let (group, quad) = (lane / 4, lane % 4);
        match Mma::depth(dtype) {
            Some(16) => (2 * quad + i % 2 + 8 * (i / 2), group),
            _ => (quad + 4 * i, group),
        }
    }

    /// Row (of 16) and column (of 8) of element `i` of the sum.
    pub fn acc(lane: usize, i: usize) -> (usize, usize) {
        (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
    }

    /// Elements of `a`, `b` and the sum in one thread.
    pub const fn elements(dtype: DType) -> (usize, usize, usize) {
        match Mma::depth(dtype) {
            Some(16) => (8, 4, 4),
            _ => (4, 2, 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every element of a matrix is in one place of one thread.
    #[test]
    fn threads_share_matrices_without_overlap() {
        for dtype in [DType::F16, DType::F32] {
            let k = Mma::depth(dtype).unwrap_or(0);
            let (a, b, acc) = warp_matrix::elements(dtype);
            let all = |n: usize, at: &dyn Fn(usize, usize) -> (usize, usize)| -> BTreeSet<(usize, usize)> {
                (0..WARP).flat_map(|lane| (0..n).map(move |i| (lane, i))).map(|(lane, i)| at(lane, i)).collect()
            };
            let grid = |rows: usize, columns: usize| {
                (0..rows).flat_map(move |r| (0..columns).map(move |c| (r, c))).collect::<BTreeSet<_>>()
            };
            assert_eq!(all(a, &|l, i| warp_matrix::a(dtype, l, i)), grid(16, k));
            assert_eq!(all(b, &|l, i| warp_matrix::b(dtype, l, i)), grid(k, 8));
            assert_eq!(all(acc, &|l, i| warp_matrix::acc(l, i)), grid(16, 8));
            assert_eq!((a * WARP, b * WARP, acc * WARP), (16 * k, 8 * k, 128));
        }
    }
}
