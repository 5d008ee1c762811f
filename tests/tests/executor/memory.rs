//! Shared and planned memory, and what optimization removes.

use tensorc_nd::executor::{Executor, GradReq};

use super::*;

#[test]
fn a044_nothing_is_kept_for_gradients_that_stop() {
    let rt = runtime();
    let bytes = |stop: bool, request: GradReq| {
        let mut net = var("x");
        for _ in 0..10 {
            net = op("square").input(&op("sin").input(&net).build().unwrap()).build().unwrap();
        }
        if stop {
            net = op("stop_gradient").input(&net).build().unwrap();
        }
        let mut executor =
            Executor::simple_bind(&rt, &net).shape("x", &[10, 3, 64, 64]).grad_req(request).build().unwrap();
        executor.forward(true).unwrap();
        if request != GradReq::Null {
            let head = ones(&rt, &[10, 3, 64, 64]);
            executor.backward(if stop { vec![] } else { vec![&head] }.as_slice()).unwrap();
        }
        executor.outputs()[0].wait_to_read().unwrap();
        rt.wait_all().unwrap();
        executor.intermediate_bytes()
    };
    let stopped = bytes(true, GradReq::Write);
    assert_eq!(stopped, bytes(true, GradReq::Null));
    assert!(stopped <= bytes(false, GradReq::Write));
}

#[test]
fn executors_of_several_lengths_share_one_memory() {
    let rt = runtime();
    let net = |length: u64| {
        let mut x = op("Reshape").input(&var("data")).param("shape", "(-1, 16)").build().unwrap();
        let weight = var("weight");
        for _ in 0..length {
            let fc = op("FullyConnected").inputs([&x, &weight]).param("num_hidden", 16).param("no_bias", true);
            x = op("tanh").input(&fc.build().unwrap()).build().unwrap();
        }
        op("MakeLoss").input(&op("sum").input(&x).build().unwrap()).build().unwrap()
    };
    let bind = |length: u64| Executor::simple_bind(&rt, &net(length)).shape("data", &[64, length * 16]);
    let long = bind(6).build().unwrap();
    let weight = long.argument("weight").unwrap().clone();
    set(&long, "weight", &noise(256, 3));
    let mut buckets = vec![long];
    for length in [3, 1] {
        buckets.push(bind(length).array("weight", &weight).share(&buckets[0]).build().unwrap());
    }
    let mut apart: Vec<Executor> =
        [6, 3, 1].iter().map(|n| bind(*n).array("weight", &weight).build().unwrap()).collect();
    let gradient = |executor: &Executor| values(executor.gradient("weight").unwrap());
    for at in [0, 2, 1, 0, 1, 2] {
        for set_of in [&mut buckets, &mut apart] {
            let data = noise(64 * 16 * [6, 3, 1][at] as usize, 8);
            set(&set_of[at], "data", &data);
            set_of[at].forward(true).unwrap();
            set_of[at].backward(&[]).unwrap();
        }
        assert_eq!(gradient(&buckets[at]), gradient(&apart[at]));
    }
    let separate: Vec<usize> = apart.iter().map(Executor::intermediate_bytes).collect();
    assert_eq!(buckets[0].intermediate_bytes(), *separate.iter().max().unwrap(), "the greatest, not the sum");
    // Taking turns in the middle of a step: the forward pass is run again.
    buckets[0].forward(true).unwrap();
    buckets[1].forward(true).unwrap();
    buckets[0].backward(&[]).unwrap();
    assert_eq!(gradient(&buckets[0]), gradient(&apart[0]));
}
