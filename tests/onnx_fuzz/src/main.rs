//! The command `onnx_fuzz`: tries mutants of models in processes of their own.
//!
//! `onnx_fuzz mutants --corpus FOLDER --folder FOLDER --seed 0 --count 10000` prints a line for each mutant that fails and at
//! the end how many ended how; failing mutants stay in `--folder`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use tensorc_onnx_fuzz::workers::{Campaign, Failure, run, work};

#[derive(Parser)]
#[command(about = "Random and damaged ONNX models")]
enum Command {
    /// Tries mutants, each under limits of time and memory.
    Mutants(Mutants),
    /// What `mutants` starts.
    #[command(hide = true)]
    Worker(Mutants),
}

#[derive(Args)]
struct Mutants {
    /// A folder of models, searched for files that end in .onnx.
    #[arg(long)]
    corpus: PathBuf,
    /// Where mutants are written; those that fail stay there.
    #[arg(long)]
    folder: PathBuf,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of mutants.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Bytes that one mutant may take.
    #[arg(long, default_value_t = 1 << 30)]
    memory: u64,
    /// Seconds that one mutant may take.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Mutants {
    fn campaign(&self) -> Campaign {
        Campaign {
            corpus: self.corpus.clone(),
            folder: self.folder.clone(),
            time: Duration::from_secs(self.seconds),
            memory: self.memory,
            address_space: 6 << 30,
        }
    }
}

fn show(f: &Failure) {
    println!("{}\t{}\t{}\t{}\t{}", f.kind, f.seed, f.phase, f.about, f.detail);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Command::parse() {
        Command::Mutants(m) => {
            std::fs::create_dir_all(&m.folder)?;
            let tally = run(&m.campaign(), m.seed, m.seed + m.count, show)?;
            let (done, refused, skipped, failed) = (tally.done, tally.refused, tally.skipped, tally.failures.len());
            println!("{done} ran, {refused} refused, {skipped} no models, {failed} failed");
            Ok(())
        }
        Command::Worker(m) => work(&m.campaign(), m.seed, m.seed + m.count),
    }
}
