//! Borrowed dense row-major tensors at the edge between a caller and a plan.

use tensorc_abi::DType;

/// A Rust type with the memory layout of a [`DType`], all of whose bit patterns are valid.
///
/// # Safety
/// Implementors have no padding, no invalid bit pattern, and the size of `DTYPE`.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type that it is laid out as.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => { $(
        // SAFETY: a primitive number has no padding and no invalid bit pattern.
        unsafe impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )* };
}

elements! {
    f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => BF16, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

/// A tensor to read: row-major, little-endian elements without gaps.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: &'a [u64],
    /// The elements; its length and alignment are checked when the tensor is used.
    pub data: &'a [u8],
}

impl<'a> TensorRef<'a> {
    /// A tensor of bytes, which are checked when it is used.
    pub fn new(dtype: DType, dims: &'a [u64], data: &'a [u8]) -> Self {
        TensorRef { dtype, dims, data }
    }

    /// A tensor of the elements of a slice, whose number is checked when it is used.
    pub fn from_slice<T: Element>(dims: &'a [u64], values: &'a [T]) -> Self {
        // SAFETY: an `Element` has no padding, so its bytes are all initialised.
        let data = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        TensorRef { dtype: T::DTYPE, dims, data }
    }
}

impl<'a> TensorRef<'a> {
    /// The elements in row-major order, wherever they lie; trailing bytes short of one are left out.
    pub fn elements<T: Element>(&self) -> impl ExactSizeIterator<Item = T> + 'a {
        // SAFETY: a chunk has the size of T, any bits of that number are a T, and the read does not
        // ask for alignment.
        self.data.chunks_exact(size_of::<T>()).map(|bytes| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// The elements in place, if they have this type and are aligned for it.
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        if self.dtype != T::DTYPE {
            return None;
        }
        // SAFETY: any bits are elements of T; `align_to` leaves out what is not aligned.
        match unsafe { self.data.align_to::<T>() } {
            ([], values, []) => Some(values),
            _ => None,
        }
    }
}

/// A tensor to write, in the layout of [`TensorRef`].
#[derive(Debug)]
pub struct TensorMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: &'a [u64],
    /// The elements; its length and alignment are checked when the tensor is used.
    pub data: &'a mut [u8],
}

impl<'a> TensorMut<'a> {
    /// A tensor of bytes, which are checked when it is used.
    pub fn new(dtype: DType, dims: &'a [u64], data: &'a mut [u8]) -> Self {
        TensorMut { dtype, dims, data }
    }

    /// A tensor of the elements of a slice, whose number is checked when it is used.
    pub fn from_slice<T: Element>(dims: &'a [u64], values: &'a mut [T]) -> Self {
        // SAFETY: an `Element` has no padding and accepts every bit pattern written to it.
        let data = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) };
        TensorMut { dtype: T::DTYPE, dims, data }
    }

    /// The elements in place, if they have this type and are aligned for it.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if self.dtype != T::DTYPE {
            return None;
        }
        // SAFETY: any bits are elements of T, and of bytes; `align_to_mut` leaves out what is not aligned.
        match unsafe { self.data.align_to_mut::<T>() } {
            ([], values, []) => Some(values),
            _ => None,
        }
    }

    /// Writes elements in row-major order, as many as there are of both.
    pub fn write<T: Element>(&mut self, values: impl IntoIterator<Item = T>) {
        for (place, value) in self.data.chunks_exact_mut(size_of::<T>()).zip(values) {
            // SAFETY: the chunk has the size of T, and the write does not ask for alignment.
            unsafe { place.as_mut_ptr().cast::<T>().write_unaligned(value) }
        }
    }
}
