//! Time of the steps of a decoder whose caches are states.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DType, DenseType, Dim, Shape, TensorData, TensorType};
use tensorc::{Compiler, Model, Options, State, Tensor};

#[derive(Args)]
pub struct DecodeArgs {
    model: PathBuf,
    /// A cache: an input, and the output that begins with it
    #[arg(long = "growing", value_name = "INPUT=OUTPUT")]
    growing: Vec<String>,
    /// A state that keeps its shape
    #[arg(long = "state", value_name = "INPUT=OUTPUT")]
    states: Vec<String>,
    /// The dimension that counts tokens of a run; other open dimensions are 1
    #[arg(long)]
    sequence: String,
    /// Tokens of the first run
    #[arg(long, default_value_t = 8)]
    prompt: u64,
    /// Runs of one token
    #[arg(long, default_value_t = 200)]
    steps: u64,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

pub fn run(arguments: &DecodeArgs) -> Result<(), Box<dyn Error>> {
    let compiler = Compiler::new(Options { threads: Some(arguments.threads), ..Options::default() })?;
    let begin = Instant::now();
    let model = compiler.load(&arguments.model)?;
    let capacity = arguments.prompt + arguments.steps;
    let growing = arguments.growing.iter().map(|pair| pair_of(pair).map(|(a, b)| State::growing(a, b, capacity)));
    let fixed = arguments.states.iter().map(|pair| pair_of(pair).map(|(a, b)| State::new(a, b)));
    let states = growing.chain(fixed).collect::<Result<Vec<_>, _>>()?;
    let decoder = model.stateful(&states)?;
    let load = begin.elapsed();
    let names = decoder.inputs();
    let inputs = |tokens| inputs(&model, &names, &arguments.sequence, tokens);
    let (prompt, step) = (inputs(arguments.prompt)?, inputs(1)?);
    let mut held = decoder.states();
    let mut times = vec![];
    for i in 0..=arguments.steps {
        let given = if i == 0 { &prompt } else { &step };
        let named: Vec<(&str, Tensor)> = given.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        let begin = Instant::now();
        decoder.run(&mut held, &named)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    println!("{}", serde_json::json!({ "load_ms": load.as_secs_f64() * 1e3, "run_ms": times }));
    Ok(())
}

fn pair_of(text: &str) -> Result<(&str, &str), Box<dyn Error>> {
    text.split_once('=').ok_or_else(|| format!("`{text}` is not INPUT=OUTPUT").into())
}

/// Ones, of so many tokens.
fn inputs(
    model: &Model,
    names: &[String],
    sequence: &str,
    tokens: u64,
) -> Result<Vec<(String, Tensor)>, Box<dyn Error>> {
    let extent = |dim: &Dim| match dim {
        Dim::Sym(id) if *model.graph().dims.name(*id) == *sequence => tokens,
        known => known.as_const().unwrap_or(1),
    };
    let one = |(name, ty): (String, TensorType)| -> Result<_, Box<dyn Error>> {
        let Shape::Ranked(dims) = &ty.shape else { return Err(format!("`{name}` has no rank").into()) };
        let (dtype, dims) = (ty.dtype.unwrap_or(DType::F32), dims.iter().map(extent).collect::<Vec<u64>>());
        let data = TensorData::from_fn(DenseType::new(dtype, &dims), |_| Scalar::from_f64(dtype, 1.0));
        Ok((name, Tensor::from_bytes(dtype, &dims, data.bytes().to_vec())?))
    };
    model.inputs().into_iter().filter(|(name, _)| names.contains(name)).map(one).collect()
}
