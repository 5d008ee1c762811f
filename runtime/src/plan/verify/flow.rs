//! Nested plans are plans themselves, with the kernels and weights of the outermost one, and fit the arguments of their step.

use tensorc_abi::flow::FlowArg;
use tensorc_abi::{Arg, FlowPlan, Plan, Step};

use super::super::error::PlanError;
use super::VerifyRoom;

/// Whether nested plans obey all rules, and the arguments of their step are what they take.
pub(super) fn check(
    (plan, outermost): (&Plan, &Plan),
    step: &Step,
    flow: &FlowPlan,
    args: &[Arg],
) -> Result<(), PlanError> {
    let fail = |what| Err(PlanError::Flow { step: step.name.clone(), what });
    for body in &flow.bodies {
        super::check(body, outermost, true, &mut VerifyRoom::default())
            .map_err(|error| PlanError::Body { step: step.name.clone(), error: Box::new(error) })?;
        if !(body.kernels.is_empty() && body.weights.is_empty()) {
            return fail("a nested plan has kernels or weights of its own");
        }
        if body.boundary.is_some() || !body.checks.is_empty() {
            return fail("a nested plan has two phases or checks of its own");
        }
    }
    let Some(signature) = flow.signature() else {
        return fail("its nested plans are not those of a branch or loop");
    };
    let expected: Vec<(FlowArg, bool)> = signature
        .into_iter()
        .zip([false, true])
        .flat_map(|(list, writes)| list.into_iter().map(move |a| (a, writes)))
        .collect();
    let given = args.iter().map(|arg| {
        let buffer = plan.buffer(arg.buffer);
        (FlowArg { dtype: buffer.dtype, bytes: Some(buffer.bytes()) }, arg.writes)
    });
    match given.eq(expected) {
        true => Ok(()),
        false => fail("its operands or results are not what its nested plans take"),
    }
}
