//! The idx files of MNIST: any bytes are a tensor of the size that the file has, or are refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("idx", data));
