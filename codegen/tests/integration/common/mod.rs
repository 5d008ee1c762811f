//! Running one kernel by the interpreter and as machine code on the same bytes.

pub mod operations;
pub mod random;
pub mod records;

use std::sync::{Arc, LazyLock};

use tensorc_abi::DType;
use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{Backend, JitModule, KernelCache, compile_kernels};
use tensorc_ir::graph::Graph;
use tensorc_ir::interp::run_kernel;
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::Kernel;
use tensorc_ir::scalar::Scalar;
use tensorc_ops::math::MathBodies;
use tensorc_schedule::kernel::{Computes, KernelSpec};
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::recipe::Generated;

macro_rules! unary {
    ($($f:ident)*) => {
        fn unary(name: &str) -> Option<*const u8> {
            $( {
                extern "C" fn $f(x: f64) -> f64 { libm::$f(x) }
                if name == concat!("tc_", stringify!($f), "_f64") { return Some($f as *const u8); }
            } )*
            None
        }
    };
}

unary!(exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf);

/// The bodies of the f32 functions.
pub static LIBRARY: LazyLock<MathBodies> = LazyLock::new(|| MathBodies::new().unwrap());

extern "C" fn ndtr(x: f64) -> f64 {
    libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2) * 0.5
}

extern "C" fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

extern "C" fn fmod64(x: f64, y: f64) -> f64 {
    x % y
}

extern "C" fn fmod32(x: f32, y: f32) -> f32 {
    x % y
}

/// The run-time library, as the interpreter computes it.
pub fn library(name: &str) -> Option<*const u8> {
    match name {
        "tc_ndtr_f64" => Some(ndtr as *const u8),
        "tc_pow_f64" => Some(pow as *const u8),
        "tc_fmod_f64" => Some(fmod64 as *const u8),
        "tc_fmod_f32" => Some(fmod32 as *const u8),
        _ => unary(name).or_else(|| tensorc_kernels::symbol(name)),
    }
}

/// The back end under test: Cranelift, or the one that the environment variable `TENSORC_BACKEND` names.
pub fn backend() -> Backend {
    match std::env::var("TENSORC_BACKEND") {
        Ok(name) => Backend::from_name(&name).unwrap(),
        Err(_) => Backend::Cranelift,
    }
}

pub fn compile(kernels: &[Kernel]) -> JitModule {
    compile_in(kernels, &KernelCache::verifying())
}

/// Code for some instruction set of this machine.
pub fn compile_for(kernels: &[Kernel], isa: Isa) -> JitModule {
    compile_in(kernels, &KernelCache::verifying().for_isa(isa))
}

fn compile_in(kernels: &[Kernel], cache: &KernelCache) -> JitModule {
    match compile_kernels(kernels, backend(), 2, Interrupt::NEVER, cache, &library) {
        Ok(module) => module,
        Err(e) => panic!("{e}"),
    }
}

/// The instruction sets whose code runs on this machine; with LLVM, all that the machine has.
pub fn isas() -> Vec<Isa> {
    let native = Isa::native().unwrap();
    if backend() != Backend::Cranelift {
        return vec![native];
    }
    let runs = |isa: &Isa| isa.arch() == native.arch() && isa.vector_level() <= native.vector_level();
    let named = Isa::NAMES.iter().map(|name| name.parse().unwrap());
    // All that the machine has is more than a level.
    named.filter(|isa: &Isa| *isa == native || runs(isa)).collect()
}

/// Calls the `i`-th kernel.
pub fn call(module: &JitModule, i: usize, buffers: &mut [Vec<u8>], scalars: &[i64]) {
    let entry = module.entry(i).unwrap();
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
    // SAFETY: the interpreter checks the same kernel on buffers of the same sizes, and fails the
    // test on any access outside of them.
    unsafe { entry(pointers.as_ptr(), scalars.as_ptr()) };
}

/// Whether two elements are equal but for the payload of NaNs.
pub fn same(a: Scalar, b: Scalar) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

pub fn elements(dtype: DType, bytes: &[u8]) -> Vec<Scalar> {
    bytes.chunks_exact(dtype.size()).map(|b| Scalar::read(dtype, b)).collect()
}

/// The first difference between interpreter and machine code, if there is one.
pub fn difference(
    kernel: &Kernel,
    module: &JitModule,
    i: usize,
    buffers: &[Vec<u8>],
    scalars: &[i64],
) -> Result<(), String> {
    let (mut expected, mut actual) = (buffers.to_vec(), buffers.to_vec());
    run_kernel(kernel, &mut expected, scalars, &*LIBRARY).map_err(|e| format!("interpreter: {e}"))?;
    call(module, i, &mut actual, scalars);
    compare(kernel, &expected, &actual)
}

/// The first difference between two states of a kernel's buffers, if there is one.
pub fn compare(kernel: &Kernel, expected: &[Vec<u8>], actual: &[Vec<u8>]) -> Result<(), String> {
    for ((info, e), a) in kernel.buffers.iter().zip(expected).zip(actual) {
        let pairs = elements(info.dtype, e).into_iter().zip(elements(info.dtype, a));
        for (at, (e, a)) in pairs.enumerate() {
            if !same(e, a) {
                let (ef, af) = (e.as_f64(), a.as_f64());
                return Err(format!("{}[{at}]: {:#x} ({ef}) expected, {:#x} ({af}) found", info.name, e.bits, a.bits));
            }
        }
    }
    Ok(())
}

/// A cluster as a kernel to be written by a recipe, with dense operands.
pub fn spec(recipe: Generated, body: &Graph) -> KernelSpec<'_> {
    let node = body.outputs()[0].1.node;
    let computes = Computes::Cluster { recipe, body: Arc::new(body.clone()) };
    KernelSpec { name: "k".into(), node, computes, layouts: Layouts::default() }
}
