//! The streams of a GPU made of the host, and the memory they work on.
//!
//! StreamWork is done by one thread, and only when somebody waits for some of it: until then everything enqueued stays undone.
//! Which stream goes on is drawn from a seed, so that order comes from events and waiting alone: a program that lacks
//! some of them computes wrong numbers.

mod memory;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use crate::device::stream::{Callback, Event, Stream, StreamError, StreamWork, Transfer};
use crate::device::{Device, DeviceKind};
use crate::driver::{DriverError, Graph, HostKernel, LaunchConfig, LaunchStream, LoadedKernel, Memory, Rows};
use crate::engine::Failure;
use crate::pool::TaskPanic;
use memory::DeviceMemory;

/// At multiples of what arguments of kernels begin, as wide accesses of a GPU need.
const ARGUMENT_ALIGNMENT: usize = 16;
/// One in so many steps goes on with another stream.
const SWITCH: u64 = 4;
/// How long to wait for what other devices do before looking again.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// StreamWork that may be done more than once.
type ReplayableFn = Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>;

enum Command {
    Run(StreamWork),
    Step(ReplayableFn),
    /// With whether the failure is taken out of the stream.
    Record(Arc<SimulatedEvent>, bool),
    /// With whether a failure of the event becomes the stream's.
    Wait(Arc<dyn Event>, bool),
    Complete(Callback),
}

/// What is recorded of a stream.
#[derive(Default)]
struct Recording {
    steps: Vec<ReplayableFn>,
    kernels: Vec<Arc<LaunchConfig>>,
    wrong: Option<&'static str>,
}

#[derive(Default)]
struct SimulatedQueue {
    commands: VecDeque<Command>,
    /// One of its commands is being executed.
    busy: bool,
    failure: Option<StreamError>,
    recording: Option<Recording>,
}

struct State {
    queues: BTreeMap<u64, SimulatedQueue>,
    /// Streams made so far.
    streams: u64,
    /// Who waits for work to be done.
    waiting: usize,
    /// Commands that somebody looked for without waiting.
    nudges: usize,
    /// The stream that went on last.
    current: u64,
    random: u64,
    closing: bool,
}

impl State {
    /// Whether somebody is to be told of something.
    fn in_demand(&self) -> bool {
        let told = |queue: &SimulatedQueue| queue.commands.iter().any(|c| matches!(c, Command::Complete(_)));
        self.waiting > 0 || self.nudges > 0 || self.queues.values().any(told)
    }

    fn draw(&mut self, below: u64) -> u64 {
        // The generator of Marsaglia, "Xorshift RNGs", 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    /// The stream that goes on.
    fn choose(&mut self) -> Option<u64> {
        let ready = |queue: &SimulatedQueue| match queue.commands.front() {
            Some(Command::Wait(event, _)) => event.query(),
            other => other.is_some(),
        };
        let ready: Vec<u64> = self.queues.iter().filter(|(_, queue)| ready(queue)).map(|(id, _)| *id).collect();
        let stays = ready.contains(&self.current) && self.draw(SWITCH) > 0;
        if !stays && !ready.is_empty() {
            self.current = ready[self.draw(ready.len() as u64) as usize];
        }
        ready.contains(&self.current).then_some(self.current)
    }
}

/// A device made of the host. Dropping it ends its thread.
pub(super) struct Simulator {
    shared: Arc<Shared>,
    /// Started with the first stream.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    device: Device,
    state: Mutex<State>,
    changed: Condvar,
    memory: Arc<DeviceMemory>,
    /// The thread that does the work.
    worker: OnceLock<ThreadId>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulator {
    pub fn new(device: Device, seed: u64) -> Simulator {
        let random = (seed ^ 0x9e37_79b9_7f4a_7c15).max(1);
        let state =
            State { queues: BTreeMap::new(), streams: 0, waiting: 0, nudges: 0, current: 0, random, closing: false };
        let memory = DeviceMemory::new(device);
        let (state, changed, worker) = (Mutex::new(state), Condvar::new(), OnceLock::new());
        Simulator { shared: Arc::new(Shared { device, state, changed, memory, worker }), thread: Mutex::default() }
    }

    pub fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        let fail = |e| DriverError { device: self.shared.device, message: format!("{e}") };
        self.shared.memory.alloc(bytes).map_err(fail)
    }

    pub fn stream(self: &Arc<Self>) -> Result<SimulatedStream, DriverError> {
        let device = self.shared.device;
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let worker = self.shared.clone();
            let started = thread::Builder::new().name(device.to_string()).spawn(move || worker.work());
            let fail = |e| DriverError { device, message: format!("its thread cannot start: {e}") };
            *thread = Some(started.map_err(fail)?);
        }
        let mut state = lock(&self.shared.state);
        let id = state.streams;
        state.streams += 1;
        state.queues.insert(id, SimulatedQueue::default());
        Ok(SimulatedStream { simulator: self.clone(), id })
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_all();
        let here = self.shared.is_here();
        if let Some(thread) = lock(&self.thread).take().filter(|_| !here) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the thread catches every panic");
        }
    }
}

impl Shared {
    /// Does what is enqueued, while somebody wants some of it.
    fn work(&self) {
        self.worker.get_or_init(|| thread::current().id());
        let mut state = lock(&self.state);
        loop {
            if state.closing {
                return;
            }
            if !state.in_demand() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(id) = state.choose() else {
                state.nudges = 0;
                // What is waited for may be another device's.
                state = self.changed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            state.nudges = state.nudges.saturating_sub(1);
            let Some(queue) = state.queues.get_mut(&id) else { continue };
            let Some(command) = queue.commands.pop_front() else { continue };
            queue.busy = true;
            let failure = queue.failure.clone();
            drop(state);
            let (taken, result) = self.execute(command, failure);
            state = lock(&self.state);
            if let Some(queue) = state.queues.get_mut(&id) {
                queue.busy = false;
                if taken {
                    queue.failure = None;
                }
                if let Err(error) = result {
                    queue.failure.get_or_insert(error);
                }
            }
            self.changed.notify_all();
        }
    }

    /// Whether the failure of the stream was taken out of it, and a new one.
    fn execute(&self, command: Command, failure: Option<StreamError>) -> (bool, Result<(), StreamError>) {
        let failed = failure.is_some();
        let outcome = failure.map_or(Ok(()), Err);
        match command {
            Command::Run(work) => (false, self.guard(move || if failed { Ok(()) } else { work() })),
            Command::Step(step) => (false, self.guard(|| if failed { Ok(()) } else { step() })),
            Command::Wait(event, carries) => {
                (false, event.synchronize().or_else(|e| if carries { Err(e) } else { Ok(()) }))
            }
            Command::Record(mark, takes) => {
                *lock(&mark.passed) = Some(outcome);
                (takes, Ok(()))
            }
            Command::Complete(callback) => {
                let call = || {
                    callback(outcome);
                    Ok(())
                };
                (true, self.guard(call))
            }
        }
    }

    fn guard(&self, f: impl FnOnce() -> Result<(), Failure>) -> Result<(), StreamError> {
        let result = catch_unwind(AssertUnwindSafe(f));
        let result = result.unwrap_or_else(|payload| Err(TaskPanic::from_payload(payload).into()));
        result.map_err(|cause| StreamError::Failed { device: self.device, cause: cause.into() })
    }

    fn is_here(&self) -> bool {
        self.worker.get() == Some(&thread::current().id())
    }

    /// Lets work be done until `done`.
    fn wait<T>(&self, mut done: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        state.waiting += 1;
        self.changed.notify_all();
        loop {
            if let Some(result) = done(&mut state) {
                state.waiting -= 1;
                return result;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn launch(&self, kernel: &HostKernel, addresses: &[usize]) -> Result<(), Failure> {
        if addresses.len() != kernel.buffers.len() {
            return Err("a launch with another number of arguments".into());
        }
        let pairs = || addresses.iter().zip(&kernel.buffers);
        let mut buffers = vec![];
        for (i, (address, (bytes, _))) in pairs().enumerate() {
            if !address.is_multiple_of(ARGUMENT_ALIGNMENT) {
                return Err(format!("argument {i} is at no multiple of {ARGUMENT_ALIGNMENT} bytes").into());
            }
            buffers.push(self.memory.read(*address, *bytes)?);
        }
        let before = buffers.clone();
        (kernel.run)(&mut buffers)?;
        // Buffers may be parts of one tensor whose elements alternate: only what was changed is written.
        for (((address, (bytes, _)), old), new) in pairs().zip(&before).zip(&buffers).filter(|((p, _), _)| p.1.1) {
            self.memory.with(*address, *bytes, |into| {
                for (i, byte) in new.iter().enumerate().filter(|(i, byte)| old[*i] != **byte) {
                    into[i] = *byte;
                }
            })?;
        }
        Ok(())
    }
}

/// The memory of a device with an address; none for the host's.
fn memory_of(device: Device, address: usize) -> Result<Option<Arc<DeviceMemory>>, Failure> {
    if device.kind != DeviceKind::Accelerator {
        return Ok(None);
    }
    let memory = DeviceMemory::of(device, address);
    memory.map(Some).ok_or_else(|| format!("{address:#x} is no address of {device}").into())
}

fn copy(transfer: Transfer) -> Result<(), Failure> {
    let Transfer { source, from, target, to, bytes } = transfer;
    if bytes == 0 {
        return Ok(());
    }
    match (memory_of(from, source.addr())?, memory_of(to, target.addr())?) {
        // Copied out before, as both may be one memory, which is locked meanwhile.
        (Some(here), Some(there)) => there.write(target.addr(), &here.read(source.addr(), bytes)?)?,
        // SAFETY: promised by the caller of `copy`.
        (Some(here), None) => here.with(source.addr(), bytes, |data| unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), target, bytes);
        })?,
        // SAFETY: promised by the caller of `copy`.
        (None, Some(there)) => there.with(target.addr(), bytes, |into| unsafe {
            std::ptr::copy_nonoverlapping(source, into.as_mut_ptr(), bytes);
        })?,
        // SAFETY: promised by the caller of `copy`.
        (None, None) => unsafe { transfer.in_host_memory() },
    }
    Ok(())
}

/// A stream of a [`Simulator`]. Dropping it waits for the work enqueued.
pub(super) struct SimulatedStream {
    simulator: Arc<Simulator>,
    id: u64,
}

impl SimulatedStream {
    fn shared(&self) -> &Arc<Shared> {
        &self.simulator.shared
    }

    fn queue<R>(&self, f: impl FnOnce(&mut SimulatedQueue) -> R) -> R {
        let mut state = lock(&self.shared().state);
        f(state.queues.entry(self.id).or_default())
    }

    fn push(&self, command: Command) {
        self.queue(|queue| match (&mut queue.recording, command) {
            (Some(recording), Command::Step(step)) => recording.steps.push(step),
            (Some(recording), _) => {
                recording.wrong.get_or_insert("a stream that records was asked for more than device work");
            }
            (None, command) => queue.commands.push_back(command),
        });
        self.shared().changed.notify_all();
    }

    /// A step that refers to the device without keeping it.
    fn step(&self, f: impl Fn(&Shared) -> Result<(), Failure> + Send + Sync + 'static) -> ReplayableFn {
        let shared = Arc::downgrade(self.shared());
        Arc::new(move || shared.upgrade().map_or(Ok(()), |shared| f(&shared)))
    }

    fn mark(&self, takes: bool) -> Arc<dyn Event> {
        let mark = Arc::new(SimulatedEvent { shared: Arc::downgrade(self.shared()), passed: Mutex::new(None) });
        self.push(Command::Record(mark.clone(), takes));
        mark
    }

    fn error(&self, message: &str) -> DriverError {
        DriverError { device: self.device(), message: message.into() }
    }
}

impl Stream for SimulatedStream {
    fn device(&self) -> Device {
        self.shared().device
    }

    fn enqueue(&self, work: StreamWork) {
        self.push(Command::Run(work));
    }

    unsafe fn copy(&self, transfer: Transfer) {
        let transfer = Copied(transfer);
        let step: ReplayableFn = Arc::new(move || copy(transfer.get()));
        let inside = transfer.get().from == transfer.get().to;
        match inside || self.queue(|queue| queue.recording.is_none()) {
            true => self.push(Command::Step(step)),
            false => self.push(Command::Run(Box::new(|| Ok(())))),
        }
    }

    fn record(&self) -> Arc<dyn Event> {
        self.mark(false)
    }

    fn wait_event(&self, event: &Arc<dyn Event>) {
        self.push(Command::Wait(event.clone(), true));
    }

    fn on_complete(&self, callback: Callback) {
        self.push(Command::Complete(callback));
    }

    fn query(&self) -> bool {
        let mut state = lock(&self.shared().state);
        let idle = state.queues.get(&self.id).is_none_or(|queue| queue.commands.is_empty() && !queue.busy);
        state.nudges += usize::from(!idle);
        self.shared().changed.notify_all();
        idle
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        if self.shared().is_here() {
            return Err(StreamError::Itself { device: self.device() });
        }
        self.close().synchronize()
    }
}

impl LaunchStream for SimulatedStream {
    unsafe fn launch(&self, function: &LoadedKernel, arguments: &[*mut u8]) {
        let (function, addresses) = (function.clone(), arguments.iter().map(|a| a.addr()).collect::<Vec<_>>());
        self.queue(|queue| {
            if let Some(recording) = &mut queue.recording {
                recording.kernels.push(function.entry.clone());
            }
        });
        self.push(Command::Step(self.step(move |shared| {
            let name = &function.entry.name;
            let kernel = function.code.downcast_ref::<HostKernel>();
            let kernel = kernel.ok_or_else(|| format!("kernel `{name}` was loaded by another driver"))?;
            shared.launch(kernel, &addresses).map_err(|e| format!("kernel `{name}`: {e}").into())
        })));
    }

    unsafe fn fill(&self, target: *mut u8, bytes: usize, element: &[u8]) {
        let (target, element) = (target.addr(), element.to_vec());
        self.push(Command::Step(self.step(move |shared| {
            let repeat = |into: &mut [u8]| {
                into.chunks_exact_mut(element.len().max(1)).for_each(|to| to.copy_from_slice(&element))
            };
            Ok(shared.memory.with(target, bytes, repeat)?)
        })));
    }

    unsafe fn copy_rows(&self, rows: Rows) {
        let Rows { source_stride, target_stride, width, count, .. } = rows;
        let (source, target) = (rows.source.addr(), rows.target.addr());
        self.push(Command::Step(self.step(move |shared| {
            if source_stride.min(target_stride) < width || source_stride.max(target_stride) > Rows::MAX_STRIDE {
                return Err(format!("rows of {width} bytes at distances of {source_stride} and {target_stride}").into());
            }
            for row in 0..count {
                let data = shared.memory.read(source + row * source_stride, width)?;
                shared.memory.write(target + row * target_stride, &data)?;
            }
            Ok(())
        })));
    }

    fn begin_capture(&self) -> Result<(), DriverError> {
        self.queue(|queue| queue.recording = Some(Recording::default()));
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph, DriverError> {
        let recording = self.queue(|queue| queue.recording.take());
        let recording = recording.ok_or_else(|| self.error("the stream does not record"))?;
        match recording.wrong {
            Some(why) => Err(self.error(why)),
            None => Ok(Graph { code: Box::new(recording.steps), kernels: recording.kernels.into() }),
        }
    }

    unsafe fn replay(&self, graph: &Graph) {
        match graph.code.downcast_ref::<Vec<ReplayableFn>>() {
            Some(steps) => steps.iter().for_each(|step| self.push(Command::Step(step.clone()))),
            None => self.enqueue(Box::new(|| Err("a graph of another driver".into()))),
        }
    }

    fn follow(&self, event: &Arc<dyn Event>) {
        self.push(Command::Wait(event.clone(), false));
    }

    fn close(&self) -> Arc<dyn Event> {
        self.mark(true)
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        let (shared, id) = (self.shared(), self.id);
        if shared.is_here() {
            return;
        }
        shared.wait(|state| {
            let idle = state.queues.get(&id).is_none_or(|queue| queue.commands.is_empty() && !queue.busy);
            idle.then(|| drop(state.queues.remove(&id)))
        });
    }
}

/// Addresses on their way to the device.
#[derive(Clone, Copy)]
struct Copied(Transfer);

impl Copied {
    fn get(self) -> Transfer {
        self.0
    }
}

// SAFETY: the pointers are used only by the copy, whose caller answers for them on any thread.
unsafe impl Sync for Copied {}

/// A point in a stream.
struct SimulatedEvent {
    shared: Weak<Shared>,
    passed: Mutex<Option<Result<(), StreamError>>>,
}

impl Event for SimulatedEvent {
    fn query(&self) -> bool {
        let passed = lock(&self.passed).is_some();
        if let Some(shared) = self.shared.upgrade().filter(|shared| !passed && !shared.is_here()) {
            // The lock may be held by a device that looks at another one's event; who looks again is heard then.
            if let Ok(mut state) = shared.state.try_lock() {
                state.nudges += 1;
                shared.changed.notify_all();
            }
        }
        passed
    }

    fn synchronize(&self) -> Result<(), StreamError> {
        if let Some(result) = &*lock(&self.passed) {
            return result.clone();
        }
        let Some(shared) = self.shared.upgrade() else { return Ok(()) };
        if shared.is_here() {
            return Err(StreamError::Itself { device: shared.device });
        }
        shared.wait(|_| lock(&self.passed).clone())
    }
}
