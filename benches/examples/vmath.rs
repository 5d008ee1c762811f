//! Throughput of the strips of the math library, in elements per nanosecond.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use tensorc_kernels::{Isa, vmath};

fn main() {
    let x: Vec<f32> = (0..1024).map(|i| 0.004 * i as f32 + 0.01).collect();
    for name in vmath::NAMES {
        let mut line = format!("{name:6}");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let strip = vmath::vector_math_for(isa, &format!("tc_v{name}_f32")).unwrap();
            let mut best = f64::INFINITY;
            for _ in 0..200 {
                let mut data = x.clone();
                let start = Instant::now();
                // SAFETY: the vector is valid, and the ISA level is available.
                unsafe { strip(data.as_mut_ptr(), data.len() as i64) };
                best = best.min(start.elapsed().as_nanos() as f64);
            }
            line += &format!("  {isa:?} {:6.2}", x.len() as f64 / best);
        }
        println!("{line}");
    }
}
