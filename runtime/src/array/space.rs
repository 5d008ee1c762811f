//! What arrays live in: the engine that orders their uses, their memory, the devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::driven::Driven;
use crate::device::emulated::Accelerator;
use crate::device::stream::StreamError;
use crate::engine::{Engine, EngineConfig, EngineError};
use crate::gpu::{Driver, DriverError};
use crate::storage::{Storage, StorageConfig};
use crate::{Device, DeviceKind};

/// Engine, memory pools and accelerators. Cloning shares them.
#[derive(Clone)]
pub struct Space(Arc<Inner>);

struct Inner {
    engine: Engine,
    storage: Storage,
    accelerators: Mutex<BTreeMap<Device, Arc<Accelerator>>>,
    driver: Option<Arc<dyn Driver>>,
    /// The streams of the driver's device, once it is used.
    driven: Mutex<Option<Arc<Driven>>>,
}

impl Space {
    /// # Errors
    /// The configuration of the engine.
    pub fn new(engine: EngineConfig, storage: StorageConfig) -> Result<Space, EngineError> {
        Space::with_driver(engine, storage, None)
    }

    /// With a GPU: arrays on its device are in its memory.
    ///
    /// # Errors
    /// The configuration of the engine.
    pub fn with_driver(
        engine: EngineConfig,
        storage: StorageConfig,
        driver: Option<Arc<dyn Driver>>,
    ) -> Result<Space, EngineError> {
        let (engine, storage) = (Engine::new(engine)?, Storage::with_driver(storage, driver.clone()));
        let (accelerators, driven) = (Mutex::default(), Mutex::default());
        Ok(Space(Arc::new(Inner { engine, storage, accelerators, driver, driven })))
    }

    /// Whether the memory of a device is a driver's.
    pub fn is_driven(&self, device: Device) -> bool {
        self.0.driver.as_ref().is_some_and(|driver| driver.device() == device)
    }

    /// The streams of a driver's device.
    pub(super) fn driven(&self, device: Device) -> Result<Option<Arc<Driven>>, DriverError> {
        let Some(driver) = self.0.driver.as_ref().filter(|driver| driver.device() == device) else { return Ok(None) };
        let mut driven = self.0.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*driven {
            return Ok(Some(made.clone()));
        }
        Ok(Some(driven.insert(Arc::new(Driven::new(&**driver)?)).clone()))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// The streams of a device that has some and no driver; they start when the device is first used.
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
