//! Measurements of a GPU, printed as they end.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Args;
use tensorc::runtime::Device;
use tensorc_bench::figures::{Outcome, Report};
use tensorc_bench::gpu::{GROUPS, Setup, Size};

#[derive(Args)]
pub struct MeasureArgs {
    /// The GPU: a number, or `interpreted`, on which times mean nothing
    #[arg(long, default_value = "0")]
    gpu: String,
    /// Sizes for the interpreter's GPU
    #[arg(long)]
    small: bool,
    /// Only cases whose kind and name, as in `products: bf16 4096³ x·w`, contain this; several are alternatives
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Lists the cases instead
    #[arg(long)]
    list: bool,
    /// How long contenders are measured
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
}

pub fn run(arguments: &MeasureArgs) -> Result<(), Box<dyn Error>> {
    let size = if arguments.small { Size::Small } else { Size::Device };
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|text| name.contains(text));
    let cases = GROUPS.iter().flat_map(|(group, cases)| cases(size).into_iter().map(move |case| (group, case)));
    let cases: Vec<_> =
        cases.map(|(group, case)| (format!("{group}: {}", case.name), case)).filter(|(name, _)| wanted(name)).collect();
    if arguments.list {
        cases.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let driver = match arguments.gpu.as_str() {
        "interpreted" => tensorc_simulator::interpreted(Device::accelerator(0)),
        number => tensorc::gpu::cuda(number.parse().map_err(|_| format!("`{number}` is no number of a GPU"))?)?,
    };
    println!("{}", driver.name());
    let time = Duration::try_from_secs_f64(arguments.seconds)?;
    let setup = Setup { time, ..Setup::new(driver, size) };
    let mut failed = 0;
    for (name, case) in cases {
        let start = Instant::now();
        let report = case.run(&setup);
        failed += usize::from(report.outcome == Outcome::Failed);
        print(&name, &report, start.elapsed());
    }
    if failed > 0 { Err(format!("{failed} cases failed").into()) } else { Ok(()) }
}

fn print(name: &str, report: &Report, time: Duration) {
    let mark = match report.outcome {
        Outcome::Passed => "",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    };
    println!("{name:48} {mark}  ({:.1} s)", time.as_secs_f64());
    if !report.note.is_empty() {
        println!("    {}", report.note);
    }
    let figures = report.figures.iter();
    let shown: Vec<String> = figures.map(|f| format!("{} {} {}", f.name, short(f.value), f.unit)).collect();
    if !shown.is_empty() {
        println!("    {}", shown.join("  "));
    }
}

/// Four digits.
fn short(value: f64) -> String {
    let whole = value.abs().max(1e-9).log10().floor() as i32 + 1;
    format!("{value:.*}", (4 - whole).clamp(0, 6) as usize)
}
