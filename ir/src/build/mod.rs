//! Building operators into a graph whose types are known: the hand of composite operators.

mod flow;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::extent::Extents;
use crate::graph::{Graph, NodeId, Value};
use crate::infer::{ValueOf, infer_node};
use crate::interrupt::PassLimits;
use crate::op::{OpRef, Registry};
use crate::params::Params;
use crate::prim::{Prim, View};
use crate::scalar::Scalar;
use crate::tensor::TensorData;
use crate::types::DenseType;
use crate::verify::{broadcasts, reads_inside};

pub use flow::{BodyBuilder, Iteration, IterationInputs, LoopOperands, LoopResults};

/// Adds operators to a graph and infers their types at once. Nodes take the name of the operator
/// being expanded.
pub struct Builder<'a> {
    graph: &'a mut Graph,
    registry: &'a Registry,
    name: Arc<str>,
    value_of: &'a ValueOf<'a>,
    limits: PassLimits<'a>,
    added: usize,
}

/// So many nodes are added between questions whether the compilation goes on.
const UNASKED: usize = 1024;

impl<'a> Builder<'a> {
    /// `value_of` supplies the values of static operands (see [`crate::op::OpDef::static_inputs`]).
    pub fn new(graph: &'a mut Graph, registry: &'a Registry, name: Arc<str>, value_of: &'a ValueOf<'a>) -> Builder<'a> {
        Builder { graph, registry, name, value_of, limits: PassLimits::default(), added: 0 }
    }

    /// Adds no more nodes, and takes no longer, than is allowed.
    pub fn within(self, limits: PassLimits<'a>) -> Builder<'a> {
        Builder { limits, ..self }
    }

    /// Whether another node may be added, with results of such types.
    fn admit(&mut self, types: &[DenseType]) -> Result<()> {
        self.added += 1;
        if self.added.is_multiple_of(UNASKED) {
            self.limits.admit(self.graph.node_count(), format_args!("a part of node `{}`", self.name))?;
        }
        match types.iter().find(|ty| !ty.is_addressable()) {
            Some(ty) => Err(self.error(
                DiagnosticCode::Limit,
                format!("an intermediate tensor would be {ty}, which has more bytes than a machine can address"),
            )),
            None => Ok(()),
        }
    }

    /// The operators that may be added.
    pub fn registry(&self) -> &'a Registry {
        self.registry
    }

    /// Any operator, with optional operands, parameters and a number of results.
    pub fn op_multi(
        &mut self,
        op: &str,
        operands: &[Option<Value>],
        params: Params,
        outputs: usize,
    ) -> Result<SmallVec<[Value; 2]>> {
        let Some(def) = self.registry.get(op).cloned() else {
            return Err(Diagnostic::new(DiagnosticCode::UnknownOperator, format!("operator `{op}` is not registered"))
                .at(&self.name));
        };
        self.apply(&def, operands, params, outputs)
    }

    /// As [`Builder::op_multi`], an operator that need not be in the registry.
    pub fn apply(
        &mut self,
        def: &OpRef,
        operands: &[Option<Value>],
        params: Params,
        outputs: usize,
    ) -> Result<SmallVec<[Value; 2]>> {
        let node: NodeId = self.graph.add_op(self.name.clone(), def, operands, params, outputs)?;
        if !def.demands.is_empty() {
            // Composites give others what those demand.
            self.graph.set_unchecked(node);
        }
        infer_node(self.graph, node, self.value_of)?;
        self.admit(&[])?;
        Ok((0..outputs as u16).map(|port| Value { node, port }).collect())
    }

    /// An operator with one result.
    pub fn op(&mut self, op: &str, operands: &[Value], params: Params) -> Result<Value> {
        let operands: SmallVec<[Option<Value>; 4]> = operands.iter().copied().map(Some).collect();
        self.op_multi(op, &operands, params, 1).map(|v| v[0])
    }

    /// An operator with one result and no parameters.
    pub fn call(&mut self, op: &str, operands: &[Value]) -> Result<Value> {
        self.op(op, operands, Params::new())
    }

    /// A primitive, with its result types.
    ///
    /// # Errors
    /// An operand of a map does not broadcast to the result; a view reads outside of its operand; a type is too large.
    pub fn prim(&mut self, prim: Prim, inputs: &[Value], types: &[DenseType]) -> Result<SmallVec<[Value; 2]>> {
        self.admit(types)?;
        if let Some(out) = types.first() {
            for input in inputs {
                let fits = match &prim {
                    Prim::Map(_) => broadcasts(&self.ty(*input)?, out),
                    Prim::View(view) => reads_inside(view, &self.ty(*input)?, out),
                    _ => break,
                };
                fits.map_err(|why| self.error(DiagnosticCode::TypeConflict, why))?;
            }
        }
        let node = self.graph.add_prim(self.name.clone(), prim, inputs, types);
        Ok((0..types.len() as u16).map(|port| Value { node, port }).collect())
    }

    /// The value, if it is a constant or folds to one.
    pub fn known(&self, v: Value) -> Option<TensorData> {
        (self.value_of)(self.graph, v)
    }

    /// Adds a constant.
    pub fn constant(&mut self, data: TensorData) -> Value {
        self.graph.add_const(self.name.clone(), data)
    }

    /// A rank-0 constant.
    pub fn scalar(&mut self, value: Scalar) -> Value {
        self.constant(TensorData::scalar(value))
    }

    /// A one-dimensional i64 constant: axes, shapes.
    pub fn i64s(&mut self, values: &[i64]) -> Value {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ty = DenseType::new(tensorc_abi::DType::I64, [values.len() as u64]);
        let zeros = TensorData::splat(&ty.dims, Scalar::i64(0));
        self.constant(TensorData::new(ty, bytes.into()).unwrap_or(zeros))
    }

    /// A one-dimensional i64 constant of extents.
    pub fn extents(&mut self, values: &Extents) -> Value {
        let ty = DenseType::new(tensorc_abi::DType::I64, [values.len() as u64]);
        match TensorData::of_extents(ty, values.all().collect()) {
            Some(data) => self.constant(data),
            None => self.i64s(&[]),
        }
    }

    /// A tensor of one number throughout.
    pub fn filled(&mut self, ty: &DenseType, value: f64) -> Result<Value> {
        let number = self.scalar(Scalar::from_f64(ty.dtype, value));
        let repeat = View { map: vec![], fill: None };
        Ok(self.prim(Prim::View(repeat.into()), &[number], std::slice::from_ref(ty))?[0])
    }

    /// The type of a value built so far.
    pub fn ty(&self, v: Value) -> Result<DenseType> {
        self.graph.dense(v)
    }

    /// An error at the operator being expanded.
    pub fn error(&self, code: DiagnosticCode, why: impl Into<String>) -> Diagnostic {
        Diagnostic::new(code, why).at(&self.name)
    }
}
