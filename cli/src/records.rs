//! `tensorc records`: what is in files of records.

use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use tensorc_data::DataError;
use tensorc_data::image::{Channels, Decoder, Image, dimensions};
use tensorc_data::record::{ImageRecord, IndexFiles, RecordSet, RecordSetOptions};

use super::failure::{CliFailure, Usage};
use super::output::print;

#[derive(Args)]
pub struct RecordsArgs {
    /// Files of records, separated by `;`; folders and patterns with `*` and `?` stand for the files they hold
    files: String,
    /// Records that are shown, from the first
    #[arg(long, default_value_t = 10)]
    head: usize,
    /// Take offsets from these index files (default: look at the files themselves)
    #[arg(long, value_name = "IDX")]
    index: Option<String>,
    /// Decode every image
    #[arg(long)]
    verify: bool,
    /// Write the image of a record, or its bytes if it holds none, to a file
    #[arg(long, value_name = "N", requires = "output")]
    extract: Option<usize>,
    /// Where an extracted record goes
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Errors that are shown; others are counted.
const MAX_SHOWN_ERRORS: usize = 20;

pub fn run(args: &RecordsArgs) -> Result<(), CliFailure> {
    let index = args.index.clone().map_or(IndexFiles::Ignore, IndexFiles::List);
    let records = RecordSet::open(&args.files, &RecordSetOptions { index, ..RecordSetOptions::default() })?;
    if let (Some(number), Some(output)) = (args.extract, &args.output) {
        return extract(&records, number, output);
    }
    show(&records, args.head)?;
    let mut faults: Vec<DataError> = records.damage().map(|damage| damage.error).collect();
    if args.verify {
        super::progress::phase("decode images");
        faults.extend(verify(&records));
        super::progress::clear();
    }
    for fault in faults.iter().take(MAX_SHOWN_ERRORS) {
        eprintln!("tensorc: {fault}");
    }
    match faults.len() {
        0 => Ok(()),
        1 => Err(format!("{}: 1 damaged record or range", args.files).into()),
        n => Err(format!("{}: {n} damaged records or ranges", args.files).into()),
    }
}

fn show(records: &RecordSet, head: usize) -> Result<(), CliFailure> {
    let mut payload = vec![];
    let bytes: u64 = (0..records.len()).map(|i| records.stored_len(i)).sum();
    let noun = if records.len() == 1 { "record" } else { "records" };
    print(&format!("{} {noun}, {}\n", records.len(), HumanBytes(bytes)))?;
    for i in 0..records.len().min(head) {
        let place = records.place(i);
        let what = match records.read(i, &mut payload) {
            Ok(()) => describe(&payload),
            Err(DataError::At { cause, .. }) => cause.to_string(),
            Err(error) => error.to_string(),
        };
        let offset = place.offset.unwrap_or_default();
        print(&format!("{i:>8}  byte {offset:<12} {:>9} bytes  {what}\n", payload.len()))?;
    }
    Ok(())
}

/// The header and the image of a payload, if it has both.
fn describe(payload: &[u8]) -> String {
    let Ok(record) = ImageRecord::unpack(payload) else { return "no image record".into() };
    let Ok(size) = dimensions(record.image) else { return "no image".into() };
    let labels: Vec<String> = record.labels.iter().take(8).map(|label| label.to_string()).collect();
    let more = if record.labels.len() > labels.len() { ", …" } else { "" };
    let kind = if record.image.starts_with(b"\x89PNG") { "PNG" } else { "JPEG" };
    format!("id {}, label {}{more}, {kind} {}×{}", record.id, labels.join(", "), size.width, size.height)
}

/// What cannot be read or decoded.
fn verify(records: &RecordSet) -> Vec<DataError> {
    let (mut payload, mut decoder, mut image) = (vec![], Decoder::new(), Image::new());
    let mut check = |i: usize| -> Result<(), DataError> {
        records.read(i, &mut payload)?;
        let decoded = ImageRecord::unpack(&payload)
            .and_then(|record| decoder.decode(record.image, Channels::Unchanged, &mut image));
        decoded.map_err(|cause| DataError::at(records.place(i), cause))
    };
    (0..records.len()).filter_map(|i| check(i).err()).collect()
}

fn extract(records: &RecordSet, number: usize, output: &std::path::Path) -> Result<(), CliFailure> {
    if number >= records.len() {
        return Err(Usage(format!("--extract: there are {} records, from 0", records.len())).into());
    }
    let mut payload = vec![];
    records.read(number, &mut payload)?;
    let image = ImageRecord::unpack(&payload).ok().filter(|record| dimensions(record.image).is_ok());
    let bytes = image.map_or(&payload[..], |record| record.image);
    tensorc::write_file(output, bytes).map_err(|e| DataError::io(output, e.source))?;
    Ok(())
}
