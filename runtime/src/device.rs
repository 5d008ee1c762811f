//! Where memory lives and work runs.

pub mod stream;
mod table;

use std::str::FromStr;

pub(crate) use table::DeviceTable;

tensorc_abi::named! {
    /// Kind of a [`Device`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum DeviceKind {
        /// Host memory, host threads. Several ids are separate queues over the same cores.
        Cpu = "cpu",
        /// Host memory for fast transfers to an accelerator.
        CpuPinned = "cpu_pinned",
        /// A device with memory and queues of its own.
        Accelerator = "gpu",
    }
}

/// A kind and a number, written `cpu:0`.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{}:{id}", kind.name())]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// Which one of its kind, from 0.
    pub id: u16,
}

impl Device {
    /// A queue over the processor's cores.
    pub const fn cpu(id: u16) -> Device {
        Device { kind: DeviceKind::Cpu, id }
    }

    /// Page-locked host memory for the accelerator of the same number.
    pub const fn pinned(id: u16) -> Device {
        Device { kind: DeviceKind::CpuPinned, id }
    }

    /// An accelerator.
    pub const fn accelerator(id: u16) -> Device {
        Device { kind: DeviceKind::Accelerator, id }
    }
}

impl Default for Device {
    fn default() -> Device {
        Device::cpu(0)
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device; write cpu, cpu_pinned or gpu, and a number after a colon unless it is 0")]
pub struct ParseDeviceError(String);

impl FromStr for Device {
    type Err = ParseDeviceError;

    /// Reads `cpu:1`; the number may be left out for 0.
    fn from_str(text: &str) -> Result<Device, ParseDeviceError> {
        let error = || ParseDeviceError(text.to_owned());
        let (name, id) = text.split_once(':').unwrap_or((text, "0"));
        let kind = DeviceKind::from_name(name).ok_or_else(error)?;
        Ok(Device { kind, id: id.parse().map_err(|_| error())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for device in [Device::cpu(0), Device::pinned(3), Device::accelerator(65535)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("gpu".parse(), Ok(Device::accelerator(0)));
        for wrong in ["", "tpu:0", "cpu:", "cpu:-1", "cpu:65536", "cpu:0:1"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
