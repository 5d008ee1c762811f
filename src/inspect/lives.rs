//! Where the buffers of a plan lie in its arena, and during which steps.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::{BufferId, Plan, StorageClass};

/// Where a buffer lives and when.
pub(crate) struct BufferLife<'p> {
    pub name: &'p str,
    pub bytes: u64,
    pub offset: u64,
    pub first: usize,
    pub last: usize,
    pub parts: Vec<PartLife<'p>>,
}

/// A part of a buffer: which share of it, and the step that writes it first. Of a part in runs, its share of the
/// distance between them.
pub(crate) struct PartLife<'p> {
    pub name: &'p str,
    pub from: f64,
    pub to: f64,
    pub first: usize,
}

/// Buffers of the arena that are no parts of others, and working memory, by offset and first step.
pub(crate) fn lives(plan: &Plan, workers: usize) -> Vec<BufferLife<'_>> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (i, step) in plan.steps.iter().enumerate() {
        for arg in step.op.args() {
            for BufferId(b) in [plan.whole(arg.buffer), arg.buffer] {
                spans[b as usize].get_or_insert((i, i)).1 = i;
            }
        }
    }
    let written: BTreeSet<BufferId> =
        plan.steps.iter().flat_map(|step| step.op.args()).filter(|arg| arg.writes).map(|arg| arg.buffer).collect();
    let mut parts: BTreeMap<BufferId, Vec<PartLife<'_>>> = BTreeMap::new();
    for id in written {
        let b = plan.buffer(id);
        if let (Some(part), Some((first, _))) = (b.part, spans[id.0 as usize]) {
            let period = if b.is_dense() { plan.buffer(part.of).len() } else { part.stride }.max(1) as f64;
            let from = part.offset as f64 % period / period;
            let size = if b.is_dense() { b.len() } else { part.run };
            parts.entry(part.of).or_default().push(PartLife {
                name: &b.name,
                from,
                to: from + size as f64 / period,
                first,
            });
        }
    }
    let mut lives: Vec<BufferLife<'_>> = plan
        .buffers
        .iter()
        .zip(spans)
        .zip(0..)
        .filter_map(|((b, life), id)| match (b.storage, life) {
            (StorageClass::Arena(offset), Some((first, last))) if b.part.is_none() => {
                let parts = parts.remove(&BufferId(id)).unwrap_or_default();
                Some(BufferLife { name: &b.name, bytes: b.bytes(), offset, first, last, parts })
            }
            _ => None,
        })
        .collect();
    lives.extend(plan.scratch.iter().map(|scratch| {
        let (step, bytes) = (scratch.step as usize, scratch.end(workers) - scratch.offset);
        let (name, parts) = (plan.steps[step].name.as_str(), vec![]);
        BufferLife { name, bytes, offset: scratch.offset, first: step, last: step, parts }
    }));
    lives.sort_by_key(|b| (b.offset, b.first));
    lives
}
