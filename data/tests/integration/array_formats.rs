//! Arrays in files as examples: idx files and MNIST, and numpy's files.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tensorc_abi::DType;
use tensorc_data::formats::{
    ArrayRef, MnistOptions, NpyDataset, StoredArray, StoredTexts, read_arrays, read_idx, read_stored_arrays,
    write_arrays, write_stored_arrays,
};
use tensorc_data::iter::epoch;
use tensorc_data::{Batch, Batches, DataIter, HostTensor, Loader, Shuffle};
use tensorc_runtime::TensorRef;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// An idx file of bytes.
fn idx(dims: &[u32], bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let extents = dims.iter().flat_map(|n| n.to_be_bytes());
    [0, 0, 8, dims.len() as u8].into_iter().chain(extents).chain(bytes).collect()
}

fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Ten images of 2 × 3, the pixels of image `i` being `6 i` and following, with the labels `i`.
fn ten_images(folder: &TempDir) -> MnistOptions {
    let image = write(folder, "images", idx(&[10, 2, 3], 0..60));
    let label = write(folder, "labels", idx(&[10], 0..10));
    MnistOptions { image, label, batch_size: 4, ..MnistOptions::default() }
}

fn labels(batches: &[Batch]) -> Vec<f32> {
    batches.iter().flat_map(|batch| batch.labels[0].to_vec::<f32>().unwrap()).collect()
}

fn batches(loader: &mut Loader) -> Vec<Batch> {
    epoch(loader).map(Result::unwrap).collect()
}

#[test]
fn mnist_pixels_are_256ths_and_the_last_batch_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = ten_images(&folder);
    options.set("shuffle", "False").unwrap();
    let mut loader = options.open().unwrap();
    assert_eq!(loader.provide_data()[0].dims, [4, 1, 2, 3]);
    assert_eq!(loader.provide_label()[0].dims, [4]);
    for _ in 0..2 {
        let found = batches(&mut loader);
        assert_eq!(labels(&found), [0., 1., 2., 3., 4., 5., 6., 7.]);
        let pixels: Vec<f32> = found.iter().flat_map(|batch| batch.data[0].to_vec::<f32>().unwrap()).collect();
        assert_eq!(pixels, (0..48).map(|i| i as f32 / 256.).collect::<Vec<_>>());
        assert!(found.iter().all(|batch| batch.pad == 0));
    }
    let mut flat = MnistOptions { flat: true, ..options }.open().unwrap();
    assert_eq!(batches(&mut flat)[0].data[0].dims(), [4, 6]);
}

#[test]
fn mnist_is_shuffled_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = ten_images(&folder);
    let order = |seed: u64, epochs: usize| -> Vec<Vec<f32>> {
        let mut loader = MnistOptions { seed, ..options.clone() }.open().unwrap();
        (0..epochs).map(|_| labels(&batches(&mut loader))).collect()
    };
    let orders = order(0, 3);
    assert!(orders.iter().all(|other| *other == orders[0]), "{orders:?}");
    assert_eq!(order(0, 1)[0], orders[0], "and again from the same seed");
    assert_ne!(orders[0], [0., 1., 2., 3., 4., 5., 6., 7.]);
    assert_ne!(order(1, 1)[0], orders[0]);
    // Parts are consecutive, and shuffled inside.
    let part = |part_index| MnistOptions { part_index, num_parts: 2, batch_size: 5, ..options.clone() };
    for (part_index, expected) in [(0, [0., 1., 2., 3., 4.]), (1, [5., 6., 7., 8., 9.])] {
        let mut found = labels(&batches(&mut part(part_index).open().unwrap()));
        found.sort_by(f32::total_cmp);
        assert_eq!(found, expected);
    }
}

#[test]
fn compressed_idx_files_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let plain = ten_images(&folder);
    let image = write(&folder, "images.gz", gzip(&std::fs::read(&plain.image).unwrap()));
    assert_eq!(read_idx(&image).unwrap(), read_idx(&plain.image).unwrap());
    let compressed = MnistOptions { image, ..plain.clone() };
    assert_eq!(batches(&mut compressed.open().unwrap()), batches(&mut plain.open().unwrap()));
}

#[test]
fn idx_files_that_do_not_belong_together_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let options = ten_images(&folder);
    let error = |options: MnistOptions| options.open().err().unwrap().to_string();
    let swapped = MnistOptions { image: options.label.clone(), ..options.clone() };
    let path = swapped.image.display().to_string();
    assert_eq!(error(swapped), format!("{path}: expected images: u8 with 3 axes, found u8 [10]"));
    let label = write(&folder, "nine", idx(&[9], 0..9));
    let path = label.display().to_string();
    assert_eq!(error(MnistOptions { label, ..options.clone() }), format!("{path}: expected 10 labels, found 9"));
    let cut = write(&folder, "cut", &idx(&[10, 2, 3], 0..60)[..50]);
    let path = cut.display().to_string();
    let why = "34 bytes of elements do not fill [10, 2, 3] of u8";
    assert_eq!(error(MnistOptions { image: cut, ..options.clone() }), format!("{path}: {why}"));
    let zipped = gzip(&idx(&[10, 2, 3], 0..60));
    let image = write(&folder, "cut.gz", &zipped[..zipped.len() / 2]);
    assert!(MnistOptions { image, ..options }.open().is_err());
}

/// A `.npy` file with these elements, as numpy writes it.
fn npy(dtype: &str, fortran: bool, shape: &str, elements: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let mut header = format!("{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}");
    header += &" ".repeat(63 - (10 + header.len()) % 64);
    header.push('\n');
    [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), elements].concat()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn two_files(folder: &TempDir) -> (PathBuf, PathBuf) {
    let x = write(folder, "x.npy", npy("<f4", false, "(10, 2)", &floats((0..20).map(|i| i as f32))));
    let big: Vec<u8> = (0..10).flat_map(|i: i64| (-i).to_be_bytes()).collect();
    (x, write(folder, "y.npy", npy(">i8", false, "(10,)", &big)))
}

#[test]
fn npy_files_are_examples_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let (x, y) = two_files(&folder);
    let dataset = NpyDataset::open([("data", &x)], [("label", &y)]).unwrap();
    let mut loader = Loader::of(dataset, 4).shuffle(Shuffle::EachEpoch(1)).build().unwrap();
    assert_eq!((loader.provide_label()[0].dtype, loader.provide_data()[0].dims.clone()), (DType::I64, vec![4, 2]));
    for batch in epoch(&mut loader) {
        let batch = batch.unwrap();
        let data: Vec<f32> = batch.data[0].to_vec().unwrap();
        let labels: Vec<i64> = batch.labels[0].to_vec().unwrap();
        for ((row, label), index) in data.chunks(2).zip(labels).zip(batch.index) {
            assert_eq!((row, label), (&[2. * index as f32, 2. * index as f32 + 1.][..], -(index as i64)));
        }
    }
}

#[test]
fn npy_files_that_cannot_be_examples_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (x, _) = two_files(&folder);
    let error = |path: &Path| NpyDataset::open([("data", &x)], [("label", &path.to_owned())]).unwrap_err().to_string();
    for (bytes, why) in [
        (npy("<f4", false, "(9,)", &floats([0.; 9])), format!("expected 10 examples as {} has, found 9", x.display())),
        (npy("<f4", false, "()", &floats([0.])), "a single value has no examples".into()),
        (npy("<f4", false, "(10,)", &floats([0.; 9])), "expected 168 bytes for [10] of f32, found 164".into()),
        (npy("<c8", false, "(1,)", &[0; 8]), "element type `<c8` is not supported".into()),
        (
            npy("<f4", true, "(10, 2)", &floats([0.; 20])),
            "examples do not lie in one piece: the array is in Fortran's order, and must be in C's".into(),
        ),
        (npy("<f4", false, "(4611686018427387904, 4)", &[]), "[4611686018427387904, 4] of f32 is too large".into()),
    ] {
        let path = write(&folder, "other.npy", bytes);
        assert_eq!(error(&path), format!("{}: {why}", path.display()));
    }
    let wild = write(&folder, "bool.npy", npy("|b1", false, "(10,)", &[1, 0, 7, 1, 0, 0, 0, 0, 0, 0]));
    let dataset = NpyDataset::open([("data", &wild)], []).unwrap();
    let error = Loader::of(dataset, 10).build().unwrap().next().unwrap_err().to_string();
    assert!(error.ends_with("record 2, byte 130: 7 is no boolean"), "{error}");
}

#[test]
fn arrays_are_read_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (x, y) = two_files(&folder);
    let [(name, data)] = &read_arrays(&x).unwrap()[..] else { unreachable!() };
    assert_eq!((&name[..], data.dims()), ("x", &[10, 2][..]));
    let (_, labels) = read_arrays(&y).unwrap().remove(0);
    assert_eq!(labels.to_vec::<i64>().unwrap(), (0..10).map(|i| -i).collect::<Vec<_>>());
    let mut both = Batches::labelled(data.clone(), labels, 5).unwrap();
    assert_eq!(both.next().unwrap().unwrap().labels[0].to_vec::<i64>().unwrap(), [0, -1, -2, -3, -4]);
    // 24 elements in both orders.
    let shape = [2, 3, 4];
    let value = |i: usize, j: usize, k: usize| (100 * i + 10 * j + k) as f32;
    let c = (0..24).map(|n| value(n / 12, n / 4 % 3, n % 4));
    let fortran = (0..24).map(|n| value(n % 2, n / 2 % 3, n / 6));
    let path = write(&folder, "f.npy", npy("<f4", true, "(2, 3, 4)", &floats(fortran)));
    let found = read_arrays(&path).unwrap().remove(0).1;
    assert_eq!((found.dims(), found.to_vec::<f32>().unwrap()), (&shape[..], c.collect()));
    let more = write(&folder, "more.npy", npy("<f4", false, "(2,)", &floats([0.; 3])));
    let error = read_arrays(&more).unwrap_err().to_string();
    assert!(error.ends_with("more than 8 bytes of elements do not fill [2] of f32"), "{error}");
}

fn npz(path: &Path) {
    let mut file = zip::ZipWriter::new(File::create(path).unwrap());
    let mut put = |name: &str, method: CompressionMethod, bytes: &[u8]| {
        file.start_file(name, SimpleFileOptions::default().compression_method(method)).unwrap();
        file.write_all(bytes).unwrap();
    };
    put("z.npy", CompressionMethod::Stored, &npy("|u1", false, "(3,)", &[1, 2, 3]));
    put("notes.txt", CompressionMethod::Stored, b"of no array");
    put("a.npy", CompressionMethod::Deflated, &npy("|u1", false, "(1,)", &[4]));
    file.finish().unwrap();
}

#[test]
fn archives_have_arrays_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.npz");
    npz(&path);
    let arrays = read_arrays(&path).unwrap();
    let found: Vec<(&str, Vec<u8>)> = arrays.iter().map(|(name, array)| (&name[..], array.to_vec().unwrap())).collect();
    assert_eq!(found, [("z", vec![1, 2, 3]), ("a", vec![4])]);
    // Elements that are not those of the checksum in the directory.
    let mut bytes = std::fs::read(&path).unwrap();
    let entry = bytes.windows(4).position(|signature| signature == b"PK\x01\x02").unwrap();
    bytes[entry + 16] ^= 1;
    let path = write(&folder, "changed.npz", bytes);
    let error = read_arrays(&path).unwrap_err().to_string();
    assert!(error.ends_with("array `z`: Invalid checksum"), "{error}");
}

#[test]
fn what_inflates_to_more_than_the_file_can_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.npz");
    let archive = |method, shape: &str, bytes: &[u8]| {
        let mut file = zip::ZipWriter::new(File::create(&path).unwrap());
        file.start_file("x.npy", SimpleFileOptions::default().compression_method(method)).unwrap();
        file.write_all(&npy("|u1", false, shape, bytes)).unwrap();
        file.finish().unwrap();
        read_arrays(&path)
    };
    // Zeros, of which a thousand take a byte.
    let arrays = archive(CompressionMethod::Deflated, "(3000000,)", &[0; 3_000_000]).unwrap();
    assert!(arrays[0].1.bytes().len() == 3_000_000 && std::fs::metadata(&path).unwrap().len() < 4000);
    for (method, shape) in [
        (CompressionMethod::Deflated, "(1099511627776,)"),
        (CompressionMethod::Deflated, "(4294967297,)"),
        (CompressionMethod::Stored, "(1000000,)"),
    ] {
        let error = archive(method, shape, &[0; 3]).unwrap_err().to_string();
        assert!(error.contains("array `x`: [") && error.contains("bytes that the file can hold"), "{error}");
    }
    // An idx file, compressed by gzip.
    let bomb = gzip(&idx(&[65536, 65536], [7]));
    let error = read_idx(write(&folder, "bomb.gz", bomb)).unwrap_err().to_string();
    assert!(error.contains("[65536, 65536] of u8 is more than the ") && error.contains("can hold"), "{error}");
}

#[test]
fn written_archives_are_read_again_and_know_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let arrays: Vec<(&str, HostTensor)> = vec![
        ("/model/out\u{e9}", HostTensor::from_slice(&[2, 3], &[1.5f32, -0.0, 3., 4., 5., f32::MAX]).unwrap()),
        ("b", HostTensor::new(DType::Bool, &[2], vec![0u8, 1]).unwrap()),
        ("none", HostTensor::from_slice::<i64>(&[0, 4], &[]).unwrap()),
        ("one", HostTensor::from_slice(&[], &[-7i64]).unwrap()),
    ];
    let save = |name: &str| {
        let path = folder.path().join(name);
        write_arrays(&path, arrays.iter().map(|(name, array)| (*name, array.as_ref()))).unwrap();
        path
    };
    let (first, second) = (save("first.npz"), save("second.npz"));
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    let found = read_arrays(&first).unwrap();
    assert_eq!(found.iter().map(|(name, array)| (name.as_str(), array.clone())).collect::<Vec<_>>(), arrays);
    let mut zip = zip::ZipArchive::new(File::open(&first).unwrap()).unwrap();
    let mut entry = zip.by_index(1).unwrap();
    assert_eq!(entry.last_modified(), Some(zip::DateTime::default()));
    let mut bytes = vec![];
    entry.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, npy("|b1", false, "(2,)", &[0, 1]));
}

#[test]
fn archives_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let refused =
        |arrays: &[(&str, TensorRef<'_>)]| write_arrays(&path, arrays.iter().copied()).unwrap_err().to_string();
    let one = TensorRef::new(DType::U8, &[1], &[9]);
    let error = refused(&[("x", one), ("x", one)]);
    assert!(error.contains("array `x`: ") && error.contains("Duplicate filename: x.npy"), "{error}");
    let error = refused(&[("x", TensorRef::new(DType::F32, &[2], &[0; 7]))]);
    assert!(error.ends_with("array `x`: expected elements of [2] f32, found 7 bytes"), "{error}");
    let error = write_arrays(folder.path(), []).unwrap_err().to_string();
    assert!(error.contains("directory"), "{error}");
}

fn texts(path: &Path) -> StoredTexts {
    match read_stored_arrays(path).unwrap().remove(0).1 {
        StoredArray::Texts(texts) => texts,
        StoredArray::Numbers(tensor) => panic!("{tensor:?}"),
    }
}

/// Codes of characters, as numpy stores them.
fn codes(texts: &[&str], length: usize, big: bool) -> Vec<u8> {
    let padded = |text: &str| text.chars().map(u32::from).chain(std::iter::repeat(0)).take(length).collect::<Vec<_>>();
    let code = |code: u32| if big { code.to_be_bytes() } else { code.to_le_bytes() };
    texts.iter().flat_map(|text| padded(text)).flat_map(code).collect()
}

#[test]
fn texts_are_read_as_numpy_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let expected =
        StoredTexts { dims: vec![2, 2], texts: ["ab", "\u{e9}", "", "\u{1f600}x"].map(String::from).to_vec() };
    for (name, big) in [("little.npy", false), ("big.npy", true)] {
        let descr = if big { ">U2" } else { "<U2" };
        let bytes = npy(descr, false, "(2, 2)", &codes(&["ab", "\u{e9}", "", "\u{1f600}x"], 2, big));
        assert_eq!(texts(&write(&folder, name, bytes)), expected);
    }
    let columns = npy("<U2", true, "(2, 2)", &codes(&["ab", "", "\u{e9}", "\u{1f600}x"], 2, false));
    assert_eq!(texts(&write(&folder, "columns.npy", columns)), expected);
    let bytes = write(&folder, "bytes.npy", npy("|S3", false, "(2,)", b"ab\0xyz"));
    assert_eq!(texts(&bytes), StoredTexts { dims: vec![2], texts: vec!["ab".into(), "xyz".into()] });
    let error = read_arrays(&bytes).unwrap_err().to_string();
    assert!(error.ends_with("array `bytes`: texts in place of numbers"), "{error}");
    let whole = write(&folder, "none.npy", npy("<U1", false, "(1,)", &[0, 0xd8, 0, 0]));
    let error = read_stored_arrays(&whole).unwrap_err().to_string();
    assert!(error.ends_with("a text with a character that is none"), "{error}");
    for (descr, shape, why) in [("<U0", "(9,)", "element type `<U0` is not supported"), ("<U9", "(1,)", "do not fill")]
    {
        let error = read_stored_arrays(write(&folder, "wrong.npy", npy(descr, false, shape, &[0; 4]))).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn written_texts_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.npz");
    let (all, one) = (["a", "", "g\u{e9}n\u{1f600}"], TensorRef::new(DType::U8, &[1], &[9]));
    let arrays =
        [("x", ArrayRef::Texts(&[3, 1], &all)), ("n", ArrayRef::Numbers(one)), ("e", ArrayRef::Texts(&[0], &[]))];
    write_stored_arrays(&path, arrays).unwrap();
    assert_eq!(texts(&path), StoredTexts { dims: vec![3, 1], texts: all.map(String::from).to_vec() });
    let mut zip = zip::ZipArchive::new(File::open(&path).unwrap()).unwrap();
    let mut bytes = vec![];
    zip.by_index(0).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, npy("<U4", false, "(3, 1)", &codes(&all, 4, false)));
    let error = write_stored_arrays(&path, [("x", ArrayRef::Texts(&[2], &all))]).unwrap_err().to_string();
    assert!(error.ends_with("array `x`: expected texts of [2], found 3"), "{error}");
}
