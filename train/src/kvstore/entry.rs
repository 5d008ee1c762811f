//! What a store keeps for a key.

use std::collections::BTreeMap;

use tensorc_kvstore::Key;
use tensorc_runtime::{Device, DeviceKind};

use super::reduce::{Residual, residuals};
use crate::error::Error;
use tensorc_nd::{NDArray, Runtime};

/// A key's value and what its sums need.
pub struct StoredValue {
    pub stored: NDArray,
    /// Where gradients are summed before an optimizer sees them.
    pub merged: Option<NDArray>,
    /// By piece of the value.
    pub residuals: Vec<Residual>,
    /// The accelerator on which values of several are summed, from the first push on: states of an optimizer stay there.
    summed_on: Option<Device>,
}

impl StoredValue {
    pub fn new(stored: NDArray) -> StoredValue {
        StoredValue { stored, merged: None, residuals: vec![], summed_on: None }
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
    pub by_key: BTreeMap<Key, StoredValue>,
    load: BTreeMap<Device, u64>,
}

impl Entries {
    /// Moves a key's value to the device on which it is summed.
    ///
    /// # Errors
    /// Memory is short there.
    pub fn settle_on_device(&mut self, key: &Key, values: &[&NDArray]) -> Result<(), Error> {
        let chosen = match self.by_key.get(key) {
            Some(entry) if entry.summed_on.is_none() => self.least_loaded(values),
            _ => return Ok(()),
        };
        if let (Some(device), Some(entry)) = (chosen, self.by_key.get_mut(key)) {
            entry.summed_on = Some(device);
            if entry.stored.device() != device {
                entry.stored = entry.stored.copy_to(device)?;
            }
        }
        Ok(())
    }

    /// Of the accelerators that have values, that with the least to sum so far.
    fn least_loaded(&mut self, values: &[&NDArray]) -> Option<Device> {
        let devices = values.iter().map(|value| value.device()).filter(|device| device.kind == DeviceKind::Accelerator);
        let chosen = devices.min_by_key(|device| (self.load.get(device).copied().unwrap_or(0), *device))?;
        *self.load.entry(chosen).or_default() += values.first().map_or(0, |value| value.len());
        Some(chosen)
    }
}
