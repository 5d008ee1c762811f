//! Operators that run along lines of a tensor, or read and write at positions: on awkward extents, along every axis, and for
//! many element types, compiled code computes what loops written here do, with one thread and with two, as the interpreter does.

use std::cmp::Ordering;
use std::sync::LazyLock;

use tensorc::ir::interp::eval_graph;
use tensorc::ir::scalar::{Scalar, ScalarOp};
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, DType, Options};
use tensorc_random::Rng;
use tensorc_tests::operators::{nearly_same, run, same_bits};

use crate::support::backend::options;

static COMPILERS: LazyLock<[Compiler; 2]> = LazyLock::new(|| {
    [1, 2].map(|threads| Compiler::new(Options { threads: Some(threads), poison: true, ..options() }).unwrap())
});

/// The results of a graph of given inputs, the same by both compilers and by the interpreter.
#[track_caller]
fn results(body: &str, inputs: &[(&str, &TensorData)]) -> Vec<TensorData> {
    let signature: Vec<String> = inputs.iter().map(|(name, x)| format!("%{name}: {}", x.ty)).collect();
    let text = format!("tensorc-ir 1\ngraph @main({}) {{\n{body}\n}}", signature.join(", "));
    let values: Vec<TensorData> = inputs.iter().map(|(_, x)| (*x).clone()).collect();
    let mut graph = parse_module(&text, COMPILERS[0].registry()).unwrap().graphs.remove(0);
    let [one, two] = [0, 1].map(|i| run(&COMPILERS[i], &graph, &values).unwrap_or_else(|why| panic!("{text}\n{why}")));
    tensorc::passes::infer::infer_graph(&mut graph, COMPILERS[0].registry(), 1 << 20).unwrap();
    let expected = eval_graph(&graph, COMPILERS[0].registry(), &values).unwrap();
    for ((a, b), c) in one.iter().zip(&two).zip(&expected) {
        let same = same_bits(a, b).and_then(|()| same_bits(a, c));
        same.unwrap_or_else(|why| panic!("{text}\n{why}"));
    }
    one
}

fn strides(dims: &[u64]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product::<u64>() as usize).collect()
}

/// Small numbers, many of them equal; of floats also zeros of both signs, infinities and NaN.
fn values(dtype: DType, dims: &[u64], seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(DenseType::new(dtype, dims), |_| {
        let n = rng.below(200) as i64;
        match (dtype.is_float(), n) {
            (true, 0) => Scalar::from_f64(dtype, f64::NAN),
            (true, 1) => Scalar::from_f64(dtype, -0.0),
            (true, 2) => Scalar::from_f64(dtype, f64::INFINITY),
            (true, 3) => Scalar::from_f64(dtype, f64::NEG_INFINITY),
            (true, n) => Scalar::from_f64(dtype, (n - 100) as f64 / 8.0),
            (false, 0) => Scalar::from_i64(dtype, i64::MIN >> (64 - 8 * dtype.size())),
            (false, 1) => Scalar::from_i64(dtype, -1),
            (false, 2) => Scalar::from_i64(dtype, i64::MAX >> (64 - 8 * dtype.size())),
            (false, n) => Scalar::from_i64(dtype, n - 100),
        }
    })
}

/// Finite numbers.
fn finite(dtype: DType, dims: &[u64], seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(DenseType::new(dtype, dims), |_| Scalar::from_f64(dtype, rng.below(64) as f64 - 32.0))
}

fn positions(dims: &[u64], below: u64, seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    let n = dims.iter().product();
    let list: Vec<i64> = (0..n).map(|_| rng.below(2 * below) as i64 - below as i64).collect();
    TensorData::i64s(dims, &list).unwrap()
}

const SHAPES: &[&[u64]] = &[
    &[0],
    &[1],
    &[7],
    &[37],
    &[5, 1],
    &[1, 37],
    &[3, 33],
    &[33, 3],
    &[9, 2],
    &[17, 8],
    &[2, 13, 31],
    &[3, 2, 64],
    &[2, 2, 70],
    &[0, 3],
    &[3, 0, 4],
    &[2, 5, 0],
];

/// The first element of every line along an axis.
fn lines(dims: &[u64], axis: usize) -> Vec<usize> {
    let (stride, n) = (strides(dims)[axis], dims[axis] as usize);
    let count = dims.iter().product::<u64>() as usize;
    (0..count).filter(|i| i / stride % n == 0).collect()
}

#[test]
fn scans_are_running_folds_of_every_line() {
    for (s, dims) in SHAPES.iter().enumerate() {
        for axis in 0..dims.len() {
            for (i, dtype) in
                [DType::F32, DType::F64, DType::I32, DType::I64, DType::F16, DType::U8].into_iter().enumerate()
            {
                let x = values(dtype, dims, (s * 7 + i) as u64);
                let (exclusive, reverse) = ((s + axis + i) % 2 == 1, (s + axis + i) % 3 == 1);
                let body = format!(
                    "  %a = const i64[] [{axis}]\n  %y = cumsum(%x, %a) {{exclusive = {exclusive}, reverse = {reverse}}}\n  return %y"
                );
                let found = results(&body, &[("x", &x)]);
                let wide = if dtype == DType::F16 { DType::F32 } else { dtype };
                let elements: Vec<Scalar> = x.iter().collect();
                let mut expected = elements.clone();
                let (stride, n) = (strides(dims)[axis], dims[axis] as usize);
                for first in lines(dims, axis) {
                    let mut total = Scalar::from_f64(wide, 0.0);
                    for step in 0..n {
                        let at = first + stride * if reverse { n - 1 - step } else { step };
                        let value = ScalarOp::Cast(wide).eval(&[elements[at]]);
                        let after = ScalarOp::Add.eval(&[total, value]);
                        expected[at] = ScalarOp::Cast(dtype).eval(&[if exclusive { total } else { after }]);
                        total = after;
                    }
                }
                let expected = TensorData::from_fn(x.ty.clone(), |i| expected[i as usize]);
                same_bits(&found[0], &expected).unwrap_or_else(|why| panic!("{dtype} {dims:?} axis {axis}: {why}"));
            }
        }
    }
}

/// Descending with NaN first, or ascending with NaN last; equal numbers by position.
fn ranked(line: &[Scalar], largest: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..line.len()).collect();
    let compare = |a: &Scalar, b: &Scalar| match a.dtype.is_float() {
        true => {
            let (a, b) = (a.as_f64(), b.as_f64());
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        false if a.dtype == DType::U64 => (a.as_i64() as u64).cmp(&(b.as_i64() as u64)),
        false => a.as_i64().cmp(&b.as_i64()),
    };
    let ordered = |i: &usize, j: &usize| -> Ordering {
        let order = compare(&line[*i], &line[*j]);
        if largest { order.reverse() } else { order }
    };
    order.sort_by(ordered);
    order
}

#[test]
fn rankings_are_stable_sorts_of_every_line() {
    let types = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
    ];
    // The axis, and how many are wanted: by insertion, by a whole sort, and by one of candidates.
    let shapes: [(&[u64], usize, &[u64]); 8] = [
        (&[3, 1], 1, &[0, 1]),
        (&[2, 17], 1, &[1, 5, 17]),
        (&[40, 3], 0, &[32, 33, 40]),
        (&[2, 100], 1, &[33, 100]),
        (&[2, 70, 3], 1, &[2, 64]),
        (&[1, 2500], 1, &[10, 40, 600, 2500]),
        (&[2048, 2], 0, &[50]),
        (&[0, 50], 1, &[3, 40]),
    ];
    for (s, (dims, axis, counts)) in shapes.into_iter().enumerate() {
        for (t, dtype) in types.into_iter().enumerate() {
            let x = values(dtype, dims, (s * 31 + t) as u64);
            let elements: Vec<Scalar> = x.iter().collect();
            let (stride, n) = (strides(dims)[axis], dims[axis] as usize);
            for (c, &count) in counts.iter().enumerate() {
                let largest = (s + t + c) % 2 == 0;
                let body = format!(
                    "  %k = const i64[1] [{count}]\n  %y = topk(%x, %k) {{axis = {axis}, largest = {largest}}} : (?, ?)\n  return %y, %y:1"
                );
                let found = results(&body, &[("x", &x)]);
                let (got, ids) = (found[0].iter().collect::<Vec<_>>(), found[1].to_i64s());
                let mut out = dims.to_vec();
                out[axis] = count;
                let to = lines(dims, axis).into_iter().zip(lines(&out, axis));
                for (first, to) in to {
                    let line: Vec<Scalar> = (0..n).map(|i| elements[first + i * stride]).collect();
                    for (o, i) in ranked(&line, largest).into_iter().take(count as usize).enumerate() {
                        let at = to + o * stride;
                        assert_eq!(ids[at], i as i64, "{dtype} {dims:?}, {count}, largest {largest}, place {o}");
                        let same = got[at] == line[i] || got[at].as_f64().is_nan() && line[i].as_f64().is_nan();
                        assert!(same, "{dtype} {dims:?}, {count}, place {o}: {:?}, not {:?}", got[at], line[i]);
                    }
                }
            }
        }
    }
    let x = values(DType::F32, &[3, 50], 5);
    for ascend in [true, false] {
        let body = format!(
            "  %y = sort(%x) {{is_ascend = {ascend}}}\n  %i = argsort(%x) {{is_ascend = {ascend}}}\n  return %y, %i"
        );
        let found = results(&body, &[("x", &x)]);
        let (elements, ids) = (x.iter().collect::<Vec<_>>(), found[1].to_f64s());
        for line in 0..3 {
            let expected = ranked(&elements[line * 50..][..50], !ascend);
            assert!(expected.iter().zip(&ids[line * 50..]).all(|(i, id)| *i as f64 == *id), "ascending: {ascend}");
        }
    }
}

/// The coordinates of a row-major position.
fn coordinates(mut at: usize, dims: &[u64]) -> Vec<usize> {
    let mut out = vec![0; dims.len()];
    for (axis, n) in dims.iter().enumerate().rev() {
        out[axis] = at % *n as usize;
        at /= *n as usize;
    }
    out
}

fn offset(at: &[usize], dims: &[u64]) -> usize {
    at.iter().zip(strides(dims)).map(|(i, stride)| i * stride).sum()
}

fn wrapped(i: i64, n: u64) -> usize {
    (if i < 0 { i + n as i64 } else { i }) as usize
}

const COPIED: [DType; 6] = [DType::F32, DType::F64, DType::I64, DType::F16, DType::U8, DType::Bool];

#[test]
fn elements_are_gathered_and_scattered_along_an_axis() {
    let cases: [(&[u64], &[u64], usize); 10] = [
        (&[7], &[5], 0),
        (&[3, 37], &[3, 20], 1),
        (&[37, 3], &[40, 3], 0),
        (&[37, 300], &[8, 300], 0),
        (&[37, 5], &[8, 4], 0),
        (&[4, 5, 6], &[4, 9, 6], 1),
        (&[4, 5, 6], &[3, 9, 2], 1),
        (&[4, 5, 6], &[2, 5, 6], 2),
        (&[2, 3, 4, 5], &[2, 3, 2, 5], 2),
        (&[3, 5], &[0, 5], 0),
    ];
    for (c, (dims, of, axis)) in cases.into_iter().enumerate() {
        for (t, dtype) in COPIED.into_iter().enumerate() {
            let (x, u) = (finite(dtype, dims, (c + 20 * t) as u64), finite(dtype, of, (c + 20 * t) as u64 + 7));
            let i = positions(of, dims[axis], c as u64);
            let at = |p: usize| {
                let mut at = coordinates(p, of);
                at[axis] = wrapped(i.to_i64s()[p], dims[axis]);
                offset(&at, dims)
            };
            let elements: Vec<Scalar> = x.iter().collect();
            let places: Vec<usize> = (0..of.iter().product::<u64>() as usize).map(at).collect();
            let found = results(
                &format!("  %y = gather_elements(%x, %i) {{axis = {axis}}}\n  return %y"),
                &[("x", &x), ("i", &i)],
            );
            let expected = TensorData::from_fn(DenseType::new(dtype, of), |p| elements[places[p as usize]]);
            same_bits(&found[0], &expected).unwrap_or_else(|why| panic!("gather {dtype} {dims:?} {of:?}: {why}"));
            for how in ["none", "add"] {
                if how == "add" && dtype == DType::Bool {
                    continue;
                }
                let body = format!(
                    "  %y = scatter_elements(%x, %i, %u) {{axis = {axis}, reduction = \"{how}\"}}\n  return %y"
                );
                let found = results(&body, &[("x", &x), ("i", &i), ("u", &u)]);
                let expected = scattered(&elements, &places, &u.iter().collect::<Vec<_>>(), how == "add");
                let expected = TensorData::from_fn(x.ty.clone(), |p| expected[p as usize]);
                same_bits(&found[0], &expected)
                    .unwrap_or_else(|why| panic!("scatter {how} {dtype} {dims:?} {of:?}: {why}"));
            }
        }
    }
}

/// `x` with updates at places, one after the other.
fn scattered(x: &[Scalar], places: &[usize], updates: &[Scalar], adds: bool) -> Vec<Scalar> {
    let mut out = x.to_vec();
    for (at, update) in places.iter().zip(updates) {
        let (old, dtype) = (out[*at], update.dtype);
        let wide = |x: Scalar| ScalarOp::Cast(if dtype == DType::F16 { DType::F32 } else { dtype }).eval(&[x]);
        let sum = || ScalarOp::Cast(dtype).eval(&[ScalarOp::Add.eval(&[wide(old), wide(*update)])]);
        out[*at] = if adds { sum() } else { *update };
    }
    out
}

#[test]
fn slices_are_gathered_and_scattered_by_tuples() {
    // Extents, axes that are shared, tuples of each of them, axes that are indexed.
    let cases: [(&[u64], usize, &[u64], usize); 8] = [
        (&[7], 0, &[5], 1),
        (&[6, 4, 70], 0, &[9], 2),
        (&[6, 4, 70], 0, &[3, 5], 1),
        (&[6, 300], 0, &[40], 1),
        (&[6, 4, 7], 0, &[100], 3),
        (&[3, 5, 6, 2], 1, &[3, 4], 2),
        (&[2, 3, 5, 1], 2, &[2, 3, 7], 1),
        (&[4, 3], 0, &[0], 1),
    ];
    for (c, (dims, batch, tuples, width)) in cases.into_iter().enumerate() {
        for (t, dtype) in COPIED.into_iter().enumerate() {
            let x = finite(dtype, dims, (c + 20 * t) as u64);
            let least = dims[batch..batch + width].iter().copied().min().unwrap();
            let i = positions(&[tuples, &[width as u64]].concat(), least, c as u64);
            let slice = dims[batch + width..].iter().product::<u64>() as usize;
            let chosen = i.to_i64s();
            let starts: Vec<usize> = (0..tuples.iter().product::<u64>() as usize)
                .map(|p| {
                    let mut at = coordinates(p, tuples)[..batch].to_vec();
                    at.extend((0..width).map(|j| wrapped(chosen[p * width + j], dims[batch + j])));
                    offset(&at, &dims[..batch + width]) * slice
                })
                .collect();
            let places: Vec<usize> = starts.iter().flat_map(|start| (0..slice).map(move |e| start + e)).collect();
            let elements: Vec<Scalar> = x.iter().collect();
            let found = results(
                &format!("  %y = gather_nd(%x, %i) {{batch_dims = {batch}}}\n  return %y"),
                &[("x", &x), ("i", &i)],
            );
            let out = [tuples, &dims[batch + width..]].concat();
            let expected = TensorData::from_fn(DenseType::new(dtype, &out), |p| elements[places[p as usize]]);
            same_bits(&found[0], &expected).unwrap_or_else(|why| panic!("gather {dtype} {dims:?} {tuples:?}: {why}"));
            if batch > 0 {
                continue;
            }
            let u = finite(dtype, &out, c as u64 + 3);
            for how in ["none", "add"] {
                if how == "add" && dtype == DType::Bool {
                    continue;
                }
                let body = format!("  %y = scatter_nd(%x, %i, %u) {{reduction = \"{how}\"}}\n  return %y");
                let found = results(&body, &[("x", &x), ("i", &i), ("u", &u)]);
                let expected = scattered(&elements, &places, &u.iter().collect::<Vec<_>>(), how == "add");
                let expected = TensorData::from_fn(x.ty.clone(), |p| expected[p as usize]);
                same_bits(&found[0], &expected).unwrap_or_else(|why| panic!("scatter {how} {dtype} {dims:?}: {why}"));
            }
        }
    }
}

#[test]
fn caches_are_written_from_a_step_on() {
    for (dims, steps, axis) in [(&[3u64, 7, 5][..], 2u64, 1usize), (&[2, 3, 9, 33], 4, 2), (&[2, 9], 3, 1)] {
        for dtype in [DType::F32, DType::F16, DType::I64] {
            let mut of = dims.to_vec();
            of[axis] = steps;
            let (x, u) = (finite(dtype, dims, 1), finite(dtype, &of, 2));
            let starts: Vec<i64> = (0..dims[0] as i64).map(|i| (i * 2) % (dims[axis] - steps) as i64).collect();
            let i = TensorData::i64s(&dims[..1], &starts).unwrap();
            let body = format!("  %y = tensor_scatter(%x, %u, %i) {{axis = {axis}}}\n  return %y");
            let found = results(&body, &[("x", &x), ("u", &u), ("i", &i)]);
            let mut expected: Vec<Scalar> = x.iter().collect();
            for (p, update) in u.iter().enumerate() {
                let mut at = coordinates(p, &of);
                at[axis] += starts[at[0]] as usize;
                expected[offset(&at, dims)] = update;
            }
            let expected = TensorData::from_fn(x.ty.clone(), |p| expected[p as usize]);
            same_bits(&found[0], &expected).unwrap_or_else(|why| panic!("{dtype} {dims:?}: {why}"));
        }
    }
}

/// Linear interpolation between the elements of an image around a position, with zeros outside, in f64.
fn sampled(image: &[f64], [height, width]: [u64; 2], y: f64, x: f64) -> f64 {
    let pixel = |y: f64, x: f64| {
        let inside = y >= 0.0 && x >= 0.0 && y < height as f64 && x < width as f64;
        if inside { image[y as usize * width as usize + x as usize] } else { 0.0 }
    };
    let (top, left) = (y.floor(), x.floor());
    let (down, right) = (y - top, x - left);
    let row = |y: f64| pixel(y, left) * (1.0 - right) + pixel(y, left + 1.0) * right;
    row(top) * (1.0 - down) + row(top + 1.0) * down
}

#[test]
fn images_are_sampled_at_the_positions_of_a_grid() {
    for (channels, places) in [(1, [1, 1]), (3, [9, 7]), (5, [8, 8]), (2, [5, 31])] {
        let (size, plane) = ([11, 13], (places[0] * places[1]) as usize);
        let x = finite(DType::F32, &[2, channels, size[0], size[1]], channels);
        let mut rng = Rng::new(places[1]);
        let grid = TensorData::from_fn(DenseType::new(DType::F32, [2, places[0], places[1], 2]), |_| {
            Scalar::from_f64(DType::F32, rng.below(1000) as f64 / 400.0 - 1.25)
        });
        let found = results("  %y = grid_sample(%x, %g)\n  return %y", &[("x", &x), ("g", &grid)]);
        let (image, at) = (x.to_f64s(), grid.to_f64s());
        let pixels = (size[0] * size[1]) as usize;
        let expected = TensorData::from_fn(found[0].ty.clone(), |p| {
            let (plane_of, place) = (p as usize / plane, p as usize % plane);
            let from = (plane_of / channels as usize * plane + place) * 2;
            let [x, y] = [0, 1].map(|i| ((at[from + i] + 1.0) * size[1 - i] as f64 - 1.0) / 2.0);
            Scalar::from_f64(DType::F32, sampled(&image[plane_of * pixels..][..pixels], size, y, x))
        });
        for (got, want) in found[0].to_f64s().iter().zip(expected.to_f64s()) {
            assert!((got - want).abs() <= 1e-3, "{channels} channels, {places:?}: {got}, not {want}");
        }
    }
    // Every way to read, in one, two and three dimensions, and other types: as the interpreter does.
    for (dims, place) in
        [(&[2u64, 3, 9][..], &[2u64, 70][..]), (&[1, 2, 5, 6], &[1, 9, 9]), (&[1, 2, 3, 4, 5], &[1, 2, 5, 7])]
    {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let x = values(dtype, dims, 3);
            let grid = finite(dtype, &[place, &[dims.len() as u64 - 2]].concat(), 4);
            for mode in ["nearest", "linear", "cubic"] {
                for outside in ["zeros", "border", "reflection"] {
                    let body = format!(
                        "  %s = const {dtype}[] [0.03125]\n  %h = mul(%g, %s)\n  %y = grid_sample(%x, %h) {{mode = \"{mode}\", padding_mode = \"{outside}\"}}\n  return %y"
                    );
                    results(&body, &[("x", &x), ("g", &grid)]);
                }
            }
        }
    }
}

/// Displacements that are whole numbers shift what an ordinary convolution reads.
#[test]
fn displaced_convolutions_sample_by_groups_of_channels() {
    for groups in [1, 2, 4] {
        let (x, w) = (finite(DType::F32, &[2, 4, 9, 10], 1), finite(DType::F32, &[3, 4, 3, 3], 2));
        let offset = TensorData::from_fn(DenseType::new(DType::F32, [2, groups * 18, 7, 8]), |_| {
            Scalar::from_f64(DType::F32, 0.0)
        });
        let mask = TensorData::from_fn(DenseType::new(DType::F32, [2, groups * 9, 7, 8]), |_| {
            Scalar::from_f64(DType::F32, 0.5)
        });
        let body = format!(
            "  %y = deform_conv(%x, %w, %o, _, %m) {{offset_group = {groups}}}\n  %z = conv(%x, %w)\n  return %y, %z"
        );
        let found = results_nearly(&body, &[("x", &x), ("w", &w), ("o", &offset), ("m", &mask)]);
        let [y, z] = [0, 1].map(|i| found[i].to_f64s());
        assert!(y.iter().zip(&z).all(|(y, z)| (y - z / 2.0).abs() <= 1e-3 * (1.0 + z.abs())), "{groups} groups");
    }
}

/// As [`results`], where sums may be in another order.
#[track_caller]
fn results_nearly(body: &str, inputs: &[(&str, &TensorData)]) -> Vec<TensorData> {
    let signature: Vec<String> = inputs.iter().map(|(name, x)| format!("%{name}: {}", x.ty)).collect();
    let text = format!("tensorc-ir 1\ngraph @main({}) {{\n{body}\n}}", signature.join(", "));
    let values: Vec<TensorData> = inputs.iter().map(|(_, x)| (*x).clone()).collect();
    let mut graph = parse_module(&text, COMPILERS[0].registry()).unwrap().graphs.remove(0);
    let found = run(&COMPILERS[1], &graph, &values).unwrap();
    tensorc::passes::infer::infer_graph(&mut graph, COMPILERS[0].registry(), 1 << 20).unwrap();
    let expected = eval_graph(&graph, COMPILERS[0].registry(), &values).unwrap();
    found.iter().zip(&expected).for_each(|(a, b)| nearly_same(a, b).unwrap());
    found
}
