//! Models to graphs, against a registry of a few operators of its own.

use prost::Message;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::{ImportOptions, Imported, ImportedValue, OnnxError, OnnxModel, Replacements, import};
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::op::{Compute, ForeignNames, Infer, InputSpec, OnnxName, OpDef, Registry, TypeRule};
use tensorc_ir::params::{ParamKind, ParamSpec, ParamValue};
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::{DType, DenseType, Extents, Shape, TensorData};

struct NoMath(ScalarFn);

impl MathLibrary for NoMath {
    fn body(&self, _: MathFn) -> &ScalarFn {
        &self.0
    }
}

/// An element-wise operator of the given ONNX name; operands ending in `?` are optional, the last
/// may end in `*` and repeat.
fn op(name: &'static str, onnx: &'static str, operands: &[&'static str], params: Vec<ParamSpec>) -> OpDef {
    let input = |n: &&'static str| {
        let name = n.trim_end_matches(['?', '*']);
        InputSpec { name, ty: TypeRule::Any, optional: n.ends_with('?') }
    };
    let compute = Compute::Scalar(Box::new(|_, _, args| Ok(args.iter().flatten().take(1).cloned().collect())));
    OpDef {
        inputs: operands.iter().map(input).collect(),
        variadic: operands.last().is_some_and(|o| o.ends_with('*')),
        outputs: (1, 2),
        params,
        names: ForeignNames {
            onnx: vec![OnnxName { domain: OnnxName::STANDARD, name: onnx, since: 1 }],
            mxnet: vec![],
        },
        ..OpDef::new(name, "", compute, Infer::Derived)
    }
}

fn param(name: &'static str, kind: ParamKind, default: Option<ParamValue>) -> ParamSpec {
    ParamSpec { name, kind, default, required: false, range: None, doc: "" }
}

fn registry() -> Registry {
    let kinds = vec![
        param("i", ParamKind::Int, Some(ParamValue::Int(4))),
        param("b", ParamKind::Bool, None),
        param("f", ParamKind::Float, None),
        param("s", ParamKind::Str, None),
        param("d", ParamKind::DType, None),
        param("is", ParamKind::Ints, None),
        param("fs", ParamKind::Floats, None),
        param("ss", ParamKind::Strs, None),
        param("t", ParamKind::Tensor, None),
    ];
    let ops = [
        op("neg", "Neg", &["x"], vec![]),
        op("add", "Add", &["a", "b"], vec![]),
        op("sum", "Sum", &["x*"], vec![]),
        op("clip", "Clip", &["x", "min?", "max?"], vec![]),
        op("kinds", "Kinds", &["x"], kinds),
        op("mul", "Mul", &["a", "b"], vec![]),
        op("matmul", "MatMul", &["a", "b"], vec![]),
        op("transpose", "Transpose", &["x"], vec![param("perm", ParamKind::Ints, None)]),
        op("unsqueeze", "Unsqueeze", &["x", "axes"], vec![]),
        op("expand", "Expand", &["x", "shape"], vec![]),
        op("reshape", "Reshape", &["x", "shape"], vec![]),
        op("cast", "Cast", &["x"], vec![param("to", ParamKind::DType, None)]),
        OpDef {
            compute: Compute::Scalar(Box::new(|_, _, args| {
                Ok(args.iter().flatten().skip(1).take(1).cloned().collect())
            })),
            ..op("where", "Where", &["c", "a", "b"], vec![])
        },
        op("softmax", "Softmax", &["x"], vec![param("axis", ParamKind::Int, None)]),
    ];
    let math = NoMath(ScalarFn::identity(DType::F32));
    match Registry::new(ops, Box::new(math)) {
        Ok(registry) => registry,
        Err(why) => panic!("{why}"),
    }
}

fn dims(text: &[&str]) -> Vec<Dimension> {
    let dim = |d: &&str| match d.parse() {
        Ok(n) => Dimension { value: Some(DimensionValue::Value(n)) },
        Err(_) if d.is_empty() => Dimension::default(),
        Err(_) => Dimension { value: Some(DimensionValue::Param((*d).into())) },
    };
    text.iter().map(dim).collect()
}

fn input(name: &str, elem_type: DataType, shape: &[&str]) -> ValueInfoProto {
    let shape = Some(TensorShapeProto { dim: dims(shape) });
    let tensor = TypeValue::Tensor(TensorTypeProto { elem_type: Some(elem_type as i32), shape });
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { value: Some(tensor) }) }
}

fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), r#type: None }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let strings = |v: &[&str]| v.iter().map(|s| s.to_string()).collect();
    NodeProto { op_type: Some(op.into()), input: strings(inputs), output: strings(outputs), ..Default::default() }
}

fn with(mut node: NodeProto, attribute: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attribute;
    node
}

fn f32_tensor(name: &str, shape: &[i64], values: &[f32]) -> TensorProto {
    let raw_data = Some(values.iter().flat_map(|v| v.to_le_bytes()).collect());
    TensorProto { name: Some(name.into()), data_type: Some(1), dims: shape.to_vec(), raw_data, ..Default::default() }
}

fn graph(inputs: Vec<ValueInfoProto>, node: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    GraphProto {
        name: Some("g".into()),
        input: inputs,
        node,
        output: outputs.iter().map(|o| output(o)).collect(),
        ..Default::default()
    }
}

fn decoded(graph: GraphProto, opset: i64) -> Result<OnnxModel, OnnxError> {
    let imports = [("", opset), ("com.microsoft", 1)];
    let opset_import = imports
        .iter()
        .map(|(domain, version)| OperatorSetIdProto { domain: Some(domain.to_string()), version: Some(*version) })
        .collect();
    let model = ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..Default::default() };
    OnnxModel::decode(model.encode_to_vec().into(), None)
}

fn run_with(graph: GraphProto, opset: i64, options: &ImportOptions<'_>) -> Result<Imported, OnnxError> {
    import(decoded(graph, opset)?, &registry(), options)
}

/// The import of a graph with other initializers.
fn replaced(graph: GraphProto, by: &Replacements) -> Result<Imported, OnnxError> {
    let mut model = decoded(graph, 17)?;
    model.replace(by)?;
    import(model, &registry(), &ImportOptions::default())
}

fn run(graph: GraphProto, opset: i64) -> Result<Imported, OnnxError> {
    run_with(graph, opset, &ImportOptions::default())
}

fn x() -> Vec<ValueInfoProto> {
    vec![input("x", DataType::Float, &["2", "3"])]
}

/// One line for each operator: `name: op(operands)`, constants by value.
fn show(graph: &Graph) -> Vec<String> {
    let mut lines = vec![];
    for id in graph.order() {
        if let NodeKind::Op(op) = &graph.node(id).kind {
            let operand = |v: &Option<tensorc_ir::graph::Value>| match v {
                None => "_".to_owned(),
                Some(v) => match graph.constant(*v) {
                    Some(data) => format!("{:?}", data.to_f64s()),
                    None if v.port > 0 => format!("{}.{}", graph.node(v.node).name, v.port),
                    None => graph.node(v.node).name.to_string(),
                },
            };
            let operands: Vec<_> = graph.operands(id).iter().map(operand).collect();
            lines.push(format!("{}: {}({})", graph.node(id).name, op.def.name, operands.join(", ")));
        }
    }
    lines
}

#[test]
fn nodes_become_operators() {
    let mut named = node("Neg", &["s"], &["y"]);
    named.name = Some("last".into());
    let nodes = vec![
        node("Add", &["x", "w"], &["a"]),
        node("Sum", &["a", "x", "a"], &["s"]),
        named,
        node("Clip", &["y", "", "w"], &["c", ""]),
    ];
    let mut g = graph(x(), nodes, &["c", "a"]);
    g.initializer = vec![f32_tensor("w", &[], &[2.5]), f32_tensor("unused", &[1], &[0.0])];
    let Imported { graph, defaults, .. } = run(g, 17).unwrap();
    assert_eq!(show(&graph), ["a: add(x, [2.5])", "s: sum(a, x, a)", "last: neg(s)", "c: clip(last, _, [2.5])"]);
    assert!(defaults.is_empty());
    let outputs: Vec<_> = graph.outputs().iter().map(|(name, v)| (name.to_string(), v.port)).collect();
    assert_eq!(outputs, [("c".to_owned(), 0), ("a".to_owned(), 0)]);
    assert_eq!(graph.name, "g");
    assert_eq!(graph.node_ids().len(), 6, "an unused initialiser is not part of the graph");
}

#[test]
fn dynamic_dimensions_are_named_and_shared() {
    let inputs = vec![
        input("p", DataType::Float, &["batch", "3", ""]),
        input("q", DataType::Int64, &["batch", "-1"]),
        ValueInfoProto {
            r#type: Some(TypeProto {
                value: Some(TypeValue::Tensor(TensorTypeProto { elem_type: Some(9), shape: None })),
            }),
            ..input("r", DataType::Bool, &[])
        },
    ];
    let graph = run(graph(inputs, vec![], &["p"]), 17).unwrap().graph;
    let ty = |i: usize| graph.node(graph.inputs()[i]).types[0].clone();
    let shown = |i: usize| ty(i).shape.dims().unwrap().iter().map(|d| graph.dims.display(*d)).collect::<Vec<_>>();
    assert_eq!(shown(0), ["?batch", "3", "?p.2"]);
    assert_eq!(shown(1), ["?batch", "?q.1"]);
    assert_eq!((ty(1).dtype, ty(2).dtype, ty(2).shape), (Some(DType::I64), Some(DType::Bool), Shape::Unranked));
}

#[test]
fn initialisers_that_are_inputs_are_defaults() {
    let make = || {
        let inputs = vec![input("x", DataType::Float, &["2"]), input("w", DataType::Float, &["2"])];
        let mut g = graph(inputs, vec![node("Add", &["x", "w"], &["y"])], &["y"]);
        g.initializer = vec![f32_tensor("w", &[2], &[1.0, 2.0])];
        g
    };
    let constant = run(make(), 17).unwrap();
    assert_eq!(show(&constant.graph), ["y: add(x, [1.0, 2.0])"]);
    assert_eq!(constant.defaults, [("w".to_owned(), TensorData::f32s(&[2], &[1.0, 2.0]).unwrap())]);
    let given = |name: &str| Replacements { inputs: [name.to_owned()].into(), ..Replacements::default() };
    let overridden = replaced(make(), &given("w")).unwrap();
    assert_eq!(show(&overridden.graph), ["y: add(x, w)"]);
    assert_eq!((overridden.graph.inputs().len(), overridden.defaults.len()), (2, 0));
    let refused = replaced(make(), &given("x")).err().unwrap();
    assert_eq!(refused.to_string(), "the model has no input `x`; inputs: w");
}

#[test]
fn initializers_are_replaced_by_tensors_of_their_type() {
    let make = || {
        let mut g = graph(vec![input("x", DataType::Float, &["2"])], vec![node("Add", &["x", "w"], &["y"])], &["y"]);
        g.initializer = vec![f32_tensor("w", &[2], &[1.0, 2.0])];
        g
    };
    let of =
        |name: &str, data: TensorData| Replacements { tensors: vec![(name.to_owned(), data)], ..Default::default() };
    let other = replaced(make(), &of("w", TensorData::f32s(&[2], &[3.0, 4.0]).unwrap())).unwrap();
    assert_eq!(show(&other.graph), ["y: add(x, [3.0, 4.0])"]);
    let ignored = replaced(make(), &of("v", TensorData::f32s(&[2], &[3.0, 4.0]).unwrap())).unwrap();
    assert_eq!(show(&ignored.graph), ["y: add(x, [1.0, 2.0])"]);
    for data in [
        TensorData::f32s(&[1, 2], &[3.0, 4.0]).unwrap(),
        TensorData::new(DenseType::new(DType::I64, [2]), vec![0; 16].into()).unwrap(),
    ] {
        let refused = replaced(make(), &of("w", data.clone())).err().unwrap().to_string();
        assert_eq!(refused, format!("initializer `w`: it is f32[2], {} cannot take its place", data.ty));
    }
}

#[test]
fn constant_nodes_become_constants() {
    let a = |name: &str| AttributeProto { name: Some(name.into()), ..Default::default() };
    let constant = |a: AttributeProto, to: &str| with(node("Constant", &[], &[to]), vec![a]);
    let sparse = SparseTensorProto {
        values: Some(f32_tensor("", &[1], &[9.0])),
        indices: Some(TensorProto { data_type: Some(7), dims: vec![1], int64_data: vec![2], ..Default::default() }),
        dims: vec![3],
    };
    let nodes = vec![
        constant(AttributeProto { t: Some(f32_tensor("", &[2], &[1.0, 2.0])), ..a("value") }, "a"),
        constant(AttributeProto { f: Some(0.5), ..a("value_float") }, "b"),
        constant(AttributeProto { i: Some(-3), ..a("value_int") }, "c"),
        constant(AttributeProto { floats: vec![0.5, 1.5], ..a("value_floats") }, "d"),
        constant(AttributeProto { ints: vec![7, 8], ..a("value_ints") }, "e"),
        constant(AttributeProto { sparse_tensor: Some(sparse), ..a("sparse_value") }, "f"),
        node("Sum", &["a", "b", "c", "d", "e", "f"], &["y"]),
    ];
    let graph = run(graph(x(), nodes, &["y"]), 17).unwrap().graph;
    let values = "[1.0, 2.0], [0.5], [-3.0], [0.5, 1.5], [7.0, 8.0], [0.0, 0.0, 9.0]";
    assert_eq!(show(&graph), [format!("y: sum({values})")]);
}

#[test]
fn attributes_become_parameters_by_specification() {
    let a =
        |name: &str, kind: i32| AttributeProto { name: Some(name.into()), r#type: Some(kind), ..Default::default() };
    let attributes = vec![
        AttributeProto { i: Some(1), ..a("b", 2) },
        AttributeProto { f: Some(0.5), ..a("f", 1) },
        AttributeProto { s: Some("text".into()), ..a("s", 3) },
        AttributeProto { i: Some(7), ..a("d", 2) },
        AttributeProto { ints: vec![1, -1], ..a("is", 7) },
        AttributeProto { floats: vec![0.25], ..a("fs", 6) },
        AttributeProto { strings: vec!["p".into(), "q".into()], ..a("ss", 8) },
        AttributeProto { t: Some(f32_tensor("", &[1], &[3.0])), ..a("t", 4) },
    ];
    let nodes = vec![with(node("Kinds", &["x"], &["y"]), attributes)];
    let graph = run(graph(x(), nodes, &["y"]), 17).unwrap().graph;
    let Some((_, value)) = graph.outputs().first() else { panic!("no output") };
    let NodeKind::Op(op) = &graph.node(value.node).kind else { panic!("no operator") };
    let p = &op.params;
    assert_eq!((p.int("i"), p.bool("b"), p.float("f"), p.str("s")), (Some(4), Some(true), Some(0.5), Some("text")));
    assert_eq!((p.dtype("d"), p.ints("is"), p.floats("fs")), (Some(DType::I64), Some(&[1, -1][..]), Some(&[0.25][..])));
    assert_eq!(p.strs("ss"), Some(&["p".to_owned(), "q".to_owned()][..]));
    assert_eq!(p.tensor("t").map(|t| t.to_f32s()), Some(vec![3.0]));
}

#[test]
fn old_forms_are_upgraded_with_inferred_types() {
    let float = |name: &str, f: f32| AttributeProto { name: Some(name.into()), f: Some(f), ..Default::default() };
    let inputs = vec![input("x", DataType::Double, &["2", "n"])];
    let nodes = vec![
        node("Neg", &["x"], &["a"]),
        with(node("Clip", &["a"], &["c"]), vec![float("min", -1.0)]),
        node("Softmax", &["c"], &["y"]),
    ];
    let graph = run(graph(inputs, nodes, &["y"]), 9).unwrap().graph;
    // The rank of `c` is known only by inference over `a` and `c`.
    assert_eq!(show(&graph), ["a: neg(x)", "c: clip(a, [-1.0])", "y: softmax(c)"]);
}

#[test]
fn nodes_out_of_order_are_sorted() {
    let nodes = vec![node("Neg", &["b"], &["y"]), node("Neg", &["x"], &["a"]), node("Neg", &["a"], &["b"])];
    assert_eq!(show(&run(graph(x(), nodes, &["y"]), 17).unwrap().graph), ["a: neg(x)", "b: neg(a)", "y: neg(b)"]);
}

#[test]
fn broken_graphs_are_named() {
    let message = |nodes, outputs: &[&str]| run(graph(x(), nodes, outputs), 17).unwrap_err().to_string();
    let neg = |a: &str, b: &str| node("Neg", &[a], &[b]);
    assert_eq!(
        message(vec![neg("nowhere", "y")], &["y"]),
        "the value `nowhere`, used by Neg node computing `y`, is not computed by any node"
    );
    assert_eq!(
        message(vec![neg("x", "y")], &["z"]),
        "the value `z`, used by the graph's outputs, is not computed by any node"
    );
    assert_eq!(
        message(vec![neg("x", "y"), neg("x", "y")], &["y"]),
        "the value `y` is defined a second time by Neg node computing `y`"
    );
    assert_eq!(
        message(vec![neg("x", "x")], &["x"]),
        "the value `x` is defined a second time by Neg node computing `x`"
    );
    assert_eq!(message(vec![neg("b", "a"), neg("a", "b")], &["a"]), "Neg node computing `a` depends on its own result");
    let error = message(vec![node("Add", &["x"], &["y"])], &["y"]);
    assert!(error.contains("`y`") && error.contains("operand `b` is missing"), "{error}");
    let mut short = graph(x(), vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    short.initializer = vec![f32_tensor("w", &[3], &[1.0])];
    assert!(
        run(short, 17).unwrap_err().to_string().starts_with("initializer `w`: the shape [3] of f32 needs 12 bytes")
    );
}

#[test]
fn everything_unsupported_is_reported_at_once() {
    let int = |name: &str, i: i64| AttributeProto { name: Some(name.into()), i: Some(i), ..Default::default() };
    let mut gelu = node("Gelu", &["m2"], &["g"]);
    gelu.domain = Some("com.microsoft".into());
    let mut forest = node("Forest", &["x"], &["t"]);
    forest.domain = Some("org.example".into());
    let mut branch = node("If", &["x"], &["i"]);
    let name = Some("then_branch".into());
    branch.attribute = vec![AttributeProto { name, g: Some(GraphProto::default()), ..Default::default() }];
    let nodes = vec![
        node("Mystery", &["x"], &["m2"]),
        node("Mystery", &["m2"], &["m1"]),
        gelu,
        forest,
        branch,
        with(node("Neg", &["g"], &["n"]), vec![int("strange", 1)]),
        with(node("Cast", &["x"], &["c"]), vec![int("to", 14)]),
        node("Neg", &["x"], &["fine"]),
        node("Neg", &["x"], &["two", "", "three"]),
    ];
    let mut inputs = x();
    inputs.push(input("complex", DataType::Complex64, &["1"]));
    let error = run(graph(inputs, nodes, &["fine"]), 17).unwrap_err();
    let OnnxError::Unsupported(report) = &error else { panic!("{error}") };
    let entries: Vec<_> = report.ops().iter().map(|o| (o.op.clone(), o.opset, o.nodes.clone())).collect();
    let entry = |op: &str, opset, nodes: &[&str]| (op.to_owned(), opset, nodes.iter().map(|n| n.to_string()).collect());
    assert_eq!(
        entries,
        [
            entry("Cast", Some(17), &["c"]),
            entry("Forest", None, &["t"]),
            entry("Gelu", Some(1), &["g"]),
            entry("If", Some(17), &["i"]),
            entry("Mystery", Some(17), &["m1", "m2"]),
            entry("Neg", Some(17), &["n"]),
            entry("Neg", Some(17), &["two"]),
        ]
    );
    let values: Vec<_> = report.values().collect();
    assert_eq!(values, [("input", "complex", "element type complex64 is not supported")]);
    let text = error.to_string();
    for part in [
        "Mystery (ai.onnx, opset 17), 2 nodes: `m1`, `m2`: the operator is not known",
        "Forest (org.example, not imported), 1 node: `t`",
        "Neg (ai.onnx, opset 17), 1 node: `n`: attribute `strange` is not supported",
        "attribute `to`: element type complex64 is not supported",
        "result 3 (`three`) is not supported",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains('\n'));
}

fn branch(nodes: Vec<NodeProto>, result: &str) -> AttributeProto {
    AttributeProto { g: Some(graph(vec![], nodes, &[result])), ..Default::default() }
}

fn if_node(condition: &str, then: AttributeProto, otherwise: AttributeProto, to: &str) -> NodeProto {
    let then = AttributeProto { name: Some("then_branch".into()), ..then };
    let otherwise = AttributeProto { name: Some("else_branch".into()), ..otherwise };
    with(node("If", &[condition], &[to]), vec![then, otherwise])
}

#[test]
fn a_known_condition_chooses_a_branch() {
    let run = |flag: i64| {
        let inner = if_node("flag", branch(vec![node("Neg", &["t"], &["u"])], "u"), branch(vec![], "x"), "t2");
        let then = branch(vec![node("Neg", &["x"], &["t"]), inner, node("Neg", &["t2"], &["t3"])], "t3");
        let otherwise = branch(vec![node("Add", &["x", "w"], &["t"])], "t");
        let mut inputs = x();
        inputs.push(input("flag", DataType::Int64, &[]));
        let mut g = graph(inputs, vec![if_node("flag", then, otherwise, "y"), node("Neg", &["y"], &["z"])], &["z"]);
        g.initializer = vec![f32_tensor("w", &[], &[2.5])];
        let values = [("flag", TensorData::i64s(&[], &[flag]).unwrap())];
        run_with(g, 17, &ImportOptions { values: &values, ..Default::default() }).unwrap().graph
    };
    let taken = ["y~0/t: neg(x)", "y~0/t2~1/u: neg(y~0/t)", "y~0/t3: neg(y~0/t2~1/u)", "z: neg(y~0/t3)"];
    assert_eq!(show(&run(1)), taken);
    assert_eq!(show(&run(0)), ["y~0/t: add(x, [2.5])", "z: neg(y~0/t)"]);
    assert_eq!(run(0).inputs().len(), 1);
}

#[test]
fn a_branch_that_reads_a_later_node_comes_after_it() {
    let then = branch(vec![node("Neg", &["later"], &["t"])], "t");
    let deeper = if_node("flag", branch(vec![node("Neg", &["later"], &["u"])], "u"), branch(vec![], "x"), "v");
    let inputs = vec![input("x", DataType::Float, &["2"]), input("flag", DataType::Bool, &[])];
    let nodes = vec![if_node("flag", then, branch(vec![deeper], "v"), "y"), node("Neg", &["x"], &["later"])];
    let imported = run(graph(inputs, nodes, &["y"]), 17).unwrap().graph;
    assert_eq!(show(&imported), ["later: neg(x)"]);
}

#[test]
fn an_unknown_condition_stays_a_branch() {
    let make = |shape: &[&str]| {
        let inputs = vec![input("x", DataType::Float, shape), input("flag", DataType::Bool, &[])];
        let then = branch(vec![node("Neg", &["x"], &["t"])], "t");
        graph(inputs, vec![if_node("flag", then, branch(vec![], "x"), "y")], &["y"])
    };
    let bodies = |graph: &Graph| graph.bodies().map(show).collect::<Vec<_>>();
    let kept = run(make(&["2"]), 17).unwrap().graph;
    assert_eq!((show(&kept), bodies(&kept)), (vec![], vec![vec!["y~0/t: neg(x)".to_owned()], vec![]]));
    let error = run(make(&["n"]), 17).unwrap_err().to_string();
    assert!(error.contains("If (ai.onnx, opset 17), 1 node: `y`: its condition and the types"), "{error}");
    let options = ImportOptions { shapes: &[("x", &[4].into())], ..Default::default() };
    assert_eq!(bodies(&run_with(make(&["n"]), 17, &options).unwrap().graph).len(), 2);
    let analysis = |graph: &Graph, v: tensorc_ir::graph::Value| ImportedValue {
        ty: graph.resolved(v),
        value: (graph.node(v.node).name.as_ref() == "flag").then(|| TensorData::i64s(&[], &[0]).unwrap()),
    };
    let options = ImportOptions { analysis: Some(&analysis), ..Default::default() };
    assert_eq!(show(&run_with(make(&["n"]), 17, &options).unwrap().graph), [""; 0]);
}

#[test]
fn functions_that_call_themselves_in_a_branch_are_refused() {
    let call = |from: &str, to: &str| NodeProto { domain: Some("f".into()), ..node("F", &[from], &[to]) };
    let body = |calls: usize| {
        let one = |i: usize| {
            let t = format!("t{i}");
            if_node("a", branch(vec![call("a", "p")], "p"), branch(vec![call("a", "q")], "q"), &t)
        };
        let last = format!("t{}", calls - 1);
        let mut nodes: Vec<NodeProto> = (0..calls).map(one).collect();
        nodes.push(node("Neg", &[&last], &["r"]));
        nodes
    };
    for calls in [1, 2] {
        let opset = |domain: &str| OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(17) };
        let function = FunctionProto {
            name: Some("F".into()),
            domain: Some("f".into()),
            input: vec!["a".into()],
            output: vec!["r".into()],
            node: body(calls),
            opset_import: vec![opset("")],
            ..Default::default()
        };
        let model = ModelProto {
            ir_version: Some(8),
            opset_import: vec![opset(""), opset("f")],
            graph: Some(graph(x(), vec![call("x", "y")], &["y"])),
            functions: vec![function],
            ..Default::default()
        };
        let model = OnnxModel::decode(model.encode_to_vec().into(), None).unwrap();
        let error = import(model, &registry(), &ImportOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), "function f.F: it calls itself (through F)");
    }
}

#[test]
fn flex_attention_is_written_out() {
    let flex = |kv_heads: &str| {
        let dims = |heads| ["2", heads, "s", "16"];
        let inputs = vec![
            input("q", DataType::Float, &dims("4")),
            input("k", DataType::Float, &dims(kv_heads)),
            input("v", DataType::Float, &dims(kv_heads)),
        ];
        let modifier = GraphProto {
            input: vec![output("scores")],
            initializer: vec![f32_tensor("bias", &[], &[0.5])],
            ..graph(vec![], vec![node("Add", &["scores", "bias"], &["out"])], &["out"])
        };
        let score_mod = AttributeProto { name: Some("score_mod".into()), g: Some(modifier), ..Default::default() };
        let mut attention = with(node("FlexAttention", &["q", "k", "v"], &["y"]), vec![score_mod]);
        attention.domain = Some("ai.onnx.preview".into());
        attention.name = Some("a".into());
        graph(inputs, vec![attention], &["y"])
    };
    let lines = |g| {
        let operators = show(&run(g, 26).unwrap().graph);
        operators.into_iter().map(|l| l.split_once(": ").map_or(l.clone(), |(_, op)| op.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(flex("4")),
        [
            "mul(q, [0.5])",
            "mul(k, [0.5])",
            "transpose(a)",
            "matmul(a, a)",
            "cast(a)",
            "add(a, [0.5])",
            "softmax(a~6/out)",
            "cast(v)",
            "matmul(a, a)",
            "cast(a)",
        ]
    );
    let grouped = lines(flex("2"));
    assert_eq!(grouped.len(), 16);
    assert!(grouped.contains(&"expand(a, [1.0, 1.0, 2.0, 1.0, 1.0])".to_owned()), "{grouped:?}");
    assert!(grouped.contains(&"reshape(a, [0.0, 4.0, -1.0, 16.0])".to_owned()), "{grouped:?}");
    let error = run(flex("3"), 26).unwrap_err().to_string();
    assert!(error.contains("4 query heads are no multiple of 3 key heads"), "{error}");
    let mut other_values = flex("4");
    other_values.input[2] = input("v", DataType::Float, &["2", "0", "s", "16"]);
    let error = run(other_values, 26).unwrap_err().to_string();
    assert!(error.contains("0 value heads for 4 key heads"), "{error}");
}

#[test]
fn inputs_are_bound_when_asked() {
    let make = || {
        let inputs = vec![input("x", DataType::Float, &["n", "3"]), input("y", DataType::Float, &["n"])];
        graph(inputs, vec![node("Neg", &["x"], &["z"])], &["z"])
    };
    let bind = |shapes: &[(&str, &[u64])], values: &[(&str, TensorData)]| {
        let shapes: Vec<(&str, Extents)> = shapes.iter().map(|(name, dims)| (*name, (*dims).into())).collect();
        let shapes: Vec<(&str, &Extents)> = shapes.iter().map(|(name, dims)| (*name, dims)).collect();
        run_with(make(), 17, &ImportOptions { shapes: &shapes, values, ..Default::default() })
    };
    let graph = bind(&[("y", &[5])], &[]).unwrap().graph;
    let first = graph.inputs().first().map(|n| graph.dims.resolve_type(&graph.node(*n).types[0]));
    assert_eq!(first.map(|t| t.shape), Some(Shape::consts(&[5, 3])));
    let message =
        |shapes: &[(&str, &[u64])], values: &[(&str, TensorData)]| bind(shapes, values).unwrap_err().to_string();
    assert_eq!(message(&[("q", &[1])], &[]), "the model has no input `q`; inputs: x, y");
    assert_eq!(message(&[("x", &[1])], &[]), "input `x`: its rank is 2, the shape [1] was given");
    assert_eq!(message(&[("x", &[1, 4])], &[]), "input `x`: axis 1 has extent 3, 4 was given");
    assert_eq!(message(&[("x", &[1, 3]), ("y", &[2])], &[]), "input `y`: axis 0 has extent 1, 2 was given");
    let wrong = [("y", TensorData::i64s(&[1], &[0]).unwrap())];
    assert_eq!(message(&[], &wrong), "input `y`: its element type is f32, not i64");
}
