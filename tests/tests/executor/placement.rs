//! Groups of nodes on devices of their own.

use tensorc::runtime::Device;
use tensorc::symbol::attr_scope;
use tensorc_nd::executor::Executor;

use super::*;
use crate::support::backend::{GPU, new_runtime_beside_gpu};

fn grouped(first: &str, second: &str) -> Symbol {
    let inner = {
        let _scope = attr_scope([("ctx_group", first)]);
        (&(&var("d1") + &var("d2")).unwrap() * 3.0).unwrap()
    };
    let _scope = attr_scope([("ctx_group", second)]);
    (&inner + &var("d3")).unwrap()
}

#[test]
fn a052_a_chain_over_two_devices_equals_one_device() {
    for (first, second) in [(Device::cpu(1), Device::cpu(2)), (Device::cpu(0), GPU)] {
        let rt = new_runtime_beside_gpu(RuntimeOptions::default());
        let net = grouped("dev1", "dev2");
        let bind = || ["d1", "d2", "d3"].iter().fold(Executor::simple_bind(&rt, &net), |b, n| b.shape(n, &[4, 5]));
        let mut one = bind().build().unwrap();
        let mut two = bind().group("dev1", first).group("dev2", second).build().unwrap();
        assert_eq!(two.argument("d1").unwrap().device(), first);
        assert_eq!(two.argument("d3").unwrap().device(), second);
        let head = rt.array(&[4, 5], &noise(20, 9)).unwrap();
        for executor in [&mut one, &mut two] {
            for (i, name) in ["d1", "d2", "d3"].iter().enumerate() {
                set(executor, name, &noise(20, i as u32));
            }
            executor.forward(true).unwrap();
            executor.backward(&[&head]).unwrap();
        }
        assert_eq!(values(&one.outputs()[0]), values(&two.outputs()[0]));
        for name in ["d1", "d2", "d3"] {
            assert_eq!(values(one.gradient(name).unwrap()), values(two.gradient(name).unwrap()), "{name}");
        }
    }
}
