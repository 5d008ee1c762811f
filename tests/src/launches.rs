//! Launches of kernels, recorded where the interpreter of KIR executes them and repeated with what LLVM made of the kernels.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ptx::{Argument, Launch, Module, Swizzle, TensorMap};
use tensorc::ir::DType;
use tensorc::ir::kir::{Kernel, TensorMap as TileMap};
use tensorc::ir::scalar::Scalar;
use tensorc::runtime::Device;
use tensorc::runtime::gpu::{
    CodeForm, Driver, DriverError, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, MatrixParam, Memory,
};
use tensorc::schedule::target::Capability;
use tensorc_codegen::ptx::entry_names;
use tensorc_simulator::{HostKernel, Relaunch, functions};

/// A launch with the bytes of its buffers before and after, and whether it may write each.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub entry: LaunchConfig,
    /// The kernel as it was loaded; none for calls of libraries.
    pub kernel: Option<Arc<Kernel>>,
    pub writable: Vec<bool>,
    pub before: Vec<Vec<u8>>,
    pub after: Vec<Vec<u8>>,
}

/// A driver that remembers what another one launches.
pub struct Recorder {
    inner: Arc<dyn Driver>,
    launches: Launches,
}

type Launches = Arc<Mutex<Vec<Recorded>>>;

impl Recorder {
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Recorder> {
        Arc::new(Recorder { inner, launches: Arc::default() })
    }

    /// What was launched since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.launches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn recording(
        log: &Launches,
        (entry, loaded): (&LaunchConfig, Option<&Arc<Kernel>>),
        code: HostKernel,
    ) -> HostKernel {
        let relaunched = code.relaunched.clone().map(|relaunch| {
            let (log, loaded) = (log.clone(), loaded.cloned());
            let recording = move |entry: &LaunchConfig, spans: &[u64]| {
                Recorder::recording(&log, (entry, loaded.as_ref()), relaunch(entry, spans))
            };
            Arc::new(recording) as Arc<Relaunch>
        });
        let (entry, kernel, log, inner) = (entry.clone(), loaded.cloned(), log.clone(), code.run.clone());
        let writable: Vec<bool> = code.buffers.iter().map(|(_, writable)| *writable).collect();
        let run = move |buffers: &mut [Vec<u8>]| {
            let before = buffers.to_vec();
            inner(buffers)?;
            let (entry, kernel, writable) = (entry.clone(), kernel.clone(), writable.clone());
            let recorded = Recorded { entry, kernel, writable, before, after: buffers.to_vec() };
            log.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
            Ok(())
        };
        HostKernel { run: Arc::new(run), relaunched, ..code }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({:?})", self.inner)
    }
}

impl Driver for Recorder {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn form(&self) -> CodeForm {
        self.inner.form()
    }

    fn load(&self, code: KernelCode) -> Result<Vec<LoadedKernel>, DriverError> {
        let kernels = match &code {
            KernelCode::Ptx { .. } => return self.inner.load(code),
            KernelCode::Ir(all) => all.iter().map(|(_, kernel)| kernel.clone().downcast::<Kernel>().ok()).collect(),
            KernelCode::Vendor(calls) => vec![None; calls.len()],
        };
        let recording = |((entry, code), kernel): ((LaunchConfig, HostKernel), Option<Arc<Kernel>>)| {
            Recorder::recording(&self.launches, (&entry, kernel.as_ref()), code).into_code(entry)
        };
        let functions = functions(code).into_iter().flatten();
        self.inner.load(KernelCode::Ir(functions.zip(kernels).map(recording).collect()))
    }

    fn relaunched(&self, kernel: &LoadedKernel, launch: LaunchConfig, spans: &[u64]) -> LoadedKernel {
        self.inner.relaunched(kernel, launch, spans)
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc(bytes)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc_pinned(bytes)
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        self.inner.stream()
    }
}

/// How a kernel alone in a module is launched.
pub fn entry(kernel: &Kernel) -> LaunchConfig {
    let launch = kernel.launch().unwrap();
    let matrix = |map: TileMap| MatrixParam {
        argument: map.buf.0,
        dtype: kernel.buf(map.buf).dtype,
        rows: map.rows,
        columns: map.columns,
        stride: map.stride,
        box_rows: map.box_rows,
        batch: map.batch.iter().map(|axis| (axis.extent, axis.stride)).collect(),
    };
    LaunchConfig {
        name: entry_names(std::slice::from_ref(kernel)).swap_remove(0),
        blocks: launch.blocks,
        threads: launch.threads,
        shared_bytes: launch.shared_bytes as u32,
        sizes: vec![],
        matrices: kernel.tensor_maps().into_iter().map(matrix).collect(),
    }
}

/// A matrix of a launch as the driver encodes it for the copy engine.
fn map(matrix: &MatrixParam) -> TensorMap {
    let (bytes, axes) = (matrix.dtype.size(), matrix.axes());
    TensorMap {
        argument: matrix.argument as usize,
        element_bytes: bytes,
        extents: std::iter::once(matrix.columns).chain(axes.iter().map(|(extent, ..)| *extent)).collect(),
        strides: axes.iter().map(|(_, stride, _)| bytes as u64 * stride).collect(),
        box_extents: std::iter::once(128 / bytes as u32).chain(axes.iter().map(|(.., boxed)| *boxed)).collect(),
        swizzle: Swizzle::B128,
        rounds: matrix.dtype == DType::F32,
    }
}

/// Executes an entry of PTX on some buffers; how many instructions threads executed.
///
/// # Errors
/// What the interpreter found.
pub fn execute(
    module: &Module,
    entry: &LaunchConfig,
    buffers: &mut [Vec<u8>],
    writable: &[bool],
    seed: u64,
) -> Result<u64, String> {
    let mut arguments: Vec<Argument<'_>> =
        buffers.iter_mut().zip(writable).map(|(bytes, w)| Argument::Buffer { bytes, writable: *w }).collect();
    arguments.extend(entry.sizes.iter().map(|size| Argument::Number(*size as u64)));
    arguments.extend(entry.matrices.iter().map(|matrix| Argument::Map(map(matrix))));
    let launch = Launch { blocks: entry.blocks, threads: entry.threads, shared_bytes: entry.shared_bytes, seed };
    module.launch(&entry.name, launch, &mut arguments).map_err(|fault| fault.to_string())
}

/// What LLVM made of kernels, for repetitions of launches.
pub struct Repeated {
    modules: Vec<(Capability, Module)>,
    names: Vec<String>,
}

impl Repeated {
    /// The kernels as PTX for some generations of GPUs.
    ///
    /// # Errors
    /// There is no code for a kernel.
    pub fn new(kernels: &[Kernel], capabilities: &[Capability]) -> Result<Repeated, tensorc::Error> {
        let module = |capability: &Capability| {
            let text = tensorc::gpu::ptx(kernels, *capability)?;
            Ok((*capability, Module::parse(&text).unwrap_or_else(|fault| panic!("{fault}"))))
        };
        let modules = capabilities.iter().map(module).collect::<Result<_, tensorc::Error>>()?;
        Ok(Repeated { modules, names: entry_names(kernels) })
    }

    /// A kernel alone.
    ///
    /// # Errors
    /// There is no code for it.
    pub fn alone(kernel: &Kernel) -> Result<Repeated, tensorc::Error> {
        Repeated::new(std::slice::from_ref(kernel), &Capability::ALL)
    }

    /// As [`Repeated::check`], of the launch of a kernel that is here alone, under whatever name it was launched.
    pub fn check_alone(&self, what: &str, kernel: &Kernel, launch: &Recorded, seed: u64) -> u64 {
        let entry = LaunchConfig { name: self.names[0].clone(), ..launch.entry.clone() };
        self.check(what, std::slice::from_ref(kernel), &Recorded { entry, ..launch.clone() }, seed)
    }

    /// Repeats a launch of one of the kernels: what it writes has the bits of the interpreter of KIR, but for payloads of NaNs.
    ///
    /// Gives how many instructions threads executed.
    pub fn check(&self, what: &str, kernels: &[Kernel], launch: &Recorded, seed: u64) -> u64 {
        let place = self.names.iter().position(|name| *name == launch.entry.name);
        let kernel = &kernels[place.unwrap_or_else(|| panic!("{what}: no kernel {}", launch.entry.name))];
        let mut steps = 0;
        for (capability, module) in &self.modules {
            let what = format!("{what} on {}", capability.processor());
            let mut buffers = launch.before.clone();
            let outcome = execute(module, &launch.entry, &mut buffers, &launch.writable, seed);
            steps += outcome.unwrap_or_else(|fault| panic!("{what}: {fault}"));
            for (i, (found, expected)) in buffers.iter().zip(&launch.after).enumerate() {
                let info = &kernel.buffers[i];
                if let Some(at) = first_difference(info.dtype, found, expected) {
                    let size = info.dtype.size();
                    let [found, expected] =
                        [found, expected].map(|bytes| Scalar::read(info.dtype, &bytes[at * size..][..size]));
                    let name = &launch.entry.name;
                    panic!("{what}, entry {name}, element {at} of `{}`: {found:?}, expected {expected:?}", info.name);
                }
            }
        }
        steps
    }
}

/// The lines of an instruction that may be left out of PTX without a launch of it failing or writing anything else, in any of some
/// orders of threads; and how many lines of it there are.
pub fn unnoticed(
    kernels: &[Kernel],
    capability: Capability,
    launch: &Recorded,
    opcodes: &[&str],
) -> (Vec<String>, usize) {
    let text = tensorc::gpu::ptx(kernels, capability).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let is_one = |line: &str| {
        let words = line
            .trim()
            .split_once(' ')
            .map_or(line.trim(), |(guard, rest)| if guard.starts_with('@') { rest } else { line.trim() });
        opcodes.iter().any(|opcode| words.starts_with(opcode))
    };
    let same = |text: &str, seed: u64| {
        let module = Module::parse(text).unwrap();
        let mut buffers = launch.before.clone();
        execute(&module, &launch.entry, &mut buffers, &launch.writable, seed).is_ok() && buffers == launch.after
    };
    let entry = format!(".entry {}(", launch.entry.name);
    let first = lines.iter().position(|line| line.contains(&entry)).unwrap();
    let last = (first + 1..lines.len()).find(|i| lines[*i].contains(".entry ")).unwrap_or(lines.len());
    let (mut found, mut count) = (vec![], 0);
    for at in (first..last).filter(|at| is_one(lines[*at])) {
        count += 1;
        let without: Vec<&str> = lines.iter().enumerate().map(|(i, line)| if i == at { "" } else { *line }).collect();
        let without = without.join("\n");
        if (0..6).all(|seed| same(&without, seed)) {
            found.push(format!("{at}: {}", lines[at].trim()));
        }
    }
    (found, count)
}

/// The first element with other bits, but for two that are no numbers.
pub fn first_difference(dtype: DType, found: &[u8], expected: &[u8]) -> Option<usize> {
    let size = dtype.size();
    let same = |(a, b): (&[u8], &[u8])| {
        let no_number = |bytes| dtype.is_float() && Scalar::read(dtype, bytes).as_f64().is_nan();
        a == b || (no_number(a) && no_number(b))
    };
    assert_eq!(found.len(), expected.len());
    found.chunks_exact(size).zip(expected.chunks_exact(size)).position(|pair| !same(pair))
}
