//! Gives the sources that decide what code a kernel gets a number, so that stored code is used by no other compiler.
//!
//! A published crate has its own sources only; the version of the others is its own.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let mut files = vec![];
    for folder in ["src", "../ir/src", "../abi/src"].map(Path::new).into_iter().filter(|folder| folder.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        collect(folder, &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
    for file in files {
        hasher.write(file.to_string_lossy().as_bytes());
        let text = std::fs::read(&file)?;
        hasher.write_usize(text.len());
        hasher.write(&text);
    }
    println!("cargo::rustc-env=TENSORC_CODE_VERSION={:016x}", hasher.finish());
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
