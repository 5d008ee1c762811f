//! What calls compute: types, broadcasting, numbers, copies, random streams, files.

use ::ndarray::{ArrayD, array};
use tensorc::DType;
use tensorc::runtime::engine::{EngineConfig, EngineKind};
use tensorc::runtime::{Device, Profiler};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use super::{runtime, runtimes, runtimes_beside_gpu};
use crate::support::backend::{GPU, new_runtime};

#[test]
fn arithmetic_broadcasts_and_numbers_take_the_arrays_type() {
    for rt in runtimes() {
        let a = rt.array(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let b = rt.array(&[3], &[10f32, 20.0, 30.0]).unwrap();
        assert_eq!((&a + &b).unwrap().to_vec::<f32>().unwrap(), [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
        assert_eq!((1.0 - &b).unwrap().to_vec::<f32>().unwrap(), [-9.0, -19.0, -29.0]);
        let (q, i) = ((&a / &b).unwrap(), rt.array(&[2], &[1i32, 7]).unwrap());
        assert_eq!(q.dims(), [2, 3]);
        assert_eq!((&i + 1.7).unwrap().to_vec::<i32>().unwrap(), [2, 8], "the number is truncated");
        assert_eq!((&i / 2.0).unwrap().to_vec::<i32>().unwrap(), [0, 3], "division truncates");
        assert_eq!((-&i).unwrap().to_vec::<i32>().unwrap(), [-1, -7]);
        assert_eq!((&a + (&b * 2.0)).unwrap().row(0).unwrap().to_vec::<f32>().unwrap(), [21.0, 42.0, 63.0]);
    }
}

#[test]
fn types_do_not_mix_and_shapes_must_fit() {
    let rt = runtime(EngineKind::PerDevice, true);
    let a = rt.array(&[2, 3], &[0f32; 6]).unwrap();
    let half = a.cast(DType::F16).unwrap();
    let error = (&a + &half).unwrap_err().to_string();
    assert!(error.contains("add") && error.contains("f16") && error.contains("f32"), "{error}");
    let error = (&a + &rt.zeros(&[2], DType::F32).unwrap()).unwrap_err().to_string();
    assert!(error.contains("add") && error.contains('3') && error.contains('2'), "{error}");
    assert!(a.apply("no_such_operator").unwrap_err().to_string().contains("no_such_operator"));
    let error = rt.op("softmax").unwrap().arg(&a).param("axes", 1).invoke().unwrap_err().to_string();
    assert!(error.contains("axes") && error.contains("axis"), "{error}");
    assert!(a.to_vec::<f64>().is_err());
    assert!(rt.array(&[2, 2], &[1f32]).is_err());
    assert!(rt.empty(Device::cpu(0), DType::F64, &[1 << 40, 1 << 40]).is_err());
    assert!(rt.full(Device::cpu(0), DType::F32, &[u64::MAX], 0.0).is_err());
}

#[test]
fn arrays_of_different_runtimes_do_not_meet() {
    let (one, other) = (runtime(EngineKind::PerDevice, true), runtime(EngineKind::PerDevice, true));
    let (a, b) = (one.ones(&[2], DType::F32).unwrap(), other.ones(&[2], DType::F32).unwrap());
    for error in [(&a + &b).map(drop), b.copy_into(&a), a.set(&[], &b), one.op("neg").unwrap().arg(&a).into(&[&b])] {
        assert!(error.unwrap_err().to_string().contains("runtimes"));
    }
}

/// Twice, plus one, read, plus one: 4; a hundred times plus one: 104.
#[test]
fn in_place_arithmetic_counts() {
    for rt in runtimes() {
        let mut x = rt.ones(&[10], DType::F32).unwrap();
        x *= 2.0;
        x += 1.0;
        x.wait_to_read().unwrap();
        x += 1.0;
        assert_eq!(x.to_vec::<f32>().unwrap(), [4.0; 10]);
        for _ in 0..100 {
            x += 1.0;
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [104.0; 10]);
    }
}

#[test]
fn whole_numbers_are_exact() {
    let rt = runtime(EngineKind::PerDevice, true);
    let big = rt.array(&[1], &[1i64]).unwrap();
    let sum = rt.op("add").unwrap().arg(&big).arg((1i64 << 53) + 1).invoke().unwrap();
    assert_eq!(sum.to_vec::<i64>().unwrap(), [(1 << 53) + 2]);
}

/// A refused call leaves the stream of random numbers as it was.
#[test]
fn numbers_of_results_are_checked_and_refused_calls_draw_nothing() {
    let rt = runtime(EngineKind::PerDevice, true);
    let draw = || rt.uniform(&[4], DType::F32, 0.0, 1.0);
    let first = draw().unwrap().to_vec::<f32>().unwrap();
    rt.seed(0);
    assert!(rt.uniform(&[4], DType::I32, 0.0, 1.0).is_err());
    assert_eq!(draw().unwrap().to_vec::<f32>().unwrap(), first);
    for count in [0, 2, usize::MAX] {
        let a = rt.ones(&[2], DType::F32).unwrap();
        assert!(rt.op("neg").unwrap().arg(&a).outputs(count).invoke_all().is_err());
    }
}

/// Making arrays without end waits for the engine, also where a call makes its result itself.
#[test]
fn run_ahead_is_bounded() {
    for kind in EngineKind::ALL {
        let engine = EngineConfig { kind, ..EngineConfig::default() };
        let options = RuntimeOptions { engine, ahead_bytes: 0, ..RuntimeOptions::default() };
        let rt = new_runtime(options);
        let found = rt.array(&[3], &[1f32, 0.0, 2.0]).unwrap().apply("nonzero").unwrap();
        assert_eq!(found.to_vec::<i64>().unwrap(), [0, 2]);
    }
}

/// One square root and two additions of a number: counts 1 and 2, in a table and as spans.
#[test]
fn the_profiler_counts_operations() {
    for kind in EngineKind::ALL {
        let profiler = Profiler::default();
        let engine = EngineConfig { kind, profiler: Some(profiler.clone()), ..EngineConfig::default() };
        let rt = new_runtime(RuntimeOptions { engine, fuse: false, ..RuntimeOptions::default() });
        let x = rt.ones(&[1000], DType::F32).unwrap();
        rt.wait_all().unwrap();
        profiler.start();
        let y = ((x.apply("sqrt").unwrap() + 1.0).unwrap() + 1.0).unwrap();
        y.wait_to_read().unwrap();
        profiler.stop();
        let _ = (&y + 1.0).unwrap().to_bytes().unwrap();
        let summary = profiler.recording().summary();
        let count = |name: &str| summary.row(name).map_or(0, |row| row.count);
        assert_eq!((count("sqrt"), count("add")), (1, 2), "{summary}");
        // What is read and written: an array in and one out, and for additions the number.
        assert_eq!(summary.row("add").unwrap().bytes, 2 * (8000 + 4), "{summary}");
    }
}

#[test]
fn scalars_and_empty_arrays_exist() {
    for rt in runtimes() {
        let scalar = rt.array(&[], &[3f64]).unwrap();
        assert_eq!((&scalar * 2.0).unwrap().item().unwrap(), 6.0);
        let empty = rt.zeros(&[0, 3], DType::F32).unwrap();
        let sum = (&empty + 1.0).unwrap();
        assert_eq!((sum.dims(), sum.to_vec::<f32>().unwrap().len()), (&[0, 3][..], 0));
        let vast = rt.zeros(&[1 << 40, 1 << 40, 0], DType::F32).unwrap();
        assert_eq!((vast.len(), vast.to_vec::<f32>().unwrap().len()), (0, 0));
        vast.set(&[], 1.0).unwrap();
        assert_eq!(empty.sum(&[0], false).unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    }
}

#[test]
fn operators_of_every_kind_are_called() {
    for rt in runtimes() {
        let a = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(a.matmul(&a).unwrap().to_vec::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
        assert_eq!(a.sum(&[0], false).unwrap().to_vec::<f32>().unwrap(), [4.0, 6.0]);
        assert_eq!(a.mean(&[], false).unwrap().item().unwrap(), 2.5);
        assert_eq!(a.transpose(&[1, 0]).unwrap().to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
        let parts = rt.op("split").unwrap().arg(&a).param("axis", 1).outputs(2).invoke_all().unwrap();
        assert_eq!(parts[1].to_vec::<f32>().unwrap(), [2.0, 4.0]);
        // The result's shape depends on elements: the call waits for them.
        let found = (&a - 1.0).unwrap().apply("nonzero").unwrap();
        assert_eq!((found.dims(), found.to_vec::<i64>().unwrap()), (&[2, 3][..], vec![0, 1, 1, 1, 0, 1]));
    }
}

#[test]
fn results_go_where_out_says() {
    for rt in runtimes() {
        let a = rt.array(&[2], &[1f32, 2.0]).unwrap();
        let out = rt.zeros(&[3, 2], DType::F32).unwrap();
        rt.op("add").unwrap().arg(&a).arg(&a).into(&[&out.row(1).unwrap()]).unwrap();
        assert_eq!(out.to_vec::<f32>().unwrap(), [0.0, 0.0, 2.0, 4.0, 0.0, 0.0]);
        let error = rt.op("add").unwrap().arg(&a).arg(&a).into(&[&out]).unwrap_err().to_string();
        assert!(error.contains("f32[2]") && error.contains("f32[3, 2]"), "{error}");
        // An operand that is the result as well is read before it is written.
        let m = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        rt.op("matmul").unwrap().arg(&m).arg(&m).into(&[&m]).unwrap();
        assert_eq!(m.to_vec::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
    }
}

#[test]
fn devices_have_memory_of_their_own() {
    for rt in runtimes_beside_gpu() {
        let a = rt.array(&[2], &[1f32, 2.0]).unwrap().copy_to(Device::cpu(0)).unwrap();
        let there = (&a + 1.0).unwrap().copy_to(GPU).unwrap();
        let result = (&there * 10.0).unwrap();
        assert_eq!(result.device(), GPU);
        assert_eq!(result.copy_to(Device::cpu(1)).unwrap().to_vec::<f32>().unwrap(), [20.0, 30.0]);
        assert!(rt.memory(GPU).peak > 0, "the driver's memory");
        let error = (&a + &there).unwrap_err().to_string();
        assert!(error.contains("cpu:0") && error.contains("gpu:0"), "{error}");
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers_everywhere() {
    let draw = |rt: &Runtime, device: Device| {
        let call = rt.op("random_normal").unwrap().param("shape", vec![100i64]).on(device);
        call.invoke().unwrap().to_vec::<f32>().unwrap()
    };
    let mut seen: Option<Vec<f32>> = None;
    for rt in runtimes_beside_gpu() {
        rt.seed(7);
        let first = draw(&rt, Device::cpu(0));
        assert_ne!(first, draw(&rt, Device::cpu(0)), "draws go on");
        assert_eq!(first, draw(&rt, GPU), "each device begins the sequence of the seed");
        assert_eq!(*seen.get_or_insert(first.clone()), first);
        rt.seed_device(Device::cpu(0), 7);
        assert_eq!(first, draw(&rt, Device::cpu(0)));
        rt.seed(8);
        assert_ne!(first, draw(&rt, Device::cpu(0)));
    }
}

/// Draws that are queued when the seed is set keep theirs, and those made after it do not depend on them.
#[test]
fn a088_the_same_seed_gives_the_same_numbers_while_earlier_draws_are_queued() {
    let distribution = |rt: &Runtime, dtype: DType, n: i64| {
        let share = rt.array(&[3, 4], &(1..=12).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let share = share.cast(dtype).unwrap();
        rt.op("sample_multinomial").unwrap().arg(&share).param("shape", vec![n]).invoke().unwrap()
    };
    let draws = |rt: &Runtime, n: u64| -> Vec<NDArray> {
        let floats = [DType::F16, DType::F32, DType::F64];
        let uniform = floats.map(|dtype| rt.uniform(&[n], dtype, -1.0, 2.0).unwrap());
        let multinomial = floats.map(|dtype| distribution(rt, dtype, n as i64));
        let integers = [DType::I32, DType::I64].map(|dtype| rt.randint(&[n], dtype, -5, 1000).unwrap());
        uniform.into_iter().chain(multinomial).chain(integers).collect()
    };
    let bytes = |arrays: &[NDArray]| -> Vec<Vec<u8>> {
        arrays.iter().map(|a| a.to_tensor().unwrap().bytes().to_vec()).collect()
    };
    let mut seen: Option<Vec<Vec<u8>>> = None;
    for rt in runtimes() {
        rt.seed(128);
        let queued = draws(&rt, 4000);
        rt.seed(128);
        let first = draws(&rt, 4000);
        rt.seed(129);
        let other = draws(&rt, 4000);
        let found = bytes(&first);
        assert_eq!(found, bytes(&queued));
        assert_eq!(*seen.get_or_insert(found.clone()), found, "every engine draws the same");
        assert!(bytes(&other).iter().zip(&found).all(|(a, b)| a != b), "another seed draws others");
    }
}

#[test]
fn seeds_from_the_system_differ() {
    let entropy = |rt: &Runtime| rt.seed_from_entropy().unwrap();
    let rt = runtime(EngineKind::Naive, false);
    assert_ne!(entropy(&rt), entropy(&rt));
}

#[test]
fn shuffling_permutes() {
    let rt = runtime(EngineKind::PerDevice, true);
    let values: Vec<i32> = (0..100).collect();
    let shuffled = rt.array(&[100], &values).unwrap().shuffle().unwrap().to_vec::<i32>().unwrap();
    let mut sorted = shuffled.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, values);
    assert_ne!(shuffled, values);
}

#[test]
fn arrays_of_ndarray_come_and_go() {
    let rt = new_runtime(RuntimeOptions::default());
    let a = array![[1i64, 2, 3], [4, 5, 6]];
    let there = rt.from_ndarray(&a.t().to_owned()).unwrap();
    assert_eq!(there.dims(), [3, 2]);
    let back: ArrayD<i64> = there.to_ndarray().unwrap();
    assert_eq!(back, a.t().to_owned().into_dyn());
}

#[test]
fn files_hold_names_and_types() {
    let rt = runtime(EngineKind::PerDevice, true);
    let path = std::env::temp_dir().join(format!("tensorc-ndarray-{}.params", std::process::id()));
    let w = (rt.array(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap() + 1.0).unwrap();
    let m = rt.array(&[1], &[7i64]).unwrap();
    rt.save(&path, [("arg:w", &w), ("aux:m", &m)]).unwrap();
    let loaded = rt.load(&path, Device::cpu(0)).unwrap();
    let names: Vec<_> = loaded.iter().map(|(name, _)| name.as_deref().unwrap()).collect();
    assert_eq!(names, ["arg:w", "aux:m"]);
    assert_eq!(loaded[0].1.to_vec::<f32>().unwrap(), w.to_vec::<f32>().unwrap());
    assert_eq!(loaded[1].1.to_vec::<i64>().unwrap(), [7]);
    rt.save_list(&path, [&w]).unwrap();
    assert_eq!(rt.load(&path, Device::cpu(0)).unwrap().len(), 1, "one array is a list of one");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    assert!(rt.load(&path, Device::cpu(0)).is_err());
    std::fs::remove_file(&path).unwrap();
}
