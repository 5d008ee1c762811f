//! Kernels that move more than they compute, on arrays of a device, against a copy there.
//!
//! Calls are pushed without waiting for the device, as a program would, so that what the host does for one is hidden behind
//! those before it if it takes less.

use std::time::Instant;

use clap::Args;
use tensorc::ndarray::{NDArray, Runtime, RuntimeOptions};
use tensorc::{Compiler, DType, Error, Options};

use crate::summary::summarize;

#[derive(Args)]
pub struct Arguments {
    /// Where arrays are: cpu, the number of a GPU, or `interpreted`, a GPU on which times mean nothing
    #[arg(long, default_value = "0")]
    device: String,
    /// Rows of the arrays
    #[arg(long, default_value_t = 16384)]
    rows: u64,
    #[arg(long, default_value_t = 8192)]
    columns: u64,
    #[arg(long, value_delimiter = ',', default_values_t = ["f32".to_owned(), "bf16".to_owned()])]
    dtype: Vec<String>,
    /// Calls in a measurement
    #[arg(long, default_value_t = 50)]
    calls: u32,
    /// Measurements of each, taken in turn
    #[arg(long, default_value_t = 11)]
    rounds: u32,
}

/// Operands and results.
struct Arrays {
    x: NDArray,
    y: NDArray,
    out: NDArray,
    /// Of a row and of a column.
    row: NDArray,
    column: NDArray,
    turned: NDArray,
}

type Call = fn(&Runtime, &Arrays) -> Result<(), Error>;

/// A name, how many times the bytes of a matrix are read or written, and the call.
const CASES: [(&str, f64, Call); 9] = [
    ("copy", 2.0, |_, a| a.x.copy_into(&a.out)),
    ("add", 3.0, |rt, a| rt.op("add")?.arg(&a.x).arg(&a.y).into(&[&a.out])),
    ("gelu", 2.0, |rt, a| rt.op("gelu")?.arg(&a.x).into(&[&a.out])),
    ("tanh", 2.0, |rt, a| rt.op("tanh")?.arg(&a.x).into(&[&a.out])),
    ("softmax", 2.0, |rt, a| rt.op("softmax")?.arg(&a.x).param("axis", -1).into(&[&a.out])),
    ("layer_norm", 2.0, |rt, a| {
        rt.op("layer_norm")?.arg(&a.x).arg(&a.row).arg(&a.row).param("axis", -1).into(&[&a.out])
    }),
    ("sum of rows", 1.0, |rt, a| {
        rt.op("reduce_sum")?.arg(&a.x).arg(&[1][..]).param("keepdims", false).into(&[&a.column])
    }),
    ("sum of columns", 1.0, |rt, a| {
        rt.op("reduce_sum")?.arg(&a.x).arg(&[0][..]).param("keepdims", false).into(&[&a.row])
    }),
    ("transpose", 2.0, |rt, a| rt.op("transpose")?.arg(&a.x).param("perm", vec![1, 0]).into(&[&a.turned])),
];

pub fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let driver = crate::driver(&arguments.device)?;
    let mut options = RuntimeOptions { window: 0, ..RuntimeOptions::default() };
    let mut name = "cpu".to_owned();
    if let Some(driver) = &driver {
        (options.device, name) = (driver.device(), driver.name());
    }
    let compiler = Compiler::new(Options { gpus: driver.into_iter().collect(), ..Options::default() })?;
    let rt = Runtime::with_compiler(compiler, options)?;
    for dtype in &arguments.dtype {
        let dtype = DType::from_name(dtype).ok_or_else(|| format!("--dtype: unknown type `{dtype}`"))?;
        println!("{name}, {} of {}×{}", dtype.name(), arguments.rows, arguments.columns);
        measure(&rt, arguments, dtype)?;
    }
    Ok(())
}

fn arrays(rt: &Runtime, [rows, columns]: [u64; 2], dtype: DType) -> Result<Arrays, Error> {
    let zeros = |dims: &[u64]| rt.zeros(dims, dtype);
    let random = || rt.normal(&[rows, columns], dtype, 0.0, 1.0);
    Ok(Arrays {
        x: random()?,
        y: random()?,
        out: zeros(&[rows, columns])?,
        row: zeros(&[columns])?,
        column: zeros(&[rows])?,
        turned: zeros(&[columns, rows])?,
    })
}

fn measure(rt: &Runtime, arguments: &Arguments, dtype: DType) -> Result<(), Box<dyn std::error::Error>> {
    let arrays = arrays(rt, [arguments.rows, arguments.columns], dtype)?;
    let bytes = (arguments.rows * arguments.columns * dtype.size() as u64) as f64;
    let mut times = vec![vec![]; CASES.len()];
    // The first round compiles and loads.
    for round in 0..=arguments.rounds {
        for ((_, _, call), times) in CASES.iter().zip(&mut times) {
            rt.wait_all()?;
            let start = Instant::now();
            (0..arguments.calls).try_for_each(|_| call(rt, &arrays))?;
            rt.wait_all()?;
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() / f64::from(arguments.calls));
            }
        }
    }
    let rates: Vec<f64> =
        CASES.iter().zip(times).map(|((_, moved, _), times)| moved * bytes / summarize(times).median).collect();
    for ((name, ..), rate) in CASES.iter().zip(&rates) {
        println!("{name:16} {:8.1} GB/s  {:5.1} % of the copy", rate / 1e9, 100.0 * rate / rates[0]);
    }
    Ok(())
}
