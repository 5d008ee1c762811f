//! Optimizers: the same steps as MXNet's, on arrays and in graphs; states in files.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;
use tensorc::ir::DenseType;
use tensorc::ir::build::Builder;
use tensorc::runtime::Device;
use tensorc::{DType, Graph};
use tensorc_nd::{NDArray, Runtime};
use tensorc_train::{Clock, LrSchedule, Optimizer, OptimizerRule, Updater, scalar_at};

use super::{assert_close, floats, reference, runtime};

const SHAPES: [(&str, &[u64]); 2] = [("fc_bias", &[3]), ("fc_weight", &[2, 3])];

/// Arrays of a JSON object, by name.
fn arrays(rt: &Runtime, values: &Json) -> BTreeMap<String, NDArray> {
    let array = |(name, dims): (&str, &[u64])| {
        let data: Vec<f32> = floats(&values[name]).iter().map(|x| *x as f32).collect();
        (name.to_owned(), rt.array(dims, &data).unwrap())
    };
    SHAPES.into_iter().map(array).collect()
}

fn values(array: &NDArray) -> Vec<f64> {
    array.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

/// Every rule, with and without clipping, five steps; the numbers of A087 are in `ops/tests/integration/updates.rs`.
#[test]
fn every_rule_steps_as_mxnet_does() {
    let (rt, reference) = (runtime(), reference());
    let all = &reference["optimizers"];
    for case in all["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let what = format!("{name} {}", case["settings"]);
        let optimizer = Optimizer::from_settings(name, &case["settings"]).unwrap();
        // A configuration survives its own text.
        let text = serde_json::to_string(&optimizer).unwrap();
        assert_eq!(serde_json::from_str::<Optimizer>(&text).unwrap(), optimizer, "{what}");
        let weights = arrays(&rt, &all["weights"]);
        let mut updater = Updater::new(optimizer);
        for (step, grads) in all["gradients"].as_array().unwrap().iter().enumerate() {
            let grads = arrays(&rt, grads);
            for (name, weight) in &weights {
                updater.update(name, weight, &grads[name]).unwrap();
                let expected = floats(&case["steps"][step][name]);
                // MXNet's momentum decays the weight it has just written, ours the one before.
                let tolerance = if what.starts_with("nag") { 1e-3 } else { 2e-5 };
                assert_close(&format!("{what}, {name}, step {step}"), &values(weight), &expected, tolerance);
            }
        }
    }
}

/// The updates of all parameters as one graph, whose numbers are one operand.
fn step_graph(rt: &Runtime, optimizer: &Optimizer) -> (Graph, Vec<DenseType>) {
    let registry = rt.compiler().registry();
    let mut graph = Graph::new("step");
    let mut types = vec![];
    let mut updates = vec![];
    let mut input = |graph: &mut Graph, name: String, ty: DenseType| {
        types.push(ty.clone());
        graph.add_input(name, ty.into())
    };
    for (name, dims) in SHAPES {
        let update = optimizer.update_of(registry, name, DType::F32).unwrap();
        let ty = DenseType::new(DType::F32, dims);
        let weight = input(&mut graph, name.to_owned(), ty.clone());
        let grad = input(&mut graph, format!("{name}_grad"), ty.clone());
        let states: Vec<_> =
            update.states.iter().map(|s| input(&mut graph, format!("{name}_{}", s.name), ty.clone())).collect();
        updates.push((update, weight, grad, states));
    }
    let count: usize = updates.iter().map(|(u, ..)| u.numbers.len()).sum();
    let vector = input(&mut graph, "numbers".into(), DenseType::new(DType::F32, [count as u64]));
    let mut b = Builder::new(&mut graph, registry, Arc::from("update"), &|_, _| None);
    let (mut at, mut results) = (0, vec![]);
    for (update, weight, grad, states) in updates {
        let numbers: Vec<_> = (at..at + update.numbers.len()).map(|i| scalar_at(&mut b, vector, i).unwrap()).collect();
        at += numbers.len();
        let emitted = optimizer.emit(&mut b, &update, weight, grad, &states, &numbers).unwrap();
        results.push(emitted.weight);
        results.extend(emitted.states);
    }
    for (i, value) in results.into_iter().enumerate() {
        graph.add_output(format!("next{i}"), value);
    }
    (graph, types)
}

/// The two ways to apply an optimizer use the same entries, so they give the same bits.
#[test]
fn updates_in_a_graph_equal_those_of_arrays() {
    let (rt, reference) = (runtime(), reference());
    let all = &reference["optimizers"];
    for settings in ["sgd", "adam", "lamb", "rmsprop"] {
        let optimizer =
            Optimizer::from_settings(settings, &serde_json::json!({"wd": 0.01, "rescale_grad": 0.25})).unwrap();
        let (graph, types) = step_graph(&rt, &optimizer);
        let function = rt.function(&rt.compiler().model(graph), &types).unwrap();
        let by_array = arrays(&rt, &all["weights"]);
        let by_graph = arrays(&rt, &all["weights"]);
        let mut updater = Updater::new(optimizer.clone());
        let mut clock = Clock::default();
        let mut kept: BTreeMap<String, Vec<NDArray>> = BTreeMap::new();
        for grads in all["gradients"].as_array().unwrap() {
            let grads = arrays(&rt, grads);
            let (mut inputs, mut outputs, mut numbers) = (vec![], vec![], vec![]);
            for (name, weight) in &by_graph {
                let update = optimizer.update_of(rt.compiler().registry(), name, DType::F32).unwrap();
                let zeros = || update.states.iter().map(|_| rt.zeros(weight.dims(), DType::F32).unwrap()).collect();
                let states = kept.entry(name.clone()).or_insert_with(zeros);
                inputs.extend([weight.clone(), grads[name].clone()].into_iter().chain(states.clone()));
                outputs.extend([weight.clone()].into_iter().chain(states.clone()));
                numbers.extend(optimizer.numbers(&update, name, &mut clock).iter().map(|x| *x as f32));
                updater.update(name, &by_array[name], &grads[name]).unwrap();
            }
            inputs.push(rt.array(&[numbers.len() as u64], &numbers).unwrap());
            function.call_into(&inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(clock, updater.clock);
        for (name, weight) in &by_graph {
            assert_eq!(weight.to_bytes().unwrap(), by_array[name].to_bytes().unwrap(), "{settings}, {name}");
        }
    }
}

#[test]
fn rates_and_decays_go_by_parameter() {
    let rt = runtime();
    let mut optimizer = Optimizer::sgd(0.5, 0.0).weight_decay(0.1);
    let attributes =
        [("a_weight", "__lr_mult__", "0.1"), ("b_weight", "__wd_mult__", "2"), ("a_weight", "__shape__", "(1,)")];
    optimizer.lr_mult.insert("frozen_weight".into(), 0.0);
    optimizer.read_multipliers(attributes).unwrap();
    let wrong = optimizer.read_multipliers([("x", "__lr_mult__", "fast")]).unwrap_err();
    assert_eq!(wrong.to_string(), "parameter `x`: its attribute `__lr_mult__` is `fast`, no number");
    let mut updater = Updater::new(optimizer);
    let mut step = |name: &str| {
        let (weight, grad) = (rt.array(&[1], &[1f32]).unwrap(), rt.array(&[1], &[2f32]).unwrap());
        updater.update(name, &weight, &grad).unwrap();
        f64::from(weight.to_vec::<f32>().unwrap()[0])
    };
    // weight - rate · (gradient + decay · weight)
    for (name, expected) in [
        ("a_weight", 1.0 - 0.05 * 2.1),
        ("b_weight", 1.0 - 0.5 * 2.2),
        ("frozen_weight", 1.0),
        ("a_bias", 0.0),
        ("bn_gamma", 1.0 - 0.5 * 2.1),
        ("bn_beta", 0.0),
        ("weight", 0.0),
    ] {
        assert_close(name, &[step(name)], &[expected], 1e-6);
    }
}

#[test]
fn schedules_follow_the_parameter_updated_most() {
    let mut clock = Clock::default();
    let optimizer = Optimizer::sgd(1.0, 0.0).schedule(LrSchedule::factor(1.0, 2, 0.5));
    assert_eq!([clock.tick("a", 0), clock.tick("a", 0), clock.tick("a", 0), clock.tick("b", 0)], [1, 2, 3, 1]);
    assert_eq!((clock.latest, optimizer.rate_of("b", &clock)), (3, 0.5));
    let mut later = Clock::default();
    assert_eq!(later.tick("a", 10), 11);
}

/// A run that stops, saves and goes on gives the same bits as one that does not stop.
#[test]
fn saved_states_continue_a_run() {
    let (rt, reference) = (runtime(), reference());
    let all = &reference["optimizers"];
    let grads: Vec<_> = all["gradients"].as_array().unwrap().iter().map(|g| arrays(&rt, g)).collect();
    let path = std::env::temp_dir().join(format!("tensorc-states-{}.params", std::process::id()));
    for name in ["adam", "ftml", "signum"] {
        let make = || Updater::new(Optimizer::from_settings(name, &Json::Null).unwrap());
        let run = |updater: &mut Updater, weights: &BTreeMap<String, NDArray>, steps: std::ops::Range<usize>| {
            for g in &grads[steps] {
                weights.iter().for_each(|(name, w)| updater.update(name, w, &g[name]).unwrap());
            }
        };
        let (mut whole, weights) = (make(), arrays(&rt, &all["weights"]));
        run(&mut whole, &weights, 0..5);
        let (mut first, halfway) = (make(), arrays(&rt, &all["weights"]));
        run(&mut first, &halfway, 0..3);
        first.save(&rt, &path).unwrap();
        let mut second = make();
        second.load(&rt, Device::cpu(0), &path, halfway.iter().map(|(n, w)| (n.as_str(), w))).unwrap();
        assert_eq!(second.clock, first.clock);
        run(&mut second, &halfway, 3..5);
        for (name, weight) in &weights {
            assert_eq!(weight.to_bytes().unwrap(), halfway[name].to_bytes().unwrap(), "{name}");
        }
        let other = rt.zeros(&[7], DType::F32).unwrap();
        let wrong = make().load(&rt, Device::cpu(0), &path, [("fc_weight", &other)]).unwrap_err().to_string();
        assert!(wrong.starts_with("parameter `fc_weight`: `fc_weight_"), "{wrong}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn sixteen_bit_weights_can_have_copies_in_f32() {
    let rt = runtime();
    let half = |x: f32| rt.array(&[2], &[x, -x]).unwrap().cast(DType::F16).unwrap();
    let read = |a: &NDArray| a.cast(DType::F32).unwrap().to_vec::<f32>().unwrap();
    // Steps below the resolution of f16 around 1: lost without a copy, kept with one.
    for (optimizer, expected) in
        [(Optimizer::sgd(1e-4, 0.0), 1.0), (Optimizer::sgd(1e-4, 0.0).multi_precision(), 1.0 - 100.0 * 1e-4)]
    {
        let weight = half(1.0);
        let mut updater = Updater::new(optimizer);
        for _ in 0..100 {
            updater.update("w_weight", &weight, &half(1.0)).unwrap();
        }
        assert!((read(&weight)[0] - expected).abs() < 6e-4, "{:?}", read(&weight));
        let names: Vec<String> = updater.named_states().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), usize::from(expected != 1.0), "{names:?}");
    }
    let integers = rt.zeros(&[2], DType::I32).unwrap();
    let wrong = Updater::new(Optimizer::new(OptimizerRule::Sgd { momentum: 0.0 }))
        .update("n", &integers, &integers)
        .unwrap_err();
    assert_eq!(wrong.to_string(), "parameter `n`: it holds i32, which no gradient moves");
}

#[test]
fn adamw_decays_apart_from_the_averages() {
    // One step from zero averages: the direction is the sign of the gradient, whatever its size.
    let rt = runtime();
    let rule = OptimizerRule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-12 };
    let mut updater = Updater::new(Optimizer::new(rule).rate(0.1).weight_decay(0.5));
    let weight = rt.array(&[2], &[2f32, 4.0]).unwrap();
    updater.update("w_weight", &weight, &rt.array(&[2], &[1e-3f32, -7.0]).unwrap()).unwrap();
    assert_close("adamw", &values(&weight), &[2.0 - 0.1 * (1.0 + 1.0), 4.0 - 0.1 * (2.0 - 1.0)], 1e-5);
}

#[test]
fn wrong_settings_are_named() {
    let error = |name: &str, settings: Json| Optimizer::from_settings(name, &settings).unwrap_err().to_string();
    assert!(error("sgdd", Json::Null).contains("unknown variant `sgdd`"));
    assert!(error("sgd", serde_json::json!({"beta1": 0.9})).contains("unknown field `beta1`"));
    assert!(error("adam", serde_json::json!([1])).contains("not names and values"));
}
