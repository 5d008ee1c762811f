//! Records of the code cache.

use tensorc_abi::seal;
use tensorc_codegen::stored::StoredCode;

use crate::FileReader;

/// Records, which nothing but their seal tells from damaged ones.
pub const CODE: FileReader =
    FileReader { name: "code_cache", files: records, seal: Some(seal_record), read: read_record, memory: 16 };

/// A record that is taken is one that would be written.
fn read_record(bytes: &[u8]) -> bool {
    let Some(stored) = StoredCode::of_record(bytes) else { return false };
    assert_eq!(stored.to_record(), bytes);
    true
}

fn records() -> Vec<Vec<u8>> {
    let key = b"tensorc 0.1.0 0123456789abcdef\nCranelift\nx86_64 avx2\nkernel @() {\n}\n";
    let code: Vec<u8> = (0..90).collect();
    [(&key[..], &code[..]), (b"", b""), (key, b"")].map(|(key, code)| StoredCode { key, code }.to_record()).to_vec()
}

fn seal_record(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len().saturating_sub(seal::BYTES));
    seal::close(bytes);
}
