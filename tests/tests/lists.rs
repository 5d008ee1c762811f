//! Models with sequences and optional values: which tensors there are decides what is compiled. Results by hand.

use tensorc::{Compiler, Error, Model, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::support::backend::options;
use crate::support::onnx_models::{branch, encoded, graph, i64s, int, model, node, opset, untyped, with};

fn tensor_type() -> TypeProto {
    TypeProto {
        value: Some(TypeValue::Tensor(TensorTypeProto { elem_type: Some(DataType::Float as i32), shape: None })),
    }
}

fn element(of: TypeProto) -> Box<ElementTypeProto> {
    Box::new(ElementTypeProto { elem_type: Some(Box::new(of)) })
}

fn sequence_type() -> TypeProto {
    TypeProto { value: Some(TypeValue::Sequence(element(tensor_type()))) }
}

fn optional(of: TypeProto) -> TypeProto {
    TypeProto { value: Some(TypeValue::Optional(element(of))) }
}

fn input(name: &str, ty: TypeProto) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), r#type: Some(ty) }
}

fn load(graph: GraphProto) -> (tempfile::TempDir, Model) {
    let (dir, model) = try_load(graph);
    (dir, model.unwrap())
}

fn try_load(graph: GraphProto) -> (tempfile::TempDir, Result<Model, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lists.onnx");
    let proto = ModelProto { opset_import: vec![opset("", 18)], ..model(graph) };
    std::fs::write(&path, encoded(&proto)).unwrap();
    (dir, Compiler::new(Options { poison: true, ..options() }).unwrap().load(path))
}

fn x(values: &[f32]) -> Tensor {
    Tensor::from_f32(&[values.len() as u64], values).unwrap()
}

fn run(model: &Model, inputs: &[(&str, Tensor)]) -> Vec<(String, Vec<f32>)> {
    let outputs = model.run(inputs).unwrap_or_else(|e| panic!("{e}"));
    outputs.into_iter().map(|(name, t)| (name, t.to_f32().unwrap())).collect()
}

/// `joined = concat(erase(xs, position), axis 0)`, `backwards = [last, first]`.
fn joined() -> GraphProto {
    graph(
        vec![input("xs", sequence_type())],
        vec![
            node("SequenceErase", &["xs"], &["rest"]),
            with(node("ConcatFromSequence", &["xs"], &["joined"]), vec![int("axis", 0)]),
            with(node("ConcatFromSequence", &["rest"], &["shorter"]), vec![int("axis", 0)]),
            node("SequenceConstruct", &["shorter", "joined"], &["both"]),
        ],
        &["joined", "both"],
    )
}

#[test]
fn a_model_follows_the_length_of_a_sequence() {
    let (_file, model) = load(joined());
    assert!(model.has_lists() && model.inputs().is_empty());
    for _ in 0..2 {
        assert_eq!(
            run(&model, &[("xs[0]", x(&[1.0])), ("xs[1]", x(&[2.0, 3.0]))]),
            [
                ("joined".into(), vec![1.0, 2.0, 3.0]),
                ("both[0]".into(), vec![1.0]),
                ("both[1]".into(), vec![1.0, 2.0, 3.0])
            ]
        );
        let three = [("xs[2]", x(&[4.0])), ("xs[0]", x(&[1.0])), ("xs[1]", x(&[2.0]))];
        assert_eq!(run(&model, &three)[0].1, [1.0, 2.0, 4.0]);
    }
}

#[test]
fn a_model_of_a_known_length_has_inputs() {
    let (_file, model) = load(joined());
    assert!(matches!(model.compile(&[]), Err(Error::UnknownLengths { inputs }) if inputs == "xs"));
    let model = model.with_elements(&["xs[0]", "xs[1]"]).unwrap();
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["xs[0]", "xs[1]"]);
    let inputs = [x(&[1.0]), x(&[2.0])];
    let mut session = model.compile_for(&inputs).unwrap();
    assert_eq!(session.outputs(), ["joined", "both[0]", "both[1]"]);
    assert_eq!(session.run(&inputs).unwrap()[0].to_f32().unwrap(), [1.0, 2.0]);
}

#[test]
fn wrong_tensors_of_sequences_are_errors() {
    let (_file, model) = load(joined());
    let error = |inputs: &[(&str, Tensor)]| model.run(inputs).unwrap_err().to_string();
    // The last of an empty sequence, an element left out, and another input.
    assert!(error(&[]).contains("its sequence is empty"), "{}", error(&[]));
    let gap = error(&[("xs[0]", x(&[1.0])), ("xs[2]", x(&[1.0]))]);
    assert!(gap.contains("xs[2]"), "{gap}");
    let other = error(&[("xs[0]", x(&[1.0])), ("xs[1]", x(&[1.0])), ("y", x(&[1.0]))]);
    assert!(other.contains("no input `y`"), "{other}");
}

#[test]
fn an_optional_input_may_be_left_out() {
    let there =
        graph(vec![], vec![node("OptionalGetElement", &["bias"], &["b"]), node("Add", &["x", "b"], &["y"])], &["y"]);
    let absent = graph(vec![], vec![node("Neg", &["x"], &["n"])], &["n"]);
    let nodes = vec![
        node("OptionalHasElement", &["bias"], &["has"]),
        with(node("If", &["has"], &["out"]), vec![branch("then_branch", there), branch("else_branch", absent)]),
    ];
    let inputs = vec![input("x", tensor_type()), input("bias", optional(tensor_type()))];
    let (_file, model) = load(graph(inputs, nodes, &["out"]));
    assert_eq!(run(&model, &[("x", x(&[1.0, 2.0])), ("bias", x(&[10.0, 20.0]))])[0].1, [11.0, 22.0]);
    assert_eq!(run(&model, &[("x", x(&[1.0, 2.0]))])[0].1, [-1.0, -2.0]);
}

#[test]
fn a_body_is_applied_to_every_tensor() {
    let body = graph(vec![untyped("e"), untyped("s")], vec![node("Mul", &["e", "s"], &["p"])], &["p"]);
    let nodes = vec![
        with(node("SplitToSequence", &["x"], &["parts"]), vec![int("axis", 0), int("keepdims", 0)]),
        with(node("SequenceMap", &["parts", "scale"], &["scaled"]), vec![branch("body", body)]),
        with(node("ConcatFromSequence", &["scaled"], &["y"]), vec![int("axis", 0), int("new_axis", 1)]),
    ];
    let (_file, model) = load(graph(vec![input("x", tensor_type()), input("scale", tensor_type())], nodes, &["y"]));
    // How many parts there are follows from the shape.
    assert!(model.has_branches());
    for n in [1, 3] {
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let doubled: Vec<f32> = values.iter().map(|v| v * 2.0).collect();
        let scale = Tensor::from_f32(&[], &[2.0]).unwrap();
        assert_eq!(run(&model, &[("x", x(&values)), ("scale", scale)])[0].1, doubled);
    }
}

#[test]
fn undecided_branches_give_sequences_of_one_length() {
    let of = |op: &str| {
        graph(vec![], vec![node(op, &["x"], &["v"]), node("SequenceConstruct", &["v", "x"], &["list"])], &["list"])
    };
    let sum = with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]);
    let nodes = vec![
        sum,
        with(node("Cast", &["sum"], &["condition"]), vec![int("to", DataType::Bool as i64)]),
        with(
            node("If", &["condition"], &["out"]),
            vec![branch("then_branch", of("Neg")), branch("else_branch", of("Exp"))],
        ),
    ];
    let (_file, model) = load(graph(vec![input("x", tensor_type())], nodes, &["out"]));
    let outputs = run(
        &model,
        &[("x", x(&[1.0, 20.0, 30.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))],
    );
    assert_eq!(outputs.len(), 2);
    assert_eq!((outputs[0].0.as_str(), outputs[0].1[1]), ("out[0]", -20.0));
    assert_eq!(outputs[1].1[1], 20.0);
}

#[test]
fn parts_without_number_are_refused() {
    let nodes = vec![
        with(node("SplitToSequence", &["x", "one"], &["parts"]), vec![int("axis", 0)]),
        node("SequenceLength", &["parts"], &["n"]),
    ];
    let long = TypeProto {
        value: Some(TypeValue::Tensor(TensorTypeProto {
            elem_type: Some(DataType::Float as i32),
            shape: Some(TensorShapeProto { dim: vec![Dimension { value: Some(DimensionValue::Value(1 << 40)) }] }),
        })),
    };
    let mut g = graph(vec![input("x", long)], nodes, &["n"]);
    g.initializer = vec![i64s("one", &[], &[1])];
    let error = try_load(g).1.err().unwrap().to_string();
    assert!(error.contains("it has more than 1048576 nodes"), "{error}");
}

#[test]
fn names_of_elements_are_taken_once() {
    let nodes = vec![node("Neg", &["x"], &["y[0]"]), node("SequenceConstruct", &["x"], &["y"])];
    let error = try_load(graph(vec![input("x", tensor_type())], nodes, &["y[0]", "y"])).1.err().unwrap().to_string();
    assert!(error.contains("`y[0]`") && error.contains("the sequence `y`"), "{error}");
    let nodes = vec![node("SequenceInsert", &["xs", ""], &["y"])];
    let (_file, model) = load(graph(vec![input("xs", sequence_type())], nodes, &["y"]));
    let error = model.run(&[("xs[0]", x(&[1.0]))]).unwrap_err().to_string();
    assert!(error.contains("an operand is missing"), "{error}");
}
