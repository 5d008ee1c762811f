//! Branches and loops: a step with a plan for every body.
//!
//! A body is scheduled by itself, and its memory planned. Its kernels and weights become those of the plan around it.

use tensorc_abi::{Arg, FlowPlan, KernelId, LeftOperand, Plan, StepOp, StorageClass};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, NodeId};

use super::{Choices, Lowering, schedule};
use crate::lowered::Lowered;
use crate::memory::plan_memory;
use crate::plan::Schedule;

impl<'a> Lowering<'a, '_> {
    pub(super) fn flow(&mut self, node: NodeId, flow: &'a Flow) -> Result<()> {
        if self.target.is_gpu() {
            let why = "a branch or loop that is decided by computed values runs on processors only";
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why));
        }
        let (inputs, outputs) = (self.operands(node)?, self.results(node)?);
        let bodies = flow.bodies.iter().map(|body| self.body(node, body)).collect::<Result<Vec<Plan>>>()?;
        let flops = flow.bodies.iter().zip(&bodies).map(|(_, plan)| operations(plan)).max().unwrap_or(0);
        let read = inputs.into_iter().map(|buffer| Arg { buffer, writes: false });
        let args = read.chain(outputs.into_iter().map(|buffer| Arg { buffer, writes: true })).collect();
        let trips = flow.operations(|_| 1);
        let flow = FlowPlan { kind: flow.kind.clone(), bodies }.into();
        self.step(node, StepOp::Flow { flow, args }, flops.saturating_mul(trips));
        Ok(())
    }

    /// The plan of a body. Its kernels and constants join those of this graph.
    fn body(&mut self, node: NodeId, body: &'a Graph) -> Result<Plan> {
        let choices = Choices { target: self.target, workers: self.workers, ..Choices::default() };
        let Schedule { plan, mut kernels, constants, in_place, externs, .. } = schedule(body, choices, self.forms)?;
        let mut lowered = Lowered { plan, in_place, ..Lowered::default() };
        plan_memory(&mut lowered)?;
        let mut plan = lowered.plan;
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
        kernels.iter_mut().for_each(|kernel| kernel.node = node);
        self.out.kernels.extend(kernels);
        self.out.constants.extend(constants);
        self.out.externs.extend(externs);
        Ok(plan)
    }
}

fn operations(plan: &Plan) -> u64 {
    plan.steps.iter().fold(0, |sum, step| sum.saturating_add(step.flops))
}

/// How much is added to numbers of a nested plan, which become those of the plan around it.
struct TableShift {
    kernels: u32,
    weights: u32,
    externs: u32,
}

impl TableShift {
    fn apply(&self, plan: &mut Plan) {
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
