//! Copies between GPUs: directly where the machine connects them, else through the host, which the driver decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};

use super::{Shared, text};
use crate::device::stream::Transfer;
use crate::device::{Device, DeviceKind};

/// Contexts of other GPUs, to and from whose memory was copied.
#[derive(Default, derive_more::Debug)]
#[debug("Peers")]
pub(super) struct Peers(Mutex<BTreeMap<u16, Arc<Peer>>>);

struct Peer {
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the handles are names that any thread may use.
unsafe impl Send for Peer {}
// SAFETY: as above.
unsafe impl Sync for Peer {}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: retained when it was made.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

impl Shared {
    /// The context of a device whose memory is an end of a copy.
    fn context_of(&self, device: Device) -> Result<sys::CUcontext, String> {
        match device == self.device {
            true => Ok(self.context),
            false => self.peer(device).map(|peer| peer.context),
        }
    }

    fn peer(&self, device: Device) -> Result<Arc<Peer>, String> {
        let mut known = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(&device.id) {
            return Ok(peer.clone());
        }
        let handle = result::device::get(i32::from(device.id)).map_err(text)?;
        // SAFETY: the handle is that of a device; the context is released with the peer.
        let context = unsafe { result::primary_ctx::retain(handle) }.map_err(text)?;
        let peer = Arc::new(Peer { handle, context });
        let mut reaches = 0;
        // SAFETY: both handles are those of devices.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut reaches, self.handle, handle) }.result().map_err(text)?;
        if reaches != 0 {
            // SAFETY: the caller has entered the context of this device, and the other one is retained.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(context, 0) };
            // Another user of the primary contexts may have done it.
            if enabled != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                enabled.result().map_err(text)?;
            }
        }
        known.insert(device.id, peer.clone());
        Ok(peer)
    }

    /// Enqueues a copy on a stream of this device, whose context the thread has entered.
    ///
    /// # Safety
    /// As for [`crate::device::stream::Stream::copy`].
    pub unsafe fn copy(&self, stream: sys::CUstream, transfer: Transfer) -> Result<(), String> {
        let Transfer { source, from, target, to, bytes } = transfer;
        let (source, target) = (source as sys::CUdeviceptr, target as sys::CUdeviceptr);
        let between = from != to && [from, to].iter().all(|device| device.kind == DeviceKind::Accelerator);
        // SAFETY: the caller promised that both ranges are valid; addresses of host and devices do not overlap, so the
        // driver knows which is which, and the contexts are those of the devices with the memory.
        let outcome = unsafe {
            match between {
                true => {
                    let (from, to) = (self.context_of(from)?, self.context_of(to)?);
                    sys::cuMemcpyPeerAsync(target, to, source, from, bytes, stream)
                }
                false => sys::cuMemcpyAsync(target, source, bytes, stream),
            }
        };
        outcome.result().map_err(text)
    }
}
