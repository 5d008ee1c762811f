//! The reference of an operator, generated from its entry.

use std::fmt::Write;

use tensorc_ir::op::OpDef;

/// Signature, documentation, operands and parameters of an operator, with types in MXNet's words.
///
/// ```text
/// smooth_l1(x, scalar=1)
///     ½σ²x² near 0, |x| - ½/σ² elsewhere.
///     x : NDArray-or-Symbol
///     scalar : float, optional, default=1
///         σ
/// ```
pub fn reference(op: &OpDef) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = describe(op, &mut text);
    text
}

fn describe(op: &OpDef, text: &mut String) -> std::fmt::Result {
    let repeats = |i: usize| op.variadic && i + 1 == op.inputs.len();
    let operands = op.inputs.iter().enumerate().map(|(i, spec)| match (repeats(i), spec.optional) {
        (true, _) => format!("*{}", spec.name),
        (false, true) => format!("{}=None", spec.name),
        (false, false) => spec.name.to_owned(),
    });
    let params = op.params.iter().map(|spec| match (&spec.default, spec.required) {
        (Some(default), _) => format!("{}={default}", spec.name),
        (None, true) => spec.name.to_owned(),
        (None, false) => format!("{}=None", spec.name),
    });
    writeln!(text, "{}({})", op.name, operands.chain(params).collect::<Vec<_>>().join(", "))?;
    writeln!(text, "    {}", op.doc)?;
    for (i, spec) in op.inputs.iter().enumerate() {
        let many = if repeats(i) { "[]" } else { "" };
        let optional = if spec.optional { ", optional" } else { "" };
        writeln!(text, "    {} : NDArray-or-Symbol{many}{optional}", spec.name)?;
    }
    for spec in &op.params {
        writeln!(text, "    {} : {}", spec.name, spec.type_text())?;
        let range = spec.range.map_or(String::new(), |(low, high)| format!(" In [{low}, {high}]."));
        writeln!(text, "        {}{range}", spec.doc)?;
    }
    let onnx = op.names.onnx.iter().map(|n| match n.is_standard() {
        true => format!("{} of ONNX since {}", n.name, n.since),
        false => format!("{} of {} since {}", n.name, n.domain, n.since),
    });
    let mxnet = op.names.mxnet.iter().map(|name| format!("{name} of MXNet"));
    let names: Vec<String> = onnx.chain(mxnet).collect();
    match names.is_empty() {
        true => Ok(()),
        false => writeln!(text, "    Also: {}", names.join(", ")),
    }
}
