//! [`ScalarFn`]: a hash-consed expression DAG over scalars, with its evaluator.

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::op::{MathFn, ScalarOp};
use super::value::Scalar;

/// Position of a node in [`ScalarFn::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScalarId(pub u32);

/// One node of a scalar expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScalarNode {
    /// The i-th operand.
    Input(u32),
    /// A constant.
    Const(Scalar),
    /// The coordinate of the current element along an axis of the iteration space, as i64.
    Coord(u32),
    /// An operation on earlier nodes.
    Op(ScalarOp, SmallVec<[ScalarId; 3]>),
}

/// A function from scalars to scalars.
///
/// Nodes are in topological order and unique; every one is reachable from an output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScalarFn {
    /// Types of the operands.
    pub inputs: Vec<DType>,
    /// The operations, operands first.
    pub nodes: Vec<ScalarNode>,
    /// Type of each node.
    pub dtypes: Vec<DType>,
    /// The nodes that are results.
    pub outputs: Vec<ScalarId>,
}

/// Bodies for the mathematical functions.
pub trait MathLibrary: Sync {
    /// The f32 expression of `f`, using no [`ScalarOp::Math`] itself.
    fn body(&self, f: MathFn) -> &ScalarFn;

    /// The same with [`ScalarOp::Scale`], for processors that have it, with the same bits.
    fn scaling_body(&self, f: MathFn) -> &ScalarFn {
        self.body(f)
    }

    /// What `op` of operands of type `from` is by operations that every device has, where it is a call of the run-time
    /// library elsewhere.
    fn expansion(&self, _op: ScalarOp, _from: DType) -> Option<&ScalarFn> {
        None
    }

    /// The expression of an operation on `dtype`, if graphs compute it by one.
    fn body_of(&self, op: ScalarOp, dtype: DType) -> Option<&ScalarFn> {
        match (op, dtype) {
            _ if !op.has_body(dtype) => None,
            (ScalarOp::Math(f), DType::F32) => Some(self.body(f)),
            _ => self.expansion(op, dtype),
        }
    }
}

/// The bodies of a library with [`ScalarOp::Scale`].
pub struct Scaling<'a>(pub &'a dyn MathLibrary);

impl MathLibrary for Scaling<'_> {
    fn body(&self, f: MathFn) -> &ScalarFn {
        self.0.scaling_body(f)
    }

    fn expansion(&self, op: ScalarOp, from: DType) -> Option<&ScalarFn> {
        self.0.expansion(op, from)
    }
}

impl ScalarFn {
    /// The function that returns its only operand.
    pub fn identity(dtype: DType) -> ScalarFn {
        ScalarFn {
            inputs: vec![dtype],
            nodes: vec![ScalarNode::Input(0)],
            dtypes: vec![dtype],
            outputs: vec![ScalarId(0)],
        }
    }

    /// Whether the only result is the only operand.
    pub fn is_identity(&self) -> bool {
        self.inputs.len() == 1 && self.outputs.len() == 1 && self.input_of(self.outputs[0]) == Some(0)
    }

    /// The operand that `id` is, if it is one.
    pub fn input_of(&self, id: ScalarId) -> Option<u32> {
        match self.nodes[id.0 as usize] {
            ScalarNode::Input(i) => Some(i),
            _ => None,
        }
    }

    /// The type of a node.
    pub fn dtype(&self, id: ScalarId) -> DType {
        self.dtypes[id.0 as usize]
    }

    /// The types of the results.
    pub fn output_dtypes(&self) -> Vec<DType> {
        self.outputs.iter().map(|&o| self.dtype(o)).collect()
    }

    /// Whether this body of a library function can be applied to strips of f32: it takes one element,
    /// and no value is wider.
    pub fn is_strip(&self) -> bool {
        self.inputs == [DType::F32] && self.dtypes.iter().all(|d| matches!(d, DType::F32 | DType::I32 | DType::Bool))
    }

    /// Whether the value depends on the position of the element.
    pub fn uses_coord(&self) -> bool {
        self.nodes.iter().any(|n| matches!(n, ScalarNode::Coord(_)))
    }

    /// Number of floating-point operations of one evaluation, counting a library call as one.
    pub fn flops(&self) -> u64 {
        let float = |i: &usize| self.dtypes[*i].is_float() && matches!(self.nodes[*i], ScalarNode::Op(..));
        (0..self.nodes.len()).filter(float).count() as u64
    }

    /// The function without the operands it does not use, and the positions of those it does.
    pub fn without_unused(&self) -> (ScalarFn, Vec<usize>) {
        let is_used = |i: &usize| self.nodes.contains(&ScalarNode::Input(*i as u32));
        let used: Vec<usize> = (0..self.inputs.len()).filter(is_used).collect();
        let mut out = self.clone();
        out.inputs = used.iter().map(|i| self.inputs[*i]).collect();
        for node in &mut out.nodes {
            if let ScalarNode::Input(i) = node {
                *i = used.partition_point(|u| *u < *i as usize) as u32;
            }
        }
        (out, used)
    }

    /// Evaluates at one element.
    pub fn eval(&self, inputs: &[Scalar], coords: &[i64]) -> Vec<Scalar> {
        let mut values = Vec::with_capacity(self.nodes.len());
        self.eval_nodes(inputs, coords, &mut values);
        self.outputs.iter().map(|o| values[o.0 as usize]).collect()
    }

    /// Evaluates all nodes at one element. `values` has the value of each afterwards; its memory is used again.
    pub fn eval_nodes(&self, inputs: &[Scalar], coords: &[i64], values: &mut Vec<Scalar>) {
        values.clear();
        for node in &self.nodes {
            let value = match node {
                ScalarNode::Input(i) => inputs[*i as usize],
                ScalarNode::Const(c) => *c,
                ScalarNode::Coord(axis) => Scalar::i64(coords[*axis as usize]),
                ScalarNode::Op(op, args) => {
                    let args: SmallVec<[Scalar; 3]> = args.iter().map(|a| values[a.0 as usize]).collect();
                    op.eval(&args)
                }
            };
            values.push(value);
        }
    }
}
