//! The steps of a plan as records: how each is divided, what it calls, where its arguments lie.

use tensorc_abi::image::{LIBRARIES, scratch, slot, step};
use tensorc_abi::{
    BufferId, ContractionRef, Conv2d, ConvVariant, Epilogue, GemmElements, KernelId, LibraryOp, Number, Plan, Scratch,
    Step, StepOp, StorageClass, WorkingBytes,
};
use tensorc_kernels::{
    attention_scratch, attention_tasks, conv_scratch, conv_tasks, conv_variant, double_scratch, double_tasks,
    gemm_scratch, gemm_tasks, integer_scratch, integer_tasks, quantised_scratch, quantised_tasks, rounded_scratch,
    rounded_tasks,
};

use crate::sizes::grain;
use crate::step::{Place, Recorded, worker_stride};

/// A step has no form where the plan is to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its position in [`Plan::steps`].
    pub step: usize,
}

/// The records of the steps of a plan that do something.
#[derive(Clone, Debug, Default)]
pub struct Records<N: Number = u64> {
    /// [`step::NAME`] is left out, [`step::CALL`] of a library kernel is a position in `words`.
    pub steps: Vec<[N; step::WORDS]>,
    /// The position of each in [`Plan::steps`].
    pub positions: Vec<usize>,
    /// [`slot::INDEX`] of a weight is its position in [`Plan::weights`].
    pub slots: Vec<[N; slot::WORDS]>,
    /// Calls of library kernels, each behind the [`scratch`] record of its working memory.
    pub words: Vec<N>,
    /// Of each step with nested plans, in order, the records of these.
    pub bodies: Vec<Vec<Records<N>>>,
}

/// What records say of a step that a plan does not: how it is divided, and by which library kernel it is computed.
pub trait Measure<N: Number> {
    /// Number of tasks of a step that calls the kernel library.
    fn tasks(&self, contraction: ContractionRef<'_, N>) -> N;

    /// The least number of a step's tasks worth handing to another thread.
    fn grain(&self, step: &Step<N>, tasks: N) -> N;

    /// The variant of a convolution.
    fn variant(&self, call: &Conv2d<N>) -> ConvVariant;
}

/// Measures numbers.
struct Known;

impl Measure<u64> for Known {
    fn tasks(&self, contraction: ContractionRef<'_>) -> u64 {
        tasks_of(contraction)
    }

    fn grain(&self, step: &Step, tasks: u64) -> u64 {
        grain(tasks, estimated_ns(step))
    }

    fn variant(&self, call: &Conv2d) -> ConvVariant {
        conv_variant(call)
    }
}

impl Records {
    /// The records of a plan whose kernels are linked by the numbers that `number` gives, without steps that have no tasks.
    ///
    /// # Errors
    /// As [`Records::measured`].
    pub fn of(plan: &Plan, place: Place, number: &dyn Fn(KernelId) -> u64) -> Result<Records, Refused> {
        Records::measured(plan, place, number, &Known)
    }

    /// As [`Records::of`], in the memory of other records.
    ///
    /// # Errors
    /// As [`Records::measured`].
    pub fn refill(&mut self, plan: &Plan, place: Place, number: &dyn Fn(KernelId) -> u64) -> Result<(), Refused> {
        self.clear();
        self.fill(plan, place, number, &Known)
    }
}

impl<N: Number> Records<N> {
    /// The records of a plan whose kernels are linked by the numbers that `number` gives. Calls of vendor libraries are
    /// functions of the device, numbered behind the plan's kernels. Left out are steps whose number of tasks is 0.
    ///
    /// # Errors
    /// A step has no form there.
    pub fn measured(
        plan: &Plan<N>,
        place: Place,
        number: &dyn Fn(KernelId) -> u64,
        measure: &dyn Measure<N>,
    ) -> Result<Records<N>, Refused> {
        let mut records = Records::default();
        records.fill(plan, place, number, measure)?;
        Ok(records)
    }

    fn clear(&mut self) {
        self.steps.clear();
        self.positions.clear();
        self.slots.clear();
        self.words.clear();
        self.bodies.clear();
    }

    fn fill(
        &mut self,
        plan: &Plan<N>,
        place: Place,
        number: &dyn Fn(KernelId) -> u64,
        measure: &dyn Measure<N>,
    ) -> Result<(), Refused> {
        let (mut functions, mut scratch) = (plan.kernels.len() as u64, plan.scratch_of_steps());
        for (position, entry) in plan.steps.iter().enumerate() {
            let call = entry.op.library().filter(|_| place == Place::Processor);
            let recorded = match (&entry.op, &call) {
                (StepOp::Vendor { .. }, _) if place == Place::Device => {
                    functions += 1;
                    Some(Recorded { kind: step::LAUNCH, function: functions - 1, tasks: 1.into(), call: 0 })
                }
                (_, Some(call)) => {
                    let (kind, words) =
                        (step::LIBRARY + routine(call.contraction, measure), self.words.len() + scratch::WORDS);
                    let (function, tasks) = (linked(call, number), measure.tasks(call.contraction));
                    Some(Recorded { kind, function, tasks, call: words as u64 })
                }
                (op, None) => Recorded::of(plan, op, place, number),
            };
            let Recorded { kind, function, tasks, call: word } = recorded.ok_or(Refused { step: position })?;
            if tasks == N::from(0) {
                continue;
            }
            let args = entry.op.args();
            let counts = call.as_ref().map_or(args.len() as u64, arguments);
            let (first, grain) = (self.slots.len() as u64, measure.grain(entry, tasks));
            let [kind, name, first, function, counts, word] = [kind, 0, first, function, counts, word].map(N::from);
            self.steps.push([kind, name, first, tasks, grain, function, counts, word]);
            self.positions.push(position);
            self.slots.extend(args.iter().map(|arg| slot_of(plan, arg.buffer)));
            if let Some(flow) = entry.op.flow() {
                if let Some(record) = self.steps.last_mut() {
                    record[step::CALL] = ((self.words.len() + scratch::WORDS) as u64).into();
                }
                self.put_scratch(scratch.of(position));
                self.words.extend(flow.words());
                let bodies = flow.bodies.iter().map(|body| Records::measured(body, place, number, measure));
                let bodies = bodies.collect::<Result<_, _>>().map_err(|_| Refused { step: position })?;
                self.bodies.push(bodies);
            }
            if let Some(call) = call {
                self.put_scratch(scratch.of(position));
                put_words(call.contraction, &mut self.words);
            }
        }
        Ok(())
    }

    fn put_scratch(&mut self, scratch: Option<&Scratch>) {
        let words = scratch.map_or([0; scratch::WORDS], |s| [s.offset, s.bytes]);
        self.words.extend(words.map(N::from));
    }
}

/// The record of a slot.
fn slot_of<N: Number>(plan: &Plan<N>, id: BufferId) -> [N; slot::WORDS] {
    let (home, index, at) = match plan.buffer(id).storage {
        StorageClass::Input(i) => (slot::INPUT, i, 0),
        StorageClass::Output(i) => (slot::OUTPUT, i, 0),
        StorageClass::State(i) => (slot::STATE, i, 0),
        StorageClass::Weight(i) => (slot::WEIGHTS, i, 0),
        StorageClass::Arena(at) => (slot::ARENA, 0, at),
    };
    [home.into(), u64::from(index).into(), N::from(at) + plan.byte_offset(id)]
}

/// The functions of a library call: those of the epilogue and the prologue, from 1 on.
fn linked<N: Number>(call: &LibraryOp<'_, N>, number: impl Fn(KernelId) -> u64) -> u64 {
    let epilogue = call.epilogue.map_or(0, |e| number(e.kernel) + 1);
    epilogue | call.prologue.map_or(0, |p| number(p.kernel) + 1) << 32
}

/// The numbers of arguments of the epilogue and the prologue.
fn arguments<N: Number>(call: &LibraryOp<'_, N>) -> u64 {
    let apart = |e: &Epilogue| if e.apart { step::APART } else { 0 };
    let epilogue = call.epilogue.map_or(0, |e| e.args.len() as u64 | apart(e));
    epilogue | call.prologue.map_or(0, |p| p.args.len() as u64) << 32
}

/// The position in [`LIBRARIES`] of the kernel that computes a contraction.
fn routine<N: Number>(contraction: ContractionRef<'_, N>, measure: &dyn Measure<N>) -> u64 {
    let name = match contraction {
        ContractionRef::Gemm(call) => match call.elements {
            GemmElements::F32 => "tc_rt_gemm",
            GemmElements::F64 => "tc_rt_gemm_f64",
            GemmElements::U8I8 | GemmElements::I8U8 => "tc_rt_gemm_bytes",
            GemmElements::Bf16 => "tc_rt_gemm_bf16",
            GemmElements::Blocked(_) => "tc_rt_gemm_blocked",
        },
        ContractionRef::Attention(call) if call.rounded => "tc_rt_attention_bf16",
        ContractionRef::Attention(_) => "tc_rt_attention",
        ContractionRef::Conv(call) => measure.variant(call).symbol(),
    };
    LIBRARIES.iter().take_while(|known| **known != name).count() as u64
}

fn put_words<N: Number>(contraction: ContractionRef<'_, N>, words: &mut Vec<N>) {
    match contraction {
        ContractionRef::Gemm(call) => words.extend(call.to_words()),
        ContractionRef::Conv(call) => words.extend(call.to_words()),
        ContractionRef::Attention(call) => words.extend(call.to_words()),
    }
}

/// Working memory that a step needs, with what keeps that of workers apart. Nested plans must be planned.
pub fn working_bytes(op: &StepOp) -> WorkingBytes {
    if let Some(flow) = op.flow() {
        return flow.working();
    }
    let bytes = op.library().map_or(0, |LibraryOp { contraction, epilogue, prologue }| {
        let prologue = prologue.map(|p| p.args.len());
        match contraction {
            ContractionRef::Gemm(call) => match call.elements {
                GemmElements::F32 => gemm_scratch(call, prologue),
                GemmElements::F64 => double_scratch(call),
                GemmElements::U8I8 | GemmElements::I8U8 => integer_scratch(call),
                GemmElements::Bf16 => rounded_scratch(call),
                GemmElements::Blocked(_) => quantised_scratch(call),
            },
            ContractionRef::Conv(call) => conv_scratch(call, prologue),
            ContractionRef::Attention(call) => attention_scratch(call, epilogue.map_or(0, |e| e.args.len())),
        }
    });
    WorkingBytes { shared: 0, each: worker_stride(bytes) as u64 }
}

/// Whether a step of a processor has anything to do.
pub fn does_something(plan: &Plan, op: &StepOp) -> bool {
    match op {
        StepOp::Launch { extent, .. } => *extent > 0,
        StepOp::Copy { dst, .. } => plan.buffer(*dst).bytes() > 0,
        StepOp::Gemm { call, .. } => call.batch.iter().chain([&call.m, &call.n]).all(|n| *n > 0),
        _ => op.library().is_none_or(|call| tasks_of(call.contraction) > 0),
    }
}

fn tasks_of(contraction: ContractionRef<'_>) -> u64 {
    match contraction {
        ContractionRef::Gemm(call) => match call.elements {
            GemmElements::F32 => gemm_tasks(call),
            GemmElements::F64 => double_tasks(call),
            GemmElements::U8I8 | GemmElements::I8U8 => integer_tasks(call),
            GemmElements::Bf16 => rounded_tasks(call),
            GemmElements::Blocked(_) => quantised_tasks(call),
        },
        ContractionRef::Conv(call) => conv_tasks(call),
        ContractionRef::Attention(call) => attention_tasks(call),
    }
}

/// Estimated time of one execution on one core, in nanoseconds.
///
/// The rates are those of a current server core, within a factor of two or three; they decide only
/// who executes a step, never what it computes.
pub fn estimated_ns(step: &Step) -> u64 {
    (step.flops / flops_per_ns(step)).max(step.bytes / BYTES_PER_NS)
}

/// Bytes that one core reads or writes in a nanosecond.
pub const BYTES_PER_NS: u64 = 16;

/// Floating-point operations of a step that one core executes in a nanosecond.
pub fn flops_per_ns<N: Number>(step: &Step<N>) -> u64 {
    match step.op.library().map(|call| call.contraction) {
        Some(ContractionRef::Gemm(_) | ContractionRef::Conv(_)) => 64,
        Some(ContractionRef::Attention(_)) => 32,
        None => 4,
    }
}
