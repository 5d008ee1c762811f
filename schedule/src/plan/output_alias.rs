//! Where results end up: outputs in the caller's memory, next values of states in the states.
//!
//! A value is computed where it is delivered if it can be: an output that nothing of the other phase
//! uses, a state whose old value is read by earlier steps only, or by the very step in place.
//! Whatever else is delivered is copied as soon as it may be.

use tensorc_abi::{BufferId, Step, StepOp, StorageClass, ValueCheck};
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Check, NodeId, Value};

use super::Lowering;
use crate::lowered::InPlace;

/// The steps that use a buffer or a part of it, ascending.
#[derive(Clone, Default)]
struct BufferUses {
    reads: Vec<usize>,
    writes: Vec<usize>,
}

/// A copy to add in front of a step.
struct Delivery {
    /// Position of the step, or number of steps.
    at: usize,
    second: bool,
    rank: Rank,
    node: NodeId,
    step: Step<Extent>,
}

/// The order of copies in front of the same step: states are read before they are changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ReadsState,
    Output,
    ChangesState,
}

/// What is known about the buffers of results.
pub(super) struct Deliveries {
    uses: Vec<BufferUses>,
    /// Whether an output or update of the first, and of the second phase has the buffer's value.
    wanted: Vec<[bool; 2]>,
    /// Number of steps of the first phase.
    boundary: Option<usize>,
    steps: usize,
    copies: Vec<Delivery>,
}

impl Deliveries {
    /// Whether a step belongs to the second phase. Without a boundary all is one phase.
    pub(super) fn is_second(&self, step: usize) -> bool {
        self.boundary.is_some_and(|first| step >= first)
    }

    /// Whether all that uses or wants the buffer is in one phase, the given one.
    pub(super) fn stays_in(&self, id: BufferId, second: bool) -> bool {
        let uses = &self.uses[id.0 as usize];
        let steps = uses.reads.iter().chain(&uses.writes).all(|step| self.is_second(*step) == second);
        steps && !self.wanted[id.0 as usize][usize::from(!second)]
    }

    /// The steps that write a buffer.
    pub(super) fn writers(&self, buffer: usize) -> &[usize] {
        self.uses.get(buffer).map_or(&[], |uses| &uses.writes)
    }

    /// One after the last step that writes the buffer, not before `least`.
    fn after_writes(&self, id: BufferId, least: usize) -> usize {
        let last = self.writers(id.0 as usize).last();
        least.max(last.map_or(0, |step| step + 1))
    }
}

impl Lowering<'_, '_> {
    /// Gives outputs and next values of states their homes. `boundary`: number of steps of the first
    /// phase, if there are two.
    pub(super) fn deliver(&mut self, boundary: Option<usize>) -> Result<()> {
        let graph = self.graph;
        let delivered = self.delivered()?;
        let mut d = self.deliveries(boundary, &delivered);
        for (i, (name, v)) in graph.outputs().iter().enumerate() {
            self.output(&mut d, i, name, *v, delivered[i].0)?;
        }
        for (state, (_, v)) in graph.states().into_iter().enumerate() {
            self.update(&mut d, state, v)?;
        }
        for check in graph.checks() {
            self.check(&mut d, check)?;
        }
        self.insert(d);
        self.share_outputs();
        Ok(())
    }

    /// Puts an intermediate that dies where an output is computed in its place into the caller's memory:
    /// the output's first bytes are written later than its last use.
    fn share_outputs(&mut self) {
        let mut pairs = self.out.in_place.steps.clone();
        // An intermediate may take the place of another in turn.
        pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.step), pair.output, pair.input));
        let uses = self.uses();
        let plan = &mut self.out.plan;
        let span = |id: BufferId| {
            let uses = &uses[id.0 as usize];
            let first = uses.reads.first().into_iter().chain(uses.writes.first()).min().copied();
            (first, uses.reads.last().into_iter().chain(uses.writes.last()).max().copied())
        };
        let mut taken = vec![false; plan.buffers.len()];
        for InPlace { step, input, output } in pairs {
            let (from, to) = (plan.buffer(input), plan.buffer(output));
            let (first, last) = span(input);
            let own = matches!(from.storage, StorageClass::Arena(_)) && from.bytes() == to.bytes();
            let same_phase = first.is_some_and(|first| plan.in_second_phase(first) == plan.in_second_phase(step));
            let own = own && !plan.is_checked(input);
            let meets = last == Some(step) && span(output).0 == Some(step);
            if matches!(to.storage, StorageClass::Output(_)) && own && same_phase && meets && !taken[output.0 as usize]
            {
                taken[output.0 as usize] = true;
                plan.buffers[input.0 as usize].storage = plan.buffer(output).storage;
            }
        }
    }

    /// The buffers of outputs, of next values of states and of checks, and whether they belong to the second
    /// phase. What is checked belongs to both, so that nothing takes its place.
    pub(super) fn delivered(&mut self) -> Result<Vec<(bool, BufferId)>> {
        let graph = self.graph;
        let second = |output: usize| graph.boundary().is_some_and(|first| output >= first);
        let outputs = graph.outputs().iter().enumerate().map(|(i, (_, v))| (second(i), *v));
        let updates = graph.states().into_iter().map(|(_, v)| (graph.boundary().is_some(), v));
        let checks = graph.checks().iter().flat_map(|check| [false, true].map(|second| (second, check.value)));
        outputs.chain(updates).chain(checks).map(|(second, v)| Ok((second, self.operand(v)?))).collect()
    }

    /// Who uses and wants which buffer; nothing is delivered yet.
    pub(super) fn deliveries(&self, boundary: Option<usize>, delivered: &[(bool, BufferId)]) -> Deliveries {
        let uses = self.uses();
        let mut wanted = vec![[false; 2]; uses.len()];
        delivered.iter().for_each(|(second, id)| wanted[id.0 as usize][usize::from(*second)] = true);
        Deliveries { uses, wanted, boundary, steps: self.out.plan.steps.len(), copies: vec![] }
    }

    fn uses(&self) -> Vec<BufferUses> {
        let mut uses = vec![BufferUses::default(); self.out.plan.buffers.len()];
        for (i, step) in self.out.plan.steps.iter().enumerate() {
            for arg in step.op.args() {
                let uses = &mut uses[self.out.plan.whole(arg.buffer).0 as usize];
                let list = if arg.writes { &mut uses.writes } else { &mut uses.reads };
                if list.last() != Some(&i) {
                    list.push(i);
                }
            }
        }
        uses
    }

    fn output(&mut self, d: &mut Deliveries, i: usize, name: &str, v: Value, second: bool) -> Result<()> {
        let (ty, id) = (self.graph.dense(v)?, self.operand(v)?);
        let storage = StorageClass::Output(i as u32);
        let source = self.out.plan.buffer(id).storage;
        if matches!(source, StorageClass::Arena(_)) && d.stays_in(id, second) {
            let buffer = &mut self.plan().buffers[id.0 as usize];
            (buffer.storage, buffer.dims, buffer.name) = (storage, ty.dims.all().collect(), name.to_string());
            self.plan().outputs.push(id);
            return Ok(());
        }
        let out = self.buffer(name, &ty, storage);
        self.plan().outputs.push(out);
        if !ty.is_empty() {
            let start = if second { d.boundary.unwrap_or(0) } else { 0 };
            let (at, rank) = match source {
                StorageClass::Arena(_) | StorageClass::Output(_) => (d.after_writes(id, start), Rank::Output),
                StorageClass::Input(_) | StorageClass::State(_) | StorageClass::Weight(_) => (start, Rank::ReadsState),
            };
            let step = self.make_step(v.node, StepOp::Copy { src: id, dst: out }, Extent::ZERO);
            d.copies.push(Delivery { at, second, rank, node: v.node, step });
        }
        Ok(())
    }

    fn update(&mut self, d: &mut Deliveries, state: usize, v: Value) -> Result<()> {
        let (ty, mut id) = (self.graph.dense(v)?, self.operand(v)?);
        let (old, storage) = (self.out.plan.states[state], StorageClass::State(state as u32));
        if id == old || ty.is_empty() {
            return Ok(());
        }
        if self.writes_directly(d, old, id) {
            self.plan().buffers[id.0 as usize].storage = storage;
            return Ok(());
        }
        let (start, second) = (d.boundary.unwrap_or(0), d.boundary.is_some());
        if let StorageClass::State(other) = self.out.plan.buffer(id).storage
            && self.out.plan.states[other as usize] == id
        {
            // The old value of another state, which may be gone when this state may be changed.
            let name = self.out.plan.buffer(id).name.clone();
            let kept = self.buffer(&name, &ty, StorageClass::Arena(0));
            let step = self.make_step(v.node, StepOp::Copy { src: id, dst: kept }, Extent::ZERO);
            d.copies.push(Delivery { at: start, second, rank: Rank::ReadsState, node: v.node, step });
            id = kept;
        }
        let last_read = d.uses[old.0 as usize].reads.last().map_or(0, |step| step + 1);
        let at = d.after_writes(id, start.max(last_read));
        let name = self.out.plan.buffer(old).name.clone();
        let new = self.buffer(&name, &ty, storage);
        let step = self.make_step(v.node, StepOp::Copy { src: id, dst: new }, Extent::ZERO);
        d.copies.push(Delivery { at, second, rank: Rank::ChangesState, node: v.node, step });
        Ok(())
    }

    /// Leaves the word of a check in the arena.
    fn check(&mut self, d: &mut Deliveries, check: &Check) -> Result<()> {
        let (ty, mut buffer) = (self.graph.dense(check.value)?, self.operand(check.value)?);
        let source = self.out.plan.buffer(buffer);
        if !matches!(source.storage, StorageClass::Arena(_)) || source.part.is_some() {
            let (name, node) = (source.name.clone(), check.value.node);
            let kept = self.buffer(&name, &ty, StorageClass::Arena(0));
            let step = self.make_step(node, StepOp::Copy { src: buffer, dst: kept }, Extent::ZERO);
            let at = d.after_writes(buffer, 0);
            d.copies.push(Delivery { at, second: d.is_second(at), rank: Rank::ReadsState, node, step });
            buffer = kept;
        }
        self.plan().checks.push(ValueCheck { buffer, requirement: check.requirement.clone() });
        Ok(())
    }

    /// Whether the steps that write an intermediate may write it over the old value of a state.
    fn writes_directly(&self, d: &Deliveries, old: BufferId, id: BufferId) -> bool {
        let Some(uses) = d.uses.get(id.0 as usize) else { return false };
        let Some(&first) = uses.writes.first() else { return false };
        let arena = matches!(self.out.plan.buffer(id).storage, StorageClass::Arena(_));
        if !arena || d.is_second(first) != d.boundary.is_some() {
            return false;
        }
        match d.uses[old.0 as usize].reads.last() {
            Some(&last) if last == first => {
                let pair = InPlace { step: first, input: old, output: id };
                uses.writes.len() == 1 && self.out.in_place.steps.contains(&pair)
            }
            last => last.is_none_or(|last| *last < first),
        }
    }

    /// Adds the copies to the steps.
    fn insert(&mut self, d: Deliveries) {
        let Deliveries { mut copies, boundary, steps: count, .. } = d;
        copies.sort_by_key(|copy| (copy.at, copy.second, copy.rank));
        let first = copies.iter().filter(|copy| !copy.second).count();
        let plan = &mut self.out.plan;
        plan.boundary = boundary.map(|steps| (steps + first) as u32);
        let mut moved = vec![0; count];
        let mut copies = copies.into_iter().peekable();
        let mut steps = Vec::with_capacity(count + copies.len());
        let old = std::mem::take(&mut plan.steps).into_iter().zip(std::mem::take(&mut self.out.nodes));
        for (i, step) in old.enumerate() {
            while let Some(copy) = copies.next_if(|copy| copy.at <= i) {
                steps.push((copy.step, copy.node));
            }
            moved[i] = steps.len();
            steps.push(step);
        }
        steps.extend(copies.map(|copy| (copy.step, copy.node)));
        (plan.steps, self.out.nodes) = steps.into_iter().unzip();
        self.out.in_place.moved(|step| moved[step]);
    }
}
