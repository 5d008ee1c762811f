//! The idx files in which MNIST and data sets like it are distributed.

use std::path::Path;

use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

use super::TrainError;
use crate::{Error, Tensor};

/// Reads an idx file: elements of its type, in the shape it names.
///
/// # Errors
/// The file cannot be read, is no idx file, or does not hold what its header says.
pub fn read_idx(path: impl AsRef<Path>) -> Result<Tensor, Error> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&bytes).map_err(|why| TrainError::Idx { path: path.to_owned(), why }.into())
}

fn parse(bytes: &[u8]) -> Result<Tensor, String> {
    let [0, 0, code, rank, rest @ ..] = bytes else {
        return Err("not an idx file: it must begin with two zeros".into());
    };
    let dtype = match code {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0B => DType::I16,
        0x0C => DType::I32,
        0x0D => DType::F32,
        0x0E => DType::F64,
        _ => return Err(format!("element type {code:#04x} is unknown")),
    };
    let (extents, elements) =
        rest.split_at_checked(4 * usize::from(*rank)).ok_or("the file ends in its header".to_owned())?;
    let dims: Vec<u64> = extents.as_chunks::<4>().0.iter().map(|d| u64::from(u32::from_be_bytes(*d))).collect();
    let count = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).unwrap_or(u64::MAX);
    if count.checked_mul(dtype.size() as u64) != Some(elements.len() as u64) {
        return Err(format!("{} bytes of elements do not fill {dims:?} of {dtype}", elements.len()));
    }
    let big_endian = elements.chunks_exact(dtype.size());
    let little: Vec<u8> = big_endian.flat_map(|element| element.iter().rev().copied()).collect();
    Tensor::from_bytes(dtype, &dims, little).map_err(|e| e.to_string())
}

impl Tensor {
    /// The elements converted to f32: `(element - offset) * scale`, computed in f64.
    ///
    /// # Errors
    /// The shape has more bytes than can be addressed.
    pub fn to_scaled(&self, offset: f64, scale: f64) -> Result<Tensor, Error> {
        let convert = |i| Scalar::from_f64(DType::F32, (self.0.get(i).as_f64() - offset) * scale);
        Ok(Tensor(TensorData::from_fn(DenseType::new(DType::F32, self.dims()), convert)))
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// The numbers of elements differ.
    pub fn reshape(&self, dims: &[u64]) -> Result<Tensor, Error> {
        let elements = self.0.len() as usize;
        self.0.reshape(dims).map(Tensor).ok_or(Error::TensorSize { elements, dims: dims.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_big_endian_and_headers_are_checked() {
        let file = [0, 0, 0x0B, 2, 0, 0, 0, 2, 0, 0, 0, 1, 1, 2, 255, 254];
        let tensor = parse(&file).unwrap();
        assert_eq!((tensor.dtype(), tensor.dims()), (DType::I16, &[2, 1][..]));
        assert_eq!(tensor.0.to_i64s(), [258, -2]);
        for (wrong, why) in [
            (&file[..15], "3 bytes of elements do not fill [2, 1] of i16"),
            (&file[..10], "the file ends in its header"),
            (&[0, 0, 7, 0][..], "element type 0x07 is unknown"),
            (&[1, 0, 8, 0][..], "not an idx file: it must begin with two zeros"),
        ] {
            assert_eq!(parse(wrong).unwrap_err(), why);
        }
    }
}
