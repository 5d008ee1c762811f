//! States change after the last use of their old value, and phases do not share the caller's memory.
//!
//! The old value of a state is live from the start of the run to the last step that reads it, the
//! new one from the step that writes it first. They may meet in one step only in place: a generated
//! kernel that reads the one and writes the other, element by element.

use tensorc_abi::{BufferId, Plan, StepOp, StorageClass};

use super::super::error::PlanError;
use super::{Uses, byte_size};

/// `used` is what each step uses, in order.
pub(super) fn check(plan: &Plan, used: &Uses) -> Result<(), PlanError> {
    if plan.states.is_empty() && plan.boundary.is_none() {
        return Ok(());
    }
    let mut last_read: Vec<Option<usize>> = vec![None; plan.states.len()];
    let mut output_phase: Vec<Option<bool>> = vec![None; plan.outputs.len()];
    for (index, (step, used)) in plan.steps.iter().zip(used.each()).enumerate() {
        let second = plan.in_second_phase(index);
        for use_ in used {
            let shared = match plan.buffer(use_.buffer).storage {
                StorageClass::State(state) => {
                    if plan.states[state as usize] == plan.whole(use_.buffer) {
                        last_read[state as usize] = Some(index);
                    }
                    use_.writes && plan.boundary.is_some() && !second
                }
                StorageClass::Output(output) => *output_phase[output as usize].get_or_insert(second) != second,
                StorageClass::Input(_) | StorageClass::Weight(_) | StorageClass::Arena(_) => false,
            };
            if shared {
                let phase = if second { "second" } else { "first" };
                let buffer = plan.buffer(use_.buffer).name.clone();
                return Err(PlanError::Phase { step: step.name.clone(), phase, buffer });
            }
        }
    }
    check_new_values(plan, used, &last_read)
}

/// Each state has one new value at most, born when the old one is dead.
fn check_new_values(plan: &Plan, used: &Uses, last_read: &[Option<usize>]) -> Result<(), PlanError> {
    let mut written: Vec<Option<usize>> = vec![None; plan.states.len()];
    for (index, (step, used)) in plan.steps.iter().zip(used.each()).enumerate() {
        for use_ in used.iter().filter(|use_| use_.writes) {
            let buffer = plan.buffer(use_.buffer);
            let StorageClass::State(state) = buffer.storage else { continue };
            let state = state as usize;
            let id = plan.whole(use_.buffer).0 as usize;
            let another = *written[state].get_or_insert(id) != id;
            let early = last_read[state]
                .is_some_and(|read| read > index || read == index && !in_place(plan, index, use_.buffer));
            if byte_size(buffer) != Some(0) && (another || early) {
                return Err(PlanError::StateInUse { step: step.name.clone(), buffer: buffer.name.clone() });
            }
        }
    }
    Ok(())
}

/// Whether a step that writes buffer `new` may read the old value of the same state: a generated
/// kernel, which takes the old value once, and elements of the same size.
fn in_place(plan: &Plan, step: usize, new: BufferId) -> bool {
    let StepOp::Launch { args, .. } = &plan.steps[step].op else { return false };
    let new = plan.buffer(new);
    if args.iter().any(|arg| plan.buffer(arg.buffer).storage == new.storage && plan.buffer(arg.buffer).part.is_some()) {
        return false;
    }
    let old = args.iter().filter(|arg| !arg.writes && plan.buffer(arg.buffer).storage == new.storage);
    old.map(|arg| plan.buffer(arg.buffer).dtype.size()).eq([new.dtype.size()])
}
