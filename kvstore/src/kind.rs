//! Kinds of stores.

/// Where a store sums gradients and keeps values, under MXNet's names.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{}", self.name())]
pub enum StoreKind {
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

impl StoreKind {
    /// All kinds.
    pub const ALL: [StoreKind; 5] =
        [StoreKind::Local, StoreKind::Device, StoreKind::DistSync, StoreKind::DistDeviceSync, StoreKind::DistAsync];

    /// MXNet's name.
    pub const fn name(self) -> &'static str {
        match self {
            StoreKind::Local => "local",
            StoreKind::Device => "device",
            StoreKind::DistSync => "dist_sync",
            StoreKind::DistDeviceSync => "dist_device_sync",
            StoreKind::DistAsync => "dist_async",
        }
    }

    /// Whether several processes share it.
    pub const fn is_distributed(self) -> bool {
        matches!(self, StoreKind::DistSync | StoreKind::DistDeviceSync | StoreKind::DistAsync)
    }

    /// Whether a push changes the value at once, without waiting for other processes.
    pub const fn is_async(self) -> bool {
        matches!(self, StoreKind::DistAsync)
    }

    /// Whether gradients of accelerators are summed there.
    pub const fn reduces_on_device(self) -> bool {
        matches!(self, StoreKind::Device | StoreKind::DistDeviceSync)
    }
}
