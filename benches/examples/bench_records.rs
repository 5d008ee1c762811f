//! Speed of reading records from the page cache, one thread, nothing decoded: `bench_records [FOLDER]`.
//!
//! For each size of records: the stream from front to back, opening a set, which scans the file, and reading the set in
//! random order. Times are the best of three.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use tensorc_data::Draws;
use tensorc_data::record::{Reader, RecordSet, RecordSetOptions, RecordWriter};

/// Bytes of payload in each file.
const TOTAL: usize = 1 << 29;

const TRIES: usize = 3;

/// The shortest of several times, in seconds.
fn best(mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut times = [0.0; TRIES];
    for time in &mut times {
        let start = Instant::now();
        run()?;
        *time = start.elapsed().as_secs_f64();
    }
    Ok(times.into_iter().fold(f64::INFINITY, f64::min))
}

fn print(size: usize, what: &str, records: usize, seconds: f64) {
    let (rate, bytes) = (records as f64 / seconds, (records * size) as f64 / seconds);
    println!("{size:>8}  {what:<12} {rate:>12.0} records/s {:>8.2} GB/s", bytes / 1e9);
}

fn measure(folder: &Path, size: usize) -> Result<(), Box<dyn Error>> {
    let count = TOTAL / size;
    let path = folder.join(format!("{size}.rec"));
    let mut draws = Draws::new(1, 0, size as u64);
    let payload: Vec<u8> = (0..size).map(|_| draws.bits() as u8).collect();
    let writing = best(|| {
        let mut writer = RecordWriter::create(&path)?;
        for _ in 0..count {
            writer.write(&payload)?;
        }
        writer.finish()?;
        Ok(())
    })?;
    print(size, "write", count, writing);
    let sequential = best(|| {
        let mut reader = Reader::open(&path)?;
        while let Some(record) = reader.next_record()? {
            black_box(record.payload);
        }
        Ok(())
    })?;
    print(size, "sequential", count, sequential);
    let list = path.to_string_lossy();
    let open = || RecordSet::open(&list, &RecordSetOptions::default());
    let scan = best(|| {
        black_box(open()?);
        Ok(())
    })?;
    print(size, "scan", count, scan);
    let set = open()?;
    let order = draws.permutation(set.len());
    let mut buffer = vec![];
    let random = best(|| {
        for i in &order {
            set.read(*i as usize, &mut buffer)?;
            black_box(&buffer);
        }
        Ok(())
    })?;
    print(size, "random", count, random);
    Ok(std::fs::remove_file(&path)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    println!("   bytes");
    [100, 10_000, 100_000].into_iter().try_for_each(|size| measure(&folder, size))
}
