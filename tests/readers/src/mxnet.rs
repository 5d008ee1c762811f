//! MXNet's parameter files and symbols.

use bytes::Bytes;
use tensorc_frontend::mxnet::params::{
    ArrayList, ArrayVersion, Checkpoint, Csr, RowSparse, SavedArray, SavedDevice, read, write,
};
use tensorc_frontend::symbol::{Lowering, Symbol, operators};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_ir::{DType, DenseType, TensorData};

use crate::FileReader;

/// Lists of arrays.
pub const PARAMS: FileReader =
    FileReader { name: "mxnet_params", files: lists, seal: None, read: read_list, memory: 256 };

/// Symbols.
pub const SYMBOL: FileReader =
    FileReader { name: "mxnet_symbol", files: symbols, seal: None, read: read_symbol, memory: 16384 };

/// Elements of the largest sparse array that is made dense: its shape costs the file nothing.
const DENSE_ELEMENTS: u64 = (1 << 20) - 1;

const VERSIONS: [ArrayVersion; 4] = [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2, ArrayVersion::V3];

fn read_list(bytes: &[u8]) -> bool {
    let Ok(list) = read(Bytes::copy_from_slice(bytes)) else { return false };
    for (_, array) in &list.arrays {
        let elements = array.dims().map_or(0, |dims| dims.iter().fold(1u64, |a, &d| a.saturating_mul(d)));
        if elements <= DENSE_ELEMENTS {
            drop(array.to_dense());
        }
    }
    for version in VERSIONS {
        if let Ok(written) = write(&list, version) {
            assert_eq!(read(written.into()).expect("what was written can be read"), list);
        }
    }
    drop(Checkpoint::from_list(list));
    true
}

fn read_symbol(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(symbol) = Symbol::from_json(text) else { return false };
    let written = symbol.to_json();
    assert_eq!(Symbol::from_json(&written).expect("what was written can be read").to_json(), written);
    let registry = operators().expect("a registry");
    if let Ok(lowered) = symbol.to_graph(registry, &Lowering { training: true, ..Lowering::default() }) {
        verify_graph(&lowered.graph, Stage::Imported).expect("a valid graph");
    }
    true
}

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

fn symbols() -> Vec<Vec<u8>> {
    let files = [
        include_str!("../../mxnet/small-symbol.json"),
        include_str!("../../training/parity-mlp-adam/model-symbol.json"),
        include_str!("../../../frontend/tests/integration/data/symbols/attributes.json"),
        include_str!("../../../frontend/tests/integration/data/symbols/residual.json"),
        include_str!("../../../frontend/tests/integration/data/symbols/lists.json"),
        include_str!("../../../frontend/tests/integration/data/symbols/shared_state.json"),
    ];
    files.iter().map(|text| text.as_bytes().to_vec()).collect()
}
