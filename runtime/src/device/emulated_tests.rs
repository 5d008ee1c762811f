//! Tests of streams, and of the emulated accelerator in particular.

use std::sync::Barrier;

use super::*;
use crate::storage::{AllocCause, Block, PoolConfig, Pooling, Storage, StorageConfig};

const GPU: Device = Device::accelerator(0);

fn stream() -> HostStream {
    HostStream::new(GPU, "test").unwrap()
}

fn fails(text: &'static str) -> Work {
    Box::new(move || Err(text.into()))
}

/// A gate that keeps a stream from going on until the test opens it.
fn gate(stream: &HostStream) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel();
    stream.enqueue(Box::new(move || Ok(closed.recv()?)));
    open
}

#[test]
fn work_runs_in_order_and_later() {
    let stream = stream();
    let log = Arc::new(Mutex::new(vec![]));
    let open = gate(&stream);
    for i in 0..100 {
        let log = log.clone();
        stream.enqueue(Box::new(move || {
            log.lock().unwrap().push(i);
            Ok(())
        }));
    }
    let event = stream.record();
    assert!(!stream.query() && !event.query());
    assert!(log.lock().unwrap().is_empty());
    open.send(()).unwrap();
    event.synchronize().unwrap();
    assert!(event.query());
    assert!(log.lock().unwrap().iter().copied().eq(0..100));
    stream.synchronize().unwrap();
    while !stream.query() {
        thread::yield_now();
    }
}

#[test]
fn events_order_streams() {
    let (producer, consumer) = (stream(), stream());
    let value = Arc::new(AtomicUsize::new(0));
    let open = gate(&producer);
    let written = value.clone();
    producer.enqueue(Box::new(move || {
        written.store(7, Ordering::Relaxed);
        Ok(())
    }));
    consumer.wait_event(&producer.record());
    let (sender, receiver) = mpsc::channel();
    consumer.enqueue(Box::new(move || Ok(sender.send(value.load(Ordering::Relaxed))?)));
    assert!(receiver.try_recv().is_err());
    open.send(()).unwrap();
    assert_eq!(receiver.recv(), Ok(7));
    // An event that was passed long ago delays nobody.
    let old = producer.record();
    old.synchronize().unwrap();
    consumer.wait_event(&old);
    consumer.synchronize().unwrap();
}

#[test]
fn streams_of_a_device_run_at_the_same_time() {
    let accelerator = Accelerator::new(GPU).unwrap();
    let streams: [&dyn Stream; 3] = [&accelerator.compute, &accelerator.copy_in, &accelerator.copy_out];
    // Each waits for the others, so none ends unless all run.
    let meet = Arc::new(Barrier::new(3));
    for stream in streams {
        let meet = meet.clone();
        stream.enqueue(Box::new(move || {
            meet.wait();
            Ok(())
        }));
    }
    for stream in streams {
        assert_eq!(stream.device(), GPU);
        stream.synchronize().unwrap();
    }
}

#[test]
fn a_failure_reaches_the_completion_and_stops_there() {
    let stream = stream();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = ran.clone();
        Box::new(move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    };
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
fn a_failure_follows_events_to_other_streams() {
    let (first, second) = (stream(), stream());
    first.enqueue(fails("first"));
    let event = first.record();
    second.wait_event(&event);
    second.enqueue(Box::new(|| panic!("runs on data that was never made")));
    assert_eq!(second.synchronize().unwrap_err().to_string(), "work on a stream of gpu:0 failed: first");
    assert!(event.synchronize().is_err());
    assert!(first.synchronize().is_err());
    assert!(first.record().synchronize().is_ok());
}

#[test]
fn a_stream_that_waits_for_itself_is_told_so() {
    let stream = Arc::new(stream());
    let own = Arc::downgrade(&stream);
    let (sender, receiver) = mpsc::channel();
    stream.enqueue(Box::new(move || {
        let stream = own.upgrade().ok_or("gone")?;
        sender.send(stream.synchronize())?;
        sender.send(stream.record().synchronize())?;
        Ok(())
    }));
    for _ in 0..2 {
        assert!(matches!(receiver.recv().unwrap(), Err(StreamError::Itself { device: GPU })));
    }
    stream.synchronize().unwrap();
}

#[test]
fn dropping_a_stream_runs_what_was_enqueued() {
    let done = Arc::new(AtomicUsize::new(0));
    {
        let stream = stream();
        for _ in 0..10 {
            let done = done.clone();
            stream.enqueue(Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }));
        }
    }
    assert_eq!(done.load(Ordering::Relaxed), 10);
    // The last owner may be the stream's own callback.
    let (sender, receiver) = mpsc::channel();
    let stream = Arc::new(self::stream());
    let owner = stream.clone();
    let open = gate(&stream);
    stream.on_complete(Box::new(move |_| {
        drop(owner);
        sender.send(()).unwrap();
    }));
    drop(stream);
    open.send(()).unwrap();
    receiver.recv().unwrap();
}

/// Host to device, device to device and back, in three streams that only events order.
#[test]
fn copies_between_memories() {
    let storage = Storage::default();
    let bytes = if cfg!(miri) { 1000 } else { 1 << 20 };
    let block = |device| storage.alloc(device, bytes as u64).unwrap();
    let other = Device::accelerator(1);
    let blocks = [block(Device::cpu(0)), block(GPU), block(other), block(Device::pinned(0))];
    let pattern = |i: usize| (i % 251) as u8;
    // SAFETY: the block is `bytes` long, and nobody else uses it.
    (0..bytes).for_each(|i| unsafe { blocks[0].start().as_ptr().add(i).write(pattern(i)) });
    let streams = [stream(), HostStream::new(other, "test").unwrap(), stream()];
    for (at, stream) in streams.iter().enumerate() {
        if at > 0 {
            stream.wait_event(&streams[at - 1].record());
        }
        let (source, target) = (&blocks[at], &blocks[at + 1]);
        let transfer = Transfer {
            source: source.as_ptr(),
            from: source.device(),
            target: target.start().as_ptr(),
            to: target.device(),
            bytes,
        };
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
    let storage = Storage::new(config);
    let stream = stream();
    let kept: Arc<Mutex<Vec<Block>>> = Arc::default();
    for _ in 0..3 {
        let (storage, kept) = (storage.clone(), kept.clone());
        stream.enqueue(Box::new(move || {
            kept.lock().unwrap().push(storage.alloc(GPU, 28 << 10)?);
            Ok(())
        }));
    }
    let StreamError::Failed { cause, .. } = stream.synchronize().unwrap_err() else { panic!() };
    let error = cause.downcast_ref::<crate::storage::AllocError>().unwrap();
    assert_eq!((error.device, error.wanted, error.in_use), (GPU, 28 << 10, 56 << 10));
    assert_eq!(error.cause, AllocCause::Limit(64 << 10));
    kept.lock().unwrap().clear();
    assert!(storage.alloc(GPU, 64 << 10).is_ok());
}
