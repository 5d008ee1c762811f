//! Lists of paths: files, folders and patterns, separated by semicolons.

use std::fs;
use std::path::{Path, PathBuf};

use wildmatch::WildMatch;

use crate::error::DataError;

/// Endings of files that lie beside files of records and hold none.
const COMPANIONS: [&str; 2] = ["idx", "lst"];

/// Whether a name has the form of a pattern, in which `*` stands for any characters and `?` for one.
fn matches(pattern: &str, name: &str) -> bool {
    WildMatch::new(pattern).matches(name)
}

/// The files of a folder whose names `take` wants, sorted by name.
fn files(folder: &Path, take: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let list = || {
        let mut found = vec![];
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let companion = path.extension().is_some_and(|e| COMPANIONS.iter().any(|c| e == *c));
            if !companion && path.file_name().is_some_and(|name| take(&name.to_string_lossy())) && path.is_file() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    };
    list().map_err(|e| DataError::io(folder, e))
}

/// One item of a list.
fn expand_one(item: &str) -> Result<Vec<PathBuf>, DataError> {
    let local = item.strip_prefix("file://").unwrap_or(item);
    if let Some((scheme, _)) = local.split_once("://") {
        return Err(DataError::options("paths", format!("{item}: files cannot be read over {scheme}")));
    }
    let path = Path::new(local);
    if path.is_dir() {
        return files(path, |_| true);
    }
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    if path.exists() || !name.contains(['*', '?']) {
        return Ok(vec![path.to_owned()]);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = files(folder, |candidate| matches(&name, candidate))?;
    if found.is_empty() {
        return Err(DataError::options("paths", format!("no file matches {item}")));
    }
    Ok(found)
}

/// The files that a list names, in its order.
///
/// An item is a file, a folder, which stands for the files in it, or a path with `*` and `?` in the last name. Files
/// of a folder or pattern are sorted by name; indices and lists of images are left out.
pub(super) fn expand(list: &str) -> Result<Vec<PathBuf>, DataError> {
    let items = list.split(';').map(str::trim).filter(|item| !item.is_empty());
    let files = items.map(expand_one).collect::<Result<Vec<_>, _>>()?.concat();
    if files.is_empty() {
        return Err(DataError::options("paths", format!("{list:?} names no file")));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in
            [("*", ""), ("a*", "a"), ("a*c", "abcbc"), ("?b*?", "abc"), ("*.rec", "x.rec"), ("**", "x")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("?", ""), ("a*c", "abcb"), ("*.rec", "x.idx"), ("a", "ab"), ("ab", "a"), ("?b*?", "ab")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(30), &"a".repeat(29)), "many stars take no exponential time");
    }

    #[test]
    fn lists_of_files_folders_and_patterns() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b1.rec", "b0.rec", "b0.idx", "b0.lst", "c.rec"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        let list = |items: &str| expand(&items.replace('@', folder.path().to_str().unwrap()));
        assert_eq!(list("@").unwrap(), [at("b0.rec"), at("b1.rec"), at("c.rec")]);
        assert_eq!(list("@/c.rec;@/b*").unwrap(), [at("c.rec"), at("b0.rec"), at("b1.rec")]);
        assert_eq!(list("file://@/?.rec; ").unwrap(), [at("c.rec")]);
        assert_eq!(list("@/missing").unwrap(), [at("missing")], "opening it is the error");
        for wrong in ["", " ; ", "@/x*", "s3://bucket/x.rec"] {
            assert!(matches!(list(wrong), Err(DataError::Options { .. })), "{wrong}");
        }
    }
}
