//! Attention against the formula in f64, for every ISA level: awkward shapes, layouts, masks and special values; the
//! same bits in all ISA levels and for any division into runs of tasks.

use crate::support::{Random, assert_same_bits, isa_levels};
use tensorc_abi::{Attention, MatrixLayout};
use tensorc_kernels::{EpilogueCall, Isa, attention_run_with, attention_scratch, attention_tasks};

/// A contiguous matrix for each batch index, or its transpose.
fn layout(batch: [u64; 3], rows: u64, cols: u64, transposed: bool) -> MatrixLayout {
    let size = (rows * cols) as i64;
    let batch_strides = [size * (batch[1] * batch[2]) as i64, size * batch[2] as i64, size];
    let (row_stride, col_stride) = if transposed { (1, rows as i64) } else { (cols as i64, 1) };
    MatrixLayout { offset: 0, batch_strides, row_stride, col_stride }
}

fn call(batch: [u64; 3], [queries, keys, depth, size]: [u64; 4], k_transposed: bool) -> Attention {
    Attention {
        batch,
        queries,
        keys,
        depth,
        size,
        q: layout(batch, queries, depth, false),
        k: layout(batch, depth, keys, !k_transposed),
        v: layout(batch, keys, size, false),
        out: layout(batch, queries, size, false),
        scale: (1.0 / (depth as f32).sqrt()).to_bits(),
        shifted: true,
        empty_is_zero: false,
        rounded: false,
    }
}

fn at(l: &MatrixLayout, batch: [u64; 3], row: u64, col: u64) -> usize {
    let b: i64 = batch.iter().zip(&l.batch_strides).map(|(&b, &s)| b as i64 * s).sum();
    (l.offset + b + row as i64 * l.row_stride + col as i64 * l.col_stride) as usize
}

struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// queries × keys, added to the scores of every batch index.
    mask: Vec<f32>,
}

impl Operands {
    fn random(call: &Attention, seed: u64) -> Operands {
        let mut random = Random::new(seed);
        let batches: u64 = call.batch.iter().product();
        let mut numbers = |n: u64| random.fill(n as usize);
        Operands {
            q: numbers(batches * call.queries * call.depth).iter().map(|x| x * 4.0).collect(),
            k: numbers(batches * call.keys * call.depth),
            v: numbers(batches * call.keys * call.size),
            mask: vec![0.0; (call.queries * call.keys) as usize],
        }
    }
}

/// Adds a mask of queries × keys to a tile.
unsafe extern "C" fn add_mask(buffers: *const *mut u8, scalars: *const i64) {
    // SAFETY: called with a tile, the mask, the number of keys, and the seven parameters of an epilogue.
    unsafe {
        let (tile, mask, keys) =
            ((*buffers).cast::<f32>(), (*buffers.add(1)).cast::<f32>(), *(*buffers.add(2)).cast::<u64>() as usize);
        let s = std::slice::from_raw_parts(scalars, 7).iter().map(|x| *x as usize).collect::<Vec<_>>();
        for (i, j) in (s[3]..s[4]).flat_map(|i| (s[5]..s[6]).map(move |j| (i, j))) {
            let x = tile.add((i - s[3]) * Attention::TILE_COLS as usize + j - s[5]);
            *x += *mask.add(i * keys + j);
        }
    }
}

fn run(isa: Isa, call: &Attention, o: &Operands, step: u64) -> Vec<f32> {
    let batches: u64 = call.batch.iter().product();
    let mut out = vec![7.0f32; (batches * call.queries * call.size) as usize];
    let mut scratch = vec![f64::NAN; attention_scratch(call, 2).div_ceil(8)];
    let mut keys = call.keys;
    let args = [o.mask.as_ptr().cast_mut().cast::<u8>(), (&raw mut keys).cast()];
    let epilogue = Some((EpilogueCall { f: add_mask, args: args.as_ptr(), apart: None }, 2));
    let operands = [o.q.as_ptr(), o.k.as_ptr(), o.v.as_ptr()];
    let tasks = attention_tasks(call);
    for first in (0..tasks).step_by(step as usize) {
        let run = first..tasks.min(first + step);
        // SAFETY: operands, result and scratch are as large as the call says.
        unsafe {
            attention_run_with(isa, call, operands, out.as_mut_ptr(), epilogue, run, scratch.as_mut_ptr().cast());
        }
    }
    out
}

/// The formula in f64; NaN where all weights are zero.
fn model(call: &Attention, o: &Operands) -> Vec<f64> {
    let mut out = vec![0.0; (call.batch.iter().product::<u64>() * call.queries * call.size) as usize];
    for flat in 0..call.batch.iter().product::<u64>() {
        let batch =
            [flat / (call.batch[1] * call.batch[2]), flat / call.batch[2] % call.batch[1], flat % call.batch[2]];
        for i in 0..call.queries {
            let score = |j: u64| {
                let term = |d: u64| f64::from(o.q[at(&call.q, batch, i, d)]) * f64::from(o.k[at(&call.k, batch, d, j)]);
                let sum: f64 = (0..call.depth).map(term).sum();
                sum * f64::from(f32::from_bits(call.scale)) + f64::from(o.mask[(i * call.keys + j) as usize])
            };
            let scores: Vec<f64> = (0..call.keys).map(score).collect();
            let max = if call.shifted { scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) } else { 0.0 };
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for c in 0..call.size {
                let sum: f64 =
                    (0..call.keys).map(|j| weights[j as usize] * f64::from(o.v[at(&call.v, batch, j, c)])).sum();
                let empty = call.empty_is_zero && (total == 0.0 || total.is_nan());
                out[at(&call.out, batch, i, c)] = if empty { 0.0 } else { sum / total };
            }
        }
    }
    out
}

/// Compares all ISA levels with the formula, and with each other bit by bit.
fn check(call: &Attention, o: &Operands) {
    let expected = model(call, o);
    let mut first: Option<Vec<f32>> = None;
    for isa in isa_levels() {
        let found = run(isa, call, o, u64::MAX >> 1);
        for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
            // Values lie in [-1, 1], so an error of a weight is one of the result.
            let close = (f64::from(*x) - y).abs() <= 4e-6 || x.is_nan() && y.is_nan();
            assert!(close, "{isa:?} {call:?}: element {i} is {x}, not {y}");
        }
        assert_same_bits("one task at a time", &run(isa, call, o, 1), &found);
        assert_same_bits(&format!("{isa:?}"), &found, first.get_or_insert_with(|| found.clone()));
        let rounded = Attention { rounded: true, ..*call };
        let near = run(isa, &rounded, o, u64::MAX >> 1);
        for (i, (x, y)) in near.iter().zip(&found).enumerate() {
            // An operand's error of a 512th part, in scores of a few, and in weights.
            let close = (x - y).abs() <= 0.03 || x.is_nan() && y.is_nan();
            assert!(close, "{isa:?} {rounded:?}: element {i} is {x}, not {y}");
        }
        assert_same_bits("one rounded task at a time", &run(isa, &rounded, o, 1), &near);
    }
}

#[test]
fn awkward_shapes_agree_with_the_formula() {
    let sizes = [
        [1, 1, 1, 1],
        [1, 300, 64, 64],
        [2, 129, 33, 17],
        [5, 7, 256, 3],
        [12, 128, 40, 72],
        [13, 1, 16, 16],
        [47, 130, 5, 31],
        [49, 127, 64, 33],
        [97, 257, 32, 64],
        [130, 20, 100, 256],
        [400, 150, 24, 8],
    ];
    for (i, shape) in sizes.into_iter().enumerate() {
        for transposed in [false, true] {
            let call = call([1, 2, 1 + i as u64 % 2], shape, transposed);
            check(&call, &Operands::random(&call, i as u64));
        }
    }
}

#[test]
fn groups_share_keys_and_values() {
    for queries in [3, 9, 60] {
        let mut call = call([2, 1, 4], [queries, 140, 32, 48], false);
        for l in [&mut call.k, &mut call.v] {
            l.batch_strides[2] = 0;
        }
        check(&call, &Operands::random(&call, queries));
    }
}

#[test]
fn strided_values_and_rows_at_powers_of_two() {
    let mut call = call([1, 1, 1], [50, 140, 16, 32], false);
    call.v = MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: 1, col_stride: 140 };
    check(&call, &Operands::random(&call, 1));
    call.v = MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: 2048, col_stride: 1 };
    let mut o = Operands::random(&call, 2);
    o.v = Random::new(3).fill(140 * 2048);
    check(&call, &o);
}

#[test]
fn masked_keys_have_no_weight_and_masked_rows_no_result() {
    for (queries, hidden) in [(4, f32::NEG_INFINITY), (60, f32::NEG_INFINITY), (60, -1e4), (60, f32::MIN)] {
        let mut call = call([1, 1, 2], [queries, 300, 32, 40], false);
        let mut o = Operands::random(&call, queries);
        for (i, row) in o.mask.chunks_exact_mut(300).enumerate() {
            // Causal from the right, a first block without a key, and rows without any.
            row[(240 + i).min(300)..].fill(hidden);
            match i % 5 {
                1 => row[..150].fill(hidden),
                3 if hidden == f32::NEG_INFINITY => row.fill(hidden),
                _ => {}
            }
        }
        check(&call, &o);
        call.empty_is_zero = true;
        check(&call, &o);
        assert!(run(Isa::Portable, &call, &o, 1).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn special_scores_spoil_their_row_alone() {
    for queries in [3, 50] {
        let call = call([1, 1, 1], [queries, 200, 8, 8], false);
        for (special, key) in [(f32::NAN, 0), (f32::NAN, 150), (f32::INFINITY, 20), (f32::INFINITY, 199)] {
            let mut o = Operands::random(&call, 9);
            o.mask[200 + key] = special;
            check(&call, &o);
        }
    }
}

#[test]
fn without_a_shift_weights_are_plain_exponentials() {
    for queries in [2, 70] {
        let mut call = call([1, 1, 2], [queries, 150, 16, 24], false);
        call.shifted = false;
        check(&call, &Operands::random(&call, 5));
    }
}
