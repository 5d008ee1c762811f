//! Symbolic extents give the values of extents that are numbers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::index::{Index, delinearize, linearize};
use crate::rng::Rng;

fn symbols(examples: &[i64]) -> Trace {
    let one =
        |(i, example): (usize, &i64)| Symbol { name: format!("s{i}").into(), range: (2, 1 << 31), example: *example };
    Trace::new(examples.iter().enumerate().map(one).collect())
}

/// A random program over extents: its numbers, and what its comparisons found.
fn program(seed: u64, inputs: &[Extent]) -> (Vec<Extent>, Vec<bool>) {
    let mut rng = Rng::new(seed);
    let mut values = inputs.to_vec();
    let mut found = vec![];
    for _ in 0..24 {
        let mut pick = || values[rng.below(values.len() as u64) as usize];
        let (a, b) = (pick(), pick());
        let small = Extent::of(rng.below(9) as i64 + 1);
        let value = match rng.below(10) {
            0 => a + b,
            1 => a * small,
            2 if a < 1 << 20 && b < 1 << 20 => a * b,
            3 => a.div_floor(small),
            4 => a.rem_floor(small),
            5 => a.greatest(b),
            6 => a.least(b),
            7 => a + small,
            8 if b >= 1 => a.div_floor(b),
            9 if a < 1 << 20 && b < 1 << 20 => (a * b + b).div_floor(small.greatest(b)),
            _ => a - small,
        };
        match rng.below(5) {
            0 => found.push(value == a),
            1 => found.push(value < b),
            2 => found.push(value >= small),
            3 => found.push(small.divides(value)),
            _ => {}
        }
        values.push(value);
    }
    (values, found)
}

#[test]
fn where_the_conditions_hold_a_program_goes_as_traced() {
    let mut held = 0;
    for seed in 0..400 {
        let examples = [7 + (seed as i64 % 5) * 16, 33];
        let trace = symbols(&examples);
        let traced = trace.enter(|| program(seed, &[trace.symbol(0), trace.symbol(1)]));
        for values in [examples, [examples[0] + 16, 33], [2, 2], [64, 48], [31, 127], [1000, 999]] {
            let Some(binding) = trace.bind(&values) else { continue };
            held += 1;
            let (expected, found) = program(seed, &values.map(Extent::of));
            let bound: Vec<i64> = traced.0.iter().map(|n| binding.value(*n)).collect();
            assert_eq!(bound, expected.iter().map(|n| n.known().unwrap()).collect::<Vec<_>>(), "{seed} {values:?}");
            assert_eq!(traced.1, found, "{seed} {values:?}");
        }
    }
    assert!(held > 600, "{held}");
}

#[test]
fn expressions_have_one_form() {
    let trace = symbols(&[12, 20]);
    trace.enter(|| {
        let (n, m) = (trace.symbol(0), trace.symbol(1));
        assert!(((n + m) * (n - m)).is_surely(n * n - m * m));
        assert!((n * m * 6).div_floor(m * 2).is_surely(n * 3));
        assert!((n * 4 + 7).div_floor(4).is_surely(n + 1));
        assert!((n * 4 + 7).rem_floor(4).is_surely(3));
        assert!((n * m - 1).div_floor(m).is_surely(n - 1));
        assert!((n - n + 5).known() == Some(5));
        assert!(n.div_floor(2).is_surely(n.div_floor(2)) && !n.div_floor(2).is_surely(n.div_floor(3)));
        assert_eq!(((n + 1).div_floor(2) * m - 3).to_string(), "s1 * floordiv(s0 + 1, 2) - 3");
    });
    assert!(trace.guards().is_empty());
}

#[test]
fn what_ranges_decide_is_no_condition() {
    let trace = symbols(&[12]);
    trace.enter(|| {
        let n = trace.symbol(0);
        assert!(n >= 2 && n != 1 && n * 384 > 64 && n - 1 < n);
    });
    assert!(trace.guards().is_empty(), "{:?}", trace.guards());
    trace.enter(|| assert!(trace.symbol(0) < 100));
    assert_eq!(trace.guards().len(), 1);
    assert!(trace.bind(&[99]).is_some() && trace.bind(&[100]).is_none());
    assert!(trace.bind(&[1]).is_none(), "it is out of its range");
}

#[test]
fn numbers_above_those_of_i64_stay_positive() {
    let dims = Extents::from([u64::MAX, 3]);
    assert_eq!((dims.at(0).known(), dims[0]), (Some(i64::MAX), i64::MAX as u64));
    assert_eq!(dims.count().known(), Some(i64::MAX));
}

#[test]
fn reading_a_number_fixes_it() {
    let trace = symbols(&[12, 20]);
    let dims: Extents = [trace.symbol(0), Extent::of(3), trace.symbol(1)].into_iter().collect();
    trace.enter(|| assert_eq!((dims.len(), dims.at(1).known(), dims.example()), (3, Some(3), &[12u64, 3, 20][..])));
    assert!(trace.bind(&[5, 6]).is_some());
    trace.enter(|| advice(|| assert_eq!(dims[0], 12)));
    assert!(trace.bind(&[5, 6]).is_some(), "what decides about speed alone is no condition");
    trace.enter(|| assert_eq!(dims[0], 12));
    assert!(trace.bind(&[5, 6]).is_none() && trace.bind(&[12, 20]).is_some());
}

/// Positions of a tensor of one shape read as another, by numbers and by symbols.
#[test]
fn indices_of_open_shapes_have_the_values_of_closed_ones() {
    let trace = symbols(&[10, 6]);
    let shapes = |n: Extent, m: Extent| -> [Extents; 3] {
        let three = Extent::of(3);
        [[n, m, three].into_iter().collect(), [n * m, three].into_iter().collect(), [m * 3, n].into_iter().collect()]
    };
    let maps = |[from, to, other]: &[Extents; 3]| -> Vec<Vec<Index>> {
        let vars = |rank: usize| (0..rank as u32).map(Index::var).collect::<Vec<_>>();
        let flat = linearize(&vars(2), to);
        let twice = linearize(&vars(2), other);
        vec![delinearize(&flat, from, to), delinearize(&twice, from, other), delinearize(&twice, to, other)]
    };
    let open = trace.enter(|| maps(&shapes(trace.symbol(0), trace.symbol(1))));
    for values in [[10, 6], [2, 2], [3, 8], [16, 5]] {
        let binding = trace.bind(&values).unwrap();
        let closed = maps(&shapes(values[0].into(), values[1].into()));
        for (open, closed) in open.iter().flatten().zip(closed.iter().flatten()) {
            for point in 0..(values[0] * values[1] * 3) {
                let (a, b) = (point / values[0].max(3), point % 3);
                let at = |v: u32| [a % (values[1] * 3), b][v as usize];
                assert_eq!(
                    open.renumbered(&|n| Extent::of(binding.value(n))).eval(&at),
                    closed.eval(&at),
                    "{values:?}: {open:?} {closed:?}"
                );
            }
        }
    }
}

#[test]
fn axes_that_may_have_no_elements_make_no_conditions() {
    let symbol = Symbol { name: "n".into(), range: (0, 1 << 31), example: 6 };
    let trace = Trace::new(vec![symbol]);
    let place = trace.enter(|| {
        let n = trace.symbol(0);
        let dims: Extents = [Extent::of(4), n].into_iter().collect();
        assert!(!dims.has_none() && [Extent::ZERO].has_none());
        assert!(!n.is_repeated_along(n) && Extent::ONE.is_repeated_along(n));
        assert_eq!(Extent::ZERO.last_position().known(), Some(0));
        delinearize(&Index::var(0), &dims, &|_: u32| (Extent::ZERO, (n * 4).last_position()))
    });
    assert!(trace.guards().is_empty(), "{:?}", trace.guards());
    let none = trace.bind(&[0]).unwrap();
    let position = place[0].renumbered(&|n| Extent::of(none.value(n)));
    assert_eq!(position.eval(&|_| 0), 0, "no position is divided by 0");
    trace.enter(|| assert!(!trace.symbol(0).is_repeated_along(Extent::of(8))));
    assert!(trace.bind(&[1]).is_none() && trace.bind(&[0]).is_some(), "one element would be repeated");
}
