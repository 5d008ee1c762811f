//! Copies of arrays by non-temporal stores.

use tensorc_kernels::{NON_TEMPORAL_COPY, copy_non_temporal};

#[test]
fn copies_have_the_bytes_of_their_source_at_any_alignment() {
    for length in [0, 1, 63, NON_TEMPORAL_COPY - 1, NON_TEMPORAL_COPY, NON_TEMPORAL_COPY + 1, NON_TEMPORAL_COPY + 4097]
    {
        for (first, second) in [(0, 0), (1, 0), (0, 3), (63, 17)] {
            let from: Vec<u8> = (0..length + first).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![255; length + second + 64];
            copy_non_temporal(&mut to[second..second + length], &from[first..]);
            assert_eq!(to[second..second + length], from[first..], "{length} bytes from {first} to {second}");
            assert!(to[..second].iter().chain(&to[second + length..]).all(|byte| *byte == 255));
        }
    }
}
