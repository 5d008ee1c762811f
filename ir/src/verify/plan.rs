//! Structural rules of plans. That live buffers do not overlap is checked where plans are loaded.

use tensorc_abi::{Arg, Attention, DType, Epilogue, Home, KernelId, Packing, Plan, StepOp};

use crate::diag::{Code, Diagnostic, Result};
use crate::kir::{BufInfo, Kernel};

/// Number of index parameters of an epilogue.
const EPILOGUE_SCALARS: usize = 7;

/// Checks a plan, and its calls against `kernels` (by [`KernelId`]) if they are given.
///
/// - Every id is in range; inputs, states and outputs have their homes, in order; arena offsets are aligned.
/// - Inputs, states as they are before the run, and weights are never written.
/// - Library operands are f32, and copies keep type and size.
/// - A call gives each parameter of its kernel a buffer of its type and size, and writes exactly
///   the writable ones; its extent is the kernel's; epilogues take their index parameters.
pub fn verify_plan(plan: &Plan, kernels: Option<&[Kernel]>) -> Result<()> {
    let fail = |why: String| Diagnostic::new(Code::Verify, format!("plan {}: {why}", plan.name));
    tables(plan, kernels).map_err(fail)?;
    for step in &plan.steps {
        check_step(plan, &step.op, kernels).map_err(|why| fail(why).at(&step.name.as_str().into()))?;
    }
    Ok(())
}

type Check = std::result::Result<(), String>;

fn tables(plan: &Plan, kernels: Option<&[Kernel]>) -> Check {
    if kernels.is_some_and(|k| k.len() != plan.kernels.len()) {
        return Err(format!("{} kernels are named", plan.kernels.len()));
    }
    for b in &plan.buffers {
        let fits = match b.home {
            Home::Input(i) => (i as usize) < plan.inputs.len(),
            Home::Output(i) => (i as usize) < plan.outputs.len(),
            Home::State(i) => (i as usize) < plan.states.len(),
            Home::Weight(w) => (w as usize) < plan.weights.len(),
            Home::Arena(offset) => offset.is_multiple_of(Plan::ALIGN),
        };
        if let Some(part) = b.part {
            let whole = plan.buffers.get(part.of.0 as usize);
            let whole = whole.filter(|w| w.part.is_none() && w.home == b.home && w.dtype == b.dtype);
            let runs = part.run > 0 && b.len().is_multiple_of(part.run) && part.stride >= part.run;
            if !runs || whole.is_none_or(|w| part.offset.saturating_add(part.span(b.len())) > w.len()) {
                return Err(format!("buffer `{}` is no part of its whole", b.name));
            }
        }
        if !fits {
            return Err(format!("buffer `{}` has the home {:?}, which does not exist", b.name, b.home));
        }
    }
    let home = |id: tensorc_abi::BufferId| plan.buffers.get(id.0 as usize).map(|b| b.home);
    for (i, id) in plan.inputs.iter().enumerate() {
        if home(*id) != Some(Home::Input(i as u32)) {
            return Err(format!("input {i} is not the buffer with that home"));
        }
    }
    for (i, id) in plan.outputs.iter().enumerate() {
        if home(*id) != Some(Home::Output(i as u32)) {
            return Err(format!("output {i} is not the buffer with that home"));
        }
    }
    for (i, id) in plan.states.iter().enumerate() {
        if home(*id) != Some(Home::State(i as u32)) {
            return Err(format!("state {i} is not the buffer with that home"));
        }
    }
    if plan.boundary.is_some_and(|n| n as usize > plan.steps.len()) {
        return Err("the first phase has more steps than the plan".into());
    }
    Ok(())
}

fn check_step(plan: &Plan, op: &StepOp, kernels: Option<&[Kernel]>) -> Check {
    for arg in op.args() {
        let Some(b) = plan.buffers.get(arg.buffer.0 as usize) else {
            return Err(format!("buffer {} does not exist", arg.buffer.0));
        };
        let before_the_run = plan.states.contains(&arg.buffer);
        if arg.writes && (before_the_run || matches!(b.home, Home::Input(_) | Home::Weight(_))) {
            return Err(format!("`{}` is written, but belongs to the caller or is constant", b.name));
        }
    }
    match op {
        StepOp::Launch { kernel, args, extent } => call(plan, *kernel, args, kernels, Some(*extent)),
        StepOp::Gemm { call: c, a, b, c: out, epilogue } => {
            let packed = matches!(packing(plan, plan.buffer(*b).home), Some(Packing::GemmB { .. }));
            if c.b_packed != packed {
                return Err("the product and its weight disagree on packing".into());
            }
            if [a, b, out].iter().any(|id| plan.buffer(**id).dtype != DType::F32) {
                return Err("an operand of a library product is not f32".into());
            }
            epilogue.as_ref().map_or(Ok(()), |e| call(plan, e.kernel, &e.args, kernels, None))
        }
        StepOp::Conv { call: c, a, b, c: out, epilogue } => {
            let packed = matches!(packing(plan, plan.buffer(*b).home), Some(Packing::Conv(_)));
            if packed != c.pass.is_packed() {
                return Err("the convolution and its filters disagree on packing".into());
            }
            if !c.layout_fits() {
                return Err("the convolution does not fit its layout".into());
            }
            if [a, b, out].iter().any(|id| plan.buffer(**id).dtype != DType::F32) {
                return Err("an operand of a library convolution is not f32".into());
            }
            epilogue.as_ref().map_or(Ok(()), |e| call(plan, e.kernel, &e.args, kernels, None))
        }
        StepOp::Attention { q, k, v, out, epilogue, .. } => {
            if [q, k, v, out].iter().any(|id| plan.buffer(**id).dtype != DType::F32) {
                return Err("an operand of library attention is not f32".into());
            }
            epilogue.as_ref().map_or(Ok(()), |e| score_call(plan, e, kernels))
        }
        StepOp::Extern { .. } => Ok(()),
        StepOp::Vendor { call, args } => {
            let operands = &args[..args.len().min(call.result() + 1)];
            match operands.iter().find(|arg| plan.buffer(arg.buffer).dtype != call.dtype) {
                _ if args.len() != call.arguments() => Err(format!("a call of {} has other arguments", call.library())),
                Some(arg) => {
                    Err(format!("`{}` is not {}, as the call says", plan.buffer(arg.buffer).name, call.dtype.name()))
                }
                None if !call.fits() => Err(format!("{} does not compute a contraction of this form", call.library())),
                None => Ok(()),
            }
        }
        StepOp::Copy { src, dst } => {
            let (s, d) = (plan.buffer(*src), plan.buffer(*dst));
            match s.dtype == d.dtype && s.len() == d.len() {
                true => Ok(()),
                false => Err(format!("`{}` and `{}` differ in type or size", s.name, d.name)),
            }
        }
    }
}

fn packing(plan: &Plan, home: Home) -> Option<Packing> {
    match home {
        Home::Weight(w) => plan.weights.get(w as usize).map(|w| w.packing),
        _ => None,
    }
}

/// The epilogue of attention: a tile of the library's, then its arguments.
fn score_call(plan: &Plan, e: &Epilogue, kernels: Option<&[Kernel]>) -> Check {
    let Some(name) = plan.kernels.get(e.kernel.0 as usize) else {
        return Err(format!("kernel {} does not exist", e.kernel.0));
    };
    let Some(kernel) = kernels.and_then(|k| k.get(e.kernel.0 as usize)) else { return Ok(()) };
    let tile = kernel.buffers.first().filter(|_| kernel.params == e.args.len() + 1);
    match tile {
        Some(tile) if tile.dtype == DType::F32 && tile.len == Attention::TILE && tile.writable => {}
        _ => return Err(format!("`{name}` does not take a tile of scores and the arguments given")),
    }
    arguments(plan, name, &e.args, &kernel.buffers[1..])?;
    index_parameters(name, kernel)
}

/// A launch with its extent, or an epilogue.
fn call(plan: &Plan, id: KernelId, args: &[Arg], kernels: Option<&[Kernel]>, extent: Option<u64>) -> Check {
    let Some(name) = plan.kernels.get(id.0 as usize) else { return Err(format!("kernel {} does not exist", id.0)) };
    let Some(kernel) = kernels.and_then(|k| k.get(id.0 as usize)) else { return Ok(()) };
    if args.len() != kernel.params {
        return Err(format!("`{name}` takes {} buffers, {} given", kernel.params, args.len()));
    }
    arguments(plan, name, args, &kernel.buffers)?;
    match extent {
        Some(n) if n != kernel.parallel_extent() => {
            Err(format!("`{name}` is launched over {n}, its extent is {}", kernel.parallel_extent()))
        }
        None => index_parameters(name, kernel),
        _ => Ok(()),
    }
}

fn arguments(plan: &Plan, name: &str, args: &[Arg], params: &[BufInfo]) -> Check {
    for (arg, info) in args.iter().zip(params) {
        let b = plan.buffer(arg.buffer);
        if b.dtype != info.dtype || b.span() != info.len || arg.writes != info.writable {
            return Err(format!("`{}` does not fit parameter `{}` of `{name}`", b.name, info.name));
        }
    }
    Ok(())
}

fn index_parameters(name: &str, kernel: &Kernel) -> Check {
    match kernel.is_parallel() || kernel.scalars.len() != EPILOGUE_SCALARS {
        true => Err(format!("`{name}` does not take the parameters of an epilogue")),
        false => Ok(()),
    }
}
