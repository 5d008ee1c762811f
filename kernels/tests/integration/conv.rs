//! Convolutions and their gradients against the documented chain of multiply-adds (equal bits) and against f64 sums
//! (error bound), for every ISA level and division into tasks; Winograd convolution against f64 sums.

use crate::rounded::to_bf16;
use crate::support::{self, Counter, Random, Supply, assert_same_bits, cuts, emulated, isa_levels, scratch};
use tensorc_abi::{CHANNEL_BLOCK, Conv2d, ConvAlgorithm, ConvPass, ImageLayout, MatrixLayout, Packing};
use tensorc_kernels::{Isa, conv_run_with, conv_scratch, conv_tasks};

/// The place of every product: batch entry, group, output and input channel within the group, output
/// and input pixel, tap.
fn terms(call: &Conv2d, mut visit: impl FnMut([u64; 7])) {
    let ([h, wi], [oh, ow], [kh, kw]) = (call.input, call.output, call.kernel);
    for n in 0..call.batch {
        for (group, o) in (0..call.groups).flat_map(|g| (0..call.out_channels).map(move |o| (g, o))) {
            for (p, q) in (0..oh).flat_map(|p| (0..ow).map(move |q| (p, q))) {
                for block in (0..call.in_channels).step_by(lanes(call) as usize) {
                    let taps = (0..kh).flat_map(|r| (0..kw).map(move |s| (r, s)));
                    let end = call.in_channels.min(block + lanes(call));
                    for ((r, s), i) in taps.flat_map(|tap| (block..end).map(move |i| (tap, i))) {
                        let row = (p * call.strides[0] + r * call.dilations[0]).wrapping_sub(call.pads[0]);
                        let col = (q * call.strides[1] + s * call.dilations[1]).wrapping_sub(call.pads[1]);
                        if row < h && col < wi {
                            visit([n, group, o, i, p * ow + q, row * wi + col, r * kw + s]);
                        }
                    }
                }
            }
        }
    }
}

/// Channels of x that are added up tap by tap.
fn lanes(call: &Conv2d) -> u64 {
    if call.layouts[0] == ImageLayout::Nchw { 1 } else { CHANNEL_BLOCK }
}

/// `[n, channels, pixels]` in a layout, or back.
fn laid_out(data: &[f32], layout: ImageLayout, channels: u64, pixels: u64, back: bool) -> Vec<f32> {
    let (channels, pixels, lanes) = (channels as usize, pixels as usize, CHANNEL_BLOCK as usize);
    let mut out = vec![0.0; data.len()];
    for i in 0..data.len() {
        let (n, c, p) = (i / (channels * pixels), i / pixels % channels, i % pixels);
        let at = match layout {
            ImageLayout::Nchw => i,
            ImageLayout::Nchw16c => ((n * channels / lanes + c / lanes) * pixels + p) * lanes + c % lanes,
            ImageLayout::Nhwc => (n * pixels + p) * channels + c,
        };
        if back { out[i] = data[at] } else { out[at] = data[i] }
    }
    out
}

/// x of a call from planes.
fn image(call: &Conv2d, x: &[f32]) -> Vec<f32> {
    laid_out(x, call.layouts[0], call.groups * call.in_channels, call.input[0] * call.input[1], false)
}

/// y of a call in planes.
fn planes(call: &Conv2d, y: &[f32]) -> Vec<f32> {
    laid_out(y, call.layouts[1], call.groups * call.out_channels, call.output[0] * call.output[1], true)
}

/// All layouts of x and y.
fn all_layouts() -> impl Iterator<Item = [ImageLayout; 2]> {
    ImageLayout::ALL.into_iter().flat_map(|x| ImageLayout::ALL.map(|y| [x, y]))
}

/// The passes that compute with planes.
const PLANAR: [ConvPass; 4] =
    [ConvPass::Packed(ConvAlgorithm::Direct), ConvPass::Forward, ConvPass::DataGradient, ConvPass::FilterGradient];

fn sizes(call: &Conv2d) -> [usize; 3] {
    call.sizes().map(|size| size.unwrap() as usize)
}

/// Operands and result, as positions in (x, filters, y).
fn roles(pass: ConvPass) -> [usize; 3] {
    match pass {
        ConvPass::DataGradient => [2, 1, 0],
        ConvPass::FilterGradient => [0, 2, 1],
        _ => [0, 1, 2],
    }
}

/// The documented sum; each element is checked against its f64 sum.
fn model(call: &Conv2d, left: &[f32], right: &[f32]) -> Vec<f32> {
    let [l, r, out] = roles(call.pass);
    let mut sums = vec![(0.0f32, 0.0f64, 0.0f64, 0); sizes(call)[out]];
    let (pixels, plane) = (call.output[0] * call.output[1], call.input[0] * call.input[1]);
    let taps = call.kernel[0] * call.kernel[1];
    // The order of the loops is that of every pass's sum.
    terms(call, |[n, group, o, i, y, x, tap]| {
        let (outer, inner) = (group * call.out_channels + o, group * call.in_channels + i);
        let at = [
            (n * call.groups * call.in_channels + inner) * plane + x,
            (outer * call.in_channels + i) * taps + tap,
            (n * call.groups * call.out_channels + outer) * pixels + y,
        ];
        let (a, b) = (left[at[l] as usize], right[at[r] as usize]);
        let (sum, exact, size, terms) = &mut sums[at[out] as usize];
        *sum = a.mul_add(b, *sum);
        *exact += f64::from(a) * f64::from(b);
        *size += (f64::from(a) * f64::from(b)).abs();
        *terms += 1;
    });
    let close = |(sum, exact, size, terms): (f32, f64, f64, i32)| {
        assert!((f64::from(sum) - exact).abs() <= f64::from(terms) * f64::from(f32::EPSILON) * size);
        sum
    };
    sums.into_iter().map(close).collect()
}

/// A prologue that hands out x, if the convolution takes it so.
fn supply(call: &Conv2d, x: &[f32]) -> Option<Supply> {
    let (image, plane) = (call.image_strides()[0] as i64, (call.input[0] * call.input[1]) as i64);
    let lanes = CHANNEL_BLOCK as i64;
    let (batch_strides, row_stride) = match call.layouts[0] {
        ImageLayout::Nchw16c => ([image, plane * lanes, 0], lanes),
        _ => ([image, 0, 0], plane),
    };
    let layout = MatrixLayout { offset: 0, batch_strides, row_stride, col_stride: 1 };
    call.takes_computed().then(|| Supply::new(x, &layout, row_stride as usize))
}

fn run(isa: Isa, call: &Conv2d, a: &[f32], b: &[f32], ranges: &[std::ops::Range<u64>], epilogue: bool) -> Vec<f32> {
    let packing = Packing::Conv(call.of_filters());
    let packed = call.pass.is_packed().then(|| support::packed(isa, &packing, b, f32::to_ne_bytes));
    let right = packed.as_ref().map_or(b.as_ptr(), Vec::as_ptr);
    let (inner, outer) = (call.groups * call.in_channels, call.groups * call.out_channels);
    let (batch, rows, cols) = match call.pass {
        ConvPass::FilterGradient => (1, outer, call.in_channels * call.kernel[0] * call.kernel[1]),
        ConvPass::DataGradient => (call.batch, inner, call.input[0] * call.input[1]),
        _ => (call.batch, outer, call.output[0] * call.output[1]),
    };
    let image = match call.pass {
        ConvPass::FilterGradient => rows * cols,
        ConvPass::DataGradient => call.image_strides()[0],
        _ => call.image_strides()[1],
    };
    let mut y = vec![f32::NAN; (batch * image) as usize];
    let image = image as i64;
    let (blocks, strides, [rows, cols]) = match call.layouts[1] {
        ImageLayout::Nchw => (1, [image, 0, 0, cols as i64], [rows, cols]),
        ImageLayout::Nhwc => (1, [image, 0, 0, rows as i64], [cols, rows]),
        ImageLayout::Nchw16c => (
            rows / CHANNEL_BLOCK,
            [image, (CHANNEL_BLOCK * cols) as i64, 0, CHANNEL_BLOCK as i64],
            [cols, CHANNEL_BLOCK],
        ),
    };
    let counter = Counter::new([batch, blocks, 1], rows, cols, y.as_mut_ptr(), strides);
    let supply = supply(call, a);
    for (i, range) in ranges.iter().enumerate() {
        let supply = supply.as_ref().filter(|_| i % 2 == 1);
        let left = supply.map_or(a.as_ptr().into(), Supply::left);
        let mut scratch = scratch(conv_scratch(call, supply.map(|_| Supply::ARGS)));
        let finish = epilogue.then(|| counter.call());
        let scratch = scratch.as_mut_ptr().cast();
        // SAFETY: the buffers have the sizes the call states.
        unsafe { conv_run_with(isa, call, left, right, y.as_mut_ptr(), finish, range.clone(), scratch) };
    }
    if epilogue {
        counter.assert_once(&format!("{call:?}"));
    }
    y
}

/// Every pass of a convolution.
fn check(random: &mut Random, call: &Conv2d) {
    for pass in PLANAR {
        let call = &Conv2d { pass, ..*call };
        let [left, right, _] = roles(pass).map(|i| sizes(call)[i]);
        let (a, b) = (random.fill(left), random.fill(right));
        let expected = model(call, &a, &b);
        let doubled: Vec<f32> = expected.iter().map(|y| 2.0 * y).collect();
        let tasks = conv_tasks(call);
        for isa in isa_levels() {
            let what = format!("{isa:?} {call:?}");
            assert_same_bits(&what, &run(isa, call, &a, &b, std::slice::from_ref(&(0..tasks)), false), &expected);
            assert_same_bits(&what, &run(isa, call, &a, &b, &cuts(random, tasks), true), &doubled);
        }
    }
}

/// A convolution of one group, or a depthwise one, between images of which at least one is not in planes.
fn check_layouts(random: &mut Random, call: &Conv2d) {
    let (x, w) = (random.fill(sizes(call)[0]), random.fill(sizes(call)[1]));
    // The order of the sum depends on the layout of x.
    let sums = [ImageLayout::Nchw, ImageLayout::Nhwc].map(|from| {
        let layouts = [from, ImageLayout::Nhwc];
        model(&Conv2d { layouts, ..*call }, &x, &w)
    });
    for layouts in all_layouts().filter(|layouts| *layouts != [ImageLayout::Nchw; 2]) {
        let call = &Conv2d { layouts, ..*call };
        if !call.layouts_fit() {
            continue;
        }
        let expected = &sums[usize::from(layouts[0] != ImageLayout::Nchw)];
        let doubled: Vec<f32> = expected.iter().map(|y| 2.0 * y).collect();
        let x = image(call, &x);
        let tasks = conv_tasks(call);
        for isa in isa_levels() {
            let what = format!("{isa:?} {call:?}");
            let y = run(isa, call, &x, &w, std::slice::from_ref(&(0..tasks)), false);
            assert_same_bits(&what, &planes(call, &y), expected);
            let y = run(isa, call, &x, &w, &cuts(random, tasks), true);
            assert_same_bits(&what, &planes(call, &y), &doubled);
        }
    }
}

/// A convolution by Winograd convolution: close to the f64 sums, and the same bits in every ISA level, layout and division.
///
/// A tile is as exact as its largest terms, so the bound is for all of the result: some units of rounding of the
/// largest sum of absolute products.
fn check_winograd(random: &mut Random, call: &Conv2d) {
    let sum = Conv2d { pass: ConvPass::Packed(ConvAlgorithm::Direct), ..*call };
    let (x, w) = (random.fill(sizes(call)[0]), random.fill(sizes(call)[1]));
    let (exact, largest) = exact(&sum, &x, &w);
    for (pass, bound) in
        [(ConvPass::Packed(ConvAlgorithm::WinogradF2), 4.0), (ConvPass::Packed(ConvAlgorithm::WinogradF4), 8.0)]
    {
        let mut first: Option<Vec<f32>> = None;
        let calls = all_layouts().map(|layouts| Conv2d { pass, layouts, ..sum }).filter(Conv2d::layouts_fit);
        for (call, isa) in calls.flat_map(|call| isa_levels().into_iter().map(move |isa| (call, isa))) {
            let (call, x) = (&call, image(&call, &x));
            let tasks = conv_tasks(call);
            let what = format!("{isa:?} {call:?}");
            let y = run(isa, call, &x, &w, std::slice::from_ref(&(0..tasks)), false);
            let doubled: Vec<f32> = y.iter().map(|y| 2.0 * y).collect();
            assert_same_bits(&what, &run(isa, call, &x, &w, &cuts(random, tasks), true), &doubled);
            let y = planes(call, &y);
            assert_same_bits(&what, &y, first.get_or_insert(y.clone()));
            for (a, b) in y.iter().zip(&exact) {
                assert!((f64::from(*a) - b).abs() <= bound * f64::from(f32::EPSILON) * largest, "{what}: {a} for {b}");
            }
        }
    }
}

/// The f64 sums of a convolution, and the largest sum of absolute products.
fn exact(call: &Conv2d, x: &[f32], w: &[f32]) -> (Vec<f64>, f64) {
    let mut sums = vec![(0.0f64, 0.0f64); sizes(call)[2]];
    let (pixels, plane) = (call.output[0] * call.output[1], call.input[0] * call.input[1]);
    terms(call, |[n, _, o, i, at, from, tap]| {
        let a = f64::from(x[((n * call.in_channels + i) * plane + from) as usize]);
        let b = f64::from(w[((o * call.in_channels + i) * 9 + tap) as usize]);
        let (sum, size) = &mut sums[((n * call.out_channels + o) * pixels + at) as usize];
        *sum += a * b;
        *size += (a * b).abs();
    });
    let largest = sums.iter().fold(0.0, |most: f64, (_, size)| most.max(*size));
    (sums.into_iter().map(|(sum, _)| sum).collect(), largest)
}

/// Whether a convolution is tried: an emulator takes some 100 ns for each multiplication.
fn affordable(call: &Conv2d) -> bool {
    let [kernel, output] = [call.kernel, call.output].map(|[rows, columns]| rows * columns);
    let sums = call.batch * call.groups * call.out_channels * output;
    !emulated() || sums * call.in_channels * kernel <= 12 << 20
}

/// Fills in the output size for padding of `pads` on both sides.
fn conv(mut call: Conv2d) -> Conv2d {
    for d in 0..2 {
        let reach = call.dilations[d] * (call.kernel[d] - 1) + 1;
        call.output[d] = (call.input[d] + 2 * call.pads[d]).saturating_sub(reach) / call.strides[d] + 1;
    }
    call
}

fn random_conv(random: &mut Random, groups: u64, in_channels: u64, out_channels: u64) -> Conv2d {
    let kernel: [u64; 2] = [random.pick(&[1, 2, 3, 3, 5]), random.pick(&[1, 2, 3, 3, 5, 7])];
    let dilations: [u64; 2] = [random.pick(&[1, 1, 2]), random.pick(&[1, 1, 3])];
    let pads = [random.below(4) as u64, random.below(4) as u64];
    let mut input = [random.pick(&[1, 2, 5, 7, 9, 14]), random.pick(&[1, 3, 7, 8, 15, 16, 17, 33])];
    for d in 0..2 {
        input[d] = input[d].max((dilations[d] * (kernel[d] - 1) + 1).saturating_sub(2 * pads[d]));
    }
    conv(Conv2d {
        batch: random.pick(&[1, 1, 2, 5]),
        groups,
        in_channels,
        out_channels,
        input,
        output: [0; 2],
        kernel,
        strides: [random.pick(&[1, 1, 2, 3]), random.pick(&[1, 1, 2, 3])],
        dilations,
        pads,
        pass: ConvPass::Packed(ConvAlgorithm::Direct),
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    })
}

#[test]
fn random_convolutions() {
    let mut random = Random::new(5);
    for _ in 0..support::rounds(200) {
        let groups = random.pick(&[1, 1, 2, 3]);
        let (inputs, outputs) = (random.pick(&[1, 2, 3, 5, 8]), random.pick(&[1, 4, 7, 12, 13, 25]));
        let call = random_conv(&mut random, groups, inputs, outputs);
        check(&mut random, &call);
    }
}

#[test]
fn random_depthwise_convolutions() {
    let mut random = Random::new(6);
    for _ in 0..support::rounds(200) {
        let groups = random.pick(&[2, 3, 17]);
        let multiplier = random.pick(&[1, 1, 1, 2, 3]);
        let call = random_conv(&mut random, groups, 1, multiplier);
        check(&mut random, &call);
    }
}

#[test]
fn few_filters_of_many_channels() {
    let mut random = Random::new(15);
    let calls = [
        plain(70, 8, 14, 5, 1),
        plain(96, 5, 32, 3, 2),
        Conv2d { groups: 2, ..plain(40, 13, 16, 3, 1) },
        Conv2d { groups: 33, ..plain(1, 1, 30, 7, 1) },
    ];
    for call in calls.iter().filter(|call| affordable(call)) {
        check(&mut random, call);
    }
}

#[test]
fn random_convolutions_in_all_layouts() {
    let mut random = Random::new(9);
    for _ in 0..support::rounds(60) {
        let inputs = random.pick(&[1, 3, 10, 16, 16, 24, 32, 37, 80]);
        let outputs = random.pick(&[1, 6, 16, 16, 24, 32, 33, 48, 80]);
        let call = random_conv(&mut random, 1, inputs, outputs);
        check_layouts(&mut random, &call);
        let channels = random.pick(&[16, 17, 24, 32, 45, 80]);
        let call = random_conv(&mut random, channels, 1, 1);
        check_layouts(&mut random, &call);
    }
}

#[test]
fn bands_and_panels_in_all_layouts() {
    let mut random = Random::new(10);
    let calls = [
        plain(64, 96, 30, 3, 1),
        plain(128, 64, 30, 3, 2),
        plain(400, 80, 21, 1, 1),
        plain(64, 256, 15, 1, 2),
        plain(3, 32, 64, 7, 2),
        plain(72, 40, 33, 3, 1),
        plain(200, 6, 28, 1, 1),
        Conv2d { groups: 72, ..plain(1, 1, 40, 3, 1) },
        Conv2d { batch: 3, ..plain(32, 64, 7, 3, 1) },
        Conv2d { groups: 32, ..plain(1, 1, 60, 5, 2) },
        // More padding after the last row and column than before the first, windows in the padding.
        Conv2d { output: [11, 12], ..plain(16, 16, 9, 3, 1) },
        Conv2d { pads: [5, 6], output: [17, 19], ..plain(16, 16, 9, 3, 1) },
        Conv2d { groups: 16, in_channels: 1, out_channels: 1, pads: [5, 6], output: [17, 19], ..plain(1, 1, 9, 3, 1) },
        Conv2d { batch: 0, ..plain(16, 16, 9, 3, 1) },
        Conv2d { in_channels: 0, ..plain(16, 16, 9, 3, 1) },
    ];
    for call in calls.iter().filter(|call| affordable(call)) {
        check_layouts(&mut random, call);
    }
}

#[test]
fn random_winograd_convolutions() {
    let mut random = Random::new(11);
    for _ in 0..support::rounds(40) {
        let (inputs, outputs) = (random.pick(&[16, 32, 48]), random.pick(&[5, 16, 32, 40, 48, 80]));
        let pads = [random.below(3) as u64, random.below(3) as u64];
        let mut input = [random.pick(&[1, 2, 5, 7, 8, 14]), random.pick(&[1, 3, 6, 7, 12, 17, 33])];
        for d in 0..2 {
            input[d] = input[d].max(3u64.saturating_sub(2 * pads[d]));
        }
        let batch = random.pick(&[1, 1, 2, 5]);
        let call = conv(Conv2d { batch, input, pads, ..plain(inputs, outputs, 9, 3, 1) });
        check_winograd(&mut random, &call);
    }
}

#[test]
fn winograd_bands_and_panels() {
    let mut random = Random::new(12);
    // The division into bands and panels is the same code on every processor; an emulator is for the tiles.
    let divided = match emulated() {
        true => vec![plain(32, 48, 14, 3, 1), Conv2d { batch: 7, ..plain(64, 32, 7, 3, 1) }],
        false => {
            vec![plain(128, 48, 57, 3, 1), plain(64, 96, 30, 3, 1), Conv2d { batch: 7, ..plain(256, 64, 7, 3, 1) }]
        }
    };
    let edges = [
        // More padding after the last row and column than before the first, tiles in the padding.
        Conv2d { output: [11, 12], ..plain(16, 16, 9, 3, 1) },
        Conv2d { pads: [5, 6], output: [17, 19], ..plain(16, 16, 9, 3, 1) },
        Conv2d { batch: 0, ..plain(16, 16, 9, 3, 1) },
        Conv2d { in_channels: 0, ..plain(16, 16, 9, 3, 1) },
    ];
    for call in divided.iter().chain(&edges) {
        check_winograd(&mut random, call);
    }
}

/// Errors relative to the largest result, of data in -1..1 and filters of 64 and 512 channels.
#[test]
fn winograd_is_about_as_exact_as_the_sum() {
    let mut random = Random::new(14);
    for channels in [64, 512] {
        let call = Conv2d { layouts: [ImageLayout::Nchw16c; 2], ..plain(channels, 16, 16, 3, 1) };
        let (x, w) = (random.fill(sizes(&call)[0]), random.fill(sizes(&call)[1]));
        let (exact, _) = exact(&call, &x, &w);
        let x = image(&call, &x);
        let largest = exact.iter().fold(0.0, |most: f64, y| most.max(y.abs()));
        for (pass, bound) in [
            (ConvPass::Packed(ConvAlgorithm::Direct), 4e-6),
            (ConvPass::Packed(ConvAlgorithm::WinogradF2), 4e-6),
            (ConvPass::Packed(ConvAlgorithm::WinogradF4), 8e-6),
        ] {
            let call = &Conv2d { pass, ..call };
            let all = std::slice::from_ref(&(0..conv_tasks(call))).to_vec();
            let y = planes(call, &run(tensorc_kernels::isa(), call, &x, &w, &all, false));
            let error = y.iter().zip(&exact).fold(0.0, |most: f64, (a, b)| most.max((f64::from(*a) - b).abs()));
            println!("{channels} channels, {pass:?}: {:.1e} of the largest result", error / largest);
            assert!(error <= bound * largest, "{channels} channels, {pass:?}: {error} of {largest}");
        }
    }
}

#[test]
fn winograd_images_may_lie_apart() {
    let mut random = Random::new(13);
    for pass in [ConvPass::Packed(ConvAlgorithm::WinogradF2), ConvPass::Packed(ConvAlgorithm::WinogradF4)] {
        let dense = Conv2d { batch: 3, pass, layouts: [ImageLayout::Nchw16c; 2], ..plain(32, 48, 10, 3, 1) };
        let images = dense.image_sizes().map(|size| size + 64);
        let apart = Conv2d { images, ..dense };
        let (x, w) = (random.fill(sizes(&dense)[0]), random.fill(sizes(&dense)[1]));
        let [from, to] = [0, 1].map(|i| (dense.image_sizes()[i] as usize, images[i] as usize));
        let all = std::slice::from_ref(&(0..conv_tasks(&dense))).to_vec();
        for isa in isa_levels() {
            let expected = spread(&run(isa, &dense, &x, &w, &all, false), to.0, to.1);
            let found = run(isa, &apart, &spread(&x, from.0, from.1), &w, &all, false);
            assert_same_bits(&format!("{isa:?} {apart:?}"), &found[..expected.len()], &expected);
        }
    }
}

fn plain(in_channels: u64, out_channels: u64, size: u64, kernel: u64, stride: u64) -> Conv2d {
    conv(Conv2d {
        batch: 1,
        groups: 1,
        in_channels,
        out_channels,
        input: [size; 2],
        output: [0; 2],
        kernel: [kernel; 2],
        strides: [stride; 2],
        dilations: [1; 2],
        pads: [kernel / 2; 2],
        pass: ConvPass::Packed(ConvAlgorithm::Direct),
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    })
}

/// The images of a tensor moved apart, what lies between them NaN.
fn spread(values: &[f32], image: usize, stride: usize) -> Vec<f32> {
    let images = values.chunks(image.max(1));
    images.flat_map(|i| i.iter().copied().chain(std::iter::repeat_n(f32::NAN, stride - image))).collect()
}

#[test]
fn images_may_lie_apart() {
    let mut random = Random::new(9);
    for round in 0..support::rounds(120) {
        let (groups, inputs, outputs) = match round % 3 {
            0 => (3, 1, random.pick(&[1, 2])),
            _ => (random.pick(&[1, 2]), random.pick(&[1, 3, 8]), random.pick(&[4, 13, 25])),
        };
        let dense = random_conv(&mut random, groups, inputs, outputs);
        let images = dense.image_sizes().map(|size| size + random.pick(&[0, 1, 5, 64]));
        for pass in PLANAR {
            let (dense, apart) = (Conv2d { pass, ..dense }, Conv2d { pass, images, ..dense });
            // Elements of an image, and from image to image: one image for filters.
            let extent = |role: usize| match role {
                1 => [sizes(&dense)[1]; 2],
                x => [dense.image_sizes()[x / 2] as usize, images[x / 2] as usize],
            };
            let [l, r, out] = roles(pass);
            let (a, b) = (random.fill(sizes(&dense)[l]), random.fill(sizes(&dense)[r]));
            let moved = |values: &[f32], role: usize| spread(values, extent(role)[0], extent(role)[1]);
            let all = std::slice::from_ref(&(0..conv_tasks(&dense))).to_vec();
            for isa in isa_levels() {
                let expected = moved(&run(isa, &dense, &a, &b, &all, false), out);
                let found = run(isa, &apart, &moved(&a, l), &moved(&b, r), &all, false);
                assert_same_bits(&format!("{isa:?} {apart:?}"), &found[..expected.len()], &expected);
            }
        }
    }
}

#[test]
fn several_blocks_and_tasks() {
    let mut random = Random::new(7);
    let calls = [
        plain(64, 130, 14, 3, 1),
        plain(300, 70, 7, 1, 1),
        plain(300, 70, 15, 1, 2),
        plain(3, 20, 64, 7, 2),
        plain(2, 300, 10, 17, 1),
        Conv2d { groups: 32, ..plain(1, 1, 120, 5, 1) },
        Conv2d { groups: 5, ..plain(1, 1, 131, 3, 2) },
        Conv2d { groups: 5, ..plain(1, 1, 120, 5, 2) },
        Conv2d { groups: 5, ..plain(1, 2, 70, 3, 1) },
        // Image planes a multiple of 2 KiB apart, and pointwise ones of 8 KiB.
        plain(19, 13, 32, 3, 1),
        Conv2d { input: [32, 64], output: [32, 64], ..plain(70, 70, 1, 1, 1) },
        // Several small images side by side.
        Conv2d { batch: 9, ..plain(20, 50, 8, 3, 1) },
        Conv2d { batch: 7, ..plain(80, 150, 5, 3, 2) },
        Conv2d { batch: 3, ..plain(40, 70, 4, 1, 2) },
    ];
    for call in calls.iter().filter(|call| affordable(call)) {
        check(&mut random, call);
    }
}

#[test]
fn empty_and_uneven() {
    let mut random = Random::new(8);
    let base = plain(3, 5, 9, 3, 1);
    for call in [
        Conv2d { batch: 0, ..base },
        Conv2d { out_channels: 0, ..base },
        Conv2d { in_channels: 0, ..base },
        // More padding after the last row and column than before the first.
        Conv2d { output: [11, 12], ..base },
        // A window that lies in the padding altogether.
        Conv2d { pads: [5, 6], output: [17, 19], ..base },
        Conv2d { groups: 3, in_channels: 1, out_channels: 1, pads: [5, 6], output: [17, 19], ..base },
    ] {
        check(&mut random, &call);
    }
}

/// Products of numbers of bf16 are exact in f32: the sum of rounded operands, by kernels that do not round.
#[test]
fn rounded_operands() {
    let mut random = Random::new(23);
    let mut calls: Vec<Conv2d> = (0..support::rounds(60))
        .map(|_| {
            let (inputs, outputs) = (random.pick(&[16, 32, 48]), random.pick(&[4, 16, 25, 32, 50]));
            random_conv(&mut random, 1, inputs, outputs)
        })
        .collect();
    calls.extend([plain(64, 40, 28, 1, 1), plain(32, 32, 28, 1, 2), plain(160, 33, 14, 3, 1)]);
    for sum in calls.iter().filter(|call| affordable(call)) {
        let rounded = |data: Vec<f32>| data.into_iter().map(to_bf16).collect::<Vec<f32>>();
        let (x, w) = (random.fill(sizes(sum)[0]), random.fill(sizes(sum)[1]));
        let (near_x, near_w) = (rounded(x.clone()), rounded(w.clone()));
        let pass = ConvPass::Packed(ConvAlgorithm::Bf16);
        let calls = all_layouts().map(|layouts| Conv2d { pass, layouts, ..*sum }).filter(Conv2d::layouts_fit);
        for (call, isa) in calls.flat_map(|call| isa_levels().into_iter().map(move |isa| (call, isa))) {
            let what = format!("{isa:?} {call:?}");
            let tasks = conv_tasks(&call);
            let whole = std::slice::from_ref(&(0..tasks)).to_vec();
            let y = run(isa, &call, &image(&call, &x), &w, &whole, false);
            let doubled: Vec<f32> = y.iter().map(|y| 2.0 * y).collect();
            let parts = run(isa, &call, &image(&call, &x), &w, &cuts(&mut random, tasks), true);
            assert_same_bits(&what, &parts, &doubled);
            let direct = Conv2d { pass: ConvPass::Packed(ConvAlgorithm::Direct), ..call };
            let all = std::slice::from_ref(&(0..conv_tasks(&direct))).to_vec();
            let expected = run(isa, &direct, &image(&call, &near_x), &near_w, &all, false);
            let terms = (call.in_channels * call.kernel[0] * call.kernel[1]) as f32;
            for (a, b) in y.iter().zip(&expected) {
                assert!((a - b).abs() <= 1e-6 * terms, "{what}: {a} for {b}");
            }
        }
    }
}
