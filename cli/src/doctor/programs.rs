//! Programs that some commands call, or that tensorc is used from: C compilers, MPI, Python.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::{Check, text_of};

pub fn checks() -> Vec<Check> {
    vec![linker(), cross_linkers(), mpi(), python()]
}

/// A program in the folders of the `PATH`, or where the name says.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The first line that a program says, or nothing if it fails.
fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().filter(|_| output.status.success()).map(|line| line.trim().to_owned())
}

fn linker() -> Check {
    let name = env::var("CC").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "cc".to_owned());
    let (compiler, archiver) = (find_program(&name), find_program("ar"));
    let facts = json!({"linker": text_of(&compiler), "archiver": text_of(&archiver)});
    let Some(compiler) = compiler else {
        let means = "compile makes objects, headers and texts, but no libraries and programs";
        let remedy = "install a C compiler (Debian: gcc), or name one by --linker or $CC";
        return Check::lacks("C linker", format!("`{name}` is not found"), means, remedy).facts(facts);
    };
    let version = first_line(&compiler, &["--version"]).unwrap_or_else(|| "version unknown".to_owned());
    let found = format!("{} ({version})", compiler.display());
    match archiver {
        Some(_) => Check::works("C linker", found, "compile makes programs, shared and static libraries"),
        None => {
            let means = "compile makes programs and shared libraries, but no static libraries, which need `ar`";
            Check::lacks("C linker", found, means, "install GNU binutils")
        }
    }
    .facts(facts)
}

fn cross_linkers() -> Check {
    let all = [
        ("aarch64", "aarch64-linux-gnu-gcc"),
        ("riscv64", "riscv64-linux-gnu-gcc"),
        ("x86_64", "x86_64-linux-gnu-gcc"),
    ];
    let others = all.into_iter().filter(|(arch, _)| *arch != env::consts::ARCH);
    let found: Vec<(&str, PathBuf)> = others.filter_map(|(arch, name)| Some((arch, find_program(name)?))).collect();
    let targets: Vec<&str> = found.iter().map(|(arch, _)| *arch).collect();
    let facts = json!({"targets": targets, "code": cfg!(feature = "all-processors")});
    let listed =
        if targets.is_empty() { "no cross compiler".to_owned() } else { format!("for {}", targets.join(", ")) };
    let remedy = "build with `--features all-processors`; install a cross compiler (Debian: gcc-aarch64-linux-gnu), and \
                  build its run-time library (docs/aot.md#other-machines)";
    match (cfg!(feature = "all-processors"), targets.is_empty()) {
        (true, false) => Check::works(
            "cross compiling",
            listed,
            "compile makes programs for these with --target and --runtime-library",
        ),
        (true, true) => {
            Check::lacks("cross compiling", listed, "compile makes objects for other processors, not programs", remedy)
        }
        (false, _) => {
            Check::lacks("cross compiling", listed, "compile makes code for this machine's architecture only", remedy)
        }
    }
    .facts(facts)
}

fn mpi() -> Check {
    let launcher = find_program("mpirun").or_else(|| find_program("mpiexec"));
    let facts = json!({"launcher": text_of(&launcher)});
    match launcher {
        Some(path) => {
            let version = first_line(&path, &["--version"]).unwrap_or_else(|| "version unknown".to_owned());
            let means = "programs that are built with the feature `mpi` of tensorc-train train over processes (docs/distributed.md)";
            Check::works("MPI", format!("{} ({version})", path.display()), means)
        }
        None => Check::lacks(
            "MPI",
            "neither mpirun nor mpiexec is found",
            "training uses the threads and devices of one process",
            "install Open MPI 4 or MPICH 4 with headers, and libclang (Debian: libopenmpi-dev openmpi-bin libclang-dev)",
        ),
    }
    .facts(facts)
}

fn python() -> Check {
    const ASK: &str = "import sys, importlib.util as u
print(*sys.version_info[:3], *(u.find_spec(name) is not None for name in ('numpy', 'tensorc')))";
    let absent = |found: String| {
        let remedy = "install CPython 3.11 or newer, then `pip install ./python` in the sources of tensorc";
        Check::lacks("Python", found, "the Python package cannot be used", remedy)
    };
    let found = find_program("python3");
    let name = text_of(&found);
    let Some(path) = found else {
        return absent("python3 is not found".to_owned()).facts(json!({"python": null}));
    };
    let answer = first_line(&path, &["-c", ASK]).unwrap_or_default();
    let words: Vec<&str> = answer.split(' ').collect();
    let &[major, minor, patch, numpy, package] = &words[..] else {
        return absent(format!("{} does not answer", path.display())).facts(json!({"python": name}));
    };
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let (numpy, package) = (numpy == "True", package == "True");
    let found = format!("{} {major}.{minor}.{patch}", path.display());
    let facts =
        json!({"python": name, "version": format!("{major}.{minor}.{patch}"), "numpy": numpy, "tensorc": package});
    if (number(major), number(minor)) < (3, 11) {
        return absent(format!("{found}, which is too old")).facts(facts);
    }
    match (package, numpy) {
        (true, true) => Check::works("Python", format!("{found}, with the package tensorc"), "`import tensorc` works"),
        (true, false) => {
            Check::lacks("Python", found, "the package tensorc is there, numpy is not", "pip install numpy")
        }
        (false, _) => Check::lacks(
            "Python",
            found,
            "the package tensorc is not installed",
            "`pip install ./python` in the sources of tensorc (docs/python.md)",
        ),
    }
    .facts(facts)
}
