//! Tests of the profiler.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

use super::*;

fn on(max_events: u64) -> Profiler {
    let profiler = Profiler::new(ProfilerConfig { max_events });
    profiler.start();
    profiler
}

fn record(profiler: &Profiler, name: &'static str, start: u64, end: u64) {
    profiler.record(span(profiler, name, start, end));
}

/// Times are nanoseconds since the profiler was made.
fn span(profiler: &Profiler, name: &'static str, start: u64, end: u64) -> Span {
    let at = |ns| profiler.shared.epoch + Duration::from_nanos(ns);
    Span::new(name, "operator", at(start), at(end))
}

fn names(recording: &Recording) -> Vec<String> {
    recording.events().iter().map(|(_, event)| event.name.to_string()).collect()
}

fn trace(profiler: &Profiler) -> Value {
    let mut text = Vec::new();
    profiler.recording().write_trace(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn lines<'t>(trace: &'t Value, ph: &str) -> Vec<&'t Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|line| line["ph"] == ph).collect()
}

#[test]
fn states_follow_start_stop_pause_resume() {
    let profiler = Profiler::default();
    let expect = |state: bool, name: &'static str| {
        assert_eq!(profiler.is_on(), state, "{name}");
        assert_eq!(profiler.begin().is_some(), state, "{name}");
        record(&profiler, name, 1, 2);
    };
    expect(false, "new");
    profiler.resume();
    expect(false, "resumed before start");
    profiler.start();
    expect(true, "started");
    profiler.pause();
    expect(false, "paused");
    profiler.resume();
    expect(true, "resumed");
    profiler.stop();
    profiler.pause();
    profiler.resume();
    expect(false, "stopped");
    profiler.start();
    expect(true, "started again");
    assert_eq!(names(&profiler.recording()), ["started", "resumed", "started again"]);
    profiler.clear();
    assert_eq!(names(&profiler.recording()), [""; 0]);
    expect(true, "cleared");
    assert_eq!(names(&profiler.recording()), ["cleared"]);
}

#[test]
fn the_table_joins_spans_of_a_name() {
    let profiler = on(100);
    record(&profiler, "sqrt", 0, 5);
    profiler.record(Span { bytes: 8, ..span(&profiler, "_plus_scalar", 10, 30) });
    profiler.record(Span { bytes: 4, error: Some("no".into()), ..span(&profiler, "_plus_scalar", 40, 50) });
    profiler.marker("sqrt", "operator", Device::default());
    let summary = profiler.recording().summary();
    assert_eq!((summary.rows.len(), summary.dropped), (2, 0));
    assert_eq!(summary.row("sqrt").unwrap().count, 1);
    let row = summary.row("_plus_scalar").unwrap();
    let ns = Duration::from_nanos;
    assert_eq!((row.count, row.errors, row.bytes), (2, 1, 12));
    assert_eq!((row.total, row.min, row.max, row.mean()), (ns(30), ns(10), ns(20), ns(15)));
    assert_eq!(summary.rows[0].name, "_plus_scalar", "the longest first");
    let text = summary.to_string();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("operator _plus_scalar (1 failed)"), "{text}");
}

#[test]
fn a_trace_holds_every_event_once() {
    let profiler = on(100);
    let gpu = Device::accelerator(1);
    profiler.record(Span { bytes: 64, worker: Some(3), ..span(&profiler, "add \"quoted\"\n", 1500, 3750) });
    let stream = Some(TraceTrack::Stream(2));
    profiler.record(Span { device: gpu, lane: stream, error: Some("full".into()), ..span(&profiler, "copy", 0, 100) });
    let floating = Some(TraceTrack::Floating);
    profiler.record(Span { lane: floating, ..span(&profiler, "early", 10, 2000) });
    profiler.record(Span { lane: floating, ..span(&profiler, "late", 5, 9000) });
    profiler.marker("epoch", "training", Device::default());
    let counter = profiler.counter("in use", gpu);
    counter.add(5);
    counter.clone().add(-7);
    counter.set(i64::MIN);
    let trace = trace(&profiler);
    assert_eq!(trace["otherData"]["dropped"], 0);
    let count = |ph| lines(&trace, ph).len();
    assert_eq!(["X", "b", "e", "i", "C"].map(count), [2, 2, 2, 1, 3]);
    let total: usize = ["M", "X", "b", "e", "i", "C"].map(count).iter().sum();
    assert_eq!(trace["traceEvents"].as_array().unwrap().len(), total);

    let x = lines(&trace, "X");
    assert_eq!((&x[0]["name"], &x[0]["args"]["error"], &x[0]["pid"]), (&"copy".into(), &"full".into(), &2.into()));
    assert_eq!((&x[1]["name"], &x[1]["ts"], &x[1]["dur"]), (&"add \"quoted\"\n".into(), &1.5.into(), &2.25.into()));
    assert_eq!((&x[1]["args"]["bytes"], &x[1]["args"]["worker"], &x[1]["pid"]), (&64.into(), &3.into(), &1.into()));
    let values: Vec<_> = lines(&trace, "C").iter().map(|line| line["args"]["value"].as_i64().unwrap()).collect();
    assert_eq!(values, [5, -2, i64::MIN]);
    for (begin, end) in lines(&trace, "b").iter().zip([9.0, 2.0]) {
        let ends = lines(&trace, "e");
        let own: Vec<_> = ends.iter().filter(|e| e["id"] == begin["id"]).collect();
        assert_eq!(own.len(), 1);
        assert_eq!((&own[0]["ts"], &own[0]["cat"]), (&end.into(), &begin["cat"]));
    }
    let processes = lines(&trace, "M").into_iter().filter(|line| line["name"] == "process_name");
    assert_eq!(processes.map(|line| line["args"]["name"].clone()).collect::<Vec<_>>(), ["cpu:0", "gpu:1"]);
    let mut named: Vec<_> = lines(&trace, "M").into_iter().filter(|line| line["name"] == "thread_name").collect();
    named.retain(|line| line["pid"] == 2);
    assert_eq!(named[0]["args"]["name"], std::thread::current().name().unwrap(), "the counter's thread");
    assert_eq!(named[1]["args"]["name"], "stream 2");
}

#[test]
fn events_are_in_the_order_of_time() {
    let profiler = on(1 << 20);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5000).rev().for_each(|i| record(&profiler, "op", i / 2, i)));
        }
    });
    let recording = profiler.recording();
    let keys: Vec<(u64, TraceTrack)> = recording.events().iter().map(|(lane, event)| (event.time, *lane)).collect();
    assert_eq!(keys.len(), 20_000);
    assert!(keys.is_sorted());
    let trace = trace(&profiler);
    let times: Vec<f64> = lines(&trace, "X").iter().filter_map(|line| line["ts"].as_f64()).collect();
    assert!(times.is_sorted());
    assert_eq!(times.len(), 20_000);
    let again = |recording: &Recording| {
        let mut text = Vec::new();
        recording.write_trace(&mut text).unwrap();
        text
    };
    assert!(again(&recording) == again(&profiler.recording()), "the same recording is the same file");
}

#[test]
fn an_enclosing_span_comes_before_what_begins_with_it() {
    let profiler = on(100);
    record(&profiler, "inner", 10, 20);
    record(&profiler, "outer", 10, 30);
    assert_eq!(names(&profiler.recording()), ["outer", "inner"]);
}

#[test]
fn memory_is_bounded_and_losses_are_counted() {
    assert!(size_of::<Event>() <= 128, "the bound documented in ProfilerConfig");
    let profiler = on(1000);
    let many = || (0..2000).for_each(|i| record(&profiler, "op", i, i + 1));
    std::thread::scope(|scope| {
        let one = scope.spawn(many);
        let other = scope.spawn(many);
        (one.join().unwrap(), other.join().unwrap())
    });
    record(&profiler, "op", 0, 1);
    let recording = profiler.recording();
    let kept = recording.events().len() as u64;
    assert_eq!(kept, 1000);
    assert_eq!(kept + recording.dropped(), 4001);
    assert_eq!(recording.summary().dropped, recording.dropped());
    assert_eq!(trace(&profiler)["otherData"]["dropped"], recording.dropped());
    profiler.clear();
    assert_eq!(profiler.recording().dropped(), 0);
    many();
    assert_eq!(profiler.recording().events().len(), 1000, "the budget came back");
}

#[test]
fn nothing_fits_into_nothing() {
    let profiler = on(0);
    record(&profiler, "op", 0, 1);
    assert_eq!(profiler.recording().dropped(), 1);
    assert_eq!(trace(&profiler)["traceEvents"], Value::Array(vec![]));
}

#[test]
fn profilers_are_apart() {
    let (one, other) = (on(100), on(100));
    record(&one, "one", 0, 1);
    record(&other, "other", 0, 1);
    record(&one.clone(), "two", 2, 3);
    assert_eq!(names(&one.recording()), ["one", "two"]);
    assert_eq!(names(&other.recording()), ["other"]);
}

#[test]
fn memory_of_a_dropped_profiler_is_freed_while_its_threads_live() {
    let profiler = on(100);
    let error: Arc<str> = "kept alive by its event".into();
    profiler.record(Span { error: Some(error.clone()), ..span(&profiler, "op", 0, 1) });
    assert_eq!(Arc::strong_count(&error), 2);
    drop(profiler);
    assert_eq!(Arc::strong_count(&error), 1);
}

#[test]
fn tasks_measure_what_they_enclose() {
    let profiler = on(100);
    let mut outer = profiler.scope("outer", "user").on(Device::pinned(0));
    drop(profiler.scope("inner", "user"));
    outer.add_bytes(3);
    outer.add_bytes(u64::MAX);
    outer.fail(&"wrong");
    drop(outer);
    let moved = profiler.task("moved", "user");
    std::thread::scope(|scope| drop(scope.spawn(|| drop(moved))));
    profiler.stop();
    drop(profiler.task("off", "user"));
    let recording = profiler.recording();
    let events = recording.events();
    let found: Vec<_> = events.iter().map(|(lane, event)| (*lane, event.name.as_str(), event.device)).collect();
    let (own, cpu) = (TraceTrack::Thread(0), Device::default());
    assert_eq!(found, [(own, "outer", Device::pinned(0)), (own, "inner", cpu), (TraceTrack::Floating, "moved", cpu)]);
    let EventKind::Span { end, bytes, error, .. } = &events[0].1.kind else { panic!("a task is a span") };
    let EventKind::Span { end: inner, .. } = events[1].1.kind else { panic!("a task is a span") };
    assert!(*end >= inner);
    assert_eq!((*bytes, error.as_deref()), (u64::MAX, Some("wrong")));
}

#[test]
fn counters_count_while_off() {
    let profiler = on(100);
    profiler.stop();
    let counter = profiler.counter("n", Device::default());
    counter.add(2);
    profiler.start();
    counter.add(2);
    assert_eq!(counter.value(), 4);
    assert_eq!(profiler.recording().events()[0].1.kind, EventKind::Counter(4));
}

/// Takes some bytes, then is full.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = bytes.len().min(self.0);
        self.0 -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_a_typed_error() {
    let profiler = on(100);
    (0..10).for_each(|i| record(&profiler, "op", i, i + 1));
    let mut text = Vec::new();
    profiler.recording().write_trace(&mut text).unwrap();
    for room in 0..text.len() {
        let error = profiler.recording().write_trace(&mut Full(room)).unwrap_err();
        let TraceError::Write(source) = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{room}");
    }
    profiler.recording().write_trace(&mut Full(text.len())).unwrap();
    let missing = profiler.recording().save_trace("/nonexistent/folder/trace.json").unwrap_err();
    assert!(matches!(missing, TraceError::Create { .. }), "{missing}");
    #[cfg(target_os = "linux")]
    {
        let full = profiler.recording().save_trace("/dev/full").unwrap_err();
        assert!(matches!(full, TraceError::WriteFile { .. }), "{full}");
    }
}
