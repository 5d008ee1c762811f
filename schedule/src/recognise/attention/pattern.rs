//! The softmax of rows in its many written forms: with the maximum subtracted or not, divided by the sum or
//! multiplied by its inverse, in one map or in several, before the product with the values or after it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::linearize;
use tensorc_ir::prim::{Prim, Reduction, View};
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::views::{identity_map, keeps_linear_order, without_unit_vars};
use tensorc_ir::{DType, DenseType, Extent, Extents};

use super::{last, same_last};

/// A softmax of the rows of a value.
#[derive(Clone, Debug)]
pub struct Softmax {
    pub scores: Value,
    pub keys: Extent,
    pub shifted: bool,
    pub empty_is_zero: bool,
    /// The nodes behind the scores that were matched.
    pub members: BTreeSet<NodeId>,
}

/// A scalar computed at every element, or at every row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatternTerm {
    /// A node of the function of a map.
    Scalar(NodeId, ScalarId),
    /// The value of another primitive.
    Leaf(Value),
}

pub struct Matcher<'g> {
    graph: &'g Graph,
    rows: Extent,
    keys: Extent,
    /// Maps, views and reductions on the way.
    passed: RefCell<BTreeSet<NodeId>>,
}

impl<'g> Matcher<'g> {
    /// For scores with so many elements.
    pub fn new(graph: &'g Graph, len: Extent, keys: Extent) -> Option<Matcher<'g>> {
        (keys > 0 && len > 0).then(|| Matcher { graph, rows: len / keys, keys, passed: RefCell::default() })
    }

    /// The softmax that `v` is.
    pub fn softmax(&self, v: Value) -> Option<Softmax> {
        self.passed.take();
        let mut p = self.rounded(self.resolve(v));
        let unguarded = self.without_guard(p);
        let empty_is_zero = unguarded.is_some();
        p = unguarded.unwrap_or(p);
        let (weights, sum) = self.quotient(p)?;
        self.weights(weights, sum, empty_is_zero)
    }

    /// The softmax of which `weights` are the exponentials, where the single reader of their product with the
    /// values divides it, and that reader.
    pub fn divided_later(&self, product: NodeId, weights: Value) -> Option<(Softmax, Option<NodeId>)> {
        self.passed.take();
        let uses = self.graph.uses(product);
        let [(after, ..)] = uses[..] else { return None };
        let (f, args) = self.map(after)?;
        let out = self.graph.dense(Value { node: after, port: 0 }).ok()?;
        let [output] = f.outputs[..] else { return None };
        let ScalarNode::Op(op, ids) = &f.nodes[output.0 as usize] else { return None };
        let argument = |id: ScalarId| f.input_of(id).map(|i| args[i as usize]);
        let (divided, by) = (argument(ids[0])?, argument(*ids.get(1)?)?);
        let (by, sum) = match op {
            ScalarOp::Div if divided.node == product => (by, self.resolve(by)),
            ScalarOp::Mul if divided.node == product => (by, self.inverse(self.resolve(by))?),
            ScalarOp::Mul if by.node == product => (divided, self.inverse(self.resolve(divided))?),
            _ => return None,
        };
        let ty = self.graph.dense(by).ok()?;
        let fits = ty.rank() == out.rank() && ty.dims.count() == self.rows && is_row_of(&ty.dims, &out.dims);
        let same = self.graph.dense(Value { node: product, port: 0 }).ok()?.dims == out.dims;
        let ordered = self.keeps_row_order(product, weights);
        let weights = self.resolve(weights);
        let mut softmax = self.weights(weights, sum, false).filter(|_| fits && same && ordered)?;
        softmax.members.insert(after);
        Some((softmax, Some(after)))
    }

    /// Whether the rows of a product are those of one operand, axis by axis.
    fn keeps_row_order(&self, product: NodeId, weights: Value) -> bool {
        let NodeKind::Prim(Prim::Contract(c)) = &self.graph.node(product).kind else { return false };
        let map = if self.graph.args(product)[0] == weights { &c.lhs } else { &c.rhs };
        let rows = map.split_last().map_or(&map[..], |(_, rows)| rows);
        rows.iter().enumerate().all(|(i, m)| m.as_var() == Some(i as u32)) && c.out_rank == map.len()
    }

    /// Exponentials and their sum.
    fn weights(&self, weights: PatternTerm, sum: PatternTerm, empty_is_zero: bool) -> Option<Softmax> {
        let (of, _) = self.reduction(sum, is_sum)?;
        let (op, x) = self.op(weights).filter(|_| of == weights)?;
        if op != ScalarOp::Math(MathFn::Exp) {
            return None;
        }
        let shifted = match self.op(x[0]) {
            Some((ScalarOp::Sub, args)) => {
                let found = self.reduction(args[1], is_max).filter(|(of, _)| *of == args[0]);
                found.map(|(_, scores)| scores)
            }
            _ => None,
        };
        let scores = match shifted {
            Some(scores) => scores,
            None => self.argument(weights)?,
        };
        let mut members = self.passed.borrow().clone();
        // What computes the scores is no part of the softmax.
        let mut before = vec![scores.node];
        while let Some(node) = before.pop() {
            if members.remove(&node) || node == scores.node {
                before.extend(self.graph.args(node).iter().map(|v| v.node));
            }
        }
        let (keys, shifted) = (self.keys, shifted.is_some());
        Some(Softmax { scores, keys, shifted, empty_is_zero, members })
    }

    /// What a conversion to f16 or bf16 takes.
    fn rounded(&self, p: PatternTerm) -> PatternTerm {
        match self.op(p) {
            Some((ScalarOp::Cast(DType::F16 | DType::BF16), args)) => args[0],
            _ => p,
        }
    }

    /// `x` of a selection that replaces NaN by 0.
    fn without_guard(&self, p: PatternTerm) -> Option<PatternTerm> {
        let (ScalarOp::Select, choice) = self.op(p)? else { return None };
        let [c, a, b] = choice[..] else { return None };
        let (ScalarOp::Cmp(cmp), sides) = self.op(c)? else { return None };
        let [x, y] = sides[..] else { return None };
        let (x, replaced) = match cmp {
            CmpOp::Ne if x == y && b == x => (x, a),
            CmpOp::Eq if x == y && a == x => (x, b),
            _ => return None,
        };
        (self.constant(replaced) == Some(0.0)).then_some(x)
    }

    fn quotient(&self, p: PatternTerm) -> Option<(PatternTerm, PatternTerm)> {
        let (op, args) = self.op(p)?;
        match (op, &args[..]) {
            (ScalarOp::Div, [e, s]) => Some((*e, *s)),
            (ScalarOp::Mul, [a, b]) => {
                let right = self.inverse(*b).map(|s| (*a, s));
                right.or_else(|| self.inverse(*a).map(|s| (*b, s)))
            }
            _ => None,
        }
    }

    fn inverse(&self, t: PatternTerm) -> Option<PatternTerm> {
        let (op, args) = self.op(t)?;
        (op == ScalarOp::Div && self.constant(args[0]) == Some(1.0)).then(|| args[1])
    }

    /// What a fold over rows takes, as a term and as a value.
    fn reduction(&self, t: PatternTerm, is: fn(&Reduction) -> bool) -> Option<(PatternTerm, Value)> {
        let PatternTerm::Leaf(v) = t else { return None };
        let NodeKind::Prim(Prim::Reduce(r)) = &self.graph.node(v.node).kind else { return None };
        let args = self.graph.args(v.node);
        let [arg] = args[..] else { return None };
        let dims = self.graph.dense(arg).ok()?.dims;
        let over_rows = r.axes == [dims.len() - 1] && self.has_keys(&dims);
        let plain = r.map.is_identity() && r.finish.is_identity();
        let rows = dims.count() == self.rows * self.keys;
        self.passed.borrow_mut().insert(v.node);
        (over_rows && plain && rows && is(r)).then(|| (self.resolve(arg), arg))
    }

    /// Whether the last axis is that of the keys.
    fn has_keys(&self, dims: &Extents) -> bool {
        last(dims).is_some_and(|n| n == self.keys)
    }

    fn map(&self, node: NodeId) -> Option<(&'g ScalarFn, Vec<Value>)> {
        match &self.graph.node(node).kind {
            NodeKind::Prim(Prim::Map(f)) => Some((f, self.graph.args(node).to_vec())),
            _ => None,
        }
    }

    fn resolve(&self, v: Value) -> PatternTerm {
        match &self.graph.node(v.node).kind {
            NodeKind::Prim(Prim::Map(f)) => {
                self.passed.borrow_mut().insert(v.node);
                self.scalar(v.node, f.outputs[v.port as usize])
            }
            NodeKind::Prim(Prim::View(view)) if self.keeps_rows(view, v) => {
                self.passed.borrow_mut().insert(v.node);
                self.resolve(self.graph.args(v.node)[0])
            }
            _ => PatternTerm::Leaf(v),
        }
    }

    /// The scalar, or what it is outside its map.
    fn scalar(&self, node: NodeId, id: ScalarId) -> PatternTerm {
        let inside = PatternTerm::Scalar(node, id);
        let Some((f, args)) = self.map(node) else { return inside };
        let Some(arg) = f.input_of(id).map(|i| args[i as usize]) else { return inside };
        let dims = |v: Value| self.graph.dense(v).map_or(Extents::default(), |ty| ty.dims);
        let (of, out) = (dims(arg), dims(Value { node, port: 0 }));
        match of == out || is_row_of(&of, &out) {
            true => self.resolve(arg),
            false if self.graph.constant(arg).is_some() => PatternTerm::Leaf(arg),
            false => inside,
        }
    }

    /// An operation and its operands.
    fn op(&self, t: PatternTerm) -> Option<(ScalarOp, Vec<PatternTerm>)> {
        let PatternTerm::Scalar(node, id) = t else { return None };
        match &self.map(node)?.0.nodes[id.0 as usize] {
            ScalarNode::Op(op, ids) => Some((*op, ids.iter().map(|i| self.scalar(node, *i)).collect())),
            _ => None,
        }
    }

    /// Whether rows of the view's result are rows of its operand, or values of rows stay such.
    fn keeps_rows(&self, view: &View, v: Value) -> bool {
        let (Ok(input), Ok(out)) = (self.graph.dense(self.graph.args(v.node)[0]), self.graph.dense(v)) else {
            return false;
        };
        if keeps_linear_order(view, &input, &out.dims) {
            return out.dims.count() == self.rows || same_last(&input.dims, &out.dims);
        }
        self.has_keys(&out.dims) && input.dims.count() == self.rows && repeats_rows(view, &input, &out)
    }

    fn constant(&self, t: PatternTerm) -> Option<f64> {
        match t {
            PatternTerm::Scalar(node, id) => match self.map(node)?.0.nodes[id.0 as usize] {
                ScalarNode::Const(c) => Some(c.as_f64()),
                _ => None,
            },
            PatternTerm::Leaf(v) => self.graph.constant(v)?.item().map(|c| c.as_f64()),
        }
    }

    /// The value that the argument of an operation in a map is.
    fn argument(&self, t: PatternTerm) -> Option<Value> {
        let PatternTerm::Scalar(node, id) = t else { return None };
        let (f, args) = self.map(node)?;
        let ScalarNode::Op(_, ids) = &f.nodes[id.0 as usize] else { return None };
        let arg = args[f.input_of(*ids.first()?)? as usize];
        let dims = self.graph.dense(arg).ok()?.dims;
        (self.has_keys(&dims) && dims.count() == self.rows * self.keys).then_some(arg)
    }
}

/// Whether a value of shape `row` broadcasts along the last axis of `full` alone.
fn is_row_of(row: &Extents, full: &Extents) -> bool {
    let Some(lead) = full.len().checked_sub(row.len()) else { return false };
    let Some(inner) = row.len().checked_sub(1) else { return false };
    row.at(inner) == 1 && full.all().take(lead).all(|n| n == 1) && row.range(..inner) == full.range(lead..lead + inner)
}

/// Whether the view repeats each element of its operand along its last axis.
fn repeats_rows(view: &View, input: &DenseType, out: &DenseType) -> bool {
    let Some(keys) = last(&out.dims) else { return false };
    let map: Vec<_> = view.map.iter().map(|m| without_unit_vars(m, &out.dims)).collect();
    let at: Vec<_> = identity_map(out.rank()).iter().map(|m| without_unit_vars(m, &out.dims)).collect();
    let row = linearize(&at, &out.dims).floor_div(keys, &out.dims);
    view.fill.is_none() && linearize(&map, &input.dims).recombine(&out.dims) == row
}

fn is_sum(r: &Reduction) -> bool {
    let [output] = r.combine.outputs[..] else { return false };
    let both = |a: ScalarId, b: ScalarId| r.combine.input_of(a).is_some() && r.combine.input_of(b).is_some() && a != b;
    let adds =
        matches!(&r.combine.nodes[output.0 as usize], ScalarNode::Op(ScalarOp::Add, args) if both(args[0], args[1]));
    adds && r.init.iter().all(|i| i.as_f64() == 0.0)
}

/// Functions of comparisons and selections alone are judged by what they do to a few pairs.
fn is_max(r: &Reduction) -> bool {
    let f = &r.combine;
    let ordering = |n: &ScalarNode| match n {
        ScalarNode::Input(_) => true,
        ScalarNode::Op(op, _) => matches!(op, ScalarOp::Max | ScalarOp::Cmp(_) | ScalarOp::Select),
        _ => false,
    };
    let low = r.init.first().is_some_and(|i| i.as_f64() <= f64::from(f32::MIN));
    let larger = |a: f32, b: f32| f.eval(&[Scalar::f32(a), Scalar::f32(b)], &[])[0].as_f32() == a.max(b);
    low && f.inputs.len() == 2
        && f.outputs.len() == 1
        && f.nodes.iter().all(ordering)
        && [(1.0, 2.0), (2.0, 1.0), (-3.0, -1.0), (-1.0, -3.0), (-3.0, 2.0), (f32::NEG_INFINITY, -1.0)]
            .into_iter()
            .all(|(a, b)| larger(a, b))
}
