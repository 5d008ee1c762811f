//! The numbers of a plan: known ones where it runs, expressions of symbols where it is made for many shapes.

use core::fmt::Debug;
use core::hash::Hash;
use core::ops::{Add, Div, Mul, Rem, Sub};

/// An extent, a size or a position.
pub trait Number:
    Copy
    + Debug
    + Default
    + Ord
    + Hash
    + From<u64>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
{
    /// A distance, which may be negative.
    type Signed: Copy + Debug + Default + Eq + Hash;

    /// A distance as a word of 64 bits ([`crate::image`]).
    fn of_signed(n: Self::Signed) -> Self;

    /// The sum; the greatest number there is, if it is too large.
    #[must_use]
    fn saturating_add(self, other: Self) -> Self;

    /// The product; the greatest number there is, if it is too large.
    #[must_use]
    fn saturating_mul(self, other: Self) -> Self;
}

impl Number for u64 {
    type Signed = i64;

    fn of_signed(n: i64) -> u64 {
        n as u64
    }

    fn saturating_add(self, other: u64) -> u64 {
        self.saturating_add(other)
    }

    fn saturating_mul(self, other: u64) -> u64 {
        self.saturating_mul(other)
    }
}
