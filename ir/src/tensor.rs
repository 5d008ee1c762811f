//! Constant tensors: typed, row-major, reference-counted bytes.

use std::sync::Arc;

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_abi::content::Content;

use crate::extent::Extent;
use crate::scalar::Scalar;
use crate::types::DenseType;

/// A dense row-major tensor value. The bytes may be a part of a file, read or not, and need not be aligned to the element
/// type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// The type and shape.
    pub ty: DenseType,
    content: Content,
    /// The elements of integers, if one depends on symbols. The bytes are those of the example.
    open: Option<Arc<[Extent]>>,
}

impl TensorData {
    /// Wraps bytes without copying; `None` if their length does not fit the type.
    pub fn new(ty: DenseType, bytes: Bytes) -> Option<TensorData> {
        TensorData::of(ty, bytes.into())
    }

    /// Wraps bytes that are in memory or in a file; `None` if their length does not fit the type.
    pub fn of(ty: DenseType, content: Content) -> Option<TensorData> {
        (ty.bytes() == content.len() as u64).then_some(TensorData { ty, content, open: None })
    }

    /// One element per position, in row-major order, produced by `f`.
    pub fn from_fn(ty: DenseType, mut f: impl FnMut(u64) -> Scalar) -> TensorData {
        let size = ty.dtype.size();
        let mut bytes = vec![0u8; ty.bytes() as usize];
        for (i, element) in bytes.chunks_exact_mut(size).enumerate() {
            f(i as u64).write(element);
        }
        TensorData { ty, content: Bytes::from(bytes).into(), open: None }
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
        TensorData::from_fn(DenseType::new(value.dtype, []), |_| value)
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

    /// Integers that may depend on symbols, in row-major order; `None` if the count does not fit.
    pub fn of_extents(ty: DenseType, elements: Vec<Extent>) -> Option<TensorData> {
        let open = elements.iter().any(|n| n.is_open());
        let number = |n: &Extent| Scalar::from_i64(ty.dtype, n.example());
        let bytes: Vec<u8> =
            elements.iter().flat_map(|n| number(n).bits.to_le_bytes().into_iter().take(ty.dtype.size())).collect();
        let data = TensorData::new(ty, bytes.into())?;
        Some(TensorData { open: open.then(|| elements.into()), ..data })
    }

    /// Whether elements depend on symbols.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether it is a matrix in the packed form of [`tensorc_abi::BlockedWeights`].
    pub fn is_packed(&self) -> bool {
        self.content.blocked().is_some()
    }

    /// The elements, in row-major order, if some depend on symbols.
    pub(crate) fn open_elements(&self) -> &[Extent] {
        self.open.as_deref().unwrap_or_default()
    }

    /// The elements of integers, in row-major order.
    pub fn extents(&self) -> Vec<Extent> {
        match &self.open {
            Some(open) => open.to_vec(),
            None => self.iter().map(|s| s.as_i64().into()).collect(),
        }
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
    #[track_caller]
    pub fn bytes(&self) -> &Bytes {
        self.content().bytes()
    }

    /// The elements where they are, in memory or in a file. If they depend on symbols, what follows is right for these alone
    /// ([`Extent::fixed`]).
    #[track_caller]
    pub fn content(&self) -> &Content {
        self.open.iter().flat_map(|open| &**open).for_each(|n| {
            n.fixed();
        });
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
        let data = TensorData::of(DenseType::new(self.ty.dtype, dims), self.content.clone())?;
        Some(TensorData { open: self.open.clone(), ..data })
    }
}
