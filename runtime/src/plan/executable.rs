//! A plan resolved into calls: what all runs share.

mod renumber;

pub use renumber::RenumberRoom;

use std::any::Any;
use std::sync::{Arc, OnceLock};

use tensorc_abi::image::{found, scratch, slot};
use tensorc_abi::{BrokenRequirement, ExternFn, KernelFn, KernelId, Plan, Step, StepOp, StorageClass, ValueCheck};
use tensorc_exec::{
    self as exec, Code, DeviceStep, Place, Records, Refused, Routine, WorkerMemory, bind, estimated_ns, regions,
};

use super::bindings::{Final, Interface, Needs, Phase};
use super::device::DeviceProgram;
use super::error::{InvalidPlan, LoadError, PlanError};
use super::flow::FlowProgram;
use super::poison::Deaths;
use super::trace::StepNames;
use super::verify::{PlanReport, verify};
use crate::device::Device;
use crate::gpu::{Driver, LoadedKernel};
use crate::profiler::SpanName;
use crate::weights::{WeightCache, WeightStorage};

/// A step with everything decided that does not depend on the run.
pub(super) struct Prepared {
    pub call: exec::Step,
    /// Number of steps, from this one on, that run side by side.
    pub region: usize,
    /// Position in [`Plan::steps`].
    pub step: usize,
    /// Its nested plans, if it has any.
    pub flow: Option<Box<FlowProgram>>,
}

impl AsRef<exec::Step> for Prepared {
    fn as_ref(&self) -> &exec::Step {
        &self.call
    }
}

/// Where the word of a check lies when the steps that write it have run.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedWord {
    /// Bytes from the start of the arena.
    pub offset: usize,
    /// Whether the second of two phases writes it.
    pub second: bool,
}

impl CheckedWord {
    /// Of every check of a plan that was verified.
    fn all(plan: &Plan) -> Vec<CheckedWord> {
        let writes = |step: &Step, id| step.op.args().iter().any(|arg| arg.writes && arg.buffer == id);
        let of = |check: &ValueCheck| {
            let offset = match plan.buffer(check.buffer).storage {
                StorageClass::Arena(offset) => offset as usize,
                _ => 0,
            };
            let written = plan.steps.iter().position(|step| writes(step, check.buffer));
            CheckedWord { offset, second: written.is_some_and(|step| plan.in_second_phase(step)) }
        };
        plan.checks.iter().map(of).collect()
    }

    /// Whether a run of a phase, or of the whole plan, writes it.
    pub fn belongs_to(self, phase: Option<Phase>) -> bool {
        phase.is_none_or(|phase| self.second == (phase == Phase::Second))
    }
}

/// Code in this process.
struct Linked<'a> {
    kernels: &'a [KernelFn],
    records: &'a Records,
}

impl Code for Linked<'_> {
    fn kernel(&self, number: u64) -> Option<KernelFn> {
        self.kernels.get(number as usize).copied()
    }

    fn routine(&self, kind: usize) -> Option<&'static Routine> {
        exec::routine::ALL.get(kind)
    }

    fn words(&self, at: usize) -> &[u64] {
        self.records.words.get(at..).unwrap_or_default()
    }

    /// The plan is verified, so that it is large enough.
    fn scratch(&self, at: usize, _needed: impl FnOnce() -> usize) -> Option<WorkerMemory> {
        WorkerMemory::of_record(self.words(at.checked_sub(scratch::WORDS)?).first_chunk()?)
    }
}

/// What a plan and those nested in it are linked with.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    /// Keeps the machine code of the kernels mapped.
    pub code: &'a Arc<dyn Any + Send + Sync>,
    pub weights: &'a [WeightStorage],
    pub kernels: &'a [KernelFn],
    pub externs: &'a [ExternFn],
}

/// A verified plan with linked code and weights; immutable and shared by any number of
/// [`super::Context`]s.
pub struct Executable {
    plan: Plan,
    report: PlanReport,
    weights: Vec<WeightStorage>,
    pub(super) prepared: Vec<Prepared>,
    /// Made when first asked for.
    names: OnceLock<StepNames>,
    /// What lies behind every entry of the argument table.
    pub(super) slots: Vec<[u64; slot::WORDS]>,
    /// Of the whole run, and of its phases if there are two.
    interfaces: Vec<Interface>,
    /// Where the words of [`Plan::checks`] lie.
    pub(super) words: Vec<CheckedWord>,
    /// Functions of the host that steps call.
    pub(super) externs: Vec<ExternFn>,
    /// Where it runs, if not here.
    pub(super) device: Option<DeviceProgram>,
    /// What runs fill when it is dead, if they do.
    pub(super) deaths: Option<Deaths>,
    /// Keeps the machine code of the kernels mapped.
    code: Arc<dyn Any + Send + Sync>,
}

impl Executable {
    /// Verifies the plan and resolves its steps.
    ///
    /// `kernels[i]` is the entry point of `plan.kernels[i]`; `code` is whatever owns the machine
    /// code. `weights[i]` is `plan.weights[i]` in the layout the plan names
    /// ([`crate::pack_weight`] makes it).
    ///
    /// # Errors
    /// The plan breaks an invariant, or kernels or weights do not match it.
    ///
    /// # Safety
    /// Every kernel stays callable while `code` lives, follows [`KernelFn`], and when called as the
    /// plan's steps call it accesses only its arguments' bytes, writes only those marked as written,
    /// and keeps different iterations (of an epilogue: different blocks) free of data races.
    pub unsafe fn new(
        plan: Plan,
        kernels: Vec<KernelFn>,
        code: Arc<dyn Any + Send + Sync>,
        weights: Vec<WeightStorage>,
    ) -> Result<Executable, LoadError> {
        // SAFETY: passed on from the caller.
        unsafe { Executable::with_externs(plan, kernels, code, weights, &[]) }
    }

    /// As [`Executable::new`], for plans that call functions of the host.
    ///
    /// # Errors
    /// As [`Executable::new`], or a function is missing or takes other sizes than the plan's buffers have.
    ///
    /// # Safety
    /// As [`Executable::new`].
    pub unsafe fn with_externs(
        plan: Plan,
        kernels: Vec<KernelFn>,
        code: Arc<dyn Any + Send + Sync>,
        weights: Vec<WeightStorage>,
        externs: &[ExternFn],
    ) -> Result<Executable, LoadError> {
        let tables = Tables { code: &code, weights: &weights, kernels: &kernels, externs };
        Executable::linked(plan, tables, Place::Processor)
    }

    /// A plan whose steps are launches on a GPU: `kernels[i]` is `plan.kernels[i]` as the driver loaded it, `calls[i]` the call
    /// of the i-th step of [`StepOp::Vendor`]. Weights that the cache finds on the device are used there.
    ///
    /// # Errors
    /// As [`Executable::new`]; a step is no launch, no copy and no such call; the device's memory is used up.
    ///
    /// # Safety
    /// Every function, launched as the plan's steps launch it, accesses only its arguments' bytes, and writes only those
    /// marked as written.
    pub unsafe fn on_device(
        plan: Plan,
        driver: Arc<dyn Driver>,
        [kernels, calls]: [&[LoadedKernel]; 2],
        weights: Vec<WeightStorage>,
        cache: &WeightCache,
    ) -> Result<Executable, LoadError> {
        let code: Arc<dyn Any + Send + Sync> = Arc::new(());
        let tables = Tables { code: &code, weights: &weights, kernels: &[], externs: &[] };
        let mut executable = Executable::linked(plan, tables, Place::Device)?;
        let plan = &executable.plan;
        check_kernels(plan, kernels.len())?;
        let expected = plan.steps.iter().filter(|step| matches!(step.op, StepOp::Vendor { .. })).count();
        if expected != calls.len() {
            return Err(LoadError::CallCount { plan: plan.name.clone(), expected, actual: calls.len() });
        }
        let functions: Arc<[LoadedKernel]> = kernels.iter().chain(calls).cloned().collect();
        let steps = there(&executable, functions.len())?;
        executable.device = Some(DeviceProgram::new(driver, functions, steps, &executable.weights, cache)?);
        Ok(executable)
    }

    fn linked(plan: Plan, tables: Tables<'_>, place: Place) -> Result<Executable, LoadError> {
        let report = verify(&plan)?;
        check_tables(&plan, tables, place)?;
        Executable::resolved(plan, report, tables, place)
    }

    /// A plan that is verified, or nested in one that is.
    pub(super) fn resolved(
        plan: Plan,
        report: PlanReport,
        tables: Tables<'_>,
        place: Place,
    ) -> Result<Executable, LoadError> {
        let Tables { code, weights, externs, .. } = tables;
        let records = Records::of(&plan, place, &by_id).map_err(|e| refused(&plan, &e, place))?;
        let mut prepared = Vec::with_capacity(records.steps.len());
        prepare(&plan, &records, tables, place, &mut prepared)?;
        Ok(Executable {
            report,
            weights: weights.to_vec(),
            names: OnceLock::new(),
            interfaces: Interface::all(&plan, &prepared, &records.slots),
            slots: records.slots,
            words: CheckedWord::all(&plan),
            prepared,
            externs: externs.to_vec(),
            device: None,
            deaths: None,
            code: code.clone(),
            plan,
        })
    }

    /// Makes runs fill memory that no buffer lives in with NaN, after every step. Results do not change
    /// unless a buffer's lifetime is wrong, which a test finds so.
    #[must_use]
    pub fn poisoning(mut self) -> Executable {
        self.deaths = Some(Deaths::of(&self.plan));
        self
    }

    /// The plan that it was made of.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where it runs, if not here.
    pub fn device(&self) -> Option<Device> {
        self.device.as_ref().map(|program| program.driver.device())
    }

    /// Memory figures of the plan.
    pub fn report(&self) -> PlanReport {
        self.report
    }

    /// What a phase takes from the caller; `None` if the plan has one phase only.
    pub fn needs(&self, phase: Phase) -> Option<&Needs> {
        self.interfaces.get(1 + phase as usize).map(|interface| &interface.needs)
    }

    /// What the whole run or a phase reads and writes.
    pub(super) fn interface(&self, phase: Option<Phase>) -> Option<&Interface> {
        self.interfaces.get(phase.map_or(0, |phase| 1 + phase as usize))
    }

    /// When outputs of the whole run or a phase become final.
    pub(super) fn finals(&self, phase: Option<Phase>) -> &[Final] {
        self.interface(phase).map_or(&[], |interface| &interface.finals)
    }

    /// Outputs of the plan that a phase uses, in the order in which it is done with them.
    pub fn outputs_in_order(&self, phase: Phase) -> Vec<usize> {
        let interface = self.interface(Some(phase));
        let of =
            |interface: &Interface| interface.finals.iter().map(|one| interface.needs.outputs[one.output]).collect();
        interface.map_or_else(Vec::new, of)
    }

    pub(super) fn weights(&self) -> &[WeightStorage] {
        &self.weights
    }

    pub(super) fn weight(&self, index: usize) -> &WeightStorage {
        &self.weights[index]
    }

    /// Enters the addresses of weights, and of what lies in an arena, into a table of arguments.
    pub(super) fn bind_own(&self, arena: *mut u8, table: &mut [*mut u8]) {
        // The verifier proved arguments to be inside weights and arena.
        bind(self.slots.iter(), table, |home, index| match home {
            slot::WEIGHTS => Some(self.weight(index).as_slice().as_ptr().cast_mut()),
            slot::ARENA => Some(arena),
            _ => None,
        });
    }

    /// Whether the words that a run of a phase, or of the whole plan, has left say that every check holds; `word` gives the one
    /// of a check, by its position in the plan.
    ///
    /// # Errors
    /// The first check that does not hold, in the order of the plan.
    pub(super) fn confirm(&self, phase: Option<Phase>, word: impl Fn(usize) -> i64) -> Result<(), BrokenRequirement> {
        let mut written =
            self.words.iter().zip(&self.plan.checks).enumerate().filter(|(_, (at, _))| at.belongs_to(phase));
        let broken = written.find_map(|(i, (_, check))| Some((&check.requirement, found(word(i))?)));
        broken.map_or(Ok(()), |(requirement, value)| Err(BrokenRequirement { requirement: requirement.clone(), value }))
    }

    /// Names for traces.
    pub(super) fn names(&self) -> &StepNames {
        self.names.get_or_init(|| {
            let steps: Vec<SpanName> = self.plan.steps.iter().map(|step| step.name.clone().into()).collect();
            let mut regions = steps.clone();
            for (index, prepared) in self.prepared.iter().enumerate().filter(|(_, prepared)| prepared.region > 1) {
                regions[prepared.step] = self.names_of(&self.prepared[index..index + prepared.region]).into();
            }
            StepNames { steps, regions }
        })
    }

    /// Names of the steps of some of the prepared calls.
    pub(super) fn names_of(&self, calls: &[Prepared]) -> String {
        let names = calls.iter().map(|call| self.plan.steps[call.step].name.as_str());
        names.collect::<Vec<_>>().join(" + ")
    }

    pub(super) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }
}

/// Kernels have the numbers of their places in the plan's table.
fn by_id(kernel: KernelId) -> u64 {
    kernel.0.into()
}

/// Resolves the records of a plan, in place of those that the plan had with other numbers.
fn prepare(
    plan: &Plan,
    records: &Records,
    tables: Tables<'_>,
    place: Place,
    prepared: &mut Vec<Prepared>,
) -> Result<(), LoadError> {
    let linked = Linked { kernels: tables.kernels, records };
    for (i, (record, step)) in records.steps.iter().zip(records.positions.iter().copied()).enumerate() {
        let call = exec::Step::resolve(record, &linked);
        let mut call = call.ok_or_else(|| refused(plan, &Refused { step }, place))?;
        call.ns = estimated_ns(&plan.steps[step]);
        let known = prepared.get_mut(i).and_then(|known| known.flow.take());
        let flow = plan.steps[step].op.flow().map(|flow| match known.filter(|known| known.is_of(flow, tables)) {
            Some(known) => Ok(known),
            None => FlowProgram::new(flow, tables).map(Box::new),
        });
        let flow = flow.transpose()?;
        match prepared.get_mut(i) {
            Some(known) => {
                known.call = call;
                (known.region, known.step, known.flow) = (1, step, flow);
            }
            None => prepared.push(Prepared { call, region: 1, step, flow }),
        }
    }
    prepared.truncate(records.steps.len());
    for region in regions(plan, &records.positions) {
        prepared[region.start].region = region.len();
    }
    Ok(())
}

/// The prepared calls as a device with so many functions does them.
fn there(executable: &Executable, functions: usize) -> Result<Arc<[DeviceStep]>, LoadError> {
    let slots = executable.slots.len();
    let each = executable.prepared.iter().map(|prepared| {
        let step = DeviceStep::of(&prepared.call, slots);
        let step = step.filter(|step| step.function().is_none_or(|function| function < functions as u64));
        step.ok_or_else(|| refused(&executable.plan, &Refused { step: prepared.step }, Place::Device))
    });
    each.collect()
}

/// The error of a step that has no form where the plan is to run.
fn refused(plan: &Plan, refused: &Refused, place: Place) -> LoadError {
    let step = &plan.steps[refused.step];
    let name = step.name.clone();
    match (&step.op, place) {
        (StepOp::Vendor { call, .. }, _) => LoadError::NoCall { step: name, library: call.library() },
        (StepOp::Extern { .. }, _) => LoadError::NoLaunch { step: name, what: "an operator written as a closure" },
        (StepOp::Flow { .. }, _) => LoadError::NoLaunch { step: name, what: "a branch or loop" },
        (StepOp::Launch { .. } | StepOp::Copy { .. }, _) => {
            LoadError::NoLaunch { step: name, what: "a call of a function that is not linked" }
        }
        _ => LoadError::NoLaunch { step: name, what: "a library call" },
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable").field("plan", &self.plan.name).field("steps", &self.prepared.len()).finish()
    }
}

/// What a plan is linked with is what it asks for.
fn check_tables(plan: &Plan, tables: Tables<'_>, place: Place) -> Result<(), LoadError> {
    if place == Place::Processor {
        check_kernels(plan, tables.kernels.len())?;
        check_externs(plan, tables.externs).map_err(|error| InvalidPlan::of(plan, error))?;
    }
    check_weights(plan, tables.weights)
}

fn check_kernels(plan: &Plan, actual: usize) -> Result<(), LoadError> {
    match plan.kernels.len() {
        expected if expected != actual => Err(LoadError::KernelCount { plan: plan.name.clone(), expected, actual }),
        _ => Ok(()),
    }
}

fn check_weights(plan: &Plan, weights: &[WeightStorage]) -> Result<(), LoadError> {
    let (expected, actual) = (plan.weights.len(), weights.len());
    if expected != actual {
        return Err(LoadError::WeightCount { plan: plan.name.clone(), expected, actual });
    }
    check_buffers(plan, plan, weights)
}

/// The weights of a plan, which may be nested in another that has them.
fn check_buffers(plan: &Plan, outermost: &Plan, weights: &[WeightStorage]) -> Result<(), LoadError> {
    for buffer in &plan.buffers {
        let StorageClass::Weight(index) = buffer.storage else { continue };
        let weight = &outermost.weights[index as usize];
        weights[index as usize]
            .check(&weight.packing, buffer.dtype, buffer.bytes())
            .map_err(|error| LoadError::Weight { weight: weight.name.clone(), error })?;
    }
    plan.nested().try_for_each(|body| check_buffers(body, outermost, weights))
}

/// Every function exists, and the sizes of the buffers are those it takes.
fn check_externs(plan: &Plan, externs: &[ExternFn]) -> Result<(), PlanError> {
    for step in &plan.steps {
        let StepOp::Extern { function, args, .. } = &step.op else { continue };
        let Some(f) = externs.get(*function as usize) else {
            let (function, count) = (*function, externs.len());
            return Err(PlanError::UnknownFunction { step: step.name.clone(), function, count });
        };
        let bytes =
            |writes: bool| args.iter().filter(move |a| a.writes == writes).map(|a| plan.buffer(a.buffer).bytes());
        let scratch = Some(f.scratch_bytes()).filter(|bytes| *bytes > 0);
        let reads = bytes(false).eq(f.input_bytes().iter().copied());
        if !reads || !bytes(true).eq(f.output_bytes().iter().copied().chain(scratch)) {
            let operator = f.operator().to_owned();
            return Err(PlanError::FunctionSizes { step: step.name.clone(), operator });
        }
    }
    plan.nested().try_for_each(|body| check_externs(body, externs))
}
