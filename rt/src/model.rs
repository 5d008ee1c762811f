//! What generated code hands over of a compiled model, and tensors as callers give them.

use tensorc_abi::KernelFn;
use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, ImageError, LIBRARIES, MAX_RANK, header, step, variant};

use crate::library::Library;

/// A compiled model in the data section of its artifact.
#[repr(C)]
pub struct Model {
    image: *const u64,
    /// Words of the image.
    len: u64,
    /// [`header::KERNELS`] functions.
    kernels: *const KernelFn,
    /// The block of weights, if it is inside the artifact; else null.
    weights: *const u8,
    /// Those of [`LIBRARIES`] that it needs; others are null, so that nothing links what it does not need.
    libraries: [*const Library; LIBRARIES.len()],
}

impl Model {
    /// The image, checked.
    pub fn image(&'static self) -> Result<Image<'static>, Status> {
        // SAFETY: generated code gives an image of this length, which nobody writes.
        let words = unsafe { core::slice::from_raw_parts(self.image, self.len as usize) };
        Image::new(words).map_err(|error| match error {
            ImageError::Damaged => status::DAMAGED,
            ImageError::Version(_) => status::VERSION,
        })
    }

    pub fn embedded_weights(&self) -> *const u8 {
        self.weights
    }

    pub fn library(&self, kind: usize) -> Option<&'static Library> {
        // SAFETY: generated code gives null or a library of this crate.
        self.libraries.get(kind).and_then(|library| unsafe { library.as_ref() })
    }

    /// A generated kernel by its number.
    pub fn kernel(&self, image: &Image<'_>, number: u64) -> Option<KernelFn> {
        let exists = number < image.word(header::KERNELS);
        // SAFETY: the table has an entry for every kernel.
        exists.then(|| unsafe { *self.kernels.add(number as usize) })
    }
}

/// The extents of a tensor; none if there is no shape.
pub fn dims(tensor: &Tensor) -> &[i64] {
    match tensor.dims.is_null() || tensor.rank as usize > MAX_RANK {
        true => &[],
        // SAFETY: the caller gives as many extents as the rank says.
        false => unsafe { core::slice::from_raw_parts(tensor.dims, tensor.rank as usize) },
    }
}

/// Offsets of the records of all variants.
pub fn variants(image: &Image<'static>) -> impl Iterator<Item = usize> + use<> {
    let (count, at, image) = (image.size(header::VARIANTS), image.size(header::VARIANTS + 1), *image);
    (0..count).map(move |i| image.size(at + i))
}

/// Records of the steps of a variant.
pub fn steps(image: &Image<'static>, at: usize) -> impl Iterator<Item = &'static [u64; step::WORDS]> + use<> {
    let (count, first, image) = (image.size(at + variant::STEPS), image.size(at + variant::STEPS + 1), *image);
    (0..count).map_while(move |i| image.record(first + i * step::WORDS))
}
