//! Gradients where shapes depend on values: of calls, of models, of executors and in training.

use std::sync::atomic::Ordering;

use tensorc::ir::DenseType;
use tensorc::ir::text::parse_module;
use tensorc::runtime::Device;
use tensorc::symbol::{Symbol, attr_scope, op};
use tensorc::{Compiler, DType, Options, Tensor};
use tensorc_data::Batches;
use tensorc_nd::autograd::{self, GradReq};
use tensorc_nd::executor::Executor;
use tensorc_nd::{Error, NDArray, Runtime, RuntimeOptions};
use tensorc_train::{Fit, Initializer, Module, Optimizer, metric};

use crate::support::backend::{new_runtime, new_runtime_beside_gpu, options};
use crate::support::plan_counter;

fn runtime() -> Runtime {
    new_runtime(RuntimeOptions::default())
}

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

/// Numbers in (-1, 1) that look random and are always the same.
fn noise(count: u64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// 0, but for some elements that are 1.
fn marked(len: u64, count: u64) -> Vec<f64> {
    (0..len).map(|i| if i * 7 % len < count { 1.0 } else { 0.0 }).collect()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}, element {i}: {a}, not {b}");
    }
}

fn vec(array: &NDArray) -> Vec<f64> {
    array.to_vec::<f64>().unwrap()
}

type Calls<'a> = dyn Fn(&NDArray, &NDArray) -> Result<NDArray, Error> + 'a;

/// The gradient of a sum of results by the first operand.
fn recorded(rt: &Runtime, dims: &[u64], x: &[f64], mask: &NDArray, calls: &Calls<'_>) -> Vec<f64> {
    let mut x = rt.array(dims, x).unwrap();
    x.attach_grad(GradReq::Write).unwrap();
    let y = {
        let _scope = autograd::record();
        calls(&x, mask).unwrap()
    };
    y.backward().unwrap();
    vec(&x.grad().unwrap())
}

/// The same by central differences.
fn differences(rt: &Runtime, dims: &[u64], x: &[f64], mask: &NDArray, calls: &Calls<'_>) -> Vec<f64> {
    let sum = |x: &[f64]| vec(&calls(&rt.array(dims, x).unwrap(), mask).unwrap()).iter().sum::<f64>();
    let moved = |i: usize, by: f64| {
        let mut x = x.to_vec();
        x[i] += by;
        sum(&x)
    };
    (0..x.len()).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect()
}

/// Rows that are found, columns, elements and distinct elements.
#[test]
fn recorded_calls_find_elements() {
    let rt = runtime();
    let weights = rt.array(&[4], &[0.5f64, -2.0, 1.5, 3.0]).unwrap();
    let cases: [(&str, u64, Box<Calls<'_>>); 5] = [
        ("boolean_mask", 6, {
            let weights = &weights;
            let rt = &rt;
            Box::new(move |x, mask| {
                let h = x.apply("tanh")?;
                let few = rt.op("mx_boolean_mask")?.arg(&h).arg(mask).invoke()?;
                (&few * &few)?.matmul(weights)?.sum(&[], false)
            })
        }),
        (
            "columns",
            4,
            Box::new(|x, mask| rt.op("mx_boolean_mask")?.arg(x).arg(mask).param("axis", 1).invoke()?.apply("exp")),
        ),
        (
            "compress",
            6,
            Box::new(|x, mask| {
                let mask = mask.cast(DType::Bool)?;
                let h = x.apply("exp")?;
                rt.op("compress")?.arg(&h).arg(&mask).param("axis", 0).invoke()?.apply("tanh")
            }),
        ),
        (
            "elements",
            24,
            Box::new(|x, mask| {
                let mask = mask.cast(DType::Bool)?;
                let few = rt.op("compress")?.arg(x).arg(&mask).invoke()?;
                &few * &few
            }),
        ),
        (
            "unique",
            6,
            Box::new(|x, mask| {
                let rows = rt.op("mx_boolean_mask")?.arg(x).arg(mask).invoke()?;
                rt.op("unique")?.arg(&rows).invoke()?.apply("exp")
            }),
        ),
    ];
    let dims = [6, 4];
    for (name, marks, calls) in &cases {
        for count in [0, 1, 2, 3, *marks] {
            let what = format!("{name}, {count}");
            let (x, mask) = (noise(24, count + 1), rt.array(&[*marks], &marked(*marks, count)).unwrap());
            let found = recorded(&rt, &dims, &x, &mask, calls);
            assert_near(&found, &differences(&rt, &dims, &x, &mask, calls), 1e-6, &what);
        }
    }
}

/// Gradients of gradients, and of a value that goes on beside what is found.
#[test]
fn gradients_of_what_is_found_are_recorded() {
    let rt = runtime();
    let mask = rt.array(&[3], &[1.0f64, 0.0, 1.0]).unwrap();
    let mut x = rt.array(&[3], &[0.5f64, 0.25, -2.0]).unwrap();
    x.attach_grad(GradReq::Write).unwrap();
    let _scope = autograd::record();
    let few = rt.op("mx_boolean_mask").unwrap().arg(&x).arg(&mask).invoke().unwrap();
    let cubes = (&(&few * &few).unwrap() * &few).unwrap();
    let y = (&cubes.sum(&[], false).unwrap() + &x.sum(&[], false).unwrap()).unwrap();
    let slopes = autograd::grad(&[&y], &[&x], &[], true).unwrap();
    assert_eq!(vec(&slopes[0]), [1.75, 1.0, 13.0]);
    slopes[0].sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(vec(&x.grad().unwrap()), [3.0, 0.0, -12.0]);
}

#[test]
fn functions_in_parts_have_gradients() {
    let text = "graph @found(%x: f64[9, 4], %mask: f64[9], %w: f64[4, 3]) {
  %h = tanh(%x)
  %found = nonzero(%mask)
  %flat = const i64[1] [-1]
  %rows = reshape(%found, %flat)
  %few = gather(%h, %rows)
  %p = matmul(%few, %w)
  %zero = const f64[] [0.0]
  %axes = const i64[1] [1]
  %sums = reduce_sum(%p, %axes) {keepdims = false}
  %positive = greater(%sums, %zero)
  %fewer = compress(%p, %positive) {axis = 0}
  %squares = mul(%fewer, %fewer)
  %all = const i64[2] [0, 1]
  %y = reduce_sum(%squares, %all) {keepdims = false}
  return %y
}";
    let rt = runtime();
    let graph = parse_module(text, rt.compiler().registry()).unwrap().graphs.remove(0);
    let f64s = |dims: &[u64]| DenseType::new(DType::F64, dims);
    let types = [f64s(&[9, 4]), f64s(&[9]), f64s(&[4, 3])];
    let f = rt.function(&rt.compiler().model(graph), &types).unwrap();
    let w = noise(12, 77);
    for count in [0, 1, 2, 5, 9] {
        let (x, mask) = (noise(36, count), rt.array(&[9], &marked(9, count)).unwrap());
        let of_x: Box<Calls<'_>> = Box::new(|x, mask| Ok(f.call(&[x, mask, &rt.array(&[4, 3], &w)?])?.remove(0)));
        let found = recorded(&rt, &[9, 4], &x, &mask, &of_x);
        assert_near(&found, &differences(&rt, &[9, 4], &x, &mask, &of_x), 1e-6, &format!("x, {count}"));
        let of_w: Box<Calls<'_>> = Box::new(|w, mask| Ok(f.call(&[&rt.array(&[9, 4], &x)?, mask, w])?.remove(0)));
        let found = recorded(&rt, &[4, 3], &w, &mask, &of_w);
        assert_near(&found, &differences(&rt, &[4, 3], &w, &mask, &of_w), 1e-6, &format!("w, {count}"));
    }
}

fn dense(data: &Symbol, hidden: i64, name: &str) -> Symbol {
    op("FullyConnected").input(data).param("num_hidden", hidden).name(name).build().unwrap()
}

fn act(data: &Symbol) -> Symbol {
    op("tanh").input(data).build().unwrap()
}

fn chosen(data: &Symbol, index: &Symbol) -> Symbol {
    op("_contrib_boolean_mask").inputs([data, index]).build().unwrap()
}

fn total(x: &Symbol) -> Symbol {
    op("sum").input(x).build().unwrap()
}

/// The sum of squares of a small network of the rows that `index` names; or of all rows, with zeros for the others.
fn network(is_found: bool) -> Symbol {
    let hidden = act(&dense(&var("data"), 6, "first"));
    let rows = if is_found { chosen(&hidden, &var("index")) } else { hidden };
    let mut out = dense(&act(&dense(&rows, 5, "second")), 3, "third");
    if !is_found {
        let column = op("expand_dims").input(&var("index")).param("axis", 1).build().unwrap();
        out = op("broadcast_mul").inputs([&out, &column]).build().unwrap();
    }
    let squares = total(&(&out * &out).unwrap());
    op("MakeLoss").input(&squares).name("loss").build().unwrap()
}

const ROWS: u64 = 40;

fn bound(rt: &Runtime, net: &Symbol, request: GradReq) -> Executor {
    let binder = Executor::simple_bind(rt, net).shape("data", &[ROWS, 8]).shape("index", &[ROWS]);
    let mut executor = binder.grad_req(request).grad_req_of("index", GradReq::Null).build().unwrap();
    fill(&mut executor);
    executor
}

fn fill(executor: &mut Executor) {
    let arguments = executor.arguments().to_vec();
    for (i, (_, array)) in arguments.iter().filter(|(name, _)| name != "index").enumerate() {
        let values = noise(array.len(), 100 + i as u64);
        let rt = executor.runtime();
        let made = rt.array(array.dims(), &values.iter().map(|v| *v as f32).collect::<Vec<_>>()).unwrap();
        made.copy_into(array).unwrap();
    }
}

fn set(executor: &Executor, name: &str, values: &[f64]) {
    let array = executor.argument(name).unwrap();
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    executor.runtime().array(array.dims(), &values).unwrap().copy_into(array).unwrap();
}

fn floats(array: &NDArray) -> Vec<f64> {
    array.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

plan_counter!(PLANNED, count);

/// The same gradients as those of a network of fixed shapes, and one compilation for all numbers of elements.
#[test]
fn executors_find_rows() {
    let compiler = Compiler::new(Options { threads: Some(2), progress: Some(count), ..options() }).unwrap();
    let rt = Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap();
    let reference = runtime();
    let mut executor = bound(&rt, &network(true), GradReq::Write);
    let mut fixed = bound(&reference, &network(false), GradReq::Write);
    assert!(executor.has_parts() && !fixed.has_parts());
    let mut planned = vec![];
    for count in [7, 20, ROWS, 11, 30, 3, 0, 1, 25] {
        for executor in [&mut executor, &mut fixed] {
            set(executor, "index", &marked(ROWS, count));
            executor.forward(true).unwrap();
            executor.backward(&[]).unwrap();
        }
        let what = format!("{count}");
        assert_near(&floats(&executor.outputs()[0]), &floats(&fixed.outputs()[0]), 1e-4, &what);
        for ((name, found), (_, expected)) in executor.gradients().zip(fixed.gradients()) {
            assert_near(&floats(found), &floats(expected), 1e-4, &format!("{what}, {name}"));
        }
        let outputs = executor.forward(false).unwrap();
        assert_near(&floats(&outputs[0]), &floats(&fixed.outputs()[0]), 1e-4, &format!("{what}, inference"));
        planned.push(PLANNED.load(Ordering::Relaxed));
    }
    // Few rows have kernels of their own, and one row is another graph.
    assert_eq!(planned[..5], [planned[0]; 5], "{planned:?}");
    assert_eq!(planned[7], planned[8], "{planned:?}");
    assert!(planned[8] - planned[4] <= 6, "{planned:?}");
}

/// Gradients that are added up, those that nobody wants, and a second backward pass.
#[test]
fn requests_are_kept() {
    let rt = runtime();
    let (mut once, mut added) = (bound(&rt, &network(true), GradReq::Write), bound(&rt, &network(true), GradReq::Add));
    let index = marked(ROWS, 9);
    set(&once, "index", &index);
    set(&added, "index", &index);
    once.forward(true).unwrap();
    once.backward(&[]).unwrap();
    added.forward(true).unwrap();
    // The second one runs forward again.
    added.backward(&[]).unwrap();
    added.backward(&[]).unwrap();
    for ((name, one), (_, two)) in once.gradients().zip(added.gradients()) {
        let doubled: Vec<f64> = floats(one).iter().map(|v| 2.0 * v).collect();
        assert_near(&floats(two), &doubled, 1e-5, name);
    }
    let binder = Executor::simple_bind(&rt, &network(true)).shape("data", &[ROWS, 8]).shape("index", &[ROWS]);
    let mut few = binder.grad_req(GradReq::Null).grad_req_of("third_weight", GradReq::Write).build().unwrap();
    fill(&mut few);
    set(&few, "index", &index);
    few.forward(true).unwrap();
    few.backward(&[]).unwrap();
    assert_eq!(few.gradients().count(), 1);
    assert_eq!(
        few.gradient("third_weight").unwrap().to_bytes().unwrap(),
        once.gradient("third_weight").unwrap().to_bytes().unwrap()
    );
}

/// Outputs of found shapes, with gradients given for them; what is found in what is found; a value that several parts read.
#[test]
fn outputs_may_be_as_large_as_what_is_found() {
    let rt = runtime();
    let x = var("x");
    let first = chosen(&act(&x), &var("index"));
    let column = op("sum").input(&first).param("axis", 1).build().unwrap();
    let positive = op("_greater_scalar").input(&column).param("scalar", 0.0).build().unwrap();
    let second = chosen(&(&first * &first).unwrap(), &positive);
    let net = Symbol::group([&second, &total(&x), &first]);
    let mut executor = Executor::simple_bind(&rt, &net)
        .shape("x", &[10, 3])
        .shape("index", &[10])
        .grad_req_of("index", GradReq::Null)
        .build()
        .unwrap();
    for count in [4, 0, 1, 10, 6] {
        let (values, index) = (noise(30, count + 3), marked(10, count));
        set(&executor, "x", &values);
        set(&executor, "index", &index);
        let outputs = executor.forward(true).unwrap().to_vec();
        let rows: Vec<usize> = (0..10).filter(|row| index[*row] > 0.0).collect();
        let row = |row: usize| values[row * 3..][..3].iter().map(|v| (*v as f32 as f64).tanh()).collect::<Vec<f64>>();
        let positive: Vec<usize> = rows.iter().copied().filter(|at| row(*at).iter().sum::<f64>() > 0.0).collect();
        assert_eq!(outputs[2].dims(), [count, 3]);
        let expected: Vec<f64> = positive.iter().flat_map(|at| row(*at)).map(|v| v * v).collect();
        assert_near(&floats(&outputs[0]), &expected, 1e-5, "second");
        let heads: Vec<NDArray> = outputs.iter().map(|array| rt.ones(array.dims(), DType::F32).unwrap()).collect();
        executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
        let slope = |at: usize| {
            let of_row = row(at);
            let passes = |list: &[usize]| if list.contains(&at) { 1.0 } else { 0.0 };
            let slope = |t: f64| 1.0 + (1.0 - t * t) * (passes(&rows) + 2.0 * t * passes(&positive));
            of_row.into_iter().map(slope).collect::<Vec<f64>>()
        };
        let expected: Vec<f64> = (0..10).flat_map(slope).collect();
        assert_near(&floats(executor.gradient("x").unwrap()), &expected, 1e-5, &format!("x, {count}"));
    }
    let error = executor.backward(&[]).unwrap_err().to_string();
    assert!(error.contains("gradient must be given"), "{error}");
}

/// The gradient given for an argument that is an output reaches it, beside what comes through the other outputs.
#[test]
fn arguments_may_be_outputs() {
    let rt = runtime();
    let (x, alone) = (var("x"), var("alone"));
    let net = Symbol::group([&x, &chosen(&x, &var("index")), &alone]);
    for (request, passes) in [(GradReq::Write, 1), (GradReq::Add, 2)] {
        let binder = Executor::simple_bind(&rt, &net).shape("x", &[6, 2]).shape("index", &[6]).shape("alone", &[3]);
        let mut executor = binder.grad_req(request).grad_req_of("index", GradReq::Null).build().unwrap();
        set(&executor, "index", &[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        for _ in 0..passes {
            let outputs = executor.forward(true).unwrap().to_vec();
            let head =
                |(array, value): (&NDArray, f32)| rt.array(array.dims(), &vec![value; array.len() as usize]).unwrap();
            let heads: Vec<NDArray> = outputs.iter().zip([3.0, 5.0, 7.0]).map(head).collect();
            executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
        }
        let rows = [8.0, 3.0, 8.0, 3.0, 3.0, 3.0].map(|n| n * f64::from(passes));
        let expected: Vec<f64> = rows.iter().flat_map(|n| [*n; 2]).collect();
        assert_near(&floats(executor.gradient("x").unwrap()), &expected, 1e-6, "x");
        assert_near(&floats(executor.gradient("alone").unwrap()), &[7.0 * f64::from(passes); 3], 1e-6, "alone");
    }
}

/// States change with the backward pass, and dropout keeps its mask for it.
#[test]
fn states_and_random_numbers() {
    let rt = runtime();
    let net = |is_found: bool| {
        let normed = op("BatchNorm").input(&var("data")).param("momentum", 0.5).name("bn").build().unwrap();
        let dropped = op("Dropout").input(&normed).param("p", 0.5).build().unwrap();
        let rows = if is_found { chosen(&dropped, &var("index")) } else { dropped };
        op("MakeLoss").input(&total(&(&rows * &rows).unwrap())).build().unwrap()
    };
    let mut executors = vec![];
    for is_found in [true, false] {
        rt.seed(5);
        let mut binder = Executor::simple_bind(&rt, &net(is_found)).shape("data", &[16, 4]);
        if is_found {
            binder = binder.shape("index", &[16]).grad_req_of("index", GradReq::Null);
        }
        let mut executor = binder.build().unwrap();
        fill(&mut executor);
        if is_found {
            set(&executor, "index", &[1.0; 16]);
        }
        executor.argument("bn_gamma").unwrap().fill(1.0).unwrap();
        executor.forward(true).unwrap();
        assert_eq!(floats(executor.auxiliary("bn_moving_mean").unwrap()), [0.0; 4]);
        executor.backward(&[]).unwrap();
        executors.push(executor);
    }
    let [found, fixed] = &executors[..] else { unreachable!() };
    assert_near(&floats(&found.outputs()[0]), &floats(&fixed.outputs()[0]), 1e-5, "loss");
    for (name, _) in fixed.auxiliaries() {
        let of = |executor: &Executor| floats(executor.auxiliary(name).unwrap());
        assert_near(&of(found), &of(fixed), 1e-5, name);
    }
    for (name, gradient) in fixed.gradients() {
        assert_near(&floats(found.gradient(name).unwrap()), &floats(gradient), 1e-4, name);
    }
}

/// What has no gradient is named when the symbol is bound, and so is what needs one plan.
#[test]
fn what_is_not_supported_is_named() {
    let rt = new_runtime_beside_gpu(RuntimeOptions::default());
    let index = var("index");
    let (rows, columns) = (chosen(&var("data"), &index), chosen(&var("columns"), &index));
    let picked = op("batch_take").inputs([&rows, &columns]).name("picked").build().unwrap();
    let bind = |net: &Symbol| {
        let binder = Executor::simple_bind(&rt, net).shape("data", &[6, 3]).shape("index", &[6]);
        binder.grad_req(GradReq::Null).grad_req_of("data", GradReq::Write)
    };
    let error = bind(&picked).shape("columns", &[6]).build().unwrap_err().to_string();
    assert!(error.contains("`picked`") && error.contains("no gradient"), "{error}");
    let far = {
        let _scope = attr_scope([("ctx_group", "far")]);
        op("tanh").input(&rows).name("far").build().unwrap()
    };
    let error = bind(&far).group("far", Device::cpu(1)).build().unwrap_err().to_string();
    assert!(error.contains("one device") && error.contains("mx_boolean_mask"), "{error}");
    let executor = bind(&far).build().unwrap();
    let error = executor.planned_memory().unwrap_err().to_string();
    assert!(error.contains("no single plan"), "{error}");
}

/// Cells of an image with objects or without: all are scored, and those with one tell where it is.
#[test]
fn a_module_learns_to_detect() {
    const IMAGES: u64 = 64;
    const CELLS: u64 = 12;
    let (data, objects, places) = (var("data"), var("objects"), var("places"));
    let flat = |x: &Symbol, width: i64| op("reshape").input(x).param("shape", vec![-1, width]).build().unwrap();
    let hidden = act(&dense(&flat(&data, 5), 16, "hidden"));
    let index = op("reshape").input(&objects).param("shape", vec![-1]).build().unwrap();
    let score =
        op("LogisticRegressionOutput").inputs([&dense(&hidden, 1, "score"), &flat(&objects, 1)]).build().unwrap();
    let found = dense(&chosen(&hidden, &index), 2, "place");
    let off = (&found - &chosen(&flat(&places, 2), &index)).unwrap();
    let loss = op("MakeLoss").input(&total(&(&off * &off).unwrap())).build().unwrap();
    let net = Symbol::group([&loss, &score]);
    let (cells, width) = (IMAGES * CELLS, 5);
    let seen = noise(cells * width, 3);
    let object = |cell: u64| seen[(cell * width) as usize] > 0.4;
    let objects: Vec<f32> = (0..cells).map(|cell| if object(cell) { 1.0 } else { 0.0 }).collect();
    let place = |at: usize| 0.7 * seen[at + 1] - 0.4 * seen[at + 2];
    let places: Vec<f32> = (0..cells)
        .flat_map(|cell| [place((cell * width) as usize) as f32, place((cell * width) as usize + 2) as f32])
        .collect();
    let seen: Vec<f32> = seen.iter().map(|v| *v as f32).collect();
    let tensor = |dims: &[u64], values: &[f32]| Tensor::from_f32(dims, values).unwrap();
    let mut batches = Batches::new(
        [("data", tensor(&[IMAGES, CELLS, width], &seen))],
        [("objects", tensor(&[IMAGES, CELLS], &objects)), ("places", tensor(&[IMAGES, CELLS, 2], &places))],
        8,
    )
    .unwrap();
    let rt = runtime();
    rt.seed(1);
    let mut module = Module::of(&rt, &net).batches(&batches).bind().unwrap();
    module.init_params(&Initializer::xavier(3.0)).unwrap();
    module.init_optimizer(Optimizer::sgd(0.05, 0.9)).unwrap();
    let mut losses = vec![];
    let fit = Fit::epochs(12).metric(metric::create("loss").unwrap()).quiet();
    let loss = |module: &Module, _| {
        losses.push(floats(&module.outputs()[0])[0]);
        Ok(())
    };
    module.fit(&mut batches, fit.on_batches(1, loss)).unwrap();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (first, last) = (mean(&losses[..8]), mean(&losses[losses.len() - 8..]));
    assert!(last < 0.3 * first, "{losses:?}");
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    assert_eq!(module.predict(&mut batches).unwrap()[1].dims(), [cells, 1]);
}

/// Two arrays of which the same rows are found have as many: their difference is compiled once.
#[test]
fn what_is_found_alike_is_as_large() {
    let rt = runtime();
    let index = var("index");
    let scaled = (&var("b") * 2.0).unwrap();
    let off = (&chosen(&var("a"), &index) - &chosen(&scaled, &index)).unwrap();
    let net = op("MakeLoss").input(&total(&(&off * &off).unwrap())).build().unwrap();
    let binder = Executor::simple_bind(&rt, &net).shape("a", &[12, 3]).shape("b", &[12, 3]).shape("index", &[12]);
    let mut executor = binder.grad_req_of("index", GradReq::Null).build().unwrap();
    for count in [5, 0, 1, 12] {
        let (a, b, index) = (noise(36, count + 1), noise(36, count + 50), marked(12, count));
        for (name, values) in [("a", &a), ("b", &b), ("index", &index)] {
            set(&executor, name, values);
        }
        executor.forward(true).unwrap();
        executor.backward(&[]).unwrap();
        let off = |i: usize| 2.0 * index[i / 3] * (a[i] - 2.0 * b[i]);
        let of_a: Vec<f64> = (0..36).map(off).collect();
        let of_b: Vec<f64> = of_a.iter().map(|v| -2.0 * v).collect();
        assert_near(&floats(executor.gradient("a").unwrap()), &of_a, 1e-5, &format!("a, {count}"));
        assert_near(&floats(executor.gradient("b").unwrap()), &of_b, 1e-5, &format!("b, {count}"));
    }
}
