//! The memory of one run at a time of a model on a GPU, and the run.
//!
//! On the host a context is one block of memory: this record, the addresses of the caller's tensors, and room for the
//! parameters of a launch. On the GPU it is a stream and one block: the arena, then room for a copy of every tensor.

use core::ffi::c_void;
use core::mem::{align_of, size_of};
use core::ptr::null_mut;
use core::slice;

use tensorc_abi::artifact::{Gpu, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, batch, gpu, header, launch, matrix, slot, step, variant};

use super::GpuModel;
use super::device::{self, Device};
use super::driver::{Address, Driver, Encode, Handle, TensorMap};
use crate::message::Message;
use crate::model::{steps, variants};
use crate::signature::Signature;
use crate::weights;

/// Alignment of a context's memory.
const ALIGN: usize = 64;
/// Alignment of tensors on the GPU.
const THERE: u64 = 256;
/// A stream that does not wait for the streams of others.
const NON_BLOCKING: u32 = 1;
/// Bytes of a row of a box of a matrix.
const ROW: u32 = 128;
/// Numbers of the driver's interface for types of elements, and the bytes of each, by what an image calls them: f16, bf16, and f32
/// that is rounded to tf32.
const ELEMENTS: [(i32, u64); 3] = [(6, 2), (9, 2), (11, 4)];
/// Axes of a matrix: columns, rows, and those of batches.
const MOST_AXES: usize = 2 + batch::MOST;
/// More numbers of the driver's: the permutation of pieces, and how much is fetched ahead.
const SWIZZLE_128B: i32 = 3;
const L2_256B: i32 = 3;

#[repr(C)]
pub struct GpuContext {
    pub signature: Signature,
    record: &'static [u64; gpu::WORDS],
    device: *mut Device,
    stream: Handle,
    /// The block on the GPU.
    there: Address,
    /// Where in it the copy of every input, then every output lies.
    places: *mut u64,
    /// Where the tensors of this run lie on the GPU, in the same order.
    tensors: *mut Address,
    /// Room for the parameters of a launch, and for where they lie.
    parameters: *mut Address,
    pointers: *mut *mut c_void,
    /// The driver's function for matrices, if some kernel needs it.
    encode: Option<Encode>,
    /// Whether every kernel is waited for.
    stepwise: bool,
    /// Whether the memory is ours to free.
    owned: bool,
}

/// Numbers of things in a context, the largest of all variants.
struct Plan {
    tensors: usize,
    parameters: usize,
    arena: u64,
}

impl Plan {
    /// An error if a step or a slot is of a kind that this version does not know.
    fn new(image: &Image<'static>, record: &[u64; gpu::WORDS]) -> Result<Plan, Status> {
        let (mut parameters, mut arena) = (0, 0);
        for v in variants(image) {
            arena = arena.max(image.word(v + variant::ARENA_BYTES));
            for s in steps(image, v) {
                let count = match s[step::KIND] {
                    step::LAUNCH => s[step::ARGS],
                    step::COPY => 2,
                    _ => return Err(status::VERSION),
                };
                for i in 0..count as usize {
                    let slot = slot_of(image, v, s, i).ok_or(status::DAMAGED)?;
                    if slot[slot::HOME] > slot::ARENA {
                        return Err(status::VERSION);
                    }
                }
                if s[step::KIND] == step::LAUNCH {
                    let launch = launch_of(image, record, s).ok_or(status::DAMAGED)?;
                    if launch[launch::PARAMETERS] != count {
                        return Err(status::DAMAGED);
                    }
                    let mut matrices = 0;
                    for m in device::matrices(image).filter(|m| m[matrix::KERNEL] == s[step::FUNCTION]) {
                        matrices += 1;
                        let known = m[matrix::ELEMENT] < ELEMENTS.len() as u64;
                        if !known || m[matrix::ARGUMENT] >= count || matrices > matrix::MOST {
                            return Err(status::DAMAGED);
                        }
                    }
                    parameters = parameters.max(count as usize + matrices);
                }
            }
        }
        let tensors = image.size(header::INPUTS) + image.size(header::OUTPUTS);
        Ok(Plan { tensors, parameters, arena: arena.next_multiple_of(THERE) })
    }

    /// Bytes of the block on the host.
    fn bytes(&self) -> usize {
        size_of::<GpuContext>().next_multiple_of(align_of::<u64>()) + 16 * (self.tensors + self.parameters)
    }
}

fn slot_of(image: &Image<'static>, v: usize, s: &[u64; step::WORDS], i: usize) -> Option<&'static [u64; slot::WORDS]> {
    let at = s[step::FIRST_SLOT] as usize + i;
    let known = at < image.size(v + variant::SLOTS);
    image.record(image.size(v + variant::SLOTS + 1) + at * slot::WORDS).filter(|_| known)
}

/// How the kernel of a step is launched.
fn launch_of(
    image: &Image<'static>,
    record: &[u64; gpu::WORDS],
    s: &[u64; step::WORDS],
) -> Option<&'static [u64; launch::WORDS]> {
    let kernel = s[step::FUNCTION] as usize;
    let known = kernel < image.size(header::KERNELS);
    image.record(record[gpu::LAUNCHES] as usize + kernel * launch::WORDS).filter(|_| known)
}

/// Bytes of a context on the host.
pub fn memory_bytes(model: &'static GpuModel) -> Result<usize, Status> {
    let image = model.model.image()?;
    Ok(Plan::new(&image, device::record(model, &image)?)?.bytes())
}

/// Makes a context.
///
/// # Safety
/// As `tc_rt_gpu_init_on`.
pub unsafe fn init(
    model: &'static GpuModel,
    wanted: &Gpu,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    message: &mut Message,
) -> Result<*mut GpuContext, Status> {
    let image = model.model.image()?;
    let record = device::record(model, &image)?;
    let plan = Plan::new(&image, record)?;
    let weights = weights::base(&model.model, &image, weights)?;
    let owned = memory.is_null();
    if !owned && (bytes < plan.bytes() as u64 || !(memory as usize).is_multiple_of(ALIGN)) {
        return Err(status::MEMORY);
    }
    // SAFETY: passed on from the caller.
    let device = unsafe { Device::acquire(model, &image, weights, wanted, message)? };
    // SAFETY: the size is a multiple of the alignment.
    let own = || unsafe { libc::aligned_alloc(ALIGN, plan.bytes().next_multiple_of(ALIGN)).cast::<u8>() };
    let base = if owned { own() } else { memory };
    if base.is_null() {
        // SAFETY: just acquired.
        unsafe { Device::release(device) };
        return Err(status::MEMORY);
    }
    let places = base.wrapping_add(size_of::<GpuContext>().next_multiple_of(align_of::<u64>())).cast::<u64>();
    let parameters = places.wrapping_add(2 * plan.tensors);
    let context = GpuContext {
        signature: Signature::new(image, true),
        record,
        device,
        stream: null_mut(),
        there: 0,
        places,
        tensors: places.wrapping_add(plan.tensors),
        parameters,
        pointers: parameters.wrapping_add(plan.parameters).cast(),
        encode: None,
        stepwise: wanted.flags & Gpu::STEPWISE != 0,
        owned,
    };
    let at = base.cast::<GpuContext>();
    // SAFETY: the memory is large enough for the plan, and aligned.
    unsafe {
        at.write(context);
        match (*at).prepare(&plan, message) {
            Ok(()) => Ok(at),
            Err(status) => {
                free(at);
                Err(status)
            }
        }
    }
}

/// Frees what a context has, and its memory if it is its own.
///
/// # Safety
/// `context` came from [`init`] and is not used any more.
pub unsafe fn free(context: *mut GpuContext) {
    // SAFETY: by the caller's contract; the device lives until it is released.
    unsafe {
        let (device, owned) = ((*context).device, (*context).owned);
        (*context).destroy();
        Device::release(device);
        if owned {
            libc::free(context.cast());
        }
    }
}

impl GpuContext {
    /// What is shared with other contexts.
    fn device(&self) -> &'static Device {
        // SAFETY: it lives until this context releases it.
        unsafe { &*self.device }
    }

    /// Lays tensors out and allocates on the GPU.
    unsafe fn prepare(&mut self, plan: &Plan, message: &mut Message) -> Result<(), Status> {
        let (image, device) = (self.signature.image, self.device());
        let driver = &device.driver;
        if device::matrices(&image).next().is_some() {
            self.encode = Some(driver.encoder(message)?);
        }
        // SAFETY: there are as many places as tensors.
        let places = unsafe { slice::from_raw_parts_mut(self.places, plan.tensors) };
        places.fill(0);
        for v in variants(&image) {
            for (place, (.., bytes)) in places.iter_mut().zip(self.signature.sizes(v)) {
                *place = bytes.next_multiple_of(THERE).max(*place);
            }
        }
        let mut total = plan.arena;
        for place in places {
            let bytes = *place;
            *place = total;
            total += bytes;
        }
        // SAFETY: the driver's functions are given what they take.
        unsafe {
            let _entered = driver.enter(device.context, message)?;
            if total > 0 {
                driver.check((driver.alloc)(&raw mut self.there, total as usize), message, "memory of the GPU")?;
            }
            driver.check((driver.stream_create)(&raw mut self.stream, NON_BLOCKING), message, "a stream")
        }
    }

    unsafe fn destroy(&mut self) {
        let device = self.device();
        let driver = &device.driver;
        let mut nobody = Message::EMPTY;
        // SAFETY: the handles are the driver's; work on the stream is waited for.
        unsafe {
            let Ok(_entered) = driver.enter(device.context, &mut nobody) else { return };
            if !self.stream.is_null() {
                (driver.stream_wait)(self.stream);
                (driver.stream_destroy)(self.stream);
            }
            if self.there != 0 {
                (driver.free)(self.there);
            }
        }
    }

    /// Runs the model.
    ///
    /// # Safety
    /// As `tc_rt_gpu_run`.
    pub unsafe fn run(&mut self, inputs: *const Tensor, outputs: *mut Tensor) -> Result<(), Status> {
        // SAFETY: passed on from the caller.
        let (v, inputs, outputs) = unsafe { self.signature.check_all(inputs, outputs)? };
        let device = self.device();
        let driver = &device.driver;
        // SAFETY: the context lives as long as the device.
        let _entered = unsafe { driver.enter(device.context, &mut self.signature.message)? };
        self.place(inputs, outputs);
        // SAFETY: the tensors are as large as the plan says, which the compiler has verified.
        let enqueued = unsafe { self.enqueue(driver, v, inputs, outputs) };
        // Also after an error: the caller's tensors are its own again only when nothing is under way.
        // SAFETY: the stream is this context's.
        let ended = unsafe { (driver.stream_wait)(self.stream) };
        enqueued?;
        self.signature.bound = v;
        self.ended(driver, v, ended)
    }

    /// Notes where the tensors lie on the GPU.
    fn place(&mut self, inputs: &[Tensor], outputs: &[Tensor]) {
        for (i, given) in inputs.iter().chain(outputs).enumerate() {
            // SAFETY: both tables have an entry for every tensor.
            unsafe {
                let copy = self.there + *self.places.add(i);
                *self.tensors.add(i) = if self.signature.is_there(given) { given.data as Address } else { copy };
            }
        }
    }

    /// Puts copies and kernels on the stream.
    unsafe fn enqueue(
        &mut self,
        driver: &Driver,
        v: usize,
        inputs: &[Tensor],
        outputs: &[Tensor],
    ) -> Result<(), Status> {
        let image = self.signature.image;
        // SAFETY: passed on from the caller, as below.
        let code = unsafe { self.copies(driver, v, header::INPUTS, inputs) };
        driver.check(code, &mut self.signature.message, "copying the inputs")?;
        for s in steps(&image, v) {
            // SAFETY: as above.
            unsafe { self.step(driver, v, s)? };
        }
        // SAFETY: as above.
        let code = unsafe { self.copies(driver, v, header::OUTPUTS, outputs) };
        driver.check(code, &mut self.signature.message, "copying the outputs")
    }

    /// Copies the tensors of a side that lie on the host to the GPU, or back.
    unsafe fn copies(&self, driver: &Driver, v: usize, of: usize, tensors: &[Tensor]) -> i32 {
        for (at, (side, i, bytes)) in self.signature.sizes(v).enumerate().filter(|(_, (side, ..))| *side == of) {
            let given = &tensors[i];
            if bytes == 0 || self.signature.is_there(given) {
                continue;
            }
            // SAFETY: the tensor has so many bytes, and so has its copy.
            let code = unsafe {
                let there = *self.tensors.add(at);
                match side {
                    header::INPUTS => (driver.copy_in)(there, given.data.cast(), bytes as usize, self.stream),
                    _ => (driver.copy_out)(given.data.cast(), there, bytes as usize, self.stream),
                }
            };
            if code != 0 {
                return code;
            }
        }
        0
    }

    /// Puts a step on the stream.
    unsafe fn step(&mut self, driver: &Driver, v: usize, s: &[u64; step::WORDS]) -> Result<(), Status> {
        let image = self.signature.image;
        if s[step::KIND] == step::COPY {
            let [source, target] = [0, 1].map(|i| self.address(v, s, i));
            // SAFETY: both buffers have so many bytes.
            let code = unsafe { (driver.copy_there)(target, source, s[step::TASKS] as usize, self.stream) };
            return driver.check(code, &mut self.signature.message, "a copy on the GPU");
        }
        let launch = launch_of(&image, self.record, s).ok_or(status::DAMAGED)?;
        let function = self.device().function(&image, s[step::FUNCTION]).ok_or(status::DAMAGED)?;
        for i in 0..launch[launch::PARAMETERS] as usize {
            let address = self.address(v, s, i);
            // SAFETY: there is room for the parameters of every launch.
            unsafe {
                *self.parameters.add(i) = address;
                *self.pointers.add(i) = self.parameters.add(i).cast();
            }
        }
        let [blocks, threads, shared] =
            [launch::BLOCKS, launch::THREADS, launch::SHARED_BYTES].map(|word| launch[word] as u32);
        let mut maps = [TensorMap::EMPTY; matrix::MOST];
        // SAFETY: the compiler made the kernel for these parameters, which the driver copies.
        let code = unsafe {
            let (pointers, none) = (self.pointers, null_mut());
            let mut code = self.encode(s, launch[launch::PARAMETERS] as usize, &mut maps);
            if code == 0 {
                code = (driver.launch)(function, blocks, 1, 1, threads, 1, 1, shared, self.stream, pointers, none);
            }
            if code == 0 && self.stepwise { (driver.stream_wait)(self.stream) } else { code }
        };
        if code == 0 {
            return Ok(());
        }
        let name = device::name(&image, self.record, s[step::FUNCTION]);
        let message = &mut self.signature.message;
        message.text("kernel `").text(name.to_str().unwrap_or("?")).text("` of node `");
        message.text(image.text(s[step::NAME] as usize));
        driver.check(code, message, "`")
    }

    /// Tells of the matrices of a step's kernel, whose parameters come behind `count` addresses.
    unsafe fn encode(&self, s: &[u64; step::WORDS], count: usize, maps: &mut [TensorMap; matrix::MOST]) -> i32 {
        let Some(encode) = self.encode else { return 0 };
        let image = &self.signature.image;
        let own = device::matrices(image).enumerate().filter(|(_, m)| m[matrix::KERNEL] == s[step::FUNCTION]);
        for (i, ((number, m), map)) in own.zip(maps).enumerate() {
            let (element, bytes) = ELEMENTS[m[matrix::ELEMENT] as usize];
            let (mut extents, mut strides, mut in_box) = ([0; MOST_AXES], [0; MOST_AXES], [1; MOST_AXES]);
            (extents[0], in_box[0]) = (m[matrix::COLUMNS], ROW / bytes as u32);
            let mut rank = 1;
            let mut add = |extent: u64, stride: u64, boxed: u64| {
                (extents[rank], strides[rank - 1], in_box[rank]) = (extent, stride * bytes, boxed as u32);
                rank += 1;
            };
            let beside = |b: &&[u64; batch::WORDS]| b[batch::MATRIX] == number as u64;
            let mut batches = device::batches(image).filter(beside).take(batch::MOST).peekable();
            while let Some(b) = batches.next_if(|b| b[batch::STRIDE] < m[matrix::STRIDE]) {
                add(b[batch::EXTENT], b[batch::STRIDE], 1);
            }
            add(m[matrix::ROWS], m[matrix::STRIDE], m[matrix::BOX_ROWS]);
            batches.for_each(|b| add(b[batch::EXTENT], b[batch::STRIDE], 1));
            let steps = [1; MOST_AXES];
            // SAFETY: there is room for the parameters of every launch, matrices among them; the driver reads as many numbers as the
            // rank says, of the strides one fewer.
            let code = unsafe {
                let address = *self.parameters.add(m[matrix::ARGUMENT] as usize) as *mut c_void;
                *self.pointers.add(count + i) = (&raw mut *map).cast();
                let (extents, strides, in_box) = (extents.as_ptr(), strides.as_ptr(), in_box.as_ptr());
                let (rank, steps) = (rank as u32, steps.as_ptr());
                encode(map, element, rank, address, extents, strides, in_box, steps, 0, SWIZZLE_128B, L2_256B, 0)
            };
            if code != 0 {
                return code;
            }
        }
        0
    }

    /// Where an operand of a step lies on the GPU.
    fn address(&self, v: usize, s: &[u64; step::WORDS], i: usize) -> Address {
        let image = &self.signature.image;
        let slot = slot_of(image, v, s, i).copied().unwrap_or_default();
        let index = slot[slot::INDEX] as usize;
        let tensor = |i: usize| {
            let known = i < image.size(header::INPUTS) + image.size(header::OUTPUTS);
            // SAFETY: the table has an entry for every tensor.
            if known { unsafe { *self.tensors.add(i) } } else { 0 }
        };
        let base = match slot[slot::HOME] {
            slot::INPUT => tensor(index),
            slot::OUTPUT => tensor(image.size(header::INPUTS) + index),
            slot::WEIGHTS => self.device().weights,
            _ => self.there,
        };
        base.wrapping_add(slot[slot::OFFSET])
    }

    /// The outcome of all kernels together, which fail while the host is elsewhere.
    fn ended(&mut self, driver: &Driver, v: usize, code: i32) -> Result<(), Status> {
        if code == 0 {
            return Ok(());
        }
        let image = self.signature.image;
        let launches = || steps(&image, v).filter(|s| s[step::KIND] == step::LAUNCH);
        let name = |s: &[u64; step::WORDS]| device::name(&image, self.record, s[step::FUNCTION]);
        let names = [launches().next(), launches().last()].map(|s| s.map_or(c"?", name));
        let message = &mut self.signature.message;
        if launches().count() > 1 {
            message.text("one of the kernels `").text(names[0].to_str().unwrap_or("?")).text("` to `");
            message.text(names[1].to_str().unwrap_or("?"));
        } else {
            message.text("kernel `").text(names[0].to_str().unwrap_or("?"));
        }
        driver.check(code, message, "`")
    }
}
