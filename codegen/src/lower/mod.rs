//! Lowering: every cluster of a fused graph becomes a kernel launch or a library call.

mod deliver;
mod order;

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::{
    Arg, Buffer, BufferId, ConvLayout, ConvPass, DType, Epilogue, ExternFn, Home, KernelId, MatrixLayout, Packing,
    Plan, Step, StepOp, Weight,
};
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Fused, FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::kir::Kernel;
use tensorc_ir::lowered::{InPlace, Lowered};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::MathLibrary;
use tensorc_ir::views::keeps_linear_order;
use tensorc_ir::{DenseType, TensorData};

use crate::emit::{self, Emitted, Library, emit_concat_part, emit_epilogue, library_form};

/// Lowers a graph of clusters, concatenations, kernels, views, constants and inputs.
pub fn lower(graph: &Graph, math: &dyn MathLibrary) -> Result<Lowered> {
    let mut lowering =
        Lowering { graph, math, out: Lowered::default(), values: BTreeMap::new(), constants: BTreeMap::new() };
    lowering.out.plan.name = graph.name.clone();
    let states: BTreeSet<NodeId> = graph.updates().iter().map(|(of, _)| *of).collect();
    for &node in graph.inputs() {
        let v = Value { node, port: 0 };
        let is_state = states.contains(&node);
        let plan = &lowering.out.plan;
        let home = match is_state {
            true => Home::State(plan.states.len() as u32),
            false => Home::Input(plan.inputs.len() as u32),
        };
        let id = lowering.buffer(&graph.node(node).name, &graph.dense(v)?, home);
        lowering.values.insert(v, id);
        let plan = lowering.plan();
        if is_state { &mut plan.states } else { &mut plan.inputs }.push(id);
    }
    let first = graph.first_phase();
    let mut boundary = first.is_some().then_some(0);
    for node in graph.order() {
        lowering.node(node).map_err(|d| d.at(&graph.node(node).name))?;
        if first.as_ref().is_some_and(|first| first.contains(&node)) {
            boundary = Some(lowering.out.plan.steps.len());
        }
    }
    lowering.schedule(boundary)?;
    Ok(lowering.out)
}

struct Lowering<'a> {
    graph: &'a Graph,
    math: &'a dyn MathLibrary,
    out: Lowered,
    values: BTreeMap<Value, BufferId>,
    /// Buffers of constants by node and the form they are stored in.
    constants: BTreeMap<(NodeId, Packing), BufferId>,
}

impl Lowering<'_> {
    fn plan(&mut self) -> &mut Plan {
        &mut self.out.plan
    }

    fn buffer(&mut self, name: &str, ty: &DenseType, home: Home) -> BufferId {
        let buffer = Buffer { name: name.to_owned(), dtype: ty.dtype, dims: ty.dims.clone(), home };
        self.plan().buffers.push(buffer);
        BufferId(self.plan().buffers.len() as u32 - 1)
    }

    /// The buffer of a value that exists already; constants get theirs at the first use.
    fn operand(&mut self, v: Value) -> Result<BufferId> {
        if let NodeKind::Const(data) = &self.graph.node(v.node).kind {
            return Ok(self.weight(v.node, data, Packing::Plain, &data.ty));
        }
        let found = self.values.get(&v).copied();
        found.ok_or_else(|| {
            Diagnostic::new(Code::Internal, "an operand was not lowered").at(&self.graph.node(v.node).name)
        })
    }

    fn weight(&mut self, node: NodeId, data: &TensorData, packing: Packing, ty: &DenseType) -> BufferId {
        let key = (node, packing);
        if let Some(id) = self.constants.get(&key) {
            return *id;
        }
        let same = |(n, _): &&(NodeId, Packing)| *n == node;
        let table = match self.constants.keys().find(same).and_then(|k| self.constants.get(k)) {
            Some(other) => match self.out.plan.buffer(*other).home {
                Home::Weight(w) => self.out.plan.weights[w as usize].constant,
                _ => 0,
            },
            None => {
                self.out.constants.push(data.clone());
                self.out.constants.len() as u32 - 1
            }
        };
        let name = self.graph.node(node).name.to_string();
        let home = Home::Weight(self.out.plan.weights.len() as u32);
        self.plan().weights.push(Weight { name: name.clone(), constant: table, packing });
        let id = self.buffer(&name, ty, home);
        self.constants.insert(key, id);
        id
    }

    /// A new intermediate for every output of a node.
    fn results(&mut self, node: NodeId) -> Result<Vec<BufferId>> {
        let graph = self.graph;
        let n = graph.node(node);
        (0..n.types.len() as u16)
            .map(|port| {
                let v = Value { node, port };
                let id = self.buffer(&n.name, &graph.dense(v)?, Home::Arena(0));
                self.values.insert(v, id);
                Ok(id)
            })
            .collect()
    }

    fn node(&mut self, node: NodeId) -> Result<()> {
        let graph = self.graph;
        match &graph.node(node).kind {
            NodeKind::Input | NodeKind::Const(_) => Ok(()),
            NodeKind::Fused(f) => self.fused(node, f),
            NodeKind::Prim(Prim::View(view)) => self.view(node, view),
            NodeKind::Prim(Prim::Concat { axis }) => self.concat(node, *axis),
            NodeKind::Prim(Prim::Kernel(kernel)) => {
                let inputs = self.operands(node)?;
                let outputs = self.results(node)?;
                self.launch(node, (**kernel).clone(), &inputs, &outputs, 0);
                Ok(())
            }
            NodeKind::Prim(Prim::Extern(function)) => self.external(node, function),
            NodeKind::Prim(_) => Err(Diagnostic::new(Code::Internal, "a primitive outside a cluster reached lowering")),
            NodeKind::Op(op) => Err(Diagnostic::new(
                Code::Unsupported,
                format!("operator `{}` reached lowering undecomposed", op.def.name),
            )),
        }
    }

    /// Called even if there is nothing to write: it may do more than compute.
    fn external(&mut self, node: NodeId, function: &ExternFn) -> Result<()> {
        let inputs = self.operands(node)?;
        let mut outputs = self.results(node)?;
        if function.scratch_bytes() > 0 {
            let ty = DenseType::new(DType::U8, &[function.scratch_bytes()]);
            outputs.push(self.buffer(&format!("{} scratch", self.graph.node(node).name), &ty, Home::Arena(0)));
        }
        let read = inputs.into_iter().map(|buffer| Arg { buffer, writes: false });
        let write = outputs.into_iter().map(|buffer| Arg { buffer, writes: true });
        let args = read.chain(write).collect();
        let position = self.out.externs.len() as u32;
        self.out.externs.push(function.clone());
        let operator = function.operator().to_owned();
        self.step(node, StepOp::Extern { operator, function: position, args }, 0);
        Ok(())
    }

    fn operands(&mut self, node: NodeId) -> Result<Vec<BufferId>> {
        self.graph.args(node).into_iter().map(|v| self.operand(v)).collect()
    }

    /// A view that keeps the linear order is another name for its operand's memory.
    fn view(&mut self, node: NodeId, view: &View) -> Result<()> {
        let graph = self.graph;
        let (arg, v) = (graph.args(node)[0], Value { node, port: 0 });
        if keeps_linear_order(view, &graph.dense(arg)?, &graph.dense(v)?.dims) {
            let id = self.operand(arg)?;
            self.values.insert(v, id);
            return Ok(());
        }
        let mut body = Graph::new("");
        let input = body.add_input("in", graph.dense(arg)?.into());
        let result = body.add_prim("view", Prim::View(view.clone().into()), &[input], &[graph.dense(v)?]);
        body.add_output("out", Value { node: result, port: 0 });
        self.fused(node, &Fused { class: FusionClass::Map, body: Box::new(body) })
    }

    fn fused(&mut self, node: NodeId, fused: &Fused) -> Result<()> {
        let types = (0..self.graph.node(node).types.len() as u16).map(|port| self.graph.dense(Value { node, port }));
        if types.collect::<Result<Vec<_>>>()?.iter().all(DenseType::is_empty) {
            self.results(node)?;
            return Ok(());
        }
        let flops = flops(&fused.body)?;
        if fused.class == FusionClass::Contract
            && let Some(library) = library_form(&fused.body)?
            && self.packs(node, &library)
        {
            return self.library(node, fused, library, flops);
        }
        let Emitted { kernel, in_place } =
            emit::emit(fused.class, &fused.body, &self.graph.node(node).name, self.math)?;
        let operands = self.operands(node)?;
        let results = self.results(node)?;
        let step = self.out.plan.steps.len();
        if self.launch(node, kernel, &operands, &results, flops) {
            // Memory that is read twice may be read elsewhere than where it is written.
            let once = |i: &usize| operands.iter().filter(|id| **id == operands[*i]).count() == 1;
            let pairs = in_place.into_iter().filter(|(i, _)| once(i)).map(|(i, o)| InPlace {
                step,
                input: operands[i],
                output: results[o],
            });
            self.out.in_place.extend(pairs);
        }
        Ok(())
    }

    fn add_kernel(&mut self, kernel: Kernel) -> KernelId {
        self.plan().kernels.push(kernel.name.clone());
        self.out.kernels.push(kernel);
        KernelId(self.out.kernels.len() as u32 - 1)
    }

    /// Adds a launch, unless there is nothing to write.
    fn launch(&mut self, node: NodeId, kernel: Kernel, inputs: &[BufferId], outputs: &[BufferId], flops: u64) -> bool {
        let extent = kernel.parallel_extent();
        if extent == 0 || outputs.iter().all(|o| self.out.plan.buffer(*o).is_empty()) {
            return false;
        }
        let read = inputs.iter().map(|b| Arg { buffer: *b, writes: false });
        let write = outputs.iter().map(|b| Arg { buffer: *b, writes: true });
        let args: Vec<Arg> = read.chain(write).collect();
        let kernel = self.add_kernel(kernel);
        self.step(node, StepOp::Launch { kernel, args, extent }, flops);
        true
    }

    fn step(&mut self, node: NodeId, op: StepOp, flops: u64) {
        let step = self.make_step(node, op, flops);
        self.plan().steps.push(step);
    }

    fn make_step(&self, node: NodeId, op: StepOp, flops: u64) -> Step {
        let mut args: Vec<BufferId> = op.args().iter().map(|a| a.buffer).collect();
        args.sort();
        args.dedup();
        let bytes = args.iter().map(|b| self.out.plan.buffer(*b).bytes()).sum();
        let name = self.graph.node(node).name.to_string();
        Step { name, op, flops, bytes }
    }

    /// Whether a call finds its filters as it needs them: those of blocked channels must be packed.
    fn packs(&self, node: NodeId, library: &Library) -> bool {
        match library {
            Library::Conv { conv, b, .. } if conv.layout != ConvLayout::Planar => {
                self.graph.constant(self.graph.args(node)[*b]).is_some()
            }
            _ => true,
        }
    }

    fn library(&mut self, node: NodeId, fused: &Fused, library: Library, flops: u64) -> Result<()> {
        let graph = self.graph;
        let inputs = graph.args(node);
        let name = graph.node(node).name.clone();
        let epilogue = emit_epilogue(&fused.body, &library, &name, self.math)?;
        let constant = |i: usize| graph.constant(inputs[i]);
        let step: Box<dyn FnOnce(BufferId, Option<Epilogue>) -> StepOp> = match library {
            Library::Conv { conv: mut call, a, b } => {
                let b = match constant(b) {
                    Some(data) if call.pass == ConvPass::Forward => {
                        call.pass = ConvPass::Packed;
                        self.weight(inputs[b].node, data, Packing::Conv(call), &data.ty)
                    }
                    _ => self.operand(inputs[b])?,
                };
                let a = self.operand(inputs[a])?;
                Box::new(move |c, epilogue| StepOp::Conv { call, a, b, c, epilogue })
            }
            Library::Gemm { gemm, a, b } => {
                let mut call = gemm.call;
                let shared = call.b.batch_strides == [0; 3];
                let b = match constant(b) {
                    Some(data) if shared => {
                        call.b_packed = true;
                        let MatrixLayout { offset, row_stride, col_stride, .. } = call.b;
                        let packing = Packing::GemmB { k: call.k, n: call.n, offset, row_stride, col_stride };
                        self.weight(inputs[b].node, data, packing, &data.ty)
                    }
                    _ => self.operand(inputs[b])?,
                };
                let a = self.operand(inputs[a])?;
                Box::new(move |c, epilogue| StepOp::Gemm { call, a, b, c, epilogue })
            }
        };
        let extra = match &epilogue {
            Some(e) => e.inputs.iter().map(|i| self.operand(inputs[*i])).collect::<Result<Vec<_>>>()?,
            None => vec![],
        };
        let result = self.results(node)?[0];
        let epilogue = epilogue.map(|e| {
            let kernel = self.add_kernel(e.kernel);
            let own = Arg { buffer: result, writes: true };
            let reads = extra.into_iter().map(|buffer| Arg { buffer, writes: false });
            Epilogue { kernel, args: std::iter::once(own).chain(reads).collect() }
        });
        self.step(node, step(result, epilogue), flops);
        Ok(())
    }

    /// One strided copy per operand.
    fn concat(&mut self, node: NodeId, axis: usize) -> Result<()> {
        let graph = self.graph;
        let out = graph.dense(Value { node, port: 0 })?;
        let inner: u64 = out.dims[axis + 1..].iter().product();
        let outer: u64 = out.dims[..axis].iter().product();
        let operands = self.operands(node)?;
        let results = self.results(node)?;
        let mut offset = 0;
        for (v, id) in graph.args(node).into_iter().zip(operands) {
            let run = graph.dense(v)?.dims[axis] * inner;
            if run > 0 {
                let name = &graph.node(node).name;
                let kernel = emit_concat_part(name, out.dtype, outer, run, out.dims[axis] * inner, offset);
                self.launch(node, kernel, &[id], &results, 0);
            }
            offset += run;
        }
        Ok(())
    }
}

/// Floating-point operations of a body.
fn flops(body: &Graph) -> Result<u64> {
    let mut sum = 0;
    for node in body.order() {
        let NodeKind::Prim(prim) = &body.node(node).kind else { continue };
        let out = body.dense(Value { node, port: 0 })?;
        sum += match prim {
            Prim::Map(f) => f.flops() * out.len(),
            Prim::Reduce(r) => (r.map.flops() + r.combine.flops()) * body.dense(body.args(node)[0])?.len(),
            Prim::Contract(c) => 2 * c.extents.iter().product::<u64>(),
            _ => 0,
        };
    }
    Ok(sum)
}
