//! Loops and branches built by composite operators, with their bodies.

use super::Builder;
use crate::diag::{DiagnosticCode, Result};
use crate::extent::Extent;
use crate::flow::{Flow, FlowKind, Loop, is_short};
use crate::graph::{Graph, Value};
use crate::op::Registry;
use crate::prim::{Prim, View};
use crate::types::{DenseType, TensorType};

/// The body of a branch or loop under construction.
pub struct BodyBuilder<'r> {
    /// The body as far as it is built.
    pub graph: Graph,
    registry: &'r Registry,
}

impl<'r> BodyBuilder<'r> {
    /// A body without nodes, of what another builder adds.
    pub fn new(b: &Builder<'r>, name: &str) -> BodyBuilder<'r> {
        BodyBuilder { graph: Graph::new(name), registry: b.registry() }
    }

    /// Adds an input.
    pub fn input(&mut self, ty: &DenseType) -> Value {
        self.graph.add_input("operand", TensorType::from(ty.clone()))
    }

    /// Adds nodes.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn build<T>(&mut self, body: impl FnOnce(&mut Builder<'_>) -> Result<T>) -> Result<T> {
        let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
        body(&mut Builder::new(&mut self.graph, self.registry, "body".into(), &value_of))
    }
}

/// Operands of a loop over rows.
#[derive(Clone, Copy, Debug)]
pub struct LoopOperands<'a> {
    /// Number of iterations.
    pub trips: Extent,
    /// What is carried from one iteration to the next, as it is before the first.
    pub carried: &'a [Value],
    /// Tensors of which each iteration reads a row of the first axis.
    pub scanned: &'a [Value],
    /// What every iteration reads.
    pub fixed: &'a [Value],
}

/// What one iteration is given.
#[derive(Clone, Debug)]
pub struct IterationInputs {
    /// What is carried.
    pub carried: Vec<Value>,
    /// A row of each scanned tensor.
    pub rows: Vec<Value>,
    /// What every iteration reads.
    pub fixed: Vec<Value>,
}

/// What one iteration gives, or all of them: then rows lie along a first axis.
#[derive(Clone, Debug)]
pub struct LoopResults {
    /// What is carried on.
    pub carried: Vec<Value>,
    /// Rows of what is stacked.
    pub stacked: Vec<Value>,
}

/// One iteration.
pub type Iteration<'a> = dyn Fn(&mut Builder<'_>, &IterationInputs) -> Result<LoopResults> + 'a;

impl Builder<'_> {
    /// Repeats an iteration: as a loop, or as copies of it if they are few and their number is known.
    ///
    /// # Errors
    /// Those of `iteration`; what is carried changes its type.
    pub fn repeat(&mut self, operands: LoopOperands<'_>, iteration: &Iteration<'_>) -> Result<LoopResults> {
        let types = |b: &Self, all: &[Value]| all.iter().map(|v| b.ty(*v)).collect::<Result<Vec<_>>>();
        let LoopOperands { trips, carried, scanned, fixed } = operands;
        let mut body = BodyBuilder::new(self, "body");
        body.input(&DenseType::new(tensorc_abi::DType::I64, []));
        let carried_types = types(self, carried)?;
        let mut all = |types: Vec<DenseType>| types.iter().map(|ty| body.input(ty)).collect::<Vec<_>>();
        let rows = types(self, scanned)?.into_iter().map(|ty| DenseType { dims: ty.dims.range(1..), ..ty }).collect();
        let inputs =
            IterationInputs { carried: all(carried_types.clone()), rows: all(rows), fixed: all(types(self, fixed)?) };
        let LoopResults { carried: next, stacked } = body.build(|b| iteration(b, &inputs))?;
        if let Some(n) = trips.known()
            && is_short(n.max(0) as u64, body.graph.node_count() as u64)
        {
            return self.copies(n, operands, iteration, stacked.len());
        }
        for ((before, after), expected) in inputs.carried.iter().zip(&next).zip(&carried_types) {
            let found = body.graph.dense(*after)?;
            if found != *expected {
                let why = format!("a loop variable of type {expected} becomes {found}");
                return Err(self.error(DiagnosticCode::TypeConflict, why));
            }
            body.graph.add_update(before.node, *after);
        }
        let mut results = carried_types;
        for row in &stacked {
            results.push(body.graph.dense(*row)?.stacked(trips));
            body.graph.add_output("row", *row);
        }
        let kind = FlowKind::Loop(Loop {
            trips: Some(trips),
            conditional: false,
            carried: carried.len(),
            scanned: vec![false; scanned.len()],
            stacked: vec![false; stacked.len()],
        });
        let flow = Flow { kind, bodies: vec![body.graph], by_host: false };
        let mut made = self.prim(Prim::Flow(flow.into()), &[carried, scanned, fixed].concat(), &results)?.to_vec();
        let stacked = made.split_off(carried.len());
        Ok(LoopResults { carried: made, stacked })
    }

    /// As many copies of an iteration as there are iterations.
    fn copies(
        &mut self,
        trips: i64,
        operands: LoopOperands<'_>,
        iteration: &Iteration<'_>,
        stacked: usize,
    ) -> Result<LoopResults> {
        let mut carried = operands.carried.to_vec();
        let mut rows: Vec<Vec<Value>> = vec![vec![]; stacked];
        for i in 0..trips {
            let row = |v: &Value| self.row(*v, i as u64);
            let given = operands.scanned.iter().map(row).collect::<Result<_>>()?;
            let inputs = IterationInputs { carried, rows: given, fixed: operands.fixed.to_vec() };
            let made = iteration(self, &inputs)?;
            carried = made.carried;
            for (rows, row) in rows.iter_mut().zip(made.stacked) {
                rows.push(self.lifted(row)?);
            }
        }
        let stacked = rows.into_iter().map(|rows| self.joined(&rows)).collect::<Result<_>>()?;
        Ok(LoopResults { carried, stacked })
    }

    /// A row of the first axis, without it.
    fn row(&mut self, v: Value, at: u64) -> Result<Value> {
        let mut ty = self.ty(v)?;
        ty.dims = ty.dims.range(1..);
        Ok(self.prim(Prim::View(View::row(at, ty.rank()).into()), &[v], &[ty])?[0])
    }

    /// With a first axis of extent 1.
    fn lifted(&mut self, v: Value) -> Result<Value> {
        let ty = self.ty(v)?;
        Ok(self.prim(Prim::View(View::unsqueezed(ty.rank()).into()), &[v], &[ty.stacked(1)])?[0])
    }

    /// Rows of one type along the first axis.
    fn joined(&mut self, rows: &[Value]) -> Result<Value> {
        let Some(first) = rows.first() else {
            return Err(self.error(DiagnosticCode::Unsupported, "there is no iteration"));
        };
        if rows.len() == 1 {
            return Ok(*first);
        }
        let mut ty = self.ty(*first)?;
        ty.dims.set(0, rows.len() as u64);
        Ok(self.prim(Prim::Concat { axis: 0 }, rows, &[ty])?[0])
    }
}
