//! An interpreter of PTX: executes what LLVM made of kernels, and the assembly in them, thread by thread.
//!
//! It knows PTX and nothing of tensorc: meanings are those of the PTX ISA (sections are named where they are used), never those of
//! the code that wrote the text. [`Module::parse`] reads a module and decodes its entries once; [`Module::launch`] executes one.
//!
//! **Order.** Between two points where they must wait for each other, threads run one after the other, in an order drawn from a
//! seed; so do warps and blocks. Asynchronous copies and products happen as late as they may. Races are found whatever the
//! order (`shadow`).
//!
//! **Errors.** An instruction, qualifier or directive that it does not know is one, never skipped. In execution: an access
//! outside of its allocation or not aligned to its size, a write to what is only read, a read of shared or local memory that was
//! never written or whose copy is not awaited, races, a collective operation that threads of a warp do not reach together,
//! sums used before their products are awaited, engines that access what no fence shows them, threads that wait for ever,
//! division by zero. A [`Fault`] names entry, line, block and thread.
//!
//! **Numbers.** f32 and f64 arithmetic rounds to nearest as IEEE 754 says; other roundings are unknown instructions, and so is
//! arithmetic without a rounding (`add.f32`), which an assembler may contract. Products of matrices are exact, their sums
//! computed in f64 and rounded once to f32: the ISA asks for no more than f32's precision and no order. Functions that the ISA
//! calls approximate (`ex2.approx`, `rsqrt.approx`, …) are computed in f64 and rounded: within the errors it allows, but not with
//! a processor's bits.

mod alu;
mod convert;
mod decode;
mod decode_memory;
mod decode_warp;
mod float;
mod group;
mod integer;
mod machine;
mod memory;
mod op;
mod phases;
mod shadow;
mod tensor;
mod text;
mod types;
mod warp;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use op::Program;
pub use tensor::{Swizzle, TensorMap};

/// Why a module is not read or a launch fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Empty while the module is read.
    pub entry: String,
    /// In the module's text, from 1; 0: of none.
    pub line: u32,
    /// The line's text.
    pub text: String,
    /// The block and the thread in it.
    pub thread: Option<(u64, usize)>,
    pub why: String,
}

impl Fault {
    fn at(line: u32, why: impl Into<String>) -> Fault {
        Fault { entry: String::new(), line, text: String::new(), thread: None, why: why.into() }
    }

    fn quoting(mut self, text: &str) -> Fault {
        let line = (self.line as usize).checked_sub(1).and_then(|i| text.lines().nth(i));
        self.text = line.unwrap_or_default().trim().to_owned();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.entry.is_empty() {
            write!(f, "entry {}, ", self.entry)?;
        }
        write!(f, "line {}", self.line)?;
        if !self.text.is_empty() {
            write!(f, " `{}`", self.text)?;
        }
        if let Some((block, thread)) = self.thread {
            write!(f, ", block {block}, thread {thread}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for Fault {}

/// The shape of a launch, in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub blocks: u64,
    /// Threads of a block: 1 to 1024.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// What the order of threads, warps and blocks is drawn from.
    pub seed: u64,
}

/// A parameter of an entry.
#[derive(Debug)]
pub enum Argument<'a> {
    /// Memory of the device, of which the entry gets the address.
    Buffer { bytes: &'a mut [u8], writable: bool },
    /// A number of as many bytes as the parameter has, lowest first.
    Number(u64),
    /// What the copy engine is told of a buffer, which is another argument.
    Map(TensorMap),
}

/// A module, decoded.
#[derive(Clone, Debug)]
pub struct Module {
    text: Arc<str>,
    target: String,
    entries: BTreeMap<String, Program>,
}

impl Module {
    /// Reads a module.
    ///
    /// # Errors
    /// The line with a directive, instruction or operand that is not known.
    pub fn parse(source: &str) -> Result<Module, Fault> {
        let quoted = |fault: Fault| fault.quoting(source);
        let module = text::parse(source).map_err(quoted)?;
        let mut entries = BTreeMap::new();
        for entry in &module.entries {
            let named = |fault| Fault { entry: entry.name.clone(), ..quoted(fault) };
            entries.insert(entry.name.clone(), decode::decode(&module, entry).map_err(named)?);
        }
        Ok(Module { text: source.into(), target: module.target, entries })
    }

    /// The architecture it is for, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    pub fn has_entry(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Executes an entry; buffers keep what it wrote, also if it fails. Gives how many instructions threads executed.
    ///
    /// # Errors
    /// See the module.
    pub fn launch(&self, entry: &str, launch: Launch, arguments: &mut [Argument<'_>]) -> Result<u64, Fault> {
        let named = |fault: Fault| Fault { entry: entry.to_owned(), ..fault.quoting(&self.text) };
        let program = self.entries.get(entry).ok_or_else(|| named(Fault::at(0, "there is no such entry")))?;
        machine::execute(program, launch, arguments).map_err(named)
    }
}
