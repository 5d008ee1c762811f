//! Prints what the executor and the pool cost beside the kernels.
//!
//! `cargo run --release -p tensorc-bench --example overhead`

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorc_abi::content::Content;
use tensorc_abi::{
    Arg, BatchedGemm, Buffer, BufferId, DType, GemmElements, KernelFn, KernelId, MatrixLayout, PackedElements, Packing,
    Plan, Step, StepOp, StorageClass, Weight,
};
use tensorc_runtime::profiler::{Profiler, Span, SpanName};
use tensorc_runtime::{
    AlignedBuffer, Bindings, Context, Executable, Pool, TensorMut, TensorRef, WeightStorage, available_threads,
    pack_weight,
};

unsafe extern "C" fn nothing(buffers: *const *mut u8, scalars: *const i64) {
    black_box((buffers, scalars));
}

/// A chain of `steps` kernels that do nothing, from an input over two alternating buffers.
fn chain(steps: u32) -> Plan {
    let buffer = |name: String, storage| Buffer { name, dtype: DType::F32, dims: vec![1, 16], storage, part: None };
    let mut plan = Plan { name: "chain".into(), kernels: vec!["nothing".into()], ..Plan::default() };
    plan.buffers.push(buffer("x".into(), StorageClass::Input(0)));
    for i in 0..steps {
        let storage = if i + 1 == steps { StorageClass::Output(0) } else { StorageClass::Arena(u64::from(i % 2) * 64) };
        plan.buffers.push(buffer(format!("t{i}"), storage));
        let args = vec![Arg { buffer: BufferId(i), writes: false }, Arg { buffer: BufferId(i + 1), writes: true }];
        let op = StepOp::Launch { kernel: KernelId(0), args, extent: 1 };
        plan.steps.push(Step { name: format!("s{i}"), op, flops: 32, bytes: 128 });
    }
    plan.arena_bytes = 128;
    plan.inputs.push(BufferId(0));
    plan.outputs.push(BufferId(steps));
    plan
}

/// A perceptron of three layers, all operands 64-byte aligned: `x[1, 16] → 32 → 16 → 10`, about a
/// thousand parameters.
fn perceptron() -> Result<(Plan, Vec<WeightStorage>), Box<dyn Error>> {
    let widths = [16u64, 32, 16, 10];
    let mut plan = Plan { name: "perceptron".into(), arena_bytes: 256, ..Plan::default() };
    let mut weights = Vec::new();
    let buffer = |name: String, dims, storage| Buffer { name, dtype: DType::F32, dims, storage, part: None };
    plan.buffers.push(buffer("x".into(), vec![1, widths[0]], StorageClass::Input(0)));
    for (layer, pair) in widths.windows(2).enumerate() {
        let (k, n) = (pair[0], pair[1]);
        let packing =
            Packing::GemmB { k, n, offset: 0, row_stride: n as i64, col_stride: 1, elements: PackedElements::F32 };
        let values: Vec<u8> = (0..k * n).flat_map(|i| (i as f32 / (k * n) as f32).to_le_bytes()).collect();
        weights.push(pack_weight(&packing, DType::F32, &Content::Memory(values.into()))?);
        plan.weights.push(Weight { name: format!("w{layer}"), constant: layer as u32, packing });
        plan.buffers.push(buffer(format!("w{layer}"), vec![k, n], StorageClass::Weight(layer as u32)));
        let storage = [StorageClass::Arena(0), StorageClass::Arena(128), StorageClass::Output(0)][layer];
        plan.buffers.push(buffer(format!("h{layer}"), vec![1, n], storage));
        let rows =
            |cols: u64| MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: cols as i64, col_stride: 1 };
        let call = BatchedGemm {
            batch: [1; 3],
            m: 1,
            n,
            k,
            a: rows(k),
            b: rows(n),
            c: rows(n),
            b_packed: true,
            elements: GemmElements::F32,
        };
        let [a, b, c] = [0, 1, 2].map(|i| BufferId(2 * layer as u32 + i));
        let op = StepOp::Gemm { call, a: a.into(), b, c, epilogue: None };
        plan.steps.push(Step { name: format!("dense{layer}"), op, flops: 2 * k * n, bytes: 4 * k * n });
    }
    plan.inputs.push(BufferId(0));
    plan.outputs.push(BufferId(6));
    Ok((plan, weights))
}

/// Time of a run of the perceptron, and of its three products called directly.
fn measure_perceptron(pool: &Pool) -> Result<(f64, f64), Box<dyn Error>> {
    let (plan, weights) = perceptron()?;
    let calls: Vec<BatchedGemm> = plan
        .steps
        .iter()
        .filter_map(|step| if let StepOp::Gemm { call, .. } = &step.op { Some(*call) } else { None })
        .collect();
    let packed = weights.clone();
    // SAFETY: the plan has no generated kernels.
    let executable = unsafe { Executable::new(plan, vec![], Arc::new(()), weights) }?;
    let mut context = Context::new(Arc::new(executable), pool)?;
    let (x, mut y) = ([0.5f32; 16], [0f32; 10]);
    let mut result = Ok(());
    let run = best_ns(200, 1000, || {
        let inputs = [TensorRef::from_slice(&[1, 16], &x)];
        result = context.run(pool, Bindings::new(&inputs, &mut [TensorMut::from_slice(&[1, 10], &mut y)]));
    });
    result?;
    let scratch_bytes = calls.iter().map(|call| tensorc_kernels::gemm_scratch(call, None)).max().unwrap_or(0);
    let mut scratch = AlignedBuffer::zeroed(scratch_bytes as u64, "scratch")?;
    let (a, mut c) = ([0.5f32; 32], [0f32; 32]);
    let direct = best_ns(200, 1000, || {
        for (call, b) in calls.iter().zip(&packed) {
            let tasks = 0..tensorc_kernels::gemm_tasks(call);
            let (b, c) = (b.as_slice().as_ptr().cast(), c.as_mut_ptr());
            // SAFETY: no layer is wider than 32, B is packed for this call and scratch fits it.
            unsafe { tensorc_kernels::gemm_run(call, a.as_ptr(), b, c, None, tasks, scratch.as_mut_ptr()) };
        }
    });
    Ok((run, direct))
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
    median_of((0..calls).map(|_| time_ns(&mut call)))
}

fn time_ns(call: impl FnOnce()) -> u128 {
    let start = Instant::now();
    call();
    start.elapsed().as_nanos()
}

fn median_of(times: impl Iterator<Item = u128>) -> u128 {
    let mut times: Vec<u128> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Additions in one measured task.
const ROUNDS: u64 = 20_000;

fn count(rounds: u64) {
    (0..rounds).for_each(|i| {
        black_box(i);
    });
}

/// Time of a span that measures nothing: with the profiler off, on, and of the two readings of the
/// clock that it takes when on.
fn measure_profiler() -> (f64, f64, f64) {
    let (profiler, name) = (Profiler::default(), SpanName::from("operation".to_owned()));
    let mut calls = 0;
    let mut span = || {
        if let Some(start) = black_box(&profiler).begin() {
            profiler.record(Span::new(&name, "operation", start, Instant::now()));
        }
        calls += 1;
        if calls % 100_000 == 0 {
            profiler.clear();
        }
    };
    let off = best_ns(200, 1000, &mut span);
    profiler.start();
    let on = best_ns(200, 1000, &mut span);
    let clock = best_ns(200, 1000, || {
        black_box((Instant::now(), Instant::now()));
    });
    (off, on, clock)
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
            result = context.run(&pool, Bindings::new(&[TensorRef::from_slice(&dims, &x)], outputs));
        });
        result?;
        println!("plan of {steps:3} steps: {ns:8.1} ns a run");
    }
    let (run, direct) = measure_perceptron(&Pool::new(threads)?)?;
    println!("perceptron of 3 products: {run:.1} ns a run, {direct:.1} ns the products alone");
    let (off, on, clock) = measure_profiler();
    println!("profiler: {off:.1} ns a span when off, {on:.1} ns when on, {clock:.1} ns of it the clock");
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
        let (best, median) = (best_ns(200, 500, region), median_ns(100_000, region));
        println!("empty region of {threads} threads: best {best:.0} ns, median {median} ns");
        // Each task counts for a fixed number of rounds, so all threads must take part to be done in time.
        let alone = median_ns(2000, || count(ROUNDS));
        let split = median_ns(2000, || {
            let _ = pool.run(tasks, 1, &|_, range| range.for_each(|_| count(ROUNDS)));
        });
        let asleep = median_of((0..300).map(|_| {
            std::thread::sleep(Duration::from_micros(300));
            time_ns(|| {
                let _ = pool.run(tasks, 1, &|_, range| range.for_each(|_| count(ROUNDS)));
            })
        }));
        println!("  the same with workers asleep: median {asleep} ns");
        println!("  {threads} tasks of {alone} ns: median {split} ns, {} more than one", split.saturating_sub(alone));
    }
    Ok(())
}
