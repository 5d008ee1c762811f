//! Operators that ONNX Runtime adds to ONNX: stored cases of ONNX Runtime (`tests/contrib/make.py`), by compiled code and by the
//! interpreter, and refusals.
//!
//! Integers agree exactly, quantised ones too.

use bytes::Bytes;
use prost::Message;
use tensorc::DType;
use tensorc::ir::op::OnnxName;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc_frontend::onnx::OnnxModel;
use tensorc_frontend::onnx::proto::{AttributeProto, DataType, ModelProto, NodeProto};
use tensorc_random::Rng;

use crate::support::onnx_models::*;
use crate::support::stored::{Case, check, compare, computed, why_refused};

const CASES: &[u8] = include_bytes!("../contrib/cases.zip");

/// Of an element, relative to it and to the greatest one: sums in another order. `DynamicQuantizeLSTM` rounds its states to
/// integers, and they may be rounded otherwise.
fn bound(dtype: DType, case: &str) -> f64 {
    match dtype {
        _ if case.starts_with("DynamicQuantizeLSTM/") => 2e-2,
        DType::F16 => 2e-3,
        _ => 1e-5,
    }
}

#[test]
fn stored_cases_of_onnx_runtime() {
    let count = check(CASES, &bound);
    assert!(count > 1000, "{count} cases");
}

/// A model of one node, `node`, of the domain, with inputs `x0`, `x1`, … ; one without a type is absent.
fn model_of(op: &str, inputs: &[Option<(DataType, &[i64])>], attributes: Vec<AttributeProto>, results: usize) -> Bytes {
    let name = |i: usize| format!("x{i}");
    let given = inputs.iter().enumerate();
    let operands: Vec<String> = given.clone().map(|(i, ty)| ty.map_or(String::new(), |_| name(i))).collect();
    let infos = given.filter_map(|(i, ty)| ty.map(|(dtype, dims)| value(&name(i), dtype, dims))).collect();
    let outputs: Vec<String> = (0..results).map(|i| format!("y{i}")).collect();
    let [operand_names, output_names] =
        [&operands, &outputs].map(|names| names.iter().map(String::as_str).collect::<Vec<&str>>());
    let node = with(node(op, &operand_names, &output_names), attributes);
    let node = NodeProto { name: Some("the node".into()), domain: Some(OnnxName::MICROSOFT.into()), ..node };
    let graph = graph(infos, vec![node], &output_names);
    let opset_import = vec![opset("", 21), opset(OnnxName::MICROSOFT, 1)];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec().into()
}

const F32: DataType = DataType::Float;
const I32: DataType = DataType::Int32;
const U8: DataType = DataType::Uint8;

type Refused<'a> = (&'a str, &'a [Option<(DataType, &'a [i64])>], Vec<AttributeProto>, &'a str);

/// The node is named, and what is wrong.
#[track_caller]
fn all_refused(cases: &[Refused<'_>]) {
    let mut others = vec![];
    for (op, inputs, attributes, expected) in cases {
        let why = why_refused(model_of(op, inputs, attributes.clone(), 1));
        if !(why.contains("the node") && why.contains(expected)) {
            others.push(format!("{op}: expected {expected:?}, found {why:?}"));
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}

#[test]
fn wrong_operands_are_refused() {
    all_refused(&[
        ("NoSuchOperator", &[Some((F32, &[2]))], vec![], "the operator is not known"),
        ("BiasGelu", &[Some((F32, &[2, 3])), Some((F32, &[4]))], vec![], "operand `B`"),
        ("FusedMatMul", &[Some((F32, &[2, 3])), Some((F32, &[2, 3]))], vec![], "operand `b`, axis 0"),
        ("FusedGemm", &[Some((F32, &[2, 3])), Some((F32, &[3, 2]))], vec![text("activation", "Softmax")], "`Softmax`"),
        (
            "SkipLayerNormalization",
            &[Some((F32, &[2, 3, 4])), Some((F32, &[2, 2, 4])), Some((F32, &[4]))],
            vec![],
            "operand `skip`, axis 1",
        ),
        (
            "Attention",
            &[Some((F32, &[1, 2, 3])), Some((F32, &[3, 12]))],
            vec![int("num_heads", 3)],
            "4 features do not divide into 3 heads",
        ),
        ("Attention", &[Some((F32, &[1, 2, 3])), Some((F32, &[3, 12]))], vec![], "num_heads"),
        (
            "Attention",
            &[Some((F32, &[2, 2, 3])), Some((F32, &[3, 12])), None, Some((I32, &[2, 5]))],
            vec![int("num_heads", 2)],
            "operand `mask_index`, axis 1",
        ),
        (
            "Attention",
            &[Some((F32, &[2, 2, 3])), Some((F32, &[3, 12]))],
            vec![int("num_heads", 2), int("do_rotary", 1)],
            "`do_rotary` = 1",
        ),
        (
            "MultiHeadAttention",
            &[Some((F32, &[1, 2, 6])), Some((F32, &[1, 3, 6]))],
            vec![int("num_heads", 2)],
            "operand `value` is missing",
        ),
        (
            "GroupQueryAttention",
            &[Some((F32, &[1, 2, 7])), None, None, None, None, Some((I32, &[1])), Some((I32, &[1]))],
            vec![int("num_heads", 2), int("kv_num_heads", 1)],
            "7 features",
        ),
        (
            "RotaryEmbedding",
            &[Some((F32, &[1, 2, 6])), Some((DataType::Int64, &[1])), Some((F32, &[4, 2])), Some((F32, &[4, 2]))],
            vec![],
            "`cos_cache`",
        ),
    ]);
}

#[test]
fn wrong_operands_of_other_families_are_refused() {
    all_refused(&[
        (
            "MatMulNBits",
            &[Some((F32, &[2, 20])), Some((U8, &[3, 2, 8])), Some((F32, &[6]))],
            vec![int("K", 20), int("N", 3), int("block_size", 24)],
            "`block_size` is 24",
        ),
        (
            "MatMulNBits",
            &[Some((F32, &[2, 20])), Some((U8, &[3, 2, 9])), Some((F32, &[6]))],
            vec![int("K", 20), int("N", 3), int("block_size", 16)],
            "operand `B`: expected 48 elements, found 54",
        ),
        (
            "QLinearAdd",
            &[
                Some((U8, &[3])),
                Some((F32, &[2])),
                None,
                Some((U8, &[3])),
                Some((F32, &[])),
                None,
                Some((F32, &[])),
                None,
            ],
            vec![],
            "operand `A_scale`: expected one element",
        ),
        (
            "QLinearConcat",
            &[Some((F32, &[])), Some((U8, &[])), Some((U8, &[2])), Some((F32, &[]))],
            vec![int("axis", 0)],
            "4 operands",
        ),
        (
            "CropAndResize",
            &[Some((F32, &[1, 1, 4, 4])), Some((F32, &[2, 3])), Some((I32, &[2])), Some((I32, &[2]))],
            vec![],
            "operand `rois`, axis 1",
        ),
        ("UnfoldTensor", &[Some((F32, &[4]))], vec![int("size", 5)], "slices of 5 elements of an axis of 4"),
        (
            "NGramRepeatBlock",
            &[Some((DataType::Int64, &[1, 4])), Some((F32, &[1, 4]))],
            vec![int("ngram_size", 0)],
            "`ngram_size` is 0",
        ),
    ]);
}

/// An operator set of a version that does not exist.
#[test]
fn other_versions_are_refused() {
    let mut model = ModelProto::decode(model_of("Gelu", &[Some((F32, &[2]))], vec![], 1)).unwrap();
    model.opset_import[1].version = Some(2);
    let error = OnnxModel::decode(model.encode_to_vec().into(), None).unwrap_err();
    assert!(error.to_string().contains("com.microsoft"), "{error}");
}

fn random(dims: &[u64], seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(DenseType::new(DType::F32, dims), |_| Scalar::f32(rng.below(2000) as f32 / 1000.0 - 1.0))
}

/// The first result of `MultiHeadAttention` with three heads of two features.
fn multi_head(operands: &[&TensorData]) -> TensorData {
    let dims: Vec<Vec<i64>> = operands.iter().map(|x| x.dims().iter().map(|n| *n as i64).collect()).collect();
    let inputs: Vec<Option<(DataType, &[i64])>> = dims.iter().map(|d| Some((F32, &d[..]))).collect();
    let model = model_of("MultiHeadAttention", &inputs, vec![int("num_heads", 3)], 1);
    let inputs = operands.iter().map(|x| (*x).clone()).collect();
    let [compiled, interpreted] = computed(&Case { name: "packed".into(), model, inputs, outputs: vec![] }).unwrap();
    compare(&compiled[0], &interpreted[0], "packed", &bound).unwrap();
    compiled[0].clone()
}

/// ONNX Runtime computes the packed forms on GPUs alone.
#[test]
fn packed_operands_are_those_apart() {
    let (batch, length, heads, size) = (2u64, 4u64, 3u64, 2u64);
    let packed = |count: u64, seed| random(&[batch, length, heads, count, size], seed);
    let part = |x: &TensorData, at: u64| {
        let count = x.dims()[3];
        TensorData::from_fn(DenseType::new(DType::F32, [batch, length, heads * size]), |i| {
            let (row, i) = (i / (heads * size), i % (heads * size));
            x.get(((row * heads + i / size) * count + at) * size + i % size)
        })
    };
    let (qkv, kv) = (packed(3, 1), packed(2, 2));
    let [q, k, v] = [0, 1, 2].map(|at| part(&qkv, at));
    compare(&multi_head(&[&qkv]), &multi_head(&[&q, &k, &v]), "packed", &bound).unwrap();
    let [k, v] = [0, 1].map(|at| part(&kv, at));
    compare(&multi_head(&[&q, &kv]), &multi_head(&[&q, &k, &v]), "packed", &bound).unwrap();
}
