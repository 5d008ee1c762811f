//! An optimizer as part of an executor's plan.

use std::collections::BTreeMap;

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::Value;
use tensorc_ir::op::Registry;

use super::{Optimizer, Update};
use crate::error::Error;
use tensorc::DType;
use tensorc_nd::executor::{Emission, UpdateRule};

/// The updates of parameters of several types, for [`tensorc_nd::executor::Executor`].
#[derive(Debug)]
pub struct FusedUpdate {
    optimizer: Optimizer,
    /// By element type.
    updates: BTreeMap<DType, Update>,
    numbers: usize,
}

impl FusedUpdate {
    /// For parameters given by name and element type.
    ///
    /// # Errors
    /// The optimizer does not fit one of the types.
    pub fn new<'a>(
        optimizer: &Optimizer,
        registry: &Registry,
        parameters: impl IntoIterator<Item = (&'a str, DType)>,
    ) -> Result<FusedUpdate, Error> {
        let mut updates = BTreeMap::new();
        for (name, dtype) in parameters {
            updates.insert(dtype, optimizer.update_of(registry, name, dtype)?);
        }
        let numbers = updates.values().map(|update| update.numbers.len()).max().unwrap_or(0);
        Ok(FusedUpdate { optimizer: optimizer.clone(), updates, numbers })
    }
}

impl UpdateRule for FusedUpdate {
    fn states(&self, weight: &DenseType) -> Vec<(&'static str, DenseType)> {
        let states = self.updates.get(&weight.dtype).map_or(&[][..], |update| &update.states);
        states.iter().map(|state| (state.name, DenseType::new(state.dtype, &weight.dims))).collect()
    }

    fn numbers(&self) -> usize {
        self.numbers
    }

    fn emit(
        &self,
        b: &mut Builder<'_>,
        weight: Value,
        gradient: Value,
        states: &[Value],
        numbers: &[Value],
    ) -> Result<Emission, Diagnostic> {
        let dtype = b.ty(weight)?.dtype;
        let Some(update) = self.updates.get(&dtype) else {
            return Err(b.error(DiagnosticCode::Internal, format!("no update was prepared for parameters of {dtype}")));
        };
        let count = update.numbers.len();
        self.optimizer.emit(b, update, weight, gradient, states, &numbers[..count])
    }
}
