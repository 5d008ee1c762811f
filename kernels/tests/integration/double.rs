//! Products of f64 against the documented chain of multiply-adds, equal bits, for every ISA level, layout and division into tasks.

use crate::support::{Counter, Random, cuts, isa_levels, rounds, scratch};
use tensorc_abi::{BatchedGemm, GemmElements, MatrixLayout};
use tensorc_kernels::{double_run_with, double_scratch, double_tasks};

/// A layout of a batch of `rows × cols` matrices, by rows or by columns, with gaps, and the elements it spans.
pub(crate) fn layout(
    random: &mut Random,
    batch: [u64; 3],
    [rows, cols]: [u64; 2],
    is_result: bool,
) -> (MatrixLayout, usize) {
    let gap = random.pick(&[0, 3]);
    let step = if is_result { 1 } else { random.pick(&[1, 1, 2]) };
    let by_rows = is_result || random.below(3) > 0;
    let [long, short] = if by_rows { [rows, cols] } else { [cols, rows] }.map(|n| n as i64);
    let stride = short * step + gap;
    let (row_stride, col_stride) = if by_rows { (stride, step) } else { (step, stride) };
    let size = long * stride;
    let b = batch.map(|n| n as i64);
    let batch_strides = [size * b[1] * b[2], size * b[2], size];
    (MatrixLayout { offset: 2, batch_strides, row_stride, col_stride }, (2 + size * b[0] * b[1] * b[2]) as usize)
}

pub(crate) fn at(layout: &MatrixLayout, batch: [u64; 3], row: u64, col: u64) -> usize {
    let b: i64 = batch.iter().zip(&layout.batch_strides).map(|(&b, &s)| b as i64 * s).sum();
    (layout.offset + b + row as i64 * layout.row_stride + col as i64 * layout.col_stride) as usize
}

#[test]
fn products_of_f64_are_chains_of_fused_multiply_adds() {
    let mut random = Random::new(3);
    let mut shapes =
        vec![[1, 1, 1], [8, 24, 192], [9, 25, 193], [16, 24, 400], [17, 48, 7], [3, 5, 0], [0, 4, 3], [4, 0, 3]];
    let extents = [1, 2, 5, 7, 8, 9, 23, 24, 25, 49, 64, 193];
    shapes.extend((0..rounds(40)).map(|_| [0; 3].map(|_| random.pick(&extents))));
    // Of several tasks, in rows and in columns.
    shapes.extend([[600, 40, 200], [24, 600, 300]]);
    for [m, n, k] in shapes {
        let batch = random.pick(&[[1, 1, 1], [1, 2, 3]]);
        let (a, a_len) = layout(&mut random, batch, [m, k], false);
        let (b, b_len) = layout(&mut random, batch, [k, n], false);
        let (c, c_len) = layout(&mut random, batch, [m, n], true);
        let call = BatchedGemm { batch, m, n, k, a, b, c, b_packed: false, elements: GemmElements::F64 };
        let mut numbers = |len: usize| -> Vec<f64> { random.fill(len).iter().map(|x| f64::from(*x) / 3.0).collect() };
        let (left, right, before) = (numbers(a_len), numbers(b_len), numbers(c_len));
        let mut expected = before.clone();
        for flat in 0..batch.iter().product() {
            let index = [flat / (batch[1] * batch[2]), flat / batch[2] % batch[1], flat % batch[2]];
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|k| (left[at(&a, index, i, k)], right[at(&b, index, k, j)]));
                expected[at(&c, index, i, j)] = terms.fold(0.0, |sum, (x, y): (f64, f64)| x.mul_add(y, sum));
            }
        }
        let expected: Vec<u64> = expected.iter().map(|x| x.to_bits()).collect();
        for isa in isa_levels() {
            let mut result = before.clone();
            let mut marks = vec![0.0f32; (batch.iter().product::<u64>() * m * n) as usize];
            let strides = [m * n * batch[1] * batch[2], m * n * batch[2], m * n, n].map(|s| s as i64);
            let counter = Counter::new(batch, m, n, marks.as_mut_ptr(), strides);
            let mut memory = scratch(double_scratch(&call));
            for tasks in cuts(&mut random, double_tasks(&call)) {
                // SAFETY: the buffers are as long as the layouts reach, and the tasks are within the call's.
                unsafe {
                    let (operands, memory) = ([left.as_ptr(), right.as_ptr()], memory.as_mut_ptr().cast());
                    double_run_with(isa, &call, operands, result.as_mut_ptr(), Some(counter.call()), tasks, memory);
                }
            }
            let what = format!("{isa:?} {m}×{n}×{k}, {batch:?}");
            let found: Vec<u64> = result.iter().map(|x| x.to_bits()).collect();
            assert!(found == expected, "{what}");
            counter.assert_once(&what);
        }
    }
}
