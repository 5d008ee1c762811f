//! `filecheck`: matches its standard input against the directives of a file.
//!
//! Exit status: 0 when everything matches, 1 when a directive does not, 2 when the command or the directives are wrong.
#![forbid(unsafe_code)]

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use tensorc_filecheck::check::{CheckFailure, PatternFile, check_text};
use tensorc_filecheck::run::run_staged;

const USAGE: &str =
    "usage: filecheck FILE [--check-prefix=P] [--check-prefixes=P,Q] [--input-file=PATH] [--allow-empty]
       filecheck --run-staged FOLDER ARTIFACTS   (the text-test runner's own use: lit over one staged folder)";

struct CommandLine {
    file: String,
    prefixes: Vec<String>,
    input: Option<String>,
    allow_empty: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, folder, artifacts] = args.as_slice()
        && flag == "--run-staged"
    {
        return if run_staged(Path::new(folder), Path::new(artifacts)) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let options = match parse(&args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("filecheck: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((status, message)) => {
            eprintln!("{message}");
            ExitCode::from(status)
        }
    }
}

fn parse(args: &[String]) -> Result<CommandLine, String> {
    let mut options = CommandLine { file: String::new(), prefixes: Vec::new(), input: None, allow_empty: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            if !options.file.is_empty() {
                return Err(format!("a second pattern file '{arg}'"));
            }
            options.file.clone_from(arg);
            continue;
        };
        if flag == "allow-empty" {
            options.allow_empty = true;
            continue;
        }
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value),
            None => (flag, args.next().ok_or_else(|| format!("'{arg}' is unknown or lacks its value"))?.as_str()),
        };
        match name {
            "check-prefix" | "check-prefixes" => options.prefixes.extend(value.split(',').map(str::to_owned)),
            "input-file" => options.input = Some(value.to_owned()),
            _ => return Err(format!("unknown option '{arg}'")),
        }
    }
    if options.file.is_empty() {
        return Err("no pattern file".to_owned());
    }
    if let Some(bad) = options.prefixes.iter().find(|prefix| !is_prefix(prefix)) {
        return Err(format!("'{bad}' is no prefix: letters, digits, '-' and '_', a letter first"));
    }
    Ok(options)
}

fn is_prefix(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The error is the exit status with what to tell.
fn run(options: &CommandLine) -> Result<(), (u8, String)> {
    let wrong = |path: &str, error: std::io::Error| (2, format!("filecheck: {path}: {error}"));
    let text = std::fs::read_to_string(&options.file).map_err(|error| wrong(&options.file, error))?;
    let mut bytes = Vec::new();
    match &options.input {
        Some(path) => bytes = std::fs::read(path).map_err(|error| wrong(path, error))?,
        None => {
            std::io::stdin().read_to_end(&mut bytes).map_err(|error| wrong("standard input", error))?;
        }
    }
    if bytes.is_empty() && !options.allow_empty {
        return Err((1, format!("{}: the input is empty (--allow-empty permits that)", options.file)));
    }
    let input = String::from_utf8_lossy(&bytes);
    let file = PatternFile { name: options.file.clone(), text };
    let prefixes: Vec<&str> = options.prefixes.iter().map(String::as_str).collect();
    check_text(&file, &input, &prefixes).map_err(|failure| {
        let status = if matches!(failure, CheckFailure::Mismatches(_)) { 1 } else { 2 };
        (status, failure.to_string())
    })
}
