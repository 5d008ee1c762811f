//! Sparse arrays of a list, and their dense form.

use tensorc_ir::TensorData;

use super::{SavedDevice, byte_len};
use crate::mxnet::error::ArrayProblem;

/// An array of which whole rows are stored, slices along its first axis; the others are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSparse {
    /// The device that held the array when it was saved.
    pub device: SavedDevice,
    /// Shape of the array, `[rows, ...]`.
    pub dims: Vec<u64>,
    /// Which rows are stored: integers `[n]`, increasing.
    pub indices: TensorData,
    /// The stored rows, `[n, ...]`.
    pub values: TensorData,
}

/// A matrix of which single elements are stored, row by row; the others are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    /// The device that held the array when it was saved.
    pub device: SavedDevice,
    /// Shape of the matrix, `[rows, columns]`.
    pub dims: Vec<u64>,
    /// Where in `values` each row begins and the last one ends: integers `[rows + 1]`. May be
    /// without elements if nothing is stored.
    pub indptr: TensorData,
    /// The column of each value: integers `[n]`, increasing within a row.
    pub indices: TensorData,
    /// The stored elements, `[n]`.
    pub values: TensorData,
}

impl RowSparse {
    pub(super) const KIND: &'static str = "row_sparse";

    /// Checks the shapes and the indices.
    ///
    /// # Errors
    /// What [`RowSparse`] says of its fields does not hold.
    pub fn check(&self) -> Result<(), ArrayProblem> {
        let Some((&rows, rest)) = self.dims.split_first() else {
            return Err(ArrayProblem::SparseRank { kind: Self::KIND, rank: 0 });
        };
        let stored = vector_len("row indices", &self.indices)?;
        let expected: Vec<u64> = [&[stored], rest].concat();
        expect_shape("the stored rows", expected, self.values.dims())?;
        increasing("row indices", &self.indices, 0..stored, rows)
    }

    /// The array with every element stored.
    ///
    /// # Errors
    /// See [`RowSparse::check`]; memory is exhausted.
    pub fn to_dense(&self) -> Result<TensorData, ArrayProblem> {
        self.check()?;
        let mut dense = zeros(&self.values, &self.dims)?;
        let row = self.values.dims()[1..].iter().product::<u64>() as usize * self.values.dtype().size();
        // Rows without elements have nothing to copy, and no chunks.
        if row != 0 {
            for (index, values) in self.indices.iter().zip(self.values.bytes().chunks_exact(row)) {
                let start = index.as_i64() as usize * row;
                dense[start..start + row].copy_from_slice(values);
            }
        }
        finish(&self.values, &self.dims, dense)
    }
}

impl Csr {
    pub(super) const KIND: &'static str = "csr";

    /// Checks the shapes and the indices.
    ///
    /// # Errors
    /// What [`Csr`] says of its fields does not hold.
    pub fn check(&self) -> Result<(), ArrayProblem> {
        let &[rows, columns] = self.dims.as_slice() else {
            return Err(ArrayProblem::SparseRank { kind: Self::KIND, rank: self.dims.len() });
        };
        let stored = vector_len("column indices", &self.indices)?;
        expect_shape("the stored values", vec![stored], self.values.dims())?;
        let starts = vector_len("row starts", &self.indptr)?;
        if starts == 0 && stored == 0 {
            return Ok(());
        }
        expect_shape("row starts", vec![rows.saturating_add(1)], self.indptr.dims())?;
        let what = "row starts";
        let mut last = 0;
        for (position, value) in self.indptr.iter().map(|s| s.as_i64()).enumerate() {
            let position = position as u64;
            let out_of_range = ArrayProblem::IndexRange { what, position, value, bound: stored.saturating_add(1) };
            let start = u64::try_from(value).map_err(|_| out_of_range.clone())?;
            // The first row begins with the first value, the last row ends with the last.
            if start > stored || (position == 0 && start != 0) || (position == rows && start != stored) {
                return Err(out_of_range);
            }
            if start < last {
                return Err(ArrayProblem::IndexOrder { what, position });
            }
            if position > 0 {
                increasing("column indices", &self.indices, last..start, columns)?;
            }
            last = start;
        }
        Ok(())
    }

    /// The matrix with every element stored.
    ///
    /// # Errors
    /// See [`Csr::check`]; memory is exhausted.
    pub fn to_dense(&self) -> Result<TensorData, ArrayProblem> {
        self.check()?;
        let mut dense = zeros(&self.values, &self.dims)?;
        let size = self.values.dtype().size();
        let row = self.dims[1] as usize * size;
        let starts = self.indptr.to_i64s();
        for (r, bounds) in starts.windows(2).enumerate() {
            for position in bounds[0] as usize..bounds[1] as usize {
                let at = r * row + self.indices.get(position as u64).as_i64() as usize * size;
                dense[at..at + size].copy_from_slice(&self.values.bytes()[position * size..][..size]);
            }
        }
        finish(&self.values, &self.dims, dense)
    }
}

/// The length of a vector of integers.
fn vector_len(what: &'static str, data: &TensorData) -> Result<u64, ArrayProblem> {
    if !data.dtype().is_int() {
        return Err(ArrayProblem::IndexType { what, dtype: data.dtype() });
    }
    match data.dims() {
        &[len] => Ok(len),
        dims => Err(ArrayProblem::SparseRank { kind: what, rank: dims.len() }),
    }
}

fn expect_shape(what: &'static str, expected: Vec<u64>, found: &[u64]) -> Result<(), ArrayProblem> {
    if expected == found {
        return Ok(());
    }
    Err(ArrayProblem::SparseShape { what, expected, found: found.to_vec() })
}

/// Checks that the indices at these positions increase strictly and lie below `bound`.
fn increasing(
    what: &'static str,
    indices: &TensorData,
    positions: std::ops::Range<u64>,
    bound: u64,
) -> Result<(), ArrayProblem> {
    let mut last = None;
    for position in positions {
        let value = indices.get(position).as_i64();
        match u64::try_from(value) {
            Ok(index) if index < bound => {}
            _ => return Err(ArrayProblem::IndexRange { what, position, value, bound }),
        }
        if last.is_some_and(|last| value <= last) {
            return Err(ArrayProblem::IndexOrder { what, position });
        }
        last = Some(value);
    }
    Ok(())
}

/// Zeroed bytes for a dense array with the element type of `values`.
fn zeros(values: &TensorData, dims: &[u64]) -> Result<Vec<u8>, ArrayProblem> {
    let bytes = byte_len(values.dtype(), dims).ok_or_else(|| ArrayProblem::TooLarge(dims.to_vec()))?;
    let mut dense = Vec::new();
    let fits = usize::try_from(bytes).is_ok_and(|n| dense.try_reserve_exact(n).is_ok());
    if !fits {
        return Err(ArrayProblem::Allocation { bytes });
    }
    dense.resize(bytes as usize, 0);
    Ok(dense)
}

fn finish(values: &TensorData, dims: &[u64], dense: Vec<u8>) -> Result<TensorData, ArrayProblem> {
    let ty = tensorc_ir::DenseType::new(values.dtype(), dims);
    TensorData::new(ty, dense.into()).ok_or_else(|| ArrayProblem::TooLarge(dims.to_vec()))
}
