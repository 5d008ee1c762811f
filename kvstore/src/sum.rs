//! Element-wise sums of arrays in memory of the host.
//!
//! Bytes are little-endian elements at any address. Integers wrap around.

use half::{bf16, f16};
use tensorc_runtime::DType;

use crate::compress::halves;
use crate::error::{KvError, check_length};

/// Elements that are summed at a time, so that the arrays are read once each and the sums stay in the cache.
const BLOCK: usize = 16 << 10;

macro_rules! of_type {
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            DType::F32 => $function::<f32>$arguments,
            DType::F64 => $function::<f64>$arguments,
            DType::F16 => $function::<f16>$arguments,
            DType::BF16 => $function::<bf16>$arguments,
            DType::I8 => $function::<i8>$arguments,
            DType::I16 => $function::<i16>$arguments,
            DType::I32 => $function::<i32>$arguments,
            DType::I64 => $function::<i64>$arguments,
            DType::U16 => $function::<u16>$arguments,
            DType::U32 => $function::<u32>$arguments,
            DType::U64 => $function::<u64>$arguments,
            // Stores refuse arrays of narrow types.
            _ => $function::<u8>$arguments,
        }
    };
}

/// An element that can be added.
trait Addend: Copy {
    fn at(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
    fn plus(self, other: Self) -> Self;
}

macro_rules! addends {
    ($($ty:ty: |$a:ident, $b:ident| $sum:expr),* $(,)?) => { $(
        impl Addend for $ty {
            #[inline(always)]
            fn at(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$ty>()];
                own.copy_from_slice(bytes);
                <$ty>::from_le_bytes(own)
            }

            #[inline(always)]
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $sum
            }
        }
    )* };
}

addends! {
    f32: |a, b| a + b,
    f64: |a, b| a + b,
    f16: |a, b| f16::from_f32(a.to_f32() + b.to_f32()),
    bf16: |a, b| bf16::from_f32(a.to_f32() + b.to_f32()),
    i8: |a, b| a.wrapping_add(b),
    i16: |a, b| a.wrapping_add(b),
    i32: |a, b| a.wrapping_add(b),
    i64: |a, b| a.wrapping_add(b),
    u8: |a, b| a.wrapping_add(b),
    u16: |a, b| a.wrapping_add(b),
    u32: |a, b| a.wrapping_add(b),
    u64: |a, b| a.wrapping_add(b),
}

/// Adds an array to another of the same length.
///
/// # Errors
/// The lengths differ.
pub fn add_assign(to: &mut [u8], other: &[u8], dtype: DType) -> Result<(), KvError> {
    check_length("bytes to add", to.len(), other.len())?;
    of_type!(dtype, add(to, other));
    Ok(())
}

fn add<T: Addend>(to: &mut [u8], other: &[u8]) {
    let size = size_of::<T>();
    for (to, other) in to.chunks_exact_mut(size).zip(other.chunks_exact(size)) {
        T::at(to).plus(T::at(other)).put(to);
    }
}

fn add_two<T: Addend>(to: &mut [u8], left: &[u8], right: &[u8]) {
    let size = size_of::<T>();
    let operands = left.chunks_exact(size).zip(right.chunks_exact(size));
    for (to, (left, right)) in to.chunks_exact_mut(size).zip(operands) {
        T::at(left).plus(T::at(right)).put(to);
    }
}

/// ((a + b) + (c + d)), for the usual number of devices.
fn add_four<T: Addend>(to: &mut [u8], [a, b, c, d]: [&[u8]; 4]) {
    let size = size_of::<T>();
    let left = a.chunks_exact(size).zip(b.chunks_exact(size));
    let right = c.chunks_exact(size).zip(d.chunks_exact(size));
    for (to, ((a, b), (c, d))) in to.chunks_exact_mut(size).zip(left.zip(right)) {
        T::at(a).plus(T::at(b)).plus(T::at(c).plus(T::at(d))).put(to);
    }
}

/// Writes the sum of arrays of one length to `to`, in the order of [`crate::tree`] over them. Every array is read once.
///
/// # Errors
/// There are none, or the lengths differ.
pub fn sum_into(to: &mut [u8], parts: &[&[u8]], dtype: DType) -> Result<(), KvError> {
    check_length("arrays to add", parts.len().max(1), parts.len())?;
    parts.iter().try_for_each(|part| check_length("bytes to add", to.len(), part.len()))?;
    let block = BLOCK / dtype.size() * dtype.size();
    let mut scratch = vec![];
    for begin in (0..to.len()).step_by(block) {
        let end = (begin + block).min(to.len());
        let of_block: Vec<&[u8]> = parts.iter().map(|part| &part[begin..end]).collect();
        sum_block(&mut to[begin..end], &of_block, dtype, &mut scratch);
    }
    Ok(())
}

fn sum_block(to: &mut [u8], parts: &[&[u8]], dtype: DType, scratch: &mut Vec<Vec<u8>>) {
    match parts {
        [] => {}
        [one] => to.copy_from_slice(one),
        [left, right] => of_type!(dtype, add_two(to, left, right)),
        [a, b, c, d] => of_type!(dtype, add_four(to, [a, b, c, d])),
        _ => {
            let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
            sum_block(to, left, dtype, scratch);
            let mut other = scratch.pop().unwrap_or_default();
            other.resize(to.len(), 0);
            sum_block(&mut other, right, dtype, scratch);
            of_type!(dtype, add(to, &other));
            scratch.push(other);
        }
    }
}

/// The type in which sums of a type are computed.
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Elements of f16 or bf16 as f32.
pub fn widen(bytes: &[u8], dtype: DType) -> Vec<u8> {
    let mut values = vec![0.0f32; bytes.len() / 2];
    let put = |out: &mut f32, value: f32| *out = value;
    match dtype {
        DType::BF16 => halves::decode::<bf16>(bytes, &mut values, put),
        _ => halves::decode::<f16>(bytes, &mut values, put),
    }
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Elements of f32, rounded to f16 or bf16.
pub fn narrow(bytes: &[u8], dtype: DType) -> Vec<u8> {
    let mut narrow = vec![0; bytes.len() / 2];
    match dtype {
        DType::BF16 => halves::encode::<bf16>(bytes.as_chunks().0, &mut narrow),
        _ => halves::encode::<f16>(bytes.as_chunks().0, &mut narrow),
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;
    use proptest::prelude::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn sums_follow_the_tree(arrays in 1usize..12, length in 0usize..9000, seed in any::<u32>()) {
            let value = |array: usize, at: usize| {
                let mixed = (array * 31 + at).wrapping_mul(2654435761) as u32 ^ seed;
                (mixed % 2001) as f32 / 7.0 - 140.0
            };
            let all: Vec<Vec<f32>> = (0..arrays).map(|a| (0..length).map(|at| value(a, at)).collect()).collect();
            let parts: Vec<Vec<u8>> = all.iter().map(|array| bytes(array)).collect();
            let mut found = vec![0xff; length * 4];
            sum_into(&mut found, &parts.iter().map(|p| &p[..]).collect::<Vec<_>>(), DType::F32).unwrap();
            let expected: Vec<f32> = (0..length).map(|at| {
                let leaves = (0..arrays as u32).map(|a| (a..a + 1, all[a as usize][at])).collect();
                tree::combine(arrays as u32, leaves, &mut |a, b| Ok(a + b)).unwrap()
            }).collect();
            prop_assert_eq!(found, bytes(&expected));
        }
    }

    #[test]
    fn every_type_adds() {
        for dtype in DType::COMPUTED {
            let one: Vec<u8> = match dtype {
                DType::F32 => 1f32.to_le_bytes().to_vec(),
                DType::F64 => 1f64.to_le_bytes().to_vec(),
                DType::F16 => f16::ONE.to_le_bytes().to_vec(),
                DType::BF16 => bf16::ONE.to_le_bytes().to_vec(),
                _ => [&[1][..], &[0; 7]].concat()[..dtype.size()].to_vec(),
            };
            let (ones, mut sum) = (one.repeat(5), vec![0; 5 * dtype.size()]);
            sum_into(&mut sum, &[&ones, &ones], dtype).unwrap();
            let mut twice = ones.clone();
            add_assign(&mut twice, &ones, dtype).unwrap();
            assert_eq!(sum, twice);
            assert_ne!(sum, ones);
        }
    }

    #[test]
    fn lengths_must_agree() {
        assert!(sum_into(&mut [0; 8], &[&[0; 8], &[0; 4]], DType::F32).is_err());
        assert!(sum_into(&mut [0; 8], &[], DType::F32).is_err());
        assert!(add_assign(&mut [0; 8], &[0; 4], DType::F32).is_err());
    }
}
