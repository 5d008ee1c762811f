//! Tests of pools and blocks.

use std::num::NonZero;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use tensorc_abi::memory::AlignedBuffer;

const DEVICE: Device = Device::cpu(1);
const MIB: u64 = 1 << 20;

fn with(edit: impl FnOnce(&mut PoolConfig)) -> Storage {
    let mut config = PoolConfig { poison: true, ..PoolConfig::default() };
    edit(&mut config);
    Storage::new(config.into())
}

fn pooling(pooling: Pooling) -> Storage {
    with(|c| (c.pooling, c.poison) = (pooling, false))
}

/// Whether a block of the second size gets the memory of a freed one of the first.
fn reused(storage: &Storage, first: u64, second: u64) -> bool {
    let address = storage.alloc(DEVICE, first).unwrap().as_ptr();
    let before = storage.stats(DEVICE).reuses;
    let block = storage.alloc(DEVICE, second).unwrap();
    storage.stats(DEVICE).reuses > before && block.as_ptr() == address
}

#[test]
fn freed_memory_serves_the_next_request_of_its_size() {
    let naive = pooling(Pooling::Pages);
    assert!(reused(&naive, 1024, 1024));
    assert!(reused(&naive, 1, 4096));
    assert!(!reused(&naive, 4096, 4097));
    assert!(reused(&naive, 2 * MIB + 1, 4 * MIB));
    assert!(!reused(&naive, 2 * MIB, 2 * MIB + 1));

    let round = pooling(Pooling::PowersOfTwo(Cutoff::new(20).unwrap()));
    assert!(reused(&round, 32, 4095));
    assert!(reused(&round, 2_097_153, 3_145_728));
    assert!(!reused(&round, 8192, 8193));

    let classes = pooling(Pooling::Classes);
    assert!(reused(&classes, 65, 128));
    assert!(reused(&classes, 1025, 1152));
    assert!(!reused(&classes, 1152, 1153));

    assert!(!reused(&pooling(Pooling::Unpooled), 1024, 1024));
}

#[test]
fn memory_freed_last_is_handed_out_first() {
    let storage = pooling(Pooling::default());
    let blocks: Vec<MemoryBlock> = (0..3).map(|_| storage.alloc(DEVICE, 100).unwrap()).collect();
    let addresses: Vec<usize> = blocks.iter().map(|b| b.as_ptr() as usize).collect();
    drop(blocks);
    let again: Vec<MemoryBlock> = (0..3).map(|_| storage.alloc(DEVICE, 100).unwrap()).collect();
    assert!(again.iter().map(|b| b.as_ptr() as usize).eq(addresses.into_iter().rev()));
}

#[test]
fn sizes_are_the_least_of_their_class_that_fit() {
    let pages = Pooling::Pages;
    let round = |cutoff| Pooling::PowersOfTwo(Cutoff::new(cutoff).unwrap());
    let all = [Pooling::Classes, pages, round(20), round(24), round(34), Pooling::Unpooled];
    let mut bytes: Vec<u64> = (1..600).collect();
    for log in 9..63 {
        bytes.extend([(1 << log) - 1, 1 << log, (1 << log) + 1, 3 << (log - 1), (9 << (log - 3)) + 1]);
    }
    for pooling in all {
        for &n in &bytes {
            let Some(size) = pooling.round(n) else { panic!("{pooling} {n}") };
            assert!(size >= n && size % 64 == 0, "{pooling} {n}");
            assert_eq!(pooling.round(size), Some(size), "{pooling} {n}");
            match pooling {
                Pooling::Classes => assert!((size - n) * 8 < n.max(512), "{n} to {size}"),
                Pooling::Unpooled => assert!(size - n < 64),
                Pooling::Pages => assert!(size - n < if n > 2 * MIB { 2 * MIB } else { 4096 }),
                Pooling::PowersOfTwo(_) => assert!(size == 4096 || size - n < n),
            }
        }
        assert!(pooling.round(u64::MAX).is_none(), "{pooling}");
    }
}

#[test]
fn poolings_are_read_as_they_are_written() {
    for text in ["classes", "naive", "round", "round:20", "round:34", "unpooled"] {
        assert_eq!(text.parse::<Pooling>().unwrap().to_string(), text);
    }
    assert_eq!("round:24".parse(), Ok(Pooling::PowersOfTwo(Cutoff::default())));
    for cutoff in [0, 19, 35, 280] {
        assert_eq!(Cutoff::new(cutoff), Err(CutoffError { cutoff }));
        assert_eq!(format!("round:{cutoff}").parse::<Pooling>(), Err(CutoffError { cutoff }.into()));
    }
    let error = "best".parse::<Pooling>().unwrap_err();
    assert!(error.to_string().starts_with("`best` is no pooling; write classes, naive, round"), "{error}");
}

#[test]
fn no_memory_is_needed_for_nothing() {
    let storage = with(|c| c.limit = Some(0));
    let mut block = storage.alloc(DEVICE, 0).unwrap();
    assert_eq!((block.len(), block.capacity(), block.device()), (0, 0, DEVICE));
    assert!(block.as_slice().is_empty() && block.as_mut_slice().is_empty());
    assert_eq!(block.as_ptr() as usize % AlignedBuffer::ALIGN, 0);
    drop(block);
    assert_eq!(storage.stats(DEVICE), StorageStats::default());
}

#[test]
fn figures_follow_every_block() {
    let storage = pooling(Pooling::Pages);
    let (a, b) = (storage.alloc(DEVICE, 1).unwrap(), storage.alloc(DEVICE, 5000).unwrap());
    let mut expected = StorageStats { in_use: 12288, peak: 12288, allocations: 2, ..Default::default() };
    assert_eq!(storage.stats(DEVICE), expected);
    drop(b);
    (expected.in_use, expected.held, expected.peak_held) = (4096, 8192, 8192);
    assert_eq!(storage.stats(DEVICE), expected);
    let b = storage.alloc(DEVICE, 8192).unwrap();
    (expected.in_use, expected.held) = (12288, 0);
    (expected.allocations, expected.reuses) = (3, 1);
    assert_eq!(storage.stats(DEVICE), expected);
    assert_eq!(storage.stats(Device::cpu(0)), StorageStats::default());
    drop((a, b));
    assert_eq!(storage.release(DEVICE), 12288);
    (expected.in_use, expected.held, expected.peak_held) = (0, 0, 12288);
    assert_eq!(storage.stats(DEVICE), expected);
    storage.reset_peaks(DEVICE);
    (expected.peak, expected.peak_held) = (0, 0);
    assert_eq!(storage.stats(DEVICE), expected);
    assert_eq!(storage.release_all(), 0);
}

#[test]
fn devices_have_pools_and_limits_of_their_own() {
    let mut config = StorageConfig::from(PoolConfig { pooling: Pooling::Pages, ..PoolConfig::default() });
    config.devices.insert(DEVICE, PoolConfig { limit: Some(8192), ..config.default.clone() });
    let storage = Storage::new(config);
    let _all = storage.alloc(DEVICE, 8192).unwrap();
    let other = storage.alloc(Device::cpu(2), 8192).unwrap();
    assert_eq!(other.device(), Device::cpu(2));
    drop(other);
    let error = storage.alloc(DEVICE, 1).unwrap_err();
    let expected = AllocError { device: DEVICE, wanted: 1, in_use: 8192, held: 0, cause: AllocCause::Limit(8192) };
    assert_eq!(error, expected);
    let text =
        "cannot allocate 1 bytes on cpu:1: the device's limit is 8192 bytes (8192 bytes are in use, 0 held unused)";
    assert_eq!(error.to_string(), text);
    assert_eq!(storage.stats(Device::cpu(2)).held, 8192);
    assert_eq!(storage.release_all(), 8192);
}

#[test]
fn a_gpu_without_a_driver_has_no_memory() {
    let (storage, gpu) = (Storage::default(), Device::accelerator(3));
    let error = storage.alloc(gpu, 8).unwrap_err();
    assert_eq!((error.device, error.cause), (gpu, AllocCause::NoDriver));
    assert!(error.to_string().starts_with("cannot allocate 8 bytes on gpu:3: there is no driver for it"), "{error}");
    assert!(storage.alloc(Device::pinned(3), 8).is_ok_and(|block| block.as_slice().len() == 8), "memory of the host");
}

#[test]
fn unused_memory_makes_room_for_other_sizes() {
    let storage = with(|c| (c.pooling, c.limit, c.reserve) = (Pooling::Pages, Some(8192), 0));
    drop([storage.alloc(DEVICE, 4096).unwrap(), storage.alloc(DEVICE, 4096).unwrap()]);
    assert_eq!(storage.stats(DEVICE).held, 8192);
    let block = storage.alloc(DEVICE, 8192).unwrap();
    assert_eq!((storage.stats(DEVICE).in_use, storage.stats(DEVICE).held), (8192, 0));
    assert!(storage.alloc(DEVICE, 4096).is_err());
    drop(block);
    assert!(storage.alloc(DEVICE, 4096).is_ok());
}

#[test]
fn the_reserve_stays_free_while_memory_is_held() {
    let storage = with(|c| (c.pooling, c.limit, c.reserve) = (Pooling::Pages, Some(10 * 4096), 20));
    let seven: Vec<MemoryBlock> = (0..7).map(|_| storage.alloc(DEVICE, 4096).unwrap()).collect();
    drop(storage.alloc(DEVICE, 4096).unwrap());
    assert_eq!(storage.stats(DEVICE).held, 4096);
    // 7 pages in use, 1 held and 2 more would leave nothing of the reserve of 2.
    let two = storage.alloc(DEVICE, 8192).unwrap();
    assert_eq!(storage.stats(DEVICE).held, 0);
    let last = storage.alloc(DEVICE, 4096).unwrap();
    assert_eq!(storage.stats(DEVICE).in_use, 10 * 4096);
    drop((seven, two, last));
}

#[test]
#[cfg_attr(miri, ignore = "the interpreter ends the process when memory runs out")]
fn more_than_the_system_has_is_an_error() {
    let storage = with(|c| c.poison = false);
    drop(storage.alloc(Device::cpu(0), 100).unwrap());
    for (bytes, cause) in
        [(u64::MAX, AllocCause::Size), (i64::MAX as u64, AllocCause::Size), (1 << 60, AllocCause::System)]
    {
        let error = storage.alloc(DEVICE, bytes).unwrap_err();
        assert_eq!((error.wanted, error.cause), (bytes, cause));
        assert_eq!(storage.stats(DEVICE), StorageStats::default());
    }
    assert_eq!(storage.stats(Device::cpu(0)).held, 0, "released for the other device");
}

#[test]
fn a_pool_holds_no_more_than_its_bound() {
    let storage = with(|c| (c.pooling, c.max_held) = (Pooling::Pages, 8 * 4096));
    let blocks: Vec<MemoryBlock> = (0..64).map(|_| storage.alloc(DEVICE, 4096).unwrap()).collect();
    for block in blocks {
        drop(block);
        let stats = storage.stats(DEVICE);
        assert!(stats.held <= stats.in_use.max(8 * 4096), "{stats:?}");
    }
    assert!(storage.stats(DEVICE).held > 0);
    // Larger than the bound: not held at all, and what is small stays.
    let held = storage.stats(DEVICE).held;
    drop(storage.alloc(DEVICE, 9 * 4096).unwrap());
    assert_eq!(storage.stats(DEVICE).held, held);
}

#[test]
fn memory_that_was_idle_goes_first() {
    let storage = with(|c| (c.pooling, c.max_held) = (Pooling::Pages, 10 * 4096));
    let trim = || drop(storage.alloc(DEVICE, 8 * 4096).unwrap());
    drop((0..4).map(|_| storage.alloc(DEVICE, 4096).unwrap()).collect::<Vec<_>>());
    trim();
    assert_eq!(storage.stats(DEVICE).held, 4 * 4096);
    let hot = storage.alloc(DEVICE, 3 * 4096).unwrap();
    let cool = storage.alloc(DEVICE, 4096).unwrap();
    drop((hot, cool));
    assert_eq!(storage.stats(DEVICE).held, 7 * 4096);
    // Three of the small ones were not needed since the last time.
    trim();
    assert_eq!(storage.stats(DEVICE).held, 4 * 4096);
}

#[test]
fn failures_come_as_often_as_asked_for() {
    let storage = with(|c| c.fail_every = NonZero::new(3));
    let failed: Vec<bool> = (0..9)
        .map(|_| storage.alloc(DEVICE, 8).map_err(|e| assert_eq!(e.cause, AllocCause::Injected)).is_err())
        .collect();
    assert_eq!(failed, [false, false, true, false, false, true, false, false, true]);
}

#[test]
fn unused_memory_is_poisoned_and_watched() {
    let storage = with(|_| ());
    let mut block = storage.alloc(DEVICE, 100).unwrap();
    assert_eq!(block.as_slice(), [POISON; 100]);
    block.as_mut_slice().fill(1);
    let stale = block.start();
    drop(block);
    assert_eq!(storage.alloc(DEVICE, 100).unwrap().as_slice(), [POISON; 100]);
    // SAFETY: the pool holds the memory, and no other thread has the pool.
    unsafe { stale.write(0) };
    let error = storage.alloc(DEVICE, 100).unwrap_err();
    assert_eq!(error.cause, AllocCause::Corrupted);
    assert_eq!((storage.stats(DEVICE).in_use, storage.stats(DEVICE).held), (0, 0));
    assert_eq!(storage.alloc(DEVICE, 100).unwrap().as_slice(), [POISON; 100]);
}

#[test]
fn blocks_outlive_the_storage_and_cross_threads() {
    let storage = with(|_| ());
    let mut block = storage.alloc(DEVICE, 1000).unwrap();
    drop(storage);
    let sum = std::thread::spawn(move || {
        block.as_mut_slice().fill(2);
        block.as_slice().iter().map(|&b| u64::from(b)).sum::<u64>()
    });
    assert_eq!(sum.join().unwrap(), 2000);
}

/// Every thread writes its own number into its blocks and must read it back; the figures and the
/// limit must hold throughout.
#[test]
fn threads_never_share_a_block() {
    let (threads, rounds) = if cfg!(miri) { (3, 20) } else { (8, 5000) };
    let limit = if cfg!(miri) { 32 << 10 } else { 96 << 10 };
    let refused = AtomicU64::new(0);
    let storage = with(|c| (c.limit, c.max_held) = (Some(limit), limit / 4));
    let start = Barrier::new(threads);
    let work = |id: u8| {
        start.wait();
        let mut state = u64::from(id) + 1;
        let mut kept: Vec<MemoryBlock> = vec![];
        for _ in 0..rounds {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = (state >> 33) % 5000 + 1;
            match storage.alloc(DEVICE, bytes) {
                Ok(mut block) => {
                    assert_eq!(block.as_ptr() as usize % AlignedBuffer::ALIGN, 0);
                    block.as_mut_slice().fill(id);
                    kept.push(block);
                }
                Err(error) => {
                    assert_eq!(error.cause, AllocCause::Limit(limit));
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            let stats = storage.stats(DEVICE);
            assert!(stats.in_use + stats.held <= limit, "{stats:?}");
            if kept.len() > 8 {
                let block = kept.swap_remove((state >> 40) as usize % kept.len());
                assert!(block.as_slice().iter().all(|&b| b == id));
            }
            if state >> 58 == 0 {
                storage.release(DEVICE);
            }
        }
    };
    std::thread::scope(|scope| {
        for id in 0..threads as u8 {
            scope.spawn(move || work(id));
        }
    });
    let stats = storage.stats(DEVICE);
    assert_eq!(stats.in_use, 0);
    assert!(refused.into_inner() > 0);
    assert!(stats.peak > limit / 2 && stats.peak <= limit && stats.held <= limit / 4, "{stats:?}");
    assert_eq!(storage.release(DEVICE), stats.held);
    assert_eq!(storage.stats(DEVICE).held, 0);
}
