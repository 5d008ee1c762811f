//! A branch or loop of the host in a call: its bodies run as models of their own, on the values of the call.

use core::ptr::copy_nonoverlapping;

use tensorc_abi::DType;
use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{MAX_RANK, call, header, hosted, value};

use super::layout::list;
use super::run::{NONE, PartsRun, bytes_of, slice};
use super::{PartsContext, tc_rt_parts_error, tc_rt_parts_run};
use crate::model::dims;

/// The record of a branch or loop, read.
struct HostedFlow {
    name: usize,
    record: &'static [u64; hosted::WORDS],
    /// Positions among the bodies of the model.
    bodies: &'static [u64],
    /// Numbers of values, each counted from 1.
    operands: &'static [u64],
    results: &'static [u64],
}

/// What a body is called with, as many tensors as it has.
struct BodyCall {
    context: *mut PartsContext,
    inputs: &'static mut [Tensor],
    outputs: &'static mut [Tensor],
}

impl PartsRun<'_> {
    /// Runs a branch or loop.
    pub fn flow(&mut self, call: &'static [u64; call::WORDS]) -> Result<(), Status> {
        let record = self.image.record(call[call::OP + 1] as usize).ok_or(status::DAMAGED)?;
        let flow = HostedFlow {
            name: call[call::NAME] as usize,
            record,
            bodies: list(&self.image, record, hosted::BODIES)?,
            operands: list(&self.image, call, call::OPERANDS)?,
            results: list(&self.image, call, call::RESULTS)?,
        };
        match record[hosted::IS_LOOP] {
            0 => self.branch(&flow),
            _ => self.repeated(&flow),
        }
    }

    fn branch(&mut self, flow: &HostedFlow) -> Result<(), Status> {
        let (condition, operands) = flow.operands.split_first().ok_or(status::DAMAGED)?;
        let mut call = self.body_call(flow, usize::from(!holds(&self.numbered(*condition)?)))?;
        if call.inputs.len() != operands.len() || call.outputs.len() != flow.results.len() {
            return Err(status::DAMAGED);
        }
        self.give(&mut call, 0, operands)?;
        self.body(flow, &mut call, flow.results.iter().copied())
    }

    fn repeated(&mut self, flow: &HostedFlow) -> Result<(), Status> {
        let own = OwnOperands::of(self, flow)?;
        let trips = match own.scanned.first() {
            Some(all) => dims(&self.numbered(*all)?).first().copied().ok_or(status::DAMAGED)?,
            None => i64::MAX,
        };
        let mut goes_on = self.all_hold(own.condition)?;
        let mut call = self.body_call(flow, 0)?;
        let first_row = 1 + own.carried.len();
        let inputs = first_row + own.scanned.len() + own.constant.len();
        if (call.inputs.len(), call.outputs.len()) != (inputs, own.made.len()) {
            return Err(status::DAMAGED);
        }
        let (once, updated) = own.made.split_at(own.made.len() - own.carried.len());
        let (condition, rows) = once.split_at(own.condition.len());
        let stacked = &flow.results[own.carried.len()..];
        let (mut current, mut i) = (own.carried, 0i64);
        while goes_on && i < trips {
            let number = (&raw mut i).cast();
            call.inputs[0] = Tensor { data: number, dims: [].as_ptr(), rank: 0, dtype: DType::I64 as u32, bytes: 8 };
            self.give(&mut call, 1, current)?;
            for (at, (all, back)) in own.scanned.iter().zip(own.directions).enumerate() {
                let all = self.numbered(*all)?;
                call.inputs[first_row + at] = row(&all, if *back == 0 { i } else { trips - 1 - i })?;
            }
            self.give(&mut call, first_row + own.scanned.len(), own.constant)?;
            // What is carried is read in one place and written in the other.
            let next = if i % 2 == 0 { updated } else { own.held };
            self.body(flow, &mut call, once.iter().chain(next).copied())?;
            goes_on = self.all_hold(condition)?;
            for (from, to) in rows.iter().zip(stacked) {
                self.stack(flow, *from, *to, i)?;
            }
            (current, i) = (next, i + 1);
        }
        for (from, to) in current.iter().zip(flow.results) {
            let from = self.numbered(*from)?;
            self.extend(flow, &from, *to, dims(&from), 0)?;
        }
        if i == 0 {
            return self.no_rows(flow, stacked);
        }
        let directions = list(&self.image, flow.record, hosted::STACKED)?;
        for (number, _) in stacked.iter().zip(directions).filter(|(_, back)| **back != 0) {
            reverse(&self.numbered(*number)?, i as usize);
        }
        Ok(())
    }

    /// A value by its number, counted from 1.
    fn numbered(&self, number: u64) -> Result<Tensor, Status> {
        let value = (number as usize).checked_sub(1).and_then(|v| self.values.get(v));
        value.copied().ok_or(status::DAMAGED)
    }

    fn all_hold(&self, conditions: &[u64]) -> Result<bool, Status> {
        for number in conditions {
            if !holds(&self.numbered(*number)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn body_call(&self, flow: &HostedFlow, which: usize) -> Result<BodyCall, Status> {
        let number = flow.bodies.get(which).ok_or(status::DAMAGED)?;
        let context = *self.bodies.get(*number as usize).ok_or(status::DAMAGED)?;
        // SAFETY: the context is alive; the table has room for what any body is called with, and no part runs meanwhile.
        unsafe {
            let [reads, writes] = [header::INPUTS, header::OUTPUTS].map(|at| (*context).image.size(at));
            let given = slice::<Tensor>(self.given, reads + writes);
            given.fill(NONE);
            let (inputs, outputs) = given.split_at_mut(reads);
            Ok(BodyCall { context, inputs, outputs })
        }
    }

    /// Enters values as inputs of a body, from one on.
    fn give(&self, call: &mut BodyCall, first: usize, numbers: &[u64]) -> Result<(), Status> {
        for (to, number) in call.inputs[first..].iter_mut().zip(numbers) {
            *to = self.numbered(*number)?;
        }
        Ok(())
    }

    /// Runs a body; values of these numbers are its results.
    fn body(
        &mut self,
        flow: &HostedFlow,
        call: &mut BodyCall,
        results: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), Status> {
        for (out, number) in call.outputs.iter_mut().zip(results.clone()) {
            let (data, bytes) = self.room(self.place(number)?.1)?;
            *out = Tensor { data, bytes, ..NONE };
        }
        // SAFETY: the context is alive, and there are as many tensors as it has; their data is valid by plan.
        let code = unsafe {
            tc_rt_parts_run(self.model(), call.context, call.inputs.as_ptr(), call.outputs.as_mut_ptr())
        };
        if code != status::OK {
            self.message.text("`").text(self.image.text(flow.name)).text("`: ");
            // SAFETY: the context is alive, and its message is a text.
            unsafe { self.message.c_text(tc_rt_parts_error(self.model(), call.context)) };
            // Shapes follow from values.
            return Err(if code == status::SHAPE { status::VALUE } else { code });
        }
        for (out, number) in call.outputs.iter().zip(results) {
            let (v, place) = self.place(number)?;
            let extents = dims(out);
            if (out.rank.into(), out.dtype.into()) != (place[value::RANK], place[value::DTYPE]) {
                return Err(status::DAMAGED);
            }
            self.extents[v][..extents.len()].copy_from_slice(extents);
            self.enter(v, place, out.data);
        }
        Ok(())
    }

    /// A value and its record.
    fn place(&self, number: u64) -> Result<(usize, &'static [u64; value::WORDS]), Status> {
        let v = (number as usize).checked_sub(1).ok_or(status::DAMAGED)?;
        Ok((v, self.tables.value(&self.image, v)?))
    }

    /// Adds the row of an iteration to what is stacked.
    fn stack(&mut self, flow: &HostedFlow, from: u64, to: u64, i: i64) -> Result<(), Status> {
        let (from, (v, place)) = (self.numbered(from)?, self.place(to)?);
        let row = dims(&from);
        if place[value::RANK] as usize != row.len() + 1 {
            return Err(status::DAMAGED);
        }
        if i > 0 && self.extents[v][1..=row.len()] != *row {
            self.message.text("`").text(self.image.text(flow.name)).text("` stacks rows of different shapes");
            return Err(status::VALUE);
        }
        let mut extents = [0; MAX_RANK];
        extents[0] = i + 1;
        extents[1..=row.len()].copy_from_slice(row);
        self.extend(flow, &from, to, &extents[..=row.len()], i as u64 * from.bytes)
    }

    /// Copies a tensor into a value of these extents, from a byte on.
    fn extend(
        &mut self,
        flow: &HostedFlow,
        from: &Tensor,
        to: u64,
        extents: &[i64],
        start: u64,
    ) -> Result<(), Status> {
        let (v, place) = self.place(to)?;
        let (data, room) = self.room(place)?;
        let needed = start.saturating_add(from.bytes);
        if needed > room {
            self.message.text("a result of `").text(self.image.text(flow.name)).text("` has ").number(needed);
            self.message.text(" bytes or more, the model was compiled for at most ").number(room);
            return Err(status::VALUE);
        }
        // SAFETY: the room is as large, and nothing that is read lies there.
        unsafe { copy_nonoverlapping(from.data, data.wrapping_add(start as usize), from.bytes as usize) };
        self.extents[v][..extents.len()].copy_from_slice(extents);
        self.enter(v, place, data);
        Ok(())
    }

    /// Enters the shapes of rows of a loop without iterations.
    fn no_rows(&mut self, flow: &HostedFlow, stacked: &[u64]) -> Result<(), Status> {
        let mut extents = list(&self.image, flow.record, hosted::NO_ROWS)?.iter();
        for number in stacked {
            let (v, place) = self.place(*number)?;
            let own = &mut self.extents[v][..place[value::RANK] as usize];
            let (count, row) = own.split_first_mut().ok_or(status::DAMAGED)?;
            *count = 0;
            for to in row {
                *to = *extents.next().ok_or(status::DAMAGED)? as i64;
            }
            let (data, _) = self.room(place)?;
            self.enter(v, place, data);
        }
        Ok(())
    }
}

/// The operands of a loop, and where its body leaves what.
struct OwnOperands {
    condition: &'static [u64],
    carried: &'static [u64],
    scanned: &'static [u64],
    /// 1 for what is scanned from the last row to the first.
    directions: &'static [u64],
    constant: &'static [u64],
    /// Condition, rows, what is carried.
    made: &'static [u64],
    /// Where what is carried lies every other iteration.
    held: &'static [u64],
}

impl OwnOperands {
    fn of(run: &PartsRun<'_>, flow: &HostedFlow) -> Result<OwnOperands, Status> {
        let [directions, made, held] = [hosted::SCANNED, hosted::MADE, hosted::HELD]
            .map(|at| list(&run.image, flow.record, at).unwrap_or_default());
        let [conditional, carried] = [hosted::CONDITIONAL, hosted::CARRIED].map(|at| flow.record[at] as usize);
        let own = conditional.saturating_add(carried);
        let fits = flow.operands.len() >= own.saturating_add(directions.len())
            && held.len() == carried
            && made.len().checked_sub(conditional) == Some(flow.results.len())
            && flow.results.len() >= carried;
        if !fits {
            return Err(status::DAMAGED);
        }
        let (condition, operands) = flow.operands.split_at(conditional);
        let (carried, operands) = operands.split_at(carried);
        let (scanned, constant) = operands.split_at(directions.len());
        Ok(OwnOperands { condition, carried, scanned, directions, constant, made, held })
    }
}

/// Whether a condition, a tensor of one bool, holds.
fn holds(condition: &Tensor) -> bool {
    // SAFETY: the tensor has a byte.
    condition.bytes > 0 && unsafe { *condition.data } != 0
}

/// Exchanges the rows of a tensor, the last for the first.
fn reverse(all: &Tensor, rows: usize) {
    let row = all.bytes as usize / rows;
    for i in 0..rows / 2 {
        let [a, b] = [i, rows - 1 - i].map(|i| all.data.wrapping_add(i * row));
        // SAFETY: both rows lie in the tensor, and are not the same.
        unsafe { core::ptr::swap_nonoverlapping(a, b, row) };
    }
}

/// A row of a tensor.
fn row(all: &Tensor, i: i64) -> Result<Tensor, Status> {
    let (count, extents) = dims(all).split_first().ok_or(status::DAMAGED)?;
    let bytes = bytes_of(all.dtype.into(), extents);
    if i >= *count {
        return Err(status::VALUE);
    }
    let data = all.data.wrapping_add((i as u64 * bytes) as usize);
    Ok(Tensor { data, dims: extents.as_ptr(), rank: all.rank - 1, bytes, ..*all })
}
