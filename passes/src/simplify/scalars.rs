//! Simplification of map bodies: constants move in, neutral operations and redundant casts go.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Ex, MathFn, Scalar, ScalarBuilder, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DType, TensorData};

use super::{forward, prim_of, replace};

pub fn run(graph: &mut Graph, reassociate: bool) -> Result<bool> {
    let mut changed = false;
    for node in graph.order() {
        if let Some(Prim::Map(f)) = prim_of(graph, node) {
            let f = f.clone();
            changed |= simplify_map(graph, node, &f, reassociate)?;
        }
    }
    Ok(changed)
}

fn simplify_map(graph: &mut Graph, node: NodeId, f: &Arc<ScalarFn>, reassociate: bool) -> Result<bool> {
    let args = graph.args(node);
    let name = graph.node(node).name.clone();
    let internal = |why: String| Diagnostic::new(Code::Internal, why).at(&name);
    let operands: Vec<Operand> = args.iter().map(|v| graph.constant(*v).and_then(splat)).map(Operand::from).collect();
    let b = ScalarBuilder::new();
    let mut kept: Vec<(Value, Ex)> = vec![];
    let mut inputs: Vec<Ex> = vec![];
    for ((v, operand), dtype) in args.iter().zip(&operands).zip(&f.inputs) {
        let ex = match (operand, kept.iter().find(|(k, _)| k == v)) {
            (Operand::Constant(c), _) => b.constant(*c),
            (_, Some((_, ex))) => ex.clone(),
            _ => {
                let ex = b.input(*dtype);
                kept.push((*v, ex.clone()));
                ex
            }
        };
        inputs.push(ex);
    }
    let outputs = rebuild(&b, f, &inputs, reassociate);
    let body = b.finish(&outputs.iter().collect::<Vec<_>>()).map_err(internal)?;
    let (body, used) = body.without_unused();
    let args: Vec<Value> = used.iter().map(|i| kept[*i].0).collect();
    if body == **f {
        return to_view(graph, node, &body);
    }
    let types: Vec<_> =
        (0..f.outputs.len() as u16).map(|port| graph.dense(Value { node, port })).collect::<Result<_>>()?;
    let mut patch = graph.patch("simplify-map");
    let new = patch.graph.add_prim(name, Prim::Map(Arc::new(body.clone())), &args, &types);
    for port in 0..types.len() as u16 {
        patch.replace(Value { node, port }, Value { node: new, port });
    }
    patch.commit();
    if graph.contains(new) {
        to_view(graph, new, &body)?;
    }
    Ok(true)
}

enum Operand {
    Constant(Scalar),
    Tensor,
}

impl From<Option<Scalar>> for Operand {
    fn from(constant: Option<Scalar>) -> Operand {
        constant.map_or(Operand::Tensor, Operand::Constant)
    }
}

/// The value of every element, if all are equal.
pub(super) fn splat(data: &TensorData) -> Option<Scalar> {
    if data.is_empty() {
        return None;
    }
    let size = data.dtype().size();
    let first = &data.bytes()[..size];
    data.bytes().chunks_exact(size).all(|e| e == first).then(|| data.get(0))
}

/// A map that only passes its operand on: nothing, or a broadcasting view.
fn to_view(graph: &mut Graph, node: NodeId, body: &ScalarFn) -> Result<bool> {
    if !body.is_identity() {
        return Ok(false);
    }
    let arg = graph.args(node)[0];
    let (input, output) = (graph.dense(arg)?, graph.dense(Value { node, port: 0 })?);
    if input == output {
        forward(graph, "identity-map", node, arg);
    } else {
        let lead = output.rank() - input.rank();
        let axis = |i: usize| match input.dims[i] {
            1 => Index::constant(0),
            _ => Index::var((lead + i) as u32),
        };
        let view = View { map: (0..input.rank()).map(axis).collect(), fill: None };
        replace(graph, "broadcast-view", node, Prim::View(Arc::new(view)), &[arg], output);
    }
    Ok(true)
}

/// Appends the function to the builder, simplifying each operation.
fn rebuild(b: &ScalarBuilder, f: &ScalarFn, inputs: &[Ex], reassociate: bool) -> Vec<Ex> {
    let mut known: Vec<Known> = Vec::with_capacity(f.nodes.len());
    for node in &f.nodes {
        let made = match node {
            ScalarNode::Input(i) => {
                let ex = inputs[*i as usize].clone();
                Known { constant: ex.constant_value(), made: None, ex }
            }
            ScalarNode::Const(c) => Known { ex: b.constant(*c), constant: Some(*c), made: None },
            ScalarNode::Coord(axis) => Known { ex: b.coord(*axis as usize), constant: None, made: None },
            ScalarNode::Op(op, ids) => {
                let args: SmallVec<[Known; 3]> = ids.iter().map(|i| known[i.0 as usize].clone()).collect();
                operation(b, *op, &args, reassociate)
            }
        };
        known.push(made);
    }
    f.outputs.iter().map(|o| known[o.0 as usize].ex.clone()).collect()
}

/// A rebuilt node with what the rules look at.
#[derive(Clone)]
struct Known {
    ex: Ex,
    constant: Option<Scalar>,
    /// The operation it is the result of, with its first operand.
    made: Option<(ScalarOp, Ex)>,
}

fn plain(ex: Ex) -> Known {
    Known { constant: ex.constant_value(), made: None, ex }
}

fn operation(b: &ScalarBuilder, op: ScalarOp, args: &[Known], reassociate: bool) -> Known {
    let number = |k: &Known| k.constant.map(|c| c.as_f64());
    let is = |k: &Known, x: f64| number(k) == Some(x);
    let float = args[0].ex.dtype().is_float();
    let minus_zero = |k: &Known| number(k).is_some_and(|x| x == 0.0 && x.is_sign_negative());
    let plus_zero = |k: &Known| number(k).is_some_and(|x| x == 0.0 && x.is_sign_positive());
    let (x, y) = (&args[0], args.get(1));
    match (op, y) {
        (ScalarOp::Mul, Some(y)) if is(y, 1.0) => x.clone(),
        (ScalarOp::Mul, Some(y)) if is(x, 1.0) => y.clone(),
        (ScalarOp::Div, Some(y)) if is(y, 1.0) => x.clone(),
        (ScalarOp::Add, Some(y)) if minus_zero(y) || !float && is(y, 0.0) => x.clone(),
        (ScalarOp::Add, Some(y)) if minus_zero(x) || !float && is(x, 0.0) => y.clone(),
        (ScalarOp::Sub, Some(y)) if plus_zero(y) || !float && is(y, 0.0) => x.clone(),
        (ScalarOp::Div, Some(y)) if y.constant.is_some_and(|c| exact_inverse(c).is_some()) => {
            let inverse = y.constant.and_then(exact_inverse).unwrap_or(Scalar::zero(x.ex.dtype()));
            plain(b.op(ScalarOp::Mul, &[&x.ex, &b.constant(inverse)]))
        }
        (ScalarOp::Select, _) if args[0].constant.is_some() => {
            args[if args[0].constant.is_some_and(Scalar::as_bool) { 1 } else { 2 }].clone()
        }
        (ScalarOp::Select, _) if args[1].ex.same(&args[2].ex) => args[1].clone(),
        (ScalarOp::Min | ScalarOp::Max | ScalarOp::And | ScalarOp::Or, Some(y)) if x.ex.same(&y.ex) => x.clone(),
        (ScalarOp::Neg | ScalarOp::Not, _) => match &x.made {
            Some((inner, operand)) if *inner == op => plain(operand.clone()),
            _ => made(b, op, args),
        },
        (ScalarOp::Abs, _) if matches!(x.made, Some((ScalarOp::Abs, _))) => x.clone(),
        (ScalarOp::Cast(to), _) => cast(b, to, x),
        (ScalarOp::Math(MathFn::Pow), Some(y)) => power(b, x, y, reassociate).unwrap_or_else(|| made(b, op, args)),
        _ => made(b, op, args),
    }
}

fn made(b: &ScalarBuilder, op: ScalarOp, args: &[Known]) -> Known {
    let refs: SmallVec<[&Ex; 3]> = args.iter().map(|k| &k.ex).collect();
    let ex = b.op(op, &refs);
    Known { constant: ex.constant_value(), made: Some((op, args[0].ex.clone())), ex }
}

/// `1/c` for a power of two, when multiplying by it rounds as dividing by `c` does.
fn exact_inverse(c: Scalar) -> Option<Scalar> {
    let (x, mantissa, exponent) = match c.dtype {
        DType::F32 => (c.as_f64(), c.bits & 0x7f_ffff, (c.bits >> 23 & 0xff) as i64 - 127),
        DType::F64 => (c.as_f64(), c.bits & 0xf_ffff_ffff_ffff, (c.bits >> 52 & 0x7ff) as i64 - 1023),
        _ => return None,
    };
    (mantissa == 0 && (-100..=100).contains(&exponent)).then(|| Scalar::from_f64(c.dtype, 1.0 / x))
}

fn cast(b: &ScalarBuilder, to: DType, x: &Known) -> Known {
    if x.ex.dtype() == to {
        return x.clone();
    }
    match &x.made {
        Some((ScalarOp::Cast(middle), source)) if skips(source.dtype(), *middle, to) => match source.dtype() == to {
            true => plain(source.clone()),
            false => made(b, ScalarOp::Cast(to), &[plain(source.clone())]),
        },
        _ => made(b, ScalarOp::Cast(to), std::slice::from_ref(x)),
    }
}

/// Whether casting `from → middle → to` equals casting `from → to`.
fn skips(from: DType, middle: DType, to: DType) -> bool {
    // Integers wrap into integers, but floats saturate into them.
    let saturates = middle.is_float() && !from.is_float() && !to.is_float() && !holds(to, from) && to != DType::Bool;
    // Half types round from f32 and from f64 by different conversions.
    let other_rounding = from == DType::F32 && middle == DType::F64 && to.is_float() && to.size() == 2;
    holds(middle, from) && !saturates && !other_rounding
}

/// Whether every value of `small` is a value of `large`.
fn holds(large: DType, small: DType) -> bool {
    let digits = |d: DType| match d {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::Bool => 1,
        d => d.size() * 8 - usize::from(d.is_signed_int()),
    };
    match (large.is_float(), small.is_float()) {
        _ if large == small => true,
        (true, true) => matches!((large, small), (DType::F64, _) | (DType::F32, DType::F16 | DType::BF16)),
        // bf16 and f32 share a range; f16 overflows at 65504.
        (true, false) => digits(small) <= digits(large),
        (false, true) => false,
        _ if large == DType::Bool => false,
        _ => digits(small) <= digits(large) && (large.is_signed_int() || !small.is_signed_int()),
    }
}

/// Powers with a small constant exponent. All but the cube are rounded correctly.
fn power(b: &ScalarBuilder, x: &Known, y: &Known, reassociate: bool) -> Option<Known> {
    let exponent = y.constant?.as_f64();
    let ex = match exponent {
        1.0 => return Some(x.clone()),
        2.0 => b.op(ScalarOp::Mul, &[&x.ex, &x.ex]),
        -1.0 => b.op(ScalarOp::Div, &[&x.ex.lit(1.0), &x.ex]),
        3.0 if reassociate => {
            let square = b.op(ScalarOp::Mul, &[&x.ex, &x.ex]);
            b.op(ScalarOp::Mul, &[&square, &x.ex])
        }
        _ => return None,
    };
    Some(plain(ex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_that_skip_are_equal_on_many_values() {
        for from in DType::ALL {
            for middle in DType::ALL {
                for to in DType::ALL.into_iter().filter(|to| skips(from, middle, *to)) {
                    for bits in 0..70_000u64 {
                        let mask = if from.size() == 8 { u64::MAX } else { (1 << (8 * from.size())) - 1 };
                        let spread = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(bits as u32 % 64) & mask;
                        let bits = if from == DType::Bool { bits & 1 } else { spread };
                        let x = Scalar { dtype: from, bits };
                        let (two, one) = (x.cast(middle).cast(to), x.cast(to));
                        assert!(two == one || two.is_nan() && one.is_nan(), "{from} {middle} {to} {x:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn inverses_divide_exactly() {
        for c in [8.0f32, 0.25, -2.0, 1024.0] {
            let inverse = exact_inverse(Scalar::f32(c)).unwrap().as_f32();
            for bits in (0..u32::MAX).step_by(65_537) {
                let x = f32::from_bits(bits);
                assert!((x / c).to_bits() == (x * inverse).to_bits() || x.is_nan());
            }
        }
        assert_eq!(exact_inverse(Scalar::f32(3.0)), None);
    }
}
