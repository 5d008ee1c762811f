//! Inputs of a model that are sequences or optional: which tensors of them there are decides what the model is.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_frontend::onnx::ListInput;

use crate::cache::ProgramCache;
use crate::error::Error;
use crate::key::ProgramKey;

/// Models kept for different numbers of tensors.
const KEPT: usize = 64;

/// Numbers of tensors by the name of the input.
pub(crate) type Lengths<'a> = [(&'a str, usize)];

type Load<M> = dyn Fn(&Lengths<'_>) -> Result<M, Error> + Send + Sync;

/// The models that a file is, one for each number of tensors in its inputs.
pub(crate) struct Lists<M> {
    inputs: Vec<ListInput>,
    load: Box<Load<M>>,
    models: ProgramCache<Arc<M>>,
}

impl<M> Lists<M> {
    pub fn new(inputs: Vec<ListInput>, load: Box<Load<M>>) -> Lists<M> {
        Lists { inputs, load, models: ProgramCache::new(KEPT) }
    }

    /// The model for inputs of the given names, kept for the next time.
    pub fn model(&self, given: &[&str]) -> Result<Arc<M>, Error> {
        let lengths = self.lengths(given);
        let mut key = ProgramKey::of("");
        lengths.iter().for_each(|(_, n)| key.number(*n as u64));
        self.models.get_or_make(&key, || (self.load)(&lengths).map(Arc::new))
    }

    /// The model for inputs of the given names.
    pub fn load(&self, given: &[&str]) -> Result<M, Error> {
        (self.load)(&self.lengths(given))
    }

    /// That it is not known which tensors there are.
    pub fn unknown(&self) -> Error {
        Error::UnknownLengths { inputs: self.inputs.iter().map(|i| i.name.clone()).collect::<Vec<_>>().join(", ") }
    }

    /// How many tensors of each input are among the given names.
    fn lengths(&self, given: &[&str]) -> Vec<(&str, usize)> {
        let given: BTreeSet<&str> = given.iter().copied().collect();
        let count = |list: &ListInput| match list.sequence {
            true => given.iter().filter(|name| is_element(name, &list.name)).count(),
            false => usize::from(given.contains(list.name.as_str())),
        };
        self.inputs.iter().map(|list| (list.name.as_str(), count(list))).collect()
    }
}

/// Whether a name is that of a tensor of a sequence: `x[0]` of `x`.
fn is_element(name: &str, list: &str) -> bool {
    let index = name.strip_prefix(list).and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'));
    index.is_some_and(|index| !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()))
}
