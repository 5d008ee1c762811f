//! Packed forms of constant operands.
//!
//! - A right operand of a GEMM: panels of 32 columns, each k×32 with k outermost, the last one
//!   padded with zeros. If it is rounded to bf16, pairs of neighbouring terms take the place of one element; if it is of
//!   bytes, four.
//! - Filters of a convolution, per group: panels of at most 12 output channels of nearly equal
//!   height, each k×rows with k = (input channel, filter row, filter column) outermost.
//! - Filters of a convolution with few channels in a group: as in the graph.
//! - Filters of bytes: panels of the same height, in groups of four terms, in the order of `conv::bytes::terms`.
//! - Filters of a convolution to blocked channels: panels of up to 32 output channels, each k×columns with k in
//!   the order of the sum; depthwise ones by block of channels, each taps×16.

use core::ops::Range;

use tensorc_abi::{PackedElements, Packing};

use crate::conv;
use crate::isa;
use crate::isa::Isa;
use crate::isa_levels::{IntegerGroup, IsaLevel, NR, PAIR, Panel, RoundedPanel, TERMS};

/// Number of f32 elements of the packed form; zero for [`Packing::Plain`], which is the constant
/// itself.
pub fn packed_len(packing: &Packing) -> usize {
    match packing {
        Packing::Plain => 0,
        Packing::GemmB { k, n, elements, .. } => n.div_ceil(NR as u64) as usize * NR * words_of(*k as usize, *elements),
        Packing::Conv(call) => conv::packed_len(call),
    }
}

/// Into how many units packing divides: panels, or rows of a matrix. Neighbours are made of neighbouring elements of the
/// constant, and each writes elements of its own.
pub fn pack_units(packing: &Packing) -> usize {
    match packing {
        _ if packed_len(packing) == 0 => 0,
        Packing::Plain => 0,
        Packing::GemmB { n, col_stride, .. } if *col_stride != 1 => n.div_ceil(NR as u64) as usize,
        Packing::GemmB { k, .. } => (*k as usize).div_ceil(ROWS),
        Packing::Conv(call) => conv::pack_units(call),
    }
}

/// The positions of the elements of the constant that some units are made of.
pub fn pack_source(packing: &Packing, units: Range<usize>) -> Range<usize> {
    match *packing {
        Packing::Plain => 0..0,
        Packing::GemmB { offset, row_stride, col_stride, .. } => {
            let (rows, columns) = gemm_part(packing, &units);
            let ends = |stride: i64, along: Range<usize>| {
                let (first, last) = (stride * along.start as i64, stride * (along.end as i64 - 1));
                [first.min(last), first.max(last)]
            };
            let ([top, bottom], [left, right]) = (ends(row_stride, rows), ends(col_stride, columns));
            (offset + top + left) as usize..(offset + bottom + right) as usize + 1
        }
        Packing::Conv(ref call) => conv::pack_source(call, units),
    }
}

/// Elements of the packed form that a column of k terms takes.
fn words_of(k: usize, elements: PackedElements) -> usize {
    match elements {
        PackedElements::F32 => k,
        PackedElements::Bf16 => k.div_ceil(PAIR),
        PackedElements::Bytes => k.div_ceil(TERMS),
    }
}

/// Rows of a matrix that are packed together, as many as hardware prefetchers follow: whole pairs and groups.
const ROWS: usize = 16;

/// The rows and columns of the units of a matrix. Where columns are side by side, neighbouring panels read neighbouring
/// memory: few rows at a time keep the number of streams small. Where terms are, each column is a stream of its own.
fn gemm_part(packing: &Packing, units: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let &Packing::GemmB { k, n, col_stride, .. } = packing else { return (0..0, 0..0) };
    let (k, n) = (k as usize, n as usize);
    match col_stride {
        1 => (ROWS * units.start..k.min(ROWS * units.end), 0..n),
        _ => (0..k, NR * units.start..n.min(NR * units.end)),
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
    let units = 0..pack_units(packing);
    if !units.is_empty() {
        let first = pack_source(packing, units.clone()).start;
        // SAFETY: passed on from the caller.
        unsafe { pack_part(isa(), packing, units, src.wrapping_add(first * packing.element_size()), dst) };
    }
}

/// Writes some units of the packed form of a constant, of which `src` addresses [`pack_source`] alone, with the kernels of one
/// ISA level. The packed form is the same for all of them.
///
/// # Safety
/// `src` addresses the elements that the units are made of; any alignment will do.
///
/// # Panics
/// If `dst` is shorter than [`packed_len`], there are not so many units, or the ISA level is not available.
pub unsafe fn pack_part(isa: Isa, packing: &Packing, units: Range<usize>, src: *const u8, dst: &mut [f32]) {
    assert!(dst.len() >= packed_len(packing), "memory shorter than the packed form");
    assert!(units.end <= pack_units(packing), "units that the packed form does not have");
    if units.is_empty() {
        return;
    }
    let level = IsaLevel::new(isa);
    match *packing {
        Packing::Plain => {}
        // SAFETY: passed on from the caller; `dst` has room.
        Packing::GemmB { .. } => unsafe { pack_matrix(&level, packing, units, src, dst) },
        // SAFETY: as above.
        Packing::Conv(ref call) => unsafe { conv::pack(&level, call, units, src.cast(), dst) },
    }
}

/// # Safety
/// As for [`pack_part`].
unsafe fn pack_matrix(level: &IsaLevel, packing: &Packing, units: Range<usize>, src: *const u8, dst: &mut [f32]) {
    let &Packing::GemmB { k, n, offset, row_stride, col_stride, elements } = packing else { return };
    let (k, n) = (k as usize, n as usize);
    let (rows, columns) = gemm_part(packing, &units);
    let size = elements.size() as isize;
    let origin = src.wrapping_sub(pack_source(packing, units).start * elements.size());
    let depth = if col_stride == 1 { ROWS } else { k };
    let words = words_of(k, elements);
    for first in rows.clone().step_by(depth) {
        let (depth, row) = (depth.min(rows.end - first), first as isize * row_stride as isize);
        for column in columns.clone().step_by(NR) {
            let to = &mut dst[column * words + words_of(first, elements) * NR..][..words_of(depth, elements) * NR];
            let from = offset as isize + row + column as isize * col_stride as isize;
            let from = origin.wrapping_offset(size * from);
            let (steps, columns) = ([row_stride as isize, col_stride as isize], NR.min(n - column));
            // SAFETY: the panel has room for these rows and columns, which the source covers.
            unsafe {
                match elements {
                    PackedElements::Bf16 => {
                        let (from, to) = (from.cast(), to.as_mut_ptr().cast());
                        level.rounded_panel(&RoundedPanel { from, steps, terms: depth, columns, to });
                    }
                    PackedElements::F32 => level.panel(&Panel {
                        src: from.cast(),
                        k_stride: steps[0],
                        j_stride: steps[1],
                        k: depth,
                        width: columns,
                        dst: to.as_mut_ptr(),
                        ld: NR as isize,
                        pad: NR,
                    }),
                    PackedElements::Bytes => {
                        to.fill(0.0);
                        let to = to.as_mut_ptr().cast();
                        groups_of_bytes(*level, from, steps, [depth, columns], to);
                    }
                }
            }
        }
    }
}

/// Copies bytes of some columns as groups of a panel of an integer product.
///
/// # Safety
/// The source covers the terms and columns, and the panel has room for them.
pub(crate) unsafe fn groups_of_bytes(
    level: IsaLevel,
    from: *const u8,
    [row, step]: [isize; 2],
    [terms, cols]: [usize; 2],
    to: *mut u8,
) {
    for first in (0..terms).step_by(TERMS) {
        let group = IntegerGroup {
            terms: TERMS.min(terms - first),
            rows: core::array::from_fn(|term| from.wrapping_offset((first + term) as isize * row)),
            step,
            cols,
            to: to.wrapping_add(first * NR),
        };
        // SAFETY: by the caller's contract.
        unsafe { level.integer_group(&group) };
    }
}
