//! Training on handwritten digits: a perceptron and LeNet.
//!
//! `cargo run --release --example train_digits [FOLDER]`
//!
//! FOLDER holds the four idx files of MNIST or of a set like it. Without it, the 8×8 digits of
//! `examples/digits/all.npz` are enlarged to 28×28. Either way it fails if a network reads too few of the
//! held-out digits.

use std::fs::File;
use std::path::{Path, PathBuf};

use tensorc::Tensor;
use tensorc::data::formats::read_idx;
use tensorc::data::{Batches, DataIter};
use tensorc::ndarray::{Runtime, RuntimeOptions};
use tensorc::symbol::{Symbol, SymbolError, op};
use tensorc::train::{Fit, Initializer, Module, Optimizer, load_checkpoint};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BATCH: usize = 64;

/// Share of the held-out digits that a network must read. The enlarged digits are few, and of other writers.
const ENOUGH: f64 = 0.92;
const ENOUGH_ENLARGED: f64 = 0.87;

/// Images `[n, 1, 28, 28]` and labels.
struct Digits {
    images: Tensor,
    labels: Tensor,
}

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

fn perceptron() -> std::result::Result<Symbol, SymbolError> {
    let mut x = Symbol::variable("data");
    for (i, units) in [128, 64].into_iter().enumerate() {
        x = op("FullyConnected").input(&x).param("num_hidden", units).name(&format!("fc{}", i + 1)).build()?;
        x = op("Activation").input(&x).param("act_type", "relu").build()?;
    }
    let scores = op("FullyConnected").input(&x).param("num_hidden", 10).name("fc3").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
}

fn lenet() -> std::result::Result<Symbol, SymbolError> {
    let relu = |x: &Symbol| op("Activation").input(x).param("act_type", "relu").build();
    let mut x = Symbol::variable("data");
    for (i, filters) in [20, 50].into_iter().enumerate() {
        let conv = op("Convolution").input(&x).param("kernel", [5, 5]).param("num_filter", filters);
        x = relu(&conv.name(&format!("conv{}", i + 1)).build()?)?;
        x = op("Pooling")
            .input(&x)
            .param("pool_type", "max")
            .param("kernel", [2, 2])
            .param("stride", [2, 2])
            .build()?;
    }
    let x = relu(&op("FullyConnected").input(&x).param("num_hidden", 500).name("fc1").build()?)?;
    let scores = op("FullyConnected").input(&x).param("num_hidden", 10).name("fc2").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
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
    let mut metric = tensorc::train::metric::create("acc")?;
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

/// The 8×8 digits, each pixel three times as wide and high, with a border of 2. The last fifth is held out.
fn enlarged() -> Result<(Digits, Digits)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/all.npz");
    let mut file = npyz::npz::NpzArchive::new(File::open(path)?)?;
    let mut read = |name: &str| -> Result<Vec<u8>> { Ok(file.by_name(name)?.ok_or("no such array")?.into_vec()?) };
    let (pixels, labels) = (read("x")?, read("y")?);
    let images: Vec<f32> = pixels.chunks(64).flat_map(enlarge).collect();
    let labels: Vec<f32> = labels.into_iter().map(f32::from).collect();
    let part = |range: std::ops::Range<usize>| -> Result<Digits> {
        let n = range.len() as u64;
        Ok(Digits {
            images: Tensor::from_f32(&[n, 1, 28, 28], &images[range.start * 784..range.end * 784])?,
            labels: Tensor::from_f32(&[n], &labels[range])?,
        })
    };
    let cut = labels.len() * 4 / 5;
    Ok((part(0..cut)?, part(cut..labels.len())?))
}

fn enlarge(image: &[u8]) -> Vec<f32> {
    let inside = |i: usize| (2..26).contains(&i).then(|| (i - 2) / 3);
    let at = |y: usize, x: usize| match (inside(y), inside(x)) {
        (Some(y), Some(x)) => (f32::from(image[y * 8 + x]) / 16.0 - 0.25) / 0.37,
        _ => -0.25 / 0.37,
    };
    (0..784).map(|i| at(i / 28, i % 28)).collect()
}
