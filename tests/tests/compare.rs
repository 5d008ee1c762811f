//! Where the values of two models begin to differ.

use tensorc::compare::{Comparison, ComparisonRequest, Difference, Side, Tolerance, compare};
use tensorc::{Compiler, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::support::onnx_models::*;

fn compiler() -> Compiler {
    Compiler::new(Options { threads: Some(1), ..Options::default() }).unwrap()
}

fn named(name: &str, node: NodeProto) -> NodeProto {
    NodeProto { name: Some(name.into()), ..node }
}

/// Branches of so many nodes that come together: `/1/17` is a node of the second one. Where `wrong` names a node, its operand is
/// another.
fn branches(branches: usize, length: usize, wrong: &str) -> GraphProto {
    let (mut nodes, mut ends) = (vec![], vec![]);
    for branch in 0..branches {
        let mut x = "x".to_owned();
        for i in 0..length {
            let (name, y) = (format!("/{branch}/{i}"), format!("v{branch}.{i}"));
            let operand = if name == wrong { "b" } else { "a" };
            let made = match i % 3 {
                0 => node("Mul", &[&x, operand], &[&y]),
                1 => node("MatMul", &[&x, if name == wrong { "v" } else { "w" }], &[&y]),
                _ => node("Add", &[&x, operand], &[&y]),
            };
            nodes.push(named(&name, made));
            x = y;
        }
        ends.push(x);
    }
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    nodes.push(named("/join", with(node("Concat", &ends, &["joined"]), vec![int("axis", 0)])));
    nodes.push(named("/end", node("Abs", &["joined"], &["y"])));
    let mut graph = graph(vec![value("x", DataType::Float, &[4, 4])], nodes, &["y"]);
    let turned = |by: f32| (0..16).map(|i| if i % 5 == 0 { by } else { 0.01 }).collect::<Vec<_>>();
    graph.initializer = vec![
        f32s("a", &[], &[0.999]),
        f32s("b", &[], &[1.009]),
        f32s("w", &[4, 4], &turned(0.97)),
        f32s("v", &[4, 4], &turned(0.98)),
    ];
    graph
}

fn x() -> Tensor {
    Tensor::from_f32(&[4, 4], &(0..16).map(|i| i as f32 / 16.0).collect::<Vec<_>>()).unwrap()
}

fn side(graph: GraphProto, inputs: &[(&str, Tensor)]) -> Side {
    Side::of(&compiler().load_bytes("test.onnx", encoded(&model(graph))).unwrap(), inputs).unwrap()
}

fn compared(a: GraphProto, b: GraphProto) -> Comparison {
    let inputs = [("x", x())];
    compare(&side(a, &inputs), &side(b, &inputs), &ComparisonRequest::default()).unwrap()
}

#[test]
fn the_first_node_that_differs_is_found_in_branches() {
    for wrong in ["/0/0", "/1/17", "/2/58", "/2/59"] {
        let found = compared(branches(3, 60, ""), branches(3, 60, wrong));
        let first = found.first.as_ref().unwrap();
        assert_eq!(first.node, wrong);
        assert!(first.difference.absolute > 0.0 && first.difference.beyond > 0, "{found}");
        // 182 nodes, of which few are seen.
        assert!(found.compilations <= 12, "{wrong}: {} compilations", found.compilations);
        assert!(found.to_string().starts_with(&format!("`{wrong}` (")), "{found}");
    }
}

#[test]
fn many_short_branches_take_few_rounds() {
    let found = compared(branches(80, 4, ""), branches(80, 4, "/71/2"));
    assert_eq!(found.first.unwrap().node, "/71/2");
    assert!(found.compilations <= 16, "{} compilations", found.compilations);
}

#[test]
fn equal_models_agree() {
    let found = compared(branches(2, 9, ""), branches(2, 9, ""));
    assert!(found.first.is_none() && found.seen.is_empty() && found.compilations == 2);
    assert_eq!(found.to_string(), "outputs agree: no difference");
}

#[test]
fn the_tolerance_is_stated() {
    let inputs = [("x", x())];
    let (a, b) = (side(branches(1, 4, ""), &inputs), side(branches(1, 4, "/0/3"), &inputs));
    let within = |relative| {
        let tolerance = Tolerance { relative, absolute: 0.0 };
        compare(&a, &b, &ComparisonRequest { tolerance, layers: 3 }).unwrap()
    };
    assert!(within(0.5).first.is_none() && !within(0.5).seen.is_empty());
    assert_eq!(within(1e-4).first.unwrap().node, "/0/3");
}

/// A difference inside of a body is one of the node that holds it; the models need not have all nodes in common.
#[test]
fn control_flow_and_other_nodes_are_passed_over() {
    let with_branch = |op: &str, extra: bool| {
        let body = |op: &str| graph(vec![], vec![node(op, &["t"], &["z"])], &["z"]);
        let sides = vec![branch("then_branch", body(op)), branch("else_branch", body("Neg"))];
        let mut nodes = vec![named("/before", node("Exp", &["x"], &["t"]))];
        nodes.push(named("/choose", with(node("If", &["c"], &["u"]), sides)));
        let last = if extra { "twice" } else { "u" };
        nodes.extend(extra.then(|| named("/extra", node("Identity", &["u"], &["twice"]))));
        nodes.push(named("/after", node("Abs", &[last], &["y"])));
        graph(vec![value("x", DataType::Float, &[4, 4]), value("c", DataType::Bool, &[])], nodes, &["y"])
    };
    let yes = Tensor::from_bytes(tensorc::DType::Bool, &[], vec![1u8]).unwrap();
    let inputs = [("x", x()), ("c", yes)];
    let (a, b) = (side(with_branch("Sin", false), &inputs), side(with_branch("Cos", true), &inputs));
    let found = compare(&a, &b, &ComparisonRequest::default()).unwrap();
    assert_eq!(found.first.unwrap().node, "/choose");
}

#[test]
fn sides_that_cannot_be_compared_are_refused() {
    let inputs = [("x", x())];
    let other = |graph: GraphProto| {
        let error = compare(&side(branches(1, 3, ""), &inputs), &side(graph, &inputs), &ComparisonRequest::default());
        error.err().unwrap().to_string()
    };
    let renamed = graph(vec![value("x", DataType::Float, &[4, 4])], vec![node("Exp", &["x"], &["z"])], &["z"]);
    assert!(other(renamed).contains("no output of the same name"));
    let summed = graph(vec![value("x", DataType::Float, &[4, 4])], vec![node("ReduceSum", &["x"], &["y"])], &["y"]);
    assert!(other(summed).contains("output `y` is f32[4, 4] on one side and f32[1, 1] on the other"));
}

#[test]
fn integers_and_empty_tensors_are_compared() {
    let nothing = tensorc::ir::TensorData::f32s(&[0, 3], &[]).unwrap();
    assert_eq!(Difference::of(&nothing, &nothing, Tolerance::default()), Difference::default());
}
