//! Concatenations: operands that are not computed in their place are copied there.

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::{DenseType, Extent};

use super::Lowering;
use super::place::{StridedView, all_aligned, operands};
use crate::kernel::Computes;
use crate::layout::Layouts;

impl Lowering<'_, '_> {
    /// A cluster that writes all of a concatenation, each element from the operand that has it, and its layouts.
    fn joined(&self, node: NodeId, axis: usize) -> Result<(Graph, Layouts)> {
        let out = self.graph.dense(Value { node, port: 0 })?;
        let args = self.graph.args(node);
        let mut body = Graph::new("");
        let (mut first, mut ends, mut views) = (Extent::ZERO, vec![], vec![]);
        for v in &args {
            let ty = self.graph.dense(*v)?;
            let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
            map[axis] = map[axis].offset(-first);
            first = first + ty.dims.at(axis);
            ends.push(first);
            let input = body.add_input("in", ty.clone().into());
            let view = View { map, fill: Some(Scalar::zero(ty.dtype)) };
            let at = DenseType::new(ty.dtype, &out.dims);
            let view = body.add_prim("part", Prim::View(view.into()), &[input], &[at]);
            views.push(Value { node: view, port: 0 });
        }
        let choose = match ends.iter().map(|end| end.known()).collect::<Option<Vec<i64>>>() {
            Some(ends) => ScalarFn::build(&vec![out.dtype; args.len()], |b, parts| {
                let at = b.coord(axis);
                let last = parts[parts.len() - 1].clone();
                let earlier = parts.iter().zip(&ends).rev().skip(1);
                vec![earlier.fold(last, |rest, (part, end)| at.lt(&at.lit(*end as f64)).select(part, &rest))]
            }),
            None => {
                let covers = self.covers(&mut body, node, axis)?;
                let types = [vec![out.dtype; args.len()], vec![DType::Bool; covers.len()]].concat();
                views.extend(covers);
                ScalarFn::build(&types, |_, all| {
                    let (parts, covers) = all.split_at(args.len());
                    let last = parts[parts.len() - 1].clone();
                    let earlier = parts.iter().zip(covers).rev();
                    vec![earlier.fold(last, |rest, (part, covers)| covers.select(part, &rest))]
                })
            }
        };
        let choose = choose.map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))?;
        let result = body.add_prim("joined", Prim::Map(choose.into()), &views, std::slice::from_ref(&out));
        body.add_output("out", Value { node: result, port: 0 });
        let mut layouts =
            Layouts { inputs: vec![], outputs: vec![self.places.runs(self.graph, Value { node, port: 0 })?] };
        for v in args {
            layouts.inputs.push(self.places.runs(self.graph, v)?);
        }
        Ok((body, layouts))
    }

    /// For every operand of a concatenation but the last, which is an input of `body` in its order, whether it has the element of the
    /// result.
    fn covers(&self, body: &mut Graph, node: NodeId, axis: usize) -> Result<Vec<Value>> {
        let out = self.graph.dense(Value { node, port: 0 })?;
        let (args, inputs) = (self.graph.args(node), body.inputs().to_vec());
        let (mut first, mut covers) = (Extent::ZERO, vec![]);
        for (v, input) in args.iter().zip(inputs).take(args.len().saturating_sub(1)) {
            let ty = self.graph.dense(*v)?;
            let always = ScalarFn::build(&[ty.dtype], |b, _| vec![b.constant(Scalar::bool(true))]);
            let always = always.map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))?;
            let dense = DenseType::new(DType::Bool, &ty.dims);
            let input = Value { node: input, port: 0 };
            let always = body.add_prim("always", Prim::Map(always.into()), &[input], std::slice::from_ref(&dense));
            let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
            map[axis] = map[axis].offset(-first);
            first = first + ty.dims.at(axis);
            let view = View { map, fill: Some(Scalar::bool(false)) };
            let at = DenseType::new(DType::Bool, &out.dims);
            let always = Value { node: always, port: 0 };
            covers.push(Value { node: body.add_prim("covers", Prim::View(view.into()), &[always], &[at]), port: 0 });
        }
        Ok(covers)
    }

    /// One strided copy for every operand that was not computed in its place.
    pub(super) fn concat(&mut self, node: NodeId, axis: usize) -> Result<()> {
        let graph = self.graph;
        let result = Value { node, port: 0 };
        let (id, out) = (self.result(result)?, graph.dense(result)?);
        if self.target.is_gpu() && !all_aligned(graph, node, axis)? {
            self.values.insert(result, id);
            let sources = self.operands(node)?;
            let (body, layouts) = self.joined(node, axis)?;
            return self.launch_map(node, body, layouts, [&sources, &[id]], Extent::ZERO);
        }
        for (v, (offset, runs)) in graph.args(node).into_iter().zip(operands(graph, node, axis)?) {
            let ty = graph.dense(v)?;
            let len = ty.dims.count();
            // It may lie in a larger one itself.
            let to = match self.places.of(result) {
                None => Some(StridedView { whole: result, offset, runs }),
                Some(place) => place.within(out.dims.count(), (offset, runs), len),
            };
            let refused = || Diagnostic::new(DiagnosticCode::Internal, "an operand of a concatenation has no place");
            let to = to.ok_or_else(refused)?;
            let in_place = self.places.of(v).is_some_and(|p| p.whole == to.whole && p.offset == to.offset);
            if ty.is_empty() || in_place {
                continue;
            }
            if self.places.kept.contains(v) {
                let part = self.part(&graph.node(v.node).name, &ty, to)?;
                self.plan().kept.push(part);
                continue;
            }
            let from = self.operand(v)?;
            let name = &graph.node(node).name;
            let (here, there) = (self.places.runs(graph, v)?, to.apart(len));
            let run = here.or(there).map_or(len, |runs| runs.run);
            let strides = [here, there].map(|runs| runs.map_or(run, |runs| runs.stride));
            let layouts = Layouts { inputs: vec![here], outputs: vec![there] };
            let to = self.part(name, &ty, to)?;
            if self.target.is_gpu() {
                self.launch_map(node, identity(&ty)?, layouts, [&[from], &[to]], Extent::ZERO)?;
                continue;
            }
            let computes = Computes::Copy { dtype: out.dtype, outer: len / run, run, strides };
            let spec = self.spec(name, node, computes, layouts);
            self.launch(node, spec, &[from], &[to], Extent::ZERO);
        }
        self.values.insert(result, id);
        Ok(())
    }
}

/// A cluster that copies a tensor to where it belongs.
fn identity(ty: &DenseType) -> Result<Graph> {
    let identity = ScalarFn::build(&[ty.dtype], |_, args| args.to_vec());
    let identity = identity.map_err(|why| Diagnostic::new(DiagnosticCode::Internal, why))?;
    let mut body = Graph::new("");
    let input = body.add_input("in", ty.clone().into());
    let result = body.add_prim("copy", Prim::Map(identity.into()), &[input], std::slice::from_ref(ty));
    body.add_output("out", Value { node: result, port: 0 });
    Ok(body)
}
