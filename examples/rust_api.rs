//! The Rust API: a model file, and a graph built by hand.
//!
//! `cargo run --release --example rust_api`

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use ndarray::{ArrayD, Axis};
use tensorc::ir::graph::Value;
use tensorc::ir::op::Registry;
use tensorc::ir::params::Params;
use tensorc::ir::{Dim, Shape, TensorType};
use tensorc::ops::def::{FLOATS, elementwise};
use tensorc::runtime::Element;
use tensorc::{Compiler, DType, Graph, Model, Options, Tensor};
use tensorc_data::formats::read_arrays;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    recognise_digits()?;
    build_a_graph()
}

/// Loads an ONNX model once and runs it with two batch sizes.
fn recognise_digits() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits");
    let compiler = Compiler::new(Options { threads: Some(2), ..Options::default() })?;
    let model = compiler.load(folder.join("digits.onnx"))?;

    let images: ArrayD<f32> = array(&folder.join("held_out.npz"), "image")?;
    let labels: ArrayD<i64> = array(&folder.join("labels.npz"), "label")?;

    let first = images.slice_axis(Axis(0), (..4).into()).to_owned();
    println!("4 digits: {:?}, labels {:?}", digits(&model, &first)?, &labels.as_slice().unwrap_or(&[])[..4]);

    // Another batch size is another specialisation: compiled at its first use, then kept.
    for run in ["first", "second"] {
        let start = Instant::now();
        let found = digits(&model, &images)?;
        let right = found.iter().zip(&labels).filter(|(a, b)| a == b).count();
        println!("{} digits, {run} run: {right} right, {:.1} ms", found.len(), start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

/// What the model reads in a batch of images `[batch, 1, 8, 8]`.
fn digits(model: &Model, images: &ArrayD<f32>) -> Result<Vec<i64>> {
    let outputs: BTreeMap<String, Tensor> = model.run(&[("image", images.try_into()?)])?.into_iter().collect();
    let digit = outputs.get("digit").ok_or("the model has no output `digit`")?;
    Ok(digit.bytes().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect())
}

/// One array of an `.npz` file.
fn array<T: Element>(path: &Path, name: &str) -> Result<ArrayD<T>> {
    let found = read_arrays(path)?.into_iter().find(|(found, _)| found == name);
    let (_, array) = found.ok_or_else(|| format!("{}: no array `{name}`", path.display()))?;
    let dims: Vec<usize> = array.dims().iter().map(|d| *d as usize).collect();
    let elements = array.to_vec().ok_or_else(|| format!("array `{name}` is of {}", array.dtype()))?;
    Ok(ArrayD::from_shape_vec(dims, elements)?)
}

/// Computes `mean(squared_relu(x · w + b))` over the rows, with an operator of our own.
fn build_a_graph() -> Result<()> {
    let compiler = Compiler::with_registry(registry()?, Options::default())?;
    let mut graph = Graph::new("example");
    let rows = graph.dims.named("rows");
    let matrix = |dims: &[Dim]| TensorType::new(DType::F32, Shape::Ranked(dims.iter().copied().collect()));
    let x = graph.add_input("x", matrix(&[rows, Dim::Const(3)]));
    let w = graph.add_input("w", matrix(&[Dim::Const(3), Dim::Const(2)]));
    let b = graph.add_input("b", matrix(&[Dim::Const(2)]));

    let mut call = |op: &str, operands: &[Value]| -> Result<Value> {
        let def = compiler.registry().get(op).ok_or_else(|| format!("no operator `{op}`"))?;
        let operands: Vec<_> = operands.iter().copied().map(Some).collect();
        let node = graph.add_op(op, def, &operands, Params::new(), 1)?;
        Ok(Value { node, port: 0 })
    };
    let product = call("matmul", &[x, w])?;
    let sum = call("add", &[product, b])?;
    let activated = call("squared_relu", &[sum])?;
    let mean = call("reduce_mean", &[activated])?;
    graph.add_output("mean", mean);

    let model = compiler.model(graph);
    let w = Tensor::from_f32(&[3, 2], &[1.0, -1.0, 0.5, 2.0, -2.0, 0.0])?;
    let b = Tensor::from_f32(&[2], &[0.0, 0.5])?;
    for rows in [1, 4] {
        let values: Vec<f32> = (0..3 * rows).map(|i| i as f32).collect();
        let x = Tensor::from_f32(&[rows, 3], &values)?;
        let outputs = model.run(&[("x", x), ("w", w.clone()), ("b", b.clone())])?;
        println!("{rows} rows: {} = {}", outputs[0].0, outputs[0].1.to_ndarray()?);
    }
    Ok(())
}

/// Every operator of tensorc, and one more: element-wise, so that it fuses like any other.
fn registry() -> Result<Registry> {
    let mut registry = tensorc::ops::registry()?;
    registry.add(elementwise("squared_relu", "max(x, 0)².", FLOATS, &["x"], |_, a| {
        let x = a[0].max(&a[0].lit(0.0));
        &x * &x
    }))?;
    Ok(registry)
}
