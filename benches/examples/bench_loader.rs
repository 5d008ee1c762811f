//! How fast batches of images come from a file of records, and how much memory that takes.
//!
//! `cargo run --release -p tensorc-bench --example bench_loader -- REC KIND [THREADS] [SECONDS]`
//!
//! KIND: `crop` random resized crops of 224×224, normalised f32 NCHW; `bytes` random crops of 224×224, u8 NCHW. Prints
//! images per second over all epochs but the first, processor time per image, and the most resident memory.

use std::time::{Duration, Instant};

use tensorc_data::images::ImageRecordOptions;
use tensorc_data::iter::epoch;

type Failure = Box<dyn std::error::Error>;

const BATCH: &str = "53";

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [records, kind, rest @ ..] = &arguments[..] else { return Err("REC KIND [THREADS] [SECONDS]".into()) };
    let threads = rest.first().map_or("1", String::as_str);
    let seconds: f64 = rest.get(1).map_or(Ok(4.0), |text| text.parse())?;
    let mut options = ImageRecordOptions::default();
    let common = [("path_imgrec", records.as_str()), ("batch_size", BATCH), ("shuffle", "1"), ("seed", "1")];
    let crop = [
        ("random_resized_crop", "1"),
        ("min_random_area", "0.08"),
        ("min_aspect_ratio", "0.75"),
        ("max_aspect_ratio", "1.3333"),
        ("mean_r", "123.68"),
        ("mean_g", "116.78"),
        ("mean_b", "103.94"),
        ("std_r", "58.4"),
        ("std_g", "57.1"),
        ("std_b", "57.4"),
    ];
    let bytes = [("rand_crop", "1"), ("dtype", "uint8")];
    let kind: &[(&str, &str)] = if kind == "crop" { &crop } else { &bytes };
    let all = [("data_shape", "(3,224,224)"), ("rand_mirror", "1"), ("preprocess_threads", threads)];
    for (name, value) in common.iter().chain(&all).chain(kind) {
        options.set(name, value)?;
    }
    let mut loader = options.open()?;
    // Batches are read ahead over the ends of epochs, so that a single epoch says little.
    epoch(&mut loader).try_for_each(|batch| batch.map(drop))?;
    let (begin, mut images, cpu) = (Instant::now(), 0, processor_time());
    while begin.elapsed() < Duration::from_secs_f64(seconds) {
        for batch in epoch(&mut loader) {
            images += batch?.examples();
        }
    }
    let rate = images as f64 / begin.elapsed().as_secs_f64();
    let per_image = (processor_time() - cpu) / images as f64;
    println!("{threads} threads: {rate:.0} images/s, {:.3} ms of processor time each, {}", 1e3 * per_image, memory());
    Ok(())
}

/// Seconds of processor time of all threads.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    // Linux counts hundredths of a second, user and system.
    (ticks(11) + ticks(12)) / 100.0
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or("", str::trim).to_owned() + " at most"
}
