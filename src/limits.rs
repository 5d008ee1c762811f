//! What a model may take of this machine: memory, time, nodes, machine code.

use std::fmt;
use std::time::{Duration, Instant};

use tensorc_abi::Plan;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::Graph;
use tensorc_ir::interrupt::StopReason;
use tensorc_runtime::Interrupter;

/// Most that a model may take. What is `None` is not bounded.
///
/// What a plan states is compared before the model runs. The time that compiling takes is compared between passes and between
/// kernels, that of a run between steps and parts of steps. A run on a GPU is not interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that one run takes with its inputs, outputs, weights and intermediate tensors, and the nodes of a graph
    /// while it is compiled.
    pub memory: Option<u64>,
    /// Time that compiling for one combination of shapes takes, and that one run takes.
    pub time: Option<Duration>,
    /// Nodes of a graph, as it is imported and after any pass.
    pub nodes: Option<u64>,
    /// Bytes of machine code that is generated for one combination of shapes.
    pub code: Option<u64>,
}

/// Bytes of memory that a node takes, with its types, name and edges, while passes work on it: about so many.
const NODE_BYTES: u64 = 1 << 10;

/// Floating-point operations that no core of a processor does in more than a second.
const MOST_FLOPS: u64 = 1 << 39;

impl Limits {
    /// Most nodes of a graph: as many as are allowed, and fit into the memory that is allowed.
    pub(crate) fn graph_nodes(&self) -> Option<u64> {
        let fit = self.memory.map(|bytes| bytes / NODE_BYTES);
        [self.nodes, fit].into_iter().flatten().min()
    }

    /// Whether a graph has as few nodes as it may have.
    ///
    /// # Errors
    /// [`DiagnosticCode::Limit`], as of the other functions.
    pub(crate) fn admit_graph(&self, graph: &Graph) -> Result<()> {
        let found = graph.total_nodes() as u64;
        admit(self.graph_nodes(), found, || format!("the model has {found} nodes"), |most| most.to_string())
    }

    /// Whether so many bytes of machine code may be generated.
    pub(crate) fn admit_code(&self, bytes: u64) -> Result<()> {
        admit(self.code, bytes, || format!("the model has {} of machine code", ByteCount(bytes)), in_bytes)
    }

    /// Whether runs of a plan take what they may take: by so many workers, or on a GPU, whose speed is not known.
    pub(crate) fn admit_plan(&self, plan: &Plan, workers: usize, on_gpu: bool) -> Result<()> {
        let needed = run_bytes(plan, workers);
        admit(self.memory, needed, || format!("a run takes {} of memory", ByteCount(needed)), in_bytes)?;
        if on_gpu {
            return Ok(());
        }
        let flops = plan.steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.flops));
        let least = Duration::from_secs(flops / MOST_FLOPS / workers.max(1) as u64);
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        admit(self.time, least, || format!("a run takes {} at least", seconds(least)), seconds)
    }
}

/// What ends a compilation early: the clock, or its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'c> {
    at: Option<Instant>,
    interrupter: Option<&'c Interrupter>,
}

impl<'c> Deadline<'c> {
    /// Of a compilation that begins now and may take so long.
    pub fn new(time: Option<Duration>, interrupter: Option<&'c Interrupter>) -> Deadline<'c> {
        Deadline { at: time.and_then(|time| Instant::now().checked_add(time)), interrupter }
    }

    /// Why the compilation has to end now, if it does.
    pub fn passed(self) -> Option<StopReason> {
        if self.at.is_some_and(|at| Instant::now() > at) {
            return Some(StopReason::Time);
        }
        self.interrupter.filter(|interrupter| interrupter.wants_end()).map(|_| StopReason::Caller)
    }
}

/// Whether what is asked for is within a limit.
fn admit<T: Copy + PartialOrd>(
    most: Option<T>,
    asked: T,
    what: impl FnOnce() -> String,
    shown: impl FnOnce(T) -> String,
) -> Result<()> {
    match most.filter(|most| asked > *most) {
        Some(most) => Err(Diagnostic::new(DiagnosticCode::Limit, format!("{}, {} are allowed", what(), shown(most)))),
        None => Ok(()),
    }
}

fn in_bytes(bytes: u64) -> String {
    ByteCount(bytes).to_string()
}

/// Bytes of all memory that a run by so many workers uses.
fn run_bytes(plan: &Plan, workers: usize) -> u64 {
    let edges = plan.inputs.iter().chain(&plan.outputs).chain(&plan.states);
    let tensors = edges.map(|id| plan.buffer(*id).bytes());
    tensors.fold(plan.run_bytes(workers), u64::saturating_add).saturating_add(plan.weight_bytes())
}

/// Bytes in the largest unit of which there is one.
struct ByteCount(u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (self.0.max(1).ilog2() / 10) as usize;
        match power {
            0 => write!(f, "{} bytes", self.0),
            _ => write!(f, "{:.1} {}", self.0 as f64 / (1u64 << (10 * power)) as f64, units[power]),
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorc_abi::{Buffer, BufferId, DType, Step, StepOp, StorageClass};

    use super::*;

    fn plan() -> Plan {
        let buffer = |storage| Buffer { name: "x".into(), dtype: DType::F32, dims: vec![256], storage, part: None };
        let step = Step {
            name: "s".into(),
            op: StepOp::Copy { src: BufferId(0), dst: BufferId(1) },
            flops: 20 * MOST_FLOPS,
            bytes: 0,
        };
        Plan {
            buffers: vec![
                buffer(StorageClass::Input(0)),
                buffer(StorageClass::Output(0)),
                buffer(StorageClass::Weight(0)),
            ],
            inputs: vec![BufferId(0)],
            outputs: vec![BufferId(1)],
            steps: vec![step],
            arena_bytes: 1024,
            ..Plan::default()
        }
    }

    fn refused(limits: Limits, workers: usize) -> String {
        limits.admit_plan(&plan(), workers, false).map_or_else(|e| e.to_string(), |()| "admitted".to_owned())
    }

    #[test]
    fn every_tensor_of_a_run_counts() {
        let memory = |bytes| Limits { memory: Some(bytes), ..Limits::default() };
        assert_eq!(refused(memory(4096), 1), "admitted");
        assert_eq!(refused(memory(4095), 1), "[limit] a run takes 4.0 KiB of memory, 4.0 KiB are allowed");
        assert_eq!(refused(memory(1000), 1), "[limit] a run takes 4.0 KiB of memory, 1000 bytes are allowed");
    }

    #[test]
    fn a_run_that_cannot_end_in_time_does_not_begin() {
        let time = |seconds| Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() };
        assert_eq!(refused(time(20), 1), "admitted");
        assert_eq!(refused(time(19), 1), "[limit] a run takes 20 s at least, 19 s are allowed");
        assert_eq!(refused(time(19), 2), "admitted");
        assert_eq!(time(19).admit_plan(&plan(), 1, true), Ok(()));
    }

    #[test]
    fn without_limits_everything_is_admitted() {
        assert_eq!(refused(Limits::default(), 1), "admitted");
    }
}
