//! PTX of kernels for GPUs, translated once for a generation of GPUs, also for later processes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use crate::jit::Backend;
use crate::stored::{self, CodeStore};
use tensorc_schedule::target::Capability;

/// The entry of a kernel's module in a cache, which does not know what plans call the kernel.
const ENTRY: &str = "tc_kernel_entry";

/// Kernels in a cache beyond which it begins anew: shapes that keep changing bring ever new ones.
const MAX_KERNELS: usize = 4096;

/// The generation of GPUs, whether buffers are apart (as in [`module`]), and the kernel without names.
type PtxKey = (Capability, bool, Kernel);

/// PTX of kernels by content: equal kernels are translated once, whatever their names.
#[derive(Default)]
pub struct PtxCache {
    texts: Mutex<HashMap<PtxKey, Arc<str>>>,
    store: Option<Arc<dyn CodeStore>>,
}

impl PtxCache {
    /// A cache that asks a store for PTX before it translates, and gives it what it translated.
    pub fn storing(self, store: Arc<dyn CodeStore>) -> PtxCache {
        PtxCache { store: Some(store), ..self }
    }

    /// Number of different kernels translated.
    pub fn len(&self) -> usize {
        self.texts().len()
    }

    /// Whether there are no kernels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn texts(&self) -> std::sync::MutexGuard<'_, HashMap<PtxKey, Arc<str>>> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A module of one kernel with the entry `name`; otherwise as [`module`].
    ///
    /// # Errors
    /// As [`module`].
    pub fn translate(&self, kernel: &Kernel, name: &str, distinct: bool, capability: Capability) -> Result<String> {
        let key = (capability, distinct, kernel.canonical());
        let known = self.texts().get(&key).cloned();
        let text = match known {
            Some(text) => text,
            None => {
                let text: Arc<str> = self.make(&key, kernel)?.into();
                let mut texts = self.texts();
                if texts.len() >= MAX_KERNELS {
                    texts.clear();
                }
                texts.entry(key).or_insert(text).clone()
            }
        };
        Ok(text.replace(ENTRY, name))
    }

    /// PTX from the store or new; errors name the kernel as its plan does.
    fn make(&self, (capability, distinct, canonical): &PtxKey, kernel: &Kernel) -> Result<String> {
        let new = || module(&[(ENTRY, kernel)], &[*distinct], *capability);
        let Some(store) = &self.store else { return new() };
        let memory = if *distinct { "apart" } else { "shared" };
        let processor = format!("PTX {} {} {memory}", version(), capability.processor());
        let key = stored::CodeKey::new(Backend::Llvm, &processor, canonical);
        let record = store.get(key.number);
        let known = record.as_deref().and_then(|record| key.code_in(record)).map(<[u8]>::to_vec);
        if let Some(text) = known.and_then(|code| String::from_utf8(code).ok()) {
            return Ok(text);
        }
        let text = new()?;
        store.put(key.number, &key.record(text.as_bytes()));
        Ok(text)
    }

    /// Called when the kernels of a plan are translated.
    pub fn finish(&self) {
        if let Some(store) = &self.store {
            store.finish();
        }
    }
}

/// A module of PTX with an entry for each kernel, of the names given, whose parameters are the addresses of its buffers, then its
/// scalars as integers of 64 bits, then its
/// [tensor maps](Kernel::tensor_maps) as `cuTensorMapEncodeTiled` encodes them.
///
/// `distinct[i]` says that no two buffers of kernel `i` share memory, unless both are only read. Shared memory is
/// dynamic: a launch gives as many bytes as [`Launch::shared_bytes`](tensorc_ir::kir::Launch) says.
///
/// # Errors
/// A kernel is not for a GPU, or has no code; the build has no LLVM, or one without the target.
pub fn module(kernels: &[(&str, &Kernel)], distinct: &[bool], capability: Capability) -> Result<String> {
    Backend::Llvm.check()?;
    assemble(kernels, distinct, capability)
}

#[cfg(feature = "llvm")]
fn assemble(kernels: &[(&str, &Kernel)], distinct: &[bool], capability: Capability) -> Result<String> {
    crate::llvm::ptx(kernels, distinct, capability)
}

#[cfg(not(feature = "llvm"))]
fn assemble(_: &[(&str, &Kernel)], _: &[bool], _: Capability) -> Result<String> {
    Ok(String::new())
}

#[cfg(feature = "llvm")]
fn version() -> String {
    crate::llvm::version()
}

#[cfg(not(feature = "llvm"))]
fn version() -> String {
    String::new()
}

/// Names of functions for kernels: their own, with other characters than letters, digits and `_` replaced, and numbered where
/// two are the same.
pub fn entry_names(kernels: &[Kernel]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name = |kernel: &Kernel| {
        let base = format!("k_{}", kernel.name.chars().map(plain).collect::<String>());
        let numbered = (1..).map(|n| format!("{base}_{n}"));
        let found = std::iter::once(base.clone()).chain(numbered).find(|name| !taken.contains(name));
        let found = found.unwrap_or(base);
        taken.insert(found.clone());
        found
    };
    kernels.iter().map(&mut name).collect()
}
