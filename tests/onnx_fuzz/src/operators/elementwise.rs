//! Element-wise operators, from their entries: broadcast operands, and parameters of every kind.

use tensorc::DType;
use tensorc::ir::op::{OpRef, TypeRule};
use tensorc::ir::params::{ParamKind, ParamSpec};
use tensorc_frontend::onnx::tensor::data_type;

use super::types;
use crate::draw::{self, Elements};
use crate::model::{NodeSpec, Value, Writer};

pub(super) fn draw(w: &mut Writer<'_>, op: &OpRef, name: &str) -> Option<NodeSpec> {
    let mut operands: Vec<Option<Value>> = vec![];
    let count = if op.variadic { 1 + w.choice(4) as usize } else { op.inputs.len() };
    let mut groups: Vec<(u8, DType)> = vec![];
    let most = if matches!(name, "PRelu") { 4 } else { 6 };
    for i in 0..count {
        let spec = op.input_spec(i)?;
        if spec.optional && w.one_in(3) || op.key_input == Some(i) {
            operands.push(None);
            continue;
        }
        let allowed = types(w, name, i);
        let first = operands.iter().flatten().next().cloned();
        let value = match (&spec.ty, first) {
            (_, None) => w.any(&allowed, 0, most),
            (ty, Some(first)) => {
                let known = match ty {
                    TypeRule::Group(g, _) => groups.iter().find(|(k, _)| k == g).map(|(_, d)| *d),
                    _ => None,
                };
                let dtype = known.unwrap_or_else(|| draw::dtype(&mut w.rng, &allowed));
                let dims = second_shape(w, name, i, first.dims());
                let elements = match name {
                    "Div" | "Mod" if dtype.is_int() => Elements::Nonzero,
                    _ => Elements::Any,
                };
                w.operand(dtype, &dims, elements)
            }
        };
        if let TypeRule::Group(g, _) = spec.ty {
            groups.push((g, value.dtype()));
        }
        operands.push(Some(value));
    }
    let dtype = operands.iter().flatten().next().map(|v| v.dtype());
    let mut node = NodeSpec::new(name, operands);
    for spec in &op.params {
        node = parameter(w, node, spec, name, dtype);
    }
    Some(node)
}

fn second_shape(w: &mut Writer<'_>, name: &str, position: usize, first: &[u64]) -> Vec<u64> {
    match name {
        "Clip" => vec![],
        // The slope broadcasts to the operand, one way.
        "PRelu" => match w.choice(3) {
            0 => first.to_vec(),
            1 => vec![1],
            _ => first.iter().map(|d| if w.one_in(2) { 1 } else { *d }).collect(),
        },
        _ if position > 0 => draw::broadcast(&mut w.rng, first),
        _ => first.to_vec(),
    }
}

const FLOATS: [f32; 8] = [0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, -0.25, 10.0];

fn parameter(w: &mut Writer<'_>, node: NodeSpec, spec: &ParamSpec, op: &str, dtype: Option<DType>) -> NodeSpec {
    if !spec.required && w.one_in(3) || matches!(spec.name, "seed" | "saturate" | "round_mode") {
        return node;
    }
    match (op, spec.name) {
        ("BitShift", "direction") => return node.text("direction", if w.one_in(2) { "LEFT" } else { "RIGHT" }),
        ("Gelu", "approximate") => return node.text("approximate", if w.one_in(2) { "tanh" } else { "none" }),
        // Floats take it only.
        ("Mod", "fmod") => {
            let float = dtype.is_some_and(|d| d.is_float());
            return node.int("fmod", i64::from(float || w.one_in(2)));
        }
        ("BitCast", "to") => {
            let size = dtype.map_or(0, |d| d.size());
            let fits: Vec<DType> =
                DType::COMPUTED.into_iter().filter(|d| d.size() == size && *d != DType::Bool).collect();
            let to = if fits.is_empty() { DType::F32 } else { draw::dtype(&mut w.rng, &fits) };
            return node.int("to", data_type(to).into());
        }
        _ => {}
    }
    let (low, high) = spec.range.unwrap_or((-4.0, 4.0));
    match spec.kind {
        ParamKind::Int => {
            node.int(spec.name, low.max(-4.0) as i64 + w.choice((high.min(4.0) - low.max(-4.0)) as u64 + 1) as i64)
        }
        ParamKind::Bool => node.int(spec.name, w.choice(2) as i64),
        ParamKind::Float => {
            let value = f64::from(*w.rng.pick(&FLOATS)).clamp(low, high);
            node.float(spec.name, value as f32)
        }
        ParamKind::Choice(of) => node.text(spec.name, w.word(of)),
        ParamKind::DType => {
            let to = draw::dtype(&mut w.rng, &DType::COMPUTED);
            node.int(spec.name, data_type(to).into())
        }
        _ => node,
    }
}
