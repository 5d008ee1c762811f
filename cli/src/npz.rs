//! Reading and writing `.npz` files: arrays by name.
//!
//! bf16 travels as u16 and narrow types as bytes, for numpy has no names for them; the model says what the bits mean.

use std::path::Path;

use tensorc::Tensor;
use tensorc::runtime::TensorRef;
use tensorc_data::formats::{read_arrays, write_arrays};

use super::failure::CliFailure;

/// Every array of the file, in name order.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, CliFailure> {
    let mut arrays = vec![];
    for (name, array) in read_arrays(path)? {
        arrays.push((name, Tensor::try_from(array)?));
    }
    arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(arrays)
}

/// Writes arrays by name.
pub fn write(path: &Path, arrays: &[(String, Tensor)]) -> Result<(), CliFailure> {
    let all = arrays.iter().map(|(name, t)| (name.as_str(), TensorRef::new(t.dtype(), t.dims(), t.bytes())));
    Ok(write_arrays(path, all)?)
}
