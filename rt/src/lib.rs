//! The run-time library of models compiled ahead of time.
//!
//! A compiled model is an *image* ([`tensorc_abi::image`]) with the machine code of its kernels. This library
//! executes it: no allocation when the caller gives the memory, no thread unless the caller asks for one, no
//! symbol needed but libc's and libm's. Every entry point is a C function that takes the model first; the
//! compiler generates the functions of a model's header, which pass it.
//!
//! `model` is what the generated code hands over, `context` one run's memory and the run itself, `library` the
//! kernels that a model may need, `weights` the block of weights and its file, `pool` threads for those who
//! have none, `program` the `main` of `--emit=exe`.

#![no_std]

mod context;
mod library;
mod message;
mod model;
mod pool;
mod program;
mod weights;

use core::panic::PanicInfo;

/// What entry points return. `docs/aot.md` and generated headers explain the codes.
pub type Status = i32;

pub mod status {
    //! Codes of [`super::Status`].

    pub const OK: i32 = 0;
    /// A pointer is null, or a number is out of range.
    pub const ARGUMENT: i32 = 1;
    /// A tensor has another element type.
    pub const TYPE: i32 = 2;
    /// A tensor has a rank or extents that the model was not compiled for.
    pub const SHAPE: i32 = 3;
    /// A tensor's memory is too small or not aligned for its type.
    pub const BUFFER: i32 = 4;
    /// The memory given is too small or not aligned, or there is no more.
    pub const MEMORY: i32 = 5;
    /// The file of weights cannot be read.
    pub const FILE: i32 = 6;
    /// The weights are not those of this model, or damaged.
    pub const WEIGHTS: i32 = 7;
    /// The model itself is damaged.
    pub const DAMAGED: i32 = 8;
    /// The model was compiled by another version.
    pub const VERSION: i32 = 9;

    /// What a code means, ended by a zero.
    pub fn text(status: i32) -> &'static [u8] {
        match status {
            OK => b"success\0",
            ARGUMENT => b"an argument is null or out of range\0",
            TYPE => b"a tensor has another element type than the model\0",
            SHAPE => b"a tensor has a shape that the model was not compiled for\0",
            BUFFER => b"the memory of a tensor is too small or not aligned\0",
            MEMORY => b"the memory of the context is too small or not aligned, or memory is exhausted\0",
            FILE => b"the file of weights cannot be read\0",
            WEIGHTS => b"the weights are damaged or belong to another model\0",
            DAMAGED => b"the compiled model is damaged\0",
            VERSION => b"the model was compiled by a version that this run-time library does not know\0",
            _ => b"unknown status\0",
        }
    }
}

/// The text of a status code; never null.
#[unsafe(no_mangle)]
pub extern "C" fn tc_rt_status_text(status: Status) -> *const u8 {
    status::text(status).as_ptr()
}

/// Kernels panic only where an invariant of theirs is broken. There is nobody to tell but the standard error
/// stream, and no way on.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    const TEXT: &[u8] = b"tensorc: internal error in the run-time library\n";
    // SAFETY: the text is readable memory of that length; `abort` does not return.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::abort()
    }
}

// Functions of the compiler's own library for wide divisions, which the exact remainder needs on processors without
// them, name what would unwind through them. Nothing unwinds here, so it is an address and no more; weak, so that a
// program of Rust's keeps its own.
core::arch::global_asm!(
    ".pushsection .rodata.rust_eh_personality,\"a\"",
    ".weak rust_eh_personality",
    "rust_eh_personality:",
    ".quad 0",
    ".popsection",
);
