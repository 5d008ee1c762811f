//! The interpreter of PTX itself, on small programs written by hand: what instructions compute, and every error it finds.
//!
//! Expected values follow from the PTX ISA; none is computed by the interpreter.

mod arithmetic;
mod errors;
mod matrix;
mod tiles;
mod together;

use tensorc_tests::ptx::{Argument, Fault, Launch, Module};

/// An entry with two pointers, in `%rd1` and `%rd2`, the thread's number in `%r1` and the block's in `%r2`, and 16 KiB of dynamic
/// shared memory, `sh`.
fn entry(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 sh[];\n\
         .visible .entry k(\n  .param .u64 .ptr .global .align 16 in,\n  .param .u64 .ptr .global .align 16 out\n)\n.maxntid 1024\n{{\n\
         .reg .pred %p<20>;\n.reg .b16 %rs<40>;\n.reg .b32 %r<100>;\n.reg .b64 %rd<40>;\n\
         ld.param.b64 %rd1, [in];\nld.param.b64 %rd2, [out];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\n\
         {body}\nret;\n}}\n"
    )
}

fn launch(blocks: u64, threads: u32, seed: u64) -> Launch {
    Launch { blocks, threads, shared_bytes: 16 << 10, seed }
}

/// Executes a body on an input and as many bytes of output, all 0xee before.
fn run(body: &str, launch: Launch, input: &[u8], bytes: usize) -> Result<Vec<u8>, Fault> {
    let module = Module::parse(&entry(body))?;
    let (mut input, mut output) = (input.to_vec(), vec![0xee; bytes]);
    let mut arguments = [
        Argument::Buffer { bytes: &mut input, writable: false },
        Argument::Buffer { bytes: &mut output, writable: true },
    ];
    module.launch("k", launch, &mut arguments)?;
    Ok(output)
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn bytes<const N: usize, T: Copy>(values: &[T], f: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| f(*value)).collect()
}

/// `%rd3` becomes where in the output the word of the thread stands.
const OWN_WORD: &str = "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd3, %rd2, %rd3;\n";
