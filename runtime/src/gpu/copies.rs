//! Copies between page-locked memory of the host and a device, for measurements.

use crate::device::Device;
use crate::device::stream::{StreamError, Transfer};
use crate::driver::{Driver, DriverError, LaunchStream, Memory};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    FromDevice,
}

/// As many bytes of page-locked memory as of the device, and a stream that copies all of them.
pub struct Copies {
    /// First, since its end waits for what uses the memory.
    stream: Box<dyn LaunchStream>,
    host: Box<dyn Memory>,
    there: Box<dyn Memory>,
    bytes: u64,
}

impl Copies {
    /// Takes `bytes` bytes of both memories.
    ///
    /// # Errors
    /// Memory is short, here or there, or the device has no further streams.
    pub fn new(driver: &dyn Driver, bytes: u64) -> Result<Copies, DriverError> {
        let (host, there) = (driver.alloc_pinned(bytes)?, driver.alloc(bytes)?);
        let copies = Copies { stream: driver.stream()?, host, there, bytes };
        // What was never written may be no memory of the machine's yet.
        let device = copies.stream.device();
        // SAFETY: both are this value's own, of these bytes, and nothing uses them yet.
        unsafe {
            copies.host.address().write_bytes(1, bytes as usize);
            copies.stream.fill(copies.there.address(), bytes as usize, &[1]);
        }
        copies.stream.synchronize().map_err(|e| DriverError { device, message: e.to_string() })?;
        Ok(copies)
    }

    /// Copies all bytes so many times and waits for the end.
    ///
    /// # Errors
    /// The device refuses a copy.
    pub fn run(&self, way: Way, times: u32) -> Result<(), StreamError> {
        let device = self.stream.device();
        let here = (self.host.address(), Device::pinned(device.id));
        let there = (self.there.address(), device);
        let ((source, from), (target, to)) = match way {
            Way::ToDevice => (here, there),
            Way::FromDevice => (there, here),
        };
        for _ in 0..times {
            let transfer = Transfer { source, from, target, to, bytes: self.bytes as usize };
            // SAFETY: both are this value's own and have these bytes, and this waits for the stream.
            unsafe { self.stream.copy(transfer) };
        }
        self.stream.synchronize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::HostDriver;

    #[test]
    fn bytes_go_both_ways() {
        let driver = HostDriver::new(Device::accelerator(0));
        let copies = Copies::new(&driver, 64).unwrap();
        let seen = || {
            // SAFETY: the memory has these bytes, and no copy is under way.
            unsafe { std::slice::from_raw_parts(copies.host.address(), 64) }.to_vec()
        };
        // SAFETY: as above.
        unsafe { copies.host.address().write_bytes(7, 64) };
        copies.run(Way::FromDevice, 1).unwrap();
        assert_eq!(seen(), [1; 64], "what the device was filled with");
        // SAFETY: as above.
        unsafe { copies.host.address().write_bytes(9, 64) };
        copies.run(Way::ToDevice, 2).unwrap();
        // SAFETY: as above.
        unsafe { copies.host.address().write_bytes(0, 64) };
        copies.run(Way::FromDevice, 1).unwrap();
        assert_eq!(seen(), [9; 64]);
    }
}
