//! Writes, reads and lists files of records, for comparisons with other implementations.
//!
//! `write PAYLOADS OUT.rec OUT.idx` takes a file whose lines are payloads in hexadecimal, or `@PATH` for the bytes of a
//! file. `read IN.rec` and `parts N PATHS [indexed]` print a line for each record: its offset, its length and a checksum;
//! `parts` reads all parts after one another. `copy IN.rec IN.idx OUT.rec OUT.idx` writes all records of an index again, and
//! `repack IN.rec OUT.rec` takes image headers apart and writes them again.

use std::error::Error;
use std::fs;

use tensorc_data::record::{
    ImageRecord, Index, IndexFiles, IndexedWriter, Reader, RecordFile, RecordSet, RecordSetOptions, RecordWriter,
};

type Outcome = Result<(), Box<dyn Error>>;

/// CRC-32, as zlib and others compute it, for eight bits at a time.
fn checksum(bytes: &[u8]) -> u32 {
    let entry = |byte: u32| (0..8).fold(byte, |crc, _| crc >> 1 ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1)));
    let table: [u32; 256] = std::array::from_fn(|byte| entry(byte as u32));
    !bytes.iter().fold(!0, |crc: u32, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

fn print(offset: u64, payload: &[u8]) {
    println!("{offset} {} {:08x}", payload.len(), checksum(payload));
}

fn payload(line: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    if let Some(path) = line.strip_prefix('@') {
        return Ok(fs::read(path)?);
    }
    let digits = |at: usize| line.get(at..at + 2).ok_or("an odd number of digits");
    (0..line.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}

fn write(payloads: &str, rec: &str, idx: &str) -> Outcome {
    let mut writer = IndexedWriter::create(rec, idx)?;
    for (key, line) in fs::read_to_string(payloads)?.lines().enumerate() {
        writer.write(key as u64, &payload(line)?)?;
    }
    Ok(writer.finish()?)
}

fn read(rec: &str) -> Outcome {
    let mut reader = Reader::open(rec)?;
    while let Some(record) = reader.next_record()? {
        print(record.offset, record.payload);
    }
    Ok(())
}

fn parts(parts: usize, paths: &str, index: &IndexFiles) -> Outcome {
    let mut payload = vec![];
    for part in 0..parts {
        let set = RecordSet::open(paths, &RecordSetOptions { parts, part, index: index.clone() })?;
        if let Some(damage) = set.damage().next() {
            return Err(damage.error.into());
        }
        println!("part {part}");
        for i in 0..set.len() {
            set.read(i, &mut payload)?;
            print(set.place(i).offset.unwrap_or_default(), &payload);
        }
    }
    Ok(())
}

fn copy(rec: &str, idx: &str, out_rec: &str, out_idx: &str) -> Outcome {
    let (file, index) = (RecordFile::open(rec)?, Index::read(idx)?);
    file.check(&index)?;
    let (mut writer, mut payload) = (IndexedWriter::create(out_rec, out_idx)?, vec![]);
    for entry in &index.entries {
        file.read_at(entry.offset, &mut payload)?;
        writer.write(entry.key, &payload)?;
    }
    Ok(writer.finish()?)
}

fn repack(rec: &str, out: &str) -> Outcome {
    let set = RecordSet::open(rec, &RecordSetOptions { index: IndexFiles::Beside, ..RecordSetOptions::default() })?;
    let (mut writer, mut payload, mut packed) = (RecordWriter::create(out)?, vec![], vec![]);
    for i in 0..set.len() {
        set.read(i, &mut payload)?;
        let image = ImageRecord::unpack(&payload)?;
        println!("{} {} {:?}", image.id, image.image.len(), image.labels.iter().collect::<Vec<_>>());
        image.pack(&mut packed)?;
        writer.write(&packed)?;
    }
    writer.finish()?;
    Ok(())
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", payloads, rec, idx] => write(payloads, rec, idx),
        ["read", rec] => read(rec),
        ["parts", count, paths] => parts(count.parse()?, paths, &IndexFiles::Ignore),
        ["parts", count, paths, "indexed"] => parts(count.parse()?, paths, &IndexFiles::Beside),
        ["copy", rec, idx, out_rec, out_idx] => copy(rec, idx, out_rec, out_idx),
        ["repack", rec, out] => repack(rec, out),
        _ => Err("usage: see the first lines of recordio_tool.rs".into()),
    }
}
