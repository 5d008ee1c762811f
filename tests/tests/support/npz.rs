//! Arrays from `.npz` files.

use std::path::Path;

use tensorc::Tensor;
use tensorc_data::formats::read_arrays;

/// Every array of a file, in name order.
pub fn read(path: &Path) -> Vec<(String, Tensor)> {
    let mut arrays = read_arrays(path).unwrap_or_else(|e| panic!("{e}"));
    arrays.sort_by(|(a, _), (b, _)| a.cmp(b));
    arrays.into_iter().map(|(name, array)| (name, array.try_into().unwrap())).collect()
}
