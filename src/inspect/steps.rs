//! What steps of a plan do, in a few words.

use tensorc_abi::{FlowKind, Plan, StepOp};

/// What a step does, with its sizes: `gemm 1x64x256x64 + epilogue`.
pub fn step_text(plan: &Plan, op: &StepOp) -> String {
    match op {
        StepOp::Launch { kernel, extent, .. } => format!("kernel[{extent}] #{}", kernel.0),
        StepOp::Gemm { call, epilogue, a, .. } => {
            let batch: u64 = call.batch.iter().product();
            format!(
                "gemm {batch}x{}x{}x{}{}{}",
                call.m,
                call.n,
                call.k,
                if a.prologue().is_some() { " + prologue" } else { "" },
                if epilogue.is_some() { " + epilogue" } else { "" }
            )
        }
        StepOp::Conv { call, epilogue, a, .. } => format!(
            "{} {}x{} {}->{} s{} g{}{}{}",
            call.pass.step_word().replace('_', "-"),
            call.kernel[0],
            call.kernel[1],
            call.in_channels,
            call.out_channels,
            call.strides[0],
            call.groups,
            if a.prologue().is_some() { " + prologue" } else { "" },
            if epilogue.is_some() { " + epilogue" } else { "" }
        ),
        StepOp::Attention { call, epilogue, .. } => {
            let batch: u64 = call.batch.iter().product();
            format!(
                "attention {batch}x{}x{}x{}{}",
                call.queries,
                call.keys,
                call.depth,
                if epilogue.is_some() { " + epilogue" } else { "" }
            )
        }
        StepOp::Vendor { call, .. } => call.library().to_owned(),
        StepOp::Flow { flow, .. } => match &flow.kind {
            FlowKind::If => "branch".to_owned(),
            FlowKind::Loop(repeat) => {
                format!("loop{}", repeat.trips.map_or(String::new(), |n| format!(" of {n} iterations")))
            }
        },
        StepOp::Extern { operator, .. } => format!("function of `{operator}`"),
        other => {
            let bytes: u64 =
                other.args().iter().filter(|arg| arg.writes).map(|arg| plan.buffer(arg.buffer).bytes()).sum();
            format!("{} {bytes} B", other.word().unwrap_or("?"))
        }
    }
}
