//! Models that break a rule of ONNX are refused, with a message that names what breaks it.

use crate::support::*;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::{ImportLimits, ImportOptions, ReadOptions};
use tensorc_ir::TensorData;

fn x() -> Vec<ValueInfoProto> {
    vec![value("x", DataType::Float, &[2, 3])]
}

/// `y = -x`, changed.
fn changed(change: impl FnOnce(&mut GraphProto)) -> GraphProto {
    let mut graph = graph(x(), vec![node("Neg", &["x"], &["y"])], &["y"]);
    change(&mut graph);
    graph
}

/// The places where a model may hold a tensor.
fn holders(tensor_proto: &TensorProto) -> Vec<(&'static str, ModelProto)> {
    let t = || tensor_proto.clone();
    let constant = || with(node("Constant", &[], &["c"]), vec![tensor("value", t())]);
    let inner = || graph(vec![], vec![constant()], &["c"]);
    let unused = function("Unused", &["a"], &["r"], vec![node("Neg", &["a"], &["r"]), constant()]);
    let branches =
        with(node("If", &["x"], &["z"]), vec![branch("then_branch", inner()), branch("else_branch", inner())]);
    let mut listed = AttributeProto { tensors: vec![t()], ..Default::default() };
    listed.name = Some("list".into());
    let sparse = SparseTensorProto { values: Some(t()), indices: Some(i64s("", &[1], &[0])), dims: vec![4] };
    vec![
        ("an initializer", model(changed(|g| g.initializer.push(t())))),
        ("a sparse initializer", model(changed(|g| g.sparse_initializer.push(sparse)))),
        ("an attribute", model(changed(|g| g.node.push(constant())))),
        ("a list", model(changed(|g| g.node.push(with(node("Neg", &["x"], &["z"]), vec![listed]))))),
        ("a branch", model(changed(|g| g.node.push(branches)))),
        ("a function", ModelProto { functions: vec![unused], ..model(changed(|_| ())) }),
    ]
}

#[test]
fn data_in_several_fields_is_refused_everywhere() {
    let both = TensorProto { float_data: vec![2.0], ..f32s("w", &[1], &[1.0]) };
    for (place, model) in holders(&both) {
        let refusal = refusal(&model);
        assert!(refusal.ends_with("its data is given more than once: raw_data, float_data"), "{place}: {refusal}");
    }
    let again = |change: fn(&mut TensorProto)| {
        let mut tensor = f32s("w", &[1], &[1.0]);
        change(&mut tensor);
        graph_refusal(changed(|g| g.initializer.push(tensor)))
    };
    let start = "initializer `w`: its data is given more than once: raw_data, ";
    assert_eq!(again(|t| t.int32_data.push(1)), format!("{start}int32_data"));
    assert_eq!(again(|t| t.string_data.push("s".into())), format!("{start}string_data"));
    assert_eq!(again(|t| t.uint64_data.push(1)), format!("{start}uint64_data"));
    assert_eq!(again(|t| t.data_location = Some(1)), format!("{start}external_data"));
    assert_eq!(again(|t| t.external_data.push(entry("location", "weights.bin"))), format!("{start}external_data"));
}

#[test]
fn data_of_another_length_or_type_is_refused_everywhere() {
    for (place, model) in holders(&raw("w", DataType::Float, &[1], &[0; 8])) {
        let refusal = refusal(&model);
        assert!(refusal.ends_with("the shape [1] of f32 needs 4 bytes, the data has 8"), "{place}: {refusal}");
    }
    let refused = |tensor: TensorProto| graph_refusal(changed(|g| g.initializer.push(tensor)));
    let misplaced = TensorProto { int64_data: vec![1], ..empty("w", DataType::Float, &[1]) };
    assert_eq!(refused(misplaced), "initializer `w`: its data is in int64_data, which does not hold f32");
    let none = raw("w", DataType::Float, &[0], &[0; 4]);
    assert_eq!(refused(none), "initializer `w`: the shape [0] of f32 needs 0 bytes, the data has 4");
    let wide = TensorProto { uint64_data: vec![1 << 32], ..empty("w", DataType::Uint32, &[1]) };
    let used = |tensor| {
        changed(|g| {
            g.initializer.push(tensor);
            g.node.push(node("Neg", &["w"], &["z"]));
        })
    };
    assert_eq!(graph_refusal(used(wide)), "initializer `w`: the value 4294967296 does not fit u32");
    let undefined = empty("w", DataType::Undefined, &[1]);
    assert_eq!(refused(undefined), "initializer `w`: element type 0 is not defined");
}

#[test]
fn shapes_of_tensors_are_shapes() {
    let refused =
        |dims: &[i64]| graph_refusal(changed(|g| g.initializer.push(raw("w", DataType::Float, dims, &[0; 4]))));
    assert_eq!(refused(&[2, -1]), "initializer `w`: dimension 1 is -1");
    // 2^64 + 4 bytes, 2^64 elements, and as many as no machine addresses.
    for dims in [&[(1 << 62) + 1, 1][..], &[1 << 32, 1 << 32], &[1 << 61], &[i64::MAX]] {
        assert_eq!(refused(dims), format!("initializer `w`: the shape {dims:?} is too large"));
    }
    let wide = vec![1; 65];
    assert_eq!(refused(&wide), "initializer `w`: it has 65 dimensions; at most 64 are supported");
    let wide = value("x", DataType::Float, &wide);
    let refusal = graph_refusal(graph(vec![wide], vec![node("Neg", &["x"], &["y"])], &["y"]));
    assert!(refusal.ends_with("input `x`: it has 65 dimensions; at most 64 are supported"), "{refusal}");
    // Of element types without a counterpart only what is used is reported, but these rules hold.
    let strings = empty("w", DataType::String, &[-1]);
    assert_eq!(graph_refusal(changed(|g| g.initializer.push(strings))), "initializer `w`: dimension 0 is -1");
}

#[test]
fn sparse_tensors_are_in_order_and_in_proportion() {
    let sparse = |dims: &[i64], indices: &[i64]| SparseTensorProto {
        values: Some(f32s("w", &[indices.len() as i64], &vec![1.0; indices.len()])),
        indices: Some(i64s("", &[indices.len() as i64], indices)),
        dims: dims.to_vec(),
    };
    let used = |tensors: Vec<SparseTensorProto>, nodes: Vec<NodeProto>| {
        changed(|g| {
            g.sparse_initializer = tensors;
            g.node.extend(nodes);
        })
    };
    let neg = || vec![node("Neg", &["w"], &["z"])];
    import_graph(used(vec![sparse(&[2, 3], &[1, 5])], neg())).unwrap();
    let refused = |dims: &[i64], indices: &[i64]| graph_refusal(used(vec![sparse(dims, indices)], neg()));
    let order = "initializer `w`: sparse tensor: its indices are not in ascending order";
    assert_eq!(refused(&[6], &[5, 1]), order);
    assert_eq!(refused(&[6], &[1, 1]), order);
    assert_eq!(refused(&[6], &[1, -1]), "initializer `w`: sparse tensor: an index is outside of the shape");
    let huge = "initializer `w`: its sparse tensors expand to 4398046511104 bytes, far more than the file holds";
    assert_eq!(refused(&[1 << 40], &[7]), huge);
    // Each within bounds, together not.
    let many: Vec<String> = (0..5).map(|i| format!("w{i}")).collect();
    let one = |name: &String| {
        let mut tensor = sparse(&[1 << 22], &[7]);
        tensor.values.as_mut().unwrap().name = Some(name.clone());
        tensor
    };
    let nodes = many.iter().map(|w| node("Neg", &[w], &[&format!("{w}z")])).collect();
    let refusal = graph_refusal(used(many.iter().map(one).collect(), nodes));
    assert!(
        refusal.ends_with("its sparse tensors expand to 83886080 bytes, far more than the file holds"),
        "{refusal}"
    );
}

#[test]
fn attributes_have_one_value_of_their_type() {
    let refused = |attributes: Vec<AttributeProto>| {
        graph_refusal(changed(|g| g.node[0] = with(node("Neg", &["x"], &["y"]), attributes)))
    };
    let start = "attribute `a` of Neg node computing `y`";
    assert_eq!(refused(vec![int("a", 1), int("a", 1)]), format!("{start} is given twice"));
    let two = AttributeProto { f: Some(1.0), ..int("a", 1) };
    assert_eq!(refused(vec![two]), format!("{start} has values of several types: float, int"));
    let untyped = AttributeProto { r#type: None, ints: vec![1], floats: vec![1.0], ..int("a", 1) };
    assert_eq!(refused(vec![untyped]), format!("{start} has values of several types: int, floats, ints"));
    let other = AttributeProto { r#type: Some(AttributeType::Ints as i32), ..int("a", 1) };
    assert_eq!(refused(vec![other]), format!("{start} is declared as ints and holds int"));
    let unknown = AttributeProto { r#type: Some(99), ..int("a", 1) };
    assert_eq!(refused(vec![unknown]), format!("{start} has the type 99, which ONNX does not define"));
    let outside = reference("a", AttributeType::Int, "b");
    let why = "refers to the attribute `b` of a function, but is not in a function";
    assert_eq!(refused(vec![outside]), format!("{start} {why}"));
    assert_eq!(refused(vec![int("", 1)]), "an attribute of Neg node computing `y` has no name");
    let both = AttributeProto { ref_attr_name: Some("b".into()), ..int("a", 1) };
    let body = with(node("Neg", &["p"], &["q"]), vec![both]);
    let model = ModelProto { functions: vec![function("F", &["p"], &["q"], vec![body])], ..model(changed(|_| ())) };
    let why = "refers to the attribute `b` and has a value of its own";
    assert_eq!(refusal(&model), format!("attribute `a` of Neg node computing `q` {why}"));
}

/// Where an old form reads attributes, one of another type is not taken for one that is absent.
#[test]
fn attributes_of_old_forms_have_their_types() {
    let refused = |opset_version: i64, n: NodeProto| {
        let opset_import = vec![opset("", opset_version)];
        let refusal = refusal(&ModelProto { opset_import, ..model(graph(x(), vec![n], &["y"])) });
        refusal.split_once("`y`: ").unwrap().1.to_owned()
    };
    let clip = with(node("Clip", &["x"], &["y"]), vec![text("min", "0")]);
    assert_eq!(refused(6, clip), "attribute `min`: it is of type string, expected float");
    let softmax = with(node("Softmax", &["x"], &["y"]), vec![float("axis", 1.0)]);
    assert_eq!(refused(11, softmax), "attribute `axis`: it is of type float, expected int");
    let squeeze = with(node("Squeeze", &["x"], &["y"]), vec![floats("axes", &[1.0])]);
    assert_eq!(refused(11, squeeze), "attribute `axes`: it is of type floats, expected list of ints");
    let far = with(node("Add", &["x", "x"], &["y"]), vec![int("broadcast", 1), int("axis", i64::MAX)]);
    assert_eq!(refused(6, far), format!("rank 2 at axis {} does not fit into rank 2", i64::MAX));
    let constant = with(node("Constant", &[], &["y"]), vec![int("value", 1)]);
    assert_eq!(refused(17, constant), "attribute `value`: it is of type int, expected tensor");
}

#[test]
fn names_are_there_and_differ() {
    let refused = |change: fn(&mut GraphProto)| graph_refusal(changed(change));
    let twice = |value: &str, by: &str| format!("the value `{value}` is defined a second time by {by}");
    assert_eq!(refused(|g| g.input.push(untyped("x"))), twice("x", "a graph input"));
    assert_eq!(refused(|g| g.output.push(untyped("y"))), twice("y", "a graph output"));
    assert_eq!(refused(|g| g.node.push(node("Abs", &["x"], &["y"]))), twice("y", "Abs node computing `y`"));
    assert_eq!(refused(|g| g.node.push(node("Abs", &["y"], &["x"]))), twice("x", "Abs node computing `x`"));
    let stored = |g: &mut GraphProto| {
        g.initializer = vec![f32s("w", &[1], &[1.0]), f32s("w", &[1], &[2.0])];
    };
    assert_eq!(graph_refusal(changed(stored)), twice("w", "an initializer"));
    assert_eq!(refused(|g| g.initializer.push(f32s("y", &[1], &[1.0]))), twice("y", "Neg node computing `y`"));
    let sparse = |g: &mut GraphProto| {
        let values = Some(f32s("w", &[1], &[1.0]));
        g.initializer.push(f32s("w", &[1], &[1.0]));
        g.sparse_initializer = vec![SparseTensorProto { values, indices: Some(i64s("", &[1], &[0])), dims: vec![1] }];
    };
    assert_eq!(graph_refusal(changed(sparse)), twice("w", "an initializer"));
    assert_eq!(refused(|g| g.input.push(untyped(""))), "a graph input has no name");
    assert_eq!(refused(|g| g.output.push(untyped(""))), "a graph output has no name");
    assert_eq!(refused(|g| g.initializer.push(f32s("", &[1], &[1.0]))), "an initializer has no name");
    assert_eq!(refused(|g| g.output.clear()), "the model has no outputs");
    // An initializer may be the default of an input.
    import_graph(changed(|g| g.initializer.push(f32s("x", &[2, 3], &[1.0; 6])))).unwrap();
}

#[test]
fn nested_graphs_do_not_hide_values_around_them() {
    let branches = |inner: GraphProto| {
        let other = graph(vec![], vec![node("Abs", &["x"], &["b"])], &["b"]);
        let branches = vec![branch("then_branch", inner), branch("else_branch", other)];
        let flag = value("flag", DataType::Bool, &[]);
        let conditional = with(node("If", &["flag"], &["z"]), branches);
        graph([x(), vec![flag]].concat(), vec![node("Neg", &["x"], &["y"]), conditional], &["z"])
    };
    let hides =
        |by: &str, value: &str| format!("{by} of a nested graph hides the value `{value}` of a graph around it");
    let assigns = graph(vec![], vec![node("Abs", &["x"], &["y"])], &["y"]);
    assert_eq!(graph_refusal(branches(assigns)), hides("Abs node computing `y`", "y"));
    let mut stores = graph(vec![], vec![node("Add", &["x", "y"], &["a"])], &["a"]);
    stores.initializer = vec![f32s("y", &[1], &[1.0])];
    assert_eq!(graph_refusal(branches(stores)), hides("an initializer", "y"));
    let takes = graph(vec![untyped("x")], vec![node("Abs", &["x"], &["a"])], &["a"]);
    assert_eq!(graph_refusal(branches(takes)), hides("a graph input", "x"));
    // The result of the node itself comes later, and so does what other branches define.
    let same = graph(vec![], vec![node("Abs", &["x"], &["b"]), node("Neg", &["b"], &["z"])], &["z"]);
    import_graph(branches(same)).unwrap();
}

#[test]
fn operators_are_of_a_stated_version() {
    let without = |domains: &[&str], change: fn(&mut ModelProto)| {
        let opset_import = domains.iter().map(|d| opset(d, 17)).collect();
        let mut model = ModelProto { opset_import, ..model(changed(|_| ())) };
        change(&mut model);
        refusal(&model)
    };
    let unstated = |holder: &str, domain: &str| {
        format!("the {holder} does not say which version of the operator set `{domain}` it uses")
    };
    assert_eq!(without(&[], |_| ()), unstated("model", "ai.onnx"));
    let calls = |model: &mut ModelProto| {
        model.functions = vec![function("F", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])])];
        model.graph.as_mut().unwrap().node = vec![call("F", &["x"], &["y"])];
    };
    assert_eq!(without(&[""], calls), unstated("model", "f"));
    let body = |model: &mut ModelProto| {
        let f = function("F", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])]);
        model.functions = vec![FunctionProto { opset_import: vec![opset("f", 1)], ..f }];
    };
    assert_eq!(without(&[""], body), unstated("function F", "ai.onnx"));
    let nested = |model: &mut ModelProto| {
        let inner = graph(vec![], vec![node("Neg", &["x"], &["a"])], &["a"]);
        let mut outer = with(node("Mystery", &["x"], &["y"]), vec![branch("body", inner)]);
        outer.domain = Some("other".into());
        model.graph.as_mut().unwrap().node = vec![outer];
    };
    assert_eq!(without(&["other"], nested), unstated("model", "ai.onnx"));
}

#[test]
fn functions_are_defined_once_and_do_not_recur() {
    let refused = |functions: Vec<FunctionProto>| refusal(&ModelProto { functions, ..model(changed(|_| ())) });
    let f = |name: &str, nodes| function(name, &["a"], &["r"], nodes);
    let neg = || node("Neg", &["a"], &["r"]);
    assert_eq!(refused(vec![f("F", vec![neg()]), f("F", vec![neg()])]), "function f.F: it is defined twice");
    // None of these is called by the model.
    let ring = vec![f("F", vec![call("G", &["a"], &["r"])]), f("G", vec![call("F", &["a"], &["r"])])];
    assert_eq!(refused(ring), "function f.F: it calls itself (through G)");
    let inner = graph(vec![], vec![call("F", &["a"], &["s"])], &["s"]);
    let hidden = with(node("If", &["a"], &["r"]), vec![branch("then_branch", inner)]);
    assert_eq!(refused(vec![f("F", vec![hidden])]), "function f.F: it calls itself (through F)");
    let twice = |value: &str, by: &str| format!("the value `{value}` is defined a second time by {by}");
    let assigns = f("F", vec![neg(), node("Abs", &["a"], &["r"])]);
    assert_eq!(refused(vec![assigns]), twice("r", "Abs node computing `r`"));
    let inputs = function("F", &["a", "a"], &["r"], vec![neg()]);
    assert_eq!(refused(vec![inputs]), twice("a", "an input of function F"));
    let outputs = function("F", &["a"], &["r", "r"], vec![neg()]);
    assert_eq!(refused(vec![outputs]), twice("r", "an output of function F"));
    let attributes = FunctionProto { attribute: strings(&["k", "k"]), ..f("F", vec![neg()]) };
    assert_eq!(refused(vec![attributes]), twice("k", "an attribute of function F"));
}

/// Declares a type of a value of `h = x · w` ([2, 3] · [3, 4]), `y = cast(h)`.
fn declaring(what: &str, declared: ValueInfoProto) -> ModelProto {
    let nodes = vec![node("MatMul", &["x", "w"], &["h"]), with(node("Cast", &["h"], &["y"]), vec![int("to", 7)])];
    let mut graph = graph(x(), nodes, &["y"]);
    graph.initializer = vec![f32s("w", &[3, 4], &[1.0; 12])];
    match what {
        "output" => graph.output = vec![declared],
        "input" => graph.input.push(declared),
        _ => graph.value_info = vec![declared],
    }
    model(graph)
}

#[test]
fn declared_types_that_contradict_are_refused() {
    let refused = |what, declared| refusal(&declaring(what, declared));
    let message = |what: &str, declared: &str, by: &str, found: &str| {
        let (kind, value) = what.split_once(' ').unwrap();
        format!("the model declares {kind} `{value}` as {declared}, but {by} makes it {found}")
    };
    let (cast, product) = ("node `y` (cast)", "node `h` (matmul)");
    assert_eq!(
        refused("output", value("y", DataType::Float, &[2, 4])),
        message("output y", "f32[2, 4]", cast, "i64[2, 4]")
    );
    assert_eq!(
        refused("output", value("y", DataType::Int64, &[2, 5])),
        message("output y", "i64[2, 5]", cast, "i64[2, 4]")
    );
    assert_eq!(refused("output", value("y", DataType::Int64, &[8])), message("output y", "i64[8]", cast, "i64[2, 4]"));
    assert_eq!(refused("output", value("y", DataType::Int64, &[])), message("output y", "i64[]", cast, "i64[2, 4]"));
    assert_eq!(
        refused("value", value("h", DataType::Int4, &[2, 4])),
        message("value h", "i4[2, 4]", product, "f32[2, 4]")
    );
    assert_eq!(
        refused("value", value("h", DataType::Float, &[4, 2])),
        message("value h", "f32[4, 2]", product, "f32[2, 4]")
    );
    let data = "the data of `w`";
    assert_eq!(
        refused("input", value("w", DataType::Float, &[4, 3])),
        message("input w", "f32[4, 3]", data, "f32[3, 4]")
    );
    let sequence = TypeValue::Sequence(Box::default());
    let sequence = ValueInfoProto { r#type: Some(TypeProto { value: Some(sequence) }), ..untyped("y") };
    assert_eq!(refused("output", sequence), message("output y", "a sequence", cast, "i64[2, 4]"));
}

#[test]
fn declared_types_may_say_less() {
    let imported = |what, declared| import_bytes(encoded(&declaring(what, declared)), ReadOptions::default()).is_ok();
    assert!(imported("output", value("y", DataType::Int64, &[2, 4])));
    assert!(imported("output", value("y", DataType::Int64, &[-1, 4])));
    assert!(imported("output", untyped("y")));
    let mut named = value("y", DataType::Int64, &[2, 4]);
    let Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) = &mut named.r#type else { panic!("a tensor") };
    tensor.shape.as_mut().unwrap().dim[0].value = Some(DimensionValue::Param("batch".into()));
    assert!(imported("output", named.clone()));
    let Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) = &mut named.r#type else { panic!("a tensor") };
    tensor.shape = None;
    assert!(imported("output", named));
    assert!(imported("value", value("no such value", DataType::Int64, &[2, 4])));
}

/// Extents that the caller gives may be others than those for which types were written down.
#[test]
fn declared_extents_do_not_bind_inputs_of_other_extents() {
    let mut open = declaring("output", value("y", DataType::Int64, &[1, 4]));
    let graph = open.graph.as_mut().unwrap();
    graph.input = vec![value("x", DataType::Float, &[-1, 3])];
    let import = |options: &ImportOptions<'_>| {
        let model = tensorc_frontend::onnx::OnnxModel::decode(encoded(&open), None).unwrap();
        tensorc_frontend::onnx::import(model, &REGISTRY, options)
    };
    assert!(import(&ImportOptions::default()).is_ok());
    assert!(import(&ImportOptions { shapes: &[("x", &[5, 3].into())], ..Default::default() }).is_ok());
    let value = TensorData::f32s(&[2, 3], &[1.0; 6]).unwrap();
    assert!(import(&ImportOptions { values: &[("x", value)], ..Default::default() }).is_ok());
}

#[test]
fn unknown_and_repeated_fields_of_tensors_and_attributes_are_refused() {
    let file = encoded(&model(changed(|g| {
        g.initializer = vec![f32s("w", &[1], &[1.0])];
        g.node[0].attribute = vec![int("a", 1)];
    })));
    // Each message is rebuilt with a field more, the lengths around it with it.
    let grown = |path: &[u32], field: &[u8]| grow(&file, path, field);
    let refused = |path: &[u32], field: &[u8]| match import_bytes(grown(path, field).into(), ReadOptions::default()) {
        Ok(_) => panic!("the model is imported"),
        Err(error) => error.to_string(),
    };
    let (tensor, attribute) = (&[7, 5][..], &[7, 1, 5][..]);
    let number = |field: u8| [field << 3, 1];
    assert_eq!(refused(tensor, &[15 << 3, 1]), "the tensor `w` has field 15, which ONNX does not define");
    assert_eq!(refused(tensor, &[0x8a, 0x06, 0]), "the tensor `w` has field 97, which ONNX does not define");
    assert_eq!(refused(tensor, &number(2)), "the tensor `w` gives field 2 twice");
    assert_eq!(refused(tensor, &[9 << 3 | 2, 0]), "the tensor `w` gives field 9 twice");
    assert_eq!(refused(attribute, &number(12)), "the attribute `a` has field 12, which ONNX does not define");
    assert_eq!(refused(attribute, &number(3)), "the attribute `a` gives field 3 twice");
    assert_eq!(refused(tensor, &[15 << 3 | 3]), "the tensor `w` has a group as field 15, which ONNX does not use");
    // Elsewhere a field that is not known is passed over, as protobuf wants it: newer writers add some.
    import_bytes(grown(&[7, 1], &[15 << 3, 1]).into(), ReadOptions::default()).unwrap_err();
    let plain = encoded(&model(changed(|_| ())));
    import_bytes(grow(&plain, &[7, 1], &[15 << 3, 1]).into(), ReadOptions::default()).unwrap();
    // Documentation, and entries for tools, are known although nothing reads them.
    let documented =
        grow(&encoded(&model(changed(|g| g.initializer = vec![f32s("w", &[1], &[1.0])]))), &[7, 5], b"\x62\x01d");
    import_bytes(documented.into(), ReadOptions::default()).unwrap();
}

/// A message with bytes added to the first message that a path of fields leads to.
fn grow(message: &[u8], path: &[u32], added: &[u8]) -> Vec<u8> {
    use prost::encoding::{decode_varint, encode_varint};
    let Some((field, path)) = path.split_first() else { return [message, added].concat() };
    let (mut rest, mut out, mut found) = (message, vec![], false);
    while !rest.is_empty() {
        let start = rest;
        let key = decode_varint(&mut rest).unwrap();
        let len = decode_varint(&mut rest).unwrap() as usize;
        if key & 7 != 2 {
            out.extend(&start[..start.len() - rest.len()]);
            continue;
        }
        let (inside, after) = rest.split_at(len);
        rest = after;
        if key >> 3 == u64::from(*field) && !found {
            found = true;
            let inside = grow(inside, path, added);
            encode_varint(key, &mut out);
            encode_varint(inside.len() as u64, &mut out);
            out.extend(inside);
        } else {
            out.extend(&start[..start.len() - rest.len()]);
        }
    }
    assert!(found, "there is no field {field}");
    out
}

#[test]
fn limits_of_the_caller_hold_before_anything_is_decoded() {
    let nodes: Vec<NodeProto> = (0..100).map(|i| node("Neg", &["x"], &[&format!("y{i}")])).collect();
    let file = encoded(&model(graph(x(), nodes, &["y0"])));
    let within = |limits| import_bytes(file.clone(), ReadOptions { limits, ..ReadOptions::default() });
    within(ImportLimits { nodes: Some(100), bytes: Some(1 << 20) }).unwrap();
    let refused = |limits| within(limits).unwrap_err().to_string();
    let more = "the model is too large: with functions and nested graphs written out it has more than 99 nodes";
    assert_eq!(refused(ImportLimits { nodes: Some(99), bytes: None }), more);
    // A node takes some tens of bytes in the file and hundreds in memory.
    let more = "the model is too large: reading it takes more than the 10000 bytes allowed";
    assert_eq!(refused(ImportLimits { nodes: None, bytes: Some(10_000) }), more);
}

/// Branches are written out one by one, and each counts.
#[test]
fn nodes_of_nested_graphs_count() {
    let inner = |n: usize| {
        let nodes = (0..n).map(|i| node("Neg", &["x"], &[&format!("a{i}")])).collect();
        graph(vec![], nodes, &["a0"])
    };
    let branches = vec![branch("then_branch", inner(50)), branch("else_branch", inner(50))];
    let conditional = with(node("If", &["flag"], &["z"]), branches);
    let flag = value("flag", DataType::Bool, &[]);
    let file = encoded(&model(graph([x(), vec![flag]].concat(), vec![conditional], &["z"])));
    let within = |nodes| {
        let limits = ImportLimits { nodes: Some(nodes), bytes: None };
        import_bytes(file.clone(), ReadOptions { limits, ..ReadOptions::default() })
    };
    within(101).unwrap();
    assert!(within(100).is_err());
}
