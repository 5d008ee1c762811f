//! Constant tensors: typed, row-major, reference-counted bytes.

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_abi::content::Content;

use crate::scalar::Scalar;
use crate::types::DenseType;

/// A dense row-major tensor value. The bytes may be a part of a file, read or not, and need not be aligned to the element
/// type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// The type and shape.
    pub ty: DenseType,
    content: Content,
}

impl TensorData {
    /// Wraps bytes without copying; `None` if their length does not fit the type.
    pub fn new(ty: DenseType, bytes: Bytes) -> Option<TensorData> {
        TensorData::of(ty, bytes.into())
    }

    /// Wraps bytes that are in memory or in a file; `None` if their length does not fit the type.
    pub fn of(ty: DenseType, content: Content) -> Option<TensorData> {
        (ty.bytes() == content.len() as u64).then_some(TensorData { ty, content })
    }

    /// One element per position, in row-major order, produced by `f`.
    pub fn from_fn(ty: DenseType, mut f: impl FnMut(u64) -> Scalar) -> TensorData {
        let size = ty.dtype.size();
        let mut bytes = vec![0u8; ty.bytes() as usize];
        for (i, element) in bytes.chunks_exact_mut(size).enumerate() {
            f(i as u64).write(element);
        }
        TensorData { ty, content: Bytes::from(bytes).into() }
    }

    /// As [`TensorData::from_fn`]; `None` if there is no memory for it.
    pub fn try_from_fn(ty: DenseType, mut f: impl FnMut(u64) -> Scalar) -> Option<TensorData> {
        let (size, total) = (ty.dtype.size(), usize::try_from(ty.bytes()).ok()?);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(total).ok()?;
        bytes.resize(total, 0);
        let elements = bytes.chunks_exact_mut(size).enumerate();
        elements.for_each(|(i, element)| f(i as u64).write(element));
        TensorData::new(ty, bytes.into())
    }

    /// A tensor of rank 0.
    pub fn scalar(value: Scalar) -> TensorData {
        TensorData::from_fn(DenseType::new(value.dtype, &[]), |_| value)
    }

    /// Every element equal to `value`.
    pub fn splat(dims: &[u64], value: Scalar) -> TensorData {
        TensorData::from_fn(DenseType::new(value.dtype, dims), |_| value)
    }

    /// f32 values; `None` if the count does not fit `dims`.
    pub fn f32s(dims: &[u64], values: &[f32]) -> Option<TensorData> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        TensorData::new(DenseType::new(DType::F32, dims), bytes.into())
    }

    /// i64 values; `None` if the count does not fit `dims`.
    pub fn i64s(dims: &[u64], values: &[i64]) -> Option<TensorData> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        TensorData::new(DenseType::new(DType::I64, dims), bytes.into())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The shape.
    pub fn dims(&self) -> &[u64] {
        &self.ty.dims
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.ty.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.ty.is_empty()
    }

    /// The elements, row-major and little-endian. Those of a file stay in memory then ([`Content::bytes`]).
    pub fn bytes(&self) -> &Bytes {
        self.content.bytes()
    }

    /// The elements where they are, in memory or in a file.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// The element at a row-major position below [`TensorData::len`].
    pub fn get(&self, position: u64) -> Scalar {
        let size = self.ty.dtype.size();
        Scalar::read(self.ty.dtype, &self.bytes()[position as usize * size..])
    }

    /// The elements, in row-major order.
    pub fn iter(&self) -> impl Iterator<Item = Scalar> + '_ {
        self.bytes().chunks_exact(self.ty.dtype.size()).map(|b| Scalar::read(self.ty.dtype, b))
    }

    /// The elements as i64 ([`Scalar::as_i64`]): shapes, axes and other small integer operands.
    pub fn to_i64s(&self) -> Vec<i64> {
        self.iter().map(|s| s.as_i64()).collect()
    }

    /// The elements as f64.
    pub fn to_f64s(&self) -> Vec<f64> {
        self.iter().map(|s| s.as_f64()).collect()
    }

    /// The elements as f32.
    pub fn to_f32s(&self) -> Vec<f32> {
        if self.dtype() == DType::F32 {
            // Whole weights go through here.
            return self.bytes().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        }
        self.iter().map(|s| s.as_f32()).collect()
    }

    /// The only element, of a tensor that has exactly one.
    pub fn item(&self) -> Option<Scalar> {
        (self.len() == 1).then(|| self.get(0))
    }

    /// The same bytes under another shape of the same size.
    pub fn reshape(&self, dims: &[u64]) -> Option<TensorData> {
        TensorData::of(DenseType::new(self.ty.dtype, dims), self.content.clone())
    }
}
