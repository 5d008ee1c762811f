//! Rows of a table that is computed from a narrower constant are gathered first and computed then: a dequantised
//! embedding stays in its bytes, and only the rows that a run reads are widened.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Extents;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Gather, Prim};
use tensorc_ir::scalar::{Ex, ScalarBuilder, ScalarFn};

/// Least size of a table in bytes; a smaller one is computed once.
const MIN_BYTES: u64 = 1 << 20;

/// Most maps between a constant and the gather.
const MAX_MAPS: usize = 8;

/// Moves maps of constants behind the gathers that alone read them. Returns whether there were any.
pub(super) fn sink_maps(graph: &mut Graph) -> Result<bool> {
    let mut changed = false;
    for node in graph.order() {
        if let Some(table) = Table::of(graph, node) {
            table.sink(graph)?;
            changed = true;
        }
    }
    Ok(changed)
}

/// A table, and the gather that reads it.
struct Table {
    gather: Gather,
    node: NodeId,
    /// The maps that compute the table, last first.
    maps: Vec<(NodeId, Arc<ScalarFn>)>,
    ty: DenseType,
}

impl Table {
    fn of(graph: &Graph, node: NodeId) -> Option<Table> {
        let NodeKind::Prim(Prim::Gather(gather)) = graph.node(node).kind else { return None };
        let table = graph.args(node)[0];
        let ty = graph.dense(table).ok().filter(|ty| !ty.dims.is_open() && ty.bytes() >= MIN_BYTES)?;
        let rows = graph.dense(Value { node, port: 0 }).ok()?;
        if !rows.dims.is_open() && rows.len() > ty.len() {
            return None;
        }
        let own = Table { gather, node, maps: vec![], ty };
        own.with_maps(graph, table, rows.rank())
    }

    /// Finds the maps, as far as each is read by the next only; `rank` is that of what is gathered.
    fn with_maps(mut self, graph: &Graph, table: Value, rank: usize) -> Option<Table> {
        let mut next = table;
        while graph.constant(next).is_none() {
            let NodeKind::Prim(Prim::Map(f)) = &graph.node(next.node).kind else { return None };
            let alone = graph.uses(next.node).len() == 1 && !graph.is_root(next.node);
            let plain = f.outputs.len() == 1 && !f.uses_coord() && self.maps.len() < MAX_MAPS;
            if !alone || !plain || graph.dense(next).ok()?.dims != self.ty.dims {
                return None;
            }
            self.maps.push((next.node, f.clone()));
            let mut whole = None;
            for arg in graph.args(next.node) {
                let dims = graph.dense(arg).ok()?.dims;
                let fits = match dims == self.ty.dims {
                    true => whole.replace(arg).is_none(),
                    false => self.repeats(&dims, rank),
                };
                if !fits {
                    return None;
                }
            }
            next = whole?;
        }
        let is_narrow = graph.dense(next).ok()?.bytes() < self.ty.bytes();
        (is_narrow && !self.maps.is_empty()).then_some(self)
    }

    /// Whether an operand of these dimensions broadcasts to gathered rows as it does to the table: it has one element, or no axis up
    /// to the gathered one.
    fn repeats(&self, dims: &Extents, rank: usize) -> bool {
        let one = dims.all().all(|n| n.is_surely(1)) && dims.len() <= rank;
        one || dims.len() < self.ty.rank() - self.gather.axis
    }

    /// Replaces the gather by one of the constant and a map of its result. It is one map, so that no rule computes in another
    /// order what was a constant.
    fn sink(&self, graph: &mut Graph) -> Result<()> {
        let internal = |why: String| Diagnostic::new(DiagnosticCode::Internal, why).at(&graph.node(self.node).name);
        let b = ScalarBuilder::new();
        let mut operands: Vec<Value> = vec![];
        let mut computed: Option<Ex> = None;
        for (node, f) in self.maps.iter().rev() {
            let mut inputs: Vec<Ex> = vec![];
            for (arg, dtype) in graph.args(*node).into_iter().zip(&f.inputs) {
                let whole = graph.dense(arg)?.dims == self.ty.dims;
                inputs.push(match computed.clone().filter(|_| whole) {
                    Some(value) => value,
                    None => {
                        operands.push(arg);
                        b.input(*dtype)
                    }
                });
            }
            computed = b.call(f, &inputs, &[]).into_iter().next();
        }
        let Some(value) = computed else { return Ok(()) };
        let body = b.finish(&[&value]).map_err(internal)?;
        let (rows, indices) = (Value { node: self.node, port: 0 }, graph.args(self.node)[1]);
        let ty = graph.dense(rows)?;
        let mut patch = graph.patch("gather-first");
        let name = patch.graph.node(self.node).name.clone();
        for operand in &mut operands {
            let from = patch.graph.dense(*operand)?;
            if from.dims == self.ty.dims {
                let narrow = DenseType::new(from.dtype, &ty.dims);
                let prim = Prim::Gather(self.gather);
                let node = patch.graph.add_prim(name.clone(), prim, &[*operand, indices], &[narrow]);
                *operand = Value { node, port: 0 };
            }
        }
        let node = patch.graph.add_prim(name, Prim::Map(Arc::new(body)), &operands, &[ty]);
        patch.replace(rows, Value { node, port: 0 });
        patch.commit();
        Ok(())
    }
}
