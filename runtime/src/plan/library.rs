//! Calls of the kernel library: packing of weights, matrix products and convolutions.

use std::ops::Range;

use tensorc_abi::{KernelFn, Packing, StepOp};

/// A library call with its epilogue resolved.
pub(super) enum Library {}

impl Library {
    pub fn of(_op: &StepOp, _kernels: &[KernelFn]) -> Option<Library> {
        None
    }

    pub fn tasks(&self) -> u64 {
        match *self {}
    }

    /// # Safety
    /// See `invoke`.
    pub unsafe fn run(&self, _arguments: *const *mut u8, _tasks: Range<u64>, _scratch: *mut u8) {
        match *self {}
    }
}

pub(super) fn scratch_bytes(library: &Library) -> usize {
    match *library {}
}

pub(crate) fn packed_len(_packing: &Packing) -> usize {
    0
}

/// # Safety
/// `source` holds every element the packing reads.
pub(crate) unsafe fn pack(_packing: &Packing, _source: *const f32, _target: &mut [f32]) {}
