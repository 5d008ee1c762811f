//! How an operation and an engine are described.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use super::error::EngineError;
use super::sched::Shared as Engine;
use super::state::OpId;
use super::var::Var;
use crate::device::Device;
use crate::profiler::{self, Profiler};

/// The name of an operator, optionally with the node of a graph it stands for. Cheap to clone.
#[derive(Clone, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{}", self.operator())]
pub struct OpName(Repr);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    Static(&'static str),
    Shared(Arc<Shared>),
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shared {
    operator: profiler::SpanName,
    node: Option<Box<str>>,
}

impl OpName {
    /// The name of an operator that stands for no node.
    pub const fn from_static(operator: &'static str) -> OpName {
        OpName(Repr::Static(operator))
    }

    /// The operator of a node of a graph.
    pub fn at_node(operator: &str, node: &str) -> OpName {
        OpName(Repr::Shared(Arc::new(Shared { operator: operator.to_owned().into(), node: Some(node.into()) })))
    }

    /// The operator's name.
    pub fn operator(&self) -> &str {
        match &self.0 {
            Repr::Static(operator) => operator,
            Repr::Shared(shared) => &shared.operator,
        }
    }

    /// The operator for a trace.
    pub(super) fn text(&self) -> profiler::SpanName {
        match &self.0 {
            Repr::Static(operator) => profiler::SpanName::from_static(operator),
            Repr::Shared(shared) => shared.operator.clone(),
        }
    }

    /// Name of the node in a graph, if it stands for one.
    pub fn node(&self) -> Option<&str> {
        match &self.0 {
            Repr::Static(_) => None,
            Repr::Shared(shared) => shared.node.as_deref(),
        }
    }
}

impl From<&'static str> for OpName {
    fn from(operator: &'static str) -> OpName {
        OpName::from_static(operator)
    }
}

impl From<String> for OpName {
    fn from(operator: String) -> OpName {
        OpName(Repr::Shared(Arc::new(Shared { operator: operator.into(), node: None })))
    }
}

impl Deref for OpName {
    type Target = str;

    fn deref(&self) -> &str {
        self.operator()
    }
}

impl fmt::Debug for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operator())?;
        self.node().map_or(Ok(()), |node| write!(f, " at {node:?}"))
    }
}

/// What kind of work an operation is. [`EngineKind::PerDevice`] chooses the queue by it, and the
/// other kinds ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Property {
    /// Computation.
    #[default]
    Normal,
    /// Transfer into the memory of an accelerator.
    CopyToDevice,
    /// Transfer out of the memory of an accelerator.
    CopyFromDevice,
    /// Short work that others wait for, on workers of its own, so that it does not queue behind
    /// computation.
    Prioritized,
}

/// One operation as it is pushed.
///
/// A variable in both lists is updated; a second mention in one list means nothing.
#[derive(Clone, Copy)]
pub struct Op<'a> {
    /// The operator's name, for errors and the profiler.
    pub name: &'a OpName,
    /// The device whose workers run it.
    pub device: Device,
    /// Variables that it reads.
    pub reads: &'a [&'a Var],
    /// Variables that it writes: overwritten unless they are read as well.
    pub writes: &'a [&'a Var],
    /// Of the operations that wait for a worker of a queue, the one with the greatest priority
    /// starts first, and of several the one that became ready first. Every queue of every kind of
    /// engine honours it.
    pub priority: i32,
    /// Kind of work, which chooses the queue.
    pub property: Property,
    /// Bytes moved, for the profiler.
    pub bytes: u64,
    /// Bytes of host memory that the function holds until it has run, which count against
    /// [`EngineConfig::max_staged_bytes`].
    pub staged_bytes: u64,
}

impl<'a> Op<'a> {
    /// An operation on the first processor that uses no variable.
    pub fn new(name: &'a OpName) -> Op<'a> {
        Op {
            name,
            device: Device::default(),
            reads: &[],
            writes: &[],
            priority: 0,
            property: Property::Normal,
            bytes: 0,
            staged_bytes: 0,
        }
    }
}

/// What a running operation knows about its place.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RunContext<'a> {
    /// The operator's name.
    pub op: &'a str,
    /// The device that the operation was pushed for.
    pub device: Device,
    /// Number of the worker among those of its queue.
    pub worker: usize,
    /// Number of the stream of work, different for every worker of an engine; 0 on threads that are
    /// no workers.
    pub stream: u32,
    pub(super) running: Option<Running<'a>>,
}

/// A running operation that ends when its function returns.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("{op:?}")]
pub(super) struct Running<'a> {
    pub shared: &'a Arc<Engine>,
    pub op: OpId,
}

impl RunContext<'_> {
    /// Gives up a variable that the operation has overwritten, while it goes on: what was pushed later may use the
    /// variable from now on, and finds no error, however the operation ends. The operation does not touch any more what
    /// the variable stands for.
    ///
    /// False, and nothing changes, unless the variable is written and not read, and was not given up before. Those of [`super::Engine::push_async`] do it by [`super::Completion::release`].
    pub fn release(&self, var: &Var) -> bool {
        self.running.is_some_and(|Running { shared, op }| shared.release(op, var))
    }
}

tensorc_abi::named! {
    /// Where operations run.
    #[derive(Clone, Copy, Debug, Default, derive_more::Display, PartialEq, Eq, Hash)]
    #[display("{}", self.name())]
    pub enum EngineKind {
        /// On the thread that pushes, before the push returns.
        ///
        /// An operation pushed by an operation runs after it, and operations of several pushing threads
        /// wait for one another by the same rules as on workers; any thread that pushes or waits runs
        /// whatever is ready.
        Naive = "naive",
        /// On one pool of workers for all devices.
        Pooled = "pooled",
        /// On workers of each device, started when the device is first used.
        #[default]
        PerDevice = "per_device",
    }
}

impl EngineKind {
    pub(super) fn names() -> String {
        EngineKind::ALL.map(EngineKind::name).join(", ")
    }
}

impl FromStr for EngineKind {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<EngineKind, EngineError> {
        EngineKind::from_name(text).ok_or_else(|| EngineError::UnknownKind { name: text.to_owned() })
    }
}

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where operations run.
    pub kind: EngineKind,
    /// Workers of each processor device, and of the pool of [`EngineKind::Pooled`].
    pub cpu_workers: usize,
    /// Workers of each device for [`Property::Prioritized`].
    pub priority_workers: usize,
    /// Workers of each accelerator for computation.
    pub accelerator_workers: usize,
    /// Workers of each accelerator for transfers.
    pub copy_workers: usize,
    /// Bounded run-ahead: while so many operations are pending, a push waits until half of them are
    /// done. Pushes of operations never wait.
    pub max_pending: usize,
    /// As [`EngineConfig::max_pending`] for the sum of [`Op::staged_bytes`]. A single operation may
    /// exceed it.
    pub max_staged_bytes: u64,
    /// Records every operation that runs while it is on.
    pub profiler: Option<Profiler>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            kind: EngineKind::default(),
            cpu_workers: crate::threads::available_threads(),
            priority_workers: 1,
            accelerator_workers: 2,
            copy_workers: 2,
            max_pending: 1 << 13,
            max_staged_bytes: 1 << 30,
            profiler: None,
        }
    }
}

impl EngineConfig {
    /// Most workers of one queue.
    pub const MAX_WORKERS: usize = 1024;

    pub(super) fn check(&self) -> Result<(), EngineError> {
        let workers = [
            ("cpu_workers", self.cpu_workers),
            ("priority_workers", self.priority_workers),
            ("accelerator_workers", self.accelerator_workers),
            ("copy_workers", self.copy_workers),
        ];
        let limited = workers.map(|(what, given)| (what, given as u64, Self::MAX_WORKERS as u64));
        let bounds =
            [("max_pending", self.max_pending as u64, u64::MAX), ("max_staged_bytes", self.max_staged_bytes, u64::MAX)];
        for (what, given, max) in limited.into_iter().chain(bounds) {
            if given == 0 || given > max {
                return Err(EngineError::Config { what, given, max });
            }
        }
        Ok(())
    }
}
