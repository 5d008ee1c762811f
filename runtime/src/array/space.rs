//! What arrays live in: the engine that orders their uses, their memory, the devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::emulated::Accelerator;
use crate::device::stream::StreamError;
use crate::engine::{Engine, EngineConfig, EngineError};
use crate::storage::{Storage, StorageConfig};
use crate::{Device, DeviceKind};

/// Engine, memory pools and accelerators. Cloning shares them.
#[derive(Clone)]
pub struct Space(Arc<Inner>);

struct Inner {
    engine: Engine,
    storage: Storage,
    accelerators: Mutex<BTreeMap<Device, Arc<Accelerator>>>,
}

impl Space {
    /// # Errors
    /// The configuration of the engine.
    pub fn new(engine: EngineConfig, storage: StorageConfig) -> Result<Space, EngineError> {
        let (engine, storage) = (Engine::new(engine)?, Storage::new(storage));
        Ok(Space(Arc::new(Inner { engine, storage, accelerators: Mutex::default() })))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// The streams of a device that has some; they start when the device is first used.
    pub(super) fn accelerator(&self, device: Device) -> Result<Option<Arc<Accelerator>>, StreamError> {
        if device.kind != DeviceKind::Accelerator {
            return Ok(None);
        }
        let mut all = self.0.accelerators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&device) {
            return Ok(Some(found.clone()));
        }
        let made = Arc::new(Accelerator::new(device)?);
        all.insert(device, made.clone());
        Ok(Some(made))
    }
}
