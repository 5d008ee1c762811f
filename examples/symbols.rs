//! A network written as a symbol: its variables and their shapes, its file, and a run for inference.
//!
//! `cargo run --release --example symbols -- /tmp/net-symbol.json`

use tensorc::symbol::{Infer, Symbol, SymbolError, name_scope, op};
use tensorc::{Compiler, Options, Tensor};

/// Two layers with ReLU between them, and a loss.
fn network() -> Result<Symbol, SymbolError> {
    let _names = name_scope();
    let x = Symbol::variable("data");
    let x = op("FullyConnected").input(&x).param("num_hidden", 16).name("fc1").build()?;
    let x = op("Activation").input(&x).param("act_type", "relu").build()?;
    let x = op("FullyConnected").input(&x).param("num_hidden", 3).name("fc2").build()?;
    op("SoftmaxOutput").input(&(&x * 2.0)?).name("softmax").build()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let net = network()?;
    let types = net.infer_shape(&[("data", &[4, 8])])?.all().ok_or("shapes are missing")?;
    for (name, dims) in net.list_arguments().iter().zip(&types.arguments) {
        println!("{name:<14} {dims:?}");
    }
    let Some(path) = std::env::args().nth(1) else { return Ok(()) };
    net.save(&path)?;

    // Read back and run, all variables given. The label is not needed.
    let model = Compiler::new(Options::default())?.load(&path)?;
    let mut inputs: Vec<(&str, Tensor)> = vec![];
    let names = net.list_arguments();
    for (i, (name, dims)) in names.iter().zip(&types.arguments).enumerate() {
        let count: u64 = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|k| ((k * 7 + i as u64) % 11) as f32 / 11.0 - 0.5).collect();
        inputs.push((name.as_str(), Tensor::from_f32(dims, &values)?));
    }
    for (name, tensor) in model.run(&inputs)? {
        println!("{name}: {:?}", tensor.dims());
    }
    Ok(())
}
