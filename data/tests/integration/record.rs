//! RecordIO: the bytes of records, headers, indices and lists, and the errors of files that are wrong.

use std::fs;
use std::io::Write;
use std::path::Path;

use proptest::prelude::*;
use tensorc_data::list::{ImageList, ListEntry};
use tensorc_data::record::{
    ImageRecord, Index, IndexEntry, IndexFiles, IndexedWriter, Labels, MAGIC, MAX_PAYLOAD, Reader, RecordFile,
    RecordSet, RecordSetOptions, RecordWriter, decode, encode,
};
use tensorc_data::{Cause, DataError, Draws, ExamplePlace};

const M: [u8; 4] = MAGIC.to_le_bytes();

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn encoded(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    assert_eq!(encode(payload, &mut bytes).unwrap(), bytes.len() as u64);
    bytes
}

/// All payloads of a stream.
fn read_all(bytes: &[u8]) -> Result<Vec<Vec<u8>>, DataError> {
    let mut reader = Reader::new(bytes, "stream");
    let mut payloads = vec![];
    while let Some(record) = reader.next_record()? {
        assert_eq!(record.number, payloads.len() as u64);
        payloads.push(record.payload.to_vec());
    }
    Ok(payloads)
}

fn read_set(set: &RecordSet) -> Vec<Vec<u8>> {
    let mut buffer = vec![];
    let mut read = |i| set.read(i, &mut buffer).map(|()| buffer.clone()).unwrap();
    (0..set.len()).map(&mut read).collect()
}

#[track_caller]
fn cause_of(error: DataError) -> (ExamplePlace, Cause) {
    match error {
        DataError::At { place, cause } => (place, cause),
        other => panic!("{other}"),
    }
}

/// Payloads and the bytes that dmlc writes for them.
fn golden() -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = [
        "0a23d7ce 03000000 61626300",
        "0a23d7ce 00000000",
        "0a23d7ce 00000020  0a23d7ce 00000060",
        "0a23d7ce 06000000 61620a23d7ce0000",
        "0a23d7ce 04000020 61626364  0a23d7ce 03000060 65666700",
        "0a23d7ce 00000020  0a23d7ce 00000040  0a23d7ce 00000060",
        "0a23d7ce 04000020 78787878  0a23d7ce 00000060",
    ];
    let payloads: [&[&[u8]]; 7] =
        [&[b"abc"], &[], &[&M], &[b"ab", &M], &[b"abcd", &M, b"efg"], &[&M, &M], &[b"xxxx", &M]];
    payloads.iter().map(|parts| parts.concat()).zip(bytes.map(hex)).collect()
}

#[test]
fn golden_bytes() {
    for (payload, bytes) in golden() {
        assert_eq!(encoded(&payload), bytes);
        let mut decoded = b"old".to_vec();
        assert_eq!(decode(&bytes, &mut decoded).unwrap(), bytes.len());
        assert_eq!(decoded, payload);
    }
    let (payloads, bytes): (Vec<_>, Vec<_>) = golden().into_iter().unzip();
    let bytes = bytes.concat();
    assert_eq!(bytes.len(), 120);
    assert_eq!(read_all(&bytes).unwrap(), payloads);
    let mut writer = RecordWriter::new(vec![], "memory");
    let offsets: Vec<u64> = payloads.iter().map(|payload| writer.write(payload).unwrap()).collect();
    assert_eq!(offsets, [0, 12, 20, 36, 52, 76, 100]);
    assert_eq!(writer.finish().unwrap(), bytes);
}

#[test]
fn golden_image_headers() {
    let one = ImageRecord { labels: Labels::One(3.5), id: 7, id2: 0, image: b"zz" };
    let two = ImageRecord { labels: Labels::Values(&[1.0, 2.0]), ..one };
    let cases = [
        (one, vec![3.5], "00000000 00006040 0700000000000000 0000000000000000 7a7a"),
        (two, vec![1.0, 2.0], "02000000 00000000 0700000000000000 0000000000000000 0000803f 00000040 7a7a"),
    ];
    for (record, labels, bytes) in cases {
        let mut payload = b"old".to_vec();
        record.pack(&mut payload).unwrap();
        assert_eq!(payload, hex(bytes));
        let back = ImageRecord::unpack(&payload).unwrap();
        assert_eq!((back.id, back.id2, back.image), (7, 0, &b"zz"[..]));
        assert_eq!(back.labels.iter().collect::<Vec<_>>(), labels);
        assert_eq!(back.labels.len(), labels.len());
    }
}

#[test]
fn image_headers_with_any_number_of_labels_and_payload_bytes() {
    for count in 0..255usize {
        let labels: Vec<f32> = (0..count).map(|i| i as f32 - 0.3).collect();
        for length in 0..255 {
            let image = vec![length as u8; length];
            let (id, id2) = (u64::MAX - count as u64, 1 << 33 | length as u64);
            let mut payload = vec![];
            ImageRecord { labels: Labels::Values(&labels), id, id2, image: &image }.pack(&mut payload).unwrap();
            let back = ImageRecord::unpack(&payload).unwrap();
            assert_eq!((back.id, back.id2, back.image), (id, id2, &image[..]));
            let expected = if count == 0 { vec![0.0] } else { labels.clone() };
            assert!(back.labels.iter().eq(expected));
        }
    }
}

#[test]
fn image_records_that_are_too_short() {
    let mut payload = vec![];
    ImageRecord { labels: Labels::Values(&[1.0, 2.0]), id: 0, id2: 0, image: b"" }.pack(&mut payload).unwrap();
    for length in 0..payload.len() {
        assert!(matches!(ImageRecord::unpack(&payload[..length]), Err(Cause::Truncated { .. })), "{length} bytes");
    }
    payload[..4].fill(0xff);
    assert!(matches!(ImageRecord::unpack(&payload), Err(Cause::Truncated { .. })));
}

#[test]
fn records_in_order_and_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let (rec, idx) = (folder.path().join("a.rec"), folder.path().join("a.idx"));
    let mut writer = IndexedWriter::create(&rec, &idx).unwrap();
    for i in 0..255u8 {
        assert_eq!(writer.write(u64::from(i), &[i]).unwrap(), u64::from(i) * 12);
    }
    writer.finish().unwrap();
    let payloads: Vec<Vec<u8>> = (0..255).map(|i| vec![i]).collect();
    assert_eq!(read_all(&fs::read(&rec).unwrap()).unwrap(), payloads);
    assert!(fs::read_to_string(&idx).unwrap().starts_with("0\t0\n1\t12\n2\t24\n"));

    let (file, keys) = (RecordFile::open(&rec).unwrap(), Index::read(&idx).unwrap().by_key());
    let mut payload = vec![];
    for key in Draws::new(3, 0, 0).permutation(255) {
        file.read_at(keys[&u64::from(key)], &mut payload).unwrap();
        assert_eq!(payload, [key as u8]);
    }
    let scan = file.scan(0..file.size()).unwrap();
    assert_eq!(scan.index(), Index::read(&idx).unwrap());
    assert_eq!(scan.damage().count(), 0);
}

#[test]
fn indices_are_sorted_by_offset_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut writer = IndexedWriter::create(at("a.rec"), at("a.idx")).unwrap();
    for i in 0..40u8 {
        writer.write(u64::from(i), &vec![i; usize::from(i)]).unwrap();
    }
    writer.finish().unwrap();
    let file = RecordFile::open(at("a.rec")).unwrap();
    let index = Index::read(at("a.idx")).unwrap();
    let mut reversed = index.clone();
    reversed.entries.reverse();
    reversed.write(at("a.idx")).unwrap();
    assert_eq!(Index::read(at("a.idx")).unwrap(), reversed);
    file.check(&reversed).unwrap();

    let options = RecordSetOptions { index: IndexFiles::Beside, ..RecordSetOptions::default() };
    let open = || RecordSet::open(at("a.rec").to_str().unwrap(), &options);
    let set = open().unwrap();
    assert_eq!(read_set(&set), (0..40u8).map(|i| vec![i; usize::from(i)]).collect::<Vec<_>>());
    assert_eq!(set.place(7), ExamplePlace::file(at("a.rec")).record(7).offset(index.entries[7].offset));

    for (wrong, number) in [(file.size(), 40), (file.size() - 4, 40), (index.entries[9].offset + 4, 10), (2, 1), (0, 0)]
    {
        let mut entries = index.entries.clone();
        entries.push(IndexEntry { key: 40, offset: wrong });
        let index = Index { entries };
        let (place, cause) = cause_of(file.check(&index).unwrap_err());
        assert_eq!(place, ExamplePlace::file(at("a.rec")).record(number).offset(wrong));
        assert!(matches!(cause, Cause::Index(_)), "{cause}");
        index.write(at("a.idx")).unwrap();
        assert!(matches!(cause_of(open().unwrap_err()).1, Cause::Index(_)));
    }
}

#[test]
fn an_index_that_is_wrong_in_few_places_is_an_error_when_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut writer = IndexedWriter::create(at("a.rec"), at("a.idx")).unwrap();
    for i in 0..200u64 {
        writer.write(i, &[7; 32]).unwrap();
    }
    writer.finish().unwrap();
    let mut index = Index::read(at("a.idx")).unwrap();
    index.entries[101].offset += 8;
    index.write(at("list.txt")).unwrap();
    let list = IndexFiles::List(at("list.txt").to_str().unwrap().into());
    let options = RecordSetOptions { index: list, ..RecordSetOptions::default() };
    let set = RecordSet::open(at("a.rec").to_str().unwrap(), &options).unwrap();
    let mut payload = vec![];
    for i in 0..200 {
        match set.read(i, &mut payload) {
            Ok(()) => assert!(i != 101 && payload == [7; 32]),
            Err(error) => {
                let (place, cause) = cause_of(error);
                assert_eq!((i, place), (101, set.place(101)));
                assert!(matches!(cause, Cause::Index(_)), "{cause}");
            }
        }
    }
}

#[test]
fn malformed_indices_name_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.idx");
    for line in ["5", "a\t1", "1\tb", "1\t-2", "1\t2\t3", "-1\t2", "1\t99999999999999999999", "1,2", "\u{ff}\t1"] {
        fs::write(&path, format!("0\t0\n\n1\t12\r\n{line}\n")).unwrap();
        let (place, cause) = cause_of(Index::read(&path).unwrap_err());
        assert_eq!(place, ExamplePlace::file(&path).record(3), "{line}");
        assert!(matches!(cause, Cause::Format(_)));
    }
    fs::write(&path, "0\t0\n\n1\t12\r\n2 24").unwrap();
    let offsets: Vec<u64> = Index::read(&path).unwrap().entries.iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets, [0, 12, 24]);
}

#[test]
fn an_empty_file_has_no_records() {
    assert!(read_all(b"").unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.rec");
    fs::write(&path, "").unwrap();
    let set = RecordSet::open(path.to_str().unwrap(), &RecordSetOptions::default()).unwrap();
    assert!(set.is_empty() && set.damage().count() == 0 && set.total() == Some(0));
}

#[test]
fn wrong_bytes_are_typed_errors() {
    let whole = encoded(b"abcdefgh");
    let format = |bytes: &[u8]| {
        let (place, cause) = cause_of(read_all(bytes).unwrap_err());
        assert!(matches!(cause, Cause::Format(_)), "{cause}");
        assert!(place.record.is_some() && place.file == Path::new("stream"));
        place.offset.unwrap()
    };
    let part = |kind: u32, body: &[u8]| [&M[..], &(kind << 29 | body.len() as u32).to_le_bytes(), body].concat();
    assert_eq!(format(&[&whole[..], b"garbage!"].concat()), 16, "no magic");
    assert_eq!(format(&part(4, b"")), 0, "a kind that does not exist");
    assert_eq!(format(&[part(0, b""), part(2, b"abcd")].concat()), 8, "a middle part first");
    assert_eq!(format(&[part(0, b""), part(3, b"abcd")].concat()), 8, "a last part first");
    assert_eq!(format(&[part(1, b"abcd"), part(0, b"")].concat()), 0, "a whole record for a last part");
    assert_eq!(format(&[part(1, b"abcd"), part(2, b""), part(1, b"")].concat()), 0, "two first parts");
    assert_eq!(format(&part(0, &part(0, b""))), 0, "a part inside of a part");
    let (place, cause) = cause_of(read_all(&[part(0, b""), part(1, b"abcd")].concat()).unwrap_err());
    assert_eq!(place.offset, Some(8));
    assert!(matches!(cause, Cause::Truncated { .. }), "no last part: {cause}");
}

#[test]
fn truncation_at_every_byte() {
    let (payloads, records): (Vec<_>, Vec<_>) = golden().into_iter().unzip();
    let bytes = records.concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.rec");
    for length in 0..=bytes.len() {
        let mut ends = records.iter().scan(0, |end, record| {
            *end += record.len();
            Some(*end)
        });
        let whole = ends.clone().filter(|end| *end <= length).count();
        let clean = length == 0 || ends.any(|end| end == length);
        let mut reader = Reader::new(&bytes[..length], "stream");
        for payload in &payloads[..whole] {
            assert_eq!(reader.next_record().unwrap().unwrap().payload, payload);
        }
        if !clean {
            for _ in 0..2 {
                let (place, cause) = cause_of(reader.next_record().unwrap_err());
                assert_eq!(place.record, Some(whole as u64));
                assert!(matches!(cause, Cause::Truncated { .. }), "{length}: {cause}");
            }
            assert_eq!(reader.resynchronise().unwrap().end, length as u64);
        }
        assert_eq!(reader.next_record().unwrap(), None);

        fs::write(&path, &bytes[..length]).unwrap();
        let set = RecordSet::open(path.to_str().unwrap(), &RecordSetOptions::default()).unwrap();
        assert_eq!(read_set(&set), payloads[..whole]);
        assert_eq!(set.damage().count(), usize::from(!clean));
    }
}

#[test]
fn damage_is_left_out_on_request() {
    let part = encoded(b"0123456789");
    let mut bytes = part.repeat(3000);
    bytes[20 * 500] ^= 1;
    // A length that reaches over some records.
    bytes[20 * 1000 + 5] ^= 1;
    bytes[20 * 2000..20 * 2100].fill(9);
    let mut reader = Reader::new(&bytes[..], "stream");
    let (mut found, mut left_out) = (0, vec![]);
    loop {
        match reader.next_record() {
            Ok(Some(record)) => found += usize::from(record.payload == b"0123456789"),
            Ok(None) => break,
            Err(_) => left_out.push(reader.resynchronise().unwrap()),
        }
    }
    assert_eq!(found, 3000 - 102);
    assert_eq!(left_out, [10000..10020, 20000..20020, 40000..42000]);
    assert_eq!(reader.resynchronise().unwrap(), 60000..60000);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    fs::write(&path, &bytes).unwrap();
    let set = RecordSet::open(path.to_str().unwrap(), &RecordSetOptions::default()).unwrap();
    assert_eq!(read_set(&set), vec![b"0123456789".to_vec(); 3000 - 102]);
    assert_eq!(set.damage().map(|damage| damage.range).collect::<Vec<_>>(), left_out);
    let errors: Vec<_> = set.damage().map(|damage| cause_of(damage.error)).collect();
    assert!(errors.iter().zip(&left_out).all(|((place, _), range)| place.offset == Some(range.start)));
}

#[test]
fn a_full_disk_is_reported() {
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let mut writer = RecordWriter::new(full, "full");
    writer.write(b"abc").unwrap();
    assert!(matches!(cause_of(writer.finish().unwrap_err()).1, Cause::Io(_)));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut writer = RecordWriter::new(full, "full");
    assert!(writer.write(&vec![0; 1 << 20]).is_err());
    assert!(writer.write(b"abc").is_err(), "what follows a record in part cannot be read");
    assert!(writer.finish().is_err());
}

#[test]
fn settings_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    fs::write(&path, "").unwrap();
    let path = path.to_str().unwrap();
    for (parts, part) in [(0, 0), (1, 1), (3, 7)] {
        let error =
            RecordSet::open(path, &RecordSetOptions { parts, part, ..RecordSetOptions::default() }).unwrap_err();
        assert!(matches!(error, DataError::Options { .. }));
    }
    let options = RecordSetOptions { index: IndexFiles::List("a.idx;b.idx".into()), ..RecordSetOptions::default() };
    assert!(matches!(RecordSet::open(path, &options).unwrap_err(), DataError::Options { .. }));
    let missing = RecordSet::open("does-not-exist.rec", &RecordSetOptions::default()).unwrap_err();
    assert!(matches!(cause_of(missing).1, Cause::Io(_)));
}

#[test]
fn image_lists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lst");
    let entry = |index, labels: &[f32], path: &str| ListEntry { index, labels: labels.to_vec(), path: path.into() };
    let list = ImageList {
        entries: vec![entry(5, &[1.0], "a/b c.jpg"), entry(0, &[-0.5, 1e-7, 1234567.9], "d.png")],
        skipped: vec![],
    };
    list.write(&path).unwrap();
    let text = "5\t1.000000\ta/b c.jpg\n0\t-0.500000\t0.000000\t1234567.875000\td.png\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    fs::write(&path, format!("{text}\n7\tonly-two\nx\t1\ta\n1\ty\ta\r\n 6 \t 2 \t e.jpg\r\n")).unwrap();
    let back = ImageList::read(&path).unwrap();
    let third = entry(6, &[2.0], "e.jpg");
    assert_eq!(back.entries, [list.entries[0].clone(), entry(0, &[-0.5, 0.0, 1234567.9], "d.png"), third]);
    assert_eq!(back.skipped.iter().map(|skipped| skipped.line).collect::<Vec<_>>(), [3, 4, 5]);
    for wrong in [entry(1, &[], "a"), entry(1, &[1.0], ""), entry(1, &[1.0], "a\tb"), entry(1, &[1.0], " a")] {
        let error = ImageList { entries: vec![wrong], skipped: vec![] }.write(&path).unwrap_err();
        assert!(matches!(cause_of(error).1, Cause::Format(_)));
    }
}

/// Payloads with many magic numbers, at multiples of four and elsewhere.
fn payloads() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(M.to_vec()),
        1 => Just(M[..2].to_vec()),
        2 => proptest::collection::vec(any::<u8>(), 0..9),
        1 => proptest::collection::vec(any::<u8>(), 4..=4),
        1 => (0usize..3000).prop_map(|length| vec![0x0a; length]),
    ];
    proptest::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_payloads_come_back(payloads in proptest::collection::vec(payloads(), 0..30)) {
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| encoded(payload)).collect();
        prop_assert_eq!(&read_all(&bytes).unwrap(), &payloads);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all(&bytes).unwrap();
        let set = RecordSet::open(file.path().to_str().unwrap(), &RecordSetOptions::default()).unwrap();
        prop_assert_eq!(&read_set(&set), &payloads);
    }
}

#[test]
fn long_payloads_come_back() {
    let mut draws = Draws::new(1, 0, 0);
    let mut payload: Vec<u8> = (0..5_000_003).map(|_| draws.bits() as u8).collect();
    for at in [0, 4, 9, 1 << 19, 2_000_000, 4_999_996, 4_999_999] {
        payload[at..at + 4].copy_from_slice(&M);
    }
    let payloads = [payload, b"short".to_vec(), M.repeat(300_000)];
    let bytes: Vec<u8> = payloads.iter().flat_map(|payload| encoded(payload)).collect();
    assert_eq!(read_all(&bytes).unwrap(), payloads);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().write_all(&bytes).unwrap();
    let set = RecordSet::open(file.path().to_str().unwrap(), &RecordSetOptions::default()).unwrap();
    assert_eq!(read_set(&set), payloads);
}

/// Takes 2 GiB of memory and 1 GiB of disk: `cargo test --release -p tensorc-data --test integration -- --ignored`.
#[test]
#[ignore = "takes 2 GiB of memory"]
fn the_longest_payload_comes_back() {
    let mut payload = vec![5; MAX_PAYLOAD];
    payload[MAX_PAYLOAD - 7..MAX_PAYLOAD - 3].copy_from_slice(&M);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = RecordWriter::new(file.reopen().unwrap(), file.path());
    writer.write(&payload).unwrap();
    payload.push(0);
    assert!(matches!(cause_of(writer.write(&payload).unwrap_err()).1, Cause::Format(_)));
    payload.pop();
    assert_eq!(writer.write(b"next").unwrap(), (1 << 29) + 12);
    writer.finish().unwrap();
    let set = RecordSet::open(file.path().to_str().unwrap(), &RecordSetOptions::default()).unwrap();
    let mut buffer = vec![];
    set.read(0, &mut buffer).unwrap();
    assert!(set.len() == 2 && buffer == payload);
    drop(buffer);
    let mut reader = Reader::open(file.path()).unwrap();
    assert!(reader.next_record().unwrap().unwrap().payload == payload);
    assert_eq!(reader.next_record().unwrap().unwrap().payload, b"next");
}
