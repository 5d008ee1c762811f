//! Fast ways to constants of bytes: functions of one byte, which have 256 values, and sums in i32.

use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_abi::content::{Compute, Content, ReadError};
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DenseType, TensorData};
use xxhash_rust::xxh3::xxh3_128;

use super::fast::{computed, filled, stored_in};

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Whether [`eval`] computes a primitive.
pub(super) fn is_fast(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType]) -> bool {
    match (prim, inputs, outputs) {
        (Prim::Map(f), [x], [y]) => is_table(f) && x.dims == y.dims,
        (Prim::Reduce(r), [x], [_]) => sums_bytes(r, x),
        _ => false,
    }
}

/// The value of a primitive that [`is_fast`].
pub(super) fn eval(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<TensorData> {
    match (prim, inputs, outputs) {
        (Prim::Map(f), [x], [y]) => table(f, x, y),
        (Prim::Reduce(r), [x], [y]) => sum(r, x, y),
        _ => None,
    }
}

/// Whether a function takes one byte and nothing else, and is arithmetic.
fn is_table(f: &ScalarFn) -> bool {
    let plain = |node: &ScalarNode| match node {
        ScalarNode::Coord(_) => false,
        ScalarNode::Op(op, _) => matches!(op, ScalarOp::Cast(_) | ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul),
        _ => true,
    };
    matches!(f.inputs[..], [dtype] if is_byte(dtype)) && f.outputs.len() == 1 && f.nodes.iter().all(plain)
}

/// A function of a constant of bytes, as its 256 results.
#[derive(Debug)]
struct Table {
    x: Content,
    entries: Vec<u64>,
    /// Bytes of a result.
    size: usize,
}

impl Table {
    fn look_up(&self, x: &[u8], to: &mut [u8]) {
        match self.size {
            1 => looked_up::<1>(&self.entries, x, to),
            2 => looked_up::<2>(&self.entries, x, to),
            4 => looked_up::<4>(&self.entries, x, to),
            _ => looked_up::<8>(&self.entries, x, to),
        }
    }

    /// Equal for what computes the same.
    fn number(&self) -> u128 {
        let mut description = format!("{:?}", (self.x.place(), self.size)).into_bytes();
        description.extend(self.entries.iter().flat_map(|entry| entry.to_le_bytes()));
        xxh3_128(&description)
    }
}

impl Compute for Table {
    fn compute(&self, at: usize, to: &mut [u8]) -> Result<(), ReadError> {
        let at = at / self.size;
        self.look_up(&self.x.part(at..at + to.len() / self.size)?, to);
        Ok(())
    }

    fn depth(&self) -> usize {
        self.x.depth() + 1
    }
}

/// The result of a function of one byte: where the operand is in a file, it is computed when it is needed.
fn table(f: &ScalarFn, x: &TensorData, y: &DenseType) -> Option<TensorData> {
    if !is_table(f) {
        return None;
    }
    let entry = |byte: u8| f.eval(&[Scalar { dtype: f.inputs[0], bits: u64::from(byte) }], &[])[0].bits;
    let entries: Vec<u64> = (0..=u8::MAX).map(entry).collect();
    let table = Table { x: x.content().clone(), entries, size: y.dtype.size() };
    if let Some(file) = stored_in(x.content()) {
        let number = table.number();
        return computed(file, Arc::new(table), number, y);
    }
    let x = x.content().whole().ok()?;
    filled(y, |memory| table.look_up(&x, memory))
}

/// Writes the first bytes of the entry of each byte.
fn looked_up<const SIZE: usize>(entries: &[u64], x: &[u8], memory: &mut [u8]) {
    let first = |entry: &u64| -> [u8; SIZE] {
        let bytes = entry.to_le_bytes();
        core::array::from_fn(|i| bytes[i])
    };
    let mut results = [[0; SIZE]; 256];
    results.iter_mut().zip(entries).for_each(|(to, entry)| *to = first(entry));
    for (to, byte) in memory.as_chunks_mut::<SIZE>().0.iter_mut().zip(x) {
        *to = results[usize::from(*byte)];
    }
}

/// Whether a reduction adds bytes, widened to i32.
fn sums_bytes(r: &Reduction, x: &DenseType) -> bool {
    let widens = matches!(r.map.nodes[..], [ScalarNode::Input(0), ScalarNode::Op(ScalarOp::Cast(DType::I32), _)]);
    let adds =
        matches!(r.combine.nodes[..], [ScalarNode::Input(_), ScalarNode::Input(_), ScalarNode::Op(ScalarOp::Add, _)]);
    let from_zero = r.init[..] == [Scalar::zero(DType::I32)];
    is_byte(x.dtype) && widens && adds && from_zero && r.finish.is_identity()
}

/// Neighbouring axes of a sum that are added, or kept, together.
struct AxisRun {
    extent: usize,
    /// Distance in the result; 0 if the axes are added.
    stride: usize,
}

/// The axes of an operand, as few as there can be: kernels of one pixel would otherwise be added element by element.
fn axis_runs(r: &Reduction, dims: &[u64]) -> Vec<AxisRun> {
    let (mut runs, mut stride): (Vec<AxisRun>, usize) = (vec![], 1);
    for axis in (0..dims.len()).rev().filter(|axis| dims[*axis] != 1) {
        let (extent, added) = (dims[axis] as usize, r.axes.contains(&axis));
        match runs.last_mut() {
            Some(run) if (run.stride == 0) == added => run.extent *= extent,
            _ => runs.push(AxisRun { extent, stride: if added { 0 } else { stride } }),
        }
        if !added {
            stride *= extent;
        }
    }
    runs.reverse();
    runs
}

fn sum(r: &Reduction, x: &TensorData, y: &DenseType) -> Option<TensorData> {
    if !sums_bytes(r, &x.ty) {
        return None;
    }
    let bytes = x.content().whole().ok()?;
    let mut runs = axis_runs(r, x.dims());
    let inner = runs.pop().unwrap_or(AxisRun { extent: 1, stride: 1 });
    let mut sums = vec![0i32; y.len() as usize];
    match x.ty.dtype {
        DType::I8 => add_lines(&mut sums, &bytes, &inner, &runs, |byte| i32::from(byte as i8)),
        _ => add_lines(&mut sums, &bytes, &inner, &runs, i32::from),
    }
    filled(y, |memory| {
        for (to, sum) in memory.chunks_exact_mut(size_of::<i32>()).zip(&sums) {
            to.copy_from_slice(&sum.to_le_bytes());
        }
    })
}

#[inline(always)]
fn add_lines(sums: &mut [i32], bytes: &[u8], inner: &AxisRun, outer: &[AxisRun], number: impl Fn(u8) -> i32) {
    let mut at = vec![0usize; outer.len()];
    for line in bytes.chunks_exact(inner.extent.max(1)) {
        let first: usize = at.iter().zip(outer).map(|(i, run)| i * run.stride).sum();
        match inner.stride {
            0 => {
                let sum = line.iter().fold(0i32, |sum, byte| sum.wrapping_add(number(*byte)));
                sums[first] = sums[first].wrapping_add(sum);
            }
            _ => {
                let pairs = sums[first..].iter_mut().zip(line);
                pairs.for_each(|(sum, byte)| *sum = sum.wrapping_add(number(*byte)));
            }
        }
        if let Some(axis) = (0..outer.len()).rev().find(|axis| at[*axis] + 1 < outer[*axis].extent) {
            at[axis] += 1;
            at[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorc_ir::interp::eval_prim;
    use tensorc_ir::scalar::ScalarBuilder;

    use super::*;

    fn ramp(dtype: DType, dims: &[u64]) -> TensorData {
        TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar { dtype, bits: (i * 37 + 11) & 0xff })
    }

    fn reduction(dtype: DType, axes: &[usize], keep_dims: bool) -> Reduction {
        let i32s = [DType::I32; 2];
        Reduction {
            axes: axes.to_vec(),
            keep_dims,
            init: vec![Scalar::zero(DType::I32)],
            map: ScalarFn::build(&[dtype], |_, a| vec![a[0].cast(DType::I32)]).expect("a cast"),
            combine: ScalarFn::build(&i32s, |_, a| vec![&a[0] + &a[1]]).expect("a sum"),
            finish: ScalarFn::build(&i32s[..1], |_, a| vec![a[0].clone()]).expect("an identity"),
        }
    }

    #[test]
    fn sums_and_functions_of_bytes_have_the_values_of_the_interpreter() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        for dtype in [DType::U8, DType::I8] {
            let cases: [(&[u64], &[usize], bool); 8] = [
                (&[5, 4, 3, 7], &[0], true),
                (&[5, 4, 3, 7], &[3], false),
                (&[5, 4, 3, 7], &[1, 2, 3], true),
                (&[5, 4, 3, 7], &[1], false),
                (&[5, 4, 3, 7], &[0, 2], true),
                (&[5, 40, 1, 1], &[1, 2, 3], true),
                (&[1, 1], &[0], false),
                (&[3, 0, 2], &[1], false),
            ];
            for (dims, axes, keep) in cases {
                let x = ramp(dtype, dims);
                let r = reduction(dtype, axes, keep);
                let y = DenseType::new(DType::I32, r.output_dims(x.dims()));
                let prim = Prim::Reduce(r.into());
                assert!(is_fast(&prim, &[&x.ty], &[&y]), "{dims:?} {axes:?}");
                let expected = eval_prim(&prim, &[&x], std::slice::from_ref(&y), registry.math()).expect("a sum");
                assert_eq!(eval(&prim, &[&x], &[y]).as_ref(), expected.first(), "{dtype} {dims:?} {axes:?}");
            }
            let x = ramp(dtype, &[5, 4, 3, 7]);
            let f = ScalarFn::build(&[dtype], |_: &ScalarBuilder, a| {
                vec![(a[0].cast(DType::I32) - a[0].cast(DType::I32).lit(128.0)).cast(DType::I8)]
            });
            let prim = Prim::Map(f.expect("a function").into());
            let y = DenseType::new(DType::I8, x.dims());
            let expected = eval_prim(&prim, &[&x], std::slice::from_ref(&y), registry.math()).expect("a map");
            assert_eq!(eval(&prim, &[&x], &[y]).as_ref(), expected.first(), "{dtype}");
        }
    }
}
