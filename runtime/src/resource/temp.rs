//! Scratch memory that operations take turns with.

use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Device, DeviceKind, DeviceTable};
use crate::engine::{Completion, Engine, EngineError, Failure, Op, OpName, RunContext, Var};
use crate::storage::{AllocError, MemoryBlock, POISON, Storage};

/// How many buffers a device has: as many operations can use scratch memory at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TempSpaceConfig {
    /// Buffers of a CPU, and of page-locked memory.
    pub cpu_copies: NonZero<usize>,
    /// Buffers of an accelerator.
    pub accelerator_copies: NonZero<usize>,
}

impl Default for TempSpaceConfig {
    fn default() -> TempSpaceConfig {
        const FOUR: NonZero<usize> = NonZero::<usize>::MIN.saturating_add(3);
        TempSpaceConfig { cpu_copies: FOUR, accelerator_copies: NonZero::<usize>::MIN }
    }
}

/// Scratch memory of all devices. A handle: clones share the memory.
///
/// A device has a few buffers, handed out in turn when operations are pushed. Each has a variable
/// that the operations it was given to write, so that the engine lets one at a time run. A buffer
/// grows to the largest request and keeps its size until [`TempSpace::release`]. It is ordinary
/// memory of the [`Storage`], counted there.
#[derive(Clone, Debug)]
pub struct TempSpace {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    storage: Storage,
    config: TempSpaceConfig,
    rings: DeviceTable<Ring>,
}

/// The buffers of one device.
#[derive(Debug)]
struct Ring {
    copies: Box<[TempCopy]>,
    next: AtomicUsize,
}

/// One buffer, as an operation that is being pushed gets it.
#[derive(Clone, Debug)]
pub struct TempCopy {
    var: Arc<Var>,
    slot: Arc<TempSlot>,
}

#[derive(Debug)]
struct TempSlot {
    device: Device,
    storage: Storage,
    /// None before the first use, and while an operation has the memory.
    block: Mutex<Option<MemoryBlock>>,
}

impl TempSpace {
    /// Scratch memory from `storage`, for operations of `engine`. Nothing is allocated yet.
    pub fn new(engine: &Engine, storage: &Storage, config: TempSpaceConfig) -> TempSpace {
        let rings = DeviceTable::new();
        TempSpace { shared: Arc::new(Shared { engine: engine.clone(), storage: storage.clone(), config, rings }) }
    }

    /// The buffer whose turn it is, for an operation that is pushed by other means than
    /// [`TempSpace::push`].
    pub fn request(&self, device: Device) -> TempCopy {
        let ring = self.shared.rings.get_or_init(device, || self.ring(device));
        let turn = ring.next.fetch_add(1, Ordering::Relaxed);
        ring.copies[turn % ring.copies.len()].clone()
    }

    fn ring(&self, device: Device) -> Ring {
        let Shared { engine, storage, config, .. } = &*self.shared;
        let count = match device.kind {
            DeviceKind::Cpu | DeviceKind::CpuPinned => config.cpu_copies,
            DeviceKind::Accelerator => config.accelerator_copies,
        };
        let copy = |_| {
            let slot = TempSlot { device, storage: storage.clone(), block: Mutex::new(None) };
            TempCopy { var: Arc::new(engine.new_var()), slot: Arc::new(slot) }
        };
        Ring { copies: (0..count.get()).map(copy).collect(), next: AtomicUsize::new(0) }
    }

    /// [`Engine::push`] of an operation with `bytes` bytes of scratch memory on its device. Their
    /// contents are undefined. The operation fails with an [`AllocError`] if there is no memory.
    ///
    /// # Errors
    /// Those of [`Engine::push`].
    pub fn push(
        &self,
        op: Op<'_>,
        bytes: u64,
        f: impl FnOnce(&RunContext<'_>, &mut [u8]) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), EngineError> {
        let copy = self.request(op.device);
        let slot = copy.slot.clone();
        let run = move |context: &RunContext<'_>| f(context, &mut TempSlot::take(&slot, bytes)?);
        self.shared.engine.push(Op { writes: &with(op.writes, &copy.var), ..op }, run)
    }

    /// [`Engine::push_async`] with scratch memory as in [`TempSpace::push`]. Drop the memory before
    /// the completion is called, for the next operation to use it.
    ///
    /// # Errors
    /// Those of [`Engine::push_async`].
    pub fn push_async(
        &self,
        op: Op<'_>,
        bytes: u64,
        f: impl FnOnce(&RunContext<'_>, Scratch, Completion) + Send + 'static,
    ) -> Result<(), EngineError> {
        let copy = self.request(op.device);
        let slot = copy.slot.clone();
        let run = move |context: &RunContext<'_>, completion: Completion| match TempSlot::take(&slot, bytes) {
            Ok(scratch) => f(context, scratch, completion),
            Err(error) => completion.complete(Err(error.into())),
        };
        self.shared.engine.push_async(Op { writes: &with(op.writes, &copy.var), ..op }, run)
    }

    /// Gives all buffers back to the storage, each after the operations pushed so far.
    ///
    /// # Errors
    /// Those of [`Engine::push`].
    pub fn release(&self) -> Result<(), EngineError> {
        static NAME: OpName = OpName::from_static("release_temp_space");
        for copy in self.shared.rings.values().flat_map(|ring| &ring.copies) {
            let slot = copy.slot.clone();
            let op = Op { device: slot.device, writes: &[&copy.var], ..Op::new(&NAME) };
            self.shared.engine.push(op, move |_| {
                drop(slot.swap(None));
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn with<'a>(writes: &[&'a Var], own: &'a Var) -> Vec<&'a Var> {
    writes.iter().copied().chain([own]).collect()
}

impl TempCopy {
    /// What an operation that takes the memory must list as written.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// The memory, inside the operation. While another operation has it, which the variable excludes,
    /// memory is allocated instead.
    ///
    /// # Errors
    /// There is no memory.
    pub fn take(&self, bytes: u64) -> Result<Scratch, AllocError> {
        TempSlot::take(&self.slot, bytes)
    }
}

impl TempSlot {
    fn swap(&self, block: Option<MemoryBlock>) -> Option<MemoryBlock> {
        std::mem::replace(&mut self.block.lock().unwrap_or_else(PoisonError::into_inner), block)
    }

    fn take(slot: &Arc<TempSlot>, bytes: u64) -> Result<Scratch, AllocError> {
        let fits = |block: &MemoryBlock| block.len() as u64 >= bytes;
        // Memory that is too small goes back first, so that both are never needed at once.
        let block = match slot.swap(None).filter(fits) {
            Some(block) => block,
            None => slot.storage.alloc(slot.device, bytes)?,
        };
        let mut scratch = Scratch { len: bytes as usize, block: Some(block), slot: slot.clone() };
        if slot.storage.config(slot.device).poison {
            scratch.fill(POISON);
        }
        Ok(scratch)
    }
}

/// Scratch memory of an operation, given back when dropped. Its contents are undefined at first.
#[derive(Debug)]
pub struct Scratch {
    /// None only while being dropped.
    block: Option<MemoryBlock>,
    len: usize,
    slot: Arc<TempSlot>,
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.as_slice()[..self.len])
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.block.as_mut().map_or(&mut [], |block| &mut block.as_mut_slice()[..len])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut held = self.slot.block.lock().unwrap_or_else(PoisonError::into_inner);
        let larger = |a: &Option<MemoryBlock>, b: &Option<MemoryBlock>| {
            a.as_ref().map(MemoryBlock::len) > b.as_ref().map(MemoryBlock::len)
        };
        if larger(&self.block, &held) {
            std::mem::swap(&mut self.block, &mut held);
        }
        drop(held);
    }
}
