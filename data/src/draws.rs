//! Random choices that are a function of (seed, epoch, sample), never of threads or time.

use tensorc_runtime::resource::threefry2x32;

/// A sequence of random numbers for one example in one epoch: Threefry over a counter.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    counter: u64,
}

fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Draws {
    /// The draws of one example in one epoch.
    pub fn new(seed: u64, epoch: u64, sample: u64) -> Draws {
        let key = threefry2x32(threefry2x32(words(seed), words(epoch)), words(sample));
        Draws { key, counter: 0 }
    }

    /// Numbers for a whole epoch, such as the order of its examples.
    pub(crate) fn of_epoch(seed: u64, epoch: u64) -> Draws {
        Draws { key: threefry2x32(words(seed), words(epoch)), counter: 0 }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [low, high] = threefry2x32(self.key, words(self.counter));
        self.counter += 1;
        u64::from(high) << 32 | u64::from(low)
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`; `low` if the interval is empty.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low).max(0.0) * self.unit()
    }

    /// True in half of all draws.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Normal with mean 0 and deviation 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A random order of `0..n`, by Fisher and Yates.
    pub fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}
