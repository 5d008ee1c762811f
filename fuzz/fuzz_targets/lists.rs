//! Lists of images and indices of records: any bytes are entries that can be written and read again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("lists", data));
