//! Copies of arrays past the caches.

use tensorc_kernels::{LONG_COPY, copy_past_caches};

#[test]
fn copies_have_the_bytes_of_their_source_at_any_alignment() {
    for length in [0, 1, 63, LONG_COPY - 1, LONG_COPY, LONG_COPY + 1, LONG_COPY + 4097] {
        for (first, second) in [(0, 0), (1, 0), (0, 3), (63, 17)] {
            let from: Vec<u8> = (0..length + first).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![255; length + second + 64];
            copy_past_caches(&mut to[second..second + length], &from[first..]);
            assert_eq!(to[second..second + length], from[first..], "{length} bytes from {first} to {second}");
            assert!(to[..second].iter().chain(&to[second + length..]).all(|byte| *byte == 255));
        }
    }
}
