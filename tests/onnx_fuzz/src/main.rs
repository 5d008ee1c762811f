//! The command `onnx_fuzz`: random models against another implementation, and mutants in processes of their own.
//!
//! `onnx_fuzz models --seed 0 --count 1000 --models FILE` writes random models; `benches/compare_random_models.py FILE RESULTS` runs
//! ONNX Runtime on them; `onnx_fuzz compare --seed 0 --count 1000 --results RESULTS --folder FOLDER` prints a line for each
//! difference and writes the smallest model that shows it. Without `--results`, it compares compiled code alone.
//!
//! `onnx_fuzz mutants --corpus FOLDER --folder FOLDER --seed 0 --count 10000` prints a line for each mutant that fails and at
//! the end how many ended how; failing mutants stay in `--folder`.

mod differences;

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use tensorc_onnx_fuzz::exchange::write_model;
use tensorc_onnx_fuzz::generate;
use tensorc_onnx_fuzz::generate::each_alone;
use tensorc_onnx_fuzz::workers::{Campaign, Failure, run, work};

type Failed = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(about = "Random and damaged ONNX models")]
enum Command {
    /// Writes the nodes of random models, each as a model, and their operands.
    Models {
        #[command(flatten)]
        seeds: Seeds,
        /// The file to write.
        #[arg(long)]
        models: PathBuf,
    },
    /// Compares random models with results of another implementation, and compiled with interpreted.
    Compare {
        #[command(flatten)]
        seeds: Seeds,
        /// Results for the models of these seeds.
        #[arg(long)]
        results: Option<PathBuf>,
        /// Where models that differ are written.
        #[arg(long)]
        folder: PathBuf,
    },
    /// Writes the valid models of these seeds as files.
    Corpus {
        #[command(flatten)]
        seeds: Seeds,
        /// The folder to write.
        #[arg(long)]
        folder: PathBuf,
    },
    /// Tries mutants, each under limits of time and memory.
    Mutants(Mutants),
    /// What `mutants` starts.
    #[command(hide = true)]
    Worker(Mutants),
}

#[derive(Args)]
struct Seeds {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 1000)]
    count: u64,
}

impl Seeds {
    fn range(&self) -> std::ops::Range<u64> {
        self.seed..self.seed + self.count
    }
}

#[derive(Args)]
struct Mutants {
    /// A folder of models, searched for files that end in .onnx.
    #[arg(long)]
    corpus: PathBuf,
    /// Where mutants are written; those that fail stay there.
    #[arg(long)]
    folder: PathBuf,
    #[command(flatten)]
    seeds: Seeds,
    /// Bytes that one mutant may take.
    #[arg(long, default_value_t = 1 << 30)]
    memory: u64,
    /// Seconds that one mutant may take.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Mutants {
    fn campaign(&self) -> std::io::Result<Campaign> {
        Ok(Campaign {
            program: std::env::current_exe()?,
            corpus: self.corpus.clone(),
            folder: self.folder.clone(),
            time: Duration::from_secs(self.seconds),
            memory: self.memory,
            address_space: 6 << 30,
        })
    }
}

fn show(f: &Failure) {
    println!("{}\t{}\t{}\t{}\t{}", f.kind, f.seed, f.phase, f.about, f.detail);
}

fn mutants(m: &Mutants) -> Result<(), Failed> {
    std::fs::create_dir_all(&m.folder)?;
    let seeds = m.seeds.range();
    let tally = run(&m.campaign()?, seeds.start, seeds.end, show)?;
    let (done, refused, skipped, failed) = (tally.done, tally.refused, tally.skipped, tally.failures.len());
    println!("{done} ran, {refused} refused, {skipped} no models, {failed} failed");
    Ok(())
}

fn main() -> Result<(), Failed> {
    match Command::parse() {
        Command::Models { seeds, models } => {
            let compiler = differences::compiler()?;
            let mut out = BufWriter::new(File::create(models)?);
            for seed in seeds.range() {
                let (model, refused) = generate(seed, compiler.registry());
                let alone: Vec<_> = model.iter().flat_map(each_alone).collect();
                for model in alone.iter().chain(refused.iter().map(|(m, _)| m)) {
                    write_model(&mut out, model)?;
                }
            }
            Ok(())
        }
        Command::Compare { seeds, results, folder } => differences::compare(seeds.range(), results.as_deref(), &folder),
        Command::Corpus { seeds, folder } => differences::corpus(seeds.range(), &folder),
        Command::Mutants(m) => mutants(&m),
        Command::Worker(m) => work(&m.campaign()?, m.seeds.seed, m.seeds.range().end),
    }
}
