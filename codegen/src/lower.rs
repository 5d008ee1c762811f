//! From a graph to a plan with its kernels: what is scheduled is written.

use tensorc_ir::Extent;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Trace;
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;
use tensorc_ir::scalar::{MathLibrary, Scaling};
use tensorc_schedule::lowered::Lowered;
use tensorc_schedule::plan::{Schedule, plan};
use tensorc_schedule::target::{Cpu, Processor};

use crate::emit::{Math, emit};

pub use tensorc_schedule::plan::{Choices, ConcatOperands};

/// Schedules a fused graph by default choices and writes its kernels.
///
/// # Errors
/// As [`lower_with`].
pub fn lower(graph: &Graph, math: &dyn MathLibrary) -> Result<Lowered> {
    lower_with(graph, math, Choices::default(), 1)
}

/// Schedules a fused graph and writes its kernels on some threads, for the numbers that it has. Its memory is still to be planned.
///
/// # Errors
/// As [`lower_open`].
pub fn lower_with(graph: &Graph, math: &dyn MathLibrary, choices: Choices, threads: usize) -> Result<Lowered> {
    Ok(lower_open(graph, math, choices, threads)?.fixed())
}

/// As [`lower_with`], of a graph whose extents may depend on symbols of the current trace.
///
/// # Errors
/// An operator is left in the graph, a type is not known, or a kernel cannot be written for the target.
pub fn lower_open(graph: &Graph, math: &dyn MathLibrary, choices: Choices, threads: usize) -> Result<Lowered<Extent>> {
    let Schedule { target, mut plan, nodes, kernels, constants, mut in_place, externs } = plan(graph, choices)?;
    // What may share memory does in every shape.
    in_place.keep_sure(&plan);
    let scaling = Scaling(math);
    let scales = matches!(target.processor, Processor::Cpu(Cpu { scale: true, .. }));
    let math = Math { library: if scales { &scaling } else { math }, target: &target };
    let write = |spec| -> Result<Kernel> { emit(spec, math).map_err(|d| d.at(&graph.node(spec.node).name)) };
    let panicked = |_| Diagnostic::new(DiagnosticCode::Internal, "writing a kernel panicked");
    // Expressions are numbered as they come up, and that decides the order of terms in text.
    let threads = if Trace::current().is_some() { 1 } else { threads };
    let kernels: Vec<Kernel> = try_map(kernels.iter().collect(), threads, write, panicked)?;
    let signatures: Vec<_> = kernels.iter().map(Kernel::signature).collect();
    plan.set_extents(&|kernel| signatures[kernel.0 as usize].extent);
    Ok(Lowered { plan, nodes, kernels, signatures, constants, in_place, externs })
}
