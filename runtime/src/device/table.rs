//! A value for each device, made on first use and found without a lock.

use std::sync::OnceLock;

use super::{Device, DeviceKind};

/// Entries of a page, and pages of a kind: together they cover every number of a device.
const PAGE: usize = 256;

type Page<T> = Box<[OnceLock<T>]>;

/// Maps devices to values. Values are added and never removed.
#[derive(Debug)]
pub(crate) struct DeviceTable<T> {
    pages: Box<[OnceLock<Page<T>>]>,
}

fn empty<T>(len: usize) -> Box<[OnceLock<T>]> {
    (0..len).map(|_| OnceLock::new()).collect()
}

fn position(device: Device) -> (usize, usize) {
    let id = usize::from(device.id);
    (device.kind as usize * PAGE + id / PAGE, id % PAGE)
}

impl<T> DeviceTable<T> {
    /// A table without values.
    pub(crate) fn new() -> DeviceTable<T> {
        DeviceTable { pages: empty(DeviceKind::ALL.len() * PAGE) }
    }

    /// The device's value, if it was made.
    pub(crate) fn get(&self, device: Device) -> Option<&T> {
        let (page, entry) = position(device);
        self.pages[page].get()?[entry].get()
    }

    /// The device's value, made with `make` if there is none. `make` runs at most once at a time.
    pub(crate) fn get_or_init(&self, device: Device, make: impl FnOnce() -> T) -> &T {
        let (page, entry) = position(device);
        self.pages[page].get_or_init(|| empty(PAGE))[entry].get_or_init(make)
    }

    /// The values, in the order of their devices.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get)
    }
}

impl<T> Default for DeviceTable<T> {
    fn default() -> DeviceTable<T> {
        DeviceTable::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_place_of_its_own() {
        let table = DeviceTable::new();
        let devices: Vec<Device> = DeviceKind::ALL
            .into_iter()
            .flat_map(|kind| [0, 1, 255, 256, u16::MAX].map(|id| Device { kind, id }))
            .collect();
        assert_eq!(table.get(Device::cpu(0)), None);
        for &device in devices.iter().rev() {
            table.get_or_init(device, || device);
        }
        for &device in &devices {
            assert_eq!(table.get(device), Some(&device));
            assert_eq!(table.get_or_init(device, || Device::cpu(9)), &device);
        }
        assert!(table.values().eq(&devices));
        assert_eq!(table.get(Device::cpu(2)), None);
    }
}
