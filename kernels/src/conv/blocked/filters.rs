//! Packed filters of dense convolutions to blocked channels.

use core::ops::Range;

use tensorc_abi::Conv2d;

use super::{BlockedTasks, PANEL};
use crate::isa_levels::{IsaLevel, LANES, NR, PAIR, Panel, RoundedPanel};

/// Elements of packed filters, or words: whole blocks of output channels.
pub fn packed_len(call: &Conv2d) -> usize {
    let BlockedTasks { shape, .. } = BlockedTasks::new(call);
    shape.out_channels.next_multiple_of(LANES) * shape.depth()
}

/// Panels of packed filters: up to two blocks of output channels each.
pub fn panels(call: &Conv2d) -> usize {
    (call.out_channels as usize).div_ceil(PANEL * LANES)
}

/// Writes panels of packed filters of a dense convolution: in each the terms in the order of the sum (see
/// [`RegisterTile`]), padded with zeros to whole blocks of channels.
///
/// # Safety
/// `src` addresses the filters `[oc, ic, kh, kw]` of the panels, with any alignment.
///
/// # Panics
/// If `dst` is shorter than [`packed_len`].
pub unsafe fn pack(level: &IsaLevel, call: &Conv2d, panels: Range<usize>, src: *const f32, dst: &mut [f32]) {
    let schedule = BlockedTasks::new(call);
    let BlockedTasks { shape, lanes, outputs, .. } = &schedule;
    let (depth, taps) = (shape.depth(), shape.taps());
    let origin = src.wrapping_sub(panels.start * PANEL * LANES * depth);
    for panel in panels {
        let rows = PANEL.min(outputs - panel * PANEL) * LANES;
        let first = panel * PANEL * LANES;
        let panel = &mut dst[first * depth..(first + rows) * depth];
        for block in 0..shape.in_channels.div_ceil(*lanes) {
            let (start, channels) = (block * lanes * taps, schedule.channels(block));
            for tap in 0..taps {
                let terms = Panel {
                    src: origin.wrapping_add(first * depth + start + tap),
                    k_stride: taps as isize,
                    j_stride: depth as isize,
                    k: channels,
                    width: rows.min(shape.out_channels - first),
                    dst: panel[(start + tap * channels) * rows..][..channels * rows].as_mut_ptr(),
                    ld: rows as isize,
                    pad: rows,
                };
                // SAFETY: rows and terms are inside the filter matrix, and the panel has room for them.
                unsafe { level.panel(&terms) };
            }
        }
    }
}

/// [`pack`] for operands that are rounded: two neighbouring channels are a word.
///
/// # Safety
/// As for [`pack`].
///
/// # Panics
/// If `dst` is shorter than [`packed_len`].
pub unsafe fn pack_rounded(level: &IsaLevel, call: &Conv2d, panels: Range<usize>, src: *const f32, dst: &mut [f32]) {
    let BlockedTasks { shape, lanes, outputs, .. } = &BlockedTasks::new(call);
    let (words, taps) = (shape.depth(), shape.taps());
    let depth = PAIR * words;
    let origin = src.wrapping_sub(panels.start * PANEL * LANES * depth);
    for panel in panels {
        let rows = PANEL.min(outputs - panel * PANEL) * LANES;
        let first = panel * PANEL * LANES;
        let mut to = dst[first * words..(first + rows) * words].chunks_exact_mut(rows);
        for (block, tap) in (0..shape.in_channels / lanes).flat_map(|block| (0..taps).map(move |tap| (block, tap))) {
            let mut pairs = [[0u32; NR]; LANES / PAIR];
            let terms = RoundedPanel {
                from: origin.wrapping_add(first * depth + block * LANES * taps + tap),
                steps: [taps as isize, depth as isize],
                terms: LANES,
                columns: rows.min(shape.out_channels - first),
                to: pairs.as_mut_ptr(),
            };
            // SAFETY: rows and terms are inside the filter matrix, and the pairs have room for them.
            unsafe { level.rounded_panel(&terms) };
            for (row, to) in pairs.iter().zip(&mut to) {
                row.iter().zip(to).for_each(|(word, to)| *to = f32::from_bits(*word));
            }
        }
    }
}
