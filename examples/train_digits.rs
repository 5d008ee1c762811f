//! Training on handwritten digits: a perceptron and LeNet.
//!
//! `cargo run --release --example train_digits [FOLDER]`
//!
//! FOLDER holds the four idx files of MNIST or of a set like it. Without it, the 8×8 digits of
//! `examples/digits/all.npz` are enlarged to 28×28. Either way it fails if a network reads too few of the
//! held-out digits.

use std::path::{Path, PathBuf};

use tensorc::Tensor;
use tensorc::symbol::Symbol;
use tensorc_data::formats::read_idx;
use tensorc_data::{Batches, DataIter};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::{Fit, Initializer, Module, Optimizer, load_checkpoint};

mod digits;

use digits::{Digits, enlarged, lenet, perceptron};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BATCH: usize = 64;

/// Share of the held-out digits that a network must read. The enlarged digits are few, and of other writers.
const ENOUGH: f64 = 0.92;
const ENOUGH_ENLARGED: f64 = 0.87;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let (train, test) = match &folder {
        Some(folder) => (idx(folder, "train")?, idx(folder, "test").or_else(|_| idx(folder, "t10k"))?),
        None => enlarged()?,
    };
    println!("{} digits to learn from, {} held out", train.images.dims()[0], test.images.dims()[0]);
    let (epochs, enough) = if folder.is_some() { (10, ENOUGH) } else { (5, ENOUGH_ENLARGED) };
    let networks = [("perceptron", perceptron()?), ("LeNet", lenet()?)];
    for (name, network) in &networks {
        let accuracy = run(name, network, epochs, &train, &test)?;
        if accuracy < enough {
            return Err(format!("{name} reads {accuracy:.3} of the held-out digits, not {enough}").into());
        }
    }
    Ok(())
}

/// Trains a network; returns the share of the held-out digits that it reads in the end.
fn run(name: &str, network: &Symbol, epochs: u32, train: &Digits, test: &Digits) -> Result<f64> {
    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let mut batches = Batches::labelled(train.images.clone(), train.labels.clone(), BATCH)?.shuffle(1);
    let mut held_out = Batches::labelled(test.images.clone(), test.labels.clone(), 100)?;

    let mut module = Module::of(&rt, network).batches(&batches).bind()?;
    module.init_params(&Initializer::xavier(2.24))?;
    module.init_optimizer(Optimizer::sgd(0.05, 0.9).weight_decay(1e-4))?;
    let parameters: u64 = module.parameters().map(|(_, array)| array.len()).sum();
    println!("\n{name}: {parameters} parameters");

    // The held-out digits come in batches of another size: the same network and parameters, other shapes.
    let mut judge = module.sibling(network, held_out.provide_data(), held_out.provide_label())?;
    let mut metric = tensorc_train::metric::create("acc")?;
    let mut last = 0.0;
    for epoch in 0..epochs {
        let report = module.fit(&mut batches, Fit::epochs(epoch + 1).begin(epoch))?;
        let scores = judge.score(&mut held_out, metric.as_mut())?;
        if let (Some(report), [(_, accuracy)]) = (report, &scores[..]) {
            println!("{report}, {:.1} % of the held-out digits right", 100.0 * accuracy);
            last = *accuracy;
        }
    }
    show_mistakes(&mut judge, &mut held_out, test)?;
    check_saved(&module, name)?;
    Ok(last)
}

/// Prints the first digit that is misread.
fn show_mistakes(judge: &mut Module, held_out: &mut Batches, test: &Digits) -> Result<()> {
    let outputs = judge.predict(held_out)?;
    let (scores, labels, images) = (outputs[0].to_f32()?, test.labels.to_f32()?, test.images.to_f32()?);
    let best = |s: &[f32]| (0..10).fold(0, |b, i| if s[i] > s[b] { i } else { b });
    let read: Vec<usize> = scores.chunks(10).map(best).collect();
    let wrong = read.iter().zip(&labels).position(|(read, label)| *read as f32 != *label);
    let Some(at) = wrong else { return Ok(()) };
    println!("a {} read as {}:", labels[at], read[at]);
    let image = &images[at * 784..][..784];
    let (low, high) = image.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    for row in image.chunks(28).step_by(2) {
        let shade = |x: &f32| b" .:*#"[(((x - low) / (high - low)) * 4.0).round() as usize] as char;
        println!("  {}", row.iter().map(shade).collect::<String>().trim_end());
    }
    Ok(())
}

/// Saves the network in MXNet's files and loads it again.
fn check_saved(module: &Module, name: &str) -> Result<()> {
    let prefix = std::env::temp_dir().join(format!("tensorc-{name}"));
    module.save_checkpoint(&prefix, 1)?;
    let (network, params) = load_checkpoint(&prefix, 1)?;
    let same = params == module.params()?;
    println!("saved as {}-symbol.json and -0001.params; {network} loads, parameters equal: {same}", prefix.display());
    if same { Ok(()) } else { Err("the saved parameters are not those of the network".into()) }
}

fn idx(folder: &Path, part: &str) -> Result<Digits> {
    let images = Tensor::try_from(read_idx(folder.join(format!("{part}-images-idx3-ubyte")))?)?;
    let labels = Tensor::try_from(read_idx(folder.join(format!("{part}-labels-idx1-ubyte")))?)?;
    let dims = [images.dims()[0], 1, 28, 28];
    Ok(Digits {
        images: images.to_scaled(0.13 * 255.0, 1.0 / (0.31 * 255.0))?.reshape(&dims)?,
        labels: labels.to_scaled(0.0, 1.0)?,
    })
}
