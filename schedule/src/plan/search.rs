//! Which operands of concatenations are computed in their place.
//!
//! They need no copy there, but the whole concatenation is live from the first of them on. Plans with and without some of
//! them are made, and their peaks compared.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::{BufferId, StorageClass};
use tensorc_ir::diag::Result;
use tensorc_ir::extent::{Example, advice};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::prim::Prim;

use super::order::peak_of;
use super::place::{ConcatElimination, ConcatOperands};
use super::{Lowering, Tried, lower};

/// Rounds of leaving values out, and concatenations tried in each.
const MAX_ROUNDS: usize = 8;
const MAX_CONCATS_PER_ROUND: usize = 3;

/// A plan, and where its peak is.
struct Trial<'a, 'f> {
    lowering: Lowering<'a, 'f>,
    /// Bytes live at once, and the step.
    peak: (u64, Option<usize>),
}

/// Everything is in place that can be, but for what costs more memory than it saves: values are left out where that
/// lowers the peak by half of their bytes at least, because they are copied then, which takes time.
///
/// # Errors
/// As [`super::plan`].
pub(super) fn choose<'a>(graph: &'a Graph, tried: &Tried<'a, '_>) -> Result<ConcatElimination> {
    let choices = &tried.choices;
    let nodes = graph.node_ids();
    if choices.concat_operands == ConcatOperands::Copied {
        let ports = |node| (0..graph.node(node).types.len() as u16).map(move |port| Value { node, port });
        return ConcatElimination::without(graph, &nodes.into_iter().flat_map(ports).collect(), choices.target);
    }
    let mut without = BTreeSet::new();
    if !nodes.iter().any(|n| matches!(graph.node(*n).kind, NodeKind::Prim(Prim::Concat { .. }))) {
        return ConcatElimination::without(graph, &without, choices.target);
    }
    let mut best = Trial::of(graph, &without, tried)?;
    for _ in 0..MAX_ROUNDS {
        let mut found: Option<(u64, BTreeSet<Value>, Trial<'_, '_>)> = None;
        for more in best.candidates() {
            let bytes = more.iter().map(|v| graph.dense(*v).map(|ty| advice(|| ty.bytes()))).sum::<Result<u64>>()?;
            if bytes / 2 >= best.peak.0 {
                continue;
            }
            let less: BTreeSet<Value> = without.union(&more).copied().collect();
            let trial = Trial::of(graph, &less, tried)?;
            let cost = trial.peak.0 + bytes / 2;
            if cost < found.as_ref().map_or(best.peak.0, |(cost, ..)| *cost) {
                found = Some((cost, less, trial));
            }
        }
        match found {
            Some((_, less, trial)) => (without, best) = (less, trial),
            None => break,
        }
    }
    Ok(best.lowering.places)
}

impl<'a, 'f> Trial<'a, 'f> {
    fn of(graph: &'a Graph, without: &BTreeSet<Value>, tried: &Tried<'a, 'f>) -> Result<Trial<'a, 'f>> {
        let places = ConcatElimination::without(graph, without, tried.choices.target)?;
        let lowering = lower(graph, tried, places)?;
        let peak = peak_of(&lowering.out, tried.choices.workers);
        Ok(Trial { lowering, peak })
    }

    /// What may be left out: of each of the largest concatenations live at the peak the value that is computed there first,
    /// or all values that are computed in concatenations.
    fn candidates(&self) -> Vec<BTreeSet<Value>> {
        let firsts = self.first_parts();
        if firsts.is_empty() {
            return vec![];
        }
        let all = self.lowering.places.values().collect();
        firsts.into_iter().take(MAX_CONCATS_PER_ROUND).map(|v| BTreeSet::from([v])).chain([all]).collect()
    }

    /// Of the concatenations live at the peak, the largest first, the value that is computed there first.
    fn first_parts(&self) -> Vec<Value> {
        let (plan, Some(at)) = (&self.lowering.out.plan, self.peak.1) else { return vec![] };
        let values = &self.lowering.values;
        let computed: BTreeMap<BufferId, Value> =
            self.lowering.places.values().filter_map(|v| Some((*values.get(&v)?, v))).collect();
        let mut spans: BTreeMap<BufferId, (usize, usize)> = BTreeMap::new();
        let mut firsts: BTreeMap<BufferId, Value> = BTreeMap::new();
        for (i, step) in plan.steps.iter().enumerate() {
            for arg in step.op.args() {
                let whole = plan.whole(arg.buffer);
                spans.entry(whole).or_insert((i, i)).1 = i;
                if let Some(v) = computed.get(&arg.buffer).filter(|_| arg.writes) {
                    firsts.entry(whole).or_insert(*v);
                }
            }
        }
        let is_live = |whole: &BufferId| {
            let planned = matches!(plan.buffer(*whole).storage, StorageClass::Arena(_));
            planned && spans.get(whole).is_some_and(|(first, last)| (*first..=*last).contains(&at))
        };
        let mut live: Vec<(BufferId, Value)> = firsts.into_iter().filter(|(whole, _)| is_live(whole)).collect();
        live.sort_by_key(|(whole, _)| (std::cmp::Reverse(plan.buffer(*whole).convert(&Example).bytes()), *whole));
        live.into_iter().map(|(_, v)| v).collect()
    }
}
