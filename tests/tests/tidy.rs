//! Rules about the sources that no compiler checks: which crate may use which, what may be named
//! where, and sizes.

mod documents;
mod packages;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate folder and the workspace crates it may depend on. The run-time half (`kernels`, `exec`, `runtime`,
/// `data`) sees nothing of the compiler.
const ALLOWED: [(&str, &[&str]); 15] = [
    ("abi", &[]),
    ("ir", &["abi"]),
    ("ops", &["abi", "ir", "kernels"]),
    ("schedule", &["abi", "exec", "ir"]),
    ("passes", &["abi", "ir", "schedule"]),
    ("codegen", &["abi", "ir", "schedule"]),
    ("frontend", &["abi", "ir", "ops"]),
    ("kernels", &["abi"]),
    ("exec", &["abi", "kernels"]),
    ("runtime", &["abi", "exec", "kernels"]),
    ("data", &["abi", "runtime"]),
    ("kvstore", &["runtime"]),
    (".", &["abi", "codegen", "exec", "frontend", "ir", "kernels", "ops", "passes", "runtime", "schedule"]),
    ("nd", &["abi", "frontend", "ir", "ops", "passes", "runtime", "tensorc"]),
    ("train", &["data", "frontend", "ir", "kernels", "kvstore", "nd", "ops", "runtime", "tensorc"]),
];

/// Crates around the library.
const JOINING: [&str; 10] = [
    "tests",
    "tests/filecheck",
    "tests/gpu",
    "tests/onnx_fuzz",
    "tests/random",
    "tests/readers",
    "tests/simulator",
    "benches",
    "cli",
    "python",
];

/// Files that may hold `unsafe`, by prefix.
const UNSAFE: [&str; 25] = [
    "abi/src/image.rs",
    "abi/src/memory.rs",
    "abi/src/memory/",
    "benches/src/gpu/copies.rs",
    "exec/",
    "kernels/",
    "rt/",
    "runtime/",
    "codegen/src/cranelift/",
    "codegen/src/llvm/",
    "codegen/tests/",
    "data/src/image/jpeg/simd.rs",
    "kvstore/src/transport/mpi.rs",
    "python/src/arrays.rs",
    "python/src/host_memory.rs",
    "python/src/mxnet/dlpack.rs",
    "src/compile.rs",
    "tests/gpu/src/launch.rs",
    "tests/random/src/meter.rs",
    "tests/simulator/src/counting.rs",
    "tests/simulator/src/stream.rs",
    "tests/simulator/tests/",
    "tests/src/imaginary/mod.rs",
    "tests/tests/libraries/cuda.rs",
    "tests/tests/ndarray/lent.rs",
];

/// Files that may be longer than [`FILE_LINES`], and why.
const LONG_FILES: [(&str, &str); 0] = [];

/// Functions that may be longer than [`FUNCTION_LINES`], as file and name, and why.
const LONG_FUNCTIONS: [(&str, &str, &str); 1] =
    [("benches/examples/bench_kernels.rs", "main", "a flat list of measurements that share nothing")];

/// Literals that read like operators: file, literal and what it is.
const NOT_OPERATORS: [(&str, &str, &str); 7] = [
    ("codegen/src/symbols.rs", "ceil", "a function of libm"),
    ("codegen/src/symbols.rs", "floor", "a function of libm"),
    ("codegen/src/symbols.rs", "trunc", "a function of libm"),
    ("codegen/src/emit/map.rs", "tile", "a loop index"),
    ("schedule/src/cost/mod.rs", "concat", "a primitive"),
    ("schedule/src/cost/mod.rs", "attention", "a class of clusters"),
    ("passes/src/simplify/scalar/rule.rs", "cast", "an operation of scalar expressions"),
];

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 80;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path.as_ref())).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// Every Rust source below `folder`, relative to the root, with its text.
fn sources(folder: &str) -> Vec<(String, String)> {
    files(folder, "rs")
}

/// Every file of a kind below `folder`, relative to the root, with its text.
fn files(folder: &str, extension: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut open = vec![root().join(folder)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_symlink() {
                // What it leads to has a place of its own.
            } else if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if Path::new(&name).extension().is_some_and(|e| e == extension) {
                let relative = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The text before the unit tests of a file, which come last.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// Lines with code, numbered from 1; comments are left out.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
}

#[track_caller]
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

/// Entries of a section of a manifest.
fn section<'t>(manifest: &'t str, name: &str) -> Vec<&'t str> {
    let header = format!("[{name}]");
    let inside = manifest.lines().skip_while(|l| l.trim() != header).skip(1).take_while(|l| !l.starts_with('['));
    inside.filter_map(|l| l.split(['.', '=', ' ']).next().filter(|n| !n.is_empty() && !n.starts_with('#'))).collect()
}

#[test]
fn crates_depend_only_on_what_their_layer_allows() {
    let mut found = vec![];
    for (folder, allowed) in ALLOWED {
        let manifest = read(format!("{folder}/Cargo.toml"));
        // A build script is not a layer.
        for (kind, allowed) in [("dependencies", allowed), ("build-dependencies", &[] as &[&str])] {
            for dependency in section(&manifest, kind) {
                let ours = dependency == "tensorc" || dependency.starts_with("tensorc-");
                let name = dependency.trim_start_matches("tensorc-");
                if ours && !allowed.contains(&name) {
                    found.push(format!("{folder} must not have {name} among its {kind}"));
                }
            }
        }
    }
    assert_none("edges between crates that the architecture does not have", &found);
}

#[test]
fn every_crate_has_a_layer() {
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find(|l| l.starts_with("members")).unwrap();
    let members: BTreeSet<&str> = members.split('"').skip(1).step_by(2).collect();
    let known: BTreeSet<&str> =
        ALLOWED.iter().map(|(folder, _)| *folder).chain(JOINING).filter(|folder| *folder != ".").collect();
    assert_eq!(members, known);
}

/// The contents of the string literals in a line of code.
fn literals(line: &str) -> Vec<&str> {
    line.split('"').skip(1).step_by(2).collect()
}

#[test]
fn passes_and_code_generation_know_no_operator_by_name() {
    let registry = tensorc_ops::registry().unwrap();
    let mut found = vec![];
    for (path, text) in ["schedule/src", "passes/src", "codegen/src"].into_iter().flat_map(sources) {
        for (line, code) in code_lines(without_tests(&text)) {
            let known = |l: &&str| NOT_OPERATORS.iter().any(|(file, name, _)| *file == path && name == l);
            let names = literals(code).into_iter().filter(|l| registry.get(l).is_some() && !known(l));
            found.extend(names.map(|name| format!("{path}:{line}: \"{name}\"")));
        }
    }
    assert_none("names of operators outside of their registry", &found);
}

/// How operators read their parameters.
const READERS: &[&str] =
    &["int", "float", "bool", "dtype", "str", "ints", "floats", "strs", "tensor", "read", "float_param"];

/// The names of parameters that a line of code reads: literals behind a reader of [`READERS`].
fn parameters_read(code: &str) -> Vec<&str> {
    let behind = |reader: &&str| {
        let reads = [format!(".{reader}(\""), format!("{reader}(cx, \"")];
        let ends = reads.map(|read| code.match_indices(&read).map(|(at, _)| at + read.len()).collect::<Vec<_>>());
        ends.concat().into_iter().filter_map(|at| code[at..].split('"').next()).collect::<Vec<_>>()
    };
    READERS.iter().flat_map(behind).collect()
}

/// A misspelt name would read as a parameter that was not given.
#[test]
fn operators_read_only_parameters_that_some_operator_declares() {
    assert_eq!(parameters_read("cx.params.floats(\"alpha\").or(float_param(cx, \"beta\"))"), ["alpha", "beta"]);
    let registry = tensorc_ops::registry().unwrap();
    let of_registry = registry.iter().flat_map(|op| op.params.iter().map(|p| p.name));
    let of_texts = tensorc_ops::texts::OPERATORS.iter().flat_map(|op| op.params.iter().map(|(name, _)| *name));
    let declared: BTreeSet<&str> = of_registry.chain(of_texts).collect();
    let (mut found, mut reads) = (vec![], 0);
    for (path, text) in sources("ops/src") {
        for (line, code) in code_lines(without_tests(&text)) {
            let names = parameters_read(code);
            reads += names.len();
            let unknown = names.into_iter().filter(|name| !declared.contains(name));
            found.extend(unknown.map(|name| format!("{path}:{line}: \"{name}\"")));
        }
    }
    assert!(reads > 300, "only {reads} reads were found");
    assert_none("reads of parameters that no operator declares", &found);
}

#[test]
fn libraries_stay_inside_the_file_or_folder_that_wraps_them() {
    let rules: [(&str, &[&str]); 4] = [
        ("petgraph::", &["ir/src/graph.rs", "passes/src/layout/cut.rs"]),
        ("cranelift_", &["codegen/src/cranelift/", "codegen/Cargo.toml"]),
        ("inkwell", &["codegen/src/llvm/", "codegen/Cargo.toml"]),
        ("egg::", &["passes/src/"]),
    ];
    let mut found = vec![];
    for (path, text) in sources(".").into_iter().filter(|(p, _)| p != "tests/tests/tidy.rs") {
        for (line, code) in code_lines(&text) {
            for (library, homes) in rules {
                if code.contains(library) && !homes.iter().any(|home| path.starts_with(home)) {
                    found.push(format!("{path}:{line}: {library}"));
                }
            }
        }
    }
    assert_none("libraries outside of their wrapper", &found);
}

#[test]
fn public_signatures_of_code_generation_hold_no_cranelift_types() {
    let exported = read("codegen/src/cranelift/mod.rs");
    let modules = exported.lines().filter_map(|l| l.strip_prefix("pub use ")?.split("::").next());
    let mut found = vec![];
    for path in modules.map(|m| format!("codegen/src/cranelift/{m}.rs")) {
        let text = read(&path);
        let words = |line: &str| -> BTreeSet<String> {
            line.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from).collect()
        };
        let imports = text.lines().filter(|l| l.starts_with("use cranelift_")).flat_map(words);
        let types: BTreeSet<String> = imports.filter(|w| w.starts_with(char::is_uppercase)).collect();
        for (line, code) in code_lines(without_tests(&text)).filter(|(_, l)| l.trim_start().starts_with("pub ")) {
            found.extend(words(code).intersection(&types).map(|w| format!("{path}:{line}: {w}")));
        }
    }
    assert_none("types of cranelift in public signatures", &found);
}

#[test]
fn compilation_reads_no_clock_and_no_environment() {
    let forbidden = ["std::env", "env::var", "Instant", "SystemTime", "thread_rng"];
    // Timings of passes are reported and decide nothing.
    let timings = "passes/src/manager.rs";
    let mut found = vec![];
    for (path, text) in ["ir/src", "ops/src", "schedule/src", "passes/src", "codegen/src"].into_iter().flat_map(sources)
    {
        for (line, code) in code_lines(without_tests(&text)).filter(|_| path != timings) {
            found.extend(forbidden.iter().filter(|f| code.contains(**f)).map(|f| format!("{path}:{line}: {f}")));
        }
    }
    assert_none("sources of irreproducible output", &found);
}

#[test]
fn nothing_is_left_to_do() {
    let marks = ["todo!(", "unimplemented!(", "FIXME", "TODO", "XXX"];
    let mut found = vec![];
    for (path, text) in sources(".").into_iter().filter(|(p, _)| p != "tests/tests/tidy.rs") {
        for (line, code) in text.lines().enumerate() {
            found.extend(marks.iter().filter(|m| code.contains(**m)).map(|m| format!("{path}:{}: {m}", line + 1)));
        }
    }
    assert_none("unfinished places", &found);
}

#[test]
fn unsafe_code_stays_where_the_architecture_puts_it() {
    let mut found = vec![];
    for (path, text) in sources(".").into_iter().filter(|(p, _)| p != "tests/tests/tidy.rs") {
        let home = UNSAFE.iter().any(|prefix| path.starts_with(prefix)) || path.contains("/examples/");
        let uses = |code: &str| code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl");
        let lines = code_lines(&text).filter(|(_, code)| uses(code) && !home);
        found.extend(lines.map(|(line, _)| format!("{path}:{line}")));
    }
    assert_none("unsafe code elsewhere", &found);
}

#[test]
fn files_say_what_they_own() {
    let silent = sources(".").into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_none("files without a module comment", &silent.map(|(path, _)| path).collect::<Vec<_>>());
}

/// Name, first line and length of every function; sources are formatted, so a function ends at the
/// first closing brace as far to the right as its first line.
fn functions(text: &str) -> Vec<(&str, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let name = |line: &'_ str| -> Option<(usize, usize)> {
        let start = line.len() - line.trim_start().len();
        let before = line.find("fn ")?;
        let words = line[start..before].split_whitespace();
        let modifier = |w: &str| ["const", "unsafe", "extern", "\"C\""].contains(&w) || w.starts_with("pub");
        words.clone().all(modifier).then_some((start, before + 3))
    };
    let mut found = vec![];
    for (i, line) in lines.iter().enumerate() {
        let Some((indent, at)) = name(line) else { continue };
        let end = format!("{}}}", &line[..indent]);
        let one_line = line.ends_with('}') || line.ends_with(';');
        // A declaration without a body ends with its parameters or its result.
        let declared =
            |l: &str| l.ends_with(';') && l.strip_prefix(&line[..indent]).is_some_and(|l| l.starts_with(')'));
        let ends = |l: &&str| *l == end || declared(l);
        let length = if one_line { Some(0) } else { lines[i..].iter().position(ends) };
        let identifier = line[at..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        found.extend(length.map(|length| (identifier, i + 1, length + 1)));
    }
    found
}

#[test]
fn files_and_functions_are_short() {
    let mut found = vec![];
    let (mut long_files, mut long_functions) = (BTreeSet::new(), BTreeSet::new());
    for (path, text) in sources(".") {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            match LONG_FILES.iter().find(|(file, _)| *file == path) {
                Some(_) => drop(long_files.insert(path.clone())),
                None => found.push(format!("{path}: {lines} lines")),
            }
        }
        for (name, line, length) in functions(&text).into_iter().filter(|f| f.2 > FUNCTION_LINES) {
            match LONG_FUNCTIONS.iter().find(|(file, function, _)| *file == path && *function == name) {
                Some(_) => drop(long_functions.insert((path.clone(), name.to_owned()))),
                None => found.push(format!("{path}:{line}: {name} has {length} lines")),
            }
        }
    }
    let idle = LONG_FILES.iter().filter(|(file, _)| !long_files.contains(*file)).map(|(file, _)| *file);
    found.extend(idle.map(|file| format!("{file} needs no exception")));
    let idle = LONG_FUNCTIONS.iter().filter(|(f, n, _)| !long_functions.contains(&((*f).into(), (*n).into())));
    found.extend(idle.map(|(file, name, _)| format!("{file}: {name} needs no exception")));
    assert_none("too long", &found);
}

#[test]
fn function_lengths_are_measured() {
    let text = "impl A {\n    pub const fn a() {}\n    fn b(\n        x: u8,\n    ) -> u8 {\n        x\n    }\n}\nfn c() {\n}\n\
        trait D {\n    fn d(\n        &self,\n    ) -> u8;\n\n    fn e() {\n    }\n}\n";
    assert_eq!(functions(text), [("a", 2, 1), ("b", 3, 5), ("c", 9, 2), ("d", 12, 3), ("e", 16, 2)]);
}

/// The first command of README.md needs Rust alone, and builds no back end that it does not use.
#[test]
fn the_default_build_needs_no_c_compiler_and_has_one_back_end() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = ["tree", "--locked", "--offline", "--edges=normal,build", "--prefix=none", "--format={p} {f}"];
    let output = Command::new(cargo).args(tree).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let package = |line: &&str| line.split(' ').next().unwrap_or_default().to_owned();
    // Definitions of the system's interface, in Rust.
    let of_c = |name: &str| (name.ends_with("-sys") && name != "linux-raw-sys") || ["cc", "cmake"].contains(&name);
    let found: Vec<String> = text.lines().map(|line| package(&line)).filter(|name| of_c(name)).collect();
    assert_none("packages that compile or link C", &found);
    let cranelift = text.lines().find(|line| package(line) == "cranelift-codegen").unwrap();
    let features: Vec<&str> =
        cranelift.split(' ').find(|word| word.contains("host-arch")).unwrap().split(',').collect();
    let others = ["all-arch", "arm64", "riscv64", "s390x", "x86"].into_iter().filter(|name| features.contains(name));
    assert_none("back ends beside that of this machine", &others.map(String::from).collect::<Vec<_>>());
}

/// Folders of the text corpus.
fn corpus() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(root().join("filecheck")) else { return BTreeSet::new() };
    let folders = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    let holds_tests = |p: &PathBuf| {
        fs::read_dir(p).unwrap().any(|e| e.unwrap().path().extension().is_some_and(|x| x == "tc" || x == "onnx"))
    };
    folders.filter(holds_tests).map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_pass_has_text_tests() {
    let folders = corpus();
    if folders.is_empty() {
        return tensorc_tests::cache::visible("skipped: there is no corpus of text tests");
    }
    let missing = tensorc_passes::pipeline::known_names().into_iter().filter(|name| !folders.contains(*name));
    assert_none("passes without a folder in filecheck/", &missing.map(String::from).collect::<Vec<_>>());
}

/// A text test says that the rule fired (`--explain`), or has a graph of its name.
#[test]
fn every_law_has_text_tests() {
    let folders = ["filecheck/simplify", "filecheck/algebra"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let texts: String = files.map(read).collect();
    let scalar = tensorc_passes::simplify::scalar::rules().unwrap().iter().map(|rule| rule.name.to_string());
    let names = scalar.chain(tensorc_passes::algebra::RULES.iter().map(|rule| rule.name.to_owned()));
    let is_shown = |name: &String| {
        texts.contains(&format!(": {name} (")) || texts.contains(&format!("graph @{}(", name.replace('-', "_")))
    };
    let missing: Vec<String> = names.filter(|name| !is_shown(name)).collect();
    assert_none("laws without a text test", &missing);
}
