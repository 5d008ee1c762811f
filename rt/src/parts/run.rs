//! A call with a context of a model that runs in parts.

use core::ptr::null;

use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, MAX_RANK, call, header, number, part, result, tensor, value};
use tensorc_abi::{DType, FindOp};
use tensorc_kernels::{FindOperand, find};

use super::PartsContext;
use super::layout::{PartsTables, list};
use crate::context::{ArtifactContext, tc_rt_describe, tc_rt_run};
use crate::message::ErrorText;
use crate::model::{ArtifactModel, dims};

pub const NONE: Tensor = Tensor { data: core::ptr::null_mut(), dims: null(), rank: 0, dtype: 0, bytes: 0 };

/// What a part is called with, as many tensors as it has.
struct Call {
    inputs: *mut Tensor,
    outputs: *mut Tensor,
}

/// A call with a context.
pub struct PartsRun<'c> {
    pub image: Image<'static>,
    pub tables: PartsTables,
    pub contexts: &'c [*mut ArtifactContext],
    pub bodies: &'c [*mut PartsContext],
    pub values: &'c mut [Tensor],
    pub extents: &'c mut [[i64; MAX_RANK]],
    pub numbers: &'c mut [i64],
    pub given: *mut Tensor,
    pub memory: (*mut u8, usize),
    pub words: &'c mut [u64],
    pub message: &'c mut ErrorText,
    pub inputs: &'c [Tensor],
    pub outputs: &'c mut [Tensor],
}

impl PartsRun<'_> {
    /// Enters the shapes of outputs, as far as they are known before a run.
    pub fn describe(&mut self) -> Result<(), Status> {
        let first = self.tables.part(&self.image, 0)?;
        let own = list(&self.image, first, part::OUTPUTS)?;
        let Call { outputs, .. } = self.described(0)?;
        // SAFETY: the table has an entry for every output, and is not written before the next call of a part.
        let described = unsafe { &*slice(outputs, own.len()) };
        for i in 0..self.outputs.len() {
            let record = self.result(i)?;
            let [_, dtype, rank] = self.tensor(i);
            let found = own.iter().position(|v| *v == record[result::VALUE]);
            let place = self.tables.value(&self.image, record[result::VALUE] as usize)?;
            let given = self.inputs.get(place[value::AT] as usize).filter(|_| place[value::HOME] == value::INPUT);
            let known = found.map(|at| &described[at]).or(given);
            let out = &mut self.outputs[i];
            (out.rank, out.dtype) = (rank as u32, dtype as u32);
            match known {
                Some(known) => {
                    out.dims = known.dims;
                    out.bytes = bytes_of(dtype, dims(known));
                }
                None => {
                    out.dims = self.image.words(record[result::DIMS] as usize, rank as usize).as_ptr().cast();
                    out.bytes = record[result::BYTES];
                }
            }
        }
        Ok(())
    }

    /// Runs all parts.
    pub fn run(&mut self) -> Result<(), Status> {
        // The first part checks the inputs.
        self.described(0)?;
        for i in 0..self.values.len() {
            self.load(i)?;
        }
        for i in 0..self.contexts.len() {
            self.part(i)?;
            let record = self.tables.part(&self.image, i)?;
            let (count, first) = (record[part::CALLS] as usize, record[part::CALLS + 1] as usize);
            for call in 0..count {
                self.call(self.image.record(first + call * call::WORDS).ok_or(status::DAMAGED)?)?;
            }
            if i + 1 < self.contexts.len() {
                self.learn(self.tables.part(&self.image, i + 1)?[part::NUMBERS] as usize)?;
            }
        }
        (0..self.outputs.len()).try_for_each(|i| self.finish(i))
    }

    /// The record of an output.
    fn result(&self, i: usize) -> Result<&'static [u64; result::WORDS], Status> {
        self.image.record(self.tables.results + i * result::WORDS).ok_or(status::DAMAGED)
    }

    /// Name, type and rank of an output.
    fn tensor(&self, i: usize) -> [u64; tensor::WORDS] {
        let at = self.image.size(header::OUTPUTS + 1) + i * tensor::WORDS;
        self.image.record(at).copied().unwrap_or_default()
    }

    /// Enters a value that is there before a run.
    fn load(&mut self, i: usize) -> Result<(), Status> {
        let record = self.tables.value(&self.image, i)?;
        let (at, rank) = (record[value::AT] as usize, record[value::RANK] as usize);
        let (given, data) = match record[value::HOME] {
            value::INPUT => {
                let given = self.inputs.get(at).ok_or(status::DAMAGED)?;
                (dims(given), given.data)
            }
            value::CONSTANT => {
                let words = self.image.words(at, rank);
                let elements = self.image.tail(at.saturating_add(rank));
                if words.len() < rank || (elements.len() as u64).saturating_mul(8) < record[value::BYTES] {
                    return Err(status::DAMAGED);
                }
                // SAFETY: extents are no more than `i64` has room for.
                let words = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<i64>(), rank) };
                (words, elements.as_ptr().cast_mut().cast())
            }
            _ => return Ok(()),
        };
        if given.len() != rank {
            return Err(status::DAMAGED);
        }
        self.extents[i][..rank].copy_from_slice(given);
        self.enter(i, record, data);
        Ok(())
    }

    /// Enters a value whose extents are known, with its data.
    pub fn enter(&mut self, i: usize, record: &[u64; value::WORDS], data: *mut u8) {
        let extents = &self.extents[i][..record[value::RANK] as usize];
        let bytes = bytes_of(record[value::DTYPE], extents);
        let (rank, dtype) = (extents.len() as u32, record[value::DTYPE] as u32);
        self.values[i] = Tensor { data, dims: extents.as_ptr(), rank, dtype, bytes };
    }

    /// What a part is called with: its inputs, and room for its outputs, whose extents are entered.
    fn described(&mut self, i: usize) -> Result<Call, Status> {
        let record = self.tables.part(&self.image, i)?;
        let (known, reads) = (record[part::NUMBERS] as usize, list(&self.image, record, part::INPUTS)?);
        let writes = list(&self.image, record, part::OUTPUTS)?.len();
        // SAFETY: the table has room for what any part is called with.
        let given = unsafe { slice::<Tensor>(self.given, known + reads.len() + writes) };
        let (inputs, outputs) = given.split_at_mut(known + reads.len());
        for (to, n) in inputs.iter_mut().zip(&*self.numbers).take(known) {
            // Nobody reads elements.
            *to = Tensor { data: self.memory.0, dims: n, rank: 1, dtype: DType::U8 as u32, bytes: u64::MAX };
        }
        for (to, v) in inputs[known..].iter_mut().zip(reads) {
            *to = if i == 0 { NONE } else { *self.values.get(*v as usize).ok_or(status::DAMAGED)? };
        }
        if i == 0 {
            inputs.copy_from_slice(self.inputs.get(..inputs.len()).ok_or(status::DAMAGED)?);
        }
        outputs.fill(NONE);
        let context = self.contexts[i];
        // SAFETY: the context is alive, and there are as many tensors as the part has. The model is not read.
        let code = unsafe { tc_rt_describe(self.model(), context, inputs.as_ptr(), outputs.as_mut_ptr()) };
        let call = Call { inputs: inputs.as_mut_ptr(), outputs: outputs.as_mut_ptr() };
        self.checked(i, code)?;
        Ok(call)
    }

    /// Any model, for functions that take one and do not read it.
    pub fn model(&self) -> &'static ArtifactModel {
        // SAFETY: a context's model lies beside it, as long as it does.
        unsafe { (*self.contexts[0]).model() }
    }

    /// The message of a part, if it failed.
    fn checked(&mut self, i: usize, code: Status) -> Result<(), Status> {
        if code == status::OK {
            return Ok(());
        }
        // SAFETY: the context is alive, and its message is a text.
        unsafe { self.message.c_text((*self.contexts[i]).message()) };
        // Behind the first part, shapes follow from values.
        Err(if code == status::SHAPE && i > 0 { status::VALUE } else { code })
    }

    /// Runs a part.
    fn part(&mut self, i: usize) -> Result<(), Status> {
        let record = self.tables.part(&self.image, i)?;
        let Call { inputs, outputs } = self.described(i)?;
        for (at, v) in list(&self.image, record, part::OUTPUTS)?.iter().enumerate() {
            // SAFETY: the table has an entry for every output.
            let (v, out) = (*v as usize, unsafe { &mut *outputs.add(at) });
            let place = self.tables.value(&self.image, v)?;
            if out.rank as u64 != place[value::RANK] {
                return Err(status::DAMAGED);
            }
            self.extents[v][..out.rank as usize].copy_from_slice(dims(out));
            (out.data, out.bytes) = self.room(place)?;
            self.enter(v, place, out.data);
        }
        // SAFETY: the data is valid for its bytes, by the caller's contract and by plan.
        let code = unsafe { tc_rt_run(self.model(), self.contexts[i], inputs, outputs) };
        self.checked(i, code)
    }

    /// Where a value goes that is computed, and how many bytes lie there.
    pub fn room(&self, place: &[u64; value::WORDS]) -> Result<(*mut u8, u64), Status> {
        let at = place[value::AT] as usize;
        match place[value::HOME] {
            value::OUTPUT => self.outputs.get(at).map(|out| (out.data, out.bytes)).ok_or(status::DAMAGED),
            value::MEMORY => {
                let end = at.checked_add(place[value::BYTES] as usize).filter(|end| *end <= self.memory.1);
                end.map(|_| (self.memory.0.wrapping_add(at), place[value::BYTES])).ok_or(status::DAMAGED)
            }
            value::EXTENTS => Ok((core::ptr::null_mut(), 0)),
            _ => Err(status::DAMAGED),
        }
    }

    /// A call of the host.
    fn call(&mut self, record: &'static [u64; call::WORDS]) -> Result<(), Status> {
        if record[call::OP] == call::FLOW {
            return self.flow(record);
        }
        let op: [u64; FindOp::WORDS] = core::array::from_fn(|i| record[call::OP + i]);
        let op = FindOp::of_words(op).ok_or(status::VERSION)?;
        let (reads, writes) = (list(&self.image, record, call::OPERANDS)?, list(&self.image, record, call::RESULTS)?);
        let mut operands = [None; call::MAX];
        for (to, v) in operands.iter_mut().zip(reads).filter(|(_, v)| **v > 0) {
            *to = Some(operand(self.values.get(*v as usize - 1).ok_or(status::DAMAGED)?));
        }
        let operands = operands.get(..reads.len()).ok_or(status::DAMAGED)?;
        // SAFETY: the words are the context's own, apart from everything that is used beside them.
        let words = unsafe { slice(self.words.as_mut_ptr(), self.words.len()) };
        let found = find(op, operands, words).map_err(|_| {
            self.message
                .text("`")
                .text(self.image.text(record[call::NAME] as usize))
                .text("` does not take its operands");
            status::DAMAGED
        })?;
        if writes.len() > op.results() {
            return Err(status::DAMAGED);
        }
        for (i, v) in writes.iter().enumerate().filter(|(_, v)| **v > 0) {
            let v = *v as usize - 1;
            let place = self.tables.value(&self.image, v)?;
            let (data, room) = self.room(place)?;
            let mut rank = 0;
            for (to, dim) in self.extents[v].iter_mut().zip(found.dims(i)) {
                *to = dim as i64;
                rank += 1;
            }
            self.enter(v, place, data);
            let fits = rank == place[value::RANK] && found.dtype(i) as u64 == place[value::DTYPE];
            if !fits || (place[value::HOME] != value::EXTENTS && found.bytes(i) > room) {
                return Err(status::DAMAGED);
            }
            if place[value::HOME] != value::EXTENTS {
                // SAFETY: the room is as large, and no operand lies there.
                found.write(i, unsafe { slice(data, found.bytes(i) as usize) });
            }
        }
        Ok(())
    }

    /// Reads the first numbers.
    fn learn(&mut self, known: usize) -> Result<(), Status> {
        for i in 0..known {
            let at = self.tables.number_records + i * number::WORDS;
            let record: &[u64; number::WORDS] = self.image.record(at).ok_or(status::DAMAGED)?;
            let (from, position) = (self.values.get(record[number::VALUE] as usize), record[number::POSITION] as usize);
            let from = from.ok_or(status::DAMAGED)?;
            let n = match record[number::IS_ELEMENT] {
                0 => dims(from).get(position).copied(),
                _ => element(from, position),
            };
            let most = record[number::MOST];
            let n = match n.ok_or(status::DAMAGED)? {
                n if record[number::SATURATES] != 0 => n.min(i64::try_from(most).unwrap_or(i64::MAX)),
                n => n,
            };
            if n < 0 || !(record[number::LEAST]..=most).contains(&(n as u64)) {
                let name = self.image.text(record[number::NAME] as usize);
                self.message.text("`").text(name).text("` is ").text(if n < 0 { "-" } else { "" });
                self.message.number(n.unsigned_abs()).text(", the model was compiled for ");
                self.message.number(record[number::LEAST]).text("..=").number(most);
                return Err(status::VALUE);
            }
            self.numbers[i] = n;
        }
        Ok(())
    }

    /// Copies an output that is a value of its own, and enters its extents.
    fn finish(&mut self, i: usize) -> Result<(), Status> {
        let v = self.result(i)?[result::VALUE] as usize;
        let place = self.tables.value(&self.image, v)?;
        let (from, name) = (self.values[v], self.tensor(i)[tensor::NAME]);
        let out = &mut self.outputs[i];
        let own = place[value::HOME] == value::OUTPUT && place[value::AT] == i as u64;
        if !own && from.bytes > 0 {
            if out.bytes < from.bytes || out.data.is_null() {
                let (needed, given) = (from.bytes, out.bytes);
                self.message.text("output `").text(self.image.text(name as usize)).text("` needs ").number(needed);
                self.message.text(" bytes, ").number(given).text(" are given");
                return Err(status::BUFFER);
            }
            // SAFETY: both are as large, and overlap nothing.
            unsafe { core::ptr::copy_nonoverlapping(from.data, out.data, from.bytes as usize) };
        }
        (out.dims, out.rank, out.dtype) = (from.dims, from.rank, from.dtype);
        Ok(())
    }
}

/// A tensor as the host reads it.
fn operand(from: &Tensor) -> FindOperand<'static> {
    let extents = dims(from);
    // SAFETY: extents are not negative; the data is as large as they say, or there is none.
    unsafe {
        let dims = core::slice::from_raw_parts(extents.as_ptr().cast::<u64>(), extents.len());
        let bytes: &[u8] = slice(from.data, from.bytes as usize);
        FindOperand { dtype: dtype(from.dtype.into()), dims, bytes }
    }
}

/// An element of a tensor of whole numbers.
fn element(from: &Tensor, position: usize) -> Option<i64> {
    let dtype = dtype(from.dtype.into());
    let at = position.checked_mul(dtype.size())?;
    let end = at.checked_add(dtype.size())?;
    if end as u64 > from.bytes {
        return None;
    }
    let at = from.data.wrapping_add(at);
    // SAFETY: the data is as large.
    Some(unsafe {
        match dtype {
            DType::I8 => at.cast::<i8>().read_unaligned().into(),
            DType::I16 => at.cast::<i16>().read_unaligned().into(),
            DType::I32 => at.cast::<i32>().read_unaligned().into(),
            DType::I64 => at.cast::<i64>().read_unaligned(),
            DType::U8 | DType::Bool => at.read().into(),
            DType::U16 => at.cast::<u16>().read_unaligned().into(),
            DType::U32 => at.cast::<u32>().read_unaligned().into(),
            DType::U64 => i64::try_from(at.cast::<u64>().read_unaligned()).unwrap_or(i64::MAX),
            _ => return None,
        }
    })
}

fn dtype(number: u64) -> DType {
    DType::ALL.into_iter().find(|dtype| *dtype as u64 == number).unwrap_or(DType::U8)
}

pub fn bytes_of(number: u64, extents: &[i64]) -> u64 {
    extents.iter().fold(dtype(number).size() as u64, |bytes, dim| bytes.saturating_mul(*dim as u64))
}

/// Memory as a slice, which may be empty.
///
/// # Safety
/// As of `from_raw_parts_mut`, or `len` is 0.
pub unsafe fn slice<'a, T>(first: *mut T, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: by the caller's contract.
    unsafe { core::slice::from_raw_parts_mut(first, len) }
}
