//! Kinds of stores.

use std::fmt;
use std::str::FromStr;

use crate::error::KvError;

/// Where a store sums gradients and keeps values, under MXNet's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One process; sums on the host.
    Local,
    /// One process; sums on one of the devices that hold the gradients.
    Device,
    /// Several processes, all of whose gradients are summed before a value changes.
    DistSync,
    /// As `DistSync`, with sums of each process on a device.
    DistDeviceSync,
    /// Several processes; every push changes the value at once.
    DistAsync,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Local, Kind::Device, Kind::DistSync, Kind::DistDeviceSync, Kind::DistAsync];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Local => "local",
            Kind::Device => "device",
            Kind::DistSync => "dist_sync",
            Kind::DistDeviceSync => "dist_device_sync",
            Kind::DistAsync => "dist_async",
        }
    }

    /// Whether several processes share it.
    pub const fn is_distributed(self) -> bool {
        matches!(self, Kind::DistSync | Kind::DistDeviceSync | Kind::DistAsync)
    }

    pub const fn is_async(self) -> bool {
        matches!(self, Kind::DistAsync)
    }

    /// Whether gradients of accelerators are summed there.
    pub const fn reduces_on_device(self) -> bool {
        matches!(self, Kind::Device | Kind::DistDeviceSync)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = KvError;

    fn from_str(name: &str) -> Result<Kind, KvError> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            KvError::UnknownKind { name: name.to_owned(), known: known.join(", ") }
        })
    }
}
