//! Branches and loops: a step with a plan for every body.
//!
//! A body is scheduled by itself, and its memory planned. Its kernels and weights become those of the plan around it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tensorc_abi::{Arg, FlowPlan, KernelId, LeftOperand, Plan, StepOp, StorageClass};
use tensorc_ir::Extent;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Example;
use tensorc_ir::flow::{Flow, FlowKind};
use tensorc_ir::graph::NodeId;

use super::{Lowering, Schedule, planned};
use crate::kernel::KernelSpec;
use crate::lowered::{InPlaceOptions, Lowered};
use crate::memory::plan_memory;

/// The schedules of bodies, by node and position: they do not depend on how the graph around them is planned, of which several
/// plans are tried.
#[derive(Default)]
pub(super) struct BodySchedules<'a>(RefCell<BTreeMap<(NodeId, usize), Rc<Schedule<'a>>>>);

impl<'a> Lowering<'a, '_> {
    pub(super) fn flow(&mut self, node: NodeId, flow: &'a Flow) -> Result<()> {
        if self.target.is_gpu() {
            let why = "a branch or loop that is decided by computed values runs on processors only";
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why));
        }
        let (inputs, outputs) = (self.operands(node)?, self.results(node)?);
        let (mut bodies, mut in_place) = (vec![], vec![]);
        for i in 0..flow.bodies.len() {
            let (plan, options) = self.body(node, flow, i)?;
            bodies.push(plan);
            in_place.push(options);
        }
        let trips = match &flow.kind {
            FlowKind::If => Extent::ONE,
            FlowKind::Loop(repeat) => repeat.trips.unwrap_or(Extent::ONE),
        };
        let flops = bodies.iter().map(operations).max().unwrap_or_default().saturating_mul(trips);
        let read = inputs.into_iter().map(|buffer| Arg { buffer, writes: false });
        let args = read.chain(outputs.into_iter().map(|buffer| Arg { buffer, writes: true })).collect();
        self.out.in_place.nested.push((self.out.plan.steps.len(), in_place));
        self.step(node, StepOp::Flow { flow: FlowPlan { kind: flow.kind.clone(), bodies }.into(), args }, flops);
        Ok(())
    }

    /// The plan of a body, and its in-place options. Its kernels and constants join those of this graph.
    fn body(&mut self, node: NodeId, flow: &'a Flow, i: usize) -> Result<(Plan<Extent>, InPlaceOptions)> {
        let known = self.bodies.0.borrow().get(&(node, i)).cloned();
        let schedule = match known {
            Some(schedule) => schedule,
            None => {
                let schedule = Rc::new(placed(planned(&flow.bodies[i], self.choices, self.forms)?)?);
                self.bodies.0.borrow_mut().insert((node, i), schedule.clone());
                schedule
            }
        };
        let mut plan = schedule.plan.clone();
        let shift = TableShift {
            kernels: self.out.kernels.len() as u32,
            weights: self.out.plan.weights.len() as u32,
            externs: self.out.externs.len() as u32,
        };
        shift.apply(&mut plan);
        let constant = self.out.constants.len() as u32;
        for mut weight in std::mem::take(&mut plan.weights) {
            weight.constant += constant;
            self.plan().weights.push(weight);
        }
        self.plan().kernels.append(&mut plan.kernels);
        self.out.kernels.extend(schedule.kernels.iter().map(|kernel| KernelSpec { node, ..kernel.clone() }));
        self.out.constants.extend(schedule.constants.iter().cloned());
        self.out.externs.extend(schedule.externs.iter().cloned());
        Ok((plan, schedule.in_place.clone()))
    }
}

/// With memory planned for the numbers of the example, by which plans of the graph around it are weighed.
fn placed(mut schedule: Schedule<'_>) -> Result<Schedule<'_>> {
    schedule.in_place.keep_sure(&schedule.plan);
    let (plan, in_place) = (schedule.plan.convert(&Example), schedule.in_place.clone());
    let mut lowered = Lowered { plan, in_place, ..Lowered::default() };
    plan_memory(&mut lowered)?;
    schedule.plan.place_like(&lowered.plan);
    Ok(schedule)
}

fn operations(plan: &Plan<Extent>) -> Extent {
    plan.steps.iter().fold(Extent::ZERO, |sum, step| sum.saturating_add(step.flops))
}

/// How much is added to numbers of a nested plan, which become those of the plan around it.
struct TableShift {
    kernels: u32,
    weights: u32,
    externs: u32,
}

impl TableShift {
    fn apply(&self, plan: &mut Plan<Extent>) {
        for buffer in &mut plan.buffers {
            if let StorageClass::Weight(weight) = &mut buffer.storage {
                *weight += self.weights;
            }
        }
        for step in &mut plan.steps {
            match &mut step.op {
                StepOp::Launch { kernel, .. } => self.kernel(kernel),
                StepOp::Gemm { a, epilogue, .. } | StepOp::Conv { a, epilogue, .. } => {
                    epilogue.iter_mut().for_each(|e| self.kernel(&mut e.kernel));
                    if let LeftOperand::Computed(prologue) = a {
                        self.kernel(&mut prologue.kernel);
                    }
                }
                StepOp::Attention { epilogue, .. } => epilogue.iter_mut().for_each(|e| self.kernel(&mut e.kernel)),
                StepOp::Extern { function, .. } => *function += self.externs,
                StepOp::Flow { flow, .. } => flow.bodies.iter_mut().for_each(|body| self.apply(body)),
                StepOp::Vendor { .. } | StepOp::Copy { .. } => {}
            }
        }
    }

    fn kernel(&self, kernel: &mut KernelId) {
        kernel.0 += self.kernels;
    }
}
