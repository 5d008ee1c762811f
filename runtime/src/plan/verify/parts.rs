//! Buffers that are parts of others lie in them, and what is written part by part is written once.
//!
//! Written parts of a whole have no element in common. So a whole, or a part of it, is written as soon
//! as written parts have as many elements in common with it as it has.

use tensorc_abi::{Arg, Buffer, BufferId, Plan, Step, StorageClass, SubBuffer};

use super::super::error::PlanError;
use super::byte_size;

/// A part has whole runs, if it has elements, that lie in a buffer of its type and storage class, which is no part and no weight.
pub(super) fn check_buffer(plan: &Plan, buffer: &Buffer) -> Result<(), PlanError> {
    let Some(part) = buffer.part else { return Ok(()) };
    let whole = plan.buffers.get(part.of.0 as usize);
    let name = whole.map_or_else(|| format!("buffer {}", part.of.0), |whole| whole.name.clone());
    let len = byte_size(buffer).unwrap_or(0) / buffer.dtype.size() as u64;
    let fits = |whole: &Buffer| {
        let room = byte_size(whole).unwrap_or(0) / whole.dtype.size() as u64;
        let end = part.offset.checked_add(part.span(len));
        whole.part.is_none()
            && whole.storage == buffer.storage
            && !matches!(whole.storage, StorageClass::Weight(_))
            && whole.dtype == buffer.dtype
            && end.is_some_and(|end| end <= room)
    };
    let runs = len == 0 || (part.run > 0 && len.is_multiple_of(part.run) && part.stride >= part.run);
    match runs && whole.is_some_and(fits) {
        true => Ok(()),
        false => Err(PlanError::Part { buffer: buffer.name.clone(), whole: name }),
    }
}

/// A step reads nothing of what it writes through another part, or through the whole.
pub(super) fn check_step(plan: &Plan, step: &Step, used: &[Arg]) -> Result<(), PlanError> {
    for written in used.iter().filter(|arg| arg.writes) {
        let other = used.iter().find(|arg| arg.buffer != written.buffer && plan.overlap(arg.buffer, written.buffer));
        if let Some(other) = other {
            let buffer = plan.buffer(other.buffer).name.clone();
            return Err(PlanError::InPlace { step: step.name.clone(), buffer });
        }
    }
    Ok(())
}

/// What has been written so far, by buffer.
#[derive(Default)]
pub(super) struct Written(Vec<WrittenBuffer>);

/// What has been written of a buffer.
#[derive(Clone, Copy, Default)]
struct WrittenBuffer {
    direct: bool,
    /// The first and the last of its written parts.
    parts: Option<(BufferId, BufferId)>,
    /// The part of the same whole that was written next.
    next: Option<BufferId>,
}

impl Written {
    /// Nothing of a plan has been written, but parts of states that stay.
    ///
    /// # Errors
    /// Such a part lies in no value of a state after the run, or overlaps another one.
    pub(super) fn begin(&mut self, plan: &Plan) -> Result<(), PlanError> {
        self.0.clear();
        self.0.resize(plan.buffers.len(), WrittenBuffer::default());
        for &id in &plan.kept {
            let buffer = plan.buffers.get(id.0 as usize).ok_or(PlanError::UnknownKept { buffer: id.0 })?;
            let whole = plan.whole(id);
            let after = match buffer.storage {
                StorageClass::State(state) => whole != id && plan.states[state as usize] != whole,
                _ => false,
            };
            if !after || self.of(id).direct || self.parts(whole).any(|other| plan.overlap(other, id)) {
                return Err(PlanError::Kept { buffer: buffer.name.clone() });
            }
            self.add_part(whole, id);
            self.0[id.0 as usize].direct = true;
        }
        Ok(())
    }

    fn of(&self, id: BufferId) -> &WrittenBuffer {
        &self.0[id.0 as usize]
    }

    /// The written parts of a whole, in the order in which they were written.
    fn parts(&self, whole: BufferId) -> impl Iterator<Item = BufferId> {
        std::iter::successors(self.of(whole).parts.map(|(first, _)| first), |part| self.of(*part).next)
    }

    fn add_part(&mut self, whole: BufferId, part: BufferId) {
        let parts = &mut self.0[whole.0 as usize].parts;
        if let Some((_, last)) = parts.replace((parts.map_or(part, |(first, _)| first), part)) {
            self.0[last.0 as usize].next = Some(part);
        }
    }

    pub(super) fn write(&mut self, plan: &Plan, step: &Step, id: BufferId) -> Result<(), PlanError> {
        let whole = plan.whole(id);
        let clash = match whole == id {
            true => self.of(id).parts.map(|(first, _)| first),
            false if plan.kept.contains(&id) => Some(whole),
            false if self.of(whole).direct => Some(whole),
            false => self.parts(whole).find(|p| *p != id && plan.overlap(*p, id)),
        };
        if let Some(other) = clash {
            let name = |id: BufferId| plan.buffer(id).name.clone();
            return Err(PlanError::PartsOverlap { step: step.name.clone(), first: name(id), second: name(other) });
        }
        if whole != id && !self.of(id).direct {
            self.add_part(whole, id);
        }
        self.0[id.0 as usize].direct = true;
        Ok(())
    }

    /// Whether all of a buffer has been written, as it is, as a part of something or part by part.
    pub(super) fn holds(&self, plan: &Plan, id: BufferId) -> bool {
        let whole = plan.whole(id);
        if self.of(id).direct || self.of(whole).direct {
            return true;
        }
        let buffer = plan.buffer(id);
        let all = SubBuffer { of: whole, offset: 0, run: buffer.len().max(1), stride: buffer.len().max(1) };
        let this = buffer.part.unwrap_or(all);
        let parts = self.parts(whole).map(|p| plan.buffer(p));
        let inside = parts.map(|b| b.part.map_or(0, |part| this.common(buffer.len(), &part, b.len())));
        inside.sum::<u64>() == buffer.len()
    }
}
