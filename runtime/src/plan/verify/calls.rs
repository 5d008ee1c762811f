//! Library calls and copies stay inside their operands and read weights in the right layout.

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{
    Arg, Attention, BatchedGemm, BlockedWeights, BufferId, Conv2d, ConvPass, DType, Epilogue, GemmElements,
    LeftOperand, MAX_SUM_ARGS, MatrixLayout, Packing, Plan, Step, StepOp, StorageClass, SubBuffer, VendorCall,
    VendorContraction,
};

use super::super::error::PlanError;
use super::len;
use crate::bounds::{packing_fits, strided_fits};

pub(super) fn check((plan, outermost): (&Plan, &Plan), step: &Step) -> Result<(), PlanError> {
    let op = &step.op;
    let step = CheckedStep { plan, outermost, step };
    match op {
        StepOp::Launch { args, extent, .. } => {
            if *extent > i64::MAX as u64 {
                return Err(PlanError::Extent { step: step.name() });
            }
            args.iter().try_for_each(|arg| step.check_plain(arg.buffer))
        }
        StepOp::Gemm { call, a, b, c, epilogue } => {
            step.check_types(call.elements.types(), (a, *b, *c), epilogue.as_ref())?;
            step.check_left(a, *c)?;
            step.check_gemm(call, (a, *b, *c))
        }
        StepOp::Conv { call, a, b, c, epilogue } => {
            step.check_types(call.pass.types(), (a, *b, *c), epilogue.as_ref())?;
            step.check_left(a, *c)?;
            if a.prologue().is_some() && !call.takes_computed() {
                return Err(step.parameters("a convolution that reads its left operand in memory computes it"));
            }
            step.check_conv(call, (a, *b, *c))
        }
        StepOp::Attention { call, q, k, v, out, epilogue } => {
            step.check_attention(call, [*q, *k, *v, *out])?;
            for arg in epilogue.iter().flat_map(|e| &e.args) {
                if arg.writes || arg.buffer == *out {
                    return Err(step.parameters("its epilogue touches the result"));
                }
                step.check_plain(arg.buffer)?;
            }
            Ok(())
        }
        StepOp::Extern { args, .. } | StepOp::Flow { args, .. } => {
            for (i, arg) in args.iter().enumerate() {
                step.check_plain(arg.buffer)?;
                step.check_dense(arg.buffer)?;
                if arg.writes && args[..i].iter().any(|other| other.buffer == arg.buffer) {
                    return Err(step.in_place(arg.buffer));
                }
                if !arg.writes && args[..i].iter().any(|other| other.writes) {
                    return Err(step.parameters("operands of a function or nested plan come before its results"));
                }
            }
            Ok(())
        }
        StepOp::Vendor { call, args } => step.check_vendor(call, args),
        StepOp::Copy { src, dst } => {
            if src == dst {
                return Err(step.in_place(*dst));
            }
            step.check_plain(*src)?;
            step.check_dense(*src)?;
            step.check_dense(*dst)?;
            let (from, to) = (plan.buffer(*src).dtype, plan.buffer(*dst).dtype);
            if from != to {
                return Err(PlanError::CopyType { step: step.name(), buffer: step.buffer_name(*dst), from, to });
            }
            let (from, to) = (plan.buffer(*src).bytes(), plan.buffer(*dst).bytes());
            match from == to {
                true => Ok(()),
                false => Err(PlanError::CopySize { step: step.name(), from, to }),
            }
        }
    }
}

/// Axes of a batch of matrices.
const MATRIX_AXES: usize = GEMM_BATCH_RANK + 2;

/// A step and the plan that it is of.
struct CheckedStep<'p> {
    plan: &'p Plan,
    /// The plan that has the weights.
    outermost: &'p Plan,
    step: &'p Step,
}

impl CheckedStep<'_> {
    fn name(&self) -> String {
        self.step.name.clone()
    }

    fn buffer_name(&self, id: BufferId) -> String {
        self.plan.buffer(id).name.clone()
    }

    fn parameters(&self, what: &'static str) -> PlanError {
        PlanError::Parameters { step: self.name(), what }
    }

    fn in_place(&self, id: BufferId) -> PlanError {
        PlanError::InPlace { step: self.name(), buffer: self.buffer_name(id) }
    }

    fn bounds(&self, id: BufferId) -> PlanError {
        PlanError::Bounds { step: self.name(), buffer: self.buffer_name(id), len: elements(self.plan, id) }
    }

    /// Elements lie side by side.
    fn check_dense(&self, id: BufferId) -> Result<(), PlanError> {
        let buffer = self.plan.buffer(id);
        match buffer.is_dense() {
            true => Ok(()),
            false => Err(PlanError::Strided { step: self.name(), buffer: buffer.name.clone() }),
        }
    }

    fn check_attention(&self, call: &Attention, ids: [BufferId; 4]) -> Result<(), PlanError> {
        let [q, k, v, out] = ids;
        self.check_operands(DType::F32, [q, k, v], out)?;
        if call.out.col_stride != 1 {
            return Err(self.parameters("the rows of its result are not contiguous"));
        }
        let matrices = [
            (&call.q, call.queries, call.depth),
            (&call.k, call.depth, call.keys),
            (&call.v, call.keys, call.size),
            (&call.out, call.queries, call.size),
        ];
        for (id, (layout, rows, cols)) in ids.into_iter().zip(matrices) {
            self.check_plain(id)?;
            self.check_matrix(id, layout.offset, &axes(layout, &call.batch, rows, cols))?;
        }
        match is_injective(&axes(&call.out, &call.batch, call.queries, call.size)) {
            true => Ok(()),
            false => Err(self.parameters("blocks of its result overlap")),
        }
    }

    fn check_vendor(&self, call: &VendorCall, args: &[Arg]) -> Result<(), PlanError> {
        let result = call.result();
        if args.len() != call.arguments() || args.iter().enumerate().any(|(i, arg)| arg.writes != (i >= result)) {
            return Err(self.parameters("a call of a library has other arguments"));
        }
        if !call.fits() {
            return Err(self.parameters("a library does not compute a contraction of this form"));
        }
        let ids: Vec<BufferId> = args.iter().map(|arg| arg.buffer).collect();
        let three = (&LeftOperand::Buffer(ids[0]), ids[1], ids[result]);
        self.check_operands(call.dtype, ids[..result].iter().copied(), ids[result])?;
        match &call.contraction {
            VendorContraction::Product { call, .. } => self.check_gemm(call, three)?,
            VendorContraction::Convolution(call) => self.check_conv(call, three)?,
        }
        if let VendorContraction::Product { call, bias: true } = &call.contraction {
            self.check_plain(ids[2])?;
            self.check_dense(ids[2])?;
            if elements(self.plan, ids[2]) != call.n {
                return Err(self.bounds(ids[2]));
            }
        }
        let Some(&memory) = ids.get(result + 1) else { return Ok(()) };
        self.check_operands(DType::U8, [], memory)?;
        self.check_dense(memory)?;
        if ids[..=result].contains(&memory) {
            return Err(self.in_place(memory));
        }
        if elements(self.plan, memory) < call.workspace { Err(self.bounds(memory)) } else { Ok(()) }
    }

    /// Operands of a library call and its result are of one type, and the result is none of the operands.
    fn check_operands(
        &self,
        expected: DType,
        operands: impl IntoIterator<Item = BufferId>,
        result: BufferId,
    ) -> Result<(), PlanError> {
        self.check_operand_types(operands.into_iter().map(|id| (expected, id)), (expected, result))
    }

    /// As [`CheckedStep::check_operands`], each of its type.
    fn check_operand_types(
        &self,
        operands: impl IntoIterator<Item = (DType, BufferId)>,
        (expected, result): (DType, BufferId),
    ) -> Result<(), PlanError> {
        let of_type = |expected: DType, id: BufferId| {
            let buffer = self.plan.buffer(id);
            if buffer.dtype != expected {
                let (step, buffer, dtype) = (self.name(), buffer.name.clone(), buffer.dtype);
                return Err(PlanError::OperandType { step, buffer, dtype, expected });
            }
            Ok(())
        };
        let mut is_operand = false;
        for (expected, id) in operands {
            of_type(expected, id)?;
            is_operand |= id == result;
        }
        of_type(expected, result)?;
        if is_operand { Err(self.in_place(result)) } else { Ok(()) }
    }

    /// Operands and result are of the types that the call takes, but for a result that an epilogue makes of sums of i32 that lie
    /// apart; and the epilogue fits the call.
    fn check_types(
        &self,
        [left, right, sums]: [DType; 3],
        (a, b, c): (&LeftOperand, BufferId, BufferId),
        epilogue: Option<&Epilogue>,
    ) -> Result<(), PlanError> {
        let apart = epilogue.filter(|epilogue| epilogue.apart);
        if apart.is_some_and(|epilogue| sums != DType::I32 || epilogue.args.len() > MAX_SUM_ARGS) {
            return Err(
                self.parameters("sums lie apart from the result that are none of bytes, or too many operands do")
            );
        }
        let result = if apart.is_some() { self.plan.buffer(c).dtype.storage() } else { sums };
        let operands = a.buffer().map(|a| (left, a)).into_iter().chain([(right, b)]);
        self.check_operand_types(operands, (result, c))?;
        self.check_epilogue(c, epilogue)
    }

    /// An epilogue writes the library call's result and nothing else, and reads plain layouts.
    fn check_epilogue(&self, result: BufferId, epilogue: Option<&Epilogue>) -> Result<(), PlanError> {
        for arg in epilogue.iter().flat_map(|e| &e.args) {
            if arg.writes && arg.buffer != result {
                return Err(self.parameters("its epilogue writes another buffer"));
            }
            self.check_plain(arg.buffer)?;
        }
        Ok(())
    }

    /// What computes a left operand reads plain layouts, writes nothing and does not see the result.
    fn check_left(&self, left: &LeftOperand, result: BufferId) -> Result<(), PlanError> {
        for arg in left.prologue().iter().flat_map(|prologue| &prologue.args) {
            if arg.writes || self.plan.overlap(arg.buffer, result) {
                return Err(self.parameters("its prologue touches the result"));
            }
            self.check_plain(arg.buffer)?;
        }
        Ok(())
    }

    fn check_plain(&self, id: BufferId) -> Result<(), PlanError> {
        self.check_layout(id, Packing::Plain)
    }

    /// A weight is stored in the layout its reader expects; all other buffers are plain.
    fn check_layout(&self, id: BufferId, wanted: Packing) -> Result<(), PlanError> {
        let buffer = self.plan.buffer(id);
        let stored = match buffer.storage {
            StorageClass::Weight(index) => &self.outermost.weights[index as usize].packing,
            _ => &Packing::Plain,
        };
        let same = match (stored, &wanted) {
            // Where the matrix lies in the constant does not show in its packed form.
            (
                Packing::GemmB { k, n, elements, .. },
                Packing::GemmB { k: wanted_k, n: wanted_n, elements: wanted_elements, .. },
            ) => (k, n, elements) == (wanted_k, wanted_n, wanted_elements),
            (stored, wanted) => stored == wanted,
        };
        match same && packing_fits(stored, elements(self.plan, id)) {
            true => Ok(()),
            false => Err(PlanError::Packing { step: self.name(), buffer: buffer.name.clone() }),
        }
    }

    fn check_gemm(&self, call: &BatchedGemm, (a, b, c): (&LeftOperand, BufferId, BufferId)) -> Result<(), PlanError> {
        if call.c.col_stride != 1 {
            return Err(self.parameters("the rows of its result are not contiguous"));
        }
        let packed = if call.b_packed { call.elements.packed() } else { None };
        if call.b_packed != packed.is_some() || (call.elements == GemmElements::Bf16 && packed.is_none()) {
            return Err(
                self.parameters("the right operand is packed where its elements are not, or not where they are")
            );
        }
        if call.elements != GemmElements::F32 && a.prologue().is_some() {
            return Err(self.parameters("a product of other elements than f32 has an operand that is computed"));
        }
        if let GemmElements::Blocked(weights) = call.elements {
            self.check_blocked(&weights, call, b)?;
        }
        let inside = |id: BufferId, layout: &MatrixLayout, rows: u64, cols: u64| {
            self.check_matrix(id, layout.offset, &axes(layout, &call.batch, rows, cols))
        };
        if let Some(a) = a.buffer() {
            self.check_plain(a)?;
            inside(a, &call.a, call.m, call.k)?;
        }
        inside(c, &call.c, call.m, call.n)?;
        if !is_injective(&axes(&call.c, &call.batch, call.m, call.n)) {
            return Err(self.parameters("blocks of its result overlap"));
        }
        if let Some(elements) = packed {
            let packed = Packing::GemmB { k: call.k, n: call.n, offset: 0, row_stride: 0, col_stride: 0, elements };
            return self.check_layout(b, packed);
        }
        self.check_plain(b)?;
        match call.elements {
            GemmElements::Blocked(_) => Ok(()),
            _ => inside(b, &call.b, call.k, call.n),
        }
    }

    /// Blocked weights have a valid form, and their buffer holds the whole of it side by side.
    fn check_blocked(&self, weights: &BlockedWeights, call: &BatchedGemm, b: BufferId) -> Result<(), PlanError> {
        if !weights.is_valid() {
            return Err(self.parameters("blocked weights have no such form"));
        }
        self.check_dense(b)?;
        let size = |n: u64| usize::try_from(n).ok();
        let bytes = size(call.k).zip(size(call.n)).and_then(|(k, n)| weights.bytes(k, n));
        match bytes.is_some_and(|bytes| bytes as u64 == elements(self.plan, b)) {
            true => Ok(()),
            false => Err(self.bounds(b)),
        }
    }

    /// A batch of matrices lies in its buffer, in the runs of it if it is a strided part.
    fn check_matrix(&self, id: BufferId, offset: i64, axes: &[(u64, i64); MATRIX_AXES]) -> Result<(), PlanError> {
        match self.plan.buffer(id).part.filter(|_| !self.plan.buffer(id).is_dense()) {
            None if strided_fits(offset, axes, elements(self.plan, id)) => Ok(()),
            Some(part) if part_fits(offset, axes, &part, elements(self.plan, id)) => Ok(()),
            _ => Err(self.bounds(id)),
        }
    }

    fn check_conv(&self, call: &Conv2d, (a, b, c): (&LeftOperand, BufferId, BufferId)) -> Result<(), PlanError> {
        if [call.strides, call.dilations, call.kernel].as_flattened().contains(&0) {
            return Err(self.parameters("a stride, dilation or kernel extent of a convolution is zero"));
        }
        if !call.layouts_fit() {
            return Err(self.parameters("a convolution does not fit its layouts"));
        }
        // Positions in the padded input are computed in signed arithmetic.
        let reach = |axis: usize| {
            let span = product(&[call.output[axis], call.strides[axis]])?;
            span.checked_add(product(&[call.kernel[axis], call.dilations[axis]])?)?.checked_add(call.pads[axis])
        };
        if [0, 1].map(reach).iter().any(|reach| reach.is_none_or(|reach| reach > i32::MAX as u64)) {
            return Err(self.parameters("a convolution reaches over more than 2^31 - 1 rows or columns"));
        }
        let (a, b, c) = (a.buffer(), Some(b), Some(c));
        a.map_or(Ok(()), |a| self.check_plain(a))?;
        let (filters, [x, w, y]) = match call.pass {
            ConvPass::Packed(_) | ConvPass::PackedBytes => (Packing::Conv(call.of_filters()), [a, b, c]),
            ConvPass::Forward | ConvPass::Bytes => (Packing::Plain, [a, b, c]),
            ConvPass::DataGradient => (Packing::Plain, [c, b, a]),
            ConvPass::FilterGradient => (Packing::Plain, [a, c, b]),
        };
        b.map_or(Ok(()), |b| self.check_layout(b, filters))?;
        for (id, size) in [x, w, y].into_iter().zip(call.sizes()) {
            if let Some(id) = id.filter(|id| size != Some(elements(self.plan, *id))) {
                return Err(self.bounds(id));
            }
            if size.is_none_or(|size| size > i32::MAX as u64) {
                return Err(self.parameters("an operand of a convolution has more than 2^31 - 1 elements"));
            }
        }
        w.map_or(Ok(()), |w| self.check_dense(w))?;
        for (id, side) in [(x, 0), (y, 1)].into_iter().filter(|_| call.batch > 1) {
            let Some(id) = id else { continue };
            let (image, stride) = (call.image_sizes()[side], call.image_strides()[side]);
            let lies = match self.plan.buffer(id).part.filter(|_| !self.plan.buffer(id).is_dense()) {
                None => image == stride,
                Some(part) => (part.run, part.stride) == (image, stride),
            };
            if !lies {
                return Err(self.bounds(id));
            }
        }
        Ok(())
    }
}

fn elements(plan: &Plan, id: BufferId) -> u64 {
    len(plan.buffer(id)).unwrap_or(0)
}

fn product(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor))
}

/// Extent and stride of every axis of a batch of `rows × cols` matrices.
fn axes(layout: &MatrixLayout, batch: &[u64; GEMM_BATCH_RANK], rows: u64, cols: u64) -> [(u64, i64); MATRIX_AXES] {
    let [first, second, third] = std::array::from_fn(|i| (batch[i], layout.batch_strides[i]));
    [(rows, layout.row_stride), (cols, layout.col_stride), first, second, third]
}

/// Whether different indices lie at different places: each stride steps over all that the smaller
/// ones reach. (Sufficient, and necessary for the layouts planners make.)
fn is_injective(axes: &[(u64, i64); MATRIX_AXES]) -> bool {
    let (mut strides, mut count) = ([(0, 0); MATRIX_AXES], 0);
    for &(extent, stride) in axes {
        match extent {
            0 => return true,
            1 => {}
            _ => {
                strides[count] = (stride.unsigned_abs(), extent);
                count += 1;
            }
        }
    }
    strides[..count].sort_unstable();
    let mut reach = 0u128;
    strides[..count].iter().all(|&(stride, extent)| {
        let steps_over = u128::from(stride) > reach;
        reach = reach.saturating_add(u128::from(extent - 1) * u128::from(stride));
        steps_over
    })
}

/// As [`strided_fits`], in the runs of a strided part of that many elements: axes that step over whole
/// strides count runs, the others stay inside a run.
fn part_fits(offset: i64, axes: &[(u64, i64); MATRIX_AXES], part: &SubBuffer, elements: u64) -> bool {
    if offset < 0 || axes.iter().any(|axis| axis.1 < 0) {
        return false;
    }
    let stride = part.stride as i64;
    let none = (1, 0);
    let runs = axes.map(|(extent, step)| if step % stride == 0 { (extent, step / stride) } else { none });
    let inner = axes.map(|axis| if axis.1 % stride == 0 { none } else { axis });
    strided_fits(offset / stride, &runs, elements / part.run) && strided_fits(offset % stride, &inner, part.run)
}
