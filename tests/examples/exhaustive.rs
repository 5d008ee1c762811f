//! The error of the f32 library functions over every one of the 2³² arguments.
//!
//! `cargo run --release -p tensorc-tests --example exhaustive [-- function…]` tries the strip
//! functions of the widest instruction set of this machine (they have the bits of the expressions
//! in `ops/src/math`) against the f64 functions of `libm`, and exits with 1 if one exceeds its
//! budget. About one minute of two cores for each function.

use std::process::ExitCode;

use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};
use tensorc_kernels::vmath::{VectorMathFn, vector_math_for};
use tensorc_ops::math::budget;

#[path = "../../ops/tests/integration/distance/mod.rs"]
mod distance;

const BLOCK: u64 = 1 << 12;

/// The largest error over the arguments with bit patterns in a range, and where it is.
fn sweep(f: MathFn, strip: VectorMathFn, range: std::ops::Range<u64>) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    let mut data = vec![0f32; BLOCK as usize];
    for start in range.step_by(BLOCK as usize) {
        data.iter_mut().enumerate().for_each(|(i, x)| *x = f32::from_bits((start + i as u64) as u32));
        // SAFETY: the block holds as many elements as stated.
        unsafe { strip(data.as_mut_ptr(), data.len() as i64) };
        for (i, found) in data.iter().enumerate() {
            let x = f32::from_bits((start + i as u64) as u32);
            let wide = Scalar { dtype: tensorc_abi::DType::F64, bits: f64::from(x).to_bits() };
            // The f64 function of `libm` errs for acosh below its domain.
            let expected = match f {
                MathFn::Acosh if x < 1.0 => f64::NAN,
                _ => ScalarOp::Math(f).eval(&[wide]).as_f64(),
            };
            let error = distance::error(*found, expected);
            if error > worst.0 {
                worst = (error, x);
            }
        }
    }
    worst
}

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let mut failed = false;
    println!("| function | budget (ulp) | largest error (ulp) | at |\n|---|---|---|---|");
    for f in MathFn::ALL {
        let wanted = chosen.is_empty() || chosen.iter().any(|c| c == f.name());
        let Some(strip) = vector_math_for(tensorc_kernels::isa(), &format!("tc_v{}_f32", f.name())).filter(|_| wanted)
        else {
            continue;
        };
        let part = ((1u64 << 32) / threads).next_multiple_of(BLOCK);
        let (error, at) = std::thread::scope(|scope| {
            let range = |t: u64| t * part..((t + 1) * part).min(1 << 32);
            let workers: Vec<_> = (0..threads).map(|t| scope.spawn(move || sweep(f, strip, range(t)))).collect();
            let results = workers.into_iter().filter_map(|w| w.join().ok());
            results.fold((0.0, 0.0), |best, w| if w.0 > best.0 { w } else { best })
        });
        println!("| {} | {} | {error:.3} | {at:e} |", f.name(), budget(f));
        failed |= error > budget(f);
    }
    ExitCode::from(u8::from(failed))
}
