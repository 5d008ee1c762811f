//! Errors of checking, loading and running plans.

use tensorc_abi::DType;

use crate::gpu::DriverError;
use crate::{AllocError, TaskPanic, WeightError};

/// A plan breaks one of the rules its execution relies on. Names are those of the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("buffer `{buffer}`: its size in bytes exceeds 63 bits")]
    Size { buffer: String },
    #[error("buffer `{buffer}`: {home} {index} does not exist, the plan has {count}")]
    Home { buffer: String, home: &'static str, index: u32, count: usize },
    #[error("{side} {index} is not a buffer with that home")]
    Edge { side: Side, index: usize },
    #[error("buffer `{buffer}` and the plan's {side} {index} differ in size or are two buffers to write")]
    Alias { buffer: String, side: Side, index: u32 },
    #[error("buffer `{buffer}` does not lie in `{whole}` as a part of it")]
    Part { buffer: String, whole: String },
    #[error("step `{step}` writes `{first}`, which shares elements with `{second}`, another part that is written")]
    PartsOverlap { step: String, first: String, second: String },
    #[error("step `{step}` takes `{buffer}`, whose elements do not lie side by side")]
    Strided { step: String, buffer: String },
    #[error("buffer `{buffer}`: arena offset {offset} is not a multiple of {align}")]
    Misaligned { buffer: String, offset: u64, align: u64 },
    #[error("buffer `{buffer}`: arena range ends at {end}, past the arena's {arena} bytes")]
    OutsideArena { buffer: String, end: u64, arena: u64 },
    #[error("step `{step}` uses buffer {buffer}, the plan has {count}")]
    UnknownBuffer { step: String, buffer: u32, count: usize },
    #[error("step `{step}` uses kernel {kernel}, the plan has {count}")]
    UnknownKernel { step: String, kernel: u32, count: usize },
    #[error("step `{step}` has more than 2^63 - 1 iterations")]
    Extent { step: String },
    #[error("step `{step}` writes `{buffer}`, an input, weight or old state")]
    WritesReadOnly { step: String, buffer: String },
    #[error("step `{step}` reads `{buffer}` before any step wrote it")]
    ReadBeforeWrite { step: String, buffer: String },
    #[error("step `{step}` writes `{buffer}`, a state, while its old value is still read")]
    StateInUse { step: String, buffer: String },
    #[error("step `{step}` of the {phase} phase uses `{buffer}`, which belongs to the other")]
    Phase { step: String, phase: &'static str, buffer: String },
    #[error("the first phase has {boundary} steps, the plan has {steps}")]
    Boundary { boundary: u32, steps: usize },
    #[error("output `{buffer}` is never written")]
    OutputNotWritten { buffer: String },
    #[error("step `{step}`: arena ranges of `{first}` and `{second}` overlap while both are live")]
    Overlap { step: String, first: String, second: String },
    #[error("step `{step}` writes `{buffer}` in place of an operand it still reads")]
    InPlace { step: String, buffer: String },
    #[error("step `{step}`: library operand `{buffer}` is {dtype}, not {expected}")]
    OperandType { step: String, buffer: String, dtype: DType, expected: DType },
    #[error("step `{step}` accesses `{buffer}` outside its {len} elements")]
    Bounds { step: String, buffer: String, len: u64 },
    #[error("step `{step}` cannot read `{buffer}` in the layout it is stored in")]
    Packing { step: String, buffer: String },
    #[error("step `{step}` calls function {function} of the host, the plan is linked with {count}")]
    UnknownFunction { step: String, function: u32, count: usize },
    #[error("step `{step}`: the function of operator `{operator}` does not take buffers of these sizes")]
    FunctionSizes { step: String, operator: String },
    #[error("step `{step}` copies {from} bytes to a buffer of {to}")]
    CopySize { step: String, from: u64, to: u64 },
    #[error("step `{step}`: {what}")]
    Parameters { step: String, what: &'static str },
    #[error("the plan claims a lower bound of {declared} bytes for an arena of {arena}")]
    LowerBound { declared: u64, arena: u64 },
}

/// Which edge of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Input,
    Output,
    State,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Input => "input",
            Side::Output => "output",
            Side::State => "state",
        })
    }
}

/// A plan, its code and its weights do not make an executable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("plan `{plan}`: {error}")]
    Plan { plan: String, error: PlanError },
    #[error("plan `{plan}` has {expected} kernels, {actual} were linked")]
    KernelCount { plan: String, expected: usize, actual: usize },
    #[error("plan `{plan}` has {expected} weights, {actual} were given")]
    WeightCount { plan: String, expected: usize, actual: usize },
    #[error("weight `{weight}`: {error}")]
    Weight { weight: String, error: WeightError },
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A step has no form for a GPU.
    #[error("step `{step}`: {what} has no form for a GPU")]
    NoLaunch { step: String, what: &'static str },
    /// A step has no form for a processor.
    #[error("step `{step}`: a call of {library} runs on a GPU only")]
    NoCall { step: String, library: &'static str },
    #[error("plan `{plan}` has {expected} calls of libraries, {actual} were linked")]
    CallCount { plan: String, expected: usize, actual: usize },
}

/// A run was refused or failed. After an error the outputs' contents are unspecified, and the
/// context may be used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    #[error("plan `{plan}` takes {expected} {side}s, {actual} were given")]
    Count { plan: String, side: Side, expected: usize, actual: usize },
    #[error("{side} `{name}` is {expected}, a tensor of {actual} was given")]
    DType { side: Side, name: String, expected: DType, actual: DType },
    #[error("{side} `{name}` has shape {expected:?}, a tensor of {actual:?} was given")]
    Shape { side: Side, name: String, expected: Vec<u64>, actual: Vec<u64> },
    #[error("{side} `{name}` takes {expected} bytes, {actual} were given")]
    Bytes { side: Side, name: String, expected: u64, actual: u64 },
    #[error("{side} `{name}`: the data of a {dtype} tensor must start at a multiple of {align} bytes")]
    Alignment { side: Side, name: String, dtype: DType, align: usize },
    /// The second phase continues a run whose first phase has ended, once.
    #[error("plan `{plan}`: {why}")]
    Phase { plan: String, why: &'static str },
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error("step `{step}`: {panic}")]
    Panic { step: String, panic: TaskPanic },
    /// A launch or a copy failed on a device.
    #[error("{message}")]
    Device { message: String },
    /// Runs are begun and finished in turn, on a device.
    #[error("plan `{plan}`: {why}")]
    Turn { plan: String, why: &'static str },
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A function of the host, an operator written as a closure, failed or panicked.
    #[error("step `{step}`, operator `{operator}`: {message}")]
    Extern { step: String, operator: String, message: String },
}
