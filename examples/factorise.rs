//! Matrix factorisation: pixels of digits that were hidden, from those that were not.
//!
//! `cargo run --release --example factorise`
//!
//! Images are rows and pixels are columns of a matrix, of which a tenth is hidden. Each row and each column has
//! a vector; their product, with a bias for each, is the pixel. It fails if the hidden pixels are not found much
//! better than by the mean of their column.

use std::path::Path;

use tensorc::Tensor;
use tensorc::symbol::{Symbol, SymbolError, op, variable};
use tensorc_data::Batches;
use tensorc_data::formats::read_arrays;
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::{Fit, Initializer, Module, Optimizer, metric};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RANK: u64 = 16;
const PIXELS: u64 = 64;
const BATCH: usize = 1024;

fn main() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/all.npz");
    let images = read_arrays(path)?.into_iter().find(|(name, _)| name == "x");
    let pixels: Vec<u8> = images.and_then(|(_, array)| array.to_vec()).ok_or("no array `x`")?;
    let rows = pixels.len() as u64 / PIXELS;
    let hidden = |i: &usize| i.wrapping_mul(2_654_435_761) >> 7 & 1023 < 102;
    let (mut shown, mut held) = (entries(&pixels, |i| !hidden(i))?, entries(&pixels, hidden)?);
    println!("{rows} images of {PIXELS} pixels; {} pixels shown, {} hidden", shown.examples(), held.examples());
    let guess = mean_error(&pixels, hidden);
    println!("a column's mean is off by {guess:.3} of the range");

    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let network = network(rows)?;
    let mut module = Module::of(&rt, &network).batches(&shown).bind()?;
    module.init_params(&Initializer::normal(0.1))?;
    module.init_optimizer(Optimizer::adam(0.01).weight_decay(1e-5))?;
    let fit = Fit::epochs(8).evaluate(&mut held).metric(metric::create("rmse")?);
    let report = module.fit(&mut shown, fit.on_epoch(|report| println!("{report}")))?;
    draw(&module, &pixels, hidden)?;
    let error = report.and_then(|report| report.evaluation.first().map(|(_, error)| *error));
    let enough = 0.7 * guess;
    match error.is_some_and(|error| error < enough) {
        true => Ok(()),
        false => Err(format!("hidden pixels are off by {error:?}, not by less than {enough:.3}").into()),
    }
}

/// The product of two vectors and the sum of two biases, looked up by row and column.
fn network(rows: u64) -> std::result::Result<Symbol, SymbolError> {
    let (row, column) = (Symbol::variable("row"), Symbol::variable("column"));
    let looked_up = |of: &Symbol, count: u64, width: u64, name: &str| {
        let table = op("Embedding").input(of).param("input_dim", count as i64);
        let table = table.param("output_dim", width as i64).name(name).build()?;
        op("Flatten").input(&table).build()
    };
    let vectors = (&looked_up(&row, rows, RANK, "row_vector")? * &looked_up(&column, PIXELS, RANK, "column_vector")?)?;
    let product = op("sum").input(&vectors).param("axis", 1).param("keepdims", true).build()?;
    let biases = (&looked_up(&row, rows, 1, "row_bias")? + &looked_up(&column, PIXELS, 1, "column_bias")?)?;
    let label = variable("pixel").build()?;
    op("LinearRegressionOutput").input(&(&product + &biases)?).input(&label).name("out").build()
}

/// Rows, columns and values from 0 to 1 of the chosen entries.
fn entries(pixels: &[u8], chosen: impl Fn(&usize) -> bool) -> Result<Batches> {
    let at: Vec<usize> = (0..pixels.len()).filter(chosen).collect();
    let column =
        |dims: &[u64], f: &dyn Fn(usize) -> f32| Tensor::from_f32(dims, &at.iter().map(|i| f(*i)).collect::<Vec<_>>());
    let n = at.len() as u64;
    let row = column(&[n, 1], &|i| (i / PIXELS as usize) as f32)?;
    let place = column(&[n, 1], &|i| (i % PIXELS as usize) as f32)?;
    let value = column(&[n, 1], &|i| f32::from(pixels[i]) / 16.0)?;
    Ok(Batches::new([("row", row), ("column", place)], [("pixel", value)], BATCH)?.shuffle(1))
}

/// The error of guessing a pixel by the mean of its column.
fn mean_error(pixels: &[u8], hidden: impl Fn(&usize) -> bool) -> f64 {
    let columns = PIXELS as usize;
    let mut sums = vec![(0.0, 0.0); columns];
    for (i, p) in pixels.iter().enumerate().filter(|(i, _)| !hidden(i)) {
        sums[i % columns].0 += f64::from(*p) / 16.0;
        sums[i % columns].1 += 1.0;
    }
    let errors = pixels.iter().enumerate().filter(|(i, _)| hidden(i)).map(|(i, p)| {
        let (sum, count) = sums[i % columns];
        f64::from(*p) / 16.0 - sum / count
    });
    let (total, count) = errors.fold((0.0, 0.0), |(t, n), e| (t + e * e, n + 1.0));
    f64::sqrt(total / count)
}

/// Draws an image as it was shown and as it was completed.
fn draw(module: &Module, pixels: &[u8], hidden: impl Fn(&usize) -> bool) -> Result<()> {
    let params = module.params()?;
    let get = |name: &str| {
        params.arguments.get(name).ok_or("no such parameter")?.to_f32().map_err(Box::<dyn std::error::Error>::from)
    };
    let (rows, columns) = (get("row_vector_weight")?, get("column_vector_weight")?);
    let (row_bias, column_bias) = (get("row_bias_weight")?, get("column_bias_weight")?);
    let (image, rank) = (5, RANK as usize);
    let value = |pixel: usize| {
        let product: f32 = (0..rank).map(|k| rows[image * rank + k] * columns[pixel * rank + k]).sum();
        product + row_bias[image] + column_bias[pixel]
    };
    let shade = |x: f32| b" .:*#"[(x.clamp(0.0, 1.0) * 4.0).round() as usize] as char;
    println!("\nan image, what was shown of it (? is hidden), and what it was completed to:");
    for y in 0..8 {
        let line = |f: &dyn Fn(usize) -> char| (0..8).map(|x| f(y * 8 + x)).collect::<String>();
        let true_value = |p: usize| shade(f32::from(pixels[image * 64 + p]) / 16.0);
        let shown = |p: usize| if hidden(&(image * 64 + p)) { '?' } else { true_value(p) };
        println!("  {}   {}   {}", line(&true_value), line(&shown), line(&|p| shade(value(p))));
    }
    Ok(())
}
