//! Numbers that may depend on symbols, as the extents of tensors whose shapes vary.
//!
//! A compilation computes with the numbers of one *example*, a value for each symbol. An [`Extent`] that depends on symbols knows by
//! which expression, besides. The example decides comparisons, and the [`Trace`] keeps what was found as a condition. Wherever all
//! conditions hold, the compilation would have gone the same way, with the values of the expressions in place of the numbers of
//! the example. The method is that of concolic execution (Sen, Marinov and Agha, "CUTE", 2005).

mod number;
mod poly;
mod shape;
mod trace;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::{Product, Sum};
use std::ops::{Add, Mul, Neg, Sub};
use std::panic::Location;

pub use number::{Example, Fixed, Known};
pub use shape::{Axes, Extents};
use tensorc_abi::sizes::Sign;
pub(crate) use trace::Scope;
pub use trace::{Binding, Factor, Symbol, Trace, advice, found};
use trace::{Combine, combined, compare, surely};

/// Position of an expression in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expr(u32);

/// A whole number that may depend on symbols.
///
/// `==` and `<` give the answer of the example. The answer becomes a condition of the trace, unless it is the same for all values of
/// the symbols. Maps and sets compare their keys, so they make conditions, too.
#[derive(Clone, Copy)]
pub struct Extent {
    /// The number, or that of the example.
    value: i64,
    expr: Option<Expr>,
}

impl Extent {
    /// 0.
    pub const ZERO: Extent = Extent::of(0);
    /// 1.
    pub const ONE: Extent = Extent::of(1);

    /// A number that depends on nothing.
    pub const fn of(value: i64) -> Extent {
        Extent { value, expr: None }
    }

    /// The number, if it does not depend on symbols.
    pub const fn known(self) -> Option<i64> {
        match self.expr {
            None => Some(self.value),
            Some(_) => None,
        }
    }

    /// Whether it depends on symbols.
    pub const fn is_open(self) -> bool {
        self.expr.is_some()
    }

    /// The number in the example, for what decides about speed alone.
    pub const fn example(self) -> i64 {
        self.value
    }

    /// The number. If it depends on symbols, everything that follows is right for this value of it alone.
    #[track_caller]
    pub fn fixed(self) -> i64 {
        let _ = compare(self, Extent::of(self.value), Sign::Zero, Location::caller());
        self.value
    }

    /// The quotient rounded down, by a positive number. If no expression is known to be it for all values of the symbols, it is a
    /// condition that the quotient is that of the example.
    #[track_caller]
    pub fn div_floor(self, by: impl Into<Extent>) -> Extent {
        let by = by.into();
        if let Some(quotient) = self.sure_div_floor(by) {
            return quotient;
        }
        let quotient = self.value.div_euclid(by.value);
        let least = by * quotient;
        let holds = by > 0 && least <= self && self < least + by;
        debug_assert!(holds, "{quotient} is no quotient of {self} by {by}");
        Extent::of(quotient)
    }

    /// The quotient rounded down, by a positive number; `None` if no expression is known to be it for all values of the symbols.
    pub fn sure_div_floor(self, by: impl Into<Extent>) -> Option<Extent> {
        let by = by.into();
        match (self.expr, by.expr) {
            (None, None) => Some(Extent::of(self.value.div_euclid(by.value))),
            _ => combined(Combine::Quotient, self, by),
        }
    }

    /// What the quotient leaves, from 0 to below the divisor.
    #[track_caller]
    pub fn rem_floor(self, by: impl Into<Extent>) -> Extent {
        let by = by.into();
        match (self.expr, by.expr) {
            (None, None) => Extent::of(self.value.rem_euclid(by.value)),
            _ => self - self.div_floor(by) * by,
        }
    }

    /// The quotient rounded up, of a number that is not negative.
    #[track_caller]
    pub fn div_ceil(self, by: impl Into<Extent>) -> Extent {
        let by = by.into();
        (self + by - 1).div_floor(by)
    }

    /// Whether another number is a multiple of this one, which is positive.
    #[track_caller]
    pub fn divides(self, other: impl Into<Extent>) -> bool {
        other.into().rem_floor(self) == 0
    }

    /// What tells formulas apart: without conditions, and so not whether numbers are equal.
    pub(crate) fn formula(self) -> (i64, Option<u32>) {
        (self.value, self.expr.map(|Expr(place)| place))
    }

    /// Whether the numbers are equal for all values of the symbols.
    pub fn is_surely(self, other: impl Into<Extent>) -> bool {
        self.formula() == other.into().formula()
    }

    /// Whether the number is less than another for all values of the symbols.
    pub fn is_surely_below(self, other: impl Into<Extent>) -> bool {
        surely(self, other.into(), Sign::Negative)
    }

    /// Whether the number is at least another for all values of the symbols.
    pub fn is_surely_from(self, other: impl Into<Extent>) -> bool {
        surely(self, other.into(), Sign::NonNegative)
    }

    /// The quotient by a positive number, if that divides it for all values of the symbols.
    pub fn sure_quotient(self, by: impl Into<Extent>) -> Option<Extent> {
        let by = by.into();
        match (self.expr, by.expr) {
            (None, None) => (self.value % by.value == 0).then(|| Extent::of(self.value / by.value)),
            _ => combined(Combine::Exact, self, by),
        }
    }

    /// The smaller number.
    #[track_caller]
    pub fn least(self, other: impl Into<Extent>) -> Extent {
        let other = other.into();
        if self <= other { self } else { other }
    }

    /// The larger number.
    #[track_caller]
    pub fn greatest(self, other: impl Into<Extent>) -> Extent {
        let other = other.into();
        if self >= other { self } else { other }
    }

    /// The last position along an axis of this extent. Where the axis has no elements, nothing asks for it: what is computed of
    /// positions there is not needed.
    #[must_use]
    pub fn last_position(self) -> Extent {
        match self.known() {
            Some(n) => Extent::of((n - 1).max(0)),
            None => self - 1,
        }
    }

    /// The number as a divisor of positions: 1 where it is known to be 0, since there are no positions then.
    #[must_use]
    pub fn as_divisor(self) -> Extent {
        if self.is_surely(0) { Extent::ONE } else { self }
    }

    /// Whether an axis of this extent is repeated along one of another extent: it has one element, and is not the same axis.
    #[track_caller]
    pub fn is_repeated_along(self, other: Extent) -> bool {
        self.is_surely(1) || !self.is_surely(other) && self == 1
    }

    /// The number without its sign.
    #[track_caller]
    pub fn magnitude(self) -> Extent {
        self.greatest(-self)
    }

    /// The sum; the nearest number that there is, if it is too large. So is one with a limit of what is unbounded.
    pub fn saturating_add(self, other: impl Into<Extent>) -> Extent {
        let other = other.into();
        match (self.is_limit(), other.is_limit()) {
            (true, false) if other.is_open() => self,
            (false, true) if self.is_open() => other,
            _ => self.combine(other, Combine::Sum, i64::saturating_add),
        }
    }

    /// The difference; the nearest number that there is, if it is too large.
    pub fn saturating_sub(self, other: impl Into<Extent>) -> Extent {
        let other = other.into();
        match (self.known(), other.known()) {
            (Some(a), Some(b)) => a.saturating_sub(b).into(),
            _ => self.saturating_add(-other),
        }
    }

    /// The product; the nearest number that there is, if it is too large. So is one with a limit of what is unbounded.
    pub fn saturating_mul(self, other: impl Into<Extent>) -> Extent {
        let other = other.into();
        let (limit, factor) = if self.is_limit() { (self, other) } else { (other, self) };
        match limit.is_limit() && factor.is_open() {
            true if factor == 0 => Extent::ZERO,
            true if factor < 0 => -limit,
            true => limit,
            false => self.combine(other, Combine::Product, i64::saturating_mul),
        }
    }

    /// Whether it is too large for an extent, as limits of what is unbounded are.
    pub(crate) fn is_limit(self) -> bool {
        self.known().is_some_and(|n| n.unsigned_abs() >= 1 << 57)
    }

    #[track_caller]
    fn combine(self, other: Extent, f: Combine, known: fn(i64, i64) -> i64) -> Extent {
        match (self.expr, other.expr) {
            (None, None) => Extent::of(known(self.value, other.value)),
            _ => combined(f, self, other).unwrap_or_else(|| Extent::of(known(self.fixed(), other.fixed()))),
        }
    }
}

/// All as numbers ([`Extent::fixed`]).
#[track_caller]
pub fn fixed(all: Vec<Extent>) -> Vec<i64> {
    all.into_iter().map(Extent::fixed).collect()
}

impl From<i32> for Extent {
    fn from(value: i32) -> Extent {
        Extent::of(value.into())
    }
}

impl From<i64> for Extent {
    fn from(value: i64) -> Extent {
        Extent::of(value)
    }
}

/// Saturates at [`i64::MAX`], which is larger than the extent of any tensor.
impl From<u64> for Extent {
    fn from(value: u64) -> Extent {
        Extent::of(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Extent {
    fn from(value: usize) -> Extent {
        Extent::from(value as u64)
    }
}

macro_rules! operator {
    ($trait:ident $method:ident $combine:ident $known:ident) => {
        impl<T: Into<Extent>> $trait<T> for Extent {
            type Output = Extent;

            #[track_caller]
            fn $method(self, other: T) -> Extent {
                self.combine(other.into(), Combine::$combine, i64::$known)
            }
        }
    };
}
operator!(Add add Sum wrapping_add);
operator!(Sub sub Difference wrapping_sub);
operator!(Mul mul Product wrapping_mul);

impl Neg for Extent {
    type Output = Extent;

    fn neg(self) -> Extent {
        Extent::ZERO - self
    }
}

impl Sum for Extent {
    fn sum<I: Iterator<Item = Extent>>(iter: I) -> Extent {
        iter.fold(Extent::ZERO, |a, b| a + b)
    }
}

impl Product for Extent {
    fn product<I: Iterator<Item = Extent>>(iter: I) -> Extent {
        iter.fold(Extent::ONE, |a, b| a * b)
    }
}

impl<T: Into<Extent> + Copy> PartialEq<T> for Extent {
    #[track_caller]
    fn eq(&self, other: &T) -> bool {
        compare(*self, (*other).into(), Sign::Zero, Location::caller())
    }

    #[track_caller]
    #[allow(clippy::partialeq_ne_impl, reason = "the default method does not say who asks")]
    fn ne(&self, other: &T) -> bool {
        !compare(*self, (*other).into(), Sign::Zero, Location::caller())
    }
}

impl Eq for Extent {}

impl<T: Into<Extent> + Copy> PartialOrd<T> for Extent {
    #[track_caller]
    fn partial_cmp(&self, other: &T) -> Option<Ordering> {
        Some(ordering(*self, (*other).into(), Location::caller()))
    }

    #[track_caller]
    fn lt(&self, other: &T) -> bool {
        compare(*self, (*other).into(), Sign::Negative, Location::caller())
    }

    #[track_caller]
    fn le(&self, other: &T) -> bool {
        compare(*self, (*other).into(), Sign::NonPositive, Location::caller())
    }

    #[track_caller]
    fn gt(&self, other: &T) -> bool {
        compare(*self, (*other).into(), Sign::Positive, Location::caller())
    }

    #[track_caller]
    fn ge(&self, other: &T) -> bool {
        compare(*self, (*other).into(), Sign::NonNegative, Location::caller())
    }
}

impl Ord for Extent {
    #[track_caller]
    fn cmp(&self, other: &Extent) -> Ordering {
        ordering(*self, *other, Location::caller())
    }
}

fn ordering(a: Extent, b: Extent, place: &'static Location<'static>) -> Ordering {
    match () {
        _ if compare(a, b, Sign::Zero, place) => Ordering::Equal,
        _ if compare(a, b, Sign::Negative, place) => Ordering::Less,
        _ => Ordering::Greater,
    }
}

impl Hash for Extent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value.hash(state);
    }
}

impl Default for Extent {
    fn default() -> Extent {
        Extent::ZERO
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Trace::current().filter(|_| self.is_open()) {
            Some(trace) => f.write_str(&trace.display(*self)),
            None => self.value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
