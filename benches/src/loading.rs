//! Training from a file of records against training on the same images in memory.

use std::error::Error;
use std::time::Instant;

use clap::Args;
use tensorc_bench::nets;
use tensorc_data::images::{ImageOptions, ImageRecordOptions};
use tensorc_data::iter::adapt::Resize;
use tensorc_data::{Batch, Batches, DataError, DataIter, HostTensor};
use tensorc_train::{Fit, Initializer, Module, Optimizer};

use crate::host::runtime;

#[derive(Args)]
pub struct LoadingArgs {
    /// A file of records of images
    records: String,
    /// A network for images, see `nets`
    #[arg(long, default_value = "resnet18-cifar")]
    net: String,
    #[arg(long, default_value_t = 32)]
    batch: usize,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Steps of a round
    #[arg(long, default_value_t = 10)]
    steps: u64,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

pub fn run(arguments: &LoadingArgs) -> Result<(), Box<dyn Error>> {
    let net = nets::net(&arguments.net, arguments.batch as u64);
    let net = net.ok_or_else(|| format!("there is no network `{}`", arguments.net))??;
    let dims = net.inputs.first().map(|(_, dims)| dims.clone()).unwrap_or_default();
    let [_, channels, height, width] = dims[..] else { return Err("a network for images is needed".into()) };
    let mut options = ImageRecordOptions { path_imgrec: arguments.records.clone(), ..ImageRecordOptions::default() };
    options.images = ImageOptions::new([channels as u32, height as u32, width as u32], arguments.batch);
    for (name, value) in [("shuffle", "1"), ("rand_crop", "1"), ("rand_mirror", "1"), ("std_r", "64"), ("std_g", "64")]
    {
        options.set(name, value)?;
    }
    let loading = speed(&mut options.open()?)?;
    let mut streamed = Resize::new(options.open()?, arguments.steps);
    let mut in_memory = Resize::new(stored(&mut options.open()?, arguments.batch)?, arguments.steps);

    let rt = runtime(arguments.threads, None)?;
    let mut module = Module::of(&rt, &net.symbol).batches(&streamed).bind()?;
    module.init_params(&Initializer::xavier(2.0))?;
    module.init_optimizer(Optimizer::sgd(0.001, 0.9))?;
    let mut time = |batches: &mut dyn DataIter| -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        module.fit(batches, Fit::epochs(1).quiet())?;
        rt.wait_all()?;
        Ok(1e3 * start.elapsed().as_secs_f64() / arguments.steps as f64)
    };
    time(&mut in_memory)?;
    let (mut from_memory, mut from_records) = (vec![], vec![]);
    for _ in 0..arguments.rounds.max(1) {
        from_memory.push(time(&mut in_memory)?);
        from_records.push(time(&mut streamed)?);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (memory, records) = (median(&mut from_memory), median(&mut from_records));
    println!(
        "{}, batch {}, {} threads; loading alone {loading:.0} images/s",
        arguments.net, arguments.batch, arguments.threads
    );
    println!("a step from memory {memory:.2} ms, from records {records:.2} ms, ratio {:.3}", records / memory);
    Ok(())
}

/// Images per second of a source by itself.
fn speed(batches: &mut dyn DataIter) -> Result<f64, DataError> {
    let (start, mut images) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < 2.0 {
        match batches.next()? {
            Some(batch) => images += batch.examples(),
            None => batches.reset()?,
        }
    }
    Ok(images as f64 / start.elapsed().as_secs_f64())
}

/// An epoch's images in memory.
fn stored(batches: &mut dyn DataIter, batch: usize) -> Result<Batches, Box<dyn Error>> {
    let mut all: Vec<Batch> = vec![];
    while let Some(batch) = batches.next()? {
        all.push(batch);
    }
    let joined = |of: fn(&Batch) -> &HostTensor| -> Result<HostTensor, Box<dyn Error>> {
        let first = of(all.first().ok_or("there are no batches")?);
        let dims = [&[first.dims()[0] * all.len() as u64], &first.dims()[1..]].concat();
        let bytes: Vec<u8> = all.iter().flat_map(|batch| of(batch).bytes().iter().copied()).collect();
        Ok(HostTensor::new(first.dtype(), &dims, bytes)?)
    };
    Ok(Batches::labelled(joined(|b| &b.data[0])?, joined(|b| &b.labels[0])?, batch)?.shuffle(1))
}
