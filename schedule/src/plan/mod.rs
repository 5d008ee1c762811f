//! Plans: every cluster of a fused graph becomes a launch of a kernel or a call of a library, in an order that needs little
//! memory, with its operands where they lie. What a kernel computes is listed; code generation writes it.

mod concat;
mod flow;
mod forms;
mod kept;
mod library;
mod order;
mod output_alias;
mod place;
mod search;
mod vendor;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tensorc_abi::{
    Arg, Buffer, BufferId, DType, ExternFn, KernelId, Packing, Plan, Step, StepOp, StorageClass, SubBuffer, Weight,
};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::recipe::Recipe;
use tensorc_ir::views::{keeps_linear_order, run_offset};
use tensorc_ir::{DenseType, Extent, TensorData};

use crate::access::Located;
use crate::access::in_place::in_place;
use crate::flash::{KeySplits, Left};
use crate::kernel::{Computes, KernelSpec};
use crate::layout::{Layouts, Runs};
use crate::lowered::{InPlace, InPlaceOptions};
use crate::recipe::{Form, Site, decide};
use crate::recognise::attention::Attended;
use crate::target::Target;
use flow::BodySchedules;
pub use forms::Forms;
pub use place::ConcatOperands;
use place::{ConcatElimination, StridedView, is_aligned};

/// What a graph is lowered for, and how.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// The machine.
    pub target: Target,
    /// How operands get into concatenations.
    pub concat_operands: ConcatOperands,
    /// Workers whose working memory counts where memory is weighed. A number that is stated: with that of the machine,
    /// plans would differ from one to the other.
    pub workers: u64,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { target: Target::default(), concat_operands: ConcatOperands::default(), workers: 1 }
    }
}

/// What is to run: a plan whose memory is not placed yet, and the kernels it launches, to be written.
#[derive(Clone, Debug, Default)]
pub struct Schedule<'g> {
    /// The machine.
    pub target: Target,
    /// Extents of launches are 0 until their kernels are written.
    pub plan: Plan<Extent>,
    /// The node of the graph that each step belongs to.
    pub nodes: Vec<NodeId>,
    /// By [`KernelId`].
    pub kernels: Vec<KernelSpec<'g>>,
    /// By [`Weight::constant`].
    pub constants: Vec<TensorData>,
    /// Results that may share the memory of an operand.
    pub in_place: InPlaceOptions,
    /// By position in [`StepOp::Extern`].
    pub externs: Vec<ExternFn>,
}

/// Schedules a graph of clusters, concatenations, kernels, views, constants and inputs.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`] if an operator is left in the graph; types that are not known.
pub fn plan(graph: &Graph, choices: Choices) -> Result<Schedule<'_>> {
    planned(graph, choices, &Forms::new(choices.target))
}

/// The schedule of a graph, or of the body of a branch or loop.
fn planned<'a>(graph: &'a Graph, choices: Choices, forms: &Forms) -> Result<Schedule<'a>> {
    let bodies = BodySchedules::default();
    let tried = Tried { choices, forms, bodies: &bodies };
    let places = search::choose(graph, &tried)?;
    let mut out = lower(graph, &tried, places)?.out;
    out.plan.settle_parts();
    Ok(out)
}

/// The recipe of every cluster of a fused graph that computes something.
///
/// # Errors
/// As [`plan`].
pub fn recipes(graph: &Graph, choices: Choices) -> Result<Vec<(NodeId, Recipe)>> {
    let (forms, bodies) = (Forms::new(choices.target), BodySchedules::default());
    let places = search::choose(graph, &Tried { choices, forms: &forms, bodies: &bodies })?;
    let mut found = vec![];
    for node in graph.order() {
        if let NodeKind::Fused(fused) = &graph.node(node).kind
            && !is_empty(graph, node)?
        {
            let form = forms.of(graph, node, fused, &places.layouts(graph, node)?);
            found.push((node, form.map_err(|d| d.at(&graph.node(node).name))?.form.recipe()));
        }
    }
    Ok(found)
}

/// Bytes of intermediate tensors and of working memory live at once in the schedule of a fused graph, and the node at which
/// they are. Forms that are found are kept for copies of the graph.
///
/// # Errors
/// As [`plan`].
pub fn peak(graph: &Graph, choices: Choices, forms: &Forms) -> Result<(u64, Option<NodeId>)> {
    let schedule = planned(graph, choices, forms)?;
    let (bytes, step) = order::peak_of(&schedule, choices.workers);
    Ok((bytes, step.map(|step| schedule.nodes[step])))
}

/// What the plans that are tried for a graph have in common.
#[derive(Clone, Copy)]
struct Tried<'a, 'f> {
    choices: Choices,
    forms: &'f Forms,
    bodies: &'f BodySchedules<'a>,
}

/// The steps of a graph in their order, with results delivered.
fn lower<'a, 'f>(graph: &'a Graph, tried: &Tried<'a, 'f>, places: ConcatElimination) -> Result<Lowering<'a, 'f>> {
    let Tried { choices, forms, bodies } = *tried;
    let mut lowering = Lowering {
        graph,
        choices,
        target: choices.target,
        workers: choices.workers,
        out: Schedule { target: choices.target, ..Schedule::default() },
        values: BTreeMap::new(),
        constants: BTreeMap::new(),
        blocked: BTreeMap::new(),
        places,
        forms,
        bodies,
    };
    lowering.out.plan.name = graph.name.clone();
    lowering.inputs()?;
    let first = graph.first_phase();
    let mut boundary = first.is_some().then_some(0);
    for node in graph.order() {
        lowering.node(node).map_err(|d| d.at(&graph.node(node).name))?;
        if first.as_ref().is_some_and(|first| first.contains(&node)) {
            boundary = Some(lowering.out.plan.steps.len());
        }
    }
    lowering.schedule(boundary)?;
    Ok(lowering)
}

struct Lowering<'a, 'f> {
    graph: &'a Graph,
    choices: Choices,
    target: Target,
    workers: u64,
    out: Schedule<'a>,
    values: BTreeMap<Value, BufferId>,
    /// Buffers of constants by node and the form they are stored in.
    constants: BTreeMap<(NodeId, Packing), BufferId>,
    /// Buffers of blocked weights.
    blocked: BTreeMap<NodeId, BufferId>,
    places: ConcatElimination,
    forms: &'f Forms,
    bodies: &'f BodySchedules<'a>,
}

impl<'a> Lowering<'a, '_> {
    /// Buffers of the caller's tensors and of states.
    fn inputs(&mut self) -> Result<()> {
        let graph = self.graph;
        let states: BTreeSet<NodeId> = graph.updates().iter().map(|(of, _)| *of).collect();
        for &node in graph.inputs() {
            let v = Value { node, port: 0 };
            let is_state = states.contains(&node);
            let plan = &self.out.plan;
            let storage = match is_state {
                true => StorageClass::State(plan.states.len() as u32),
                false => StorageClass::Input(plan.inputs.len() as u32),
            };
            let id = self.buffer(&graph.node(node).name, &graph.dense(v)?, storage);
            self.values.insert(v, id);
            let plan = self.plan();
            if is_state { &mut plan.states } else { &mut plan.inputs }.push(id);
        }
        Ok(())
    }

    fn plan(&mut self) -> &mut Plan<Extent> {
        &mut self.out.plan
    }

    fn buffer(&mut self, name: &str, ty: &DenseType, storage: StorageClass) -> BufferId {
        let buffer =
            Buffer { name: name.to_owned(), dtype: ty.dtype, dims: ty.dims.all().collect(), storage, part: None };
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
            Diagnostic::new(DiagnosticCode::Internal, "an operand was not lowered").at(&self.graph.node(v.node).name)
        })
    }

    fn weight(&mut self, node: NodeId, data: &TensorData, packing: Packing, ty: &DenseType) -> Result<BufferId> {
        let key = (node, packing);
        if let Some(id) = self.constants.get(&key) {
            return Ok(*id);
        }
        let same = |(n, _): &&(NodeId, Packing)| *n == node;
        let table = match self.constants.keys().find(same).and_then(|k| self.constants.get(k)) {
            Some(other) => match self.out.plan.buffer(*other).storage {
                StorageClass::Weight(w) => self.out.plan.weights[w as usize].constant,
                _ => {
                    let name = &self.graph.node(node).name;
                    return Err(
                        Diagnostic::new(DiagnosticCode::Internal, "a constant's buffer holds no weight").at(name)
                    );
                }
            },
            None => {
                self.out.constants.push(data.clone());
                self.out.constants.len() as u32 - 1
            }
        };
        let name = self.graph.node(node).name.to_string();
        let storage = StorageClass::Weight(self.out.plan.weights.len() as u32);
        self.plan().weights.push(Weight { name: name.clone(), constant: table, packing });
        let id = self.buffer(&name, ty, storage);
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
            None => self.buffer(name, &ty, StorageClass::Arena(0)),
            Some(place) => self.part(name, &ty, place)?,
        };
        self.values.insert(v, id);
        Ok(id)
    }

    /// A buffer in its place in a larger one.
    fn part(&mut self, name: &str, ty: &DenseType, place: StridedView) -> Result<BufferId> {
        let of = self.result(place.whole)?;
        let id = self.buffer(name, ty, StorageClass::Arena(0));
        let Runs { run, stride } = place.runs;
        // One run is all there is.
        let stride = if run >= ty.dims.count() { run } else { stride };
        self.plan().buffers[id.0 as usize].part = Some(SubBuffer { of, offset: place.offset, run, stride });
        Ok(id)
    }

    fn layouts(&self, node: NodeId) -> Result<Layouts> {
        self.places.layouts(self.graph, node)
    }

    fn node(&mut self, node: NodeId) -> Result<()> {
        let graph = self.graph;
        if self.places.kept.contains(Value { node, port: 0 }) {
            return Ok(());
        }
        match &graph.node(node).kind {
            NodeKind::Input | NodeKind::Const(_) => Ok(()),
            NodeKind::Fused(f) => self.fused(node, f),
            NodeKind::Prim(Prim::View(view)) => self.view(node, view),
            NodeKind::Prim(Prim::Concat { axis }) => self.concat(node, *axis),
            NodeKind::Prim(Prim::Kernel(kernel)) => {
                let inputs = self.operands(node)?;
                let outputs = self.results(node)?;
                if !kernel.parallel_extent().is_surely(0) {
                    let spec = self.spec(&kernel.name, node, Computes::Own(kernel), Layouts::default());
                    self.launch(node, spec, &inputs, &outputs, kernel.operations());
                }
                Ok(())
            }
            NodeKind::Prim(Prim::Flow(flow)) => self.flow(node, flow),
            NodeKind::Prim(Prim::Extern(function)) => self.external(node, function),
            NodeKind::Prim(_) => {
                Err(Diagnostic::new(DiagnosticCode::Internal, "a primitive outside a cluster reached lowering"))
            }
            NodeKind::Op(op) => Err(Diagnostic::new(
                DiagnosticCode::Unsupported,
                format!("operator `{}` reached lowering undecomposed", op.def.name),
            )),
        }
    }

    /// Called even if there is nothing to write: it may do more than compute.
    fn external(&mut self, node: NodeId, function: &ExternFn) -> Result<()> {
        let inputs = self.operands(node)?;
        let mut outputs = self.results(node)?;
        if function.scratch_bytes() > 0 {
            let ty = DenseType::new(DType::U8, [function.scratch_bytes()]);
            outputs.push(self.buffer(&format!("{} scratch", self.graph.node(node).name), &ty, StorageClass::Arena(0)));
        }
        let read = inputs.into_iter().map(|buffer| Arg { buffer, writes: false });
        let write = outputs.into_iter().map(|buffer| Arg { buffer, writes: true });
        let args = read.chain(write).collect();
        let position = self.out.externs.len() as u32;
        self.out.externs.push(function.clone());
        let operator = function.operator().to_owned();
        self.step(node, StepOp::Extern { operator, function: position, args }, Extent::ZERO);
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
        if is_empty(graph, node)? {
            return self.results(node).map(drop);
        }
        let buffers = [&self.operands(node)?[..], &self.results(node)?];
        let (layouts, flops) = (self.layouts(node)?, flops(&body)?);
        self.launch_map(node, body, layouts, buffers, flops)
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
        let (id, len) = (self.operand(arg)?, ty.dims.count());
        let buffer = self.out.plan.buffer(id);
        let (of, first) = match buffer.part {
            None => (id, offset),
            Some(part) if buffer.is_dense() => (part.of, part.offset + offset),
            Some(part) if offset % part.run + len <= part.run => {
                (part.of, part.offset + offset / part.run * part.stride + offset % part.run)
            }
            Some(_) => return Ok(false),
        };
        if self.target.is_gpu() && !is_aligned(first, ty.dtype) {
            return Ok(false);
        }
        let part = SubBuffer { of, offset: first, run: len, stride: len };
        let storage = buffer.storage;
        let slice = self.buffer(&self.graph.node(v.node).name, &ty, storage);
        self.plan().buffers[slice.0 as usize].part = Some(part);
        self.values.insert(v, slice);
        Ok(true)
    }

    /// Schedules a cluster by its recipe.
    fn fused(&mut self, node: NodeId, fused: &'a FusedCluster) -> Result<()> {
        let body = &*fused.body;
        if let Some(view) = lone_view(body)
            && self.slice(Value { node, port: 0 }, self.graph.args(node)[0], view)?
        {
            return Ok(());
        }
        if is_empty(self.graph, node)? {
            return self.results(node).map(drop);
        }
        let layouts = self.layouts(node)?;
        let found = self.forms.of(self.graph, node, fused, &layouts)?;
        let (before, flops) = (self.out.plan.steps.len(), found.flops);
        match found.form.clone() {
            Form::Library(library) => self.library(node, body, *library, layouts, flops)?,
            Form::LibraryAttention(found) => self.attention(node, body, found, layouts, flops)?,
            Form::Vendor(vendor) => self.vendor(node, body, layouts, *vendor)?,
            Form::SplitAttention(found, parts) => self.split_attention(node, body, (found, parts), layouts, flops)?,
            Form::Generated(recipe) => {
                let buffers = [&self.operands(node)?[..], &self.results(node)?];
                let computes = Computes::Cluster { recipe, body: fused.body.clone() };
                self.launch_cluster(node, (computes, layouts), &found.in_place, buffers, flops);
            }
        }
        if let [step] = &mut self.out.plan.steps[before..]
            && !step.bytes.is_open()
            && !library::reads_blocked(&step.op)
        {
            step.bytes = found.bytes.into();
        }
        Ok(())
    }

    /// Schedules an element-wise kernel that the graph has no cluster for.
    fn launch_map(
        &mut self,
        node: NodeId,
        body: Graph,
        layouts: Layouts,
        buffers: [&[BufferId]; 2],
        flops: Extent,
    ) -> Result<()> {
        let cluster = Located { body: &body, layouts: &layouts };
        let pairs = in_place(FusionClass::Map, &cluster)?;
        let Form::Generated(recipe) = decide(&Site::map(cluster), &self.target)? else {
            return Err(Diagnostic::new(DiagnosticCode::Internal, "an element-wise cluster is more than one kernel"));
        };
        let computes = Computes::Cluster { recipe, body: Arc::new(body) };
        self.launch_cluster(node, (computes, layouts), &pairs, buffers, flops);
        Ok(())
    }

    /// Schedules attention of few queries on a GPU: a kernel that computes parts of it, and one that combines them.
    fn split_attention(
        &mut self,
        node: NodeId,
        body: &'a Graph,
        (found, parts): (Arc<Attended>, KeySplits),
        layouts: Layouts,
        flops: Extent,
    ) -> Result<()> {
        let name = self.graph.node(node).name.clone();
        let operands = self.operands(node)?;
        let left = Left { call: &found.fixed_call(), parts: parts.count() };
        let ty = DenseType::new(DType::F32, [left.elements()]);
        let between = self.buffer(&format!("{name} parts"), &ty, StorageClass::Arena(0));
        let results = self.results(node)?;
        let computes = Computes::AttentionParts { body, found: found.clone(), parts };
        let first = self.spec(&format!("{name}_parts"), node, computes, layouts.clone());
        self.launch(node, first, &operands, &[between], flops);
        let second = self.spec(&name, node, Computes::AttentionJoin { body, found, parts }, layouts);
        self.launch(node, second, &[between], &results, Extent::ZERO);
        Ok(())
    }

    /// Adds a launch of a cluster's kernel, which may write the results of `pairs` over their operands.
    fn launch_cluster(
        &mut self,
        node: NodeId,
        (computes, layouts): (Computes<'a>, Layouts),
        pairs: &[(usize, usize)],
        [operands, results]: [&[BufferId]; 2],
        flops: Extent,
    ) {
        let step = self.out.plan.steps.len();
        let spec = self.spec(&self.graph.node(node).name, node, computes, layouts);
        if !self.launch(node, spec, operands, results, flops) {
            return;
        }
        // Memory that is read twice may be read elsewhere than where it is written.
        let plan = &self.out.plan;
        let once = |i: &usize| operands.iter().filter(|id| plan.whole(**id) == plan.whole(operands[*i])).count() == 1;
        // A part lives as long as its whole.
        let own = |id: BufferId| plan.buffer(id).part.is_none();
        let pairs = pairs.iter().filter(|(i, o)| once(i) && own(operands[*i]) && own(results[*o]));
        let pairs: Vec<InPlace> =
            pairs.map(|(i, o)| InPlace { step, input: operands[*i], output: results[*o] }).collect();
        self.out.in_place.steps.extend(pairs);
    }

    fn spec(&self, name: &str, node: NodeId, computes: Computes<'a>, layouts: Layouts) -> KernelSpec<'a> {
        KernelSpec { name: name.into(), node, computes, layouts }
    }

    fn add_kernel(&mut self, kernel: KernelSpec<'a>) -> KernelId {
        self.plan().kernels.push(kernel.name.to_string());
        self.out.kernels.push(kernel);
        KernelId(self.out.kernels.len() as u32 - 1)
    }

    /// Adds a launch, unless there is nothing to write.
    fn launch(
        &mut self,
        node: NodeId,
        kernel: KernelSpec<'a>,
        inputs: &[BufferId],
        outputs: &[BufferId],
        flops: Extent,
    ) -> bool {
        if outputs.iter().all(|o| self.out.plan.buffer(*o).len().is_surely(0)) {
            return false;
        }
        let read = inputs.iter().map(|b| Arg { buffer: *b, writes: false });
        let write = outputs.iter().map(|b| Arg { buffer: *b, writes: true });
        let args: Vec<Arg> = read.chain(write).collect();
        let kernel = self.add_kernel(kernel);
        self.step(node, StepOp::Launch { kernel, args, extent: Extent::ZERO }, flops);
        true
    }

    fn step(&mut self, node: NodeId, op: StepOp<Extent>, flops: Extent) {
        let step = self.make_step(node, op, flops);
        self.plan().steps.push(step);
        self.out.nodes.push(node);
    }

    /// A step that moves whole buffers.
    fn make_step(&self, node: NodeId, op: StepOp<Extent>, flops: Extent) -> Step<Extent> {
        let mut args: Vec<BufferId> = op.args().iter().map(|a| a.buffer).collect();
        args.sort();
        args.dedup();
        let bytes = args.iter().map(|b| self.out.plan.buffer(*b).bytes()).sum();
        let name = self.graph.node(node).name.to_string();
        Step { name, op, flops, bytes }
    }
}

/// Whether a node computes no elements.
fn is_empty(graph: &Graph, node: NodeId) -> Result<bool> {
    let types = (0..graph.node(node).types.len() as u16).map(|port| graph.dense(Value { node, port }));
    Ok(types.collect::<Result<Vec<_>>>()?.iter().all(DenseType::is_empty))
}

/// The view, if a cluster is that and nothing else.
fn lone_view(body: &Graph) -> Option<&View> {
    let [(_, output)] = body.outputs() else { return None };
    match &body.node(output.node).kind {
        NodeKind::Prim(Prim::View(view))
            if body.args(output.node)[..]
                == body.inputs().iter().map(|n| Value { node: *n, port: 0 }).collect::<Vec<_>>()[..] =>
        {
            Some(view)
        }
        _ => None,
    }
}

/// Floating-point operations of a body.
fn flops(body: &Graph) -> Result<Extent> {
    let mut sum = Extent::ZERO;
    for node in body.order() {
        let NodeKind::Prim(prim) = &body.node(node).kind else { continue };
        let out = body.dense(Value { node, port: 0 })?;
        let flops = match prim {
            Prim::Map(f) => Extent::from(f.flops()).saturating_mul(out.dims.count()),
            Prim::Reduce(r) => {
                let elements = body.dense(body.args(node)[0])?.dims.count();
                Extent::from(r.map.flops() + r.combine.flops()).saturating_mul(elements)
            }
            Prim::Contract(c) => Extent::of(2).saturating_mul(c.extents.count()),
            _ => Extent::ZERO,
        };
        sum = sum.saturating_add(flops);
    }
    Ok(sum)
}
