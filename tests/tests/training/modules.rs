//! Modules: learning digits, and what surrounds a run.

use std::collections::BTreeMap;
use std::path::Path;

use tensorc::Tensor;
use tensorc_data::iter::epoch;
use tensorc_data::{Batch, Batches, DataDesc, DataIter, Position};
use tensorc_nd::executor::GradReq;

use tensorc::symbol::{Symbol, name_scope, op};
use tensorc_train::metric::{self, Accuracy};
use tensorc_train::{Buckets, Fit, Initializer, Module, Network, Optimizer, load_checkpoint};

use super::runtime;
use crate::support::npz;

/// The first digits of 8 by 8, flat or as images, and those after them.
fn digits(shape: &[u64], train: usize, batch: usize) -> (Batches, Batches) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/all.npz");
    let arrays: BTreeMap<String, Tensor> = npz::read(&path).into_iter().collect();
    let (x, y) = (arrays["x"].bytes(), arrays["y"].bytes());
    let part = |range: std::ops::Range<usize>| {
        let dims: Vec<u64> = [range.len() as u64].into_iter().chain(shape.iter().copied()).collect();
        let pixels: Vec<f32> = x[range.start * 64..range.end * 64].iter().map(|p| f32::from(*p) / 8.0 - 1.0).collect();
        let labels: Vec<f32> = y[range.clone()].iter().map(|l| f32::from(*l)).collect();
        let labels = Tensor::from_f32(&[range.len() as u64], &labels).unwrap();
        Batches::labelled(Tensor::from_f32(&dims, &pixels).unwrap(), labels, batch).unwrap()
    };
    (part(0..train).shuffle(5), part(train..y.len()))
}

fn perceptron() -> Symbol {
    let _names = name_scope();
    let hidden = op("FullyConnected").input(&Symbol::variable("data")).param("num_hidden", 32).name("fc1").build();
    let hidden = op("Activation").input(&hidden.unwrap()).param("act_type", "relu").build().unwrap();
    let scores = op("FullyConnected").input(&hidden).param("num_hidden", 10).name("fc2").build().unwrap();
    op("SoftmaxOutput").input(&scores).name("softmax").build().unwrap()
}

fn learner(batches: &Batches) -> Module {
    let rt = runtime();
    rt.seed(2);
    let mut module = Module::of(&rt, &perceptron()).batches(batches).bind().unwrap();
    module.init_params(&Initializer::xavier(3.0)).unwrap();
    module.init_optimizer(Optimizer::sgd(0.2, 0.9)).unwrap();
    module
}

/// A perceptron learns digits; scoring, predicting and reports agree.
#[test]
fn a_module_learns_digits() {
    let (mut train, mut test) = digits(&[64], 1400, 50);
    let mut module = learner(&train);
    let before = module.score(&mut test, &mut Accuracy::default()).unwrap()[0].1;
    let mut reports = vec![];
    let fit = Fit::epochs(6).evaluate(&mut test).metric(metric::create("acc,ce").unwrap()).quiet();
    let last = module.fit(&mut train, fit.on_epoch(|report| reports.push(report.clone()))).unwrap().unwrap();
    assert_eq!((reports.len(), reports.last()), (6, Some(&last)));
    let accuracy = last.evaluation[0].1;
    assert!(before < 0.3 && accuracy > 0.9, "{before} to {accuracy}");
    assert!(reports[0].train[1].1 > last.train[1].1, "{reports:?}");
    // 397 held-out digits: the last batch is filled up, which neither counts nor is returned.
    let scores = module.predict(&mut test).unwrap().remove(0);
    assert_eq!(scores.dims(), [397, 10]);
    let labels: Vec<f32> =
        epoch(&mut test).flat_map(|b| b.unwrap().labels[0].to_vec::<f32>().unwrap()).take(397).collect();
    let mut again = Accuracy::default();
    metric::Metric::update(&mut again, &[Tensor::from_f32(&[397], &labels).unwrap()], &[scores]).unwrap();
    assert_eq!(metric::Metric::values(&again)[0].1, accuracy);
}

/// The two ways to run a step give the same parameters, as does a run that is interrupted and taken up again.
#[test]
fn ways_to_train_agree() {
    let (train, _) = digits(&[64], 200, 40);
    let run = |fit: Fit<'_>| {
        let mut module = learner(&train);
        module.fit(&mut train.clone(), fit.quiet()).unwrap();
        module
    };
    let whole = run(Fit::epochs(3)).params().unwrap();
    let apart = run(Fit::epochs(3).step_by_step()).params().unwrap();
    for (name, value) in &whole.arguments {
        let other = apart.arguments[name].to_f32().unwrap();
        assert!(value.to_f32().unwrap().iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
    }
    let prefix = std::env::temp_dir().join(format!("tensorc-module-{}", std::process::id()));
    run(Fit::epochs(2).checkpoint(&prefix));
    let (symbol, params) = load_checkpoint(&prefix, 2).unwrap();
    assert_eq!(symbol.to_json(), perceptron().to_json());
    let mut module = Module::of(&runtime(), &symbol).batches(&train).bind().unwrap();
    module.set_params(&params, false).unwrap();
    module.init_optimizer(Optimizer::sgd(0.2, 0.9)).unwrap();
    module.load_optimizer_states(&prefix, 2).unwrap();
    let mut rest = train.clone();
    rest.seek(Position::new(2, 0)).unwrap();
    module.fit(&mut rest, Fit::epochs(3).begin(2).quiet()).unwrap();
    assert_eq!(module.params().unwrap(), whole);
    for file in ["-symbol.json", "-0001.params", "-0002.params", "-0001.states", "-0002.states"] {
        std::fs::remove_file(format!("{}{file}", prefix.display())).unwrap();
    }
}

#[test]
fn fixed_parameters_stay_and_gradients_of_data_are_there() {
    let (mut train, _) = digits(&[64], 100, 50);
    let rt = runtime();
    let builder = Module::of(&rt, &perceptron()).batches(&train).fixed(["fc1_weight"]).inputs_need_grad();
    let mut module = builder.bind().unwrap();
    module.init_params(&Initializer::uniform(0.1)).unwrap();
    let wrong = module.step(&train.next().unwrap().unwrap()).unwrap_err();
    assert_eq!(wrong.to_string(), "optimizer: there is no optimizer; call `init_optimizer`");
    module.init_optimizer(Optimizer::adam(0.01)).unwrap();
    let before = module.params().unwrap();
    module.fit(&mut train, Fit::epochs(1).quiet()).unwrap();
    let after = module.params().unwrap();
    let moved = |name: &str| before.arguments[name] != after.arguments[name];
    assert_eq!([moved("fc1_weight"), moved("fc1_bias"), moved("fc2_weight")], [false, true, true]);
    assert!(module.gradient("data").unwrap().to_vec::<f32>().unwrap().iter().any(|g| *g != 0.0));
    assert!(module.gradient("fc1_weight").is_err());
    let missing = module.set_params(&Default::default(), false).unwrap_err();
    assert_eq!(missing.to_string(), "parameter `fc1_weight`: no value is given for it");
}

/// Networks of several lengths share parameters and optimizer.
#[test]
fn buckets_share_what_they_learn() {
    // The sum over time of a shared layer, for sequences of any length.
    let make = |length: usize| {
        let data = Symbol::variable("data");
        let steps = op("Reshape").input(&data).param("shape", [-1, 3]).build()?;
        let each = op("FullyConnected").input(&steps).param("num_hidden", 2).name("fc").build()?;
        let each = op("Reshape").input(&each).param("shape", [-1, length as i64, 2]).build()?;
        let sum = op("sum").input(&each).param("axis", 1).build()?;
        let symbol = op("LinearRegressionOutput").input(&sum).name("out").build()?;
        let f32 = tensorc::DType::F32;
        Ok(Network {
            symbol,
            data: vec![DataDesc::new("data", f32, &[4, length as u64, 3])],
            labels: vec![DataDesc::new("out_label", f32, &[4, 2])],
        })
    };
    let rt = runtime();
    rt.seed(3);
    let mut buckets = Buckets::new(&rt, 5, make, |builder| builder.grad_req(GradReq::Write)).unwrap();
    let first = buckets.at(5).unwrap();
    first.init_params(&Initializer::uniform(0.5)).unwrap();
    first.init_optimizer(Optimizer::sgd(0.05, 0.9)).unwrap();
    let batch = |length: u64, seed: u64| {
        rt.seed(seed);
        let x = rt.normal(&[4, length, 3], tensorc::DType::F32, 0.0, 0.5).unwrap();
        // What is to be learned: the sums of the first and the second feature.
        let y = x.sum(&[1], false).unwrap().slice(&[tensorc_nd::Slice::ALL, (0..2).into()]).unwrap();
        Batch::new([x.to_tensor().unwrap()], [y.to_tensor().unwrap()]).unwrap()
    };
    for i in 0..240 {
        let length = [5, 2, 3][i % 3];
        buckets.at(length).unwrap().step(&batch(length as u64, 100 + i as u64)).unwrap();
    }
    assert_eq!(buckets.sizes().collect::<Vec<_>>(), [2, 3, 5]);
    let learned = buckets.at(2).unwrap().params().unwrap();
    assert_eq!(learned, buckets.at(5).unwrap().params().unwrap());
    let weight = learned.arguments["fc_weight"].to_f32().unwrap();
    for (found, expected) in weight.iter().zip([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]) {
        assert!((found - expected).abs() < 0.05, "{weight:?}");
    }
    let counts = buckets.at(3).unwrap().with_updater(|updater| updater.clock.latest).unwrap();
    assert_eq!(counts, 240, "one optimizer counts the updates of all");
}
