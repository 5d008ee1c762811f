//! Prints what the executor and the pool cost beside the kernels.
//!
//! `cargo run --release -p tensorc-runtime --example overhead`

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tensorc_abi::{Arg, Buffer, BufferId, DType, Home, KernelFn, KernelId, Plan, Step, StepOp};
use tensorc_runtime::{Context, Executable, Pool, TensorMut, TensorRef, available_threads};

unsafe extern "C" fn nothing(buffers: *const *mut u8, scalars: *const i64) {
    black_box((buffers, scalars));
}

/// A chain of `steps` kernels that do nothing, from an input over two alternating buffers.
fn chain(steps: u32) -> Plan {
    let buffer = |name: String, home| Buffer { name, dtype: DType::F32, dims: vec![1, 16], home };
    let mut plan = Plan { name: "chain".into(), kernels: vec!["nothing".into()], ..Plan::default() };
    plan.buffers.push(buffer("x".into(), Home::Input(0)));
    for i in 0..steps {
        let home = if i + 1 == steps { Home::Output(0) } else { Home::Arena(u64::from(i % 2) * 64) };
        plan.buffers.push(buffer(format!("t{i}"), home));
        let args = vec![Arg { buffer: BufferId(i), writes: false }, Arg { buffer: BufferId(i + 1), writes: true }];
        let op = StepOp::Launch { kernel: KernelId(0), args, extent: 1 };
        plan.steps.push(Step { name: format!("s{i}"), op, flops: 32, bytes: 128 });
    }
    plan.arena_bytes = 128;
    plan.inputs.push(BufferId(0));
    plan.outputs.push(BufferId(steps));
    plan
}

/// Least time of one call in nanoseconds, over batches of calls.
fn best_ns(batches: u32, calls: u32, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..batches {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

/// Median over single calls, in nanoseconds; shows a disturbed machine where the best does not.
fn median_ns(calls: usize, mut call: impl FnMut()) -> u128 {
    let mut times: Vec<u128> = (0..calls)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[calls / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let threads = available_threads();
    println!("threads available: {threads}");
    for steps in [1, 3, 100] {
        let pool = Pool::new(threads)?;
        // SAFETY: the kernel touches no memory.
        let executable = unsafe { Executable::new(chain(steps), vec![nothing as KernelFn], Arc::new(()), vec![]) }?;
        let mut context = Context::new(Arc::new(executable), &pool)?;
        let (dims, x, mut y) = ([1, 16], [0f32; 16], [0f32; 16]);
        let mut result = Ok(());
        let ns = best_ns(200, 1000, || {
            let outputs = &mut [TensorMut::from_slice(&dims, &mut y)];
            result = context.run(&pool, &[TensorRef::from_slice(&dims, &x)], outputs);
        });
        result?;
        println!("plan of {steps:3} steps: {ns:8.1} ns a run");
    }
    let mut counts = vec![2, threads];
    counts.dedup();
    for threads in counts {
        let pool = Pool::new(threads)?;
        let tasks = threads as u64;
        let region = || {
            // A panic of the task is the only error, and it does not panic.
            let _ = pool.run(tasks, 1, &|thread, range| {
                black_box((thread, range));
            });
        };
        println!(
            "fork-join of {threads} threads: best {:.0} ns, median {} ns",
            best_ns(200, 500, region),
            median_ns(100_000, region)
        );
    }
    Ok(())
}
