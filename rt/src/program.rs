//! The program that `--emit=exe` makes of a model: reads arrays from `.npy` files, runs, prints and saves.

use core::ffi::CStr;
use core::ptr::{null, null_mut};

use libc::{c_char, c_int};
use tensorc_abi::DType;
use tensorc_abi::artifact::{GpuHandle, Parallel, Status, Tensor, Weights, status};
use tensorc_abi::image::{Image, MAX_RANK, header, tensor};

use crate::context::{ArtifactContext, tc_rt_describe, tc_rt_error, tc_rt_free, tc_rt_init, tc_rt_run};
use crate::gpu::{
    GpuContext, GpuModel, tc_rt_gpu_describe, tc_rt_gpu_error, tc_rt_gpu_free, tc_rt_gpu_init_on, tc_rt_gpu_run,
};
use crate::model::{ArtifactModel, dims};
use crate::parts::{
    PartsContext, tc_rt_parts_describe, tc_rt_parts_error, tc_rt_parts_free, tc_rt_parts_init, tc_rt_parts_run,
};
use crate::pool::{tc_rt_threads_start, tc_rt_threads_stop};
use crate::weights::{tc_rt_weights_close, tc_rt_weights_open};

/// Most inputs and outputs of a program.
const MAX_TENSORS: usize = 64;
/// Elements of an output that are printed.
const MAX_SHOWN_ELEMENTS: usize = 10;
const MAX_PATH: usize = 4096;

const USAGE: &CStr = c"usage: %s [--weights FILE] %s [--repeat N] [-o DIR] INPUT.npy...\n\
one array for every input, in order; results are printed, and with -o written to DIR as .npy files\n";

/// What differs between models for processors and those for GPUs, whose records and contexts differ.
struct Functions<M: 'static, C> {
    /// Its own options.
    options: &'static CStr,
    gpu: bool,
    model: fn(&'static M) -> &'static ArtifactModel,
    init: unsafe fn(&'static M, *mut *mut C, *const Weights, *const Parallel, *mut GpuHandle) -> Status,
    describe: unsafe extern "C" fn(&'static M, *mut C, *const Tensor, *mut Tensor) -> Status,
    run: unsafe extern "C" fn(&'static M, *mut C, *const Tensor, *mut Tensor) -> Status,
    error: unsafe extern "C" fn(&'static M, *const C) -> *const c_char,
    free: unsafe extern "C" fn(&'static M, *mut C),
}

const PROCESSOR: Functions<ArtifactModel, ArtifactContext> = Functions {
    options: c"[--threads N]",
    gpu: false,
    model: |model| model,
    init: |model, out, weights, parallel, _| {
        // SAFETY: passed on from the caller.
        unsafe { tc_rt_init(model, out, null_mut(), 0, weights, parallel) }
    },
    describe: tc_rt_describe,
    run: tc_rt_run,
    error: tc_rt_error,
    free: tc_rt_free,
};

const PARTS: Functions<ArtifactModel, PartsContext> = Functions {
    options: PROCESSOR.options,
    gpu: false,
    model: |model| model,
    init: |model, out, weights, parallel, _| {
        // SAFETY: passed on from the caller.
        unsafe { tc_rt_parts_init(model, out, null_mut(), 0, weights, parallel) }
    },
    describe: tc_rt_parts_describe,
    run: tc_rt_parts_run,
    error: tc_rt_parts_error,
    free: tc_rt_parts_free,
};

const GPU: Functions<GpuModel, GpuContext> = Functions {
    options: c"[--device N] [--driver LIBRARY]",
    gpu: true,
    model: |model| &model.model,
    init: |model, out, weights, _, gpu| {
        // SAFETY: passed on from the caller.
        unsafe { tc_rt_gpu_init_on(model, out, gpu, null_mut(), 0, weights) }
    },
    describe: tc_rt_gpu_describe,
    run: tc_rt_gpu_run,
    error: tc_rt_gpu_error,
    free: tc_rt_gpu_free,
};

/// What goes wrong: a text with up to two texts in it.
struct ProgramFailure(&'static CStr, *const c_char, *const c_char);

impl ProgramFailure {
    fn of(text: &'static CStr, about: *const c_char) -> ProgramFailure {
        ProgramFailure(text, about, null())
    }
}

/// Arguments of the program.
struct Arguments {
    weights: *const c_char,
    threads: u32,
    device: u32,
    driver: *const c_char,
    repeat: u32,
    out: *const c_char,
    inputs: [*const c_char; MAX_TENSORS],
    count: usize,
}

/// `main` of a compiled model.
///
/// # Safety
/// `model` is what generated code hands over, the rest what a C program's `main` gets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_main(model: &'static ArtifactModel, argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: by the caller's contract.
    unsafe { program(model, &PROCESSOR, argc, argv) }
}

/// `main` of a model that runs in parts.
///
/// # Safety
/// As `tc_rt_main`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_parts_main(
    model: &'static ArtifactModel,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller's contract.
    unsafe { program(model, &PARTS, argc, argv) }
}

/// `main` of a model for a GPU.
///
/// # Safety
/// As `tc_rt_main`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_gpu_main(model: &'static GpuModel, argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: by the caller's contract.
    unsafe { program(model, &GPU, argc, argv) }
}

/// # Safety
/// As `main`; the functions are for the model.
unsafe fn program<M, C>(
    model: &'static M,
    functions: &Functions<M, C>,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: by the caller's contract.
    unsafe {
        let name = if argc > 0 { *argv } else { c"model".as_ptr() };
        let complain = |format: &CStr, a: *const c_char, b: *const c_char| {
            let mut text = [0 as c_char; MAX_PATH];
            let len = libc::snprintf(text.as_mut_ptr(), text.len(), format.as_ptr(), a, b);
            libc::write(2, text.as_ptr().cast(), len.clamp(0, MAX_PATH as c_int - 1) as usize);
        };
        let Some(arguments) = parse(functions.gpu, argc, argv) else {
            complain(USAGE, name, functions.options.as_ptr());
            return 2;
        };
        let mut gpu = GpuHandle { device: arguments.device, driver: arguments.driver, ..GpuHandle::FIRST };
        match run(model, functions, &arguments, &mut gpu) {
            Ok(()) => 0,
            Err(ProgramFailure(text, a, b)) => {
                complain(c"%s: ", name, null());
                complain(text, a, b);
                complain(c"\n", null(), null());
                1
            }
        }
    }
}

/// # Safety
/// As `main`.
unsafe fn parse(gpu: bool, argc: c_int, argv: *const *const c_char) -> Option<Arguments> {
    let mut all = Arguments {
        weights: null(),
        threads: 1,
        device: 0,
        driver: null(),
        repeat: 1,
        out: null(),
        inputs: [null(); MAX_TENSORS],
        count: 0,
    };
    let mut i = 1;
    while i < argc {
        // SAFETY: `argv` has `argc` texts and a null.
        let (text, value) = unsafe { (CStr::from_ptr(*argv.add(i as usize)), *argv.add(i as usize + 1)) };
        // SAFETY: a text.
        let number = |least: u32| u32::try_from(unsafe { libc::atoi(value) }).ok().filter(|n| *n >= least);
        if text.to_bytes().first() != Some(&b'-') {
            *all.inputs.get_mut(all.count)? = text.as_ptr();
            all.count += 1;
            i += 1;
            continue;
        }
        if value.is_null() {
            return None;
        }
        match text.to_bytes() {
            b"--weights" => all.weights = value,
            b"--threads" if !gpu => all.threads = number(1)?,
            b"--device" if gpu => all.device = number(0)?,
            b"--driver" if gpu => all.driver = value,
            b"--repeat" => all.repeat = number(1)?,
            b"-o" => all.out = value,
            _ => return None,
        }
        i += 2;
    }
    Some(all)
}

/// # Safety
/// The texts are texts.
unsafe fn run<M, C>(
    whole: &'static M,
    functions: &Functions<M, C>,
    arguments: &Arguments,
    gpu: &mut GpuHandle,
) -> Result<(), ProgramFailure> {
    let model = (functions.model)(whole);
    let damaged = |status: Status| ProgramFailure::of(c"%s", status::text(status).as_ptr());
    let image = model.image().map_err(damaged)?;
    let [reads, writes] = [header::INPUTS, header::OUTPUTS].map(|at| image.size(at));
    if arguments.count != reads || writes > MAX_TENSORS {
        return Err(ProgramFailure::of(c"wrong number of input arrays%s", c"".as_ptr()));
    }
    let mut weights = Weights::NONE;
    let mut parallel = Parallel::NONE;
    let mut context: *mut C = null_mut();
    // SAFETY: every pointer is to something of this function, or null where that is allowed.
    unsafe {
        let mut given: *const Weights = null();
        if !arguments.weights.is_null() {
            let status = tc_rt_weights_open(model, arguments.weights, 0, &raw mut weights);
            if status != status::OK {
                return Err(ProgramFailure(c"%s: %s", arguments.weights, status::text(status).as_ptr()));
            }
            given = &raw const weights;
        }
        if arguments.threads > 1 {
            let status = tc_rt_threads_start(arguments.threads, &raw mut parallel);
            if status != status::OK {
                return Err(damaged(status));
            }
        }
        if given.is_null() && image.word(header::WEIGHTS) > 0 && model.embedded_weights().is_null() {
            return Err(ProgramFailure::of(c"the model's weights are in a file: give --weights FILE%s", c"".as_ptr()));
        }
        let gpu = core::ptr::from_mut(gpu);
        let status = (functions.init)(whole, &raw mut context, given, &raw const parallel, gpu);
        let result = match status {
            status::OK => execute(whole, functions, &image, context, arguments),
            // Only GPUs fill the message, which its owner keeps.
            _ if (*gpu).message[0] != 0 => Err(ProgramFailure::of(c"%s", (&raw const (*gpu).message).cast())),
            _ => Err(damaged(status)),
        };
        // The message of a failure lies in the context, which ends with the process then.
        if result.is_ok() {
            (functions.free)(whole, context);
        }
        tc_rt_threads_stop(&raw mut parallel);
        tc_rt_weights_close(model, &raw mut weights);
        result
    }
}

/// Reads, runs and shows. Memory of tensors is the process's, which ends with it.
///
/// # Safety
/// The context is alive.
unsafe fn execute<M, C>(
    model: &'static M,
    functions: &Functions<M, C>,
    image: &Image<'static>,
    context: *mut C,
    arguments: &Arguments,
) -> Result<(), ProgramFailure> {
    const NONE: Tensor = Tensor { data: null_mut(), dims: null(), rank: 0, dtype: 0, bytes: 0 };
    let (mut inputs, mut outputs) = ([NONE; MAX_TENSORS], [NONE; MAX_TENSORS]);
    let mut extents = [[0i64; MAX_RANK]; MAX_TENSORS];
    for (i, path) in arguments.inputs[..arguments.count].iter().enumerate() {
        // SAFETY: a text.
        inputs[i] = unsafe { read(*path, &mut extents[i])? };
        let at = image.size(header::INPUTS + 1) + i * tensor::WORDS;
        let stated = dtype(image.word(at + tensor::DTYPE) as u32);
        // Files of numpy do not tell these types from others.
        if descriptor(stated) == descriptor(dtype(inputs[i].dtype)) {
            inputs[i].dtype = stated as u32;
        }
    }
    // SAFETY: the context is alive, and the arrays are as long as the model needs.
    unsafe {
        let failed = |_| ProgramFailure::of(c"%s", (functions.error)(model, context));
        check((functions.describe)(model, context, inputs.as_ptr(), outputs.as_mut_ptr())).map_err(failed)?;
        let count = image.size(header::OUTPUTS);
        for out in &mut outputs[..count] {
            out.data = libc::malloc(out.bytes.max(1) as usize).cast();
            if out.data.is_null() {
                return Err(ProgramFailure::of(c"memory is exhausted%s", c"".as_ptr()));
            }
        }
        for _ in 0..arguments.repeat {
            check((functions.run)(model, context, inputs.as_ptr(), outputs.as_mut_ptr())).map_err(failed)?;
        }
        for (i, out) in outputs[..count].iter_mut().enumerate() {
            // Models that run in parts know the extents only now.
            let size = dtype(out.dtype).size() as u64;
            out.bytes = dims(out).iter().fold(size, |bytes, dim| bytes.saturating_mul(*dim as u64)).min(out.bytes);
            let at = image.size(header::OUTPUTS + 1) + i * tensor::WORDS;
            let name = image.text(image.size(at + tensor::NAME));
            show(name, out);
            if !arguments.out.is_null() {
                write(arguments.out, name, out)?;
            }
        }
    }
    Ok(())
}

fn check(status: Status) -> Result<(), Status> {
    if status == status::OK { Ok(()) } else { Err(status) }
}

fn dtype(number: u32) -> DType {
    DType::ALL.into_iter().find(|d| *d as u32 == number).unwrap_or(DType::U8)
}

/// The type of an array in a `.npy` file: kind and bytes; `bfloat16` has none and is 16 bits, a narrow type is bytes.
const fn descriptor(dtype: DType) -> &'static CStr {
    match dtype {
        DType::F32 => c"<f4",
        DType::F64 => c"<f8",
        DType::F16 => c"<f2",
        DType::BF16 | DType::U16 => c"<u2",
        DType::I8 | DType::I4 | DType::I2 => c"|i1",
        DType::I16 => c"<i2",
        DType::I32 => c"<i4",
        DType::I64 => c"<i8",
        DType::U8 => c"|u1",
        DType::U32 => c"<u4",
        DType::U64 => c"<u8",
        DType::Bool => c"|b1",
        _ => c"|u1",
    }
}

/// Reads an array in the `.npy` format, version 1 or 2, in C order.
///
/// # Safety
/// `path` is a text.
unsafe fn read(path: *const c_char, dims: &mut [i64; MAX_RANK]) -> Result<Tensor, ProgramFailure> {
    let wrong = || ProgramFailure::of(c"%s: not an array in .npy format that this program reads", path);
    // SAFETY: every address is of memory with the size given beside it.
    unsafe {
        let file = libc::fopen(path, c"rb".as_ptr());
        if file.is_null() {
            return Err(ProgramFailure::of(c"%s: the file cannot be read", path));
        }
        let mut head = [0u8; 12];
        let got = libc::fread(head.as_mut_ptr().cast(), 1, head.len(), file);
        if got < head.len() || !head.starts_with(b"\x93NUMPY") {
            libc::fclose(file);
            return Err(wrong());
        }
        let (len, at) = match head[6] {
            1 => (usize::from(head[8]) | usize::from(head[9]) << 8, 10),
            _ => (u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize, 12),
        };
        let mut text = [0u8; 1024];
        libc::fseek(file, at, libc::SEEK_SET);
        let got = libc::fread(text.as_mut_ptr().cast(), 1, len.min(text.len()), file);
        let parsed = if got == len { parse_header(&text[..len], dims) } else { None };
        let Some((dtype, rank)) = parsed else {
            libc::fclose(file);
            return Err(wrong());
        };
        let size = dtype.size() as u64;
        let bytes = dims[..rank].iter().try_fold(size, |bytes, dim| bytes.checked_mul(*dim as u64));
        let bytes = bytes.filter(|bytes| *bytes < 1 << 48).ok_or_else(wrong)?;
        let data = libc::malloc(bytes.max(1) as usize).cast::<u8>();
        let whole = !data.is_null() && libc::fread(data.cast(), 1, bytes as usize, file) == bytes as usize;
        libc::fclose(file);
        if !whole {
            return Err(wrong());
        }
        Ok(Tensor { data, dims: dims.as_ptr(), rank: rank as u32, dtype: dtype as u32, bytes })
    }
}

/// The type and rank of a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn parse_header(text: &[u8], dims: &mut [i64; MAX_RANK]) -> Option<(DType, usize)> {
    let find = |key: &[u8]| text.windows(key.len()).position(|w| w == key).map(|at| at + key.len());
    let descr = text.get(find(b"'descr': '")?..)?.get(..3)?;
    let dtype = DType::ALL.into_iter().find(|d| *d != DType::BF16 && descriptor(*d).to_bytes() == descr)?;
    find(b"'fortran_order': False")?;
    let shape = text.get(find(b"'shape': (")?..)?;
    let shape = &shape[..shape.iter().position(|b| *b == b')')?];
    let mut rank = 0;
    for part in shape.split(|b| *b == b',') {
        let digits = part.trim_ascii();
        if digits.is_empty() {
            continue;
        }
        let number = core::str::from_utf8(digits).ok()?.parse::<i64>().ok()?;
        *dims.get_mut(rank)? = number;
        rank += 1;
    }
    Some((dtype, rank))
}

/// Prints a line about an output: its name, type, shape and first elements.
///
/// # Safety
/// Its data is there.
unsafe fn show(name: &str, out: &Tensor) {
    let dtype = dtype(out.dtype);
    let elements = (out.bytes as usize / dtype.size()).min(MAX_SHOWN_ELEMENTS);
    // SAFETY: the texts are texts, and the elements are inside the data.
    unsafe {
        libc::printf(c"%.*s: %s[".as_ptr(), name.len() as c_int, name.as_ptr(), descriptor(dtype).as_ptr().add(1));
        for (i, dim) in dims(out).iter().enumerate() {
            libc::printf(if i == 0 { c"%lld" } else { c", %lld" }.as_ptr(), *dim);
        }
        libc::printf(c"] =".as_ptr());
        for i in 0..elements {
            let at = out.data.wrapping_add(i * dtype.size());
            let signed = |v: i64| libc::printf(c" %lld".as_ptr(), v);
            match dtype {
                DType::F32 => libc::printf(c" %.7g".as_ptr(), f64::from(at.cast::<f32>().read())),
                DType::F64 => libc::printf(c" %.16g".as_ptr(), at.cast::<f64>().read()),
                DType::F16 | DType::BF16 => libc::printf(c" 0x%04x".as_ptr(), c_int::from(at.cast::<u16>().read())),
                DType::I8 => signed(at.cast::<i8>().read().into()),
                DType::I16 => signed(at.cast::<i16>().read().into()),
                DType::I32 => signed(at.cast::<i32>().read().into()),
                DType::I64 => signed(at.cast::<i64>().read()),
                DType::U8 | DType::Bool => signed(at.read().into()),
                DType::U16 => signed(at.cast::<u16>().read().into()),
                DType::U32 => signed(at.cast::<u32>().read().into()),
                DType::U64 => libc::printf(c" %llu".as_ptr(), at.cast::<u64>().read()),
                DType::I4 | DType::I2 => signed(at.cast::<i8>().read().into()),
                DType::U4 | DType::U2 => signed(at.read().into()),
                _ => libc::printf(c" 0x%02x".as_ptr(), c_int::from(at.read())),
            };
        }
        let more = out.bytes as usize / dtype.size() > elements;
        libc::printf(if more { c" ...\n" } else { c"\n" }.as_ptr());
    }
}

/// Writes an output to `DIR/NAME.npy`; characters that are none of a file's name become `_`.
///
/// # Safety
/// The directory is a text, and the data is there.
unsafe fn write(dir: *const c_char, name: &str, out: &Tensor) -> Result<(), ProgramFailure> {
    let mut path = [0 as c_char; MAX_PATH];
    let mut safe = [0u8; 256];
    for (to, from) in safe[..255].iter_mut().zip(name.bytes()) {
        *to = if from == b'/' || from == 0 { b'_' } else { from };
    }
    // SAFETY: every address is of memory with the size given beside it.
    unsafe {
        libc::snprintf(path.as_mut_ptr(), path.len(), c"%s/%s.npy".as_ptr(), dir, safe.as_ptr());
        let mut text = [0 as c_char; 512];
        let room = text.len();
        let start = c"{'descr': '%s', 'fortran_order': False, 'shape': (".as_ptr();
        let mut len = libc::snprintf(text.as_mut_ptr(), room, start, descriptor(dtype(out.dtype)).as_ptr()) as usize;
        for dim in dims(out) {
            len += libc::snprintf(text.as_mut_ptr().add(len), room - len, c"%lld, ".as_ptr(), *dim) as usize;
        }
        len += libc::snprintf(text.as_mut_ptr().add(len), room - len, c"), }".as_ptr()) as usize;
        // The data begins at a multiple of 64.
        let padded = (10 + len + 1).next_multiple_of(64) - 10;
        let file = libc::fopen(path.as_ptr(), c"wb".as_ptr());
        let failed = || ProgramFailure::of(c"%s: the file cannot be written", dir);
        if file.is_null() {
            return Err(failed());
        }
        libc::fwrite(c"\x93NUMPY\x01".as_ptr().cast(), 1, 8, file);
        libc::fwrite((padded as u16).to_le_bytes().as_ptr().cast(), 1, 2, file);
        libc::fprintf(file, c"%-*s\n".as_ptr(), padded as c_int - 1, text.as_ptr());
        libc::fwrite(out.data.cast(), 1, out.bytes as usize, file);
        let broken = libc::ferror(file) != 0;
        if libc::fclose(file) != 0 || broken {
            return Err(failed());
        }
    }
    Ok(())
}
