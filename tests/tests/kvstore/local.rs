//! Stores of one process: MXNet's cases, errors, and the order of pushes and pulls.

use tensorc::runtime::Device;
use tensorc_nd::NDArray;
use tensorc_train::Optimizer;
use tensorc_train::kvstore::{Compression, KVStore, Key};

use super::{FAILURE, assert_all, full, runtime};

const KINDS: [&str; 2] = ["local", "device"];

#[test]
fn values_are_replaced_by_sums() {
    let rt = runtime();
    for kind in KINDS {
        let store = KVStore::create(&rt, kind).unwrap();
        let (four, one, out) = (full(&rt, 4.0), full(&rt, 1.0), full(&rt, 0.0));
        store.init(3, &four).unwrap();
        store.pull(3, &[&out], 0).unwrap();
        assert_all(&out, 4.0);
        store.push(3, &[&one; 4], 0).unwrap();
        store.pull(3, &[&out], 0).unwrap();
        assert_all(&out, 4.0);
        store.push(3, &[&one, &four, &one], 0).unwrap();
        // What is pushed later does not reach a copy that was pulled before.
        store.pull(3, &[&out], 0).unwrap();
        store.push(3, &[&one], 0).unwrap();
        assert_all(&out, 6.0);
        // Values keep what they were initialised with, not the array.
        four.fill(9.0).unwrap();
        store.broadcast(4, &four, &[&out, &one], 0).unwrap();
        assert_all(&one, 9.0);
        assert_eq!((store.rank(), store.num_workers(), store.kind().name()), (0, 1, kind));
        store.barrier().unwrap();
        store.close().unwrap();
    }
}

/// Several keys with a value of each of four devices.
#[test]
fn devices_are_summed_for_several_keys() {
    let rt = runtime();
    for kind in KINDS {
        let store = KVStore::create(&rt, kind).unwrap();
        let devices: Vec<Device> = (0..4).map(Device::cpu).collect();
        let values: Vec<NDArray> = devices.iter().map(|device| full(&rt, 2.0).copy_to(*device).unwrap()).collect();
        let keys: Vec<Key> = ["b", "a", "c"].map(Key::from).to_vec();
        for key in &keys {
            store.init(key.clone(), &full(&rt, 0.0)).unwrap();
        }
        let lists: Vec<_> = keys.iter().map(|key| (key.clone(), values.iter().collect::<Vec<_>>())).collect();
        store.push_all(&lists, 0).unwrap();
        let outs: Vec<NDArray> = devices.iter().map(|device| full(&rt, 0.0).copy_to(*device).unwrap()).collect();
        for key in &keys {
            store.pull_all(&[(key.clone(), outs.iter().collect())], 0).unwrap();
            outs.iter().for_each(|out| assert_all(out, 8.0));
        }
        store.pushpull("a", &[&outs[0], &outs[1]], &[&outs[0]], 0).unwrap();
        assert_all(&outs[0], 16.0);
    }
}

#[test]
fn functions_and_optimizers_move_values() {
    let rt = runtime();
    for kind in KINDS {
        let store = KVStore::create(&rt, kind).unwrap();
        store.init("w", &full(&rt, 0.0)).unwrap();
        store
            .set_updater(|key, pushed, value| {
                assert_eq!(*key, Key::from("w"));
                Ok((value + pushed)?.copy_into(value)?)
            })
            .unwrap();
        let (one, out) = (full(&rt, 1.0), full(&rt, 0.0));
        for _ in 0..4 {
            store.push("w", &[&one; 4], 0).unwrap();
        }
        store.pull("w", &[&out], 0).unwrap();
        assert_all(&out, 16.0);
        store.set_optimizer(Optimizer::sgd(0.5, 0.9)).unwrap();
        store.push("w", &[&one, &one], 0).unwrap();
        store.push("w", &[&one, &one], 0).unwrap();
        store.pull("w", &[&out], 0).unwrap();
        // The second step is the first times 0.9, plus one of the same size.
        assert_all(&out, 16.0 - 1.0 - 1.9);
        let path = std::env::temp_dir().join(format!("tensorc-kvstore-{kind}-{}", std::process::id()));
        store.save_optimizer_states(&path).unwrap();
        let other = KVStore::create(&rt, kind).unwrap();
        other.init("w", &out).unwrap();
        assert!(other.load_optimizer_states(&path).unwrap_err().to_string().contains("set_optimizer"));
        other.set_optimizer(Optimizer::sgd(0.5, 0.9)).unwrap();
        other.load_optimizer_states(&path).unwrap();
        for store in [&store, &other] {
            store.push("w", &[&one, &one], 0).unwrap();
            store.pull("w", &[&out], 0).unwrap();
            assert_all(&out, 16.0 - 1.0 - 1.9 - 2.71);
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn wrong_calls_are_refused() {
    let rt = runtime();
    let unknown = KVStore::create(&rt, "foo").unwrap_err().to_string();
    assert!(unknown.contains("\"foo\"") && unknown.contains("dist_async"), "{unknown}");
    let store = KVStore::create(&rt, "local").unwrap();
    let (one, other) = (full(&rt, 1.0), rt.zeros(&[2], tensorc::DType::F32).unwrap());
    store.init("w", &one).unwrap();
    let errors = [
        (store.init("w", &one), "key `w` has a value already"),
        (store.init(3, &one), "key `3` is a number, the keys of this store are a text"),
        (store.push("v", &[&one], 0), "key `v` has no value"),
        (store.pull("v", &[&one], 0), "key `v` has no value"),
        (store.push("w", &[&one, &other], 0), "push of key `w`: its value is NDArray(f32[4, 4] on cpu:0)"),
        (store.pull("w", &[&other], 0), "pull of key `w`"),
        (store.push("w", &[], 0), "push of key `w` without arrays"),
        (store.set_gradient_compression(Compression::F16), "store `local` does not support gradient compression"),
        (store.save_optimizer_states("nowhere"), "the store has no optimizer"),
    ];
    for (result, expected) in errors {
        let found = result.unwrap_err().to_string();
        assert!(found.contains(expected), "{found}");
    }
    store.pull("w", &[&other], 0).unwrap_err();
    store.pull("w", &[&one], 0).unwrap();
}

/// An array that could not be computed spoils the value, and what is pulled from it, until it is overwritten.
#[test]
fn errors_of_arrays_reach_what_is_pulled() {
    let rt = runtime();
    let store = KVStore::create(&rt, "local").unwrap();
    let (one, out) = (full(&rt, 1.0), full(&rt, 0.0));
    store.init("w", &one).unwrap();
    let failed = one.apply("broken").unwrap();
    store.push("w", &[&one, &failed], 0).unwrap();
    store.pull("w", &[&out], 0).unwrap();
    assert!(out.to_vec::<f32>().unwrap_err().to_string().contains(FAILURE));
    store.push("w", &[&one, &one], 0).unwrap();
    store.pull("w", &[&out], 0).unwrap();
    assert_all(&out, 2.0);
}
