//! Model files of which large tensors are read while compiling: removed, changed, and compiled for several shapes.

use std::path::{Path, PathBuf};

use prost::Message;
use tensorc::{Compiler, Error, Model, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::support::backend::options;

/// Rows and columns of a weight that stays in its file.
const K: usize = 256;
const N: usize = 128;

fn weight(i: usize) -> f32 {
    (i * 7 % 61) as f32 / 64.0 - 0.5
}

/// `y = x·w + gather(w, 0)` for any number of rows: a weight that is packed, and used as it is.
fn file(name: &str) -> PathBuf {
    let dim = |value| Dimension { value: Some(value) };
    let shape = vec![dim(DimensionValue::Param("rows".into())), dim(DimensionValue::Value(K as i64))];
    let ty = TensorTypeProto { elem_type: Some(DataType::Float as i32), shape: Some(TensorShapeProto { dim: shape }) };
    let value = |name: &str, ty: Option<TensorTypeProto>| ValueInfoProto {
        name: Some(name.into()),
        r#type: ty.map(|ty| TypeProto { value: Some(TypeValue::Tensor(ty)) }),
    };
    let node = |op: &str, inputs: [&str; 2], output: &str| NodeProto {
        op_type: Some(op.into()),
        input: inputs.map(String::from).to_vec(),
        output: vec![output.into()],
        ..NodeProto::default()
    };
    let tensor = |name: &str, ty: DataType, dims: &[i64], data: Vec<u8>| TensorProto {
        name: Some(name.into()),
        data_type: Some(ty as i32),
        dims: dims.to_vec(),
        raw_data: Some(data.into()),
        ..TensorProto::default()
    };
    let w = (0..K * N).flat_map(|i| weight(i).to_le_bytes()).collect();
    let graph = GraphProto {
        name: Some("stored".into()),
        input: vec![
            value("x", Some(ty)),
            value(
                "i",
                Some(TensorTypeProto {
                    elem_type: Some(DataType::Int64 as i32),
                    shape: Some(TensorShapeProto::default()),
                }),
            ),
        ],
        output: vec![value("y", None)],
        node: vec![node("MatMul", ["x", "w"], "p"), node("Gather", ["w", "i"], "g"), node("Add", ["p", "g"], "y")],
        initializer: vec![tensor("w", DataType::Float, &[K as i64, N as i64], w)],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(17) };
    let model =
        ModelProto { ir_version: Some(8), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() };
    let path = std::env::temp_dir().join(format!("tensorc-stored-{name}-{}.onnx", std::process::id()));
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    path
}

fn load(path: &Path, threads: usize) -> Model {
    Compiler::new(tensorc::Options { threads: Some(threads), ..options() }).unwrap().load(path).unwrap()
}

/// Runs on rows of ones and compares with sums in f64.
fn run(model: &Model, rows: usize) -> Result<(), Error> {
    let x = Tensor::from_f32(&[rows as u64, K as u64], &vec![1.0; rows * K])?;
    let outputs = model.run(&[("x", x), ("i", Tensor::from_slice(&[], &[3i64])?)])?;
    for (i, y) in outputs[0].1.to_f32()?.into_iter().enumerate() {
        let column = i % N;
        let sum: f64 = (0..K).map(|k| f64::from(weight(k * N + column))).sum();
        assert!((f64::from(y) - sum - f64::from(weight(3 * N + column))).abs() < 1e-3, "{i}: {y}");
    }
    Ok(())
}

#[test]
fn a_file_may_be_removed_after_it_is_loaded() {
    for threads in [1, 3] {
        let path = file(&format!("removed-{threads}"));
        let model = load(&path, threads);
        std::fs::remove_file(&path).unwrap();
        for rows in [1, 40, 2] {
            run(&model, rows).unwrap();
        }
    }
}

#[test]
fn a_model_in_memory_is_that_of_its_file() {
    let path = file("memory");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let compiler = Compiler::new(options()).unwrap();
    let model = compiler.load_bytes("stored", bytes).unwrap();
    for rows in [1, 40, 2] {
        run(&model, rows).unwrap();
    }
    let error = compiler.load_bytes("cut", vec![8u8, 7, 58, 100]).err().unwrap();
    assert!(error.to_string().starts_with("cut: not an ONNX model"), "{error}");
}

#[test]
fn a_file_that_changes_before_it_is_compiled_is_an_error() {
    type Change = fn(&Path);
    let shorter: Change = |path| std::fs::File::options().write(true).open(path).unwrap().set_len(1000).unwrap();
    let longer: Change = |path| std::fs::File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
    for (name, change) in [("shorter", shorter), ("longer", longer)] {
        let path = file(name);
        let model = load(&path, 2);
        change(&path);
        for _ in 0..2 {
            let message = run(&model, 2).unwrap_err().to_string();
            assert!(message.contains("constants cannot be read from") && message.contains(name), "{message}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn sessions_share_what_was_read_and_packed() {
    let path = file("shared");
    let model = load(&path, 2);
    run(&model, 5).unwrap();
    let bytes = model.compiler().weight_bytes();
    assert!(bytes >= (4 * K * N) as u64, "{bytes}");
    run(&model, 6).unwrap();
    assert_eq!(model.compiler().weight_bytes(), bytes, "packed once");
    // Both are in memory by now: the file is not needed any more.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    run(&model, 7).unwrap();
    std::fs::remove_file(&path).unwrap();
}
