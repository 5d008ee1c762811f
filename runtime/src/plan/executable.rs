//! A plan resolved into calls: what all runs share.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use tensorc_abi::{BufferId, Epilogue, ExternFn, Home, KernelFn, Plan, Prologue, Step, StepOp};
use tensorc_kernels::computed_grain;

use super::bindings::{Final, Interface, Needs, Phase};
use super::context::CHUNKS_PER_THREAD;
use super::device::{DeviceProgram, Launch};
use super::error::{LoadError, PlanError};
use super::library::{Contraction, Library};
use super::poison::Deaths;
use super::region::regions;
use super::trace::StepNames;
use super::verify::{PlanReport, verify};
use crate::gpu::{Driver, Function};
use crate::profiler::Name;
use crate::{Device, WeightCache, WeightStorage};

/// Work below this estimate stays on the calling thread: ten times the price of waking a sleeping
/// worker, as the `overhead` example shows it; one that still spins costs a tenth of that.
pub(super) const SERIAL_NS: u64 = 20_000;
/// Least estimated work of one chunk of a split step.
const CHUNK_NS: u64 = 5_000;
/// Bytes copied by one task of a [`StepOp::Copy`].
pub(super) const COPY_BLOCK: u64 = 1 << 16;

/// What a step calls.
pub(super) enum Call {
    Kernel(KernelFn),
    Library(Box<Library>),
    /// Number of bytes.
    Copy(u64),
    Extern(ExternFn),
    /// On a GPU.
    Launch(Launch),
}

/// A step with everything decided that does not depend on the run.
pub(super) struct Prepared {
    pub call: Call,
    /// First of the step's consecutive entries in the argument table.
    pub first_slot: usize,
    /// Independent pieces of work, numbered from 0.
    pub tasks: u64,
    /// Least number of tasks worth handing to a thread; `tasks` if the step should not be split.
    pub least_grain: u64,
    /// Tasks in turn that share what they compute, or 1.
    pub together: u64,
    /// Estimated time on one core.
    pub ns: u64,
    /// Number of steps, from this one on, that run side by side.
    pub region: usize,
    /// Position in [`Plan::steps`].
    pub step: usize,
}

/// What calls the kernels of a plan.
enum Linked<'a> {
    Here(&'a [KernelFn], &'a [ExternFn]),
    /// Kernels, and calls of libraries in the order of their steps.
    There {
        kernels: &'a [Function],
        calls: &'a [Function],
    },
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
    /// Buffer behind every entry of the argument table.
    pub(super) slots: Vec<BufferId>,
    /// Of the whole run, and of its phases if there are two.
    interfaces: Vec<Interface>,
    /// Scratch memory per thread of the library calls.
    pub(super) scratch_bytes: usize,
    /// Where it runs, if not here.
    pub(super) device: Option<DeviceProgram>,
    /// What runs fill when it is dead, if they do.
    pub(super) deaths: Option<Deaths>,
    /// Keeps the machine code of the kernels mapped.
    _code: Arc<dyn Any + Send + Sync>,
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
        check_externs(&plan, externs).map_err(|error| LoadError::Plan { plan: plan.name.clone(), error })?;
        Executable::linked(plan, code, weights, &Linked::Here(&kernels, externs))
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
        [kernels, calls]: [&[Function]; 2],
        weights: Vec<WeightStorage>,
        cache: &WeightCache,
    ) -> Result<Executable, LoadError> {
        for step in &plan.steps {
            let what = match step.op {
                StepOp::Launch { .. } | StepOp::Copy { .. } | StepOp::Vendor { .. } => continue,
                StepOp::Extern { .. } => "an operator written as a closure",
                StepOp::Gemm { .. } | StepOp::Conv { .. } | StepOp::Attention { .. } => "a library call",
            };
            return Err(LoadError::NoLaunch { step: step.name.clone(), what });
        }
        let mut executable = Executable::linked(plan, Arc::new(()), weights, &Linked::There { kernels, calls })?;
        executable.device = Some(DeviceProgram::new(driver, &executable.weights, cache)?);
        Ok(executable)
    }

    fn linked(
        plan: Plan,
        code: Arc<dyn Any + Send + Sync>,
        weights: Vec<WeightStorage>,
        linked: &Linked<'_>,
    ) -> Result<Executable, LoadError> {
        let name = || plan.name.clone();
        let report = verify(&plan).map_err(|error| LoadError::Plan { plan: name(), error })?;
        let (expected, actual) = (plan.kernels.len(), linked.kernels());
        if expected != actual {
            return Err(LoadError::KernelCount { plan: name(), expected, actual });
        }
        linked.check_calls(&plan)?;
        check_weights(&plan, &weights)?;
        let mut executable = Executable {
            report,
            weights,
            prepared: Vec::with_capacity(plan.steps.len()),
            names: OnceLock::new(),
            slots: Vec::new(),
            interfaces: Vec::new(),
            scratch_bytes: 0,
            device: None,
            deaths: None,
            _code: code,
            plan,
        };
        let mut calls = 0;
        for index in 0..executable.plan.steps.len() {
            executable.prepare(index, linked, &mut calls);
        }
        for region in regions(&executable.plan, &executable.prepared) {
            executable.prepared[region.start].region = region.len();
        }
        executable.interfaces = Interface::all(&executable.plan, &executable.prepared, &executable.slots);
        Ok(executable)
    }

    /// Makes runs fill memory that no buffer lives in with NaN, after every step. Results do not change
    /// unless a buffer's lifetime is wrong, which a test finds so.
    #[must_use]
    pub fn poisoning(mut self) -> Executable {
        self.deaths = Some(Deaths::of(&self.plan));
        self
    }

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

    pub(super) fn weight(&self, index: u32) -> &WeightStorage {
        &self.weights[index as usize]
    }

    /// Names for traces.
    pub(super) fn names(&self) -> &StepNames {
        self.names.get_or_init(|| {
            let steps: Vec<Name> = self.plan.steps.iter().map(|step| step.name.clone().into()).collect();
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

    fn prepare(&mut self, index: usize, linked: &Linked<'_>, call_number: &mut usize) {
        let (kernels, externs) = linked.here();
        let step = self.plan.steps[index].clone();
        let first_slot = self.slots.len();
        let (call, tasks) = match &step.op {
            StepOp::Launch { kernel, args, extent } => {
                self.slots.extend(args.iter().map(|arg| arg.buffer));
                match linked {
                    Linked::Here(kernels, _) => (Call::Kernel(kernels[kernel.0 as usize]), *extent),
                    Linked::There { kernels, .. } => {
                        let function = kernels[kernel.0 as usize].clone();
                        (Call::Launch(Launch { function, arguments: args.len() }), 1)
                    }
                }
            }
            StepOp::Vendor { args, .. } => {
                self.slots.extend(args.iter().map(|arg| arg.buffer));
                let function = linked.calls()[*call_number].clone();
                *call_number += 1;
                (Call::Launch(Launch { function, arguments: args.len() }), 1)
            }
            StepOp::Copy { src, dst } => {
                self.slots.extend([*src, *dst]);
                let bytes = self.plan.buffer(*dst).bytes();
                (Call::Copy(bytes), bytes.div_ceil(COPY_BLOCK))
            }
            StepOp::Extern { function, args, .. } => {
                self.slots.extend(args.iter().map(|arg| arg.buffer));
                (Call::Extern(externs[*function as usize].clone()), 1)
            }
            StepOp::Gemm { call, a, b, c, epilogue } => {
                self.slots.extend(a.buffer().into_iter().chain([*b, *c]));
                self.prepare_library(Contraction::Gemm(*call), (epilogue.as_ref(), a.prologue()), kernels)
            }
            StepOp::Conv { call, a, b, c, epilogue } => {
                self.slots.extend(a.buffer().into_iter().chain([*b, *c]));
                self.prepare_library(Contraction::Conv(*call), (epilogue.as_ref(), a.prologue()), kernels)
            }
            StepOp::Attention { call, q, k, v, out, epilogue } => {
                self.slots.extend([*q, *k, *v, *out]);
                self.prepare_library(Contraction::Attention(*call), (epilogue.as_ref(), None), kernels)
            }
        };
        if tasks > 0 {
            let ns = estimated_ns(&step);
            let least_grain = least_grain(ns, tasks);
            let together = if let Call::Library(library) = &call { library.together() } else { 1 };
            self.prepared.push(Prepared { call, first_slot, tasks, least_grain, together, ns, region: 1, step: index });
        }
    }

    fn prepare_library(
        &mut self,
        contraction: Contraction,
        (epilogue, prologue): (Option<&Epilogue>, Option<&Prologue>),
        kernels: &[KernelFn],
    ) -> (Call, u64) {
        let args = epilogue.iter().flat_map(|e| &e.args).chain(prologue.iter().flat_map(|p| &p.args));
        self.slots.extend(args.map(|arg| arg.buffer));
        let args = epilogue.map_or(0, |epilogue| epilogue.args.len());
        let epilogue = epilogue.map(|epilogue| kernels[epilogue.kernel.0 as usize]);
        let prologue = prologue.map(|p| (kernels[p.kernel.0 as usize], p.args.len()));
        let library = Library { contraction, epilogue, args, prologue };
        self.scratch_bytes = self.scratch_bytes.max(library.scratch_bytes());
        let tasks = library.tasks();
        (Call::Library(Box::new(library)), tasks)
    }
}

impl<'a> Linked<'a> {
    fn kernels(&self) -> usize {
        match self {
            Linked::Here(kernels, _) => kernels.len(),
            Linked::There { kernels, .. } => kernels.len(),
        }
    }

    fn calls(&self) -> &'a [Function] {
        match self {
            Linked::Here(..) => &[],
            Linked::There { calls, .. } => calls,
        }
    }

    /// Every call of a library of a GPU's maker is there.
    fn check_calls(&self, plan: &Plan) -> Result<(), LoadError> {
        let mut calls = plan.steps.iter().filter_map(|step| match &step.op {
            StepOp::Vendor { call, .. } => Some((step, call.library())),
            _ => None,
        });
        if let (Linked::Here(..), Some((step, library))) = (self, calls.clone().next()) {
            return Err(LoadError::NoCall { step: step.name.clone(), library });
        }
        let (expected, actual) = (calls.by_ref().count(), self.calls().len());
        match expected == actual {
            true => Ok(()),
            false => Err(LoadError::CallCount { plan: plan.name.clone(), expected, actual }),
        }
    }

    fn here(&self) -> (&'a [KernelFn], &'a [ExternFn]) {
        match self {
            Linked::Here(kernels, externs) => (kernels, externs),
            Linked::There { .. } => (&[], &[]),
        }
    }
}

impl Prepared {
    /// Tasks of a chunk when the step is cut into about `chunks`: rather more of them than fewer, which could not be
    /// shared evenly.
    pub fn grain(&self, chunks: u64) -> u64 {
        let (grain, threads) = ((self.tasks / chunks).max(self.least_grain), chunks.div_ceil(CHUNKS_PER_THREAD));
        computed_grain(grain, self.together, self.tasks, threads)
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable").field("plan", &self.plan.name).field("steps", &self.prepared.len()).finish()
    }
}

fn check_weights(plan: &Plan, weights: &[WeightStorage]) -> Result<(), LoadError> {
    let (expected, actual) = (plan.weights.len(), weights.len());
    if expected != actual {
        return Err(LoadError::WeightCount { plan: plan.name.clone(), expected, actual });
    }
    for buffer in &plan.buffers {
        let Home::Weight(index) = buffer.home else { continue };
        let weight = &plan.weights[index as usize];
        weights[index as usize]
            .check(&weight.packing, buffer.dtype, buffer.bytes())
            .map_err(|error| LoadError::Weight { weight: weight.name.clone(), error })?;
    }
    Ok(())
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
    Ok(())
}

/// Estimated time of one execution on one core, in nanoseconds.
///
/// The rates are those of a current server core, within a factor of two or three; they decide only
/// who executes a step, never what it computes.
fn estimated_ns(step: &Step) -> u64 {
    let flops_per_ns = match step.op {
        StepOp::Gemm { .. } | StepOp::Conv { .. } => 64,
        StepOp::Attention { .. } => 32,
        StepOp::Launch { .. } | StepOp::Copy { .. } | StepOp::Extern { .. } | StepOp::Vendor { .. } => 4,
    };
    const BYTES_PER_NS: u64 = 16;
    (step.flops / flops_per_ns).max(step.bytes / BYTES_PER_NS)
}

/// How a step is divided: its independent pieces of work (of a copy, bytes), and the least number worth handing to
/// another thread. No pieces: there is nothing to do.
pub fn division(plan: &Plan, step: &Step) -> (u64, u64) {
    let library = |contraction: Contraction| contraction.tasks();
    let tasks = match &step.op {
        StepOp::Launch { extent, .. } => *extent,
        StepOp::Copy { dst, .. } => plan.buffer(*dst).bytes(),
        StepOp::Extern { .. } | StepOp::Vendor { .. } => 1,
        StepOp::Gemm { call, .. } => library(Contraction::Gemm(*call)),
        StepOp::Conv { call, .. } => library(Contraction::Conv(*call)),
        StepOp::Attention { call, .. } => library(Contraction::Attention(*call)),
    };
    (tasks, least_grain(estimated_ns(step), tasks))
}

fn least_grain(ns: u64, tasks: u64) -> u64 {
    if ns < SERIAL_NS {
        return tasks;
    }
    let chunks = (ns / CHUNK_NS).max(1);
    tasks.div_ceil(chunks)
}
