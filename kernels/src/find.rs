//! Operators that find elements ([`FindOp`]), without memory of their own: what is found is noted in words that the caller gives,
//! and written where the caller has room for as much.

mod boxes;

use core::cmp::Ordering;

use tensorc_abi::{DType, FindOp};

use boxes::{Limits, suppressed};

/// A tensor in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct FindOperand<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub dims: &'a [u64],
    /// The elements.
    pub bytes: &'a [u8],
}

/// Why nothing is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindError {
    /// An operand is missing, or has not the rank, the extents or as many bytes as the operator takes.
    Operand(usize),
    /// There are too few words to note what is found.
    Words,
}

/// Words in which the results of [`find`] are noted for operands of these shapes.
pub fn find_words(op: FindOp, operands: &[Option<&[u64]>]) -> u64 {
    let dims = |i: usize| operands.get(i).copied().flatten().unwrap_or(&[]);
    let elements = |i: usize| dims(i).iter().fold(1, |n: u64, dim| n.saturating_mul(*dim));
    let most = op.most(operands);
    match op {
        FindOp::NonZero => most,
        FindOp::Compress { .. } => elements(1),
        // Keys of elements, sorted slices, and where each group begins and how many it has.
        FindOp::Unique { .. } => elements(0).saturating_add(most.saturating_mul(3)),
        // Rows; what is noted of a class.
        FindOp::NonMaxSuppression { .. } => {
            let boxes = dims(1).last().copied().unwrap_or(0);
            most.saturating_mul(3).saturating_add(boxes::words(boxes))
        }
    }
}

/// What was found.
pub struct Found<'a> {
    op: FindOp,
    first: FindOperand<'a>,
    /// How many elements.
    pub count: u64,
    slices: Slices,
    /// Positions, or rows; of groups, the sorted slices.
    noted: &'a [u64],
    groups: &'a [[u64; 2]],
}

/// Finds elements.
///
/// # Errors
/// An operand is not as the operator takes it, or there are fewer words than [`find_words`] says.
pub fn find<'a>(
    op: FindOp,
    operands: &[Option<FindOperand<'a>>],
    words: &'a mut [u64],
) -> Result<Found<'a>, FindError> {
    let operand = |i: usize| operands.get(i).copied().flatten().ok_or(FindError::Operand(i));
    for (i, given) in operands.iter().enumerate() {
        let whole = |x: &FindOperand<'_>| x.bytes.len() as u64 == bytes_of(x.dtype, x.dims);
        if !given.as_ref().is_none_or(whole) {
            return Err(FindError::Operand(i));
        }
    }
    let first = operand(0)?;
    let slices = match op {
        FindOp::Compress { axis } | FindOp::Unique { axis, .. } => {
            Slices::of(first, axis).ok_or(FindError::Operand(0))?
        }
        _ => Slices::default(),
    };
    let (count, noted, groups): (usize, &[u64], &[[u64; 2]]) = match op {
        FindOp::NonZero => {
            let noted = marked(first, u64::MAX, words)?;
            (noted.len(), noted, &[])
        }
        FindOp::Compress { .. } => {
            let noted = marked(operand(1)?, slices.extent as u64, words)?;
            (noted.len(), noted, &[])
        }
        FindOp::Unique { sorted, .. } => {
            let (noted, groups) = groups(first, slices, sorted, words)?;
            (groups.len(), noted, groups)
        }
        FindOp::NonMaxSuppression { centered } => {
            let item = |i: usize| Some(number(operands.get(i).copied().flatten()?, 0));
            let limits = Limits { most: item(2), overlap: item(3), least: item(4), centered };
            let rows = suppressed(first, operand(1)?, limits, words)?;
            (rows.len() / 3, rows, &[])
        }
    };
    Ok(Found { op, first, count: count as u64, slices, noted, groups })
}

impl Found<'_> {
    /// The extents of a result.
    pub fn dims(&self, result: usize) -> impl Iterator<Item = u64> {
        self.op.result_dims(result, self.first.dims, self.count)
    }

    /// The element type of a result.
    pub fn dtype(&self, result: usize) -> DType {
        self.op.result_dtype(result, self.first.dtype)
    }

    /// Bytes of a result.
    pub fn bytes(&self, result: usize) -> u64 {
        self.dims(result).fold(self.dtype(result).size() as u64, |n: u64, dim| n.saturating_mul(dim))
    }

    /// Writes a result, as many bytes as [`Found::bytes`] says.
    pub fn write(&self, result: usize, to: &mut [u8]) {
        let mut words = to.as_chunks_mut::<8>().0.iter_mut();
        let mut put = |n: u64| {
            if let Some(word) = words.next() {
                *word = n.to_le_bytes();
            }
        };
        match (self.op, result) {
            (FindOp::NonZero, _) => {
                let dims = self.first.dims;
                for axis in 0..dims.len() {
                    let stride: u64 = dims[axis + 1..].iter().product();
                    coordinates(self.noted, stride, dims[axis], &mut put);
                }
            }
            (FindOp::NonMaxSuppression { .. }, _) => self.noted.iter().copied().for_each(put),
            (FindOp::Compress { .. }, _) => self.slices.select(self.first.bytes, self.noted.iter().copied(), to),
            (FindOp::Unique { .. }, 0) => self.slices.select(self.first.bytes, self.firsts(), to),
            (FindOp::Unique { .. }, 1) => self.firsts().for_each(put),
            (FindOp::Unique { .. }, 2) => {
                let words = to.as_chunks_mut::<8>().0;
                for (g, [begin, count]) in self.groups.iter().enumerate() {
                    for i in &self.noted[*begin as usize..][..*count as usize] {
                        words[*i as usize] = (g as u64).to_le_bytes();
                    }
                }
            }
            (FindOp::Unique { .. }, _) => self.groups.iter().for_each(|[_, count]| put(*count)),
        }
    }

    /// The first slice of each group.
    fn firsts(&self) -> impl Iterator<Item = u64> + Clone {
        self.groups.iter().map(|[begin, _]| self.noted[*begin as usize])
    }
}

fn bytes_of(dtype: DType, dims: &[u64]) -> u64 {
    dims.iter().fold(dtype.size() as u64, |n: u64, dim| n.saturating_mul(*dim))
}

/// A tensor as slices along an axis, or as its elements.
#[derive(Clone, Copy, Default)]
struct Slices {
    /// How many.
    extent: usize,
    /// Elements of a slice that lie beside each other, and how many such pieces it has.
    inner: usize,
    outer: usize,
    /// Bytes of an element.
    size: usize,
}

impl Slices {
    fn of(x: FindOperand<'_>, axis: Option<u32>) -> Option<Slices> {
        let product = |dims: &[u64]| dims.iter().product::<u64>() as usize;
        let size = x.dtype.size();
        let Some(axis) = axis else { return Some(Slices { extent: product(x.dims), inner: 1, outer: 1, size }) };
        let (before, behind) = x.dims.split_at_checked(axis as usize)?;
        let (extent, behind) = behind.split_first()?;
        Some(Slices { extent: *extent as usize, inner: product(behind), outer: product(before), size })
    }

    /// Copies the given slices.
    fn select(&self, from: &[u8], keep: impl Iterator<Item = u64> + Clone, to: &mut [u8]) {
        let piece = self.inner * self.size;
        let mut at = 0;
        for outer in from.chunks_exact((self.extent * piece).max(1)) {
            for i in keep.clone() {
                to[at..][..piece].copy_from_slice(&outer[i as usize * piece..][..piece]);
                at += piece;
            }
        }
    }
}

/// The coordinate of each of some ascending positions along an axis of `extent` elements that are `stride` apart. Neighbours
/// mostly have the same one, or along the last axis the same row, so few are divided.
fn coordinates(positions: &[u64], stride: u64, extent: u64, put: &mut impl FnMut(u64)) {
    // Of the position before: where the axis and the coordinate began, and the coordinate.
    let (row, mut begin, mut from, mut at) = (stride * extent, 0, 0, 0);
    for i in positions {
        if i - begin >= row {
            begin = i / row * row;
            (from, at) = (begin, 0);
        }
        if stride == 1 {
            put(i - begin);
            continue;
        }
        if i - from >= stride {
            at = (i - begin) / stride;
            from = begin + at * stride;
        }
        put(at);
    }
}

/// Notes the positions of elements that are not zero, ascending, below `end`.
fn marked<'a>(x: FindOperand<'_>, end: u64, words: &'a mut [u64]) -> Result<&'a [u64], FindError> {
    fn positions<const SIZE: usize>(
        bytes: &[u8],
        end: u64,
        words: &mut [u64],
        is_zero: impl Fn(&[u8; SIZE]) -> bool,
    ) -> Option<usize> {
        let elements = bytes.as_chunks::<SIZE>().0;
        let elements = &elements[..elements.len().min(usize::try_from(end).unwrap_or(usize::MAX))];
        let words = words.get_mut(..elements.len())?;
        // Every position is written, and the next one over it unless it counts: a branch would often be foretold wrongly.
        let mut count = 0;
        for (i, element) in elements.iter().enumerate() {
            words[count] = i as u64;
            count += usize::from(!is_zero(element));
        }
        Some(count)
    }
    // The sign of a zero does not count.
    let (bytes, sign) = (x.bytes, u32::from(x.dtype.is_float()));
    let count = match x.dtype.size() {
        1 => positions::<1>(bytes, end, words, |element| *element == [0]),
        2 => positions::<2>(bytes, end, words, |element| u16::from_le_bytes(*element) << sign == 0),
        4 => positions::<4>(bytes, end, words, |element| u32::from_le_bytes(*element) << sign == 0),
        _ => positions::<8>(bytes, end, words, |element| u64::from_le_bytes(*element) << sign == 0),
    };
    Ok(&words[..count.ok_or(FindError::Words)?])
}

/// The bits of an element.
fn bits(x: FindOperand<'_>, i: usize) -> u64 {
    let size = x.dtype.size();
    let mut word = [0; 8];
    word[..size].copy_from_slice(&x.bytes[i * size..][..size]);
    u64::from_le_bytes(word)
}

/// An element as a number; integers are rounded.
fn number(x: FindOperand<'_>, i: usize) -> f64 {
    let Some(_) = x.bytes.get(i * x.dtype.size()) else { return 0.0 };
    let bits = bits(x, i);
    match x.dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::BF16 => f32::from_bits((bits as u32) << 16).into(),
        DType::F16 => half(bits as u16),
        DType::U64 => bits as f64,
        _ => signed(x.dtype, bits) as f64,
    }
}

/// Elements as numbers.
fn numbers(x: FindOperand<'_>, first: usize, count: usize, mut each: impl FnMut(usize, f64)) {
    match x.dtype {
        DType::F32 => {
            let elements = x.bytes.as_chunks::<4>().0.iter().skip(first).take(count).enumerate();
            elements.for_each(|(i, element)| each(i, f32::from_le_bytes(*element).into()));
        }
        _ => (0..count).for_each(|i| each(i, number(x, first + i))),
    }
}

/// An f16.
fn half(bits: u16) -> f64 {
    const TINY: f64 = 1.0 / (1u64 << 24) as f64;
    let (exponent, fraction) = (u64::from(bits >> 10 & 31), u64::from(bits & 1023));
    let value = match exponent {
        0 => fraction as f64 * TINY,
        31 => f64::from_bits(0x7ff << 52 | fraction << 42),
        _ => f64::from_bits((exponent + 1023 - 15) << 52 | fraction << 42),
    };
    if bits >> 15 == 1 { -value } else { value }
}

/// The value of an integer of a type of at most 64 bits.
fn signed(dtype: DType, bits: u64) -> i64 {
    let unused = 64 - 8 * dtype.size() as u32;
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (bits << unused) as i64 >> unused,
        _ => bits as i64,
    }
}

/// A number that orders elements of one type; NaN is the greatest, and zeros are equal.
fn key(x: FindOperand<'_>, i: usize) -> u64 {
    const SIGN: u64 = 1 << 63;
    match x.dtype {
        DType::U64 => bits(x, i),
        dtype if dtype.is_float() => match number(x, i) {
            n if n.is_nan() => u64::MAX,
            n if n < 0.0 => !n.to_bits(),
            // The sum with 0 of either zero is 0.
            n => (n + 0.0).to_bits() | SIGN,
        },
        dtype => signed(dtype, bits(x, i)) as u64 ^ SIGN,
    }
}

/// The slices sorted by content and then by position, and of each group of equal ones where it begins there and how many it has.
fn groups<'a>(
    x: FindOperand<'_>,
    slices: Slices,
    ascending: bool,
    words: &'a mut [u64],
) -> Result<(&'a [u64], &'a [[u64; 2]]), FindError> {
    let Slices { extent, inner, outer, .. } = slices;
    let elements = inner * outer;
    let (keys, rest) = words.split_at_mut_checked(extent * elements).ok_or(FindError::Words)?;
    let (sorted, rest) = rest.split_at_mut_checked(extent).ok_or(FindError::Words)?;
    let groups = rest.as_chunks_mut::<2>().0.get_mut(..extent).ok_or(FindError::Words)?;
    keys.iter_mut().enumerate().for_each(|(i, to)| *to = key(x, i));
    sorted.iter_mut().zip(0..).for_each(|(to, i)| *to = i);
    let keys = &*keys;
    let slice = |s: u64| (0..elements).map(move |p| keys[(p / inner * extent + s as usize) * inner + p % inner]);
    let compare = |i: u64, j: u64| match elements {
        1 => keys[i as usize].cmp(&keys[j as usize]),
        _ => slice(i).cmp(slice(j)),
    };
    sorted.sort_unstable_by(|i, j| compare(*i, *j).then(i.cmp(j)));
    let mut count = 0;
    for (at, i) in sorted.iter().enumerate() {
        match groups[..count].last_mut() {
            Some([begin, count]) if compare(sorted[*begin as usize], *i) == Ordering::Equal => *count += 1,
            _ => {
                groups[count] = [at as u64, 1];
                count += 1;
            }
        }
    }
    let groups = &mut groups[..count];
    if !ascending {
        groups.sort_unstable_by_key(|[begin, _]| sorted[*begin as usize]);
    }
    Ok((sorted, groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_numbers() {
        let cases = [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 2f64.powi(-24)), (0x7c00, f64::INFINITY)];
        for (bits, value) in cases {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7e00).is_nan());
        assert!(half(0x8000).is_sign_negative());
    }

    #[test]
    fn too_few_words_are_an_error() {
        let x = FindOperand { dtype: DType::U8, dims: &[3], bytes: &[1, 0, 2] };
        let found = |op, words: &mut [u64]| find(op, &[Some(x), Some(x)], words).map(|found| found.count);
        for op in [FindOp::NonZero, FindOp::Compress { axis: None }, FindOp::Unique { axis: None, sorted: true }] {
            let words = find_words(op, &[Some(&[3]), Some(&[3])]) as usize;
            assert!(found(op, &mut [0; 12][..words]).is_ok());
            assert_eq!(found(op, &mut [0; 1]), Err(FindError::Words));
        }
    }
}
