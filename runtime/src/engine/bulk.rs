//! Joining short operations that a thread pushes one after the other.
//!
//! An operation joins the one before it while both still lie in the inbox, so joining delays
//! nothing: it happens only where workers are behind, and a wait has nothing to flush.

use super::inbox::{Body, Inbox, Job};
use super::run::Part;
use super::state::{Access, AccessKind, VarId};

/// Operations joined into one, in order.
#[derive(Default)]
pub struct Bulk {
    pub parts: Vec<Part>,
}

/// A number that no other living thread has.
pub fn thread_key() -> usize {
    thread_local! {
        static KEY: u8 = const { 0 };
    }
    KEY.with(|key| std::ptr::from_ref(key).addr())
}

/// The access that stands for an earlier one of a bulk and a later one to the same variable.
///
/// What a part of the bulk has overwritten is its own: later parts do not see the old value.
fn join_in_order(earlier: AccessKind, later: AccessKind) -> AccessKind {
    match (earlier, later) {
        (AccessKind::Write, _) => AccessKind::Write,
        (AccessKind::Read, AccessKind::Read) => AccessKind::Read,
        _ => AccessKind::Update,
    }
}

impl Inbox {
    /// Appends a job of thread `thread` that may be joined to others of its kind.
    pub fn append_or_join(&mut self, job: Job, accesses: impl Iterator<Item = Access> + Clone, thread: usize) {
        let size = match self.batch.jobs.back() {
            Some(last) if self.open == Some(thread) && (last.device, last.lane) == (job.device, job.lane) => {
                match &last.body {
                    Body::Task(_) => 1,
                    Body::Bulk(bulk) => bulk.parts.len(),
                    _ => usize::MAX,
                }
            }
            _ => usize::MAX,
        };
        if size >= self.bulk_size {
            self.batch.accesses.extend(accesses);
            self.append(job, None);
            self.open = Some(thread);
            return;
        }
        let Some(mut last) = self.batch.jobs.pop_back() else { return };
        let begin = self.batch.accesses.len() - last.accesses as usize;
        // Within one operation a variable that is read and written is updated.
        let of_one = accesses.clone().map(|Access { var, kind, ahead }| {
            let both = accesses.clone().any(|other| other.var == var && other.kind != kind);
            Access { var, kind: if both { AccessKind::Update } else { kind }, ahead }
        });
        for access in of_one {
            self.join_access(begin, access);
        }
        last.accesses = (self.batch.accesses.len() - begin) as u32;
        last.staged_bytes += job.staged_bytes;
        self.staged += job.staged_bytes;
        if let Body::Task(task) = job.body {
            last.body = match last.body {
                Body::Task(first) => {
                    let mut parts = Vec::with_capacity(self.bulk_size.min(64));
                    parts.push(Part { name: last.name.clone(), task: first, bytes: last.bytes });
                    parts.push(Part { name: job.name, task, bytes: job.bytes });
                    Body::Bulk(Box::new(Bulk { parts }))
                }
                Body::Bulk(mut bulk) => {
                    bulk.parts.push(Part { name: job.name, task, bytes: job.bytes });
                    Body::Bulk(bulk)
                }
                other => other,
            };
        }
        self.batch.jobs.push_back(last);
    }

    /// Joins one access to those of the last job, which begin at `begin`.
    fn join_access(&mut self, begin: usize, access: Access) {
        let same = |earlier: &&mut Access| -> bool { VarId::eq(&earlier.var, &access.var) };
        match self.batch.accesses[begin..].iter_mut().find(same) {
            Some(earlier) => earlier.kind = join_in_order(earlier.kind, access.kind),
            None => self.batch.accesses.push(access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::Task;
    use super::*;

    #[test]
    fn accesses_join_in_order() {
        use AccessKind::{Read, Update, Write};
        let mut inbox = Inbox { bulk_size: 8, ..Inbox::default() };
        let push = |inbox: &mut Inbox, list: &[(u32, AccessKind)]| {
            let job = Job { accesses: list.len() as u32, ..Job::internal(Body::Task(Task::new(|_, _| Some(Ok(()))))) };
            let accesses = list.iter().map(|&(var, kind)| Access::new(VarId(var), kind));
            inbox.append_or_join(job, accesses, 1);
        };
        push(&mut inbox, &[(0, Write), (1, Read)]);
        push(&mut inbox, &[(1, Write), (0, Read), (2, Write)]);
        push(&mut inbox, &[(3, Write), (3, Read), (2, Write), (2, Read), (1, Read)]);
        let kinds: Vec<_> = inbox.batch.accesses.iter().map(|access| (access.var.0, access.kind)).collect();
        assert_eq!(kinds, [(0, Write), (1, Update), (2, Write), (3, Update)]);
        assert_eq!((inbox.batch.jobs.len(), inbox.batch.jobs[0].accesses, inbox.pushed), (1, 4, 1));
    }
}
