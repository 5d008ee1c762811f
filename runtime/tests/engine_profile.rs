//! The engine records what it runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tensorc_runtime::engine::*;
use tensorc_runtime::profiler::{EventKind, Lane, Profiler};

fn each(test: impl Fn(&Engine, &Profiler)) {
    for kind in EngineKind::ALL {
        let profiler = Profiler::default();
        let config = EngineConfig { kind, profiler: Some(profiler.clone()), ..EngineConfig::default() };
        test(&Engine::new(config).unwrap(), &profiler);
    }
}

#[test]
fn every_operation_that_runs_is_a_span() {
    each(|engine, profiler| {
        let names = ["sqrt", "plus", "bad", "copy", "reused"].map(Name::from_static);
        let [sqrt, plus, bad, copy, reused] = &names;
        let [a, b] = std::array::from_fn(|_| engine.new_var());
        engine.push(Op { writes: &[&a], ..Op::new(sqrt) }, |_| Ok(())).unwrap();
        engine.wait_all().unwrap();
        assert_eq!(profiler.recording().summary().rows, [], "it is off");
        profiler.start();
        engine.push(Op { writes: &[&a], bytes: 8, ..Op::new(sqrt) }, |_| Ok(())).unwrap();
        for _ in 0..2 {
            engine.push(Op { reads: &[&a], writes: &[&a], bytes: 16, ..Op::new(plus) }, |_| Ok(())).unwrap();
        }
        engine.push(Op { writes: &[&b], ..Op::new(bad) }, |_| Err("broken".into())).unwrap();
        // Does not run, so it is not there.
        engine.push(Op { reads: &[&b], ..Op::new(plus) }, |_| Ok(())).unwrap();
        engine
            .push_async(Op { writes: &[&a], ..Op::new(copy) }, |_, completion| {
                std::thread::spawn(move || completion.complete(Ok(())));
            })
            .unwrap();
        let operator = engine.new_operator(Op { reads: &[&a], ..Op::new(reused) }, |_| Ok(())).unwrap();
        (0..3).for_each(|_| engine.push_operator(&operator).unwrap());
        engine.wait_all().unwrap_err();
        profiler.stop();
        let recording = profiler.recording();
        let summary = recording.summary();
        let figures = |name: &str| {
            let row = summary.row(name).unwrap();
            assert_eq!(row.category, "operator");
            (row.count, row.errors, row.bytes)
        };
        assert_eq!((figures("sqrt"), figures("plus")), ((1, 0, 8), (2, 0, 32)));
        assert_eq!((figures("bad"), figures("copy"), figures("reused")), ((1, 1, 0), (1, 0, 0), (3, 0, 0)));
        assert_eq!(summary.rows.len(), 5);
        for (lane, event) in recording.events() {
            // What ends on another thread may overlap what this one does meanwhile.
            assert_eq!(lane == Lane::Floating, event.name == "copy");
            if let EventKind::Span { error: Some(error), .. } = &event.kind {
                assert_eq!(&**error, "broken");
            }
        }
    });
}

#[test]
fn joined_operations_are_spans_of_their_own() {
    each(|engine, profiler| {
        if engine.kind() == EngineKind::Naive {
            return;
        }
        engine.set_bulk_size(16);
        engine.stop().unwrap();
        profiler.start();
        let [one, two] = ["one", "two"].map(Name::from_static);
        for name in [&one, &two, &one] {
            engine.push(Op { bytes: 4, ..Op::new(name) }, |_| Ok(())).unwrap();
        }
        engine.push(Op::new(&two), |_| panic!("no")).unwrap();
        engine.push(Op::new(&one), |_| Ok(())).unwrap();
        engine.start().unwrap();
        engine.wait_all().unwrap_err();
        let summary = profiler.recording().summary();
        let figures = |name: &str| summary.row(name).map(|row| (row.count, row.errors, row.bytes)).unwrap();
        assert_eq!(figures("one"), (2, 0, 8));
        assert_eq!(figures("two"), (2, 1, 4));
    });
}
