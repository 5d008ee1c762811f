//! From clusters of primitives to kernels and machine code.
//!
//! ```
//! use tensorc_codegen::isa::{Arch, Isa};
//!
//! let isa: Isa = "x86_64-v3".parse()?;
//! assert_eq!((isa.arch(), isa.to_string()), (Arch::X86_64, "x86_64-v3".to_owned()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod analysis;
mod backend;
pub mod cranelift;
pub mod emit;
pub mod isa;
pub mod jit;
#[cfg(feature = "llvm")]
pub mod llvm;
mod loading;
pub mod lower;
pub mod object;
pub mod ptx;
pub mod sizes;
pub mod stored;
mod symbols;
mod vector;

mod walk;
