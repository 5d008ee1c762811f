//! Batches whose elements are converted to another type.

use half::{bf16, f16};
use tensorc_abi::DType;
use tensorc_runtime::{HostTensor, TensorMut};

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;
use crate::rounding::odd;

/// Converts data, and labels if that is asked for. Numbers that the type does not hold are rounded (floats, to the
/// nearest) or saturate (integers); fractions are cut off.
pub struct Cast<I> {
    iter: I,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
}

impl<I: DataIter> Cast<I> {
    /// Data of the type.
    pub fn data(iter: I, dtype: DType) -> Cast<I> {
        let data = iter.provide_data().iter().map(|desc| DataDesc { dtype, ..desc.clone() }).collect();
        Cast { data, labels: iter.provide_label().to_vec(), iter }
    }

    /// Labels of the type, too.
    #[must_use]
    pub fn labels(mut self, dtype: DType) -> Cast<I> {
        self.labels.iter_mut().for_each(|desc| desc.dtype = dtype);
        self
    }
}

/// An element in the widest type of its kind.
#[derive(Clone, Copy)]
enum WideNumber {
    Float(f64),
    Integer(i128),
}

impl WideNumber {
    fn float(self) -> f64 {
        match self {
            WideNumber::Float(x) => x,
            WideNumber::Integer(x) => x as f64,
        }
    }

    fn single(self) -> f32 {
        match self {
            WideNumber::Float(x) => x as f32,
            WideNumber::Integer(x) => x as f32,
        }
    }

    /// Saturated; NaN is 0.
    fn integer(self) -> i128 {
        match self {
            WideNumber::Float(x) => x as i128,
            WideNumber::Integer(x) => x,
        }
    }
}

fn numbers(tensor: &HostTensor) -> Box<dyn Iterator<Item = WideNumber> + '_> {
    let all = tensor.as_ref();
    macro_rules! read {
        ($($dtype:ident: $rust:ty => $kind:ident($wide:ty)),* $(,)?) => {
            match tensor.dtype() {
                DType::F16 => Box::new(all.elements::<f16>().map(|x| WideNumber::Float(x.to_f64()))),
                DType::BF16 => Box::new(all.elements::<bf16>().map(|x| WideNumber::Float(x.to_f64()))),
                DType::Bool => Box::new(all.elements::<u8>().map(|x| WideNumber::Integer(i128::from(x != 0)))),
                $(DType::$dtype => Box::new(all.elements::<$rust>().map(|x| WideNumber::$kind(<$wide>::from(x)))),)*
                _ => Box::new(std::iter::empty()),
            }
        };
    }
    read! {
        F32: f32 => Float(f64), F64: f64 => Float(f64), I8: i8 => Integer(i128), I16: i16 => Integer(i128),
        I32: i32 => Integer(i128), I64: i64 => Integer(i128), U8: u8 => Integer(i128), U16: u16 => Integer(i128),
        U32: u32 => Integer(i128), U64: u64 => Integer(i128),
    }
}

fn write(out: &mut TensorMut<'_>, from: impl Iterator<Item = WideNumber>) {
    fn within<T: TryFrom<i128>>(x: i128, least: T, most: T) -> T {
        T::try_from(x).unwrap_or(if x < 0 { least } else { most })
    }
    macro_rules! integers {
        ($($dtype:ident: $rust:ty),*) => {
            match out.dtype {
                DType::F32 => out.write(from.map(WideNumber::single)),
                DType::F64 => out.write(from.map(WideNumber::float)),
                DType::F16 => out.write(from.map(|x| f16::from_f32(odd(x.float())))),
                DType::BF16 => out.write(from.map(|x| bf16::from_f32(odd(x.float())))),
                DType::Bool => out.write(from.map(|x| u8::from(x.float() != 0.0))),
                $(DType::$dtype => out.write(from.map(|x| within(x.integer(), <$rust>::MIN, <$rust>::MAX))),)*
                _ => {}
            }
        };
    }
    integers!(I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64);
}

/// The same numbers in another type.
/// Batches are not converted to or from elements of narrow types.
#[derive(Debug, thiserror::Error)]
#[error("elements of {0} are not converted")]
struct NarrowElements(DType);

fn cast(tensor: HostTensor, dtype: DType) -> Result<HostTensor, DataError> {
    if tensor.dtype() == dtype {
        return Ok(tensor);
    }
    if let Some(narrow) = [tensor.dtype(), dtype].into_iter().find(|dtype| dtype.is_narrow()) {
        return Err(DataError::source("cast", NarrowElements(narrow)));
    }
    let mut bytes = vec![0; tensor.bytes().len() / tensor.dtype().size() * dtype.size()];
    write(&mut TensorMut::new(dtype, tensor.dims(), &mut bytes), numbers(&tensor));
    HostTensor::new(dtype, tensor.dims(), bytes).map_err(|e| DataError::source("cast", e))
}

impl<I: DataIter> DataIter for Cast<I> {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.labels
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let Some(batch) = self.iter.next()? else { return Ok(None) };
        let all = |tensors: Vec<HostTensor>, descs: &[DataDesc]| -> Result<Vec<HostTensor>, DataError> {
            tensors.into_iter().zip(descs).map(|(tensor, desc)| cast(tensor, desc.dtype)).collect()
        };
        let (data, labels) = (all(batch.data, &self.data)?, all(batch.labels, &self.labels)?);
        Ok(Some(Batch { data, labels, pad: batch.pad, index: batch.index }))
    }

    fn reset(&mut self) -> Result<(), DataError> {
        self.iter.reset()
    }

    fn position(&self) -> Position {
        self.iter.position()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.iter.seek(position)
    }

    fn batches(&self) -> Option<u64> {
        self.iter.batches()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_converts_to_every_other() {
        for from in DType::COMPUTED {
            let ones = cast(HostTensor::from_slice(&[2], &[1u8, 0]).unwrap(), from).unwrap();
            for to in DType::COMPUTED {
                let there = cast(ones.clone(), to).unwrap();
                assert_eq!(cast(there, DType::U8).unwrap().to_vec::<u8>().unwrap(), [1, 0], "{from} {to}");
            }
        }
        let wide = HostTensor::from_slice(&[3], &[i64::MAX, -5, 300]).unwrap();
        assert_eq!(cast(wide.clone(), DType::U8).unwrap().to_vec::<u8>().unwrap(), [255, 0, 255]);
        assert_eq!(cast(wide, DType::I64).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, -5, 300]);
        let ties = HostTensor::from_slice(
            &[2],
            &[1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-8) + 2f64.powi(-40)],
        );
        let half: Vec<f16> = cast(ties.clone().unwrap(), DType::F16).unwrap().to_vec().unwrap();
        let brain: Vec<bf16> = cast(ties.unwrap(), DType::BF16).unwrap().to_vec().unwrap();
        assert_eq!((half[0].to_f64(), brain[1].to_f64()), (1.0 + 2f64.powi(-10), 1.0 + 2f64.powi(-7)));
        let long = HostTensor::from_slice(&[1], &[9_007_199_791_611_905i64]).unwrap();
        assert_eq!(cast(long, DType::F32).unwrap().to_vec::<f32>().unwrap(), [9_007_200_328_482_816.0]);
        let floats = HostTensor::from_slice(&[3], &[f32::NAN, -2.7, 1e30]).unwrap();
        assert_eq!(cast(floats, DType::I32).unwrap().to_vec::<i32>().unwrap(), [0, -2, i32::MAX]);
    }
}
