//! What tests with random programs of the engine share.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a test repeats itself: 2 times, or as `TENSORC_REPEATS` says.
pub fn repeats() -> u64 {
    std::env::var("TENSORC_REPEATS").ok().map_or(2, |text| text.parse().unwrap())
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

/// Ends the process, with a message, if it is not dropped in time.
pub struct Watchdog {
    fed: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Much longer than any program needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 3000 } else { 180 });

impl Watchdog {
    pub fn new(what: String) -> Watchdog {
        let (fed, hungry) = channel();
        let watch = move || {
            if hungry.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what} hangs");
                std::process::abort();
            }
        };
        Watchdog { fed: Some(fed), thread: Some(std::thread::spawn(watch)) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.fed.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
