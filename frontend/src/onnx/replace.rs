//! Initializers of a model that are replaced when it is read: by other values, or by what each run gives.

use std::collections::BTreeSet;

use tensorc_ir::TensorData;

use super::error::{OnnxError, TensorProblem, TensorSite};
use super::load::OnnxModel;
use super::tensor::{element_type, stored_tensor};

/// What takes the place of initializers.
#[derive(Clone, Debug, Default)]
pub struct Replacements {
    /// Initializers with other values, of the same type and shape. Names that the model does not have are ignored: one list may serve
    /// several models.
    pub tensors: Vec<(String, TensorData)>,
    /// Inputs with a default value in the model that become inputs of the graph all the same.
    pub inputs: BTreeSet<String>,
}

impl OnnxModel {
    /// Replaces initializers.
    ///
    /// # Errors
    /// A tensor has another type or shape than the one that it replaces, or an input has no default value.
    pub fn replace(&mut self, by: &Replacements) -> Result<(), OnnxError> {
        for (name, data) in &by.tensors {
            let Some(stored) = self.graph.initializer.iter_mut().find(|tensor| tensor.name() == name) else { continue };
            let wrong = |problem| OnnxError::Tensor { tensor: TensorSite::Initializer(name.clone()).into(), problem };
            let dtype = element_type(stored.data_type.unwrap_or(0)).map_err(wrong)?;
            let dims = stored.dims.iter().map(|extent| *extent as u64);
            if dtype != data.dtype() || !dims.eq(data.dims().iter().copied()) {
                let declared = format!("{}{:?}", dtype.name(), stored.dims);
                return Err(wrong(TensorProblem::Replaced { declared, given: data.ty.to_string() }));
            }
            *stored = stored_tensor(name, data);
        }
        for name in &by.inputs {
            let is_input = self.graph.input.iter().any(|input| input.name() == name);
            let before = self.graph.initializer.len();
            self.graph.initializer.retain(|tensor| !is_input || tensor.name() != name);
            if self.graph.initializer.len() == before {
                let stored = |name: &str| self.graph.initializer.iter().any(|tensor| tensor.name() == name);
                let known = self.graph.input.iter().map(|i| i.name().to_owned()).filter(|name| stored(name));
                return Err(OnnxError::NoSuchInput { name: name.clone(), known: known.collect() });
            }
        }
        Ok(())
    }
}
