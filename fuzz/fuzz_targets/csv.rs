//! Rows of CSV: any bytes are examples or errors with their places.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("csv", data));
