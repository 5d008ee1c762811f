//! What a model takes and gives: the caller's tensors held against the image, and what is wrong with them in words.

use tensorc_abi::DType;
use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, ImageVersion, check, dim, found, header, tensor, variant};
use tensorc_exec::sizes::SizesError;

use crate::message::ErrorText;
use crate::model::{ArtifactModel, checks, dims, variants};
use crate::open::{OpenMemory, OpenPlan, record_of};

/// Alignment of tensors in the memory of a GPU, which kernels rely on.
const DEVICE_ALIGN: usize = 16;

/// The image's tensors, for one context.
pub struct ImageSignature {
    /// The model.
    pub model: &'static ArtifactModel,
    /// Its checked image.
    pub image: Image<'static>,
    /// The words of one shape for a plan for many.
    pub open: OpenMemory,
    /// The variant of the last run: the offset of its record. 0 if there is none, or a plan for many shapes was made ready for
    /// another one since.
    pub bound: usize,
    /// Whether tensors may lie in the memory of a GPU.
    gpu: bool,
    /// What went wrong in the last call; empty if nothing did.
    pub message: ErrorText,
}

impl ImageSignature {
    /// The signature of a model with this image; `gpu` says whether tensors may lie in the memory of a GPU.
    pub fn new(model: &'static ArtifactModel, image: Image<'static>, open: OpenMemory, gpu: bool) -> ImageSignature {
        ImageSignature { model, image, open, bound: 0, gpu, message: ErrorText::EMPTY }
    }

    /// The image with the words of the shape that a variant is ready for.
    pub fn image_of(&self, v: usize) -> Image<'_> {
        self.open.over(self.image, v)
    }

    /// The caller's tensors, as many as the model has.
    ///
    /// # Safety
    /// As `tc_rt_describe`.
    unsafe fn tensors<'t>(
        &mut self,
        inputs: *const Tensor,
        outputs: *mut Tensor,
    ) -> Result<(&'t [Tensor], &'t mut [Tensor]), Status> {
        self.message.clear();
        let [reads, writes] = [header::INPUTS, header::OUTPUTS].map(|at| self.image.size(at));
        if (inputs.is_null() && reads > 0) || (outputs.is_null() && writes > 0) {
            self.message.text("the tensors are null");
            return Err(status::ARGUMENT);
        }
        let none = core::ptr::NonNull::<Tensor>::dangling().as_ptr();
        let (inputs, outputs) = (if reads > 0 { inputs } else { none }, if writes > 0 { outputs } else { none });
        // SAFETY: by the caller's contract.
        Ok(unsafe { (core::slice::from_raw_parts(inputs, reads), core::slice::from_raw_parts_mut(outputs, writes)) })
    }

    /// Fills types, shapes and sizes of the outputs for inputs of some shapes.
    ///
    /// # Safety
    /// As `tc_rt_describe`.
    pub unsafe fn outputs_for(&mut self, inputs: *const Tensor, outputs: *mut Tensor) -> Result<(), Status> {
        // SAFETY: passed on from the caller.
        let (inputs, outputs) = unsafe { self.tensors(inputs, outputs)? };
        let found = self.find(inputs)?;
        self.describe(found, outputs);
        Ok(())
    }

    /// The variant for the tensors of a run, all of which fit it, and the tensors.
    ///
    /// # Safety
    /// As `tc_rt_describe`.
    pub unsafe fn check_all<'t>(
        &mut self,
        inputs: *const Tensor,
        outputs: *mut Tensor,
    ) -> Result<(usize, &'t [Tensor], &'t [Tensor]), Status> {
        // SAFETY: passed on from the caller.
        let (inputs, outputs) = unsafe { self.tensors(inputs, outputs)? };
        let v = self.find(inputs)?;
        let given = |side: usize, i: usize| if side == header::INPUTS { &inputs[i] } else { &outputs[i] };
        let wrong = self.sizes(v).find(|(side, i, needed)| !self.suits(*side, *i, given(*side, *i), *needed));
        match wrong {
            Some((side, i, needed)) => Err(self.unsuited(side, i, given(side, i), needed)),
            None => Ok((v, inputs, outputs)),
        }
    }

    /// The variant for inputs of some shapes, whose types and data are left alone; `None` if there is none.
    ///
    /// # Errors
    /// A number is too large, or the model is damaged.
    ///
    /// # Safety
    /// `inputs` is null or has an entry for every input of the model.
    pub unsafe fn variant_for(&mut self, inputs: *const Tensor) -> Result<Option<usize>, Status> {
        let count = self.image.size(header::INPUTS);
        let inputs = match (count, inputs.is_null()) {
            (0, _) => &[],
            (_, true) => return Ok(None),
            // SAFETY: by the caller's contract.
            (_, false) => unsafe { core::slice::from_raw_parts(inputs, count) },
        };
        let ranked = |(i, given): (usize, &Tensor)| has_rank(given, self.record(header::INPUTS, i)[tensor::RANK]);
        match inputs.iter().enumerate().all(ranked) {
            true => self.fit(inputs),
            false => Ok(None),
        }
    }

    /// Whether the words of the checks of a variant say that all hold; `word` gives the one at an offset in the arena.
    ///
    /// # Errors
    /// Those of `word`; [`status::VALUE`], and the message says which value it was.
    pub fn confirm(
        &mut self,
        v: usize,
        mut word: impl FnMut(&mut ErrorText, usize) -> Result<i64, Status>,
    ) -> Result<(), Status> {
        let image = self.open.over(self.image, v);
        for record in checks(&image, v) {
            let Some(value) = found(word(&mut self.message, record[check::OFFSET] as usize)?) else { continue };
            let [before, behind] = [check::BEFORE, check::BEHIND].map(|text| image.text(record[text] as usize));
            let sign = if value < 0 { "-" } else { "" };
            self.message.text(before).text(sign).number(value.unsigned_abs()).text(behind);
            return Err(status::VALUE);
        }
        Ok(())
    }

    /// Bytes of every input, then every output, of a variant: the side, the position there, the bytes.
    pub fn sizes(&self, v: usize) -> impl Iterator<Item = (usize, usize, u64)> + use<'_> {
        let (image, mut shapes) = (self.image, self.shapes(v));
        let positions = |side: usize| (0..image.size(side)).map(move |i| (side, i));
        positions(header::INPUTS).chain(positions(header::OUTPUTS)).map(move |(side, i)| {
            let record = record(&image, side, i);
            (side, i, bytes(record[tensor::DTYPE], shapes.next(record[tensor::RANK] as usize)))
        })
    }

    /// The record of an input or output.
    fn record(&self, side: usize, i: usize) -> [u64; tensor::WORDS] {
        record(&self.image, side, i)
    }

    /// The extents of every input, then every output, of a variant.
    fn shapes(&self, v: usize) -> Shapes<'_> {
        Shapes { image: self.image_of(v), at: self.image.size(v + variant::SHAPES) }
    }

    /// The variant for inputs of these types.
    fn find(&mut self, inputs: &[Tensor]) -> Result<usize, Status> {
        for (i, given) in inputs.iter().enumerate() {
            let record = self.record(header::INPUTS, i);
            let name = self.image.text(record[tensor::NAME] as usize);
            let dtype = if self.gpu { given.dtype & !Tensor::ON_DEVICE } else { given.dtype };
            if u64::from(dtype) != record[tensor::DTYPE] {
                self.message.text("input `").text(name).text("` is ").dtype(dtype.into());
                self.message.text(", the model takes ").dtype(record[tensor::DTYPE]);
                return Err(status::TYPE);
            }
            if !has_rank(given, record[tensor::RANK]) {
                self.message.text("input `").text(name).text("` has ").number(given.rank.into());
                self.message.text(" dimensions, the model takes ").number(record[tensor::RANK]);
                return Err(status::SHAPE);
            }
        }
        match self.fit(inputs)? {
            Some(found) => Ok(found),
            None => Err(self.unknown_shape(inputs)),
        }
    }

    /// The variant for inputs of these shapes, whose ranks are the model's. It is ready for them.
    fn fit(&mut self, inputs: &[Tensor]) -> Result<Option<usize>, Status> {
        // Most runs have the shapes of the one before.
        if self.bound != 0 && self.is_ready(self.bound, inputs) {
            return Ok(Some(self.bound));
        }
        for v in variants(&self.image) {
            if self.is_ready(v, inputs) || self.make_ready(v, inputs)? {
                return Ok(Some(v));
            }
        }
        Ok(None)
    }

    /// Whether a variant is one for these shapes, or, if it is for many, its words are theirs.
    fn is_ready(&self, v: usize, inputs: &[Tensor]) -> bool {
        if self.open.shape(v).is_none() && record_of(&self.image, v) != 0 {
            return false;
        }
        let mut shapes = self.shapes(v);
        inputs.iter().all(|t| {
            let expected = shapes.next(t.rank as usize);
            dims(t).iter().zip(expected).filter(|(dim, extent)| **dim as u64 == **extent).count() == expected.len()
        })
    }

    /// Makes a variant for many shapes ready for these; `false` if it does not hold for them, or is for one.
    #[inline(never)]
    fn make_ready(&mut self, v: usize, inputs: &[Tensor]) -> Result<bool, Status> {
        let Some(plan) = OpenPlan::of(&self.image, v)? else { return Ok(false) };
        if inputs.iter().flat_map(dims).any(|dim| *dim < 0) {
            return Ok(false);
        }
        // The table of arguments may be bound for another shape of the plan.
        self.bound = 0;
        match self.open.enter(self.model, &self.image, (v, &plan), inputs) {
            Ok(()) if self.is_ready(v, inputs) => Ok(true),
            // The plan is for other extents than its program was given.
            Ok(()) => {
                self.open.forget();
                Ok(false)
            }
            Err(SizesError::Unfit) => Ok(false),
            Err(SizesError::TooLarge) => {
                self.message.text("the shapes are too large");
                Err(status::SHAPE)
            }
            Err(SizesError::Damaged) => Err(status::DAMAGED),
        }
    }

    /// Explains that no variant has inputs of these shapes.
    #[cold]
    #[inline(never)]
    fn unknown_shape(&mut self, inputs: &[Tensor]) -> Status {
        let first = variants(&self.image).next().unwrap_or(0);
        // Of a plan for many shapes, those in the image are its largest.
        let mut shapes = Shapes { image: self.image, at: self.image.size(first + variant::SHAPES) };
        self.message.text("no variant for");
        for (i, given) in inputs.iter().enumerate() {
            let name = self.image.text(self.record(header::INPUTS, i)[tensor::NAME] as usize);
            self.message.text(if i == 0 { " `" } else { ", `" }).text(name).text("` ");
            self.message.shape(dims(given).iter().map(|dim| *dim as u64));
        }
        self.message.text("; compiled for ");
        let (count, first) = (self.image.size(header::DIMS), self.image.size(header::DIMS + 1));
        let has_steps = ImageVersion::of_word(self.image.word(header::VERSION)).reads(dim::STEPS_SINCE);
        for i in 0..count {
            let at = first + i * dim::WORDS;
            let [name, min, max] = [dim::NAME, dim::MIN, dim::MAX].map(|word| self.image.word(at + word));
            self.message.text(self.image.text(name as usize)).text(" = ").number(min).text("..=").number(max);
            match self.image.word(first + count * dim::WORDS + i) {
                step if has_steps && step > 1 => self.message.text("/").number(step),
                _ => &mut self.message,
            }
            .text(", ");
        }
        self.message.text("such as ");
        for (i, given) in inputs.iter().enumerate() {
            let expected = shapes.next(given.rank as usize);
            self.message.text(if i == 0 { "" } else { ", " }).shape(expected.iter().copied());
        }
        status::SHAPE
    }

    /// Enters types, shapes and sizes of the outputs.
    fn describe(&self, v: usize, outputs: &mut [Tensor]) {
        let mut shapes = self.outputs(v);
        for (i, out) in outputs.iter_mut().enumerate() {
            let record = self.record(header::OUTPUTS, i);
            let dims = shapes.next(record[tensor::RANK] as usize);
            out.dims = dims.as_ptr().cast();
            (out.rank, out.dtype) = (dims.len() as u32, record[tensor::DTYPE] as u32);
            out.bytes = bytes(record[tensor::DTYPE], dims);
        }
    }

    /// The extents of the outputs of a variant.
    fn outputs(&self, v: usize) -> Shapes<'_> {
        let mut shapes = self.shapes(v);
        for i in 0..self.image.size(header::INPUTS) {
            shapes.next(self.record(header::INPUTS, i)[tensor::RANK] as usize);
        }
        shapes
    }

    /// Whether memory is large enough and aligned.
    fn suits(&self, side: usize, i: usize, given: &Tensor, needed: u64) -> bool {
        let aligned = || (given.data as usize).is_multiple_of(self.align(side, i, given));
        needed == 0 || (given.bytes >= needed && !given.data.is_null() && aligned())
    }

    /// Explains that memory is not.
    #[cold]
    #[inline(never)]
    fn unsuited(&mut self, side: usize, i: usize, given: &Tensor, needed: u64) -> Status {
        let (name, align) = (self.record(side, i)[tensor::NAME], self.align(side, i, given));
        let name = self.image.text(name as usize);
        self.message.text(if side == header::INPUTS { "input `" } else { "output `" }).text(name);
        self.message.text("` needs ").number(needed).text(" bytes at a multiple of ").number(align as u64);
        self.message.text(", ").number(given.bytes).text(" are given");
        status::BUFFER
    }

    /// What the address of a tensor is a multiple of.
    fn align(&self, side: usize, i: usize, given: &Tensor) -> usize {
        if self.is_there(given) { DEVICE_ALIGN } else { size(self.record(side, i)[tensor::DTYPE]) }
    }

    /// Whether a tensor lies in the memory of the GPU.
    pub fn is_there(&self, given: &Tensor) -> bool {
        self.gpu && given.dtype & Tensor::ON_DEVICE != 0
    }
}

/// The record of an input or output. As the functions below, once in a program: it is to be small.
#[inline(never)]
fn record(image: &Image<'static>, side: usize, i: usize) -> [u64; tensor::WORDS] {
    image.record(image.size(side + 1) + i * tensor::WORDS).copied().unwrap_or_default()
}

/// Whether a tensor has so many dimensions, and their extents are given.
fn has_rank(given: &Tensor, rank: u64) -> bool {
    u64::from(given.rank) == rank && !(given.dims.is_null() && given.rank > 0)
}

/// Extents of tensors, one after the other.
struct Shapes<'w> {
    image: Image<'w>,
    at: usize,
}

impl<'w> Shapes<'w> {
    #[inline(never)]
    fn next(&mut self, rank: usize) -> &'w [u64] {
        let dims = self.image.words(self.at, rank);
        self.at += rank;
        dims
    }
}

/// Bytes of an element of a type, by its number.
#[inline(never)]
fn size(dtype: u64) -> usize {
    DType::ALL.into_iter().find(|d| *d as u64 == dtype).map_or(1, DType::size)
}

#[inline(never)]
fn bytes(dtype: u64, dims: &[u64]) -> u64 {
    dims.iter().fold(1, |bytes: u64, dim| bytes.saturating_mul(*dim)).saturating_mul(size(dtype) as u64)
}
