//! Products, sums and look-ups against plain loops.

use super::*;
use crate::support::backend::new_runtime;

fn executor(rt: &Runtime, net: &Symbol, inputs: &[(&str, &[u64], &[f32])], request: GradReq) -> Executor {
    let mut binder = Executor::simple_bind(rt, net).grad_req(request);
    for (name, dims, values) in inputs {
        binder = binder.array(name, &array(rt, dims, values));
    }
    binder.build().unwrap()
}

/// Numbers in (-1, 1) that look random and are always the same.
fn noise(n: u64, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[track_caller]
fn near(found: &NDArray, expected: &[f64]) {
    let found = found.to_vec::<f32>().unwrap();
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*f) - e).abs() <= 1e-4 * e.abs().max(1.0), "element {i}: {f}, expected {e}");
    }
}

/// `x · yᵀ` in f64, of rows of `k` elements.
fn rows_times_rows(x: &[f32], y: &[f32], k: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    x.chunks(k).flat_map(|a| y.chunks(k).map(move |b| dot(a, b))).collect()
}

fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

#[test]
fn a059_fully_connected_flattens() {
    let rt = new_runtime(RuntimeOptions::default());
    let net = op("FullyConnected").input(&Symbol::variable("x")).param("num_hidden", 10).name("fc").build().unwrap();
    let (x, w, b, g) = (noise(5 * 325, 1), noise(3250, 2), noise(10, 3), noise(50, 4));
    let inputs: [(&str, &[u64], &[f32]); 3] =
        [("x", &[5, 5, 5, 13], &x), ("fc_weight", &[10, 325], &w), ("fc_bias", &[10], &b)];
    let mut executor = executor(&rt, &net, &inputs, GradReq::Write);
    let mut expected = rows_times_rows(&x, &w, 325);
    expected.iter_mut().enumerate().for_each(|(i, y)| *y += f64::from(b[i % 10]));
    near(&executor.forward(true).unwrap()[0], &expected);
    executor.backward(&[&array(&rt, &[5, 10], &g)]).unwrap();
    near(executor.gradient("x").unwrap(), &rows_times_rows(&g, &transposed(&w, 325), 10));
    let of_weight = rows_times_rows(&transposed(&g, 10), &transposed(&x, 325), 5);
    near(executor.gradient("fc_weight").unwrap(), &of_weight);
    near(executor.gradient("fc_bias").unwrap(), &rows_times_rows(&transposed(&g, 10), &[1.0; 5], 5));
}

#[test]
fn a071_embedding_is_a_product_with_one_hot_rows() {
    let rt = new_runtime(RuntimeOptions::default());
    let (ids, w) = (Symbol::variable("ids"), Symbol::variable("w"));
    let net = op("Embedding").inputs([&ids, &w]).param("input_dim", 10).param("output_dim", 4).build().unwrap();
    let at: Vec<usize> = (0..24).map(|i| (i * 7 + i / 5) % 9).collect();
    let (at_f32, weight, g): (Vec<f32>, _, _) = (at.iter().map(|i| *i as f32).collect(), noise(40, 1), noise(96, 2));
    let inputs: [(&str, &[u64], &[f32]); 2] = [("ids", &[24], &at_f32), ("w", &[10, 4], &weight)];
    let mut executor = executor(&rt, &net, &inputs, GradReq::Write);
    let rows: Vec<f64> = at.iter().flat_map(|i| weight[4 * i..4 * i + 4].iter().map(|x| f64::from(*x))).collect();
    near(&executor.forward(true).unwrap()[0], &rows);
    executor.backward(&[&array(&rt, &[24, 4], &g)]).unwrap();
    let mut expected = vec![0.0; 40];
    for (i, g) in at.iter().zip(g.chunks(4)) {
        expected[4 * i..4 * i + 4].iter_mut().zip(g).for_each(|(sum, g)| *sum += f64::from(*g));
    }
    near(executor.gradient("w").unwrap(), &expected);
}

#[test]
fn a072_reductions_over_random_axes() {
    let rt = new_runtime(RuntimeOptions::default());
    let mut state = 1u32;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    for sample in 0..500 {
        let rank = 1 + draw(5);
        let dims: Vec<u64> = (0..rank).map(|_| 1 + draw(4) as u64).collect();
        let named: Vec<usize> = (0..rank).filter(|_| draw(2) == 0).collect();
        let (keep, exclude) = (draw(2) == 0, draw(2) == 0 && !named.is_empty());
        let name = ["sum", "mean", "prod", "nansum", "max", "min"][draw(6)];
        let all = named.is_empty();
        let folded = |axis: usize| all || named.contains(&axis) != exclude;
        let mut x = noise(dims.iter().product(), sample);
        if name == "nansum" {
            x[0] = f32::NAN;
        }
        let axes: Vec<i64> =
            named.iter().map(|&a| if draw(2) == 0 { a as i64 } else { a as i64 - rank as i64 }).collect();
        let mut call = op(name).input(&Symbol::variable("x")).param("keepdims", keep).param("exclude", exclude);
        if !all {
            call = call.param("axis", axes);
        }
        let mut executor = executor(&rt, &call.build().unwrap(), &[("x", &dims, &x)], GradReq::Null);
        let kept: Vec<u64> = (0..rank).filter(|a| !folded(*a)).map(|a| dims[a]).collect();
        let slots = kept.iter().product::<u64>() as usize;
        let mut groups = vec![vec![]; slots];
        for (i, x) in x.iter().enumerate() {
            let mut rest = i as u64;
            let mut at: Vec<u64> = dims
                .iter()
                .rev()
                .map(|n| {
                    let c = rest % n;
                    rest /= n;
                    c
                })
                .collect();
            at.reverse();
            let slot = (0..rank).filter(|a| !folded(*a)).fold(0, |slot, a| slot * dims[a] + at[a]);
            groups[slot as usize].push(f64::from(*x));
        }
        let fold = |g: &Vec<f64>| match name {
            "sum" => g.iter().sum(),
            "mean" => g.iter().sum::<f64>() / g.len() as f64,
            "prod" => g.iter().product(),
            "nansum" => g.iter().filter(|x| !x.is_nan()).sum(),
            "max" => g.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            _ => g.iter().copied().fold(f64::INFINITY, f64::min),
        };
        near(&executor.forward(false).unwrap()[0], &groups.iter().map(fold).collect::<Vec<f64>>());
        let expected: Vec<u64> = match keep {
            true => (0..rank).map(|a| if folded(a) { 1 } else { dims[a] }).collect(),
            false if kept.is_empty() => vec![1],
            false => kept,
        };
        assert_eq!(executor.outputs()[0].dims(), expected, "{name} of {dims:?} over {named:?}");
    }
}

#[test]
fn a074_gradients_of_batches_of_products_are_added() {
    let rt = new_runtime(RuntimeOptions::default());
    let (batch, m, k, n) = (3usize, 4usize, 5usize, 2usize);
    let (x, y, g) = (noise(60, 1), noise(30, 2), noise(24, 3));
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let net = op("batch_dot").inputs([&Symbol::variable("x"), &Symbol::variable("y")]);
        let net = net.param("transpose_a", ta).param("transpose_b", tb).build().unwrap();
        let shape = |rows: usize, columns: usize, flip: bool| {
            let (r, c) = if flip { (columns, rows) } else { (rows, columns) };
            [batch as u64, r as u64, c as u64]
        };
        let stored = |v: &[f32], columns: usize, flip: bool| match flip {
            true => v.chunks(v.len() / batch).flat_map(|one| transposed(one, columns)).collect(),
            false => v.to_vec(),
        };
        let (xs, ys) = (stored(&x, k, ta), stored(&y, n, tb));
        let (xd, yd) = (shape(m, k, ta), shape(k, n, tb));
        let mut executor = executor(&rt, &net, &[("x", &xd, &xs), ("y", &yd, &ys)], GradReq::Add);
        executor.gradients().for_each(|(_, a)| a.fill(10.0).unwrap());
        executor.forward(true).unwrap();
        executor.backward(&[&array(&rt, &[batch as u64, m as u64, n as u64], &g)]).unwrap();
        let per_batch = |f: &dyn Fn(usize) -> Vec<f64>, columns: usize, flip: bool| -> Vec<f64> {
            let one = |i| {
                let v: Vec<f64> = f(i);
                match flip {
                    true => (0..columns)
                        .flat_map(|c| v.iter().skip(c).step_by(columns).copied().collect::<Vec<_>>())
                        .collect(),
                    false => v,
                }
            };
            (0..batch).flat_map(one).map(|x: f64| x + 10.0).collect()
        };
        let part = |v: &[f32], i: usize, len: usize| v[i * len..(i + 1) * len].to_vec();
        let dx = |i| rows_times_rows(&part(&g, i, m * n), &part(&y, i, k * n), n);
        near(executor.gradient("x").unwrap(), &per_batch(&dx, k, ta));
        let dy = |i| rows_times_rows(&transposed(&part(&x, i, m * k), k), &transposed(&part(&g, i, m * n), n), m);
        near(executor.gradient("y").unwrap(), &per_batch(&dy, n, tb));
    }
}

#[test]
fn take_raises_an_error_that_names_the_node() {
    let rt = new_runtime(RuntimeOptions::default());
    let net = op("take").inputs([&Symbol::variable("x"), &Symbol::variable("at")]);
    let net = net.param("mode", "raise").param("axis", 1).name("chosen").build().unwrap();
    let x: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let mut right = executor(&rt, &net, &[("x", &[2, 3], &x), ("at", &[2], &[2.0, 0.0])], GradReq::Write);
    assert_eq!(right.forward(true).unwrap()[0].to_vec::<f32>().unwrap(), [2.0, 0.0, 5.0, 3.0]);
    right.backward(&[&array(&rt, &[2, 2], &[1.0, 2.0, 3.0, 4.0])]).unwrap();
    assert_eq!(right.gradient("x").unwrap().to_vec::<f32>().unwrap(), [2.0, 0.0, 1.0, 4.0, 0.0, 3.0]);
    for index in [3.0, -1.0] {
        let mut wrong = executor(&rt, &net, &[("x", &[2, 3], &x), ("at", &[2], &[0.0, index])], GradReq::Null);
        let error = wrong.forward(false).unwrap()[0].to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("chosen") && error.contains(&format!("index {index} is out of range")), "{error}");
    }
}
