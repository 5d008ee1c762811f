//! Questions of one rank to another: the part of the group's thread that asks, and that hands questions to who serves them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::message::Question;
use super::{GroupCommand, GroupState};
use crate::error::GroupError;

/// What is called with an answer, on the group's thread.
pub type Answered = Box<dyn FnOnce(Result<Bytes, GroupError>) + Send>;

/// Who answers; called on the group's thread, for which it must not wait.
pub type Server = Box<dyn FnMut(ServeRequest) + Send>;

/// A question of a rank.
pub struct ServeRequest {
    /// The rank that asks.
    pub from: usize,
    /// What the question is about.
    pub subject: u64,
    /// A number that belongs to the question.
    pub detail: u64,
    /// The data of the question.
    pub data: Bytes,
    /// Where the answer goes.
    pub reply: Reply,
}

/// The obligation to answer, from any thread. Dropping it fails the group.
pub struct Reply {
    shared: Arc<GroupState>,
    to: usize,
    id: u64,
    open: bool,
}

impl Reply {
    pub(super) fn new(shared: Arc<GroupState>, to: usize, id: u64) -> Reply {
        Reply { shared, to, id, open: true }
    }

    /// Answers, or says why that cannot be, which fails the group.
    pub fn send(mut self, answer: Result<Bytes, String>) {
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<Bytes, String>) {
        if std::mem::take(&mut self.open) {
            self.shared.tell(GroupCommand::Answer { to: self.to, id: self.id, answer });
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(Err("it was not answered".into()));
    }
}

/// A question that was asked.
pub struct Asked {
    pub to: usize,
    pub since: Instant,
    pub done: Answered,
}

/// Questions under way, in both directions.
#[derive(Default)]
pub struct Desk {
    pub server: Option<Server>,
    /// Questions that came before there was a server.
    pub early: VecDeque<ServeRequest>,
    pub asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Questions that are not answered.
    pub open: usize,
}

impl Desk {
    /// Notes a question, and returns its number.
    pub fn ask(&mut self, to: usize, done: Answered) -> u64 {
        let id = self.next;
        self.next += 1;
        self.asked.insert(id, Asked { to, since: Instant::now(), done });
        id
    }

    /// Hands a question to the server.
    pub fn hand_over(&mut self, shared: &Arc<GroupState>, from: usize, question: Question, data: Bytes) {
        self.open += 1;
        let Question { id, subject, detail, .. } = question;
        let request = ServeRequest { from, subject, detail, data, reply: Reply::new(shared.clone(), from, id) };
        match &mut self.server {
            Some(server) => server(request),
            None => self.early.push_back(request),
        }
    }

    /// Begins to serve.
    pub fn open(&mut self, mut server: Server) {
        self.early.drain(..).for_each(&mut server);
        self.server = Some(server);
    }

    /// The rank that has not answered for so long.
    pub fn late(&self, limit: Duration) -> Option<usize> {
        self.asked.values().find(|asked| asked.since.elapsed() > limit).map(|asked| asked.to)
    }

    pub fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.open == 0
    }
}
