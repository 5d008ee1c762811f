//! Fast ways to constants of bytes: functions of one byte, which have 256 values, and sums in i32.

use tensorc_abi::DType;
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DenseType, TensorData};

use super::fast::filled;

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

fn table(f: &ScalarFn, x: &TensorData, y: &DenseType) -> Option<TensorData> {
    if !is_table(f) {
        return None;
    }
    let entry = |byte: u8| f.eval(&[Scalar { dtype: f.inputs[0], bits: u64::from(byte) }], &[])[0].bits;
    let entries: Vec<u64> = (0..=u8::MAX).map(entry).collect();
    let x = x.content().whole().ok()?;
    filled(y, |memory| match y.dtype.size() {
        1 => looked_up::<1>(&entries, &x, memory),
        2 => looked_up::<2>(&entries, &x, memory),
        4 => looked_up::<4>(&entries, &x, memory),
        _ => looked_up::<8>(&entries, &x, memory),
    })
}

/// Writes the first bytes of the entry of each byte.
fn looked_up<const SIZE: usize>(entries: &[u64], x: &[u8], memory: &mut [u8]) {
    let first = |entry: &u64| -> [u8; SIZE] {
        let bytes = entry.to_le_bytes();
        core::array::from_fn(|i| bytes[i])
    };
    let entries: Vec<[u8; SIZE]> = entries.iter().map(first).collect();
    for (to, byte) in memory.as_chunks_mut::<SIZE>().0.iter_mut().zip(x) {
        *to = entries[usize::from(*byte)];
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

fn sum(r: &Reduction, x: &TensorData, y: &DenseType) -> Option<TensorData> {
    if !sums_bytes(r, &x.ty) {
        return None;
    }
    let dims = x.dims();
    // Distances of the axes in the result; 0 along those that are added.
    let mut strides = vec![0usize; dims.len()];
    let mut stride = 1;
    for axis in (0..dims.len()).rev().filter(|axis| !r.axes.contains(axis)) {
        strides[axis] = stride;
        stride *= dims[axis] as usize;
    }
    let signed = x.ty.dtype == DType::I8;
    let bytes = x.content().whole().ok()?;
    let (inner, step) = (dims.last().map_or(1, |n| *n as usize), strides.last().copied().unwrap_or(0));
    let mut sums = vec![0i32; y.len() as usize];
    let mut outer = vec![0u64; dims.len().saturating_sub(1)];
    for line in bytes.chunks_exact(inner.max(1)) {
        let at: usize = outer.iter().zip(&strides).map(|(i, s)| *i as usize * s).sum();
        let number = |byte: &u8| if signed { i32::from(*byte as i8) } else { i32::from(*byte) };
        match step {
            0 => sums[at] = line.iter().fold(sums[at], |sum, byte| sum.wrapping_add(number(byte))),
            _ => sums[at..].iter_mut().zip(line).for_each(|(sum, byte)| *sum = sum.wrapping_add(number(byte))),
        }
        if let Some(axis) = (0..outer.len()).rev().find(|axis| outer[*axis] + 1 < dims[*axis]) {
            outer[axis] += 1;
            outer[axis + 1..].fill(0);
        }
    }
    filled(y, |memory| {
        for (to, sum) in memory.chunks_exact_mut(size_of::<i32>()).zip(&sums) {
            to.copy_from_slice(&sum.to_le_bytes());
        }
    })
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
            let x = ramp(dtype, &[5, 4, 3, 7]);
            for (axes, keep) in
                [(&[0usize][..], true), (&[3], false), (&[1, 2, 3], true), (&[1], false), (&[0, 2], true)]
            {
                let r = reduction(dtype, axes, keep);
                let y = DenseType::new(DType::I32, r.output_dims(x.dims()));
                let prim = Prim::Reduce(r.into());
                assert!(is_fast(&prim, &[&x.ty], &[&y]), "{axes:?}");
                let expected = eval_prim(&prim, &[&x], std::slice::from_ref(&y), registry.math()).expect("a sum");
                assert_eq!(eval(&prim, &[&x], &[y]).as_ref(), expected.first(), "{dtype} {axes:?}");
            }
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
