//! Plans for many shapes in a context: a copy of the region of a plan, with the words of the current shape, and the values of its
//! size program.

use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, ImageVersion, check, header, open, scratch, slot, step, tensor, variant};
use tensorc_exec::WorkerMemory;
use tensorc_exec::sizes::{SizeRun, SizesError};

use crate::model::{ArtifactModel, checks_lie_in, dims, steps};

/// A plan for many shapes, as the image has it.
pub struct OpenPlan {
    /// Word offset of the region in the image, and its words, which hold the numbers of the largest shape.
    at: usize,
    region: &'static [u64],
    program: &'static [u64],
    /// How many instructions only tell whether the plan holds.
    conditions: usize,
    /// Where working memory reaches the furthest for some shape.
    scratch: &'static [[u64; scratch::WORDS]],
}

/// The offset of the record of a plan for many shapes, or 0 if a variant is for one.
pub fn record_of(image: &Image<'_>, v: usize) -> usize {
    let known = ImageVersion::of_word(image.word(header::VERSION)).reads(open::SINCE);
    if known { image.size(v + variant::OPEN) } else { 0 }
}

impl OpenPlan {
    /// The plan of a variant; `None` if that is for one shape.
    ///
    /// # Errors
    /// Some of it lies outside of the image.
    #[inline(never)]
    pub fn of(image: &Image<'static>, v: usize) -> Result<Option<OpenPlan>, Status> {
        let at = match record_of(image, v) {
            0 => return Ok(None),
            at => at,
        };
        let record = image.record::<{ open::WORDS }>(at).ok_or(status::DAMAGED)?.map(|word| word as usize);
        let words = |at: usize, count: usize| image.tail(at).get(..count).ok_or(status::DAMAGED);
        let plan = OpenPlan {
            at: record[open::REGION],
            region: words(record[open::REGION], record[open::REGION + 1])?,
            program: words(record[open::PROGRAM + 1], record[open::PROGRAM])?,
            conditions: record[open::CONDITIONS],
            scratch: words(record[open::SCRATCH + 1], record[open::SCRATCH].saturating_mul(scratch::WORDS))?
                .as_chunks()
                .0,
        };
        // The last instruction gives the bytes of the arena.
        match plan.at >= header::WORDS && plan.conditions < plan.program.len() {
            true => Ok(Some(plan)),
            false => Err(status::DAMAGED),
        }
    }

    /// Whether all records of its variant lie in the image, and those that begin in the region end there.
    fn is_whole(&self, image: &Image<'static>, v: usize) -> bool {
        let image = image.with(self.at, self.region);
        let lies = |at: usize, count: usize, words: usize| image.tail(at).len() >= count.saturating_mul(words);
        let rank = |side: usize, i: usize| image.size(image.size(side + 1) + i * tensor::WORDS + tensor::RANK);
        let extents = [header::INPUTS, header::OUTPUTS].into_iter().map(|side| {
            let ranks = (0..image.size(side)).map(|i| rank(side, i));
            ranks.fold(0, usize::saturating_add)
        });
        let tables = [(variant::STEPS, step::WORDS), (variant::SLOTS, slot::WORDS), (variant::CHECKS, check::WORDS)];
        lies(image.size(v + variant::SHAPES), extents.fold(0, usize::saturating_add), 1)
            && tables.iter().all(|(at, words)| lies(image.size(v + at + 1), image.size(v + at), *words))
    }
}

/// What the plans of a model for many shapes take, the most of all.
#[derive(Clone, Copy, Default)]
pub struct OpenNeeds {
    /// Words of a region.
    region: usize,
    /// Instructions of a size program.
    values: usize,
    /// Bytes of the arena for the largest shape: intermediate tensors, and working memory of every worker.
    pub arena: usize,
}

impl OpenNeeds {
    /// Adds the plan of a variant.
    ///
    /// # Errors
    /// Some of it lies outside of the image, or no memory is as large.
    pub fn add(&mut self, image: &Image<'static>, v: usize, plan: &OpenPlan, workers: usize) -> Result<(), Status> {
        if !plan.is_whole(image, v) {
            return Err(status::DAMAGED);
        }
        self.region = self.region.max(plan.region.len());
        self.values = self.values.max(plan.program.len());
        self.arena = self.arena.max(image.size(v + variant::ARENA_BYTES));
        for words in plan.scratch {
            self.arena = self.arena.max(memory(words).end(workers).ok_or(status::MEMORY)?);
        }
        Ok(())
    }

    /// Bytes that the region and the values take.
    pub fn bytes(&self) -> usize {
        (self.region + self.values) * size_of::<u64>()
    }
}

/// The working memory that a record says.
fn memory(words: &[u64; scratch::WORDS]) -> WorkerMemory {
    WorkerMemory { offset: words[scratch::OFFSET] as usize, stride: words[scratch::STRIDE] as usize }
}

/// The shape that a plan was made ready for.
#[derive(Clone, Copy)]
pub struct EnteredShape {
    /// The offset of the record of the variant.
    variant: usize,
    /// The position of its region in the image, and how many words it has.
    at: usize,
    words: usize,
    /// Bytes of the arena: intermediate tensors, and working memory of every worker.
    pub arena: usize,
    /// Where workers have working memory in every step where that fits.
    pub common: Option<WorkerMemory>,
}

/// A region with the words of one shape.
pub struct OpenMemory {
    region: &'static mut [u64],
    values: &'static mut [i64],
    workers: usize,
    /// What the region was filled for, if it is in order.
    shape: Option<EnteredShape>,
}

impl OpenMemory {
    /// That of a model which has no plan for many shapes.
    pub fn none() -> OpenMemory {
        OpenMemory { region: &mut [], values: &mut [], workers: 1, shape: None }
    }

    /// In memory of [`OpenNeeds::bytes`], which is overwritten.
    ///
    /// # Safety
    /// The memory is aligned for words, and as long as the result lives nobody else writes there.
    pub unsafe fn new(memory: *mut u8, needs: &OpenNeeds, workers: usize) -> OpenMemory {
        let region = memory.cast::<u64>();
        let values = region.wrapping_add(needs.region).cast::<i64>();
        // SAFETY: the memory has room for both, and is initialized; the rest is the caller's promise.
        let (region, values) = unsafe {
            memory.write_bytes(0, needs.bytes());
            let region = core::slice::from_raw_parts_mut(region, needs.region);
            (region, core::slice::from_raw_parts_mut(values, needs.values))
        };
        OpenMemory { region, values, workers, shape: None }
    }

    /// The shape that a variant is ready for, if it is for many.
    pub fn shape(&self, v: usize) -> Option<&EnteredShape> {
        self.shape.as_ref().filter(|shape| shape.variant == v)
    }

    /// The image with the words of the shape that a variant is ready for.
    pub fn over<'m>(&'m self, image: Image<'m>, v: usize) -> Image<'m> {
        match self.shape(v) {
            Some(shape) => image.with(shape.at, self.region.get(..shape.words).unwrap_or(&[])),
            None => image,
        }
    }

    /// Where constants of the shape lie.
    pub fn constants(&self) -> *mut u8 {
        self.region.as_ptr().cast_mut().cast()
    }

    /// No plan is ready any more.
    pub fn forget(&mut self) {
        self.shape = None;
    }

    /// Makes the plan of a variant ready for the extents of some inputs, none of which is negative. If its conditions do not
    /// hold, another plan stays ready.
    ///
    /// # Errors
    /// The plan does not hold for the extents, a number is too large, or the model is damaged.
    #[inline(never)]
    pub fn enter(
        &mut self,
        model: &'static ArtifactModel,
        image: &Image<'static>,
        (v, plan): (usize, &OpenPlan),
        inputs: &[Tensor],
    ) -> Result<(), SizesError> {
        let extent = |input: usize, axis: usize| {
            let dim = dims(inputs.get(input)?).get(axis)?;
            u64::try_from(*dim).ok()
        };
        let routine = |kind: usize| model.routine(kind);
        let (conditions, workers) = (plan.program.get(..plan.conditions).unwrap_or(&[]), self.workers);
        let mut run = SizeRun { values: self.values, region: &mut [], region_at: plan.at, workers };
        run.execute(conditions, 0, &extent, &routine)?;
        self.shape = None;
        let region = self.region.get_mut(..plan.region.len()).ok_or(SizesError::Damaged)?;
        region.copy_from_slice(plan.region);
        let mut run = SizeRun { values: self.values, region, region_at: plan.at, workers };
        let arena = run.execute(plan.program, plan.conditions, &extent, &routine)?;
        let arena = usize::try_from(arena).map_err(|_| SizesError::Damaged)?;
        let image = image.with(plan.at, region);
        let stride = stride(&image, v, arena, workers).filter(|_| checks_lie_in(&image, v, arena));
        let common = WorkerMemory::common(arena, stride.ok_or(SizesError::Damaged)?, workers);
        self.shape = Some(EnteredShape { variant: v, at: plan.at, words: plan.region.len(), arena, common });
        Ok(())
    }
}

/// The most working memory of a worker in the steps of a variant; `None` if some lies outside of an arena of so many bytes, or
/// a step is none of a processor's.
fn stride(image: &Image<'_>, v: usize, arena: usize, workers: usize) -> Option<usize> {
    let mut most = 0;
    for record in steps(image, v) {
        let users = match record[step::KIND] {
            step::KERNEL | step::COPY => continue,
            step::LAUNCH | step::HOST => return None,
            // That of nested plans is not divided among workers as a whole.
            step::FLOW => 0,
            _ => workers,
        };
        let own = memory(image.record((record[step::CALL] as usize).checked_sub(scratch::WORDS)?)?);
        own.end(users).filter(|end| *end <= arena)?;
        most = most.max(own.stride);
    }
    Some(most)
}
