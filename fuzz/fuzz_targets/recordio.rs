//! Files of records: any bytes are read to their end, and what was read is written as the same number of bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorc_data::record::{ImageRecord, Reader, decode, encode};

fuzz_target!(|data: &[u8]| {
    let mut payload = vec![];
    if let Ok(stored) = decode(data, &mut payload) {
        let mut again = vec![];
        assert_eq!(encode(&payload, &mut again).expect("a payload that was read"), stored as u64);
        assert_eq!(decode(&again, &mut payload).expect("what was written can be read"), stored);
    }
    let mut reader = Reader::new(data, "input");
    let mut end = 0;
    loop {
        match reader.next_record() {
            Ok(None) => break,
            Ok(Some(record)) => {
                assert_eq!(record.offset, end);
                end += encode(record.payload, &mut std::io::sink()).expect("a payload that was read");
                if let Ok(image) = ImageRecord::unpack(record.payload) {
                    image.pack(&mut payload).expect("labels that were read");
                    ImageRecord::unpack(&payload).expect("what was written can be read");
                }
            }
            Err(_) => {
                let range = reader.resynchronise().expect("memory can be read");
                assert!(range.start == end && range.end > end);
                end = range.end;
            }
        }
    }
    assert_eq!(end, data.len() as u64);
});
