//! Per-channel scales after a contraction with constant weights move into the weights; what remains
//! of a normalisation is the addition of a bias. Exact in real arithmetic only.

use std::sync::Arc;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DType, DenseType, TensorData};

use super::{prim_of, single_user};

pub fn run(graph: &mut Graph) -> Result<bool> {
    let mut changed = false;
    for node in graph.order() {
        if let Some(Prim::Contract(c)) = prim_of(graph, node) {
            let c = c.clone();
            changed |= fold_scale(graph, node, &c)?;
        }
    }
    Ok(changed)
}

/// Maps over a contraction's result that are affine in it, with constant coefficients that vary
/// along few axes.
struct Chain {
    /// The last map.
    end: NodeId,
    /// Output axes the coefficients vary along, ascending.
    axes: Vec<usize>,
    /// `result = scale·x + shift`, per point of the axes' extents, row-major.
    scale: Vec<f64>,
    shift: Vec<f64>,
}

fn fold_scale(graph: &mut Graph, node: NodeId, c: &Contraction) -> Result<bool> {
    let args = graph.args(node);
    let ty = graph.dense(Value { node, port: 0 })?;
    if ty.dtype != DType::F32 {
        return Ok(false);
    }
    let Some(chain) = find_chain(graph, node, &ty)? else { return Ok(false) };
    for port in [1, 0] {
        let map = if port == 0 { &c.lhs } else { &c.rhs };
        let Some(weights) = graph.constant(args[port]).filter(|w| w.dtype() == DType::F32) else { continue };
        let Some(scaled) = scale_weights(weights, map, &chain, &ty.dims) else { continue };
        apply(graph, node, c, port, scaled, &chain, &ty)?;
        return Ok(true);
    }
    Ok(false)
}

fn apply(
    graph: &mut Graph,
    node: NodeId,
    c: &Contraction,
    port: usize,
    weights: TensorData,
    chain: &Chain,
    ty: &DenseType,
) -> Result<()> {
    let mut args = graph.args(node);
    let weight_name = graph.node(args[port].node).name.clone();
    let mut patch = graph.patch("fold-scale");
    args[port] = patch.graph.add_const(weight_name, weights);
    let name = patch.graph.node(node).name.clone();
    let contract =
        patch.graph.add_prim(name.clone(), Prim::Contract(Arc::new(c.clone())), &args, std::slice::from_ref(ty));
    let mut result = Value { node: contract, port: 0 };
    if chain.shift.iter().any(|b| *b != 0.0) {
        let mut dims = vec![1; ty.rank()];
        chain.axes.iter().for_each(|a| dims[*a] = ty.dims[*a]);
        let shift: Vec<f32> = chain.shift.iter().map(|b| *b as f32).collect();
        if let (Some(bias), Ok(add)) = (TensorData::f32s(&dims, &shift), addition()) {
            let bias = patch.graph.add_const(name.clone(), bias);
            let node = patch.graph.add_prim(name, Prim::Map(Arc::new(add)), &[result, bias], std::slice::from_ref(ty));
            result = Value { node, port: 0 };
        }
    }
    patch.replace(Value { node: chain.end, port: 0 }, result);
    patch.commit();
    Ok(())
}

fn addition() -> Result<ScalarFn, String> {
    ScalarFn::build(&[DType::F32; 2], |_, x| vec![&x[0] + &x[1]])
}

/// The longest chain behind `node` that has a scale to fold.
fn find_chain(graph: &Graph, node: NodeId, ty: &DenseType) -> Result<Option<Chain>> {
    let mut steps: Vec<(NodeId, Arc<ScalarFn>)> = vec![];
    let mut axes: Vec<usize> = vec![];
    let mut end = node;
    while let Some(user) = single_user(graph, end) {
        let Some(Prim::Map(f)) = prim_of(graph, user) else { break };
        let mut new_axes = axes.clone();
        let constants = graph.args(user).into_iter().filter(|a| a.node != end).all(|a| {
            let Some(data) = graph.constant(a) else { return false };
            let lead = ty.rank().saturating_sub(data.dims().len());
            new_axes.extend(data.dims().iter().enumerate().filter(|(_, d)| **d != 1).map(|(i, _)| lead + i));
            data.dtype() == DType::F32
        });
        new_axes.sort_unstable();
        new_axes.dedup();
        let points: u64 = new_axes.iter().map(|a| ty.dims[*a]).product();
        let fits = constants
            && f.outputs.len() == 1
            && graph.dense(Value { node: user, port: 0 })? == *ty
            && points <= 1 << 16
            && is_affine(f, &graph.args(user).iter().map(|a| a.node == end).collect::<Vec<_>>());
        if !fits {
            break;
        }
        steps.push((user, f.clone()));
        axes = new_axes;
        end = user;
    }
    if axes.is_empty() {
        return Ok(None);
    }
    let extents: Vec<u64> = axes.iter().map(|a| ty.dims[*a]).collect();
    let points: u64 = extents.iter().product();
    let mut chain = Chain { end, axes, scale: vec![], shift: vec![] };
    for point in 0..points {
        let mut at = vec![0u64; ty.rank()];
        let mut rest = point;
        for (axis, n) in chain.axes.iter().zip(&extents).rev() {
            at[*axis] = rest % n;
            rest /= n;
        }
        let (mut a, mut b) = (1.0, 0.0);
        let mut inner = node;
        for (user, f) in &steps {
            (a, b) = evaluate(graph, *user, inner, f, (a, b), &at);
            inner = *user;
        }
        chain.scale.push(a);
        chain.shift.push(b);
    }
    let worth = chain.scale.iter().any(|a| *a != 1.0);
    let finite = chain.scale.iter().chain(&chain.shift).all(|x| (*x as f32).is_finite());
    Ok((worth && finite).then_some(chain))
}

/// Whether the body is affine in the marked operands, using only operations [`evaluate`] knows.
fn is_affine(f: &ScalarFn, variable: &[bool]) -> bool {
    let mut depends: Vec<bool> = vec![];
    for (node, dtype) in f.nodes.iter().zip(&f.dtypes) {
        let dep = |i: &tensorc_ir::scalar::ScalarId| depends[i.0 as usize];
        let affine = match node {
            ScalarNode::Input(i) => Some(variable[*i as usize]),
            ScalarNode::Const(_) => Some(false),
            ScalarNode::Coord(_) => None,
            ScalarNode::Op(op, args) => {
                let count = args.iter().filter(|a| dep(a)).count();
                match op {
                    _ if *dtype != DType::F32 => None,
                    ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg => Some(count > 0),
                    ScalarOp::Mul if count <= 1 => Some(count > 0),
                    ScalarOp::Div if !dep(&args[1]) => Some(count > 0),
                    ScalarOp::Fma if !(dep(&args[0]) && dep(&args[1])) => Some(count > 0),
                    ScalarOp::Sqrt if count == 0 => Some(false),
                    _ => None,
                }
            }
        };
        match affine {
            Some(d) => depends.push(d),
            None => return false,
        }
    }
    f.outputs.iter().all(|o| depends[o.0 as usize])
}

/// Coefficients of the body's result, given those of the operand that comes from `inner`.
fn evaluate(graph: &Graph, map: NodeId, inner: NodeId, f: &ScalarFn, x: (f64, f64), at: &[u64]) -> (f64, f64) {
    let args = graph.args(map);
    let mut known: Vec<(f64, f64)> = vec![];
    for node in &f.nodes {
        let value = match node {
            ScalarNode::Input(i) if args[*i as usize].node == inner => x,
            ScalarNode::Input(i) => {
                (0.0, graph.constant(args[*i as usize]).map_or(f64::NAN, |d| element(d, at).as_f64()))
            }
            ScalarNode::Const(c) => (0.0, c.as_f64()),
            ScalarNode::Coord(_) => (0.0, f64::NAN),
            ScalarNode::Op(op, ids) => {
                let v = |i: usize| known[ids[i].0 as usize];
                let product = |(a, b): (f64, f64), (c, d): (f64, f64)| (a * d + b * c, b * d);
                match op {
                    ScalarOp::Add => (v(0).0 + v(1).0, v(0).1 + v(1).1),
                    ScalarOp::Sub => (v(0).0 - v(1).0, v(0).1 - v(1).1),
                    ScalarOp::Neg => (-v(0).0, -v(0).1),
                    ScalarOp::Mul => product(v(0), v(1)),
                    ScalarOp::Div => (v(0).0 / v(1).1, v(0).1 / v(1).1),
                    ScalarOp::Fma => {
                        let p = product(v(0), v(1));
                        (p.0 + v(2).0, p.1 + v(2).1)
                    }
                    ScalarOp::Sqrt => (0.0, v(0).1.sqrt()),
                    _ => (f64::NAN, f64::NAN),
                }
            }
        };
        known.push(value);
    }
    f.outputs.first().map_or(x, |o| known[o.0 as usize])
}

/// The element of a constant that broadcasts to the shape `at` is a point of.
fn element(data: &TensorData, at: &[u64]) -> Scalar {
    let lead = at.len() - data.dims().len();
    let position = data.dims().iter().enumerate().fold(0, |p, (i, &n)| p * n + if n == 1 { 0 } else { at[lead + i] });
    data.get(position)
}

/// The weights times the chain's scale, if exactly one of their axes is indexed by the chain's axes
/// and by nothing else, one to one.
fn scale_weights(weights: &TensorData, map: &[Index], chain: &Chain, out: &[u64]) -> Option<TensorData> {
    let mentions = |m: &Index| chain.axes.iter().any(|a| out[*a] != 1 && m.mentions(*a as u32));
    let axis = map.iter().position(mentions)?;
    if map.iter().filter(|m| mentions(m)).count() != 1 {
        return None;
    }
    let mut foreign = false;
    map[axis].visit_vars(&mut |v| foreign |= !chain.axes.contains(&(v as usize)) && out.get(v as usize) != Some(&1));
    let n = weights.dims()[axis];
    if foreign || n as usize != chain.scale.len() {
        return None;
    }
    let mut factors: Vec<Option<f64>> = vec![None; n as usize];
    for (point, scale) in chain.scale.iter().enumerate() {
        let mut at = vec![0i64; out.len()];
        let mut rest = point as u64;
        for a in chain.axes.iter().rev() {
            at[*a] = (rest % out[*a]) as i64;
            rest /= out[*a];
        }
        let position = map[axis].eval(&|v| at.get(v as usize).copied().unwrap_or(0));
        let slot = factors.get_mut(usize::try_from(position).ok()?)?;
        if slot.replace(*scale).is_some() {
            return None;
        }
    }
    let factors: Vec<f64> = factors.into_iter().collect::<Option<_>>()?;
    let inner: u64 = weights.dims()[axis + 1..].iter().product();
    let values: Vec<f32> = weights
        .bytes()
        .chunks_exact(4)
        .enumerate()
        .map(|(i, b)| {
            let w = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            (f64::from(w) * factors[(i as u64 / inner % n) as usize]) as f32
        })
        .collect();
    TensorData::f32s(weights.dims(), &values)
}
