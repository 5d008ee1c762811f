//! Rules of primitives: operand and result types that their meaning implies.

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::kernel::verify_kernel;
use crate::extent::Axes;
use crate::index::Index;
use crate::prim::{Contraction, Gather, Prim, Reduction, View};
use crate::scalar::{ScalarFn, ScalarNode};
use crate::types::DenseType;

/// Points at which an access that intervals cannot prove in bounds is evaluated.
const MAX_SAMPLES: u64 = 1 << 14;

pub(super) fn check_prim(prim: &Prim, inputs: &[DenseType], outputs: &[DenseType]) -> Result<(), String> {
    match prim {
        Prim::Map(f) => map(f, inputs, outputs).map_err(|why| format!("map: {why}")),
        Prim::Reduce(r) => reduce(r, inputs, outputs).map_err(|why| format!("reduce: {why}")),
        Prim::View(v) => match (inputs, outputs) {
            ([input], [output]) => view(v, input, output).map_err(|why| format!("view: {why}")),
            _ => Err("view: one operand and one result expected".into()),
        },
        Prim::Contract(c) => match (inputs, outputs) {
            ([lhs, rhs], [output]) => contract(c, lhs, rhs, output).map_err(|why| format!("contract: {why}")),
            _ => Err("contract: two operands and one result expected".into()),
        },
        Prim::Gather(g) => match (inputs, outputs) {
            ([data, indices], [output]) => gather(*g, data, indices, output),
            _ => Err("gather: two operands and one result expected".into()),
        },
        Prim::Concat { axis } => concat(*axis, inputs, outputs),
        Prim::Kernel(k) => {
            verify_kernel(k).map_err(|d| d.to_string())?;
            if k.params != inputs.len() + outputs.len() {
                return Err(format!("kernel: {} parameters, expected {}", k.params, inputs.len() + outputs.len()));
            }
            for (i, (info, ty)) in k.buffers.iter().zip(inputs.iter().chain(outputs)).enumerate() {
                if info.dtype != ty.dtype.storage()
                    || info.len != ty.dims.count()
                    || info.writable != (i >= inputs.len())
                {
                    return Err(format!("kernel: parameter `{}` does not fit {ty}", info.name));
                }
            }
            match k.is_parallel() || k.scalars.is_empty() {
                true => Ok(()),
                false => Err("kernel: a primitive supplies no index parameters".into()),
            }
        }
        // Its bodies are graphs of the stage that the graph around them is in.
        Prim::Flow(_) => Ok(()),
        Prim::Extern(f) => {
            let sizes = |types: &[DenseType]| types.iter().map(DenseType::bytes).collect::<Vec<u64>>();
            match f.input_bytes() == sizes(inputs) && f.output_bytes() == sizes(outputs) {
                true => Ok(()),
                false => {
                    Err(format!("extern: operands or results of `{}` do not have the sizes it takes", f.operator()))
                }
            }
        }
    }
}

/// A scalar function over operands and results of given types that may read `rank` coordinates.
fn check_fn(f: &ScalarFn, inputs: &[DType], outputs: &[DType], rank: usize) -> Result<(), String> {
    if f.inputs != inputs {
        return Err(format!("the function takes ({}), given ({})", names(&f.inputs), names(inputs)));
    }
    if f.nodes.len() != f.dtypes.len() {
        return Err("the function does not have one type for each node".into());
    }
    for (i, node) in f.nodes.iter().enumerate() {
        let dtype = match node {
            ScalarNode::Input(n) => *inputs.get(*n as usize).ok_or_else(|| format!("node {i} reads no operand"))?,
            ScalarNode::Const(c) => c.dtype,
            ScalarNode::Coord(axis) if (*axis as usize) < rank => DType::I64,
            ScalarNode::Coord(axis) => return Err(format!("coordinate {axis} of {rank} axes")),
            ScalarNode::Op(op, args) => {
                if args.iter().any(|a| a.0 as usize >= i) {
                    return Err(format!("node {i} is not after its operands"));
                }
                let dtypes: SmallVec<[DType; 3]> = args.iter().map(|a| f.dtype(*a)).collect();
                op.result(&dtypes)?
            }
        };
        if dtype != f.dtypes[i] {
            return Err(format!("node {i} is of type {dtype}, not {}", f.dtypes[i]));
        }
    }
    if f.outputs.iter().any(|o| o.0 as usize >= f.nodes.len()) {
        return Err("the function returns a node that does not exist".into());
    }
    match f.output_dtypes() == outputs {
        true => Ok(()),
        false => Err(format!("the function returns ({}), expected ({})", names(&f.output_dtypes()), names(outputs))),
    }
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

fn dtypes(types: &[DenseType]) -> Vec<DType> {
    types.iter().map(|t| t.dtype).collect()
}

/// Whether an operand of a map can be repeated to the shape of the result.
pub(crate) fn broadcasts(input: &DenseType, out: &DenseType) -> Result<(), String> {
    let axes = input.dims.all().rev().zip(out.dims.all().rev());
    match input.rank() <= out.rank() && axes.into_iter().all(|(a, b)| a.is_surely(1) || a == b || a == 1) {
        true => Ok(()),
        false => Err(format!("{input} does not broadcast to {out}")),
    }
}

/// Whether a view reads inside of its operand, as far as is told without looking at every element: by intervals of sums of variables, and
/// where extents are open only of one variable or none.
pub(crate) fn reads_inside(v: &View, input: &DenseType, out: &DenseType) -> Result<(), String> {
    if v.fill.is_some() || out.dims.all().any(|n| n.is_surely(0)) {
        return Ok(());
    }
    let open = input.dims.is_open() || out.dims.is_open();
    for (axis, (index, n)) in v.map.iter().zip(input.dims.all()).enumerate() {
        if !index.is_affine() || open && index.terms.len() > 1 {
            continue;
        }
        let (low, high) = index.interval(&out.dims);
        if low < 0 || !(high.is_surely_below(n) || high < n) {
            return Err(format!("axis {axis} of {input} is read at {index} for {out}"));
        }
    }
    Ok(())
}

fn map(f: &ScalarFn, inputs: &[DenseType], outputs: &[DenseType]) -> Result<(), String> {
    let Some(out) = outputs.first() else { return Err("no results".into()) };
    if outputs.iter().any(|t| t.dims != out.dims) {
        return Err("the results differ in shape".into());
    }
    inputs.iter().try_for_each(|input| broadcasts(input, out))?;
    check_fn(f, &dtypes(inputs), &dtypes(outputs), out.rank())
}

fn reduce(r: &Reduction, inputs: &[DenseType], outputs: &[DenseType]) -> Result<(), String> {
    let Some(first) = inputs.first() else { return Err("no operands".into()) };
    if inputs.iter().any(|t| t.dims != first.dims) {
        return Err("the operands differ in shape".into());
    }
    if r.axes.windows(2).any(|w| w[0] >= w[1]) || r.axes.last().is_some_and(|a| *a >= first.rank()) {
        return Err(format!("axes {:?} of {first} are not ascending axes", r.axes));
    }
    let kept = r.output_dims(&first.dims);
    if let Some(t) = outputs.iter().find(|t| t.dims != kept) {
        return Err(format!("the result is {t}, its shape should be {kept:?}"));
    }
    let init: Vec<DType> = r.init.iter().map(|c| c.dtype).collect();
    check_fn(&r.map, &dtypes(inputs), &init, first.rank()).map_err(|why| format!("in `map`: {why}"))?;
    check_fn(&r.combine, &[&init[..], &init].concat(), &init, 0).map_err(|why| format!("in `combine`: {why}"))?;
    check_fn(&r.finish, &init, &dtypes(outputs), 0).map_err(|why| format!("in `finish`: {why}"))
}

fn view(v: &View, input: &DenseType, output: &DenseType) -> Result<(), String> {
    if input.dtype != output.dtype || v.fill.is_some_and(|c| c.dtype != input.dtype) {
        return Err(format!("element types of {input}, {output} and the fill differ"));
    }
    indices(&v.map, input, &output.dims)?;
    match v.fill {
        Some(_) => Ok(()),
        None => in_bounds(&v.map, input, &output.dims),
    }
}

/// One index per axis of the operand, over existing variables.
fn indices(map: &[Index], operand: &DenseType, space: &[u64]) -> Result<(), String> {
    if map.len() != operand.rank() {
        return Err(format!("{} indices for {operand}", map.len()));
    }
    let mut unknown = None;
    map.iter().for_each(|m| m.visit_vars(&mut |v| unknown = unknown.or((v as usize >= space.len()).then_some(v))));
    match unknown {
        Some(v) => Err(format!("the index mentions d{v} of {} axes", space.len())),
        None => Ok(()),
    }
}

/// Refuses an access that leaves the operand. Where intervals are too coarse to prove it stays
/// inside, it is evaluated at up to [`MAX_SAMPLES`] points, so that no right program is refused.
fn in_bounds(map: &[Index], operand: &DenseType, space: &[u64]) -> Result<(), String> {
    let len = space.iter().fold(1u64, |a, d| a.saturating_mul(*d));
    let proven = map.iter().zip(&operand.dims).all(|(m, n)| {
        let (lo, hi) = m.interval(space);
        lo >= 0 && hi < *n
    });
    if proven || len == 0 {
        return Ok(());
    }
    let stride = len.div_ceil(MAX_SAMPLES).max(1);
    let points = (0..len).step_by(usize::try_from(stride).unwrap_or(usize::MAX)).chain([len - 1]);
    for point in points {
        let mut rest = point;
        let mut coords = vec![0i64; space.len()];
        for (c, d) in coords.iter_mut().zip(space).rev() {
            *c = (rest % d) as i64;
            rest /= d;
        }
        for (axis, (m, n)) in map.iter().zip(&operand.dims).enumerate() {
            let at = m.eval(&|v| coords[v as usize]);
            if at < 0 || at as u64 >= *n {
                return Err(format!("axis {axis} of {operand} is read at {m} = {at} for {coords:?}"));
            }
        }
    }
    Ok(())
}

fn contract(c: &Contraction, lhs: &DenseType, rhs: &DenseType, output: &DenseType) -> Result<(), String> {
    // Integers of other types than the result's are widened.
    let alike = lhs.dtype == rhs.dtype || lhs.dtype.is_int() && rhs.dtype.is_int();
    let has_storage = [lhs, rhs].iter().any(|t| t.dtype == DType::Bool || t.dtype.is_narrow());
    if !alike || has_storage || lhs.dtype.is_float() != output.dtype.is_float() {
        return Err(format!("element types of {lhs}, {rhs} and {output} do not fit"));
    }
    if c.out_rank > c.extents.len() || output.dims != c.extents[..c.out_rank] {
        return Err(format!("{output} is not of the shape of the first {} extents", c.out_rank));
    }
    indices(&c.lhs, lhs, &c.extents)?;
    indices(&c.rhs, rhs, &c.extents)?;
    in_bounds(&c.rhs, rhs, &c.extents)
}

fn gather(g: Gather, data: &DenseType, indices: &DenseType, output: &DenseType) -> Result<(), String> {
    match () {
        _ if g.axis >= data.rank() => Err(format!("gather: {data} has no axis {}", g.axis)),
        _ if data.dims[g.axis] == 0 && !output.is_empty() => {
            Err(format!("gather: {data} has no position along axis {}", g.axis))
        }
        _ if !indices.dtype.is_int() => Err(format!("gather: indices of type {}", indices.dtype)),
        _ if output.dtype != data.dtype || output.dims != g.output_dims(data, indices) => {
            Err(format!("gather: {output} does not follow from {data} and {indices}"))
        }
        _ => Ok(()),
    }
}

fn concat(axis: usize, inputs: &[DenseType], outputs: &[DenseType]) -> Result<(), String> {
    let (Some(first), [output]) = (inputs.first(), outputs) else {
        return Err("concat: at least one operand and one result expected".into());
    };
    if axis >= first.rank() {
        return Err(format!("concat: {first} has no axis {axis}"));
    }
    let mut expected = first.clone();
    expected.dims.set(axis, 0);
    for t in inputs {
        let mut rest = t.clone();
        if rest.rank() == first.rank() {
            rest.dims.set(axis, first.dims.at(axis));
        }
        if rest != *first {
            return Err(format!("concat: {t} and {first} differ in more than axis {axis}"));
        }
        expected.dims.set(axis, expected.dims.at(axis) + t.dims.at(axis));
    }
    match *output == expected {
        true => Ok(()),
        false => Err(format!("concat: the result is {output}, expected {expected}")),
    }
}
