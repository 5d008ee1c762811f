//! Compilation of sets of kernels into executable memory, in parallel and at most once each.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cranelift_codegen::Context;
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module};
use tensorc_abi::KernelFn;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::kir::Kernel;

use super::function::{build, module_error};
use super::isa::{Use, isa};
use super::kernel::internal;
use super::symbols;
use crate::target::Target;

/// Finds the address of a run-time library function by name.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Option<*const u8>;

/// Code of one or more kernels; the memory is returned when the last user is gone.
struct CodeMemory(Option<JITModule>);

// SAFETY: after construction the module is only touched by `drop`, which has exclusive access;
// until then it lives on one thread. The code itself is immutable and may run on any thread.
unsafe impl Sync for CodeMemory {}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        if let Some(module) = self.0.take() {
            // SAFETY: every `JitModule` with a pointer into this memory holds a reference to it, and
            // its `entry` documents that the pointers end with it.
            unsafe { module.free_memory() };
        }
    }
}

#[derive(Clone)]
struct Entry {
    function: KernelFn,
    code: Arc<CodeMemory>,
}

/// Compiled kernels by content: equal kernels are compiled once, whatever their names.
///
/// All calls with one cache must resolve library functions to the same addresses. The code of a
/// kernel lives as long as the cache or a [`JitModule`] that uses it.
pub struct KernelCache {
    entries: Mutex<HashMap<Kernel, Entry>>,
    verify: bool,
}

impl KernelCache {
    pub fn new() -> KernelCache {
        KernelCache { entries: Mutex::default(), verify: cfg!(debug_assertions) }
    }

    /// A cache whose kernels pass the verifier of Cranelift, for tests.
    pub fn verifying() -> KernelCache {
        KernelCache { entries: Mutex::default(), verify: true }
    }

    /// Number of different kernels compiled.
    pub fn len(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for KernelCache {
    fn default() -> Self {
        KernelCache::new()
    }
}

/// Executable code of a list of kernels.
pub struct JitModule {
    entries: Vec<Entry>,
}

impl JitModule {
    /// The entry point of the `i`-th kernel of the list, valid as long as this module. `None` if
    /// there is no such kernel.
    pub fn entry(&self, i: usize) -> Option<KernelFn> {
        self.entries.get(i).map(|e| e.function)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of separate pieces of code memory in use.
    pub fn regions(&self) -> usize {
        let mut regions: Vec<*const CodeMemory> = self.entries.iter().map(|e| Arc::as_ptr(&e.code)).collect();
        regions.sort();
        regions.dedup();
        regions.len()
    }
}

/// Compiles what the cache does not hold yet, on up to `threads` threads.
///
/// `resolve` gives the addresses of run-time library functions (`tc_exp_f64`, `tc_fmod_f32`, …).
/// Fails with the first kernel, in order, that has no code.
pub fn compile_kernels(
    kernels: &[Kernel],
    threads: usize,
    cache: &KernelCache,
    resolve: Resolve<'_>,
) -> Result<JitModule> {
    let keys: Vec<Kernel> = kernels.iter().map(Kernel::canonical).collect();
    let mut missing: Vec<usize> = vec![];
    {
        let known = cache.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = std::collections::HashSet::new();
        for (i, key) in keys.iter().enumerate() {
            if !known.contains_key(key) && seen.insert(key) {
                missing.push(i);
            }
        }
    }
    let mut addresses = BTreeMap::new();
    for name in symbols::libcalls() {
        addresses.extend(resolve(&name).map(|address| (name, address as usize)));
    }
    for &i in &missing {
        for name in symbols::needed(&kernels[i]).into_keys() {
            let address = symbols::address(&name, resolve).map_err(|d| d.note(in_kernel(&kernels[i])))?;
            addresses.insert(name, address as usize);
        }
    }
    let isa = isa(Target::native()?, Use::Jit, cache.verify)?;
    let share = missing.len().div_ceil(threads.max(1)).max(1);
    let chunks: Vec<&[usize]> = missing.chunks(share).collect();
    let results: Vec<Result<Vec<Entry>>> = match &chunks[..] {
        [] => vec![],
        [only] => vec![compile_chunk(kernels, only, &isa, &addresses)],
        _ => std::thread::scope(|scope| {
            let (isa, addresses) = (&isa, &addresses);
            let mut handles = Vec::with_capacity(chunks.len());
            for &chunk in &chunks {
                handles.push(scope.spawn(move || compile_chunk(kernels, chunk, isa, addresses)));
            }
            let join = |h: std::thread::ScopedJoinHandle<'_, _>| h.join().unwrap_or_else(|_| Err(panicked()));
            handles.into_iter().map(join).collect()
        }),
    };
    let mut known = cache.entries.lock().unwrap_or_else(PoisonError::into_inner);
    for (chunk, result) in chunks.iter().zip(results) {
        for (i, entry) in chunk.iter().zip(result?) {
            known.entry(keys[*i].clone()).or_insert(entry);
        }
    }
    let entries: Option<Vec<Entry>> = keys.iter().map(|k| known.get(k).cloned()).collect();
    entries.map(|entries| JitModule { entries }).ok_or_else(|| internal("a compiled kernel was lost"))
}

fn in_kernel(kernel: &Kernel) -> String {
    format!("in kernel `{}`", kernel.name)
}

fn panicked() -> Diagnostic {
    internal("the code generator stopped unexpectedly")
}

fn compile_chunk(
    kernels: &[Kernel],
    chunk: &[usize],
    isa: &OwnedTargetIsa,
    addresses: &BTreeMap<String, usize>,
) -> Result<Vec<Entry>> {
    let mut builder = JITBuilder::with_isa(isa.clone(), Box::new(symbols::libcall));
    for (name, address) in addresses {
        builder.symbol(name.as_str(), *address as *const u8);
    }
    let mut module = JITModule::new(builder);
    let mut ids = Vec::with_capacity(chunk.len());
    let mut ctx = module.make_context();
    let mut builder_ctx = FunctionBuilderContext::new();
    for (n, &i) in chunk.iter().enumerate() {
        let define = || define_kernel(&mut module, &kernels[i], n, &mut ctx, &mut builder_ctx);
        // The compiler crates assert their own invariants.
        let id = catch_unwind(AssertUnwindSafe(define)).unwrap_or_else(|_| Err(panicked()));
        ids.push(id.map_err(|d| d.note(in_kernel(&kernels[i])))?);
    }
    module.finalize_definitions().map_err(module_error)?;
    let functions: Vec<KernelFn> = ids
        .into_iter()
        .map(|id| {
            let address = module.get_finalized_function(id);
            // SAFETY: the function was defined with exactly this signature and the C convention.
            unsafe { std::mem::transmute::<*const u8, KernelFn>(address) }
        })
        .collect();
    let code = Arc::new(CodeMemory(Some(module)));
    Ok(functions.into_iter().map(|function| Entry { function, code: code.clone() }).collect())
}

fn define_kernel(
    module: &mut JITModule,
    kernel: &Kernel,
    n: usize,
    ctx: &mut Context,
    builder_ctx: &mut FunctionBuilderContext,
) -> Result<FuncId> {
    module.clear_context(ctx);
    build(module, kernel, ctx, builder_ctx)?;
    let name = format!("kernel{n}");
    let id = module.declare_function(&name, Linkage::Local, &ctx.func.signature).map_err(module_error)?;
    module.define_function(id, ctx).map_err(module_error)?;
    Ok(id)
}

/// Text of a kernel's code, for people and text tests.
#[derive(Clone, Debug)]
pub struct Dump {
    /// Cranelift's intermediate language.
    pub clif: String,
    /// Machine code as lines of assembly, labelled by block.
    pub assembly: String,
    /// Bytes of machine code and constants.
    pub bytes: usize,
}

/// The code that the kernel gets on this machine, checked by Cranelift's verifier.
pub fn dump(kernel: &Kernel) -> Result<Dump> {
    let isa = isa(Target::native()?, Use::Jit, true)?;
    let builder = JITBuilder::with_isa(isa.clone(), Box::new(symbols::libcall));
    let mut module = JITModule::new(builder);
    let mut ctx = module.make_context();
    build(&mut module, kernel, &mut ctx, &mut FunctionBuilderContext::new()).map_err(|d| d.note(in_kernel(kernel)))?;
    let clif = ctx.func.display().to_string();
    ctx.set_disasm(true);
    let code = ctx.compile(&*isa, &mut Default::default());
    let code = code.map_err(|e| internal(format!("Cranelift: {:?}", e.inner)).note(in_kernel(kernel)))?;
    let assembly = code.vcode.clone().unwrap_or_default();
    Ok(Dump { clif, assembly, bytes: code.buffer.data().len() })
}
