//! Damaged NDArray lists make the reader allocate no more than their size explains, and cut ones are refused. What is read
//! is used by the test of all readers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use tensorc_frontend::mxnet::params::read;
use tensorc_random::{Meter, each_damaged, measured};
use tensorc_readers::READERS;

#[global_allocator]
static ALLOCATOR: Meter = Meter;

/// Bytes that reading takes at most for each byte of input: entries of the growing list, for arrays of four bytes.
const MEMORY_PER_BYTE: u64 = 64;

/// Reads a list; whether it is valid.
fn reads(bytes: &[u8]) -> bool {
    let (input, size) = (Bytes::copy_from_slice(bytes), bytes.len() as u64);
    let (result, memory) = measured(|| read(input));
    assert!(memory <= MEMORY_PER_BYTE * size + 4096, "{memory} bytes of memory for {size} bytes of input");
    result.is_ok()
}

#[test]
fn damaged_lists_never_panic_and_cost_what_they_hold() {
    let reader = READERS.iter().find(|reader| reader.name == "mxnet_params").unwrap();
    let lists = (reader.files)();
    for list in &lists {
        assert!(reads(list));
        for length in 0..list.len() {
            assert!(!reads(&list[..length]), "cut to {length} of {} bytes", list.len());
        }
    }
    // The most arrays that fit: four bytes each.
    let mut zeros = vec![0; 1 << 20];
    zeros[0..2].copy_from_slice(&[0x12, 0x01]);
    let count = (zeros.len() - 32) / 4;
    zeros[16..24].copy_from_slice(&(count as u64).to_le_bytes());
    assert!(reads(&zeros));

    let counts = each_damaged(&lists, 20_000, None, reads);
    assert!(counts.read > 1000 && counts.refused > 1000, "the damage is too strong or too weak: {counts:?}");
}
