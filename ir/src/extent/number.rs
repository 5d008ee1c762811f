//! Extents as the numbers of plans.

use std::ops::{Div, Rem};

use tensorc_abi::{Convert, Number};

use super::{Binding, Extent};

impl<T: Into<Extent>> Div<T> for Extent {
    type Output = Extent;

    #[track_caller]
    fn div(self, by: T) -> Extent {
        self.div_floor(by)
    }
}

impl<T: Into<Extent>> Rem<T> for Extent {
    type Output = Extent;

    #[track_caller]
    fn rem(self, by: T) -> Extent {
        self.rem_floor(by)
    }
}

impl Number for Extent {
    type Signed = Extent;

    fn of_signed(n: Extent) -> Extent {
        n
    }

    fn saturating_add(self, other: Extent) -> Extent {
        self.saturating_add(other)
    }

    fn saturating_mul(self, other: Extent) -> Extent {
        self.saturating_mul(other)
    }
}

/// The numbers of a shape.
impl Convert<Extent, u64> for Binding {
    #[inline]
    fn number(&self, n: Extent) -> u64 {
        self.value(n).max(0) as u64
    }

    #[inline]
    fn signed(&self, n: Extent) -> i64 {
        self.value(n)
    }
}

/// The numbers of the example, for what decides about speed alone.
#[derive(Clone, Copy, Debug)]
pub struct Example;

impl Convert<Extent, u64> for Example {
    fn number(&self, n: Extent) -> u64 {
        n.example().max(0) as u64
    }

    fn signed(&self, n: Extent) -> i64 {
        n.example()
    }
}

/// Known numbers as extents.
#[derive(Clone, Copy, Debug)]
pub struct Known;

impl Convert<u64, Extent> for Known {
    fn number(&self, n: u64) -> Extent {
        n.into()
    }

    fn signed(&self, n: i64) -> Extent {
        n.into()
    }
}

/// Numbers that are fixed ([`Extent::fixed`]).
#[derive(Clone, Copy, Debug)]
pub struct Fixed;

impl Convert<Extent, u64> for Fixed {
    fn number(&self, n: Extent) -> u64 {
        n.fixed().max(0) as u64
    }

    fn signed(&self, n: Extent) -> i64 {
        n.fixed()
    }
}
