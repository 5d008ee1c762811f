//! Models that run in parts, since their shapes depend on values ([`tensorc_abi::image::parts`]).
//!
//! Every part is a model as others are, with an image and a context of its own. A context of the whole has these, the values that go
//! from one to the other, and the numbers that become known. Parts run one after the other, in the same arena.

use core::ffi::{c_char, c_void};
use core::mem::size_of;
use core::ptr::null;

use tensorc_abi::artifact::{Parallel, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, ImageVersion, MAX_RANK, call, header, number, part, parts, result, tensor, value};
use tensorc_abi::{DType, FindOp};
use tensorc_kernels::{FindOperand, find};

use crate::context::{ArtifactContext, ContextLayout, tc_rt_describe, tc_rt_memory_for, tc_rt_run};
use crate::message::ErrorText;
use crate::model::{ArtifactModel, LINE_PAIR, dims};
use crate::pool::workers;
use crate::weights;

/// Alignment of a context's memory.
const ALIGN: usize = 64;
/// Parts of a model at most.
const MAX_PARTS: usize = 1 << 10;

const NONE: Tensor = Tensor { data: core::ptr::null_mut(), dims: null(), rank: 0, dtype: 0, bytes: 0 };

/// A context of a model that runs in parts, at the start of its block of memory.
pub struct PartsContext {
    image: Image<'static>,
    tables: PartsTables,
    contexts: *mut *mut ArtifactContext,
    values: *mut Tensor,
    extents: *mut [i64; MAX_RANK],
    numbers: *mut i64,
    /// What parts are called with.
    given: *mut Tensor,
    /// What values lie in.
    memory: *mut u8,
    words: *mut u64,
    owned: bool,
    message: ErrorText,
}

/// What the record of a model in parts says.
#[derive(Clone, Copy)]
struct PartsTables {
    parts: usize,
    part_records: usize,
    values: usize,
    value_records: usize,
    numbers: usize,
    number_records: usize,
    results: usize,
    bytes: usize,
    words: usize,
}

impl PartsTables {
    fn of(image: &Image<'static>) -> Result<PartsTables, Status> {
        let known = ImageVersion::of_word(image.word(header::VERSION)).reads(parts::SINCE);
        let record = image.record::<{ parts::WORDS }>(if known { image.size(header::PARTS) } else { usize::MAX });
        let record = record.ok_or(status::DAMAGED)?.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        let tables = PartsTables {
            parts: record[parts::PARTS],
            part_records: record[parts::PARTS + 1],
            values: record[parts::VALUES],
            value_records: record[parts::VALUES + 1],
            numbers: record[parts::NUMBERS],
            number_records: record[parts::NUMBERS + 1],
            results: record[parts::RESULTS],
            bytes: record[parts::BYTES],
            words: record[parts::CALL_WORDS],
        };
        let lies = |at: usize, count: usize, words: usize| image.tail(at).len() >= count.saturating_mul(words);
        let whole = (1..=MAX_PARTS).contains(&tables.parts)
            && lies(tables.part_records, tables.parts, part::WORDS)
            && lies(tables.value_records, tables.values, value::WORDS)
            && lies(tables.number_records, tables.numbers, number::WORDS)
            && lies(tables.results, image.size(header::OUTPUTS), result::WORDS);
        if whole { Ok(tables) } else { Err(status::DAMAGED) }
    }

    fn part(&self, image: &Image<'static>, i: usize) -> Result<&'static [u64; part::WORDS], Status> {
        image.record(self.part_records + i * part::WORDS).ok_or(status::DAMAGED)
    }

    fn value(&self, image: &Image<'static>, i: usize) -> Result<&'static [u64; value::WORDS], Status> {
        let record = image.record(self.value_records + i * value::WORDS).filter(|_| i < self.values);
        record.filter(|record| record[value::RANK] as usize <= MAX_RANK).ok_or(status::DAMAGED)
    }
}

/// A list that a record has: its length, and its words.
fn list(image: &Image<'static>, record: &[u64], at: usize) -> Result<&'static [u64], Status> {
    let (count, first) = (record[at] as usize, record[at + 1] as usize);
    image.tail(first).get(..count).ok_or(status::DAMAGED)
}

/// Where the parts of a context lie, in bytes from its start.
struct PartsLayout {
    tables: PartsTables,
    models: usize,
    contexts: usize,
    values: usize,
    extents: usize,
    numbers: usize,
    given: usize,
    /// Where the contexts of parts begin, one after the other.
    heads: usize,
    memory: usize,
    words: usize,
    arena: usize,
    arena_bytes: usize,
    total: usize,
}

impl PartsLayout {
    /// An error if the model is damaged, or no memory is as large.
    fn new(model: &ArtifactModel, image: &Image<'static>, workers: usize) -> Result<PartsLayout, Status> {
        let tables = PartsTables::of(image)?;
        let (mut heads, mut arena_bytes, mut given) = (0usize, 0, image.size(header::OUTPUTS));
        for i in 0..tables.parts {
            let record = tables.part(image, i)?;
            let part = model.part(record[part::IMAGE] as usize).ok_or(status::DAMAGED)?;
            // SAFETY: what is found of it does not refer to it.
            let part = unsafe { core::mem::transmute::<&ArtifactModel, &'static ArtifactModel>(&part) };
            let own = part.image()?;
            let layout = ContextLayout::new(part, &own, workers)?;
            heads += layout.head();
            arena_bytes = arena_bytes.max(layout.arena_bytes());
            let (reads, writes) = (list(image, record, part::INPUTS)?, list(image, record, part::OUTPUTS)?);
            let known = record[part::NUMBERS] as usize;
            let fits = known <= tables.numbers
                && own.size(header::INPUTS) == known + reads.len()
                && own.size(header::OUTPUTS) == writes.len();
            if !fits || reads.iter().chain(writes).any(|v| *v >= tables.values as u64) {
                return Err(status::DAMAGED);
            }
            given = given.max(known + reads.len() + writes.len());
        }
        let mut end = size_of::<PartsContext>();
        let mut place = |count: usize, size: usize, align: usize| {
            let at = end.checked_next_multiple_of(align)?;
            end = at.checked_add(count.checked_mul(size)?)?;
            Some(at)
        };
        let mut layout = || {
            let [models, contexts] = [place(tables.parts, size_of::<ArtifactModel>(), ALIGN)?, place(tables.parts, 8, ALIGN)?];
            let values = place(tables.values, size_of::<Tensor>(), ALIGN)?;
            let extents = place(tables.values, size_of::<[i64; MAX_RANK]>(), ALIGN)?;
            let numbers = place(tables.numbers, 8, ALIGN)?;
            let given = place(given, size_of::<Tensor>(), ALIGN)?;
            let heads = place(heads, 1, LINE_PAIR)?;
            let memory = place(tables.bytes, 1, LINE_PAIR)?;
            let words = place(tables.words, 8, ALIGN)?;
            let arena = place(arena_bytes, 1, LINE_PAIR)?;
            let total = arena.checked_add(arena_bytes)?;
            Some(PartsLayout {
                tables,
                models,
                contexts,
                values,
                extents,
                numbers,
                given,
                heads,
                memory,
                words,
                arena,
                arena_bytes,
                total,
            })
        };
        layout().ok_or(status::MEMORY)
    }
}

/// As `tc_rt_memory_bytes`.
///
/// # Safety
/// `model` is what generated code hands over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_memory_bytes(model: &'static ArtifactModel, workers: u32) -> u64 {
    let plan = model.image().and_then(|image| PartsLayout::new(model, &image, workers.max(1) as usize));
    plan.map_or(0, |plan| plan.total as u64)
}

/// Bytes of memory that a context takes for runs with inputs of some shapes, which are those for any shapes: how much is found does
/// not follow from the inputs. 0 if the model has no plan for them or is damaged.
///
/// # Safety
/// As `tc_rt_memory_for`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_memory_for(
    model: &'static ArtifactModel,
    inputs: *const Tensor,
    workers: u32,
) -> u64 {
    let first = model.image().and_then(|image| {
        let record = PartsTables::of(&image)?.part(&image, 0)?;
        model.part(record[part::IMAGE] as usize).ok_or(status::DAMAGED)
    });
    let Ok(first) = first else { return 0 };
    // SAFETY: it is used during the call alone; the rest is passed on from the caller.
    unsafe {
        let first = core::mem::transmute::<&ArtifactModel, &'static ArtifactModel>(&first);
        match tc_rt_memory_for(first, inputs, workers) {
            0 => 0,
            _ => tc_rt_parts_memory_bytes(model, workers),
        }
    }
}

/// As `tc_rt_init`. The caller's memory has to be as large as for runs of any shape.
///
/// # Safety
/// As `tc_rt_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_init(
    model: &'static ArtifactModel,
    out: *mut *mut PartsContext,
    memory: *mut c_void,
    bytes: u64,
    weights: *const Weights,
    parallel: *const Parallel,
) -> Status {
    if out.is_null() {
        return status::ARGUMENT;
    }
    // SAFETY: passed on from the caller.
    match unsafe { init(model, memory.cast(), bytes, weights.as_ref(), parallel.as_ref()) } {
        Ok(context) => {
            // SAFETY: not null, and valid by the caller's contract.
            unsafe { *out = context };
            status::OK
        }
        Err(status) => status,
    }
}

unsafe fn init(
    model: &'static ArtifactModel,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    parallel: Option<&Parallel>,
) -> Result<*mut PartsContext, Status> {
    let image = model.image()?;
    let parallel = parallel.copied().unwrap_or(Parallel::NONE);
    let plan = PartsLayout::new(model, &image, workers(&parallel))?;
    let weights = weights::base(model, &image, weights)?;
    let owned = memory.is_null();
    if !owned && (bytes < plan.total as u64 || !(memory as usize).is_multiple_of(ALIGN)) {
        return Err(status::MEMORY);
    }
    // SAFETY: the alignment divides the size.
    let allocate = || unsafe { libc::aligned_alloc(LINE_PAIR, plan.total.next_multiple_of(LINE_PAIR)).cast::<u8>() };
    let base = if owned { allocate() } else { memory };
    if base.is_null() {
        return Err(status::MEMORY);
    }
    let at = |offset: usize| base.wrapping_add(offset);
    let context = PartsContext {
        image,
        tables: plan.tables,
        contexts: at(plan.contexts).cast(),
        values: at(plan.values).cast(),
        extents: at(plan.extents).cast(),
        numbers: at(plan.numbers).cast(),
        given: at(plan.given).cast(),
        memory: at(plan.memory),
        words: at(plan.words).cast(),
        owned,
        message: ErrorText::EMPTY,
    };
    let mut head = at(plan.heads);
    for i in 0..plan.tables.parts {
        let record = plan.tables.part(&image, i)?;
        let own = model.part(record[part::IMAGE] as usize).ok_or(status::DAMAGED)?;
        // SAFETY: every place lies in the memory as planned, which outlives the contexts of parts.
        unsafe {
            let place = at(plan.models).cast::<ArtifactModel>().add(i);
            place.write(own);
            let own: &'static ArtifactModel = &*place;
            let image = own.image()?;
            let layout = ContextLayout::new(own, &image, workers(&parallel))?;
            let arena = (at(plan.arena), plan.arena_bytes);
            let made = layout.place((own, image), head, arena, (weights, parallel), owned);
            context.contexts.add(i).write(made);
            head = head.wrapping_add(layout.head());
        }
    }
    // SAFETY: the tables have as many entries, and the memory begins with the context.
    unsafe {
        context.values.write_bytes(0, plan.tables.values);
        context.numbers.write_bytes(0, plan.tables.numbers);
        base.cast::<PartsContext>().write(context);
    }
    Ok(base.cast())
}

/// As `tc_rt_free`.
///
/// # Safety
/// `context` is null or came from `tc_rt_parts_init`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_free(_: &'static ArtifactModel, context: *mut PartsContext) {
    // SAFETY: by the caller's contract.
    if let Some(own) = unsafe { context.as_ref() }.filter(|context| context.owned) {
        // SAFETY: the contexts of parts are in order as long as this one; it came from `aligned_alloc`.
        unsafe {
            (0..own.tables.parts).for_each(|i| (**own.contexts.add(i)).free_grown());
            libc::free(context.cast());
        }
    }
}

/// As `tc_rt_error`.
///
/// # Safety
/// `context` is null or came from `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_error(_: &'static ArtifactModel, context: *const PartsContext) -> *const c_char {
    // SAFETY: by the caller's contract.
    let text = unsafe { context.as_ref() }.map(|context| context.message.as_ptr().cast());
    text.unwrap_or(status::text(status::ARGUMENT).as_ptr())
}

/// As `tc_rt_describe`, with the greatest extents that outputs have where these depend on values.
///
/// # Safety
/// As `tc_rt_describe`, with a context of `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_describe(
    _: &'static ArtifactModel,
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { with(context, inputs, outputs, |run| run.describe()) }
}

/// As `tc_rt_run`. Behind it, the outputs have the extents that were found, which are valid until the next call with the context.
///
/// # Safety
/// As `tc_rt_run`, with a context of `tc_rt_parts_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_run(
    _: &'static ArtifactModel,
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
) -> Status {
    // SAFETY: passed on from the caller.
    unsafe { with(context, inputs, outputs, |run| run.run()) }
}

/// # Safety
/// As `tc_rt_parts_describe`.
unsafe fn with(
    context: *mut PartsContext,
    inputs: *const Tensor,
    outputs: *mut Tensor,
    work: impl FnOnce(&mut PartsRun<'_>) -> Result<(), Status>,
) -> Status {
    // SAFETY: by the caller's contract.
    let Some(context) = (unsafe { context.as_mut() }) else { return status::ARGUMENT };
    context.message.clear();
    let [reads, writes] = [header::INPUTS, header::OUTPUTS].map(|at| context.image.size(at));
    if (inputs.is_null() && reads > 0) || (outputs.is_null() && writes > 0) {
        context.message.text("the tensors are null");
        return status::ARGUMENT;
    }
    // SAFETY: by the caller's contract there are as many tensors; the tables are the context's own, and as long as planned.
    let mut run = unsafe {
        let PartsTables { parts, values, numbers, bytes, words, .. } = context.tables;
        PartsRun {
            image: context.image,
            tables: context.tables,
            contexts: slice(context.contexts, parts),
            values: slice(context.values, values),
            extents: slice(context.extents, values),
            numbers: slice(context.numbers, numbers),
            given: context.given,
            memory: (context.memory, bytes),
            words: slice(context.words, words),
            message: &mut context.message,
            inputs: slice(inputs.cast_mut(), reads),
            outputs: slice(outputs, writes),
        }
    };
    work(&mut run).err().unwrap_or(status::OK)
}

/// # Safety
/// As of `from_raw_parts_mut`, or `len` is 0.
unsafe fn slice<'a, T>(first: *mut T, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: by the caller's contract.
    unsafe { core::slice::from_raw_parts_mut(first, len) }
}

/// What a part is called with, as many tensors as it has.
struct Call {
    inputs: *mut Tensor,
    outputs: *mut Tensor,
}

/// A call with a context.
struct PartsRun<'c> {
    image: Image<'static>,
    tables: PartsTables,
    contexts: &'c [*mut ArtifactContext],
    values: &'c mut [Tensor],
    extents: &'c mut [[i64; MAX_RANK]],
    numbers: &'c mut [i64],
    given: *mut Tensor,
    memory: (*mut u8, usize),
    words: &'c mut [u64],
    message: &'c mut ErrorText,
    inputs: &'c [Tensor],
    outputs: &'c mut [Tensor],
}

impl PartsRun<'_> {
    fn describe(&mut self) -> Result<(), Status> {
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

    fn run(&mut self) -> Result<(), Status> {
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
    fn enter(&mut self, i: usize, record: &[u64; value::WORDS], data: *mut u8) {
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
    fn model(&self) -> &'static ArtifactModel {
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
    fn room(&self, place: &[u64; value::WORDS]) -> Result<(*mut u8, u64), Status> {
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
            self.message.text("`").text(self.image.text(record[call::NAME] as usize)).text("` does not take its operands");
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
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
        }
    })
}

fn dtype(number: u64) -> DType {
    DType::ALL.into_iter().find(|dtype| *dtype as u64 == number).unwrap_or(DType::U8)
}

fn bytes_of(number: u64, extents: &[i64]) -> u64 {
    extents.iter().fold(dtype(number).size() as u64, |bytes, dim| bytes.saturating_mul(*dim as u64))
}
