//! Products and convolutions of bytes against sums in 64 bits, for every ISA level, layout, sign and division into tasks.

use crate::double::{at, layout};
use crate::support::{Converter, Counter, Random, cuts, isa_levels, packed, rounds, scratch};
use tensorc_abi::{BatchedGemm, Conv2d, ConvPass, GemmElements, ImageLayout, MatrixLayout, PackedElements, Packing};
use tensorc_kernels::{
    conv_run_with, conv_scratch, conv_tasks, integer_run_with, integer_scratch, integer_tasks, pack, packed_len,
};

/// Bytes among which the extremes are frequent.
fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.pick(&[0, 1, 0x7f, 0x80, 0xff, 0x55, 0xaa, 200, 3])).collect()
}

/// Random weights that resemble trained ones: in few pairs of neighbours both are large and have the same sign.
fn weights(random: &mut Random, len: usize) -> Vec<u8> {
    let large = random.pick(&[1, 2, 200]);
    let weight = |random: &mut Random| match random.below(large) {
        0 => random.pick(&[128, 127, 129, 120, 100]),
        _ => random.pick(&[0, 3, 250, 20, 230, 60, 200, 1, 9, 64, 192]),
    };
    (0..len).map(|_| weight(random)).collect()
}

#[test]
fn products_of_bytes_are_exact() {
    let mut random = Random::new(5);
    let mut shapes = vec![
        [1, 1, 1],
        [12, 32, 64],
        [13, 33, 65],
        [25, 31, 7],
        [40, 64, 4],
        [3, 5, 0],
        [0, 4, 3],
        [4, 0, 3],
        [7, 40, 3],
    ];
    let extents = [1, 2, 3, 5, 8, 11, 12, 13, 31, 32, 33, 64, 100];
    shapes.extend((0..rounds(40)).map(|_| [0; 3].map(|_| random.pick(&extents))));
    // Of several tasks, in rows and in columns, and of several blocks of terms.
    shapes.extend([[530, 40, 200], [24, 600, 300], [13, 70, 4100], [30, 130, 2200], [64, 64, 5000]]);
    for [m, n, k] in shapes {
        let batch = random.pick(&[[1, 1, 1], [1, 2, 3]]);
        let elements = random.pick(&[GemmElements::U8I8, GemmElements::I8U8]);
        let (a, a_len) = layout(&mut random, batch, [m, k], false);
        let b_packed = random.pick(&[false, true]);
        // A packed operand is one matrix shared by every batch.
        let (mut b, b_len) = layout(&mut random, if b_packed { [1; 3] } else { batch }, [k, n], false);
        if b_packed {
            b.batch_strides = [0; 3];
        }
        let (c, c_len) = layout(&mut random, batch, [m, n], true);
        let call = BatchedGemm { batch, m, n, k, a, b, c, b_packed, elements };
        let left = bytes(&mut random, a_len);
        let right = if b_packed { weights(&mut random, b_len) } else { bytes(&mut random, b_len) };
        let before: Vec<i32> = (0..c_len as i32).collect();
        let untouched: Vec<i64> = before.iter().map(|x| i64::from(*x)).collect();
        let (mut expected, mut less_one) = (before.clone(), untouched.clone());
        let number = |x: u8, signed: bool| if signed { i64::from(x as i8) } else { i64::from(x) };
        let left_signed = elements == GemmElements::I8U8;
        for flat in 0..batch.iter().product() {
            let index = [flat / (batch[1] * batch[2]), flat / batch[2] % batch[1], flat % batch[2]];
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let term = |k| {
                    let (x, y) = (left[at(&a, index, i, k)], right[at(&b, index, k, j)]);
                    number(x, left_signed) * number(y, !left_signed)
                };
                let (sum, at) = ((0..k).map(term).sum::<i64>() as i32, at(&c, index, i, j));
                (expected[at], less_one[at]) = (sum, i64::from(sum) - 1);
            }
        }
        let MatrixLayout { offset, row_stride, col_stride, .. } = call.b;
        let packing = Packing::GemmB { k, n, offset, row_stride, col_stride, elements: PackedElements::Bytes };
        let apart = random.pick(&[false, true]);
        for isa in isa_levels() {
            let held = if b_packed { packed(isa, &packing, &right, |byte| [byte]) } else { vec![] };
            let held = if b_packed { held.as_ptr().cast() } else { right.as_ptr() };
            let mut result = before.clone();
            let mut converted = untouched.clone();
            let mut marks = vec![0.0f32; (batch.iter().product::<u64>() * m * n) as usize];
            let strides = [m * n * batch[1] * batch[2], m * n * batch[2], m * n, n].map(|s| s as i64);
            let counter = Counter::new(batch, m, n, marks.as_mut_ptr(), strides);
            let [s0, s1, s2] = call.c.batch_strides;
            let to = converted.as_mut_ptr().wrapping_add(call.c.offset as usize);
            let converter = Converter::new(to, [s0, s1, s2, call.c.row_stride]);
            let epilogue = if apart { converter.call() } else { counter.call() };
            let mut memory = scratch(integer_scratch(&call));
            for tasks in cuts(&mut random, integer_tasks(&call)) {
                // SAFETY: the buffers are as long as the layouts reach, and the tasks are within the call's.
                unsafe {
                    let (operands, memory) = ([left.as_ptr(), held], memory.as_mut_ptr().cast());
                    integer_run_with(isa, &call, operands, result.as_mut_ptr(), Some(epilogue), tasks, memory);
                }
            }
            let what = format!("{isa:?} {m}×{n}×{k}, {batch:?}, {elements:?}, packed {b_packed}, apart {apart}");
            if apart {
                assert!(result == before && converted == less_one, "{what}");
            } else {
                assert!(result == expected, "{what}");
                counter.assert_once(&what);
            }
        }
    }
}

/// A convolution of bytes at random, of one group or depthwise.
fn convolution(random: &mut Random) -> Conv2d {
    let pick = |random: &mut Random, from: &[u64]| random.pick(from);
    let [kernel, strides, dilations] =
        [&[1, 1, 2, 3, 5][..], &[1, 1, 2, 3], &[1, 1, 2, 3]].map(|from| [0; 2].map(|_| pick(random, from)));
    let pads: [u64; 2] = [0, 1].map(|d| pick(random, &[0, 0, 1, 2]).min((kernel[d] - 1) * dilations[d]));
    let output = [0; 2].map(|_| pick(random, &[1, 2, 5, 7, 14, 16, 33]));
    let span = |d: usize| (output[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1;
    // Some rows and columns after the last window, or padding there.
    let input =
        [0, 1].map(|d| (span(d) + pick(random, &[0, 0, 1, 2])).saturating_sub(pads[d] + pick(random, &[0, 1])).max(1));
    let [in_channels, out_channels] =
        [&[1, 3, 4, 8, 12, 64, 70, 132][..], &[1, 4, 12, 13, 40]].map(|from| pick(random, from));
    let [groups, in_channels, out_channels] = match pick(random, &[2, 3, 13, 40, 1, 1, 1]) {
        1 => [1, in_channels, out_channels],
        groups => [groups, 1, 1],
    };
    Conv2d {
        batch: pick(random, &[1, 1, 2]),
        groups,
        in_channels,
        out_channels,
        input,
        output,
        kernel,
        strides,
        dilations,
        pads,
        pass: random.pick(&[ConvPass::Bytes, ConvPass::PackedBytes]),
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    }
}

/// Sums in 64 bits.
fn convolved(call: &Conv2d, x: &[u8], filters: &[u8]) -> Vec<i32> {
    let ([h, w], [oh, ow], [kh, kw]) = (call.input, call.output, call.kernel);
    let mut y = vec![];
    let (inner, results) = (call.in_channels, call.groups * call.out_channels);
    for (n, o) in (0..call.batch).flat_map(|n| (0..results).map(move |o| (n, o))) {
        let image = (n * call.groups + o / call.out_channels) * inner;
        for (p, q) in (0..oh).flat_map(|p| (0..ow).map(move |q| (p, q))) {
            let mut sum = 0i64;
            for (r, s) in (0..kh).flat_map(|r| (0..kw).map(move |s| (r, s))) {
                let row = (p * call.strides[0] + r * call.dilations[0]).wrapping_sub(call.pads[0]);
                let column = (q * call.strides[1] + s * call.dilations[1]).wrapping_sub(call.pads[1]);
                for i in (0..call.in_channels).take_while(|_| row < h && column < w) {
                    let pixel = x[(((image + i) * h + row) * w + column) as usize];
                    let filter = filters[(((o * kh + r) * kw + s) * call.in_channels + i) as usize];
                    sum += i64::from(pixel) * i64::from(filter as i8);
                }
            }
            y.push(sum as i32);
        }
    }
    y
}

#[test]
fn convolutions_of_bytes_are_exact() {
    let mut random = Random::new(6);
    let mut calls: Vec<Conv2d> = (0..rounds(60)).map(|_| convolution(&mut random)).collect();
    // Of several blocks of rows, and of several tasks of filters.
    let large = Conv2d { in_channels: 64, input: [56; 2], output: [56; 2], kernel: [3; 2], pads: [1; 2], ..calls[0] };
    let large = Conv2d { batch: 1, groups: 1, out_channels: 40, strides: [1; 2], dilations: [1; 2], ..large };
    calls.push(large);
    calls.push(Conv2d { in_channels: 512, kernel: [1; 2], pads: [0; 2], out_channels: 25, ..large });
    // Whose windows are copied: for the halo of small images, and for channels that do not come in fours.
    calls.push(Conv2d { in_channels: 132, out_channels: 101, input: [7; 2], output: [7; 2], ..large });
    calls.push(Conv2d { in_channels: 64, out_channels: 90, input: [14; 2], output: [14; 2], ..large });
    calls.push(Conv2d {
        in_channels: 3,
        kernel: [7; 2],
        pads: [3; 2],
        strides: [2; 2],
        input: [40; 2],
        output: [20; 2],
        ..large
    });
    for call in calls {
        let [x_len, filters_len, y_len] = call.sizes().map(|n| n.unwrap() as usize);
        let (x, mut filters) = (bytes(&mut random, x_len), bytes(&mut random, filters_len));
        if random.pick(&[true, true, false]) {
            // As trained ones are: few neighbours of one sign are large.
            filters.iter_mut().for_each(|w| {
                *w = random.pick(&[*w, 3, 250, 20, 230, 90, 166, 1, 9, 0, 64, 192]) / random.pick(&[1, 2, 2, 2])
            });
        }
        let expected = convolved(&call, &x, &filters);
        let less_one: Vec<i64> = expected.iter().map(|sum| i64::from(*sum) - 1).collect();
        let apart = random.pick(&[false, true]);
        let mut packed = filters;
        if call.pass.is_packed() {
            let packing = Packing::Conv(call.of_filters());
            let mut words = vec![f32::NAN; packed_len(&packing)];
            // SAFETY: there are so many filters.
            unsafe { pack(&packing, packed.as_ptr(), &mut words) };
            packed = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        }
        for isa in isa_levels() {
            let mut y = vec![-1i32; y_len];
            let (rows, pixels) = (call.groups * call.out_channels, call.output[0] * call.output[1]);
            let mut marks = vec![0.0f32; y_len];
            let strides = [rows * pixels, 0, 0, pixels].map(|s| s as i64);
            let counter = Counter::new([call.batch, 1, 1], rows, pixels, marks.as_mut_ptr(), strides);
            let mut converted = vec![0; y_len];
            let converter = Converter::new(converted.as_mut_ptr(), strides);
            let epilogue = if apart { converter.call() } else { counter.call() };
            let mut memory = scratch(conv_scratch(&call, None));
            for tasks in cuts(&mut random, conv_tasks(&call)) {
                // SAFETY: the buffers have the sizes of the call, and the tasks are within it.
                unsafe {
                    let (x, filters): (*const f32, *const f32) = (x.as_ptr().cast(), packed.as_ptr().cast());
                    let (y, memory) = (y.as_mut_ptr().cast(), memory.as_mut_ptr().cast());
                    conv_run_with(isa, &call, x, filters, y, Some(epilogue), tasks, memory);
                }
            }
            if apart {
                assert!(converted == less_one, "{isa:?} {call:?}");
            } else {
                assert!(y == expected, "{isa:?} {call:?}");
                counter.assert_once(&format!("{isa:?} {call:?}"));
            }
        }
    }
}
