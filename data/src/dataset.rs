//! Examples that can be read in any order, by number.

use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use crate::error::DataError;

/// Name, element type and shape of an array that batches or examples have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataDesc {
    /// The name of the array.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Extents: of a batch with its size first, of an example without.
    pub dims: Vec<u64>,
}

impl DataDesc {
    /// A description of arrays of one name, element type and shape of an example.
    pub fn new(name: impl Into<String>, dtype: DType, dims: &[u64]) -> DataDesc {
        DataDesc { name: name.into(), dtype, dims: dims.to_vec() }
    }

    /// The same for a batch of examples.
    #[must_use]
    pub fn batched(&self, batch: u64) -> DataDesc {
        let dims = std::iter::once(batch).chain(self.dims.iter().copied()).collect();
        DataDesc { dims, ..self.clone() }
    }
}

/// Which example is read, and what its random choices depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From 0, less than [`Dataset::len`].
    pub index: usize,
    /// The epoch, which decides random augmentation.
    pub epoch: u64,
}

/// Examples that can be read in any order, from many threads at once.
///
/// What is read is a function of the sample alone: choices that seem random come from [`crate::Draws`].
pub trait Dataset: Send + Sync {
    /// What messages call it: a file, or the like.
    fn name(&self) -> String;

    /// Number of examples.
    fn len(&self) -> usize;

    /// Whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The arrays of an example that are data, without a batch axis.
    fn data(&self) -> &[DataDesc];

    /// The arrays of an example that are labels.
    fn labels(&self) -> &[DataDesc];

    /// A number by which the user knows the example.
    fn id(&self, index: usize) -> u64 {
        index as u64
    }

    /// Writes an example: `data` and `labels` have the types and shapes announced. Their old contents are anything.
    ///
    /// # Errors
    /// The example cannot be read or decoded, or does not have the shape announced.
    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError>;
}
