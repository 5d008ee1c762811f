//! The language of scalar bodies for e-graphs, and what is known about each class: type, constant, sign, fraction.

use std::mem::discriminant;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use smallvec::SmallVec;
use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

pub(super) type Terms = EGraph<Term, Known>;

/// One operation of a body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Term {
    Input(u32, DType),
    Const(Scalar),
    Coord(u32),
    Op(ScalarOp, SmallVec<[Id; 3]>),
}

impl Language for Term {
    type Discriminant = (std::mem::Discriminant<Term>, Option<ScalarOp>);

    fn discriminant(&self) -> Self::Discriminant {
        let op = if let Term::Op(op, _) = self { Some(*op) } else { None };
        (discriminant(self), op)
    }

    fn matches(&self, other: &Term) -> bool {
        match (self, other) {
            (Term::Op(a, x), Term::Op(b, y)) => a == b && x.len() == y.len(),
            _ => self == other,
        }
    }

    fn children(&self) -> &[Id] {
        match self {
            Term::Op(_, args) => args,
            _ => &[],
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            Term::Op(_, args) => args,
            _ => &mut [],
        }
    }
}

/// What holds for every value of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub dtype: DType,
    pub constant: Option<Scalar>,
    /// The sign bit is clear, or the value is NaN.
    pub nonnegative: bool,
    /// A whole number, infinite or NaN.
    pub integral: bool,
}

impl Facts {
    pub fn unknown(dtype: DType) -> Facts {
        let unsigned = dtype == DType::Bool || dtype.is_int() && !dtype.is_signed_int();
        Facts { dtype, constant: None, nonnegative: unsigned, integral: !dtype.is_float() }
    }

    pub fn of(c: Scalar) -> Facts {
        let x = c.as_f64();
        let unsigned = Facts::unknown(c.dtype).nonnegative;
        Facts {
            dtype: c.dtype,
            constant: Some(c),
            nonnegative: unsigned || x.is_nan() || x.is_sign_positive(),
            integral: x.is_nan() || x == x.trunc(),
        }
    }

    /// What the operation makes of operands. `same` tells that the first two are one value.
    pub(super) fn apply(op: ScalarOp, args: &[Facts], same: bool) -> Option<Facts> {
        let types: SmallVec<[DType; 3]> = args.iter().map(|a| a.dtype).collect();
        let dtype = op.result(&types).ok()?;
        let constants: Option<SmallVec<[Scalar; 3]>> = args.iter().map(|a| a.constant).collect();
        // f32 library functions keep their own rounding: they fold only once expanded.
        let folds = !(matches!(op, ScalarOp::Math(_)) && dtype == DType::F32);
        if let Some(values) = constants.filter(|_| folds) {
            return Some(Facts::of(op.eval(&values)));
        }
        let mut facts = Facts::unknown(dtype);
        let all = |f: fn(&Facts) -> bool| args.iter().all(f);
        let nonnegative = |f: &Facts| f.nonnegative;
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

/// The analysis that keeps [`Facts`] and turns classes with a known value into constants.
#[derive(Clone, Debug, Default)]
pub(super) struct Known;

impl Analysis<Term> for Known {
    type Data = Facts;

    fn make(egraph: &mut Terms, term: &Term, _: Id) -> Facts {
        match term {
            Term::Input(_, dtype) => Facts::unknown(*dtype),
            Term::Coord(_) => Facts::unknown(DType::I64),
            Term::Const(c) => Facts::of(*c),
            Term::Op(op, args) => {
                let facts: SmallVec<[Facts; 3]> = args.iter().map(|a| egraph[*a].data).collect();
                let same = args.len() > 1 && egraph.find(args[0]) == egraph.find(args[1]);
                // Every term is typed before it is added.
                Facts::apply(*op, &facts, same).unwrap_or(Facts::unknown(facts[0].dtype))
            }
        }
    }

    fn merge(&mut self, to: &mut Facts, from: Facts) -> DidMerge {
        let merged = Facts {
            dtype: to.dtype,
            constant: to.constant.or(from.constant),
            nonnegative: to.nonnegative || from.nonnegative,
            integral: to.integral || from.integral,
        };
        let changed = DidMerge(merged != *to, merged != from);
        *to = merged;
        changed
    }

    fn modify(egraph: &mut Terms, id: Id) {
        if let Some(c) = egraph[id].data.constant {
            let constant = egraph.add(Term::Const(c));
            egraph.union(id, constant);
        }
    }
}
