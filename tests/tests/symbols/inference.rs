//! Shapes and types of symbols, from partial knowledge and in both directions.

use tensorc::DType;
use tensorc::symbol::{Infer, Inferred, PartialShape, Symbol, SymbolTypes, mxnet_shape, op, variable};

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

fn shaped(name: &str, dims: &[u64]) -> Symbol {
    variable(name).shape(dims).build().unwrap()
}

fn fc(x: &Symbol, hidden: usize, name: &str) -> Symbol {
    op("FullyConnected").input(x).param("num_hidden", hidden).name(name).build().unwrap()
}

fn relu(x: &Symbol) -> Symbol {
    op("Activation").input(x).param("act_type", "relu").build().unwrap()
}

fn mlp() -> Symbol {
    fc(&relu(&fc(&var("data"), 1000, "fc1")), 10, "fc2")
}

/// The shape of each argument, in MXNet's notation.
fn arguments(symbol: &Symbol, types: &SymbolTypes<PartialShape>) -> Vec<(String, Vec<u64>)> {
    symbol.list_arguments().into_iter().zip(types.arguments.iter().map(mxnet_shape)).collect()
}

#[track_caller]
fn assert_shapes(symbol: &Symbol, given: &[(&str, &[u64])], expected: &[(&str, &[u64])]) {
    let found = arguments(symbol, &symbol.infer_shape_partial(given).unwrap());
    for (name, dims) in expected {
        let shape = found.iter().find(|(n, _)| n == name).map(|(_, d)| d.as_slice());
        assert_eq!(shape, Some(*dims), "{name} of {found:?}");
    }
}

#[track_caller]
fn conflict(symbol: &Symbol, given: &[(&str, &[u64])]) -> String {
    symbol.infer_shape_partial(given).unwrap_err().to_string()
}

/// A018.
#[test]
fn a018_extents_meet_across_operators() {
    let (a, b, c) = (var("a"), var("b"), var("c"));
    let d = (&(&a * &b).unwrap() + &(&b * &c).unwrap()).unwrap();
    let given: [(&str, &[u64]); 2] = [("a", &[2, 0]), ("c", &[0, 3])];
    let Inferred::All(types) = d.infer_shape(&given).unwrap() else { panic!("incomplete") };
    assert_eq!(types.arguments, vec![vec![2, 3]; 3]);
    assert_eq!(types.outputs, [[2, 3]]);
}

/// A019 and A020.
#[test]
fn a019_a020_layers_shape_their_weights() {
    let out = mlp();
    let types = out.infer_shape(&[("data", &[100, 100])]).unwrap().all().unwrap();
    assert_eq!(out.list_arguments(), ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]);
    assert_eq!(types.arguments, [vec![100, 100], vec![1000, 100], vec![1000], vec![10, 1000], vec![10]]);
    assert_eq!(types.outputs, [[100, 10]]);
    let error = conflict(&out, &[("data", &[100, 100]), ("fc1_weight", &[1, 100])]);
    assert!(error.contains("fc1"), "{error}");
    let error = out.infer_shape(&[("dta", &[1, 1])]).unwrap_err().to_string();
    assert!(error.contains("`dta`") && error.contains("fc1_weight"), "{error}");
}

/// A021, A022, A023 and A024.
#[test]
fn a021_to_a024_results_shape_operands() {
    let (a, b) = (var("a"), var("b"));
    assert_shapes(&(&a + &b).unwrap(), &[("a", &[0, 10]), ("b", &[12, 0])], &[("a", &[12, 10]), ("b", &[12, 10])]);

    let (a, c) = (shaped("a", &[0, 10]), shaped("c", &[5, 0]));
    let sum = (&fc(&a, 21, "fc") + &c).unwrap();
    assert_shapes(&sum, &[], &[("a", &[5, 10]), ("c", &[5, 21])]);

    let (a, c) = (shaped("a", &[0, 10, 0, 0]), shaped("c", &[5, 21, 32, 32]));
    let conv = op("Convolution").input(&a).param("kernel", [3, 3]).param("pad", [1, 1]).param("num_filter", 21);
    let sum = (&conv.build().unwrap() + &c).unwrap();
    assert_shapes(&sum, &[], &[("a", &[5, 10, 32, 32])]);

    let (a, b, d) = (shaped("a", &[0, 10]), shaped("b", &[0, 5]), shaped("d", &[2, 0]));
    let both = op("Concat").inputs([&a, &b]).param("dim", 1).build().unwrap();
    assert_shapes(&(&both + &d).unwrap(), &[], &[("a", &[2, 10]), ("b", &[2, 5]), ("d", &[2, 15])]);
}

/// A025.
#[test]
fn a025_incomplete_inference_says_what_is_unknown() {
    let sum = (&fc(&var("data"), 128, "x2h") + &fc(&var("prev"), 128, "h2h")).unwrap();
    let out = relu(&sum);
    let given: [(&str, &[u64]); 1] = [("data", &[10, 64])];
    assert_eq!(
        out.infer_shape(&given).unwrap(),
        Inferred::Incomplete { unknown: vec!["prev".into(), "h2h_weight".into()] }
    );
    assert_shapes(&out, &given, &[("x2h_weight", &[128, 64])]);
    let partial = out.infer_shape_partial(&given).unwrap();
    let weight = out.list_arguments().iter().position(|n| n == "h2h_weight").unwrap();
    assert_eq!(partial.arguments[weight].as_ref().map_or(0, |d| d.iter().flatten().count()), 1, "{partial:?}");
    let state = mxnet_shape(&partial.outputs[0]);
    assert_eq!(state, [10, 128]);
    assert_shapes(&out, &[("data", &[10, 64]), ("prev", &state)], &[("h2h_weight", &[128, 128])]);
}

/// A026.
#[test]
fn a026_a_call_overrides_what_a_variable_states() {
    let sum = (&shaped("a", &[2, 3]) + &var("b")).unwrap();
    assert_eq!(sum.infer_shape(&[]).unwrap().all().unwrap().outputs, [[2, 3]]);
    assert_eq!(sum.infer_shape(&[("a", &[5, 6])]).unwrap().all().unwrap().outputs, [[5, 6]]);
}

/// A027.
#[test]
fn a027_types_flow_both_ways() {
    let cast = op("Cast").input(&var("data")).param("dtype", "float32").build().unwrap();
    let out = op("SoftmaxOutput").input(&fc(&cast, 10, "fc1")).name("softmax").build().unwrap();
    let all = out.infer_type(&[("data", DType::F16)]).unwrap().all().unwrap();
    assert_eq!(all.arguments, [DType::F16, DType::F32, DType::F32, DType::F32]);
    assert_eq!(all.outputs, [DType::F32]);
    let partial = out.infer_type_partial(&[]).unwrap();
    assert_eq!(partial.arguments, [None, Some(DType::F32), Some(DType::F32), Some(DType::F32)]);
}

/// A028.
#[test]
fn a028_unknown_extents_pass_through() {
    let outputs = |symbol: &Symbol, given: &[(&str, &[u64])]| {
        symbol.infer_shape_partial(given).unwrap().outputs.iter().map(mxnet_shape).collect::<Vec<_>>()
    };
    let dot = op("dot").input(&var("a")).input(&var("b")).build().unwrap();
    assert_eq!(outputs(&dot, &[("a", &[0, 3, 4]), ("b", &[4, 5])]), [[0, 3, 5]]);
    let embedding = op("Embedding").input(&var("a")).arg("weight", &var("b")).param("input_dim", 100);
    let embedding = embedding.param("output_dim", 10).build().unwrap();
    assert_eq!(outputs(&embedding, &[("a", &[0, 5]), ("b", &[100, 10])]), [[0, 5, 10]]);
    let moved = op("transpose").input(&var("a")).param("axes", [0, 2, 3, 1]).build().unwrap();
    assert_eq!(outputs(&moved, &[("a", &[0, 3, 224, 224])]), [[0, 224, 224, 3]]);
}

/// A029.
#[test]
fn a029_a_shared_weight_is_known_through_either_use() {
    let weight = var("weight");
    let sum = |x: &Symbol| op("sum").input(x).build().unwrap();
    let norm = sum(&op("abs").input(&weight).build().unwrap());
    let layer =
        op("FullyConnected").input(&var("data")).arg("weight", &weight).param("num_hidden", 5).param("no_bias", true);
    let out = (&norm + &sum(&layer.build().unwrap())).unwrap();
    let types = out.infer_shape(&[("data", &[1, 3])]).unwrap().all().unwrap();
    assert_eq!(out.list_arguments(), ["weight", "data"]);
    assert_eq!(types.arguments, [[5, 3], [1, 3]]);
}

/// A030.
#[test]
fn a030_a_contradiction_between_nodes_is_found() {
    let (x, v) = (var("x"), var("v"));
    let turned = op("transpose").input(&v).build().unwrap();
    let out = Symbol::group([&(&x + &v).unwrap(), &(&x + &turned).unwrap()]);
    let error = conflict(&out, &[("x", &[2, 3])]);
    assert!(error.contains("expected 3") || error.contains("found 3"), "{error}");
}

/// A031.
#[test]
fn a031_convolutions_check_groups_and_kernels() {
    let conv = |groups: usize, kernel: usize| {
        let conv = op("Convolution").input(&var("data")).param("kernel", [kernel, kernel]).param("num_filter", 8);
        conv.param("num_group", groups).name("conv").build().unwrap()
    };
    let given: [(&str, &[u64]); 1] = [("data", &[1, 4, 9, 9])];
    let types = conv(2, 3).infer_shape(&given).unwrap().all().unwrap();
    assert_eq!(types.arguments, [vec![1, 4, 9, 9], vec![8, 2, 3, 3], vec![8]]);
    assert_eq!(types.outputs, [[1, 8, 7, 7]]);
    for wrong in [conv(3, 3), conv(2, 11)] {
        let error = conflict(&wrong, &given);
        assert!(error.contains("`conv`"), "{error}");
    }
}

/// D12: the numbers of MXNet are translated at the surface, a rank without extents included.
#[test]
fn unknown_shapes_are_zeros_only_in_mxnets_notation() {
    let out = (&var("a") + &var("b")).unwrap();
    let partial = out.infer_shape_partial(&[("a", &[])]).unwrap();
    assert_eq!(partial.outputs, [None]);
    assert_eq!(mxnet_shape(&None), [0u64; 0]);
    let partial = out.infer_shape_partial(&[("a", &[0, 7])]).unwrap();
    assert_eq!(partial.outputs, [Some(vec![None, Some(7)])]);
}
