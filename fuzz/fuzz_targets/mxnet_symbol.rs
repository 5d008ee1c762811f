//! Symbol files: any text is refused, or what is written of the symbol reads back as the same text, and its
//! graph holds the rules.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("mxnet_symbol", data));
