//! The steps of a plan as records: how each is divided, what it calls, where its arguments lie.

use tensorc_abi::image::{LIBRARIES, scratch, slot, step};
use tensorc_abi::{BufferId, Contraction, KernelId, LibraryOp, Plan, Step, StepOp, StorageClass, WorkingBytes};
use tensorc_kernels::{
    attention_scratch, attention_tasks, conv_scratch, conv_tasks, conv_variant, gemm_scratch, gemm_tasks,
};

use crate::step::{Place, Recorded, worker_stride};

/// Work below this estimate stays on the calling thread: ten times the price of waking a sleeping
/// worker, as the `overhead` example of the run time shows it; one that still spins costs a tenth of that.
pub const SERIAL_NS: u64 = 20_000;
/// Least estimated work of one chunk of a split step.
const CHUNK_NS: u64 = 5_000;

/// A step has no form where the plan is to be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its position in [`Plan::steps`].
    pub step: usize,
}

/// The records of the steps of a plan that do something.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// [`step::NAME`] is left out, [`step::CALL`] of a library kernel is a position in `words`.
    pub steps: Vec<[u64; step::WORDS]>,
    /// The position of each in [`Plan::steps`].
    pub positions: Vec<usize>,
    /// [`slot::INDEX`] of a weight is its position in [`Plan::weights`].
    pub slots: Vec<[u64; slot::WORDS]>,
    /// Calls of library kernels, each behind the [`scratch`] record of its working memory.
    pub words: Vec<u64>,
    /// Of each step with nested plans, in order, the records of these.
    pub bodies: Vec<Vec<Records>>,
}

impl Records {
    /// The records of a plan whose kernels are linked by the numbers that `number` gives. Calls of vendor libraries are
    /// functions of the device, numbered behind the plan's kernels.
    ///
    /// # Errors
    /// A step has no form there.
    pub fn of(plan: &Plan, place: Place, number: &dyn Fn(KernelId) -> u64) -> Result<Records, Refused> {
        let mut records = Records::default();
        let mut functions = plan.kernels.len() as u64;
        for (position, entry) in plan.steps.iter().enumerate() {
            let call = entry.op.library().filter(|_| place == Place::Processor);
            let recorded = match (&entry.op, &call) {
                (StepOp::Vendor { .. }, _) if place == Place::Device => {
                    functions += 1;
                    Some(Recorded { kind: step::LAUNCH, function: functions - 1, tasks: 1, call: 0 })
                }
                (_, Some(call)) => {
                    let (kind, words) =
                        (step::LIBRARY + routine(&call.contraction), records.words.len() + scratch::WORDS);
                    let (function, tasks) = (linked(call, number), tasks_of(&call.contraction));
                    Some(Recorded { kind, function, tasks, call: words as u64 })
                }
                (op, None) => Recorded::of(plan, op, place, number),
            };
            let Recorded { kind, function, tasks, call: word } = recorded.ok_or(Refused { step: position })?;
            if tasks == 0 {
                continue;
            }
            let args = entry.op.args();
            let counts = call.as_ref().map_or(args.len() as u64, arguments);
            let (first, grain) = (records.slots.len() as u64, grain(entry, tasks));
            records.steps.push([kind, 0, first, tasks, grain, function, counts, word]);
            records.positions.push(position);
            records.slots.extend(args.iter().map(|arg| slot_of(plan, arg.buffer)));
            if let Some(flow) = entry.op.flow() {
                if let Some(record) = records.steps.last_mut() {
                    record[step::CALL] = (records.words.len() + scratch::WORDS) as u64;
                }
                records.put_scratch(plan, position);
                records.words.extend(flow.words());
                let bodies = flow.bodies.iter().map(|body| Records::of(body, place, number));
                let bodies = bodies.collect::<Result<_, _>>().map_err(|_| Refused { step: position })?;
                records.bodies.push(bodies);
            }
            if let Some(call) = call {
                records.put_scratch(plan, position);
                put_words(&call.contraction, &mut records.words);
            }
        }
        Ok(records)
    }

    fn put_scratch(&mut self, plan: &Plan, position: usize) {
        self.words.extend(plan.scratch_of(position).map_or([0; scratch::WORDS], |s| [s.offset, s.bytes]));
    }
}

/// The record of a slot.
fn slot_of(plan: &Plan, id: BufferId) -> [u64; slot::WORDS] {
    let offset = plan.byte_offset(id);
    match plan.buffer(id).storage {
        StorageClass::Input(i) => [slot::INPUT, i.into(), offset],
        StorageClass::Output(i) => [slot::OUTPUT, i.into(), offset],
        StorageClass::State(i) => [slot::STATE, i.into(), offset],
        StorageClass::Weight(i) => [slot::WEIGHTS, i.into(), offset],
        StorageClass::Arena(at) => [slot::ARENA, 0, at + offset],
    }
}

/// The functions of a library call: those of the epilogue and the prologue, from 1 on.
fn linked(call: &LibraryOp<'_>, number: impl Fn(KernelId) -> u64) -> u64 {
    let epilogue = call.epilogue.map_or(0, |e| number(e.kernel) + 1);
    epilogue | call.prologue.map_or(0, |p| number(p.kernel) + 1) << 32
}

/// The numbers of arguments of the epilogue and the prologue.
fn arguments(call: &LibraryOp<'_>) -> u64 {
    let epilogue = call.epilogue.map_or(0, |e| e.args.len() as u64);
    epilogue | call.prologue.map_or(0, |p| p.args.len() as u64) << 32
}

/// The position in [`LIBRARIES`] of the kernel that computes a contraction.
fn routine(contraction: &Contraction) -> u64 {
    let name = match contraction {
        Contraction::Gemm(_) => "tc_rt_gemm",
        Contraction::Attention(_) => "tc_rt_attention",
        Contraction::Conv(call) => conv_variant(call).symbol(),
    };
    LIBRARIES.iter().take_while(|known| **known != name).count() as u64
}

fn put_words(contraction: &Contraction, words: &mut Vec<u64>) {
    match contraction {
        Contraction::Gemm(call) => words.extend(call.to_words()),
        Contraction::Conv(call) => words.extend(call.to_words()),
        Contraction::Attention(call) => words.extend(call.to_words()),
    }
}

/// Working memory that a step needs, with what keeps that of workers apart. Nested plans must be planned.
pub fn working_bytes(op: &StepOp) -> WorkingBytes {
    if let Some(flow) = op.flow() {
        return flow.working();
    }
    let bytes = op.library().map_or(0, |LibraryOp { contraction, epilogue, prologue }| {
        let prologue = prologue.map(|p| p.args.len());
        match &contraction {
            Contraction::Gemm(call) => gemm_scratch(call, prologue),
            Contraction::Conv(call) => conv_scratch(call, prologue),
            Contraction::Attention(call) => attention_scratch(call, epilogue.map_or(0, |e| e.args.len())),
        }
    });
    WorkingBytes { shared: 0, each: worker_stride(bytes) as u64 }
}

/// Whether a step of a processor has anything to do.
pub fn does_something(plan: &Plan, op: &StepOp) -> bool {
    match op {
        StepOp::Launch { extent, .. } => *extent > 0,
        StepOp::Copy { dst, .. } => plan.buffer(*dst).bytes() > 0,
        _ => op.library().is_none_or(|call| tasks_of(&call.contraction) > 0),
    }
}

fn tasks_of(contraction: &Contraction) -> u64 {
    match contraction {
        Contraction::Gemm(call) => gemm_tasks(call),
        Contraction::Conv(call) => conv_tasks(call),
        Contraction::Attention(call) => attention_tasks(call),
    }
}

/// The least number of a step's tasks worth handing to another thread.
fn grain(step: &Step, tasks: u64) -> u64 {
    let ns = estimated_ns(step);
    if ns < SERIAL_NS { tasks } else { tasks.div_ceil((ns / CHUNK_NS).max(1)) }
}

/// Estimated time of one execution on one core, in nanoseconds.
///
/// The rates are those of a current server core, within a factor of two or three; they decide only
/// who executes a step, never what it computes.
pub fn estimated_ns(step: &Step) -> u64 {
    const BYTES_PER_NS: u64 = 16;
    let flops_per_ns = match step.op.library().map(|call| call.contraction) {
        Some(Contraction::Gemm(_) | Contraction::Conv(_)) => 64,
        Some(Contraction::Attention(_)) => 32,
        None => 4,
    };
    (step.flops / flops_per_ns).max(step.bytes / BYTES_PER_NS)
}
