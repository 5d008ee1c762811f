//! Files of examples: records, lists and indices, arrays, rows of text.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, Crc, write::GzEncoder};
use tensorc_data::formats::{
    CsvDataset, CsvOptions, LibSvmDataset, LibSvmOptions, MnistDataset, MnistOptions, NpyDataset, read_arrays,
    read_idx, write_arrays,
};
use tensorc_data::list::ImageList;
use tensorc_data::record::{ImageRecord, Index, Labels, Reader, RecordFile, decode, encode};
use tensorc_data::{DataDesc, Dataset, HostTensor, Sample};
use tensorc_runtime::TensorMut;
use tensorc_runtime::host_tensor::byte_len;

use crate::FileReader;

const fn reader(name: &'static str, files: fn() -> Vec<Vec<u8>>, read: fn(&[u8]) -> bool) -> FileReader {
    FileReader { name, files, seal: None, read, memory: 64 }
}

/// Rows of CSV.
pub const CSV: FileReader = reader("csv", csv_files, read_csv);
/// The idx files of MNIST.
pub const IDX: FileReader = FileReader { memory: 2048, ..reader("idx", idx_files, read_mnist) };
/// Rows of LibSVM.
pub const LIBSVM: FileReader = reader("libsvm", libsvm_files, read_libsvm);
/// Lists of images, and indices of records.
pub const LISTS: FileReader = FileReader { memory: 256, ..reader("lists", list_files, read_lists) };
/// Arrays of numpy.
pub const NPY: FileReader = reader("npy", npy_files, read_npy);
/// Archives of arrays.
pub const NPZ: FileReader = FileReader { seal: Some(seal_npz), memory: 2048, ..reader("npz", npz_files, read_npz) };
/// Records.
pub const RECORDIO: FileReader = reader("recordio", record_files, read_records);

/// Examples of the largest shape that are read.
const EXAMPLE_BYTES: u64 = 1 << 16;

/// Writes bytes to a file of this thread's.
fn with_file<R>(bytes: &[u8], read: impl FnOnce(&Path) -> R) -> R {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    FOLDER.with(|folder| {
        let path = folder.path().join("file");
        // Some file systems wait for the disk when an old file is emptied and written anew.
        drop(std::fs::remove_file(&path));
        std::fs::write(&path, bytes).unwrap();
        read(&path)
    })
}

/// A path beside another, where no file is.
fn fresh(beside: &Path, extension: &str) -> PathBuf {
    let path = beside.with_extension(extension);
    drop(std::fs::remove_file(&path));
    path
}

/// Memory for an example of each array, if it is not much.
fn room(descs: &[DataDesc]) -> Option<Vec<Vec<u8>>> {
    let room = |desc: &DataDesc| {
        let bytes = byte_len(desc.dtype, &desc.dims).filter(|bytes| *bytes <= EXAMPLE_BYTES)?;
        Some(vec![0; bytes as usize])
    };
    descs.iter().map(room).collect()
}

/// Reads every example; whether all can be read.
fn read_examples(dataset: &dyn Dataset) -> bool {
    let (data, labels) = (dataset.data(), dataset.labels());
    let (Some(mut data_room), Some(mut label_room)) = (room(data), room(labels)) else { return false };
    let mut all = true;
    for index in 0..dataset.len().min(1000) {
        fn tensors<'a>(descs: &'a [DataDesc], room: &'a mut [Vec<u8>]) -> Vec<TensorMut<'a>> {
            descs.iter().zip(room).map(|(desc, bytes)| TensorMut::new(desc.dtype, &desc.dims, bytes)).collect()
        }
        let (mut data, mut labels) = (tensors(data, &mut data_room), tensors(labels, &mut label_room));
        all &= dataset.read(Sample { index, epoch: 0 }, &mut data, &mut labels).is_ok();
    }
    all
}

fn read_csv(bytes: &[u8]) -> bool {
    with_file(bytes, |path| {
        let options = CsvOptions { data_csv: path.to_owned(), data_shape: vec![3], ..CsvOptions::default() };
        CsvDataset::open(&options).is_ok_and(|dataset| read_examples(&dataset))
    })
}

fn csv_files() -> Vec<Vec<u8>> {
    let text: String = (0..6).map(|i| format!("{i},-{i}.5,{i}e-3\r\n")).collect();
    vec![text.into_bytes(), b"\xef\xbb\xbf1,2,3,\n\n nan , inf,-0\n".to_vec()]
}

fn read_libsvm(bytes: &[u8]) -> bool {
    with_file(bytes, |path| {
        let data_shape = vec![8];
        let options = LibSvmOptions { data_libsvm: path.to_owned(), data_shape, ..LibSvmOptions::default() };
        LibSvmDataset::open(&options).is_ok_and(|dataset| read_examples(&dataset))
    })
}

fn libsvm_files() -> Vec<Vec<u8>> {
    vec![(0..6).flat_map(|i| format!("{i} 0:{i} {}:0.5 # row\n", i + 1).into_bytes()).collect()]
}

fn read_mnist(bytes: &[u8]) -> bool {
    with_file(bytes, |path| {
        let Ok(tensor) = read_idx(path) else { return false };
        let count = tensor.dims().first().copied().unwrap_or(0).min(1 << 16) as u32;
        let label = fresh(path, "labels");
        let head = [&[0, 0, 8, 1][..], &count.to_be_bytes()].concat();
        std::fs::write(&label, [head, vec![1; count as usize]].concat()).unwrap();
        for flat in [false, true] {
            let options =
                MnistOptions { image: path.to_owned(), label: label.clone(), flat, ..MnistOptions::default() };
            drop(MnistDataset::open(&options).map(|dataset| read_examples(&dataset)));
        }
        true
    })
}

fn idx_files() -> Vec<Vec<u8>> {
    let head = [0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3];
    let images: Vec<u8> = head.into_iter().chain(0..24).collect();
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(&images).unwrap();
    vec![images, encoder.finish().unwrap(), vec![0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0x80, 0, 0]]
}

/// Lists of so many bytes, or a multiple, are written.
const WRITTEN: usize = 64;

fn read_lists(bytes: &[u8]) -> bool {
    with_file(bytes, |path| {
        let list = ImageList::read(path).unwrap();
        // Writing waits for the disk, so that some lists have to do.
        let again = fresh(path, "lst");
        if bytes.len().is_multiple_of(WRITTEN) && list.write(&again).is_ok() {
            let read = ImageList::read(&again).unwrap();
            assert_eq!((read.entries.len(), read.skipped.len()), (list.entries.len(), 0));
        }
        let Ok(index) = Index::read(path) else { return !list.entries.is_empty() };
        let records = fresh(path, "rec");
        std::fs::write(&records, &record_files()[0]).unwrap();
        let file = RecordFile::open(&records).unwrap();
        let good = file.check(&index).is_ok();
        let mut payload = vec![];
        for entry in &index.entries {
            let read = file.read_at(entry.offset, &mut payload).is_ok();
            assert!(read || !good, "a record that was checked");
        }
        if bytes.len().is_multiple_of(WRITTEN) {
            let again = fresh(path, "idx");
            index.write(&again).unwrap();
            assert_eq!(Index::read(&again).unwrap(), index);
        }
        true
    })
}

fn list_files() -> Vec<Vec<u8>> {
    let list = "0\t1.000000\ta/b.jpg\n1\t2\t3.5\tc d.png\r\n\n2\tnan\te.jpg\n";
    let records = record_files().swap_remove(0);
    let (mut reader, mut index) = (Reader::new(&records[..], "records"), String::new());
    while let Some(record) = reader.next_record().unwrap() {
        index += &format!("{}\t{}\n", record.number, record.offset);
    }
    vec![list.into(), index.into()]
}

fn read_npy(bytes: &[u8]) -> bool {
    with_file(bytes, |path| {
        let arrays = read_arrays(path);
        let dataset = NpyDataset::open([("data", path)], []).map(|dataset| read_examples(&dataset));
        if let (Ok(arrays), Ok(true)) = (&arrays, dataset) {
            assert_eq!(
                arrays[0].1.as_ref().data.len() as u64,
                byte_len(arrays[0].1.dtype(), arrays[0].1.dims()).unwrap()
            );
        }
        arrays.is_ok()
    })
}

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{header:117}\n");
    [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), data].concat()
}

fn npy_files() -> Vec<Vec<u8>> {
    vec![
        npy("{'descr': '<f2', 'fortran_order': False, 'shape': (4, 3), }", &[7; 24]),
        npy("{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }", &[1; 24]),
        npy("{'descr': '|b1', 'fortran_order': False, 'shape': (5,), }", &[1; 5]),
    ]
}

fn read_npz(bytes: &[u8]) -> bool {
    with_file(bytes, |path| read_arrays(path).is_ok())
}

fn npz_files() -> Vec<Vec<u8>> {
    let path = |name: &str| -> PathBuf { std::env::temp_dir().join(format!("{}-{name}", std::process::id())) };
    let (first, file) = (HostTensor::from_slice(&[3], &[1.5f32, 2.5, 3.5]).unwrap(), path("arrays.npz"));
    let second = HostTensor::from_slice(&[2, 1], &[1i64, 2]).unwrap();
    write_arrays(&file, [("x", first.as_ref()), ("y", second.as_ref())]).unwrap();
    let stored = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    vec![stored, include_bytes!("../../../examples/digits/labels.npz").to_vec()]
}

/// Makes the checksums of the parts of an archive right, where they are not compressed.
#[allow(clippy::ptr_arg, reason = "seals of other formats change the length")]
fn seal_npz(bytes: &mut Vec<u8>) {
    const LOCAL: &[u8] = b"PK\x03\x04";
    const CENTRAL: &[u8] = b"PK\x01\x02";
    let find = |bytes: &[u8], what: &[u8], from: usize| {
        bytes.get(from..)?.windows(4).position(|window| window == what).map(|at| at + from)
    };
    let number = |bytes: &[u8], at: usize, size: usize| {
        bytes.get(at..at + size).map_or(0, |b| b.iter().rev().fold(0, |n: usize, byte| n << 8 | usize::from(*byte)))
    };
    let (mut at, mut central) = (0, find(bytes, CENTRAL, 0));
    while let Some(local) = find(bytes, LOCAL, at) {
        let start = local + 30 + number(bytes, local + 26, 2) + number(bytes, local + 28, 2);
        let end = start.saturating_add(number(bytes, local + 18, 4));
        if let (Some(data), Some(entry)) = (bytes.get(start..end), central) {
            let mut crc = Crc::new();
            crc.update(data);
            let sum = crc.sum().to_le_bytes();
            for place in [local + 14, entry + 16] {
                bytes.get_mut(place..place + 4).into_iter().for_each(|place| place.copy_from_slice(&sum));
            }
        }
        central = central.and_then(|entry| find(bytes, CENTRAL, entry + 4));
        at = local + 4;
    }
}

/// Any bytes are read to their end, and what was read is written as the same number of bytes.
fn read_records(bytes: &[u8]) -> bool {
    let mut payload = vec![];
    let whole = decode(bytes, &mut payload);
    if let Ok(stored) = whole {
        let mut again = vec![];
        assert_eq!(encode(&payload, &mut again).expect("a payload that was read"), stored as u64);
        assert_eq!(decode(&again, &mut payload).expect("what was written can be read"), stored);
    }
    let mut reader = Reader::new(bytes, "input");
    let (mut end, mut found, mut good) = (0, 0, true);
    loop {
        match reader.next_record() {
            Ok(None) => break,
            Ok(Some(record)) => {
                assert_eq!(record.offset, end);
                end += encode(record.payload, &mut std::io::sink()).expect("a payload that was read");
                found += 1;
                if let Ok(image) = ImageRecord::unpack(record.payload) {
                    image.pack(&mut payload).expect("labels that were read");
                    ImageRecord::unpack(&payload).expect("what was written can be read");
                }
            }
            Err(_) => {
                good = false;
                let range = reader.resynchronise().expect("memory can be read");
                assert!(range.start == end && range.end > end);
                end = range.end;
            }
        }
    }
    assert_eq!(end, bytes.len() as u64);
    let scanned = with_file(bytes, |path| {
        let file = RecordFile::open(path).unwrap();
        let scan = file.scan(0..file.size()).unwrap();
        let index = scan.index();
        file.check(&index).unwrap();
        index.entries.iter().filter(|entry| file.read_at(entry.offset, &mut payload).is_ok()).count()
    });
    // The bodies of short records are looked at.
    assert!(bytes.len() > 4096 || scanned == found, "{scanned} records scanned, {found} read");
    good
}

fn record_files() -> Vec<Vec<u8>> {
    let magic = tensorc_data::record::MAGIC.to_le_bytes();
    let mut file = vec![];
    let image = |labels, id, image| {
        let mut payload = vec![];
        ImageRecord { labels, id, id2: 0, image }.pack(&mut payload).unwrap();
        payload
    };
    let payloads = [
        vec![1, 2, 3, 4, 5],
        vec![],
        [&magic[..], &[9; 7], &magic].concat(),
        image(Labels::One(3.0), 7, &[1, 2, 3]),
        image(Labels::Values(&[1.0, 2.0]), 8, &[4; 9]),
    ];
    payloads.iter().for_each(|payload| _ = encode(payload, &mut file).unwrap());
    vec![file, include_bytes!("../../../fuzz/seeds/recordio/parts.rec").to_vec()]
}
