//! Inputs made up for models, to measure them and to compare what is computed from the same values.

use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, Rng};
use tensorc_ops::texts::TextArray;
use tensorc_runtime::host_tensor::byte_len;

use crate::error::Error;
use crate::model::Model;
use crate::tensor::Tensor;
use crate::texts::Array;

/// Inputs of the given types, in signature order: the same for the same types.
///
/// # Errors
/// There is no memory for them.
pub fn random_inputs(model: &Model, types: &[DenseType]) -> Result<Vec<(String, Tensor)>, Error> {
    let named = model.inputs().into_iter().zip(types).zip(1..);
    named.map(|(((name, _), ty), seed)| Ok((name.clone(), random(&name, ty, seed)?))).collect()
}

/// As [`random_inputs`], with texts of the model for inputs that are texts.
///
/// # Errors
/// As [`random_inputs`].
pub fn random_arrays(model: &Model, types: &[DenseType]) -> Result<Vec<(String, Array)>, Error> {
    let Some(texts) = model.texts() else {
        return Ok(random_inputs(model, types)?.into_iter().map(|(name, tensor)| (name, tensor.into())).collect());
    };
    let text = |number: i64| {
        let known = usize::try_from(number).ok().and_then(|at| texts.list().get(at)).cloned();
        known.unwrap_or_else(|| format!("text {number}").into())
    };
    let one = |(name, tensor): (String, Tensor)| {
        if !texts.is_input(&name) {
            return Ok((name, tensor.into()));
        }
        let made = TextArray::new(tensor.dims(), tensor.data().to_i64s().into_iter().map(text).collect());
        let size = || Error::TensorSize { elements: 0, dims: tensor.dims().to_vec() };
        Ok((name, made.ok_or_else(size)?.into()))
    };
    random_inputs(model, types)?.into_iter().map(one).collect()
}

/// Values a model can take without harm: floats in [-1, 1), small non-negative integers, true.
fn random(name: &str, DenseType { dtype, dims }: &DenseType, seed: u64) -> Result<Tensor, Error> {
    let too_large = || Error::InputSize { name: name.to_owned(), dims: dims.to_vec(), dtype: *dtype };
    let total = byte_len(*dtype, dims).and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_large)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(total).map_err(|_| too_large())?;
    let mut rng = Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut next = || (rng.next_u64() >> 40) as f64 / f64::from(1u32 << 24);
    for _ in 0..total / dtype.size() {
        let value = match *dtype {
            d if d.is_float() || d.is_narrow_float() => next() * 2.0 - 1.0,
            // 0 or 1, of two's complement with 2 bits, too.
            DType::Bool => 1.0,
            _ => (next() * 2.0).floor(),
        };
        let bits = Scalar::from_f64(*dtype, value).bits.to_le_bytes();
        bytes.extend_from_slice(&bits[..dtype.size()]);
    }
    Tensor::from_bytes(*dtype, dims, bytes)
}
