//! Steps with nested plans: these linked, and their memory.

use tensorc_abi::image::{flow, slot};
use tensorc_abi::{FlowPlan, Plan};
use tensorc_exec::{Flow, Memory, Place, Tensors, bind};

use super::error::LoadError;
use super::executable::{Executable, Tables};
use super::verify::PlanReport;
use crate::weights::WeightStorage;

/// The nested plans of a step with their code.
pub(super) struct FlowProgram {
    words: Vec<u64>,
    pub bodies: Vec<Executable>,
}

impl FlowProgram {
    /// Links the nested plans of a step of a verified plan.
    ///
    /// # Errors
    /// As [`Executable::new`].
    pub fn new(flow: &FlowPlan, tables: Tables<'_>) -> Result<FlowProgram, LoadError> {
        let link = |body: &Plan| {
            let report = PlanReport { arena_bytes: body.arena_bytes, lower_bound_bytes: body.lower_bound_bytes };
            Executable::resolved(body.clone(), report, tables, Place::Processor)
        };
        Ok(FlowProgram { words: flow.words(), bodies: flow.bodies.iter().map(link).collect::<Result<_, _>>()? })
    }

    /// Whether these are the nested plans of a step, linked with these weights: all else was linked with them before.
    pub fn is_of(&self, flow: &FlowPlan, tables: Tables<'_>) -> bool {
        let place = |weight: &WeightStorage| weight.as_slice().as_ptr();
        let same = |body: &Executable| body.weights().iter().map(place).eq(tables.weights.iter().map(place));
        let plans = flow.bodies.iter().eq(self.bodies.iter().map(Executable::plan));
        self.words == flow.words() && plans && self.bodies.iter().all(same)
    }

    /// What is executed.
    pub fn call(&self) -> Flow<'_> {
        Flow::of(&self.words)
    }
}

impl Executable {
    /// Makes the working memory of a step ready for one of its nested plans: writes the table of arguments.
    ///
    /// # Safety
    /// The memory is as large as [`FlowPlan::working`] says, aligned, and nobody else's; the tensors are as large as the plan
    /// says.
    pub(super) unsafe fn enter(&self, memory: *mut u8, tensors: Tensors<'_>) -> Memory {
        let arena = memory.wrapping_add(flow::arena_offset(self.slots.len() as u64).map_or(0, |at| at as usize));
        let table = memory.wrapping_add(flow::HEADER_BYTES).cast::<*mut u8>();
        // SAFETY: by the caller's contract: the arena begins behind the table.
        let entries = unsafe { std::slice::from_raw_parts_mut(table, self.slots.len()) };
        bind(self.slots.iter(), entries, |home, index| {
            Some(match home {
                slot::WEIGHTS => self.weight(index).as_slice().as_ptr().cast_mut(),
                slot::ARENA => arena,
                home => tensors(home, index),
            })
        });
        Memory { table: table.cast_const(), arena, common: None }
    }
}
