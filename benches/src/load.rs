//! Time from a compiled library on disk to its first result.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use tensorc::DType;
use tensorc::runtime::artifact::{Artifact, LoadOptions, TensorInfo};
use tensorc::runtime::{Pool, TensorMut, TensorRef};

#[derive(Args)]
pub struct LoadArgs {
    /// What `tensorc compile --emit=shared-lib` wrote, for fixed shapes
    library: PathBuf,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Runs after the first
    #[arg(long, default_value_t = 10)]
    repeat: usize,
    /// Skip the check of the weights' contents
    #[arg(long)]
    trusted: bool,
}

pub fn run(arguments: &LoadArgs) -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(arguments.threads)?;
    let begin = Instant::now();
    let options = LoadOptions { weights: None, trusted: arguments.trusted, ..LoadOptions::default() };
    let artifact = Artifact::load(&arguments.library, &options)?;
    let mut context = artifact.context(&pool)?;
    let load = begin.elapsed();
    let manifest = artifact.manifest().ok_or("a loaded library has a manifest")?;
    let inputs = manifest.inputs.iter().map(shape).collect::<Result<Vec<_>, _>>()?;
    // Zeros are values of every type, and indices inside of everything.
    let zeros = |(t, dims): &(DType, Vec<u64>)| vec![0u8; dims.iter().product::<u64>() as usize * t.size()];
    let data: Vec<Vec<u8>> = inputs.iter().map(zeros).collect();
    let shapes: Vec<(DType, &[u64])> = inputs.iter().map(|(t, dims)| (*t, &dims[..])).collect();
    let outputs = context.outputs(&shapes)?;
    let mut results: Vec<Vec<u8>> = outputs.iter().map(zeros).collect();
    let inputs: Vec<TensorRef<'_>> =
        shapes.iter().zip(&data).map(|((t, dims), data)| TensorRef::new(*t, dims, data)).collect();
    let mut outputs: Vec<TensorMut<'_>> =
        outputs.iter().zip(&mut results).map(|((t, dims), data)| TensorMut::new(*t, dims, data)).collect();
    let mut times = vec![];
    for _ in 0..=arguments.repeat {
        let begin = Instant::now();
        context.run(&inputs, &mut outputs)?;
        times.push(begin.elapsed());
    }
    let ms = |t: std::time::Duration| t.as_secs_f64() * 1e3;
    let first = times.remove(0);
    let least = times.into_iter().min().unwrap_or(first);
    let json = serde_json::json!({ "load_ms": ms(load), "first_run_ms": ms(first), "min_ms": ms(least) });
    println!("{json}");
    Ok(())
}

fn shape(info: &TensorInfo) -> Result<(DType, Vec<u64>), String> {
    let open = || format!("`{}` has an open dimension: compile for fixed shapes", info.name);
    let dims = info.dims.iter().map(|dim| dim.parse().map_err(|_| open())).collect::<Result<_, _>>()?;
    Ok((DType::from_name(&info.dtype).ok_or("an unknown element type")?, dims))
}
