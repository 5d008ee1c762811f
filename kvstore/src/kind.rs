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

    /// Reads a name or one of MXNet's other names, in lower case. Anything else is an error, where MXNet takes it for `local`.
    fn from_str(name: &str) -> Result<Kind, KvError> {
        let kind = match name {
            "local" | "local_update_cpu" | "local_allreduce_cpu" => Kind::Local,
            "device" | "local_allreduce_device" => Kind::Device,
            "dist" | "dist_sync" => Kind::DistSync,
            "dist_device_sync" | "dist_sync_device" => Kind::DistDeviceSync,
            "dist_async" => Kind::DistAsync,
            _ => {
                let expected = "local, device, dist_sync, dist_device_sync or dist_async";
                return Err(KvError::setting("kind of store", name, expected));
            }
        };
        Ok(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse::<Kind>().unwrap(), kind);
        }
        for wrong in ["", "foo", "Local", "local ", "nccl"] {
            assert!(matches!(wrong.parse::<Kind>(), Err(KvError::Setting { .. })), "{wrong}");
        }
    }
}
