//! Arithmetic and comparison of symbols, with symbols and with numbers.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use super::Symbol;
use super::compose::op;
use super::error::SymbolError;
use super::text::AttrText;

type Result = std::result::Result<Symbol, SymbolError>;

fn binary(name: &str, a: &Symbol, b: &Symbol) -> Result {
    op(name).input(a).input(b).build()
}

fn scalar(name: &str, a: &Symbol, number: impl AttrText) -> Result {
    op(name).input(a).param("scalar", number).build()
}

macro_rules! operators {
    ($($trait:ident $method:ident $whole:literal $number:literal $reverse:literal;)*) => { $(
        impl $trait<&Symbol> for &Symbol {
            type Output = Result;
            fn $method(self, other: &Symbol) -> Result {
                binary($whole, self, other)
            }
        }
        operators!(@numbers $trait $method $number $reverse f64 i64);
    )* };
    (@numbers $trait:ident $method:ident $number:literal $reverse:literal $($t:ty)*) => { $(
        impl $trait<$t> for &Symbol {
            type Output = Result;
            fn $method(self, other: $t) -> Result {
                scalar($number, self, other)
            }
        }
        impl $trait<&Symbol> for $t {
            type Output = Result;
            fn $method(self, other: &Symbol) -> Result {
                scalar($reverse, other, self)
            }
        }
    )* };
}

operators! {
    Add add "_Plus" "_PlusScalar" "_PlusScalar";
    Sub sub "_Minus" "_MinusScalar" "_RMinusScalar";
    Mul mul "_Mul" "_MulScalar" "_MulScalar";
    Div div "_Div" "_DivScalar" "_RDivScalar";
    Rem rem "_Mod" "_ModScalar" "_RModScalar";
}

impl Neg for &Symbol {
    type Output = Result;
    fn neg(self) -> Result {
        scalar("_MulScalar", self, -1.0)
    }
}

/// The other side of an operation: a symbol or a number.
pub trait Other {
    /// Applies the operator for symbols or the one for numbers.
    ///
    /// # Errors
    /// An operand is not a single value.
    fn apply(self, left: &Symbol, whole: &str, number: &str) -> Result;
}

impl Other for &Symbol {
    fn apply(self, left: &Symbol, whole: &str, _: &str) -> Result {
        binary(whole, left, self)
    }
}

macro_rules! others {
    ($($t:ty)*) => { $(impl Other for $t {
        fn apply(self, left: &Symbol, _: &str, number: &str) -> Result {
            scalar(number, left, self)
        }
    })* };
}

others!(f64 f32 i32 i64);

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $whole:literal $number:literal;)*) => {
        impl Symbol {
            $($(#[$doc])*
            ///
            /// # Errors
            /// An operand is not a single value.
            pub fn $name(&self, other: impl Other) -> Result {
                other.apply(self, $whole, $number)
            })*
        }
    };
}

functions! {
    /// `self` to the power of `other`.
    pow "_Power" "_PowerScalar";
    /// The greater of both, element by element.
    maximum "_Maximum" "_MaximumScalar";
    /// The lesser of both, element by element.
    minimum "_Minimum" "_MinimumScalar";
    /// 1 where both are equal, 0 elsewhere, as are the other comparisons.
    equal "_equal" "_equal_scalar";
    /// `self != other`.
    not_equal "_not_equal" "_not_equal_scalar";
    /// `self > other`.
    greater "_greater" "_greater_scalar";
    /// `self >= other`.
    greater_equal "_greater_equal" "_greater_equal_scalar";
    /// `self < other`.
    lesser "_lesser" "_lesser_scalar";
    /// `self <= other`.
    lesser_equal "_lesser_equal" "_lesser_equal_scalar";
}
