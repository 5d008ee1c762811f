//! What this machine does at most, measured on the threads of a pool: multiply-adds of f32, and bytes read.
//!
//! The roofline of Williams, Waterman and Patterson ("Roofline: an insightful visual performance model for multicore
//! architectures", 2009): work of `i` operations for each byte from memory runs at `min(peak, i · bandwidth)` at most.

use std::hint::black_box;
use std::time::Instant;

use tensorc_kernels::{Isa, isa};

use crate::pool::{Pool, TaskPanic};

/// Bytes that no cache holds, and bytes for each thread that the second-level cache does.
const MEMORY_BYTES: usize = 256 << 20;
const CACHE_BYTES: usize = 192 << 10;
/// Times that all threads read what lies in the cache, in one measurement.
const CACHE_PASSES: usize = 200;
/// Rounds of multiply-adds of one thread, in one measurement.
const ROUNDS: u64 = 400_000;
/// Measurements, of which the best counts: others can only make the machine look slower.
const TRIES: usize = 5;

/// Rates of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Floating-point operations of f32 per second, a multiply-add counted as two; `None` where they are not measured.
    pub flops: Option<f64>,
    /// Bytes read from memory per second.
    pub memory: f64,
    /// Bytes read per second of what lies in the second-level caches.
    pub cache: f64,
    /// Threads that it was measured with.
    pub threads: usize,
}

impl Roofline {
    /// Measures for about half a second.
    ///
    /// # Errors
    /// None in practice: measuring does not panic.
    pub fn measure(pool: &Pool) -> Result<Roofline, TaskPanic> {
        let (threads, isa) = (pool.threads(), isa());
        let count = multiply_adds(isa, 1).map(|flops| flops * ROUNDS * threads as u64);
        let flops = count.map(|count| -> Result<f64, TaskPanic> {
            let work = |_: usize| {
                black_box(multiply_adds(isa, ROUNDS));
            };
            Ok(count as f64 / best(pool, &work)?)
        });
        let data = vec![1u64; MEMORY_BYTES / size_of::<u64>()];
        let share = data.len().div_ceil(threads);
        let memory = best(pool, &|i| read(isa, &data[(i * share).min(data.len())..((i + 1) * share).min(data.len())]))?;
        let words = CACHE_BYTES / size_of::<u64>();
        let again = |i: usize| {
            let own = &data[i * words % (data.len() - words)..][..words];
            (0..CACHE_PASSES).for_each(|_| read(isa, own));
        };
        let cache = best(pool, &again)?;
        Ok(Roofline {
            flops: flops.transpose()?,
            memory: MEMORY_BYTES as f64 / memory,
            cache: (CACHE_BYTES * CACHE_PASSES * threads) as f64 / cache,
            threads,
        })
    }

    /// The most operations per second of work that reads and writes so many bytes for so many operations.
    pub fn attainable(&self, flops: f64, bytes: f64) -> f64 {
        let by_memory = if bytes > 0.0 { flops / bytes * self.memory } else { f64::INFINITY };
        self.flops.unwrap_or(f64::INFINITY).min(by_memory)
    }
}

/// Shortest time in seconds in which every thread does its work once.
fn best(pool: &Pool, work: &(dyn Fn(usize) + Sync)) -> Result<f64, TaskPanic> {
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        pool.run(pool.threads() as u64, 1, &|_, range| range.for_each(|i| work(i as usize)))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}

/// Twelve independent multiply-adds in a loop, in assembly so that the compiler leaves them alone.
#[cfg(target_arch = "x86_64")]
macro_rules! chains {
    ($register:literal, $rounds:expr) => {
        // SAFETY: the caller has asked whether the processor has these instructions; only the named registers and the
        // counter change.
        unsafe {
            std::arch::asm!(
                "2:",
                concat!("vfmadd231ps ", $register, "0, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "1, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "2, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "3, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "4, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "5, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "6, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "7, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "8, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "9, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "10, ", $register, "12, ", $register, "13"),
                concat!("vfmadd231ps ", $register, "11, ", $register, "12, ", $register, "13"),
                "dec {count}",
                "jnz 2b",
                count = inout(reg) $rounds => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _,
                options(nostack),
            )
        }
    };
}

/// Multiplies and adds in the registers of an ISA level, `rounds` times; returns how many operations that were. `None` if the
/// level is not measured, or this machine does not have it.
pub fn multiply_adds(isa: Isa, rounds: u64) -> Option<u64> {
    let operations = |lanes: u64| Some(rounds * 12 * 2 * lanes);
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 if rounds > 0 && isa.is_available() => {
            chains!("zmm", rounds);
            operations(16)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if rounds > 0 && isa.is_available() => {
            chains!("ymm", rounds);
            operations(8)
        }
        _ => None,
    }
}

/// Eight loads in a loop.
#[cfg(target_arch = "x86_64")]
macro_rules! loads {
    ($register:literal, $width:literal, $data:expr) => {{
        let rounds = size_of_val($data) / (8 * $width);
        if rounds > 0 {
            // SAFETY: the caller has asked whether the processor has these instructions; each round reads the next eight
            // vectors, of which there are as many in the slice.
            unsafe {
                std::arch::asm!(
                    "2:",
                    concat!("vmovups ", $register, "0, [{data}]"),
                    concat!("vmovups ", $register, "1, [{data} + ", $width, "]"),
                    concat!("vmovups ", $register, "2, [{data} + 2*", $width, "]"),
                    concat!("vmovups ", $register, "3, [{data} + 3*", $width, "]"),
                    concat!("vmovups ", $register, "4, [{data} + 4*", $width, "]"),
                    concat!("vmovups ", $register, "5, [{data} + 5*", $width, "]"),
                    concat!("vmovups ", $register, "6, [{data} + 6*", $width, "]"),
                    concat!("vmovups ", $register, "7, [{data} + 7*", $width, "]"),
                    concat!("add {data}, 8*", $width),
                    "dec {count}",
                    "jnz 2b",
                    data = inout(reg) $data.as_ptr() => _,
                    count = inout(reg) rounds => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    }};
}

/// Reads words.
fn read(isa: Isa, data: &[u64]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 if isa.is_available() => loads!("zmm", 64, data),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if isa.is_available() => loads!("ymm", 32, data),
        _ => {
            let mut sums = [0u64; 8];
            for words in data.as_chunks::<8>().0 {
                sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            }
            black_box(sums);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_a_machine() {
        let found = Roofline::measure(&Pool::new(1).unwrap()).unwrap();
        assert!(found.memory > 1e8 && found.memory < 1e13, "{found:?}");
        assert!(found.cache > 1e9 && found.cache < 1e14, "{found:?}");
        assert!(found.flops.is_none_or(|flops| flops > 1e9 && flops < 1e13), "{found:?}");
    }

    #[test]
    fn work_is_bound_by_memory_below_the_ridge() {
        let of = Roofline { flops: Some(100e9), memory: 10e9, cache: 50e9, threads: 1 };
        assert_eq!(of.attainable(1e6, 1e6), 10e9);
        assert_eq!(of.attainable(1e9, 1e6), 100e9);
        assert_eq!(of.attainable(1.0, 0.0), 100e9);
    }
}
