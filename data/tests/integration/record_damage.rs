//! Damaged files of records: whatever bytes are overwritten or cut off, every record that is not touched is found, and
//! reading ends.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use tensorc_data::record::{
    ImageRecord, MAGIC, MAX_PAYLOAD, Reader, RecordFile, RecordSet, RecordSetOptions, decode, encode,
};
use tensorc_data::{Cause, DataError, Draws};

const M: [u8; 4] = MAGIC.to_le_bytes();

/// Stored records and what was done to them.
struct Damaged {
    bytes: Vec<u8>,
    records: Vec<(Range<u64>, Vec<u8>)>,
    touched: Vec<bool>,
}

impl Damaged {
    fn write(draws: &mut Draws, longest: u64) -> Damaged {
        let mut file = Damaged { bytes: vec![], records: vec![], touched: vec![] };
        for _ in 0..draws.below(40) {
            let mut payload: Vec<u8> = (0..draws.below(longest)).map(|_| draws.bits() as u8).collect();
            while draws.below(4) == 0 {
                payload.splice(..0, M);
            }
            let start = file.bytes.len() as u64;
            encode(&payload, &mut file.bytes).unwrap();
            file.records.push((start..file.bytes.len() as u64, payload));
        }
        file.touched = vec![false; file.records.len()];
        file
    }

    fn touch(&mut self, at: usize) {
        let number = self.records.partition_point(|(range, _)| range.end <= at as u64);
        self.touched[number] = true;
    }

    /// Overwrites bytes, mostly of headers and mostly by what headers hold, and cuts a piece off.
    fn damage(&mut self, draws: &mut Draws) {
        if self.bytes.is_empty() {
            return;
        }
        for _ in 0..draws.below(24) {
            let record = draws.below(self.records.len() as u64) as usize;
            let start = self.records[record].0.start as usize;
            let at = match draws.below(3) {
                0 => draws.below(self.bytes.len() as u64) as usize,
                _ => start + draws.below(8) as usize,
            };
            let new = match draws.below(4) {
                0 => vec![self.bytes[at] ^ 1 << draws.below(8)],
                1 => M.to_vec(),
                2 => ((draws.below(4) as u32) << 29 | draws.below(200) as u32).to_le_bytes().to_vec(),
                _ => vec![draws.bits() as u8],
            };
            for (at, byte) in (at..self.bytes.len()).zip(new) {
                if self.bytes[at] != byte {
                    self.bytes[at] = byte;
                    self.touch(at);
                }
            }
        }
        if draws.below(4) == 0 {
            let length = draws.below(self.bytes.len() as u64) as usize;
            self.bytes.truncate(length);
            let cut = self.records.iter().map(|(range, _)| range.end > length as u64);
            self.touched.iter_mut().zip(cut).for_each(|(touched, cut)| *touched |= cut);
        }
    }

    /// Checks what was found: all records that were not touched, and nothing else outside of those that were.
    fn check(&self, found: &[(u64, Vec<u8>)]) {
        assert!(found.is_sorted_by_key(|(offset, _)| *offset));
        let mut rest = found;
        for ((range, payload), touched) in self.records.iter().zip(&self.touched) {
            let inside = rest.iter().take_while(|(offset, _)| range.contains(offset)).count();
            if !touched {
                assert_eq!(&rest[..inside], &[(range.start, payload.clone())]);
            }
            rest = &rest[inside..];
        }
        assert!(rest.is_empty());
    }
}

/// All records that a reader finds when it goes on behind damage.
fn read(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::new(bytes, "stream");
    let mut found = vec![];
    let mut end = 0;
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                assert!(record.offset == end && record.payload.len() <= bytes.len());
                found.push((record.offset, record.payload.to_vec()));
                end = record.offset + encode(record.payload, &mut std::io::sink()).unwrap();
            }
            Ok(None) => break,
            Err(DataError::At { place, cause: Cause::Format(_) | Cause::Truncated { .. } }) => {
                let range = reader.resynchronise().unwrap();
                assert!(place.offset == Some(end) && range.start == end && range.end > end);
                end = range.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(end, bytes.len() as u64);
    found
}

/// All records of all parts of two files that can be read, by file. Ranges that are left out and records lie side by
/// side.
fn read_parts(paths: &[PathBuf; 2], parts: usize) -> [Vec<(u64, Vec<u8>)>; 2] {
    let (mut found, mut covered, mut buffer) = ([vec![], vec![]], 0, vec![]);
    let list = format!("{};{}", paths[0].display(), paths[1].display());
    for part in 0..parts {
        let set = RecordSet::open(&list, &RecordSetOptions { parts, part, ..RecordSetOptions::default() }).unwrap();
        covered += set.damage().map(|damage| damage.range.end - damage.range.start).sum::<u64>();
        for i in 0..set.len() {
            covered += set.stored_len(i);
            let place = set.place(i);
            match set.read(i, &mut buffer) {
                Ok(()) => found[usize::from(place.file == paths[1])].push((place.offset.unwrap(), buffer.clone())),
                Err(DataError::At { cause: Cause::Format(_), .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(covered, paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>());
    found
}

/// Two damaged files in a folder.
fn damaged_files(folder: &Path, draws: &mut Draws, longest: u64) -> ([PathBuf; 2], [Damaged; 2]) {
    let paths = ["a.rec", "b.rec"].map(|name| folder.join(name));
    let files = paths.each_ref().map(|path| {
        let mut file = Damaged::write(draws, longest);
        file.damage(draws);
        // Some file systems wait for the disk when an old file is emptied and written anew.
        drop(fs::remove_file(path));
        fs::write(path, &file.bytes).unwrap();
        file
    });
    (paths, files)
}

#[test]
fn a_million_damaged_records() {
    let (mut touched, mut case) = (0, 0);
    while touched < 1_000_000 {
        let mut draws = Draws::new(23, 0, case);
        let longest = 1 << (1 + draws.below(7));
        let mut file = Damaged::write(&mut draws, longest);
        file.damage(&mut draws);
        file.check(&read(&file.bytes));
        touched += file.touched.iter().filter(|touched| **touched).count();
        case += 1;
    }
}

#[test]
fn scans_find_what_a_reader_finds() {
    let folder = tempfile::tempdir().unwrap();
    for case in 0..4000 {
        let mut draws = Draws::new(29, 0, case);
        let longest = 1 << (1 + draws.below(9));
        let (paths, files) = damaged_files(folder.path(), &mut draws, longest);
        assert_eq!(read_parts(&paths, 1), files.each_ref().map(|file| read(&file.bytes)));
        // Bounds of parts that lie inside of damage may show more of it.
        let found = read_parts(&paths, 1 + draws.below(8) as usize);
        files.iter().zip(found).for_each(|(file, found)| file.check(&found));
    }
}

#[test]
fn scans_jump_over_long_records_and_find_all() {
    let folder = tempfile::tempdir().unwrap();
    for case in 0..40 {
        let (paths, files) = damaged_files(folder.path(), &mut Draws::new(31, 0, case), 1 << 16);
        for parts in [1, 3] {
            files.iter().zip(read_parts(&paths, parts)).for_each(|(file, found)| file.check(&found));
        }
    }
}

#[test]
fn a_length_that_leads_to_another_head_is_an_error_when_read() {
    let mut bytes = vec![];
    for i in 0..8 {
        encode(&vec![i; (1 << 17) - 8], &mut bytes).unwrap();
    }
    // The first record reaches over the second one.
    bytes[6] ^= 2;
    let file_on_disk = tempfile::NamedTempFile::new().unwrap();
    fs::write(file_on_disk.path(), &bytes).unwrap();
    assert_eq!(read(&bytes).len(), 7);
    let file = RecordFile::open(file_on_disk.path()).unwrap();
    let error = file.read_at(0, &mut vec![]).unwrap_err();
    assert!(matches!(error, DataError::At { cause: Cause::Format(_) | Cause::Truncated { .. }, .. }), "{error}");
}

#[test]
fn time_is_linear_in_damage() {
    let heads = |length: u32| [M, length.to_le_bytes()].concat().repeat(1 << 20);
    let middle = 2 << 29;
    let cases =
        [heads(MAX_PAYLOAD as u32), heads(4 << 20), heads(middle), heads(7 << 29), vec![0; 1 << 24], M.repeat(1 << 22)];
    let file_on_disk = tempfile::NamedTempFile::new().unwrap();
    let path = file_on_disk.path().to_str().unwrap();
    for (case, bytes) in cases.into_iter().enumerate() {
        assert!(read(&bytes).is_empty(), "case {case}");
        fs::write(path, &bytes).unwrap();
        let set = RecordSet::open(path, &RecordSetOptions::default()).unwrap();
        assert!(set.is_empty(), "case {case}");
        let damage: Vec<_> = set.damage().map(|damage| damage.range).collect();
        assert_eq!(damage, std::slice::from_ref(&(0..bytes.len() as u64)), "case {case}");
    }
}

#[test]
fn a_length_takes_no_memory_that_the_file_does_not_fill() {
    let file_on_disk = tempfile::NamedTempFile::new().unwrap();
    let head = [M, (MAX_PAYLOAD as u32).to_le_bytes()].concat();
    fs::write(file_on_disk.path(), [&head[..], b"abcd"].concat()).unwrap();
    let mut payload = vec![];
    assert!(RecordFile::open(file_on_disk.path()).unwrap().read_at(0, &mut payload).is_err());
    assert!(payload.capacity() < 1 << 10);
    assert!(decode(&head, &mut payload).is_err());
    assert!(payload.capacity() < 1 << 10);
}

/// What the fuzz target `recordio` checks of any bytes.
fn check_any_bytes(data: &[u8]) {
    let mut payload = vec![];
    if let Ok(stored) = decode(data, &mut payload) {
        let mut again = vec![];
        assert_eq!(encode(&payload, &mut again).unwrap(), stored as u64);
        assert_eq!(decode(&again, &mut payload).unwrap(), stored);
    }
    for (_, payload) in read(data) {
        if let Ok(image) = ImageRecord::unpack(&payload) {
            let mut again = vec![];
            image.pack(&mut again).unwrap();
            assert!(ImageRecord::unpack(&again).is_ok());
        }
    }
}

#[test]
fn any_bytes_are_read_or_refused() {
    for case in 0..100_000 {
        let mut draws = Draws::new(37, 0, case);
        let mut bytes = vec![];
        for _ in 0..draws.below(30) {
            match draws.below(4) {
                0 => bytes.extend(M),
                1 => bytes.extend(((draws.below(5) as u32) << 29 | draws.below(40) as u32).to_le_bytes()),
                2 => bytes.extend(vec![0; draws.below(12) as usize]),
                _ => bytes.extend(&draws.bits().to_le_bytes()[..draws.below(8) as usize]),
            }
        }
        check_any_bytes(&bytes);
    }
}
