//! Packed forms of constant operands.
//!
//! - A right operand of a GEMM: panels of 32 columns, each k×32 with k outermost, the last one
//!   padded with zeros.
//! - Filters of a convolution, per group: panels of at most 12 output channels of nearly equal
//!   height, each k×rows with k = (input channel, filter row, filter column) outermost.
//! - Filters of a depthwise convolution: as in the graph.
//! - Filters of a convolution to blocked channels: panels of up to 32 output channels, each k×columns with k in
//!   the order of the sum; depthwise ones by block of channels, each taps×16.

use tensorc_abi::Packing;

use crate::blocking::row_panels;
use crate::conv::{self, WindowShape};
use crate::isa;
use crate::isa::Isa;
use crate::isa_levels::{IsaLevel, NR, Panel};

/// Rows of a matrix that are read side by side, as many as hardware prefetchers follow.
const MAX_STREAMS: usize = 16;

/// Number of f32 elements of the packed form; zero for [`Packing::Plain`], which is the constant
/// itself.
pub fn packed_len(packing: &Packing) -> usize {
    match packing {
        Packing::Plain => 0,
        Packing::GemmB { k, n, .. } => n.div_ceil(NR as u64) as usize * NR * *k as usize,
        Packing::Conv(call) => conv::packed_len(call),
    }
}

/// Writes the packed form of a constant; nothing for [`Packing::Plain`].
///
/// # Safety
/// `src` addresses every element of the constant that `packing` names; any alignment will do.
///
/// # Panics
/// If `dst` is shorter than [`packed_len`].
pub unsafe fn pack(packing: &Packing, src: *const u8, dst: &mut [f32]) {
    // SAFETY: passed on from the caller.
    unsafe { pack_with(isa(), packing, src, dst) }
}

/// [`pack`] with the kernels of one ISA level. The packed form is the same for all of them.
///
/// # Safety
/// As for [`pack`].
///
/// # Panics
/// As for [`pack`], and if the ISA level is not available.
pub unsafe fn pack_with(isa: Isa, packing: &Packing, src: *const u8, dst: &mut [f32]) {
    let len = packed_len(packing);
    assert!(dst.len() >= len, "memory shorter than the packed form");
    if len == 0 {
        return;
    }
    let level = IsaLevel::new(isa);
    let src: *const f32 = src.cast();
    match *packing {
        Packing::Plain => {}
        Packing::GemmB { k, n, offset, row_stride, col_stride } => {
            let (k, n) = (k as usize, n as usize);
            // Where columns are side by side, neighbouring panels read neighbouring memory: few rows at a time keep the
            // number of streams small. Where terms are, each column is a stream of its own.
            let depth = if col_stride == 1 { MAX_STREAMS } else { k };
            for first in (0..k).step_by(depth) {
                let (depth, row) = (depth.min(k - first), first as isize * row_stride as isize);
                for (j, panel) in dst.chunks_exact_mut(NR * k).enumerate().take(n.div_ceil(NR)) {
                    let panel = Panel {
                        src: src.wrapping_offset(offset as isize + row + (j * NR) as isize * col_stride as isize),
                        k_stride: row_stride as isize,
                        j_stride: col_stride as isize,
                        k: depth,
                        width: NR.min(n - j * NR),
                        dst: panel[first * NR..].as_mut_ptr(),
                        ld: NR as isize,
                        pad: NR,
                    };
                    // SAFETY: the panel is k×NR elements, and the source covers the k×n matrix.
                    unsafe { level.panel(&panel) };
                }
            }
        }
        // SAFETY: the constant has `len` elements, and so has `dst`.
        Packing::Conv(ref call) if !call.in_planes() || call.pass.tile().is_some() => unsafe {
            conv::pack_blocked(&level, call, src, dst)
        },
        Packing::Conv(ref call) => {
            let shape = WindowShape::forward(call);
            if conv::is_planar(call) {
                // SAFETY: the constant has `len` elements, and so has `dst`; bytes need no alignment.
                unsafe { core::ptr::copy_nonoverlapping(src.cast::<u8>(), dst.as_mut_ptr().cast(), len * 4) };
                return;
            }
            let k = shape.depth();
            let rows = row_panels(shape.out_channels);
            for group in 0..shape.groups {
                let base = group * shape.out_channels;
                for p in 0..rows.parts() {
                    let channels = rows.range(p);
                    let first = (base + channels.start) * k;
                    let panel = Panel {
                        src: src.wrapping_add(first),
                        k_stride: 1,
                        j_stride: k as isize,
                        k,
                        width: channels.len(),
                        dst: dst[first..].as_mut_ptr(),
                        ld: channels.len() as isize,
                        pad: channels.len(),
                    };
                    // SAFETY: both sides hold these rows of the filter matrix.
                    unsafe { level.panel(&panel) };
                }
            }
        }
    }
}
