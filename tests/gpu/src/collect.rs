//! What a bundle holds beside the program, made where there is a package index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use tensorc_tests::cache::{fetch, visible};
use tensorc_tests::onnx::{Archive, CASES, CURRENT, lines};
use tensorc_tests::{models, onnx};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::context::Fault;
use crate::protocol::folder_name;
use crate::steps;

/// Largest file of a model, in bytes.
const LARGEST: usize = 4 << 20;
/// Most bytes of a case of ONNX.
const LARGEST_CASE: u64 = 256 << 10;

/// The interpreter's results.
///
/// # Errors
/// A case fails in the interpreter, or the file cannot be written.
pub fn stored(folder: &Path) -> Result<(), Fault> {
    fs::create_dir_all(folder)?;
    steps::store()?.save(folder)
}

/// Models that are small, and can be fetched; a line for each other one.
///
/// # Errors
/// A file cannot be written.
pub fn models(folder: &Path) -> Result<(), Fault> {
    let place = folder.join("models");
    fs::create_dir_all(&place)?;
    for model in models::cases() {
        match model.fetch() {
            Some(bytes) if bytes.len() <= LARGEST => {
                fs::write(place.join(format!("{}.onnx", folder_name(model.id))), bytes)?;
            }
            Some(bytes) => println!("{} is left out: {} MB", model.id, bytes.len() / 1_000_000),
            None => {}
        }
    }
    Ok(())
}

/// The cases of ONNX's current release as an archive with the names of the release, but for large ones; none if it cannot be fetched.
///
/// # Errors
/// The archive cannot be written.
pub fn onnx_cases(folder: &Path) -> Result<(), Fault> {
    let Some(wheel) = fetch(CURRENT) else {
        visible("the cases of ONNX are left out");
        return Ok(());
    };
    let mut wheel = Archive::new(File::open(wheel)?)?;
    let wanted: BTreeSet<&str> = lines(CASES).collect();
    let mut members: BTreeMap<String, Vec<(usize, u64)>> = BTreeMap::new();
    for i in 0..wheel.len() {
        let member = wheel.by_index(i)?;
        // FOLDER/CASE/model.onnx and FOLDER/CASE/test_data_set_0/input_0.pb
        let below = member.name().strip_prefix(onnx::ROOT).unwrap_or_default();
        let case = below.split('/').take(2).collect::<Vec<_>>().join("/");
        if wanted.contains(case.as_str()) {
            members.entry(case).or_default().push((i, member.size()));
        }
    }
    let mut archive = ZipWriter::new(File::create(folder.join(steps::ONNX_FILE))?);
    let small = |members: &&Vec<(usize, u64)>| members.iter().map(|(_, size)| size).sum::<u64>() <= LARGEST_CASE;
    for (i, _) in members.values().filter(small).flatten() {
        let mut member = wheel.by_index(*i)?;
        // Times of files would make every archive another one.
        let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
        archive.start_file(member.name(), options)?;
        let mut bytes = vec![];
        member.read_to_end(&mut bytes)?;
        archive.write_all(&bytes)?;
    }
    archive.finish()?;
    Ok(())
}
