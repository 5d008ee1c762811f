//! Reverse-mode differentiation of graphs whose types are known.
//!
//! Composite operators between what is differentiated and what it is differentiated by expand until each
//! has a derivative: a rule of its own, or one of the primitives. Adjoints then flow from the heads to the
//! operands, in reverse topological order. What is added to the graph are primitives and operators, so
//! that gradients can be differentiated again.

mod active;
mod blocks;
mod contract;
mod emit;
mod flow;
mod found;
mod map;
mod pass;
mod reduce;
mod solve;
mod view;
mod visit;

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_ir::Extent;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::expand::OpFacts;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::op::{Grad, GradCtx, Grain, Registry};
use tensorc_ir::prim::{Gather, Prim};

use crate::insert_checks::add_checks;
use crate::options::Options;
use crate::results::results;
use crate::values::StaticValues;
use active::Active;
pub use found::{expand_found, passed};
pub use pass::Differentiate;
use visit::Visit;

/// Adds to the graph the gradient of `Σ headᵢ · seedᵢ` with respect to each value of `wrt`.
///
/// A head is a value of the graph with its own gradient, of its type. Without one, nothing flows from it
/// but what a loss (see [`tensorc_ir::op::OpDef::is_loss`]) behind it sends of its own accord. A result is
/// `None` where nothing flows to the value, which is then constant to the heads: the gradient is zero.
///
/// Checks of what operators demand of values are added before, because some operators expand here.
///
/// No node is removed, but results of expanded operators are no longer used: outputs, updates and other
/// nodes use what they expanded to.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`], with the operator and the node, where something without a gradient would need one;
/// [`DiagnosticCode::TypeConflict`] if the gradient of a head does not have its type.
pub fn differentiate(
    graph: &mut Graph,
    registry: &Registry,
    heads: &[(Value, Option<Value>)],
    wrt: &[Value],
) -> Result<Vec<Option<Value>>> {
    for (head, seed) in heads {
        let Some(seed) = seed else { continue };
        let (expected, found) = (graph.dense(*head)?, graph.dense(*seed)?);
        if expected != found {
            let why = format!("the gradient of output {} is {found}, expected {expected}", head.port);
            return Err(Diagnostic::new(DiagnosticCode::TypeConflict, why).at(&graph.node(head.node).name));
        }
    }
    add_checks(graph, registry, Options::default().static_bytes)?;
    let ends: Vec<Value> = heads.iter().map(|(v, _)| *v).collect();
    let active = Active::expand(graph, registry, &ends, wrt)?;
    let values = StaticValues::new(registry, Options::default().static_bytes);
    let mut reverse = Reverse { graph, registry, values, active, partials: BTreeMap::new() };
    for (i, (_, seed)) in heads.iter().enumerate() {
        let head = reverse.active.heads[i];
        if let Some(seed) = seed {
            reverse.receive(head, *seed);
        }
    }
    for node in reverse.active.order.clone().into_iter().rev() {
        reverse.visit(node)?;
    }
    let wrt = reverse.active.wrt.clone();
    wrt.into_iter().map(|v| reverse.total(v)).collect()
}

/// The state of the backward sweep.
struct Reverse<'g> {
    graph: &'g mut Graph,
    registry: &'g Registry,
    values: StaticValues<'g>,
    active: Active,
    /// What each value has received so far, in order of arrival.
    partials: BTreeMap<Value, Vec<Value>>,
}

impl Reverse<'_> {
    fn receive(&mut self, to: Value, partial: Value) {
        self.partials.entry(to).or_default().push(partial);
    }

    /// Adds nodes named after the one whose derivative they are.
    fn build<T>(&mut self, name: &Arc<str>, body: impl FnOnce(&mut Builder<'_>) -> Result<T>) -> Result<T> {
        let values = &self.values;
        let value_of = |g: &Graph, v: Value| values.get(g, v);
        let made: Arc<str> = format!("{name}_backward").into();
        // An error is about the node itself.
        body(&mut Builder::new(self.graph, self.registry, made, &value_of))
            .map_err(|d| Diagnostic { node: None, ..d }.at(name))
    }

    /// The sum of what a value received.
    fn total(&mut self, v: Value) -> Result<Option<Value>> {
        let Some(parts) = self.partials.get(&v).cloned() else { return Ok(None) };
        let name = self.graph.node(v.node).name.clone();
        let blocks = blocks::find(self.graph, &parts)?;
        let total = self.build(&name, |b| {
            let parts = blocks::join(b, &blocks, &parts)?;
            emit::sum(b, &parts)
        })?;
        self.partials.insert(v, vec![total]);
        Ok(Some(total))
    }

    /// Sends the adjoints of a node's results on to its operands.
    fn visit(&mut self, node: NodeId) -> Result<()> {
        let results: Vec<Value> = results(self.graph, node).collect();
        let heads = results.iter().map(|v| self.total(*v)).collect::<Result<Vec<_>>>()?;
        let (name, kind) = (self.graph.node(node).name.clone(), self.graph.node(node).kind.clone());
        match kind {
            NodeKind::Op(op) => {
                if heads.iter().all(Option::is_none) && !op.def.ignores_heads(&op.params) {
                    return Ok(());
                }
                self.operator(node, &results, &heads)
            }
            NodeKind::Prim(_) if heads.iter().all(Option::is_none) => Ok(()),
            NodeKind::Prim(Prim::Flow(flow)) => {
                let parts = self.flow(node, &flow, &heads)?;
                let args: Vec<Option<Value>> = self.graph.args(node).into_iter().map(Some).collect();
                self.deliver(&name, &args, parts)
            }
            NodeKind::Prim(prim) => {
                let args = self.graph.args(node).to_vec();
                let wanted: Vec<bool> = args.iter().map(|v| self.active.varies.contains(v)).collect();
                let operator = self.active.origin.get(&node).copied();
                let visit = Visit { args: &args, results: &results, heads: &heads, wanted: &wanted };
                let parts = self.build(&name, |b| primitive(b, &prim, &visit, operator))?;
                self.deliver(&name, &args.into_iter().map(Some).collect::<Vec<_>>(), parts)
            }
            NodeKind::Input | NodeKind::Const(_) => Ok(()),
            NodeKind::Fused(_) => {
                Err(Diagnostic::new(DiagnosticCode::Internal, "clusters are formed after differentiation").at(&name))
            }
        }
    }

    fn operator(&mut self, node: NodeId, results: &[Value], heads: &[Option<Value>]) -> Result<()> {
        let values = &self.values;
        let facts = OpFacts::of(self.graph, node, &|g, v| values.get(g, v), Grain::Coarse)?;
        let unsupported = |why: &str| {
            let why = format!("{} has no gradient: {why}", facts.def.name);
            Err(Diagnostic::new(DiagnosticCode::Unsupported, why).at(&facts.name))
        };
        let rule = match &facts.def.grad {
            Grad::Rule(rule) => rule,
            Grad::Zero => return Ok(()),
            Grad::None(why) => return unsupported(why),
            Grad::Found(_) => return unsupported("its result's shape depends on values; the graph is divided first"),
            Grad::Derived | Grad::Through(_) => return unsupported("it does not expand to anything that has one"),
        };
        let cx = facts.cx();
        let grad = GradCtx { node: &cx, inputs: &facts.operands, outputs: results, heads };
        let parts = self.build(&facts.name, |b| rule(b, &grad))?;
        self.deliver(&facts.name, &facts.operands, parts)
    }

    /// Hands each operand its part.
    fn deliver(&mut self, name: &Arc<str>, operands: &[Option<Value>], parts: Vec<Option<Value>>) -> Result<()> {
        for (operand, part) in operands.iter().zip(parts) {
            let (Some(operand), Some(part)) = (*operand, part) else { continue };
            if !self.active.varies.contains(&operand) {
                continue;
            }
            let (expected, found) = (self.graph.dense(operand)?, self.graph.dense(part)?);
            if expected != found {
                let why = format!("the gradient of an operand of type {expected} is {found}");
                return Err(Diagnostic::new(DiagnosticCode::Internal, why).at(name));
            }
            self.receive(operand, part);
        }
        Ok(())
    }
}

/// The gradient of each operand of a primitive; `None` for zero, or where it is not asked for.
fn primitive(b: &mut Builder<'_>, prim: &Prim, v: &Visit<'_>, operator: Option<&str>) -> Result<Vec<Option<Value>>> {
    match prim {
        Prim::Map(f) => map::gradients(b, f, v),
        Prim::Reduce(r) => reduce::gradients(b, r, v),
        Prim::View(view) => {
            let dims = b.ty(v.args[0])?.dims;
            Ok(vec![Some(view::adjoint(b, view, &dims, v.head()?)?)])
        }
        Prim::Contract(c) => contract::gradients(b, c, v),
        Prim::Gather(g) => Ok(vec![Some(scatter(b, *g, v)?), None]),
        Prim::Concat { axis } => pieces(b, *axis, v),
        Prim::Extern(f) => {
            let why = format!("{} is a closure, which cannot be differentiated", f.operator());
            Err(Diagnostic::new(DiagnosticCode::Unsupported, why))
        }
        Prim::Flow(_) => {
            Err(Diagnostic::new(DiagnosticCode::Internal, "branches and loops are differentiated as such"))
        }
        Prim::Kernel(k) => {
            let operator = operator.map_or(String::new(), |name| format!("{name} has no gradient: "));
            let why = format!("{operator}kernel `{}` is a loop nest of its own, and no rule is given", k.name);
            Err(Diagnostic::new(DiagnosticCode::Unsupported, why))
        }
    }
}

/// Slices that were read at the same index are added up.
fn scatter(b: &mut Builder<'_>, gather: Gather, v: &Visit<'_>) -> Result<Value> {
    let extent = b.ty(v.args[0])?.dims.at(gather.axis);
    emit::gather_adjoint(b, [v.head()?, v.args[1]], gather.axis, extent)
}

/// Each operand of a concatenation gets its piece.
fn pieces(b: &mut Builder<'_>, axis: usize, v: &Visit<'_>) -> Result<Vec<Option<Value>>> {
    let head = v.head()?;
    let mut start = Extent::ZERO;
    let mut parts = vec![];
    for (arg, wanted) in v.args.iter().zip(v.wanted) {
        let extent = b.ty(*arg)?.dims.at(axis);
        parts.push(if *wanted { Some(emit::slice(b, head, axis, start, extent)?) } else { None });
        start = start + extent;
    }
    Ok(parts)
}
