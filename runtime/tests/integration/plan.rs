//! Plans of hand-written kernels: values, threads, refused inputs, failures.

use std::sync::Arc;

use crate::common::*;
use bytes::Bytes;
use tensorc_abi::{
    BatchedGemm, BufferId, Conv2d, ConvAlgorithm, ConvPass, DType, GemmElements, ImageLayout, KernelFn, MatrixLayout,
    PackedElements, Packing, Plan, StepOp, StorageClass,
};
use tensorc_runtime::plan::{InvalidPlan, LoadError, PlanEdge, PlanError};
use tensorc_runtime::{
    AllocError, Bindings, Context, Device, Pool, Profiler, RunError, TensorMut, TensorRef, WeightError, WeightStorage,
};

fn ramp(n: u64) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// Runs a plan of one input and one output of `n` elements each.
fn run(context: &mut Context, pool: &Pool, x: &[f32]) -> Result<Vec<f32>, RunError> {
    let dims = [x.len() as u64];
    let mut y = vec![f32::NAN; x.len()];
    context
        .run(pool, Bindings::new(&[TensorRef::from_slice(&dims, x)], &mut [TensorMut::from_slice(&dims, &mut y)]))?;
    Ok(y)
}

#[test]
fn a_chain_computes_the_same_bits_with_any_number_of_threads() {
    for n in if cfg!(miri) { vec![0, 1, 33] } else { vec![0, 1, 2, 31, 33, 1000, 20_011] } {
        let x = ramp(n);
        let expected = chain_expected(&x);
        for (threads, big) in [(1, false), (1, true), (2, true), (3, true), (5, true)] {
            let pool = Pool::new(threads).unwrap();
            let mut context = Context::new(executable(chain(n, big), vec![]), &pool).unwrap();
            for _ in 0..3 {
                assert_eq!(run(&mut context, &pool, &x).unwrap(), expected, "n {n}, threads {threads}");
            }
        }
    }
}

/// Memory that nothing lives in is NaN when the executable poisons it, and results are the same.
#[test]
fn dead_memory_is_poisoned() {
    let (n, pool) = (33, Pool::new(2).unwrap());
    let x = ramp(n);
    let poisoned = |plan: Plan| Arc::new(load(plan, kernels(), vec![]).unwrap().poisoning());
    for big in [false, true] {
        let mut context = Context::new(poisoned(chain(n, big)), &pool).unwrap();
        for _ in 0..2 {
            assert_eq!(run(&mut context, &pool, &x).unwrap(), chain_expected(&x));
        }
        // A step that does not write its result leaves what was there: at first nothing, in the place of
        // a buffer that died not its value either.
        let mut plan = chain(n, big);
        let StepOp::Launch { kernel, .. } = &mut plan.steps[2].op else { panic!("a launch") };
        *kernel = NOTHING;
        let mut context = Context::new(poisoned(plan.clone()), &pool).unwrap();
        assert!(run(&mut context, &pool, &x).unwrap().iter().all(|y| y.is_nan()));
        let mut plain = Context::new(executable(plan, vec![]), &pool).unwrap();
        assert!(run(&mut plain, &pool, &x).unwrap().iter().all(|y| !y.is_nan()));
    }
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Steps over few arena slots, so that many overwrite what others have read; the results are what
/// is in the slots at the end.
fn tangled(n: u64, random: &mut Random, big: bool) -> Plan {
    let mut plan = empty_plan();
    let stride = (4 * n).next_multiple_of(Plan::ALIGN);
    let x = buffer(&mut plan, "x", &[n], StorageClass::Input(0));
    let slots = 3 + random.below(6);
    let mut live = vec![x; slots];
    for i in 0..40 {
        let [a, b] = [0; 2].map(|_| live[random.below(slots)]);
        let slot = random.below(slots);
        let out = buffer(&mut plan, &format!("t{i}"), &[n], StorageClass::Arena(stride * slot as u64));
        match random.below(2) {
            0 => launch(&mut plan, &format!("s{i}"), ADD, &[read(a), read(b), write(out)], n, big),
            _ => launch(&mut plan, &format!("s{i}"), SCALE, &[read(a), write(out)], n, big),
        }
        live[slot] = out;
    }
    for (slot, id) in live.into_iter().enumerate() {
        let y = buffer(&mut plan, &format!("y{slot}"), &[n], StorageClass::Output(slot as u32));
        step(&mut plan, &format!("out{slot}"), StepOp::Copy { src: id, dst: y }, big);
    }
    plan.arena_bytes = stride * slots as u64;
    plan
}

#[test]
fn independent_steps_compute_the_same_bits_with_any_number_of_threads() {
    let mut random = Random(7);
    let (n, rounds) = if cfg!(miri) { (33, 5) } else { (5000, 100) };
    let (dims, x) = ([n], ramp(n));
    for round in 0..rounds {
        let executable = executable(tangled(n, &mut random, round % 4 != 0), vec![]);
        let outputs = executable.plan().outputs.len();
        let results = [1, 2, 3].map(|threads| {
            let pool = Pool::new(threads).unwrap();
            let mut context = Context::new(executable.clone(), &pool).unwrap();
            let mut y = vec![vec![f32::NAN; x.len()]; outputs];
            let mut out: Vec<_> = y.iter_mut().map(|y| TensorMut::from_slice(&dims, y)).collect();
            for _ in 0..3 {
                context.run(&pool, Bindings::new(&[TensorRef::from_slice(&dims, &x)], &mut out)).unwrap();
            }
            y
        });
        assert!(results[0] == results[1] && results[0] == results[2], "round {round}");
    }
}

#[test]
fn large_copies_are_split_and_complete() {
    let n = 200_003;
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[n], StorageClass::Input(0));
    let y = buffer(&mut plan, "y", &[n], StorageClass::Output(0));
    step(&mut plan, "copy", StepOp::Copy { src: x, dst: y }, true);
    let pool = Pool::new(3).unwrap();
    let mut context = Context::new(executable(plan, vec![]), &pool).unwrap();
    let x = ramp(n);
    assert_eq!(run(&mut context, &pool, &x).unwrap(), x);
}

#[test]
fn contexts_of_one_executable_run_concurrently() {
    let executable = executable(chain(5000, true), vec![]);
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        for shift in 0..4 {
            let (executable, pool) = (executable.clone(), &pool);
            scope.spawn(move || {
                let x: Vec<f32> = ramp(5000).iter().map(|v| v + shift as f32).collect();
                let expected = chain_expected(&x);
                let mut context = Context::new(executable, pool).unwrap();
                for _ in 0..if cfg!(miri) { 1 } else { 50 } {
                    assert_eq!(run(&mut context, pool, &x).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn a_context_follows_the_executable_to_a_larger_pool() {
    let x = ramp(999);
    let small = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(999, true), vec![]), &small).unwrap();
    for threads in [1, 4, 2] {
        assert_eq!(run(&mut context, &Pool::new(threads).unwrap(), &x).unwrap(), chain_expected(&x));
    }
}

#[test]
fn profiles_have_a_time_for_each_step() {
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(1 << 16, false), vec![]), &pool).unwrap();
    let (dims, x) = ([1 << 16], ramp(1 << 16));
    let mut y = vec![0.0; 1 << 16];
    let start = std::time::Instant::now();
    let times = context
        .run_profiled(
            None,
            &pool,
            Bindings::new(&[TensorRef::from_slice(&dims, &x)], &mut [TensorMut::from_slice(&dims, &mut y)]),
        )
        .unwrap();
    let total = start.elapsed();
    assert_eq!(times.len(), 4);
    assert!(times.iter().all(|time| !time.is_zero()));
    assert!(times.iter().sum::<std::time::Duration>() <= total);
    assert_eq!(y, chain_expected(&x));
}

#[test]
fn traces_show_steps_and_what_threads_did_of_them() {
    let n = 1 << 16;
    let device = Device::cpu(3);
    for (threads, steps) in [(1, ["left", "right", "join"].as_slice()), (2, &["left + right", "join"])] {
        let pool = Pool::new(threads).unwrap();
        let mut context = Context::new(executable(fork(n, true), vec![]), &pool).unwrap();
        let (dims, x, mut y) = ([n], ramp(n), vec![0.0; n as usize]);
        let profiler = Profiler::default();
        let mut run = || {
            let out = &mut [TensorMut::from_slice(&dims, &mut y)];
            context
                .run_traced(None, &pool, Bindings::new(&[TensorRef::from_slice(&dims, &x)], out), &profiler, device)
                .unwrap();
        };
        run();
        assert_eq!(profiler.recording().events(), [], "off");
        profiler.start();
        run();
        let recording = profiler.recording();
        let of = |category: &str| -> Vec<&str> {
            let events = recording.events();
            let own = events.into_iter().map(|(_, event)| event).filter(|event| event.category == *category);
            own.inspect(|event| assert_eq!(event.device, device)).map(|event| event.name.as_str()).collect()
        };
        assert_eq!(of("step"), steps, "{threads} threads");
        let mut parts = of("chunk");
        parts.sort();
        parts.dedup();
        assert_eq!(parts, if threads == 1 { vec![] } else { vec!["join", "left", "right"] });
        assert_eq!(y, fork_expected(&x));
    }
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(chain(4, false), vec![]), &pool).unwrap();
    let (x, dims) = ([1.0f32; 5], [4u64]);
    let good = TensorRef::from_slice(&dims, &x[..4]);
    let refuse = |context: &mut Context, inputs: &[TensorRef<'_>]| {
        let mut y = [0f32; 4];
        context.run(&pool, Bindings::new(inputs, &mut [TensorMut::from_slice(&[4], &mut y)])).unwrap_err()
    };
    let (side, name) = (PlanEdge::Input, || "x".to_string());
    let error = refuse(&mut context, &[]);
    assert_eq!(error, RunError::Count { plan: "test".into(), side, expected: 1, actual: 0 });
    assert_eq!(error.to_string(), "plan `test` takes 1 inputs, 0 were given");
    let error = refuse(&mut context, &[TensorRef { dtype: DType::I32, ..good }]);
    assert_eq!(error, RunError::DType { side, name: name(), expected: DType::F32, actual: DType::I32 });
    let error = refuse(&mut context, &[TensorRef { dims: &[2, 2], ..good }]);
    assert_eq!(error, RunError::Shape { side, name: name(), expected: vec![4], actual: vec![2, 2] });
    assert_eq!(error.to_string(), "input `x` has shape [4], a tensor of [2, 2] was given");
    let error = refuse(&mut context, &[TensorRef { data: &good.data[..12], ..good }]);
    assert_eq!(error, RunError::Bytes { side, name: name(), expected: 16, actual: 12 });
    let bytes = TensorRef::from_slice(&dims, &x).data;
    let error = refuse(&mut context, &[TensorRef { data: &bytes[2..18], ..good }]);
    assert_eq!(error, RunError::Alignment { side, name: name(), dtype: DType::F32, align: 4 });

    let (side, mut y) = (PlanEdge::Output, [0f32; 5]);
    let error = context.run(&pool, Bindings::new(&[good], &mut [])).unwrap_err();
    assert_eq!(error, RunError::Count { plan: "test".into(), side, expected: 1, actual: 0 });
    let error = context.run(&pool, Bindings::new(&[good], &mut [TensorMut::from_slice(&[5], &mut y)])).unwrap_err();
    assert_eq!(error, RunError::Shape { side, name: "y".into(), expected: vec![4], actual: vec![5] });
    assert_eq!(y, [0.0; 5]);
    assert_eq!(run(&mut context, &pool, &x[..4]).unwrap(), chain_expected(&x[..4]));
}

fn rejected(plan: Plan, kernels: Vec<KernelFn>, weights: Vec<WeightStorage>) -> LoadError {
    load(plan, kernels, weights).map(drop).err().unwrap_or_else(|| panic!("loaded"))
}

#[test]
fn what_does_not_belong_together_is_not_loaded() {
    let mut plan = chain(4, false);
    plan.arena_bytes = 64;
    let error = rejected(plan, kernels(), vec![]);
    assert!(matches!(error, LoadError::Plan(InvalidPlan { error: PlanError::OutsideArena { .. }, .. })));
    let error = rejected(chain(4, false), kernels()[1..].to_vec(), vec![]);
    assert_eq!(error, LoadError::KernelCount { plan: "test".into(), expected: 4, actual: 3 });
    let plain = |bytes: usize| pack_weight(&Packing::Plain, DType::F32, Bytes::from(vec![0u8; bytes])).unwrap();
    let error = rejected(chain(4, false), kernels(), vec![plain(16)]);
    assert_eq!(error, LoadError::WeightCount { plan: "test".into(), expected: 0, actual: 1 });
    let mut plan = chain(4, false);
    weight(&mut plan, "w", &[4], Packing::Plain);
    let error = rejected(plan, kernels(), vec![plain(12)]);
    let bytes = WeightError::Bytes { expected: 16, actual: 12 };
    assert_eq!(error, LoadError::Weight { weight: "w".into(), error: bytes });
}

#[test]
#[cfg_attr(miri, ignore = "the interpreter ends the process when memory runs out")]
fn an_arena_that_cannot_be_allocated_is_an_error() {
    let mut plan = chain(4, false);
    plan.arena_bytes = 1 << 61;
    let executable = executable(plan, vec![]);
    let error = Context::new(executable, &Pool::new(1).unwrap()).unwrap_err();
    assert_eq!(error, RunError::Alloc(AllocError { bytes: 1 << 61, purpose: "arena" }));
}

#[test]
fn plain_weights_are_used_where_they_lie() {
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[3], StorageClass::Input(0));
    let w = weight(&mut plan, "w", &[3], Packing::Plain);
    let y = buffer(&mut plan, "y", &[3], StorageClass::Output(0));
    launch(&mut plan, "add", ADD, &[read(x), read(w), write(y)], 3, false);
    let values: Vec<u8> = [0.5f32, 1.5, 2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    for shift in [0, 1] {
        let mut memory = vec![0u8; 20];
        let start = memory.as_ptr().align_offset(4) + shift;
        memory[start..start + 12].copy_from_slice(&values);
        // A vector without spare capacity keeps its address.
        let view = Bytes::from(memory).slice(start..start + 12);
        let stored = pack_weight(&Packing::Plain, DType::F32, view).unwrap();
        assert_eq!(matches!(stored, WeightStorage::Shared(_)), shift == 0);
        let pool = Pool::new(1).unwrap();
        let mut context = Context::new(executable(plan.clone(), vec![stored]), &pool).unwrap();
        assert_eq!(run(&mut context, &pool, &[1.0, 1.0, 1.0]).unwrap(), [1.5, 2.5, 3.5]);
    }
}

#[test]
fn outputs_may_be_read_by_later_steps_and_inputs_given_twice() {
    let mut plan = empty_plan();
    let a = buffer(&mut plan, "a", &[2], StorageClass::Input(0));
    let b = buffer(&mut plan, "b", &[2], StorageClass::Input(1));
    let y = buffer(&mut plan, "y", &[2], StorageClass::Output(0));
    let z = buffer(&mut plan, "z", &[2], StorageClass::Output(1));
    launch(&mut plan, "y", ADD, &[read(a), read(b), write(y)], 2, false);
    launch(&mut plan, "z", ADD, &[read(y), read(BufferId(0)), write(z)], 2, false);
    let pool = Pool::new(1).unwrap();
    let mut context = Context::new(executable(plan, vec![]), &pool).unwrap();
    let (dims, x) = ([2], [1.0f32, 2.0]);
    let (mut y, mut z) = ([0f32; 2], [0f32; 2]);
    let x = TensorRef::from_slice(&dims, &x);
    let mut outputs = [TensorMut::from_slice(&dims, &mut y), TensorMut::from_slice(&dims, &mut z)];
    context.run(&pool, Bindings::new(&[x, x], &mut outputs)).unwrap();
    assert_eq!((y, z), ([2.0, 4.0], [3.0, 6.0]));
}

/// `y[m, 33] = max(x[m, k] · w[k, 33] + bias, 0)`, with w packed, or given as an input.
fn dense(m: u64, k: u64, packed: bool, big: bool) -> Plan {
    let n = BIAS_COLUMNS as u64;
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[m, k], StorageClass::Input(0));
    let packing =
        Packing::GemmB { k, n, offset: 0, row_stride: n as i64, col_stride: 1, elements: PackedElements::F32 };
    let w = match packed {
        true => weight(&mut plan, "w", &[k, n], packing),
        false => buffer(&mut plan, "w", &[k, n], StorageClass::Input(1)),
    };
    let bias = weight(&mut plan, "bias", &[n], Packing::Plain);
    let y = buffer(&mut plan, "y", &[m, n], StorageClass::Output(0));
    let layout = |cols: u64| MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: cols as i64, col_stride: 1 };
    let call = BatchedGemm {
        batch: [1; 3],
        m,
        n,
        k,
        a: layout(k),
        b: layout(n),
        c: layout(n),
        b_packed: packed,
        elements: GemmElements::F32,
    };
    let epilogue = epilogue(BIAS_RELU, &[write(y), read(bias)]);
    step(&mut plan, "dense", StepOp::Gemm { call, a: x.into(), b: w, c: y, epilogue }, big);
    plan
}

/// A constant in memory, in the layout of a weight.
fn pack_weight(packing: &Packing, dtype: DType, source: Bytes) -> Result<WeightStorage, WeightError> {
    tensorc_runtime::pack_weight(packing, dtype, &source.into())
}

fn bytes_of(values: &[f32]) -> Bytes {
    Bytes::from(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

#[test]
fn products_with_epilogues_agree_with_a_plain_loop() {
    let n = BIAS_COLUMNS as u64;
    for (m, k) in if cfg!(miri) { vec![(7, 5)] } else { vec![(1, 1), (7, 5), (64, 40), (301, 129)] } {
        let (x, w, bias) = (ramp(m * k), ramp(k * n), ramp(n));
        let mut expected = vec![0f32; (m * n) as usize];
        for (at, value) in expected.iter_mut().enumerate() {
            let (row, col) = (at / n as usize, at % n as usize);
            let term = |i: usize| (x[row * k as usize + i], w[i * n as usize + col]);
            let sum = (0..k as usize).map(term).fold(0f32, |sum, (a, b)| a.mul_add(b, sum));
            *value = (sum + bias[col]).max(0.0);
        }
        let plain = pack_weight(&Packing::Plain, DType::F32, bytes_of(&bias)).unwrap();
        for (threads, packed, big) in [(1, true, false), (1, false, true), (3, true, true), (4, false, true)] {
            let plan = dense(m, k, packed, big);
            let weights = match packed {
                true => vec![pack_weight(&plan.weights[0].packing, DType::F32, bytes_of(&w)).unwrap(), plain.clone()],
                false => vec![plain.clone()],
            };
            let pool = Pool::new(threads).unwrap();
            let mut context = Context::new(executable(plan, weights), &pool).unwrap();
            let mut y = vec![f32::NAN; expected.len()];
            let (x_dims, w_dims) = ([m, k], [k, n]);
            let inputs = [TensorRef::from_slice(&x_dims, &x), TensorRef::from_slice(&w_dims, &w)];
            let inputs = if packed { &inputs[..1] } else { &inputs[..] };
            context.run(&pool, Bindings::new(inputs, &mut [TensorMut::from_slice(&[m, n], &mut y)])).unwrap();
            assert_eq!(y, expected, "m {m}, k {k}, threads {threads}, packed {packed}");
        }
    }
}

#[test]
fn convolutions_agree_with_a_plain_loop() {
    let call = Conv2d {
        batch: 2,
        groups: 1,
        in_channels: 3,
        out_channels: 5,
        input: [9, 8],
        output: [5, 4],
        kernel: [3, 3],
        strides: [2, 2],
        dilations: [1, 1],
        pads: [1, 1],
        pass: ConvPass::Packed(ConvAlgorithm::Direct),
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    };
    let mut plan = empty_plan();
    let x = buffer(&mut plan, "x", &[2, 3, 9, 8], StorageClass::Input(0));
    let w = weight(&mut plan, "w", &[5, 3, 3, 3], Packing::Conv(call.of_filters()));
    let y = buffer(&mut plan, "y", &[2, 5, 5, 4], StorageClass::Output(0));
    step(&mut plan, "conv", StepOp::Conv { call, a: x.into(), b: w, c: y, epilogue: None }, true);
    let (x, w) = (ramp(2 * 3 * 9 * 8), ramp(5 * 3 * 3 * 3));
    let mut expected = vec![0f32; 2 * 5 * 5 * 4];
    for (at, value) in expected.iter_mut().enumerate() {
        let (q, p, o, n) = (at % 4, at / 4 % 5, at / 20 % 5, at / 100);
        for (i, r, s) in (0..27).map(|tap| (tap / 9, tap / 3 % 3, tap % 3)) {
            let (row, col) = ((2 * p + r).wrapping_sub(1), (2 * q + s).wrapping_sub(1));
            let inside = row < 9 && col < 8;
            let pixel = if inside { x[((n * 3 + i) * 9 + row) * 8 + col] } else { 0.0 };
            *value = pixel.mul_add(w[((o * 3 + i) * 3 + r) * 3 + s], *value);
        }
    }
    for threads in [1, 3] {
        let packed = pack_weight(&Packing::Conv(call.of_filters()), DType::F32, bytes_of(&w)).unwrap();
        let pool = Pool::new(threads).unwrap();
        let mut context = Context::new(executable(plan.clone(), vec![packed]), &pool).unwrap();
        let mut y = vec![f32::NAN; expected.len()];
        let inputs = [TensorRef::from_slice(&[2, 3, 9, 8], &x)];
        context.run(&pool, Bindings::new(&inputs, &mut [TensorMut::from_slice(&[2, 5, 5, 4], &mut y)])).unwrap();
        assert_eq!(y, expected);
    }
}

#[test]
fn constants_that_do_not_fit_their_packing_are_refused() {
    let packing = Packing::GemmB { k: 4, n: 5, offset: 0, row_stride: 5, col_stride: 1, elements: PackedElements::F32 };
    let pack = |packing: &Packing, dtype, n| pack_weight(packing, dtype, bytes_of(&ramp(n))).unwrap_err();
    assert_eq!(pack(&packing, DType::F32, 19), WeightError::Bounds { elements: 19 });
    assert_eq!(pack(&packing, DType::I32, 20), WeightError::DType(DType::I32));
    let shifted =
        Packing::GemmB { k: 4, n: 5, offset: -1, row_stride: 5, col_stride: 1, elements: PackedElements::F32 };
    assert_eq!(pack(&shifted, DType::F32, 20), WeightError::Bounds { elements: 20 });
    let plain = pack_weight(&Packing::Plain, DType::F32, bytes_of(&ramp(20))).unwrap();
    let error = rejected(dense(1, 4, true, false), kernels(), vec![plain.clone(), plain]);
    assert!(matches!(error, LoadError::Weight { error: WeightError::Bytes { .. }, .. }), "{error}");
}
