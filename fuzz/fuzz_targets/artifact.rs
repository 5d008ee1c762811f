//! Libraries of compiled models: any bytes are refused by their seal, and explained.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("artifact", data));
