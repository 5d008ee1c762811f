//! The block of weights of a model: inside the artifact, or a file beside it ([`tensorc_abi::image::weights`]) that is
//! mapped.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use tensorc_abi::artifact::{Status, Weights, status};
use tensorc_abi::image::weights::{ALIGN, BLOCK, FIRST, HEADER_BYTES};
use tensorc_abi::image::{Image, ImageVersion, VERSION, header, weights};
use xxhash_rust::xxh3::Xxh3;

use crate::model::ArtifactModel;

/// Bytes that are hashed between two requests for more.
const HASHED_AT_A_TIME: usize = 512;
/// How far behind them what is requested lies, in bytes.
const AHEAD: usize = 8192;
const CACHE_LINE: usize = 64;

/// The block of weights for a context.
pub fn base(model: &ArtifactModel, image: &Image<'_>, given: Option<&Weights>) -> Result<*const u8, Status> {
    let needed = image.word(header::WEIGHTS);
    match given {
        Some(weights) if weights.bytes == needed && !weights.data.is_null() => Ok(weights.data),
        Some(_) => Err(status::WEIGHTS),
        None if needed == 0 || !model.embedded_weights().is_null() => Ok(model.embedded_weights()),
        None => Err(status::WEIGHTS),
    }
}

/// Takes weights that lie in memory: a whole file of weights, at a multiple of 64.
///
/// # Safety
/// `model` is what generated code hands over; `file` is valid for `bytes` bytes as long as the weights are used;
/// `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_weights_view(
    model: &'static ArtifactModel,
    file: *const c_void,
    bytes: u64,
    flags: u32,
    out: *mut Weights,
) -> Status {
    if file.is_null() || out.is_null() || !(file as usize).is_multiple_of(ALIGN) {
        return status::ARGUMENT;
    }
    // SAFETY: by the caller's contract.
    let file = unsafe { core::slice::from_raw_parts(file.cast::<u8>(), bytes as usize) };
    let image = match model.image() {
        Ok(image) => image,
        Err(status) => return status,
    };
    match block(&image, file, flags) {
        Ok(block) => {
            let (data, bytes) = (block.as_ptr(), block.len() as u64);
            // SAFETY: by the caller's contract.
            unsafe { out.write(Weights { data, bytes, mapping: null_mut(), mapping_bytes: 0 }) };
            status::OK
        }
        Err(status) => status,
    }
}

/// The block of a file, if it is the model's.
fn block<'f>(image: &Image<'_>, file: &'f [u8], flags: u32) -> Result<&'f [u8], Status> {
    let word = |i: usize| {
        let bytes = file.get(8 * i..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    };
    if word(weights::MAGIC) != Some(FIRST) {
        return Err(status::WEIGHTS);
    }
    if !word(weights::VERSION).is_some_and(|version| VERSION.reads(ImageVersion::of_word(version))) {
        return Err(status::VERSION);
    }
    let expected = [0, 1, 2].map(|i| image.word(header::WEIGHTS + i));
    let block = file.get(HEADER_BYTES..).unwrap_or_default();
    if [0, 1, 2].map(|i| word(BLOCK + i)) != expected.map(Some) || block.len() as u64 != expected[0] {
        return Err(status::WEIGHTS);
    }
    match flags & Weights::TRUSTED != 0 || hash(block) == (u128::from(expected[2]) << 64 | u128::from(expected[1])) {
        true => Ok(block),
        false => Err(status::WEIGHTS),
    }
}

/// XXH3 of a block. Memory is the limit, so it is asked for ahead of the hash: processors' own prefetching stops at every
/// page.
fn hash(block: &[u8]) -> u128 {
    let mut state = Xxh3::new();
    for piece in block.chunks(HASHED_AT_A_TIME) {
        for line in (0..HASHED_AT_A_TIME).step_by(CACHE_LINE) {
            prefetch(piece.as_ptr().wrapping_add(AHEAD + line));
        }
        state.update(piece);
    }
    state.digest128()
}

/// Begins to load the cache line of an address, which may be any.
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that accesses nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Maps a file of weights.
///
/// # Safety
/// `model` is what generated code hands over; `path` is a text ended by a zero; `out` is valid for a write. Nobody
/// changes the file while it is mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_weights_open(
    model: &'static ArtifactModel,
    path: *const c_char,
    flags: u32,
    out: *mut Weights,
) -> Status {
    if path.is_null() || out.is_null() {
        return status::ARGUMENT;
    }
    // SAFETY: the path is a text; every address is checked.
    let (mapping, bytes) = unsafe {
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return status::FILE;
        }
        let mut stat: libc::stat = core::mem::zeroed();
        let known = libc::fstat(file, &raw mut stat) == 0 && stat.st_size >= HEADER_BYTES as i64;
        let bytes = if known { stat.st_size as usize } else { 0 };
        let mapping = match known {
            true => libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file, 0),
            false => libc::MAP_FAILED,
        };
        libc::close(file);
        (mapping, bytes)
    };
    if mapping == libc::MAP_FAILED {
        return if bytes == 0 { status::WEIGHTS } else { status::FILE };
    }
    // SAFETY: the mapping has so many bytes; `out` is the caller's.
    unsafe {
        libc::madvise(mapping, bytes, libc::MADV_WILLNEED);
        if flags & Weights::TRUSTED == 0 {
            // All of it is read now: at once rather than by a fault for every few pages, at which requests ahead are
            // lost. Systems that do not know the request refuse it.
            libc::madvise(mapping, bytes, libc::MADV_POPULATE_READ);
        }
        let status = tc_rt_weights_view(model, mapping, bytes as u64, flags, out);
        if status == status::OK {
            ((*out).mapping, (*out).mapping_bytes) = (mapping.cast(), bytes as u64);
        } else {
            libc::munmap(mapping, bytes);
        }
        status
    }
}

/// Ends the use of weights.
///
/// # Safety
/// `weights` is null or came from this library; no context uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_rt_weights_close(_: &'static ArtifactModel, weights: *mut Weights) {
    // SAFETY: by the caller's contract.
    let Some(weights) = (unsafe { weights.as_mut() }) else { return };
    if !weights.mapping.is_null() {
        // SAFETY: it came from `mmap` with this size.
        unsafe { libc::munmap(weights.mapping.cast(), weights.mapping_bytes as usize) };
    }
    *weights = Weights::NONE;
}
