//! Random programs over arrays of two GPUs made of the host, equal to running them one operation after the other.
//!
//! Operations are enqueued while those before them are not done, on streams of which any may go on, so an event that is
//! missing or memory that is given back too early shows, and an error must reach what was enqueued behind it.

use std::sync::Arc;

use crate::random_programs::{Random, Watchdog, seeds};
use tensorc_abi::DType;
use tensorc_runtime::array::{self, ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, LaunchOutput};
use tensorc_runtime::engine::{EngineConfig, EngineKind, OpName, Property, WaitError};
use tensorc_runtime::gpu::{Driver, KernelCode, LaunchConfig, LoadedKernel};
use tensorc_runtime::storage::{PoolConfig, StorageConfig};
use tensorc_runtime::{Device, TensorMut, TensorRef};
use tensorc_simulator::{HostDriver, HostKernel};

const GPUS: [Device; 2] = [Device::accelerator(0), Device::accelerator(1)];
/// Where arrays are, [`EACH`] on one after the other.
const PLACES: [Device; 3] = [GPUS[0], GPUS[1], Device::cpu(0)];
const EACH: usize = 5;
/// Arrays on GPUs, which are the first.
const THERE: usize = EACH * GPUS.len();
const ALL: usize = EACH * PLACES.len();
static NAME: OpName = OpName::from_static("step");
/// Elements of an array, and of the part of it that some operations write.
const LEN: usize = 256;
const PART: usize = 64;

type Numbers = Vec<i32>;

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Numbers {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// What every operation computes, cheap and not commutative.
fn mix(a: &[i32], b: &[i32]) -> Numbers {
    a.iter().zip(b).map(|(a, b)| a.wrapping_mul(3).wrapping_add(b.wrapping_mul(5)).wrapping_add(1)).collect()
}

/// Kernels: `mix` of two arrays, of two parts, and one that fails.
fn kernels(driver: &dyn Driver) -> Vec<LoadedKernel> {
    let kernel = |name: &str, len: usize, fails: bool| {
        let run = move |buffers: &mut [Vec<u8>]| {
            if fails {
                return Err("it cannot".into());
            }
            buffers[2] = bytes(&mix(&numbers(&buffers[0]), &numbers(&buffers[1])));
            Ok(())
        };
        let buffers = vec![(len * 4, false), (len * 4, false), (len * 4, true)];
        let entry = LaunchConfig { name: name.into(), blocks: 1, threads: 32, ..LaunchConfig::default() };
        HostKernel::new(buffers, Arc::new(run)).into_code(entry)
    };
    let all = vec![kernel("mix", LEN, false), kernel("part", PART, false), kernel("fail", LEN, true)];
    driver.load(KernelCode::Ir(all)).unwrap()
}

/// Arrays, and what a serial run leaves in each: none after an error.
struct Program {
    space: ArraySpace,
    /// Of each GPU.
    functions: [Vec<LoadedKernel>; 2],
    arrays: Vec<ArrayView>,
    serial: Vec<Option<Numbers>>,
    failures: usize,
}

/// An array of ones.
fn array(space: &ArraySpace, device: Device) -> ArrayView {
    let dims = [LEN as u64];
    let view = ArrayView::whole(Chunk::new(space, device, 4 * LEN as u64), DType::I32, &dims).unwrap();
    let given =
        ArrayOperand::Host { dtype: DType::I32, dims: dims.into_iter().collect(), data: bytes(&[1; LEN]).into() };
    let (property, outputs) = (Property::CopyToDevice, vec![LaunchOutput::write(view.clone())]);
    let worker = if device == GPUS[1] { device } else { GPUS[0] };
    let request = ArrayLaunch { name: &NAME, device: worker, property, priority: 0, inputs: vec![given], outputs };
    let body = |inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]| {
        outputs[0].data.copy_from_slice(inputs[0].data);
        Ok(())
    };
    array::launch(space, request, body).unwrap();
    view
}

impl Program {
    fn new(config: EngineConfig, seed: u64, limit: Option<u64>) -> Program {
        let drivers = GPUS.map(|device| Arc::new(HostDriver::with_seed(device, seed)) as Arc<dyn Driver>);
        let functions = drivers.each_ref().map(|driver| kernels(&**driver));
        let pools = GPUS.map(|device| (device, PoolConfig { limit, ..PoolConfig::default() }));
        let storage = StorageConfig { devices: pools.into(), ..StorageConfig::default() };
        let space = ArraySpace::with_drivers(config, storage, drivers.to_vec()).unwrap();
        let arrays: Vec<ArrayView> = (0..ALL).map(|index| array(&space, PLACES[index / EACH])).collect();
        let serial = vec![Some(vec![1; LEN]); arrays.len()];
        Program { space, functions, arrays, serial, failures: 0 }
    }

    fn request(
        &self,
        gpu: usize,
        property: Property,
        inputs: Vec<ArrayOperand>,
        output: LaunchOutput,
    ) -> ArrayLaunch<'static> {
        ArrayLaunch { name: &NAME, device: GPUS[gpu], property, priority: 0, inputs, outputs: vec![output] }
    }

    fn view(&self, index: usize) -> ArrayOperand {
        ArrayOperand::View(self.arrays[index].clone())
    }

    /// A kernel over two arrays, wherever they are, that writes one of its device.
    fn kernel(&mut self, [a, b, out]: [usize; 3], fails: bool) {
        let target = LaunchOutput::write(self.arrays[out].clone());
        let request = self.request(out / EACH, Property::Normal, vec![self.view(a), self.view(b)], target);
        self.enqueue(out / EACH, request, if fails { 2 } else { 0 });
        let whole = self.serial[a].as_ref().zip(self.serial[b].as_ref()).map(|(a, b)| mix(a, b));
        self.failures += usize::from(fails && whole.is_some());
        self.serial[out] = whole.filter(|_| !fails);
    }

    /// A kernel over the beginning of two arrays, which writes a part of the third.
    fn part(&mut self, [a, b, out]: [usize; 3], at: usize) {
        let rows = |view: &ArrayView, at: usize| view.rows(at as u64, (at + PART) as u64).unwrap();
        let inputs = [a, b].map(|i| ArrayOperand::View(rows(&self.arrays[i], 0))).to_vec();
        let request =
            self.request(out / EACH, Property::Normal, inputs, LaunchOutput::write(rows(&self.arrays[out], at)));
        self.enqueue(out / EACH, request, 1);
        let part = self.serial[a].as_ref().zip(self.serial[b].as_ref()).map(|(a, b)| mix(&a[..PART], &b[..PART]));
        let old = self.serial[out].take();
        self.serial[out] = part.zip(old).map(|(part, mut old)| {
            old[at..at + PART].copy_from_slice(&part);
            old
        });
    }

    fn enqueue(&self, gpu: usize, request: ArrayLaunch<'_>, function: usize) {
        let function = self.functions[gpu][function].clone();
        let pushed = array::enqueue(&self.space, request, move |queue, reads, writes| {
            let arguments = [reads[0].address, reads[1].address, writes[0].address];
            // SAFETY: `enqueue` gives addresses of tensors of these sizes, and keeps them.
            unsafe { queue.stream().launch(&function, &arguments) };
            Ok(())
        });
        pushed.unwrap();
    }

    /// A copy of a part of an array on a GPU to a part of another.
    fn copy(&mut self, a: usize, out: usize, [from, to]: [usize; 2]) {
        let rows = |index: usize, at: usize| self.arrays[index].rows(at as u64, (at + PART) as u64).unwrap();
        let property = if a / EACH == out / EACH { Property::Normal } else { Property::CopyToDevice };
        let (source, target) = (ArrayOperand::View(rows(a, from)), LaunchOutput::write(rows(out, to)));
        array::duplicate(&self.space, self.request(out / EACH, property, vec![source], target)).unwrap();
        let part = self.serial[a].as_ref().map(|a| a[from..from + PART].to_vec());
        let old = self.serial[out].take();
        self.serial[out] = part.zip(old).map(|(part, mut old)| {
            old[to..to + PART].copy_from_slice(&part);
            old
        });
    }

    /// A function of the host over any two arrays of it and of a GPU.
    fn host(&mut self, gpu: usize, property: Property, [a, b, out]: [usize; 3]) {
        let target = LaunchOutput::write(self.arrays[out].clone());
        let request = self.request(gpu, property, vec![self.view(a), self.view(b)], target);
        let body = |inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]| {
            outputs[0].data.copy_from_slice(&bytes(&mix(&numbers(inputs[0].data), &numbers(inputs[1].data))));
            Ok(())
        };
        array::launch(&self.space, request, body).unwrap();
        self.serial[out] = self.serial[a].as_ref().zip(self.serial[b].as_ref()).map(|(a, b)| mix(a, b));
    }

    /// One of so many kinds of steps.
    fn step(&mut self, random: &mut Random, kinds: usize) {
        let gpu = random.below(GPUS.len());
        let mut of = |count| [random.below(count), random.below(count), random.below(count)];
        let there = of(EACH).map(|index| EACH * gpu + index);
        // Of this GPU and of the host.
        let near = of(2 * EACH).map(|index| if index < EACH { EACH * gpu + index } else { THERE + index - EACH });
        let [a, b, _] = of(ALL);
        match random.below(kinds) {
            0..5 => self.kernel(there, false),
            5 => self.kernel([a, b, there[2]], false),
            6 => self.kernel(there, random.one_in(4)),
            7 => self.part(there, PART * random.below(LEN / PART)),
            // Distances that suit no kernel: the operation works on copies.
            8 => self.part(there, 1 + random.below(LEN - PART)),
            9..12 => self.copy(a % THERE, b % THERE, [0; 2].map(|_| random.below(LEN - PART))),
            12 => self.host(gpu, Property::Normal, near),
            13 => self.host(gpu, Property::CopyToDevice, near),
            14 => self.host(gpu, Property::CopyFromDevice, near),
            _ => {
                // The old memory goes when its last use is done.
                self.arrays[a] = array(&self.space, PLACES[a / EACH]);
                self.serial[a] = Some(vec![1; LEN]);
            }
        }
    }

    /// Reads an array, which waits for it alone.
    fn compare(&self, index: usize) {
        let found = array::read(&self.space, &NAME, &self.arrays[index]);
        match &self.serial[index] {
            Some(expected) => assert!(numbers(&found.unwrap()) == *expected, "array {index}"),
            None => {
                let error = found.unwrap_err().to_string();
                assert!(error.ends_with("kernel `fail`: it cannot"), "{error}");
            }
        }
    }
}

fn check(seed: u64, config: EngineConfig, limit: Option<u64>) {
    let steps = if cfg!(miri) { 40 } else { 400 };
    let _watchdog = Watchdog::new(format!("the program of seed {seed} with {config:?}"));
    let random = &mut Random(seed);
    let mut program = Program::new(config, seed, limit);
    for _ in 0..steps {
        // Arrays that are made anew hold memory until operations far behind have run.
        program.step(random, if limit.is_some() { 15 } else { 16 });
        if random.one_in(50) {
            program.compare(random.below(ALL));
        }
    }
    match program.space.engine().wait_all() {
        Ok(()) => assert_eq!(program.failures, 0),
        Err(WaitError::Failures(found)) => {
            assert_eq!(found.listed.len() + found.omitted as usize, program.failures, "{found}");
        }
        Err(other) => panic!("{other}"),
    }
    (0..ALL).for_each(|index| program.compare(index));
    for gpu in GPUS {
        let storage = program.space.storage();
        let size = storage.size(gpu, 4 * LEN as u64).unwrap();
        // Threads of the engine may drop what an operation held when it counts as done already.
        while storage.stats(gpu).in_use > EACH as u64 * size {
            std::thread::yield_now();
        }
    }
}

#[test]
fn programs_on_streams_equal_serial() {
    for seed in seeds(20) {
        check(seed, EngineConfig::default(), None);
    }
}

#[test]
fn other_engines_equal_serial_on_streams() {
    for seed in seeds(5) {
        for kind in [EngineKind::Naive, EngineKind::Pooled] {
            check(100 + seed, EngineConfig { kind, ..EngineConfig::default() }, None);
        }
    }
}

/// Hardly more memory than the arrays need: what is enqueued waits for it.
#[test]
fn little_memory_slows_programs_down() {
    for seed in seeds(5) {
        check(200 + seed, EngineConfig::default(), Some(8 * 4 * LEN as u64));
    }
}
