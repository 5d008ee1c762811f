//! Views: the same memory under another shape, or a part of it.

use tensorc_runtime::array::ArrayView;

use super::array::NDArray;
use super::call::Call;
use crate::error::Error;

impl NDArray {
    /// The same memory under another shape. One extent may be -1: it follows from the others.
    ///
    /// # Errors
    /// The numbers of elements differ.
    pub fn reshape(&self, dims: &[i64]) -> Result<NDArray, Error> {
        let known = dims.iter().filter(|d| **d != -1).try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?));
        let rest = known.and_then(|known| self.len().checked_div(known)).unwrap_or(0);
        let extents: Option<Vec<u64>> =
            dims.iter().map(|&d| if d == -1 { Some(rest) } else { u64::try_from(d).ok() }).collect();
        let wrong = || Error::Index { what: format!("shape {dims:?}"), dims: self.dims().to_vec() };
        if dims.iter().filter(|d| **d == -1).count() > 1 {
            return Err(wrong());
        }
        let extents = extents.ok_or_else(wrong)?;
        let shape: Vec<i64> = extents.iter().map(|d| *d as i64).collect();
        self.seen_as(self.view().reshape(&extents)?, |array| {
            Ok(array.runtime().op("reshape")?.arg(array).arg(&shape[..]))
        })
    }

    /// Positions `begin..end` of the first axis, in the same memory.
    ///
    /// # Errors
    /// They lie outside, or the array has no axis.
    pub fn rows(&self, begin: u64, end: u64) -> Result<NDArray, Error> {
        let (from, to) = ([begin as i64], [end as i64]);
        self.seen_as(self.view().rows(begin, end)?, |array| {
            Ok(array.runtime().op("slice")?.arg(array).arg(from).arg(to).arg([0]))
        })
    }

    /// One position of the first axis, without that axis, in the same memory.
    ///
    /// # Errors
    /// As [`NDArray::rows`].
    pub fn row(&self, at: u64) -> Result<NDArray, Error> {
        let row = self.rows(at, at.saturating_add(1))?;
        let dims: Vec<i64> = row.dims()[1..].iter().map(|d| *d as i64).collect();
        row.reshape(&dims)
    }

    /// A handle to a view of this memory, which is recorded as the result of a call.
    fn seen_as<'a>(
        &'a self,
        view: ArrayView,
        call: impl FnOnce(&'a NDArray) -> Result<Call<'a>, Error>,
    ) -> Result<NDArray, Error> {
        let mut seen = NDArray::new(self.runtime().clone(), view);
        if self.is_recorded() {
            call(self)?.record_as(&mut seen)?;
        }
        Ok(seen)
    }
}
