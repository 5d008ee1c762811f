//! Finds the text tests of a corpus and stages them for `lit`.
//!
//! `lit` takes every word in capitals before a colon for a command of its own and gives `@name` a meaning, so it cannot
//! read a test as its author writes it. For each test a shim with nothing but RUN lines is written; each of them starts
//! a script that holds the author's command with `%s`, `%S` and `%t` replaced and the tools first on the PATH. A script
//! can be started by hand to repeat what the runner did.

use std::io;
use std::path::{Path, PathBuf};

use crate::directive::spelled;

/// Seconds after which a RUN line is ended and counts as failed.
pub(crate) const TIME_LIMIT_S: u32 = 120;

/// Exit status of `timeout` when the limit was reached.
pub(crate) const TIMED_OUT: i32 = 124;

/// Runs its arguments and succeeds when they fail with status 1 or 2. A signal is status 128 or more in the shell and a
/// Rust panic is 101: neither is a reported error.
const NOT: &str = r#"#!/bin/sh
"$@"
status=$?
case $status in
  1|2) exit 0 ;;
  0) echo "not: succeeded, but was to fail: $*" >&2 ;;
  *) echo "not: status $status is a crash, not a reported error: $*" >&2 ;;
esac
exit 1
"#;

/// A command of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLine {
    /// Line in the test file, from 1.
    pub line: usize,
    /// The command as written, with continued lines joined.
    pub command: String,
}

/// A `.tc` file of the corpus.
#[derive(Clone, Debug)]
pub struct TextTest {
    pub path: PathBuf,
    /// Path below the corpus folder, with `/` between the parts.
    pub name: String,
    pub text: String,
    pub runs: Vec<RunLine>,
    /// Features named by REQUIRES lines; `!name` requires that a feature is absent.
    pub requires: Vec<String>,
}

/// Why a corpus cannot be staged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file or folder that cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// A file whose name cannot be used.
    #[error("{0}: a test's name has only letters, digits, '.', '-' and '_'")]
    Name(PathBuf),
    /// A file that is not UTF-8.
    #[error("{0}: not UTF-8")]
    NotUtf8(PathBuf),
}

/// Joins a path to the error of an operation on it.
pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StageError {
    let path = path.to_owned();
    move |error| StageError::Io { path, error }
}

impl TextTest {
    /// Reads RUN and REQUIRES lines from the text of a test.
    pub fn parse(path: PathBuf, name: String, text: String) -> TextTest {
        let mut runs: Vec<RunLine> = Vec::new();
        let mut requires = Vec::new();
        let mut continued = false;
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = spelled(line, &["REQUIRES"]) {
                requires.extend(found.pattern.split(',').map(|name| name.trim().to_owned()));
            }
            let Some(found) = spelled(line, &["RUN"]) else { continue };
            let command = found.pattern.trim();
            let (command, more) = match command.strip_suffix('\\') {
                Some(command) => (command.trim_end(), true),
                None => (command, false),
            };
            match runs.last_mut() {
                Some(last) if continued => last.command = format!("{} {command}", last.command),
                _ => runs.push(RunLine { line: index + 1, command: command.to_owned() }),
            }
            continued = more;
        }
        TextTest { path, name, text, runs, requires }
    }

    /// The required features that are not as required.
    pub(crate) fn unmet(&self, features: &[&str]) -> Vec<&str> {
        let met = |name: &str| match name.strip_prefix('!') {
            Some(absent) => !features.contains(&absent),
            None => features.contains(&name),
        };
        self.requires.iter().map(String::as_str).filter(|name| !met(name)).collect()
    }
}

/// All `.tc` files below the folder, by name; the folders named in `exclude` directly below it are left out.
pub(crate) fn discover(corpus: &Path, exclude: &[&str]) -> Result<Vec<TextTest>, StageError> {
    let mut tests = Vec::new();
    let mut folders = vec![(corpus.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(io_error(&folder))? {
            let path = entry.map_err(io_error(&folder))?.path();
            let Some(file_name) = path.file_name().and_then(|name| name.to_str()) else {
                return Err(StageError::NotUtf8(path));
            };
            let name = format!("{prefix}{file_name}");
            if path.is_dir() {
                if !prefix.is_empty() || !exclude.contains(&file_name) {
                    folders.push((path, format!("{name}/")));
                }
            } else if path.extension().is_some_and(|extension| extension == "tc") {
                if !name.chars().all(|c| c.is_ascii_alphanumeric() || "./-_".contains(c)) {
                    return Err(StageError::Name(path));
                }
                let bytes = std::fs::read(&path).map_err(io_error(&path))?;
                let text = String::from_utf8(bytes).map_err(|_| StageError::NotUtf8(path.clone()))?;
                tests.push(TextTest::parse(path, name, text));
            }
        }
    }
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

/// The folders of a staged corpus.
#[derive(Clone, Debug)]
pub struct StagedCorpus {
    pub dir: PathBuf,
    /// Number of shards: folders of shims that are run at the same time.
    pub shards: usize,
}

impl StagedCorpus {
    /// The folder with the shims of one shard.
    pub fn shard(&self, index: usize) -> PathBuf {
        self.dir.join("shards").join(index.to_string())
    }

    /// The folder where lit puts what the tests of a shard wrote.
    pub fn artifacts(&self, index: usize) -> PathBuf {
        self.dir.join("artifacts").join(index.to_string())
    }

    /// Path of a RUN line's script, below the stage's folder; RUN lines count from 1.
    pub fn script(name: &str, run: usize) -> String {
        format!("scripts/{name}.{run}.sh")
    }

    /// Empties the folder and writes tools, scripts and shims. Test `i` goes to shard `i mod shards`.
    pub fn write(
        dir: &Path,
        tests: &[&TextTest],
        tools: &[(&str, &Path)],
        shards: usize,
    ) -> Result<StagedCorpus, StageError> {
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(io_error(dir))?;
        }
        let stage = StagedCorpus { dir: dir.to_owned(), shards: shards.clamp(1, tests.len().max(1)) };
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).map_err(io_error(&bin))?;
        for (name, path) in tools {
            let link = bin.join(name);
            std::os::unix::fs::symlink(path, &link).map_err(io_error(&link))?;
        }
        write_executable(&bin.join("not"), NOT)?;
        for index in 0..stage.shards {
            for folder in [stage.shard(index), stage.artifacts(index)] {
                std::fs::create_dir_all(&folder).map_err(io_error(&folder))?;
            }
        }
        for (index, test) in tests.iter().enumerate() {
            stage.write_test(test, &stage.shard(index % stage.shards))?;
        }
        Ok(stage)
    }

    fn write_test(&self, test: &TextTest, shard: &Path) -> Result<(), StageError> {
        let temp = self.dir.join("temp").join(&test.name);
        std::fs::create_dir_all(&temp).map_err(io_error(&temp))?;
        let mut shim = String::new();
        for (index, run) in test.runs.iter().enumerate() {
            let script = StagedCorpus::script(&test.name, index + 1);
            shim.push_str(&format!("RUN: timeout {TIME_LIMIT_S} bash {script}\n"));
            let text = format!(
                "# {}:{}\nset -o pipefail\nexport PATH={}:\"$PATH\" LC_ALL=C RUST_BACKTRACE=0\ncd {} || exit 1\n{}\n",
                test.name,
                run.line,
                quoted(&self.dir.join("bin")),
                quoted(&temp),
                substitute(&run.command, &test.path, &temp.join("t")),
            );
            write_below(&self.dir.join(script), &text)?;
        }
        write_below(&shard.join(&test.name), &shim)
    }
}

fn write_below(path: &Path, text: &str) -> Result<(), StageError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io_error(parent))?;
    }
    std::fs::write(path, text).map_err(io_error(path))
}

fn write_executable(path: &Path, text: &str) -> Result<(), StageError> {
    use std::os::unix::fs::PermissionsExt;
    write_below(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(io_error(path))
}

/// A path as one word of the shell's.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c)) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Replaces `%s` (the test file), `%S` (its folder), `%t` (a path for temporary files) and `%%` (a percent sign).
///
/// A letter or underscore after the name makes it another word, so that `%sum` stays as it is.
pub fn substitute(command: &str, file: &Path, temp: &Path) -> String {
    let mut out = String::new();
    let mut rest = command;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut after = rest[at + 1..].chars();
        let name = after.next();
        let word = name != Some('%') && after.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        let value = match name {
            Some('%') => "%".to_owned(),
            Some('s') if !word => quoted(file),
            Some('S') if !word => quoted(file.parent().unwrap_or(file)),
            Some('t') if !word => quoted(temp),
            _ => {
                out.push('%');
                rest = &rest[at + 1..];
                continue;
            }
        };
        out.push_str(&value);
        rest = &rest[at + 2..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitutes_whole_names() {
        let run = |command: &str| substitute(command, Path::new("/c/a b.tc"), Path::new("/t/x"));
        assert_eq!(run("opt %s > %t.1 %t2"), "opt '/c/a b.tc' > /t/x.1 /t/x2");
        assert_eq!(run("ls %S; echo %sum %%s 5% %"), "ls /c; echo %sum %s 5% %");
    }

    #[test]
    fn joins_continued_run_lines() {
        let text = "// RUN: a \\\n// RUN:  | b\n// RUN: c\n// REQUIRES: x, !y\n".to_owned();
        let test = TextTest::parse(PathBuf::new(), String::new(), text);
        let line = |line, command: &str| RunLine { line, command: command.to_owned() };
        assert_eq!(test.runs, [line(1, "a | b"), line(3, "c")]);
        assert!(test.unmet(&["x"]).is_empty());
        assert_eq!(test.unmet(&["y"]), ["x", "!y"]);
    }
}
