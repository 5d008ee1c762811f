//! Rows and bytes of CSV that one thread reads in a second: `bench_text [ROWS [COLUMNS [DTYPE]]]`.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use tensorc_abi::DType;
use tensorc_data::formats::{CsvDataset, CsvOptions};
use tensorc_data::iter::epoch;
use tensorc_data::{Draws, Loader};

const BATCH: usize = 256;

fn write(path: &Path, rows: u64, columns: u64, dtype: DType) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for row in 0..rows {
        let mut draws = Draws::new(1, 0, row);
        for column in 0..columns {
            let comma = if column == 0 { "" } else { "," };
            match dtype.is_float() {
                true => write!(file, "{comma}{}", draws.normal() as f32)?,
                false => write!(file, "{comma}{}", draws.below(1 << 31))?,
            }
        }
        writeln!(file)?;
    }
    file.flush()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| arguments.get(at).map_or(Ok(otherwise), |text| text.parse());
    let (rows, columns) = (number(0, 100_000)?, number(1, 64)?);
    let name = arguments.get(2).map_or("f32", String::as_str);
    let dtype = DType::from_name(name).ok_or("no such element type")?;
    let folder = tempfile::tempdir()?;
    let data_csv = folder.path().join("data.csv");
    write(&data_csv, rows, columns, dtype)?;
    let bytes = data_csv.metadata()?.len();
    let options = CsvOptions { data_csv, data_shape: vec![columns], dtype, ..CsvOptions::default() };
    let megabytes = |seconds: f64| bytes as f64 / seconds / 1e6;

    let begin = Instant::now();
    let dataset = CsvDataset::open(&options)?;
    let seconds = begin.elapsed().as_secs_f64();
    println!("{bytes} bytes in {rows} rows of {columns} values of {dtype}");
    println!("scan: {:.0} MB/s", megabytes(seconds));
    let mut loader = Loader::of(dataset, BATCH).threads(1).build()?;
    for _ in 0..3 {
        let begin = Instant::now();
        epoch(&mut loader).try_for_each(|batch| batch.map(drop))?;
        let seconds = begin.elapsed().as_secs_f64();
        println!("read: {:.0} rows/s, {:.0} MB/s", rows as f64 / seconds, megabytes(seconds));
    }
    Ok(())
}
