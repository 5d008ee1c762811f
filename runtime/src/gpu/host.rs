//! A GPU made of the host: its memory is the host's, its kernels are functions, its streams threads.
//!
//! Launches, copies and events are asynchronous as on a device, so what is not ordered by a stream shows.

use std::sync::Arc;

use super::{Code, CodeForm, Driver, DriverError, Function, HostKernel, LaunchStream, Memory};
use crate::device::emulated::HostStream;
use crate::device::stream::Stream;
use crate::{AlignedBuffer, Device};

/// See the module.
#[derive(Debug)]
pub struct HostDriver {
    device: Device,
    /// As in [`CodeForm::Host`].
    capability: u32,
}

impl HostDriver {
    pub fn new(device: Device) -> HostDriver {
        HostDriver { device, capability: 80 }
    }

    /// It does what a GPU of this compute capability does.
    pub fn of_capability(mut self, capability: u32) -> HostDriver {
        self.capability = capability;
        self
    }

    fn error(&self, message: impl std::fmt::Display) -> DriverError {
        DriverError { device: self.device, message: message.to_string() }
    }
}

struct HostMemory {
    address: *mut u8,
    _buffer: AlignedBuffer,
}

// SAFETY: the address is only given away; who uses it answers for it.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl Memory for HostMemory {
    fn address(&self) -> *mut u8 {
        self.address
    }
}

impl Driver for HostDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn name(&self) -> String {
        "functions of the host".into()
    }

    fn form(&self) -> CodeForm {
        CodeForm::Host { capability: self.capability }
    }

    fn load(&self, code: Code) -> Result<Vec<Function>, DriverError> {
        match code {
            Code::Host(kernels) => {
                let loaded = |(entry, kernel)| Function { entry: Arc::new(entry), code: Arc::new(kernel) };
                Ok(kernels.into_iter().map(loaded).collect())
            }
            Code::Ptx { .. } => Err(self.error("this device executes functions of the host, not PTX")),
        }
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        let mut buffer = AlignedBuffer::zeroed(bytes, "device memory").map_err(|e| self.error(e))?;
        Ok(Box::new(HostMemory { address: buffer.as_mut_ptr(), _buffer: buffer }))
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        let stream = HostStream::new(self.device, "compute").map_err(|e| self.error(e))?;
        Ok(Box::new(stream))
    }
}

/// Addresses on their way to the thread of a stream.
struct Addresses(Vec<*mut u8>);

// SAFETY: the pointers are used only by the launch, whose caller answers for them on any thread.
unsafe impl Send for Addresses {}

impl LaunchStream for HostStream {
    unsafe fn launch(&self, function: &Function, arguments: &[*mut u8]) {
        let (code, addresses) = (function.code.clone(), Addresses(arguments.to_vec()));
        self.enqueue(Box::new(move || {
            let kernel = code.downcast_ref::<HostKernel>().ok_or("a kernel of another driver")?;
            let Addresses(addresses) = { addresses };
            if addresses.len() != kernel.buffers.len() {
                return Err("a launch with another number of arguments".into());
            }
            let pairs = || addresses.iter().zip(&kernel.buffers);
            // SAFETY: the caller promised that each address is valid for its buffer.
            let read = |(address, (bytes, _)): (&*mut u8, &(usize, bool))| unsafe {
                std::slice::from_raw_parts((*address).cast_const(), *bytes).to_vec()
            };
            let mut buffers: Vec<Vec<u8>> = pairs().map(read).collect();
            let before = buffers.clone();
            (kernel.run)(&mut buffers)?;
            // Buffers may be parts of one tensor whose elements alternate: only what was changed is written.
            for (((address, _), old), new) in pairs().zip(&before).zip(&buffers).filter(|((p, _), _)| p.1.1) {
                for (i, byte) in new.iter().enumerate().filter(|(i, byte)| old[*i] != **byte) {
                    // SAFETY: as above, and nobody else uses what the kernel writes.
                    unsafe { *address.add(i) = *byte };
                }
            }
            Ok(())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Entry;

    fn double() -> (Entry, HostKernel) {
        let entry = Entry { name: "double".into(), blocks: 1, threads: 32, shared_bytes: 0, matrices: vec![] };
        let run = |buffers: &mut [Vec<u8>]| {
            if buffers[0][0] == 99 {
                return Err("99 is too much".into());
            }
            buffers[1] = buffers[0].iter().map(|x| x * 2).collect();
            Ok(())
        };
        (entry, HostKernel { buffers: vec![(4, false), (4, true)], run: Arc::new(run) })
    }

    #[test]
    fn launches_run_in_order_on_the_memory_they_are_given() {
        let driver = HostDriver::new(Device::accelerator(0));
        let functions = driver.load(Code::Host(vec![double()])).unwrap();
        let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
        let stream = driver.stream().unwrap();
        // SAFETY: both blocks live until the stream is done, and nothing else uses them meanwhile.
        unsafe {
            a.address().copy_from_nonoverlapping([1, 2, 3, 4].as_ptr(), 4);
            stream.launch(&functions[0], &[a.address(), b.address()]);
            stream.launch(&functions[0], &[b.address(), a.address()]);
        }
        stream.synchronize().unwrap();
        // SAFETY: the stream is done.
        assert_eq!(unsafe { std::slice::from_raw_parts(a.address(), 4) }, [4, 8, 12, 16]);
        // SAFETY: as above.
        unsafe {
            *a.address() = 99;
            stream.launch(&functions[0], &[a.address(), b.address()]);
        }
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.to_string(), "work on a stream of gpu:0 failed: 99 is too much");
        let ptx = driver.load(Code::Ptx { text: String::new(), entries: vec![] });
        assert_eq!(ptx.unwrap_err().to_string(), "gpu:0: this device executes functions of the host, not PTX");
    }
}
