//! Rust's arithmetic operators on arrays, and the most used calls as methods.
//!
//! Arithmetic broadcasts as numpy does and never converts types: operands of different types are an
//! error. A number takes the array's type; for integers it is truncated. `a / b` of integers rounds
//! toward zero.

use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Rem, Sub, SubAssign};

use tensorc_ir::op::OpRef;
use tensorc_runtime::array;

use super::array::NDArray;
use super::call::{Call, CallOperand};
use crate::error::Error;
use tensorc::DType;

impl NDArray {
    pub(super) fn call(&self, def: &OpRef) -> Call<'_> {
        Call::new(self.runtime(), def.clone())
    }

    /// Applies an operator of one operand, by its name.
    ///
    /// # Errors
    /// It does not exist or does not take this array.
    pub fn apply(&self, op: &str) -> Result<NDArray, Error> {
        self.runtime().op(op)?.arg(self).invoke()
    }

    /// The matrix product, batched and broadcast as numpy's `matmul`.
    ///
    /// # Errors
    /// Types or extents do not fit.
    pub fn matmul(&self, other: &NDArray) -> Result<NDArray, Error> {
        self.runtime().op("matmul")?.arg(self).arg(other).invoke()
    }

    /// The sum over axes, all if none are given; an integer's wraps.
    ///
    /// # Errors
    /// An axis does not exist.
    pub fn sum(&self, axes: &[i64], keepdims: bool) -> Result<NDArray, Error> {
        self.reduce("reduce_sum", axes, keepdims)
    }

    /// The arithmetic mean over axes, all if none are given.
    ///
    /// # Errors
    /// As [`NDArray::sum`].
    pub fn mean(&self, axes: &[i64], keepdims: bool) -> Result<NDArray, Error> {
        self.reduce("reduce_mean", axes, keepdims)
    }

    fn reduce(&self, op: &str, axes: &[i64], keepdims: bool) -> Result<NDArray, Error> {
        let call = self.runtime().op(op)?.arg(self).param("keepdims", keepdims);
        match axes {
            [] => call.invoke(),
            axes => call.arg(axes).invoke(),
        }
    }

    /// The axes in another order.
    ///
    /// # Errors
    /// `order` is not a permutation of the axes.
    pub fn transpose(&self, order: &[i64]) -> Result<NDArray, Error> {
        self.runtime().op("transpose")?.arg(self).param("perm", order.to_vec()).invoke()
    }

    /// The elements converted: floats to nearest even, integers truncate and saturate.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn cast(&self, to: DType) -> Result<NDArray, Error> {
        self.runtime().op("cast")?.arg(self).param("to", to).invoke()
    }

    /// Lets the array's value be the error that kept an in-place operator from being called.
    fn poison(&self, error: Error) {
        if self.settle().is_ok() {
            // An engine that refuses even this reports so to whoever waits for the array.
            let _ = array::launch(self.runtime().space(), self.assigning(vec![]), move |_, _| Err(error.into()));
        }
    }

    fn in_place(&mut self, def: &OpRef, other: CallOperand<'_>) {
        let this = self.clone();
        if let Err(error) = this.call(def).arg(&this).arg(other).into(&[&this]) {
            self.poison(error);
        }
    }
}

impl<'a> From<&'a &NDArray> for CallOperand<'a> {
    fn from(array: &'a &NDArray) -> CallOperand<'a> {
        CallOperand::Array(array)
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident $assign_trait:ident $assign:ident $field:ident;)*) => { $(
        binary!(forward $trait $method $field: &NDArray, &NDArray; NDArray, &NDArray; &NDArray, NDArray; NDArray, NDArray);

        impl $trait<f64> for &NDArray {
            type Output = Result<NDArray, Error>;

            fn $method(self, other: f64) -> Result<NDArray, Error> {
                self.call(&self.runtime().inner().common.$field).arg(self).arg(other).invoke()
            }
        }

        impl $trait<f64> for NDArray {
            type Output = Result<NDArray, Error>;

            fn $method(self, other: f64) -> Result<NDArray, Error> {
                $trait::$method(&self, other)
            }
        }

        impl $trait<&NDArray> for f64 {
            type Output = Result<NDArray, Error>;

            fn $method(self, other: &NDArray) -> Result<NDArray, Error> {
                other.call(&other.runtime().inner().common.$field).arg(self).arg(other).invoke()
            }
        }

        /// The right operand may itself be a call that failed.
        impl $trait<Result<NDArray, Error>> for &NDArray {
            type Output = Result<NDArray, Error>;

            fn $method(self, other: Result<NDArray, Error>) -> Result<NDArray, Error> {
                $trait::$method(self, &other?)
            }
        }

        binary!(assign $assign_trait $assign $field);
    )* };
    (assign none none $field:ident) => {};
    (assign $assign_trait:ident $assign:ident $field:ident) => {
        /// Writes the array's own memory. What is wrong with the call is reported by the next read of
        /// that memory, through any handle.
        impl $assign_trait<f64> for NDArray {
            fn $assign(&mut self, other: f64) {
                let def = self.runtime().inner().common.$field.clone();
                self.in_place(&def, CallOperand::Scalar(other));
            }
        }

        /// Writes the array's own memory. What is wrong with the call is reported by the next read of
        /// that memory, through any handle.
        impl $assign_trait<&NDArray> for NDArray {
            fn $assign(&mut self, other: &NDArray) {
                let def = self.runtime().inner().common.$field.clone();
                self.in_place(&def, CallOperand::Array(other));
            }
        }
    };
    (forward $trait:ident $method:ident $field:ident: $($left:ty, $right:ty);*) => { $(
        impl $trait<$right> for $left {
            type Output = Result<NDArray, Error>;

            fn $method(self, other: $right) -> Result<NDArray, Error> {
                let (a, b): (&NDArray, &NDArray) = (&self, &other);
                a.call(&a.runtime().inner().common.$field).arg(a).arg(b).invoke()
            }
        }
    )* };
}

binary! {
    Add add AddAssign add_assign add;
    Sub sub SubAssign sub_assign sub;
    Mul mul MulAssign mul_assign mul;
    Div div DivAssign div_assign div;
    Rem rem none none rem;
}

impl Neg for &NDArray {
    type Output = Result<NDArray, Error>;

    fn neg(self) -> Result<NDArray, Error> {
        self.call(&self.runtime().inner().common.neg).arg(self).invoke()
    }
}

impl Neg for NDArray {
    type Output = Result<NDArray, Error>;

    fn neg(self) -> Result<NDArray, Error> {
        -&self
    }
}
