//! Code that outlives the process: what identifies it, and the form in which it is kept.
//!
//! A record is a magic number with a version, the length of the key, the key, the code, and a seal
//! ([`tensorc_abi::seal`]) over all of it.

use tensorc_abi::seal;
use tensorc_ir::kir::Kernel;
use tensorc_ir::text::print_kernel;
use xxhash_rust::xxh3::xxh3_128;

use crate::backend::Backend;

const MAGIC: [u8; 8] = *b"tccode\0\x01";

/// Keeps records of machine code for later processes, by numbers.
///
/// A store may forget and damage records, or take one for another: what it gives is checked. But it must be safe from
/// whoever may not decide what this process does, since the code in a record is run.
pub trait CodeStore: Send + Sync {
    /// The record of a number, `None` if there is none.
    fn get(&self, number: u128) -> Option<Vec<u8>>;

    /// Keeps a record as far as it can.
    fn put(&self, number: u128, record: &[u8]);

    /// Called when the kernels of a module are loaded.
    fn finish(&self) {}
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCode<'r> {
    /// All that decides the code: equal keys have equal code.
    pub key: &'r [u8],
    /// The code in the form of a back end, which is not checked.
    pub code: &'r [u8],
}

impl<'r> StoredCode<'r> {
    /// The record.
    pub fn to_record(&self) -> Vec<u8> {
        let mut record = Vec::with_capacity(16 + self.key.len() + self.code.len() + seal::BYTES);
        record.extend(MAGIC);
        record.extend((self.key.len() as u64).to_le_bytes());
        record.extend(self.key);
        record.extend(self.code);
        seal::close(&mut record);
        record
    }

    /// What is in a record, if it is whole.
    pub fn of_record(record: &'r [u8]) -> Option<StoredCode<'r>> {
        let (length, rest) = seal::open(record)?.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let (key, code) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        Some(StoredCode { key, code })
    }
}

/// All that decides a kernel's code.
pub(crate) struct CodeKey {
    /// The compiler, the processor as the back end describes it, and the kernel without names.
    text: Vec<u8>,
    /// A hash of the text.
    pub number: u128,
}

impl CodeKey {
    pub fn new(backend: Backend, processor: &str, kernel: &Kernel) -> CodeKey {
        let (version, sources) = (env!("CARGO_PKG_VERSION"), env!("TENSORC_CODE_VERSION"));
        let kernel = print_kernel(&kernel.canonical());
        let text = format!("tensorc {version} {sources}\n{}\n{processor}\n{kernel}", backend.name()).into_bytes();
        CodeKey { number: xxh3_128(&text), text }
    }

    pub fn record(&self, code: &[u8]) -> Vec<u8> {
        StoredCode { key: &self.text, code }.to_record()
    }

    /// The code in a record, if it is whole and of this key.
    pub fn code_in<'r>(&self, record: &'r [u8]) -> Option<&'r [u8]> {
        StoredCode::of_record(record).filter(|stored| stored.key == self.text).map(|stored| stored.code)
    }
}

#[cfg(test)]
mod tests {
    use tensorc_abi::DType;
    use tensorc_ir::kir::KernelBuilder;

    use super::*;

    fn kernel(name: &str, len: u64) -> Kernel {
        let mut b = KernelBuilder::new(name);
        b.param(name, DType::F32, len, true);
        b.finish()
    }

    #[test]
    fn records_are_read_by_their_own_key_and_whole() {
        let key = CodeKey::new(Backend::Cranelift, "cpu", &kernel("k", 8));
        let record = key.record(b"code");
        assert_eq!(key.code_in(&record), Some(&b"code"[..]));
        let same = CodeKey::new(Backend::Cranelift, "cpu", &kernel("other", 8));
        assert_eq!(same.code_in(&record), Some(&b"code"[..]), "names are no part of the key");
        for (backend, cpu, len) in
            [(Backend::Llvm, "cpu", 8), (Backend::Cranelift, "gpu", 8), (Backend::Cranelift, "cpu", 9)]
        {
            let other = CodeKey::new(backend, cpu, &kernel("k", len));
            assert_ne!(other.number, key.number);
            assert_eq!(other.code_in(&record), None, "{backend:?} {cpu} {len}");
        }
        for len in 0..record.len() {
            assert_eq!(key.code_in(&record[..len]), None, "cut to {len}");
        }
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.code_in(&damaged), None, "bit {bit}");
        }
    }
}
