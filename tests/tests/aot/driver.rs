//! The process behind `driver.c`, a driver of GPUs that are none: it executes the PTX it is given by the interpreter of PTX.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc::aot::Artifact;
use tensorc::ir::kir::Kernel;
use tensorc::runtime::artifact::{GpuOptions, LoadOptions};
use tensorc::runtime::gpu::LaunchConfig;
use tensorc_tests::ptx::Module;

use super::{checked, text};
use tensorc_tests::launches::{entry, execute};

/// The driver's error for PTX that it does not understand.
const INVALID_PTX: i32 = 218;

/// What the process behind a driver knows, and is to do wrong.
#[derive(Default)]
pub struct State {
    pub kernels: BTreeMap<String, Kernel>,
    /// What machine code was assembled from.
    source: Option<String>,
    /// What was loaded last.
    module: Option<Module>,
    /// What it was told: loaded code, memory that was asked for, what was left at the end.
    pub told: Vec<String>,
    /// Answers to what it is told, by its text.
    pub refused: BTreeMap<String, i32>,
    /// Kernels whose execution fails, and how.
    pub failing: BTreeMap<String, i32>,
}

/// A driver of GPUs that are none.
pub struct Imaginary {
    pub dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
}

impl Imaginary {
    /// A driver for GPUs of a compute capability that can execute the kernels of a model.
    pub fn new(artifact: &Artifact, (major, minor): (u32, u32)) -> Imaginary {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let kernels = artifact.module.kernels.iter().map(|k| (k.name.clone(), k.clone())).collect();
        let state = Arc::new(Mutex::new(State { kernels, source: artifact.ptx.clone(), ..State::default() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                // A connection ends with the process that has the driver.
                std::thread::spawn(move || while serve(stream.as_ref().unwrap(), &shared).is_some() {});
            }
        });
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-O1", "-shared", "-fPIC"]);
        cc.arg(format!("-DSOCKET=\"{}\"", text(&dir.path().join("socket"))));
        cc.args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}"), "-DGPUS=1".into()]);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aot/driver.c"));
        checked(cc.arg("-o").arg(dir.path().join("libcuda.so.1")).arg("-lpthread"));
        Imaginary { dir, state }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("libcuda.so.1")
    }

    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it was told, from now on again.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.state().told)
    }

    pub fn options(&self) -> LoadOptions {
        let gpu = GpuOptions { driver: Some(self.path()), ..GpuOptions::default() };
        LoadOptions { gpu, ..LoadOptions::default() }
    }
}

fn word<const N: usize>(mut stream: &UnixStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Answers one question of a driver; `None` when there are no more.
fn serve(mut stream: &UnixStream, state: &Mutex<State>) -> Option<()> {
    let [what] = word(stream)?;
    let mut name = vec![0; u32::from_le_bytes(word(stream)?) as usize];
    stream.read_exact(&mut name).ok()?;
    let name = String::from_utf8(name).unwrap();
    let state = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let refused = state().refused.get(&name).copied().unwrap_or(0);
    let kernel = state().kernels.get(&name).cloned();
    let buffers = kernel.as_ref().map(|k| &k.buffers[..k.params]).unwrap_or_default();
    let bytes = |i: usize| buffers[i].elements() as usize * buffers[i].dtype.size();
    match what {
        b'L' => {
            let shape: [u32; 3] = [word(stream)?, word(stream)?, word(stream)?].map(u32::from_le_bytes);
            let launch =
                kernel.as_ref().and_then(Kernel::launch).unwrap_or_else(|| panic!("there is no kernel {name}"));
            assert_eq!(shape.map(u64::from), [launch.blocks, launch.threads.into(), launch.shared_bytes], "{name}");
            stream.write_all(&refused.to_le_bytes()).ok()?;
            if refused == 0 {
                stream.write_all(&(buffers.len() as u32).to_le_bytes()).ok()?;
                for (i, buffer) in buffers.iter().enumerate() {
                    stream.write_all(&(bytes(i) as u64).to_le_bytes()).ok()?;
                    stream.write_all(&u32::from(buffer.writable).to_le_bytes()).ok()?;
                }
            }
        }
        b'X' => {
            let mut contents: Vec<Vec<u8>> = (0..buffers.len()).map(|i| vec![0; bytes(i)]).collect();
            contents.iter_mut().try_for_each(|content| stream.read_exact(content)).ok()?;
            let failing = state().failing.get(&name).copied();
            let code = failing.unwrap_or_else(|| {
                let module = state().module.clone().unwrap_or_else(|| panic!("{name} is executed, no module loaded"));
                let entry = LaunchConfig { name: name.clone(), ..entry(kernel.as_ref().unwrap()) };
                let writable: Vec<bool> = buffers.iter().map(|buffer| buffer.writable).collect();
                execute(&module, &entry, &mut contents, &writable, 0).unwrap_or_else(|fault| panic!("{fault}"));
                0
            });
            stream.write_all(&code.to_le_bytes()).ok()?;
            if code == 0 {
                let written = contents.iter().zip(buffers).filter(|(_, buffer)| buffer.writable);
                written.into_iter().try_for_each(|(content, _)| stream.write_all(content)).ok()?;
            }
        }
        b'M' => {
            let form = if name == "cubin" { "cubin" } else { "ptx" };
            state().told.push(format!("M {form}"));
            let source = if form == "ptx" { Some(name) } else { state().source.clone() };
            let mut code = state().refused.get(form).copied().unwrap_or(0);
            if code == 0 {
                match source.as_deref().map(Module::parse) {
                    Some(Ok(module)) => state().module = Some(module),
                    other => {
                        eprintln!("no module: {other:?}");
                        code = INVALID_PTX;
                    }
                }
            }
            stream.write_all(&code.to_le_bytes()).ok()?;
        }
        _ => {
            state().told.push(format!("{} {name}", char::from(what)));
            stream.write_all(&refused.to_le_bytes()).ok()?;
        }
    }
    Some(())
}
