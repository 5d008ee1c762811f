//! Seeds, and the most used random arrays.
//!
//! A call draws the next key of its device's stream when it is made, so the numbers follow from the
//! seed and the order of calls, whatever runs them and wherever. Every distribution is an operator
//! of the registry (`random_gamma`, `random_poisson`, …); called without a key it takes the next one.

use tensorc_ir::params::ParamValue;
use tensorc_runtime::Device;

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::DType;

impl Runtime {
    /// Begins the sequence of a seed again, on every device. Calls made before are not affected,
    /// even if they still wait to run.
    pub fn seed(&self, seed: u64) {
        self.inner().streams.seed(seed);
    }

    /// Begins the sequence of a seed again on one device.
    pub fn seed_device(&self, device: Device, seed: u64) {
        self.inner().streams.seed_device(device, seed);
    }

    /// Seeds from the operating system, and returns the seed so that the run can be repeated.
    ///
    /// # Errors
    /// The system has no source of randomness.
    pub fn seed_from_entropy(&self) -> Result<u64, Error> {
        Ok(self.inner().streams.seed_from_entropy()?)
    }

    /// Uniform in `[low, high)`.
    ///
    /// # Errors
    /// The type is no float, or the bounds are no interval.
    pub fn uniform(&self, dims: &[u64], dtype: DType, low: f64, high: f64) -> Result<NDArray, Error> {
        self.draw("random_uniform", dims, dtype, [("low", low.into()), ("high", high.into())])
    }

    /// Normal with a mean and a standard deviation.
    ///
    /// # Errors
    /// The type is no float, or the deviation is negative.
    pub fn normal(&self, dims: &[u64], dtype: DType, mean: f64, deviation: f64) -> Result<NDArray, Error> {
        self.draw("random_normal", dims, dtype, [("mean", mean.into()), ("scale", deviation.into())])
    }

    /// Integers from `low` to before `high`, each as likely.
    ///
    /// # Errors
    /// The type is no integer, or there is none between the bounds.
    pub fn randint(&self, dims: &[u64], dtype: DType, low: i64, high: i64) -> Result<NDArray, Error> {
        self.draw("random_randint", dims, dtype, [("low", low.into()), ("high", high.into())])
    }

    fn draw(&self, op: &str, dims: &[u64], dtype: DType, params: [(&str, ParamValue); 2]) -> Result<NDArray, Error> {
        let shape: Vec<i64> = dims.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
        let call = self.op(op)?.param("shape", shape).param("dtype", dtype);
        params.into_iter().fold(call, |call, (name, value)| call.param(name, value)).invoke()
    }
}

impl NDArray {
    /// The positions of the first axis in random order.
    ///
    /// # Errors
    /// The array has no axis.
    pub fn shuffle(&self) -> Result<NDArray, Error> {
        self.apply("shuffle")
    }
}
