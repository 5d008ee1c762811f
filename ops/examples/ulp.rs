//! Errors of the f32 math library over every argument, as a table.
//!
//! `cargo run --release -p tensorc-ops --example ulp [-- stride [function…]]`: with a stride of 1
//! (the default) every f32 is tried; for `pow`, pairs from two interleaved sequences. The
//! reference is the f64 function of `libm`.

use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarNode};
use tensorc_ops::math::{MathBodies, budget};

#[path = "../tests/integration/blocks/mod.rs"]
mod blocks;
#[path = "../tests/integration/distance/mod.rs"]
mod distance;

use blocks::{Worst, sweep};

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let stride: u64 = args.next().and_then(|s| s.parse().ok()).unwrap_or(1).max(1);
    let chosen: Vec<String> = args.collect();
    let library = MathBodies::new()?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    println!("| function | operations | budget (ulp) | error (ulp) | at | result |");
    println!("|---|---|---|---|---|---|");
    for function in MathFn::ALL {
        if !chosen.is_empty() && !chosen.iter().any(|c| c == function.name()) {
            continue;
        }
        let body = library.body(function);
        let total = 1u64 << 32;
        let part = total.div_ceil(threads);
        let worst = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|t| scope.spawn(move || sweep(function, body, t * part, ((t + 1) * part).min(total), stride)))
                .collect();
            workers.into_iter().filter_map(|w| w.join().ok()).fold(None, |best: Option<Worst>, w| match best {
                Some(b) if b.ulp >= w.ulp => Some(b),
                _ => Some(w),
            })
        });
        let Some(w) = worst else { return Err(format!("{}: a worker failed", function.name())) };
        let operations = body.nodes.iter().filter(|n| matches!(n, ScalarNode::Op(..))).count();
        let at = if function.arity() == 2 {
            format!("{:e}, {:e}", w.input[0], w.input[1])
        } else {
            format!("{:e}", w.input[0])
        };
        let mark = if w.ulp > budget(function) { " **over**" } else { "" };
        println!(
            "| {} | {operations} | {} | {:.3}{mark} | {at} | {:e} for {:e} |",
            function.name(),
            budget(function),
            w.ulp,
            w.found,
            w.expected
        );
    }
    Ok(())
}
