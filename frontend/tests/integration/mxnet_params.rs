//! NDArray lists: documented bytes in both directions, every version, and files written by MXNet.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use tensorc_data::HostTensor;
use tensorc_data::formats::read_arrays;
use tensorc_frontend::mxnet::error::{ArrayProblem, FormatProblem, ParamsError, Site};
use tensorc_frontend::mxnet::params::{
    ArrayList, ArrayVersion, Checkpoint, CheckpointRole, Csr, RowSparse, SavedArray, SavedDevice, SavedDeviceKind,
    checkpoint_path, load, read, save, write,
};
use tensorc_ir::{DType, DenseType, TensorData};

/// Bytes from hexadecimal digits; white space is for the reader.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).unwrap()).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// A list of one unnamed array with these bytes.
fn one(array: &str) -> Vec<u8> {
    hex(&format!("1201000000000000 0000000000000000 0100000000000000 {array} 0000000000000000"))
}

fn read_one(array: &str) -> SavedArray {
    let list = read(one(array).into()).unwrap();
    assert_eq!(list.arrays.len(), 1);
    list.arrays.into_iter().next().unwrap().1
}

fn f32s(dims: &[u64], values: &[f32]) -> TensorData {
    TensorData::f32s(dims, values).unwrap()
}

fn i64s(dims: &[u64], values: &[i64]) -> TensorData {
    TensorData::i64s(dims, values).unwrap()
}

fn typed(dtype: DType, dims: &[u64], bytes: Vec<u8>) -> TensorData {
    TensorData::new(DenseType::new(dtype, dims), bytes.into()).unwrap()
}

fn floats(dims: &[u64], values: &[f32]) -> SavedArray {
    SavedArray::dense(f32s(dims, values))
}

const VERSIONS: [ArrayVersion; 4] = [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2, ArrayVersion::V3];

fn read_all(bytes: &[u8]) -> ArrayList {
    read(Bytes::copy_from_slice(bytes)).unwrap()
}

fn device(kind: SavedDeviceKind, id: i32) -> SavedDevice {
    SavedDevice { kind, id }
}

/// What `read` says of these bytes.
fn refused(bytes: Vec<u8>) -> (Site, u64, FormatProblem) {
    match read(bytes.into()) {
        Err(ParamsError::Format { site, offset, problem }) => (site, offset, problem),
        other => panic!("{other:?}"),
    }
}

fn refused_array(array: &str) -> FormatProblem {
    let (site, offset, problem) = refused(one(array));
    assert_eq!(site, Site::Array { index: 0, name: None });
    assert!(offset >= 24, "{offset}");
    problem
}

/// MXNet 1.9.1: `arg:w`, float32 2x3 of 1 to 6, and `aux:m`, int64 [7].
const TWO_NAMED: &str = "1201000000000000 0000000000000000 0200000000000000
    c9fa93f9 00000000 02000000 0200000000000000 0300000000000000 01000000 00000000 00000000
    0000803f 00000040 00004040 00008040 0000a040 0000c040
    c9fa93f9 00000000 01000000 0100000000000000 01000000 00000000 06000000 0700000000000000
    0200000000000000 0500000000000000 6172673a77 0500000000000000 6175783a6d";

/// MXNet 1.9.1: float32 3x2 with row 1 = [1, 2], row sparse.
const ROW_SPARSE: &str = "c9fa93f9 01000000 02000000 0100000000000000 0200000000000000
    02000000 0300000000000000 0200000000000000 01000000 00000000 00000000
    06000000 01000000 0100000000000000 0000803f 00000040 0100000000000000";

/// MXNet 1.9.1 with NumPy shapes: the scalar 3.
const SCALAR: &str = "cafa93f9 00000000 00000000 01000000 00000000 00000000 00004040";

/// A csr matrix 2x3: [[0, 1, 0], [2, 0, 3]].
const CSR: &str = "c9fa93f9 02000000 01000000 0300000000000000 02000000 0200000000000000 0300000000000000
    01000000 00000000 00000000 06000000 01000000 0300000000000000 06000000 01000000 0300000000000000
    0000803f 00000040 00004040 0000000000000000 0100000000000000 0300000000000000
    0100000000000000 0000000000000000 0200000000000000";

fn csr() -> Csr {
    Csr {
        device: SavedDevice::default(),
        dims: vec![2, 3],
        indptr: i64s(&[3], &[0, 1, 3]),
        indices: i64s(&[3], &[1, 0, 2]),
        values: f32s(&[3], &[1.0, 2.0, 3.0]),
    }
}

fn row_sparse() -> RowSparse {
    RowSparse {
        device: SavedDevice::default(),
        dims: vec![3, 2],
        indices: i64s(&[1], &[1]),
        values: f32s(&[1, 2], &[1.0, 2.0]),
    }
}

#[test]
fn documented_list_in_both_directions() {
    let bytes = hex(TWO_NAMED);
    assert_eq!(bytes.len(), 162);
    let expected = ArrayList::named([
        ("arg:w", floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("aux:m", SavedArray::dense(i64s(&[1], &[7]))),
    ]);
    assert_eq!(read(bytes.clone().into()).unwrap(), expected);
    assert_eq!(write(&expected, ArrayVersion::V2).unwrap(), bytes);
}

#[test]
fn documented_arrays_in_both_directions() {
    let arrays = [
        (ROW_SPARSE, SavedArray::RowSparse(Box::new(row_sparse())), ArrayVersion::V2),
        (CSR, SavedArray::Csr(Box::new(csr())), ArrayVersion::V2),
        (SCALAR, floats(&[], &[3.0]), ArrayVersion::V3),
    ];
    for (text, array, version) in arrays {
        assert_eq!(read_one(text), array);
        let list = ArrayList::unnamed([array]);
        assert_eq!(list.version(), version);
        assert_eq!(write(&list, version).unwrap(), one(text));
    }
    assert_eq!(row_sparse().to_dense().unwrap(), f32s(&[3, 2], &[0.0, 0.0, 1.0, 2.0, 0.0, 0.0]));
    assert_eq!(csr().to_dense().unwrap(), f32s(&[2, 3], &[0.0, 1.0, 0.0, 2.0, 0.0, 3.0]));
}

#[test]
fn a_storage_shape_without_elements_is_that_of_the_indices() {
    let text = ROW_SPARSE.replacen("0100000000000000", "0000000000000000", 1);
    assert_eq!(read_one(&text), SavedArray::RowSparse(Box::new(row_sparse())));
    let text = CSR.replacen("0300000000000000", "0000000000000000", 1);
    assert_eq!(read_one(&text), SavedArray::Csr(Box::new(csr())));
}

#[test]
fn every_version_of_a_dense_array() {
    let tail = "02000000 03000000 04000000 ffffffff 00010000";
    let texts = [
        (ArrayVersion::V0, "02000000 02000000 01000000"),
        (ArrayVersion::V1, "c8fa93f9 02000000 0200000000000000 0100000000000000"),
        (ArrayVersion::V2, "c9fa93f9 00000000 02000000 0200000000000000 0100000000000000"),
        (ArrayVersion::V3, "cafa93f9 00000000 02000000 0200000000000000 0100000000000000"),
    ];
    let data = typed(DType::I32, &[2, 1], hex("ffffffff 00010000"));
    let array = SavedArray::Dense { device: device(SavedDeviceKind::Gpu, 3), data };
    for (version, head) in texts {
        let text = format!("{head} {tail}");
        assert_eq!(read_one(&text), array, "{version}");
        assert_eq!(write(&ArrayList::unnamed([array.clone()]), version).unwrap(), one(&text), "{version}");
    }
}

#[test]
fn arrays_without_shape_end_after_it() {
    let texts = [
        (ArrayVersion::V0, "00000000"),
        (ArrayVersion::V1, "c8fa93f9 00000000"),
        (ArrayVersion::V2, "c9fa93f9 00000000 00000000"),
        (ArrayVersion::V3, "cafa93f9 00000000 ffffffff"),
    ];
    for (version, text) in texts {
        assert_eq!(read_one(text), SavedArray::None, "{version}");
        assert_eq!(write(&ArrayList::unnamed([SavedArray::None]), version).unwrap(), one(text), "{version}");
    }
    // A dimension that is not known.
    let text = "cafa93f9 00000000 02000000 0300000000000000 ffffffffffffffff";
    assert_eq!(read_one(text), SavedArray::None);
    // Sparse arrays whose shape is not known: storage shape, then a shape of rank 0.
    for storage in ["01000000", "02000000"] {
        assert_eq!(read_one(&format!("c9fa93f9 {storage} 00000000 00000000")), SavedArray::None);
    }
    assert_eq!(SavedArray::None.to_dense(), Err(ArrayProblem::None));
    assert_eq!(SavedArray::None.dims(), None);
}

#[test]
fn every_element_type_and_device() {
    for dtype in DType::ALL {
        let data = typed(dtype, &[2, 3], (0..6 * dtype.size()).map(|i| (i % 2) as u8).collect());
        for kind in SavedDeviceKind::ALL {
            let list = ArrayList::unnamed([SavedArray::Dense { device: device(kind, 7), data: data.clone() }]);
            for version in VERSIONS {
                let bytes = write(&list, version).unwrap();
                assert_eq!(read(bytes.into()).unwrap(), list, "{dtype} {version}");
            }
        }
    }
}

#[test]
fn elements_are_views_of_the_input() {
    let bytes = Bytes::from(hex(TWO_NAMED));
    let range = bytes.as_ptr_range();
    let list = read(bytes.clone()).unwrap();
    for (_, array) in &list.arrays {
        assert!(range.contains(&array.to_dense().unwrap().bytes().as_ptr()));
    }
}

#[test]
fn true_has_one_form() {
    let text = "c9fa93f9 00000000 01000000 0300000000000000 01000000 00000000 07000000";
    assert_eq!(read_one(&format!("{text} 02ff00")), SavedArray::dense(typed(DType::Bool, &[3], vec![1, 1, 0])));
}

#[test]
fn lists_maps_and_single_arrays() {
    let arrays = || (0..10).map(|i| floats(&[i + 1], &vec![i as f32; i as usize + 1]));
    let list = ArrayList::unnamed(arrays());
    let map = ArrayList::named(arrays().enumerate().map(|(i, array)| (format!("array {i}"), array)));
    let single = ArrayList::unnamed([floats(&[2], &[1.0, 2.0])]);
    let folder = tempfile::tempdir().unwrap();
    for (name, list) in [("list", &list), ("map", &map), ("single", &single), ("empty", &ArrayList::default())] {
        let path = folder.path().join(name);
        save(&path, list, list.version()).unwrap();
        assert_eq!(&load(&path).unwrap(), list);
    }
    assert_eq!(map.get("array 3"), Some(&floats(&[4], &[3.0; 4])));
    assert_eq!(map.get("array 10"), None);
    assert_eq!(list.get("array 3"), None);
}

#[test]
fn a_buffer_that_is_cut_is_an_error_wherever_it_is_cut() {
    let list = ArrayList::named([
        ("a", floats(&[2], &[1.0, 2.0])),
        ("b", SavedArray::Csr(Box::new(csr()))),
        ("c", SavedArray::RowSparse(Box::new(row_sparse()))),
        ("d", SavedArray::None),
    ]);
    let bytes = write(&list, ArrayVersion::V2).unwrap();
    for length in 0..bytes.len() {
        assert!(read(Bytes::copy_from_slice(&bytes[..length])).is_err(), "{length} of {}", bytes.len());
    }
    let (site, offset, problem) = refused(bytes[..bytes.len() - 10].to_vec());
    assert_eq!((site, offset), (Site::Names, bytes.len() as u64 - 4 * 9 - 8));
    assert_eq!(problem, FormatProblem::Truncated { what: "the list of names", needed: 32, left: 26 });
    let (site, offset, problem) = refused([bytes.as_slice(), &[0; 3]].concat());
    assert_eq!((site, offset, problem), (Site::End, bytes.len() as u64, FormatProblem::TrailingBytes(3)));
}

#[test]
fn damage_is_named() {
    let v2 = "c9fa93f9 00000000";
    let device = "01000000 00000000";
    let long = "ffffffffffffff7f";
    assert_eq!(refused_array("c9fa93f9 03000000"), FormatProblem::UnknownStorage(3));
    assert_eq!(refused_array("cafa93f9 01000000"), FormatProblem::SparseInV3);
    assert_eq!(refused_array(&format!("{v2} ffffffff")), FormatProblem::BadRank(-1));
    assert_eq!(refused_array("cafa93f9 00000000 feffffff"), FormatProblem::BadRank(-2));
    let problem = refused_array(&format!("{v2} 01000000 feffffffffffffff"));
    assert_eq!(problem, FormatProblem::BadDimension { index: 0, value: -2 });
    assert_eq!(refused_array(&format!("{v2} 01000000 0100000000000000 04000000")), FormatProblem::UnknownDevice(4));
    for code in [-1i32, 13, 1000] {
        let code_hex: String = code.to_le_bytes().iter().map(|b| format!("{b:02x}")).collect();
        let problem = refused_array(&format!("{v2} 01000000 0100000000000000 {device} {code_hex}"));
        assert_eq!(problem, FormatProblem::UnknownType { code, what: "elements" });
    }
    let problem = refused_array(&format!("{v2} 02000000 {long} {long} {device} 00000000"));
    assert_eq!(problem, FormatProblem::TooLarge(vec![i64::MAX as u64; 2]));
    let problem = refused_array(&format!("{v2} 03000000 {long} {long} 0000000000000000 {device} 00000000"));
    assert_eq!(problem, FormatProblem::TooLarge(vec![i64::MAX as u64, i64::MAX as u64, 0]));
    // Lengths that only the end of the input refutes.
    for array in [format!("{v2} ffffff7f"), "ffffff00".into(), "c8fa93f9 00000010".into()] {
        assert!(matches!(refused_array(&array), FormatProblem::Truncated { what: "the shape", .. }), "{array}");
    }
    let problem = refused_array(&format!("{v2} 01000000 0000000001000000 {device} 00000000"));
    assert_eq!(problem, FormatProblem::Truncated { what: "the elements", needed: 1 << 34, left: 8 });
}

#[test]
fn damaged_headers_and_names_are_named() {
    let header = |count: &str| hex(&format!("1201000000000000 0000000000000000 {count}"));
    let (site, offset, problem) = refused(header("ffffffffffffffff"));
    assert_eq!((site, offset), (Site::Header, 16));
    assert!(matches!(problem, FormatProblem::Truncated { what: "the list of arrays", .. }), "{problem}");
    assert_eq!(refused(hex("1301000000000000 00")).2, FormatProblem::NotAList { found: 0x113 });
    for other in [b"PK\x03\x04....".as_slice(), b"\x93NUMPY.", b"{\"nodes\": []}"] {
        assert!(matches!(refused(other.to_vec()), (Site::Header, 0, FormatProblem::OtherFormat(_))));
    }
    let names = |names: &str| hex(&format!("1201000000000000 0000000000000000 0100000000000000 00000000 {names}"));
    let (site, _, problem) = refused(names("0200000000000000 0000000000000000 0000000000000000"));
    assert_eq!((site, problem), (Site::Names, FormatProblem::NameCount { arrays: 1, names: 2 }));
    let (site, offset, problem) = refused(names("0100000000000000 0200000000000000 c328"));
    assert_eq!((site, offset, problem), (Site::Name { index: 0 }, 44, FormatProblem::NotUtf8));
    let (_, offset, problem) = refused(names("0100000000000000 ffffffffffffffff c328"));
    assert_eq!((offset, problem), (44, FormatProblem::Truncated { what: "the name", needed: u64::MAX, left: 2 }));
    let error = read(names("0100000000000000 0200000000000000 c328").into()).unwrap_err();
    assert_eq!(error.to_string(), "name of array 0, at byte 44: the name is not UTF-8 text");
}

#[test]
fn wrong_indices_are_refused_by_reader_and_writer() {
    type Edit = fn(&mut Csr);
    let cases: [(Edit, ArrayProblem); 9] = [
        (|a| a.dims.push(1), ArrayProblem::SparseRank { kind: "csr", rank: 3 }),
        (
            |a| a.values = f32s(&[2], &[1.0, 2.0]),
            ArrayProblem::SparseShape { what: "the stored values", expected: vec![3], found: vec![2] },
        ),
        (
            |a| a.indices = f32s(&[3], &[1.0, 0.0, 2.0]),
            ArrayProblem::IndexType { what: "column indices", dtype: DType::F32 },
        ),
        (
            |a| a.indices = i64s(&[3], &[1, 0, 3]),
            ArrayProblem::IndexRange { what: "column indices", position: 2, value: 3, bound: 3 },
        ),
        (|a| a.indices = i64s(&[3], &[1, 2, 2]), ArrayProblem::IndexOrder { what: "column indices", position: 2 }),
        (
            |a| a.indptr = i64s(&[2], &[0, 3]),
            ArrayProblem::SparseShape { what: "row starts", expected: vec![3], found: vec![2] },
        ),
        (
            |a| a.indptr = i64s(&[3], &[0, 4, 3]),
            ArrayProblem::IndexRange { what: "row starts", position: 1, value: 4, bound: 4 },
        ),
        (
            |a| a.indptr = i64s(&[3], &[0, -1, 3]),
            ArrayProblem::IndexRange { what: "row starts", position: 1, value: -1, bound: 4 },
        ),
        (
            |a| a.indptr = i64s(&[3], &[0, 1, 2]),
            ArrayProblem::IndexRange { what: "row starts", position: 2, value: 2, bound: 4 },
        ),
    ];
    for (edit, expected) in cases {
        let mut array = csr();
        edit(&mut array);
        assert_eq!(array.to_dense(), Err(expected.clone()));
        let list = ArrayList::named([("w", SavedArray::Csr(Box::new(array)))]);
        let error = write(&list, ArrayVersion::V2).unwrap_err();
        assert_eq!(error.to_string(), format!("array 0 `w`: {expected}"));
    }
    let mut descending = csr();
    descending.dims = vec![3, 3];
    descending.indptr = i64s(&[4], &[0, 3, 1, 3]);
    descending.indices = i64s(&[3], &[0, 1, 2]);
    assert_eq!(descending.to_dense(), Err(ArrayProblem::IndexOrder { what: "row starts", position: 2 }));
}

#[test]
fn wrong_rows_are_refused() {
    let with = |dims: &[u64], indices: TensorData, values: TensorData| {
        RowSparse { device: SavedDevice::default(), dims: dims.to_vec(), indices, values }.to_dense()
    };
    let rows = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(
        with(&[3, 2], i64s(&[2], &[2, 1]), rows.clone()),
        Err(ArrayProblem::IndexOrder { what: "row indices", position: 1 })
    );
    assert_eq!(
        with(&[3, 2], i64s(&[2], &[0, 3]), rows.clone()),
        Err(ArrayProblem::IndexRange { what: "row indices", position: 1, value: 3, bound: 3 })
    );
    assert!(with(&[3, 3], i64s(&[2], &[0, 1]), rows.clone()).is_err());
    assert!(with(&[1 << 40, 1 << 40, 2], i64s(&[2], &[0, 1]), rows).is_err());
    // Other integers are indices as well; rows without elements and lists without rows are fine.
    let narrow = typed(DType::U8, &[2], vec![0, 2]);
    assert_eq!(with(&[3, 1], narrow, f32s(&[2, 1], &[5.0, 6.0])).unwrap(), f32s(&[3, 1], &[5.0, 0.0, 6.0]));
    assert_eq!(with(&[3, 0], i64s(&[1], &[2]), f32s(&[1, 0], &[])).unwrap(), f32s(&[3, 0], &[]));
    assert_eq!(with(&[2, 1], i64s(&[0], &[]), f32s(&[0, 1], &[])).unwrap(), f32s(&[2, 1], &[0.0, 0.0]));
    let empty =
        Csr { dims: vec![1, 2], indptr: i64s(&[0], &[]), indices: i64s(&[0], &[]), values: f32s(&[0], &[]), ..csr() };
    assert_eq!(empty.to_dense().unwrap(), f32s(&[1, 2], &[0.0, 0.0]));
}

#[test]
fn what_a_version_cannot_express_is_refused() {
    let problem = |array: SavedArray, version| match write(&ArrayList::unnamed([array]), version) {
        Err(ParamsError::Array { site: Site::Array { index: 0, name: None }, problem }) => problem,
        other => panic!("{other:?}"),
    };
    for version in [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2] {
        assert_eq!(problem(floats(&[], &[1.0]), version), ArrayProblem::Scalar(version));
        assert_eq!(problem(floats(&[2, 0], &[]), version), ArrayProblem::ZeroDimension(version));
    }
    for version in [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V3] {
        let sparse = ArrayProblem::Sparse { kind: "csr", version };
        assert_eq!(problem(SavedArray::Csr(Box::new(csr())), version), sparse);
    }
    let mixed = ArrayList { arrays: vec![(Some("a".into()), SavedArray::None), (None, SavedArray::None)] };
    assert!(matches!(write(&mixed, ArrayVersion::V2), Err(ParamsError::MixedNames { unnamed: 1 })));
    let folder = tempfile::tempdir().unwrap();
    assert!(save(&folder.path().join("a"), &mixed, ArrayVersion::V2).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn checkpoints_sort_arrays_by_role() {
    let bytes = hex(TWO_NAMED);
    let checkpoint = Checkpoint::from_list(read(bytes.clone().into()).unwrap()).unwrap();
    assert_eq!(checkpoint.arguments.keys().collect::<Vec<_>>(), ["w"]);
    assert_eq!(checkpoint.auxiliary.keys().collect::<Vec<_>>(), ["m"]);
    assert_eq!(write(&checkpoint.to_list(), ArrayVersion::V2).unwrap(), bytes);
    for (names, message) in [
        (
            ["arg:a", "b"],
            "array 1 `b` is neither an argument nor an auxiliary state; names begin with `arg:` or `aux:`",
        ),
        (["aux:a", "aux:a"], "`aux:a` is in the checkpoint twice"),
    ] {
        let list = ArrayList::named(names.map(|name| (name, SavedArray::None)));
        assert_eq!(Checkpoint::from_list(list).unwrap_err().to_string(), message);
    }
    assert_eq!(CheckpointRole::split("arg:a:b"), Some((CheckpointRole::Argument, "a:b")));
    assert_eq!(CheckpointRole::split("param:a"), None);
    assert_eq!(checkpoint_path("models/net".as_ref(), 7), PathBuf::from("models/net-0007.params"));
}

#[test]
fn a_list_can_replace_the_file_it_is_a_view_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.params");
    let list = ArrayList::unnamed([floats(&[4096], &[1.5; 4096])]);
    save(&path, &list, ArrayVersion::V2).unwrap();
    let view = load(&path).unwrap();
    save(&path, &view, ArrayVersion::V1).unwrap();
    assert_eq!((&view, &load(&path).unwrap()), (&list, &list));
}

#[test]
fn a_missing_file_is_named() {
    let error = load("no such folder/a.params".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("cannot open no such folder/a.params: "), "{error}");
}

/// Every `.params` and `.v0` file below the folder `TENSORC_MXNET_FORMATS`, against the arrays in
/// the `.npz` file beside it if there is one, and against what is written of it.
#[test]
fn files_written_by_mxnet() {
    let Some(folder) = std::env::var_os("TENSORC_MXNET_FORMATS") else {
        return println!("skipped: TENSORC_MXNET_FORMATS names no folder with files of MXNet");
    };
    let (mut files, mut arrays) = (0, 0);
    let mut open = vec![PathBuf::from(folder)];
    while let Some(folder) = open.pop() {
        for path in std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
                continue;
            }
            if !path.extension().is_some_and(|e| e == "params" || e == "v0") {
                continue;
            }
            files += 1;
            let bytes = std::fs::read(&path).unwrap();
            let list = load(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let written: Vec<Vec<u8>> = VERSIONS.into_iter().filter_map(|v| write(&list, v).ok()).collect();
            // MXNet saves a storage shape without rows for some arrays; the one of the indices is written.
            let stale = list.arrays.iter().any(|(_, array)| matches!(array, SavedArray::RowSparse(_)));
            let same = |w: &Vec<u8>| *w == bytes || (stale && w.len() == bytes.len() && read_all(w) == list);
            assert_eq!(
                written.iter().filter(|w| same(w)).count(),
                1,
                "{} is not what is written of it",
                path.display()
            );
            let npz = path.with_extension("npz");
            if !npz.exists() {
                continue;
            }
            let stored: BTreeMap<String, HostTensor> = read_arrays(&npz).unwrap().into_iter().collect();
            assert_eq!(stored.len(), list.arrays.len(), "{}", path.display());
            for (index, (name, array)) in list.arrays.iter().enumerate() {
                let name = name.clone().unwrap_or_else(|| format!("arr_{index}"));
                let data = array.to_dense().unwrap();
                let stored = &stored[&name];
                let values = TensorData::new(DenseType::new(stored.dtype(), stored.dims()), stored.bytes().clone());
                let expected = (stored.dims(), values.unwrap().to_f64s());
                assert_eq!((data.dims(), data.to_f64s()), expected, "{} {name}", path.display());
                arrays += 1;
            }
        }
    }
    println!("{files} files written by MXNet, {arrays} arrays with known values");
    assert!(files > 0);
}
