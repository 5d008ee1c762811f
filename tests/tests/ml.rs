//! Operators of `ai.onnx.ml`: stored cases of ONNX Runtime (`tests/ml/make.py`, `tests/ml/trained.py`), by compiled code and by the
//! interpreter; damaged trees, and refusals.

use bytes::Bytes;
use prost::Message;
use tensorc::ir::op::OnnxName;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, DType, Options};
use tensorc_frontend::onnx::proto::{AttributeProto, AttributeType, DataType, ModelProto, NodeProto};
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_random::Rng;
use tensorc_tests::compare::{data, tensor as run_time_tensor};

use crate::support::backend::options;
use crate::support::onnx_models::*;
use crate::support::stored::{Case, cases, check, compare, computed, why_refused};

const CASES: &[u8] = include_bytes!("../ml/cases.zip");
/// Models that scikit-learn, LightGBM and XGBoost have trained, with open extents of rows.
const TRAINED: &[u8] = include_bytes!("../ml/trained.zip");

/// Sums in another order.
fn bound(_: DType, _: &str) -> f64 {
    1e-5
}

#[test]
fn stored_cases_of_onnx_runtime() {
    let count = check(CASES, &bound);
    assert!(count >= 320, "{count} cases");
}

/// Labels that are texts are positions, maps are tensors of values.
#[test]
fn trained_models() {
    let count = check(TRAINED, &bound);
    assert!(count >= 12, "{count} models");
}

/// One plan serves every number of rows, with the same bits whatever that and the number of threads are.
#[test]
fn rows_do_not_depend_on_each_other() {
    for case in cases(TRAINED) {
        let mut expected: Option<Vec<TensorData>> = None;
        for threads in [1, 2] {
            let compiler = Compiler::new(Options { threads: Some(threads), ..options() }).unwrap();
            let model = OnnxModel::decode(case.model.clone(), None).unwrap();
            let graph = import(model, compiler.registry(), &ImportOptions::default()).unwrap().graph;
            let model = compiler.model(graph);
            let [x] = &case.inputs[..] else { panic!("{} has more than one input", case.name) };
            for rows in [x.dims()[0], 1, 7, 8, 9, 17, 64] {
                let name = model.inputs()[0].0.to_string();
                let got = model.run(&[(name.as_str(), run_time_tensor(&head(x, rows)))]).unwrap();
                let got: Vec<TensorData> = got.iter().map(|(_, t)| data(t)).collect();
                let want = expected.get_or_insert_with(|| got.clone());
                let want: Vec<TensorData> = want.iter().map(|x| head(x, rows)).collect();
                assert_eq!(got, want, "{}, {rows} rows, {threads} threads", case.name);
            }
        }
    }
}

/// The first rows of a tensor.
fn head(x: &TensorData, rows: u64) -> TensorData {
    let mut dims = x.dims().to_vec();
    dims[0] = rows;
    TensorData::from_fn(DenseType::new(x.dtype(), dims), |i| x.get(i))
}

/// Changes something in the lists that describe trees.
fn damaged(model: &ModelProto, rng: &mut Rng) -> Bytes {
    let mut model = model.clone();
    let node = &mut model.graph.as_mut().unwrap().node[0];
    let at = rng.below(node.attribute.len() as u64) as usize;
    let attribute = &mut node.attribute[at];
    let rows = attribute.ints.len().max(attribute.floats.len()).max(attribute.strings.len()).max(1) as u64;
    let (row, way) = (rng.below(rows) as usize, rng.below(6));
    let number = [-1, 0, 1, rng.below(rows + 2) as i64, rng.below(rows + 2) as i64, i64::MAX][way as usize];
    if let Some(entry) = attribute.ints.get_mut(row) {
        *entry = number;
    }
    if let Some(entry) = attribute.floats.get_mut(row) {
        *entry = [f32::NAN, 0.0, f32::INFINITY, -1.0, f32::MAX, 1.0][way as usize];
    }
    if let Some(entry) = attribute.strings.get_mut(row) {
        *entry = [&b"LEAF"[..], b"BRANCH_LT", b"BRANCH_EQ", b"?", b"", b"BRANCH_GTE"][way as usize].to_vec().into();
    }
    if attribute.kind() == Some(AttributeType::Int) {
        attribute.i = Some(number);
    }
    if let Some(tensor) = &mut attribute.t {
        let mut raw = tensor.raw_data().to_vec();
        let byte = rng.below(raw.len().max(1) as u64) as usize;
        raw.get_mut(byte).into_iter().for_each(|byte| *byte = rng.below(256) as u8);
        tensor.raw_data = Some(raw.into());
    }
    match rng.below(8) {
        0 => drop(attribute.ints.pop()),
        1 => drop(node.attribute.remove(at)),
        _ => {}
    }
    model.encode_to_vec().into()
}

/// Whatever is wrong with a table of trees, it is refused, or both ways compute the same.
#[test]
fn damaged_trees_are_refused_or_computed() {
    let (mut rng, mut refused, mut equal) = (Rng::new(7), 0, 0);
    for case in cases(CASES).into_iter().filter(|case| case.name.starts_with("TreeEnsemble")) {
        let model = ModelProto::decode(case.model.clone()).unwrap();
        for _ in 0..6 {
            let damaged = Case { model: damaged(&model, &mut rng), ..case.clone() };
            match computed(&damaged) {
                Err(_) => refused += 1,
                Ok([compiled, interpreted]) => {
                    equal += 1;
                    for (got, want) in compiled.iter().zip(&interpreted) {
                        compare(got, want, &case.name, &bound).unwrap();
                    }
                }
            }
        }
    }
    assert!(refused > 50 && equal > 50, "{refused} refused, {equal} computed");
}

fn texts(name: &str, values: &[&str]) -> AttributeProto {
    let strings = values.iter().map(|s| s.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..typed(name, AttributeType::Strings) }
}

fn typed(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..Default::default() }
}

/// A model of one node, `the node`, of the domain, with an input of two rows of three features.
fn model_of(op: &str, attributes: Vec<AttributeProto>, results: usize) -> Bytes {
    let outputs: Vec<String> = (0..results).map(|i| format!("y{i}")).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let node = with(node(op, &["x"], &outputs), attributes);
    let node = NodeProto { name: Some("the node".into()), domain: Some(OnnxName::ML.into()), ..node };
    let graph = graph(vec![value("x", DataType::Float, &[2, 3])], vec![node], &outputs);
    let opset_import = vec![opset("", 21), opset(OnnxName::ML, 5)];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..Default::default() }.encode_to_vec().into()
}

/// One branch with two leaves, but for what `change` does with it.
fn stump(change: impl Fn(&mut Vec<AttributeProto>)) -> Vec<AttributeProto> {
    let mut attributes = vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        ints("nodes_featureids", &[1, 0, 0]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
        ints("target_treeids", &[0, 0]),
        ints("target_nodeids", &[1, 2]),
        ints("target_ids", &[0, 0]),
        floats("target_weights", &[1.0, 2.0]),
        int("n_targets", 1),
    ];
    change(&mut attributes);
    attributes
}

/// The stump with one list in place of another of the same name.
fn stump_with(list: AttributeProto) -> Vec<AttributeProto> {
    stump(|attributes| {
        attributes.retain(|old| old.name() != list.name());
        attributes.push(list.clone());
    })
}

#[test]
fn wrong_trees_are_refused() {
    let x = TensorData::from_fn(DenseType::new(DType::F32, [2, 3]), |i| Scalar::f32(i as f32 / 4.0));
    let sound = Case {
        name: "stump".into(),
        model: model_of("TreeEnsembleRegressor", stump(|_| ()), 1),
        inputs: vec![x],
        outputs: vec![],
    };
    let [compiled, _] = computed(&sound).unwrap();
    assert_eq!(compiled[0].to_f32s(), [1.0, 2.0]);
    let wrong = [
        (ints("nodes_truenodeids", &[0, 0, 0]), "the child of two nodes, or of itself"),
        (ints("nodes_truenodeids", &[7, 0, 0]), "has the child 7, which is not listed"),
        (ints("nodes_falsenodeids", &[2, 0]), "`nodes_falsenodeids` has 2 entries for 3"),
        (ints("nodes_featureids", &[3, 0, 0]), "feature 3 is tested, of 3"),
        (ints("nodes_featureids", &[-1, 0, 0]), "feature -1"),
        (ints("nodes_nodeids", &[0, 1, 1]), "node 1 of tree 0 is listed twice"),
        (texts("nodes_modes", &["BRANCH_LIKE", "LEAF", "LEAF"]), "the unknown mode `BRANCH_LIKE`"),
        (floats("nodes_values", &[0.5]), "`nodes_values` has 1 entries for 3"),
        (ints("target_nodeids", &[1, 9]), "a weight is for node 9 of tree 0"),
        (ints("target_ids", &[0, 1]), "a weight for target 1 of 1"),
        (int("n_targets", 0), "0 targets"),
        (ints("nodes_treeids", &[]), "`nodes_treeids` is empty"),
    ];
    for (list, expected) in wrong {
        let name = list.name().to_owned();
        let why = why_refused(model_of("TreeEnsembleRegressor", stump_with(list), 1));
        assert!(why.contains("the node") && why.contains(expected), "{name}: expected {expected:?}, found {why:?}");
    }
}

#[test]
fn wrong_models_are_refused() {
    let wrong = [
        ("NoSuchModel", vec![], 1, "the operator is not known"),
        ("TreeEnsembleClassifier", vec![], 2, "`classlabels_int64s` is empty"),
        ("LinearRegressor", vec![floats("coefficients", &[1.0, 2.0])], 1, "operand `X`, features"),
        ("LinearClassifier", vec![ints("classlabels_ints", &[0, 1])], 2, "`coefficients` has 0 entries"),
        ("SVMRegressor", vec![floats("coefficients", &[1.0, 2.0, 3.0])], 1, "`rho` is empty"),
        (
            "SVMClassifier",
            vec![
                ints("classlabels_ints", &[0, 1]),
                ints("vectors_per_class", &[1]),
                floats("support_vectors", &[1.0, 2.0, 3.0]),
            ],
            2,
            "`vectors_per_class` has 1 entries for 2 classes",
        ),
        ("Scaler", vec![floats("offset", &[1.0, 2.0])], 1, "`offset` has 2 entries"),
        ("Imputer", vec![], 1, "0 imputed values"),
        ("OneHotEncoder", vec![texts("cats_strings", &["a"])], 1, "must both be texts, or neither"),
        (
            "LabelEncoder",
            vec![texts("keys_strings", &["a"]), ints("values_int64s", &[1])],
            1,
            "must both be texts, or neither",
        ),
        ("LabelEncoder", vec![ints("keys_int64s", &[1]), ints("values_int64s", &[1])], 1, "keys are i64"),
        ("TreeEnsemble", vec![], 1, "`nodes_modes` is not given"),
    ];
    for (op, attributes, results, expected) in wrong {
        let why = why_refused(model_of(op, attributes, results));
        assert!(why.contains("the node") && why.contains(expected), "{op}: expected {expected:?}, found {why:?}");
    }
}

/// Labels of texts are numbers that are the same in all lists; what is no place for texts is refused.
#[test]
fn texts_are_numbers_of_the_model() {
    let ml = |op: &str, x: &str, y: &[&str], attributes| {
        let node = with(node(op, &[x], y), attributes);
        NodeProto { domain: Some(OnnxName::ML.into()), ..node }
    };
    let classifier = || {
        let attributes = vec![
            floats("coefficients", &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
            floats("intercepts", &[0.0, 0.0]),
            texts("classlabels_strings", &["left", "right"]),
        ];
        ml("LinearClassifier", "x", &["label", "scores"], attributes)
    };
    let encoder = || {
        let keys = texts("keys_strings", &["down", "right", "left"]);
        ml("LabelEncoder", "label", &["code"], vec![keys, ints("values_int64s", &[7, 8, 9])])
    };
    let model = |nodes: Vec<NodeProto>, outputs: &[&str]| -> Bytes {
        let graph = graph(vec![value("x", DataType::Float, &[2, 3])], nodes, outputs);
        let opset_import = vec![opset("", 21), opset(OnnxName::ML, 3)];
        ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..Default::default() }
            .encode_to_vec()
            .into()
    };
    let x = TensorData::f32s(&[2, 3], &[1.0, 2.0, 0.0, 5.0, 3.0, 0.0]).unwrap();
    let sound = model(vec![classifier(), encoder()], &["label", "code"]);
    let case = Case { name: "texts".into(), model: sound.clone(), inputs: vec![x], outputs: vec![] };
    for results in computed(&case).unwrap() {
        assert_eq!(results[0].to_i64s(), [1, 0]);
        assert_eq!(results[1].to_i64s(), [8, 9]);
    }
    let sound = OnnxModel::decode(sound, None).unwrap();
    let imported = import(sound, crate::support::stored::COMPILER.registry(), &ImportOptions::default()).unwrap();
    assert_eq!(imported.texts.list, ["left", "right", "down"]);
    let why = why_refused(model(vec![classifier(), node("Neg", &["label"], &["number"])], &["number"]));
    assert!(why.contains("its operand `label` is a tensor of texts"), "{why}");
    let codes = ml("LabelEncoder", "label", &["code"], vec![ints("keys_int64s", &[0]), ints("values_int64s", &[1])]);
    let why = why_refused(model(vec![classifier(), codes], &["code"]));
    assert!(why.contains("must both be texts, or neither"), "{why}");
}
