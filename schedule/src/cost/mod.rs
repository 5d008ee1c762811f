//! What kernels cost: the one place where passes turn work into time.
//!
//! [`work`] says what a kernel computes and moves; [`CostModel`] says how long that takes; [`scalar`] weighs operations of one
//! element against each other.
//! [`kernels`] lists the kernels of a fused graph.

mod machine;
pub mod scalar;
pub mod work;

use std::fmt::Write;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::views::keeps_linear_order;

use crate::cost::work::{KernelWork, Member, OperandSource};

pub use machine::{CacheLevel, CostModel};

/// One kernel of a fused graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostedKernel {
    /// The name of its node.
    pub name: String,
    /// `map`, `reduce`, `contract`, or what stands outside clusters: `concat`, `kernel`, `flow`, `function`.
    pub kind: &'static str,
    /// Primitives computed.
    pub members: usize,
    /// What running it takes.
    pub work: KernelWork,
    /// Estimated picoseconds on one core.
    pub time: u64,
    /// Bytes read of constants of the graph.
    pub constant_bytes: u64,
}

impl CostedKernel {
    /// Bytes moved, without constants.
    pub fn activations(&self) -> u64 {
        self.work.moved() - self.constant_bytes
    }
}

/// The kernels a fused graph launches, in topological order.
///
/// # Errors
/// A type is not fully known.
pub fn kernels(graph: &Graph, machine: &CostModel) -> Result<Vec<CostedKernel>> {
    let mut found = vec![];
    for node in graph.order() {
        let args = graph.args(node);
        let (kind, members, work) = match &graph.node(node).kind {
            NodeKind::Fused(fused) => {
                let prims = fused.body.node_ids().into_iter();
                let members = prims.filter(|n| matches!(fused.body.node(*n).kind, NodeKind::Prim(_))).count();
                (class_name(fused.class), members, KernelWork::of_body(&fused.body)?)
            }
            NodeKind::Prim(prim) => {
                let kind = match prim {
                    Prim::View(view)
                        if keeps_linear_order(
                            view,
                            &graph.dense(args[0])?,
                            &graph.dense(Value { node, port: 0 })?.dims,
                        ) =>
                    {
                        continue;
                    }
                    Prim::Concat { .. } => "concat",
                    Prim::Kernel(_) => "kernel",
                    Prim::Extern(_) => "function",
                    Prim::Flow(_) => "flow",
                    _ => "map",
                };
                (kind, 1, alone(graph, node, prim)?)
            }
            NodeKind::Input | NodeKind::Const(_) | NodeKind::Op(_) => continue,
        };
        let constant = |i: &usize| args.get(*i).is_some_and(|v| graph.constant(*v).is_some());
        let constant_bytes = (0..work.reads.len()).filter(constant).map(|i| work.reads[i].bytes).sum();
        let time = machine.time(&work);
        found.push(CostedKernel { name: graph.node(node).name.to_string(), kind, members, work, time, constant_bytes });
    }
    Ok(found)
}

/// The work of a primitive outside all clusters.
///
/// # Errors
/// A type is not fully known.
pub fn alone(graph: &Graph, node: NodeId, prim: &Prim) -> Result<KernelWork> {
    let args = graph.args(node);
    let ports = 0..graph.node(node).types.len() as u16;
    let types = ports.map(|port| graph.dense(Value { node, port })).collect::<Result<Vec<_>>>()?;
    let externals = args.iter().map(|v| graph.dense(*v)).collect::<Result<Vec<_>>>()?;
    let stored = types.iter().map(|_| true).collect();
    let sources = (0..args.len()).map(OperandSource::External).collect();
    let member = Member { prim, args: sources, types: &types, stored, ops: None };
    Ok(KernelWork::of(&[member], &externals.iter().collect::<Vec<_>>()))
}

fn class_name(class: FusionClass) -> &'static str {
    match class {
        FusionClass::Map => "map",
        FusionClass::Reduce => "reduce",
        FusionClass::Contract => "contract",
        FusionClass::Attention => "attention",
    }
}

/// A line for every kernel, and the totals.
pub fn table(kernels: &[CostedKernel]) -> String {
    let mut text = format!("{:>12} {:>12} {:>14} {:>10}  kernel\n", "read B", "written B", "operations", "us");
    for k in kernels {
        let operations = k.work.ops.total();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:>12} {:>12} {operations:>14} {:>10.2}  {} of {} {}",
            k.work.read(),
            k.work.written(),
            k.time as f64 / 1e6,
            k.kind,
            k.members,
            k.name
        );
    }
    text + &Totals::of(kernels).to_string() + "\n"
}

/// Sums over the kernels of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of kernels.
    pub kernels: usize,
    /// Bytes read and written, without constants.
    pub activations: u64,
    /// Bytes read of constants.
    pub constants: u64,
    /// Estimated picoseconds.
    pub time: u64,
}

impl Totals {
    /// The totals of some kernels.
    pub fn of(kernels: &[CostedKernel]) -> Totals {
        kernels.iter().fold(Totals::default(), |sum, k| Totals {
            kernels: sum.kernels + 1,
            activations: sum.activations + k.activations(),
            constants: sum.constants + k.constant_bytes,
            time: sum.time.saturating_add(k.time),
        })
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Totals { kernels, activations, constants, time } = self;
        let us = *time as f64 / 1e6;
        write!(f, "{kernels} kernels, {activations} B moved, {constants} B of constants read, {us:.1} us estimated")
    }
}
