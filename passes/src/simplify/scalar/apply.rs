//! Matching of patterns in an e-graph, and terms built from them there or anywhere else.

use egg::Id;
use smallvec::SmallVec;
use tensorc_ir::DType;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};

use super::rule::{self, ScalarRule};
use super::term::{ScalarFacts, ScalarTerm, ScalarTerms};

/// What variables and type variables stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Binding {
    pub vars: SmallVec<[Option<Id>; 4]>,
    pub types: SmallVec<[Option<DType>; 2]>,
}

/// All ways in which the pattern of a rule matches a term of a class, conditions met.
pub(super) fn matches(egraph: &ScalarTerms, rule: &ScalarRule, term: &ScalarTerm) -> Vec<Binding> {
    let mut open = Binding::default();
    open.vars.resize(rule.vars.len(), None);
    open.types.resize(rule.types.len(), None);
    let mut found = vec![];
    match_term(egraph, &rule.pattern, term, open, &mut found);
    found.retain(|b| {
        let facts: Option<SmallVec<[ScalarFacts; 4]>> = b.vars.iter().map(|v| Some(egraph[(*v)?].data)).collect();
        let types: Option<SmallVec<[DType; 2]>> = b.types.iter().copied().collect();
        facts.zip(types).is_some_and(|(facts, types)| rule.holds(&facts, &types))
    });
    found
}

fn match_term(
    egraph: &ScalarTerms,
    pattern: &rule::RuleTerm,
    term: &ScalarTerm,
    binding: Binding,
    found: &mut Vec<Binding>,
) {
    let ScalarTerm::Op(op, args) = term else { return };
    match pattern {
        rule::RuleTerm::Op(wanted, patterns) if wanted == op => {
            match_all(egraph, patterns, args, binding.clone(), found);
            if commutes(*op) && args[0] != args[1] {
                let mut swapped = args.clone();
                swapped.swap(0, 1);
                match_all(egraph, patterns, &swapped, binding, found);
            }
        }
        rule::RuleTerm::Cast(target, inner) => {
            let ScalarOp::Cast(to) = op else { return };
            let mut binding = binding;
            if *binding.types[*target].get_or_insert(*to) == *to {
                match_class(egraph, inner, args[0], binding, found);
            }
        }
        _ => {}
    }
}

fn match_all(
    egraph: &ScalarTerms,
    patterns: &[rule::RuleTerm],
    args: &[Id],
    binding: Binding,
    found: &mut Vec<Binding>,
) {
    let Some((first, rest)) = patterns.split_first() else { return found.push(binding) };
    let mut partial = vec![];
    match_class(egraph, first, args[0], binding, &mut partial);
    partial.into_iter().for_each(|b| match_all(egraph, rest, &args[1..], b, found));
}

fn match_class(
    egraph: &ScalarTerms,
    pattern: &rule::RuleTerm,
    class: Id,
    mut binding: Binding,
    found: &mut Vec<Binding>,
) {
    let class = egraph.find(class);
    let facts = egraph[class].data;
    let is = |wanted: Option<Scalar>| wanted.is_some() && facts.constant == wanted;
    match pattern {
        rule::RuleTerm::Var(at) if *binding.vars[*at].get_or_insert(class) == class => found.push(binding),
        rule::RuleTerm::Literal(value) if is(rule::literal(*value, facts.dtype)) => found.push(binding),
        rule::RuleTerm::Truth(value) if is(Some(Scalar::bool(*value))) => found.push(binding),
        rule::RuleTerm::Op(..) | rule::RuleTerm::Cast(..) => {
            egraph[class].nodes.iter().for_each(|term| match_term(egraph, pattern, term, binding.clone(), found));
        }
        _ => {}
    }
}

/// Whether the first two operands may change places.
pub(crate) fn commutes(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Add | Mul | Min | Max | And | Or | Xor | Fma | Cmp(CmpOp::Eq | CmpOp::Ne))
}

/// What terms of rules are made of: classes of an e-graph, or plain values.
pub trait TermBuilder {
    /// What a term becomes.
    type Value: Clone;

    /// The type of a value.
    fn dtype(&self, v: &Self::Value) -> DType;
    /// Makes a constant.
    fn constant(&mut self, c: Scalar) -> Self::Value;
    /// The constant that a value is known to be.
    fn constant_of(&self, v: &Self::Value) -> Option<Scalar>;
    /// Applies an operation.
    fn op(&mut self, op: ScalarOp, args: &[Self::Value]) -> Self::Value;
}

/// Builds a term of a rule; literals without a typed neighbour are of type `expected`. `None` if it cannot be
/// typed, or if a literal is not a value of its type.
pub fn build<T: TermBuilder>(
    target: &mut T,
    term: &rule::RuleTerm,
    vars: &[T::Value],
    types: &[DType],
    expected: Option<DType>,
) -> Option<T::Value> {
    match term {
        rule::RuleTerm::Var(at) => vars.get(*at).cloned(),
        rule::RuleTerm::Literal(value) => rule::literal(*value, expected?).map(|c| target.constant(c)),
        rule::RuleTerm::Truth(value) => Some(target.constant(Scalar::bool(*value))),
        rule::RuleTerm::Exponent(inner) => {
            let inner = build(target, inner, vars, types, expected)?;
            let c = rule::exponent(target.constant_of(&inner)?);
            Some(target.constant(c))
        }
        rule::RuleTerm::Cast(to, inner) => {
            let inner = build(target, inner, vars, types, None)?;
            match target.dtype(&inner) == types[*to] {
                true => Some(inner),
                false => Some(target.op(ScalarOp::Cast(types[*to]), &[inner])),
            }
        }
        rule::RuleTerm::Op(op, terms) => {
            let keeps = !matches!(op, ScalarOp::Cmp(_) | ScalarOp::Bitcast(_));
            let skip = usize::from(*op == ScalarOp::Select);
            let mut built: SmallVec<[Option<T::Value>; 3]> = SmallVec::new();
            for term in terms {
                let literal = matches!(term, rule::RuleTerm::Literal(_));
                let hint = expected.filter(|_| keeps);
                built.push(if literal { None } else { Some(build(target, term, vars, types, hint)?) });
            }
            let typed = built[skip..].iter().flatten().next().map(|v| target.dtype(v));
            let common = typed.or(expected.filter(|_| keeps));
            let mut args: SmallVec<[T::Value; 3]> = SmallVec::new();
            for (term, value) in terms.iter().zip(built) {
                args.push(match value {
                    Some(value) => value,
                    None => build(target, term, vars, types, common)?,
                });
            }
            let dtypes: SmallVec<[DType; 3]> = args.iter().map(|a| target.dtype(a)).collect();
            op.result(&dtypes).ok()?;
            Some(target.op(*op, &args))
        }
    }
}

impl TermBuilder for ScalarTerms {
    type Value = Id;

    fn dtype(&self, v: &Id) -> DType {
        self[*v].data.dtype
    }

    fn constant(&mut self, c: Scalar) -> Id {
        self.add(ScalarTerm::Const(c))
    }

    fn constant_of(&self, v: &Id) -> Option<Scalar> {
        self[*v].data.constant
    }

    fn op(&mut self, op: ScalarOp, args: &[Id]) -> Id {
        self.add(ScalarTerm::Op(op, args.iter().map(|a| self.find(*a)).collect()))
    }
}
