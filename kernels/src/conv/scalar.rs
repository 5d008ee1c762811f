//! Convolutions of a few elements, one output element after the other: packing would take longer.

use core::ops::Range;

use tensorc_abi::{Conv2d, ConvPass};

use super::{Tensors, WindowShape};
use crate::epilogue::EpilogueCall;
use crate::fused::{Baseline, FusedMultiplyAdd};

/// Floating-point operations of the largest convolution that is computed so.
const MAX_FLOPS: u64 = 1024;

/// Whether a convolution is computed element by element. Its filters are not packed.
pub(super) fn is_small(call: &Conv2d) -> bool {
    call.pass == ConvPass::Forward && call.in_planes() && call.flops() <= MAX_FLOPS
}

/// One for each plane of the result.
pub(super) fn tasks(shape: &WindowShape) -> usize {
    if shape.pixels() == 0 { 0 } else { shape.batch * shape.groups * shape.out_channels }
}

/// # Safety
/// As for [`super::conv_run`].
pub(super) unsafe fn run(shape: &WindowShape, tensors: Tensors, epilogue: Option<EpilogueCall>, tasks: Range<usize>) {
    let channels = shape.groups * shape.out_channels;
    for task in tasks {
        let (image, channel) = (task / channels, task % channels);
        let y = tensors.result.wrapping_add(image * shape.images[1] + channel * shape.pixels());
        for pixel in 0..shape.pixels() {
            // SAFETY: the element is one of the plane; the rest is the caller's contract.
            unsafe { *y.add(pixel) = element(shape, &tensors, (image, channel), pixel) };
        }
        // SAFETY: the plane is finished; the epilogue fits by the caller's contract.
        unsafe { EpilogueCall::finish(epilogue, [image as u64, 0, 0], channel..channel + 1, 0..shape.pixels()) };
    }
}

/// The sum of one output element, over ascending input channels, rows and columns of the filter; 0 in the padding.
///
/// # Safety
/// Image, channel and pixel exist.
unsafe fn element(shape: &WindowShape, tensors: &Tensors, (image, channel): (usize, usize), pixel: usize) -> f32 {
    let group = channel / shape.out_channels;
    let origin = [pixel / shape.output[1], pixel % shape.output[1]];
    let mut sum = 0.0;
    for i in 0..shape.in_channels {
        let x = tensors.left.wrapping_add(image * shape.images[0] + (group * shape.in_channels + i) * shape.plane());
        let w = tensors.right.wrapping_add((channel * shape.in_channels + i) * shape.taps());
        for tap in 0..shape.taps() {
            let at = [tap / shape.kernel[1], tap % shape.kernel[1]];
            let [row, column] = [0, 1].map(|axis| {
                (origin[axis] * shape.strides[axis] + at[axis] * shape.dilations[axis]).wrapping_sub(shape.pads[axis])
            });
            let inside = row < shape.input[0] && column < shape.input[1];
            // SAFETY: the position is inside of the plane; the filter has so many taps.
            let (value, weight) =
                unsafe { (if inside { *x.add(row * shape.input[1] + column) } else { 0.0 }, *w.add(tap)) };
            sum = Baseline.mul_add(value, weight, sum);
        }
    }
    sum
}
