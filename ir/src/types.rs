//! Tensor types: element type and shape, each possibly unknown until inference.

use smallvec::SmallVec;
use tensorc_abi::DType;

use crate::extent::{Axes, Extent, Extents};

/// A dimension variable; resolved through [`crate::dim::DimTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DimId(pub u32);

/// The extent of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// A known extent.
    Const(u64),
    /// An extent that depends on symbols of the compilation.
    Open(Extent),
    /// A dimension variable.
    Sym(DimId),
}

impl Dim {
    /// A dimension of known extent.
    pub fn of(extent: Extent) -> Dim {
        match extent.known() {
            Some(n) => Dim::Const(n.max(0) as u64),
            None => Dim::Open(extent),
        }
    }

    /// The extent, if it is known.
    pub fn as_extent(self) -> Option<Extent> {
        match self {
            Dim::Const(n) => Some(n.into()),
            Dim::Open(n) => Some(n),
            Dim::Sym(_) => None,
        }
    }

    /// The extent as a number, if it is known ([`Extent::fixed`]).
    #[track_caller]
    pub fn as_const(self) -> Option<u64> {
        // A closure would stand for the caller in the trace.
        let extent = self.as_extent()?;
        Some(extent.fixed() as u64)
    }
}

/// The axes of one tensor, outermost first.
pub type Dims = SmallVec<[Dim; 4]>;

/// A possibly unknown shape. Zero-sized axes are legal; unknown is never encoded as a number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Shape {
    /// Nothing is known, not even the rank.
    #[default]
    Unranked,
    /// The extents of known axes, some of which may be variables.
    Ranked(Dims),
}

impl Shape {
    /// A shape of known extents.
    pub fn consts(dims: &[u64]) -> Shape {
        Shape::Ranked(dims.iter().map(|&d| Dim::Const(d)).collect())
    }

    /// Number of axes, if it is known.
    pub fn rank(&self) -> Option<usize> {
        self.dims().map(|d| d.len())
    }

    /// The axes, if the rank is known.
    pub fn dims(&self) -> Option<&[Dim]> {
        match self {
            Shape::Unranked => None,
            Shape::Ranked(dims) => Some(dims),
        }
    }

    /// The extents, if every one is known.
    pub fn as_extents(&self) -> Option<Extents> {
        self.dims()?.iter().map(|d| d.as_extent()).collect()
    }
}

/// What is known about a value before and during inference.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorType {
    /// The element type, `None` if it is not known.
    pub dtype: Option<DType>,
    /// The shape.
    pub shape: Shape,
}

impl TensorType {
    /// A type of a known element type.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype: Some(dtype), shape }
    }

    /// A type of which nothing is known.
    pub fn unknown() -> TensorType {
        TensorType::default()
    }

    /// The dense type, if nothing is unknown.
    pub fn dense(&self) -> Option<DenseType> {
        Some(DenseType { dtype: self.dtype?, dims: self.shape.as_extents()? })
    }
}

/// Most axes of a tensor.
pub const MAX_RANK: usize = 64;

/// A fully known type of a row-major dense tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DenseType {
    /// The element type.
    pub dtype: DType,
    /// The extents.
    pub dims: Extents,
}

impl DenseType {
    /// A type of known extents.
    pub fn new(dtype: DType, dims: impl Into<Extents>) -> DenseType {
        DenseType { dtype, dims: dims.into() }
    }

    /// The type of so many tensors of this type along a new first axis.
    #[must_use]
    pub fn stacked(&self, rows: impl Into<Extent>) -> DenseType {
        let dims = [rows.into()].into_iter().chain(self.dims.all()).collect();
        DenseType { dtype: self.dtype, dims }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; 1 for a scalar, saturating at `u64::MAX`.
    #[track_caller]
    pub fn len(&self) -> u64 {
        self.dims.iter().fold(1u64, |a, &d| a.saturating_mul(d))
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.dims.has_none()
    }

    /// Size in bytes, saturating.
    #[track_caller]
    pub fn bytes(&self) -> u64 {
        self.len().saturating_mul(self.dtype.size() as u64)
    }

    /// Whether a machine can address so many bytes.
    pub fn is_addressable(&self) -> bool {
        // One more than the limit stands for all that is above it.
        let elements = isize::MAX as u64 / self.dtype.size() as u64;
        let known = self.dims.all().filter_map(Extent::known);
        let product = known.fold(1u64, |product, n| product.saturating_mul(n as u64));
        match self.dims.is_open() {
            true => Axes::count(&self.dims) <= elements,
            false => product <= elements,
        }
    }

    /// Row-major strides in elements.
    #[track_caller]
    pub fn strides(&self) -> Vec<i64> {
        let dims: &[u64] = &self.dims;
        let mut strides = vec![1i64; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i] * dims[i] as i64;
        }
        strides
    }
}

impl From<DenseType> for TensorType {
    fn from(t: DenseType) -> TensorType {
        TensorType { dtype: Some(t.dtype), shape: Shape::Ranked(t.dims.all().map(Dim::of).collect()) }
    }
}

impl std::fmt::Display for DenseType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.all().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}
