//! One operation while it is enqueued on a stream: what it works on, and what must live until it is done.

use std::any::Any;
use std::sync::Arc;

use super::memory::StreamMemory;
use crate::device::Device;
use crate::device::stream::{Event, Failure, Transfer};
use crate::driver::{LaunchStream, Rows};
use crate::storage::{AllocError, MemoryBlock, Storage};

/// Things that live until work is done.
#[derive(Default)]
pub struct KeepAlive(Vec<Box<dyn Any + Send>>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        // The first block goes back last, so that an operation like this one gets its blocks in the same order and
        // therefore at the same addresses.
        while self.0.pop().is_some() {}
    }
}

/// One operation while it is enqueued: its stream, its memory, and what it keeps alive.
pub struct KeepAliveQueue<'a> {
    stream: &'a dyn LaunchStream,
    storage: &'a Storage,
    memory: &'a StreamMemory,
    kept: KeepAlive,
    /// Memory of the device that nobody needs behind this operation on the stream.
    scratch: Vec<MemoryBlock>,
    confirms: Confirmations,
}

/// What is asked when an operation is done, before what it keeps is let go.
#[derive(Default)]
pub struct Confirmations(Vec<Box<dyn FnOnce() -> Result<(), Failure> + Send>>);

impl Confirmations {
    /// Asks all of them.
    ///
    /// # Errors
    /// That of the first which fails.
    pub(crate) fn ask(self) -> Result<(), Failure> {
        self.0.into_iter().try_for_each(|confirm| confirm())
    }
}

/// An operation that is enqueued.
pub struct Finished {
    /// The point in the stream behind the operation.
    pub end: Arc<dyn Event>,
    /// What must live until then.
    pub kept: KeepAlive,
    /// Whether it went well, as far as the device does not know.
    pub confirms: Confirmations,
    /// Its number, for [`StreamMemory::passed`].
    pub number: u64,
}

impl<'a> KeepAliveQueue<'a> {
    /// An operation on `stream`. Memory comes from what earlier operations left in `memory`, else from `storage`.
    pub fn new(stream: &'a dyn LaunchStream, storage: &'a Storage, memory: &'a StreamMemory) -> KeepAliveQueue<'a> {
        KeepAliveQueue {
            stream,
            storage,
            memory,
            kept: KeepAlive::default(),
            scratch: vec![],
            confirms: Confirmations::default(),
        }
    }

    /// The stream it is enqueued on.
    pub fn stream(&self) -> &'a dyn LaunchStream {
        self.stream
    }

    /// The device of the stream.
    pub(crate) fn device(&self) -> Device {
        self.stream.device()
    }

    /// Keeps something until the work enqueued is done.
    pub(crate) fn keep(&mut self, thing: impl Any + Send) {
        self.kept.0.push(Box::new(thing));
    }

    /// Lets the operation fail if what the device has left says so, once it is done.
    pub(crate) fn confirm(&mut self, ask: impl FnOnce() -> Result<(), Failure> + Send + 'static) {
        self.confirms.0.push(Box::new(ask));
    }

    /// Also asks what another operation of this one asks.
    pub(crate) fn confirm_all(&mut self, others: Confirmations) {
        self.confirms.0.extend(others.0);
    }

    /// Memory for what is enqueued from now on, with undefined contents.
    ///
    /// # Errors
    /// Memory is short, also when everything under way on the device is done.
    pub(crate) fn alloc(&self, device: Device, bytes: u64) -> Result<MemoryBlock, AllocError> {
        let reused = (device == self.device()).then(|| self.memory.reuse(self.storage, device, bytes)).flatten();
        reused.map_or_else(|| self.memory.alloc(self.storage, device, bytes), Ok)
    }

    /// Takes a block that only this stream uses from now on, and nobody behind this operation.
    pub(crate) fn give_up(&mut self, block: MemoryBlock) {
        match block.device() == self.device() {
            true => self.scratch.push(block),
            false => self.keep(block),
        }
    }

    /// Memory of the device for this operation, with undefined contents.
    ///
    /// # Errors
    /// Memory is short.
    pub fn scratch(&mut self, bytes: u64) -> Result<*mut u8, AllocError> {
        let block = self.alloc(self.device(), bytes)?;
        let address = block.start().as_ptr();
        self.give_up(block);
        Ok(address)
    }

    /// Copies bytes of the host to the device. They are staged, so they may change afterwards.
    ///
    /// # Errors
    /// Memory is short.
    ///
    /// # Safety
    /// `target` is memory of the device, valid for the bytes until the stream has passed, and ordered with it.
    pub(crate) unsafe fn upload(&mut self, data: &[u8], target: *mut u8) -> Result<(), AllocError> {
        let pinned = Device::pinned(self.device().id);
        let mut staging = self.alloc(pinned, data.len() as u64)?;
        staging.as_mut_slice().copy_from_slice(data);
        let (source, to) = (staging.as_ptr(), self.device());
        self.keep(staging);
        // SAFETY: the staging memory is kept; the target is the caller's promise.
        unsafe { self.stream.copy(Transfer { source, from: pinned, target, to, bytes: data.len() }) };
        Ok(())
    }

    /// Copies inside the device.
    ///
    /// # Safety
    /// Both are valid for the bytes until the stream has passed, apart, and ordered with it.
    pub(crate) unsafe fn copy(&mut self, source: *const u8, target: *mut u8, bytes: usize) {
        let device = self.device();
        // SAFETY: passed on from the caller.
        unsafe { self.stream.copy(Transfer { source, from: device, target, to: device, bytes }) };
    }

    /// Copies rows inside the device.
    ///
    /// # Safety
    /// As for [`KeepAliveQueue::copy`].
    pub(crate) unsafe fn copy_rows(&mut self, rows: Rows) {
        // SAFETY: passed on from the caller.
        unsafe {
            match rows.count {
                1 => self.copy(rows.source, rows.target, rows.width),
                _ => self.stream.copy_rows(rows),
            }
        }
    }

    /// Ends the operation.
    pub fn finish(self) -> Finished {
        let number = self.memory.leave(self.scratch);
        Finished { end: self.stream.close(), kept: self.kept, confirms: self.confirms, number }
    }
}
