//! Calls of libraries of a GPU's maker, by plain sums.

use std::sync::Arc;

use tensorc_abi::{BatchedGemm, Conv2d, DType, MatrixLayout, VendorCall, VendorContraction};
use tensorc_ir::scalar::Scalar;
use tensorc_runtime::gpu::{LaunchConfig, VendorKernel};

use crate::function::HostKernel;

/// What a library may leave in its working memory.
const LEFT: u8 = 0x5a;

/// A call as a function.
pub(crate) fn function(kernel: VendorKernel) -> (LaunchConfig, HostKernel) {
    let VendorKernel { name, call, buffers } = kernel;
    let run = move |buffers: &mut [Vec<u8>]| {
        execute(&call, buffers);
        Ok(())
    };
    (LaunchConfig { name, ..LaunchConfig::default() }, HostKernel::new(buffers, Arc::new(run)))
}

/// Elements of a buffer as f64, which holds every value of the types that libraries compute.
fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    bytes.chunks_exact(dtype.size()).map(|bytes| Scalar::read(dtype, bytes).as_f64()).collect()
}

/// Executes a call on copies of its arguments.
fn execute(call: &VendorCall, buffers: &mut [Vec<u8>]) {
    let dtype = call.dtype;
    let operands: Vec<Vec<f64>> = buffers[..call.result()].iter().map(|bytes| numbers(bytes, dtype)).collect();
    if let Some(memory) = buffers.get_mut(call.result() + 1) {
        memory.fill(LEFT);
    }
    let result = &mut buffers[call.result()];
    let mut store = |at: i64, value: f64| {
        let place = at as usize * dtype.size();
        // Sums are f32 before they are rounded to the result.
        Scalar::from_f64(dtype, f64::from(value as f32)).write(&mut result[place..place + dtype.size()]);
    };
    match &call.contraction {
        VendorContraction::Product { call, bias } => {
            product(call, [&operands[0], &operands[1]], bias.then(|| &operands[2][..]), &mut store);
        }
        VendorContraction::Convolution(conv) => convolution(conv, [&operands[0], &operands[1]], &mut store),
    }
}

fn product(call: &BatchedGemm, [a, b]: [&[f64]; 2], bias: Option<&[f64]>, store: &mut dyn FnMut(i64, f64)) {
    let [x, y, z] = call.batch.map(|extent| extent as i64);
    for batch in 0..x * y * z {
        let at = [batch / (y * z), batch / z % y, batch % z];
        let start = |l: &MatrixLayout| l.offset + (0..3).map(|i| at[i] * l.batch_strides[i]).sum::<i64>();
        let [first, second, out] = [&call.a, &call.b, &call.c].map(start);
        for m in 0..call.m as i64 {
            for n in 0..call.n as i64 {
                let term = |k: i64| {
                    let left = a[(first + m * call.a.row_stride + k * call.a.col_stride) as usize];
                    left * b[(second + k * call.b.row_stride + n * call.b.col_stride) as usize]
                };
                let sum = (0..call.k as i64).map(term).sum::<f64>();
                let added = bias.map_or(0.0, |bias| bias[n as usize]);
                store(out + m * call.c.row_stride + n * call.c.col_stride, sum + added);
            }
        }
    }
}

fn convolution(conv: &Conv2d, [x, w]: [&[f64]; 2], store: &mut dyn FnMut(i64, f64)) {
    let [height, width] = conv.input.map(|extent| extent as i64);
    let [rows, columns] = conv.output;
    let [taps_down, taps_across] = conv.kernel;
    let inside = |axis: usize, at: u64, tap: u64| {
        let place = (at * conv.strides[axis] + tap * conv.dilations[axis]) as i64 - conv.pads[axis] as i64;
        (0..conv.input[axis] as i64).contains(&place).then_some(place)
    };
    let filters = conv.groups * conv.out_channels;
    let mut at = 0;
    for (image, filter) in (0..conv.batch).flat_map(|n| (0..filters).map(move |f| (n, f))) {
        let group = filter / conv.out_channels;
        for (p, q) in (0..rows).flat_map(|p| (0..columns).map(move |q| (p, q))) {
            let mut sum = 0.0;
            for channel in 0..conv.in_channels {
                let plane = ((image * conv.groups + group) * conv.in_channels + channel) as i64;
                let taps = ((filter * conv.in_channels + channel) * taps_down * taps_across) as usize;
                for (r, s) in (0..taps_down).flat_map(|r| (0..taps_across).map(move |s| (r, s))) {
                    if let (Some(row), Some(column)) = (inside(0, p, r), inside(1, q, s)) {
                        let value = x[((plane * height + row) * width + column) as usize];
                        sum += value * w[taps + (r * taps_across + s) as usize];
                    }
                }
            }
            store(at, sum);
            at += 1;
        }
    }
}
