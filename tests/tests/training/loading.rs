//! Modules trained from iterators: in step with a run on arrays in memory, resumed inside of an epoch, with errors that
//! reach the caller, and with the next batch on its way while a step runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorc::DType;
use tensorc::runtime::TensorMut;
use tensorc::symbol::{Symbol, name_scope, op};
use tensorc_data::iter::adapt::{Prefetch, Resize};
use tensorc_data::iter::epoch;
use tensorc_data::{
    Batch, Batches, DataDesc, DataError, DataIter, Dataset, HostTensor, Loader, Position, Sample, Shuffle,
};
use tensorc_nd::Runtime;
use tensorc_simulator::Counts;
use tensorc_train::Error;
use tensorc_train::metric::Accuracy;
use tensorc_train::{Fit, Initializer, Module, Optimizer, Params, load_checkpoint};

use super::runtime;
use crate::gpu_arrays::on_gpu;

/// Points of four classes, one about each corner of a square.
#[derive(Clone)]
struct Points {
    data: [DataDesc; 1],
    labels: [DataDesc; 1],
}

const POINTS: usize = 50;

fn points() -> Points {
    let data = [DataDesc::new("data", DType::F32, &[2])];
    Points { data, labels: [DataDesc::new("softmax_label", DType::F32, &[])] }
}

impl Points {
    fn point(index: usize) -> ([f32; 2], f32) {
        let noise = |salt: usize| ((index * 37 + salt) % 17) as f32 / 20.0;
        let corner = |bit: usize| if index & bit > 0 { 1.0 } else { -1.0 };
        ([corner(1) + noise(3), corner(2) - noise(5)], (index & 3) as f32)
    }

    fn in_memory(batch: usize) -> Batches {
        let all: Vec<_> = (0..POINTS).map(Points::point).collect();
        let x = HostTensor::from_slice(&[POINTS as u64, 2], &all.iter().flat_map(|p| p.0).collect::<Vec<_>>());
        let y = HostTensor::from_slice(&[POINTS as u64], &all.iter().map(|p| p.1).collect::<Vec<_>>());
        Batches::labelled(x.unwrap(), y.unwrap(), batch).unwrap().shuffle(4)
    }
}

impl Dataset for Points {
    fn name(&self) -> String {
        "points".into()
    }

    fn len(&self) -> usize {
        POINTS
    }

    fn data(&self) -> &[DataDesc] {
        &self.data
    }

    fn labels(&self) -> &[DataDesc] {
        &self.labels
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        let (x, y) = Points::point(sample.index);
        data[0].write(x);
        labels[0].write([y]);
        Ok(())
    }
}

fn loaded(batch: usize) -> Loader {
    Loader::of(points(), batch).shuffle(Shuffle::EachEpoch(4)).threads(2).build().unwrap()
}

fn network() -> Symbol {
    let _names = name_scope();
    let hidden = op("FullyConnected").input(&Symbol::variable("data")).param("num_hidden", 8).name("fc1").build();
    let hidden = op("Activation").input(&hidden.unwrap()).param("act_type", "tanh").build().unwrap();
    let scores = op("FullyConnected").input(&hidden).param("num_hidden", 4).name("fc2").build().unwrap();
    op("SoftmaxOutput").input(&scores).name("softmax").build().unwrap()
}

fn learner(rt: &Runtime, batches: &dyn DataIter) -> Module {
    rt.seed(2);
    let mut module = Module::of(rt, &network()).batches(batches).bind().unwrap();
    module.init_params(&Initializer::xavier(3.0)).unwrap();
    module.init_optimizer(Optimizer::sgd(0.2, 0.9)).unwrap();
    module
}

fn trained(batches: &mut dyn DataIter) -> Params {
    let mut module = learner(&runtime(), batches);
    module.fit(batches, Fit::epochs(3).quiet()).unwrap();
    module.params().unwrap()
}

#[test]
fn sources_of_the_same_examples_train_the_same_network() {
    let expected = trained(&mut Points::in_memory(8));
    assert_eq!(trained(&mut loaded(8)), expected);
    assert_eq!(trained(&mut Prefetch::new(Points::in_memory(8), 2)), expected);
    let mut module = learner(&runtime(), &loaded(8));
    module.set_params(&expected, false).unwrap();
    let accuracy = module.score(&mut loaded(8), &mut Accuracy::default()).unwrap()[0].1;
    assert!(accuracy > 0.9, "{accuracy}");
    let outputs = module.predict(&mut loaded(8)).unwrap();
    assert_eq!(outputs[0].dims(), [50, 4], "what fills up the last batch is left out");
}

#[test]
fn a_run_goes_on_inside_of_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("points");
    let mut saved = vec![];
    let mut whole = learner(&runtime(), &loaded(8));
    let fit = Fit::epochs(3).quiet().on_batches(3, |module, position| {
        if position == Position::new(1, 3) {
            module.save_checkpoint(&prefix, 1)?;
            module.save_optimizer_states(&prefix, 1)?;
        }
        saved.push(position.to_string());
        Ok(())
    });
    whole.fit(&mut loaded(8), fit).unwrap();
    assert_eq!(saved, ["0:3", "0:6", "1:3", "1:6", "2:3", "2:6"]);
    let (symbol, params) = load_checkpoint(&prefix, 1).unwrap();
    let mut batches = loaded(8);
    batches.seek("1:3".parse().unwrap()).unwrap();
    let mut module = Module::of(&runtime(), &symbol).batches(&batches).bind().unwrap();
    module.set_params(&params, false).unwrap();
    module.init_optimizer(Optimizer::sgd(0.2, 0.9)).unwrap();
    module.load_optimizer_states(&prefix, 1).unwrap();
    module.fit(&mut batches, Fit::epochs(3).begin(1).quiet()).unwrap();
    assert_eq!(module.params().unwrap(), whole.params().unwrap());
}

#[test]
fn epochs_can_have_any_number_of_batches() {
    let mut module = learner(&runtime(), &loaded(8));
    let mut count = 0;
    let fit = Fit::epochs(2).quiet().on_batches(1, |_, _| {
        count += 1;
        Ok(())
    });
    module.fit(&mut Resize::new(loaded(8), 10), fit).unwrap();
    assert_eq!(count, 20);
}

/// Fails at a batch; waits for an event before it gives another one.
struct Source {
    inner: Batches,
    fails: Option<u64>,
    call: Box<dyn FnMut(u64) + Send>,
}

impl DataIter for Source {
    fn provide_data(&self) -> &[DataDesc] {
        self.inner.provide_data()
    }

    fn provide_label(&self) -> &[DataDesc] {
        self.inner.provide_label()
    }

    fn next(&mut self) -> Result<Option<Batch>, DataError> {
        let at = self.inner.position().batch;
        (self.call)(at);
        let batch = self.inner.next();
        if self.fails == Some(at) { Err(DataError::options("source", "broken")) } else { batch }
    }

    fn reset(&mut self) -> Result<(), DataError> {
        self.inner.reset()
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn seek(&mut self, position: Position) -> Result<(), DataError> {
        self.inner.seek(position)
    }

    fn batches(&self) -> Option<u64> {
        self.inner.batches()
    }
}

#[test]
fn errors_of_a_source_end_the_run_behind_the_batches_before() {
    let mut source = Source { inner: Points::in_memory(8), fails: Some(2), call: Box::new(|_| {}) };
    let mut module = learner(&runtime(), &source);
    let mut seen = 0;
    let fit = Fit::epochs(1).quiet().on_batches(1, |_, position| {
        seen = position.batch;
        Ok(())
    });
    let error = module.fit(&mut source, fit).unwrap_err();
    assert!(matches!(error, Error::Data(DataError::Options { .. })) && error.to_string() == "source: broken");
    assert_eq!(seen, 2);
    let mut batches = loaded(8);
    let stop = Fit::epochs(1).quiet().on_batches(2, |_, _| Err(Error::Data(DataError::options("caller", "stop"))));
    assert_eq!(module.fit(&mut batches, stop).unwrap_err().to_string(), "caller: stop");
    assert_eq!(batches.position(), Position::new(0, 2), "what was taken ahead comes again");
    let last = batches.batches().unwrap();
    batches.seek(Position::new(0, last)).unwrap();
    let mut seen = vec![];
    let fit = Fit::epochs(1).quiet().on_batches(1, |_, position| {
        seen.push(position.to_string());
        Ok(())
    });
    module.fit(&mut batches, fit).unwrap();
    assert_eq!((seen.len() as u64, &seen[0][..]), (last, "1:1"), "no epoch without batches");
    let other = module.fit(&mut loaded(5), Fit::epochs(1).quiet()).unwrap_err();
    let says =
        "the batches have data f32[5, 2], softmax_label f32[5], the module takes data f32[8, 2], softmax_label f32[8]";
    assert_eq!(other.to_string(), says);
    let batch = Batch { labels: vec![], ..epoch(&mut loaded(8)).next().unwrap().unwrap() };
    let missing = module.step(&batch).unwrap_err().to_string();
    assert!(missing.starts_with("input `softmax_label` is missing"), "{missing}");
}

/// While the host hears of no end of a step on the device, the next batch is taken and copied there.
#[test]
fn the_next_batch_goes_to_the_device_while_a_step_runs() {
    let (rt, counts) = on_gpu(3);
    let bytes = |counts: &Counts| counts.host_bytes.load(Ordering::SeqCst);
    let watched: Arc<Counts> = counts.clone();
    let overlapped = Arc::new(std::sync::Mutex::new(None));
    let seen = overlapped.clone();
    let call = move |at: u64| {
        if at != 3 {
            return;
        }
        watched.hold();
        let (before, counts, seen) = (bytes(&watched), watched.clone(), seen.clone());
        std::thread::spawn(move || {
            let start = Instant::now();
            // Data and labels of a batch of eight.
            while bytes(&counts) < before + 8 * 3 * 4 && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            *seen.lock().unwrap() = Some(bytes(&counts) - before);
            counts.release();
        });
    };
    let mut source = Source { inner: Points::in_memory(8), fails: None, call: Box::new(call) };
    let mut module = learner(&rt, &source);
    module.fit(&mut source, Fit::epochs(1).quiet()).unwrap();
    let copied = overlapped.lock().unwrap().unwrap();
    assert!(copied >= 96, "{copied} bytes were copied while the step was not known to be done");
    let expected = learned_on_the_host();
    for (name, value) in module.params().unwrap().arguments {
        let other = expected.arguments[&name].to_f32().unwrap();
        assert!(value.to_f32().unwrap().iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4), "{name}");
    }
}

fn learned_on_the_host() -> Params {
    let mut batches = Points::in_memory(8);
    let mut module = learner(&runtime(), &batches);
    module.fit(&mut batches, Fit::epochs(1).quiet()).unwrap();
    module.params().unwrap()
}
