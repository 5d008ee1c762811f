//! What a store keeps for a key.

use std::collections::BTreeMap;

use tensorc_kvstore::Key;
use tensorc_runtime::{Device, DeviceKind};

use super::reduce::{Residual, residuals};
use crate::Error;
use crate::ndarray::{NDArray, Runtime};

/// A key's value and what its sums need.
pub struct Entry {
    pub stored: NDArray,
    /// Where gradients are summed before an optimizer sees them.
    pub merged: Option<NDArray>,
    /// By piece of the value.
    pub residuals: Vec<Residual>,
}

impl Entry {
    pub fn new(stored: NDArray) -> Entry {
        Entry { stored, merged: None, residuals: vec![] }
    }

    /// The array that sums are written to.
    ///
    /// # Errors
    /// Memory is short.
    pub fn merged(&mut self, rt: &Runtime) -> Result<NDArray, Error> {
        let stored = &self.stored;
        let made = match self.merged.take().filter(|merged| merged.device() == stored.device()) {
            Some(merged) => merged,
            None => rt.empty(stored.device(), stored.dtype(), stored.dims())?,
        };
        Ok(self.merged.insert(made).clone())
    }

    /// What quantising leaves, for each piece of the value.
    pub fn residuals(&mut self) -> &[Residual] {
        if self.residuals.is_empty() {
            self.residuals = residuals(self.stored.len());
        }
        &self.residuals
    }
}

/// Keys with their entries, and how much each device has to sum.
#[derive(Default)]
pub struct Entries {
    pub by_key: BTreeMap<Key, Entry>,
    load: BTreeMap<Device, u64>,
}

impl Entries {
    /// The device on which a key's values are summed: of the accelerators that have one, that with the least to sum.
    pub fn merge_device(&mut self, values: &[&NDArray]) -> Option<Device> {
        let devices = values.iter().map(|value| value.device()).filter(|device| device.kind == DeviceKind::Accelerator);
        let chosen = devices.min_by_key(|device| (self.load.get(device).copied().unwrap_or(0), *device))?;
        *self.load.entry(chosen).or_default() += values.first().map_or(0, |value| value.len());
        Some(chosen)
    }
}
