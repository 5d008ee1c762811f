//! Every measurement of a GPU, on the interpreter's with small sizes.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorc::runtime::Device;
use tensorc_bench::figures::Outcome;
use tensorc_bench::gpu::{GROUPS, Setup, Size};
use tensorc_simulator::CountingDriver;

/// Figures that may be 0: what does not happen is counted, too.
const COUNTS: [&str; 1] = ["host_waits"];

#[test]
fn every_case_measures() {
    let driver = tensorc_simulator::interpreted(Device::accelerator(0));
    let setup = Setup { time: Duration::ZERO, ..Setup::new(driver, Size::Small) };
    for (group, cases) in GROUPS {
        let all = cases(Size::Small);
        assert!(!all.is_empty(), "{group}");
        for case in all {
            let name = format!("{group}: {}", case.name);
            let report = case.run(&setup);
            assert_eq!((report.outcome, report.note.as_str()), (Outcome::Passed, ""), "{name}");
            assert!(!report.figures.is_empty(), "{name}");
            for figure in &report.figures {
                let least = if COUNTS.contains(&figure.name) { 0.0 } else { f64::MIN_POSITIVE };
                assert!(figure.value.is_finite() && figure.value >= least, "{name}: {figure:?}");
            }
        }
    }
}

#[test]
fn names_tell_cases_apart() {
    for size in [Size::Device, Size::Small] {
        let mut seen = BTreeSet::new();
        for (group, cases) in GROUPS {
            for case in cases(size) {
                let name = format!("{group}: {}", case.name);
                assert!(seen.insert(name.clone()), "{name} twice");
            }
        }
    }
}

/// What goes wrong in a case is its report, and the next one is measured.
#[test]
fn failures_are_reports() {
    let driver = tensorc_simulator::interpreted(Device::accelerator(0));
    let short = CountingDriver::new(driver).with_memory(1 << 10);
    let setup = Setup::new(std::sync::Arc::new(short), Size::Small);
    let (_, cases) = GROUPS[0];
    let report = cases(Size::Small).swap_remove(0).run(&setup);
    assert_eq!(report.outcome, Outcome::Failed);
    assert!(report.note.contains("bytes of memory, of which"), "{}", report.note);
}
