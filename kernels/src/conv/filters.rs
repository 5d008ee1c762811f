//! The filter matrix of a convolution or data gradient as panels of rows.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvAlgorithm, ConvPass};

use super::shape::ConvPhase;
use crate::blocking::EvenSplit;
use crate::isa_levels::{IsaLevel, Panel};

/// Where the elements of filters `[g·oc, ic, kh, kw]` lie, seen as a matrix of result channels by
/// (operand channel, tap).
#[derive(Clone, Copy, Debug)]
pub(super) struct Filters {
    /// Whether they are packed ahead of time.
    pub packed: bool,
    /// Elements between two groups, result channels and operand channels.
    group: usize,
    row: usize,
    channel: usize,
    /// Columns of a filter plane.
    width: usize,
}

impl Filters {
    pub(super) fn new(call: &Conv2d) -> Filters {
        let [inner, outer] = [call.in_channels, call.out_channels].map(|c| c as usize);
        let taps = (call.kernel[0] * call.kernel[1]) as usize;
        let (row, channel) = match call.pass {
            ConvPass::DataGradient => (taps, inner * taps),
            _ => (inner * taps, taps),
        };
        let packed = call.pass == ConvPass::Packed(ConvAlgorithm::Direct);
        Filters { packed, group: outer * inner * taps, row, channel, width: call.kernel[1] as usize }
    }

    /// Packs rows of group `group` for some channels: element (row i of panel p, channel c, tap t)
    /// goes to `dst[(start(p) - start(first))·stride + ((c - first channel)·taps + t)·height(p) + i]`.
    ///
    /// # Safety
    /// `w` addresses the filters, the group, rows and channels exist, and `dst` has room.
    #[allow(clippy::too_many_arguments, reason = "a block of the matrix and where it goes")]
    pub(super) unsafe fn pack(
        &self,
        level: IsaLevel,
        w: *const f32,
        phase: &ConvPhase,
        group: usize,
        (rows, panels): (EvenSplit, Range<usize>),
        channels: Range<usize>,
        (dst, stride): (*mut f32, usize),
    ) {
        let (taps, first) = (phase.shape.taps(), rows.start(panels.start));
        if taps == 0 {
            return;
        }
        let tap = phase.tap[0] * self.width + phase.tap[1];
        let base = w.wrapping_add(group * self.group + channels.start * self.channel + tap);
        for p in panels {
            let rows = rows.range(p);
            let src = base.wrapping_add(rows.start * self.row);
            let dst = dst.wrapping_add((rows.start - first) * stride);
            // SAFETY: passed on from the caller.
            unsafe { self.panel(level, phase, channels.len(), src, rows.len(), dst) };
        }
    }

    /// One panel, from its first element on.
    ///
    /// # Safety
    /// As for `pack`.
    unsafe fn panel(
        &self,
        level: IsaLevel,
        phase: &ConvPhase,
        channels: usize,
        src: *const f32,
        height: usize,
        dst: *mut f32,
    ) {
        let ([kh, kw], [down, across]) = (phase.shape.kernel, phase.tap_step);
        let taps = kh * kw;
        let whole = kw == self.width || kh == 1;
        let mut panel = Panel {
            src,
            k_stride: 1,
            j_stride: self.row as isize,
            k: channels * taps,
            width: height,
            dst,
            ld: height as isize,
            pad: height,
        };
        if across == 1 && self.channel == taps || taps == 1 {
            panel.k_stride = if taps == 1 { self.channel as isize } else { 1 };
            // SAFETY: the rows hold these terms one after the other.
            unsafe { level.panel(&panel) };
        } else if across.abs() == 1 && whole && down.abs() == 1 {
            // All taps of a channel, backwards: written from the last to the first.
            panel.k = taps;
            panel.ld = -(height as isize);
            for c in 0..channels {
                panel.src = src.wrapping_add(c * self.channel).wrapping_sub(taps - 1);
                panel.dst = dst.wrapping_add((c * taps + taps - 1) * height);
                // SAFETY: the taps of a plane lie before its last one.
                unsafe { level.panel(&panel) };
            }
        } else {
            panel.k = channels;
            panel.k_stride = self.channel as isize;
            panel.ld = (taps * height) as isize;
            for t in 0..taps {
                let tap = (t / kw) as isize * down * self.width as isize + (t % kw) as isize * across;
                panel.src = src.wrapping_offset(tap);
                panel.dst = dst.wrapping_add(t * height);
                // SAFETY: the tap exists in every channel.
                unsafe { level.panel(&panel) };
            }
        }
    }
}
