//! The memory of one run at a time of a model on a GPU, and the run.
//!
//! On the host a context is one block of memory: this record, the addresses of the caller's tensors, and room for the
//! parameters of a launch. On the GPU it is a stream and one block: the arena, then room for a copy of every tensor.

use core::cell::Cell;
use core::ffi::c_void;
use core::mem::{align_of, size_of};
use core::ptr::null_mut;
use core::slice;

use tensorc_abi::artifact::{GpuHandle, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, batch, gpu, header, launch, matrix, slot, step};
use tensorc_exec::{DeviceStep, Queue, Step, Work};

use super::GpuModel;
use super::device::{self, Device};
use super::driver::{Address, CuHandle, DriverApi, Encode, TensorMap};
use crate::message::ErrorText;
use crate::model::{ArtifactModel, Linked, Needs, enter, slots, steps, variants};
use crate::open::{OpenMemory, record_of};
use crate::signature::ImageSignature;
use crate::weights;

/// Alignment of a context's memory.
const ALIGN: usize = 64;
/// Alignment of tensors on the GPU.
const DEVICE_ALIGNMENT: u64 = 256;
/// A stream that does not wait for the streams of others.
const NON_BLOCKING: u32 = 1;
/// Bytes of a row of a box of a matrix.
const ROW: u32 = 128;
/// Numbers of the driver's interface for types of elements, and the bytes of each, by what an image calls them: f16, bf16, and f32
/// that is rounded to tf32.
const ELEMENTS: [(i32, u64); 3] = [(6, 2), (9, 2), (11, 4)];
/// Axes of a matrix: columns, rows, and those of batches.
const MAX_TENSOR_MAP_AXES: usize = 2 + batch::MAX;
/// More numbers of the driver's: the permutation of pieces, and how much is fetched ahead.
const SWIZZLE_128B: i32 = 3;
const L2_256B: i32 = 3;

/// A context of a model on a GPU, at the start of its block of memory on the host.
#[repr(C)]
pub struct GpuContext {
    /// The tensors of the image, and the message of the last call.
    pub signature: ImageSignature,
    record: &'static [u64; gpu::WORDS],
    device: *mut Device,
    stream: CuHandle,
    /// The block on the GPU.
    there: Address,
    /// Where in it the copy of every input, then every output lies.
    places: *mut u64,
    /// Where the tensors of this run lie on the GPU, in the same order.
    tensors: *mut Address,
    /// Addresses of arguments on the GPU, and room for where those of a launch lie.
    table: *mut *mut u8,
    slots: usize,
    pointers: *mut *mut c_void,
    /// The driver's function for matrices, if some kernel needs it.
    encode: Option<Encode>,
    /// Whether every kernel is waited for.
    stepwise: bool,
    /// Whether the memory is ours to free.
    owned: bool,
}

/// Numbers of things in a context, the largest of all variants.
struct GpuContextLayout {
    tensors: usize,
    slots: usize,
    /// Of a launch, matrices among them.
    parameters: usize,
    arena: u64,
}

impl GpuContextLayout {
    /// An error if a step or a slot is of a kind that this version does not know, or a plan is for many shapes.
    fn new(
        model: &'static ArtifactModel,
        image: &Image<'static>,
        record: &[u64; gpu::WORDS],
    ) -> Result<GpuContextLayout, Status> {
        if variants(image).any(|v| record_of(image, v) != 0) {
            return Err(status::DAMAGED);
        }
        let parameters = Cell::new(0);
        let needs = Needs::of(model, image, 1, |v, step| {
            let (function, count) = match step.work {
                Work::Launch { function, arguments } => (Some(function), arguments),
                Work::Copy(_) => (None, 2),
                _ => return Err(status::VERSION),
            };
            if step.first_slot.saturating_add(count) > slots(image, v).count() {
                return Err(status::DAMAGED);
            }
            let Some(function) = function else { return Ok(()) };
            let launch = launch_of(image, record, function).ok_or(status::DAMAGED)?;
            let own = || device::matrices(image).filter(|m| m[matrix::KERNEL] == function);
            let known = |m: &'static [u64; matrix::WORDS]| {
                m[matrix::ELEMENT] < ELEMENTS.len() as u64 && m[matrix::ARGUMENT] < count as u64
            };
            let matrices = own().count();
            if launch[launch::PARAMETERS] != count as u64 || matrices > matrix::MAX || !own().all(known) {
                return Err(status::DAMAGED);
            }
            parameters.set(parameters.get().max(count + matrices));
            Ok(())
        })?;
        let tensors = image.size(header::INPUTS) + image.size(header::OUTPUTS);
        let arena = (needs.arena as u64).next_multiple_of(DEVICE_ALIGNMENT);
        Ok(GpuContextLayout { tensors, slots: needs.slots, parameters: parameters.get(), arena })
    }

    /// Bytes of the block on the host.
    fn bytes(&self) -> usize {
        size_of::<GpuContext>().next_multiple_of(align_of::<u64>())
            + 8 * (2 * self.tensors + self.slots + self.parameters)
    }
}

/// How a kernel is launched.
fn launch_of(image: &Image<'static>, record: &[u64; gpu::WORDS], kernel: u64) -> Option<&'static [u64; launch::WORDS]> {
    let known = kernel < image.word(header::KERNELS);
    image.record(record[gpu::LAUNCHES] as usize + kernel as usize * launch::WORDS).filter(|_| known)
}

/// Bytes of a context on the host.
pub fn memory_bytes(model: &'static GpuModel) -> Result<usize, Status> {
    let image = model.model.image()?;
    Ok(GpuContextLayout::new(&model.model, &image, device::record(model, &image)?)?.bytes())
}

/// Bytes of a context on the host for runs with inputs of some shapes; `None` if there is no plan for them.
///
/// # Safety
/// `inputs` is null or has an entry for every input of the model.
pub unsafe fn memory_for(model: &'static GpuModel, inputs: *const Tensor) -> Result<Option<usize>, Status> {
    let bytes = memory_bytes(model)?;
    let mut signature = ImageSignature::new(&model.model, model.model.image()?, OpenMemory::none(), true);
    // SAFETY: passed on from the caller.
    let found = unsafe { signature.variant_for(inputs)? };
    Ok(found.map(|_| bytes))
}

/// Makes a context.
///
/// # Safety
/// As `tc_rt_gpu_init_on`.
pub unsafe fn init(
    model: &'static GpuModel,
    wanted: &GpuHandle,
    memory: *mut u8,
    bytes: u64,
    weights: Option<&Weights>,
    message: &mut ErrorText,
) -> Result<*mut GpuContext, Status> {
    let image = model.model.image()?;
    let record = device::record(model, &image)?;
    let plan = GpuContextLayout::new(&model.model, &image, record)?;
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
    let table = places.wrapping_add(2 * plan.tensors).cast::<*mut u8>();
    let context = GpuContext {
        signature: ImageSignature::new(&model.model, image, OpenMemory::none(), true),
        record,
        device,
        stream: null_mut(),
        there: 0,
        places,
        tensors: places.wrapping_add(plan.tensors),
        table,
        slots: plan.slots,
        pointers: table.wrapping_add(plan.slots).cast(),
        encode: None,
        stepwise: wanted.flags & GpuHandle::STEPWISE != 0,
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
    unsafe fn prepare(&mut self, plan: &GpuContextLayout, message: &mut ErrorText) -> Result<(), Status> {
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
                *place = bytes.next_multiple_of(DEVICE_ALIGNMENT).max(*place);
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
        let mut nobody = ErrorText::EMPTY;
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
        self.ended(driver, v, ended)?;
        let (there, stream) = (self.there, self.stream);
        self.signature.confirm(v, |message, offset| {
            let mut word = 0i64;
            // SAFETY: the arena begins the block, and every word lies inside it; the copy is waited for.
            let code = unsafe {
                match (driver.copy_out)((&raw mut word).cast(), there + offset as Address, size_of::<i64>(), stream) {
                    0 => (driver.stream_wait)(stream),
                    code => code,
                }
            };
            driver.check(code, message, "copying what was found of values").map(|()| word)
        })
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
        driver: &DriverApi,
        v: usize,
        inputs: &[Tensor],
        outputs: &[Tensor],
    ) -> Result<(), Status> {
        let image = self.signature.image;
        // SAFETY: passed on from the caller, as below.
        let code = unsafe { self.copies(driver, v, header::INPUTS, inputs) };
        driver.check(code, &mut self.signature.message, "copying the inputs")?;
        self.bind(v);
        let linked = Linked { model: &self.device().model().model, image, variant: v };
        // SAFETY: the context's own table, which nothing writes until the next run.
        let table = unsafe { slice::from_raw_parts(self.table.cast_const(), self.slots) };
        for record in steps(&image, v) {
            let step = Step::resolve(record, &linked).ok_or(status::DAMAGED)?;
            let step = DeviceStep::of(&step, table.len()).ok_or(status::DAMAGED)?;
            let mut stream = Launches { context: self, driver, node: record[step::NAME] as usize };
            // SAFETY: the arguments are those of the plan, as large as the compiler has verified.
            unsafe { step.enqueue(table, &mut stream)? };
        }
        // SAFETY: as above.
        let code = unsafe { self.copies(driver, v, header::OUTPUTS, outputs) };
        driver.check(code, &mut self.signature.message, "copying the outputs")
    }

    /// Copies the tensors of a side that lie on the host to the GPU, or back.
    unsafe fn copies(&self, driver: &DriverApi, v: usize, of: usize, tensors: &[Tensor]) -> i32 {
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

    /// Fills the table of arguments.
    fn bind(&mut self, v: usize) {
        let image = self.signature.image;
        let inputs = image.size(header::INPUTS);
        // SAFETY: both are the context's own, with entries for every slot and every tensor.
        let (table, tensors) = unsafe {
            let count = inputs + image.size(header::OUTPUTS);
            (slice::from_raw_parts_mut(self.table, self.slots), slice::from_raw_parts(self.tensors, count))
        };
        let own = [self.device().weights, self.there].map(|base| Some(base as *mut u8));
        enter(&image, v, table, own, |side, index| {
            let first = if side == slot::INPUT { 0 } else { inputs };
            tensors.get(first + index).map(|address| *address as *mut u8)
        });
    }

    /// Tells of the matrices of a kernel, whose parameters come behind its arguments.
    unsafe fn encode(&self, kernel: u64, arguments: &[*mut u8], maps: &mut [TensorMap; matrix::MAX]) -> i32 {
        let Some(encode) = self.encode else { return 0 };
        let image = &self.signature.image;
        let own = device::matrices(image).enumerate().filter(|(_, m)| m[matrix::KERNEL] == kernel);
        for (i, ((number, m), map)) in own.zip(maps).enumerate() {
            let (element, bytes) = ELEMENTS[m[matrix::ELEMENT] as usize];
            let (mut extents, mut strides, mut in_box) =
                ([0; MAX_TENSOR_MAP_AXES], [0; MAX_TENSOR_MAP_AXES], [1; MAX_TENSOR_MAP_AXES]);
            (extents[0], in_box[0]) = (m[matrix::COLUMNS], ROW / bytes as u32);
            let mut rank = 1;
            let mut add = |extent: u64, stride: u64, boxed: u64| {
                (extents[rank], strides[rank - 1], in_box[rank]) = (extent, stride * bytes, boxed as u32);
                rank += 1;
            };
            let beside = |b: &&[u64; batch::WORDS]| b[batch::MATRIX] == number as u64;
            let mut batches = device::batches(image).filter(beside).take(batch::MAX).peekable();
            while let Some(b) = batches.next_if(|b| b[batch::STRIDE] < m[matrix::STRIDE]) {
                add(b[batch::EXTENT], b[batch::STRIDE], 1);
            }
            add(m[matrix::ROWS], m[matrix::STRIDE], m[matrix::BOX_ROWS]);
            batches.for_each(|b| add(b[batch::EXTENT], b[batch::STRIDE], 1));
            let steps = [1; MAX_TENSOR_MAP_AXES];
            // SAFETY: there is room for the parameters of every launch, matrices among them; the driver reads as many numbers as the
            // rank says, of the strides one fewer.
            let code = unsafe {
                let address = arguments[m[matrix::ARGUMENT] as usize].cast::<c_void>();
                *self.pointers.add(arguments.len() + i) = (&raw mut *map).cast();
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

    /// The outcome of all kernels together, which fail while the host is elsewhere.
    fn ended(&mut self, driver: &DriverApi, v: usize, code: i32) -> Result<(), Status> {
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

/// The stream of a context as steps see it.
struct Launches<'c> {
    context: &'c mut GpuContext,
    driver: &'c DriverApi,
    /// Where the image names the node that a step came from.
    node: usize,
}

impl Queue for Launches<'_> {
    type Error = Status;

    unsafe fn launch(&mut self, kernel: u64, arguments: &[*mut u8]) -> Result<(), Status> {
        let (context, driver) = (&mut *self.context, self.driver);
        let image = context.signature.image;
        let launch = launch_of(&image, context.record, kernel).ok_or(status::DAMAGED)?;
        let function = context.device().function(&image, kernel).ok_or(status::DAMAGED)?;
        let [blocks, threads, shared] =
            [launch::BLOCKS, launch::THREADS, launch::SHARED_BYTES].map(|word| launch[word] as u32);
        let mut maps = [TensorMap::EMPTY; matrix::MAX];
        // SAFETY: the compiler made the kernel for these parameters, which the driver copies; there is room for where
        // those of every launch lie.
        let code = unsafe {
            for (i, argument) in arguments.iter().enumerate() {
                *context.pointers.add(i) = (&raw const *argument).cast_mut().cast();
            }
            let (stream, pointers, none) = (context.stream, context.pointers, null_mut());
            let mut code = context.encode(kernel, arguments, &mut maps);
            if code == 0 {
                code = (driver.launch)(function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, none);
            }
            if code == 0 && context.stepwise { (driver.stream_wait)(stream) } else { code }
        };
        if code == 0 {
            return Ok(());
        }
        let name = device::name(&image, context.record, kernel);
        let message = &mut context.signature.message;
        message.text("kernel `").text(name.to_str().unwrap_or("?")).text("` of node `");
        message.text(image.text(self.node));
        driver.check(code, message, "`")
    }

    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Status> {
        let context = &mut *self.context;
        // SAFETY: passed on from the caller.
        let code = unsafe { (self.driver.copy_there)(target as Address, source as Address, bytes, context.stream) };
        self.driver.check(code, &mut context.signature.message, "a copy on the GPU")
    }
}
