//! Evaluation of primitives on dense tensors.

use tensorc_abi::{DType, ExternCall, ExternFn};

use super::kernel::run_kernel;
use super::open;
use super::reads::Reads;
use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::index::Index;
use crate::prim::{Contraction, Gather, Prim, Reduction, View};
use crate::scalar::{MathLibrary, Scalar, ScalarFn, ScalarOp};
use crate::tensor::TensorData;
use crate::types::DenseType;

/// Evaluates one primitive. `outputs` are the result types the graph states.
pub fn eval_prim(
    prim: &Prim,
    inputs: &[&TensorData],
    outputs: &[DenseType],
    math: &dyn MathLibrary,
) -> Result<Vec<TensorData>> {
    let open = inputs.iter().any(|t| t.is_open());
    if let Some(results) = Some(inputs).filter(|_| open).and_then(|inputs| open::eval(prim, inputs, outputs)) {
        return Ok(results);
    }
    match prim {
        Prim::Map(f) => map(&expanded(f, math)?, inputs, outputs),
        Prim::Reduce(r) => reduce(r, inputs, outputs, math),
        Prim::View(v) => Ok(vec![view(v, inputs[0], &outputs[0])]),
        Prim::Contract(c) => Ok(vec![contract(c, inputs[0], inputs[1], &outputs[0])]),
        Prim::Gather(g) => Ok(vec![gather(*g, inputs[0], inputs[1], &outputs[0])]),
        Prim::Concat { axis } => Ok(vec![concat(*axis, inputs, &outputs[0])]),
        Prim::Kernel(k) => {
            let ins = inputs.iter().map(|t| t.bytes().to_vec());
            let outs = outputs.iter().map(|t| vec![0u8; t.bytes() as usize]);
            let mut buffers: Vec<Vec<u8>> = ins.chain(outs).collect();
            let range = [0, k.parallel_extent().fixed()];
            run_kernel(k, &mut buffers, if k.is_parallel() { &range } else { &[] }, math)?;
            let results = buffers.split_off(inputs.len()).into_iter().zip(outputs);
            results.map(|(bytes, ty)| tensor(ty, bytes)).collect()
        }
        Prim::Extern(f) => external(f, inputs, outputs),
        Prim::Flow(_) => Err(Diagnostic::new(DiagnosticCode::Internal, "a branch or loop is evaluated with its graph")),
    }
}

fn external(f: &ExternFn, inputs: &[&TensorData], outputs: &[DenseType]) -> Result<Vec<TensorData>> {
    let ins: Vec<&[u8]> = inputs.iter().map(|t| &t.bytes()[..]).collect();
    let mut bytes: Vec<Vec<u8>> = outputs.iter().map(|t| vec![0u8; t.bytes() as usize]).collect();
    let mut outs: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
    let mut scratch = vec![0u8; f.scratch_bytes() as usize];
    f.call(ExternCall { inputs: &ins, outputs: &mut outs, scratch: &mut scratch })
        .map_err(|error| Diagnostic::new(DiagnosticCode::Extern, error.to_string()))?;
    bytes.into_iter().zip(outputs).map(|(bytes, ty)| tensor(ty, bytes)).collect()
}

fn expanded(f: &ScalarFn, math: &dyn MathLibrary) -> Result<ScalarFn> {
    f.expand_math(math).map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))
}

fn tensor(ty: &DenseType, bytes: Vec<u8>) -> Result<TensorData> {
    TensorData::new(ty.clone(), bytes.into())
        .ok_or_else(|| Diagnostic::new(DiagnosticCode::Internal, format!("a result does not have the size of {ty}")))
}

/// Calls `f` with every coordinate of `dims` in row-major order.
pub(super) fn for_each_coord(dims: &[u64], mut f: impl FnMut(&[i64])) {
    if dims.contains(&0) {
        return;
    }
    let mut coords = vec![0i64; dims.len()];
    loop {
        f(&coords);
        let Some(axis) = (0..dims.len()).rev().find(|&i| coords[i] + 1 < dims[i] as i64) else { return };
        coords[axis] += 1;
        coords[axis + 1..].fill(0);
    }
}

/// Strides of `from` aligned to the right of `rank` axes, 0 where it repeats.
pub(super) fn broadcast_strides(from: &DenseType, rank: usize) -> Vec<i64> {
    let own = from.strides();
    let pad = rank - from.rank();
    (0..rank).map(|i| if i < pad || from.dims[i - pad] == 1 { 0 } else { own[i - pad] }).collect()
}

pub(super) fn dot(coords: &[i64], strides: &[i64]) -> u64 {
    coords.iter().zip(strides).map(|(c, s)| c * s).sum::<i64>() as u64
}

fn map(f: &ScalarFn, inputs: &[&TensorData], outputs: &[DenseType]) -> Result<Vec<TensorData>> {
    let dims = &outputs[0].dims;
    let strides: Vec<_> = inputs.iter().map(|t| broadcast_strides(&t.ty, dims.len())).collect();
    let mut bytes: Vec<Vec<u8>> = outputs.iter().map(|t| Vec::with_capacity(t.bytes() as usize)).collect();
    let (mut args, mut values) = (vec![], vec![]);
    for_each_coord(dims, |c| {
        args.clear();
        args.extend(inputs.iter().zip(&strides).map(|(t, s)| t.get(dot(c, s))));
        f.eval_nodes(&args, c, &mut values);
        for (out, node) in bytes.iter_mut().zip(&f.outputs) {
            let value = values[node.0 as usize];
            out.extend_from_slice(&value.bits.to_le_bytes()[..value.dtype.size()]);
        }
    });
    bytes.into_iter().zip(outputs).map(|(b, t)| tensor(t, b)).collect()
}

fn reduce(
    r: &Reduction,
    inputs: &[&TensorData],
    outputs: &[DenseType],
    math: &dyn MathLibrary,
) -> Result<Vec<TensorData>> {
    let (map, combine, finish) = (expanded(&r.map, math)?, expanded(&r.combine, math)?, expanded(&r.finish, math)?);
    let dims = &inputs[0].ty.dims;
    let kept = DenseType::new(DType::Bool, r.output_dims(dims));
    let own = kept.strides();
    let mut kept_axis = 0;
    let strides: Vec<i64> = (0..dims.len())
        .map(|i| match r.axes.contains(&i) {
            true => {
                kept_axis += usize::from(r.keep_dims);
                0
            }
            false => {
                kept_axis += 1;
                own[kept_axis - 1]
            }
        })
        .collect();
    let mut accumulators = vec![r.init.clone(); kept.len() as usize];
    let mut position = 0;
    let (mut args, mut values) = (vec![], vec![]);
    for_each_coord(dims, |c| {
        args.clear();
        args.extend(inputs.iter().map(|t| t.get(position)));
        position += 1;
        let acc = &mut accumulators[dot(c, &strides) as usize];
        map.eval_nodes(&args, c, &mut values);
        acc.extend(map.outputs.iter().map(|node| values[node.0 as usize]));
        combine.eval_nodes(acc, &[], &mut values);
        acc.clear();
        acc.extend(combine.outputs.iter().map(|node| values[node.0 as usize]));
    });
    let results: Vec<Vec<Scalar>> = accumulators.iter().map(|a| finish.eval(a, &[])).collect();
    Ok(outputs.iter().enumerate().map(|(j, t)| TensorData::from_fn(t.clone(), |i| results[i as usize][j])).collect())
}

fn view(v: &View, input: &TensorData, output: &DenseType) -> TensorData {
    let position = positions(&v.map, &input.ty, &output.dims);
    let fill = v.fill.unwrap_or(Scalar::zero(output.dtype));
    let mut out = Vec::with_capacity(output.bytes() as usize);
    for_each_coord(&output.dims, |c| {
        let value = position(c).map_or(fill, |at| input.get(at as u64));
        out.extend_from_slice(&value.bits.to_le_bytes()[..value.dtype.size()]);
    });
    TensorData::new(output.clone(), out.into())
        .unwrap_or_else(|| TensorData::splat(&output.dims, Scalar::zero(output.dtype)))
}

/// The position of an element at coordinates of an iteration; none outside of the operand.
pub(super) type Position<'m> = dyn Fn(&[i64]) -> Option<usize> + 'm;

/// The positions that a map reads.
pub(super) fn positions<'m>(map: &'m [Index], from: &'m DenseType, extents: &[u64]) -> Box<Position<'m>> {
    if let Some(reads) = Reads::of(map, &from.dims, extents) {
        return Box::new(move |c| reads.at(c));
    }
    let strides = from.strides();
    Box::new(move |c| {
        let mut position = 0;
        for ((index, n), stride) in map.iter().zip(&from.dims).zip(&strides) {
            let at = index.eval(&|d| c[d as usize]);
            if !(0..*n as i64).contains(&at) {
                return None;
            }
            position += at * stride;
        }
        Some(position as usize)
    })
}

fn contract(c: &Contraction, lhs: &TensorData, rhs: &TensorData, output: &DenseType) -> TensorData {
    let reads = Reads::of(&c.lhs, lhs.dims(), &c.extents).zip(Reads::of(&c.rhs, rhs.dims(), &c.extents));
    match reads {
        Some((l, r)) if [lhs.dtype(), rhs.dtype(), output.dtype].into_iter().all(is_f32_or_half) => {
            contract_f32(c, (l, &lhs.to_f32s()), (r, &rhs.to_f32s()), output)
        }
        _ => contract_any(c, lhs, rhs, output),
    }
}

fn is_f32_or_half(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A product of operands that are widened to f32, at positions that are stepped.
fn contract_f32(c: &Contraction, l: (Reads, &[f32]), r: (Reads, &[f32]), output: &DenseType) -> TensorData {
    let (parallel, reduced) = c.extents.split_at(c.out_rank);
    let ((l_outer, l_inner), (r_outer, r_inner)) = (l.0.split(c.out_rank), r.0.split(c.out_rank));
    let mut terms = vec![];
    for_each_coord(reduced, |coords| terms.push((l_inner.at(coords), r_inner.at(coords))));
    let mut out = Vec::with_capacity(output.len() as usize);
    for_each_coord(parallel, |p| {
        let (l_row, r_row) = (l_outer.at(p), r_outer.at(p));
        let mut sum = 0.0f32;
        for (l_offset, r_offset) in &terms {
            if let (Some(a), Some(b)) = (l_row.at(l_offset), r_row.at(r_offset)) {
                sum = l.1[a].mul_add(r.1[b], sum);
            }
        }
        out.push(Scalar::f32(sum).cast(output.dtype));
    });
    TensorData::from_fn(output.clone(), |i| out[i as usize])
}

fn contract_any(c: &Contraction, lhs: &TensorData, rhs: &TensorData, output: &DenseType) -> TensorData {
    let (parallel, reduced) = c.extents.split_at(c.out_rank);
    let (ls, rs) = (lhs.ty.strides(), rhs.ty.strides());
    let half = matches!(output.dtype, DType::F16 | DType::BF16);
    let dtype = if half { DType::F32 } else { output.dtype };
    let mut out = Vec::with_capacity(output.len() as usize);
    for_each_coord(parallel, |p| {
        let mut sum = Scalar::zero(dtype);
        for_each_coord(reduced, |r| {
            let at = |d: u32| match (d as usize).checked_sub(p.len()) {
                None => p[d as usize],
                Some(i) => r[i],
            };
            let li: Vec<i64> = c.lhs.iter().map(|m| m.eval(&at)).collect();
            if !li.iter().zip(lhs.dims()).all(|(i, n)| (0..*n as i64).contains(i)) {
                return;
            }
            let ri: Vec<i64> = c.rhs.iter().map(|m| m.eval(&at)).collect();
            let (a, b) = (lhs.get(dot(&li, &ls)).cast(dtype), rhs.get(dot(&ri, &rs)).cast(dtype));
            sum = match dtype.is_float() {
                true => ScalarOp::Fma.eval(&[a, b, sum]),
                false => ScalarOp::Add.eval(&[ScalarOp::Mul.eval(&[a, b]), sum]),
            };
        });
        out.push(sum.cast(output.dtype));
    });
    TensorData::from_fn(output.clone(), |i| out[i as usize])
}

fn gather(g: Gather, data: &TensorData, indices: &TensorData, output: &DenseType) -> TensorData {
    let n = data.dims()[g.axis] as i64;
    let inner: u64 = data.dims()[g.axis + 1..].iter().product();
    let count = indices.len();
    TensorData::from_fn(output.clone(), |i| {
        let (outer, rest) = (i / (count * inner), i % (count * inner));
        let index = indices.get(rest / inner).as_i64();
        let index = if index < 0 { index.wrapping_add(n) } else { index }.clamp(0, (n - 1).max(0));
        data.get((outer * n as u64 + index as u64) * inner + rest % inner)
    })
}

fn concat(axis: usize, inputs: &[&TensorData], output: &DenseType) -> TensorData {
    let inner: u64 = output.dims[axis + 1..].iter().product();
    let outer: u64 = output.dims[..axis].iter().product();
    let size = output.dtype.size() as u64;
    let mut bytes = Vec::with_capacity(output.bytes() as usize);
    for o in 0..outer {
        for t in inputs {
            let run = t.dims()[axis] * inner * size;
            bytes.extend_from_slice(&t.bytes()[(o * run) as usize..((o + 1) * run) as usize]);
        }
    }
    TensorData::new(output.clone(), bytes.into())
        .unwrap_or_else(|| TensorData::splat(&output.dims, Scalar::zero(output.dtype)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prim::ConvAlgorithm;

    fn tensor(dims: &[u64], seed: u64) -> TensorData {
        let mut rng = crate::rng::Rng::new(seed);
        TensorData::from_fn(DenseType::new(DType::F32, dims), |_| Scalar::f32(rng.below(1000) as f32 / 99.0 - 5.0))
    }

    #[test]
    fn stepped_positions_are_those_of_the_maps() {
        let v = |i: u32| Index::var(i);
        // A strided convolution over the border of an image, and a product of transposed operands.
        let conv = Contraction {
            extents: [2, 4, 5, 3, 3, 3, 2].into(),
            out_rank: 4,
            lhs: vec![v(0), v(4), v(2).scale(2).add(&v(5)).offset(-1), v(3).scale(2).add(&v(6)).offset(-2)],
            rhs: vec![v(1), v(4), v(5), v(6)],
            algorithm: ConvAlgorithm::Direct,
        };
        let product = Contraction {
            extents: [3, 4, 6].into(),
            out_rank: 2,
            lhs: vec![v(2), v(0)],
            rhs: vec![v(1), v(2).scale(-1).offset(5)],
            algorithm: ConvAlgorithm::Direct,
        };
        let cases = [(conv, vec![2, 3, 8, 4], vec![4, 3, 3, 2]), (product, vec![6, 3], vec![4, 6])];
        for (c, lhs, rhs) in cases {
            let (lhs, rhs) = (tensor(&lhs, 1), tensor(&rhs, 2));
            for dtype in [DType::F32, DType::BF16] {
                let output = DenseType::new(dtype, &c.extents[..c.out_rank]);
                let stepped = contract(&c, &lhs, &rhs, &output);
                assert_eq!(stepped.bytes(), contract_any(&c, &lhs, &rhs, &output).bytes());
            }
        }
    }

    #[test]
    fn views_read_what_their_maps_say() {
        let x = tensor(&[4, 5], 3);
        let dims = [6u64, 7];
        let (i, j) = (Index::var(0), Index::var(1));
        let maps = [
            vec![i.offset(-1), j.scale(-1).offset(5)],
            vec![i.add(&j).floor_div(2, &dims[..]).offset(-1), j.modulo(3, &dims[..])],
        ];
        for map in maps {
            let output = DenseType::new(DType::F32, dims);
            let fill = Scalar::f32(0.5);
            let got = view(&View { map: map.clone(), fill: Some(fill) }, &x, &output);
            let expected = TensorData::from_fn(output, |at| {
                let c = [at as i64 / 7, at as i64 % 7];
                let at: Vec<i64> = map.iter().map(|m| m.eval(&|d| c[d as usize])).collect();
                let inside = (0..4).contains(&at[0]) && (0..5).contains(&at[1]);
                if inside { x.get((at[0] * 5 + at[1]) as u64) } else { fill }
            });
            assert_eq!(got.bytes(), expected.bytes());
        }
    }
}
