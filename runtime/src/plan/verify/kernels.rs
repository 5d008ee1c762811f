//! Calls of generated kernels fit them: a launch over all of its iterations, an epilogue or a prologue on blocks.

use tensorc_abi::{
    Arg, Attention, CHANNEL_BLOCK, ContractionRef, DType, ImageLayout, KernelId, KernelSignature, Parameter, Plan,
    SUM_COLS, SUM_ROWS, Step, StepOp,
};

use super::super::error::PlanError;

/// A call of a kernel by a step.
struct Call<'p> {
    plan: &'p Plan,
    /// The plan that has the kernels.
    outermost: &'p Plan,
    step: &'p Step,
    kernel: KernelId,
    args: &'p [Arg],
}

pub(super) fn check(
    (plan, outermost): (&Plan, &Plan),
    step: &Step,
    kernels: &[KernelSignature],
) -> Result<(), PlanError> {
    if let StepOp::Launch { kernel, args, extent } = &step.op {
        let signature = &kernels[kernel.0 as usize];
        let call = Call { plan, outermost, step, kernel: *kernel, args };
        if *extent != signature.extent {
            return Err(call.wrong(format!("over {extent} iterations, it has {}", signature.extent)));
        }
        return call.check(&signature.parameters);
    }
    let Some(library) = step.op.library() else { return Ok(()) };
    if let Some(epilogue) = library.epilogue {
        let call = Call { plan, outermost, step, kernel: epilogue.kernel, args: &epilogue.args };
        // Attention's is applied to tiles of scores, some others' to sums that they only read.
        let tile = match (library.contraction, epilogue.apart) {
            (ContractionRef::Attention(_), _) => Some((DType::F32, Some(Attention::TILE), true)),
            (_, true) => Some((DType::I32, Some(SUM_ROWS * SUM_COLS), false)),
            (_, false) => None,
        };
        call.check_blocks(&kernels[epilogue.kernel.0 as usize], tile)?;
    }
    if let Some(prologue) = library.prologue {
        let call = Call { plan, outermost, step, kernel: prologue.kernel, args: &prologue.args };
        let memory = (DType::F32, left_elements(library.contraction), true);
        call.check_blocks(&kernels[prologue.kernel.0 as usize], Some(memory))?;
    }
    Ok(())
}

/// Elements of the matrix of which a prologue writes parts.
fn left_elements(contraction: ContractionRef<'_>) -> Option<u64> {
    match contraction {
        ContractionRef::Gemm(call) => call.m.checked_mul(call.k),
        ContractionRef::Conv(call) => {
            let blocks = call.layouts[0] == ImageLayout::Nchw16c;
            let pixels = call.input[0].checked_mul(call.input[1])?;
            pixels.checked_mul(if blocks { CHANNEL_BLOCK } else { call.in_channels })
        }
        ContractionRef::Attention(_) => None,
    }
}

/// Memory of the library that a kernel takes: the type, the elements if they can be counted, and whether it is written.
type BlockMemory = (DType, Option<u64>, bool);

impl Call<'_> {
    fn wrong(&self, why: String) -> PlanError {
        let kernel = self.outermost.kernels[self.kernel.0 as usize].clone();
        PlanError::KernelCall { step: self.step.name.clone(), kernel, why }
    }

    /// Every parameter gets a buffer of its type and size, and is written as the kernel says.
    fn check(&self, parameters: &[Parameter]) -> Result<(), PlanError> {
        if self.args.len() != parameters.len() {
            return Err(self.wrong(format!("it takes {} buffers, {} are given", parameters.len(), self.args.len())));
        }
        for (arg, parameter) in self.args.iter().zip(parameters) {
            let buffer = self.plan.buffer(arg.buffer);
            let given = (buffer.dtype.storage(), buffer.span(), arg.writes);
            if given != (parameter.dtype, parameter.span, parameter.writes) {
                let why = format!("`{}` does not fit its parameter `{}`", buffer.name, parameter.name);
                return Err(self.wrong(why));
            }
        }
        Ok(())
    }

    /// The kernel is one of blocks, whose first parameter is memory of the library for so many elements, if that is wanted.
    fn check_blocks(&self, signature: &KernelSignature, memory: Option<BlockMemory>) -> Result<(), PlanError> {
        if !signature.on_blocks {
            return Err(self.wrong("it does not take the parameters of a block".to_owned()));
        }
        let Some(memory) = memory else { return self.check(&signature.parameters) };
        match &signature.parameters[..] {
            [first, rest @ ..] if (first.dtype, Some(first.span), first.writes) == memory => self.check(rest),
            _ => Err(self.wrong("it does not take the library's memory for a block".to_owned())),
        }
    }
}
