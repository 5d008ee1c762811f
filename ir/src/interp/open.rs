//! Evaluation of primitives on integers that depend on symbols: the arithmetic of shapes.

use tensorc_abi::DType;

use super::prim::{broadcast_strides, dot, for_each_coord, positions};
use crate::extent::Extent;
use crate::prim::{Gather, Prim, Reduction, View};
use crate::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};
use crate::tensor::TensorData;
use crate::types::DenseType;

/// Whether elements are what extents can be, or truth values.
fn is_integer(dtype: DType) -> bool {
    dtype.is_int() || dtype == DType::Bool
}

/// The results, if the primitive moves integers, or computes with them what expressions of symbols have.
pub fn eval(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<Vec<TensorData>> {
    let closed = inputs.iter().map(|t| &t.ty).chain(outputs).all(|ty| !ty.dims.is_open() && is_integer(ty.dtype));
    if !closed {
        return None;
    }
    match prim {
        Prim::Map(f) => map(f, inputs, outputs),
        Prim::Reduce(r) => reduce(r, inputs, outputs),
        Prim::View(v) => Some(vec![view(v, inputs[0], &outputs[0])?]),
        Prim::Gather(g) => Some(vec![gather(*g, inputs[0], inputs[1], &outputs[0])?]),
        Prim::Concat { axis } => Some(vec![concat(*axis, inputs, &outputs[0])?]),
        _ => None,
    }
}

fn map(f: &ScalarFn, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<Vec<TensorData>> {
    let rank = outputs.first()?.rank();
    let strides: Vec<_> = inputs.iter().map(|t| broadcast_strides(&t.ty, rank)).collect();
    let values: Vec<_> = inputs.iter().map(|t| t.extents()).collect();
    let mut results = vec![Some(vec![]); outputs.len()];
    for_each_coord(&outputs[0].dims, |c| {
        let args: Vec<Extent> = values.iter().zip(&strides).map(|(v, s)| v[dot(c, s) as usize]).collect();
        let elements = apply(f, &args, c);
        for (port, result) in results.iter_mut().enumerate() {
            let element = elements.as_ref().map(|e| e[port]);
            *result = result.take().zip(element).map(|(mut all, element)| {
                all.push(element);
                all
            });
        }
    });
    outputs.iter().zip(results).map(|(ty, elements)| TensorData::of_extents(ty.clone(), elements?)).collect()
}

fn reduce(r: &Reduction, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<Vec<TensorData>> {
    let [x] = inputs else { return None };
    // The product and the sum of a shape.
    if x.ty.rank() != 1 || r.axes != [0] {
        return None;
    }
    let mut accumulators: Vec<Extent> = r.init.iter().map(|s| s.as_i64().into()).collect();
    for (i, x) in x.extents().into_iter().enumerate() {
        accumulators.extend(apply(&r.map, &[x], &[i as i64])?);
        accumulators = apply(&r.combine, &accumulators, &[])?;
    }
    let results = apply(&r.finish, &accumulators, &[])?;
    outputs.iter().zip(results).map(|(ty, n)| TensorData::of_extents(ty.clone(), vec![n])).collect()
}

fn view(v: &View, input: &TensorData, output: &DenseType) -> Option<TensorData> {
    let position = positions(&v.map, &input.ty, &output.dims);
    let fill = v.fill.map_or(0, |s| s.as_i64());
    let (values, mut elements) = (input.extents(), vec![]);
    for_each_coord(&output.dims, |c| elements.push(position(c).map_or(Extent::of(fill), |at| values[at])));
    TensorData::of_extents(output.clone(), elements)
}

fn gather(g: Gather, data: &TensorData, indices: &TensorData, output: &DenseType) -> Option<TensorData> {
    let n = data.ty.dims[g.axis] as i64;
    let inner: usize = data.ty.dims[g.axis + 1..].iter().product::<u64>() as usize;
    let values = data.extents();
    let at: Vec<usize> = indices
        .iter()
        .map(|index| {
            let index = index.as_i64();
            (if index < 0 { index.wrapping_add(n) } else { index }).clamp(0, (n - 1).max(0)) as usize
        })
        .collect();
    let outer: usize = data.ty.dims[..g.axis].iter().product::<u64>() as usize;
    let mut elements = vec![];
    for o in 0..outer {
        for index in &at {
            let start = (o * n as usize + index) * inner;
            elements.extend(values.get(start..start + inner)?);
        }
    }
    TensorData::of_extents(output.clone(), elements)
}

fn concat(axis: usize, inputs: &[&TensorData], output: &DenseType) -> Option<TensorData> {
    let outer: usize = output.dims[..axis].iter().product::<u64>() as usize;
    let parts: Vec<_> = inputs.iter().map(|t| t.extents()).collect();
    let mut elements = vec![];
    for o in 0..outer {
        for part in &parts {
            let run = part.len() / outer.max(1);
            elements.extend(&part[o * run..(o + 1) * run]);
        }
    }
    TensorData::of_extents(output.clone(), elements)
}

/// The results of a function of integers; `None` if it needs another operation than those of extents.
fn apply(f: &ScalarFn, inputs: &[Extent], coords: &[i64]) -> Option<Vec<Extent>> {
    if !f.dtypes.iter().all(|d| is_integer(*d)) {
        return None;
    }
    let mut values: Vec<Extent> = Vec::with_capacity(f.nodes.len());
    for node in &f.nodes {
        values.push(match node {
            ScalarNode::Input(i) => inputs[*i as usize],
            ScalarNode::Const(c) => c.as_i64().into(),
            ScalarNode::Coord(axis) => coords[*axis as usize].into(),
            ScalarNode::Op(op, args) => {
                let given: Vec<Extent> = args.iter().map(|a| values[a.0 as usize]).collect();
                match given.iter().map(|n| n.known()).collect::<Option<Vec<i64>>>() {
                    Some(known) => {
                        let typed = args.iter().zip(known).map(|(a, n)| Scalar::from_i64(f.dtype(*a), n));
                        op.eval(&typed.collect::<Vec<_>>()).as_i64().into()
                    }
                    None => open_op(*op, &given)?,
                }
            }
        });
    }
    Some(f.outputs.iter().map(|o| values[o.0 as usize]).collect())
}

/// Numbers that fit every type of integer that shapes are computed in.
fn is_small(n: Extent) -> bool {
    n >= i64::from(i32::MIN) && n <= i64::from(i32::MAX)
}

fn open_op(op: ScalarOp, args: &[Extent]) -> Option<Extent> {
    let not_negative = |all: &[Extent]| all.iter().all(|n| *n >= 0);
    let value = match op {
        ScalarOp::Neg => -args[0],
        ScalarOp::Add => args[0] + args[1],
        ScalarOp::Sub => args[0] - args[1],
        ScalarOp::Mul => args[0] * args[1],
        ScalarOp::Div if not_negative(args) && args[1] > 0 => args[0].div_floor(args[1]),
        ScalarOp::Rem if not_negative(args) && args[1] > 0 => args[0].rem_floor(args[1]),
        ScalarOp::Min => args[0].least(args[1]),
        ScalarOp::Max => args[0].greatest(args[1]),
        ScalarOp::Abs => args[0].greatest(-args[0]),
        ScalarOp::Select => {
            if args[0] != 0 {
                args[1]
            } else {
                args[2]
            }
        }
        ScalarOp::Cast(to) if !to.is_float() && to != DType::Bool => args[0],
        ScalarOp::Cmp(compare) => return Some(i64::from(compare.holds(args[0], args[1])).into()),
        _ => return None,
    };
    is_small(value).then_some(value)
}
