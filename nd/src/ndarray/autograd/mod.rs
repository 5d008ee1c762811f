//! Gradients of imperative calls.
//!
//! Inside [`record`], calls whose operands depend on arrays with [`NDArray::attach_grad`] are written down.
//! [`backward`] makes one graph of the gradients of what was written down, compiles it like any other (once for
//! every structure of calls) and runs it as one operation.
//!
//! ```
//! # fn main() -> Result<(), tensorc_nd::Error> {
//! use tensorc_nd::autograd::{self, GradReq};
//! use tensorc_nd::{Runtime, RuntimeOptions};
//!
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let mut x = rt.array(&[3], &[1f32, 2.0, 3.0])?;
//! x.attach_grad(GradReq::Write)?;
//! let y = {
//!     let _scope = autograd::record();
//!     (&x * &x)?.sum(&[], false)?
//! };
//! y.backward()?;
//! assert_eq!(x.grad().map(|g| g.to_vec::<f32>()).transpose()?, Some(vec![2.0, 4.0, 6.0]));
//! # Ok(())
//! # }
//! ```

mod backward;
mod linear;

use std::sync::Arc;

pub use super::mode::{
    ModeGuard, is_recording, is_training, pause, predict_mode, record, record_prediction, train_mode,
};
pub use backward::{Backward, backward, grad};

pub use crate::error::AutogradError;
pub use crate::grad_req::GradReq;

use super::array::NDArray;
use super::tape::{Entry, Variable};
use crate::error::Error;

impl NDArray {
    /// Makes this handle, and clones made of it from now on, a variable: gradients by it are written or added to
    /// an array of its own, zeros at first. What the array was computed from is forgotten.
    ///
    /// # Errors
    /// The elements are no floats.
    pub fn attach_grad(&mut self, request: GradReq) -> Result<(), Error> {
        let gradient = self.runtime().full(self.device(), self.dtype(), self.dims(), 0.0)?;
        self.attach_grad_to(&gradient, request)
    }

    /// [`NDArray::attach_grad`] with an array that exists.
    ///
    /// # Errors
    /// The elements are no floats, or type, shape or device differ.
    pub fn attach_grad_to(&mut self, gradient: &NDArray, request: GradReq) -> Result<(), Error> {
        if !self.dtype().is_float() {
            return Err(AutogradError::Type { dtype: self.dtype() }.into());
        }
        if gradient.ty() != self.ty() || gradient.device() != self.device() {
            let (expected, found) = (self.ty().to_string(), gradient.ty().to_string());
            return Err(Error::Target { op: "attach_grad".into(), expected, found });
        }
        self.runtime().check("attach_grad", [gradient])?;
        let entry = match request {
            GradReq::Null => None,
            _ => Some(Entry::Variable(Arc::new(Variable { gradient: gradient.view().clone(), request }))),
        };
        self.set_entry(entry);
        Ok(())
    }

    /// The gradient array of a variable.
    pub fn grad(&self) -> Option<NDArray> {
        match self.entry() {
            Some(Entry::Variable(variable)) => Some(NDArray::new(self.runtime().clone(), variable.gradient.clone())),
            _ => None,
        }
    }

    /// The same memory, constant to gradients.
    pub fn detach(&self) -> NDArray {
        NDArray::new(self.runtime().clone(), self.view().clone())
    }

    /// Takes the gradient of the sum of the elements by every variable they were computed from.
    ///
    /// # Errors
    /// As [`backward()`].
    pub fn backward(&self) -> Result<(), Error> {
        backward(&[self], &[], Backward::default())
    }

    /// [`NDArray::backward`] with a gradient of this array, in place of ones.
    ///
    /// # Errors
    /// As [`backward()`].
    pub fn backward_from(&self, head: &NDArray) -> Result<(), Error> {
        backward(&[self], &[Some(head)], Backward::default())
    }
}
