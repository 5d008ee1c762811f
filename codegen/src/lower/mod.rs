//! Lowering: every cluster of a fused graph becomes a kernel launch or a library call.

mod deliver;
mod library;
mod order;
mod parts;
mod vendor;

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::{Arg, Buffer, BufferId, DType, ExternFn, Home, KernelId, Packing, Part, Plan, Step, StepOp, Weight};
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{Fused, FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::Kernel;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{MathLibrary, Scalar, ScalarFn, Scaling};
use tensorc_ir::views::{keeps_linear_order, run_offset};
use tensorc_ir::{DenseType, TensorData};
use tensorc_schedule::Target;
use tensorc_schedule::cost::work::Work;
use tensorc_schedule::lowered::{InPlace, Lowered};
use tensorc_schedule::target::{Cpu, Processor};

use crate::emit::{self, Math, emit_concat_part, library_form};
use tensorc_schedule::access::Located;
use tensorc_schedule::access::in_place::in_place;
use tensorc_schedule::layout::{Layouts, Runs};

use library::packs;
use parts::{Place, Places, all_aligned, is_aligned, operands};

/// How operands get into concatenations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joins {
    /// They are computed there where that can be and costs no memory.
    #[default]
    InPlace,
    /// All are copied.
    Copied,
}

/// What a graph is lowered for, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices {
    pub target: Target,
    pub joins: Joins,
}

/// Lowers a graph of clusters, concatenations, kernels, views, constants and inputs.
pub fn lower(graph: &Graph, math: &dyn MathLibrary) -> Result<Lowered> {
    lower_with(graph, math, Choices::default())
}

/// [`lower`] with choices.
pub fn lower_with(graph: &Graph, math: &dyn MathLibrary, choices: Choices) -> Result<Lowered> {
    let scaling = Scaling(math);
    let scales = matches!(choices.target.processor, Processor::Cpu(Cpu { scale: true, .. }));
    let library = if scales { &scaling } else { math };
    let mut lowering = Lowering {
        graph,
        math: Math { library, target: &choices.target },
        out: Lowered::default(),
        values: BTreeMap::new(),
        constants: BTreeMap::new(),
        places: Places::choose(graph, choices.joins, choices.target.is_gpu())?,
    };
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
    lowering.out.plan.settle_parts();
    Ok(lowering.out)
}

struct Lowering<'a> {
    graph: &'a Graph,
    math: Math<'a>,
    out: Lowered,
    values: BTreeMap<Value, BufferId>,
    /// Buffers of constants by node and the form they are stored in.
    constants: BTreeMap<(NodeId, Packing), BufferId>,
    places: Places,
}

impl Lowering<'_> {
    fn plan(&mut self) -> &mut Plan {
        &mut self.out.plan
    }

    fn buffer(&mut self, name: &str, ty: &DenseType, home: Home) -> BufferId {
        let buffer = Buffer { name: name.to_owned(), dtype: ty.dtype, dims: ty.dims.clone(), home, part: None };
        self.plan().buffers.push(buffer);
        BufferId(self.plan().buffers.len() as u32 - 1)
    }

    /// The buffer of a value that exists already; constants get theirs at the first use.
    fn operand(&mut self, v: Value) -> Result<BufferId> {
        if let NodeKind::Const(data) = &self.graph.node(v.node).kind {
            return self.weight(v.node, data, Packing::Plain, &data.ty);
        }
        let found = self.values.get(&v).copied();
        found.ok_or_else(|| {
            Diagnostic::new(Code::Internal, "an operand was not lowered").at(&self.graph.node(v.node).name)
        })
    }

    fn weight(&mut self, node: NodeId, data: &TensorData, packing: Packing, ty: &DenseType) -> Result<BufferId> {
        let key = (node, packing);
        if let Some(id) = self.constants.get(&key) {
            return Ok(*id);
        }
        let same = |(n, _): &&(NodeId, Packing)| *n == node;
        let table = match self.constants.keys().find(same).and_then(|k| self.constants.get(k)) {
            Some(other) => match self.out.plan.buffer(*other).home {
                Home::Weight(w) => self.out.plan.weights[w as usize].constant,
                _ => {
                    let name = &self.graph.node(node).name;
                    return Err(Diagnostic::new(Code::Internal, "a constant's buffer holds no weight").at(name));
                }
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
        Ok(id)
    }

    /// A new intermediate for every output of a node.
    fn results(&mut self, node: NodeId) -> Result<Vec<BufferId>> {
        let ports = 0..self.graph.node(node).types.len() as u16;
        ports.map(|port| self.result(Value { node, port })).collect()
    }

    /// The intermediate for a value: new, in its place in a larger one, or one that has parts already.
    fn result(&mut self, v: Value) -> Result<BufferId> {
        if let Some(id) = self.values.get(&v) {
            return Ok(*id);
        }
        let graph = self.graph;
        let (name, ty) = (&graph.node(v.node).name, graph.dense(v)?);
        let id = match self.places.of(v) {
            None => self.buffer(name, &ty, Home::Arena(0)),
            Some(place) => self.part(name, &ty, place)?,
        };
        self.values.insert(v, id);
        Ok(id)
    }

    /// A buffer in its place in a larger one.
    fn part(&mut self, name: &str, ty: &DenseType, place: Place) -> Result<BufferId> {
        let of = self.result(place.whole)?;
        let id = self.buffer(name, ty, Home::Arena(0));
        let Runs { run, stride } = place.runs;
        // One run is all there is.
        let stride = if run >= ty.len() { run } else { stride };
        self.plan().buffers[id.0 as usize].part = Some(Part { of, offset: place.offset, run, stride });
        Ok(id)
    }

    /// Where the operands and results of a node lie.
    fn layouts(&self, node: NodeId) -> Result<Layouts> {
        let runs = |v: Value| self.places.runs(self.graph, v);
        let results = (0..self.graph.node(node).types.len() as u16).map(|port| Value { node, port });
        Ok(Layouts {
            inputs: self.graph.args(node).into_iter().map(runs).collect::<Result<_>>()?,
            outputs: results.map(runs).collect::<Result<_>>()?,
        })
    }

    fn node(&mut self, node: NodeId) -> Result<()> {
        let graph = self.graph;
        match &graph.node(node).kind {
            NodeKind::Input | NodeKind::Const(_) => Ok(()),
            NodeKind::Fused(f) => {
                let before = self.out.plan.steps.len();
                self.fused(node, f)?;
                // A cluster may read only part of a buffer.
                if let [step] = &mut self.out.plan.steps[before..] {
                    step.bytes = Work::of_body(&f.body)?.moved();
                }
                Ok(())
            }
            NodeKind::Prim(Prim::View(view)) => self.view(node, view),
            NodeKind::Prim(Prim::Concat { axis }) => self.concat(node, *axis),
            NodeKind::Prim(Prim::Kernel(kernel)) => {
                let inputs = self.operands(node)?;
                let outputs = self.results(node)?;
                let kernel = match self.math.target.processor {
                    Processor::Gpu(_) => emit::gpu::launched(kernel, self.math.library)?,
                    Processor::Cpu(_) => (**kernel).clone(),
                };
                self.launch(node, kernel, &inputs, &outputs, 0);
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
        if self.slice(v, arg, view)? {
            return Ok(());
        }
        let mut body = Graph::new("");
        let input = body.add_input("in", graph.dense(arg)?.into());
        let result = body.add_prim("view", Prim::View(view.clone().into()), &[input], &[graph.dense(v)?]);
        body.add_output("out", Value { node: result, port: 0 });
        self.fused(node, &Fused { class: FusionClass::Map, body: Box::new(body) })
    }

    /// A slice of consecutive elements lies in its operand's memory, if nothing says where it must be.
    fn slice(&mut self, v: Value, arg: Value, view: &View) -> Result<bool> {
        let (from, ty) = (self.graph.dense(arg)?, self.graph.dense(v)?);
        let Some(offset) = run_offset(view, &from, &ty.dims).filter(|_| !ty.is_empty() && !self.places.is_bound(v))
        else {
            return Ok(false);
        };
        if matches!(self.graph.node(arg.node).kind, NodeKind::Const(_)) {
            return Ok(false);
        }
        let id = self.operand(arg)?;
        let buffer = self.out.plan.buffer(id);
        let (of, first) = match buffer.part {
            None => (id, offset),
            Some(part) if buffer.is_dense() => (part.of, part.offset + offset),
            Some(part) if offset % part.run + ty.len() <= part.run => {
                (part.of, part.offset + offset / part.run * part.stride + offset % part.run)
            }
            Some(_) => return Ok(false),
        };
        if self.math.target.is_gpu() && !is_aligned(first, ty.dtype) {
            return Ok(false);
        }
        let part = Part { of, offset: first, run: ty.len(), stride: ty.len() };
        let home = buffer.home;
        let slice = self.buffer(&self.graph.node(v.node).name, &ty, home);
        self.plan().buffers[slice.0 as usize].part = Some(part);
        self.values.insert(v, slice);
        Ok(true)
    }

    fn fused(&mut self, node: NodeId, fused: &Fused) -> Result<()> {
        if let Some(view) = lone_view(fused)
            && self.slice(Value { node, port: 0 }, self.graph.args(node)[0], view)?
        {
            return Ok(());
        }
        let types = (0..self.graph.node(node).types.len() as u16).map(|port| self.graph.dense(Value { node, port }));
        if types.collect::<Result<Vec<_>>>()?.iter().all(DenseType::is_empty) {
            self.results(node)?;
            return Ok(());
        }
        let flops = flops(&fused.body)?;
        if fused.class == FusionClass::Attention && !self.math.target.is_gpu() {
            return self.attention(node, fused, flops);
        }
        if fused.class == FusionClass::Contract
            && !self.math.target.is_gpu()
            && let Some(library) = library_form(&fused.body)?
            && packs(self.graph, node, &library)
        {
            return self.library(node, fused, library, flops);
        }
        if fused.class == FusionClass::Contract && self.math.target.is_gpu() && self.vendor(node, fused)? {
            return Ok(());
        }
        if fused.class == FusionClass::Attention && self.attention_in_parts(node, fused, flops)? {
            return Ok(());
        }
        let operands = self.operands(node)?;
        let results = self.results(node)?;
        self.launch_cluster(node, fused, &self.layouts(node)?, [&operands, &results], flops)
    }

    /// Lowers attention of few queries for a GPU; false if there are enough for one kernel.
    fn attention_in_parts(&mut self, node: NodeId, fused: &Fused, flops: u64) -> Result<bool> {
        let name = self.graph.node(node).name.clone();
        let layouts = self.layouts(node)?;
        let Processor::Gpu(gpu) = &self.math.target.processor else { return Ok(false) };
        let Some(parts) = emit::gpu::emit_in_parts(&fused.body, &name, (self.math, gpu), &layouts)? else {
            return Ok(false);
        };
        let operands = self.operands(node)?;
        let ty = DenseType::new(DType::F32, &[parts.between]);
        let between = self.buffer(&format!("{name} parts"), &ty, Home::Arena(0));
        let results = self.results(node)?;
        self.launch(node, parts.first, &operands, &[between], flops);
        self.launch(node, parts.second, &[between], &results, 0);
        Ok(true)
    }

    /// Adds a launch of a cluster's kernel, which may write some results over operands.
    fn launch_cluster(
        &mut self,
        node: NodeId,
        fused: &Fused,
        layouts: &Layouts,
        [operands, results]: [&[BufferId]; 2],
        flops: u64,
    ) -> Result<()> {
        let kernel = emit::emit(fused.class, &fused.body, &self.graph.node(node).name, self.math, layouts)?;
        let step = self.out.plan.steps.len();
        if !self.launch(node, kernel, operands, results, flops) {
            return Ok(());
        }
        // Tiles of a contraction are written while others are computed.
        if self.math.target.is_gpu() && fused.class == FusionClass::Contract {
            return Ok(());
        }
        // Memory that is read twice may be read elsewhere than where it is written.
        let plan = &self.out.plan;
        let once = |i: &usize| operands.iter().filter(|id| plan.whole(**id) == plan.whole(operands[*i])).count() == 1;
        // A part lives as long as its whole.
        let own = |id: BufferId| plan.buffer(id).part.is_none();
        let pairs = in_place(fused.class, &Located { body: &fused.body, layouts })?;
        let pairs = pairs.into_iter().filter(|(i, o)| once(i) && own(operands[*i]) && own(results[*o]));
        let pairs: Vec<InPlace> =
            pairs.map(|(i, o)| InPlace { step, input: operands[i], output: results[o] }).collect();
        self.out.in_place.extend(pairs);
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

    /// A step that moves whole buffers.
    fn make_step(&self, node: NodeId, op: StepOp, flops: u64) -> Step {
        let mut args: Vec<BufferId> = op.args().iter().map(|a| a.buffer).collect();
        args.sort();
        args.dedup();
        let bytes = args.iter().map(|b| self.out.plan.buffer(*b).bytes()).sum();
        let name = self.graph.node(node).name.to_string();
        Step { name, op, flops, bytes }
    }

    /// A kernel that copies a tensor to where it belongs.
    fn copy(&self, name: &str, ty: &DenseType, layouts: Layouts) -> Result<Kernel> {
        let identity = ScalarFn::build(&[ty.dtype], |_, args| args.to_vec());
        let identity = identity.map_err(|why| Diagnostic::new(Code::Internal, why))?;
        let mut body = Graph::new("");
        let input = body.add_input("in", ty.clone().into());
        let result = body.add_prim("copy", Prim::Map(identity.into()), &[input], std::slice::from_ref(ty));
        body.add_output("out", Value { node: result, port: 0 });
        Ok(emit::emit(FusionClass::Map, &body, name, self.math, &layouts)?)
    }

    /// A kernel that writes all of a concatenation, each element from the operand that has it.
    fn joined(&self, node: NodeId, axis: usize) -> Result<Kernel> {
        let out = self.graph.dense(Value { node, port: 0 })?;
        let args = self.graph.args(node);
        let mut body = Graph::new("");
        let (mut first, mut ends, mut views) = (0, vec![], vec![]);
        for v in &args {
            let ty = self.graph.dense(*v)?;
            let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
            map[axis] = map[axis].offset(-first);
            first += ty.dims[axis] as i64;
            ends.push(first);
            let input = body.add_input("in", ty.clone().into());
            let view = View { map, fill: Some(Scalar::zero(ty.dtype)) };
            let at = DenseType::new(ty.dtype, &out.dims);
            let view = body.add_prim("part", Prim::View(view.into()), &[input], &[at]);
            views.push(Value { node: view, port: 0 });
        }
        let choose = ScalarFn::build(&vec![out.dtype; args.len()], |b, parts| {
            let at = b.coord(axis);
            let last = parts[parts.len() - 1].clone();
            let earlier = parts.iter().zip(&ends).rev().skip(1);
            vec![earlier.fold(last, |rest, (part, end)| at.lt(&at.lit(*end as f64)).select(part, &rest))]
        });
        let choose = choose.map_err(|why| Diagnostic::new(Code::Internal, why))?;
        let result = body.add_prim("joined", Prim::Map(choose.into()), &views, std::slice::from_ref(&out));
        body.add_output("out", Value { node: result, port: 0 });
        let mut layouts =
            Layouts { inputs: vec![], outputs: vec![self.places.runs(self.graph, Value { node, port: 0 })?] };
        for v in args {
            layouts.inputs.push(self.places.runs(self.graph, v)?);
        }
        Ok(emit::emit(FusionClass::Map, &body, &self.graph.node(node).name, self.math, &layouts)?)
    }

    /// One strided copy for every operand that was not computed in its place.
    fn concat(&mut self, node: NodeId, axis: usize) -> Result<()> {
        let graph = self.graph;
        let result = Value { node, port: 0 };
        let sources = self.operands(node)?;
        let (id, out) = (self.result(result)?, graph.dense(result)?);
        if self.math.target.is_gpu() && !all_aligned(graph, node, axis)? {
            self.values.insert(result, id);
            let kernel = self.joined(node, axis)?;
            self.launch(node, kernel, &sources, &[id], 0);
            return Ok(());
        }
        for ((v, from), (offset, runs)) in graph.args(node).into_iter().zip(sources).zip(operands(graph, node, axis)?) {
            let ty = graph.dense(v)?;
            // It may lie in a larger one itself.
            let to = match self.places.of(result) {
                None => Some(Place { whole: result, offset, runs }),
                Some(place) => place.within(out.len(), (offset, runs), ty.len()),
            };
            let refused = || Diagnostic::new(Code::Internal, "an operand of a concatenation has no place");
            let to = to.ok_or_else(refused)?;
            let in_place = self.places.of(v).is_some_and(|p| p.whole == to.whole && p.offset == to.offset);
            if ty.is_empty() || in_place {
                continue;
            }
            let name = &graph.node(node).name;
            let (here, there) = (self.places.runs(graph, v)?, to.apart(ty.len()));
            let run = here.or(there).map_or(ty.len(), |runs| runs.run);
            let strides = [here, there].map(|runs| runs.map_or(run, |runs| runs.stride));
            let kernel = match self.math.target.processor {
                Processor::Gpu(_) => self.copy(name, &ty, Layouts { inputs: vec![here], outputs: vec![there] })?,
                Processor::Cpu(_) => emit_concat_part(name, out.dtype, ty.len() / run, run, strides),
            };
            let to = self.part(name, &ty, to)?;
            self.launch(node, kernel, &[from], &[to], 0);
        }
        self.values.insert(result, id);
        Ok(())
    }
}

/// The view, if a cluster is that and nothing else.
fn lone_view(fused: &Fused) -> Option<&View> {
    let [(_, output)] = fused.body.outputs() else { return None };
    match &fused.body.node(output.node).kind {
        NodeKind::Prim(Prim::View(view))
            if fused.body.args(output.node)[..]
                == fused.body.inputs().iter().map(|n| Value { node: *n, port: 0 }).collect::<Vec<_>>()[..] =>
        {
            Some(view)
        }
        _ => None,
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
