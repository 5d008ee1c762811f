//! Damaged files: an error or a batch, never a panic, nor memory that the
//! size of the file does not explain.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;

use tensorc_data::formats::{CsvOptions, LibSvmOptions, MnistOptions, NpyDataset, read_arrays, read_idx, write_arrays};
use tensorc_data::iter::epoch;
use tensorc_data::{DataError, HostTensor, Loader};
use tensorc_random::each_damaged;

const FILES: u64 = 10_000;

/// Reads damaged files; some must be read, and some must be refused.
fn try_all(whole: &[u8], path: &Path, read: impl Fn() -> Result<(), DataError>) {
    std::fs::write(path, whole).unwrap();
    read().unwrap();
    let counts = each_damaged(&[whole.to_vec()], FILES, None, |bytes| {
        // Some file systems wait for the disk when an old file is emptied and written anew.
        drop(std::fs::remove_file(path));
        std::fs::write(path, bytes).unwrap();
        match read() {
            Ok(()) => true,
            Err(DataError::Panic { message, .. }) => panic!("{message}"),
            Err(error) => error.to_string().is_empty(),
        }
    });
    assert!(counts.read > 0 && counts.refused > 0, "{counts:?}");
}

/// All batches of an epoch; the first error.
fn drain(loader: Result<Loader, DataError>) -> Result<(), DataError> {
    epoch(&mut loader?).try_for_each(|batch| batch.map(drop))
}

/// The most memory that this process has used so far, where the system tells.
fn check_memory() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(peak.is_none_or(|peak: u64| peak < 512 << 10), "{peak:?} kB");
}

#[test]
fn changed_rows_of_csv() {
    let folder = tempfile::tempdir().unwrap();
    let data_csv = folder.path().join("data.csv");
    let text: String = (0..6).map(|i| format!("{i},-{i}.5,{i}e-3\r\n")).collect();
    for round_batch in [true, false] {
        let (data_shape, batch_size) = (vec![3], 4);
        let options =
            CsvOptions { data_csv: data_csv.clone(), data_shape, batch_size, round_batch, ..CsvOptions::default() };
        try_all(text.as_bytes(), &data_csv, || drain(options.open()));
    }
    check_memory();
}

#[test]
fn changed_rows_of_libsvm() {
    let folder = tempfile::tempdir().unwrap();
    let data_libsvm = folder.path().join("data.t");
    let text: String = (0..6).map(|i| format!("{i} 0:{i} {}:0.5 # row\n", i + 1)).collect();
    let options = LibSvmOptions { data_libsvm, data_shape: vec![8], batch_size: 4, ..LibSvmOptions::default() };
    try_all(text.as_bytes(), &options.data_libsvm, || drain(options.open()));
    check_memory();
}

#[test]
fn changed_idx_files() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("images");
    let label = folder.path().join("labels");
    std::fs::write(&label, [0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]).unwrap();
    let head = [0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3];
    let images: Vec<u8> = head.into_iter().chain(0..24).collect();
    let options = MnistOptions { image: image.clone(), label, batch_size: 2, ..MnistOptions::default() };
    try_all(&images, &image, || drain(options.open()));
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(&images).unwrap();
    try_all(&encoder.finish().unwrap(), &image, || read_idx(&image).map(drop));
    check_memory();
}

#[test]
fn changed_files_of_numpy() {
    let folder = tempfile::tempdir().unwrap();
    let (npy, npz) = (folder.path().join("x.npy"), folder.path().join("x.npz"));
    let header = format!("{:117}\n", "{'descr': '<f2', 'fortran_order': False, 'shape': (4, 3), }");
    let file = [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), &[7; 24]].concat();
    let dataset = || Loader::of(NpyDataset::open([("data", &npy)], [])?, 2).build();
    try_all(&file, &npy, || drain(dataset()));
    try_all(&file, &npy, || read_arrays(&npy).map(drop));
    let array = HostTensor::from_slice(&[3], &[1.5f32, 2.5, 3.5]).unwrap();
    write_arrays(&npz, [("x", array.as_ref())]).unwrap();
    let archive = std::fs::read(&npz).unwrap();
    try_all(&archive, &npz, || read_arrays(&npz).map(drop));
    check_memory();
}

#[test]
fn sizes_in_headers_cost_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge");
    for head in [[0, 0, 8, 2, 0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 14, 2, 255, 255, 255, 255, 0, 255, 255, 255]] {
        std::fs::write(&path, head).unwrap();
        let error = read_idx(&path).unwrap_err().to_string();
        assert!(error.contains("0 bytes of elements do not fill"), "{error}");
    }
    check_memory();
}
