//! Released memory leaves the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tensorc_runtime::Device;
use tensorc_runtime::storage::{MemoryBlock, PoolConfig, Storage};

const MIB: u64 = 1 << 20;

/// Bytes of the process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The only test of this binary: memory of another one would be counted too.
#[test]
fn released_memory_goes_back_to_the_system() {
    let config = PoolConfig { max_held: 1 << 30, poison: false, ..PoolConfig::default() };
    let (storage, device) = (Storage::new(config.into()), Device::cpu(0));
    let before = resident();
    // Small blocks that stay lie between the large ones.
    let mut stay: Vec<MemoryBlock> = vec![];
    let mut blocks: Vec<MemoryBlock> = vec![];
    for i in 0..256 {
        blocks.push(storage.alloc(device, if i % 4 == 0 { MIB } else { 100_000 }).unwrap());
        blocks.last_mut().unwrap().as_mut_slice().fill(1);
        stay.push(storage.alloc(device, 64).unwrap());
    }
    drop(blocks);
    let held = storage.stats(device).held;
    assert!(held > 80 * MIB);
    assert!(resident() > before + 64 * MIB);
    assert_eq!(storage.release(device), held);
    assert!(resident() < before + 16 * MIB, "{} of {held} stay", resident() - before);
    assert_eq!(storage.stats(device).in_use, 256 * 64);
}
