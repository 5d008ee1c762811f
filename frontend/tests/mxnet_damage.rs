//! Damaged NDArray lists neither panic nor make the reader allocate more than their size explains.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use tensorc_frontend::mxnet::params::{ArrayList, ArrayVersion, Csr, RowSparse, SavedArray, SavedDevice, read, write};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_random::{Meter, each_damaged, measured};

#[global_allocator]
static ALLOCATOR: Meter = Meter;

/// Bytes that reading takes at most for each byte of input: entries of the growing list, for arrays of four bytes.
const MEMORY_PER_BYTE: u64 = 64;

fn ramp(dtype: DType, dims: &[u64]) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::from_f64(dtype, i as f64))
}

/// Lists of every version with every kind of array.
fn lists() -> Vec<Vec<u8>> {
    let device = SavedDevice::default();
    let dense = |dims: &[u64]| SavedArray::dense(ramp(DType::F32, dims));
    let rows = RowSparse {
        device,
        dims: vec![4, 2],
        indices: TensorData::i64s(&[2], &[1, 3]).unwrap(),
        values: ramp(DType::F16, &[2, 2]),
    };
    let csr = Csr {
        device,
        dims: vec![2, 3],
        indptr: TensorData::i64s(&[3], &[0, 1, 3]).unwrap(),
        indices: TensorData::i64s(&[3], &[1, 0, 2]).unwrap(),
        values: ramp(DType::F64, &[3]),
    };
    let plain = ArrayList::named([
        ("arg:weight", dense(&[2, 3])),
        ("arg:none", SavedArray::None),
        ("aux:mask", SavedArray::dense(ramp(DType::Bool, &[2]))),
    ]);
    let sparse = ArrayList::named([
        ("rows", SavedArray::RowSparse(Box::new(rows))),
        ("csr", SavedArray::Csr(Box::new(csr))),
        ("dense", dense(&[1])),
    ]);
    let numpy = ArrayList::unnamed([dense(&[]), dense(&[0, 3]), SavedArray::None, dense(&[2, 1, 2])]);
    let old = [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2].map(|version| write(&plain, version).unwrap());
    old.into_iter()
        .chain([write(&sparse, ArrayVersion::V2).unwrap(), write(&numpy, ArrayVersion::V3).unwrap()])
        .collect()
}

/// Reads a list and uses every array of it; whether it is valid.
fn exercise(bytes: Bytes) -> bool {
    let size = bytes.len() as u64;
    let (result, memory) = measured(|| read(bytes));
    assert!(memory <= MEMORY_PER_BYTE * size + 4096, "{memory} bytes of memory for {size} bytes of input");
    let Ok(list) = result else { return false };
    for (_, array) in &list.arrays {
        // The shape of a sparse array may be any; the caller knows what is too much.
        let elements = array.dims().map_or(0, |dims| dims.iter().fold(1u64, |a, &d| a.saturating_mul(d)));
        if elements < 1 << 20 {
            drop(array.to_dense());
        }
    }
    for version in [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2, ArrayVersion::V3] {
        if let Ok(written) = write(&list, version) {
            assert_eq!(read(written.into()).unwrap(), list);
        }
    }
    true
}

#[test]
fn damaged_lists_never_panic_and_cost_what_they_hold() {
    let lists = lists();
    for list in &lists {
        assert!(exercise(list.clone().into()));
        for length in 0..list.len() {
            assert!(!exercise(list[..length].to_vec().into()), "cut to {length} of {} bytes", list.len());
        }
    }
    // The most arrays that fit: four bytes each.
    let mut zeros = vec![0; 1 << 20];
    zeros[0..2].copy_from_slice(&[0x12, 0x01]);
    let count = (zeros.len() - 32) / 4;
    zeros[16..24].copy_from_slice(&(count as u64).to_le_bytes());
    assert!(exercise(zeros.into()));

    let counts = each_damaged(&lists, 20_000, None, |bytes| exercise(Bytes::copy_from_slice(bytes)));
    assert!(counts.read > 1000 && counts.refused > 1000, "the damage is too strong or too weak: {counts:?}");
}
