//! Binding arrays, shapes and requests; reshaping; what is refused.

use tensorc_nd::executor::{Executor, GradReq};

use super::*;

#[test]
fn a045_lists_and_names_bind_alike() {
    let rt = runtime();
    let (a, b) = (var("a"), var("b"));
    type Build = fn(&Symbol, &Symbol) -> Symbol;
    type Expect = fn(f32, f32) -> (f32, f32, f32);
    let cases: [(&str, Build, Expect); 6] = [
        ("+", |a, b| (a + b).unwrap(), |x, y| (x + y, 1.0, 1.0)),
        ("-", |a, b| (a - b).unwrap(), |x, y| (x - y, 1.0, -1.0)),
        ("*", |a, b| (a * b).unwrap(), |x, y| (x * y, y, x)),
        ("/", |a, b| (a / b).unwrap(), |x, y| (x / y, 1.0 / y, -x / (y * y))),
        (
            "max",
            |a, b| op("_maximum").inputs([a, b]).build().unwrap(),
            |x, y| (x.max(y), f32::from(x >= y), f32::from(x < y)),
        ),
        (
            "min",
            |a, b| op("_minimum").inputs([a, b]).build().unwrap(),
            |x, y| (x.min(y), f32::from(x <= y), f32::from(x > y)),
        ),
    ];
    for (seed, (name, build, expect)) in cases.iter().enumerate() {
        for dims in [vec![7], vec![3, 5], vec![2, 3, 4]] {
            let net = build(&a, &b);
            let count = dims.iter().product::<u64>() as usize;
            let mut x = noise(count, seed as u32);
            let y: Vec<f32> = noise(count, 77 + seed as u32).iter().map(|v| v + 2f32.copysign(*v)).collect();
            // A tie, whose gradient goes to the left.
            x[0] = y[0];
            let arrays = [rt.array(&dims, &x).unwrap(), rt.array(&dims, &y).unwrap()];
            let grads = [rt.zeros(&dims, DType::F32).unwrap(), rt.zeros(&dims, DType::F32).unwrap()];
            let head: Vec<f32> = noise(count, 5);
            let by_list =
                Executor::bind(&rt, &net).arguments(&arrays).gradient("a", &grads[0]).gradient("b", &grads[1]);
            let by_name = Executor::bind(&rt, &net).array("b", &arrays[1]).array("a", &arrays[0]);
            let mut with = by_list.build().unwrap();
            let mut without = by_name.build().unwrap();
            let expected: Vec<(f32, f32, f32)> = x.iter().zip(&y).map(|(x, y)| expect(*x, *y)).collect();
            let out: Vec<f32> = expected.iter().map(|e| e.0).collect();
            for executor in [&mut with, &mut without] {
                for training in [true, false] {
                    close(&values(&executor.forward(training).unwrap()[0]), &out, 1e-5);
                }
            }
            with.forward(true).unwrap();
            with.backward(&[&rt.array(&dims, &head).unwrap()]).unwrap();
            let of = |pick: fn(&(f32, f32, f32)) -> f32| -> Vec<f32> {
                expected.iter().zip(&head).map(|(e, h)| pick(e) * h).collect()
            };
            close(&values(&grads[0]), &of(|e| e.1), 1e-5);
            close(&values(&grads[1]), &of(|e| e.2), 1e-5);
            assert!(without.gradients().next().is_none(), "{name}: nothing asks for gradients");
        }
    }
}

#[test]
fn a047_a_smaller_executor_shares_memory() {
    let rt = runtime();
    let net = fully_connected(&var("x"), 4, "fc");
    let mut large = Executor::simple_bind(&rt, &net).shape("x", &[5, 4]).grad_req(GradReq::Null).build().unwrap();
    large.argument("x").unwrap().fill(1.0).unwrap();
    large.argument("fc_weight").unwrap().fill(1.0).unwrap();
    let mut small = large.reshape().shape("x", &[3, 4]).build().unwrap();
    assert_eq!(values(&small.forward(false).unwrap()[0]), [4.0; 12]);
    assert_eq!(values(&large.outputs()[0])[..12], [4.0; 12], "the small output lies at the start of the large one");
    assert_eq!(values(&large.forward(false).unwrap()[0]), [4.0; 20]);
    small.argument("x").unwrap().fill(2.0).unwrap();
    assert_eq!(values(large.argument("x").unwrap())[..13], [[2.0; 12].as_slice(), &[1.0]].concat());
}

#[test]
fn a048_growing_needs_permission() {
    let rt = runtime();
    let net = fully_connected(&var("x"), 4, "fc");
    let old = Executor::simple_bind(&rt, &net).shape("x", &[5, 4]).build().unwrap();
    let refused = old.reshape().shape("x", &[6, 4]).build().unwrap_err().to_string();
    assert!(refused.contains("allow_up_sizing") && refused.contains("`x`"), "{refused}");
    let grown = old.reshape().shape("x", &[6, 4]).allow_up_sizing(true).build().unwrap();
    assert!(!grown.argument("x").unwrap().is_same(old.argument("x").unwrap()));
    assert!(grown.argument("fc_weight").unwrap().is_same(old.argument("fc_weight").unwrap()));
    let refused = old.reshape().shape("x", &[5, 3]).build().unwrap_err().to_string();
    assert!(refused.contains("partial_shaping") && refused.contains("fc_weight"), "{refused}");
    let narrow = old.reshape().shape("x", &[5, 3]).partial_shaping(true).build().unwrap();
    assert_eq!(narrow.argument("fc_weight").unwrap().dims(), [4, 3]);
}

#[test]
fn a051_requests_by_argument() {
    let rt = runtime();
    let net = (&(&var("a") * &var("b")).unwrap() * &var("c")).unwrap();
    let binder = Executor::simple_bind(&rt, &net).shape("a", &[2]).shape("b", &[2]).shape("c", &[2]);
    let mut executor = binder
        .grad_req_of("a", GradReq::Null)
        .grad_req_of("b", GradReq::Write)
        .grad_req_of("c", GradReq::Add)
        .build()
        .unwrap();
    for (name, value) in [("a", 2.0), ("b", 3.0), ("c", 5.0)] {
        executor.argument(name).unwrap().fill(value).unwrap();
    }
    assert!(executor.gradient("a").unwrap_err().to_string().contains("null"));
    for _ in 0..2 {
        executor.forward(true).unwrap();
        executor.backward(&[&ones(&rt, &[2])]).unwrap();
    }
    assert_eq!(values(executor.gradient("b").unwrap()), [10.0; 2], "overwritten");
    assert_eq!(values(executor.gradient("c").unwrap()), [12.0; 2], "added");
    assert_eq!(executor.grad_req("c").unwrap(), GradReq::Add);
}

#[test]
fn wrong_bindings_are_refused_by_name() {
    let rt = runtime();
    let net = fully_connected(&var("x"), 4, "fc");
    let x = ones(&rt, &[5, 3]);
    let fails = |binder: tensorc_nd::executor::Binder<'_>, part: &str| {
        let error = binder.build().unwrap_err().to_string();
        assert!(error.contains(part), "{error} should contain {part}");
    };
    let weight = ones(&rt, &[4, 3]);
    fails(Executor::bind(&rt, &net).array("x", &x).array("fc_weight", &weight), "fc_bias");
    fails(Executor::bind(&rt, &net).arguments([&x, &x]), "2 arguments are given, the symbol has 3");
    fails(Executor::bind(&rt, &net).array("y", &x), "no variable `y`");
    fails(Executor::simple_bind(&rt, &net), "x:");
    fails(Executor::simple_bind(&rt, &net).shape("x", &[5, 3]).shape("fc_weight", &[4, 4]), "fc");
    fails(Executor::simple_bind(&rt, &net).shape("x", &[5, 3]).gradient("z", &x), "no argument `z`");
    fails(Executor::simple_bind(&rt, &net).shape("x", &[5, 3]).gradient("fc_weight", &x), "`fc_weight`");
}

#[test]
fn values_are_copied_and_checked_by_a_forward_pass() {
    let rt = runtime();
    let net = (&var("x") + 1.0).unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[2]).build().unwrap();
    let x = rt.array(&[2], &[1f32, 2.0]).unwrap();
    assert_eq!(values(&executor.forward_with(false, &[("x", &x)]).unwrap()[0]), [2.0, 3.0]);
    assert!(executor.forward_with(false, &[("x", &ones(&rt, &[3]))]).is_err());
    assert!(executor.forward_with(false, &[("q", &x)]).unwrap_err().to_string().contains("`q`"));
}

#[test]
fn the_monitor_sees_every_node() {
    let rt = runtime();
    let hidden = fully_connected(&var("x"), 3, "fc");
    let net = op("Activation").input(&hidden).param("act_type", "relu").name("act").build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &[2, 4]).build().unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    for (inputs, expected) in
        [(false, vec!["fc_output", "act_output"]), (true, vec!["x", "fc_weight", "fc_bias", "fc_output", "act_output"])]
    {
        let into = seen.clone();
        executor.set_monitor(inputs, move |name, array| {
            assert!(array.to_vec::<f32>().is_ok());
            into.lock().unwrap().push(name.to_owned());
        });
        executor.forward(true).unwrap();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), expected);
    }
    executor.clear_monitor();
    executor.forward(false).unwrap();
    assert!(seen.lock().unwrap().is_empty());
}
