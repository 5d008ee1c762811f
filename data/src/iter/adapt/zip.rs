//! Several sources side by side.

use super::super::{Batch, DataIter, Position};
use crate::dataset::DataDesc;
use crate::error::DataError;

/// Batches whose arrays are those of several sources, which go in step: example by example, so that none of them may leave
/// examples out that cannot be read.
pub struct Zip {
    iters: Vec<Box<dyn DataIter>>,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
}

impl Zip {
    /// # Errors
    /// There is no source, batches differ in size, or two arrays have one name.
    pub fn new(iters: Vec<Box<dyn DataIter>>) -> Result<Zip, DataError> {
        let wrong = |why: String| Err(DataError::options("zip", why));
        let data: Vec<DataDesc> = iters.iter().flat_map(|iter| iter.provide_data().to_vec()).collect();
        let labels: Vec<DataDesc> = iters.iter().flat_map(|iter| iter.provide_label().to_vec()).collect();
        let Some(first) = iters.first() else { return wrong("there is no source".into()) };
        let (size, position) = (first.batch_size(), first.position());
        if let Some(other) = iters.iter().find(|iter| iter.batch_size() != size) {
            return wrong(format!("batches of {size} and of {} examples", other.batch_size()));
        }
        if let Some(other) = iters.iter().find(|iter| iter.position() != position) {
            return wrong(format!("sources at positions {position} and {}", other.position()));
        }
        let mut names: Vec<&str> = data.iter().chain(&labels).map(|desc| desc.name.as_str()).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(format!("two arrays are called `{}`", pair[0]));
        }
        Ok(Zip { iters, data, labels })
    }
}

impl DataIter for Zip {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &self.labels
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        // All sources go one batch further, so that they stay in step behind an error.
        let taken: Vec<_> = self.iters.iter_mut().map(|iter| iter.next()).collect();
        let taken: Vec<Option<Batch>> = taken.into_iter().collect::<Result<_, _>>()?;
        let ended = taken.iter().filter(|batch| batch.is_none()).count();
        if ended == taken.len() {
            return Ok(None);
        }
        let parts: Vec<Batch> = taken.into_iter().flatten().collect();
        let first = parts[0].pad;
        if ended > 0 || parts.iter().any(|part| part.pad != first) {
            let why = format!("sources have epochs of different lengths: at batch {}", self.position().batch);
            return Err(DataError::options("zip", why));
        }
        let index = parts[0].index.clone();
        let (mut data, mut labels) = (vec![], vec![]);
        for part in parts {
            data.extend(part.data);
            labels.extend(part.labels);
        }
        Ok(Some(Batch { data, labels, pad: first, index }))
    }

    fn reset(&mut self) -> Result<(), DataError> {
        self.iters.iter_mut().try_for_each(|iter| iter.reset())
    }

    fn position(&self) -> Position {
        self.iters.iter().map(|iter| iter.position()).max().unwrap_or_default()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.iters.iter_mut().try_for_each(|iter| iter.seek(position))
    }

    fn batches(&self) -> Option<u64> {
        self.iters.first().and_then(|iter| iter.batches())
    }
}
