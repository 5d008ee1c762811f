//! Custom data sources: a data set with random access, and a stream of batches.
//!
//! `cargo run --release --example own_source`

use tensorc::DType;
use tensorc::runtime::TensorMut;
use tensorc::symbol::{Symbol, op};
use tensorc_data::iter::adapt::{Prefetch, ShuffleBuffer};
use tensorc_data::iter::epoch;
use tensorc_data::{
    Batch, DataDesc, DataError, DataIter, Dataset, Draws, HostTensor, LastBatch, Loader, Position, Sample, Shuffle,
};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::{Fit, Initializer, Module, Optimizer};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Points on two spirals, which are computed when they are read. A [`Loader`] makes shuffled batches of them, on all cores.
struct Spirals {
    data: [DataDesc; 1],
    labels: [DataDesc; 1],
}

impl Dataset for Spirals {
    fn name(&self) -> String {
        "spirals".into()
    }

    fn len(&self) -> usize {
        2000
    }

    fn data(&self) -> &[DataDesc] {
        &self.data
    }

    fn labels(&self) -> &[DataDesc] {
        &self.labels
    }

    fn read(
        &self,
        sample: Sample,
        data: &mut [TensorMut<'_>],
        labels: &mut [TensorMut<'_>],
    ) -> std::result::Result<(), DataError> {
        // Other noise in every epoch, and the same for any number of threads.
        let mut draws = Draws::new(1, sample.epoch, sample.index as u64);
        let (arm, along) = ((sample.index % 2) as f32, sample.index as f32 / 2000.0);
        let angle = std::f32::consts::PI * (3.0 * along + arm) + 0.1 * draws.normal() as f32;
        data[0].write([along * angle.cos(), along * angle.sin()]);
        labels[0].write([arm]);
        Ok(())
    }
}

/// The numbers 0, 1, 2, … in batches of four, a hundred batches an epoch. A source that can only go forward is a
/// [`DataIter`]; adapters read it ahead, shuffle or cut it.
struct Counter {
    data: [DataDesc; 1],
    position: Position,
}

impl DataIter for Counter {
    fn provide_data(&self) -> &[DataDesc] {
        &self.data
    }

    fn provide_label(&self) -> &[DataDesc] {
        &[]
    }

    fn next(&mut self) -> std::result::Result<Option<Batch>, DataError> {
        if self.position.batch == 100 {
            return Ok(None);
        }
        let first = 4 * self.position.batch as i64;
        self.position.batch += 1;
        let numbers = HostTensor::from_slice(&[4], &[first, first + 1, first + 2, first + 3]);
        Ok(Some(Batch::new([numbers.map_err(|e| DataError::source("counter", e))?], [])?))
    }

    fn reset(&mut self) -> std::result::Result<(), DataError> {
        self.seek(Position::new(self.position.epoch + 1, 0))
    }

    fn position(&self) -> Position {
        self.position
    }

    fn seek(&mut self, position: Position) -> std::result::Result<(), DataError> {
        self.position = position;
        Ok(())
    }

    fn batches(&self) -> Option<u64> {
        Some(100)
    }
}

fn main() -> Result<()> {
    let counter = Counter { data: [DataDesc::new("data", DType::I64, &[4])], position: Position::default() };
    let mut stream = ShuffleBuffer::new(Prefetch::new(counter, 4), 64, 1);
    let first: Vec<Vec<i64>> =
        epoch(&mut stream).take(3).map(|b| Ok(b?.data[0].to_vec().unwrap_or_default())).collect::<Result<_>>()?;
    println!("a shuffled stream begins with {first:?}");

    let data = [DataDesc::new("data", DType::F32, &[2])];
    let spirals = Spirals { data, labels: [DataDesc::new("softmax_label", DType::F32, &[])] };
    let mut batches = Loader::of(spirals, 100).shuffle(Shuffle::EachEpoch(1)).last(LastBatch::Discard).build()?;
    let mut x = Symbol::variable("data");
    for i in 1..3 {
        x = op("FullyConnected").input(&x).param("num_hidden", 64).name(&format!("fc{i}")).build()?;
        x = op("Activation").input(&x).param("act_type", "relu").build()?;
    }
    let scores = op("FullyConnected").input(&x).param("num_hidden", 2).name("fc3").build()?;
    let network = op("SoftmaxOutput").input(&scores).name("softmax").build()?;
    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let mut module = Module::of(&rt, &network).batches(&batches).bind()?;
    module.init_params(&Initializer::xavier(3.0))?;
    module.init_optimizer(Optimizer::adam(0.01))?;
    let last = module.fit(&mut batches, Fit::epochs(60))?.ok_or("no epoch")?;
    println!("{last}");
    if last.train[0].1 < 0.95 { Err("the spirals are not told apart".into()) } else { Ok(()) }
}
