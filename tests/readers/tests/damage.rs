//! Damaged files of every format: no reader panics, hangs or takes memory that the file does not explain, and what one
//! takes holds what the format promises.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tensorc_random::{DamageCounts, Meter, each_damaged, measured};
use tensorc_readers::{FileReader, MEMORY, READERS};

#[global_allocator]
static ALLOCATOR: Meter = Meter;

/// Damaged files of each format; `TENSORC_MUTATIONS` says another number.
const FILES: u64 = 4000;

fn read(reader: &FileReader, bytes: &[u8]) -> bool {
    let (taken, memory) = measured(|| (reader.read)(bytes));
    let most = MEMORY + reader.memory * bytes.len() as u64;
    assert!(memory <= most, "{}: {memory} bytes of memory for {} bytes", reader.name, bytes.len());
    taken
}

fn check(name: &str) -> DamageCounts {
    let reader = READERS.iter().find(|reader| reader.name == name).unwrap();
    let files = (reader.files)();
    for (number, file) in files.iter().enumerate() {
        assert!(read(reader, file), "{name}: file {number} is refused");
        // Every cut of small files.
        (0..file.len().min(1000)).for_each(|length| _ = read(reader, &file[..length]));
    }
    let counts = each_damaged(&files, FILES, reader.seal, |bytes| read(reader, bytes));
    println!("{name}: {} damaged files read, {} refused", counts.read, counts.refused);
    counts
}

/// Damage that is always noticed, or never, tests little.
macro_rules! readers {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let counts = check(stringify!($name));
                let least = (counts.read + counts.refused) / 200;
                assert!(counts.read > least && counts.refused > least, "{counts:?}");
            }
        )*

        #[test]
        fn every_reader_has_a_test() {
            let mut names: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
            names.sort();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

readers! {
    artifact code_cache csv idx image libsvm lists manifest mxnet_params mxnet_symbol npy npz plan plan_image recordio
    text_ir
}

/// All entries that can be stated on this disk, none in all, and a directory beyond the file's end.
#[test]
fn npz_with_false_counts_takes_no_memory() {
    let reader = READERS.iter().find(|reader| reader.name == "npz").unwrap();
    let mut file = (reader.files)().swap_remove(0);
    let end = file.windows(4).rposition(|bytes| bytes == b"PK\x05\x06").unwrap();
    file[end + 8..end + 12].copy_from_slice(&[0xff, 0xff, 0, 0]);
    file[end + 16..end + 20].copy_from_slice(&[0, 0, 0x62, 1]);
    assert!(!read(reader, &file));
}

/// The fuzz targets are those of this crate, and that of ONNX models.
#[test]
fn every_reader_has_a_fuzz_target() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/fuzz_targets");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.map(|name| name.replace(".rs", "")).filter(|name| name != "onnx").collect();
    found.sort();
    let mut expected: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
    expected.sort();
    assert_eq!(found, expected);
}
