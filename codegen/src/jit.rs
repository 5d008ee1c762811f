//! Compilation of sets of kernels into executable memory, in parallel and at most once each, by either back end.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_abi::KernelFn;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::Kernel;
use tensorc_ir::parallel::try_map;

pub use crate::backend::Backend;
use crate::isa::Isa;
use crate::loading::{KernelCode, LoadRequest, LoadedKernel, in_kernel, panicked};
use crate::stored::{self, CodeStore};
use crate::{cranelift, symbols};

/// Finds the address of a run-time library function by name.
pub(crate) type Resolve<'a> = &'a dyn Fn(&str) -> Option<*const u8>;

/// Compiled kernels by content: equal kernels are compiled once by a back end, whatever their names.
///
/// All calls with one cache must resolve library functions to the same addresses. The code of a
/// kernel lives as long as a [`JitModule`] that uses it, and in the cache until that has too many kernels: shapes that
/// keep changing bring ever new ones.
pub struct KernelCache {
    entries: Mutex<HashMap<KernelKey, KernelCode>>,
    most: usize,
    verify: bool,
    /// Other instructions than all that this machine has.
    isa: Option<Isa>,
    store: Option<Arc<dyn CodeStore>>,
}

type KernelKey = (Backend, Kernel);

/// Kernels in a cache beyond which those that nothing uses are forgotten.
const MAX_KERNELS: usize = 4096;

impl KernelCache {
    /// An empty cache of the default size.
    pub fn new() -> KernelCache {
        let verify = cfg!(debug_assertions);
        KernelCache { entries: Mutex::default(), most: MAX_KERNELS, verify, isa: None, store: None }
    }

    /// A cache that forgets kernels that nothing uses when there are more than so many.
    pub fn of_at_most(most: usize) -> KernelCache {
        KernelCache { most, ..KernelCache::new() }
    }

    /// A cache whose kernels pass the verifier of their back end, for tests.
    pub fn verifying() -> KernelCache {
        KernelCache { verify: true, ..KernelCache::new() }
    }

    /// A cache of code that uses the instructions of a level alone, which this machine must have.
    pub fn for_isa(self, isa: Isa) -> KernelCache {
        KernelCache { isa: Some(isa), ..self }
    }

    fn isa(&self) -> Result<Isa> {
        self.isa.map_or_else(Isa::native, Ok)
    }

    /// A cache that asks a store for code before it compiles, and gives it what it compiled.
    pub fn storing(self, store: Arc<dyn CodeStore>) -> KernelCache {
        KernelCache { store: Some(store), ..self }
    }

    /// Number of different kernels compiled.
    pub fn len(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no kernel is cached.
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
    entries: Vec<KernelCode>,
}

impl JitModule {
    /// The entry point of the `i`-th kernel of the list, valid as long as this module. `None` if
    /// there is no such kernel.
    pub fn entry(&self, i: usize) -> Option<KernelFn> {
        self.entries.get(i).map(|e| e.function)
    }

    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no kernels.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Size of the machine code in bytes. Equal kernels share code and count once. With LLVM it is the size of the object
    /// files.
    pub fn code_bytes(&self) -> u64 {
        let mut sizes: Vec<(usize, usize)> = self.entries.iter().map(|e| (e.function as usize, e.bytes)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.iter().map(|(_, bytes)| *bytes as u64).sum()
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
/// Fails with the first kernel, in order, that has no code, if the build has no such back end, or if `interrupt` says so after a kernel.
pub fn compile_kernels(
    kernels: &[Kernel],
    backend: Backend,
    threads: usize,
    interrupt: Interrupt<'_>,
    cache: &KernelCache,
    resolve: Resolve<'_>,
) -> Result<JitModule> {
    backend.check()?;
    let keys: Vec<KernelKey> = kernels.iter().map(|k| (backend.of(k), k.canonical())).collect();
    let (mut entries, missing) = look_up(&keys, cache);
    let soft_libcalls =
        soft_libcalls().into_iter().filter_map(|name| resolve(&name).map(|address| (name, address as usize)));
    let mut addresses: BTreeMap<String, usize> = soft_libcalls.collect();
    for &i in &missing {
        for name in symbols::needed(&kernels[i]).into_keys() {
            let address = symbols::address(&name, resolve).map_err(|d| d.note(in_kernel(&kernels[i])))?;
            addresses.insert(name, address as usize);
        }
    }
    let work = CompileWork { kernels, keys: &keys, addresses, cache, interrupt };
    let made = on_threads(&missing, threads, |chunk| work.compile(chunk))?;
    if let (Some(store), false) = (&cache.store, missing.is_empty()) {
        store.finish();
    }
    let mut known = cache.entries.lock().unwrap_or_else(PoisonError::into_inner);
    for (i, entry) in missing.into_iter().zip(made) {
        known.entry(keys[i].clone()).or_insert(entry);
    }
    for (entry, key) in entries.iter_mut().zip(&keys).filter(|(entry, _)| entry.is_none()) {
        *entry = known.get(key).cloned();
    }
    if known.len() > cache.most {
        forget_unused(&mut known);
    }
    let entries: Option<Vec<KernelCode>> = entries.into_iter().collect();
    let lost = || Diagnostic::new(DiagnosticCode::Internal, "a compiled kernel was lost");
    entries.map(|entries| JitModule { entries }).ok_or_else(lost)
}

/// Removes the kernels whose code nothing but the cache keeps in memory.
fn forget_unused(known: &mut HashMap<KernelKey, KernelCode>) {
    let address = |entry: &KernelCode| Arc::as_ptr(&entry.code).cast::<()>() as usize;
    let mut cached: BTreeMap<usize, usize> = BTreeMap::new();
    known.values().for_each(|entry| *cached.entry(address(entry)).or_default() += 1);
    known.retain(|_, entry| cached.get(&address(entry)).is_none_or(|n| Arc::strong_count(&entry.code) > *n));
}

/// Does work in up to `threads` pieces of equal length, side by side where threads are free; the results are in the order
/// of the items. Fails with the first piece, in order, that does.
pub(crate) fn on_threads<R: Send>(
    items: &[usize],
    threads: usize,
    work: impl Fn(&[usize]) -> Result<Vec<R>> + Sync,
) -> Result<Vec<R>> {
    let share = items.len().div_ceil(threads.max(1)).max(1);
    let made = try_map(items.chunks(share).collect(), threads, work, |_| panicked())?;
    Ok(made.into_iter().flatten().collect())
}

/// Functions of the run-time library that back ends call on processors without an instruction.
fn soft_libcalls() -> Vec<String> {
    let cranelift = cranelift::libcalls::names();
    #[cfg(feature = "llvm")]
    return cranelift.chain(symbols::C_FUNCTIONS.map(|(_, name)| name.to_owned())).collect();
    #[cfg(not(feature = "llvm"))]
    cranelift.collect()
}

/// What the cache holds of each kernel, and the first of each kernel that it does not hold.
fn look_up(keys: &[KernelKey], cache: &KernelCache) -> (Vec<Option<KernelCode>>, Vec<usize>) {
    let known = cache.entries.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seen = std::collections::HashSet::new();
    let entries: Vec<Option<KernelCode>> = keys.iter().map(|key| known.get(key).cloned()).collect();
    let missing = (0..keys.len()).filter(|&i| entries[i].is_none() && seen.insert(&keys[i])).collect();
    (entries, missing)
}

struct CompileWork<'a> {
    kernels: &'a [Kernel],
    keys: &'a [KernelKey],
    addresses: BTreeMap<String, usize>,
    cache: &'a KernelCache,
    interrupt: Interrupt<'a>,
}

impl CompileWork<'_> {
    /// Entries of the kernels of a chunk, in its order. Kernels of one back end share a piece of memory.
    fn compile(&self, chunk: &[usize]) -> Result<Vec<KernelCode>> {
        let mut entries: BTreeMap<usize, KernelCode> = BTreeMap::new();
        for backend in [Backend::Cranelift, Backend::Llvm] {
            let of: Vec<usize> = chunk.iter().copied().filter(|&i| self.keys[i].0 == backend).collect();
            if of.is_empty() {
                continue;
            }
            let made = match &self.cache.store {
                Some(store) => self.make_stored(backend, &of, &**store)?,
                None => self.make(backend, &of, &[], &[])?,
            };
            entries.extend(of.into_iter().zip(made.into_iter().map(|made| made.entry)));
        }
        Ok(entries.into_values().collect())
    }

    /// Takes code from the store where it has some, and stores the rest.
    fn make_stored(&self, backend: Backend, of: &[usize], store: &dyn CodeStore) -> Result<Vec<LoadedKernel>> {
        let processor = self.processor(backend)?;
        let keys: Vec<stored::CodeKey> =
            of.iter().map(|&i| stored::CodeKey::new(backend, &processor, &self.keys[i].1)).collect();
        // Stored code has its name inside, and is loaded together with other code.
        let names: Vec<String> = keys.iter().map(|key| format!("kernel_{:032x}", key.number)).collect();
        let records: Vec<Option<Vec<u8>>> = keys.iter().map(|key| store.get(key.number)).collect();
        let known: Vec<Option<&[u8]>> =
            keys.iter().zip(&records).map(|(key, record)| key.code_in(record.as_deref()?)).collect();
        let made = self.make(backend, of, &names, &known);
        // DiagnosticCode that a back end does not take is no code.
        let again = |e| if known.iter().all(Option::is_none) { Err(e) } else { self.make(backend, of, &names, &[]) };
        let made = made.or_else(again)?;
        for (key, made) in keys.iter().zip(&made) {
            if let Some(code) = &made.code {
                store.put(key.number, &key.record(code));
            }
        }
        Ok(made)
    }

    /// Loads kernels of one back end. Where there are no names there is no store.
    fn make(
        &self,
        backend: Backend,
        of: &[usize],
        names: &[String],
        known: &[Option<&[u8]>],
    ) -> Result<Vec<LoadedKernel>> {
        let plain: Vec<String> = (names.len()..of.len()).map(|i| format!("kernel{i}")).collect();
        let names = names.iter().chain(&plain);
        let wanted: Vec<LoadRequest<'_>> = of
            .iter()
            .zip(names)
            .enumerate()
            .map(|(n, (&i, name))| LoadRequest {
                kernel: &self.kernels[i],
                name,
                known: known.get(n).copied().flatten(),
                keep: plain.is_empty(),
                interrupt: self.interrupt,
            })
            .collect();
        match backend {
            #[cfg(feature = "llvm")]
            Backend::Llvm => crate::llvm::jit::load(&wanted, &self.addresses, self.cache.verify),
            _ => cranelift::jit::load(&wanted, &self.addresses, (self.cache.isa()?, self.cache.verify)),
        }
    }

    /// The processor as a back end sees it.
    fn processor(&self, backend: Backend) -> Result<String> {
        match backend {
            #[cfg(feature = "llvm")]
            Backend::Llvm => crate::llvm::jit::describe(),
            _ => cranelift::isa::describe(self.cache.isa()?, self.cache.verify),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "failures are made on purpose")]

    use super::*;

    #[test]
    fn the_limit_of_threads_alone_divides_the_work() {
        let items: Vec<usize> = (100..110).collect();
        for (threads, expected) in
            [(0, vec![10]), (1, vec![10]), (3, vec![4, 4, 2]), (4, vec![3, 3, 3, 1]), (64, vec![1; 10])]
        {
            let work = |chunk: &[usize]| Ok(chunk.iter().map(|i| (*i, chunk.len())).collect());
            let made: Vec<(usize, usize)> = on_threads(&items, threads, work).unwrap();
            let lengths = expected.iter().flat_map(|length| std::iter::repeat_n(*length, *length));
            assert_eq!(made, items.iter().copied().zip(lengths).collect::<Vec<_>>());
        }
        assert!(on_threads::<usize>(&[], 4, |_| Ok(vec![])).unwrap().is_empty());
    }

    #[test]
    fn the_first_chunk_that_fails_is_reported_and_a_panic_is_a_failure() {
        let items: Vec<usize> = (0..10).collect();
        for threads in [1, 2, 4, 5, 10] {
            let refuse = |chunk: &[usize]| match chunk.iter().find(|i| **i >= 2) {
                Some(i) => Err::<Vec<()>, _>(Diagnostic::new(DiagnosticCode::Unsupported, format!("item {i}"))),
                None => Ok(vec![]),
            };
            assert_eq!(on_threads(&items, threads, refuse).unwrap_err().message, "item 2");
            let stop = |_: &[usize]| -> Result<Vec<()>> { panic!("on purpose") };
            let error = on_threads(&items, threads, stop).unwrap_err();
            assert_eq!((error.code, error.message), (DiagnosticCode::Internal, panicked().message));
        }
    }
}
