//! What generated code hands over of a compiled model, and tensors as callers give them.

use tensorc_abi::KernelFn;
use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{
    Image, ImageError, ImageVersion, LIBRARIES, MAX_RANK, check, flow, header, scratch, slot, step, variant,
};
use tensorc_exec::{Code, Flow, Routine, Step, Work, WorkerMemory, bind, worker_stride};

use crate::open::{OpenNeeds, OpenPlan};

/// Workers' memory begins at a multiple of this: they share no pair of cache lines.
pub const LINE_PAIR: usize = 128;

/// A compiled model in the data section of its artifact.
#[repr(C)]
pub struct ArtifactModel {
    image: *const u64,
    /// Words of the image.
    len: u64,
    /// [`header::KERNELS`] functions.
    kernels: *const KernelFn,
    /// The block of weights, if it is inside the artifact; else null.
    weights: *const u8,
    /// Those of [`LIBRARIES`] that it needs; others are null, so that nothing links what it does not need.
    libraries: [*const Routine; LIBRARIES.len()],
}

impl ArtifactModel {
    /// The image, checked.
    pub fn image(&'static self) -> Result<Image<'static>, Status> {
        // SAFETY: generated code gives an image of this length, which nobody writes.
        let words = unsafe { core::slice::from_raw_parts(self.image, self.len as usize) };
        Image::new(words).map_err(|error| match error {
            ImageError::Damaged => status::DAMAGED,
            ImageError::Version(_) => status::VERSION,
        })
    }

    /// The model that a part is, whose image lies inside of this one's at a position.
    pub fn part(&self, at: usize) -> Option<ArtifactModel> {
        // SAFETY: generated code gives an image of this length, which nobody writes.
        let words = unsafe { core::slice::from_raw_parts(self.image, self.len as usize) };
        let image = words.get(at..)?;
        let len = *image.get(header::LEN)?;
        let whole = usize::try_from(len).is_ok_and(|len| len <= image.len());
        whole.then_some(ArtifactModel { image: image.as_ptr(), len, ..*self })
    }

    /// The block of weights inside the artifact; null if there is none.
    pub fn embedded_weights(&self) -> *const u8 {
        self.weights
    }

    /// A library kernel by its position in [`LIBRARIES`], if the model needs it.
    pub fn routine(&self, kind: usize) -> Option<&'static Routine> {
        // SAFETY: generated code gives null or a library kernel of this crate.
        self.libraries.get(kind).and_then(|routine| unsafe { routine.as_ref() })
    }
}

/// What the steps of a variant are linked with.
pub struct Linked<'w> {
    /// The model.
    pub model: &'static ArtifactModel,
    /// Its checked image, with the words of the shape if the variant is for many.
    pub image: Image<'w>,
    /// Offset of the record of the variant.
    pub variant: usize,
}

impl Code for Linked<'_> {
    fn kernel(&self, number: u64) -> Option<KernelFn> {
        let exists = number < self.image.word(header::KERNELS);
        // SAFETY: the table has an entry for every kernel.
        exists.then(|| unsafe { *self.model.kernels.add(number as usize) })
    }

    fn routine(&self, kind: usize) -> Option<&'static Routine> {
        self.model.routine(kind)
    }

    fn words(&self, at: usize) -> &[u64] {
        self.image.tail(at)
    }

    fn scratch(&self, at: usize, needed: impl FnOnce() -> usize) -> Option<WorkerMemory> {
        let needed = needed();
        if !ImageVersion::of_word(self.image.word(header::VERSION)).reads(scratch::SINCE) {
            // Nothing was planned: it lies behind the arena.
            let offset = self.image.size(self.variant + variant::ARENA_BYTES).checked_next_multiple_of(LINE_PAIR)?;
            return Some(WorkerMemory { offset, stride: worker_stride(needed) });
        }
        let memory = WorkerMemory::of_record(self.image.record(at.checked_sub(scratch::WORDS)?)?)?;
        (memory.stride >= needed).then_some(memory)
    }
}

/// What running a model takes, the largest of all variants.
#[derive(Default)]
pub struct Needs {
    /// Entries of the table of arguments.
    pub slots: usize,
    /// Bytes of the arena for plans of one shape: intermediate tensors, and working memory of every worker.
    pub arena: usize,
    /// Bytes of working memory of a worker in those.
    pub stride: usize,
    /// What plans for many shapes take.
    pub open: OpenNeeds,
}

impl Needs {
    /// Of a model, for so many workers. Resolves every step of plans for one shape, of which `check` is told with the variant it
    /// belongs to. Those of plans for many have the words of their shape only later.
    ///
    /// # Errors
    /// A step is none that this library knows, or its slots lie nowhere, or no memory is as large.
    pub fn of(
        model: &'static ArtifactModel,
        image: &Image<'static>,
        workers: usize,
        check: impl Fn(usize, &Step) -> Result<(), Status>,
    ) -> Result<Needs, Status> {
        let mut needs = Needs::default();
        for v in variants(image) {
            let (slots, open) = (slots(image, v), OpenPlan::of(image, v)?);
            let known = |home: u64| home <= slot::ARENA || (home == slot::REGION && open.is_some());
            if !slots.clone().all(|slot| known(slot[slot::HOME])) {
                return Err(status::VERSION);
            }
            needs.slots = needs.slots.max(slots.count());
            if let Some(plan) = open {
                needs.open.add(image, v, &plan, workers)?;
                continue;
            }
            let arena = image.size(v + variant::ARENA_BYTES);
            needs.arena = needs.arena.max(arena);
            if !checks_lie_in(image, v, arena) {
                return Err(status::DAMAGED);
            }
            let linked = Linked { model, image: *image, variant: v };
            for record in steps(image, v) {
                let step = resolve(record, &linked)?;
                check(v, &step)?;
                needs.arena = needs.arena.max(end_of(&step, &linked, workers, MAX_NESTING)?);
                needs.stride = needs.stride.max(step.scratch.stride);
            }
        }
        Ok(needs)
    }
}

/// Plans are nested this deep at most: reading a model refuses deeper ones.
const MAX_NESTING: usize = 128;

fn resolve(record: &[u64; step::WORDS], linked: &Linked<'_>) -> Result<Step, Status> {
    let unknown = if record[step::KIND] > step::LAST { status::VERSION } else { status::DAMAGED };
    Step::resolve(record, linked).ok_or(unknown)
}

/// Where the working memory of a step ends in the arena, with that of nested plans. Resolves all of their steps.
fn end_of(step: &Step, linked: &Linked<'_>, workers: usize, depth: usize) -> Result<usize, Status> {
    let Work::Flow(call) = step.work else { return step.scratch.end(workers).ok_or(status::MEMORY) };
    let depth = depth.checked_sub(1).ok_or(status::DAMAGED)?;
    let (flow, mut end) = (Flow::read(linked.words(call)).ok_or(status::DAMAGED)?, step.scratch.offset);
    for i in 0..flow.bodies() {
        let body = Body::of(linked, &flow, i).ok_or(status::DAMAGED)?;
        let arena =
            step.scratch.offset.checked_add(body.arena_offset().ok_or(status::MEMORY)?).ok_or(status::MEMORY)?;
        end = end.max(arena.checked_add(body.arena_bytes).ok_or(status::MEMORY)?);
        for record in body.steps() {
            let nested = end_of(&resolve(record, linked)?, linked, workers, depth)?;
            end = end.max(arena.checked_add(nested).ok_or(status::MEMORY)?);
        }
    }
    Ok(end)
}

/// A nested plan, as the words behind the record of its step say.
pub struct Body<'w> {
    image: Image<'w>,
    words: [u64; flow::BODY_WORDS],
    /// Bytes of its arena.
    arena_bytes: usize,
}

impl<'w> Body<'w> {
    /// The nested plan with a number; `None` if the image has no such words.
    pub fn of(linked: &Linked<'w>, flow: &Flow<'_>, i: usize) -> Option<Body<'w>> {
        let words = *flow.behind.as_chunks::<{ flow::BODY_WORDS }>().0.get(i)?;
        Some(Body { image: linked.image, words, arena_bytes: usize::try_from(words[flow::ARENA_BYTES]).ok()? })
    }

    /// Where its arena begins in the step's working memory.
    pub fn arena_offset(&self) -> Option<usize> {
        flow::arena_offset(self.words[2]).and_then(|at| usize::try_from(at).ok())
    }

    /// Records of its steps.
    pub fn steps(&self) -> impl Iterator<Item = &'w [u64; step::WORDS]> + use<'w> {
        let (image, [count, first, ..]) = (self.image, self.words.map(|word| word as usize));
        (0..count).map_while(move |i| image.record(first + i * step::WORDS))
    }

    /// Records of its slots.
    pub fn slots(&self) -> impl Iterator<Item = &'w [u64; slot::WORDS]> + Clone + use<'w> {
        let (image, [_, _, count, first, _]) = (self.image, self.words.map(|word| word as usize));
        (0..count).map_while(move |i| image.record(first + i * slot::WORDS))
    }
}

/// Enters the addresses of a variant into the table of arguments: those of the caller's tensors, and the other ones
/// unless they are there.
pub fn enter(
    image: &Image<'_>,
    v: usize,
    table: &mut [*mut u8],
    [weights, arena]: [Option<*mut u8>; 2],
    tensor: impl Fn(u64, usize) -> Option<*mut u8>,
) {
    bind(slots(image, v), table, |home, index| match home {
        slot::WEIGHTS => weights,
        slot::ARENA => arena,
        side => Some(tensor(side, index).unwrap_or(core::ptr::null_mut())),
    });
}

/// The extents of a tensor; none if there is no shape.
pub fn dims(tensor: &Tensor) -> &[i64] {
    match tensor.dims.is_null() || tensor.rank as usize > MAX_RANK {
        true => &[],
        // SAFETY: the caller gives as many extents as the rank says.
        false => unsafe { core::slice::from_raw_parts(tensor.dims, tensor.rank as usize) },
    }
}

/// Offsets of the records of all variants.
pub fn variants(image: &Image<'static>) -> impl Iterator<Item = usize> + use<> {
    let (count, at, image) = (image.size(header::VARIANTS), image.size(header::VARIANTS + 1), *image);
    (0..count).map(move |i| image.size(at + i))
}

/// Records of the steps of a variant.
pub fn steps<'w>(image: &Image<'w>, at: usize) -> impl Iterator<Item = &'w [u64; step::WORDS]> + use<'w> {
    let (count, first, image) = (image.size(at + variant::STEPS), image.size(at + variant::STEPS + 1), *image);
    (0..count).map_while(move |i| image.record(first + i * step::WORDS))
}

/// Records of the checks of a variant.
pub fn checks<'w>(image: &Image<'w>, at: usize) -> impl Iterator<Item = &'w [u64; check::WORDS]> + use<'w> {
    let known = ImageVersion::of_word(image.word(header::VERSION)).reads(check::SINCE);
    let (count, first, image) = (image.size(at + variant::CHECKS), image.size(at + variant::CHECKS + 1), *image);
    (0..if known { count } else { 0 }).map_while(move |i| image.record(first + i * check::WORDS))
}

/// Whether the words of all checks of a variant lie in an arena of so many bytes, aligned.
pub fn checks_lie_in(image: &Image<'_>, at: usize, arena: usize) -> bool {
    let inside = |offset: u64| offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= arena as u64);
    checks(image, at).all(|check| inside(check[check::OFFSET]))
}

/// Records of the slots of a variant.
pub fn slots<'w>(image: &Image<'w>, at: usize) -> impl Iterator<Item = &'w [u64; slot::WORDS]> + Clone + use<'w> {
    let (count, first, image) = (image.size(at + variant::SLOTS), image.size(at + variant::SLOTS + 1), *image);
    (0..count).map_while(move |i| image.record(first + i * slot::WORDS))
}
