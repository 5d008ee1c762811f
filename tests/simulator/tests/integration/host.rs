//! Tests of drivers on the one that is made of the host.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use tensorc_runtime::Device;
use tensorc_runtime::device::stream::{StreamError, Transfer};
use tensorc_runtime::gpu::{Driver, KernelCode, LaunchConfig, LaunchStream, LoadedKernel, Memory};
use tensorc_runtime::storage::{AllocCause, AllocError, MemoryBlock, PoolConfig, Pooling, Storage, StorageConfig};
use tensorc_simulator::{HostDriver, HostKernel};

const GPU: Device = Device::accelerator(0);
const HOST: Device = Device::cpu(0);

fn driver(seed: u64) -> HostDriver {
    HostDriver::with_seed(GPU, seed)
}

/// Twice the elements, in another buffer.
fn double(driver: &HostDriver) -> LoadedKernel {
    let entry = LaunchConfig { name: "double".into(), blocks: 1, threads: 32, ..LaunchConfig::default() };
    let run = |buffers: &mut [Vec<u8>]| {
        if buffers[0][0] == 99 {
            return Err("99 is too much".into());
        }
        buffers[1] = buffers[0].iter().map(|x| x.wrapping_mul(2)).collect();
        Ok(())
    };
    let kernel = HostKernel::new(vec![(4, false), (4, true)], Arc::new(run));
    driver.load(KernelCode::Ir(vec![kernel.into_code(entry)])).unwrap().remove(0)
}

fn upload(stream: &dyn LaunchStream, data: &[u8; 4], to: &dyn Memory) {
    let transfer = Transfer { source: data.as_ptr(), from: HOST, target: to.address(), to: GPU, bytes: 4 };
    // SAFETY: the tests keep both until they waited for the stream.
    unsafe { stream.copy(transfer) };
}

fn download(stream: &dyn LaunchStream, from: &dyn Memory, data: &mut [u8; 4]) {
    let transfer = Transfer { source: from.address(), from: GPU, target: data.as_mut_ptr(), to: HOST, bytes: 4 };
    // SAFETY: as above.
    unsafe { stream.copy(transfer) };
}

fn launch(stream: &dyn LaunchStream, function: &LoadedKernel, from: &dyn Memory, to: &dyn Memory) {
    // SAFETY: as above.
    unsafe { stream.launch(function, &[from.address(), to.address()]) };
}

#[test]
fn launches_run_in_order_when_somebody_waits() {
    let driver = driver(0);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let stream = driver.stream().unwrap();
    let mut out = [0; 4];
    upload(&*stream, &[1, 2, 3, 4], &*a);
    launch(&*stream, &f, &*a, &*b);
    launch(&*stream, &f, &*b, &*a);
    download(&*stream, &*a, &mut out);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(out, [0; 4], "nobody has waited");
    stream.synchronize().unwrap();
    assert_eq!(out, [4, 8, 12, 16]);
    let (told, tell) = std::sync::mpsc::channel();
    stream.on_complete(Box::new(move |outcome| told.send(outcome.is_ok()).unwrap()));
    assert_eq!(tell.recv(), Ok(true), "who wants to be told waits, too");
}

#[test]
fn a_failure_names_the_kernel_and_stays_until_it_is_told() {
    let driver = driver(1);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let (stream, other) = (driver.stream().unwrap(), driver.stream().unwrap());
    let mut out = [7; 4];
    upload(&*stream, &[99; 4], &*a);
    launch(&*stream, &f, &*a, &*b);
    download(&*stream, &*b, &mut out);
    other.wait_event(&stream.record());
    let ended = stream.close();
    let text = "work on a stream of gpu:0 failed: kernel `double`: 99 is too much";
    assert_eq!(ended.synchronize().unwrap_err().to_string(), text);
    assert_eq!(other.synchronize().unwrap_err().to_string(), text);
    assert_eq!(out, [7; 4], "what follows a failure is dropped");
    stream.synchronize().unwrap();
    let ptx = driver.load(KernelCode::Ptx { text: String::new(), entries: vec![] });
    assert_eq!(
        ptx.unwrap_err().to_string(),
        "gpu:0: this device executes functions of the host, not PTX and not libraries"
    );
}

#[test]
fn a_failure_reaches_the_completion_and_stops_there() {
    let stream = driver(0).stream().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = ran.clone();
        Box::new(move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
    let fails = |text: &'static str| Box::new(move || Err(text.into()));
    let (sender, outcomes) = mpsc::channel();
    let report = || {
        let sender = sender.clone();
        Box::new(move |result: Result<(), StreamError>| sender.send(result.map_err(|e| e.to_string())).unwrap())
    };
    stream.enqueue(count());
    stream.enqueue(fails("no such row"));
    stream.enqueue(count());
    stream.enqueue(fails("not reached"));
    stream.on_complete(report());
    stream.enqueue(count());
    stream.on_complete(report());
    stream.enqueue(Box::new(|| panic!("lost {}", "it")));
    stream.on_complete(report());
    stream.on_complete(Box::new(|_| panic!("in a callback")));
    stream.on_complete(report());
    stream.synchronize().unwrap();
    let outcomes: Vec<Result<(), String>> = outcomes.try_iter().collect();
    let failed = |cause: &str| Err(format!("work on a stream of gpu:0 failed: {cause}"));
    let panicked = |text: &str| failed(&format!("task panicked: {text}"));
    assert_eq!(outcomes, [failed("no such row"), Ok(()), panicked("lost it"), panicked("in a callback")]);
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    stream.enqueue(fails("last"));
    let error = stream.synchronize().unwrap_err();
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "last");
    assert!(stream.synchronize().is_ok());
}

#[test]
fn a_stream_that_waits_for_itself_is_told_so() {
    let stream: Arc<dyn LaunchStream> = driver(0).stream().unwrap().into();
    let own = Arc::downgrade(&stream);
    let (sender, receiver) = mpsc::channel();
    stream.enqueue(Box::new(move || {
        let stream = own.upgrade().ok_or("gone")?;
        sender.send(stream.synchronize())?;
        sender.send(stream.record().synchronize())?;
        Ok(())
    }));
    stream.synchronize().unwrap();
    for _ in 0..2 {
        assert!(matches!(receiver.recv().unwrap(), Err(StreamError::Itself { device: GPU })));
    }
}

#[test]
fn dropping_a_stream_runs_what_was_enqueued() {
    let driver = driver(0);
    let done = Arc::new(AtomicUsize::new(0));
    let stream = driver.stream().unwrap();
    for _ in 0..10 {
        let done = done.clone();
        stream.enqueue(Box::new(move || {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
    }
    drop(stream);
    assert_eq!(done.load(Ordering::Relaxed), 10);
    // The last owner may be the stream's own callback.
    let (sender, receiver) = mpsc::channel();
    let stream: Arc<dyn LaunchStream> = driver.stream().unwrap().into();
    let owner = stream.clone();
    stream.on_complete(Box::new(move |_| {
        drop(owner);
        sender.send(()).unwrap();
    }));
    drop(stream);
    receiver.recv().unwrap();
}

/// Host to device, to another device and to page-locked memory, by streams that only events order.
#[test]
fn copies_between_memories() {
    let (one, two) = (Arc::new(driver(0)), Arc::new(HostDriver::new(Device::accelerator(1))));
    let storage = Storage::with_drivers(StorageConfig::default(), vec![one.clone(), two.clone()]);
    let bytes = if cfg!(miri) { 1000 } else { 1 << 20 };
    let mut blocks = [HOST, GPU, two.device(), Device::pinned(0)].map(|d| storage.alloc(d, bytes as u64).unwrap());
    let pattern = |i: usize| (i % 251) as u8;
    blocks[0].as_mut_slice().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    let streams = [one.stream().unwrap(), two.stream().unwrap(), two.stream().unwrap()];
    for (at, stream) in streams.iter().enumerate() {
        if at > 0 {
            stream.wait_event(&streams[at - 1].record());
        }
        let (source, target) = (&blocks[at], &blocks[at + 1]);
        let (from, to) = (source.device(), target.device());
        let transfer = Transfer { source: source.as_ptr(), from, target: target.start().as_ptr(), to, bytes };
        // SAFETY: the blocks live until all streams are done, and each copy waits for the one before.
        unsafe { stream.copy(transfer) };
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(blocks[3].as_slice().iter().enumerate().all(|(i, &byte)| byte == pattern(i)));
}

/// Work that allocates on the device fails with what the storage said.
#[test]
fn an_exhausted_device_is_a_typed_error() {
    let mut config = StorageConfig::default();
    let pool = PoolConfig { limit: Some(64 << 10), pooling: Pooling::Pages, ..PoolConfig::default() };
    config.devices.insert(GPU, pool);
    let driver = Arc::new(driver(0));
    let storage = Storage::with_drivers(config, vec![driver.clone()]);
    let stream = driver.stream().unwrap();
    let kept: Arc<Mutex<Vec<MemoryBlock>>> = Arc::default();
    for _ in 0..3 {
        let (storage, kept) = (storage.clone(), kept.clone());
        stream.enqueue(Box::new(move || {
            kept.lock().unwrap().push(storage.alloc(GPU, 28 << 10)?);
            Ok(())
        }));
    }
    let StreamError::Failed { cause, .. } = stream.synchronize().unwrap_err() else { panic!() };
    let error = cause.downcast_ref::<AllocError>().unwrap();
    assert_eq!((error.device, error.wanted, error.in_use), (GPU, 28 << 10, 56 << 10));
    assert_eq!(error.cause, AllocCause::Limit(64 << 10));
    kept.lock().unwrap().clear();
    assert!(storage.alloc(GPU, 64 << 10).is_ok());
}

/// Two streams, one of which needs what the other makes. Returns whether the result was right.
fn handed_over(seed: u64, ordered: bool) -> bool {
    let driver = driver(seed);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let (copies, compute) = (driver.stream().unwrap(), driver.stream().unwrap());
    let mut out = [0; 4];
    upload(&*copies, &[1, 2, 3, 4], &*a);
    let there = copies.record();
    if ordered {
        compute.wait_event(&there);
    }
    launch(&*compute, &f, &*a, &*b);
    download(&*compute, &*b, &mut out);
    compute.synchronize().unwrap();
    copies.synchronize().unwrap();
    out == [2, 4, 6, 8]
}

#[test]
fn a_missing_event_gives_wrong_numbers() {
    assert!((0..20).all(|seed| handed_over(seed, true)));
    let right = (0..20).filter(|seed| handed_over(*seed, false)).count();
    assert!((1..20).contains(&right), "{right} of 20 orders happened to be right");
}

#[test]
fn memory_given_back_too_early_is_an_error() {
    let driver = driver(0);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let stream = driver.stream().unwrap();
    launch(&*stream, &f, &*a, &*b);
    drop(b);
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(
        error.contains("kernel `double`: 4 bytes at 0x") && error.contains("not inside memory of gpu:0"),
        "{error}"
    );
    let mut out = [0; 8];
    let transfer = Transfer { source: a.address(), from: GPU, target: out.as_mut_ptr(), to: HOST, bytes: 8 };
    // SAFETY: both live until the stream is done; that the source is too short is what is tested.
    unsafe { stream.copy(transfer) };
    assert!(stream.synchronize().is_err(), "a copy beyond the end");
}

#[test]
fn what_is_recorded_runs_as_often_as_it_is_replayed() {
    let driver = driver(0);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let stream = driver.stream().unwrap();
    upload(&*stream, &[1, 2, 3, 4], &*a);
    stream.begin_capture().unwrap();
    launch(&*stream, &f, &*a, &*b);
    // SAFETY: both blocks live until the stream is done.
    unsafe {
        stream.copy(Transfer { source: b.address(), from: GPU, target: a.address(), to: GPU, bytes: 4 });
    }
    let graph = stream.end_capture().unwrap();
    assert_eq!(graph.kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["double"]);
    let mut out = [0; 4];
    download(&*stream, &*a, &mut out);
    stream.synchronize().unwrap();
    assert_eq!(out, [1, 2, 3, 4], "recording executes nothing");
    // SAFETY: as above.
    (0..3).for_each(|_| unsafe { stream.replay(&graph) });
    download(&*stream, &*a, &mut out);
    stream.synchronize().unwrap();
    assert_eq!(out, [8, 16, 24, 32]);
    stream.begin_capture().unwrap();
    download(&*stream, &*a, &mut out);
    assert!(stream.end_capture().is_err(), "copies to the host are not recorded");
    assert!(stream.end_capture().is_err(), "nothing is recorded");
    stream.synchronize().unwrap();
}

#[test]
fn memory_is_filled_with_elements() {
    let driver = driver(0);
    let stream = driver.stream().unwrap();
    for element in [&[5u8][..], &[1, 2], &[1, 2, 3, 4]] {
        let a = driver.alloc(4).unwrap();
        // SAFETY: the block lives until the stream is done.
        unsafe { stream.fill(a.address(), 4, element) };
        let mut out = [0; 4];
        download(&*stream, &*a, &mut out);
        stream.synchronize().unwrap();
        assert!(out.chunks(element.len()).all(|found| found == element), "{out:?}");
    }
}

#[test]
fn a_stream_that_is_asked_gets_on() {
    let driver = driver(3);
    let f = double(&driver);
    let (a, b) = (driver.alloc(4).unwrap(), driver.alloc(4).unwrap());
    let stream = driver.stream().unwrap();
    upload(&*stream, &[0; 4], &*a);
    launch(&*stream, &f, &*a, &*b);
    let event = stream.record();
    assert!(!event.query());
    while !event.query() {
        std::thread::yield_now();
    }
    while !stream.query() {
        std::thread::yield_now();
    }
}

/// A device copies what another one makes. Returns whether the result was right.
fn copied_over(seed: u64, ordered: bool) -> bool {
    let (one, two) = (driver(seed), HostDriver::with_seed(Device::accelerator(1), seed + 1));
    let f = double(&one);
    let (a, b, there) = (one.alloc(4).unwrap(), one.alloc(4).unwrap(), two.alloc(4).unwrap());
    let (makes, copies) = (one.stream().unwrap(), two.stream().unwrap());
    upload(&*makes, &[1, 2, 3, 4], &*a);
    launch(&*makes, &f, &*a, &*b);
    if ordered {
        copies.wait_event(&makes.record());
    }
    let (from, to) = (one.device(), two.device());
    let mut out = [0; 4];
    // SAFETY: the memory is kept until the streams are done.
    unsafe {
        copies.copy(Transfer { source: b.address(), from, target: there.address(), to, bytes: 4 });
        copies.copy(Transfer { source: there.address(), from: to, target: out.as_mut_ptr(), to: HOST, bytes: 4 });
    }
    copies.synchronize().unwrap();
    makes.synchronize().unwrap();
    out == [2, 4, 6, 8]
}

#[test]
fn devices_copy_from_each_other() {
    assert!((0..20).all(|seed| copied_over(seed, true)));
    assert!(!(0..20).any(|seed| copied_over(seed, false)), "nobody has waited for the other device");
    let (one, two) = (driver(0), HostDriver::new(Device::accelerator(1)));
    let (there, stream) = (two.alloc(4).unwrap(), one.stream().unwrap());
    // Addresses belong to one device: a kernel of another cannot use them, and a copy must name it.
    launch(&*stream, &double(&one), &*there, &*there);
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("are not inside memory of gpu:0"), "{error}");
    upload(&*stream, &[1; 4], &*there);
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("is no address of gpu:0"), "{error}");
}
