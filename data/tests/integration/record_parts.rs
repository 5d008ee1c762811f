//! Parts of sets of records: whatever the files, sizes and number of parts, each record is in the part that the rule
//! gives, and in no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use tensorc_data::record::{IndexFiles, IndexedWriter, MAGIC, RecordSet, RecordSetOptions};
use tensorc_data::{Draws, ExamplePlace};

/// Records of a file by their offset, and the file's size.
struct Written {
    records: BTreeMap<u64, Vec<u8>>,
    size: u64,
}

/// A payload with magic numbers here and there.
fn payload(draws: &mut Draws, longest: u64) -> Vec<u8> {
    let length = draws.below(longest + 1) as usize;
    let mut bytes: Vec<u8> = (0..length).map(|_| draws.bits() as u8).collect();
    for _ in 0..draws.below(3) {
        let at = draws.below(length as u64 + 1) as usize;
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&MAGIC.to_le_bytes());
        }
    }
    bytes
}

fn write_file(folder: &Path, number: usize, draws: &mut Draws) -> Written {
    let at = |ending: &str| folder.join(format!("{number}.{ending}"));
    let mut out = vec![];
    let mut written = Written { records: BTreeMap::new(), size: 0 };
    let (count, longest) = (draws.below(12), 1 << draws.below(8));
    let mut index = String::new();
    for key in 0..count {
        let payload = payload(draws, longest);
        let offset = out.len();
        tensorc_data::record::encode(&payload, &mut out).unwrap();
        index = format!("{key}\t{offset}\n{index}");
        written.records.insert(offset as u64, payload);
    }
    written.size = out.len() as u64;
    for (ending, bytes) in [("rec", out), ("idx", index.into_bytes())] {
        // Some file systems wait for the disk when an old file is emptied and written anew.
        drop(fs::remove_file(at(ending)));
        fs::write(at(ending), bytes).unwrap();
    }
    written
}

/// Files and offsets of the records of each part, by the rule for bytes.
fn parts_by_bytes(files: &[Written], parts: u64) -> Vec<Vec<(usize, u64)>> {
    let total: u64 = files.iter().map(|file| file.size).sum();
    let step = total.div_ceil(parts).next_multiple_of(4);
    let mut found = vec![vec![]; parts as usize];
    let mut base = 0;
    for (number, file) in files.iter().enumerate() {
        for offset in file.records.keys() {
            // A bound is moved to the next head, so it stays at or before a record if it was.
            let owner = (0..parts).rev().find(|part| (part * step).min(total) <= base + offset);
            found[owner.unwrap() as usize].push((number, *offset));
        }
        base += file.size;
    }
    found
}

fn parts_by_count(files: &[Written], parts: usize) -> Vec<Vec<(usize, u64)>> {
    let number_offset =
        |(number, file): (usize, &Written)| file.records.keys().map(|offset| (number, *offset)).collect::<Vec<_>>();
    let all: Vec<_> = files.iter().enumerate().flat_map(number_offset).collect();
    let step = all.len().div_ceil(parts);
    (0..parts).map(|part| all[all.len().min(part * step)..all.len().min((part + 1) * step)].to_vec()).collect()
}

fn check_part(set: &RecordSet, folder: &Path, files: &[Written], expected: &[(usize, u64)]) {
    assert_eq!(set.len(), expected.len());
    let mut buffer = vec![];
    for (i, (number, offset)) in expected.iter().enumerate() {
        let records = &files[*number].records;
        let place = set.place(i);
        assert_eq!(place.file, folder.join(format!("{number}.rec")));
        assert_eq!(place.offset, Some(*offset));
        assert!(place.record.is_none_or(|record| record == records.range(..offset).count() as u64));
        set.read(i, &mut buffer).unwrap();
        assert_eq!(&buffer, &records[offset]);
    }
}

fn check_case(folder: &Path, draws: &mut Draws) {
    let files: Vec<Written> = (0..1 + draws.below(4)).map(|n| write_file(folder, n as usize, draws)).collect();
    let list = (0..files.len()).map(|n| folder.join(format!("{n}.rec")).display().to_string());
    let list = list.collect::<Vec<_>>().join(";");
    let parts = 1 + draws.below(9) as usize;
    let open = |part, index| RecordSet::open(&list, &RecordSetOptions { parts, part, index }).unwrap();
    for (part, expected) in parts_by_bytes(&files, parts as u64).iter().enumerate() {
        let set = open(part, IndexFiles::Ignore);
        assert_eq!(set.damage().count(), 0);
        assert_eq!(set.total(), (parts == 1).then_some(expected.len() as u64));
        check_part(&set, folder, &files, expected);
    }
    let by_count = parts_by_count(&files, parts);
    // Every fourth case is enough for indices, whose reading takes longest.
    if draws.below(4) == 0 {
        for (part, expected) in by_count.iter().enumerate() {
            let set = open(part, IndexFiles::Beside);
            assert_eq!(set.total(), Some(by_count.concat().len() as u64));
            check_part(&set, folder, &files, expected);
        }
    }
}

#[test]
fn every_record_is_in_one_part() {
    let threads = 2;
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                for case in (thread..10_000).step_by(threads as usize) {
                    check_case(folder.path(), &mut Draws::new(17, 0, case));
                }
            });
        }
    });
}

#[test]
fn folders_and_patterns_are_read_in_the_order_of_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b", "a", "c"] {
        let at = |ending: &str| folder.path().join(format!("{name}.{ending}"));
        let mut writer = IndexedWriter::create(at("rec"), at("idx")).unwrap();
        writer.write(0, name.as_bytes()).unwrap();
        writer.finish().unwrap();
    }
    let mut buffer = vec![];
    for (list, expected) in [("@", "abc"), ("@/?.rec", "abc"), ("@/c.rec;@/[ab]*;@/a*", "")] {
        let list = list.replace('@', folder.path().to_str().unwrap());
        for index in [IndexFiles::Ignore, IndexFiles::Beside] {
            let options = RecordSetOptions { index, ..RecordSetOptions::default() };
            let Ok(set) = RecordSet::open(&list, &options) else {
                assert!(expected.is_empty());
                continue;
            };
            let mut read = String::new();
            for i in 0..set.len() {
                set.read(i, &mut buffer).unwrap();
                read.push_str(std::str::from_utf8(&buffer).unwrap());
            }
            assert_eq!(read, expected);
        }
    }
}

#[test]
fn threads_share_a_set() {
    let folder = tempfile::tempdir().unwrap();
    let (rec, idx) = (folder.path().join("a.rec"), folder.path().join("a.idx"));
    let mut writer = IndexedWriter::create(&rec, &idx).unwrap();
    for i in 0..2000u64 {
        writer.write(i, &i.to_le_bytes().repeat(1 + i as usize % 50)).unwrap();
    }
    writer.finish().unwrap();
    let set = RecordSet::open(rec.to_str().unwrap(), &RecordSetOptions::default()).unwrap();
    assert_eq!(set.place(1999).record, Some(1999));
    assert_eq!(set.place(0), ExamplePlace::file(&rec).record(0).offset(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let set = &set;
            scope.spawn(move || {
                let mut buffer = vec![];
                for i in Draws::new(5, 0, thread).permutation(2000) {
                    set.read(i as usize, &mut buffer).unwrap();
                    assert_eq!(buffer, u64::from(i).to_le_bytes().repeat(1 + i as usize % 50));
                    assert_eq!(set.stored_len(i as usize), 8 + buffer.len() as u64);
                }
            });
        }
    });
}
