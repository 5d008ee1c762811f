//! Compilation of sets of kernels into executable memory, in parallel and at most once each, by either back end.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_abi::KernelFn;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::kir::Kernel;

use crate::emit::Style;
use crate::{cranelift, symbols};

/// Finds the address of a run-time library function by name.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Option<*const u8>;

/// What makes machine code of kernels. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// A fraction of a millisecond a kernel, vectors of 128 bits.
    #[default]
    Cranelift,
    /// Some ten milliseconds a kernel, vectors as wide as the processor's. In builds with the feature `llvm`.
    Llvm,
    /// LLVM for kernels that compute much for each element, Cranelift for others; Cranelift alone in builds
    /// without LLVM.
    Auto,
}

impl Backend {
    pub const NAMES: [&str; 3] = ["cranelift", "llvm", "auto"];

    /// Reads one of [`Backend::NAMES`].
    pub fn from_name(name: &str) -> Option<Backend> {
        let all = [Backend::Cranelift, Backend::Llvm, Backend::Auto];
        Backend::NAMES.iter().zip(all).find(|(n, _)| **n == name).map(|(_, b)| b)
    }

    /// Whether this build has LLVM.
    pub const fn has_llvm() -> bool {
        cfg!(feature = "llvm")
    }

    /// # Errors
    /// [`Code::Unsupported`] if this build does not have it.
    pub fn check(self) -> Result<()> {
        if self == Backend::Llvm && !Backend::has_llvm() {
            let why = "this build has no LLVM; build with the feature `llvm`, or choose another back end";
            return Err(Diagnostic::new(Code::Unsupported, why));
        }
        Ok(())
    }

    /// How kernels for it are written.
    pub fn style(self) -> Style {
        match self {
            Backend::Cranelift => Style::Narrow,
            Backend::Auto if !Backend::has_llvm() => Style::Narrow,
            Backend::Llvm | Backend::Auto => Style::Wide,
        }
    }

    /// The one that compiles a given kernel.
    pub fn of(self, kernel: &Kernel) -> Backend {
        match self {
            Backend::Auto if Backend::has_llvm() && crate::analysis::computes_much(kernel) => Backend::Llvm,
            Backend::Auto => Backend::Cranelift,
            other => other,
        }
    }
}

/// The code of one kernel, and what keeps its memory.
#[derive(Clone)]
pub(crate) struct Entry {
    pub function: KernelFn,
    pub code: Arc<dyn Any + Send + Sync>,
}

/// Compiled kernels by content: equal kernels are compiled once by a back end, whatever their names.
///
/// All calls with one cache must resolve library functions to the same addresses. The code of a
/// kernel lives as long as the cache or a [`JitModule`] that uses it.
pub struct KernelCache {
    entries: Mutex<HashMap<Key, Entry>>,
    verify: bool,
}

type Key = (Backend, Kernel);

impl KernelCache {
    pub fn new() -> KernelCache {
        KernelCache { entries: Mutex::default(), verify: cfg!(debug_assertions) }
    }

    /// A cache whose kernels pass the verifier of their back end, for tests.
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
        let mut regions: Vec<*const ()> = self.entries.iter().map(|e| Arc::as_ptr(&e.code).cast()).collect();
        regions.sort();
        regions.dedup();
        regions.len()
    }
}

/// Compiles what the cache does not hold yet, on up to `threads` threads.
///
/// `resolve` gives the addresses of run-time library functions (`tc_exp_f64`, `tc_fmod_f32`, …).
/// Fails with the first kernel, in order, that has no code, or if the build has no such back end.
pub fn compile_kernels(
    kernels: &[Kernel],
    backend: Backend,
    threads: usize,
    cache: &KernelCache,
    resolve: Resolve<'_>,
) -> Result<JitModule> {
    backend.check()?;
    let keys: Vec<Key> = kernels.iter().map(|k| (backend.of(k), k.canonical())).collect();
    let missing = missing(&keys, cache);
    let stand_ins = stand_ins().into_iter().filter_map(|name| resolve(&name).map(|address| (name, address as usize)));
    let mut addresses: BTreeMap<String, usize> = stand_ins.collect();
    for &i in &missing {
        for name in symbols::needed(&kernels[i]).into_keys() {
            let address = symbols::address(&name, resolve).map_err(|d| d.note(in_kernel(&kernels[i])))?;
            addresses.insert(name, address as usize);
        }
    }
    let share = missing.len().div_ceil(threads.max(1)).max(1);
    let chunks: Vec<&[usize]> = missing.chunks(share).collect();
    let work = Work { kernels, keys: &keys, addresses, verify: cache.verify };
    let results: Vec<Result<Vec<Entry>>> = match &chunks[..] {
        [] => vec![],
        [only] => vec![work.compile(only)],
        _ => std::thread::scope(|scope| {
            let work = &work;
            let handles: Vec<_> = chunks.iter().map(|&chunk| scope.spawn(move || work.compile(chunk))).collect();
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
    let lost = || Diagnostic::new(Code::Internal, "a compiled kernel was lost");
    entries.map(|entries| JitModule { entries }).ok_or_else(lost)
}

/// Functions of the run-time library that back ends call on processors without an instruction.
fn stand_ins() -> Vec<String> {
    let cranelift = cranelift::libcalls::names();
    #[cfg(feature = "llvm")]
    return cranelift.chain(crate::llvm::jit::LIBCALLS.map(|(_, name)| name.to_owned())).collect();
    #[cfg(not(feature = "llvm"))]
    cranelift.collect()
}

/// The first of each kernel that the cache does not hold.
fn missing(keys: &[Key], cache: &KernelCache) -> Vec<usize> {
    let known = cache.entries.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seen = std::collections::HashSet::new();
    (0..keys.len()).filter(|&i| !known.contains_key(&keys[i]) && seen.insert(&keys[i])).collect()
}

struct Work<'a> {
    kernels: &'a [Kernel],
    keys: &'a [Key],
    addresses: BTreeMap<String, usize>,
    verify: bool,
}

impl Work<'_> {
    /// Entries of the kernels of a chunk, in its order. Kernels of one back end share a piece of memory.
    fn compile(&self, chunk: &[usize]) -> Result<Vec<Entry>> {
        let mut entries: BTreeMap<usize, Entry> = BTreeMap::new();
        for backend in [Backend::Cranelift, Backend::Llvm] {
            let of: Vec<usize> = chunk.iter().copied().filter(|&i| self.keys[i].0 == backend).collect();
            if of.is_empty() {
                continue;
            }
            let kernels: Vec<&Kernel> = of.iter().map(|&i| &self.kernels[i]).collect();
            let made = match backend {
                #[cfg(feature = "llvm")]
                Backend::Llvm => crate::llvm::jit::compile(&kernels, &self.addresses, self.verify)?,
                _ => cranelift::jit::compile(&kernels, &self.addresses, self.verify)?,
            };
            entries.extend(of.into_iter().zip(made));
        }
        Ok(entries.into_values().collect())
    }
}

pub(crate) fn in_kernel(kernel: &Kernel) -> String {
    format!("in kernel `{}`", kernel.name)
}

pub(crate) fn panicked() -> Diagnostic {
    Diagnostic::new(Code::Internal, "the code generator stopped unexpectedly")
}
