//! Graph algebra: the program is cut into regions, each becomes an e-graph, rules add equal forms, and the cheapest
//! form by the cost model takes the place of the region.
//!
//! Rewrites with a choice belong here: in which order to multiply, whether to merge products, where to scale, on
//! which side of a function to transpose. What is always right is done by [`crate::simplify`], which also tidies up
//! what this pass leaves. A form is only taken if the kernels of the region, fused greedily, cost less than those
//! it had. All bounds are counts.

mod affine;
mod price;
mod region;
mod rules;
mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;

use egg::Id;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::extent::advice;
use tensorc_ir::graph::Graph;
use tensorc_ir::parallel::try_map;

use crate::egraph::{Extraction, extract};
use crate::fuse::Fuse;
use crate::manager::{Pass, PassCx, Rewrite, Unit};
use crate::options::{FusionStrategy, Label, Options};
use crate::simplify::Simplify;
use price::{ElementwiseCharge, prices};
use region::{AlgebraRegion, RegionGraph};
pub use rules::{Domain, RULES, TensorRule};
use rules::{RuleApplication, saturate};
use space::{Origin, TensorTerm};
use tensorc_schedule::cost::{self, CostModel, Totals};

/// Most repetitions of all rules in a region.
const MAX_RULE_ITERATIONS: usize = 6;

/// Most e-nodes of a region of `n` primitives.
fn limit(n: usize) -> usize {
    8 * n + 400
}

/// Rewrites primitives region by region. Requires a simplified graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct Algebra {
    /// Overrides [`crate::Options::reassociate`].
    pub reassociate: Option<bool>,
}

impl Pass for Algebra {
    fn name(&self) -> &'static str {
        "algebra"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let reassociate = self.reassociate.unwrap_or(cx.options.reassociate);
        graph.remove_dead();
        if !cx.options.rewrite {
            return Ok(false);
        }
        let mut changed = false;
        for region in region::divide(graph) {
            changed |= rewrite(graph, &region, reassociate, cx)?;
        }
        if changed {
            graph.remove_dead();
            tidy(reassociate).run(graph, cx)?;
        }
        Ok(changed)
    }
}

fn tidy(reassociate: bool) -> Simplify {
    Simplify { reassociate: Some(reassociate), ..Simplify::default() }
}

/// A trial: whether all rules count, and how what may be fused is charged.
const TRIALS: [(bool, ElementwiseCharge); 4] = [
    (true, ElementwiseCharge::Fused),
    (true, ElementwiseCharge::Alone),
    (false, ElementwiseCharge::Fused),
    (false, ElementwiseCharge::Alone),
];

/// Whether a rule changes more than one place, so that it pays only if others follow.
fn is_far(rule: usize) -> bool {
    RULES[rule].spans_region()
}

fn rewrite(graph: &mut Graph, region: &AlgebraRegion, reassociate: bool, cx: &mut PassCx<'_>) -> Result<bool> {
    let mut built = region::build(graph, region, cx.options.clone())?;
    let phases = graph.boundary().is_some();
    // Merging could move work of the second phase into the first.
    let allowed = |i: usize| (reassociate || RULES[i].label == Label::Exact) && !(phases && is_far(i));
    let made = saturate(&mut built.space, &allowed, MAX_RULE_ITERATIONS, limit(region.nodes.len()));
    if made.is_empty() {
        return Ok(false);
    }
    let exports: Vec<Id> = region.exports.iter().filter_map(|v| built.classes.get(v).copied()).collect();
    let forms = advice(|| Forms::new(&built, &cx.options.target.machine()));
    let choose = |far: bool, inner: ElementwiseCharge| {
        extract(&built.space.egraph, &exports, |_, term| {
            let form = forms.of(term)?;
            let excluded = !far && form.origin.is_some_and(|o| is_far(o.rule));
            // What is there is better than an equal form.
            let cost = form.prices[inner as usize];
            (!excluded).then_some((cost << 8).saturating_add(u64::from(form.origin.is_some())))
        })
    };
    let trials = if made.iter().any(|m| is_far(m.rule)) { &TRIALS[..] } else { &TRIALS[2..] };
    let mut candidates: Vec<Extraction<'_, TensorTerm>> = vec![];
    let chosen = |(far, inner)| Ok::<_, Diagnostic>(choose(far, inner));
    let chosen = try_map(trials.to_vec(), cx.threads, chosen, |panic| resume_unwind(panic))?;
    for trial in chosen.into_iter().flatten() {
        if candidates.iter().all(|other| other.nodes() != trial.nodes()) {
            candidates.push(trial);
        }
    }
    let mut graphs = vec![region::original(graph, region)?];
    graphs.extend(candidates.iter().map(|trial| built.alone(graph, trial, &exports)));
    let mut costs = advice(|| costs(graphs, reassociate, cx))?.into_iter();
    let Some(before) = costs.next() else { return Ok(false) };
    let (mut best, mut least): (Option<Extraction<'_, TensorTerm>>, RegionCost) = (None, before);
    for (trial, mut after) in candidates.into_iter().zip(costs) {
        let constants = trial.nodes().iter().filter(|(class, _)| built.space.is_constant(*class));
        after.0 += constants.filter_map(|(_, term)| forms.of(term)).map(|f| f.prices[0]).sum::<u64>();
        if after < least {
            (best, least) = (Some(trial), after);
        }
    }
    let Some(chosen) = best else { return Ok(false) };
    let chosen = Chosen { built: &built, extraction: chosen, made: &made, forms: &forms };
    chosen.explain(graph, cx, before, least);
    chosen.replace(graph, region);
    Ok(true)
}

/// Estimated picoseconds of the kernels of a region, then the nodes in it.
type RegionCost = (u64, usize);

/// What the kernels of each graph cost when it is simplified and fused greedily.
fn costs(graphs: Vec<Graph>, reassociate: bool, cx: &PassCx<'_>) -> Result<Vec<RegionCost>> {
    let (registry, options) = (cx.registry, Options { reassociate, ..cx.options.clone() });
    let bodies = &cx.bodies;
    let cost = |mut graph: Graph| {
        let mut inner = PassCx { bodies: bodies.clone(), ..PassCx::new(registry).with_options(options.clone()) };
        tidy(reassociate).run(&mut graph, &mut inner)?;
        let nodes = graph.node_count();
        Fuse { by: Some(FusionStrategy::Greedy) }.run(&mut graph, &mut inner)?;
        Ok((Totals::of(&cost::kernels(&graph, &options.target.machine())?).time, nodes))
    };
    try_map(graphs, cx.threads, cost, |panic| resume_unwind(panic))
}

/// What is known of an e-node of a region: where it comes from if a rule made it, and its prices.
struct EnodeOrigin {
    origin: Option<Origin>,
    /// By [`ElementwiseCharge`].
    prices: [u64; 2],
}

struct Forms(BTreeMap<TensorTerm, EnodeOrigin>);

impl Forms {
    fn new(built: &RegionGraph, machine: &CostModel) -> Forms {
        let mut origins: BTreeMap<TensorTerm, Origin> = BTreeMap::new();
        let there = built.nodes();
        for (term, origin) in &built.space.origins {
            let term = built.canonical(term);
            if !there.contains_key(&term) {
                origins.entry(term).or_insert(*origin);
            }
        }
        let mut forms = BTreeMap::new();
        for class in built.space.egraph.classes() {
            for term in &class.nodes {
                let origin = origins.get(term).copied();
                let prices = prices(&built.space, machine, class.id, term, origin.is_some());
                forms.insert(term.clone(), EnodeOrigin { origin, prices });
            }
        }
        Forms(forms)
    }

    fn of(&self, term: &TensorTerm) -> Option<&EnodeOrigin> {
        self.0.get(term)
    }

    fn labels(&self) -> BTreeMap<TensorTerm, &'static str> {
        let label = |(term, form): (&TensorTerm, &EnodeOrigin)| Some((term.clone(), RULES[form.origin?.rule].name));
        self.0.iter().filter_map(label).collect()
    }
}

/// A form of a region.
struct Chosen<'a> {
    built: &'a RegionGraph,
    extraction: Extraction<'a, TensorTerm>,
    made: &'a [RuleApplication],
    forms: &'a Forms,
}

impl Chosen<'_> {
    /// The rules behind what was chosen, each with the class it was applied to.
    fn fired(&self) -> BTreeSet<(usize, Id)> {
        let space = &self.built.space;
        let chosen = |class: Id| Some(self.extraction.nodes()[self.extraction.position(class)?].1);
        let equal = |m: &RuleApplication| {
            let class = space.find(m.class);
            let new = self.built.canonical(space.egraph.id_to_node(m.new));
            (*chosen(class)? == new && new != self.built.canonical(&m.term)).then_some((m.rule, class))
        };
        let made = |(_, term): &(Id, &TensorTerm)| self.forms.of(term)?.origin.map(|o| (o.rule, space.find(o.site)));
        self.made.iter().filter_map(equal).chain(self.extraction.nodes().iter().filter_map(made)).collect()
    }

    fn explain(&self, graph: &Graph, cx: &mut PassCx<'_>, before: RegionCost, after: RegionCost) {
        let space = &self.built.space;
        for (rule, class) in self.fired() {
            let named = self.built.classes.iter().find(|(_, id)| space.find(**id) == class);
            let Some((v, _)) = named else { continue };
            let node = graph.node(v.node).name.clone();
            let (rule, label) = (RULES[rule].name, RULES[rule].label);
            let [before, after] = [before, after].map(|(time, _)| time / 1000);
            cx.rewrites.push(Rewrite { node, rule, label, before, after, unit: Unit::Nanoseconds });
        }
    }

    fn replace(&self, graph: &mut Graph, region: &AlgebraRegion) {
        self.built.replace(graph, &self.extraction, &self.forms.labels(), region);
    }
}

/// The graph with a rule applied wherever it matches, whatever that costs, and how often; `None` if it nowhere does.
/// For proofs: the graph is one region, and only the given rule is used, once at each place.
///
/// # Errors
/// A type is not fully known.
pub fn apply_everywhere(graph: &Graph, rule: &TensorRule, cx: &PassCx<'_>) -> Result<Option<(Graph, usize)>> {
    let mut out = graph.clone();
    let mut applied = 0;
    for region in region::divide(graph) {
        let mut built = region::build(&out, &region, cx.options.clone())?;
        let made = saturate(&mut built.space, &|i| RULES[i].name == rule.name, 1, usize::MAX);
        let exports: Vec<Id> = region.exports.iter().filter_map(|v| built.classes.get(v).copied()).collect();
        let forbidden: BTreeSet<TensorTerm> = made.iter().map(|m| built.canonical(&m.term)).collect();
        let chosen = extract(&built.space.egraph, &exports, |_, term| {
            (!forbidden.contains(&built.canonical(term))).then_some(1)
        });
        let Some(extraction) = chosen.filter(|_| !made.is_empty()) else { continue };
        built.replace(&mut out, &extraction, &BTreeMap::new(), &region);
        applied += made.len();
    }
    out.remove_dead();
    Ok((applied > 0).then_some((out, applied)))
}
