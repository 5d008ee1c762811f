//! Models made after public reports of crashes in others' operators and optimizers: compiled, they are refused or give the
//! right result. Reports about files are in `frontend/tests/integration/cve.rs`.

use std::collections::BTreeSet;

use tensorc::ir::op::OnnxName;
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, Error, Options, Tensor};
use tensorc_frontend::onnx::proto::*;
use tensorc_tests::compare::{data, tensor as run_time_tensor};

use crate::support::backend::options;
use crate::support::onnx_models::*;

fn compiler() -> Compiler {
    Compiler::new(Options { threads: Some(2), ..options() }).unwrap()
}

/// Imports and compiles for the declared shapes; why it is refused, and never by an error that blames the compiler.
fn refused(compiler: &Compiler, graph: GraphProto) -> Option<String> {
    let graph = match import_graph(graph) {
        Ok(imported) => imported.graph,
        Err(error) => return Some(error.to_string()),
    };
    let model = compiler.model(graph);
    let types: Vec<DenseType> = model.inputs().into_iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    match model.compile(&types) {
        Ok(_) => None,
        Err(error @ (Error::Internal(_) | Error::Plan(_))) => panic!("{error}"),
        Err(error) => Some(error.to_string()),
    }
}

/// One operator over an image [1, 2, 6, 6] with a weight [2, 2, 3, 3] where it has one.
fn over_image(op: &str, attributes: Vec<AttributeProto>) -> GraphProto {
    let weights = op.starts_with("Conv");
    let inputs: &[&str] = if weights { &["x", "w"] } else { &["x"] };
    let image = vec![value("x", DataType::Float, &[1, 2, 6, 6])];
    let mut graph = graph(image, vec![with(node(op, inputs, &["y"]), attributes)], &["y"]);
    if weights {
        graph.initializer = vec![f32s("w", &[2, 2, 3, 3], &[1.0; 36])];
    }
    graph
}

const CONVOLUTIONS: [&str; 2] = ["Conv", "ConvTranspose"];
const POOLS: [&str; 3] = ["MaxPool", "AveragePool", "LpPool"];

/// ONNX Runtime, pull 21507 (`convPoolShapeInference`): lists of lengths that do not fit, and numbers of any size, were read
/// beyond the end and multiplied beyond 64 bits.
#[test]
fn onnx_runtime_21507_windows_of_any_size() {
    let compiler = compiler();
    let big = i64::MAX;
    let lists: [(&str, &[i64], &str); 24] = [
        ("kernel_shape", &[3], "expected"),
        ("kernel_shape", &[3, 3, 3], "expected"),
        ("kernel_shape", &[0, 0], ""),
        ("kernel_shape", &[-1, -1], ""),
        ("kernel_shape", &[big, big], ""),
        ("kernel_shape", &[i64::MIN, 3], ""),
        ("kernel_shape", &[1 << 32, 1 << 32], ""),
        ("pads", &[1], "parameter `pads`: expected 4 entries, found 1"),
        ("pads", &[0; 6], "parameter `pads`: expected 4 entries, found 6"),
        ("pads", &[big; 4], "parameters of windows must not exceed 2147483647"),
        ("pads", &[i64::MIN; 4], "parameters of windows must not exceed 2147483647"),
        ("pads", &[1 << 31; 4], "parameters of windows must not exceed 2147483647"),
        ("pads", &[big, big, -big, -big], "parameters of windows must not exceed 2147483647"),
        ("strides", &[1], "parameter `strides`: expected 2 entries, found 1"),
        ("strides", &[0, 0], "must be positive"),
        ("strides", &[-1, 1], "must be positive"),
        ("strides", &[big, big], "parameters of windows must not exceed 2147483647"),
        ("strides", &[1 << 40, 1], "parameters of windows must not exceed 2147483647"),
        ("dilations", &[1, 1, 1], "parameter `dilations`: expected 2 entries, found 3"),
        ("dilations", &[0, 0], "must be positive"),
        ("dilations", &[i64::MIN, 1], "must be positive"),
        ("dilations", &[big, 1], "parameters of windows must not exceed 2147483647"),
        ("dilations", &[1 << 62, 1], "parameters of windows must not exceed 2147483647"),
        ("dilations", &[1 << 32, 1 << 32], "parameters of windows must not exceed 2147483647"),
    ];
    for op in CONVOLUTIONS.into_iter().chain(POOLS) {
        for (name, list, why) in lists {
            let mut attributes = vec![ints(name, list)];
            if name != "kernel_shape" && POOLS.contains(&op) {
                attributes.push(ints("kernel_shape", &[2, 2]));
            }
            let found = refused(&compiler, over_image(op, attributes));
            assert!(found.as_ref().is_some_and(|found| found.contains(why)), "{op} {name} {list:?}: {found:?}");
        }
    }
    for (name, list) in [
        ("output_padding", &[1][..]),
        ("output_padding", &[-1, -1]),
        ("output_padding", &[big, big]),
        ("output_shape", &[1]),
        ("output_shape", &[-5, 3]),
        ("output_shape", &[0, 0]),
        ("output_shape", &[big, big]),
        ("pads", &[7, 7, 7, 7]),
    ] {
        let found = refused(&compiler, over_image("ConvTranspose", vec![ints(name, list)]));
        assert!(found.is_some(), "{name} {list:?}");
    }
    for op in POOLS {
        let attributes = vec![ints("kernel_shape", &[2, 2]), ints("pads", &[7, 7, 7, 7])];
        let found = refused(&compiler, over_image(op, attributes)).unwrap();
        assert!(found.contains("padding of 7 for a window that covers 2"), "{op}: {found}");
    }
}

/// ONNX 6180 and 8036, ONNX Runtime 28731: weights of more or fewer axes than the data were read beyond the end.
#[test]
fn onnx_runtime_28731_weights_of_another_rank() {
    let compiler = compiler();
    for op in CONVOLUTIONS {
        for dims in [&[2, 2, 3, 3, 3][..], &[2, 2, 3], &[2], &[]] {
            let mut graph = over_image(op, vec![]);
            let elements = dims.iter().product::<i64>() as usize;
            graph.initializer = vec![f32s("w", dims, &vec![1.0; elements])];
            let found = refused(&compiler, graph).unwrap();
            assert!(found.contains(&format!("expected rank 4, found rank {}", dims.len())), "{op} {dims:?}: {found}");
        }
        for dims in [&[7][..], &[], &[1, 2]] {
            let mut graph = over_image(op, vec![]);
            graph.input = vec![value("x", DataType::Float, dims)];
            let found = refused(&compiler, graph).unwrap();
            assert!(found.contains("rank"), "{op} {dims:?}: {found}");
        }
    }
}

/// Inputs that no machine holds: the product of the extents wraps, or does not.
#[test]
fn inputs_of_any_declared_size() {
    let compiler = compiler();
    for op in POOLS {
        for dims in
            [&[i64::MAX, 2, 6, 6][..], &[1, 2, i64::MAX, i64::MAX], &[1, 2, 1 << 31, 1 << 31], &[1 << 62, 1, 8, 8]]
        {
            let mut graph = over_image(op, vec![ints("kernel_shape", &[2, 2])]);
            graph.input = vec![value("x", DataType::Float, dims)];
            let found = refused(&compiler, graph).unwrap();
            assert!(found.contains("has more bytes than a machine can address"), "{op} {dims:?}: {found}");
        }
    }
}

fn quantized(v: f32, scale: f32, zero: f32) -> f32 {
    (((v / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero) * scale
}

/// ONNX Runtime, issue 23258: moving a transposition through quantized operators, past the operand of a multiplication that
/// is dequantized by axis, ended the process.
#[test]
fn onnx_runtime_23258_transpositions_around_quantized_operators() {
    let qdq = |from: &str, name: &str, scale: &str, zero: &str| {
        let (q, dq) = (format!("{name}_q"), format!("{name}_dq"));
        [node("QuantizeLinear", &[from, scale, zero], &[&q]), node("DequantizeLinear", &[&q, scale, zero], &[&dq])]
    };
    let mut nodes = vec![with(node("Transpose", &["x"], &["t"]), vec![ints("perm", &[0, 3, 1, 2])])];
    nodes.extend(qdq("t", "a", "half", "z128"));
    nodes.push(node("Sigmoid", &["a_dq"], &["s"]));
    nodes.extend(qdq("s", "b", "small", "z0"));
    nodes.push(node("Squeeze", &["v", "axes"], &["u"]));
    nodes.push(with(node("DequantizeLinear", &["u", "scales", "zeros"], &["m"]), vec![int("axis", 0)]));
    nodes.push(node("Mul", &["b_dq", "m"], &["p"]));
    nodes.extend(qdq("p", "c", "small", "z0"));
    nodes.push(with(node("Transpose", &["c_dq"], &["y"]), vec![ints("perm", &[0, 2, 3, 1])]));
    let inputs = vec![value("x", DataType::Float, &[1, 2, 3, 4]), value("v", DataType::Uint8, &[1, 3, 1])];
    let mut graph = graph(inputs, nodes, &["y"]);
    let byte = |name: &str, value: u8| raw(name, DataType::Uint8, &[], &[value]);
    graph.initializer = vec![
        f32s("half", &[], &[0.5]),
        f32s("small", &[], &[1.0 / 255.0]),
        byte("z128", 128),
        byte("z0", 0),
        i64s("axes", &[2], &[0, 2]),
        f32s("scales", &[3], &[0.01, 0.02, 0.005]),
        raw("zeros", DataType::Uint8, &[3], &[0, 1, 2]),
    ];
    let x: Vec<f32> = (0..24).map(|i| i as f32 * 0.37 - 4.1).collect();
    let v = [50u8, 30, 120];
    let expected = x.iter().enumerate().map(|(i, &x)| {
        let s = 1.0 / (1.0 + (-quantized(x, 0.5, 128.0)).exp());
        // The axis of three in [1, 2, 3, 4].
        let axis = i / 4 % 3;
        let m = (f32::from(v[axis]) - [0.0, 1.0, 2.0][axis]) * [0.01, 0.02, 0.005][axis];
        quantized(quantized(s, 1.0 / 255.0, 0.0) * m, 1.0 / 255.0, 0.0)
    });
    let model = compiler().model(import_graph(graph).unwrap().graph);
    let bytes = TensorData::new(DenseType::new(tensorc::DType::U8, [1, 3, 1]), v.to_vec().into()).unwrap();
    let inputs: [(&str, Tensor); 2] =
        [("x", run_time_tensor(&TensorData::f32s(&[1, 2, 3, 4], &x).unwrap())), ("v", run_time_tensor(&bytes))];
    let got = data(&model.run(&inputs).unwrap()[0].1).to_f32s();
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-6, "{got}, expected {expected}");
    }
}

/// Every operator with fewer operands than it needs, left out or absent: lists of none had no first.
#[test]
fn operators_of_too_few_operands() {
    let compiler = compiler();
    let names: BTreeSet<OnnxName> = compiler.registry().iter().flat_map(|op| op.names.onnx.iter().copied()).collect();
    assert!(names.len() > 200, "{}", names.len());
    let inputs = || vec![value("x", DataType::Float, &[2, 3]), value("n", DataType::Int64, &[])];
    for name in names {
        for operands in [&[][..], &[""], &["x"], &["", "x"], &["n"], &["x", ""]] {
            let node = NodeProto { domain: Some(name.domain.into()), ..node(name.name, operands, &["y"]) };
            // What it says does not matter here: that it is said does.
            refused(&compiler, graph(inputs(), vec![node], &["y"]));
        }
    }
    for name in ["Min", "Max", "Sum", "Mean", "Concat"] {
        for operands in [&[][..], &[""]] {
            let found = refused(&compiler, graph(inputs(), vec![node(name, operands, &["y"])], &["y"])).unwrap();
            assert!(found.contains("[operands] node `y`"), "{name} {operands:?}: {found}");
        }
    }
}
