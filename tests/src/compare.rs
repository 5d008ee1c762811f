//! Comparison of tensors with expected ones.

use tensorc::ir::{DenseType, TensorData};
use tensorc::{DType, Tensor};

/// Allowed distance of an element from the expected one.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

impl Tolerance {
    /// As the runner of the ONNX backend tests; bfloat16 has 8 bits of precision.
    pub fn onnx(dtype: DType) -> Tolerance {
        let relative = if dtype == DType::BF16 { 1.0 / 64.0 } else { 1e-3 };
        Tolerance { absolute: 1e-7, relative }
    }

    /// Whether `got` may stand for `want`: NaN for NaN, and infinities exactly.
    pub fn accepts(self, got: f64, want: f64) -> bool {
        got == want
            || (got.is_nan() && want.is_nan())
            || (got - want).abs() <= self.absolute + self.relative * want.abs() && want.is_finite()
    }
}

/// The tensor as a value of the interpreter.
pub fn data(tensor: &Tensor) -> TensorData {
    let ty = DenseType::new(tensor.dtype(), tensor.dims());
    TensorData::new(ty, tensor.bytes().to_vec().into()).expect("a tensor fills its shape")
}

/// The value of the interpreter as a tensor. A copy: stored bytes need not be aligned to elements.
pub fn tensor(data: &TensorData) -> Tensor {
    Tensor::from_bytes(data.dtype(), data.dims(), data.bytes().to_vec()).expect("a value fills its shape")
}

/// Says where two tensors differ in type, shape or by more than the tolerance.
///
/// # Errors
/// The first such place, and how many there are.
pub fn compare(got: &TensorData, want: &TensorData, tolerance: Tolerance) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("got {}, expected {}", got.ty, want.ty));
    }
    let differs = |(_, (g, w)): &(usize, (f64, f64))| !tolerance.accepts(*g, *w);
    let elements = || got.iter().map(|x| x.as_f64()).zip(want.iter().map(|x| x.as_f64())).enumerate();
    match elements().find(differs) {
        None => Ok(()),
        Some((at, (g, w))) => {
            let count = elements().filter(differs).count();
            Err(format!("{count} of {} elements differ; element {at}: got {g:?}, expected {w:?}", want.len()))
        }
    }
}
