//! Brings nodes of old operator set versions into the newest form.
//!
//! Operators are defined once, in their newest ONNX form. What changed over the versions is listed
//! in [`RULES`]: attributes that became operands, defaults that changed, operators that were
//! renamed. A rule applies to nodes of every version before the one it names; rules of one
//! operator apply in the order of the table.

use tensorc_abi::DType;
use tensorc_ir::op::OnnxName;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, TensorData};

use super::attribute;
use super::contrib;
use super::load::canonical_domain;
use super::proto::{AttributeProto, AttributeType, DataType, NodeProto, TensorProto};
use super::tensor::{data_type, type_name};

/// What is known of values that exist already.
pub trait ValueFacts {
    /// The extents of a value, `None` for those unknown; `None` if the rank is unknown.
    fn dims(&mut self, value: &str) -> Option<Vec<Option<u64>>>;
    /// The element type of a value, if it is known.
    fn dtype(&mut self, value: &str) -> Option<DType>;
    /// The elements of a constant value.
    fn constant(&mut self, value: &str) -> Option<TensorData>;
    /// A value name that is not in use, derived from `base`.
    fn fresh_name(&mut self, base: &str) -> String;
}

/// What a node became.
#[derive(Debug, Default)]
pub struct Upgraded {
    /// In the order of data flow.
    pub nodes: Vec<NodeProto>,
    /// Operands that were attributes.
    pub constants: Vec<(String, TensorData)>,
    /// Whether the nodes have the newest form by a rule, or are as they were.
    pub rewritten: bool,
}

/// Applies the rules to an operator of a version of its domain.
///
/// # Errors
/// The reason why the old form has no equivalent.
pub fn upgrade(node: NodeProto, opset: i64, facts: &mut dyn ValueFacts) -> Result<Upgraded, String> {
    upgrade_to(node, opset, ALWAYS, facts)
}

/// Applies the rules for versions up to one, and those for forms that no version defines any more.
///
/// # Errors
/// As [`upgrade`].
pub fn upgrade_to(node: NodeProto, opset: i64, to: i64, facts: &mut dyn ValueFacts) -> Result<Upgraded, String> {
    let mut r = Rewrite { node, before: vec![], after: vec![], constants: vec![], rewritten: false, facts };
    let domain = canonical_domain(r.node.domain()).to_owned();
    if domain == OnnxName::STANDARD && opset < 7 {
        // Told old run times which buffers they may overwrite.
        r.take("consumed_inputs");
    }
    for rule in RULES {
        let applies = opset < rule.before && (rule.before <= to || rule.before == ALWAYS);
        if rule.domain == domain && applies && rule.ops.contains(&r.node.op_type()) {
            rule.fix.apply(&mut r)?;
        }
    }
    let Rewrite { node, mut before, after, constants, rewritten, .. } = r;
    before.push(node);
    before.extend(after);
    Ok(Upgraded { nodes: before, constants, rewritten })
}

/// Attributes that have no influence on results in the element types tensorc knows, or only on
/// training; they are skipped where an operator does not declare them.
pub const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("BatchNormalization", "momentum"),
    ("Dropout", "seed"),
    ("GroupNormalization", "stash_type"),
    ("LayerNormalization", "stash_type"),
    ("RMSNormalization", "stash_type"),
];

struct UpgradeRule {
    domain: &'static str,
    ops: &'static [&'static str],
    /// The first version that has the new form.
    before: i64,
    fix: Fix,
}

/// For forms that no version defines any more, or that mean the same in all.
const ALWAYS: i64 = i64::MAX;

enum Fix {
    /// An attribute of integers becomes a one-dimensional operand.
    IntsToInput(&'static str, usize),
    /// A float attribute becomes a scalar operand of the element type of operand 0.
    FloatToInput(&'static str, usize),
    DropAttr(&'static str),
    RenameAttr(&'static str, &'static str),
    DefaultInt(&'static str, i64),
    DefaultFloat(&'static str, f32),
    DefaultStr(&'static str, &'static str),
    RenameOp(&'static str),
    Own(fn(&mut Rewrite<'_>) -> Result<(), String>),
}

const fn rule(ops: &'static [&'static str], before: i64, fix: Fix) -> UpgradeRule {
    UpgradeRule { domain: OnnxName::STANDARD, ops, before, fix }
}

/// A rule for an operator that ONNX Runtime adds, with a standard operator of the same meaning in another form.
const fn contrib(ops: &'static [&'static str], fix: fn(&mut Rewrite<'_>) -> Result<(), String>) -> UpgradeRule {
    UpgradeRule { domain: OnnxName::MICROSOFT, ops, before: ALWAYS, fix: Fix::Own(fix) }
}

const BINARY: &[&str] = &["Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"];
const RECURRENT: &[&str] = &["RNN", "GRU", "LSTM"];
const SOFTMAX: &[&str] = &["Softmax", "LogSoftmax", "Hardmax"];
/// The reductions whose axes became an operand in version 18; that of `ReduceSum` did in 13.
const REDUCE: &[&str] = &[
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
];

const RULES: &[UpgradeRule] = &[
    rule(&["Concat"], 4, Fix::DefaultInt("axis", 1)),
    rule(&["Reshape"], 5, Fix::IntsToInput("shape", 1)),
    rule(&["Tile"], 6, Fix::Own(tile_one_axis)),
    rule(&["Cast"], 6, Fix::Own(cast_by_name)),
    rule(&["Selu"], 6, Fix::DefaultFloat("alpha", 1.6732)),
    rule(&["Selu"], 6, Fix::DefaultFloat("gamma", 1.0507)),
    rule(BINARY, 7, Fix::Own(broadcast_at_axis)),
    rule(&["Gemm"], 7, Fix::DropAttr("broadcast")),
    rule(&["PRelu"], 7, Fix::Own(slope_per_channel)),
    rule(RECURRENT, 7, Fix::DropAttr("output_sequence")),
    rule(&["BatchNormalization", "Dropout"], 7, Fix::DropAttr("is_test")),
    rule(&["BatchNormalization"], 9, Fix::Own(normalise_over_channels)),
    rule(&["BatchNormalization"], 14, Fix::Own(refuse_training)),
    rule(&["LpPool", "GlobalLpPool"], 2, Fix::Own(integer_norm)),
    rule(&["Slice"], 10, Fix::IntsToInput("starts", 1)),
    rule(&["Slice"], 10, Fix::IntsToInput("ends", 2)),
    rule(&["Slice"], 10, Fix::IntsToInput("axes", 3)),
    rule(&["TopK"], 10, Fix::IntsToInput("k", 1)),
    rule(&["Resize"], 11, Fix::Own(resize_without_modes)),
    rule(&["Resize"], ALWAYS, Fix::Own(drop_empty_operands)),
    // After the rules of what it becomes.
    rule(&["Upsample"], 7, Fix::Own(upsample_height_width)),
    rule(&["Upsample"], ALWAYS, Fix::Own(upsample_to_resize)),
    rule(&["Clip"], 11, Fix::FloatToInput("min", 1)),
    rule(&["Clip"], 11, Fix::FloatToInput("max", 2)),
    rule(&["Pad"], 2, Fix::RenameAttr("paddings", "pads")),
    rule(&["Pad"], 11, Fix::IntsToInput("pads", 1)),
    rule(&["Pad"], 11, Fix::FloatToInput("value", 2)),
    rule(&["ConstantFill"], ALWAYS, Fix::Own(constant_of_shape)),
    rule(&["Dropout"], 12, Fix::FloatToInput("ratio", 1)),
    rule(&["Squeeze", "Unsqueeze", "ReduceSum"], 13, Fix::IntsToInput("axes", 1)),
    rule(&["Split"], 13, Fix::IntsToInput("split", 1)),
    rule(&["Split"], 18, Fix::Own(split_evenly)),
    rule(REDUCE, 18, Fix::IntsToInput("axes", 1)),
    rule(SOFTMAX, 13, Fix::Own(softmax_of_matrix)),
    rule(&["Scatter"], ALWAYS, Fix::RenameOp("ScatterElements")),
    rule(&["RoiAlign"], 16, Fix::DefaultStr("coordinate_transformation_mode", "output_half_pixel")),
    rule(&["GridSample"], 20, Fix::Own(grid_sample_modes)),
    rule(&["DFT"], 20, Fix::Own(dft_axis)),
    rule(&["GroupNormalization"], 21, Fix::Own(scale_per_channel)),
    contrib(&["ExpandDims"], contrib::expand_dims),
    contrib(&["GridSample"], contrib::grid_sample),
    contrib(&["Range"], contrib::range),
    contrib(&["Unique"], contrib::unique),
];

impl Fix {
    fn apply(&self, r: &mut Rewrite<'_>) -> Result<(), String> {
        match self {
            Fix::IntsToInput(name, at) => {
                if let Some(values) = r.take_as(name, attribute::ints)? {
                    let operand = r.i64s(&values);
                    r.set_input(*at, operand);
                }
            }
            Fix::FloatToInput(name, at) => {
                if let Some(value) = r.take_as(name, attribute::float)? {
                    let operand = r.scalar_like(value, 0);
                    r.set_input(*at, operand);
                }
            }
            Fix::DropAttr(name) => drop(r.take(name)),
            Fix::RenameAttr(old, new) => {
                if let Some(attribute) = r.take(old) {
                    r.node.attribute.push(AttributeProto { name: Some((*new).to_owned()), ..attribute });
                }
            }
            Fix::DefaultInt(name, value) => r.set_default(int(name, *value)),
            Fix::DefaultFloat(name, value) => r.set_default(float(name, *value)),
            Fix::DefaultStr(name, value) => r.set_default(string(name, value)),
            Fix::RenameOp(name) => r.node.op_type = Some((*name).to_owned()),
            Fix::Own(f) => f(r)?,
        }
        r.rewritten = true;
        Ok(())
    }
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..AttributeProto::of(name, AttributeType::Int) }
}

/// A one-dimensional operand: axes, shapes.
pub(super) fn i64_list(values: &[i64]) -> TensorData {
    let ty = DenseType::new(DType::I64, [values.len() as u64]);
    TensorData::from_fn(ty, |i| Scalar::i64(values[i as usize]))
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..AttributeProto::of(name, AttributeType::Float) }
}

fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.to_owned().into()), ..AttributeProto::of(name, AttributeType::String) }
}

/// The node being rewritten and what is put around it.
pub(super) struct Rewrite<'a> {
    pub(super) node: NodeProto,
    before: Vec<NodeProto>,
    after: Vec<NodeProto>,
    constants: Vec<(String, TensorData)>,
    rewritten: bool,
    facts: &'a mut dyn ValueFacts,
}

impl Rewrite<'_> {
    fn take(&mut self, name: &str) -> Option<AttributeProto> {
        let at = self.node.attribute.iter().position(|a| a.name() == name)?;
        Some(self.node.attribute.remove(at))
    }

    /// Takes the value of an attribute, which must be of the type that `read` reads.
    fn take_as<T>(&mut self, name: &str, read: fn(&AttributeProto) -> Result<T, String>) -> Result<Option<T>, String> {
        let value = self.take(name).map(|attribute| read(&attribute));
        value.transpose().map_err(|why| format!("attribute `{name}`: {why}"))
    }

    fn take_int(&mut self, name: &str) -> Result<Option<i64>, String> {
        self.take_as(name, attribute::int)
    }

    pub(super) fn take_str(&mut self, name: &str) -> Result<Option<String>, String> {
        self.take_as(name, attribute::text)
    }

    fn set_default(&mut self, attribute: AttributeProto) {
        if !self.node.attribute.iter().any(|a| a.name() == attribute.name()) {
            self.node.attribute.push(attribute);
        }
    }

    pub(super) fn input(&self, i: usize) -> &str {
        self.node.input.get(i).map_or("", String::as_str)
    }

    pub(super) fn set_input(&mut self, i: usize, value: String) {
        if self.node.input.len() <= i {
            self.node.input.resize(i + 1, String::new());
        }
        self.node.input[i] = value;
    }

    fn dims(&mut self, i: usize) -> Option<Vec<Option<u64>>> {
        let value = self.input(i).to_owned();
        self.facts.dims(&value)
    }

    fn rank(&mut self, i: usize) -> Result<usize, String> {
        self.dims(i).map(|d| d.len()).ok_or_else(|| format!("the rank of operand {i} must be known for its old form"))
    }

    fn name(&mut self) -> String {
        let base = self.node.output.first().map_or("value", String::as_str).to_owned();
        self.facts.fresh_name(&base)
    }

    fn constant(&mut self, data: TensorData) -> String {
        let name = self.name();
        self.constants.push((name.clone(), data));
        name
    }

    /// The value of an operand if it is constant.
    fn value(&mut self, name: &str) -> Option<TensorData> {
        match self.constants.iter().find(|(n, _)| n == name) {
            Some((_, data)) => Some(data.clone()),
            None => self.facts.constant(name),
        }
    }

    pub(super) fn i64s(&mut self, values: &[i64]) -> String {
        self.constant(i64_list(values))
    }

    /// A scalar of the element type of operand `i`, converted at run time where that is unknown.
    pub(super) fn scalar_like(&mut self, value: f64, i: usize) -> String {
        let operand = self.input(i).to_owned();
        match self.facts.dtype(&operand) {
            Some(dtype) => self.constant(TensorData::scalar(Scalar::from_f64(dtype, value))),
            None => {
                let constant = self.constant(TensorData::scalar(Scalar::f32(value as f32)));
                self.insert("CastLike", &[&constant, &operand], vec![])
            }
        }
    }

    /// A new node before this one; returns its result.
    pub(super) fn insert(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> String {
        let output = self.name();
        self.before.push(self.helper(op, inputs, &output, attribute));
        output
    }

    /// A node that belongs to this one in messages.
    fn helper(&self, op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
        NodeProto { attribute, ..NodeProto::of(op, inputs, output, self.node.name.clone()) }
    }

    fn unsqueeze(&mut self, value: &str, axes: &[i64]) -> String {
        let axes = self.i64s(axes);
        self.insert("Unsqueeze", &[value, &axes], vec![])
    }
}

/// Version 1 takes the number of tiles and the axis as two scalars.
fn tile_one_axis(r: &mut Rewrite<'_>) -> Result<(), String> {
    let rank = r.rank(0)?;
    let (tiles, axis) = (r.input(1).to_owned(), r.input(2).to_owned());
    let mut value = |name: &str| r.value(name).and_then(|t| t.item()).map(|s| s.as_i64());
    let (Some(tiles), Some(axis)) = (value(&tiles), value(&axis)) else {
        return Err("its tiles and axis must be constant in the old form".to_owned());
    };
    let mut repeats = vec![1; rank];
    *repeats.get_mut(axis as usize).ok_or_else(|| format!("axis {axis} is out of range for rank {rank}"))? = tiles;
    let repeats = r.i64s(&repeats);
    r.node.input.truncate(1);
    r.set_input(1, repeats);
    Ok(())
}

/// An experiment of early versions: fills a shape given by an operand, like an operand's or by an
/// attribute.
fn constant_of_shape(r: &mut Rewrite<'_>) -> Result<(), String> {
    let as_shape = r.take_int("input_as_shape")?.is_some_and(|i| i != 0);
    let value = r.take_as("value", attribute::float)?.unwrap_or(0.0);
    let dtype = attribute::data_type(r.take_int("dtype")?.unwrap_or(1))?;
    if r.take_as("extra_shape", attribute::ints)?.is_some_and(|extra| !extra.is_empty()) {
        return Err("attribute `extra_shape` is not supported".to_owned());
    }
    let shape = r.take_as("shape", attribute::ints)?;
    let operand = r.input(0).to_owned();
    let shape = match (operand.is_empty(), as_shape, shape) {
        (false, true, _) => operand,
        (false, false, _) => r.insert("Shape", &[&operand], vec![]),
        (true, _, Some(shape)) => r.i64s(&shape),
        (true, _, None) => return Err("it has neither an operand nor a shape".to_owned()),
    };
    r.node.input = vec![shape];
    let (fill, code) = (TensorData::splat(&[1], Scalar::from_f64(dtype, value)), data_type(dtype));
    let data = Some(fill.bytes().clone());
    let t = Some(TensorProto { data_type: Some(code), dims: vec![1], raw_data: data, ..TensorProto::default() });
    r.node.attribute.push(AttributeProto { t, ..AttributeProto::of("value", AttributeType::Tensor) });
    r.node.op_type = Some("ConstantOfShape".to_owned());
    Ok(())
}

/// The type was given by name.
fn cast_by_name(r: &mut Rewrite<'_>) -> Result<(), String> {
    let Some(name) = r.take_str("to")? else { return Ok(()) };
    // The types of that time.
    let mut codes = DataType::Float as i32..=DataType::Complex128 as i32;
    let named = |code: &i32| DataType::try_from(*code).is_ok_and(|known| type_name(known).eq_ignore_ascii_case(&name));
    let code = codes.find(named).ok_or_else(|| format!("`{name}` is not an element type"))?;
    r.node.attribute.push(int("to", code.into()));
    Ok(())
}

/// The second operand was aligned with the axes of the first that begin at `axis`.
fn broadcast_at_axis(r: &mut Rewrite<'_>) -> Result<(), String> {
    let broadcast = r.take_int("broadcast")?.is_some_and(|i| i != 0);
    let Some(axis) = r.take_int("axis")?.filter(|_| broadcast) else { return Ok(()) };
    let (a, b) = (r.rank(0)? as i64, r.rank(1)? as i64);
    let axis = if axis < 0 { axis + a } else { axis };
    if axis < 0 || axis > a - b {
        return Err(format!("rank {b} at axis {axis} does not fit into rank {a}"));
    }
    if axis + b < a {
        let (operand, axes) = (r.input(1).to_owned(), (b..a - axis).collect::<Vec<_>>());
        let operand = r.unsqueeze(&operand, &axes);
        r.set_input(1, operand);
    }
    Ok(())
}

/// A slope of one dimension belonged to axis 1, not to the last.
fn slope_per_channel(r: &mut Rewrite<'_>) -> Result<(), String> {
    match r.dims(1).as_deref() {
        Some([]) | Some([Some(1)]) => return Ok(()),
        Some([_]) => {}
        Some(_) => return Ok(()),
        None => return Err("the shape of its slope must be known for its old form".to_owned()),
    }
    let rank = r.rank(0)? as i64;
    if rank > 2 {
        let (slope, axes) = (r.input(1).to_owned(), (1..rank - 1).collect::<Vec<_>>());
        let slope = r.unsqueeze(&slope, &axes);
        r.set_input(1, slope);
    }
    Ok(())
}

fn normalise_over_channels(r: &mut Rewrite<'_>) -> Result<(), String> {
    match r.take_int("spatial")? {
        Some(0) => Err("statistics per activation (spatial = 0) are not supported".to_owned()),
        _ => Ok(()),
    }
}

/// Before training became an attribute, asking for statistics meant training.
fn refuse_training(r: &mut Rewrite<'_>) -> Result<(), String> {
    match r.node.output.iter().skip(1).find(|o| !o.is_empty()) {
        Some(output) => Err(format!("training mode (output `{output}`) is not supported")),
        None => Ok(()),
    }
}

fn integer_norm(r: &mut Rewrite<'_>) -> Result<(), String> {
    if let Some(p) = r.take_as("p", attribute::float)? {
        if p.fract() != 0.0 {
            return Err(format!("a norm with p = {p} is not supported"));
        }
        r.node.attribute.push(int("p", p as i64));
    }
    Ok(())
}

fn upsample_height_width(r: &mut Rewrite<'_>) -> Result<(), String> {
    let mut scale = |name| r.take_as(name, attribute::float);
    if let (Some(height), Some(width)) = (scale("height_scale")?, scale("width_scale")?) {
        let floats = vec![1.0, 1.0, height as f32, width as f32];
        r.node.attribute.push(AttributeProto { floats, ..AttributeProto::of("scales", AttributeType::Floats) });
    }
    Ok(())
}

fn upsample_to_resize(r: &mut Rewrite<'_>) -> Result<(), String> {
    if let Some(scales) = r.take_as("scales", attribute::floats)? {
        let data = TensorData::f32s(&[scales.len() as u64], &scales).ok_or("its scales are malformed")?;
        let scales = r.constant(data);
        r.set_input(1, scales);
    }
    r.node.op_type = Some("Resize".to_owned());
    resize_without_modes(r)
}

/// Version 10 takes positions as `x / scale`; the nearest is the one below when enlarging and the
/// one above when shrinking.
fn resize_without_modes(r: &mut Rewrite<'_>) -> Result<(), String> {
    let scales = r.input(1).to_owned();
    let mode = r.take_str("mode")?.unwrap_or_else(|| "nearest".to_owned());
    if mode == "nearest" {
        r.node.attribute.push(string("nearest_mode", "by_scale"));
    }
    let mode = if mode == "bilinear" { "linear" } else { mode.as_str() };
    r.node.attribute.push(string("mode", mode));
    r.node.attribute.push(string("coordinate_transformation_mode", "asymmetric"));
    r.set_input(1, String::new());
    r.set_input(2, scales);
    Ok(())
}

/// While operands could not be left out, an empty tensor meant absence.
fn drop_empty_operands(r: &mut Rewrite<'_>) -> Result<(), String> {
    for i in 1..r.node.input.len() {
        let operand = r.input(i).to_owned();
        let empty = !operand.is_empty() && r.dims(i).is_some_and(|d| d == [Some(0)]);
        if empty {
            r.set_input(i, String::new());
        }
    }
    Ok(())
}

fn split_evenly(r: &mut Rewrite<'_>) -> Result<(), String> {
    if r.input(1).is_empty() {
        let parts = r.node.output.len() as i64;
        r.set_default(int("num_outputs", parts));
    }
    Ok(())
}

/// The operand was taken as a matrix whose rows begin at `axis`.
fn softmax_of_matrix(r: &mut Rewrite<'_>) -> Result<(), String> {
    let axis = r.take_int("axis")?.unwrap_or(1);
    r.node.attribute.push(int("axis", -1));
    let rank = r.dims(0).map(|d| d.len() as i64);
    if axis == -1 || rank.is_some_and(|rank| axis == rank - 1 || rank <= 1) {
        return Ok(());
    }
    let operand = r.input(0).to_owned();
    let shape = r.insert("Shape", &[&operand], vec![]);
    let matrix = r.insert("Flatten", &[&operand], vec![int("axis", axis)]);
    r.set_input(0, matrix);
    let output = r.node.output.first().cloned().unwrap_or_default();
    let result = r.name();
    r.after.push(r.helper("Reshape", &[&result, &shape], &output, vec![]));
    r.node.output = vec![result];
    Ok(())
}

pub(super) fn grid_sample_modes(r: &mut Rewrite<'_>) -> Result<(), String> {
    let mode = match r.take_str("mode")?.as_deref() {
        None | Some("bilinear") => "linear".to_owned(),
        Some("bicubic") => "cubic".to_owned(),
        Some(other) => other.to_owned(),
    };
    r.node.attribute.push(string("mode", &mode));
    Ok(())
}

fn dft_axis(r: &mut Rewrite<'_>) -> Result<(), String> {
    let axis = r.take_int("axis")?.unwrap_or(1);
    let axis = r.constant(TensorData::scalar(Scalar::i64(axis)));
    r.set_input(2, axis);
    Ok(())
}

/// Scale and bias had one element for each group.
fn scale_per_channel(r: &mut Rewrite<'_>) -> Result<(), String> {
    let groups = r.node.attribute.iter().find(|a| a.name() == "num_groups").map_or(Ok(1), attribute::int)?;
    let channels = r.dims(0).and_then(|d| d.get(1).copied().flatten()).map(|c| c as i64);
    let Some(channels) = channels.filter(|c| groups > 0 && c % groups == 0) else {
        return Err("the number of channels must be known for its old form".to_owned());
    };
    for i in 1..=2 {
        if r.dims(i).is_some_and(|d| d == [Some(channels as u64)]) && channels != groups {
            continue;
        }
        let operand = r.input(i).to_owned();
        let column = r.unsqueeze(&operand, &[1]);
        let shape = r.i64s(&[groups, channels / groups]);
        let repeated = r.insert("Expand", &[&column, &shape], vec![]);
        let flat = r.i64s(&[channels]);
        let per_channel = r.insert("Reshape", &[&repeated, &flat], vec![]);
        r.set_input(i, per_channel);
    }
    Ok(())
}
