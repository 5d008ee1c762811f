//! Old forms of operators become the newest form.

use std::collections::BTreeMap;

use tensorc_frontend::onnx::proto::{AttributeProto, NodeProto};
use tensorc_frontend::onnx::upgrade::{Upgraded, ValueFacts, upgrade};
use tensorc_ir::{DType, TensorData};

/// Types and constants by name; what is not listed is unknown.
#[derive(Default)]
struct Known {
    types: BTreeMap<&'static str, (DType, Vec<Option<u64>>)>,
    constants: BTreeMap<&'static str, TensorData>,
    serial: usize,
}

impl Known {
    fn new(types: &[(&'static str, DType, &[u64])]) -> Known {
        let entry = |(name, dtype, dims): &(&'static str, DType, &[u64])| {
            (*name, (*dtype, dims.iter().map(|&d| Some(d)).collect()))
        };
        Known { types: types.iter().map(entry).collect(), ..Known::default() }
    }
}

impl ValueFacts for Known {
    fn dims(&mut self, value: &str) -> Option<Vec<Option<u64>>> {
        self.types.get(value).map(|t| t.1.clone())
    }

    fn dtype(&mut self, value: &str) -> Option<DType> {
        self.types.get(value).map(|t| t.0)
    }

    fn constant(&mut self, value: &str) -> Option<TensorData> {
        self.constants.get(value).cloned()
    }

    fn fresh_name(&mut self, _: &str) -> String {
        self.serial += 1;
        format!("${}", self.serial)
    }
}

fn node(op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: vec!["y".into()],
        attribute,
        ..Default::default()
    }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(2), i: Some(i), ..Default::default() }
}

fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(7), ints: v.to_vec(), ..Default::default() }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(1), f: Some(f), ..Default::default() }
}

fn floats(name: &str, v: &[f32]) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(6), floats: v.to_vec(), ..Default::default() }
}

fn string(name: &str, s: &str) -> AttributeProto {
    let s = Some(s.to_owned().into());
    AttributeProto { name: Some(name.into()), r#type: Some(3), s, ..Default::default() }
}

fn attribute(a: &AttributeProto) -> String {
    let value = match a.r#type() {
        1 => format!("{}", a.f()),
        2 => format!("{}", a.i()),
        3 => String::from_utf8_lossy(a.s()).into_owned(),
        7 => format!("{:?}", a.ints),
        other => format!("<{other}>"),
    };
    format!("{}={value}", a.name())
}

/// Constants written in place: `y = Op(x, [1, 2]; axis=0)`.
fn show(upgraded: Upgraded) -> Vec<String> {
    let constant = |name: &String| {
        let data = upgraded.constants.iter().find(|(n, _)| n == name).map(|(_, d)| d);
        match data {
            Some(d) if d.dims().is_empty() => format!("{}:{}", d.to_f64s()[0], d.dtype()),
            Some(d) => format!("{:?}", d.to_f64s()),
            None => name.clone(),
        }
    };
    let line = |n: &NodeProto| {
        let inputs: Vec<_> = n.input.iter().map(constant).collect();
        let attributes: Vec<_> = n.attribute.iter().map(attribute).collect();
        format!("{} = {}({}; {})", n.output.join(", "), n.op_type(), inputs.join(", "), attributes.join(", "))
    };
    upgraded.nodes.iter().map(line).collect()
}

fn check(node: NodeProto, opset: i64, mut known: Known, expected: &[&str]) {
    match upgrade(node, opset, &mut known) {
        Ok(upgraded) => assert_eq!(show(upgraded), expected),
        Err(reason) => assert_eq!([format!("refused: {reason}")].as_slice(), expected),
    }
}

#[test]
fn attributes_become_operands() {
    let none = Known::default;
    check(node("Squeeze", &["x"], vec![ints("axes", &[0, 2])]), 11, none(), &["y = Squeeze(x, [0.0, 2.0]; )"]);
    check(node("Squeeze", &["x"], vec![]), 11, none(), &["y = Squeeze(x; )"]);
    check(node("ReduceSum", &["x"], vec![ints("axes", &[1])]), 12, none(), &["y = ReduceSum(x, [1.0]; )"]);
    check(
        node("ReduceMean", &["x"], vec![ints("axes", &[1]), int("keepdims", 0)]),
        17,
        none(),
        &["y = ReduceMean(x, [1.0]; keepdims=0)"],
    );
    check(
        node("Slice", &["x"], vec![ints("starts", &[0]), ints("ends", &[9]), ints("axes", &[1])]),
        9,
        none(),
        &["y = Slice(x, [0.0], [9.0], [1.0]; )"],
    );
    check(node("TopK", &["x"], vec![int("k", 3), int("axis", 1)]), 9, none(), &["y = TopK(x, [3.0]; axis=1)"]);
    check(node("Reshape", &["x"], vec![ints("shape", &[2, -1])]), 4, none(), &["y = Reshape(x, [2.0, -1.0]; )"]);
    check(node("DFT", &["x"], vec![]), 17, none(), &["y = DFT(x, , 1:i64; )"]);
}

#[test]
fn new_forms_stay() {
    let n = node("Squeeze", &["x", "axes"], vec![]);
    let upgraded = upgrade(n.clone(), 13, &mut Known::default()).unwrap();
    assert_eq!((upgraded.nodes, upgraded.rewritten), (vec![n], false));
}

#[test]
fn scalar_operands_have_the_type_of_the_data() {
    let clip = || node("Clip", &["x"], vec![float("max", 6.0), float("min", 0.5)]);
    check(clip(), 6, Known::new(&[("x", DType::F16, &[2])]), &["y = Clip(x, 0.5:f16, 6:f16; )"]);
    check(
        clip(),
        6,
        Known::default(),
        &["$2 = CastLike(0.5:f32, x; )", "$4 = CastLike(6:f32, x; )", "y = Clip(x, $2, $4; )"],
    );
    check(node("Clip", &["x"], vec![]), 6, Known::default(), &["y = Clip(x; )"]);
    check(
        node("Pad", &["x"], vec![ints("pads", &[0, 1]), string("mode", "constant"), float("value", 2.0)]),
        10,
        Known::new(&[("x", DType::F32, &[2])]),
        &["y = Pad(x, [0.0, 1.0], 2:f32; mode=constant)"],
    );
}

#[test]
fn defaults_and_names_of_old_versions() {
    let none = Known::default;
    check(node("Concat", &["a", "b"], vec![]), 3, none(), &["y = Concat(a, b; axis=1)"]);
    check(node("Cast", &["x"], vec![string("to", "INT64")]), 5, none(), &["y = Cast(x; to=7)"]);
    check(node("Cast", &["x"], vec![string("to", "NUMBER")]), 5, none(), &["refused: `NUMBER` is not an element type"]);
    check(node("Scatter", &["x", "i", "u"], vec![]), 10, none(), &["y = ScatterElements(x, i, u; )"]);
    check(
        node("RoiAlign", &["x", "r", "b"], vec![]),
        15,
        none(),
        &["y = RoiAlign(x, r, b; coordinate_transformation_mode=output_half_pixel)"],
    );
    check(
        node("GridSample", &["x", "g"], vec![string("mode", "bicubic")]),
        16,
        none(),
        &["y = GridSample(x, g; mode=cubic)"],
    );
    check(node("Relu", &["x"], vec![ints("consumed_inputs", &[0])]), 1, none(), &["y = Relu(x; )"]);
    check(node("Split", &["x"], vec![ints("split", &[1, 2])]), 2, none(), &["y = Split(x, [1.0, 2.0]; )"]);
    let mut split = node("Split", &["x"], vec![]);
    split.output = vec!["a".into(), "b".into(), "c".into()];
    check(split, 13, none(), &["a, b, c = Split(x; num_outputs=3)"]);
    check(node("LpPool", &["x"], vec![float("p", 3.0)]), 1, none(), &["y = LpPool(x; p=3)"]);
}

#[test]
fn legacy_broadcasting_becomes_unsqueeze() {
    let known = || Known::new(&[("a", DType::F32, &[2, 3, 4, 5]), ("b", DType::F32, &[3, 4]), ("c", DType::F32, &[5])]);
    let at = |b: &str, axis| node("Add", &["a", b], vec![int("broadcast", 1), int("axis", axis)]);
    check(at("b", 1), 6, known(), &["$2 = Unsqueeze(b, [2.0]; )", "y = Add(a, $2; )"]);
    check(at("b", -3), 6, known(), &["$2 = Unsqueeze(b, [2.0]; )", "y = Add(a, $2; )"]);
    check(at("c", 3), 6, known(), &["y = Add(a, c; )"]);
    check(at("c", 0), 6, known(), &["$2 = Unsqueeze(c, [1.0, 2.0, 3.0]; )", "y = Add(a, $2; )"]);
    check(at("b", 3), 6, known(), &["refused: rank 2 at axis 3 does not fit into rank 4"]);
    check(at("d", 1), 6, known(), &["refused: the rank of operand 1 must be known for its old form"]);
    check(node("Add", &["a", "d"], vec![int("broadcast", 1)]), 6, known(), &["y = Add(a, d; )"]);
    check(node("PRelu", &["a", "c"], vec![]), 6, known(), &["$2 = Unsqueeze(c, [1.0, 2.0]; )", "y = PRelu(a, $2; )"]);
}

#[test]
fn softmax_took_its_operand_as_a_matrix() {
    let known = || Known::new(&[("x", DType::F32, &[2, 3, 4])]);
    check(node("Softmax", &["x"], vec![int("axis", 2)]), 11, known(), &["y = Softmax(x; axis=-1)"]);
    check(node("Softmax", &["m"], vec![]), 9, Known::new(&[("m", DType::F32, &[2, 3])]), &["y = Softmax(m; axis=-1)"]);
    check(
        node("LogSoftmax", &["x"], vec![]),
        11,
        known(),
        &["$1 = Shape(x; )", "$2 = Flatten(x; axis=1)", "$3 = LogSoftmax($2; axis=-1)", "y = Reshape($3, $1; )"],
    );
    check(node("Softmax", &["x"], vec![int("axis", 1)]), 13, known(), &["y = Softmax(x; axis=1)"]);
}

#[test]
fn upsampling_becomes_resize() {
    let modes = |nearest: &str, mode: &str| format!("{nearest}mode={mode}, coordinate_transformation_mode=asymmetric)");
    let floor = modes("nearest_mode=by_scale, ", "nearest");
    check(
        node("Upsample", &["x"], vec![floats("scales", &[1.0, 1.0, 2.0, 2.0])]),
        7,
        Known::default(),
        &[&format!("y = Resize(x, , [1.0, 1.0, 2.0, 2.0]; {floor}")],
    );
    let bilinear = vec![string("mode", "bilinear"), float("width_scale", 2.0), float("height_scale", 3.0)];
    check(
        node("Upsample", &["x"], bilinear),
        1,
        Known::default(),
        &[&format!("y = Resize(x, , [1.0, 1.0, 3.0, 2.0]; {}", modes("", "linear"))],
    );
    let mut known = Known::default();
    known.constants.insert("s", TensorData::f32s(&[2], &[1.0, 0.5]).unwrap());
    check(
        node("Resize", &["x", "s"], vec![]),
        10,
        known,
        &[&format!("y = Resize(x, , s; {}", modes("nearest_mode=by_scale, ", "nearest"))],
    );
    let empty = || Known::new(&[("roi", DType::F32, &[0]), ("scales", DType::F32, &[0]), ("sizes", DType::I64, &[4])]);
    check(node("Resize", &["x", "roi", "scales", "sizes"], vec![]), 11, empty(), &["y = Resize(x, , , sizes; )"]);
}

#[test]
fn the_experimental_fill_becomes_constant_of_shape() {
    check(
        node("ConstantFill", &["s"], vec![int("input_as_shape", 1), float("value", 2.0)]),
        6,
        Known::default(),
        &["y = ConstantOfShape(s; value=<4>)"],
    );
    check(
        node("ConstantFill", &["x"], vec![]),
        6,
        Known::default(),
        &["$1 = Shape(x; )", "y = ConstantOfShape($1; value=<4>)"],
    );
    let upgraded = upgrade(node("ConstantFill", &[], vec![ints("shape", &[2])]), 6, &mut Known::default()).unwrap();
    let fill = upgraded.nodes[0].attribute[0].t.clone().unwrap();
    assert_eq!((fill.data_type(), fill.dims.as_slice(), fill.raw_data().len()), (1, &[1][..], 4));
}

#[test]
fn batch_normalization_of_old_versions() {
    let inputs = ["x", "s", "b", "m", "v"];
    let attributes = |extra| vec![float("epsilon", 0.5), extra];
    check(
        node("BatchNormalization", &inputs, attributes(int("is_test", 1))),
        6,
        Known::default(),
        &["y = BatchNormalization(x, s, b, m, v; epsilon=0.5)"],
    );
    check(
        node("BatchNormalization", &inputs, attributes(int("spatial", 0))),
        7,
        Known::default(),
        &["refused: statistics per activation (spatial = 0) are not supported"],
    );
    let mut training = node("BatchNormalization", &inputs, vec![]);
    training.output.push("mean".into());
    check(training, 9, Known::default(), &["refused: training mode (output `mean`) is not supported"]);
}

#[test]
fn group_normalization_by_group_becomes_by_channel() {
    let known = Known::new(&[("x", DType::F32, &[1, 4, 2, 2]), ("s", DType::F32, &[2]), ("b", DType::F32, &[2])]);
    check(
        node("GroupNormalization", &["x", "s", "b"], vec![int("num_groups", 2)]),
        18,
        known,
        &[
            "$2 = Unsqueeze(s, [1.0]; )",
            "$4 = Expand($2, [2.0, 2.0]; )",
            "$6 = Reshape($4, [4.0]; )",
            "$8 = Unsqueeze(b, [1.0]; )",
            "$10 = Expand($8, [2.0, 2.0]; )",
            "$12 = Reshape($10, [4.0]; )",
            "y = GroupNormalization(x, $6, $12; num_groups=2)",
        ],
    );
}
