//! Errors of checking, loading and running plans.

use std::time::Duration;

use tensorc_abi::{BrokenRequirement, DType, Plan};

use crate::gpu::DriverError;
use crate::pool::TaskPanic;
use crate::weights::WeightError;
use tensorc_abi::memory::AllocError;

/// A plan breaks one of the rules its execution relies on. Names are those of the plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A buffer has more bytes than can be addressed.
    #[error("buffer `{buffer}`: its size in bytes exceeds 63 bits")]
    Size {
        /// Name of the buffer.
        buffer: String,
    },
    /// The storage class of a buffer is none of the plan's inputs, outputs, states or weights.
    #[error("buffer `{buffer}`: {storage} {index} does not exist, the plan has {count}")]
    StorageClass {
        /// Name of the buffer.
        buffer: String,
        /// Kind of storage class: `input`, `output`, `state` or `weight`.
        storage: &'static str,
        /// Index in the plan's list of this kind.
        index: u32,
        /// Length of the list.
        count: usize,
    },
    /// An entry of the plan's inputs, outputs or states is no buffer with that storage class.
    #[error("{side} {index} is not a buffer with that storage class")]
    Edge {
        /// The list.
        side: PlanEdge,
        /// Index in the list.
        index: usize,
    },
    /// A buffer in the memory of an input, output or state has another size than the listed one.
    #[error("buffer `{buffer}` and the plan's {side} {index} differ in size or are two buffers to write")]
    Alias {
        /// Name of the buffer.
        buffer: String,
        /// The list.
        side: PlanEdge,
        /// Index in the list.
        index: u32,
    },
    /// What a check looks at is not one i64 in the arena that a step writes.
    #[error("check {index}: what it looks at is not one i64 in the arena that a step writes")]
    Check {
        /// Index in the plan's list.
        index: usize,
    },
    /// A sub-buffer does not lie in the buffer that it is said to be a part of, or differs from it in storage class or type.
    #[error("buffer `{buffer}` does not lie in `{whole}` as a part of it")]
    Part {
        /// Name of the buffer.
        buffer: String,
        /// Name of that buffer.
        whole: String,
    },
    /// Two written buffers in the memory of one have elements in common.
    #[error("step `{step}` writes `{first}`, which shares elements with `{second}`, another part that is written")]
    PartsOverlap {
        /// Name of the step.
        step: String,
        /// Name of the buffer that the step writes.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// What stays of a state is no part of its value after the run, or overlaps another part that stays.
    #[error(
        "`{buffer}` stays, but is no part of the value of a state after the run, or overlaps another part that stays"
    )]
    Kept {
        /// Name of the buffer.
        buffer: String,
    },
    /// What stays of a state is a buffer that the plan does not have.
    #[error("buffer {buffer} stays, but the plan has no such buffer")]
    UnknownKept {
        /// Its number.
        buffer: u32,
    },
    /// A step takes dense buffers only, and is given a strided one.
    #[error("step `{step}` takes `{buffer}`, whose elements do not lie side by side")]
    Strided {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// An offset in the arena is not aligned.
    #[error("buffer `{buffer}`: arena offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// Name of the buffer.
        buffer: String,
        /// The offset in bytes.
        offset: u64,
        /// What it must be a multiple of, in bytes.
        align: u64,
    },
    /// A buffer does not lie in the arena.
    #[error("buffer `{buffer}`: arena range ends at {end}, past the arena's {arena} bytes")]
    OutsideArena {
        /// Name of the buffer.
        buffer: String,
        /// Where it ends, in bytes from the start of the arena.
        end: u64,
        /// Size of the arena in bytes.
        arena: u64,
    },
    /// A step names a buffer that does not exist.
    #[error("step `{step}` uses buffer {buffer}, the plan has {count}")]
    UnknownBuffer {
        /// Name of the step.
        step: String,
        /// Index in [`Plan::buffers`].
        buffer: u32,
        /// Number of buffers.
        count: usize,
    },
    /// A step names a kernel that does not exist.
    #[error("step `{step}` uses kernel {kernel}, the plan has {count}")]
    UnknownKernel {
        /// Name of the step.
        step: String,
        /// Index in [`Plan::kernels`].
        kernel: u32,
        /// Number of kernels.
        count: usize,
    },
    /// There are not as many signatures as kernels.
    #[error("{expected} kernels are named, {actual} are there")]
    KernelCount {
        /// Number of kernels.
        expected: usize,
        /// Number of signatures.
        actual: usize,
    },
    /// The arguments of a step do not fit the signature of its kernel.
    #[error("step `{step}` calls kernel `{kernel}`: {why}")]
    KernelCall {
        /// Name of the step.
        step: String,
        /// Name of the kernel.
        kernel: String,
        /// What does not fit, for the message.
        why: String,
    },
    /// A launch has more iterations than can be counted.
    #[error("step `{step}` has more than 2^63 - 1 iterations")]
    Extent {
        /// Name of the step.
        step: String,
    },
    /// A step writes an input, a weight or the old value of a state.
    #[error("step `{step}` writes `{buffer}`, an input, weight or old state")]
    WritesReadOnly {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// A step reads what no step before it wrote.
    #[error("step `{step}` reads `{buffer}` before any step wrote it")]
    ReadBeforeWrite {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// A step writes the new value of a state before the last read of the old one, or a second new value.
    #[error("step `{step}` writes `{buffer}`, a state, while its old value is still read")]
    StateInUse {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// A step of the first phase writes a state, or the phases use the memory of one output.
    #[error("step `{step}` of the {phase} phase uses `{buffer}`, which belongs to the other")]
    Phase {
        /// Name of the step.
        step: String,
        /// Phase of the step: `first` or `second`.
        phase: &'static str,
        /// Name of the buffer.
        buffer: String,
    },
    /// The boundary of phases lies behind the last step.
    #[error("the first phase has {boundary} steps, the plan has {steps}")]
    Boundary {
        /// Number of steps of the first phase.
        boundary: u32,
        /// Number of steps.
        steps: usize,
    },
    /// No step writes all of an output.
    #[error("output `{buffer}` is never written")]
    OutputNotWritten {
        /// Name of the buffer.
        buffer: String,
    },
    /// Two buffers that are live at the same time share memory.
    #[error("step `{step}`: arena ranges of `{first}` and `{second}` overlap while both are live")]
    Overlap {
        /// Name of the step from which on both are live.
        step: String,
        /// Name of the buffer that is live before it.
        first: String,
        /// Name of the buffer that is written there first.
        second: String,
    },
    /// A step writes memory of an operand that it may still read.
    #[error("step `{step}` writes `{buffer}` in place of an operand it still reads")]
    InPlace {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// An operand of a library call has another element type than the call.
    #[error("step `{step}`: library operand `{buffer}` is {dtype}, not {expected}")]
    OperandType {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
        /// Element type of the buffer.
        dtype: DType,
        /// Element type of the call.
        expected: DType,
    },
    /// A library call reaches outside of an operand, or covers another number of elements.
    #[error("step `{step}` accesses `{buffer}` outside its {len} elements")]
    Bounds {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
        /// Number of elements of the buffer.
        len: u64,
    },
    /// A weight is not packed as its reader expects, or another buffer is read as if it were packed.
    #[error("step `{step}` cannot read `{buffer}` in the layout it is stored in")]
    Packing {
        /// Name of the step.
        step: String,
        /// Name of the buffer.
        buffer: String,
    },
    /// A step calls a function that is not linked.
    #[error("step `{step}` calls function {function} of the host, the plan is linked with {count}")]
    UnknownFunction {
        /// Name of the step.
        step: String,
        /// Index among the functions.
        function: u32,
        /// Number of functions.
        count: usize,
    },
    /// The operands, results or scratch of a function have other sizes than it takes.
    #[error("step `{step}`: the function of operator `{operator}` does not take buffers of these sizes")]
    FunctionSizes {
        /// Name of the step.
        step: String,
        /// Name of the operator.
        operator: String,
    },
    /// Nested plans do not fit the step that runs them.
    #[error("step `{step}`: {what}")]
    Flow {
        /// Name of the step.
        step: String,
        /// What does not fit.
        what: &'static str,
    },
    /// A nested plan breaks a rule.
    #[error("in `{step}`: {error}")]
    Body {
        /// Name of the step.
        step: String,
        /// The rule.
        error: Box<PlanError>,
    },
    /// A copy between buffers of different element types.
    #[error("step `{step}` copies elements of {from} to `{buffer}`, which has {to}")]
    CopyType {
        /// Name of the step.
        step: String,
        /// Name of the target.
        buffer: String,
        /// Element type of the source.
        from: DType,
        /// Element type of the target.
        to: DType,
    },
    /// A copy between buffers of different sizes.
    #[error("step `{step}` copies {from} bytes to a buffer of {to}")]
    CopySize {
        /// Name of the step.
        step: String,
        /// Bytes of the source.
        from: u64,
        /// Bytes of the target.
        to: u64,
    },
    /// The parameters of a call contradict each other, or no library has such a call.
    #[error("step `{step}`: {what}")]
    Parameters {
        /// Name of the step.
        step: String,
        /// What is wrong, for the message.
        what: &'static str,
    },
    /// The working memory that a plan lists is not that of one step after the other.
    #[error("working memory of step {step} is out of order, or begins or ends where no memory can")]
    ScratchList {
        /// Position of the step.
        step: u32,
    },
    /// Working memory of a step begins before the end of a buffer that is live then.
    #[error("step `{step}` has its working memory from byte {offset} on, where `{buffer}` is live")]
    ScratchOverlap {
        /// Name of the step.
        step: String,
        /// Where its working memory begins.
        offset: u64,
        /// Name of the buffer.
        buffer: String,
    },
    /// A library call needs more scratch than the plan provides.
    #[error("step `{step}` needs {needed} bytes of working memory, the plan has {declared} for each worker")]
    Scratch {
        /// Name of the step.
        step: String,
        /// Bytes that each worker needs.
        needed: u64,
        /// Bytes that the plan declares for each worker.
        declared: u64,
    },
    /// The plan's lower bound exceeds its arena.
    #[error("the plan claims a lower bound of {declared} bytes for an arena of {arena}")]
    LowerBound {
        /// The lower bound in bytes.
        declared: u64,
        /// Size of the arena in bytes.
        arena: u64,
    },
}

/// A plan that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan `{plan}`: {error}")]
pub struct InvalidPlan {
    /// Name of the plan.
    pub plan: String,
    /// The rule that it breaks.
    pub error: PlanError,
}

impl InvalidPlan {
    pub(super) fn of(plan: &Plan, error: PlanError) -> InvalidPlan {
        InvalidPlan { plan: plan.name.clone(), error }
    }
}

/// Which edge of a plan.
#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq)]
pub enum PlanEdge {
    /// The plan's inputs.
    #[display("input")]
    Input,
    /// The plan's outputs.
    #[display("output")]
    Output,
    /// The plan's states.
    #[display("state")]
    State,
}

/// A plan, its code and its weights do not make an executable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The plan breaks a rule of its own.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// There are not as many kernels as the plan names.
    #[error("plan `{plan}` has {expected} kernels, {actual} were linked")]
    KernelCount {
        /// Name of the plan.
        plan: String,
        /// Number of kernels of the plan.
        expected: usize,
        /// Number of kernels given.
        actual: usize,
    },
    /// There are not as many weights as the plan has.
    #[error("plan `{plan}` has {expected} weights, {actual} were given")]
    WeightCount {
        /// Name of the plan.
        plan: String,
        /// Number of weights of the plan.
        expected: usize,
        /// Number of weights given.
        actual: usize,
    },
    /// A weight does not have the size or alignment that the plan expects.
    #[error("weight `{weight}`: {error}")]
    Weight {
        /// Name of the weight.
        weight: String,
        /// What does not fit.
        error: WeightError,
    },
    /// Memory is short.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The device's driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A step has no form for a GPU.
    #[error("step `{step}`: {what} has no form for a GPU")]
    NoLaunch {
        /// Name of the step.
        step: String,
        /// What the step is, for the message.
        what: &'static str,
    },
    /// A step has no form for a processor.
    #[error("step `{step}`: a call of {library} runs on a GPU only")]
    NoCall {
        /// Name of the step.
        step: String,
        /// Name of the library.
        library: &'static str,
    },
    /// There are not as many linked calls as steps that call a vendor library.
    #[error("plan `{plan}` has {expected} calls of libraries, {actual} were linked")]
    CallCount {
        /// Name of the plan.
        plan: String,
        /// Number of such steps.
        expected: usize,
        /// Number of calls given.
        actual: usize,
    },
}

/// A run was refused or failed. After an error the outputs' contents are unspecified, and the
/// context may be used again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A list of tensors has another length than the plan's.
    #[error("plan `{plan}` takes {expected} {side}s, {actual} were given")]
    Count {
        /// Name of the plan.
        plan: String,
        /// The list.
        side: PlanEdge,
        /// Number of tensors that are taken.
        expected: usize,
        /// Number of tensors given.
        actual: usize,
    },
    /// A tensor has another element type than the plan's.
    #[error("{side} `{name}` is {expected}, a tensor of {actual} was given")]
    DType {
        /// The list.
        side: PlanEdge,
        /// Name of the plan's buffer.
        name: String,
        /// Element type in the plan.
        expected: DType,
        /// Element type given.
        actual: DType,
    },
    /// A tensor has another shape than the plan's.
    #[error("{side} `{name}` has shape {expected:?}, a tensor of {actual:?} was given")]
    Shape {
        /// The list.
        side: PlanEdge,
        /// Name of the plan's buffer.
        name: String,
        /// Shape in the plan.
        expected: Vec<u64>,
        /// Shape given.
        actual: Vec<u64>,
    },
    /// The data of a tensor does not fill its shape.
    #[error("{side} `{name}` takes {expected} bytes, {actual} were given")]
    Bytes {
        /// The list.
        side: PlanEdge,
        /// Name of the plan's buffer.
        name: String,
        /// Bytes of the shape.
        expected: u64,
        /// Bytes given.
        actual: u64,
    },
    /// The data of a tensor is not aligned.
    #[error("{side} `{name}`: the data of a {dtype} tensor must start at a multiple of {align} bytes")]
    Alignment {
        /// The list.
        side: PlanEdge,
        /// Name of the plan's buffer.
        name: String,
        /// Element type.
        dtype: DType,
        /// What the address must be a multiple of, in bytes.
        align: usize,
    },
    /// The second phase continues a run whose first phase has ended, once.
    #[error("plan `{plan}`: {why}")]
    Phase {
        /// Name of the plan.
        plan: String,
        /// Why the phase cannot run now, for the message.
        why: &'static str,
    },
    /// There is no memory for arena, scratch or copies.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A task panicked; the steps behind it did not run.
    #[error("step `{step}`: {panic}")]
    Panic {
        /// Names of the steps that ran together, joined by ` + `.
        step: String,
        /// The panic.
        panic: TaskPanic,
    },
    /// A launch or a copy failed on a device.
    #[error("{message}")]
    Device {
        /// The device's message.
        message: String,
    },
    /// Runs are begun and finished in turn, on a device.
    #[error("plan `{plan}`: {why}")]
    Turn {
        /// Name of the plan.
        plan: String,
        /// What is out of turn, for the message.
        why: &'static str,
    },
    /// The device's driver provides no memory or no stream.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The run takes longer than it may; what it was about to compute is not there.
    #[error("step `{step}`: the run takes longer than the {} s that are allowed", limit.as_secs_f64())]
    Time {
        /// Names of the steps that ran together, joined by ` + `.
        step: String,
        /// The time that the run may take.
        limit: Duration,
    },
    /// The caller has ended the run ([`crate::Interrupter`]).
    #[error("step `{step}`: the run was interrupted")]
    Interrupted {
        /// Name of the step during which it ended, or the names of those that ran side by side.
        step: String,
    },
    /// An operand holds a value that its operator does not take.
    #[error(transparent)]
    Value(#[from] BrokenRequirement),
    /// A function of the host, an operator written as a closure, failed or panicked.
    #[error("step `{step}`, operator `{operator}`: {message}")]
    Extern {
        /// Name of the step.
        step: String,
        /// Name of the operator.
        operator: String,
        /// The function's error, or the message of its panic.
        message: String,
    },
}
