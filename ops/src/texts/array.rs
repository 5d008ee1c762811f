//! Texts in the shape of a tensor.

use std::sync::Arc;

use tensorc_ir::op::OpError;

/// An empty list with room for so many elements.
///
/// # Errors
/// There is no memory for it.
pub(super) fn room<T>(count: Option<usize>) -> Result<Vec<T>, OpError> {
    let mut list = vec![];
    let reserved = count.and_then(|count| list.try_reserve_exact(count).ok());
    reserved.ok_or("there is no memory for its result")?;
    Ok(list)
}

/// Texts in row-major order. Cloning shares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextArray {
    dims: Vec<u64>,
    texts: Vec<Arc<str>>,
}

impl TextArray {
    /// Texts of a shape; `None` if they do not fill it.
    pub fn new(dims: &[u64], texts: Vec<Arc<str>>) -> Option<TextArray> {
        let count = dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
        (count == texts.len() as u64).then(|| TextArray { dims: dims.to_vec(), texts })
    }

    /// Copies texts; `None` if they do not fill the shape.
    pub fn of<S: AsRef<str>>(dims: &[u64], texts: &[S]) -> Option<TextArray> {
        TextArray::new(dims, texts.iter().map(|text| text.as_ref().into()).collect())
    }

    /// A vector.
    pub fn vector(texts: Vec<Arc<str>>) -> TextArray {
        TextArray { dims: vec![texts.len() as u64], texts }
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The texts, in row-major order.
    pub fn texts(&self) -> &[Arc<str>] {
        &self.texts
    }

    /// Rows of texts that are filled up to the longest: an array with one more axis.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn of_rows(dims: &[u64], rows: Vec<Vec<Arc<str>>>, filling: &Arc<str>) -> Result<TextArray, OpError> {
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut texts = room(longest.checked_mul(rows.len()))?;
        for row in rows {
            let missing = longest - row.len();
            texts.extend(row);
            texts.extend(std::iter::repeat_n(filling.clone(), missing));
        }
        Ok(TextArray { dims: dims.iter().copied().chain([longest as u64]).collect(), texts })
    }

    /// The result of a function for each text.
    pub(super) fn map(&self, f: impl FnMut(&Arc<str>) -> Arc<str>) -> TextArray {
        TextArray { dims: self.dims.clone(), texts: self.texts.iter().map(f).collect() }
    }
}
