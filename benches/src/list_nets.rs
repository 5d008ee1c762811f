//! The networks of [`tensorc_bench::nets`]: their sizes, and their symbol files for other programs.

use std::error::Error;
use std::path::PathBuf;

use clap::Args;
use tensorc::symbol::Infer;
use tensorc_bench::nets::{names, net};

/// Lists the networks that measurements use.
#[derive(Args)]
pub struct ListNetsArgs {
    /// Write a symbol file for each into this folder
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
}

pub fn run(arguments: &ListNetsArgs) -> Result<(), Box<dyn Error>> {
    println!("{:<16} {:>10} {:>10} {:>14}  data", "network", "operators", "arguments", "parameters");
    for name in names() {
        let Some(net) = net(name, 1) else { continue };
        let net = net?;
        let given: Vec<(&str, &[u64])> = net.inputs.iter().map(|(n, dims)| (*n, dims.as_slice())).collect();
        let types = net.symbol.infer_shape(&given)?.all().ok_or("shapes do not follow from the data")?;
        let arguments_of = net.symbol.list_arguments();
        let learned = arguments_of
            .iter()
            .zip(&types.arguments)
            .filter(|(n, _)| *n != "softmax_label" && !net.inputs.iter().any(|(input, _)| input == n));
        let parameters: u64 = learned.map(|(_, dims)| dims.iter().product::<u64>()).sum();
        let nodes = net.symbol.internals().len() - net.symbol.list_inputs().len();
        println!("{name:<16} {nodes:>10} {:>10} {parameters:>14}  {:?}", arguments_of.len(), net.inputs[0].1);
        if let Some(folder) = &arguments.write {
            std::fs::create_dir_all(folder)?;
            net.symbol.save(folder.join(format!("{name}-symbol.json")))?;
        }
    }
    Ok(())
}
