//! Stores of several ranks, which are threads of this process with a runtime each.

use std::time::Duration;

use tensorc::runtime::Profiler;
use tensorc::runtime::profiler::EventKind;
use tensorc_nd::Runtime;
use tensorc_train::Error;
use tensorc_train::kvstore::transport::threads::{self, ThreadTransport};
use tensorc_train::kvstore::{Compression, Group, GroupOptions, KVStore, StoreKind};
use tensorc_train::{Module, Optimizer};

use super::modules::{BATCH, batch, bound, trained};
use super::{FAILURE, assert_all, full, runtime};

/// Runs a program on every rank of a store.
fn on_ranks<T: Send>(
    ranks: usize,
    kind: StoreKind,
    deadline: Duration,
    program: impl Fn(&Runtime, &KVStore) -> T + Sync,
) -> Vec<T> {
    with_options(ranks, kind, &GroupOptions { deadline, ..GroupOptions::default() }, program)
}

fn with_options<T: Send>(
    ranks: usize,
    kind: StoreKind,
    options: &GroupOptions,
    program: impl Fn(&Runtime, &KVStore) -> T + Sync,
) -> Vec<T> {
    let transports = threads::group(ranks);
    let one = |transport: ThreadTransport| {
        let options = options.clone();
        let group = Group::join(move || Ok(Box::new(transport)), options).unwrap();
        let rt = runtime();
        let store = KVStore::of_group(&rt, kind, group).unwrap();
        program(&rt, &store)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = transports.into_iter().map(|transport| scope.spawn(move || one(transport))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const PATIENT: Duration = Duration::from_secs(60);
const SYNC: [StoreKind; 2] = [StoreKind::DistSync, StoreKind::DistDeviceSync];

/// Closed forms: after n pushes of rank + 1 by every rank, sums, and values that a function adds to.
#[test]
fn pushes_of_all_ranks_are_summed() {
    for kind in SYNC {
        for ranks in 1..=4 {
            on_ranks(ranks, kind, PATIENT, |rt, store| {
                let rank = store.rank() as f64;
                let all = (ranks * (ranks + 1) / 2) as f32;
                let out = full(rt, 0.0);
                // The first value is that of rank 0.
                store.init("w", &full(rt, rank + 4.0)).unwrap();
                store.pull("w", &[&out], 0).unwrap();
                assert_all(&out, 4.0);
                store.push("w", &[&full(rt, rank + 1.0), &full(rt, 0.5)], 0).unwrap();
                store.pull("w", &[&out], 0).unwrap();
                assert_all(&out, all + 0.5 * ranks as f32);
                store.set_updater(|_, pushed, value| Ok((value + pushed)?.copy_into(value)?)).unwrap();
                for _ in 0..3 {
                    store.push("w", &[&full(rt, rank + 1.0)], 0).unwrap();
                }
                store.pull("w", &[&out], 0).unwrap();
                assert_all(&out, 4.0 * all + 0.5 * ranks as f32);
                store.barrier().unwrap();
                store.close().unwrap();
            });
        }
    }
}

/// Values of many sizes and types, several keys at once, and one that is cut into several pieces.
#[test]
fn values_of_every_size_are_summed() {
    on_ranks(3, StoreKind::DistSync, PATIENT, |rt, store| {
        let sizes = [1u64, 7, 1200 * 1200, 3_000_001, 64];
        let mut values = vec![];
        for (key, size) in sizes.iter().enumerate() {
            let own: Vec<f32> = (0..*size).map(|at| (at % 1000) as f32 * (store.rank() + 1) as f32).collect();
            values.push((key as i32, rt.array(&[*size], &own).unwrap()));
            store.init(key as i32, &rt.zeros(&[*size], tensorc::DType::F32).unwrap()).unwrap();
        }
        let list: Vec<_> = values.iter().map(|(key, value)| ((*key).into(), vec![value])).collect();
        store.push_all(&list, 0).unwrap();
        for (key, value) in &values {
            store.pull(*key, &[value], 0).unwrap();
            let found = value.to_vec::<f32>().unwrap();
            assert!(found.iter().enumerate().all(|(at, v)| *v == (at % 1000) as f32 * 6.0), "key {key}");
        }
        for dtype in [tensorc::DType::F64, tensorc::DType::F16, tensorc::DType::BF16, tensorc::DType::I32] {
            let value = rt.full(rt.options().device, dtype, &[9], 3.0).unwrap();
            store.broadcast(format!("{dtype}").len() as i32 * 1000 + dtype as i32, &value, &[&value], 0).unwrap();
            store.pushpull(format!("{dtype}").len() as i32 * 1000 + dtype as i32, &[&value], &[&value], 0).unwrap();
            assert_eq!(value.cast(tensorc::DType::F64).unwrap().to_vec::<f64>().unwrap(), [9.0; 9]);
        }
        store.close().unwrap();
    });
}

#[test]
fn optimizers_of_all_ranks_are_that_of_the_first() {
    let states = on_ranks(2, StoreKind::DistSync, PATIENT, |rt, store| {
        store.init("w", &full(rt, 1.0)).unwrap();
        store.set_optimizer(Optimizer::sgd(if store.rank() == 0 { 0.25 } else { 7.0 }, 0.5)).unwrap();
        let out = full(rt, 0.0);
        store.push("w", &[&full(rt, 1.0)], 0).unwrap();
        store.push("w", &[&full(rt, 1.0)], 0).unwrap();
        store.pull("w", &[&out], 0).unwrap();
        assert_all(&out, 1.0 - 0.5 - 0.75);
        let path = std::env::temp_dir().join(format!("tensorc-ranks-{}-{}", store.rank(), std::process::id()));
        store.save_optimizer_states(&path).unwrap();
        let saved = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        store.close().unwrap();
        saved
    });
    assert_eq!(states[0], states[1]);
}

/// 2 bits: what is below the threshold waits in the residual.
#[test]
fn gradients_are_compressed() {
    on_ranks(2, StoreKind::DistSync, PATIENT, |rt, store| {
        let out = full(rt, 0.0);
        for (key, compression) in [Compression::TwoBit { threshold: 0.5 }, Compression::F16].into_iter().enumerate() {
            store.set_gradient_compression(compression).unwrap();
            let key = key as i32;
            store.init(key, &full(rt, 0.0)).unwrap();
            let pushed = |value: f64| {
                store.push(key, &[&full(rt, value)], 0).unwrap();
                store.pull(key, &[&out], 0).unwrap();
                out.to_vec::<f32>().unwrap()[0]
            };
            let found = [pushed(0.3), pushed(0.3), pushed(-2.0), pushed(0.1)];
            match compression {
                // Residuals: 0.3, 0.1 (sent 0.5), -1.4 (sent -0.5), -0.8 (sent -0.5).
                Compression::TwoBit { .. } => assert_eq!(found, [0.0, 1.0, -1.0, -1.0]),
                _ => assert_eq!(found.map(|v| (v * 1000.0).round()), [600.0, 600.0, -4000.0, 200.0]),
            }
        }
        let wide = rt.zeros(&[2], tensorc::DType::F64).unwrap();
        store.init(9, &wide).unwrap();
        assert!(store.push(9, &[&wide], 0).unwrap_err().to_string().contains("f32, not of f64"));
        store.close().unwrap();
    });
}

/// What a rank sends of a large gradient, in relation to its bytes, by the traces.
#[test]
fn compression_saves_what_it_says() {
    const COUNT: u64 = 1 << 20;
    let kinds = [
        (Compression::None, 1),
        (Compression::F16, 2),
        (Compression::BF16, 2),
        (Compression::TwoBit { threshold: 0.5 }, 16),
        (Compression::OneBit { threshold: 0.0 }, 32),
    ];
    for (compression, share) in kinds {
        let profiler = Profiler::default();
        profiler.start();
        let traced = GroupOptions { profiler: Some(profiler.clone()), ..GroupOptions::default() };
        with_options(2, StoreKind::DistSync, &traced, |rt, store| {
            store.set_gradient_compression(compression).unwrap();
            store.init("w", &rt.zeros(&[COUNT], tensorc::DType::F32).unwrap()).unwrap();
            store.push("w", &[&rt.zeros(&[COUNT], tensorc::DType::F32).unwrap()], 0).unwrap();
            rt.wait_all().unwrap();
            store.close().unwrap();
        });
        let recording = profiler.recording();
        let sums = recording
            .events()
            .into_iter()
            .filter(|(_, event)| event.category == "communication" && event.name.starts_with('w'));
        let sent: u64 =
            sums.map(|(_, event)| if let EventKind::Span { bytes, .. } = event.kind { bytes } else { 0 }).sum();
        // Of two ranks each sends its array once, in all.
        assert_eq!(sent, 2 * 4 * COUNT / share, "{compression:?}");
    }
}

/// Every push moves the value at once; a rank sees its own pushes.
#[test]
fn asynchronous_pushes_move_values_at_once() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, StoreKind::DistAsync, PATIENT, |rt, store| {
            let (rank, large) = (store.rank(), 1_200_000u64);
            store.init("w", &full(rt, 10.0)).unwrap();
            store.init("large", &rt.zeros(&[large], tensorc::DType::F32).unwrap()).unwrap();
            assert!(store.set_updater(|_, _, _| Ok(())).is_err());
            store.set_optimizer(Optimizer::sgd(1.0, 0.0)).unwrap();
            assert!(store.save_optimizer_states("nowhere").unwrap_err().to_string().contains("servers"));
            let out = full(rt, 0.0);
            for step in 1..=5 {
                store.push("w", &[&full(rt, -1.0)], 0).unwrap();
                store.pull("w", &[&out], 0).unwrap();
                let found = out.to_vec::<f32>().unwrap();
                let own = 10.0 + step as f32;
                assert!(found.iter().all(|v| (own..=10.0 + 5.0 * ranks as f32).contains(v)), "{found:?}");
            }
            let one = rt.full(rt.options().device, tensorc::DType::F32, &[large], rank as f64 + 1.0).unwrap();
            store.push("large", &[&one], 0).unwrap();
            rt.wait_all().unwrap();
            store.barrier().unwrap();
            store.pull("w", &[&out], 0).unwrap();
            assert_all(&out, 10.0 + 5.0 * ranks as f32);
            store.pull("large", &[&one], 0).unwrap();
            assert_all(&one, -((ranks * (ranks + 1) / 2) as f32));
            store.close().unwrap();
        });
    }
}

#[test]
fn an_asynchronous_push_needs_an_optimizer() {
    let errors = on_ranks(2, StoreKind::DistAsync, Duration::from_secs(5), |rt, store| {
        store.init("w", &full(rt, 1.0)).unwrap();
        store.push("w", &[&full(rt, 1.0)], 0).unwrap();
        let out = full(rt, 0.0);
        store.pull("w", &[&out], 0).unwrap();
        out.to_vec::<f32>().unwrap_err().to_string()
    });
    errors.iter().for_each(|error| assert!(error.contains("the store has no optimizer"), "{error}"));
}

fn module_of(rt: &Runtime, store: &KVStore, micro: usize) -> (Module, u64, u64) {
    let (rank, ranks) = (store.rank() as u64, store.num_workers() as u64);
    rt.seed(3);
    let module = bound(rt, BATCH / ranks, |module| module.kvstore(store).micro_batches(micro));
    rt.seed(9);
    (module, rank, ranks)
}

/// Parameters and running statistics have the same bits on 1, 2 and 4 ranks with 4 and 8 micro-batches, with dropout.
#[test]
fn ranks_do_not_change_bits() {
    for micro in [4, 8] {
        let mut expected = None;
        for ranks in [1, 2, 4] {
            let params = on_ranks(ranks, StoreKind::DistSync, PATIENT, |rt, store| {
                let (mut module, rank, ranks) = module_of(rt, store, micro);
                let (params, _) = trained(&mut module, 50, rank, ranks);
                store.close().unwrap();
                params
            });
            for of_rank in params {
                assert_eq!(of_rank, *expected.get_or_insert_with(|| of_rank.clone()), "{ranks} ranks, {micro} parts");
            }
        }
    }
}

/// Asynchronous training learns, and in the end every rank can have the servers' parameters. Ranks wait for each other after
/// each step: a rank that the machine keeps for many steps would send gradients of parameters of long ago.
#[test]
fn asynchronous_modules_train() {
    let trained = on_ranks(2, StoreKind::DistAsync, PATIENT, |rt, store| {
        let (mut module, rank, ranks) = module_of(rt, store, 2);
        // With momentum, late gradients may carry parameters far away.
        module.init_optimizer(Optimizer::sgd(0.2, 0.0)).unwrap();
        let loss = |module: &mut Module| {
            module.forward(&batch(0, rank, ranks), false).unwrap();
            let scores = module.outputs()[0].to_vec::<f32>().unwrap();
            let labels = batch(0, rank, ranks).labels[0].to_vec::<f32>().unwrap();
            labels.iter().zip(scores.chunks(5)).map(|(label, row)| -row[*label as usize].ln()).sum::<f32>()
        };
        let before = loss(&mut module);
        for _ in 0..40 {
            module.step(&batch(0, rank, ranks)).unwrap();
            rt.wait_all().unwrap();
            store.barrier().unwrap();
        }
        let parameters = module.parameters().map(|(name, array)| {
            store.pull(name, &[array], 0).unwrap();
            (name.to_owned(), array.to_vec::<f32>().unwrap())
        });
        let parameters: Vec<_> = parameters.collect();
        let after = loss(&mut module);
        store.close().unwrap();
        (before, after, parameters)
    });
    trained.iter().for_each(|(before, after, _)| assert!(*after < before / 2.0, "{before} to {after}"));
    assert_eq!(trained[0].2, trained[1].2);
}

/// A rank whose data cannot be computed, one with a batch more, one of another shape: an error on every rank.
#[test]
fn every_rank_hears_of_an_error() {
    let limit = Duration::from_secs(5);
    let errors = |program: &(dyn Fn(&Runtime, &KVStore) -> Result<(), Error> + Sync)| {
        on_ranks(3, StoreKind::DistSync, limit, |rt, store| program(rt, store).unwrap_err().to_string())
    };
    let failed = errors(&|rt, store| {
        store.init("w", &full(rt, 1.0))?;
        let value = if store.rank() == 1 { full(rt, 1.0).apply("broken")? } else { full(rt, 1.0) };
        store.push("w", &[&value], 0)?;
        let out = full(rt, 0.0);
        store.pull("w", &[&out], 0)?;
        Ok(out.to_vec::<f32>().map(drop)?)
    });
    failed.iter().for_each(|error| assert!(error.contains(FAILURE) && error.contains("broken"), "{error}"));
    let more = errors(&|rt, store| {
        store.init("w", &full(rt, 1.0))?;
        for _ in 0..if store.rank() == 2 { 3 } else { 2 } {
            store.push("w", &[&full(rt, 1.0)], 0)?;
        }
        let pushed = rt.wait_all();
        store.close().and(pushed.map_err(Error::from))
    });
    more.iter().for_each(|error| assert!(error.contains("rank 2 calls sum of `w`"), "{error}"));
    let shape = errors(&|rt, store| {
        let size = if store.rank() == 0 { 4 } else { 5 };
        store.init("w", &rt.zeros(&[size], tensorc::DType::F32)?)
    });
    shape.iter().for_each(|error| assert!(error.contains("f32 × 4") && error.contains("f32 × 5"), "{error}"));
    let transposed = errors(&|rt, store| {
        let dims = if store.rank() == 0 { [2, 3] } else { [3, 2] };
        store.init("w", &rt.zeros(&dims, tensorc::DType::F32)?)
    });
    transposed.iter().for_each(|error| assert!(error.contains("[2, 3]") && error.contains("[3, 2]"), "{error}"));
}

/// Ranks that learn other parameters would add gradients that have nothing to do with each other.
#[test]
fn ranks_that_learn_other_parameters_are_told_so() {
    let errors = on_ranks(2, StoreKind::DistSync, PATIENT, |rt, store| {
        let fixed = if store.rank() == 0 { vec![] } else { vec!["fc_bias"] };
        let mut module = bound(rt, BATCH / 2, |module| module.kvstore(store).fixed(fixed));
        let error = module.step(&batch(0, store.rank() as u64, 2)).unwrap_err().to_string();
        store.close().unwrap();
        error
    });
    assert!(errors.iter().all(|e| e.contains("rank 0 learns `fc_bias`, which rank 1 does not")), "{errors:?}");
}

#[test]
fn what_cannot_be_summed_is_refused() {
    on_ranks(2, StoreKind::DistSync, PATIENT, |rt, store| {
        let mut module = bound(rt, BATCH / 2, |module| module.kvstore(store));
        module.forward(&batch(0, store.rank() as u64, 2), true).unwrap();
        let alone = module.backward(&[]).unwrap_err().to_string();
        assert!(alone.contains("2 in a step; use `step`"), "{alone}");
        store.close().unwrap();
    });
}

/// A key that comes twice in one call has two turns.
#[test]
fn a_key_may_come_twice() {
    on_ranks(2, StoreKind::DistSync, PATIENT, |rt, store| {
        store.init("w", &full(rt, 0.0)).unwrap();
        store.set_updater(|_, pushed, value| Ok((value + pushed)?.copy_into(value)?)).unwrap();
        let (one, two) = (full(rt, 1.0), full(rt, 2.0));
        store.push_all(&[("w".into(), vec![&one]), ("w".into(), vec![&two])], 0).unwrap();
        let out = full(rt, -1.0);
        store.pull("w", &[&out], 0).unwrap();
        assert_all(&out, 6.0);
        store.close().unwrap();
    });
}

/// Parameters of an asynchronous store may be given again.
#[test]
fn servers_take_other_parameters() {
    let params = on_ranks(2, StoreKind::DistAsync, PATIENT, |rt, store| {
        let (mut module, ..) = module_of(rt, store, 2);
        let first = module.params().unwrap();
        module.step(&batch(0, store.rank() as u64, 2)).unwrap();
        module.set_params(&first, false).unwrap();
        store.barrier().unwrap();
        let out = rt.zeros(&[5], tensorc::DType::F32).unwrap();
        store.pull("fc_bias", &[&out], 0).unwrap();
        let found = out.to_vec::<f32>().unwrap();
        assert_eq!(tensorc::Tensor::from_f32(&[5], &found).unwrap(), first.arguments["fc_bias"]);
        store.close().unwrap();
        found
    });
    assert_eq!(params[0], params[1]);
}
