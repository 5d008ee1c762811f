//! An independent check that a plan may be executed: it shares no code with the planner.
//!
//! Checked are the sizes and homes of buffers, that every use names something that exists, that
//! inputs and weights are never written, that each buffer is written before it is read and each
//! output is written, that parts lie in their wholes and do not overwrite each other, that states change only after the last use of their old value, that phases
//! share nothing of the caller's that one of them writes, that arena buffers live at the same time do not overlap, and that library
//! calls stay inside their operands. What a generated kernel does inside its arguments is the
//! business of the kernel verifier.

mod calls;
mod liveness;
mod parts;
mod states;

use tensorc_abi::{Arg, Buffer, BufferId, Home, Plan, Step, StepOp};

pub(crate) use calls::packing_fits;

use super::error::{PlanError, Side};
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
/// The first rule the plan breaks, naming the step and buffer.
pub fn verify(plan: &Plan) -> Result<PlanReport, PlanError> {
    plan.buffers.iter().try_for_each(|buffer| check_buffer(plan, buffer))?;
    check_edges(plan)?;
    if let Some(boundary) = plan.boundary.filter(|n| *n as usize > plan.steps.len()) {
        return Err(PlanError::Boundary { boundary, steps: plan.steps.len() });
    }
    let mut written = Written::new(plan);
    for step in &plan.steps {
        check_references(plan, step)?;
        for use_ in uses(&step.op) {
            check_use(plan, step, use_, &mut written)?;
        }
        parts::check_step(plan, step)?;
        calls::check(plan, step)?;
    }
    for &id in &plan.outputs {
        let buffer = plan.buffer(id);
        if !written.holds(plan, id) && buffer.bytes() > 0 {
            return Err(PlanError::OutputNotWritten { buffer: buffer.name.clone() });
        }
    }
    states::check(plan)?;
    let lower_bound_bytes = liveness::check(plan)?;
    if plan.lower_bound_bytes > plan.arena_bytes {
        return Err(PlanError::LowerBound { declared: plan.lower_bound_bytes, arena: plan.arena_bytes });
    }
    Ok(PlanReport { arena_bytes: plan.arena_bytes, lower_bound_bytes })
}

/// Bytes of a buffer, unless they exceed 63 bits.
fn byte_size(buffer: &Buffer) -> Option<u64> {
    let elements = match buffer.dims.contains(&0) {
        true => 0,
        false => buffer.dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?,
    };
    elements.checked_mul(buffer.dtype.size() as u64).filter(|&bytes| bytes <= i64::MAX as u64)
}

fn check_buffer(plan: &Plan, buffer: &Buffer) -> Result<(), PlanError> {
    let name = || buffer.name.clone();
    let bytes = byte_size(buffer).ok_or_else(|| PlanError::Size { buffer: name() })?;
    parts::check_buffer(plan, buffer)?;
    let in_table = |home, index: u32, count: usize| match (index as usize) < count {
        true => Ok(()),
        false => Err(PlanError::Home { buffer: name(), home, index, count }),
    };
    match buffer.home {
        Home::Input(index) => in_table("input", index, plan.inputs.len()),
        Home::Output(index) => in_table("output", index, plan.outputs.len()),
        Home::State(index) => in_table("state", index, plan.states.len()),
        Home::Weight(index) => in_table("weight", index, plan.weights.len()),
        Home::Arena(offset) if !offset.is_multiple_of(Plan::ALIGN) => {
            Err(PlanError::Misaligned { buffer: name(), offset, align: Plan::ALIGN })
        }
        Home::Arena(_) if buffer.part.is_some() => Ok(()),
        Home::Arena(offset) => match offset.saturating_add(bytes) {
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
    let sides = [(Side::Input, &plan.inputs), (Side::State, &plan.states), (Side::Output, &plan.outputs)];
    for (side, list) in sides {
        for (index, id) in list.iter().enumerate() {
            let whole = plan.buffers.get(id.0 as usize).filter(|buffer| buffer.part.is_none());
            let home = whole.map(|buffer| buffer.home);
            if home.and_then(edge_of) != Some((side, index as u32)) {
                return Err(PlanError::Edge { side, index });
            }
        }
    }
    for (id, buffer) in plan.buffers.iter().enumerate() {
        let Some((side, index)) = edge_of(buffer.home).filter(|_| buffer.part.is_none()) else { continue };
        let list = match side {
            Side::Input => &plan.inputs,
            Side::State => &plan.states,
            Side::Output => &plan.outputs,
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

fn edge_of(home: Home) -> Option<(Side, u32)> {
    match home {
        Home::Input(index) => Some((Side::Input, index)),
        Home::Output(index) => Some((Side::Output, index)),
        Home::State(index) => Some((Side::State, index)),
        Home::Weight(_) | Home::Arena(_) => None,
    }
}

fn check_references(plan: &Plan, step: &Step) -> Result<(), PlanError> {
    for use_ in uses(&step.op) {
        if use_.buffer.0 as usize >= plan.buffers.len() {
            let (buffer, count) = (use_.buffer.0, plan.buffers.len());
            return Err(PlanError::UnknownBuffer { step: step.name.clone(), buffer, count });
        }
    }
    let kernel = match &step.op {
        StepOp::Launch { kernel, .. } => Some(kernel),
        StepOp::Gemm { epilogue, .. } | StepOp::Conv { epilogue, .. } | StepOp::Attention { epilogue, .. } => {
            epilogue.as_ref().map(|e| &e.kernel)
        }
        StepOp::Copy { .. } | StepOp::Extern { .. } | StepOp::Vendor { .. } => None,
    };
    match kernel {
        Some(kernel) if kernel.0 as usize >= plan.kernels.len() => {
            Err(PlanError::UnknownKernel { step: step.name.clone(), kernel: kernel.0, count: plan.kernels.len() })
        }
        _ => Ok(()),
    }
}

fn check_use(plan: &Plan, step: &Step, use_: Arg, written: &mut Written) -> Result<(), PlanError> {
    let buffer = plan.buffer(use_.buffer);
    let constant = match buffer.home {
        Home::Input(_) | Home::Weight(_) => true,
        Home::State(index) => plan.states[index as usize] == plan.whole(use_.buffer),
        Home::Output(_) | Home::Arena(_) => false,
    };
    match use_.writes {
        true if constant => Err(PlanError::WritesReadOnly { step: step.name.clone(), buffer: buffer.name.clone() }),
        true => written.write(plan, step, use_.buffer),
        false if constant || buffer.is_empty() || written.holds(plan, use_.buffer) => Ok(()),
        false => Err(PlanError::ReadBeforeWrite { step: step.name.clone(), buffer: buffer.name.clone() }),
    }
}

/// Buffer uses of a step in the order they take effect: a generated kernel reads all before it
/// writes any, an epilogue reads what the library call before it wrote.
fn uses(op: &StepOp) -> Vec<Arg> {
    let read = |buffer: BufferId| Arg { buffer, writes: false };
    let write = |buffer: BufferId| Arg { buffer, writes: true };
    let reads_first = |args: &[Arg]| {
        let (reads, writes): (Vec<Arg>, Vec<Arg>) = args.iter().partition(|arg| !arg.writes);
        [reads, writes].concat()
    };
    let library = |operands: [BufferId; 2], result: BufferId, epilogue: Option<&[Arg]>| {
        let mut all = vec![read(operands[0]), read(operands[1]), write(result)];
        all.extend(reads_first(epilogue.unwrap_or_default()));
        all
    };
    match op {
        StepOp::Launch { args, .. } | StepOp::Extern { args, .. } | StepOp::Vendor { args, .. } => reads_first(args),
        StepOp::Gemm { a, b, c, epilogue, .. } => library([*a, *b], *c, epilogue.as_ref().map(|e| e.args.as_slice())),
        StepOp::Conv { a, b, c, epilogue, .. } => library([*a, *b], *c, epilogue.as_ref().map(|e| e.args.as_slice())),
        StepOp::Attention { q, k, v, out, epilogue, .. } => {
            // Tiles are finished before the first row of the result is.
            let args = epilogue.iter().flat_map(|e| e.args.clone());
            [read(*q), read(*k), read(*v)].into_iter().chain(args).chain([write(*out)]).collect()
        }
        StepOp::Copy { src, dst } => vec![read(*src), write(*dst)],
    }
}
