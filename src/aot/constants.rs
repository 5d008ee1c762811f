//! Constants of variants: what is equal is in memory once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tensorc_abi::content::{Content, Place, ReadError};
use tensorc_ir::TensorData;

/// All constants that were met. They stay, so that none has the place of another.
#[derive(Default)]
pub struct Constants(Mutex<Met>);

#[derive(Default)]
struct Met {
    shared: BTreeSet<Place>,
    /// By length and hash.
    contents: BTreeMap<(usize, u128), Content>,
}

impl Constants {
    /// The same constant, in the place of the first that was equal.
    ///
    /// # Errors
    /// It is in a file that cannot be read.
    pub fn share(&self, data: &TensorData) -> Result<TensorData, ReadError> {
        let content = data.content();
        if self.met().shared.contains(&content.place()) {
            return Ok(data.clone());
        }
        let hashed = (content.len(), content.hash()?);
        let mut met = self.met();
        let first = met.contents.entry(hashed).or_insert_with(|| content.clone()).clone();
        met.shared.insert(first.place());
        Ok(TensorData::of(data.ty.clone(), first).unwrap_or_else(|| data.clone()))
    }

    fn met(&self) -> std::sync::MutexGuard<'_, Met> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
