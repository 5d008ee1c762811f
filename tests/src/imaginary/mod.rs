//! CUDA's driver and libraries where there are none: `cuda.c`, `cublaslt.c`, `cudnn.c` and `nccl.c`, built as a library that programs
//! find in the place of NVIDIA's, and kernels that are executed by interpreters.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::ptx::{Argument, Launch, Module};

/// Set where the imaginary libraries are.
pub const VARIABLE: &str = "TENSORC_TEST_IMAGINARY";

/// Under which names the imaginary libraries are found, beside the driver.
const LIBRARIES: [&str; 3] = ["libcublasLt.so", "libcudnn.so", "libnccl.so.2"];

/// Whether there is a C compiler for [`build`].
pub fn can_build() -> bool {
    Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Builds the libraries into a folder, for GPUs of a compute capability. Programs find them there by `LD_LIBRARY_PATH`.
pub fn build(folder: &Path, (major, minor): (u32, u32)) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/imaginary");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-O1", "-shared", "-fPIC"]);
    cc.args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}")]);
    cc.args(["cuda.c", "cublaslt.c", "cudnn.c", "nccl.c"].map(|file| sources.join(file)));
    let output = cc.arg("-o").arg(folder.join("libcuda.so")).args(["-lpthread", "-lm"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in LIBRARIES {
        std::os::unix::fs::symlink("libcuda.so", folder.join(name)).unwrap();
    }
}

/// Where the imaginary libraries are, in a process that finds them.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(|folder: OsString| folder.into())
}

/// A function of the imaginary driver.
///
/// # Safety
/// `F` is the function's type.
pub unsafe fn of_driver<F: Copy>(name: &[u8]) -> F {
    let path = folder().unwrap().join("libcuda.so");
    // SAFETY: the library was made for this test; the type is the caller's promise, and the library stays loaded.
    unsafe {
        let library = libloading::Library::new(path).unwrap();
        let function = *library.get::<F>(name).unwrap();
        std::mem::forget(library);
        function
    }
}

/// Calls a function of the imaginary driver or library that takes a number, and gives one.
pub fn call_driver(name: &str, argument: c_int) -> c_int {
    // SAFETY: the functions for tests have this type.
    let function = unsafe { of_driver::<extern "C" fn(c_int) -> c_int>(name.as_bytes()) };
    function(argument)
}

/// Takes an imaginary library away, before it is looked for.
pub fn take_away(name: &str) {
    std::fs::remove_file(folder().unwrap().join(name)).unwrap();
}

/// Lets the driver have the PTX of kernels executed.
pub fn connect_ptx() {
    type Execute =
        extern "C" fn(*const c_char, *const c_char, *const u32, *const *mut u8, *const usize, c_int) -> c_int;
    // SAFETY: the function has this type.
    let set = unsafe { of_driver::<extern "C" fn(Execute)>(b"imaginary_ptx") };
    set(execute_ptx);
}

/// Executes the PTX of a kernel on copies of its arguments, each from its address to the end of its block, and writes what it
/// changed. An argument that is no address of a block, such as an extent, is a number.
extern "C" fn execute_ptx(
    image: *const c_char,
    name: *const c_char,
    shape: *const u32,
    addresses: *const *mut u8,
    room: *const usize,
    count: c_int,
) -> c_int {
    static MODULES: Mutex<BTreeMap<Vec<u8>, Module>> = Mutex::new(BTreeMap::new());
    // SAFETY: the driver gives two texts, three numbers, and lists of so many addresses and sizes.
    let (image, name, shape, addresses, room) = unsafe {
        let count = count as usize;
        let lists = (std::slice::from_raw_parts(addresses, count), std::slice::from_raw_parts(room, count));
        (CStr::from_ptr(image), CStr::from_ptr(name), std::slice::from_raw_parts(shape, 3), lists.0, lists.1)
    };
    let parse = || Module::parse(image.to_str().unwrap()).unwrap_or_else(|fault| panic!("{fault}"));
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let module = modules.entry(image.to_bytes().to_vec()).or_insert_with(parse);
    // SAFETY: the memory of the imaginary device is the host's, and the driver knows how large its blocks are.
    let copy = |(at, bytes): (&*mut u8, &usize)| unsafe { std::slice::from_raw_parts(*at, *bytes) }.to_vec();
    let before: Vec<Vec<u8>> = addresses.iter().zip(room).map(copy).collect();
    let mut after = before.clone();
    let mut arguments: Vec<Argument<'_>> = after.iter_mut().zip(addresses).map(argument).collect();
    let launch = Launch { blocks: shape[0].into(), threads: shape[1], shared_bytes: shape[2], seed: 0 };
    if let Err(fault) = module.launch(name.to_str().unwrap(), launch, &mut arguments) {
        eprintln!("{fault}");
        return 1;
    }
    for (at, (before, after)) in addresses.iter().zip(before.iter().zip(&after)) {
        let changed = (0..after.len()).filter(|i| before[*i] != after[*i]);
        // SAFETY: as above.
        changed.for_each(|i| unsafe { *at.add(i) = after[i] });
    }
    0
}

fn argument<'a>((bytes, at): (&'a mut Vec<u8>, &*mut u8)) -> Argument<'a> {
    match bytes.is_empty() {
        true => Argument::Number(*at as u64),
        false => Argument::Buffer { bytes, writable: true },
    }
}
