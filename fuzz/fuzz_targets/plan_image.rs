//! Images of plans: any bytes are refused, or nothing outside of them is read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("plan_image", data));
