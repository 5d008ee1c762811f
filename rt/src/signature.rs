//! What a model takes and gives: the caller's tensors held against the image, and what is wrong with them in words.

use tensorc_abi::DType;
use tensorc_abi::artifact::{Status, Tensor, status};
use tensorc_abi::image::{Image, check, dim, found, header, tensor, variant};

use crate::message::ErrorText;
use crate::model::{checks, dims, variants};

/// Alignment of tensors in the memory of a GPU, which kernels rely on.
const DEVICE_ALIGN: usize = 16;

/// The image's tensors, for one context.
pub struct ImageSignature {
    /// The checked image.
    pub image: Image<'static>,
    /// The variant of the last run: the offset of its record, or 0.
    pub bound: usize,
    /// Whether tensors may lie in the memory of a GPU.
    gpu: bool,
    /// What went wrong in the last call; empty if nothing did.
    pub message: ErrorText,
}

impl ImageSignature {
    /// The signature of an image; `gpu` says whether tensors may lie in the memory of a GPU.
    pub fn new(image: Image<'static>, gpu: bool) -> ImageSignature {
        ImageSignature { image, bound: 0, gpu, message: ErrorText::EMPTY }
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
        for (side, i, needed) in self.sizes(v) {
            let given = if side == header::INPUTS { &inputs[i] } else { &outputs[i] };
            self.check(side, i, given, needed)?;
        }
        Ok((v, inputs, outputs))
    }

    /// Whether the words of the checks of a variant say that all hold; `word` gives the one at an offset in the arena.
    ///
    /// # Errors
    /// Those of `word`; [`status::VALUE`], and the message says which value it was.
    pub fn confirm(&mut self, v: usize, mut word: impl FnMut(&mut ErrorText, usize) -> Result<i64, Status>) -> Result<(), Status> {
        let image = self.image;
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
    pub fn sizes(&self, v: usize) -> impl Iterator<Item = (usize, usize, u64)> + use<> {
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
    fn shapes(&self, v: usize) -> Shapes {
        Shapes { image: self.image, at: self.image.size(v + variant::SHAPES) }
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
            if u64::from(given.rank) != record[tensor::RANK] || (given.dims.is_null() && given.rank > 0) {
                self.message.text("input `").text(name).text("` has ").number(given.rank.into());
                self.message.text(" dimensions, the model takes ").number(record[tensor::RANK]);
                return Err(status::SHAPE);
            }
        }
        // Most runs have the shapes of the one before.
        let last = Some(self.bound).filter(|v| *v != 0);
        let image = self.image;
        let fits = |v: &usize| {
            let mut shapes = self.shapes(*v);
            inputs.iter().all(|t| {
                let expected = shapes.next(t.rank as usize);
                dims(t).iter().zip(expected).filter(|(dim, extent)| **dim as u64 == **extent).count() == expected.len()
            })
        };
        match last.into_iter().chain(variants(&image)).find(fits) {
            Some(found) => Ok(found),
            None => Err(self.unknown_shape(inputs)),
        }
    }

    /// Explains that no variant has inputs of these shapes.
    #[cold]
    #[inline(never)]
    fn unknown_shape(&mut self, inputs: &[Tensor]) -> Status {
        let first = variants(&self.image).next().unwrap_or(0);
        let mut shapes = self.shapes(first);
        self.message.text("no variant for");
        for (i, given) in inputs.iter().enumerate() {
            let name = self.image.text(self.record(header::INPUTS, i)[tensor::NAME] as usize);
            self.message.text(if i == 0 { " `" } else { ", `" }).text(name).text("` ");
            self.message.shape(dims(given).iter().map(|dim| *dim as u64));
        }
        self.message.text("; compiled for ");
        for i in 0..self.image.size(header::DIMS) {
            let at = self.image.size(header::DIMS + 1) + i * dim::WORDS;
            let [name, min, max] = [dim::NAME, dim::MIN, dim::MAX].map(|word| self.image.word(at + word));
            self.message
                .text(self.image.text(name as usize))
                .text(" = ")
                .number(min)
                .text("..=")
                .number(max)
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
    fn outputs(&self, v: usize) -> Shapes {
        let mut shapes = self.shapes(v);
        for i in 0..self.image.size(header::INPUTS) {
            shapes.next(self.record(header::INPUTS, i)[tensor::RANK] as usize);
        }
        shapes
    }

    /// Refuses memory that is too small or not aligned.
    fn check(&mut self, side: usize, i: usize, given: &Tensor, needed: u64) -> Result<(), Status> {
        let record = self.record(side, i);
        let align = if self.is_there(given) { DEVICE_ALIGN } else { size(record[tensor::DTYPE]) };
        if needed == 0
            || (given.bytes >= needed && !given.data.is_null() && (given.data as usize).is_multiple_of(align))
        {
            return Ok(());
        }
        let name = self.image.text(record[tensor::NAME] as usize);
        self.message.text(if side == header::INPUTS { "input `" } else { "output `" }).text(name);
        self.message.text("` needs ").number(needed).text(" bytes at a multiple of ").number(align as u64);
        self.message.text(", ").number(given.bytes).text(" are given");
        Err(status::BUFFER)
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

/// Extents of tensors, one after the other.
struct Shapes {
    image: Image<'static>,
    at: usize,
}

impl Shapes {
    #[inline(never)]
    fn next(&mut self, rank: usize) -> &'static [u64] {
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
    dims.iter().product::<u64>() * size(dtype) as u64
}
