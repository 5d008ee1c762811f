//! Planned memory of inference and training, beside what MXNet 1.9.1 reports for its default plan, in which working
//! memory is not counted: `run MB` is the memory of a run with it.

use std::error::Error;

use clap::Args;
use tensorc_bench::nets::{self, Net};
use tensorc_bench::training::Training;
use tensorc_nd::executor::{Executor, GradReq, PlannedMemory};

use crate::host::runtime;

#[derive(Args)]
pub struct MemoryArgs {
    /// Names of networks, or `all`.
    nets: Vec<String>,
    /// Inference only.
    #[arg(long, conflicts_with = "training")]
    inference: bool,
    /// Training only.
    #[arg(long)]
    training: bool,
}

/// A network of the table, its batch size, and MXNet's planned MB (10⁶ bytes) of internal buffers for
/// inference and for forward and backward. Outputs and arguments are not counted.
struct MemoryRow {
    net: &'static str,
    batch: u64,
    inference: u64,
    training: u64,
}

const fn row(net: &'static str, batch: u64, inference: u64, training: u64) -> MemoryRow {
    MemoryRow { net, batch, inference, training }
}

const TABLE: [MemoryRow; 9] = [
    row("inception-bn", 32, 263, 1438),
    row("inception-v3", 8, 107, 794),
    row("resnet50", 8, 75, 693),
    row("vgg16", 8, 227, 606),
    row("squeezenet1.0", 16, 142, 573),
    row("mobilenet1.0", 16, 101, 664),
    row("densenet121", 8, 66, 1041),
    row("alexnet", 32, 36, 108),
    row("lstm", 32, 44, 116),
];

/// The batch size of a network in the table; 8 for others.
pub fn batch(net: &str) -> u64 {
    TABLE.iter().find(|row| row.net == net).map_or(8, |row| row.batch)
}

pub fn run(arguments: &MemoryArgs) -> Result<(), Box<dyn Error>> {
    let all = arguments.nets.is_empty() || arguments.nets.iter().any(|n| n == "all");
    println!(
        "{:<14} {:>5} {:<9} {:>10} {:>10} {:>7} {:>10} {:>6} {:>7} {:>7}",
        "net", "batch", "", "planned MB", "bound MB", "ratio", "run MB", "steps", "MXNet", "ratio"
    );
    for row in TABLE.iter().filter(|row| all || arguments.nets.iter().any(|n| n == row.net)) {
        let net = nets::net(row.net, row.batch).ok_or_else(|| format!("there is no network `{}`", row.net))??;
        if !arguments.training {
            print(row, "inference", inference(&net)?, Some(row.inference));
        }
        if !arguments.inference {
            let training = Training::new(runtime(2, None)?, &net, 1000)?;
            print(row, "fwd+bwd", training.executor.planned_memory()?, Some(row.training));
            print(row, "step", training.executor.planned_step_memory(&training.step)?, None);
        }
    }
    Ok(())
}

fn inference(net: &Net) -> Result<PlannedMemory, Box<dyn Error>> {
    let rt = runtime(2, None)?;
    let mut binder = Executor::simple_bind(&rt, &net.symbol).grad_req(GradReq::Null);
    for (name, dims) in &net.inputs {
        binder = binder.shape(name, dims);
    }
    Ok(binder.build()?.planned_inference_memory()?)
}

/// A line of the table. What a whole training step needs holds the gradients as well, which MXNet does not count.
fn print(row: &MemoryRow, what: &str, planned: PlannedMemory, mxnet: Option<u64>) {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let ratio = planned.arena_bytes as f64 / planned.lower_bound_bytes.max(1) as f64;
    let peer = mxnet.map_or_else(String::new, |m| format!("{m:>7} {:>7.2}", mb(planned.arena_bytes) / m as f64));
    println!(
        "{:<14} {:>5} {what:<9} {:>10.1} {:>10.1} {ratio:>7.3} {:>10.1} {:>6} {peer}",
        row.net,
        row.batch,
        mb(planned.arena_bytes),
        mb(planned.lower_bound_bytes),
        mb(planned.run_bytes),
        planned.steps
    );
}
