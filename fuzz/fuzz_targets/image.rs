//! Images: any bytes become an image within the limit, or are refused, and a part of it equals that part of the whole.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| _ = tensorc_readers::read("image", data));
