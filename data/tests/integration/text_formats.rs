//! Rows of text as examples: the sequences of batches that MXNet gives, exact integers, parts, and errors.

use std::path::PathBuf;

use tempfile::TempDir;
use tensorc_abi::DType;
use tensorc_data::formats::{CsvOptions, LibSvmOptions};
use tensorc_data::iter::epoch;
use tensorc_data::{Cause, DataError, DataIter, Loader, OnError};
use tensorc_runtime::Element;

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// Rows `i,-i`, and their labels `10 i`.
fn ten_rows(files: &Files) -> CsvOptions {
    let row = |i: i32| format!("{i},{}\n", -i);
    let label = |i: i32| format!("{}\n", 10 * i);
    CsvOptions {
        data_csv: files.write("data.csv", (0..10).map(row).collect::<String>()),
        data_shape: vec![2],
        label_csv: Some(files.write("label.csv", (0..10).map(label).collect::<String>())),
        batch_size: 4,
        ..CsvOptions::default()
    }
}

/// Of each batch of some epochs: the numbers of the examples, told by their first values and labels, and the pad.
fn sequence(loader: &mut Loader, epochs: usize) -> Vec<Vec<(Vec<u64>, usize)>> {
    let batches = |loader: &mut Loader| {
        let numbers = |batch: tensorc_data::Batch| {
            let data: Vec<f32> = batch.data[0].to_vec().unwrap();
            let labels: Vec<f32> = batch.labels[0].to_vec().unwrap();
            for ((row, label), index) in data.chunks(2).zip(labels).zip(&batch.index) {
                let i = *index as f32;
                assert_eq!((row, label), (&[i, -i][..], 10. * i));
            }
            (batch.index, batch.pad)
        };
        epoch(loader).map(|batch| numbers(batch.unwrap())).collect()
    };
    (0..epochs).map(|_| batches(loader)).collect()
}

#[test]
fn csv_batches_come_in_the_order_of_mxnet() {
    let files = Files::new();
    let options = ten_rows(&files);
    let whole = [(vec![0, 1, 2, 3], 0), (vec![4, 5, 6, 7], 0)];
    let wrapped = [&whole[..], &[(vec![8, 9, 0, 1], 2)]].concat();
    let second = vec![(vec![2, 3, 4, 5], 0), (vec![6, 7, 8, 9], 0)];
    let mut round = options.open().unwrap();
    assert_eq!(sequence(&mut round, 3), [wrapped.clone(), second, wrapped]);
    let stale = [&whole[..], &[(vec![8, 9, 6, 7], 2)]].concat();
    let mut repeated = CsvOptions { round_batch: false, ..options }.open().unwrap();
    assert_eq!(sequence(&mut repeated, 3), [stale.clone(), stale.clone(), stale]);
}

#[test]
fn csv_batches_have_the_shapes_and_names_asked_for() {
    let files = Files::new();
    let mut options = CsvOptions { label_csv: None, ..ten_rows(&files) };
    for (name, text) in [("data_shape", "(1,2)"), ("dtype", "int32"), ("label_name", "softmax_label")] {
        options.set(name, text).unwrap();
    }
    let mut loader = options.open().unwrap();
    let (data, label) = (&loader.provide_data()[0], &loader.provide_label()[0]);
    assert_eq!((&data.name[..], data.dtype, &data.dims[..]), ("data", DType::I32, &[4, 1, 2][..]));
    assert_eq!((&label.name[..], label.dtype, &label.dims[..]), ("softmax_label", DType::I32, &[4][..]));
    assert_eq!(loader.next().unwrap().unwrap().labels[0].to_vec::<i32>().unwrap(), [0; 4], "no labels are 0");
    let rows = options.data_csv.clone();
    let two = CsvOptions { label_csv: Some(rows), label_shape: vec![2], ..options.clone() }.open().unwrap();
    assert_eq!(two.provide_label()[0].dims, [4, 2]);
    let error = options.set("batchsize", "4").unwrap_err().to_string();
    let known = "data_csv, data_shape, label_csv, label_shape, dtype, batch_size, round_batch, num_parts, part_index, \
                 prefetch_buffer, data_name, label_name";
    assert_eq!(error, format!("CSVIter: unknown option `batchsize`; there are {known}"));
    options.data_shape.clear();
    assert_eq!(options.open().err().unwrap().to_string(), "data_shape: the shape of an example is missing");
}

/// 1000 rows of 8 × 8 equal values come as they are written.
fn exact<T: Element + PartialEq + std::fmt::Display + std::fmt::Debug>(dtype: DType, value: T) {
    let files = Files::new();
    let row = vec![value.to_string(); 64].join(",") + "\n";
    let data_csv = files.write("data.csv", row.repeat(1000));
    let label_csv = Some(files.write("label.csv", "0\n".repeat(1000)));
    let (data_shape, batch_size) = (vec![8, 8], 100);
    let options = CsvOptions { data_csv, label_csv, data_shape, batch_size, dtype, ..CsvOptions::default() };
    let mut loader = options.open().unwrap();
    let batches: Vec<_> = epoch(&mut loader).map(Result::unwrap).collect();
    assert_eq!(batches.len(), 10);
    for batch in batches {
        assert_eq!((batch.data[0].dtype(), batch.data[0].dims(), batch.pad), (dtype, &[100, 8, 8][..], 0));
        assert!(batch.data[0].to_vec::<T>().unwrap().iter().all(|found| *found == value));
    }
}

#[test]
fn integers_are_exact() {
    exact(DType::I32, 200_000_001i32);
    exact(DType::I64, 2_147_483_648i64);
    exact(DType::F32, 0.1f32);
    exact(DType::U64, u64::MAX);
}

fn first_error(loader: Result<Loader, DataError>) -> DataError {
    match loader {
        Ok(mut loader) => epoch(&mut loader).find_map(Result::err).unwrap(),
        Err(error) => error,
    }
}

#[test]
fn errors_name_the_row_and_its_place() {
    let files = Files::new();
    let options = CsvOptions { batch_size: 1, label_csv: None, ..ten_rows(&files) };
    for (text, dtype, why) in [
        ("1,2\n\n3,4,5\n", DType::F32, "record 1, byte 5: expected 2 values, found 3"),
        ("1,2\n3\n", DType::F32, "record 1, byte 4: expected 2 values, found 1"),
        ("a,b\n1,2\n", DType::F32, "record 0, byte 0: `a` is not a number"),
        ("1,2\r\n3,x\r\n", DType::F32, "record 1, byte 5: `x` is not a number"),
        ("1,2\n3,2147483648\n", DType::I32, "record 1, byte 4: `2147483648` does not fit i32"),
    ] {
        let data_csv = files.write("wrong.csv", text);
        let expected = format!("{}, {why}", data_csv.display());
        let options = CsvOptions { data_csv, dtype, ..options.clone() };
        assert_eq!(first_error(options.open()).to_string(), expected);
    }
    let label_csv = files.write("few.csv", "1\n2\n3\n");
    let few = first_error(CsvOptions { label_csv: Some(label_csv.clone()), ..options.clone() }.open());
    let (labels, data) = (label_csv.display(), options.data_csv.display());
    assert_eq!(few.to_string(), format!("{labels}, record 3: expected labels for 10 rows in {data}, found 3 rows"));
    let missing = first_error(CsvOptions { data_csv: "/no/such.csv".into(), ..options.clone() }.open());
    assert!(matches!(&missing, DataError::At { cause: Cause::Io(_), .. }), "{missing}");
    let folder = first_error(CsvOptions { data_csv: files.0.path().to_owned(), ..options }.open());
    assert!(matches!(&folder, DataError::At { cause: Cause::Io(_), .. }), "{folder}");
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let files = Files::new();
    let options = CsvOptions { batch_size: 1, prefetch_buffer: 1, ..ten_rows(&files) };
    let mut loader = options.open().unwrap();
    files.write("data.csv", "0,0\n");
    let error = epoch(&mut loader).find_map(Result::err).unwrap().to_string();
    assert!(error.ends_with("byte 4: the file ends inside of a row that it had when it was opened"), "{error}");
}

/// Rows `i.5 0:i 2:0.25`; every third has no features.
fn ten_sparse(files: &Files) -> LibSvmOptions {
    let row = |i: i32| if i % 3 == 0 { format!("{i}.5\n") } else { format!("{i}.5 0:{i} 2:0.25\n") };
    LibSvmOptions {
        data_libsvm: files.write("data.t", (0..10).map(row).collect::<String>()),
        data_shape: vec![3],
        batch_size: 4,
        ..LibSvmOptions::default()
    }
}

fn indices(loader: &mut Loader) -> Vec<(Vec<u64>, usize)> {
    epoch(loader).map(Result::unwrap).map(|batch| (batch.index, batch.pad)).collect()
}

#[test]
fn libsvm_batches_wrap_as_those_of_mxnet() {
    let files = Files::new();
    let options = ten_sparse(&files);
    let mut loader = options.open().unwrap();
    assert_eq!(loader.provide_label()[0].dims, [4]);
    let batch = loader.next().unwrap().unwrap();
    let dense = [[0., 0., 0.], [1., 0., 0.25], [2., 0., 0.25], [0., 0., 0.]].concat();
    assert_eq!(batch.data[0].to_vec::<f32>().unwrap(), dense);
    assert_eq!(batch.labels[0].to_vec::<f32>().unwrap(), [0.5, 1.5, 2.5, 3.5]);
    let mut loader = options.open().unwrap();
    let first = vec![(vec![0, 1, 2, 3], 0), (vec![4, 5, 6, 7], 0), (vec![8, 9, 0, 1], 2)];
    assert_eq!(indices(&mut loader), first);
    assert_eq!(indices(&mut loader), [(vec![2, 3, 4, 5], 0), (vec![6, 7, 8, 9], 0)]);
    assert_eq!(indices(&mut loader), first);
    // With a file of labels, those are its features, and the labels of both files are left out.
    let label = |i: i32| format!("-1 1:{i}\n");
    let label_libsvm = Some(files.write("label.t", (0..10).map(label).collect::<String>()));
    let mut beside = LibSvmOptions { label_libsvm, label_shape: vec![2], ..options }.open().unwrap();
    let batch = beside.next().unwrap().unwrap();
    assert_eq!(batch.labels[0].to_vec::<f32>().unwrap(), [0., 0., 0., 1., 0., 2., 0., 3.]);
    assert_eq!(batch.data[0].to_vec::<f32>().unwrap(), dense);
}

#[test]
fn libsvm_rows_with_several_labels_and_errors() {
    let files = Files::new();
    let data_libsvm = files.write("two.t", "# labels, features\n1 2 0:5\n3 4\n5 6 1:7 0:8\n7 8 3:1\n9 1:1\n");
    let options = LibSvmOptions { data_libsvm, label_shape: vec![2], batch_size: 2, ..ten_sparse(&files) };
    let mut loader = options.open().unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.labels[0].to_vec::<f32>().unwrap(), [1., 2., 3., 4.]);
    assert_eq!(batch.data[0].to_vec::<f32>().unwrap(), [5., 0., 0., 0., 0., 0.]);
    let each = LibSvmOptions { batch_size: 1, ..options.clone() };
    let mut loader = each.open().unwrap();
    let errors: Vec<String> = epoch(&mut loader).filter_map(Result::err).map(|e| e.to_string()).collect();
    let file = options.data_libsvm.display();
    let expected = [
        "record 2, byte 31: index 0 of `0:8` is not above the one before it",
        "record 3, byte 43: index 3 of `3:1` is not below 3",
        "record 4, byte 51: expected 2 labels, found 1",
    ];
    assert_eq!(errors, expected.map(|why| format!("{file}, {why}")));
    let skipping = Loader::of(tensorc_data::formats::LibSvmDataset::open(&each).unwrap(), 1).on_error(OnError::Skip);
    assert_eq!(indices(&mut skipping.build().unwrap()), [(vec![0], 0), (vec![1], 0)]);
    let wide = LibSvmOptions { data_shape: vec![2, 2], ..options }.open().err().unwrap();
    assert_eq!(wide.to_string(), "data_shape: [2, 2] has not one extent");
}

#[test]
fn parts_share_out_the_rows() {
    let files = Files::new();
    for parts in [1, 2, 3, 4] {
        let (csv, svm) = (ten_rows(&files), ten_sparse(&files));
        let rows = |of: &dyn Fn(usize) -> Loader| -> Vec<u64> {
            (0..parts).flat_map(|part| indices(&mut of(part))).flat_map(|(index, _)| index).collect()
        };
        let expected: Vec<u64> = (0..10).collect();
        let part = |part_index| CsvOptions { part_index, num_parts: parts, batch_size: 1, ..csv.clone() };
        assert_eq!(rows(&|i| part(i).open().unwrap()), expected);
        let part = |part_index| LibSvmOptions { part_index, num_parts: parts, batch_size: 1, ..svm.clone() };
        assert_eq!(rows(&|i| part(i).open().unwrap()), expected);
    }
}
