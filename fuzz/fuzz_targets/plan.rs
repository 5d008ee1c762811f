//! Plans as text: any text is parsed or refused, and what is parsed is verified.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("plan", data));
