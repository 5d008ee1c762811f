//! Transformations that whole weights go through, at memory speed: conversions, reordering, joining, one arithmetic
//! operation with an operand that broadcasts or a literal. Each gives the bits the interpreter gives; `products` has what does not.

use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_abi::content::{Compute, Content, DataFile, ReadError};
use tensorc_abi::memory::{self, AlignedBuffer};
use tensorc_ir::index::linearize;
use tensorc_ir::parallel::try_map;
use tensorc_ir::prim::{Gather, Prim, View};
use tensorc_ir::scalar::{ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::views::{in_bounds, keeps_linear_order};
use tensorc_ir::{DenseType, TensorData};
use xxhash_rust::xxh3::xxh3_128;

use super::products;

/// Whether [`eval`] computes a primitive of operands of these types.
pub(super) fn is_fast(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType]) -> bool {
    let &[output] = outputs else { return false };
    match (prim, inputs) {
        (Prim::View(view), [input]) => strides_of(view, input, output).is_some(),
        (Prim::Map(f), [input]) if widening(f).is_some() => input.dims == output.dims,
        (Prim::Map(f), &[x, y]) => arithmetic(f, [x, y], output).is_some(),
        (Prim::Map(f), [x]) => with_literal(f).is_some() && x.dims == output.dims,
        (Prim::Gather(_) | Prim::Concat { .. }, _) => true,
        (Prim::Contract(c), [lhs, rhs]) => products::matrices(c, lhs, rhs).is_some(),
        _ => false,
    }
}

/// The value of a primitive, if there is a fast way to it, computed on up to `threads` threads.
pub(super) fn eval(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType], threads: usize) -> Option<TensorData> {
    let [output] = outputs else { return None };
    match (prim, inputs) {
        (Prim::View(view), [input]) => eval_view(view, input, output),
        (Prim::Map(f), [x]) if output.dims == x.dims() => match widening(f) {
            Some(from) => widen(from, x, output),
            None => {
                let (op, y) = with_literal(f)?;
                let (x, inner) = (x.content().clone(), x.len() as usize);
                rows(Rows { op, x, ys: vec![y], inner }, output, threads)
            }
        },
        (Prim::Map(f), &[x, y]) => {
            let WholeOperand { op, first, inner } = arithmetic(f, [&x.ty, &y.ty], output)?;
            let (x, y) = if first { (x, y) } else { (y, x) };
            rows(Rows { op, x: x.content().clone(), ys: f32s(y)?, inner }, output, threads)
        }
        (Prim::Gather(g), [data, indices]) => gather(*g, data, indices, output),
        (Prim::Concat { axis }, _) => concat(*axis, inputs, output),
        (Prim::Contract(c), [lhs, rhs]) => products::eval(c, lhs, rhs, output),
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
    let input = input.content().whole().ok()?;
    let halves = input.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    filled(output, |bytes| {
        bytes.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(to, b)| *to = convert(b).to_le_bytes());
    })
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
    let strides: Option<Vec<i64>> = (0..output.rank() as u32).map(|v| flat.step(v)).collect();
    strides.filter(|_| flat.is_affine()).map(|s| Some((s, flat.constant.fixed())))
}

fn eval_view(view: &View, input: &TensorData, output: &DenseType) -> Option<TensorData> {
    let Some((strides, offset)) = strides_of(view, &input.ty, output)? else { return input.reshape(&output.dims) };
    let (size, source) = (output.dtype.size(), input.content().whole().ok()?);
    let inner = output.rank() - 1;
    let n = output.dims[inner] as usize;
    let mut at = vec![0u64; inner];
    filled(output, |bytes| {
        for line in bytes.chunks_exact_mut(n * size) {
            let row: i64 = offset + at.iter().zip(&strides).map(|(c, s)| *c as i64 * s).sum::<i64>();
            if strides[inner] == 1 {
                let start = row as usize * size;
                line.copy_from_slice(&source[start..start + n * size]);
            } else {
                match size {
                    1 => copy_steps::<1>(line, &source, row, strides[inner]),
                    2 => copy_steps::<2>(line, &source, row, strides[inner]),
                    4 => copy_steps::<4>(line, &source, row, strides[inner]),
                    _ => copy_steps::<8>(line, &source, row, strides[inner]),
                }
            }
            let Some(axis) = (0..inner).rev().find(|a| at[*a] + 1 < output.dims[*a]) else { break };
            at[axis] += 1;
            at[axis + 1..].fill(0);
        }
    })
}

/// Copies every `step`th element of so many bytes from the element `first` on.
fn copy_steps<const SIZE: usize>(to: &mut [u8], from: &[u8], first: i64, step: i64) {
    let (to, from) = (to.as_chunks_mut::<SIZE>().0, from.as_chunks::<SIZE>().0);
    match usize::try_from(step) {
        Ok(step @ 1..) => {
            let steps = from[first as usize..].iter().step_by(step);
            to.iter_mut().zip(steps).for_each(|(to, from)| *to = *from);
        }
        _ => {
            let at = |i: usize| (first + i as i64 * step) as usize;
            to.iter_mut().enumerate().for_each(|(i, to)| *to = from[at(i)]);
        }
    }
}

/// A result whose elements all are the first one of `value`.
pub(super) fn repeated(value: &TensorData, ty: &DenseType) -> Option<TensorData> {
    let element = value.content().part(0..ty.dtype.size()).ok()?;
    filled(ty, |bytes| match *element {
        [a] => bytes.fill(a),
        [a, b] => bytes.as_chunks_mut().0.fill([a, b]),
        [a, b, c, d] => bytes.as_chunks_mut().0.fill([a, b, c, d]),
        _ => bytes.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(&element)),
    })
}

/// A result in memory for constants; `None` if there is none.
pub(super) fn filled(ty: &DenseType, fill: impl FnOnce(&mut [u8])) -> Option<TensorData> {
    try_filled(ty, |memory| {
        fill(memory);
        Ok(())
    })
}

/// As [`filled`]; also `None` if an operand cannot be read.
fn try_filled(ty: &DenseType, fill: impl FnOnce(&mut [u8]) -> Result<(), ReadError>) -> Option<TensorData> {
    let mut memory = AlignedBuffer::mapped(ty.bytes(), "a constant").ok()?;
    fill(memory.as_mut_slice()).ok()?;
    TensorData::new(ty.clone(), Bytes::from_owner(memory))
}

fn concat(axis: usize, inputs: &[&TensorData], output: &DenseType) -> Option<TensorData> {
    let outer: u64 = output.dims[..axis].iter().product();
    let inputs = inputs.iter().map(|t| t.content().whole().ok()).collect::<Option<Vec<_>>>()?;
    filled(output, |mut rest| {
        for i in 0..outer as usize {
            for bytes in &inputs {
                let chunk = bytes.len() / outer as usize;
                let from = &bytes[i * chunk..(i + 1) * chunk];
                let Some((to, left)) = std::mem::take(&mut rest).split_at_mut_checked(from.len()) else { return };
                to.copy_from_slice(from);
                rest = left;
            }
        }
    })
}

/// Indices count from the end if they are negative, and are clamped.
fn gather(g: Gather, data: &TensorData, indices: &TensorData, output: &DenseType) -> Option<TensorData> {
    let (source, extent) = (data.content().whole().ok()?, data.dims()[g.axis]);
    let run = data.dims()[g.axis + 1..].iter().product::<u64>() as usize * output.dtype.size();
    if output.is_empty() || run == 0 || extent == 0 {
        return None;
    }
    let position = |i: u64| {
        let index = indices.get(i).as_i64();
        let index = if index < 0 { index.wrapping_add(extent as i64) } else { index };
        index.clamp(0, (extent as i64 - 1).max(0)) as usize
    };
    let positions: Vec<usize> = (0..indices.len()).map(position).collect();
    filled(output, |bytes| {
        let outer = bytes.chunks_exact_mut(positions.len() * run).zip(source.chunks_exact(extent as usize * run));
        for (to, from) in outer {
            let runs = to.chunks_exact_mut(run).zip(&positions);
            runs.for_each(|(to, at)| to.copy_from_slice(&from[at * run..][..run]));
        }
    })
}

/// Bytes that a thread computes at once: they stay in its cache.
const PIECE: usize = 256 << 10;

/// Most computations that follow each other when a constant is needed.
const MAX_DEPTH: usize = 4;

/// Threads beyond which memory is not read any faster.
const MAX_THREADS: usize = 4;

/// An operation of an element `x` of the larger operand and an element `y` of the other.
#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    Sub,
    /// `y - x`.
    SubFrom,
    Mul,
}

/// An operation of two f32 operands, one of which has the shape of the result; [`row`] says how the other one goes with it.
struct WholeOperand {
    op: Op,
    /// Whether it is the first operand.
    first: bool,
    inner: usize,
}

fn arithmetic(f: &ScalarFn, types: [&DenseType; 2], output: &DenseType) -> Option<WholeOperand> {
    let [ScalarNode::Input(0), ScalarNode::Input(1), ScalarNode::Op(op, args)] = &f.nodes[..] else { return None };
    let in_order = f.inputs == [DType::F32; 2] && args.iter().map(|a| a.0).eq([0, 1]);
    let op = operation(*op).filter(|_| in_order && is_result(f, 2))?;
    let inner = |x: &DenseType, y| row(x, y).filter(|_| x.dims == output.dims).map(|(inner, _)| inner);
    let [x, y] = types;
    if let Some(inner) = inner(x, y) {
        return Some(WholeOperand { op, first: true, inner });
    }
    let op = if let Op::Sub = op { Op::SubFrom } else { op };
    inner(y, x).map(|inner| WholeOperand { op, first: false, inner })
}

/// One operation of an f32 operand and a number that the function states.
fn with_literal(f: &ScalarFn) -> Option<(Op, f32)> {
    let [first, second, ScalarNode::Op(op, args)] = &f.nodes[..] else { return None };
    let (literal, x) = match (first, second) {
        (ScalarNode::Input(0), ScalarNode::Const(literal)) => (literal, 0),
        (ScalarNode::Const(literal), ScalarNode::Input(0)) => (literal, 1),
        _ => return None,
    };
    let [a, b] = args[..] else { return None };
    let op = match operation(*op)? {
        Op::Sub if b.0 == x => Op::SubFrom,
        op => op,
    };
    let plain = f.inputs == [DType::F32] && literal.dtype == DType::F32 && !literal.as_f32().is_nan();
    (plain && a != b && is_result(f, 2)).then(|| (op, literal.as_f32()))
}

/// Whether the function has one result, that node.
fn is_result(f: &ScalarFn, node: u32) -> bool {
    f.outputs.iter().map(|o| o.0).eq([node])
}

fn operation(op: ScalarOp) -> Option<Op> {
    match op {
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

/// An operation of `x` and `ys`, each of which goes with `inner` elements that follow each other, in turn.
#[derive(Debug)]
struct Rows {
    op: Op,
    x: Content,
    ys: Vec<f32>,
    inner: usize,
}

impl Compute for Rows {
    fn compute(&self, at: usize, to: &mut [u8]) -> Result<(), ReadError> {
        let from = self.x.part(at..at + to.len())?;
        let (count, mut at, mut from, mut to) = (self.ys.len(), at / 4, &from[..], to);
        while !to.is_empty() {
            // Elements up to the end of a row, of `ys` or of those that go with one of them.
            let row = if self.inner == 1 { count } else { self.inner };
            let len = (4 * (row - at % row)).min(to.len());
            let (next, rest) = std::mem::take(&mut to).split_at_mut(len);
            if self.inner == 1 {
                let ys = &self.ys[at % count..];
                each(self.op, next, &from[..len], |i| ys[i]);
            } else {
                let y = self.ys[at / self.inner % count];
                each(self.op, next, &from[..len], |_| y);
            }
            (at, from, to) = (at + len / 4, &from[len..], rest);
        }
        Ok(())
    }

    fn depth(&self) -> usize {
        self.x.depth() + 1
    }
}

impl Rows {
    /// The file of the operand, if it stays there until the result is needed.
    fn deferred_to(&self) -> Option<&Arc<DataFile>> {
        let is_small = 16 * self.ys.len() <= self.x.len();
        stored_in(&self.x).filter(|_| is_small)
    }

    /// Equal for what computes the same.
    fn number(&self) -> u128 {
        let mut description = format!("{:?}", (self.op, self.x.place(), self.inner)).into_bytes();
        description.extend(self.ys.iter().flat_map(|y| y.to_bits().to_le_bytes()));
        xxh3_128(&description)
    }
}

/// The file that a constant is in, if an element-wise function of it is computed when it is needed.
pub(super) fn stored_in(x: &Content) -> Option<&Arc<DataFile>> {
    x.file().filter(|_| !x.is_in_memory() && x.depth() < MAX_DEPTH)
}

/// What is computed when it is needed; `number` is the same for what computes the same.
pub(super) fn computed(
    file: &Arc<DataFile>,
    compute: Arc<dyn Compute>,
    number: u128,
    output: &DenseType,
) -> Option<TensorData> {
    TensorData::of(output.clone(), Content::computed(file, compute, number, output.bytes()).ok()?)
}

/// The result of an operation: where the operand is in a file, it is computed when it is needed.
fn rows(rows: Rows, output: &DenseType, threads: usize) -> Option<TensorData> {
    if rows.inner == 0 || rows.ys.is_empty() {
        return None;
    }
    if let Some(file) = rows.deferred_to().cloned() {
        let number = rows.number();
        return computed(&file, Arc::new(rows), number, output);
    }
    // Every element is computed alone, so the number of pieces changes nothing.
    let work = |(i, to): (usize, &mut [u8])| {
        memory::populate(to);
        rows.compute(i * PIECE, to)
    };
    try_filled(output, |bytes| {
        let pieces = bytes.chunks_mut(PIECE).enumerate().collect();
        try_map(pieces, threads.clamp(1, MAX_THREADS), work, |payload| resume_unwind(payload)).map(drop)
    })
}

/// The elements of an f32 operand.
pub(super) fn f32s(data: &TensorData) -> Option<Vec<f32>> {
    Some(data.content().whole().ok()?.chunks_exact(4).map(f32_of).collect())
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
        Op::SubFrom => pairs.for_each(|(i, (to, b))| to.copy_from_slice(&(y(i) - f32_of(b)).to_le_bytes())),
        Op::Mul => pairs.for_each(|(i, (to, b))| to.copy_from_slice(&(f32_of(b) * y(i)).to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a failure is a failed test")]

    use tensorc_ir::interp::eval_prim;
    use tensorc_ir::scalar::Scalar;

    use super::*;

    fn ramp(dims: &[u64]) -> TensorData {
        TensorData::from_fn(DenseType::new(DType::F32, dims), |i| Scalar::f32((i * 7 % 31) as f32 / 8.0 - 1.5))
    }

    #[test]
    fn rows_have_the_bits_of_the_interpreter_on_any_number_of_threads() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        let f = ScalarFn::build(&[DType::F32; 2], |b, x| vec![b.op(ScalarOp::Sub, &[&x[0], &x[1]])]);
        let prim = Prim::Map(f.expect("it is a function").into());
        for (x, y) in [([613, 500], [1, 500]), ([613, 500], [613, 1]), ([613, 500], [613, 500]), ([0, 500], [1, 500])] {
            let (x, y) = (ramp(&x), ramp(&y));
            let output = [x.ty.clone()];
            for operands in [[&x, &y], [&y, &x]] {
                let slow = eval_prim(&prim, &operands, &output, registry.math()).expect("it is a value");
                for threads in [0, 1, 2, 3, 9] {
                    let fast = eval(&prim, &operands, &output, threads).expect("it is fast");
                    assert_eq!(fast.bytes(), slow[0].bytes(), "{:?} on {threads} threads", y.dims());
                }
            }
        }
    }

    #[test]
    fn literals_stand_on_either_side() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        let x = ramp(&[40, 30]);
        for op in [ScalarOp::Add, ScalarOp::Sub, ScalarOp::Mul] {
            for first in [true, false] {
                let f = ScalarFn::build(&[DType::F32], |b, x| {
                    let c = b.constant(Scalar::f32(0.3));
                    vec![if first { b.op(op, &[&c, &x[0]]) } else { b.op(op, &[&x[0], &c]) }]
                });
                let prim = Prim::Map(f.expect("it is a function").into());
                let output = [x.ty.clone()];
                let slow = eval_prim(&prim, &[&x], &output, registry.math()).expect("it is a value");
                let fast = eval(&prim, &[&x], &output, 1).expect("it is fast");
                assert_eq!(fast.bytes(), slow[0].bytes(), "{op:?} {first}");
            }
        }
    }

    #[test]
    fn gathered_rows_have_the_bits_of_the_interpreter() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        let data = ramp(&[3, 7, 5]);
        let indices = |dtype: DType| {
            let at = |i: u64| Scalar::from_f64(dtype, [0.0, 6.0, -1.0, 3.0, -9.0, 100.0][i as usize]);
            TensorData::from_fn(DenseType::new(dtype, [2, 3]), at)
        };
        for (axis, indices) in (0..3).flat_map(|axis| [DType::I32, DType::I64].map(|dtype| (axis, indices(dtype)))) {
            let gather = Gather { axis };
            let output = [DenseType::new(DType::F32, gather.output_dims(&data.ty, &indices.ty))];
            let prim = Prim::Gather(gather);
            let slow = eval_prim(&prim, &[&data, &indices], &output, registry.math()).expect("it is a value");
            let fast = eval(&prim, &[&data, &indices], &output, 1).expect("it is fast");
            assert_eq!(fast.bytes(), slow[0].bytes(), "axis {axis}");
        }
    }

    /// The same tensor in a file.
    fn in_a_file(data: &TensorData) -> TensorData {
        let path = std::env::temp_dir().join(format!("tensorc-rows-{}", std::process::id()));
        std::fs::write(&path, data.bytes()).expect("a file can be written");
        let file = std::fs::File::open(&path).and_then(|file| DataFile::new("rows".into(), file)).expect("it is there");
        std::fs::remove_file(&path).expect("it is there");
        let content = Content::of_file(&file, 0..data.ty.bytes()).expect("there is memory");
        TensorData::of(data.ty.clone(), content).expect("it has as many bytes")
    }

    #[test]
    fn rows_of_what_is_in_a_file_are_computed_when_they_are_needed() {
        let f = ScalarFn::build(&[DType::F32; 2], |b, x| vec![b.op(ScalarOp::Mul, &[&x[0], &x[1]])]);
        let prim = Prim::Map(f.expect("it is a function").into());
        let mut held = ramp(&[7, 90, 33]);
        let (mut stored, types) = (in_a_file(&held), [held.ty.clone()]);
        // As many computations follow each other as may, and one more.
        for (depth, dims) in (1..=MAX_DEPTH + 1).zip([&[33][..], &[90, 1], &[], &[7, 1, 1], &[33]]) {
            let value = |x| eval(&prim, &[x, &ramp(dims)], &types, 2).expect("it is fast");
            (held, stored) = (value(&held), value(&stored));
            assert_eq!(stored.content().is_in_memory(), depth > MAX_DEPTH);
            for range in [0..4, 4..400, 128..83_160, 83_156..83_160, 40_000..40_004] {
                assert_eq!(*stored.content().part(range.clone()).expect("it is there"), held.bytes()[range]);
            }
        }
        assert_eq!(stored.bytes(), held.bytes());
        stored.content().check().expect("it was read");
    }

    #[test]
    fn functions_of_bytes_in_a_file_are_computed_when_they_are_needed() {
        let bytes = |i: u64| Scalar { dtype: DType::I8, bits: (i * 37) & 0xff };
        let held = TensorData::from_fn(DenseType::new(DType::I8, [700, 128]), bytes);
        let stored = in_a_file(&held);
        let f = ScalarFn::build(&[DType::I8], |_, x| vec![(x[0].cast(DType::F32) - 3.0) * 0.7]);
        let (prim, output) = (Prim::Map(f.expect("it is a function").into()), DenseType::new(DType::F32, held.dims()));
        let value = |x| super::super::bytes::eval(&prim, &[x], std::slice::from_ref(&output)).expect("it is fast");
        let (now, later) = (value(&held), value(&stored));
        assert!(now.content().is_in_memory() && !later.content().is_in_memory());
        assert_eq!(value(&stored).content().place(), later.content().place());
        for range in [0..4, 4..400, 128..83_160, 358_396..358_400] {
            assert_eq!(*later.content().part(range.clone()).expect("it is there"), now.bytes()[range]);
        }
        assert_eq!(later.bytes(), now.bytes());
    }
}
