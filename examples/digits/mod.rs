//! What the examples on handwritten digits share: the digits of this folder, and two networks.

use std::collections::BTreeMap;
use std::path::Path;

use tensorc::Tensor;
use tensorc::symbol::{Symbol, SymbolError, op};
use tensorc_data::HostTensor;
use tensorc_data::formats::read_arrays;

/// Images `[n, 1, 28, 28]` and labels.
pub struct Digits {
    pub images: Tensor,
    pub labels: Tensor,
}

pub fn perceptron() -> Result<Symbol, SymbolError> {
    let mut x = Symbol::variable("data");
    for (i, units) in [128, 64].into_iter().enumerate() {
        x = op("FullyConnected").input(&x).param("num_hidden", units).name(&format!("fc{}", i + 1)).build()?;
        x = op("Activation").input(&x).param("act_type", "relu").build()?;
    }
    let scores = op("FullyConnected").input(&x).param("num_hidden", 10).name("fc3").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
}

pub fn lenet() -> Result<Symbol, SymbolError> {
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

/// The 8×8 digits, each pixel three times as wide and high, with a border of 2. The last fifth is held out.
pub fn enlarged() -> Result<(Digits, Digits), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/all.npz");
    let arrays: BTreeMap<String, HostTensor> = read_arrays(path)?.into_iter().collect();
    let read = |name: &str| arrays.get(name).and_then(HostTensor::to_vec::<u8>).ok_or("no such array");
    let (pixels, labels) = (read("x")?, read("y")?);
    let images: Vec<f32> = pixels.chunks(64).flat_map(enlarge).collect();
    let labels: Vec<f32> = labels.into_iter().map(f32::from).collect();
    let part = |range: std::ops::Range<usize>| -> Result<Digits, tensorc::Error> {
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
