//! Reading of ONNX files: decoding, tensors, external data, and damaged input.

use bytes::Bytes;
use prost::Message;
use tensorc_abi::DType;
use tensorc_frontend::onnx::error::{NotOnnx, OnnxError, TensorProblem, TensorSite};
use tensorc_frontend::onnx::files::ModelFiles;
use tensorc_frontend::onnx::functions::Functions;
use tensorc_frontend::onnx::limits::Budget;
use tensorc_frontend::onnx::load::OnnxModel;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::tensor::{read_sparse_tensor, read_tensor};
use tensorc_ir::TensorData;

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

fn value_info(name: &str, elem_type: DataType, dims: &[DimensionValue]) -> ValueInfoProto {
    let dim = dims.iter().map(|d| Dimension { value: Some(d.clone()) }).collect();
    let tensor = TensorTypeProto { elem_type: Some(elem_type as i32), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("{op}_node")),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: outputs.iter().map(|s| s.to_string()).collect(),
        ..NodeProto::default()
    }
}

fn raw(name: &str, data_type: DataType, dims: &[i64], data: &[u8]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(data_type as i32),
        dims: dims.to_vec(),
        raw_data: Some(Bytes::copy_from_slice(data)),
        ..TensorProto::default()
    }
}

/// A model with every kind of field that the loader reads.
fn small_model() -> ModelProto {
    let batch = DimensionValue::Param("batch".into());
    let mut conv = node("Gemm", &["x", "w", ""], &["h"]);
    conv.attribute = vec![
        AttributeProto { name: Some("alpha".into()), r#type: Some(1), f: Some(0.5), ..Default::default() },
        AttributeProto { name: Some("axes".into()), r#type: Some(7), ints: vec![-1, 2], ..Default::default() },
        AttributeProto { name: Some("mode".into()), r#type: Some(3), s: Some("linear".into()), ..Default::default() },
        AttributeProto {
            name: Some("value".into()),
            r#type: Some(4),
            t: Some(raw("", DataType::Int64, &[1], &7i64.to_le_bytes())),
            ..Default::default()
        },
    ];
    let weights: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let function = FunctionProto {
        name: Some("Twice".into()),
        domain: Some("local".into()),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Add", &["a", "a"], &["b"])],
        opset_import: vec![opset("", 17)],
        ..Default::default()
    };
    let mut call = node("Twice", &["h"], &["y"]);
    call.domain = Some("local".into());
    ModelProto {
        ir_version: Some(8),
        producer_name: Some("tests".into()),
        opset_import: vec![opset("", 17), opset("local", 1)],
        functions: vec![function],
        graph: Some(GraphProto {
            name: Some("g".into()),
            node: vec![conv, call],
            initializer: vec![raw("w", DataType::Float, &[3, 2], &weights)],
            input: vec![value_info("x", DataType::Float, &[batch.clone(), DimensionValue::Value(3)])],
            output: vec![value_info("y", DataType::Float, &[batch, DimensionValue::Value(2)])],
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Runs everything that reads untrusted bytes; the result does not matter, a panic does.
fn exercise(bytes: Bytes) -> bool {
    let Ok(mut model) = OnnxModel::decode(bytes, None) else { return false };
    for tensor in &model.graph.initializer {
        let _ = read_tensor(tensor, TensorSite::File, &mut model.files);
    }
    for sparse in &model.graph.sparse_initializer {
        let _ = read_sparse_tensor(sparse, TensorSite::File, &mut model.files);
    }
    for node in &model.graph.node {
        for attribute in &node.attribute {
            let _ = attribute.kind();
            if let Some(t) = &attribute.t {
                let _ = read_tensor(t, TensorSite::File, &mut model.files);
            }
        }
    }
    let Ok(functions) = Functions::new(model.proto.functions) else { return false };
    functions.expand(model.graph.node, &model.opsets.into(), &mut Budget::default()).is_ok()
}

#[test]
fn decodes_what_was_encoded() {
    let proto = small_model();
    let mut model = OnnxModel::decode(proto.encode_to_vec().into(), None).unwrap();
    assert_eq!(Some(model.graph.clone()), proto.graph);
    assert_eq!(model.opsets.version("ai.onnx"), Some(17));
    assert_eq!(model.opsets.version("local"), Some(1));
    let w = read_tensor(&model.graph.initializer[0], TensorSite::File, &mut model.files).unwrap();
    assert_eq!((w.dtype(), w.dims(), w.bytes().len()), (DType::F32, &[3, 2][..], 24));
    let kinds: Vec<_> = model.graph.node[0].attribute.iter().map(|a| a.kind()).collect();
    use AttributeType::*;
    assert_eq!(kinds, [Some(Float), Some(Ints), Some(String), Some(Tensor)]);
}

#[test]
fn raw_data_points_into_the_file() {
    let file = Bytes::from(small_model().encode_to_vec());
    let range = file.as_ptr_range();
    let mut model = OnnxModel::decode(file.clone(), None).unwrap();
    let w = read_tensor(&model.graph.initializer[0], TensorSite::File, &mut model.files).unwrap();
    assert!(range.contains(&w.bytes().as_ptr()));
}

#[test]
fn a_truncated_file_is_an_error_or_a_model_at_every_length() {
    let file = Bytes::from(small_model().encode_to_vec());
    for len in 0..file.len() {
        exercise(file.slice(..len));
    }
    assert!(exercise(file));
}

#[test]
fn deeply_nested_messages_are_refused() {
    let mut graph = GraphProto::default();
    for _ in 0..200 {
        let mut n = node("If", &[], &[]);
        n.attribute = vec![AttributeProto { g: Some(graph), ..Default::default() }];
        graph = GraphProto { node: vec![n], ..Default::default() };
    }
    let model = ModelProto { graph: Some(graph), ..small_model() };
    let error = OnnxModel::decode(model.encode_to_vec().into(), None).unwrap_err();
    assert!(matches!(error, OnnxError::NotOnnx(NotOnnx::TooDeep(_))), "{error}");
}

#[test]
fn other_files_are_named() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "empty"),
        (b"hello\n", "it is text (text IR is read if its name ends in .tc"),
        (b"\x93NUMPY\x01\0v\0{'descr'", "an array of numpy"),
        (b"\x08\x07\x3a\x10\0\0", "14 bytes are missing"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"PK\x03\x04\x14\0\0\0", "zip"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"\x08\x07", "no graph"),
    ];
    for (bytes, expected) in cases {
        let error = OnnxModel::decode(Bytes::from_static(bytes), None).unwrap_err().to_string();
        assert!(error.starts_with("not an ONNX model") && error.contains(expected), "{error}");
    }
    let missing = OnnxModel::open("no/such/model.onnx".as_ref()).unwrap_err();
    assert!(matches!(missing, OnnxError::Open { .. }));
}

#[test]
fn versions_are_checked() {
    let decode = |m: ModelProto| OnnxModel::decode(m.encode_to_vec().into(), None).unwrap_err().to_string();
    let m = small_model();
    assert_eq!(
        decode(ModelProto { ir_version: Some(99), ..m.clone() }),
        "ONNX IR version 99 is not supported (supported: 3 to 14)"
    );
    assert_eq!(
        decode(ModelProto { opset_import: vec![opset("ai.onnx", 1000)], ..m }),
        "operator set ai.onnx version 1000 is not supported (supported: 1 to 28)"
    );
}

fn read(proto: &TensorProto) -> Result<TensorData, TensorProblem> {
    let site = TensorSite::Initializer("w".into());
    read_tensor(proto, site, &mut ModelFiles::default()).map_err(|e| match e {
        OnnxError::Tensor { problem, .. } => problem,
        other => panic!("{other}"),
    })
}

#[test]
fn typed_fields_become_bytes() {
    let tensor = |data_type: DataType, fill: &dyn Fn(&mut TensorProto)| {
        let mut t = TensorProto { data_type: Some(data_type as i32), dims: vec![2], ..Default::default() };
        fill(&mut t);
        read(&t).unwrap()
    };
    let int32 = |data_type, values: [i32; 2]| tensor(data_type, &move |t| t.int32_data = values.to_vec());
    assert_eq!(int32(DataType::Float16, [0x3c00, 0xc000]).bytes(), [0x00, 0x3c, 0x00, 0xc0].as_slice());
    assert_eq!(int32(DataType::Bfloat16, [0x3f80, -0x4000]).bytes(), [0x80, 0x3f, 0x00, 0xc0].as_slice());
    assert_eq!(int32(DataType::Bool, [5, 0]).bytes(), [1, 0].as_slice());
    assert_eq!(int32(DataType::Int8, [-1, 127]).bytes(), [0xff, 0x7f].as_slice());
    assert_eq!(int32(DataType::Uint8, [255, 0]).bytes(), [0xff, 0].as_slice());
    assert_eq!(int32(DataType::Int16, [-2, 1]).bytes(), [0xfe, 0xff, 1, 0].as_slice());
    assert_eq!(int32(DataType::Uint16, [65535, 1]).bytes(), [0xff, 0xff, 1, 0].as_slice());
    assert_eq!(int32(DataType::Int32, [-1, 1]).bytes().len(), 8);
    let uint32 = tensor(DataType::Uint32, &|t| t.uint64_data = vec![u32::MAX.into(), 1]);
    assert_eq!(uint32.bytes(), [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0].as_slice());
    let f64s = tensor(DataType::Double, &|t| t.double_data = vec![1.0, -2.5]);
    assert_eq!(f64s.bytes()[8..], (-2.5f64).to_le_bytes());
    let i64s = tensor(DataType::Int64, &|t| t.int64_data = vec![1, i64::MIN]);
    assert_eq!(i64s.bytes()[8..], i64::MIN.to_le_bytes());
    let f32s = tensor(DataType::Float, &|t| {
        t.float_data = vec![1.0, f32::NAN];
        t.raw_data = Some(Bytes::new());
    });
    assert_eq!(f32s.bytes()[..4], 1f32.to_le_bytes());
}

#[test]
fn scalars_and_empty_tensors() {
    assert_eq!(read(&raw("", DataType::Float, &[], &[0; 4])).unwrap().dims(), [0u64; 0]);
    assert_eq!(read(&raw("", DataType::Float, &[0, i64::MAX], &[])).unwrap().bytes().len(), 0);
    let absent = TensorProto { data_type: Some(1), dims: vec![0], ..Default::default() };
    assert_eq!(read(&absent).unwrap().dims(), [0]);
}

#[test]
fn narrow_elements_are_unpacked() {
    let bytes = |tensor: &TensorProto| read(tensor).unwrap().bytes().to_vec();
    assert_eq!(bytes(&raw("", DataType::Int4, &[3], &[0x8f, 0x07])), [0xff, 0xf8, 0x07]);
    assert_eq!(bytes(&raw("", DataType::Int4, &[1], &[0x0f])), [0xff]);
    assert_eq!(bytes(&raw("", DataType::Uint2, &[5], &[0xe4, 0x02])), [0, 1, 2, 3, 2]);
    assert_eq!(bytes(&raw("", DataType::Float8e5m2, &[2], &[0x7c, 0xff])), [0x7c, 0xff]);
    assert_eq!(bytes(&raw("", DataType::Float6e3m2, &[4], &[0xe4, 0x9a, 0xf1])), [0x24, 0x2b, 0x19, 0x3c]);
    let typed = |data_type: DataType, dims: &[i64], int32_data: &[i32]| TensorProto {
        data_type: Some(data_type as i32),
        dims: dims.to_vec(),
        int32_data: int32_data.to_vec(),
        ..Default::default()
    };
    assert_eq!(bytes(&typed(DataType::Uint4, &[3], &[0x21, 0x03])), [1, 2, 3]);
    assert_eq!(bytes(&typed(DataType::Int2, &[1], &[0x03])), [0xff]);
    assert_eq!(bytes(&typed(DataType::Float8e4m3fn, &[2], &[0x7e, 0x80])), [0x7e, 0x80]);
    assert_eq!(bytes(&typed(DataType::Float6e2m3, &[2], &[0x3f, 0])), [0x3f, 0]);
    assert_eq!(bytes(&typed(DataType::Float4e2m1, &[2], &[0xf7])), [7, 15]);
}

#[test]
fn impossible_tensors_are_refused() {
    use TensorProblem as P;
    let short = raw("w", DataType::Float, &[2, 3], &[0; 20]);
    let error = read_tensor(&short, TensorSite::Initializer("w".into()), &mut ModelFiles::default()).unwrap_err();
    assert_eq!(error.to_string(), "initializer `w`: the shape [2, 3] of f32 needs 24 bytes, the data has 20");
    assert!(matches!(read(&raw("", DataType::Float, &[-1], &[])), Err(P::BadDimension { index: 0, value: -1 })));
    assert!(matches!(read(&raw("", DataType::Float, &[i64::MAX, 2], &[])), Err(P::TooLarge(_))));
    assert!(matches!(read(&raw("", DataType::Complex64, &[2], &[0; 16])), Err(P::UnsupportedType("complex64"))));
    let packed = raw("", DataType::Int4, &[3], &[0; 3]);
    assert!(matches!(read(&packed), Err(P::SizeMismatch { expected: 2, found: 3, .. })));
    let wide = TensorProto { data_type: Some(27), dims: vec![1], int32_data: vec![64], ..Default::default() };
    assert!(matches!(read(&wide), Err(P::OutOfRange { value: 64, dtype: "f6e2m3" })));
    let unknown = TensorProto { data_type: Some(77), ..Default::default() };
    assert!(matches!(read(&unknown), Err(P::UnknownType(77))));
    let wide = TensorProto { data_type: Some(3), dims: vec![1], int32_data: vec![300], ..Default::default() };
    assert!(matches!(read(&wide), Err(P::OutOfRange { value: 300, dtype: "i8" })));
    let missing = TensorProto { data_type: Some(1), dims: vec![4], ..Default::default() };
    assert!(matches!(read(&missing), Err(P::SizeMismatch { expected: 4, found: 0, .. })));
    let segmented = TensorProto { data_type: Some(1), segment: Some(Segment::default()), ..Default::default() };
    assert!(matches!(read(&segmented), Err(P::Segmented)));
}

#[test]
fn sparse_tensors_become_dense() {
    let values: Vec<u8> = [1f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let indices = |dims: &[i64], v: &[i64]| {
        raw("", DataType::Int64, dims, &v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    };
    let dense = |indices: TensorProto| {
        let values = Some(raw("", DataType::Float, &[2], &values));
        let proto = SparseTensorProto { values, indices: Some(indices), dims: vec![2, 3] };
        read_sparse_tensor(&proto, TensorSite::File, &mut ModelFiles::default())
    };
    let expected: Vec<u8> = [0f32, 1.0, 0.0, 0.0, 0.0, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(dense(indices(&[2], &[1, 5])).unwrap().bytes(), &expected[..]);
    assert_eq!(dense(indices(&[2, 2], &[0, 1, 1, 2])).unwrap().bytes(), &expected[..]);
    assert!(dense(indices(&[2], &[1, 6])).is_err());
    assert!(dense(indices(&[2, 2], &[0, 1, 1, -2])).is_err());
    assert!(dense(indices(&[3], &[0, 1, 2])).is_err());
}

#[test]
fn files_of_other_formats_are_named() {
    let texts = [
        "# A document, which somebody took for a model by its name",
        "Größen und andere Wörter in einem Text ohne Modell",
    ];
    let text = texts.map(|text| (text.as_bytes(), "text"));
    let others = [(&b"PK\x03\x04"[..], "a zip archive"), (b"{}", "JSON text"), (b"<html>", "XML or HTML text")];
    for (bytes, name) in text.into_iter().chain(others) {
        let error = OnnxModel::decode(bytes.into(), None).unwrap_err().to_string();
        assert!(error.contains(&format!("it is {name}")), "{error}");
    }
}
