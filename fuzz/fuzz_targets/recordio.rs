//! Files of records: any bytes are read to their end, and what was read is written as the same number of bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("recordio", data));
