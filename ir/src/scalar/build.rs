//! Construction of scalar expressions: a hash-consing builder, operator overloading, and
//! substitution of one function into another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops;
use std::rc::Rc;

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::expr::{MathLibrary, ScalarFn, ScalarId, ScalarNode};
use super::narrow::NarrowRounding;
use super::op::{CmpOp, MathFn, ScalarOp};
use super::value::Scalar;

#[derive(Default)]
struct Arena {
    inputs: Vec<DType>,
    nodes: Vec<ScalarNode>,
    dtypes: Vec<DType>,
    index: HashMap<ScalarNode, ScalarId>,
    error: Option<String>,
}

/// Builds one [`ScalarFn`].
#[derive(Clone, Default)]
pub struct ScalarBuilder(Rc<RefCell<Arena>>);

/// A handle on a node under construction. Arithmetic operators and methods append nodes; a type
/// error is remembered and reported by [`ScalarBuilder::finish`].
#[derive(Clone)]
pub struct Ex {
    arena: Rc<RefCell<Arena>>,
    id: ScalarId,
}

impl ScalarBuilder {
    /// A function without operands.
    pub fn new() -> ScalarBuilder {
        ScalarBuilder::default()
    }

    fn push(&self, node: ScalarNode, dtype: DType) -> Ex {
        let mut arena = self.0.borrow_mut();
        let id = match arena.index.get(&node) {
            Some(&id) => id,
            None => {
                let id = ScalarId(arena.nodes.len() as u32);
                arena.nodes.push(node.clone());
                arena.dtypes.push(dtype);
                arena.index.insert(node, id);
                id
            }
        };
        Ex { arena: self.0.clone(), id }
    }

    /// Declares the next operand.
    pub fn input(&self, dtype: DType) -> Ex {
        let i = {
            let mut arena = self.0.borrow_mut();
            arena.inputs.push(dtype);
            arena.inputs.len() - 1
        };
        self.push(ScalarNode::Input(i as u32), dtype)
    }

    /// A constant.
    pub fn constant(&self, value: Scalar) -> Ex {
        self.push(ScalarNode::Const(value), value.dtype)
    }

    /// A constant of any type, rounded to it.
    pub fn number(&self, dtype: DType, value: f64) -> Ex {
        self.constant(Scalar::from_f64(dtype, value))
    }

    /// The i64 coordinate along `axis`.
    pub fn coord(&self, axis: usize) -> Ex {
        self.push(ScalarNode::Coord(axis as u32), DType::I64)
    }

    /// An operation on some values.
    pub fn op(&self, op: ScalarOp, args: &[&Ex]) -> Ex {
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(|a| a.dtype()).collect();
        let dtype = op.result(&dtypes).unwrap_or_else(|why| {
            self.0.borrow_mut().error.get_or_insert(why);
            dtypes[0]
        });
        let args: SmallVec<[ScalarId; 3]> = args.iter().map(|a| a.id).collect();
        let constants: Option<SmallVec<[Scalar; 3]>> = args.iter().map(|&a| self.constant_of(a)).collect();
        let failed = self.0.borrow().error.is_some();
        match constants {
            // What has a body keeps its own rounding: it folds only once expanded.
            Some(values) if !(failed || op.has_body(dtype)) => self.constant(op.eval(&values)),
            _ => self.push(ScalarNode::Op(op, args), dtype),
        }
    }

    fn constant_of(&self, id: ScalarId) -> Option<Scalar> {
        match self.0.borrow().nodes[id.0 as usize] {
            ScalarNode::Const(c) => Some(c),
            _ => None,
        }
    }

    /// Inlines `f` with its operands replaced by `args` and its coordinates by `coords` (an axis
    /// missing from `coords` keeps its number); returns its outputs.
    pub fn call(&self, f: &ScalarFn, args: &[Ex], coords: &[Ex]) -> Vec<Ex> {
        let mut map: Vec<Ex> = Vec::with_capacity(f.nodes.len());
        for node in &f.nodes {
            let ex = match node {
                ScalarNode::Input(i) => args[*i as usize].clone(),
                ScalarNode::Const(c) => self.constant(*c),
                ScalarNode::Coord(a) => coords.get(*a as usize).cloned().unwrap_or_else(|| self.coord(*a as usize)),
                ScalarNode::Op(op, ids) => {
                    let args: SmallVec<[&Ex; 3]> = ids.iter().map(|i| &map[i.0 as usize]).collect();
                    self.op(*op, &args)
                }
            };
            map.push(ex);
        }
        f.outputs.iter().map(|o| map[o.0 as usize].clone()).collect()
    }

    /// The function with the given outputs, unreachable nodes removed, or the first type error.
    pub fn finish(&self, outputs: &[&Ex]) -> Result<ScalarFn, String> {
        let arena = self.0.borrow();
        if let Some(why) = &arena.error {
            return Err(why.clone());
        }
        let mut live = vec![false; arena.nodes.len()];
        for o in outputs {
            live[o.id.0 as usize] = true;
        }
        for i in (0..arena.nodes.len()).rev() {
            if let (true, ScalarNode::Op(_, args)) = (live[i], &arena.nodes[i]) {
                args.iter().for_each(|a| live[a.0 as usize] = true);
            }
        }
        let mut renumber = vec![ScalarId(0); arena.nodes.len()];
        let mut f = ScalarFn { inputs: arena.inputs.clone(), nodes: vec![], dtypes: vec![], outputs: vec![] };
        for (i, node) in arena.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            let mut node = node.clone();
            if let ScalarNode::Op(_, args) = &mut node {
                args.iter_mut().for_each(|a| *a = renumber[a.0 as usize]);
            }
            renumber[i] = ScalarId(f.nodes.len() as u32);
            f.nodes.push(node);
            f.dtypes.push(arena.dtypes[i]);
        }
        f.outputs = outputs.iter().map(|o| renumber[o.id.0 as usize]).collect();
        Ok(f)
    }
}

fn arguments(b: &ScalarBuilder, inputs: &[DType]) -> Vec<Ex> {
    inputs.iter().map(|&d| b.input(d)).collect()
}

fn finished(b: &ScalarBuilder, outputs: Vec<Ex>) -> Result<ScalarFn, String> {
    b.finish(&outputs.iter().collect::<Vec<_>>())
}

impl ScalarFn {
    /// Builds a function of operands with the given types.
    pub fn build(inputs: &[DType], body: impl FnOnce(&ScalarBuilder, &[Ex]) -> Vec<Ex>) -> Result<ScalarFn, String> {
        let b = ScalarBuilder::new();
        let outputs = body(&b, &arguments(&b, inputs));
        finished(&b, outputs)
    }

    /// The same function with every library call that has a body replaced by it.
    pub fn expand_math(&self, library: &dyn MathLibrary) -> Result<ScalarFn, String> {
        let b = ScalarBuilder::new();
        self.inputs.iter().for_each(|&d| drop(b.input(d)));
        let mut map: Vec<Ex> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let ex = match node {
                ScalarNode::Op(op, args) => {
                    let args: Vec<Ex> = args.iter().map(|a| map[a.0 as usize].clone()).collect();
                    match library.body_of(*op, self.dtypes[i]) {
                        Some(body) => b.call(body, &args, &[]).swap_remove(0),
                        None => b.op(*op, &args.iter().collect::<SmallVec<[&Ex; 3]>>()),
                    }
                }
                leaf => b.push(leaf.clone(), self.dtypes[i]),
            };
            map.push(ex);
        }
        b.finish(&self.outputs.iter().map(|o| &map[o.0 as usize]).collect::<Vec<_>>())
    }
}

impl Ex {
    /// The type of the value.
    pub fn dtype(&self) -> DType {
        self.arena.borrow().dtypes[self.id.0 as usize]
    }

    /// The value, if it is a constant.
    pub fn constant_value(&self) -> Option<Scalar> {
        self.builder().constant_of(self.id)
    }

    /// Whether both are the same node of the same function.
    pub fn same(&self, other: &Ex) -> bool {
        Rc::ptr_eq(&self.arena, &other.arena) && self.id == other.id
    }

    /// The builder it belongs to.
    pub fn builder(&self) -> ScalarBuilder {
        ScalarBuilder(self.arena.clone())
    }

    /// A constant of this expression's type.
    pub fn lit(&self, value: f64) -> Ex {
        self.builder().number(self.dtype(), value)
    }

    fn unary(&self, op: ScalarOp) -> Ex {
        self.builder().op(op, &[self])
    }

    fn binary(&self, op: ScalarOp, other: &Ex) -> Ex {
        self.builder().op(op, &[self, other])
    }

    /// A library function of the value.
    pub fn math(&self, f: MathFn) -> Ex {
        self.unary(ScalarOp::Math(f))
    }

    /// The power with the given exponent.
    pub fn pow(&self, exponent: &Ex) -> Ex {
        self.binary(ScalarOp::Math(MathFn::Pow), exponent)
    }

    /// `self · 2^⌊n⌋`, rounded once.
    pub fn scale(&self, n: &Ex) -> Ex {
        self.binary(ScalarOp::Scale, n)
    }

    /// The smaller of two values; NaN if one is NaN.
    pub fn min(&self, other: &Ex) -> Ex {
        self.binary(ScalarOp::Min, other)
    }

    /// The larger of two values; NaN if one is NaN.
    pub fn max(&self, other: &Ex) -> Ex {
        self.binary(ScalarOp::Max, other)
    }

    /// A comparison, of type bool.
    pub fn cmp(&self, op: CmpOp, other: &Ex) -> Ex {
        self.binary(ScalarOp::Cmp(op), other)
    }

    /// `self < other`.
    pub fn lt(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Lt, other)
    }

    /// `self <= other`.
    pub fn le(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Le, other)
    }

    /// `self > other`.
    pub fn gt(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Gt, other)
    }

    /// `self >= other`.
    pub fn ge(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Ge, other)
    }

    /// `self == other`.
    pub fn eq(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Eq, other)
    }

    /// `self != other`.
    pub fn ne(&self, other: &Ex) -> Ex {
        self.cmp(CmpOp::Ne, other)
    }

    /// `self` (a bool) chooses between two values.
    pub fn select(&self, yes: &Ex, no: &Ex) -> Ex {
        self.builder().op(ScalarOp::Select, &[self, yes, no])
    }

    /// `self · a + b`, rounded once.
    pub fn fma(&self, a: &Ex, b: &Ex) -> Ex {
        self.builder().op(ScalarOp::Fma, &[self, a, b])
    }

    /// Shifts left by `n` bits.
    pub fn shl(&self, n: &Ex) -> Ex {
        self.binary(ScalarOp::Shl, n)
    }

    /// Shifts right by `n` bits.
    pub fn shr(&self, n: &Ex) -> Ex {
        self.binary(ScalarOp::Shr, n)
    }

    /// Converts to another type, by rules that are the default for narrow ones ([`Ex::convert`]).
    pub fn cast(&self, to: DType) -> Ex {
        let from = self.dtype();
        match from == to {
            true => self.clone(),
            false if from.is_narrow() || to.is_narrow() => self.convert(to, NarrowRounding::default()),
            false => self.unary(ScalarOp::Cast(to)),
        }
    }

    /// Reads the bits as another type of the same size.
    pub fn bitcast(&self, to: DType) -> Ex {
        self.unary(ScalarOp::Bitcast(to))
    }
}

macro_rules! unary_methods {
    ($($method:ident: $op:expr),* $(,)?) => {
        impl Ex {
            $(#[doc = concat!("`", stringify!($op), "` of the value.")]
            pub fn $method(&self) -> Ex {
                self.unary($op)
            })*
        }
    };
}

unary_methods! {
    abs: ScalarOp::Abs, sqrt: ScalarOp::Sqrt, floor: ScalarOp::Floor, ceil: ScalarOp::Ceil,
    trunc: ScalarOp::Trunc, round: ScalarOp::Round,
    exp: ScalarOp::Math(MathFn::Exp), exp2: ScalarOp::Math(MathFn::Exp2), expm1: ScalarOp::Math(MathFn::Expm1),
    log: ScalarOp::Math(MathFn::Log), log2: ScalarOp::Math(MathFn::Log2), log1p: ScalarOp::Math(MathFn::Log1p),
    sin: ScalarOp::Math(MathFn::Sin), cos: ScalarOp::Math(MathFn::Cos), tan: ScalarOp::Math(MathFn::Tan),
    tanh: ScalarOp::Math(MathFn::Tanh), erf: ScalarOp::Math(MathFn::Erf), ndtr: ScalarOp::Math(MathFn::Ndtr),
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:expr;)*) => {
        $(
            impl ops::$trait<&Ex> for &Ex {
                type Output = Ex;
                fn $method(self, other: &Ex) -> Ex {
                    self.binary($op, other)
                }
            }
            impl ops::$trait<Ex> for Ex {
                type Output = Ex;
                fn $method(self, other: Ex) -> Ex {
                    self.binary($op, &other)
                }
            }
            impl ops::$trait<&Ex> for Ex {
                type Output = Ex;
                fn $method(self, other: &Ex) -> Ex {
                    self.binary($op, other)
                }
            }
            impl ops::$trait<Ex> for &Ex {
                type Output = Ex;
                fn $method(self, other: Ex) -> Ex {
                    self.binary($op, &other)
                }
            }
            impl ops::$trait<f64> for Ex {
                type Output = Ex;
                fn $method(self, other: f64) -> Ex {
                    self.binary($op, &self.lit(other))
                }
            }
            impl ops::$trait<Ex> for f64 {
                type Output = Ex;
                fn $method(self, other: Ex) -> Ex {
                    other.lit(self).binary($op, &other)
                }
            }
            impl ops::$trait<&Ex> for f64 {
                type Output = Ex;
                fn $method(self, other: &Ex) -> Ex {
                    other.lit(self).binary($op, other)
                }
            }
            impl ops::$trait<f64> for &Ex {
                type Output = Ex;
                fn $method(self, other: f64) -> Ex {
                    self.binary($op, &self.lit(other))
                }
            }
        )*
    };
}

operators! {
    Add add ScalarOp::Add;
    Sub sub ScalarOp::Sub;
    Mul mul ScalarOp::Mul;
    Div div ScalarOp::Div;
    Rem rem ScalarOp::Rem;
    BitAnd bitand ScalarOp::And;
    BitOr bitor ScalarOp::Or;
    BitXor bitxor ScalarOp::Xor;
}

impl ops::Neg for Ex {
    type Output = Ex;
    fn neg(self) -> Ex {
        self.unary(ScalarOp::Neg)
    }
}

impl ops::Neg for &Ex {
    type Output = Ex;
    fn neg(self) -> Ex {
        self.unary(ScalarOp::Neg)
    }
}

impl ops::Not for Ex {
    type Output = Ex;
    fn not(self) -> Ex {
        self.unary(ScalarOp::Not)
    }
}

impl ops::Not for &Ex {
    type Output = Ex;
    fn not(self) -> Ex {
        self.unary(ScalarOp::Not)
    }
}
