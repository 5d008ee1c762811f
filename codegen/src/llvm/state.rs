//! The function under construction: its kernel, the storage of buffers, and its blocks.

use inkwell::basic_block::BasicBlock;
use inkwell::values::{FunctionValue, PointerValue};
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use super::ir::{Ir, Value};
use super::scalar::ProcessorTraits;
use crate::walk::internal;

pub(super) struct Gen<'c, 'm, 'k> {
    pub ir: Ir<'c, 'm>,
    pub kernel: &'k Kernel,
    pub machine: ProcessorTraits,
    pub storage: Vec<BufferStorage<'c>>,
    /// Memory that a load may read whose guard does not hold.
    pub spare: Option<PointerValue<'c>>,
    /// Whether the warps of this role store to tiles, which matrix units must see when they arrive.
    pub shows_tiles: bool,
    pub function: FunctionValue<'c>,
    /// The block of the function's memory, which ends in a jump to the code.
    pub entry: BasicBlock<'c>,
    /// The kernel's scalars; none on a GPU.
    pub scalars: Option<PointerValue<'c>>,
}

/// Where a buffer's elements are.
#[derive(Clone, Copy, Debug)]
pub(super) enum BufferStorage<'c> {
    None,
    /// At an address.
    Memory(PointerValue<'c>),
    /// A vector of all lanes of the current vector loop for each element, at an address.
    Private(PointerValue<'c>, u32),
}

impl<'c> Gen<'c, '_, '_> {
    /// Parameter `i` of the function.
    pub fn parameter(&self, i: usize) -> Result<PointerValue<'c>> {
        match self.function.get_nth_param(i as u32) {
            Some(Value::PointerValue(p)) => Ok(p),
            _ => Err(internal("a kernel takes pointers")),
        }
    }

    pub fn new_block(&self, name: &str) -> BasicBlock<'c> {
        self.ir.cx.append_basic_block(self.function, name)
    }

    pub fn current_block(&self) -> Result<BasicBlock<'c>> {
        self.ir.b.get_insert_block().ok_or_else(|| internal("code in no block"))
    }
}
