//! Steps that are functions of the host.

use tensorc_abi::{ExternCall, ExternError, ExternFn};

use tensorc_abi::memory::AlignedBuffer;

/// Calls a function of the host with the memory of a step's arguments.
///
/// # Safety
/// `arguments` points to the addresses of its operands, results and working memory, in this order, each valid for
/// the size the function states. The written ones overlap nothing, and nobody else accesses any of them.
pub(super) unsafe fn call(function: &ExternFn, arguments: *const *mut u8) -> Result<(), ExternError> {
    let (reads, writes) = (function.input_bytes(), function.output_bytes());
    // SAFETY: as above; a buffer without bytes may have no address.
    let address = |i: usize, bytes: u64| unsafe { if bytes == 0 { empty() } else { *arguments.add(i) } };
    let input = |(i, &bytes): (usize, &u64)| {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(address(i, bytes).cast_const(), bytes as usize) }
    };
    let output = |i: usize, bytes: u64| {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(address(i, bytes), bytes as usize) }
    };
    let inputs: Vec<&[u8]> = reads.iter().enumerate().map(input).collect();
    let mut outputs: Vec<&mut [u8]> =
        writes.iter().enumerate().map(|(i, bytes)| output(reads.len() + i, *bytes)).collect();
    let scratch = output(reads.len() + writes.len(), function.scratch_bytes());
    function.call(ExternCall { inputs: &inputs, outputs: &mut outputs, scratch })
}

fn empty() -> *mut u8 {
    AlignedBuffer::dangling().as_ptr()
}
