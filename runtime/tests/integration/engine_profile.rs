//! The engine records what it runs.

use tensorc_runtime::engine::*;
use tensorc_runtime::profiler::{EventKind, Profiler, TraceTrack};

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
        let names = ["sqrt", "plus", "bad", "copy"].map(OpName::from_static);
        let [sqrt, plus, bad, copy] = &names;
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
        assert_eq!((figures("bad"), figures("copy")), ((1, 1, 0), (1, 0, 0)));
        assert_eq!(summary.rows.len(), 4);
        for (lane, event) in recording.events() {
            // What ends on another thread may overlap what this one does meanwhile.
            assert_eq!(lane == TraceTrack::Floating, event.name == "copy");
            if let EventKind::Span { error: Some(error), .. } = &event.kind {
                assert_eq!(&**error, "broken");
            }
        }
    });
}
