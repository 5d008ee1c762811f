//! Records of the code cache: any bytes are refused, or are what would be written of their content.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("code_cache", data));
