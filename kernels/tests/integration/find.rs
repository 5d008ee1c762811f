//! Operators that find elements, against loops and sorts written here.

use tensorc_abi::{DType, FindOp};
use tensorc_kernels::{FindOperand, find, find_words};

use crate::support::Random;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The words of result 0.
fn found(op: FindOp, operands: &[Option<FindOperand<'_>>]) -> Vec<u64> {
    let shapes: Vec<Option<&[u64]>> = operands.iter().map(|x| x.map(|x| x.dims)).collect();
    let mut words = vec![u64::MAX; find_words(op, &shapes) as usize];
    let found = find(op, operands, &mut words).unwrap();
    let mut result = vec![0; found.bytes(0) as usize];
    found.write(0, &mut result);
    result.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn coordinates_of_marked_elements_are_those_of_their_positions() {
    let mut rng = Random::new(7);
    let shapes: [&[u64]; 9] = [&[], &[1], &[37], &[5, 7], &[3, 1, 4], &[1, 9, 1], &[2, 3, 5, 7], &[0, 4], &[4, 0, 3]];
    for dims in shapes {
        for one_in in [1, 2, 9, 1000] {
            let n = dims.iter().product::<u64>();
            let elements: Vec<f32> = (0..n)
                .map(|i| {
                    if rng.bits().is_multiple_of(one_in) {
                        -1.5
                    } else if i % 2 == 0 {
                        0.0
                    } else {
                        -0.0
                    }
                })
                .collect();
            let data = bytes(&elements);
            let x = FindOperand { dtype: DType::F32, dims, bytes: &data };
            let marked: Vec<u64> = (0..n).filter(|i| elements[*i as usize] != 0.0).collect();
            let expected: Vec<u64> = (0..dims.len())
                .flat_map(|axis| {
                    let stride: u64 = dims[axis + 1..].iter().product();
                    marked.iter().map(move |i| i / stride % dims[axis])
                })
                .collect();
            assert_eq!(found(FindOp::NonZero, &[Some(x)]), expected, "{dims:?}, one in {one_in}");
        }
    }
}

/// Area of the intersection of two boxes, given by opposite corners or by centre and extents, over that of the union.
fn overlap(a: &[f32], b: &[f32], centered: bool) -> f64 {
    let ends = |x: &[f32], axis: usize| {
        let (p, q) = (f64::from(x[axis]), f64::from(x[axis + 2]));
        if centered { (p - q / 2.0, p + q / 2.0) } else { (p.min(q), p.max(q)) }
    };
    let area = |x: &[f32]| (ends(x, 0).1 - ends(x, 0).0) * (ends(x, 1).1 - ends(x, 1).0);
    let shared = |axis: usize| {
        let (a, b) = (ends(a, axis), ends(b, axis));
        (a.1.min(b.1) - a.0.max(b.0)).max(0.0)
    };
    let common = shared(0) * shared(1);
    let union = area(a) + area(b) - common;
    if common <= 0.0 || union <= 0.0 { 0.0 } else { common / union }
}

/// Boxes of random numbers, every so many of which are infinite or NaN, against a plain loop.
fn check_boxes(
    rng: &mut Random,
    [images, classes, count]: [u64; 3],
    (most, limit, least): (i64, f32, Option<f32>),
    centered: bool,
    odd: Option<u64>,
) {
    let number = |rng: &mut Random, steps: u64| match odd {
        Some(one_in) if rng.bits().is_multiple_of(one_in) => {
            rng.pick(&[f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY])
        }
        _ => (rng.bits() % steps) as f32 / steps as f32,
    };
    let boxes: Vec<f32> = (0..images * count * 4).map(|_| number(rng, 1000)).collect();
    // Few scores, so that many are equal.
    let scores: Vec<f32> = (0..images * classes * count).map(|_| number(rng, 20) - 0.1).collect();
    let (box_bytes, score_bytes) = (bytes(&boxes), bytes(&scores));
    let (most_bytes, limit_bytes) = (most.to_le_bytes(), limit.to_le_bytes());
    let least_bytes = least.map(f32::to_le_bytes);
    let single = |dtype, bytes| Some(FindOperand { dtype, dims: &[1], bytes });
    let operands = [
        Some(FindOperand { dtype: DType::F32, dims: &[images, count, 4], bytes: &box_bytes }),
        Some(FindOperand { dtype: DType::F32, dims: &[images, classes, count], bytes: &score_bytes }),
        single(DType::I64, &most_bytes[..]),
        single(DType::F32, &limit_bytes[..]),
        least_bytes.as_ref().and_then(|bytes| single(DType::F32, &bytes[..])),
    ];
    let mut expected = vec![];
    for n in 0..images as usize {
        for c in 0..classes as usize {
            let score = |i: &usize| scores[(n * classes as usize + c) * count as usize + i];
            let place = |i: usize| &boxes[(n * count as usize + i) * 4..][..4];
            let mut order: Vec<usize> =
                (0..count as usize).filter(|i| least.is_none_or(|least| score(i) > least)).collect();
            order.sort_by(|i, j| score(j).total_cmp(&score(i)));
            let mut kept: Vec<usize> = vec![];
            for i in order {
                let apart = kept.iter().all(|k| overlap(place(*k), place(i), centered) <= f64::from(limit));
                if kept.len() < most as usize && apart {
                    kept.push(i);
                    expected.extend([n as u64, c as u64, i as u64]);
                }
            }
        }
    }
    let op = FindOp::NonMaxSuppression { centered };
    assert_eq!(
        found(op, &operands),
        expected,
        "{images} images, {classes} classes, {count} boxes, {centered}, {odd:?}"
    );
}

/// Boxes in the order of a stable sort by descending score, of which those that overlap an earlier one too much are left out.
#[test]
fn boxes_are_kept_by_descending_score() {
    let mut rng = Random::new(11);
    for (dims, limits) in [
        ([1, 1, 1], (1, 0.5, None)),
        ([1, 1, 300], (50, 0.5, None)),
        ([2, 3, 61], (1000, 0.3, Some(0.4))),
        ([1, 2, 64], (0, 0.5, None)),
        ([1, 2, 40], (7, 0.0, Some(-1.0))),
        ([1, 1, 0], (5, 0.5, None)),
        ([2, 1, 33], (33, 1.0, None)),
        ([1, 2, 257], (257, 0.9, Some(0.0))),
        ([1, 1, 20], (20, -0.5, None)),
    ] {
        for centered in [false, true] {
            for odd in [None, Some(4), Some(50)] {
                check_boxes(&mut rng, dims, limits, centered, odd);
            }
        }
    }
}
