//! Products of bytes against sums in 64 bits, for every ISA level, layout, sign and division into tasks.

use crate::double::{at, layout};
use crate::support::{Counter, Random, cuts, isa_levels, rounds, scratch};
use tensorc_abi::{BatchedGemm, GemmElements};
use tensorc_kernels::{integer_run_with, integer_scratch, integer_tasks};

/// Bytes among which the extremes are frequent.
fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.pick(&[0, 1, 0x7f, 0x80, 0xff, 0x55, 0xaa, 200, 3])).collect()
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
    shapes.extend([[530, 40, 200], [24, 600, 300], [13, 70, 4100]]);
    for [m, n, k] in shapes {
        let batch = random.pick(&[[1, 1, 1], [1, 2, 3]]);
        let elements = random.pick(&[GemmElements::U8I8, GemmElements::I8U8]);
        let (a, a_len) = layout(&mut random, batch, [m, k], false);
        let (b, b_len) = layout(&mut random, batch, [k, n], false);
        let (c, c_len) = layout(&mut random, batch, [m, n], true);
        let call = BatchedGemm { batch, m, n, k, a, b, c, b_packed: false, elements };
        let (left, right) = (bytes(&mut random, a_len), bytes(&mut random, b_len));
        let before: Vec<i32> = (0..c_len as i32).collect();
        let mut expected = before.clone();
        let number = |x: u8, signed: bool| if signed { i64::from(x as i8) } else { i64::from(x) };
        let left_signed = elements == GemmElements::I8U8;
        for flat in 0..batch.iter().product() {
            let index = [flat / (batch[1] * batch[2]), flat / batch[2] % batch[1], flat % batch[2]];
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let term = |k| {
                    let (x, y) = (left[at(&a, index, i, k)], right[at(&b, index, k, j)]);
                    number(x, left_signed) * number(y, !left_signed)
                };
                expected[at(&c, index, i, j)] = (0..k).map(term).sum::<i64>() as i32;
            }
        }
        for isa in isa_levels() {
            let mut result = before.clone();
            let mut marks = vec![0.0f32; (batch.iter().product::<u64>() * m * n) as usize];
            let strides = [m * n * batch[1] * batch[2], m * n * batch[2], m * n, n].map(|s| s as i64);
            let counter = Counter::new(batch, m, n, marks.as_mut_ptr(), strides);
            let mut memory = scratch(integer_scratch(&call));
            for tasks in cuts(&mut random, integer_tasks(&call)) {
                // SAFETY: the buffers are as long as the layouts reach, and the tasks are within the call's.
                unsafe {
                    let (operands, memory) = ([left.as_ptr(), right.as_ptr()], memory.as_mut_ptr().cast());
                    integer_run_with(isa, &call, operands, result.as_mut_ptr(), Some(counter.call()), tasks, memory);
                }
            }
            let what = format!("{isa:?} {m}×{n}×{k}, {batch:?}, {elements:?}");
            assert!(result == expected, "{what}");
            counter.assert_once(&what);
        }
    }
}
