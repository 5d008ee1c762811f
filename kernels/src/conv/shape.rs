//! Convolutions in machine integers, and their data gradients as convolutions.
//!
//! The gradient of x at strides s is made of s·s *phases*: the rows h ≡ a (mod s) and columns ≡ b of
//! x meet only some filter taps, and over them the windows move over y by one position at a time.
//! So every phase is a convolution at stride 1, with part of the filter read backwards.

use tensorc_abi::{Conv2d, ConvPass, ImageLayout};

use crate::isa_levels::LANES;

/// Windows moved over the planes of an image; pointwise ones are seen as one long row of pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowShape {
    pub batch: usize,
    pub groups: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Modulo 2⁶⁴: the first window of a phase may lie inside the image.
    pub pads: [usize; 2],
    /// Whether output pixels are input pixels.
    pub pointwise: bool,
    /// Elements from an input image to the next, and from an output image to the next.
    pub images: [usize; 2],
}

fn pair(p: [u64; 2]) -> [usize; 2] {
    [p[0] as usize, p[1] as usize]
}

impl WindowShape {
    /// The convolution that `call` describes, whatever is computed of it.
    pub(crate) fn forward(call: &Conv2d) -> Self {
        let mut shape = WindowShape::stated(call);
        shape.flatten();
        shape
    }

    /// As [`WindowShape::forward`], with rows and columns of pointwise ones as well.
    pub(crate) fn stated(call: &Conv2d) -> Self {
        WindowShape {
            batch: call.batch as usize,
            groups: call.groups as usize,
            in_channels: call.in_channels as usize,
            out_channels: call.out_channels as usize,
            input: pair(call.input),
            output: pair(call.output),
            kernel: pair(call.kernel),
            strides: pair(call.strides),
            dilations: pair(call.dilations),
            pads: pair(call.pads),
            pointwise: call.is_pointwise(),
            images: pair(call.image_strides()),
        }
    }

    fn flatten(&mut self) {
        if self.pointwise {
            self.in_rows(1);
        }
    }

    /// Sees the pixels of a pointwise convolution as so many rows, which divide their number.
    pub(crate) fn in_rows(&mut self, rows: usize) {
        self.input = [rows, self.pixels() / rows];
        self.output = self.input;
    }

    /// Output pixels of one channel.
    pub(crate) fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Input pixels of one channel.
    pub(crate) fn plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// Elements between the input images of two batch entries.
    pub(crate) fn image(&self) -> usize {
        self.images[0]
    }

    /// Taps of one filter plane.
    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Terms of the sum of one output element.
    pub(crate) fn depth(&self) -> usize {
        self.in_channels * self.taps()
    }

    pub(crate) fn flops(&self) -> f64 {
        2.0 * (self.batch * self.groups * self.out_channels) as f64 * (self.pixels() * self.depth()) as f64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch * self.groups * self.out_channels * self.pixels() == 0
    }
}

/// Distances in an image: element `b·block + p·pixel + l·lane` is channel l of block b of pixel p.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distances {
    pub pixel: usize,
    pub block: usize,
    pub lane: usize,
}

impl Distances {
    /// Of an image of so many channels and pixels.
    pub(super) fn new(layout: ImageLayout, channels: usize, pixels: usize) -> Distances {
        match layout {
            ImageLayout::Nchw => Distances { pixel: 1, block: LANES * pixels, lane: pixels },
            ImageLayout::Nchw16c => Distances { pixel: LANES, block: LANES * pixels, lane: 1 },
            ImageLayout::Nhwc => Distances { pixel: channels, block: LANES, lane: 1 },
        }
    }
}

/// Part of a call that is one movement of windows: all of a convolution, or one phase of a gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvPhase {
    pub shape: WindowShape,
    /// Row and column of the result the first window belongs to.
    pub at: [usize; 2],
    /// Row and column of the first tap in the filter, and the distances to the next ones.
    pub tap: [usize; 2],
    pub tap_step: [isize; 2],
}

/// Distance in the result of the pixels of one phase.
pub(super) fn steps(call: &Conv2d) -> [usize; 2] {
    match call.pass {
        ConvPass::DataGradient => pair(call.strides),
        _ => [1; 2],
    }
}

/// One axis of a phase.
struct Along {
    output: usize,
    kernel: usize,
    dilation: usize,
    pad: usize,
    tap: usize,
    tap_step: isize,
}

/// The windows over y that the positions `at`, `at + stride`, … of x receive from.
///
/// x position h and tap r meet y position (h + pad - r·dilation) / stride where that is whole. The
/// taps of one phase are an arithmetic progression; the last one comes first.
fn along(call: &Conv2d, axis: usize, at: usize) -> Along {
    let [kernel, stride, dilation] = [call.kernel, call.strides, call.dilations].map(|p| p[axis] as usize);
    let first = at + call.pads[axis] as usize;
    let tap_step = stride / gcd(stride, dilation);
    let start = (0..kernel.min(tap_step)).find(|r| (r * dilation) % stride == first % stride);
    let kernel = start.map_or(0, |start| (kernel - start).div_ceil(tap_step));
    let start = start.unwrap_or(0);
    let reach = kernel.saturating_sub(1) * tap_step;
    let offset = (first as isize - ((start + reach) * dilation) as isize).div_euclid(stride as isize);
    Along {
        output: (call.input[axis] as usize).saturating_sub(at).div_ceil(stride),
        kernel,
        dilation: tap_step * dilation / stride,
        pad: offset.wrapping_neg() as usize,
        tap: start + reach,
        tap_step: -(tap_step as isize),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl ConvPhase {
    /// Phase `index` of `steps[0]·steps[1]`.
    pub(super) fn new(call: &Conv2d, index: usize) -> ConvPhase {
        let forward = WindowShape::forward(call);
        if call.pass != ConvPass::DataGradient {
            return ConvPhase { shape: forward, at: [0; 2], tap: [0; 2], tap_step: [1; 2] };
        }
        let across = call.strides[1] as usize;
        let at = [index / across, index % across];
        let [rows, cols] = [along(call, 0, at[0]), along(call, 1, at[1])];
        let mut shape = WindowShape {
            in_channels: forward.out_channels,
            out_channels: forward.in_channels,
            input: pair(call.output),
            output: [rows.output, cols.output],
            kernel: [rows.kernel, cols.kernel],
            strides: [1; 2],
            dilations: [rows.dilation, cols.dilation],
            pads: [rows.pad, cols.pad],
            images: [forward.images[1], forward.images[0]],
            ..forward
        };
        shape.flatten();
        ConvPhase { shape, at, tap: [rows.tap, cols.tap], tap_step: [rows.tap_step, cols.tap_step] }
    }
}
