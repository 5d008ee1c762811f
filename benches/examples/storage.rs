//! What storage costs: `cargo run --release -p tensorc-bench --example storage`.
//!
//! Prints the time to allocate and drop a block, in nanoseconds, against the system's allocator, and
//! what scratch memory adds to an operation. Each figure is the least of many batches, so that other
//! load on the machine does not count.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use tensorc_runtime::engine::{Engine, EngineConfig, Op, OpName};
use tensorc_runtime::resource::{TempSpace, TempSpaceConfig};
use tensorc_runtime::storage::{PoolConfig, Pooling, Storage, StorageConfig};
use tensorc_runtime::{AlignedBuffer, Device};

/// Least time of one call, over batches of `batch` calls, in nanoseconds.
fn least(batch: u32, mut call: impl FnMut()) -> f64 {
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..batch).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(batch)
    };
    (0..200).map(|_| time(&mut call)).fold(f64::INFINITY, f64::min)
}

fn storage(pooling: Pooling) -> Storage {
    Storage::new(StorageConfig::from(PoolConfig { pooling, poison: false, ..PoolConfig::default() }))
}

/// Least time of an operation that does nothing, with and without scratch memory.
fn operations(storage: &Storage) -> Result<[f64; 2], Box<dyn Error>> {
    const BATCH: u32 = 10_000;
    let engine = Engine::new(EngineConfig::default())?;
    let temp = TempSpace::new(&engine, storage, TempSpaceConfig::default());
    let name = OpName::from("nothing");
    let mut least = [f64::INFINITY; 2];
    for _ in 0..50 {
        for (with, least) in least.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..BATCH {
                match with {
                    0 => engine.push(Op::new(&name), |_| Ok(()))?,
                    _ => temp.push(Op::new(&name), 1000, |_, scratch| {
                        black_box(scratch);
                        Ok(())
                    })?,
                }
            }
            engine.wait_all()?;
            *least = least.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
        }
    }
    Ok(least)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cpu(0);
    let pooled = storage(Pooling::Classes);
    let unpooled = storage(Pooling::Unpooled);
    println!("{:>12} {:>12} {:>12} {:>12}", "bytes", "pooled", "unpooled", "allocator");
    for bytes in [64, 256, 4096, 65536, 1 << 20, 16 << 20] {
        let batch = if bytes > 65536 { 10 } else { 10_000 };
        let of = |storage: &Storage| least(batch, || drop(black_box(storage.alloc(device, black_box(bytes)))));
        let system = least(batch, || drop(black_box(AlignedBuffer::zeroed(black_box(bytes), "example"))));
        println!("{bytes:>12} {:>12.1} {:>12.1} {:>12.1}", of(&pooled), of(&unpooled), system);
    }
    // Blocks of many sizes alive at once, dropped in another order.
    let mut ring: Vec<_> = (0..64).map(|_| None).collect();
    let mut state = 1u32;
    let mixed = least(10_000, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let place = (state >> 26) as usize;
        ring[place] = pooled.alloc(device, u64::from(state >> 18 & 0xffff) + 1).ok();
    });
    println!("sizes to 64 KiB, 64 blocks alive: {mixed:.1}");
    for threads in [1, 2] {
        let start = Instant::now();
        const CALLS: u32 = 1_000_000;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..CALLS).for_each(|_| drop(black_box(pooled.alloc(device, black_box(256))))));
            }
        });
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS);
        println!("{threads} threads on one size: {each:.1} each");
    }
    let [plain, scratch] = operations(&pooled)?;
    println!("an operation of the engine: {plain:.0}, with scratch memory: {scratch:.0}");
    Ok(())
}
