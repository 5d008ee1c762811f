//! Arrays in files: MXNet's list format, in which its parameters are saved.

use std::path::Path;

use tensorc_frontend::mxnet::params::{self, ArrayList, SavedArray, SavedDevice, SavedDeviceKind};
use tensorc_runtime::{Device, DeviceKind};

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::Tensor;

impl Runtime {
    /// Waits for arrays and saves them under names.
    ///
    /// The file is written beside its place and then moved there: it is complete or not there. Arrays
    /// of rank 0 and with extents of 0 need version 3 of the format, which MXNet reads since 1.6.
    ///
    /// # Errors
    /// What computed an array failed, or the file cannot be written.
    pub fn save<'a>(
        &self,
        path: impl AsRef<Path>,
        arrays: impl IntoIterator<Item = (&'a str, &'a NDArray)>,
    ) -> Result<(), Error> {
        let saved = arrays.into_iter().map(|(name, array)| Ok((name, saved(array)?)));
        write(path.as_ref(), &ArrayList::named(saved.collect::<Result<Vec<_>, Error>>()?))
    }

    /// [`Runtime::save`] without names.
    ///
    /// # Errors
    /// As [`Runtime::save`].
    pub fn save_list<'a>(
        &self,
        path: impl AsRef<Path>,
        arrays: impl IntoIterator<Item = &'a NDArray>,
    ) -> Result<(), Error> {
        let saved = arrays.into_iter().map(saved).collect::<Result<Vec<_>, Error>>()?;
        write(path.as_ref(), &ArrayList::unnamed(saved))
    }

    /// Loads a file of any version of the format to a device, whatever device the arrays were on.
    /// Sparse arrays become dense.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or holds an array without elements or of a type there is
    /// none for; or memory is short.
    pub fn load(&self, path: impl AsRef<Path>, device: Device) -> Result<Vec<(Option<String>, NDArray)>, Error> {
        let list = params::load(path.as_ref())?;
        let arrays = list.arrays.into_iter().enumerate().map(|(index, (name, array))| {
            let data = array.to_dense_of(index, name.as_deref())?;
            Ok((name, self.from_tensor(&Tensor::from(data), device)?))
        });
        arrays.collect()
    }
}

fn write(path: &Path, list: &ArrayList) -> Result<(), Error> {
    Ok(params::save(path, list, list.version())?)
}

fn saved(array: &NDArray) -> Result<SavedArray, Error> {
    let kind = match array.device().kind {
        DeviceKind::Cpu => SavedDeviceKind::Cpu,
        DeviceKind::CpuPinned => SavedDeviceKind::CpuPinned,
        DeviceKind::Accelerator => SavedDeviceKind::Gpu,
    };
    let device = SavedDevice { kind, id: array.device().id.into() };
    Ok(SavedArray::Dense { device, data: array.to_tensor()?.into() })
}
