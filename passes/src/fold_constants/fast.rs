//! Transformations that whole weights go through, at memory speed: conversions, reordering, joining, one arithmetic
//! operation with an operand that broadcasts, products of f32 matrices.
//!
//! Each gives the bits the interpreter gives, except products, which are only computed here where they are too large
//! for it: they add in f64 and round once.

use tensorc_abi::DType;
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::prim::{Contraction, Prim, View};
use tensorc_ir::scalar::{ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::views::{in_bounds, keeps_linear_order};
use tensorc_ir::{DenseType, TensorData};

/// Most multiplications of a product.
const PRODUCT_LIMIT: u64 = 32 << 20;

/// Fewest for which a product is computed here.
const PRODUCT_LEAST: u64 = 1 << 20;

/// Whether [`eval`] computes a primitive of operands of these types.
pub(super) fn is_fast(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType]) -> bool {
    let &[output] = outputs else { return false };
    match (prim, inputs) {
        (Prim::View(view), [input]) => strides_of(view, input, output).is_some(),
        (Prim::Map(f), [input]) if widening(f).is_some() => input.dims == output.dims,
        (Prim::Map(f), [x, y]) => arithmetic(f).is_some() && x.dims == output.dims && row(x, y).is_some(),
        (Prim::Concat { .. }, _) => true,
        (Prim::Contract(c), [lhs, rhs]) => matrices(c, lhs, rhs).is_some(),
        _ => false,
    }
}

/// The value of a primitive, if there is a fast way to it.
pub(super) fn eval(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<TensorData> {
    let [output] = outputs else { return None };
    match (prim, inputs) {
        (Prim::View(view), [input]) => eval_view(view, input, output),
        (Prim::Map(f), [input]) if input.dims() == output.dims => widen(widening(f)?, input, output),
        (Prim::Map(f), [x, y]) if x.dims() == output.dims => rows(arithmetic(f)?, x, y, output),
        (Prim::Concat { axis }, _) => concat(*axis, inputs, output),
        (Prim::Contract(c), [lhs, rhs]) => product(c, lhs, rhs, output),
        _ => None,
    }
}

/// The source type of a cast of f16 or bf16 to f32.
fn widening(f: &ScalarFn) -> Option<DType> {
    let cast = matches!(f.nodes[..], [ScalarNode::Input(0), ScalarNode::Op(ScalarOp::Cast(DType::F32), _)]);
    let from = f.inputs.first().filter(|d| matches!(d, DType::F16 | DType::BF16));
    from.copied().filter(|_| cast && f.outputs.len() == 1)
}

fn widen(from: DType, input: &TensorData, output: &DenseType) -> Option<TensorData> {
    let convert: fn(u16) -> f32 = match from {
        DType::F16 => |b| half::f16::from_bits(b).to_f32(),
        _ => |b| half::bf16::from_bits(b).to_f32(),
    };
    let halves = input.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let bytes: Vec<u8> = halves.flat_map(|b| convert(b).to_le_bytes()).collect();
    TensorData::new(output.clone(), bytes.into())
}

/// How the position in the operand depends on the result's coordinates: strides and offset. `None` if it is no such
/// sum; a view that keeps linear order has no strides.
fn strides_of(view: &View, input: &DenseType, output: &DenseType) -> Option<Option<(Vec<i64>, i64)>> {
    if view.is_identity(&input.dims, &output.dims) || keeps_linear_order(view, input, &output.dims) {
        return Some(None);
    }
    if output.is_empty() || output.rank() == 0 || !in_bounds(&view.map, &input.dims, &output.dims) {
        return None;
    }
    let flat = linearize(&view.map, &input.dims);
    let strides: Option<Vec<i64>> = (0..output.rank() as u32).map(|v| flat.coefficient(v)).collect();
    strides.filter(|_| flat.is_affine()).map(|s| Some((s, flat.constant)))
}

fn eval_view(view: &View, input: &TensorData, output: &DenseType) -> Option<TensorData> {
    let Some((strides, offset)) = strides_of(view, &input.ty, output)? else { return input.reshape(&output.dims) };
    let (size, source) = (output.dtype.size(), input.bytes());
    let mut bytes: Vec<u8> = Vec::with_capacity(output.bytes() as usize);
    let inner = output.rank() - 1;
    let mut at = vec![0u64; inner];
    loop {
        let row: i64 = offset + at.iter().zip(&strides).map(|(c, s)| *c as i64 * s).sum::<i64>();
        let n = output.dims[inner] as usize;
        if strides[inner] == 1 {
            let start = row as usize * size;
            bytes.extend_from_slice(&source[start..start + n * size]);
        } else {
            for i in 0..n as i64 {
                let position = (row + i * strides[inner]) as usize * size;
                bytes.extend_from_slice(&source[position..position + size]);
            }
        }
        let Some(axis) = (0..inner).rev().find(|a| at[*a] + 1 < output.dims[*a]) else { break };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
    TensorData::new(output.clone(), bytes.into())
}

fn concat(axis: usize, inputs: &[&TensorData], output: &DenseType) -> Option<TensorData> {
    let outer: u64 = output.dims[..axis].iter().product();
    let mut bytes: Vec<u8> = Vec::with_capacity(output.bytes() as usize);
    let chunk = |t: &TensorData| t.bytes().len() / (outer as usize).max(1);
    for i in 0..outer as usize {
        for t in inputs {
            bytes.extend_from_slice(&t.bytes()[i * chunk(t)..(i + 1) * chunk(t)]);
        }
    }
    TensorData::new(output.clone(), bytes.into())
}

/// Bytes from which several threads compute.
const PARALLEL: usize = 1 << 20;

#[derive(Clone, Copy)]
enum Op {
    Add,
    Sub,
    Mul,
}

/// One operation of two f32 operands.
fn arithmetic(f: &ScalarFn) -> Option<Op> {
    let [ScalarNode::Input(0), ScalarNode::Input(1), ScalarNode::Op(op, args)] = &f.nodes[..] else { return None };
    let in_order = f.inputs == [DType::F32; 2] && args.iter().map(|a| a.0).eq([0, 1]) && f.outputs.len() == 1;
    match op {
        _ if !in_order || f.outputs[0].0 != 2 => None,
        ScalarOp::Add => Some(Op::Add),
        ScalarOp::Sub => Some(Op::Sub),
        ScalarOp::Mul => Some(Op::Mul),
        _ => None,
    }
}

/// For an operand that broadcasts to `x` and varies along neighbouring axes only: how many elements of `x` follow each
/// other with the same element of `y`, and how many different ones there are before they repeat.
fn row(x: &DenseType, y: &DenseType) -> Option<(usize, usize)> {
    let lead = x.rank().checked_sub(y.rank())?;
    let varies = |axis: &usize| *axis >= lead && y.dims[*axis - lead] != 1;
    let axes: Vec<usize> = (0..x.rank()).filter(varies).collect();
    let (Some(first), Some(last)) = (axes.first(), axes.last()) else { return Some((x.len() as usize, 1)) };
    let all = (*first..=*last).all(|axis| axis >= lead && y.dims[axis - lead] == x.dims[axis]);
    let inner: u64 = x.dims[last + 1..].iter().product();
    all.then_some((inner as usize, y.len() as usize))
}

fn rows(op: Op, x: &TensorData, y: &TensorData, output: &DenseType) -> Option<TensorData> {
    let (inner, count) = row(&x.ty, &y.ty)?;
    if inner == 0 || count == 0 {
        return None;
    }
    let ys: Vec<f32> = y.bytes().chunks_exact(4).map(f32_of).collect();
    let mut bytes = vec![0u8; x.bytes().len()];
    // Pieces of whole rows, one for each thread; every element is computed alone, so their number changes nothing.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    let lines = if inner == 1 { bytes.len() / (4 * count) } else { bytes.len() / (4 * inner) };
    let line = if inner == 1 { count } else { inner };
    let piece = if bytes.len() < PARALLEL { lines } else { lines.div_ceil(threads) };
    let work = |first: usize, to: &mut [u8], from: &[u8]| {
        for (i, (to, from)) in to.chunks_exact_mut(4 * line).zip(from.chunks_exact(4 * line)).enumerate() {
            match inner {
                // Along the last axes.
                1 => each(op, to, from, |i| ys[i]),
                _ => {
                    let y = ys[(first + i) % count];
                    each(op, to, from, |_| y);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let pieces = bytes.chunks_mut(4 * line * piece).zip(x.bytes().chunks(4 * line * piece)).enumerate();
        let mut rest = None;
        for (i, (to, from)) in pieces {
            match i {
                0 => rest = Some((to, from)),
                _ => drop(scope.spawn(move || work(i * piece, to, from))),
            }
        }
        if let Some((to, from)) = rest {
            work(0, to, from);
        }
    });
    TensorData::new(output.clone(), bytes.into())
}

fn f32_of(b: &[u8]) -> f32 {
    f32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

#[inline(always)]
fn each(op: Op, to: &mut [u8], from: &[u8], y: impl Fn(usize) -> f32) {
    let pairs = to.chunks_exact_mut(4).zip(from.chunks_exact(4)).enumerate();
    match op {
        Op::Add => pairs.for_each(|(i, (to, b))| to.copy_from_slice(&(f32_of(b) + y(i)).to_le_bytes())),
        Op::Sub => pairs.for_each(|(i, (to, b))| to.copy_from_slice(&(f32_of(b) - y(i)).to_le_bytes())),
        Op::Mul => pairs.for_each(|(i, (to, b))| to.copy_from_slice(&(f32_of(b) * y(i)).to_le_bytes())),
    }
}

/// `[m, k] × [k, n]` with any strides, as (m, n, k); too small or too large ones are left to others.
fn matrices(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<[usize; 3]> {
    let &[m, n, k] = &c.extents[..] else { return None };
    let whole = |map: &[Index], ty: &DenseType| {
        let axis = |(i, d): (&Index, &u64)| i.as_var().is_some_and(|v| c.extents[v as usize] == *d);
        map.iter().zip(&ty.dims).all(axis) && map.len() == 2 && map[0] != map[1]
    };
    let reads = |map: &[Index], v: u32| map.iter().any(|i| i.mentions(v));
    let fits = c.out_rank == 2
        && lhs.dtype == DType::F32
        && rhs.dtype == DType::F32
        && whole(&c.lhs, lhs)
        && whole(&c.rhs, rhs)
        && reads(&c.lhs, 0)
        && reads(&c.rhs, 1)
        && reads(&c.lhs, 2)
        && reads(&c.rhs, 2);
    let steps = m.saturating_mul(n).saturating_mul(k);
    (fits && (PRODUCT_LEAST..=PRODUCT_LIMIT).contains(&steps)).then_some([m, n, k].map(|x| x as usize))
}

fn product(c: &Contraction, lhs: &TensorData, rhs: &TensorData, output: &DenseType) -> Option<TensorData> {
    let [m, n, k] = matrices(c, &lhs.ty, &rhs.ty)?;
    let (a, b) = (lhs.to_f32s(), rhs.to_f32s());
    let strides = |map: &[Index], ty: &DenseType, v: u32| linearize(map, &ty.dims).coefficient(v).map(|s| s as usize);
    let (a_row, a_col) = (strides(&c.lhs, &lhs.ty, 0)?, strides(&c.lhs, &lhs.ty, 2)?);
    let (b_row, b_col) = (strides(&c.rhs, &rhs.ty, 2)?, strides(&c.rhs, &rhs.ty, 1)?);
    let wide: Vec<f64> = (0..k * n).map(|i| f64::from(b[i / n * b_row + i % n * b_col])).collect();
    let mut bytes: Vec<u8> = Vec::with_capacity(output.bytes() as usize);
    let mut sums = vec![0f64; n];
    for i in 0..m {
        sums.fill(0.0);
        for (p, row) in wide.chunks_exact(n).enumerate() {
            let x = f64::from(a[i * a_row + p * a_col]);
            sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
        }
        bytes.extend(sums.iter().flat_map(|s| (*s as f32).to_le_bytes()));
    }
    TensorData::new(output.clone(), bytes.into())
}
