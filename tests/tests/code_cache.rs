//! A folder of machine code that several processes fill, of which some are killed, on disks that are full or damaged:
//! results have the bits of a run without it, and nothing is an error.
//!
//! The other processes are this program, asked for the test `process` alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tensorc::{Compiler, Options, Tensor};
use tensorc_random::Rng;

use crate::support::backend::options;
use crate::support::examples;

/// Of the environment of the other processes: the folder of code, and the file for the results.
const FOLDER: &str = "TENSORC_TEST_CODE_FOLDER";
const RESULTS: &str = "TENSORC_TEST_RESULTS";

/// Processes at once; `TENSORC_PROCESSES` says another number.
const PROCESSES: usize = 16;

/// The bits of the results of some models, which have some dozens of kernels; and why no more code is stored.
fn results_and_failure(folder: Option<PathBuf>) -> (Vec<u8>, Option<String>) {
    let compiler = Compiler::new(Options { code_cache: folder, threads: Some(2), ..options() }).unwrap();
    let model = compiler.load(examples().join("digits/digits.onnx")).unwrap();
    let mut bits = vec![];
    for batch in 1..=6u64 {
        let pixels: Vec<f32> = (0..batch * 64).map(|i| ((i * 37) % 17) as f32).collect();
        let image = Tensor::from_f32(&[batch, 1, 8, 8], &pixels).unwrap();
        model.run(&[("image", image)]).unwrap().iter().for_each(|(_, tensor)| bits.extend(tensor.bytes()));
    }
    (bits, compiler.code_cache_failure().map(str::to_owned))
}

/// The bits of the results, where storing code must not fail.
fn results(folder: Option<PathBuf>) -> Vec<u8> {
    let (bits, failure) = results_and_failure(folder);
    assert_eq!(failure, None);
    bits
}

/// What a process writes: the bits, and the failure behind them.
fn report((bits, failure): (Vec<u8>, Option<String>)) -> Vec<u8> {
    [bits, failure.unwrap_or_default().into_bytes()].concat()
}

#[test]
fn process() {
    if let (Some(folder), Some(file)) = (std::env::var_os(FOLDER), std::env::var_os(RESULTS)) {
        std::fs::write(file, report(results_and_failure(Some(folder.into())))).unwrap();
    }
}

/// This program, started by a shell behind `before`, or by itself.
fn command(before: Option<&str>, folder: &Path, results: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match before {
        None => Command::new(&program),
        Some(before) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{before} exec \"$0\" \"$@\"")]).arg(&program);
            shell
        }
    };
    command.args(["code_cache::process", "--exact"]).env(FOLDER, folder).env(RESULTS, results);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(folder: &Path, results: &Path) -> Child {
    command(None, folder, results).spawn().unwrap()
}

/// The records of a folder, by name; what else is there must be of processes that were killed.
fn records(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut records = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".tccode") {
            records.insert(name.clone(), std::fs::read(folder.join(name)).unwrap());
        } else {
            assert!(name.ends_with(".tcpart"), "{name}");
        }
    }
    records
}

/// Waits until a folder has so many files, or the process has ended; then kills it.
fn kill_at(mut process: Child, folder: &Path, files: usize) {
    let count = || std::fs::read_dir(folder).map_or(0, Iterator::count);
    while count() < files && process.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    // It may have ended.
    let _ = process.kill();
    process.wait().unwrap();
}

#[test]
fn processes_fill_one_folder_at_once_and_some_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, alone) = (dir.path().join("code"), dir.path().join("alone"));
    let expected = results(None);
    assert!(results(Some(alone.clone())) == expected);
    let whole = records(&alone);
    assert!(whole.len() > 10, "{} records", whole.len());
    let count = std::env::var("TENSORC_PROCESSES").map_or(PROCESSES, |text| text.parse().unwrap());
    let mut rng = Rng::new(17);
    let files: Vec<PathBuf> = (0..count).map(|i| dir.path().join(i.to_string())).collect();
    let processes: Vec<Child> = files.iter().map(|file| start(&folder, file)).collect();
    // One in three is killed while the folder fills.
    let (victims, others): (Vec<_>, Vec<_>) = processes.into_iter().zip(&files).partition(|_| rng.one_in(3));
    assert!(!victims.is_empty() && others.len() > count / 3);
    std::thread::scope(|scope| {
        for (process, _) in victims {
            let at = 1 + rng.below(whole.len() as u64) as usize;
            let folder = &folder;
            scope.spawn(move || kill_at(process, folder, at));
        }
    });
    for (mut process, file) in others {
        assert!(process.wait().unwrap().success());
        assert!(std::fs::read(file).unwrap() == expected, "other bits");
    }
    // The same kernels give the same records, whoever was last; and nothing is new to another process.
    assert!(records(&folder) == whole);
    assert!(results(Some(folder.clone())) == expected);
    assert!(records(&folder) == whole);
}

#[test]
fn every_process_may_be_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("code"), dir.path().join("results"));
    let expected = results(None);
    let mut rng = Rng::new(5);
    for _ in 0..10 {
        let held = std::fs::read_dir(&folder).map_or(0, Iterator::count);
        kill_at(start(&folder, &file), &folder, held + 1 + rng.below(4) as usize);
    }
    assert!(results(Some(folder.clone())) == expected, "other bits");
}

/// What disks and crashes make of a record.
fn damaged(record: &[u8], others: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let at = rng.below(record.len() as u64) as usize;
    match rng.below(6) {
        0 => record[..at].to_vec(),
        1 => vec![],
        2 => vec![0; record.len()],
        // The record of another kernel.
        3 => rng.pick(others).clone(),
        kind => {
            let mut record = record.to_vec();
            match kind {
                4 => record[at] ^= 1 << rng.below(8),
                _ => tensorc_random::damage(&mut record, others, rng),
            }
            record
        }
    }
}

#[test]
fn damaged_records_are_never_used() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("code");
    let expected = results(None);
    assert!(results(Some(folder.clone())) == expected);
    let whole = records(&folder);
    let contents: Vec<Vec<u8>> = whole.values().cloned().collect();
    for round in 0..4 {
        let mut rng = Rng::new(round);
        for (name, record) in &whole {
            std::fs::write(folder.join(name), damaged(record, &contents, &mut rng)).unwrap();
        }
        assert!(results(Some(folder.clone())) == expected, "other bits from damaged records, round {round}");
        assert!(records(&folder) == whole, "damaged records are made anew, round {round}");
    }
}

/// Runs a process that must fail to store code, and nothing else.
fn without_room(command: &mut Command, file: &Path, why: &str) {
    let expected = results(None);
    assert!(command.status().unwrap().success());
    let found = std::fs::read(file).unwrap();
    let failure = String::from_utf8_lossy(found.strip_prefix(&expected[..]).expect("other bits")).into_owned();
    assert!(failure.starts_with("no more code is stored in ") && failure.contains(why), "{failure}");
}

#[test]
fn files_that_must_be_short_are_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("code"), dir.path().join("results"));
    // In units of 512 bytes. Whoever writes more gets a signal, or an error if the signal is ignored.
    without_room(&mut command(Some("trap '' XFSZ; ulimit -f 4;"), &folder, &file), &file, "File too large");
    for record in records(&folder).values() {
        assert!(record.len() <= 4096);
    }
    assert!(results(Some(folder.clone())) == results(None));
}

#[test]
fn a_full_disk_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, file) = (dir.path().join("disk"), dir.path().join("results"));
    std::fs::create_dir(&disk).unwrap();
    let mount = format!("mount -t tmpfs -o size=64k,mode=700 tmpfs '{}' &&", disk.display());
    let own = ["--user", "--map-root-user", "--mount"];
    let possible = Command::new("unshare").args(own).args(["sh", "-c", &format!("{mount} true")]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return tensorc_tests::cache::visible("skipped: no disk of a process's own can be mounted");
    }
    let shell = command(Some(&mount), &disk.join("code"), &file);
    let mut unshare = Command::new("unshare");
    unshare.args(own).arg(shell.get_program()).args(shell.get_args());
    unshare.env(FOLDER, disk.join("code")).env(RESULTS, &file).stdout(Stdio::null()).stderr(Stdio::null());
    without_room(&mut unshare, &file, "No space left on device");
}

#[test]
fn a_folder_that_cannot_be_made_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let (bits, failure) = results_and_failure(Some(file.join("code")));
    assert!(bits == results(None));
    let failure = failure.unwrap();
    assert!(failure.contains("no more code is stored in ") && failure.contains("file/code: "), "{failure}");
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_may_write_to_is_not_used_and_no_error() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (bits, failure) = results_and_failure(Some(dir.path().to_owned()));
    assert!(bits == results(None));
    assert!(failure.unwrap().contains("is not used: others may write to it"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
