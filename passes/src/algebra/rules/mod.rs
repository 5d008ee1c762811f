//! The rules of graph algebra: a table of laws with labels, and the loop that applies them.
//!
//! A rule looks at one primitive and the forms of its operands, or at all products of a region, and adds equal
//! forms. It need not know which is cheaper: the cost model decides. Directional rules are those whose right
//! side is never costlier.

mod product;
mod scale;
mod share;
mod sum;
mod view;

use egg::Id;
use rustc_hash::FxHashMap;
use tensorc_ir::DenseType;
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};

use super::space::{Args, Origin, TensorSpace, TensorTerm};
use crate::egraph::rebuild;
use crate::options::Label;

/// Element types on which a law holds under its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// f32 and f64.
    Float,
    /// Integers: arithmetic modulo a power of two is a ring.
    Integer,
    /// All numbers.
    Any,
}

impl Domain {
    fn holds(self, ty: &DenseType) -> bool {
        match self {
            Domain::Float => ty.dtype.is_float() && ty.dtype.size() >= 4,
            Domain::Integer => ty.dtype.is_int(),
            Domain::Any => true,
        }
    }
}

/// A law of tensors.
pub struct TensorRule {
    /// The name of the rule.
    pub name: &'static str,
    /// Which arithmetic the rule keeps.
    pub label: Label,
    /// The numbers for which the rule holds.
    pub domain: Domain,
    /// The law, for readers.
    pub law: &'static str,
    apply: Apply,
}

impl TensorRule {
    /// Whether it looks at all primitives of a region at once.
    pub(crate) fn spans_region(&self) -> bool {
        matches!(self.apply, Apply::All(_))
    }
}

/// A primitive that a rule looks at.
pub(super) struct RuleSite<'a> {
    pub prim: &'a Prim,
    pub ty: &'a DenseType,
    pub args: &'a [Id],
}

/// A term of a class, and a class that is equal.
pub(super) struct Equal {
    pub class: Id,
    pub term: TensorTerm,
    pub new: Id,
}

enum Apply {
    /// Classes equal to one primitive.
    Each(fn(&mut TensorSpace, &RuleSite<'_>) -> Vec<Id>),
    /// All equalities of a kind.
    All(fn(&mut TensorSpace) -> Vec<Equal>),
}

const fn rule(name: &'static str, label: Label, domain: Domain, law: &'static str, apply: Apply) -> TensorRule {
    TensorRule { name, label, domain, law, apply }
}

use Apply::{All, Each};
use Domain::{Any, Float, Integer};
use Label::{Exact, Reassoc};

/// Every rule. `·` is a contraction, `*` a product of elements; capitals are constant.
pub const RULES: &[TensorRule] = &[
    rule("scale-after-product", Reassoc, Float, "A*(x·W) + B = x·(A*W) + B", Each(scale::after_product)),
    rule("scale-before-product", Reassoc, Float, "(A*x + B)·W = x·(A*W) + B·W", Each(scale::before_product)),
    rule("affine-maps-meet", Reassoc, Float, "A*(C*x + D) + B = (A*C)*x + (A*D + B)", Each(scale::meet)),
    rule("reassociate-product", Reassoc, Float, "(x·y)·z = x·(y·z)", Each(product::reassociate)),
    rule("reassociate-product-int", Exact, Integer, "(x·y)·z = x·(y·z)", Each(product::reassociate)),
    rule("factor-product", Reassoc, Float, "x·y ± x·z = x·(y ± z)", Each(product::factor)),
    rule("factor-product-int", Exact, Integer, "x·y ± x·z = x·(y ± z)", Each(product::factor)),
    rule(
        "distribute-product",
        Reassoc,
        Float,
        "x·(y ± z) = x·y ± x·z, one of which is known",
        Each(product::distribute),
    ),
    rule(
        "distribute-product-int",
        Exact,
        Integer,
        "x·(y ± z) = x·y ± x·z, one of which is known",
        Each(product::distribute),
    ),
    rule("transpose-product", Reassoc, Float, "transpose(x·y) = x·y in another order", Each(product::transpose)),
    rule("transpose-product-int", Exact, Integer, "transpose(x·y) = x·y in another order", Each(product::transpose)),
    rule("sum-of-product", Reassoc, Float, "sum(x·y) = x·sum(y) over axes of y", Each(sum::of_product)),
    rule("sum-of-product-int", Exact, Integer, "sum(x·y) = x·sum(y) over axes of y", Each(sum::of_product)),
    rule("sum-to-product", Reassoc, Float, "sum(x*y) = x·y, where both are broadcast", Each(sum::to_product)),
    rule("sum-to-product-int", Exact, Integer, "sum(x*y) = x·y, where both are broadcast", Each(sum::to_product)),
    rule("merge-products", Reassoc, Float, "x·V, x·W = slices of x·concat(V, W)", All(share::products)),
    rule("merge-products-int", Exact, Integer, "x·V, x·W = slices of x·concat(V, W)", All(share::products_int)),
    rule("merge-maps", Exact, Any, "f(slice x, V), f(slice x, W) = slices of f(x, concat(V, W))", All(share::maps)),
    rule("view-of-concat", Exact, Any, "view(concat(x, y)) = view(x), if it reads only x", Each(view::of_concat)),
    rule("concat-of-slices", Exact, Any, "concat(x[..n], x[n..]) = x", Each(view::concat_of_slices)),
    rule("views-through-map", Exact, Any, "f(view x, view y) = view f(x, y)", Each(view::through_map)),
    rule("map-through-view", Exact, Any, "view f(x, y) = f(view x, view y)", Each(view::into_map)),
];

/// One application of a rule: `term` of `class` equals `new`.
pub(super) struct RuleApplication {
    pub rule: usize,
    pub class: Id,
    pub term: TensorTerm,
    pub new: Id,
}

/// Applies the allowed rules, by position in [`RULES`], until nothing is new, at most `rounds` times and while there
/// are at most `limit` e-nodes.
pub(super) fn saturate(
    space: &mut TensorSpace,
    allowed: &dyn Fn(usize) -> bool,
    rounds: usize,
    limit: usize,
) -> Vec<RuleApplication> {
    let mut made = vec![];
    let rules: Vec<(usize, &TensorRule)> = RULES.iter().enumerate().filter(|(i, _)| allowed(*i)).collect();
    // What the rules saw when they were applied to an e-node; they need not be again before it changes.
    let mut seen: FxHashMap<TensorTerm, Box<[(Id, u32)]>> = FxHashMap::default();
    for _ in 0..rounds {
        let before = (made.len(), space.egraph.total_number_of_nodes());
        for (class, terms) in space.snapshot() {
            for term in terms {
                let done = seen.get(&term).is_some_and(|seen| space.is_unchanged(seen));
                if done || space.is_constant(class) || space.egraph.total_number_of_nodes() > limit {
                    continue;
                }
                let Some((prim, ty)) = space.of(&term).map(|(p, t)| (p.clone(), t.clone())) else { continue };
                space.begin_look();
                apply_each(space, &rules, &mut made, (class, &term), (&prim, &ty));
                match space.end_look() {
                    Some(all) => drop(seen.insert(term, all)),
                    None => drop(seen.remove(&term)),
                }
            }
        }
        rebuild(&mut space.egraph);
        for (i, rule) in &rules {
            let All(apply) = rule.apply else { continue };
            if space.egraph.total_number_of_nodes() > limit {
                break;
            }
            space.at_work = Some(Origin { rule: *i, site: Id::from(0) });
            for equal in apply(space) {
                unite(space, &mut made, *i, equal);
            }
            rebuild(&mut space.egraph);
        }
        space.at_work = None;
        if before == (made.len(), space.egraph.total_number_of_nodes()) {
            break;
        }
    }
    made
}

/// Applies the rules for single primitives to an e-node of a class.
fn apply_each(
    space: &mut TensorSpace,
    rules: &[(usize, &TensorRule)],
    made: &mut Vec<RuleApplication>,
    (class, term): (Id, &TensorTerm),
    (prim, ty): (&Prim, &DenseType),
) {
    let args: Args = term.args().iter().map(|a| space.find(*a)).collect();
    let site = RuleSite { prim, ty, args: &args };
    for (i, rule) in rules.iter().filter(|(_, r)| r.domain.holds(ty)) {
        let Each(apply) = rule.apply else { continue };
        space.at_work = Some(Origin { rule: *i, site: class });
        for new in apply(space, &site) {
            unite(space, made, *i, Equal { class, term: term.clone(), new });
        }
    }
}

fn unite(space: &mut TensorSpace, made: &mut Vec<RuleApplication>, rule: usize, equal: Equal) {
    let Equal { class, term, new } = equal;
    if space.egraph.find(class) != space.egraph.find(new) && space.ty(class) == space.ty(new) {
        space.egraph.union(class, new);
        made.push(RuleApplication { rule, class, term, new });
    }
}

/// The sum or difference of two operands, as a body; `None` if it is another.
fn sum_or_difference(f: &ScalarFn) -> Option<ScalarOp> {
    binary(f).filter(|op| matches!(op, ScalarOp::Add | ScalarOp::Sub))
}

/// The operation of a body that applies one to its two operands, in order.
fn binary(f: &ScalarFn) -> Option<ScalarOp> {
    let [output] = f.outputs[..] else { return None };
    match &f.nodes[output.0 as usize] {
        ScalarNode::Op(op, args) if f.nodes.len() == 3 && f.inputs.len() == 2 && args.len() == 2 => {
            let in_order = f.input_of(args[0]) == Some(0) && f.input_of(args[1]) == Some(1);
            in_order.then_some(*op)
        }
        _ => None,
    }
}

/// Whether the function returns its operand unchanged, up to its type being the same.
fn is_sum(combine: &ScalarFn, init: &[Scalar]) -> bool {
    binary(combine) == Some(ScalarOp::Add) && init.len() == 1 && init[0].as_f64() == 0.0
}
