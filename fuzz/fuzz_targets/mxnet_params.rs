//! NDArray lists: any bytes are read or refused, and what was read can be written and read again.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tensorc_frontend::mxnet::params::{Checkpoint, ArrayVersion, read, write};

/// Elements of the largest sparse array that is made dense: its shape costs the file nothing.
const DENSE_ELEMENTS: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(list) = read(Bytes::copy_from_slice(data)) else { return };
    for (_, array) in &list.arrays {
        let elements = array.dims().map_or(0, |dims| dims.iter().fold(1u64, |a, &d| a.saturating_mul(d)));
        if elements <= DENSE_ELEMENTS {
            drop(array.to_dense());
        }
    }
    for version in [ArrayVersion::V0, ArrayVersion::V1, ArrayVersion::V2, ArrayVersion::V3] {
        if let Ok(written) = write(&list, version) {
            let again = read(written.into()).expect("what was written can be read");
            assert_eq!(again, list);
        }
    }
    drop(Checkpoint::from_list(list));
});
