//! The text form: any text is parsed or refused, and printing what was parsed is a fixed point.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("text_ir", data));
