//! What tests with random programs of the engine share.

use std::io::Write;
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// The programs of a test: `count` for each repeat, of which there are 2 or as many as
/// `TENSORC_REPEATS` says; or `TENSORC_SEED` alone.
pub fn seeds(count: u64) -> Range<u64> {
    match number("TENSORC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * number("TENSORC_REPEATS").unwrap_or(2),
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Ends the process, with a message, if it is not dropped in time. Says of which program a panic was.
pub struct Watchdog {
    what: String,
    fed: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Much longer than any program needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 3000 } else { 180 });

impl Watchdog {
    pub fn new(what: String) -> Watchdog {
        let (fed, hungry) = channel();
        let program = what.clone();
        let watch = move || {
            if hungry.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Past the harness, which shows what a test prints only when the test ends.
                let _ = writeln!(std::io::stderr(), "{program} hangs");
                std::process::abort();
            }
        };
        Watchdog { what, fed: Some(fed), thread: Some(std::thread::spawn(watch)) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} failed", self.what);
        }
        drop(self.fed.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
