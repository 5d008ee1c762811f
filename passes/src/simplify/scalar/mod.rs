//! Rewriting of scalar bodies in an e-graph, by the rules of `rules/scalar.rules`.
//!
//! A body becomes terms, rules add equal terms until nothing is new or a limit of terms or repetitions is met, and
//! the cheapest body is taken out. One that is not cheaper than the original is not taken.

mod apply;
mod rule;
mod term;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egg::Id;
use rustc_hash::FxHashMap;
use tensorc_ir::DType;
use tensorc_ir::scalar::{Ex, ScalarBuilder, ScalarFn, ScalarNode, ScalarOp};
use tensorc_schedule::cost::scalar as cost;

use crate::egraph::{Extraction, extract, rebuild};
use crate::options::Label;
use apply::{build, matches};
use term::{ScalarAnalysis, ScalarTerm, ScalarTerms};

pub use apply::TermBuilder;
pub use apply::build as build_term;
pub use rule::{RuleTerm, ScalarRule, rules};
pub use term::ScalarFacts;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most repetitions of all rules.
const MAX_ITERATIONS: usize = 8;

/// Most terms that rules may make of a body of `n` nodes.
fn term_limit(n: usize) -> usize {
    4 * n + 500
}

/// A rule that made a body cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The name of the rule.
    pub rule: &'static str,
    /// Which arithmetic the rule keeps.
    pub label: Label,
}

/// A cheaper form of a body.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The body afterwards.
    pub body: ScalarFn,
    /// The rules behind it, in the order of the file.
    pub fired: Vec<Fired>,
    /// Costs of the body and of its cheaper form.
    pub before: u64,
    /// The cost afterwards.
    pub after: u64,
}

/// What became of bodies.
type Done = Arc<Mutex<FxHashMap<ScalarFn, Option<Rewritten>>>>;

/// What became of bodies by the labels that were allowed, for all rewriters of a compilation: the graph and the parts of it that are
/// priced have the same bodies.
#[derive(Clone, Debug, Default)]
pub struct RewrittenBodies(Arc<Mutex<FxHashMap<[bool; 3], Done>>>);

/// Rewrites bodies by the rules of some labels and remembers what became of each body.
pub struct Rewriter {
    rules: Vec<&'static ScalarRule>,
    /// The rules whose pattern begins with an operation, casts to any type being one.
    by_op: FxHashMap<ScalarOp, Vec<usize>>,
    done: Done,
}

impl Rewriter {
    /// # Errors
    /// What is wrong with the rules.
    pub fn new(allowed: impl Fn(Label) -> bool) -> Result<Rewriter, String> {
        Ok(Rewriter::of(rules()?.iter().filter(|r| allowed(r.label))))
    }

    /// As [`Rewriter::new`], with what others found.
    ///
    /// # Errors
    /// What is wrong with the rules.
    pub fn knowing(bodies: &RewrittenBodies, allowed: impl Fn(Label) -> bool) -> Result<Rewriter, String> {
        let labels = [Label::Exact, Label::Reassoc, Label::Approx].map(&allowed);
        let done = lock(&bodies.0).entry(labels).or_default().clone();
        Ok(Rewriter { done, ..Rewriter::new(allowed)? })
    }

    /// A rewriter with some rules only.
    pub fn of(rules: impl IntoIterator<Item = &'static ScalarRule>) -> Rewriter {
        let rules: Vec<&'static ScalarRule> = rules.into_iter().collect();
        let mut by_op: FxHashMap<ScalarOp, Vec<usize>> = FxHashMap::default();
        for (at, rule) in rules.iter().enumerate() {
            match &rule.pattern {
                RuleTerm::Op(op, _) => by_op.entry(*op).or_default().push(at),
                RuleTerm::Cast(..) => by_op.entry(ANY_CAST).or_default().push(at),
                _ => {}
            }
        }
        Rewriter { rules, by_op, done: Done::default() }
    }

    /// A cheaper body with the same operands and, as far as the labels ask, the same results.
    ///
    /// # Errors
    /// A fault of the rules: a replacement that is not well typed.
    pub fn rewrite(&mut self, body: &ScalarFn) -> Result<Option<Rewritten>, String> {
        if let Some(known) = lock(&self.done).get(body) {
            return Ok(known.clone());
        }
        let found = self.search(body)?;
        lock(&self.done).insert(body.clone(), found.clone());
        Ok(found)
    }

    fn search(&self, body: &ScalarFn) -> Result<Option<Rewritten>, String> {
        let mut egraph = ScalarTerms::new(ScalarAnalysis);
        let mut ids: Vec<Id> = Vec::with_capacity(body.nodes.len());
        for node in &body.nodes {
            let term = match node {
                ScalarNode::Input(i) => ScalarTerm::Input(*i, body.inputs[*i as usize]),
                ScalarNode::Const(c) => ScalarTerm::Const(*c),
                ScalarNode::Coord(axis) => ScalarTerm::Coord(*axis),
                ScalarNode::Op(op, args) => ScalarTerm::Op(*op, args.iter().map(|a| ids[a.0 as usize]).collect()),
            };
            ids.push(egraph.add(term));
        }
        rebuild(&mut egraph);
        let made = self.saturate(&mut egraph, term_limit(body.nodes.len()));
        let roots: Vec<Id> = body.outputs.iter().map(|o| ids[o.0 as usize]).collect();
        let price = |_, term: &ScalarTerm| {
            Some(match term {
                ScalarTerm::Op(op, args) => {
                    cost::of(*op, egraph[args[usize::from(*op == ScalarOp::Select)]].data.dtype)
                }
                _ => 0,
            })
        };
        let Some(cheapest) = extract(&egraph, &roots, price) else { return Ok(None) };
        let before = cost::of_body(body);
        if cheapest.cost() >= before {
            return Ok(None);
        }
        let fired = self.fired(&egraph, &cheapest, &made);
        let new = to_body(&egraph, &body.inputs, &cheapest, &roots)?;
        Ok(Some(Rewritten { after: cost::of_body(&new), body: new, fired, before }))
    }

    /// Applies all rules until they add nothing; returns which rule made which class equal to which other.
    fn saturate(&self, egraph: &mut ScalarTerms, limit: usize) -> Vec<(usize, Id, Option<Id>)> {
        let mut made = vec![];
        for _ in 0..MAX_ITERATIONS {
            let mut found = vec![];
            for class in egraph.classes() {
                for term in &class.nodes {
                    let ScalarTerm::Op(op, _) = term else { continue };
                    let key = if matches!(op, ScalarOp::Cast(_)) { ANY_CAST } else { *op };
                    for &at in self.by_op.get(&key).into_iter().flatten() {
                        found.extend(matches(egraph, self.rules[at], term).into_iter().map(|b| (at, class.id, b)));
                    }
                }
            }
            let mut changed = false;
            for (at, class, binding) in found {
                if egraph.total_number_of_nodes() > limit {
                    break;
                }
                let vars: Vec<Id> = binding.vars.iter().flatten().copied().collect();
                let types: Vec<DType> = binding.types.iter().flatten().copied().collect();
                let expected = Some(egraph[class].data.dtype);
                let replacement = &self.rules[at].replacement;
                let Some(new) = build(egraph, replacement, &vars, &types, expected) else { continue };
                let own = !matches!(replacement, RuleTerm::Var(_));
                if egraph.find(new) != egraph.find(class) {
                    made.push((at, class, own.then_some(new)));
                    egraph.union(class, new);
                    changed = true;
                }
            }
            rebuild(egraph);
            if !changed {
                break;
            }
        }
        made
    }

    /// The rules that made a term that was chosen, or made a term of the body unnecessary.
    fn fired(
        &self,
        egraph: &ScalarTerms,
        cheapest: &Extraction<'_, ScalarTerm>,
        made: &[(usize, Id, Option<Id>)],
    ) -> Vec<Fired> {
        let chosen = |class: Id| Some(cheapest.nodes()[cheapest.position(egraph.find(class))?].1);
        let canonical = |id: Id| egg::Language::map_children(egraph.id_to_node(id).clone(), |c| egraph.find(c));
        let used = made.iter().filter(|(_, class, new)| match (chosen(*class), new) {
            (Some(term), Some(new)) => canonical(*new) == egg::Language::map_children(term.clone(), |c| egraph.find(c)),
            (Some(_), None) => true,
            (None, _) => false,
        });
        let mut at: Vec<usize> = used.map(|(at, ..)| *at).collect();
        at.sort_unstable();
        at.dedup();
        at.iter().map(|at| Fired { rule: self.rules[*at].name, label: self.rules[*at].label }).collect()
    }
}

/// Stands for casts to every type where rules are looked up.
const ANY_CAST: ScalarOp = ScalarOp::Cast(DType::Bool);

fn to_body(
    egraph: &ScalarTerms,
    inputs: &[DType],
    chosen: &Extraction<'_, ScalarTerm>,
    roots: &[Id],
) -> Result<ScalarFn, String> {
    let b = ScalarBuilder::new();
    let operands: Vec<Ex> = inputs.iter().map(|d| b.input(*d)).collect();
    let mut made: Vec<Ex> = Vec::with_capacity(chosen.nodes().len());
    let at = |class: Id| chosen.position(egraph.find(class)).ok_or("a class without a term");
    for (_, term) in chosen.nodes() {
        let ex = match term {
            ScalarTerm::Input(i, _) => operands[*i as usize].clone(),
            ScalarTerm::Const(c) => b.constant(*c),
            ScalarTerm::Coord(axis) => b.coord(*axis as usize),
            ScalarTerm::Op(op, args) => {
                let args: Vec<&Ex> = args.iter().map(|a| at(*a).map(|i| &made[i])).collect::<Result<_, _>>()?;
                b.op(*op, &args)
            }
        };
        made.push(ex);
    }
    let outputs: Vec<&Ex> = roots.iter().map(|r| at(*r).map(|i| &made[i])).collect::<Result<_, _>>()?;
    b.finish(&outputs)
}
