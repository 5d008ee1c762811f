//! An independent check that a plan may be executed: it shares no code with the planner.
//!
//! Checked are the sizes and homes of buffers, that every use names something that exists, that
//! inputs and weights are never written, that each buffer is written before it is read and each
//! output is written, that parts lie in their wholes and do not overwrite each other, that states
//! change only after the last use of their old value, that phases share nothing of the caller's that
//! one of them writes, that arena buffers live at the same time do not overlap, and that library
//! calls stay inside their operands and find the working memory that they need behind what is live. Where the signatures
//! of its kernels are known, calls must fit them ([`verify_kernels`]). What a generated kernel does
//! inside its arguments is the business of the kernel verifier.

mod calls;
mod flow;
mod kernels;
mod liveness;
mod parts;
mod states;

use tensorc_abi::{Arg, Buffer, DType, KernelSignature, Plan, Scratch, Step, StepOp, StorageClass, WorkingBytes};
use tensorc_exec::working_bytes;

use super::error::{InvalidPlan, PlanEdge, PlanError};
use liveness::LiveRoom;
use parts::Written;

/// Memory figures of a plan that passed [`verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanReport {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Largest number of bytes of arena buffers live at one step, a buffer that takes the place of
    /// a dying one counted once. No arena for these steps in this order can be smaller.
    pub lower_bound_bytes: u64,
}

impl PlanReport {
    /// Planned bytes over the lower bound: 1 is optimal.
    pub fn ratio(&self) -> f64 {
        match (self.arena_bytes, self.lower_bound_bytes) {
            (0, _) => 1.0,
            (arena, bound) => arena as f64 / bound as f64,
        }
    }
}

/// Checks the invariants of [`Plan`].
///
/// # Errors
/// The first rule the plan breaks, naming plan, step and buffer.
pub fn verify(plan: &Plan) -> Result<PlanReport, InvalidPlan> {
    verify_in(plan, &mut VerifyRoom::default())
}

/// As [`verify`], in memory that was used for the same plan with other numbers: nothing is allocated but for nested plans.
pub(super) fn verify_in(plan: &Plan, room: &mut VerifyRoom) -> Result<PlanReport, InvalidPlan> {
    check(plan, plan, true, room).map_err(|error| InvalidPlan::of(plan, error))
}

/// Memory in which plans are verified.
#[derive(Default)]
pub(super) struct VerifyRoom {
    used: Uses,
    written: Written,
    live: LiveRoom,
}

/// What each step uses.
#[derive(Default)]
struct Uses {
    args: Vec<Arg>,
    /// Where the uses of each step end.
    ends: Vec<usize>,
}

impl Uses {
    fn fill(&mut self, plan: &Plan) {
        self.args.clear();
        self.ends.clear();
        for step in &plan.steps {
            list_uses(&step.op, &mut self.args);
            self.ends.push(self.args.len());
        }
    }

    /// Those of a step, by its position.
    fn of(&self, step: usize) -> &[Arg] {
        let first = step.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.args[first..self.ends[step]]
    }

    /// Those of every step, in order.
    fn each(&self) -> impl Iterator<Item = &[Arg]> {
        (0..self.ends.len()).map(|step| self.of(step))
    }
}

/// As [`verify`], of a plan whose memory is not planned: its buffers in the arena have no offsets yet.
///
/// # Errors
/// As [`verify`].
pub fn verify_unplaced(plan: &Plan) -> Result<(), InvalidPlan> {
    check(plan, plan, false, &mut VerifyRoom::default()).map(drop).map_err(|error| InvalidPlan::of(plan, error))
}

/// Checks calls of generated kernels in a plan that obeys all other rules, against `kernels` by [`tensorc_abi::KernelId`].
///
/// # Errors
/// The first call that does not fit its kernel.
pub fn verify_kernels(plan: &Plan, kernels: &[KernelSignature]) -> Result<(), InvalidPlan> {
    let checked = match (plan.kernels.len(), kernels.len()) {
        (expected, actual) if expected != actual => Err(PlanError::KernelCount { expected, actual }),
        _ => check_kernels(plan, plan, kernels),
    };
    checked.map_err(|error| InvalidPlan::of(plan, error))
}

fn check_kernels(plan: &Plan, outermost: &Plan, kernels: &[KernelSignature]) -> Result<(), PlanError> {
    plan.steps.iter().try_for_each(|step| kernels::check((plan, outermost), step, kernels))?;
    plan.nested().try_for_each(|body| check_kernels(body, outermost, kernels))
}

/// Checks a plan, which may be nested in another: the outermost has the kernels and weights of all.
fn check(plan: &Plan, outermost: &Plan, placed: bool, room: &mut VerifyRoom) -> Result<PlanReport, PlanError> {
    let VerifyRoom { used: all, written, live } = room;
    plan.buffers.iter().try_for_each(|buffer| check_buffer(plan, outermost, buffer, placed))?;
    check_edges(plan)?;
    if let Some(boundary) = plan.boundary.filter(|n| *n as usize > plan.steps.len()) {
        return Err(PlanError::Boundary { boundary, steps: plan.steps.len() });
    }
    written.begin(plan)?;
    check_scratch_list(plan)?;
    all.fill(plan);
    let mut scratch = plan.scratch_of_steps();
    for (position, (step, used)) in plan.steps.iter().zip(all.each()).enumerate() {
        check_references(plan, outermost, step, used)?;
        for use_ in used {
            check_use(plan, step, *use_, written)?;
        }
        parts::check_step(plan, step, used)?;
        calls::check((plan, outermost), step)?;
        if let StepOp::Flow { flow, args } = &step.op {
            flow::check((plan, outermost), step, flow, args)?;
        }
        let needed = working_bytes(&step.op);
        let declared = scratch.of(position).map_or(WorkingBytes::default(), Scratch::working);
        if placed && declared.max(needed) != declared {
            let (needed, declared) = (needed.of(1), declared.of(1));
            return Err(PlanError::Scratch { step: step.name.clone(), needed, declared });
        }
    }
    for &id in &plan.outputs {
        let buffer = plan.buffer(id);
        if !written.holds(plan, id) && buffer.bytes() > 0 {
            return Err(PlanError::OutputNotWritten { buffer: buffer.name.clone() });
        }
    }
    for (index, check) in plan.checks.iter().enumerate() {
        let buffer = plan.buffers.get(check.buffer.0 as usize);
        let word = buffer.filter(|b| b.dtype == DType::I64 && b.len() == 1 && b.part.is_none());
        if !word.is_some_and(|b| matches!(b.storage, StorageClass::Arena(_))) || !written.holds(plan, check.buffer) {
            return Err(PlanError::Check { index });
        }
    }
    states::check(plan, all)?;
    let lower_bound_bytes = if placed { live.check(plan, all)? } else { 0 };
    if plan.lower_bound_bytes > plan.arena_bytes {
        return Err(PlanError::LowerBound { declared: plan.lower_bound_bytes, arena: plan.arena_bytes });
    }
    Ok(PlanReport { arena_bytes: plan.arena_bytes, lower_bound_bytes })
}

/// Working memory belongs to steps, each once and in order, and lies where memory can be.
fn check_scratch_list(plan: &Plan) -> Result<(), PlanError> {
    let mut next = 0;
    for scratch in &plan.scratch {
        let bytes = scratch.shared.checked_add(scratch.bytes);
        let end = bytes.and_then(|bytes| scratch.offset.checked_add(bytes));
        let fits = end.is_some_and(|end| end <= i64::MAX as u64);
        let known = scratch.step >= next && (scratch.step as usize) < plan.steps.len();
        if !(known && fits && scratch.offset.is_multiple_of(Plan::ALIGN) && scratch.live <= scratch.offset) {
            return Err(PlanError::ScratchList { step: scratch.step });
        }
        next = scratch.step + 1;
    }
    Ok(())
}

/// Bytes of a buffer, unless they exceed 63 bits.
fn byte_size(buffer: &Buffer) -> Option<u64> {
    let bytes = len(buffer)?.checked_mul(buffer.dtype.size() as u64);
    bytes.filter(|&bytes| bytes <= i64::MAX as u64)
}

/// Elements of a buffer, unless they exceed 64 bits.
fn len(buffer: &Buffer) -> Option<u64> {
    match buffer.dims.contains(&0) {
        true => Some(0),
        false => buffer.dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)),
    }
}

fn check_buffer(plan: &Plan, outermost: &Plan, buffer: &Buffer, placed: bool) -> Result<(), PlanError> {
    let name = || buffer.name.clone();
    let bytes = byte_size(buffer).ok_or_else(|| PlanError::Size { buffer: name() })?;
    parts::check_buffer(plan, buffer)?;
    let in_table = |storage, index: u32, count: usize| match (index as usize) < count {
        true => Ok(()),
        false => Err(PlanError::StorageClass { buffer: name(), storage, index, count }),
    };
    match buffer.storage {
        StorageClass::Input(index) => in_table("input", index, plan.inputs.len()),
        StorageClass::Output(index) => in_table("output", index, plan.outputs.len()),
        StorageClass::State(index) => in_table("state", index, plan.states.len()),
        StorageClass::Weight(index) => in_table("weight", index, outermost.weights.len()),
        StorageClass::Arena(offset) if !offset.is_multiple_of(Plan::ALIGN) => {
            Err(PlanError::Misaligned { buffer: name(), offset, align: Plan::ALIGN })
        }
        StorageClass::Arena(_) if buffer.part.is_some() || !placed => Ok(()),
        StorageClass::Arena(offset) => match offset.saturating_add(bytes) {
            end if end > plan.arena_bytes => {
                Err(PlanError::OutsideArena { buffer: name(), end, arena: plan.arena_bytes })
            }
            _ => Ok(()),
        },
    }
}

/// The listed inputs, states and outputs are buffers with those homes, an input or state may be seen
/// through further buffers of the same size, and the memory of an output hold others before it.
fn check_edges(plan: &Plan) -> Result<(), PlanError> {
    let sides = [(PlanEdge::Input, &plan.inputs), (PlanEdge::State, &plan.states), (PlanEdge::Output, &plan.outputs)];
    for (side, list) in sides {
        for (index, id) in list.iter().enumerate() {
            let whole = plan.buffers.get(id.0 as usize).filter(|buffer| buffer.part.is_none());
            let storage = whole.map(|buffer| buffer.storage);
            if storage.and_then(edge_of) != Some((side, index as u32)) {
                return Err(PlanError::Edge { side, index });
            }
        }
    }
    for (id, buffer) in plan.buffers.iter().enumerate() {
        let Some((side, index)) = edge_of(buffer.storage).filter(|_| buffer.part.is_none()) else { continue };
        let list = match side {
            PlanEdge::Input => &plan.inputs,
            PlanEdge::State => &plan.states,
            PlanEdge::Output => &plan.outputs,
        };
        let listed = list[index as usize];
        let same = listed.0 as usize == id;
        let view = byte_size(plan.buffer(listed)) == byte_size(buffer);
        if !same && !view {
            return Err(PlanError::Alias { buffer: buffer.name.clone(), side, index });
        }
    }
    Ok(())
}

fn edge_of(storage: StorageClass) -> Option<(PlanEdge, u32)> {
    match storage {
        StorageClass::Input(index) => Some((PlanEdge::Input, index)),
        StorageClass::Output(index) => Some((PlanEdge::Output, index)),
        StorageClass::State(index) => Some((PlanEdge::State, index)),
        StorageClass::Weight(_) | StorageClass::Arena(_) => None,
    }
}

fn check_references(plan: &Plan, outermost: &Plan, step: &Step, used: &[Arg]) -> Result<(), PlanError> {
    for use_ in used {
        if use_.buffer.0 as usize >= plan.buffers.len() {
            let (buffer, count) = (use_.buffer.0, plan.buffers.len());
            return Err(PlanError::UnknownBuffer { step: step.name.clone(), buffer, count });
        }
    }
    match step.op.kernels().find(|kernel| kernel.0 as usize >= outermost.kernels.len()) {
        Some(kernel) => {
            Err(PlanError::UnknownKernel { step: step.name.clone(), kernel: kernel.0, count: outermost.kernels.len() })
        }
        None => Ok(()),
    }
}

fn check_use(plan: &Plan, step: &Step, use_: Arg, written: &mut Written) -> Result<(), PlanError> {
    let buffer = plan.buffer(use_.buffer);
    let constant = match buffer.storage {
        StorageClass::Input(_) | StorageClass::Weight(_) => true,
        StorageClass::State(index) => plan.states[index as usize] == plan.whole(use_.buffer),
        StorageClass::Output(_) | StorageClass::Arena(_) => false,
    };
    match use_.writes {
        true if constant => Err(PlanError::WritesReadOnly { step: step.name.clone(), buffer: buffer.name.clone() }),
        true => written.write(plan, step, use_.buffer),
        false if constant || buffer.is_empty() || written.holds(plan, use_.buffer) => Ok(()),
        false => Err(PlanError::ReadBeforeWrite { step: step.name.clone(), buffer: buffer.name.clone() }),
    }
}

/// Appends the buffer uses of a step in the order they take effect: all are read before any is written, but an epilogue reads
/// what the library call before it wrote, and what computes an operand comes first.
fn list_uses(op: &StepOp, used: &mut Vec<Arg>) {
    let args = op.args();
    let (operands, [after, before]) = (args.operands(), args.lists());
    match (op, operands) {
        // Tiles of scores are finished before the first row of the result is.
        (StepOp::Attention { .. }, [operands @ .., result]) => {
            used.extend(operands);
            used.extend(after);
            used.push(*result);
        }
        _ => {
            used.extend(before);
            used.extend(operands);
            used.extend(after.iter().filter(|arg| !arg.writes));
            used.extend(after.iter().filter(|arg| arg.writes));
        }
    }
}
