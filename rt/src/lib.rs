//! The run-time library of models compiled ahead of time.
//!
//! A compiled model is an *image* ([`tensorc_abi::image`]) with the machine code of its kernels. This library
//! executes it: no allocation when the caller gives the memory (but for what `tc_rt_memory_for` needs while it runs), no thread unless the caller asks for one, no
//! symbol needed but libc's and libm's. Every entry point is a C function that takes the model first; the
//! compiler generates the functions of a model's header, which pass it.
//!
//! `model` is what the generated code hands over, `signature` what it takes and gives, `context` one run's memory and
//! the run itself, `library` the kernels that a model may need, `open` what a context keeps of a plan for many shapes, `parts` models that run in parts, since their shapes depend on values, `gpu` the same for models whose kernels run on a GPU,
//! `weights` the block of weights and its file, `pool` threads for those who have none, `program` the `main` of
//! `--emit=exe`.

#![no_std]
#![warn(missing_docs)]

mod context;
mod gpu;
mod library;
mod message;
mod model;
mod open;
mod parts;
mod pool;
mod program;
mod signature;
mod weights;

use core::ffi::c_char;
use core::panic::PanicInfo;

use tensorc_abi::artifact::{Status, status};

/// The text of a status code; never null.
#[unsafe(no_mangle)]
pub extern "C" fn tc_rt_status_text(status: Status) -> *const c_char {
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
