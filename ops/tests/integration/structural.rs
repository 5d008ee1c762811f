//! Values of the structural operators through the reference interpreter.

use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::Registry;
use tensorc_ir::params::{ParamValue, Params};

fn registry() -> Registry {
    tensorc_ops::registry().unwrap()
}

fn f32s(dims: &[u64], values: &[f32]) -> Option<TensorData> {
    Some(TensorData::f32s(dims, values).unwrap())
}

/// 1, 2, 3, … in the given shape.
fn count(dims: &[u64]) -> Option<TensorData> {
    let values: Vec<f32> = (1..=dims.iter().product::<u64>()).map(|i| i as f32).collect();
    f32s(dims, &values)
}

fn i64s(values: &[i64]) -> Option<TensorData> {
    Some(TensorData::i64s(&[values.len() as u64], values).unwrap())
}

fn ints(values: &[i64]) -> ParamValue {
    ParamValue::Ints(values.to_vec())
}

fn text(value: &str) -> ParamValue {
    ParamValue::Str(value.into())
}

/// Evaluates one operator on constants.
fn run_all(
    op: &str,
    operands: &[Option<TensorData>],
    params: Params,
    outputs: usize,
) -> Result<Vec<TensorData>, String> {
    let registry = registry();
    let mut graph = Graph::new("test");
    let args: Vec<Option<Value>> =
        operands.iter().map(|o| o.as_ref().map(|t| graph.add_const("c", t.clone()))).collect();
    let def = registry.get(op).unwrap();
    let node = graph.add_op("n", def, &args, params, outputs).map_err(|d| d.to_string())?;
    for port in 0..outputs as u16 {
        graph.add_output(format!("{port}"), Value { node, port });
    }
    eval_graph(&graph, &registry, &[]).map_err(|d| d.to_string())
}

fn run(op: &str, operands: &[Option<TensorData>], params: Params) -> (Vec<u64>, Vec<f32>) {
    let out = run_all(op, operands, params, 1).unwrap().remove(0);
    (out.dims().to_vec(), out.to_f32s())
}

fn expect(op: &str, operands: &[Option<TensorData>], params: Params, dims: &[u64], values: &[f32]) {
    let (found_dims, found) = run(op, operands, params);
    assert_eq!(found_dims, dims, "{op}");
    for (f, v) in found.iter().zip(values) {
        assert!((f - v).abs() <= 1e-5 * v.abs().max(1.0), "{op}: {found:?}, expected {values:?}");
    }
    assert_eq!(found.len(), values.len());
}

#[test]
fn rearranging() {
    let none = Params::new;
    expect("reshape", &[count(&[2, 3]), i64s(&[0, -1, 1])], none(), &[2, 3, 1], &[1., 2., 3., 4., 5., 6.]);
    let perm = none().with("perm", ints(&[1, 0]));
    expect("transpose", &[count(&[2, 3])], perm, &[3, 2], &[1., 4., 2., 5., 3., 6.]);
    expect("expand", &[count(&[2, 1]), i64s(&[3, 1, 2])], none(), &[3, 2, 2], &[1., 1., 2., 2.].repeat(3));
    expect("tile", &[count(&[2]), i64s(&[2])], none(), &[4], &[1., 2., 1., 2.]);
    expect("squeeze", &[count(&[1, 2, 1]), i64s(&[-1])], none(), &[1, 2], &[1., 2.]);
    expect("unsqueeze", &[count(&[2]), i64s(&[0, 2])], none(), &[1, 2, 1], &[1., 2.]);
    expect("flatten", &[count(&[2, 1, 2])], none().with("axis", ParamValue::Int(-1)), &[2, 2], &[1., 2., 3., 4.]);
    let crd = none().with("blocksize", ParamValue::Int(2)).with("mode", text("CRD"));
    expect("depth_to_space", &[count(&[1, 4, 1, 1])], crd, &[1, 1, 2, 2], &[1., 2., 3., 4.]);
}

#[test]
fn cutting_and_joining() {
    let none = Params::new;
    let reversed = [count(&[5]), i64s(&[-1]), i64s(&[i64::MIN]), i64s(&[0]), i64s(&[-2])];
    expect("slice", &reversed, none(), &[3], &[5., 3., 1.]);
    // Before the axis, the start is the first element in both directions.
    for step in [1, -1] {
        let before = [count(&[5]), i64s(&[-9]), i64s(&[step * i64::MAX]), i64s(&[0]), i64s(&[step])];
        let values: &[f32] = if step > 0 { &[1., 2., 3., 4., 5.] } else { &[1.] };
        expect("slice", &before, none(), &[values.len() as u64], values);
    }
    let empty = [count(&[0]), i64s(&[-9]), i64s(&[i64::MIN]), i64s(&[0]), i64s(&[-1])];
    expect("slice", &empty, none(), &[0], &[]);
    let reflect = none().with("mode", text("reflect"));
    expect("pad", &[count(&[3]), i64s(&[2, 3])], reflect, &[8], &[3., 2., 1., 2., 3., 2., 1., 2.]);
    // Nothing is reflected of an axis without elements.
    let beside = |width| none().with("mode", text("reflect")).with("pad_width", ints(&[0, width, 1, 0]));
    expect("mx_pad", &[count(&[0, 2])], beside(0), &[0, 3], &[]);
    assert!(run_all("mx_pad", &[count(&[0, 2])], beside(1), 1).is_err_and(|why| why.contains("pad_width")));
    let repeats = |n: i64| none().with("repeats", ParamValue::Int(n)).with("axis", ParamValue::Int(0));
    expect("mx_repeat", &[count(&[2])], repeats(2), &[4], &[1., 1., 2., 2.]);
    expect("mx_repeat", &[count(&[2])], repeats(0), &[0], &[]);
    let wrap = none().with("mode", text("wrap"));
    expect("pad", &[count(&[3]), i64s(&[1, 2])], wrap, &[6], &[3., 1., 2., 3., 1., 2.]);
    expect("pad", &[count(&[3]), i64s(&[-1, 1]), f32s(&[], &[9.])], none(), &[3], &[2., 3., 9.]);
    let axis = none().with("axis", ParamValue::Int(-1));
    expect("concat", &[count(&[2, 1]), count(&[2, 2])], axis, &[2, 3], &[1., 1., 2., 2., 3., 4.]);
    let parts = run_all("split", &[count(&[5])], none().with("num_outputs", ParamValue::Int(2)), 2).unwrap();
    assert_eq!((parts[0].to_f32s(), parts[1].to_f32s()), (vec![1., 2., 3.], vec![4., 5.]));
    expect("center_crop_pad", &[count(&[4, 1]), i64s(&[2, 3])], none(), &[2, 3], &[0., 2., 0., 0., 3., 0.]);
}

#[test]
fn gathering_and_scattering() {
    let none = Params::new;
    expect(
        "gather",
        &[count(&[2, 3]), i64s(&[-1, 0])],
        none().with("axis", ParamValue::Int(1)),
        &[2, 2],
        &[3., 1., 6., 4.],
    );
    // Outside the axis: clamped.
    expect("gather", &[count(&[3]), i64s(&[7, -9])], none(), &[2], &[3., 1.]);
    let pairs = Some(TensorData::i64s(&[2, 2], &[0, 1, 1, -1]).unwrap());
    expect("gather_nd", &[count(&[2, 3]), pairs.clone()], none(), &[2], &[2., 6.]);
    let add = none().with("reduction", text("add"));
    expect("scatter_nd", &[count(&[2, 2]), pairs, f32s(&[2], &[10., 20.])], add.clone(), &[2, 2], &[1., 12., 3., 24.]);
    let indices = Some(TensorData::i64s(&[1, 2], &[1, 1]).unwrap());
    let update = [count(&[2, 2]), indices.clone(), f32s(&[1, 2], &[10., 20.])];
    expect("scatter_elements", &update, add.clone().with("axis", ParamValue::Int(1)), &[2, 2], &[1., 32., 3., 4.]);
    expect("scatter_elements", &update, add, &[2, 2], &[1., 2., 13., 24.]);
    expect("gather_elements", &[count(&[2, 2]), indices], none(), &[1, 2], &[3., 4.]);
}

#[test]
fn ordering() {
    let x = f32s(&[6], &[2., f32::NAN, 5., 2., -1., 5.]);
    for (k, largest, expected) in [(4, true, vec![1, 2, 5, 0]), (3, false, vec![4, 0, 3])] {
        let params = Params::new().with("largest", ParamValue::Bool(largest));
        let out = run_all("topk", &[x.clone(), i64s(&[k])], params, 2).unwrap();
        assert_eq!(out[1].to_i64s(), expected);
    }
    // Long lines are merged: the order is that of a stable sort.
    let values: Vec<f32> = (0..100).map(|i| (i * 37 % 23) as f32).collect();
    let out = run_all("topk", &[f32s(&[100], &values), i64s(&[40])], Params::new(), 2).unwrap();
    let mut ids: Vec<i64> = (0..100).collect();
    ids.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]));
    assert_eq!(out[1].to_i64s(), ids[..40]);
}

#[test]
fn products() {
    let none = Params::new;
    expect("matmul", &[count(&[2, 2]), count(&[2, 2])], none(), &[2, 2], &[7., 10., 15., 22.]);
    expect("matmul", &[count(&[2]), count(&[2, 2, 1])], none(), &[2, 1], &[5., 11.]);
    expect("matmul", &[count(&[2]), count(&[2])], none(), &[], &[5.]);
    let gemm = none().with("transB", ParamValue::Bool(true)).with("alpha", ParamValue::Float(2.0));
    expect("gemm", &[count(&[1, 2]), count(&[2, 2]), count(&[2])], gemm, &[1, 2], &[11., 24.]);
    let equation = |e: &str| none().with("equation", text(e));
    expect("einsum", &[count(&[2, 2])], equation("ii->i"), &[2], &[1., 4.]);
    expect("einsum", &[count(&[2, 2])], equation("ij->"), &[], &[10.]);
    let three = [count(&[2]), count(&[2, 2]), count(&[2])];
    expect("einsum", &three, equation("i,ij,j"), &[], &[27.]);
    expect("einsum", &[count(&[1, 2, 2]), count(&[2, 1])], equation("...ij,jk->...ki"), &[1, 1, 2], &[5., 11.]);
}

#[test]
fn convolutions() {
    let none = Params::new;
    let pads = none().with("pads", ints(&[1, 1])).with("strides", ints(&[2]));
    expect("conv", &[count(&[1, 1, 4]), count(&[1, 1, 3])], pads, &[1, 1, 2], &[8., 20.]);
    let grouped = none().with("group", ParamValue::Int(2));
    let operands = [count(&[1, 2, 2]), count(&[2, 1, 1]), f32s(&[2], &[10., 20.])];
    expect("conv", &operands, grouped, &[1, 2, 2], &[11., 12., 26., 28.]);
    // Overlapping windows, and windows that tile the result.
    let transposed = [count(&[1, 1, 2]), count(&[1, 1, 3])];
    expect("conv_transpose", &transposed, none().with("strides", ints(&[2])), &[1, 1, 5], &[1., 2., 5., 4., 6.]);
    let tiles = none().with("strides", ints(&[3]));
    expect("conv_transpose", &transposed, tiles, &[1, 1, 6], &[1., 2., 3., 2., 4., 6.]);
}

#[test]
fn pools() {
    let kernel = || Params::new().with("kernel_shape", ints(&[2])).with("strides", ints(&[2]));
    let x = count(&[1, 1, 5]);
    expect(
        "max_pool",
        std::slice::from_ref(&x),
        kernel().with("ceil_mode", ParamValue::Bool(true)),
        &[1, 1, 3],
        &[2., 4., 5.],
    );
    let ceil = kernel().with("ceil_mode", ParamValue::Bool(true)).with("count_include_pad", ParamValue::Bool(true));
    expect("average_pool", std::slice::from_ref(&x), ceil, &[1, 1, 3], &[1.5, 3.5, 5.]);
    let out = run_all("max_pool", std::slice::from_ref(&x), kernel().with("pads", ints(&[1, 0])), 2).unwrap();
    assert_eq!(out[1].to_i64s(), [0, 2, 4]);
    expect("global_average_pool", &[x], Params::new(), &[1, 1, 1], &[3.]);
}

#[test]
fn resampling() {
    let sizes = |n: i64| [count(&[2]), None, None, i64s(&[n])];
    let nearest = Params::new().with("coordinate_transformation_mode", text("asymmetric"));
    expect("resize", &sizes(4), nearest, &[4], &[1., 1., 2., 2.]);
    let linear = Params::new().with("mode", text("linear"));
    expect("resize", &sizes(4), linear, &[4], &[1., 1.25, 1.75, 2.]);
}

#[test]
fn filling() {
    expect("range", &[f32s(&[], &[1.]), f32s(&[], &[6.]), f32s(&[], &[2.])], Params::new(), &[3], &[1., 3., 5.]);
    expect(
        "trilu",
        &[count(&[2, 2])],
        Params::new().with("upper", ParamValue::Bool(false)),
        &[2, 2],
        &[1., 0., 3., 4.],
    );
    let hot = [i64s(&[1, -1]), i64s(&[3]), f32s(&[2], &[0., 5.])];
    expect("one_hot", &hot, Params::new(), &[2, 3], &[0., 5., 0., 0., 0., 5.]);
}

/// A target without effect hides what is not finite.
#[test]
fn ignored_targets_count_nothing() {
    let params = || Params::new().with("ignore_index", ParamValue::Int(1)).with("reduction", text("none"));
    let scores = f32s(&[2, 2], &[-1.0, f32::NAN, -3.0, f32::NEG_INFINITY]);
    expect("nll_loss", &[scores.clone(), i64s(&[0, 1])], params(), &[2], &[1.0, 0.0]);
    let sum = params().with("reduction", text("sum"));
    expect("softmax_cross_entropy_loss", &[scores, i64s(&[1, 1])], sum, &[], &[0.0]);
}

/// Integers move by a fraction and by what is less than 0 although their type has neither.
#[test]
fn integers_shrink_by_real_numbers() {
    let bytes = |values: &[u8]| {
        let ty = tensorc_ir::DenseType::new(tensorc_ir::DType::U8, [values.len() as u64]);
        TensorData::new(ty, values.to_vec().into())
    };
    let params = |lambd: f64, bias: f64| {
        Params::new().with("lambd", ParamValue::Float(lambd)).with("bias", ParamValue::Float(bias))
    };
    expect("shrink", &[bytes(&[22, 0, 255])], params(0.0, -1.0), &[3], &[23.0, 0.0, 255.0]);
    expect("shrink", &[bytes(&[2, 4])], params(2.5, 0.5), &[2], &[0.0, 3.0]);
}

/// Operands of wrong shapes and parameters out of range are errors that name them.
#[test]
fn what_does_not_fit_is_refused() {
    let none = Params::new;
    let refused = |op: &str, operands: &[Option<TensorData>], params: Params, outputs: usize, name: &str| {
        let why = run_all(op, operands, params, outputs).unwrap_err();
        assert!(why.contains(name), "{op}: {why}");
    };
    for batch in [i64::MIN, -1, 4, i64::MAX] {
        let params = none().with("batch_dims", ParamValue::Int(batch));
        refused("gather_nd", &[count(&[2, 2, 2]), i64s(&[0])], params, 1, "batch_dims");
    }
    let wide = none().with("blocksize", ParamValue::Int(1 << 40));
    refused("depth_to_space", &[count(&[1, 4, 1, 1])], wide, 1, "blocksize");
    refused("non_max_suppression", &[count(&[1, 1, 6]), count(&[1, 6, 4])], none(), 1, "boxes");
    let channels: Vec<_> = std::iter::once(count(&[1, 2, 3])).chain((0..4).map(|_| count(&[2]))).collect();
    refused("batch_norm", &channels, none(), 3, "training_mode");
    let scalar: Vec<_> = (0..5).map(|_| count(&[])).collect();
    refused("batch_norm", &scalar, none(), 1, "rank");
    // Four blocks of a 3×3 image, of which more would be read with these pads.
    let columns = [count(&[1, 4, 4]), i64s(&[3, 3]), i64s(&[2, 2])];
    assert_eq!(run("col2im", &columns, none()).0, [1, 1, 3, 3]);
    refused("col2im", &columns, none().with("pads", ints(&[0, 0, 0, 1 << 20])), 1, "blocks");
    refused("col2im", &[count(&[1, 4, 4]), i64s(&[3, 3]), i64s(&[2, -2])], none(), 1, "block_shape");
    let heads = count(&[1, 2, 3, 4]);
    let caches = [heads.clone(), heads.clone(), heads.clone(), None, count(&[1]), count(&[1, 2, 1, 4])];
    refused("attention", &caches, none(), 3, "past_key");
    let gates = [count(&[2, 1, 3]), count(&[1, 8, 3]), count(&[1, 8, 2]), count(&[])];
    refused("lstm", &gates, none(), 1, "`B`");
    let lengths = [count(&[2, 1, 3]), count(&[1, 2, 3]), count(&[1, 2, 2]), None, i64s(&[1, 1])];
    refused("rnn", &lengths, none(), 1, "sequence_lens");
    refused("causal_conv_with_state", &[count(&[1, 2, 5]), count(&[2, 1, 0])], none(), 2, "weight");
    let wide = [count(&[2, 3]), count(&[4, 2, 3])];
    refused("layer_norm", &wide, none(), 1, "scale");
    refused("rms_norm", &wide, none(), 1, "scale");
    refused("min", &[], none(), 1, "operand");
    let taps = [count(&[1, 2, 5]), count(&[2, 1, 3]), count(&[])];
    refused("causal_conv_with_state", &taps, none(), 1, "bias");
    let nowhere = [count(&[4]), f32s(&[2], &[f32::NAN, 1.0]), None, i64s(&[3])];
    let cropped =
        || none().with("coordinate_transformation_mode", text("tf_crop_and_resize")).with("mode", text("linear"));
    refused("resize", &nowhere, cropped(), 1, "roi");
    let far = [count(&[4]), f32s(&[2], &[1e30, 1e30]), None, i64s(&[3])];
    assert_eq!(run("resize", &far, cropped()).0, [3]);
}

/// `RoiAlign` by its definition: all samples of every bin, in f64.
fn roi_align(x: &[f64], extent: usize, roi: [f64; 4], bins: usize, take_max: bool) -> Vec<f64> {
    let axis = |low: f64, high: f64, bin: usize| -> Vec<Option<f64>> {
        let size = (high - low) / bins as f64;
        let samples = size.ceil() as usize;
        let at = |i: usize| low - 0.5 + bin as f64 * size + (i as f64 + 0.5) * size / samples as f64;
        let inside = |at: &f64| (-1.0..=extent as f64).contains(at);
        (0..samples).map(at).map(|at| Some(at).filter(inside).map(|at| at.clamp(0.0, extent as f64 - 1.0))).collect()
    };
    let corners = |at: f64| {
        let low = at.floor();
        [(low as usize, 1.0 - (at - low)), ((low as usize + 1).min(extent - 1), at - low)]
    };
    let value = |bin: usize| {
        let (rows, columns) = (axis(roi[1], roi[3], bin / bins), axis(roi[0], roi[2], bin % bins));
        let sample = |(row, column): (&Option<f64>, &Option<f64>)| {
            let (Some(row), Some(column)) = (row, column) else { return vec![0.0] };
            let pairs = corners(*row).into_iter().flat_map(|r| corners(*column).map(|c| (r, c)));
            pairs.map(|(r, c)| x[r.0 * extent + c.0] * r.1 * c.1).collect()
        };
        let pairs = rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column)));
        let terms: Vec<Vec<f64>> = pairs.map(sample).collect();
        match (take_max, terms.is_empty()) {
            (_, true) => 0.0,
            (true, false) => terms.concat().into_iter().fold(f64::NEG_INFINITY, f64::max),
            (false, false) => terms.concat().iter().sum::<f64>() / terms.len() as f64,
        }
    };
    (0..bins * bins).map(value).collect()
}

#[test]
fn regions_of_any_extent() {
    let extent = 5;
    // Signs of both kinds: in the maximum, samples outside of the image count as zeros.
    let x: Vec<f32> = (0..extent * extent).map(|i| ((i * 7) % 11) as f32 - 12.0).collect();
    let near = [[0.5, 1.0, 4.0, 3.5], [-3.0, -2.5, 9.0, 2.0], [2.0, 3.0, 2.0, 4.0], [-40.0, 1.0, 300.0, 4.0]];
    let outside = [[7.0, 8.0, 30.0, 40.0], [-900.0, -1000.0, 1100.0, 1200.0]];
    let regions: Vec<[f32; 4]> = near.into_iter().chain(outside).collect();
    for (mode, take_max) in [("avg", false), ("max", true)] {
        let of = |regions: &[[f32; 4]]| {
            let count = regions.len() as u64;
            let images = Some(TensorData::i64s(&[count], &vec![0; regions.len()]).unwrap());
            let operands = [f32s(&[1, 1, 5, 5], &x), f32s(&[count, 4], regions.as_flattened()), images];
            let params = Params::new().with("mode", text(mode)).with("output_height", 2i64).with("output_width", 2i64);
            run("roi_align", &operands, params).1
        };
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let expected = regions.iter().flat_map(|r| roi_align(&wide, extent, r.map(f64::from), 2, take_max));
        for (i, (found, expected)) in of(&regions).iter().zip(expected).enumerate() {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{mode}, {i}: {found}, expected {expected}");
        }
        // What has more samples than anything could visit.
        let vast = [[-1e30, -1e30, 1e30, 1e30], [0.0, 0.0, f32::MAX, 3.0], [0.0, 0.0, f32::INFINITY, f32::NAN]];
        assert_eq!(of(&vast).len(), 12);
    }
}
