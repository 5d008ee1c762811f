//! Memory of results. What tensors gave back is used again: the system clears new memory page by page, which takes longer than
//! a small model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tensorc_abi::{DType, Plan};
use tensorc_ir::DenseType;
use tensorc_runtime::{AlignedBuffer, AllocError, TensorMut};

use crate::error::Error;
use crate::tensor::Tensor;

/// Blocks of memory that results had, at most as many bytes as some runs side by side take.
pub(crate) struct OutputMemory {
    free: Arc<Mutex<FreeBlocks>>,
    /// How many runs there are at a time.
    runs: usize,
}

#[derive(Default)]
struct FreeBlocks {
    /// By the time at which they were given back.
    blocks: Vec<AlignedBuffer>,
    /// Most bytes that are kept.
    most: usize,
}

/// A result in memory of its own, which nobody else reads or writes.
#[derive(derive_more::Debug)]
pub struct Output {
    ty: DenseType,
    #[debug(skip)]
    block: OutputBlock,
}

impl Output {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        &self.ty.dims
    }

    /// The elements, little-endian and row-major.
    pub fn bytes(&self) -> &[u8] {
        self.block.as_ref()
    }

    /// The elements. Their address stays the same until the output is dropped, wherever that is moved.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.as_mut()
    }
}

/// Copies the tensor.
impl TryFrom<&Tensor> for Output {
    type Error = Error;

    fn try_from(tensor: &Tensor) -> Result<Output, Error> {
        let bytes = tensor.bytes();
        let mut data = AlignedBuffer::zeroed(bytes.len() as u64, "outputs")?;
        data.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let ty = tensor.data().ty.clone();
        Ok(Output { ty, block: OutputBlock { len: bytes.len(), data, home: Weak::new() } })
    }
}

impl TryFrom<Output> for Tensor {
    type Error = Error;

    fn try_from(output: Output) -> Result<Tensor, Error> {
        let Output { ty, block } = output;
        Tensor::from_bytes(ty.dtype, &ty.dims, Bytes::from_owner(block))
    }
}

/// The memory of a result, some of which may be left over.
struct OutputBlock {
    data: AlignedBuffer,
    len: usize,
    home: Weak<Mutex<FreeBlocks>>,
}

impl OutputMemory {
    /// For so many runs at a time.
    pub fn new(runs: usize) -> OutputMemory {
        OutputMemory { free: Arc::default(), runs }
    }

    /// The outputs of a plan, which `run` fills.
    ///
    /// # Errors
    /// Memory is short; those of `run`.
    pub fn with(
        &self,
        plan: &Plan,
        run: impl FnOnce(&mut [TensorMut<'_>]) -> Result<(), Error>,
    ) -> Result<Vec<Output>, Error> {
        let buffers = || plan.outputs.iter().map(|id| plan.buffer(*id));
        let bytes = buffers().fold(0usize, |sum, buffer| sum.saturating_add(buffer.bytes() as usize));
        {
            let mut free = lock(&self.free);
            free.most = bytes.saturating_mul(self.runs).max(free.most);
        }
        // Shapes in a model decide how much this is.
        let blocks = buffers().map(|buffer| self.block(buffer.bytes()));
        let mut blocks = blocks.collect::<Result<Vec<OutputBlock>, AllocError>>()?;
        let slices = blocks.iter_mut().map(OutputBlock::as_mut);
        let outputs = buffers().zip(slices).map(|(buffer, data)| TensorMut::new(buffer.dtype, &buffer.dims, data));
        run(&mut outputs.collect::<Vec<_>>())?;
        let types = buffers().map(|buffer| DenseType::new(buffer.dtype, &buffer.dims));
        Ok(types.zip(blocks).map(|(ty, block)| Output { ty, block }).collect())
    }

    /// A block of so many bytes, whatever they hold.
    fn block(&self, bytes: u64) -> Result<OutputBlock, AllocError> {
        let known = usize::try_from(bytes).ok().and_then(|bytes| lock(&self.free).take(bytes));
        let data = known.map_or_else(|| AlignedBuffer::zeroed(bytes, "outputs"), Ok)?;
        Ok(OutputBlock { len: data.len().min(bytes as usize), data, home: Arc::downgrade(&self.free) })
    }
}

impl FreeBlocks {
    /// The smallest block of so many bytes, unless it has more than twice as many.
    fn take(&mut self, bytes: usize) -> Option<AlignedBuffer> {
        let fits = |block: &AlignedBuffer| (bytes..=bytes.saturating_mul(2)).contains(&block.len());
        let found = self.blocks.iter().enumerate().filter(|(_, block)| fits(block));
        let at = found.min_by_key(|(_, block)| block.len())?.0;
        Some(self.blocks.remove(at))
    }

    /// Keeps a block; the oldest go if there are too many bytes.
    fn put(&mut self, block: AlignedBuffer) {
        self.blocks.push(block);
        let mut bytes: usize = self.blocks.iter().map(AlignedBuffer::len).sum();
        while bytes > self.most {
            bytes -= self.blocks.remove(0).len();
        }
    }
}

impl AsRef<[u8]> for OutputBlock {
    fn as_ref(&self) -> &[u8] {
        &self.data.as_slice()[..self.len]
    }
}

impl AsMut<[u8]> for OutputBlock {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.data.as_mut_slice()[..self.len]
    }
}

/// Results as tensors.
pub(crate) fn tensors(outputs: Vec<Output>) -> Result<Vec<Tensor>, Error> {
    outputs.into_iter().map(Tensor::try_from).collect()
}

impl Drop for OutputBlock {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade().filter(|_| !self.data.is_empty()) {
            lock(&home).put(std::mem::replace(&mut self.data, AlignedBuffer::empty()));
        }
    }
}

fn lock(free: &Mutex<FreeBlocks>) -> MutexGuard<'_, FreeBlocks> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tensorc_abi::{Buffer, BufferId, DType, StorageClass};

    use super::*;

    /// A plan whose outputs have so many bytes.
    fn plan(bytes: &[u64]) -> Plan {
        let output = |(i, bytes): (u32, &u64)| {
            let storage = StorageClass::Output(i);
            Buffer { name: "y".to_owned(), dtype: DType::U8, dims: vec![*bytes], storage, part: None }
        };
        let outputs = (0..bytes.len() as u32).map(BufferId).collect();
        Plan { buffers: (0..).zip(bytes).map(output).collect(), outputs, ..Plan::default() }
    }

    fn run(memory: &OutputMemory, bytes: &[u64]) -> Vec<Tensor> {
        let fill = |outputs: &mut [TensorMut<'_>]| {
            outputs.iter_mut().for_each(|output| output.data.fill(7));
            Ok(())
        };
        tensors(memory.with(&plan(bytes), fill).unwrap()).unwrap()
    }

    fn kept(memory: &OutputMemory) -> Vec<usize> {
        lock(&memory.free).blocks.iter().map(AlignedBuffer::len).collect()
    }

    #[test]
    fn memory_of_tensors_that_are_gone_is_used_again() {
        let memory = OutputMemory::new(1);
        let first = run(&memory, &[1000, 200, 0]);
        let copies = first.clone();
        let places: Vec<*const u8> = first.iter().map(|tensor| tensor.bytes().as_ptr()).collect();
        drop(first);
        assert_eq!(kept(&memory), [0; 0], "a copy reads it");
        drop(copies);
        assert_eq!(kept(&memory), [1000, 200]);
        let again = run(&memory, &[150, 900]);
        assert_eq!([again[1].bytes().as_ptr(), again[0].bytes().as_ptr()], places[..2]);
        assert_eq!(again.iter().map(|tensor| tensor.bytes().len()).collect::<Vec<_>>(), [150, 900]);
        drop(again);
        let others = run(&memory, &[201, 499]);
        assert_eq!(kept(&memory), [200, 1000], "too small, and more than twice as large");
        drop(others);
        assert_eq!(kept(&memory), [201, 499], "no more than a run took, and the last");
    }

    #[test]
    fn tensors_outlive_what_computed_them() {
        let memory = OutputMemory::new(1);
        let tensors = run(&memory, &[64]);
        drop(memory);
        assert_eq!(tensors[0].bytes(), [7; 64]);
    }
}
