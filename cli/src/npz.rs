//! Reading and writing `.npz` files: arrays by name.
//!
//! bf16 travels as u16 and narrow types as bytes, for numpy has no names for them; the model says what the bits mean.

use std::path::Path;

use tensorc::runtime::TensorRef;
use tensorc::{Array, Tensor, TextArray};
use tensorc_data::formats::{ArrayRef, StoredArray, read_stored_arrays, write_stored_arrays};

use super::failure::CliFailure;

/// Every array of the file, in name order.
pub fn read(path: &Path) -> Result<Vec<(String, Array)>, CliFailure> {
    let mut arrays = vec![];
    for (name, array) in read_stored_arrays(path)? {
        let array = match array {
            StoredArray::Numbers(tensor) => Tensor::try_from(tensor)?.into(),
            StoredArray::Texts(stored) => {
                let texts = TextArray::of(&stored.dims, &stored.texts);
                texts.ok_or_else(|| format!("array `{name}`: the texts do not fill {:?}", stored.dims))?.into()
            }
        };
        arrays.push((name, array));
    }
    arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(arrays)
}

/// Writes arrays by name.
pub fn write(path: &Path, arrays: &[(String, Array)]) -> Result<(), CliFailure> {
    let texts = arrays.iter().map(|(_, array)| match array {
        Array::Texts(texts) => texts.texts().iter().map(|text| &**text).collect(),
        Array::Numbers(_) => vec![],
    });
    let texts: Vec<Vec<&str>> = texts.collect();
    let all = arrays.iter().zip(&texts).map(|((name, array), texts)| match array {
        Array::Numbers(t) => (name.as_str(), ArrayRef::Numbers(TensorRef::new(t.dtype(), t.dims(), t.bytes()))),
        Array::Texts(array) => (name.as_str(), ArrayRef::Texts(array.dims(), texts)),
    });
    Ok(write_stored_arrays(path, all)?)
}
