//! The language of scalar bodies for e-graphs, and what is known about each class: type, constant, sign, fraction.

use std::mem::discriminant;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use smallvec::SmallVec;
use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

pub(super) type ScalarTerms = EGraph<ScalarTerm, ScalarAnalysis>;

/// One operation of a body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ScalarTerm {
    Input(u32, DType),
    Const(Scalar),
    Coord(u32),
    Op(ScalarOp, SmallVec<[Id; 3]>),
}

impl Language for ScalarTerm {
    type Discriminant = (std::mem::Discriminant<ScalarTerm>, Option<ScalarOp>);

    fn discriminant(&self) -> Self::Discriminant {
        let op = if let ScalarTerm::Op(op, _) = self { Some(*op) } else { None };
        (discriminant(self), op)
    }

    fn matches(&self, other: &ScalarTerm) -> bool {
        match (self, other) {
            (ScalarTerm::Op(a, x), ScalarTerm::Op(b, y)) => a == b && x.len() == y.len(),
            _ => self == other,
        }
    }

    fn children(&self) -> &[Id] {
        match self {
            ScalarTerm::Op(_, args) => args,
            _ => &[],
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            ScalarTerm::Op(_, args) => args,
            _ => &mut [],
        }
    }
}

/// What holds for every value of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarFacts {
    /// The type.
    pub dtype: DType,
    /// The value, if it is one constant.
    pub constant: Option<Scalar>,
    /// The sign bit is clear, or the value is NaN.
    pub nonnegative: bool,
    /// A whole number, infinite or NaN.
    pub integral: bool,
}

impl ScalarFacts {
    /// A value of which only the type is known.
    pub fn unknown(dtype: DType) -> ScalarFacts {
        let unsigned = dtype == DType::Bool || dtype.is_int() && !dtype.is_signed_int();
        ScalarFacts { dtype, constant: None, nonnegative: unsigned, integral: !dtype.is_float() }
    }

    /// A constant.
    pub fn of(c: Scalar) -> ScalarFacts {
        let x = c.as_f64();
        let unsigned = ScalarFacts::unknown(c.dtype).nonnegative;
        ScalarFacts {
            dtype: c.dtype,
            constant: Some(c),
            nonnegative: unsigned || x.is_nan() || x.is_sign_positive(),
            integral: x.is_nan() || x == x.trunc(),
        }
    }

    /// What the operation makes of operands. `same` tells that the first two are one value.
    pub(super) fn apply(op: ScalarOp, args: &[ScalarFacts], same: bool) -> Option<ScalarFacts> {
        let types: SmallVec<[DType; 3]> = args.iter().map(|a| a.dtype).collect();
        let dtype = op.result(&types).ok()?;
        let constants: Option<SmallVec<[Scalar; 3]>> = args.iter().map(|a| a.constant).collect();
        // What has a body keeps its own rounding: it folds only once expanded.
        if let Some(values) = constants.filter(|_| !op.has_body(dtype)) {
            return Some(ScalarFacts::of(op.eval(&values)));
        }
        let mut facts = ScalarFacts::unknown(dtype);
        let all = |f: fn(&ScalarFacts) -> bool| args.iter().all(f);
        let nonnegative = |f: &ScalarFacts| f.nonnegative;
        if dtype.is_float() {
            facts.nonnegative |= match op {
                ScalarOp::Abs | ScalarOp::Math(MathFn::Exp | MathFn::Exp2 | MathFn::Cosh) => true,
                ScalarOp::Mul if same => true,
                ScalarOp::Add | ScalarOp::Mul | ScalarOp::Div | ScalarOp::Min | ScalarOp::Fma => all(nonnegative),
                ScalarOp::Sqrt | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => {
                    all(nonnegative)
                }
                ScalarOp::Max => args.iter().any(nonnegative),
                ScalarOp::Select => args[1..].iter().all(nonnegative),
                // A signed zero or a small negative number may become -0, so floats must have a clear sign.
                ScalarOp::Cast(_) => args[0].nonnegative,
                _ => false,
            };
            facts.integral |= match op {
                ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => true,
                ScalarOp::Neg | ScalarOp::Abs | ScalarOp::Min | ScalarOp::Max => all(|f| f.integral),
                ScalarOp::Select => args[1..].iter().all(|f| f.integral),
                ScalarOp::Cast(_) => args[0].integral,
                _ => false,
            };
        }
        Some(facts)
    }
}

/// The analysis that keeps [`ScalarFacts`] and turns classes with a known value into constants.
#[derive(Clone, Debug, Default)]
pub(super) struct ScalarAnalysis;

impl Analysis<ScalarTerm> for ScalarAnalysis {
    type Data = ScalarFacts;

    fn make(egraph: &mut ScalarTerms, term: &ScalarTerm, _: Id) -> ScalarFacts {
        match term {
            ScalarTerm::Input(_, dtype) => ScalarFacts::unknown(*dtype),
            ScalarTerm::Coord(_) => ScalarFacts::unknown(DType::I64),
            ScalarTerm::Const(c) => ScalarFacts::of(*c),
            ScalarTerm::Op(op, args) => {
                let facts: SmallVec<[ScalarFacts; 3]> = args.iter().map(|a| egraph[*a].data).collect();
                let same = args.len() > 1 && egraph.find(args[0]) == egraph.find(args[1]);
                // Every term is typed before it is added.
                ScalarFacts::apply(*op, &facts, same).unwrap_or(ScalarFacts::unknown(facts[0].dtype))
            }
        }
    }

    fn merge(&mut self, to: &mut ScalarFacts, from: ScalarFacts) -> DidMerge {
        let merged = ScalarFacts {
            dtype: to.dtype,
            constant: to.constant.or(from.constant),
            nonnegative: to.nonnegative || from.nonnegative,
            integral: to.integral || from.integral,
        };
        let changed = DidMerge(merged != *to, merged != from);
        *to = merged;
        changed
    }

    fn modify(egraph: &mut ScalarTerms, id: Id) {
        if let Some(c) = egraph[id].data.constant {
            let constant = egraph.add(ScalarTerm::Const(c));
            egraph.union(id, constant);
        }
    }
}
