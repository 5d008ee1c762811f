//! Collectives of a group of ranks: sums, gatherings, broadcasts and barriers that every rank takes part in.
//!
//! A collective has a place in the order of its rank's program, taken by [`Group::reserve`], and begins when its data are
//! there ([`Ticket::start`]), in any order: engine operations start theirs when they run. A thread of the group's own does
//! the rest. Before data move, the ranks tell each other what they call; where that differs, where a rank does not come
//! within the deadline, where its data could not be computed or it has left, every rank gets one [`GroupError`], which is
//! also the answer to all that follows.
//!
//! - `call`, `message`: what ranks agree on, and how they say it
//! - `exchange`: the data of one collective
//! - `serve`: questions of one rank to another, which no third takes part in
//! - `driver`: the group's thread

mod call;
mod driver;
mod exchange;
mod message;
mod serve;

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tensorc_runtime::Profiler;

pub use call::{CallKind, CollectiveCall};
pub use serve::{Answered, Reply, ServeRequest, Server};

use crate::buffers::Buffers;
use crate::error::GroupError;
use crate::transport::{Transport, TransportError};

/// What is called with the outcome of a collective, on the group's thread.
pub type Done = Box<dyn FnOnce(Result<Vec<Bytes>, GroupError>) + Send>;

/// Why a contribution cannot be made; asked on the group's thread.
pub type Reason = Box<dyn FnOnce() -> String + Send>;

/// How a group works.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// How long a rank waits for the others in one collective.
    pub deadline: Duration,
    /// Records when ranks wait for each other and when data move.
    pub profiler: Option<Profiler>,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions { deadline: Duration::from_secs(30), profiler: None }
    }
}

/// What the group's thread is told.
enum GroupCommand {
    Reserve {
        call: CollectiveCall,
        priority: i32,
    },
    Start {
        sequence: u64,
        parts: Vec<Bytes>,
        done: Done,
    },
    Fail {
        sequence: u64,
        why: Reason,
    },
    Serve {
        server: Server,
    },
    Ask {
        to: usize,
        subject: u64,
        detail: u64,
        data: Bytes,
        done: Answered,
    },
    Answer {
        to: usize,
        id: u64,
        answer: Result<Bytes, String>,
    },
    Close {
        reply: SyncSender<Result<(), GroupError>>,
    },
    /// The last handle is gone: nobody waits for an orderly end.
    Abandon,
}

#[derive(Default)]
struct CommandQueue {
    commands: VecDeque<GroupCommand>,
    /// Collectives reserved so far.
    reserved: u64,
    failure: Option<GroupError>,
    ended: bool,
}

/// What handles and the group's thread share.
#[derive(Default)]
struct GroupState {
    queue: Mutex<CommandQueue>,
    bell: Condvar,
}

impl GroupState {
    fn lock(&self) -> MutexGuard<'_, CommandQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread, unless it has ended.
    fn tell(&self, command: GroupCommand) {
        let mut queue = self.lock();
        if queue.ended {
            let failure = queue.failure.clone().unwrap_or(GroupError::Closed);
            drop(queue);
            return command.refuse(failure);
        }
        queue.commands.push_back(command);
        drop(queue);
        self.bell.notify_one();
    }
}

impl GroupCommand {
    /// Answers a command that nobody carries out.
    fn refuse(self, failure: GroupError) {
        match self {
            GroupCommand::Start { done, .. } => done(Err(failure)),
            GroupCommand::Ask { done, .. } => done(Err(failure)),
            // A receiver that is gone waits for nothing.
            GroupCommand::Close { reply } => drop(reply.send(Err(failure))),
            GroupCommand::Reserve { .. }
            | GroupCommand::Fail { .. }
            | GroupCommand::Serve { .. }
            | GroupCommand::Answer { .. }
            | GroupCommand::Abandon => {}
        }
    }
}

/// A member of a group of ranks. Clones are handles of the same member.
#[derive(Clone)]
pub struct Group(Arc<GroupHandle>);

struct GroupHandle {
    shared: Arc<GroupState>,
    rank: usize,
    size: usize,
    buffers: Buffers,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Group {
    /// Joins a group through a transport, which is made and used on the group's own thread.
    ///
    /// # Errors
    /// There is no transport, or no thread.
    pub fn join(
        make: impl FnOnce() -> Result<Box<dyn Transport>, TransportError> + Send + 'static,
        options: GroupOptions,
    ) -> Result<Group, GroupError> {
        let (shared, buffers) = (Arc::new(GroupState::default()), Buffers::default());
        let (tell, told) = sync_channel(1);
        let (of_thread, of_driver) = (shared.clone(), buffers.clone());
        let body = move || match make() {
            Ok(transport) => {
                let place = (transport.rank(), transport.size());
                if tell.send(Ok(place)).is_ok() {
                    driver::drive(transport, of_thread, of_driver, options);
                }
            }
            // Whoever waited for it is gone.
            Err(error) => drop(tell.send(Err(error))),
        };
        let spawned = std::thread::Builder::new().name("kvstore".into()).spawn(body);
        let failed = |source| GroupError::Transport { rank: 0, source };
        let thread = spawned.map_err(|error| {
            failed(TransportError::Library { call: "starting a thread", message: error.to_string() })
        })?;
        let (rank, size) = told.recv().map_err(|_| GroupError::Closed)?.map_err(failed)?;
        let thread = Mutex::new(Some(thread));
        Ok(Group(Arc::new(GroupHandle { shared, rank, size, buffers, thread })))
    }

    /// The number of this member, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Members of the group.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Memory for contributions.
    pub fn buffers(&self) -> &Buffers {
        &self.0.buffers
    }

    /// What made the group fail, if anything did.
    pub fn failure(&self) -> Option<GroupError> {
        self.0.shared.lock().failure.clone()
    }

    /// Takes the next place among the collectives of this rank. Collectives of a higher priority move their data first.
    pub fn reserve(&self, call: CollectiveCall, priority: i32) -> Ticket {
        let mut queue = self.0.shared.lock();
        let sequence = queue.reserved;
        queue.reserved += 1;
        if !queue.ended {
            queue.commands.push_back(GroupCommand::Reserve { call: call.clone(), priority });
        }
        drop(queue);
        self.0.shared.bell.notify_one();
        Ticket { shared: self.0.shared.clone(), sequence, call, open: true, why: None }
    }

    /// Runs a collective and waits for its end.
    ///
    /// # Errors
    /// The group has failed, or fails now.
    pub fn wait(&self, call: CollectiveCall, parts: Vec<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        let (tell, told) = sync_channel(1);
        // The receiver waits until it is answered.
        let done: Done = Box::new(move |result| drop(tell.send(result)));
        self.reserve(call, 0).start(parts, done);
        told.recv().unwrap_or(Err(GroupError::Closed))
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// As [`Group::wait`].
    pub fn barrier(&self, key: &str) -> Result<(), GroupError> {
        self.wait(CollectiveCall::barrier(key), vec![]).map(drop)
    }

    /// The bytes that each rank gives, by rank.
    ///
    /// # Errors
    /// As [`Group::wait`].
    pub fn gather(&self, key: &str, bytes: Vec<u8>) -> Result<Vec<Bytes>, GroupError> {
        self.wait(CollectiveCall::gather(key), vec![Bytes::from(bytes)])
    }

    /// Answers the questions of other ranks, and of this one, from now on.
    pub fn serve(&self, server: Server) {
        self.0.shared.tell(GroupCommand::Serve { server });
    }

    /// Asks a rank, which may be this one; returns before it answers. Questions to one rank arrive in the order in which
    /// they were asked.
    pub fn ask(&self, to: usize, subject: u64, detail: u64, data: Bytes, done: Answered) {
        self.0.shared.tell(GroupCommand::Ask { to, subject, detail, data, done });
    }

    /// Leaves the group when all ranks do, after everything that was started. A rank that calls something else gets an
    /// error, as does this one.
    ///
    /// # Errors
    /// The group has failed, or fails now.
    pub fn close(&self) -> Result<(), GroupError> {
        let (tell, told) = sync_channel(1);
        self.0.shared.tell(GroupCommand::Close { reply: tell });
        let result = told.recv().unwrap_or(Err(GroupError::Closed));
        self.0.join();
        result
    }
}

impl GroupHandle {
    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A callback may hold the last handle, on the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of the thread was answered with `Closed`.
            let _ = thread.join();
        }
    }
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        self.shared.tell(GroupCommand::Abandon);
        self.join();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

/// A place among the collectives of a rank. Dropping it without a contribution fails the group.
pub struct Ticket {
    shared: Arc<GroupState>,
    sequence: u64,
    call: CollectiveCall,
    open: bool,
    why: Option<Reason>,
}

impl Ticket {
    /// What every rank calls here.
    pub fn call(&self) -> &CollectiveCall {
        &self.call
    }

    /// Says why no contribution came, should the ticket be dropped.
    #[must_use]
    pub fn or_because(mut self, why: Reason) -> Ticket {
        self.why = Some(why);
        self
    }

    /// Takes part. A sum takes the partial sums over the maximal complete subtrees ([`crate::tree::subtrees`]) of this
    /// rank's leaves; rank r holds the r-th [`CollectiveCall::leaves`] of all.
    pub fn start(mut self, parts: Vec<Bytes>, done: Done) {
        self.open = false;
        self.shared.tell(GroupCommand::Start { sequence: self.sequence, parts, done });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            let why = self.why.take().unwrap_or_else(|| Box::new(|| "it was given up".into()));
            self.shared.tell(GroupCommand::Fail { sequence: self.sequence, why });
        }
    }
}
