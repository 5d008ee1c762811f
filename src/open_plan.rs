//! A model scheduled and compiled once for many shapes: a shape puts its numbers into the plan.

use std::sync::Arc;

use tensorc_abi::{KernelFn, KernelSignature, Packing, Plan, Weight};
use tensorc_codegen::jit::JitModule;
use tensorc_codegen::lower::{Choices, lower_open};
use tensorc_codegen::sizes::sized;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::extent::Binding;
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::{DenseType, Extent};
use tensorc_passes::pipeline::{LOWER, PLAN_MEMORY};
use tensorc_passes::template::Template;
use tensorc_runtime::gpu::{Driver, LoadedKernel};
use tensorc_runtime::plan::{LoadError, verify_kernels};
use tensorc_runtime::{Executable, WeightStorage};
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::{OpenNumbers, PlacementOrder, plan_memory};

use crate::compile::{Report, entries, generate, link_code, link_device, pack, pack_each};
use crate::compiler::Compiler;
use crate::error::Error;
use crate::gpu::{surely_distinct, vendor};
use crate::gpu_kernels;
use crate::open_run::BindingRoom;
use crate::program::Program;

/// A plan whose numbers depend on symbols, with the code of its kernels.
pub(crate) struct OpenPlan {
    /// What numbers are of the symbols, and on which conditions the plan holds.
    template: Template,
    /// Without kernels, of which there is code.
    lowered: Lowered<Extent>,
    /// Of `lowered`.
    numbers: OpenNumbers,
    code: OpenCode,
    /// Which buffers lie above which others, as in the plan for the examples.
    order: PlacementOrder,
    /// Packed weights; none for what depends on symbols.
    weights: Vec<Option<WeightStorage>>,
}

/// Code that takes the sizes of a shape.
enum OpenCode {
    /// For the processor, with the entry points of kernels.
    Host(Arc<JitModule>, Vec<KernelFn>),
    /// Loaded by the driver of a GPU.
    Device(Arc<dyn Driver>, Vec<LoadedKernel>),
}

impl OpenPlan {
    /// Schedules a fused graph and generates code. The template gets the conditions on which that holds.
    ///
    /// # Errors
    /// A cluster has no kernel, a kernel needs a number, or a limit is exceeded.
    pub fn new(compiler: &Compiler, mut template: Template, report: &mut Report) -> Result<OpenPlan, Error> {
        let deadline = compiler.deadline();
        compiler.progress(LOWER);
        let lowered =
            report.timed(compiler, LOWER, || Ok(lower_template(compiler, &mut template, compiler.choices())?));
        let mut lowered = lowered?;
        Interrupt::new(&|| deadline.passed()).check("planning")?;
        let code = match compiler.gpu() {
            None => {
                let code = generate(compiler, &lowered.kernels, deadline, report)?;
                let entries = entries(&code);
                OpenCode::Host(code, entries)
            }
            Some(driver) => {
                compiler.progress("generate code");
                let load = || gpu_kernels::load(compiler, driver, &lowered.kernels, &surely_distinct(&lowered));
                OpenCode::Device(driver.clone(), report.timed(compiler, "codegen", load)?)
            }
        };
        lowered.kernels.clear();
        let order = report.timed(compiler, PLAN_MEMORY, || {
            let binding = template.trace.bind(&template.examples());
            let binding = binding.ok_or_else(|| Error::Internal("examples break a condition".into()))?;
            Ok(PlacementOrder::greedy(&lowered.bound(&binding))?)
        })?;
        compiler.progress("pack weights");
        let weights = report.timed(compiler, "pack-weights", || packed(compiler, &lowered))?;
        let numbers = OpenNumbers::of(&lowered);
        Ok(OpenPlan { template, lowered, numbers, code, order, weights })
    }

    /// The template, with the conditions on which the plan holds.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// The program for inputs of these types, for which the plan holds.
    ///
    /// # Errors
    /// As [`OpenPlan::executable`].
    pub fn program(&self, compiler: &Compiler, types: &[DenseType], mut report: Report) -> Result<Program, Error> {
        let mut room = BindingRoom::default();
        self.rebind(types, &mut room.binding)?;
        let (executable, _) = self.executable(compiler, &mut room, &mut report)?;
        Ok(Program::of(compiler, executable, report))
    }

    /// The numbers of the plan for inputs of these types.
    ///
    /// # Errors
    /// The plan does not hold for them.
    pub fn rebind(&self, types: &[DenseType], binding: &mut Binding) -> Result<(), Error> {
        let holds = self.template.rebind(types, binding);
        holds.then_some(()).ok_or_else(|| Error::Internal("a plan does not hold for a shape".into()))
    }

    /// The plan with the numbers of the binding, and the signatures of its kernels.
    ///
    /// # Errors
    /// The plan is more than limits allow, or breaks a rule of the run time.
    pub fn executable(
        &self,
        compiler: &Compiler,
        room: &mut BindingRoom,
        report: &mut Report,
    ) -> Result<(Executable, Vec<KernelSignature>), Error> {
        let BindingRoom { binding, placement, .. } = room;
        let lowered = report.timed(compiler, PLAN_MEMORY, || {
            let mut lowered = self.lowered.bound(binding);
            self.order.apply(&mut lowered.plan, placement);
            if admit(compiler, &lowered.plan).is_err() {
                plan_memory(&mut lowered)?;
            }
            Ok(lowered)
        })?;
        admit(compiler, &lowered.plan)?;
        report.timed(compiler, "load", || {
            let Lowered { plan, signatures, constants, externs, .. } = lowered;
            verify_kernels(&plan, &signatures).map_err(LoadError::from)?;
            let weight = |(weight, known): (&Weight, &Option<WeightStorage>)| match known {
                Some(known) => Ok(known.clone()),
                None => pack(compiler, weight, &constants[weight.constant as usize]),
            };
            let weights = plan.weights.iter().zip(&self.weights).map(weight).collect::<Result<_, _>>()?;
            let executable = match &self.code {
                OpenCode::Host(code, _) => link_code(compiler, plan, code, weights, &externs)?,
                OpenCode::Device(driver, kernels) => {
                    let kernels = gpu_kernels::relaunched(driver, kernels, &signatures)?;
                    let calls = vendor::load(driver, &plan)?;
                    link_device(driver, plan, [&kernels, &calls], weights, compiler.weights())?
                }
            };
            Ok((executable, signatures))
        })
    }

    /// Gives the plan, which has the numbers of another shape, those of the binding.
    ///
    /// # Errors
    /// As [`OpenPlan::executable`]; or it runs on a GPU.
    pub fn renumber(
        &self,
        compiler: &Compiler,
        executable: &mut Executable,
        signatures: &mut [KernelSignature],
        room: &mut BindingRoom,
    ) -> Result<(), Error> {
        let OpenCode::Host(_, entries) = &self.code else {
            return Err(Error::Internal("plans on a GPU keep their numbers".into()));
        };
        let (Lowered { plan: open, constants, .. }, BindingRoom { binding, placement, renumber }) =
            (&self.lowered, room);
        let _span = compiler.span("bind");
        crate::compile::renumber(executable, entries, signatures, renumber, |plan, signatures, weights| {
            self.numbers.put(binding, plan, signatures);
            self.order.apply(plan, placement);
            admit(compiler, plan)?;
            let all = weights.iter_mut().zip(&open.weights).zip(&self.weights);
            for ((storage, weight), _) in all.filter(|(_, known)| known.is_none()) {
                let data = &constants[weight.constant as usize];
                match weight.packing {
                    Packing::Plain => data.write_bound(binding, storage.changed(data.bytes().len())?),
                    _ => *storage = pack(compiler, weight, &data.bound(binding))?,
                }
            }
            Ok(())
        })
    }
}

/// Whether runs of a plan take what they may take.
fn admit(compiler: &Compiler, plan: &Plan) -> Result<(), Error> {
    let (limits, threads) = (&compiler.options().limits, compiler.pool().threads());
    Ok(limits.admit_plan(plan, threads, compiler.gpu().is_some())?)
}

/// Schedules the fused graph of a template, and writes kernels that take their sizes.
///
/// # Errors
/// A cluster has no kernel, or a kernel needs a number.
pub(crate) fn lower_template(
    compiler: &Compiler,
    template: &mut Template,
    choices: Choices,
) -> Result<Lowered<Extent>, Diagnostic> {
    let (math, threads) = (compiler.registry().math(), compiler.pool().threads());
    template.change(|graph| sized(lower_open(graph, math, choices, threads)?))
}

/// Packs the weights that do not depend on symbols.
fn packed(compiler: &Compiler, lowered: &Lowered<Extent>) -> Result<Vec<Option<WeightStorage>>, Error> {
    let data = |weight: &Weight| &lowered.constants[weight.constant as usize];
    let known: Vec<_> = lowered.plan.weights.iter().map(|w| (w, data(w))).filter(|(_, data)| !data.is_open()).collect();
    let mut packed = pack_each(compiler, &known)?.into_iter();
    Ok(lowered.plan.weights.iter().map(|w| if data(w).is_open() { None } else { packed.next() }).collect())
}
