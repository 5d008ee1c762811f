//! Execution of steps with nested plans.

use tensorc_exec::{self as exec, Tensors};

use super::super::executable::Prepared;
use super::super::flow::FlowProgram;
use super::super::trace::{Unwatched, Watch};
use super::run_end::RunEnd;
use super::{RunView, Stop, is_instant};

impl<W: Watch> RunView<'_, W> {
    /// Executes the nested plans of a step.
    pub(super) fn flow(&self, flow: &FlowProgram, call: &exec::Step) -> Result<(), Stop> {
        let memory = self.memory.arena.wrapping_add(call.scratch.offset);
        let args = self.memory.table.wrapping_add(call.first_slot);
        let mut body = |which: usize, tensors: Tensors<'_>| {
            let body = &flow.bodies[which];
            // SAFETY: the verifier proved the working memory of the step to be large enough for every body, and nobody else
            // uses it now.
            let memory = unsafe { body.enter(memory, tensors) };
            let (externs, end) = (&body.externs[..], self.end);
            RunView { pool: self.pool, externs, memory, watch: Unwatched, end }.calls(&body.prepared)
        };
        // SAFETY: the slots of the step are bound, and the verifier compared the sizes of its arguments with the bodies.
        unsafe { flow.call().run(args, memory, &mut body) }
    }

    /// Executes all steps of a nested plan in order.
    fn calls(&self, calls: &[Prepared]) -> Result<(), Stop> {
        let mut index = 0;
        while index < calls.len() {
            let count = if self.pool.threads() > 1 { calls[index].region } else { 1 };
            self.steps(&calls[index..index + count])?;
            index += count;
        }
        // Steps look at the clock themselves.
        if calls.iter().all(|call| is_instant(std::slice::from_ref(call))) {
            self.end.map_or(Ok(()), RunEnd::check)
        } else {
            Ok(())
        }
    }
}
