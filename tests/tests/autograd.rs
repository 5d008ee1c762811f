//! Gradients of imperative calls, against formulas, finite differences and MXNet's rules.

use tensorc::op::{Define, Keep, OpDef, closure, like};
use tensorc::{Compiler, DType};
use tensorc_nd::Error;
use tensorc_nd::autograd::{self, AutogradError, Backward, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use crate::support::backend::{new_runtime, options};

fn runtime() -> Runtime {
    new_runtime(RuntimeOptions::default())
}

fn with_operators(operators: Vec<OpDef>) -> Runtime {
    let compiler = Compiler::with_operators(options(), operators).unwrap();
    Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap()
}

fn variable(rt: &Runtime, dims: &[u64], values: &[f64], request: GradReq) -> NDArray {
    let mut x = rt.array(dims, values).unwrap();
    x.attach_grad(request).unwrap();
    x
}

fn recorded(body: impl FnOnce() -> Result<NDArray, Error>) -> NDArray {
    let _scope = autograd::record();
    body().unwrap()
}

fn vec(x: &NDArray) -> Vec<f64> {
    x.to_vec().unwrap()
}

fn gradient(x: &NDArray) -> Vec<f64> {
    vec(&x.grad().unwrap())
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(1.0);
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
}

/// The derivative of a sum of results by every element, by central differences.
fn differences(rt: &Runtime, dims: &[u64], at: &[f64], f: &dyn Fn(&NDArray) -> Result<NDArray, Error>) -> Vec<f64> {
    let sum = |values: &[f64]| vec(&f(&rt.array(dims, values).unwrap()).unwrap()).iter().sum::<f64>();
    let moved = |i: usize, by: f64| {
        let mut values = at.to_vec();
        values[i] += by;
        sum(&values)
    };
    (0..at.len()).map(|i| (moved(i, 1e-5) - moved(i, -1e-5)) / 2e-5).collect()
}

type Program<'a> = Box<dyn Fn(&NDArray) -> Result<NDArray, Error> + 'a>;

/// Broadcasting, products, reductions, views, copies, composites, and arrays that are used several times.
#[test]
fn gradients_are_those_of_finite_differences() {
    let rt = runtime();
    let w = rt.array(&[3, 2], &[0.5, -1.0, 2.0, 0.25, -0.75, 1.5]).unwrap();
    let at = [0.3, -1.2, 0.8, 1.7, 0.4, -0.6];
    let programs: Vec<(&str, Program<'_>)> = vec![
        ("polynomial", Box::new(|x| (x * x)? * (x - 2.0)?)),
        ("chain", Box::new(|x| x.apply("sin")?.apply("exp")?.apply("tanh"))),
        ("product", Box::new(|x| x.matmul(&w)?.apply("relu")?.matmul(&w.transpose(&[1, 0])?))),
        ("normalised", Box::new(|x| x - &x.mean(&[1], true)?)),
        ("softmax", Box::new(|x| (&rt.op("softmax")?.arg(x).param("axis", -1).invoke()? * x)?.apply("exp"))),
        ("rows", Box::new(|x| &x.row(1)? * &x.rows(0, 1)?)),
        ("reshape", Box::new(|x| x.reshape(&[3, 2])?.matmul(&x.reshape(&[2, -1])?))),
        ("slice", Box::new(|x| (&x.slice(&[(..).into(), autograd_slice()])? * 3.0)?.apply("exp"))),
        ("copy", Box::new(|x| &x.copy()? * x)),
        ("mixed", Box::new(|x| (&x.apply("exp")?.sum(&[1], true)? * x)?.apply("sin"))),
        ("constants", Box::new(|x| 1.5 - &(x / 2.0)?)),
    ];
    for (name, f) in &programs {
        let x = variable(&rt, &[2, 3], &at, GradReq::Write);
        for _ in 0..2 {
            recorded(|| f(&x)).backward().unwrap();
            let (found, expected) = (gradient(&x), differences(&rt, &[2, 3], &at, &**f));
            let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0));
            assert!(near, "{name}: {found:?}, not {expected:?}");
        }
    }
}

/// Every other column, from the last.
fn autograd_slice() -> tensorc_nd::Slice {
    tensorc_nd::Slice::new(None, None, -2)
}

/// MXNet's test_higher_order_grad: sin, cos, -sin, -cos.
#[test]
fn higher_order_gradients_of_sine() {
    let rt = runtime();
    let at = [0.3, -1.0, 2.5];
    let x = variable(&rt, &[3], &at, GradReq::Write);
    let mut y = recorded(|| x.apply("sin"));
    let derivatives: [fn(f64) -> f64; 4] = [f64::cos, |x| -x.sin(), |x| -x.cos(), f64::sin];
    for derivative in derivatives {
        y = autograd::grad(&[&y], &[&x], &[], true).unwrap().remove(0);
        assert_near(&vec(&y), &at.map(derivative), 1e-12);
    }
    y.backward().unwrap();
    assert_near(&gradient(&x), &at.map(f64::cos), 1e-12);
}

/// MXNet's test_gradient: z = exp(x) + x, its gradient recorded, and differentiated in turn.
#[test]
fn gradients_of_gradients_through_a_network() {
    let rt = runtime();
    let x = variable(&rt, &[1], &[1.0], GradReq::Write);
    let z = recorded(|| &x.apply("exp")? + &x);
    let dx = autograd::grad(&[&z], &[&x], &[], true).unwrap().remove(0);
    assert_near(&vec(&dx), &[1f64.exp() + 1.0], 1e-12);
    dx.backward().unwrap();
    assert_near(&gradient(&x), &[1f64.exp()], 1e-12);

    // A penalty on the gradient of a network, against differences of that gradient.
    let w = rt.array(&[2, 2], &[0.7, -0.4, 1.1, 0.6]).unwrap();
    let at = [0.2, -0.5, 0.9, 0.1];
    let penalty = |x: &NDArray, keep: bool| -> Result<NDArray, Error> {
        let scope = autograd::record();
        let product = x.matmul(&w)?;
        let soft = rt.op("softmax")?.arg(&product).param("axis", -1).invoke()?;
        let y = (&soft * &soft)?;
        let g = autograd::grad(&[&y], &[x], &[], keep)?.remove(0);
        let penalty = &g * &g;
        drop(scope);
        penalty
    };
    let x = variable(&rt, &[2, 2], &at, GradReq::Write);
    penalty(&x, true).unwrap().backward().unwrap();
    let by_differences = differences(&rt, &[2, 2], &at, &|x| {
        let mut x = x.clone();
        x.attach_grad(GradReq::Write)?;
        penalty(&x, false)
    });
    assert_near(&gradient(&x), &by_differences, 1e-6);
}

/// MXNet's test_retain_grad and test_grad_req: write, add over several passes, null.
#[test]
fn requests_and_retained_graphs() {
    let rt = runtime();
    let write = variable(&rt, &[2], &[1.0, 2.0], GradReq::Write);
    let add = variable(&rt, &[2], &[3.0, 4.0], GradReq::Add);
    let null = variable(&rt, &[2], &[5.0, 6.0], GradReq::Null);
    assert!(null.grad().is_none());
    let y = recorded(|| (&write * &add)? * &null);
    for pass in 1..=3 {
        let options = Backward { retain_graph: pass < 3 };
        autograd::backward(&[&y], &[], options).unwrap();
        assert_eq!(gradient(&write), [15.0, 24.0]);
        assert_eq!(gradient(&add), [5.0 * f64::from(pass), 12.0 * f64::from(pass)]);
    }
    let error = y.backward().unwrap_err();
    assert!(matches!(error, Error::Autograd(AutogradError::Freed { .. })), "{error}");
    assert!(error.to_string().contains("retain"), "{error}");
    // A gradient of zero overwrites as well.
    let y = recorded(|| rt.op("stop_gradient")?.arg(&write).invoke()? * 2.0);
    y.backward().unwrap();
    assert_eq!(gradient(&write), [0.0, 0.0]);
}

/// MXNet's test_out_grads: heads with gradients of their own, some without.
#[test]
fn head_gradients() {
    let rt = runtime();
    let x = variable(&rt, &[2, 2], &[1.0, 2.0, 3.0, 4.0], GradReq::Write);
    let (a, b) = {
        let _scope = autograd::record();
        ((&x.row(0).unwrap() * 2.0).unwrap(), (&x.row(1).unwrap() * 3.0).unwrap())
    };
    let head = rt.array(&[2], &[10.0, 100.0]).unwrap();
    autograd::backward(&[&a, &b], &[Some(&head), None], Backward { retain_graph: true }).unwrap();
    assert_eq!(gradient(&x), [20.0, 200.0, 3.0, 3.0]);
    b.backward_from(&head).unwrap();
    assert_eq!(gradient(&x), [0.0, 0.0, 30.0, 300.0]);
    let wrong = rt.array(&[1], &[1.0]).unwrap();
    let error = a.backward_from(&wrong).unwrap_err();
    assert!(matches!(error, Error::Autograd(AutogradError::Head { .. })), "{error}");
}

/// MXNet's test_detach_updated_grad: what is detached is constant.
#[test]
fn detached_arrays_are_constant() {
    let rt = runtime();
    let x = variable(&rt, &[2], &[2.0, 3.0], GradReq::Write);
    recorded(|| &x * &x.detach()).backward().unwrap();
    assert_eq!(gradient(&x), [2.0, 3.0]);
    let y = recorded(|| {
        let square = (&x * &x)?;
        &square.detach() * &square
    });
    y.backward().unwrap();
    assert_eq!(gradient(&x), [16.0, 54.0]);
}

#[test]
fn mistakes_are_errors_that_name_the_call() {
    let rt = runtime();
    let mut x = variable(&rt, &[2], &[2.0, 3.0], GradReq::Write);
    let unrecorded = (&x * 2.0).unwrap();
    let error = unrecorded.backward().unwrap_err().to_string();
    assert!(error.contains("array 0") && error.contains("record"), "{error}");
    {
        let _scope = autograd::record();
        let y = x.apply("exp").unwrap();
        let error = x.fill(0.0).unwrap_err().to_string();
        assert!(error.contains("`fill`") && error.contains("in place"), "{error}");
        assert!(y.copy_into(&rt.empty(y.device(), y.dtype(), y.dims()).unwrap()).is_err());
        let target = rt.zeros(&[2], DType::F64).unwrap();
        let error = rt.op("exp").unwrap().arg(&x).into(&[&target]).unwrap_err().to_string();
        assert!(error.contains("`exp`"), "{error}");
        let mut z = y.clone();
        z += 1.0;
        assert!(z.to_vec::<f64>().unwrap_err().to_string().contains("in place"));
    }
    let y = recorded(|| x.apply("sin")?.matmul(&x));
    x += 1.0;
    let error = y.backward().unwrap_err();
    assert!(matches!(&error, Error::Autograd(AutogradError::Overwritten { .. })), "{error}");
    let other = variable(&rt, &[2], &[1.0, 1.0], GradReq::Write);
    let y = recorded(|| x.apply("exp"));
    let error = autograd::grad(&[&y], &[&other], &[], false).unwrap_err().to_string();
    assert!(error.contains("variable 0"), "{error}");
    let mut integers = rt.array(&[2], &[1i64, 2]).unwrap();
    assert!(integers.attach_grad(GradReq::Write).is_err());
    // A variable can be overwritten once its gradient has been taken.
    let y = recorded(|| &x * &x);
    y.backward().unwrap();
    x -= 1.0;
    recorded(|| &x * &x).backward().unwrap();
    assert_eq!(gradient(&x), [4.0, 6.0]);
}

/// Gradients by arrays computed on the way, and of a variable by itself.
#[test]
fn functional_form_takes_any_array() {
    let rt = runtime();
    let x = variable(&rt, &[2], &[1.0, 2.0], GradReq::Write);
    let (y, z) = {
        let _scope = autograd::record();
        let y = x.apply("exp").unwrap();
        (y.clone(), (&y * &y).unwrap())
    };
    let found = autograd::grad(&[&z], &[&y, &x], &[], true).unwrap();
    let e = [1f64.exp(), 2f64.exp()];
    assert_near(&vec(&found[0]), &e.map(|e| 2.0 * e), 1e-12);
    assert_near(&vec(&found[1]), &e.map(|e| 2.0 * e * e), 1e-12);
    assert_eq!(vec(&autograd::grad(&[&x], &[&x], &[], false).unwrap()[0]), [1.0, 1.0]);
}

fn square(backward: bool) -> OpDef {
    let def = closure("own_square", &["x"], like(0), |call| {
        let x = call.read::<f64>(0)?;
        call.write::<f64>(0)?.iter_mut().zip(x).for_each(|(y, x)| *y = x * x);
        Ok(())
    });
    let def = match backward {
        true => def.backward(Keep::heads().inputs(&[0]), |call| {
            let (x, head) = (call.input::<f64>(0)?, call.head::<f64>(0)?);
            call.grad::<f64>(0)?.iter_mut().zip(x.iter().zip(head)).for_each(|(g, (x, h))| *g = 2.0 * x * h);
            Ok(())
        }),
        false => def,
    };
    def.types(&[DType::F64]).build()
}

/// MXNet's test_custom_op: a square with its gradient, between other operators.
#[test]
fn closures_take_part() {
    let rt = with_operators(vec![square(true)]);
    let x = variable(&rt, &[2], &[0.5, -1.5], GradReq::Write);
    let y = recorded(|| (&x * 3.0)?.apply("own_square")?.apply("sin"));
    y.backward().unwrap();
    let expected = [0.5f64, -1.5].map(|x| (9.0 * x * x).cos() * 18.0 * x);
    assert_near(&gradient(&x), &expected, 1e-12);
    let dx = {
        let y = recorded(|| x.apply("own_square"));
        autograd::grad(&[&y], &[&x], &[], true).unwrap().remove(0)
    };
    let error = dx.backward().unwrap_err().to_string();
    assert!(error.contains("backward of own_square"), "{error}");
}

#[test]
fn closures_without_a_gradient_say_so_when_it_is_asked_for() {
    let rt = with_operators(vec![square(false)]);
    let x = variable(&rt, &[2], &[0.5, -1.5], GradReq::Write);
    let y = recorded(|| x.apply("own_square"));
    assert_eq!(vec(&y), [0.25, 2.25]);
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("own_square") && error.contains("closure"), "{error}");
}

/// An error of a backward closure is that of the gradient, and of nothing else.
#[test]
fn backward_closures_fail_where_the_gradient_is_read() {
    let broken = closure("broken", &["x"], like(0), |call| {
        let x = call.read::<f64>(0)?;
        call.write::<f64>(0)?.copy_from_slice(x);
        Ok(())
    });
    let broken = broken.backward(Keep::heads(), |_| Err("no way back".into())).types(&[DType::F64]).build();
    let rt = with_operators(vec![broken]);
    let x = variable(&rt, &[1], &[4.0], GradReq::Write);
    let y = recorded(|| x.apply("broken"));
    y.backward().unwrap();
    assert_eq!(vec(&y), [4.0]);
    let error = x.grad().unwrap().to_vec::<f64>().unwrap_err().to_string();
    assert!(error.contains("backward of broken") && error.contains("no way back"), "{error}");
}

/// MXNet's test_training: operators see the mode of the scope, which nests.
#[test]
fn modes_follow_the_scopes() {
    let mode = closure("mode", &["x"], like(0), |call| {
        let training = f64::from(u8::from(call.is_training()));
        call.write::<f64>(0)?.fill(training);
        Ok(())
    });
    let rt = with_operators(vec![mode.training().types(&[DType::F64]).build()]);
    let x = rt.array(&[1], &[0.0]).unwrap();
    let training = || vec(&x.apply("mode").unwrap())[0] == 1.0;
    assert!(!training() && !autograd::is_recording());
    {
        let _record = autograd::record();
        assert!(training() && autograd::is_recording());
        {
            let _predict = autograd::predict_mode();
            assert!(!training() && autograd::is_recording());
            let _pause = autograd::pause();
            assert!(!training() && !autograd::is_recording());
            let _train = autograd::train_mode();
            assert!(training() && !autograd::is_recording());
        }
        assert!(training() && autograd::is_recording());
        let _prediction = autograd::record_prediction();
        assert!(!training() && autograd::is_recording());
    }
    assert!(!training() && !autograd::is_recording());
    let _record = autograd::record();
    assert!(!std::thread::spawn(autograd::is_recording).join().unwrap(), "modes belong to threads");
}

/// A compiled model is one recorded call.
#[test]
fn functions_are_recorded() {
    let rt = runtime();
    let text = "graph @g(%x: f64[3], %w: f64[3]) { %a = mul(%x, %w) %b = sin(%a) return %b, %a }";
    let graph = tensorc::ir::text::parse_module(text, rt.compiler().registry()).unwrap().graphs.remove(0);
    let model = rt.compiler().model(graph);
    let types: Vec<_> = model.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    let function = rt.function(&model, &types).unwrap();
    let x = variable(&rt, &[3], &[0.1, 0.2, 0.3], GradReq::Write);
    let w = rt.array(&[3], &[2.0, 3.0, 4.0]).unwrap();
    let y = recorded(|| {
        let outputs = function.call(&[&x, &w])?;
        &outputs[0] * &outputs[1]
    });
    y.backward().unwrap();
    let expected = [(0.1, 2.0), (0.2, 3.0), (0.3, 4.0)].map(|(x, w): (f64, f64)| {
        let a = x * w;
        w * (a.cos() * a + a.sin())
    });
    assert_near(&gradient(&x), &expected, 1e-12);
}

/// A tape of any length can be dropped.
#[test]
fn long_tapes_are_dropped_without_recursion() {
    let rt = runtime();
    let x = variable(&rt, &[1], &[1.0], GradReq::Write);
    let y = recorded(|| (0..20_000).try_fold(x.clone(), |y, _| &y + 1.0));
    assert_eq!(vec(&y), [20_001.0]);
    drop(y);
}

/// Linear regression by gradient descent finds its weights.
#[test]
fn training_by_hand() {
    let rt = runtime();
    let x = rt.normal(&[64, 3], DType::F64, 0.0, 1.0).unwrap();
    let truth = rt.array(&[3, 1], &[1.5, -2.0, 0.5]).unwrap();
    let y = x.matmul(&truth).unwrap();
    let mut w = variable(&rt, &[3, 1], &[0.0; 3], GradReq::Write);
    for _ in 0..200 {
        let loss = recorded(|| {
            let error = (&x.matmul(&w)? - &y)?;
            (&error * &error)?.mean(&[], false)
        });
        loss.backward().unwrap();
        w -= &(&w.grad().unwrap() * 0.1).unwrap();
    }
    assert_near(&vec(&w), &[1.5, -2.0, 0.5], 1e-6);
}

/// Batch normalisation writes its moving averages when it runs for training, and nothing else does. Values and
/// gradients are MXNet's.
#[test]
fn states_are_written_when_a_call_trains() {
    let rt = runtime();
    let mut x = rt.array(&[4, 2], &[1f32, 2.0, 3.0, 5.0, 5.0, 4.0, 7.0, 9.0]).unwrap();
    x.attach_grad(GradReq::Write).unwrap();
    let (gamma, beta) = (rt.array(&[2], &[1f32, 2.0]).unwrap(), rt.array(&[2], &[0.5f32, 0.0]).unwrap());
    let states = || (rt.array(&[2], &[0f32, 1.0]).unwrap(), rt.array(&[2], &[1f32, 2.0]).unwrap());
    let floats = |a: &NDArray| a.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let call = |(mean, var): &(NDArray, NDArray), global: bool| {
        let norm = rt.op("mx_batch_norm").unwrap().args([&x, &gamma, &beta, mean, var]);
        norm.param("fix_gamma", false).param("use_global_stats", global).invoke()
    };
    let held = states();
    let before = [&held.0, &held.1].map(|state| state.detach());
    let loss = recorded(|| {
        let y = call(&held, false)?;
        (&y * &y)?.sum(&[], false)
    });
    assert_near(&floats(&held.0), &[0.4, 1.4], 1e-6);
    assert_near(&floats(&held.1), &[1.4, 2.45], 1e-6);
    assert_eq!(floats(&before[0]), floats(&held.0), "the array itself is written");
    loss.backward().unwrap();
    let expected =
        [-0.239986679, -0.567782205, -0.0799866757, 0.0, 0.0799600239, -0.18926074, 0.239986679, 0.757042959];
    assert_near(&floats(&x.grad().unwrap()).iter().map(|g| g * 1e3).collect::<Vec<_>>(), &expected, 1e-2);
    let y = call(&held, false).unwrap();
    let expected = [1.0069114, 0.766495347, 2.69661641, 4.59897232, 4.38632154, 3.32148004, 6.07602644, 9.70894241];
    assert_near(&floats(&y), &expected, 1e-5);
    assert_near(&floats(&held.0), &[0.4, 1.4], 1e-6);

    // Moving statistics: the gradient reads them, and they stay.
    let held = states();
    recorded(|| {
        let y = call(&held, true)?;
        (&y * &y)?.sum(&[], false)
    })
    .backward()
    .unwrap();
    let once = floats(&x.grad().unwrap());
    assert_near(&once[..1], &[2.0 * 1.49950039 * 0.999500375], 1e-5);
    assert_near(&floats(&held.0), &[0.0, 1.0], 0.0);

    // Next values that are asked for are results, and nothing is written.
    let held = states();
    let _training = autograd::train_mode();
    let norm = rt.op("mx_batch_norm").unwrap().args([&x, &gamma, &beta, &held.0, &held.1]);
    let all = norm.outputs(5).invoke_all().unwrap();
    assert_near(&floats(&all[3]), &[0.4, 1.4], 1e-6);
    assert_near(&floats(&held.0), &[0.0, 1.0], 0.0);
    drop(call(&held, false).unwrap());
    assert_near(&floats(&held.0), &[0.4, 1.4], 1e-6);

    // An optimizer's momentum, with the weight written in place.
    let [w, g, m] = [[1f32, -2.0], [0.5, -1.0], [0.1, -0.2]].map(|v| rt.array(&[2], &v).unwrap());
    let step = || rt.op("mx_sgd_mom_update").unwrap().args([&w, &g, &m]).param("lr", 0.1).param("momentum", 0.9);
    step().into(&[&w]).unwrap();
    assert_near(&floats(&m), &[0.04, -0.08], 1e-6);
    assert_near(&floats(&w), &[1.04, -2.08], 1e-6);
    let next = step().invoke().unwrap();
    assert_near(&floats(&m), &[-0.014, 0.028], 1e-5);
    assert_near(&floats(&next), &[1.026, -2.052], 1e-5);
    assert_near(&floats(&w), &[1.04, -2.08], 1e-6);
}
