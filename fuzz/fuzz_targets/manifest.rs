//! Manifests of compiled models: any bytes are read or refused, and what was read can be written and read again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("manifest", data));
