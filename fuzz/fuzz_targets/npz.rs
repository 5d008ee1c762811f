//! Archives of arrays: any bytes are arrays, or are refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("npz", data));
