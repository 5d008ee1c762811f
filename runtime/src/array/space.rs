//! What arrays live in: the engine that orders their uses, their memory, the devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::driven::Driven;
use crate::device::{Device, DeviceKind};
use crate::engine::{Engine, EngineConfig, EngineError};
use crate::gpu::{Collective, CollectiveError, Driver, DriverError, join};
use crate::storage::{Storage, StorageConfig};

/// Engine, memory pools and devices. Cloning shares them.
#[derive(Clone)]
pub struct ArraySpace(Arc<Inner>);

struct Inner {
    engine: Engine,
    storage: Storage,
    drivers: Vec<Arc<dyn Driver>>,
    /// Their streams, from their first use on.
    driven: Mutex<BTreeMap<Device, Arc<Driven>>>,
}

impl ArraySpace {
    /// Without GPUs.
    ///
    /// # Errors
    /// The configuration of the engine.
    pub fn new(engine: EngineConfig, storage: StorageConfig) -> Result<ArraySpace, EngineError> {
        ArraySpace::with_drivers(engine, storage, vec![])
    }

    /// With GPUs: arrays on their devices are in their memory, and there are no others.
    ///
    /// # Errors
    /// The configuration of the engine.
    pub fn with_drivers(
        engine: EngineConfig,
        storage: StorageConfig,
        drivers: Vec<Arc<dyn Driver>>,
    ) -> Result<ArraySpace, EngineError> {
        let (engine, storage) = (Engine::new(engine)?, Storage::with_drivers(storage, drivers.clone()));
        Ok(ArraySpace(Arc::new(Inner { engine, storage, drivers, driven: Mutex::default() })))
    }

    fn driver(&self, device: Device) -> Option<&dyn Driver> {
        self.0.drivers.iter().find(|driver| driver.device() == device).map(|driver| &**driver)
    }

    /// Whether the memory of a device is a driver's.
    pub fn is_driven(&self, device: Device) -> bool {
        device.kind == DeviceKind::Accelerator && self.driver(device).is_some()
    }

    /// # Errors
    /// The device is a GPU without a driver.
    pub fn check(&self, device: Device) -> Result<(), DriverError> {
        if device.kind != DeviceKind::Accelerator || self.driver(device).is_some() {
            return Ok(());
        }
        let known: Vec<String> = self.0.drivers.iter().map(|driver| driver.device().to_string()).collect();
        let message = match &known[..] {
            [] => "there is no driver for it, nor for any other GPU".to_owned(),
            known => format!("there is no driver for it, only for {}", known.join(", ")),
        };
        Err(DriverError { device, message })
    }

    /// Joins GPUs, so that [`super::exchange`] takes arrays of theirs.
    ///
    /// # Errors
    /// A device has no driver; as [`crate::gpu::join`].
    pub fn join(&self, devices: &[Device]) -> Result<Arc<dyn Collective>, CollectiveError> {
        let of = |device: &Device| {
            let driver = self.0.drivers.iter().find(|driver| driver.device() == *device);
            driver.cloned().ok_or(CollectiveError::Foreign { device: *device })
        };
        join(&devices.iter().map(of).collect::<Result<Vec<_>, _>>()?)
    }

    /// The streams of a GPU, which start when it is first used; none of the host, whose work the engine's threads do.
    ///
    /// # Errors
    /// The device is a GPU without a driver, or has no further streams.
    pub(super) fn driven(&self, device: Device) -> Result<Option<Arc<Driven>>, DriverError> {
        self.check(device)?;
        let Some(driver) = self.driver(device).filter(|_| device.kind == DeviceKind::Accelerator) else {
            return Ok(None);
        };
        let mut driven = self.0.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = driven.get(&device) {
            return Ok(Some(made.clone()));
        }
        let made = Arc::new(Driven::new(driver)?);
        driven.insert(device, made.clone());
        Ok(Some(made))
    }

    /// The streams of a GPU.
    ///
    /// # Errors
    /// As [`ArraySpace::driven`], or the device is no GPU.
    pub(super) fn streams_of(&self, device: Device) -> Result<Arc<Driven>, DriverError> {
        let missing = || DriverError { device, message: "the device has no driver".into() };
        self.driven(device)?.ok_or_else(missing)
    }

    /// The engine that orders operations on its arrays.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The storage that memory of its arrays comes from.
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }
}
