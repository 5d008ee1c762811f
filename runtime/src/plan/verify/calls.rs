//! Library calls and copies stay inside their operands and read weights in the right layout.

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{
    Arg, Attention, BatchedGemm, BufferId, Conv2d, ConvPass, DType, LeftOperand, MatrixLayout, Packing, Plan, Step,
    StepOp, StorageClass, SubBuffer, VendorCall, VendorContraction,
};

use super::super::error::PlanError;
use super::byte_size;
use crate::bounds::{packing_fits, strided_fits};

pub(super) fn check(plan: &Plan, step: &Step) -> Result<(), PlanError> {
    match &step.op {
        StepOp::Launch { args, extent, .. } => {
            if *extent > i64::MAX as u64 {
                return Err(PlanError::Extent { step: step.name.clone() });
            }
            args.iter().try_for_each(|arg| check_layout(plan, step, arg.buffer, Packing::Plain))
        }
        StepOp::Gemm { call, a, b, c, epilogue } => {
            check_operands(plan, step, DType::F32, &in_buffers(a, [*b, *c]))?;
            check_epilogue(plan, step, *c, epilogue.as_ref().map(|e| e.args.as_slice()))?;
            check_left(plan, step, a, *c)?;
            check_gemm(plan, step, call, (a, *b, *c))
        }
        StepOp::Conv { call, a, b, c, epilogue } => {
            check_operands(plan, step, DType::F32, &in_buffers(a, [*b, *c]))?;
            check_epilogue(plan, step, *c, epilogue.as_ref().map(|e| e.args.as_slice()))?;
            check_left(plan, step, a, *c)?;
            if a.prologue().is_some() && !call.takes_computed() {
                let what = "a convolution that reads its left operand in memory computes it";
                return Err(PlanError::Parameters { step: step.name.clone(), what });
            }
            check_conv(plan, step, call, (a, *b, *c))
        }
        StepOp::Attention { call, q, k, v, out, epilogue } => {
            check_attention(plan, step, call, [*q, *k, *v, *out])?;
            for arg in epilogue.iter().flat_map(|e| &e.args) {
                if arg.writes || arg.buffer == *out {
                    return Err(PlanError::Parameters {
                        step: step.name.clone(),
                        what: "its epilogue touches the result",
                    });
                }
                check_layout(plan, step, arg.buffer, Packing::Plain)?;
            }
            Ok(())
        }
        StepOp::Extern { args, .. } => {
            for (i, arg) in args.iter().enumerate() {
                check_layout(plan, step, arg.buffer, Packing::Plain)?;
                check_dense(plan, step, arg.buffer)?;
                if arg.writes && args[..i].iter().any(|other| other.buffer == arg.buffer) {
                    let (step, buffer) = (step.name.clone(), plan.buffer(arg.buffer).name.clone());
                    return Err(PlanError::InPlace { step, buffer });
                }
                if !arg.writes && args[..i].iter().any(|other| other.writes) {
                    let what = "operands of a function come before its results";
                    return Err(PlanError::Parameters { step: step.name.clone(), what });
                }
            }
            Ok(())
        }
        StepOp::Vendor { call, args } => check_vendor(plan, step, call, args),
        StepOp::Copy { src, dst } => {
            if src == dst {
                return Err(PlanError::InPlace { step: step.name.clone(), buffer: plan.buffer(*dst).name.clone() });
            }
            check_layout(plan, step, *src, Packing::Plain)?;
            check_dense(plan, step, *src)?;
            check_dense(plan, step, *dst)?;
            let (from, to) = (plan.buffer(*src).dtype, plan.buffer(*dst).dtype);
            if from != to {
                let (step, buffer) = (step.name.clone(), plan.buffer(*dst).name.clone());
                return Err(PlanError::CopyType { step, buffer, from, to });
            }
            let (from, to) = (plan.buffer(*src).bytes(), plan.buffer(*dst).bytes());
            match from == to {
                true => Ok(()),
                false => Err(PlanError::CopySize { step: step.name.clone(), from, to }),
            }
        }
    }
}

/// Elements lie side by side.
fn check_dense(plan: &Plan, step: &Step, id: BufferId) -> Result<(), PlanError> {
    let buffer = plan.buffer(id);
    match buffer.is_dense() {
        true => Ok(()),
        false => Err(PlanError::Strided { step: step.name.clone(), buffer: buffer.name.clone() }),
    }
}

fn check_attention(plan: &Plan, step: &Step, call: &Attention, ids: [BufferId; 4]) -> Result<(), PlanError> {
    check_operands(plan, step, DType::F32, &ids)?;
    let parameters = |what| Err(PlanError::Parameters { step: step.name.clone(), what });
    if call.out.col_stride != 1 {
        return parameters("the rows of its result are not contiguous");
    }
    let matrices = [
        (&call.q, call.queries, call.depth),
        (&call.k, call.depth, call.keys),
        (&call.v, call.keys, call.size),
        (&call.out, call.queries, call.size),
    ];
    for (id, (layout, rows, cols)) in ids.into_iter().zip(matrices) {
        check_layout(plan, step, id, Packing::Plain)?;
        check_matrix(plan, step, id, layout.offset, &axes(layout, &call.batch, rows, cols))?;
    }
    match is_injective(&axes(&call.out, &call.batch, call.queries, call.size)) {
        true => Ok(()),
        false => parameters("blocks of its result overlap"),
    }
}

fn check_vendor(plan: &Plan, step: &Step, call: &VendorCall, args: &[Arg]) -> Result<(), PlanError> {
    let parameters = |what| PlanError::Parameters { step: step.name.clone(), what };
    let result = call.result();
    if args.len() != call.arguments() || args.iter().enumerate().any(|(i, arg)| arg.writes != (i >= result)) {
        return Err(parameters("a call of a library has other arguments"));
    }
    if !call.fits() {
        return Err(parameters("a library does not compute a contraction of this form"));
    }
    let ids: Vec<BufferId> = args.iter().map(|arg| arg.buffer).collect();
    let three = (&LeftOperand::Buffer(ids[0]), ids[1], ids[result]);
    check_operands(plan, step, call.dtype, &ids[..=result])?;
    match &call.contraction {
        VendorContraction::Product { call, .. } => check_gemm(plan, step, call, three)?,
        VendorContraction::Convolution(call) => check_conv(plan, step, call, three)?,
    }
    if let VendorContraction::Product { call, bias: true } = &call.contraction {
        check_layout(plan, step, ids[2], Packing::Plain)?;
        check_dense(plan, step, ids[2])?;
        if elements(plan, ids[2]) != call.n {
            return Err(bounds(plan, step, ids[2]));
        }
    }
    let Some(&memory) = ids.get(result + 1) else { return Ok(()) };
    check_operands(plan, step, DType::U8, &[memory])?;
    check_dense(plan, step, memory)?;
    if ids[..=result].contains(&memory) {
        return Err(PlanError::InPlace { step: step.name.clone(), buffer: plan.buffer(memory).name.clone() });
    }
    if elements(plan, memory) < call.workspace { Err(bounds(plan, step, memory)) } else { Ok(()) }
}

/// Operands of a library call are of one type, and the result, which comes last, is none of them.
fn check_operands(plan: &Plan, step: &Step, expected: DType, ids: &[BufferId]) -> Result<(), PlanError> {
    for &id in ids {
        let buffer = plan.buffer(id);
        if buffer.dtype != expected {
            let (step, buffer, dtype) = (step.name.clone(), buffer.name.clone(), buffer.dtype);
            return Err(PlanError::OperandType { step, buffer, dtype, expected });
        }
    }
    match ids {
        [operands @ .., result] if operands.contains(result) => {
            Err(PlanError::InPlace { step: step.name.clone(), buffer: plan.buffer(*result).name.clone() })
        }
        _ => Ok(()),
    }
}

/// An epilogue writes the library call's result and nothing else, and reads plain layouts.
fn check_epilogue(
    plan: &Plan,
    step: &Step,
    result: BufferId,
    args: Option<&[tensorc_abi::Arg]>,
) -> Result<(), PlanError> {
    for arg in args.unwrap_or_default() {
        if arg.writes && arg.buffer != result {
            return Err(PlanError::Parameters { step: step.name.clone(), what: "its epilogue writes another buffer" });
        }
        check_layout(plan, step, arg.buffer, Packing::Plain)?;
    }
    Ok(())
}

/// The left operand that lies in a buffer, and others.
fn in_buffers(left: &LeftOperand, others: [BufferId; 2]) -> Vec<BufferId> {
    left.buffer().into_iter().chain(others).collect()
}

/// What computes a left operand reads plain layouts, writes nothing and does not see the result.
fn check_left(plan: &Plan, step: &Step, left: &LeftOperand, result: BufferId) -> Result<(), PlanError> {
    let prologue = match left {
        LeftOperand::Buffer(_) => return Ok(()),
        LeftOperand::Computed(prologue) => prologue,
    };
    for arg in &prologue.args {
        if arg.writes || plan.overlap(arg.buffer, result) {
            return Err(PlanError::Parameters { step: step.name.clone(), what: "its prologue touches the result" });
        }
        check_layout(plan, step, arg.buffer, Packing::Plain)?;
    }
    Ok(())
}

/// A weight is stored in the layout its reader expects; all other buffers are plain.
fn check_layout(plan: &Plan, step: &Step, id: BufferId, wanted: Packing) -> Result<(), PlanError> {
    let buffer = plan.buffer(id);
    let stored = match buffer.storage {
        StorageClass::Weight(index) => plan.weights[index as usize].packing,
        _ => Packing::Plain,
    };
    let same = match (stored, wanted) {
        // Where the matrix lies in the constant does not show in its packed form.
        (Packing::GemmB { k, n, .. }, Packing::GemmB { k: wanted_k, n: wanted_n, .. }) => {
            (k, n) == (wanted_k, wanted_n)
        }
        (stored, wanted) => stored == wanted,
    };
    match same && packing_fits(&stored, elements(plan, id)) {
        true => Ok(()),
        false => Err(PlanError::Packing { step: step.name.clone(), buffer: buffer.name.clone() }),
    }
}

fn check_gemm(
    plan: &Plan,
    step: &Step,
    call: &BatchedGemm,
    (a, b, c): (&LeftOperand, BufferId, BufferId),
) -> Result<(), PlanError> {
    if call.c.col_stride != 1 {
        return Err(PlanError::Parameters {
            step: step.name.clone(),
            what: "the rows of its result are not contiguous",
        });
    }
    let inside = |id: BufferId, layout: &MatrixLayout, rows: u64, cols: u64| {
        check_matrix(plan, step, id, layout.offset, &axes(layout, &call.batch, rows, cols))
    };
    if let Some(a) = a.buffer() {
        check_layout(plan, step, a, Packing::Plain)?;
        inside(a, &call.a, call.m, call.k)?;
    }
    inside(c, &call.c, call.m, call.n)?;
    if !is_injective(&axes(&call.c, &call.batch, call.m, call.n)) {
        return Err(PlanError::Parameters { step: step.name.clone(), what: "blocks of its result overlap" });
    }
    if call.b_packed {
        let packed = Packing::GemmB { k: call.k, n: call.n, offset: 0, row_stride: 0, col_stride: 0 };
        return check_layout(plan, step, b, packed);
    }
    check_layout(plan, step, b, Packing::Plain)?;
    inside(b, &call.b, call.k, call.n)
}

/// A batch of matrices lies in its buffer, in the runs of it if it is a strided part.
fn check_matrix(plan: &Plan, step: &Step, id: BufferId, offset: i64, axes: &[(u64, i64)]) -> Result<(), PlanError> {
    match plan.buffer(id).part.filter(|_| !plan.buffer(id).is_dense()) {
        None if strided_fits(offset, axes, elements(plan, id)) => Ok(()),
        Some(part) if part_fits(offset, axes, &part, elements(plan, id)) => Ok(()),
        _ => Err(bounds(plan, step, id)),
    }
}

fn check_conv(
    plan: &Plan,
    step: &Step,
    call: &Conv2d,
    (a, b, c): (&LeftOperand, BufferId, BufferId),
) -> Result<(), PlanError> {
    let parameters = |what| PlanError::Parameters { step: step.name.clone(), what };
    if [call.strides, call.dilations, call.kernel].concat().contains(&0) {
        return Err(parameters("a stride, dilation or kernel extent of a convolution is zero"));
    }
    if !call.layouts_fit() {
        return Err(parameters("a convolution does not fit its layouts"));
    }
    // Positions in the padded input are computed in signed arithmetic.
    let reach = |axis: usize| {
        let span = product(&[call.output[axis], call.strides[axis]])?;
        span.checked_add(product(&[call.kernel[axis], call.dilations[axis]])?)?.checked_add(call.pads[axis])
    };
    if [0, 1].map(reach).iter().any(|reach| reach.is_none_or(|reach| reach > i32::MAX as u64)) {
        return Err(parameters("a convolution reaches over more than 2^31 - 1 rows or columns"));
    }
    let (a, b, c) = (a.buffer(), Some(b), Some(c));
    a.map_or(Ok(()), |a| check_layout(plan, step, a, Packing::Plain))?;
    let (filters, [x, w, y]) = match call.pass {
        ConvPass::Packed(_) => (Packing::Conv(call.contiguous()), [a, b, c]),
        ConvPass::Forward => (Packing::Plain, [a, b, c]),
        ConvPass::DataGradient => (Packing::Plain, [c, b, a]),
        ConvPass::FilterGradient => (Packing::Plain, [a, c, b]),
    };
    b.map_or(Ok(()), |b| check_layout(plan, step, b, filters))?;
    for (id, size) in [x, w, y].into_iter().zip(call.sizes()) {
        if let Some(id) = id.filter(|id| size != Some(elements(plan, *id))) {
            return Err(bounds(plan, step, id));
        }
        if size.is_none_or(|size| size > i32::MAX as u64) {
            return Err(parameters("an operand of a convolution has more than 2^31 - 1 elements"));
        }
    }
    w.map_or(Ok(()), |w| check_dense(plan, step, w))?;
    for (id, side) in [(x, 0), (y, 1)].into_iter().filter(|_| call.batch > 1) {
        let Some(id) = id else { continue };
        let (image, stride) = (call.image_sizes()[side], call.image_strides()[side]);
        let lies = match plan.buffer(id).part.filter(|_| !plan.buffer(id).is_dense()) {
            None => image == stride,
            Some(part) => (part.run, part.stride) == (image, stride),
        };
        if !lies {
            return Err(bounds(plan, step, id));
        }
    }
    Ok(())
}

fn bounds(plan: &Plan, step: &Step, id: BufferId) -> PlanError {
    PlanError::Bounds { step: step.name.clone(), buffer: plan.buffer(id).name.clone(), len: elements(plan, id) }
}

fn elements(plan: &Plan, id: BufferId) -> u64 {
    let buffer = plan.buffer(id);
    byte_size(buffer).unwrap_or(0) / buffer.dtype.size() as u64
}

fn product(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor))
}

/// Extent and stride of every axis of a batch of `rows × cols` matrices.
fn axes(layout: &MatrixLayout, batch: &[u64; GEMM_BATCH_RANK], rows: u64, cols: u64) -> Vec<(u64, i64)> {
    let mut axes = vec![(rows, layout.row_stride), (cols, layout.col_stride)];
    axes.extend(batch.iter().copied().zip(layout.batch_strides));
    axes
}

/// Whether different indices lie at different places: each stride steps over all that the smaller
/// ones reach. (Sufficient, and necessary for the layouts planners make.)
fn is_injective(axes: &[(u64, i64)]) -> bool {
    if axes.iter().any(|&(extent, _)| extent == 0) {
        return true;
    }
    let mut strides: Vec<(u64, u64)> =
        axes.iter().filter(|axis| axis.0 > 1).map(|&(extent, stride)| (stride.unsigned_abs(), extent)).collect();
    strides.sort_unstable();
    let mut reach = 0u128;
    strides.into_iter().all(|(stride, extent)| {
        let steps_over = u128::from(stride) > reach;
        reach = reach.saturating_add(u128::from(extent - 1) * u128::from(stride));
        steps_over
    })
}

/// As [`strided_fits`], in the runs of a strided part of that many elements: axes that step over whole
/// strides count runs, the others stay inside a run.
fn part_fits(offset: i64, axes: &[(u64, i64)], part: &SubBuffer, elements: u64) -> bool {
    if offset < 0 || axes.iter().any(|axis| axis.1 < 0) {
        return false;
    }
    let stride = part.stride as i64;
    let (runs, inner): (Vec<_>, Vec<_>) = axes.iter().copied().partition(|(_, step)| step % stride == 0);
    let runs: Vec<(u64, i64)> = runs.into_iter().map(|(extent, step)| (extent, step / stride)).collect();
    strided_fits(offset / stride, &runs, elements / part.run) && strided_fits(offset % stride, &inner, part.run)
}
