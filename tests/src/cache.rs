//! Packages of the Python index, downloaded once into a folder outside of the repository.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// A pinned package.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// `NAME==VERSION`.
    pub spec: &'static str,
    /// Options of pip that choose one file whatever Python runs it.
    pub options: &'static [&'static str],
    /// SHA-256 of that file; empty where its members have checksums of their own.
    pub sha256: &'static str,
}

/// Where downloads are kept: `$TENSORC_CACHE`, or `~/.cache/tensorc`.
pub fn folder() -> PathBuf {
    match std::env::var_os("TENSORC_CACHE") {
        Some(folder) => folder.into(),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".cache/tensorc"),
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn only_file(folder: &Path) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.filter_map(|e| Some(e.ok()?.path())).find(|p| p.is_file())
}

fn pip_download(spec: &str, options: &[&str], into: &Path) -> Result<(), String> {
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"])
        .args(["--retries", "1", "--timeout", "20", "--dest"])
        .arg(into)
        .args(options)
        .arg(spec)
        .output()
        .map_err(|e| format!("python3: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ")),
    }
}

/// Whether the index delivers anything at all.
fn index_answers(scratch: &Path) -> bool {
    pip_download("pip", &["--only-binary=:all:"], scratch).is_ok()
}

/// The archive of a package; `None`, after a visible line, where no package index answers.
///
/// Panics if the index answers but does not deliver this package, or another file than before.
pub fn fetch(package: Package) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let place = folder().join(package.spec.replace("==", "-"));
    if let Some(found) = only_file(&place) {
        return Some(found);
    }
    let part = place.with_extension(format!("part-{}", std::process::id()));
    fs::create_dir_all(&part).expect("the cache folder can be written");
    if let Err(why) = pip_download(package.spec, package.options, &part) {
        let reachable = index_answers(&part);
        fs::remove_dir_all(&part).expect("the cache folder can be written");
        assert!(!reachable, "{}: {why}", package.spec);
        visible(&format!("skipped: no package index answers, so {} is not here", package.spec));
        return None;
    }
    let found = only_file(&part).expect("pip delivers a file");
    if !package.sha256.is_empty() {
        let digest = sha256(&fs::read(&found).expect("a downloaded file can be read"));
        assert_eq!(digest, package.sha256, "{}: not the pinned file", package.spec);
    }
    // Another process may have been faster; its file is the same.
    if fs::rename(&part, &place).is_err() {
        fs::remove_dir_all(&part).expect("the cache folder can be written");
    }
    only_file(&place)
}

/// Prints past the capture of the test harness, so that a skipped test is seen.
pub fn visible(line: &str) {
    use std::io::Write;
    let mut err = std::io::stderr().lock();
    writeln!(err, "\n{line}").expect("standard error can be written");
}

/// One file of a wheel (zip) or source archive (tar.gz).
///
/// # Errors
/// The archive cannot be read or has no such file.
pub fn member(archive: &Path, name: &str) -> Result<Bytes, String> {
    let fail = |why: String| format!("{}: {name}: {why}", archive.display());
    let file = fs::File::open(archive).map_err(|e| fail(e.to_string()))?;
    let mut bytes = vec![];
    if archive.extension().is_some_and(|e| e == "whl" || e == "zip") {
        let mut zip = zip::ZipArchive::new(file).map_err(|e| fail(e.to_string()))?;
        let mut entry = zip.by_name(name).map_err(|e| fail(e.to_string()))?;
        entry.read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
        return Ok(bytes.into());
    }
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    for entry in tar.entries().map_err(|e| fail(e.to_string()))? {
        let mut entry = entry.map_err(|e| fail(e.to_string()))?;
        if entry.path().is_ok_and(|p| p == Path::new(name)) {
            entry.read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
            return Ok(bytes.into());
        }
    }
    Err(fail("no such file".into()))
}
