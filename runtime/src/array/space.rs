//! What arrays live in: the engine that orders their uses, their memory, the devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::driven::Driven;
use super::launch::LaunchError;
use crate::device::emulated::Accelerator;
use crate::engine::{Engine, EngineConfig, EngineError};
use crate::gpu::{Collective, CollectiveError, Driver, DriverError, join};
use crate::storage::{Storage, StorageConfig};
use crate::{Device, DeviceKind};

/// Engine, memory pools and devices. Cloning shares them.
#[derive(Clone)]
pub struct Space(Arc<Inner>);

struct Inner {
    engine: Engine,
    storage: Storage,
    drivers: Vec<Arc<dyn Driver>>,
    /// The streams of devices with a driver, and of those without, from their first use on.
    driven: Mutex<BTreeMap<Device, Arc<Driven>>>,
    accelerators: Mutex<BTreeMap<Device, Arc<Accelerator>>>,
}

/// What does the work of a device.
pub(super) enum Worker {
    /// The engine's threads.
    Host,
    /// Streams of the host.
    Streams(Arc<Accelerator>),
    Driver(Arc<Driven>),
}

impl Space {
    /// Without GPUs: what is to be on one is in the host's memory, where streams of its own work on it.
    ///
    /// # Errors
    /// The configuration of the engine.
    pub fn new(engine: EngineConfig, storage: StorageConfig) -> Result<Space, EngineError> {
        Space::with_drivers(engine, storage, vec![])
    }

    /// With GPUs: arrays on their devices are in their memory, and there are no others.
    ///
    /// # Errors
    /// The configuration of the engine.
    pub fn with_drivers(
        engine: EngineConfig,
        storage: StorageConfig,
        drivers: Vec<Arc<dyn Driver>>,
    ) -> Result<Space, EngineError> {
        let (engine, storage) = (Engine::new(engine)?, Storage::with_drivers(storage, drivers.clone()));
        let (driven, accelerators) = (Mutex::default(), Mutex::default());
        Ok(Space(Arc::new(Inner { engine, storage, drivers, driven, accelerators })))
    }

    fn driver(&self, device: Device) -> Option<&dyn Driver> {
        self.0.drivers.iter().find(|driver| driver.device() == device).map(|driver| &**driver)
    }

    /// Whether the memory of a device is a driver's.
    pub fn is_driven(&self, device: Device) -> bool {
        device.kind == DeviceKind::Accelerator && self.driver(device).is_some()
    }

    /// # Errors
    /// There are GPUs, and the device is none of them.
    pub fn check(&self, device: Device) -> Result<(), DriverError> {
        if device.kind != DeviceKind::Accelerator || self.0.drivers.is_empty() || self.driver(device).is_some() {
            return Ok(());
        }
        let known: Vec<String> = self.0.drivers.iter().map(|driver| driver.device().to_string()).collect();
        Err(DriverError { device, message: format!("there is no driver for it, only for {}", known.join(", ")) })
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

    /// The streams of a driver's device.
    pub(super) fn driven(&self, device: Device) -> Result<Option<Arc<Driven>>, DriverError> {
        let Some(driver) = self.driver(device) else { return Ok(None) };
        let mut driven = self.0.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = driven.get(&device) {
            return Ok(Some(made.clone()));
        }
        let made = Arc::new(Driven::new(driver)?);
        driven.insert(device, made.clone());
        Ok(Some(made))
    }

    /// What does a device's work; its streams start when it is first used.
    pub(super) fn worker(&self, device: Device) -> Result<Worker, LaunchError> {
        if device.kind != DeviceKind::Accelerator {
            return Ok(Worker::Host);
        }
        if let Some(driven) = self.driven(device)? {
            return Ok(Worker::Driver(driven));
        }
        self.check(device)?;
        let mut all = self.0.accelerators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&device) {
            return Ok(Worker::Streams(found.clone()));
        }
        let made = Arc::new(Accelerator::new(device)?);
        all.insert(device, made.clone());
        Ok(Worker::Streams(made))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }
}
