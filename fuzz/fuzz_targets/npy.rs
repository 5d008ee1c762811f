//! Arrays of numpy: any bytes are an array of the size that the file has, or are refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("npy", data));
