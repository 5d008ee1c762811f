//! Expansion of model-local functions.

use std::rc::Rc;

use tensorc_frontend::onnx::error::{FunctionProblem, OnnxError};
use tensorc_frontend::onnx::functions::{Functions, ScopedNode};
use tensorc_frontend::onnx::limits::{Budget, ImportLimits, MAX_NODES, OverLimit};
use tensorc_frontend::onnx::load::Opsets;
use tensorc_frontend::onnx::proto::*;

fn opset(version: i64) -> Vec<OperatorSetIdProto> {
    vec![OperatorSetIdProto { domain: None, version: Some(version) }]
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|s| s.to_string()).collect()
}

fn node(domain: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        domain: Some(domain.into()),
        input: strings(inputs),
        output: strings(outputs),
        ..NodeProto::default()
    }
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("f".into()),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: opset(13),
        ..FunctionProto::default()
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(2), i: Some(value), ..Default::default() }
}

fn reference(name: &str, to: &str) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(2), ref_attr_name: Some(to.into()), ..Default::default() }
}

fn expand(nodes: Vec<NodeProto>, functions: &[FunctionProto]) -> Result<Vec<ScopedNode>, OnnxError> {
    expand_within(ImportLimits::default(), nodes, functions)
}

fn expand_within(
    limits: ImportLimits,
    nodes: Vec<NodeProto>,
    functions: &[FunctionProto],
) -> Result<Vec<ScopedNode>, OnnxError> {
    let functions = Functions::new(functions.to_vec())?;
    functions.expand(nodes, &Rc::new(Opsets::new(&opset(17))?), &mut Budget::new(limits))
}

/// `output = Op(inputs)` for every node.
fn lines(nodes: &[ScopedNode]) -> Vec<String> {
    let line = |n: &NodeProto| format!("{} = {}({})", n.output.join(", "), n.op_type(), n.input.join(", "));
    nodes.iter().map(|n| line(&n.node)).collect()
}

fn problem(result: Result<Vec<ScopedNode>, OnnxError>) -> FunctionProblem {
    match result {
        Err(OnnxError::Function { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_are_replaced_and_local_names_kept_apart() {
    let body = vec![node("", "Exp", &["a"], &["t"]), node("", "Add", &["t", "b"], &["r"])];
    let f = function("F", &["a", "b"], &["r"], body);
    let calls =
        vec![node("f", "F", &["x", "y"], &["u"]), node("", "Relu", &["u"], &["v"]), node("f", "F", &["v"], &["w"])];
    let nodes = expand(calls, &[f]).unwrap();
    assert_eq!(
        lines(&nodes),
        ["F.0/t = Exp(x)", "u = Add(F.0/t, y)", "v = Relu(u)", "F.1/t = Exp(v)", "w = Add(F.1/t, )"]
    );
    let versions: Vec<_> = nodes.iter().map(|n| n.opsets.version("").unwrap()).collect();
    assert_eq!(versions, [13, 13, 17, 13, 13]);
}

#[test]
fn prefixes_avoid_names_of_the_caller() {
    let f = function("F", &["a"], &["r"], vec![node("", "Exp", &["a"], &["t"]), node("", "Abs", &["t"], &["r"])]);
    let nodes = expand(vec![node("f", "F", &["F.0/t"], &["y"])], &[f]).unwrap();
    assert_eq!(lines(&nodes), ["F.1/t = Exp(F.0/t)", "y = Abs(F.1/t)"]);
}

#[test]
fn attributes_come_from_the_call_or_the_default() {
    let mut body = node("", "Op", &["a"], &["r"]);
    body.attribute = vec![reference("axis", "ax"), reference("keep", "k"), reference("gone", "none"), int("own", 5)];
    let mut f = function("F", &["a"], &["r"], vec![body]);
    f.attribute_proto = vec![int("ax", 1), int("k", 1)];
    let mut call = node("f", "F", &["x"], &["y"]);
    call.attribute = vec![int("ax", -1)];
    let nodes = expand(vec![call], &[f]).unwrap();
    let attributes: Vec<_> = nodes[0].node.attribute.iter().map(|a| (a.name(), a.i())).collect();
    assert_eq!(attributes, [("axis", -1), ("keep", 1), ("own", 5)]);
}

#[test]
fn functions_call_functions_and_shadow_operators() {
    let inner = function("Relu", &["a"], &["r"], vec![node("", "Max", &["a", "a"], &["r"])]);
    let outer = function("G", &["p"], &["q"], vec![node("f", "Relu", &["p"], &["q"])]);
    let nodes = expand(vec![node("f", "G", &["x"], &["y"]), node("", "Relu", &["y"], &["z"])], &[inner, outer]);
    assert_eq!(lines(&nodes.unwrap()), ["y = Max(x, x)", "z = Relu(y)"]);
}

#[test]
fn an_input_that_is_an_output_is_copied() {
    let f = function("F", &["a"], &["a", "r", "r"], vec![node("", "Neg", &["a"], &["r"])]);
    let nodes = expand(vec![node("f", "F", &["x"], &["y", "z", "w"])], &[f]).unwrap();
    assert_eq!(lines(&nodes), ["z = Neg(x)", "y = Identity(x)", "w = Identity(z)"]);
}

#[test]
fn names_inside_of_subgraphs_follow() {
    let branch = GraphProto {
        node: vec![node("", "Add", &["a", "t"], &["s"])],
        output: vec![ValueInfoProto { name: Some("s".into()), r#type: None }],
        ..Default::default()
    };
    let mut body = node("", "If", &["c"], &["r"]);
    body.attribute = vec![AttributeProto { name: Some("then_branch".into()), g: Some(branch), ..Default::default() }];
    let f = function("F", &["a", "c"], &["r"], vec![node("", "Exp", &["a"], &["t"]), body]);
    let nodes = expand(vec![node("f", "F", &["x", "y"], &["z"])], &[f]).unwrap();
    let graph = nodes[1].node.attribute[0].g.as_ref().unwrap();
    assert_eq!(graph.node[0].input, ["x", "F.0/t"]);
    assert_eq!((graph.node[0].output[0].as_str(), graph.output[0].name()), ("F.0/s", "F.0/s"));
}

#[test]
fn broken_functions_are_refused() {
    let f = |name: &str, nodes| function(name, &["a"], &["r"], nodes);
    let call = |name: &str| node("f", name, &["a"], &["r"]);
    let start = || vec![node("f", "F", &["x"], &["y"])];
    assert_eq!(problem(expand(start(), &[f("F", vec![call("F")])])), FunctionProblem::Recursive("F".into()));
    let ring = [f("F", vec![call("G")]), f("G", vec![call("H")]), f("H", vec![call("F")])];
    assert_eq!(problem(expand(start(), &ring)), FunctionProblem::Recursive("H".into()));
    assert_eq!(problem(expand(start(), &[f("F", vec![]), f("F", vec![])])), FunctionProblem::Duplicate);
    let assigns = f("F", vec![node("", "Neg", &["r"], &["a"])]);
    assert_eq!(problem(expand(start(), &[assigns])), FunctionProblem::AssignsInput("a".into()));
    let wide = vec![node("f", "F", &["x", "x"], &["y"])];
    assert!(matches!(
        problem(expand(wide, &[f("F", vec![])])),
        FunctionProblem::TooManyInputs { given: 2, taken: 1, .. }
    ));
    let wide = vec![node("f", "F", &["x"], &["y", "z"])];
    assert!(matches!(problem(expand(wide, &[f("F", vec![])])), FunctionProblem::TooManyOutputs { given: 2, .. }));
}

#[test]
fn explosive_expansion_is_refused() {
    // Each function calls the next twice: 2^60 nodes.
    let twice = |i: usize| {
        let next = format!("F{}", i + 1);
        let calls = vec![node("f", &next, &["a"], &["t"]), node("f", &next, &["t"], &["r"])];
        function(&format!("F{i}"), &["a"], &["r"], calls)
    };
    let mut functions: Vec<_> = (0..60).map(twice).collect();
    functions.push(function("F60", &["a"], &["r"], vec![node("", "Neg", &["a"], &["r"])]));
    let start = vec![node("f", "F0", &["x"], &["y"])];
    let nodes = |limit| OnnxError::Limit(OverLimit::Nodes(limit)).to_string();
    let refusal = |limits, functions: &[FunctionProto]| expand_within(limits, start.clone(), functions).unwrap_err();
    assert_eq!(refusal(ImportLimits::default(), &functions).to_string(), nodes(MAX_NODES));
    let few = ImportLimits { nodes: Some(1000), ..ImportLimits::default() };
    assert_eq!(refusal(few, &functions).to_string(), nodes(1000));
    functions[60].node.clear();
    assert_eq!(refusal(few, &functions).to_string(), nodes(1000));
    let chain: Vec<_> = (0..100)
        .map(|i| function(&format!("F{i}"), &["a"], &["r"], vec![node("f", &format!("F{}", i + 1), &["a"], &["r"])]))
        .collect();
    assert!(matches!(problem(expand(start, &chain)), FunctionProblem::TooDeep(_)));
}

/// A list of a megabyte in a body that is written out a thousand times and more.
#[test]
fn copies_of_large_bodies_are_refused() {
    let mut large = node("", "Op", &["a"], &["r"]);
    large.attribute = vec![AttributeProto { name: Some("list".into()), ints: vec![0; 1 << 17], ..Default::default() }];
    let f = function("F", &["a"], &["r"], vec![large]);
    let calls = |n: usize| (0..n).map(|i| node("f", "F", &["x"], &[&format!("y{i}")])).collect::<Vec<_>>();
    assert_eq!(expand(calls(3), std::slice::from_ref(&f)).unwrap().len(), 3);
    let refusal = |limits| expand_within(limits, calls(2000), std::slice::from_ref(&f)).unwrap_err();
    assert!(matches!(refusal(ImportLimits::default()), OnnxError::Limit(OverLimit::Copies(_))));
    let small = ImportLimits { bytes: Some(1 << 22), ..ImportLimits::default() };
    assert_eq!(refusal(small).to_string(), OnnxError::Limit(OverLimit::Bytes(1 << 22)).to_string());
}

/// The name of a call stands before every name of the body.
#[test]
fn long_names_of_calls_are_cut() {
    let f = function("F", &["a"], &["r"], vec![node("", "Exp", &["a"], &["t"]), node("", "Abs", &["t"], &["r"])]);
    let mut call = node("f", "F", &["x"], &["y"]);
    call.name = Some("\u{e9}".repeat(1 << 16));
    let nodes = expand(vec![call], &[f]).unwrap();
    assert!(nodes[0].node.output[0].len() < 200, "{}", nodes[0].node.output[0].len());
}
