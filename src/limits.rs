//! What a model may take of this machine: memory, time, nodes, machine code.

use std::fmt;
use std::time::{Duration, Instant};

use tensorc_abi::{Plan, StorageClass};
use tensorc_ir::graph::Graph;

use crate::error::Error;

/// Most that a model may take. What is `None` is not bounded.
///
/// What a plan knows is refused before the model runs. A limit of a step of the compiler is looked at between its parts, that of a
/// run between its steps and the pieces of work that steps are cut into; a GPU is not interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that one run takes with its inputs, outputs, weights and intermediate tensors.
    pub memory: Option<u64>,
    /// Time that compiling for one combination of shapes takes, and that one run takes.
    pub time: Option<Duration>,
    /// Nodes of a graph, as it is imported and after any pass.
    pub nodes: Option<u64>,
    /// Bytes of machine code that is generated for one combination of shapes.
    pub code: Option<u64>,
}

/// Floating-point operations that no core of a processor does in more than a second.
const MOST_FLOPS: u64 = 1 << 39;

impl Limits {
    /// What the limit of time leaves when something begins now.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.time.and_then(|time| Instant::now().checked_add(time))
    }

    /// Whether a graph has as few nodes as it may have.
    pub(crate) fn admit_graph(&self, graph: &Graph) -> Result<(), Error> {
        match self.nodes.map(|most| (most, graph.node_ids().len() as u64)) {
            Some((most, found)) if found > most => {
                Err(Error::limit("nodes", format!("the model has {found} nodes, {most} are allowed")))
            }
            _ => Ok(()),
        }
    }

    /// Whether so many bytes of machine code may be generated.
    pub(crate) fn admit_code(&self, bytes: u64) -> Result<(), Error> {
        match self.code.filter(|most| bytes > *most) {
            Some(most) => {
                let why =
                    format!("the model has {} of machine code, {} are allowed", ByteCount(bytes), ByteCount(most));
                Err(Error::limit("code", why))
            }
            None => Ok(()),
        }
    }

    /// Whether runs of a plan by so many workers take what they may take.
    pub(crate) fn admit_plan(&self, plan: &Plan, workers: usize) -> Result<(), Error> {
        let needed = run_bytes(plan, workers);
        if let Some(most) = self.memory.filter(|most| needed > *most) {
            let why = format!("a run takes {}, {} are allowed", ByteCount(needed), ByteCount(most));
            return Err(Error::limit("memory", why));
        }
        let flops = plan.steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.flops));
        let least = Duration::from_secs(flops / MOST_FLOPS / workers.max(1) as u64);
        match self.time.filter(|most| least > *most) {
            Some(most) => {
                let why = format!("a run takes {} s at least, {} s are allowed", least.as_secs(), most.as_secs_f64());
                Err(Error::limit("time", why))
            }
            None => Ok(()),
        }
    }
}

/// Bytes of all memory that a run by so many workers uses.
fn run_bytes(plan: &Plan, workers: usize) -> u64 {
    let edges = plan.inputs.iter().chain(&plan.outputs).chain(&plan.states);
    let tensors = edges.map(|id| plan.buffer(*id).bytes());
    let weights =
        plan.buffers.iter().filter(|buffer| matches!(buffer.storage, StorageClass::Weight(_))).map(|b| b.bytes());
    tensors.chain(weights).fold(plan.run_bytes(workers), u64::saturating_add)
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
    use tensorc_abi::{Buffer, BufferId, DType, Step, StepOp};

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
        limits.admit_plan(&plan(), workers).map_or_else(|e| e.to_string(), |()| "admitted".to_owned())
    }

    #[test]
    fn every_tensor_of_a_run_counts() {
        let memory = |bytes| Limits { memory: Some(bytes), ..Limits::default() };
        assert_eq!(refused(memory(4096), 1), "admitted");
        assert_eq!(refused(memory(4095), 1), "memory limit: a run takes 4.0 KiB, 4.0 KiB are allowed");
        assert_eq!(refused(memory(1000), 1), "memory limit: a run takes 4.0 KiB, 1000 bytes are allowed");
    }

    #[test]
    fn a_run_that_cannot_end_in_time_does_not_begin() {
        let time = |seconds| Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() };
        assert_eq!(refused(time(20), 1), "admitted");
        assert_eq!(refused(time(19), 1), "time limit: a run takes 20 s at least, 19 s are allowed");
        assert_eq!(refused(time(19), 2), "admitted");
    }

    #[test]
    fn without_limits_everything_is_admitted() {
        assert_eq!(refused(Limits::default(), 1), "admitted");
    }
}
