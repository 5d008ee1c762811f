//! What operators demand of the values of their operands, as a computation that a run can confirm.

use tensorc_abi::{DType, Requirement};

use crate::extent::Extent;
use crate::graph::Value;
use crate::prim::{Prim, Reduction};
use crate::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn};
use crate::types::DenseType;

/// Values that an integer operand may have. Limits may depend on symbols.
#[derive(Clone, Debug)]
pub enum Allowed {
    /// From the first to the last.
    Within(Extent, Extent),
    /// From the first to the last, or the third.
    WithinOr(Extent, Extent, i64),
    /// The i-th column of the last axis counts an axis of the i-th extent, a negative value from its end.
    Positions(Vec<Extent>),
    /// Every one but zero.
    NonZero,
}

/// A requirement that a run confirms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// An i64 scalar: a word as [`tensorc_abi::image::found`] reads it.
    pub value: Value,
    /// What is demanded.
    pub requirement: Requirement,
}

/// Values that are farther from zero are reported as this one.
const FARTHEST: i64 = 1 << 61;

impl Allowed {
    /// The positions along an axis of an extent, negative ones from its end.
    pub fn position(extent: impl Into<Extent>) -> Allowed {
        let extent = extent.into();
        Allowed::Within(-extent, extent - 1)
    }

    /// Counts from zero to the last.
    pub fn up_to(last: impl Into<Extent>) -> Allowed {
        Allowed::Within(Extent::ZERO, last.into())
    }

    /// Positions along an axis of an extent, from its start.
    pub fn below(extent: impl Into<Extent>) -> Allowed {
        Allowed::Within(Extent::ZERO, extent.into() - 1)
    }

    /// Whether no value is allowed: an axis that values count has no elements.
    pub fn is_nothing(&self) -> bool {
        match self {
            Allowed::Within(first, last) => first > last,
            Allowed::Positions(extents) => extents.iter().any(|extent| *extent == 0),
            Allowed::WithinOr(..) | Allowed::NonZero => false,
        }
    }

    /// The limits that depend on symbols, as operands behind the one that is checked.
    pub fn open_limits(&self) -> Vec<Extent> {
        let all = match self {
            Allowed::Within(first, last) | Allowed::WithinOr(first, last, _) => vec![*first, *last],
            Allowed::Positions(extents) => extents.clone(),
            Allowed::NonZero => vec![],
        };
        all.into_iter().filter(|n| n.is_open()).collect()
    }

    /// The same with numbers in place of limits that depend on symbols ([`Extent::fixed`]).
    pub fn fixed(&self) -> Allowed {
        let fix = |n: &Extent| Extent::of(n.fixed());
        match self {
            Allowed::Within(first, last) => Allowed::Within(fix(first), fix(last)),
            Allowed::WithinOr(first, last, other) => Allowed::WithinOr(fix(first), fix(last), *other),
            Allowed::Positions(extents) => Allowed::Positions(extents.iter().map(fix).collect()),
            Allowed::NonZero => Allowed::NonZero,
        }
    }

    /// Whether all values between two are allowed, as far as first and last ones tell. Where limits depend on symbols, the answer is
    /// a condition.
    pub fn admits(&self, least: i64, greatest: i64) -> bool {
        matches!(self, Allowed::Within(first, last) if *first <= least && *last >= greatest)
    }

    /// What gives the code of each value, an i64, from the operand and the open limits, scalars of i64.
    ///
    /// # Errors
    /// The operand holds no integers.
    pub fn code(&self, ty: &DenseType) -> Result<ScalarFn, String> {
        if !ty.dtype.is_int() {
            return Err(format!("values of {} are not checked", ty.dtype));
        }
        let mut types = vec![ty.dtype];
        types.resize(1 + self.open_limits().len(), DType::I64);
        ScalarFn::build(&types, |b, x| vec![self.code_of(b, &x[0].cast(DType::I64), &x[1..], ty.rank())])
    }

    /// The primitive that gives the word of an operand's values, an i64 scalar, as [`tensorc_abi::image::found`] reads it; of their
    /// codes if limits depend on symbols.
    ///
    /// # Errors
    /// The operand holds no integers.
    pub fn word(&self, ty: &DenseType) -> Result<Prim, String> {
        let coded = !self.open_limits().is_empty();
        if let Some(prim) = self.extremes(ty)? {
            return Ok(prim);
        }
        let map = if coded { ScalarFn::identity(DType::I64) } else { self.code(ty)? };
        if ty.rank() == 0 {
            return Ok(Prim::Map(map.into()));
        }
        greatest_word((0..ty.rank()).collect(), map)
    }

    /// As [`Allowed::word`], of the least and the greatest value alone, which is less to do than of all: zero, or what is next to
    /// it, is allowed, so one of the two is a value farthest from zero, if any is not allowed.
    fn extremes(&self, ty: &DenseType) -> Result<Option<Prim>, String> {
        let Allowed::Within(first, last) = self else { return Ok(None) };
        let around_zero = first.known().zip(last.known()).is_some_and(|(first, last)| first <= 0 && last >= -1);
        // How a fold of two values is divided depends on how long it is, that of a greatest value alone does not.
        if !around_zero || ty.rank() == 0 || ty.dims.is_open() || !matches!(ty.dtype, DType::I32 | DType::I64) {
            return Ok(None);
        }
        let unused = 64 - 8 * ty.dtype.size();
        let init = [i64::MAX, i64::MIN].map(|end| Scalar::from_i64(ty.dtype, end >> unused)).to_vec();
        let map = ScalarFn::build(&[ty.dtype], |_, x| vec![x[0].clone(), x[0].clone()])?;
        let combine = ScalarFn::build(&[ty.dtype; 4], |_, x| vec![x[0].min(&x[2]), x[1].max(&x[3])])?;
        let finish = ScalarFn::build(&[ty.dtype; 2], |b, x| {
            let [least, greatest] = [0, 1].map(|end: usize| self.code_of(b, &x[end].cast(DType::I64), &[], ty.rank()));
            // Without elements the least value is the greater one.
            vec![x[0].gt(&x[1]).select(&b.constant(Scalar::i64(0)), &least.max(&greatest))]
        })?;
        let axes = (0..ty.rank()).collect();
        Ok(Some(Prim::Reduce(Reduction { axes, keep_dims: false, init, map, combine, finish }.into())))
    }

    /// The code of a value, at the coordinates of the operand.
    fn code_of(&self, b: &ScalarBuilder, x: &Ex, limits: &[Ex], rank: usize) -> Ex {
        let number = |n: i64| b.constant(Scalar::i64(n));
        let mut limits = limits.iter();
        let mut limit = |n: &Extent| match n.known() {
            Some(n) => number(n),
            None => limits.next().map_or_else(|| number(n.example()), Ex::clone),
        };
        let right = match self {
            Allowed::Within(first, last) => x.ge(&limit(first)) & x.le(&limit(last)),
            Allowed::WithinOr(first, last, other) => x.ge(&limit(first)) & x.le(&limit(last)) | x.eq(&number(*other)),
            Allowed::Positions(extents) => {
                let column = b.coord(rank.saturating_sub(1));
                let first = extents.first().map_or_else(|| number(0), &mut limit);
                let extent = (0..)
                    .zip(extents)
                    .skip(1)
                    .fold(first, |other, (i, extent)| column.eq(&number(i)).select(&limit(extent), &other));
                x.ge(&-&extent) & x.lt(&extent)
            }
            // The code of the only value that is not allowed.
            Allowed::NonZero => return x.eq(&number(0)).select(&number(1), &number(0)),
        };
        let near = x.max(&number(-FARTHEST)).min(&number(FARTHEST));
        let twice = &near + &near;
        let word = x.lt(&number(0)).select(&-&twice, &(&twice + &number(1)));
        right.select(&number(0), &word)
    }

    /// The requirement in words.
    pub fn requirement(&self, node: &str, operand: &str) -> Requirement {
        let broken = match self {
            Allowed::Within(..) if self.is_nothing() => "where there is no position".to_owned(),
            Allowed::Within(first, last) => format!("which is outside of {first} to {last}"),
            Allowed::WithinOr(first, last, other) => format!("which is neither within {first} to {last} nor {other}"),
            Allowed::Positions(extents) => {
                let extents: Vec<String> = extents.iter().map(Extent::to_string).collect();
                format!("which is no position in axes of {}", extents.join(" × "))
            }
            Allowed::NonZero => "by which integers cannot be divided".to_owned(),
        };
        Requirement { node: node.to_owned(), operand: operand.to_owned(), broken }
    }
}

/// A reduction along some axes to the greatest word; `map` gives the word of an element.
///
/// # Errors
/// `map` gives no i64.
pub fn greatest_word(axes: Vec<usize>, map: ScalarFn) -> Result<Prim, String> {
    let combine = ScalarFn::build(&[DType::I64; 2], |_, x| vec![x[0].max(&x[1])])?;
    let (init, finish) = (vec![Scalar::i64(0)], ScalarFn::identity(DType::I64));
    Ok(Prim::Reduce(Reduction { axes, keep_dims: false, init, map, combine, finish }.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tensorc_abi::image::found;

    use super::*;
    use crate::interp::eval_prim;
    use crate::scalar::{MathFn, MathLibrary};
    use crate::tensor::TensorData;

    struct NoMath(ScalarFn);

    impl MathLibrary for NoMath {
        fn body(&self, _: MathFn) -> &ScalarFn {
            &self.0
        }
    }

    /// What the word of some values says.
    fn finds(allowed: &Allowed, dims: &[u64], values: &[i64]) -> Option<i64> {
        let ty = DenseType::new(DType::I64, dims);
        let data = TensorData::from_fn(ty.clone(), |i| Scalar::i64(values[i as usize]));
        let math = NoMath(ScalarFn::identity(DType::F32));
        let prim = allowed.word(&ty).unwrap();
        let word = eval_prim(&prim, &[&data], &[DenseType::new(DType::I64, [])], &math).unwrap();
        found(word[0].item().unwrap().as_i64())
    }

    #[test]
    fn the_word_names_a_value_farthest_from_zero() {
        let axis = Allowed::position(10);
        assert_eq!(finds(&axis, &[4], &[-10, 9, 0, -1]), None);
        assert_eq!(finds(&axis, &[4], &[-10, 10, 0, -11]), Some(-11));
        assert_eq!(finds(&axis, &[2, 2], &[10, 9, 0, -1]), Some(10));
        assert_eq!(finds(&axis, &[1], &[i64::MAX]), Some(1 << 61));
        assert_eq!(finds(&axis, &[1], &[i64::MIN]), Some(-(1 << 61)));
        assert_eq!(finds(&axis, &[0], &[]), None);
        assert_eq!(finds(&Allowed::position(0), &[1], &[0]), Some(0));
        assert_eq!(finds(&Allowed::position(0), &[0], &[]), None);
        assert_eq!(finds(&Allowed::up_to(3), &[3], &[3, -1, 4]), Some(4));
        assert_eq!(finds(&Allowed::Within(2.into(), 5.into()), &[3], &[2, 0, 1]), Some(1));
        assert_eq!(finds(&Allowed::Within(2.into(), 5.into()), &[3], &[2, -7, 6]), Some(-7));
    }

    #[test]
    fn columns_count_axes_of_their_own() {
        let tuples = Allowed::Positions(vec![2.into(), 5.into()]);
        assert_eq!(finds(&tuples, &[2, 2], &[1, 4, -2, -5]), None);
        assert_eq!(finds(&tuples, &[2, 2], &[1, 4, 2, 0]), Some(2));
        assert_eq!(finds(&tuples, &[1, 2], &[0, -6]), Some(-6));
    }

    #[test]
    fn a_divisor_of_zero_is_found() {
        assert_eq!(finds(&Allowed::NonZero, &[3], &[5, -5, i64::MIN]), None);
        assert_eq!(finds(&Allowed::NonZero, &[3], &[5, 0, 7]), Some(0));
    }
}
