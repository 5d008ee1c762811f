//! The order of steps: one that needs little memory, before results are delivered.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::{Buffer, BufferId, Plan, StorageClass};
use tensorc_exec::working_bytes;
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Example;

use super::{Lowering, Schedule};
use crate::lowered::InPlace;
use crate::tasks::{StepTask, Tasks};

impl Lowering<'_, '_> {
    /// Delivers results, after the steps were brought into an order that needs less memory than the
    /// order of the graph, if there is one.
    pub(super) fn schedule(&mut self, boundary: Option<usize>) -> Result<()> {
        // From here on no weight is added.
        self.delivered()?;
        let tasks = self.tasks(boundary)?;
        let (order, peak) = tasks.best_order();
        let given: Vec<usize> = (0..order.len()).collect();
        if peak >= tasks.peak(&given) {
            return self.deliver(boundary);
        }
        // What can be computed where it is delivered depends on the order, so both are delivered.
        let kernels = std::mem::take(&mut self.out.kernels);
        let undelivered = self.out.clone();
        self.deliver(boundary)?;
        let as_given = std::mem::replace(&mut self.out, undelivered);
        self.reorder(&order);
        self.deliver(boundary)?;
        if peak_of(&self.out, self.workers).0 >= peak_of(&as_given, self.workers).0 {
            self.out = as_given;
        }
        self.out.kernels = kernels;
        Ok(())
    }

    /// Steps as they are before delivery. A result that will be computed where it is delivered takes
    /// no memory, and all that reads a state comes before its update where that is possible.
    fn tasks(&mut self, boundary: Option<usize>) -> Result<Tasks> {
        let delivered = self.delivered()?;
        let plan = &self.out.plan;
        let mut tasks = tasks_of(plan, &self.out.in_place.steps, boundary.unwrap_or(plan.steps.len()), self.workers);
        let outputs = self.graph.outputs().len();
        let d = self.deliveries(boundary, &delivered);
        for (second, id) in &delivered[..outputs] {
            if d.stays_in(*id, *second) {
                tasks.bytes[id.0 as usize] = 0;
            }
        }
        let states: Vec<BufferId> = self.graph.states().iter().map(|(_, v)| self.operand(*v)).collect::<Result<_>>()?;
        for (old, new) in self.out.plan.states.clone().into_iter().zip(states) {
            let new = new.0 as usize;
            let writers = d.writers(new).to_vec();
            let fits = writers.first().is_some_and(|w| d.is_second(*w) == boundary.is_some());
            if fits && tasks.bytes[new] > 0 && old.0 as usize != new && read_before(&mut tasks, old.0, &writers) {
                tasks.bytes[new] = 0;
            }
        }
        Ok(tasks)
    }

    fn reorder(&mut self, order: &[usize]) {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, step)| place[*step] = at);
        let steps = std::mem::take(&mut self.out.plan.steps).into_iter().zip(std::mem::take(&mut self.out.nodes));
        let mut steps: Vec<_> = place.iter().copied().zip(steps).collect();
        steps.sort_by_key(|(at, _)| *at);
        (self.out.plan.steps, self.out.nodes) = steps.into_iter().map(|(_, step)| step).unzip();
        self.out.in_place.moved(|step| place[step]);
    }
}

/// Requires that every reader of a state runs before the writers of its next value, unless a reader
/// needs what they write. Returns whether that is so.
fn read_before(tasks: &mut Tasks, state: u32, writers: &[usize]) -> bool {
    let readers: Vec<usize> =
        (0..tasks.tasks.len()).filter(|t| tasks.tasks[*t].reads.contains(&state) && !writers.contains(t)).collect();
    if readers.is_empty() {
        return true;
    }
    // What follows the writers.
    let mut after: BTreeSet<usize> = writers.iter().copied().collect();
    let mut written: BTreeSet<u32> = writers.iter().flat_map(|w| tasks.tasks[*w].writes.clone()).collect();
    // Reads go forward in the given order; added constraints may go back, so until nothing changes.
    loop {
        let before = after.len();
        for t in 0..tasks.tasks.len() {
            let task = &tasks.tasks[t];
            let follows = task.reads.iter().any(|b| written.contains(b))
                || task.after.iter().any(|before| after.contains(&(*before as usize)));
            if follows && after.insert(t) {
                written.extend(&task.writes);
            }
        }
        if after.len() == before {
            break;
        }
    }
    if readers.iter().any(|r| after.contains(r)) {
        return false;
    }
    for w in writers {
        let task = &mut tasks.tasks[*w];
        task.after.extend(readers.iter().map(|r| *r as u32).filter(|r| *r != *w as u32));
    }
    true
}

/// The parts that steps write, by their whole.
fn written_parts(plan: &Plan<Extent>) -> BTreeMap<BufferId, BTreeSet<BufferId>> {
    let mut written: BTreeMap<BufferId, BTreeSet<BufferId>> = BTreeMap::new();
    let args = plan.steps.iter().flat_map(|step| step.op.args());
    for id in args.filter(|arg| arg.writes && plan.buffer(arg.buffer).part.is_some()).map(|arg| arg.buffer) {
        written.entry(plan.whole(id)).or_default().insert(id);
    }
    written
}

/// The steps of a plan as tasks over its arena, with the sizes of the example and working memory for so many workers.
fn tasks_of(plan: &Plan<Extent>, in_place: &[InPlace], boundary: usize, workers: u64) -> Tasks {
    let bytes = |b: &Buffer<Extent>| match b.storage {
        StorageClass::Arena(_) if b.part.is_none() => b.convert(&Example).bytes().next_multiple_of(Plan::ALIGN),
        _ => 0,
    };
    let parts = (0..).zip(&plan.buffers).filter_map(|(i, b)| Some((i, b.part?.of.0)));
    let mut tasks = Tasks { tasks: vec![], bytes: plan.buffers.iter().map(bytes).collect(), wholes: parts.collect() };
    let written = written_parts(plan);
    for (i, step) in plan.steps.iter().enumerate() {
        let scratch = working_bytes(&step.op.convert(&Example)).of(workers);
        let mut task = StepTask { second: i >= boundary, scratch, ..StepTask::default() };
        let args = step.op.args();
        for arg in args {
            if arg.writes && !task.writes.contains(&arg.buffer.0) {
                task.writes.push(arg.buffer.0);
            }
        }
        for arg in args.iter().filter(|arg| !arg.writes) {
            let parts = written.get(&plan.whole(arg.buffer));
            let read: Vec<BufferId> = match parts {
                // What is read must have been written part by part.
                Some(parts) => parts.iter().copied().filter(|p| plan.overlap(*p, arg.buffer)).collect(),
                None => vec![plan.whole(arg.buffer)],
            };
            for BufferId(b) in read {
                if !task.writes.contains(&b) && !task.reads.contains(&b) {
                    task.reads.push(b);
                }
            }
        }
        tasks.tasks.push(task);
    }
    for pair in in_place {
        tasks.tasks[pair.step].in_place.push((pair.input.0, pair.output.0));
    }
    tasks
}

/// The most bytes of the arena that are live at once with working memory for so many workers, and the first step at which
/// they are.
pub(super) fn peak_of(out: &Schedule<'_>, workers: u64) -> (u64, Option<usize>) {
    let steps = out.plan.steps.len();
    let order: Vec<usize> = (0..steps).collect();
    tasks_of(&out.plan, &out.in_place.steps, steps, workers).peak_at(&order)
}
