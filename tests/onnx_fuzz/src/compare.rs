//! Whether two results of a node or a model agree: bit for bit where that is defined, else within the bounds of
//! `docs/numerics.md`, else as far as rounding of what was computed before can explain.

use tensorc::DType;
use tensorc::ir::op::{Accuracy, Compute, Registry};
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{Rng, TensorData};
use tensorc_frontend::onnx::proto::NodeProto;

use crate::evaluate::node_results;
use crate::known::inexact;
use crate::model::{Model, Value};
use crate::operators::standard;

/// How far an element may be from the expected one.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Units in the last place.
    pub ulp: f64,
    /// Epsilons of the greatest finite element expected.
    pub of_greatest: f64,
    /// Share of the greatest finite element expected, or of 1 if that is greater.
    pub absolute: f64,
}

impl Bound {
    /// Bit for bit.
    pub const EXACT: Bound = Bound { ulp: 0.0, of_greatest: 0.0, absolute: 0.0 };
}

/// Units in the last place by which another implementation of a function may be off.
const OTHER_ULP: f64 = 6.0;

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        _ => 0.0,
    }
}

/// Below this, results keep absolute accuracy only.
fn least_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// The bound for a node's results against those of another implementation.
pub fn bound(registry: &Registry, node: &NodeProto, opset: i64, operands: &[Value]) -> Bound {
    let absolute = inexact(node, operands);
    let exact = Bound { ulp: 0.0, of_greatest: 0.0, absolute };
    let Some(op) = standard(registry, node.op_type(), opset) else { return exact };
    match (&op.compute, op.accuracy) {
        (Compute::Scalar(_), Accuracy::Ulp(u)) => Bound { ulp: u + OTHER_ULP, of_greatest: 0.0, absolute },
        // Several roundings in another order.
        (Compute::Scalar(_), _) => {
            Bound { ulp: if node.input.len() > 2 { 4.0 } else { 1.0 }, of_greatest: 0.0, absolute }
        }
        // Sums in another order.
        _ => Bound { ulp: 32.0, of_greatest: 8.0, absolute },
    }
}

/// The bound where sums of so many terms are added in another order.
fn with_terms(bound: Bound, terms: u64) -> Bound {
    Bound { of_greatest: bound.of_greatest.max(bound.of_greatest * terms as f64 / 64.0), ..bound }
}

/// The first place where two tensors differ by more than a bound.
///
/// # Errors
/// That place, and how many there are.
pub fn close(got: &TensorData, want: &TensorData, bound: Bound) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("got {}, expected {}", got.ty, want.ty));
    }
    let eps = epsilon(want.dtype());
    let finite = want.iter().map(|x| x.as_f64()).filter(|x| x.is_finite()).map(f64::abs);
    let least = least_normal(want.dtype()) * if want.dtype().is_float() { 1.0 } else { 0.0 };
    let greatest = finite.fold(0.0, f64::max);
    let slack = greatest * eps * bound.of_greatest + greatest.max(1.0) * bound.absolute + least;
    let differs = |g: &Scalar, w: &Scalar| {
        if !want.dtype().is_float() {
            return g.bits != w.bits;
        }
        let (g, w) = (g.as_f64(), w.as_f64());
        let same = g == w || g.is_nan() && w.is_nan();
        !(same || (g - w).abs() <= slack + bound.ulp * eps * w.abs() && w.is_finite())
    };
    let mut places = got.iter().zip(want.iter()).enumerate().filter(|(_, (g, w))| differs(g, w));
    match places.next() {
        None => Ok(()),
        Some((at, (g, w))) => {
            let count = 1 + places.count();
            let (g, w, ty) = (shown(g), shown(w), &want.ty);
            Err(format!("{count} of {} elements of {ty} differ; element {at}: got {g}, expected {w}", want.len()))
        }
    }
}

fn shown(x: Scalar) -> String {
    if x.dtype.is_float() { format!("{:?}", x.as_f64()) } else { x.as_i64().to_string() }
}

/// A tensor with the last bits of its elements changed.
fn noisy(data: &TensorData, rng: &mut Rng, strength: f64) -> TensorData {
    let dtype = data.dtype();
    if !dtype.is_float() {
        return data.clone();
    }
    let eps = epsilon(dtype) * strength;
    TensorData::from_fn(data.ty.clone(), |i| {
        let x = data.get(i).as_f64();
        let by = eps * (rng.below(2001) as f64 / 1000.0 - 1.0);
        Scalar::from_f64(dtype, x + x * by)
    })
}

const SAMPLES: usize = 6;
/// How many times the change that noise makes may explain.
const EXPLAINED: f64 = 8.0;

/// Whether noise in the operands changes each element as much as it differs.
fn explained(got: &TensorData, want: &TensorData, samples: &[TensorData]) -> bool {
    if got.ty != want.ty {
        return samples.iter().any(|s| s.ty != want.ty);
    }
    (0..want.len()).all(|i| {
        let (g, w) = (got.get(i), want.get(i));
        if g.bits == w.bits || g.as_f64() == w.as_f64() {
            return true;
        }
        let (g, w) = (g.as_f64(), w.as_f64());
        if g.is_nan() && w.is_nan() {
            return true;
        }
        let others = samples.iter().filter(|s| s.ty == want.ty).map(|s| s.get(i).as_f64());
        let mut spread = 0.0f64;
        for other in others {
            if other.is_finite() != w.is_finite() {
                return true;
            }
            if other != w && w.is_finite() {
                spread = spread.max((other - w).abs());
            }
        }
        let eps = epsilon(want.dtype());
        (g - w).abs() <= EXPLAINED * spread + 4.0 * eps * w.abs() + least_normal(want.dtype())
    })
}

/// Compares results of another implementation with the interpreter's, on the same operands.
///
/// # Errors
/// The result that differs, and how.
pub fn node_agrees(
    registry: &Registry,
    node: &NodeProto,
    opset: i64,
    operands: &[Value],
    got: &[Option<TensorData>],
) -> Result<(), String> {
    let want = node_results(node, operands, opset, registry).map_err(|why| format!("refused: {why}"))?;
    let terms = operands.iter().map(|v| v.data.len()).max().unwrap_or(0);
    let bound = with_terms(bound(registry, node, opset, operands), terms);
    let mut samples: Option<Vec<Vec<TensorData>>> = None;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let Some(got) = got else { continue };
        let Err(why) = close(got, want, bound) else { continue };
        let made = samples.get_or_insert_with(|| {
            let mut rng = Rng::new(1);
            let mut sample = |_| {
                let operands: Vec<Value> = operands
                    .iter()
                    .map(|v| Value { name: v.name.clone(), data: noisy(&v.data, &mut rng, 8.0) })
                    .collect();
                node_results(node, &operands, opset, registry).ok()
            };
            (0..SAMPLES).filter_map(&mut sample).collect()
        });
        let same: Vec<TensorData> = made.iter().filter_map(|s| s.get(i).cloned()).collect();
        if !explained(got, want, &same) {
            return Err(format!("result {i}: {why}"));
        }
    }
    Ok(())
}

/// Operators that only move elements, among which are those that hold shapes.
const MOVES: [&str; 14] = [
    "Concat",
    "Constant",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "ConstantOfShape",
];

/// The results of a model, node by node with noise after each.
fn noisy_results(model: &Model, registry: &Registry, rng: &mut Rng) -> Option<Vec<Value>> {
    let given = model.inputs.iter().chain(&model.initializers);
    let mut values: Vec<Value> =
        given.map(|v| Value { name: v.name.clone(), data: noisy(&v.data, rng, 4.0) }).collect();
    let given = values.len();
    for node in &model.nodes {
        let operands: Vec<Value> = values.iter().filter(|v| node.input.contains(&v.name)).cloned().collect();
        let results = node_results(node, &operands, model.opset, registry).ok()?;
        for (name, data) in node.output.iter().zip(results) {
            let data = if MOVES.contains(&node.op_type()) { data } else { noisy(&data, rng, 16.0) };
            values.push(Value { name: name.clone(), data });
        }
    }
    Some(values.split_off(given))
}

/// Compares outputs of the compiled model with what the interpreter made of its nodes.
///
/// # Errors
/// The first output that differs by more than noise explains, and how.
pub fn model_agrees(
    registry: &Registry,
    model: &Model,
    bits: bool,
    got: &[(String, TensorData)],
) -> Result<(), (String, String)> {
    let mut samples: Option<Vec<Vec<Value>>> = None;
    let terms = model.inputs.iter().chain(&model.initializers).map(|v| v.data.len()).max().unwrap_or(0);
    let bound = match bits {
        true => Bound::EXACT,
        false => with_terms(Bound { ulp: 16.0, of_greatest: 4.0, absolute: 0.0 }, terms),
    };
    for (name, got) in got {
        let Some(want) = model.value(name) else { continue };
        let Err(why) = close(got, &want.data, bound) else { continue };
        let fail = Err((name.clone(), why));
        if bits {
            return fail;
        }
        let made = samples.get_or_insert_with(|| {
            let mut rng = Rng::new(1);
            (0..SAMPLES).filter_map(|_| noisy_results(model, registry, &mut rng)).collect()
        });
        let same: Vec<TensorData> =
            made.iter().filter_map(|s| s.iter().find(|v| v.name == *name)).map(|v| v.data.clone()).collect();
        if !explained(got, &want.data, &same) {
            return fail;
        }
    }
    Ok(())
}
