//! Models with texts among inputs, outputs and operators: stored cases of ONNX Runtime (`tests/ml/texts.py`), texts that a model does not
//! have, artifacts, and refusals.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use tensorc::aot::{AotRequest, compile};
use tensorc::ir::op::OnnxName;
use tensorc::{Array, Compiler, Error, ErrorKind, Isa, Model, Options, Tensor, TextArray};
use tensorc_frontend::onnx::proto::{
    AttributeProto, AttributeType, DataType, ModelProto, NodeProto, TensorProto, TypeValue, ValueInfoProto,
};
use tensorc_frontend::onnx::tensor::decode_tensor;
use tensorc_tests::compare::{data, tensor as run_time_tensor};

use crate::support::onnx_models::*;
use crate::support::stored::{COMPILER, cases_of, compare};

const CASES: &[u8] = include_bytes!("../ml/texts.zip");

fn array(bytes: Bytes) -> Array {
    let proto = TensorProto::decode(bytes.clone()).unwrap();
    if proto.data_type() != DataType::String as i32 {
        return run_time_tensor(&decode_tensor(bytes).unwrap().1).into();
    }
    let dims: Vec<u64> = proto.dims.iter().map(|n| *n as u64).collect();
    let texts: Vec<&str> = proto.string_data.iter().map(|text| std::str::from_utf8(text).unwrap()).collect();
    TextArray::of(&dims, &texts).unwrap().into()
}

fn load(model: &Bytes) -> Result<Model, Error> {
    COMPILER.load_bytes("texts", model.clone())
}

/// The outputs for inputs in the order of the model.
fn run(model: &Model, names: &[String], inputs: &[Array]) -> Result<Vec<Array>, Error> {
    let named: Vec<(&str, Array)> = names.iter().map(String::as_str).zip(inputs.iter().cloned()).collect();
    Ok(model.run_arrays(&named)?.into_iter().map(|(_, array)| array).collect())
}

/// The names of the inputs; a map is two.
fn input_names(model: &Bytes) -> Vec<String> {
    let proto = ModelProto::decode(model.clone()).unwrap();
    let names = |info: &ValueInfoProto| match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::Map(_)) => ["keys", "values"].map(|part| format!("{}.{part}", info.name())).to_vec(),
        _ => vec![info.name().to_owned()],
    };
    proto.graph.unwrap().input.iter().flat_map(names).collect()
}

/// Why a result is not what it ought to be.
fn difference(got: &Array, want: &Array, case: &str) -> Option<String> {
    match (got, want) {
        (Array::Numbers(got), Array::Numbers(want)) => compare(&data(got), &data(want), case, &|_, _| 1e-5).err(),
        _ => (got != want).then(|| format!("got {got:?}, expected {want:?}")),
    }
}

#[test]
fn stored_cases_of_onnx_runtime() {
    let (cases, mut failures) = (cases_of(CASES, array), vec![]);
    for case in &cases {
        let names = input_names(&case.model);
        // Twice, with what the first run has compiled.
        let results = load(&case.model).and_then(|model| {
            run(&model, &names, &case.inputs)?;
            run(&model, &names, &case.inputs)
        });
        match results {
            Err(why) => failures.push(format!("{}: {why}", case.name)),
            Ok(results) => {
                assert_eq!(results.len(), case.outputs.len(), "{}", case.name);
                let pairs = results.iter().zip(&case.outputs).enumerate();
                let wrong = pairs.filter_map(|(i, (got, want))| Some((i, difference(got, want, &case.name)?)));
                failures.extend(wrong.map(|(i, why)| format!("{}, result {i}: {why}", case.name)));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(cases.len() >= 85, "{} cases", cases.len());
}

fn texts(dims: &[u64], texts: &[&str]) -> Array {
    TextArray::of(dims, texts).unwrap().into()
}

fn list(name: &str, values: &[&str]) -> AttributeProto {
    let strings = values.iter().map(|s| s.as_bytes().to_vec().into()).collect();
    let kind = Some(AttributeType::Strings as i32);
    AttributeProto { name: Some(name.into()), r#type: kind, strings, ..Default::default() }
}

fn word(name: &str, value: &str) -> AttributeProto {
    let kind = Some(AttributeType::String as i32);
    AttributeProto {
        name: Some(name.into()),
        r#type: kind,
        s: Some(value.as_bytes().to_vec().into()),
        ..Default::default()
    }
}

fn ml(node: NodeProto) -> NodeProto {
    NodeProto { domain: Some(OnnxName::ML.into()), ..node }
}

/// A model whose inputs are vectors of two elements.
fn model(inputs: &[(&str, DataType)], nodes: Vec<NodeProto>, outputs: &[&str]) -> Bytes {
    let inputs = inputs.iter().map(|(name, ty)| value(name, *ty, &[2])).collect();
    let named = |(i, node): (usize, NodeProto)| NodeProto { name: Some(format!("node {i}")), ..node };
    let nodes = nodes.into_iter().enumerate().map(named).collect();
    let opset_import = vec![opset("", 21), opset(OnnxName::ML, 4), opset(OnnxName::MICROSOFT, 1)];
    let graph = Some(graph(inputs, nodes, outputs));
    ModelProto { ir_version: Some(8), opset_import, graph, ..Default::default() }.encode_to_vec().into()
}

fn request(name: &str) -> AotRequest {
    AotRequest {
        name: name.into(),
        shapes: BTreeMap::new(),
        ranges: BTreeMap::new(),
        target: Isa::native().unwrap(),
        gpu: None,
        embed_weights: true,
        program: false,
    }
}

fn normaliser(x: &str, y: &str) -> NodeProto {
    with(node("StringNormalizer", &[x], &[y]), vec![word("case_change_action", "UPPER")])
}

/// Texts that the model does not have are other texts than those that it has and than each other, whichever input they come from, and
/// come out as they went in. Calls do not remember them.
#[test]
fn texts_that_a_model_does_not_have() {
    let nodes = vec![
        node("Equal", &["x", "y"], &["same"]),
        node("Where", &["same", "x", "y"], &["chosen"]),
        ml(with(
            node("LabelEncoder", &["x"], &["code"]),
            vec![list("keys_strings", &["a", "b"]), ints("values_int64s", &[1, 2])],
        )),
    ];
    let inputs = [("x", DataType::String), ("y", DataType::String)];
    let model = load(&model(&inputs, nodes, &["same", "chosen", "code"])).unwrap();
    let table: Vec<&str> = model.texts().unwrap().list().iter().map(|text| &**text).collect();
    assert_eq!(table, ["a", "b"]);
    assert!(model.takes_or_gives_texts() && model.texts().unwrap().is_input("y"));
    let run = |x: [&str; 2], y: [&str; 2]| {
        let results = model.run_arrays(&[("y", texts(&[2], &y)), ("x", texts(&[2], &x))]).unwrap();
        let [(_, Array::Numbers(same)), (_, Array::Texts(chosen)), (_, Array::Numbers(code))] = &results[..] else {
            panic!("{results:?}")
        };
        let chosen: Vec<String> = chosen.texts().iter().map(|text| text.to_string()).collect();
        (data(same).to_i64s(), chosen, data(code).to_i64s())
    };
    assert_eq!(run(["p", "q"], ["q", "q"]), (vec![0, 1], vec!["q".into(), "q".into()], vec![-1, -1]));
    assert_eq!(run(["q", "a"], ["q", "p"]), (vec![1, 0], vec!["q".into(), "p".into()], vec![-1, 1]));
    assert_eq!(run(["", "b"], ["é", "b"]), (vec![0, 1], vec!["é".into(), "b".into()], vec![-1, 2]));
    // Graphs take numbers in their place.
    let numbers = |list: &[i64]| Tensor::from_slice(&[2], list).unwrap();
    let results = model.run(&[("x", numbers(&[1, 70])), ("y", numbers(&[1, 71]))]).unwrap();
    let results: Vec<Vec<i64>> = results.iter().map(|(_, tensor)| data(tensor).to_i64s()).collect();
    assert_eq!(results, [[1, 0], [1, 71], [2, -1]]);
}

#[test]
fn inputs_of_the_wrong_kind_are_named() {
    let equal = vec![node("Equal", &["x", "x"], &["y"])];
    let of_texts = load(&model(&[("x", DataType::String)], equal, &["y"])).unwrap();
    let numbers = Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap();
    let error = of_texts.run_arrays(&[("x", numbers.into())]).unwrap_err();
    assert_eq!(error.to_string(), "input `x` holds texts, numbers are given");
    assert_eq!(error.kind(), ErrorKind::Input);
    let of_numbers = load(&model(&[("x", DataType::Float)], vec![node("Neg", &["x"], &["y"])], &["y"])).unwrap();
    let error = of_numbers.run_arrays(&[("x", texts(&[2], &["a", "b"]))]).unwrap_err();
    assert_eq!(error.to_string(), "input `x` holds numbers, texts are given");
    let error = of_texts.run_arrays(&[]).unwrap_err();
    assert_eq!(error.to_string(), "input `x` is missing; the model takes: x");
}

/// A compiler for this processor, whatever the tests are for.
fn here() -> Compiler {
    Compiler::new(Options { threads: Some(1), ..Options::default() }).unwrap()
}

/// A model that the host divides has neither a plan nor an artifact; the error says which operator at which node is why.
#[test]
fn operators_of_the_host_leave_no_plan() {
    let bytes = model(&[("x", DataType::String)], vec![normaliser("x", "y")], &["y"]);
    let divided = here().load_bytes("texts", bytes).unwrap();
    divided.prepare().unwrap();
    let results = divided.run_arrays(&[("x", texts(&[2], &["a", "b"]))]).unwrap();
    assert_eq!(results, [("y".to_owned(), texts(&[2], &["A", "B"]))]);
    let numbers = Tensor::from_slice(&[2], &[0i64, 1]).unwrap();
    let plan = divided.run(&[("x", numbers.clone())]).unwrap_err();
    let artifact = compile(&divided, &request("texts")).err().unwrap();
    for error in [plan, artifact] {
        assert!(error.to_string().contains("StringNormalizer of node `node 0`"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let error = divided.run_arrays(&[("z", numbers.into())]).unwrap_err();
    assert_eq!(error.to_string(), "the model has no input `z`; it takes: x");
    let cast = with(node("Cast", &["x"], &["y"]), vec![int("to", DataType::Int32 as i64)]);
    let numbers = load(&model(&[("x", DataType::String)], vec![cast], &["y"])).unwrap();
    let error = numbers.run_arrays(&[("x", texts(&[2], &["1", "two"]))]).unwrap_err();
    assert_eq!(error.to_string(), "Cast of node `node 0`: the text \"two\" is no number of i32");
}

/// An artifact takes and gives numbers of texts; its header has the list.
#[test]
fn headers_of_artifacts_list_texts() {
    let encoder = with(
        node("LabelEncoder", &["x"], &["y"]),
        vec![list("keys_strings", &["a\"", "é"]), list("values_strings", &["one", "two"])],
    );
    let model = here().load_bytes("texts", model(&[("x", DataType::String)], vec![ml(encoder)], &["y"])).unwrap();
    let header = compile(&model, &request("words")).unwrap().header;
    let expected = [
        "inputs[0]: x i64[2], numbers of texts",
        "outputs[0]: y i64[2], numbers of texts",
        "#define WORDS_TEXTS 5",
        "static const char *const words_texts[WORDS_TEXTS] = {",
        "    \"a\\\"\",\n    \"\\303\\251\",\n    \"one\",\n    \"two\",\n    \"_Unused\",\n};",
    ];
    for expected in expected {
        assert!(header.contains(expected), "{expected} is not in\n{header}");
    }
}

fn why_refused(inputs: &[(&str, DataType)], nodes: Vec<NodeProto>, outputs: &[&str]) -> String {
    load(&model(inputs, nodes, outputs)).err().map_or("it is not refused".to_owned(), |error| error.to_string())
}

#[test]
fn what_is_no_place_for_texts_is_refused() {
    let (x, n) = (("x", DataType::String), ("n", DataType::Int64));
    let attribute = |op: &str, list: Vec<AttributeProto>| with(node(op, &["x"], &["y"]), list);
    let refused = [
        (node("Add", &["x", "x"], &["y"]), "its operand `x` is a tensor of texts"),
        (node("Equal", &["x", "n"], &["y"]), "its operand `n` holds numbers, another one texts"),
        (with(node("Concat", &["n", "x"], &["y"]), vec![int("axis", 0)]), "its operand `n` holds numbers"),
        (node("Gather", &["x", "x"], &["y"]), "its operand `x` holds texts, not numbers"),
        (attribute("Unique", vec![]), "texts are not sorted"),
        (attribute("RegexFullMatch", vec![word("pattern", "(")]), "the pattern \"(\" is not supported"),
        (attribute("StringNormalizer", vec![word("case_change_action", "TITLE")]), "not NONE, LOWER or UPPER"),
        (attribute("StringNormalizer", vec![word("colour", "red")]), "attribute `colour` is not supported"),
        (node("StringConcat", &["x"], &["y"]), "it has 1 operands"),
        (attribute("TfIdfVectorizer", vec![]), "`min_gram_length` is not given"),
        (attribute("Cast", vec![int("to", DataType::Bool as i64)]), "texts do not become bool"),
        (ml(attribute("OneHotEncoder", vec![ints("cats_int64s", &[1])])), "must both be texts, or neither"),
        (ml(attribute("Scaler", vec![])), "its operand `x` is a tensor of texts"),
        (
            ml(attribute("DictVectorizer", vec![list("string_vocabulary", &["a"])])),
            "it has 1 operands, of which a map is two",
        ),
    ];
    for (refused, expected) in refused {
        let (op, why) = (refused.op_type().to_owned(), why_refused(&[x, n], vec![refused], &["y"]));
        assert!(why.contains(&op) && why.contains("`node 0`") && why.contains(expected), "{op}: {why}");
    }
}

/// Positions are numbers beside texts, and come from inputs of their own.
#[test]
fn texts_beside_numbers() {
    let inputs = [("x", DataType::String), ("n", DataType::Int64)];
    let model = load(&model(&inputs, vec![node("Gather", &["x", "n"], &["y"])], &["y"])).unwrap();
    let rows = Tensor::from_slice(&[2], &[1i64, 1]).unwrap();
    let results = model.run_arrays(&[("x", texts(&[2], &["u", "v"])), ("n", rows.into())]).unwrap();
    assert_eq!(results[0].1, texts(&[2], &["v", "v"]));
    let refused = model.run_arrays(&[("x", texts(&[2], &["u", "v"])), ("n", texts(&[2], &["1", "1"]))]);
    assert_eq!(refused.unwrap_err().to_string(), "input `n` holds numbers, texts are given");
}
