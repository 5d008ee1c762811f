//! What the image of a model in parts says, and where a context has its memory.

use core::mem::size_of;

use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, ImageVersion, MAX_RANK, header, number, part, parts, result, value};

use super::PartsContext;
use crate::context::ALIGN;
use crate::context::ContextLayout;
use crate::model::{ArtifactModel, LINE_PAIR};

/// Parts of a model at most.
const MAX_PARTS: usize = 1 << 10;

/// What the record of a model in parts says.
#[derive(Clone, Copy)]
pub struct PartsTables {
    pub parts: usize,
    pub part_records: usize,
    pub values: usize,
    pub value_records: usize,
    pub numbers: usize,
    pub number_records: usize,
    pub results: usize,
    pub bytes: usize,
    pub words: usize,
    /// Number of bodies of branches and loops, and the offset of the list of their images.
    pub bodies: usize,
    pub body_images: usize,
}

impl PartsTables {
    pub fn of(image: &Image<'static>) -> Result<PartsTables, Status> {
        let version = ImageVersion::of_word(image.word(header::VERSION));
        let at = if version.reads(parts::SINCE) { image.size(header::PARTS) } else { usize::MAX };
        let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let record = image.record::<{ parts::WORDS }>(at).ok_or(status::DAMAGED)?.map(number);
        let [bodies, body_images] = match version.reads(parts::BODIES_SINCE) {
            true => image.record::<2>(at + parts::BODIES).ok_or(status::DAMAGED)?.map(number),
            false => [0; 2],
        };
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
            bodies,
            body_images,
        };
        let lies = |at: usize, count: usize, words: usize| image.tail(at).len() >= count.saturating_mul(words);
        let whole = (1..=MAX_PARTS).contains(&tables.parts)
            && lies(tables.part_records, tables.parts, part::WORDS)
            && lies(tables.value_records, tables.values, value::WORDS)
            && lies(tables.number_records, tables.numbers, number::WORDS)
            && lies(tables.results, image.size(header::OUTPUTS), result::WORDS)
            && lies(tables.body_images, tables.bodies, 1);
        if whole { Ok(tables) } else { Err(status::DAMAGED) }
    }

    pub fn part(&self, image: &Image<'static>, i: usize) -> Result<&'static [u64; part::WORDS], Status> {
        image.record(self.part_records + i * part::WORDS).ok_or(status::DAMAGED)
    }

    /// The model that a body of a branch or loop is.
    pub fn body(&self, model: &ArtifactModel, image: &Image<'static>, i: usize) -> Result<ArtifactModel, Status> {
        // Its image lies behind the header of this one: a body is smaller than what it is a body of.
        let at = image.word(self.body_images + i) as usize;
        if at < header::WORDS { None } else { model.part(at) }.ok_or(status::DAMAGED)
    }

    pub fn value(&self, image: &Image<'static>, i: usize) -> Result<&'static [u64; value::WORDS], Status> {
        let record = image.record(self.value_records + i * value::WORDS).filter(|_| i < self.values);
        record.filter(|record| record[value::RANK] as usize <= MAX_RANK).ok_or(status::DAMAGED)
    }
}

/// A list that a record has: its length, and its words.
pub fn list(image: &Image<'static>, record: &[u64], at: usize) -> Result<&'static [u64], Status> {
    let (count, first) = (record[at] as usize, record[at + 1] as usize);
    image.tail(first).get(..count).ok_or(status::DAMAGED)
}

/// Where the parts of a context lie, in bytes from its start.
pub struct PartsLayout {
    pub tables: PartsTables,
    /// Models of parts, then of bodies.
    pub models: usize,
    pub contexts: usize,
    pub bodies: usize,
    pub values: usize,
    pub extents: usize,
    pub numbers: usize,
    pub given: usize,
    /// Where the contexts of parts begin, one after the other.
    pub heads: usize,
    pub memory: usize,
    pub words: usize,
    /// Where the contexts of bodies begin, one after the other.
    pub body_heads: usize,
    pub arena: usize,
    pub arena_bytes: usize,
    pub total: usize,
}

impl PartsLayout {
    /// An error if the model is damaged, or no memory is as large.
    pub fn new(model: &ArtifactModel, image: &Image<'static>, workers: usize) -> Result<PartsLayout, Status> {
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
        let mut body_bytes = 0usize;
        for i in 0..tables.bodies {
            let body = tables.body(model, image, i)?;
            // SAFETY: what is found of it does not refer to it.
            let body = unsafe { core::mem::transmute::<&ArtifactModel, &'static ArtifactModel>(&body) };
            let own = body.image()?;
            let layout = PartsLayout::new(body, &own, workers)?;
            body_bytes = body_bytes.checked_add(layout.bytes()).ok_or(status::MEMORY)?;
            given = given.max(own.size(header::INPUTS) + own.size(header::OUTPUTS));
        }
        let mut end = size_of::<PartsContext>();
        let mut place = |count: usize, size: usize, align: usize| {
            let at = end.checked_next_multiple_of(align)?;
            end = at.checked_add(count.checked_mul(size)?)?;
            Some(at)
        };
        let mut layout = || {
            let models = place(tables.parts.checked_add(tables.bodies)?, size_of::<ArtifactModel>(), ALIGN)?;
            let [contexts, bodies] = [place(tables.parts, 8, ALIGN)?, place(tables.bodies, 8, ALIGN)?];
            let values = place(tables.values, size_of::<Tensor>(), ALIGN)?;
            let extents = place(tables.values, size_of::<[i64; MAX_RANK]>(), ALIGN)?;
            let numbers = place(tables.numbers, 8, ALIGN)?;
            let given = place(given, size_of::<Tensor>(), ALIGN)?;
            let heads = place(heads, 1, LINE_PAIR)?;
            let memory = place(tables.bytes, 1, LINE_PAIR)?;
            let words = place(tables.words, 8, ALIGN)?;
            let body_heads = place(body_bytes, 1, LINE_PAIR)?;
            let arena = place(arena_bytes, 1, LINE_PAIR)?;
            let total = arena.checked_add(arena_bytes)?;
            Some(PartsLayout {
                tables,
                models,
                contexts,
                bodies,
                values,
                extents,
                numbers,
                given,
                heads,
                memory,
                words,
                body_heads,
                arena,
                arena_bytes,
                total,
            })
        };
        layout().ok_or(status::MEMORY)
    }
    /// Its bytes where another context follows.
    pub fn bytes(&self) -> usize {
        self.total.next_multiple_of(LINE_PAIR)
    }
}
