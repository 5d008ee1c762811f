//! The machine numbers a cost is computed from, and their text form.
//!
//! Numbers of one core of a processor, or of a whole GPU. They never come from measuring while compiling: the built-in ones are
//! fixed, others are read from a file, so that compiled output depends on inputs only.

use serde::{Deserialize, Serialize};
use tensorc_abi::{CHANNEL_BLOCK, Conv2d, ConvPass, DType, ImageLayout};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::prim::ConvAlgorithm;

use crate::cost::work::{KernelWork, Ops};

/// A cache, or main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheLevel {
    /// Tensors up to this size stay here between the kernels that write and read them.
    pub bytes: u64,
    /// How fast a kernel reads or writes such tensors, in bytes per microsecond.
    pub bytes_per_us: u64,
}

/// What kernels cost on a machine. Rates are per microsecond and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Smallest first; the last one holds everything else, too.
    pub levels: [CacheLevel; 4],
    /// Floating-point operations of library matrix products.
    pub product_per_us: u64,
    /// Floating-point operations of library convolutions over channels in planes ([`ImageLayout::Nchw`]).
    pub convolution_per_us: u64,
    /// The same by blocks of channels, in the other layouts.
    pub blocked_convolution_per_us: u64,
    /// Bytes of coefficients, of patches and of tiles, that Winograd convolution makes and reads.
    pub coefficient_bytes_per_us: u64,
    /// Bytes of image and result of depthwise convolutions over channels in planes.
    pub depthwise_bytes_per_us: u64,
    /// The same by blocks of channels.
    pub blocked_depthwise_bytes_per_us: u64,
    /// Bytes of an image that a convolution copies between planes and blocks.
    pub conversion_bytes_per_us: u64,
    /// Floating-point operations of contractions in generated loops.
    pub direct_per_us: u64,
    /// Additions and the like in generated loops, in vectors.
    pub simple_per_us: u64,
    /// Divisions and square roots.
    pub division_per_us: u64,
    /// Calls of mathematical functions.
    pub call_per_us: u64,
    /// Reads at positions that are not sums of strides.
    pub lookup_per_us: u64,
    /// Starting a kernel and waiting for it, in nanoseconds.
    pub launch_ns: u64,
}

/// Picoseconds in a microsecond.
const PS: u64 = 1_000_000;

impl CostModel {
    /// One core of a 2.5 GHz server processor with AVX-512, as `tensorc-bench fit-machine` measures it, rounded.
    pub const AVX512_CORE: CostModel = CostModel {
        levels: [
            CacheLevel { bytes: 32 << 10, bytes_per_us: 76_000 },
            CacheLevel { bytes: 1 << 20, bytes_per_us: 64_000 },
            CacheLevel { bytes: 24 << 20, bytes_per_us: 24_000 },
            CacheLevel { bytes: u64::MAX, bytes_per_us: 10_500 },
        ],
        product_per_us: 130_000,
        convolution_per_us: 116_000,
        blocked_convolution_per_us: 132_000,
        coefficient_bytes_per_us: 24_000,
        depthwise_bytes_per_us: 13_600,
        blocked_depthwise_bytes_per_us: 15_000,
        conversion_bytes_per_us: 7_000,
        direct_per_us: 9_600,
        simple_per_us: 10_000,
        division_per_us: 4_300,
        call_per_us: 1_600,
        lookup_per_us: 630,
        launch_ns: 120,
    };

    /// An A100 (SXM4, 80 GB), by its data sheet: 2.0 TB/s of HBM2e, 40 MB of second-level cache, 19.5 TFLOP/s in f32, 312 TFLOP/s by
    /// matrix units.
    pub const A100: CostModel = CostModel::gpu(2_000_000, 40 << 20, 19_500_000, 312_000_000);

    /// An H100 (SXM5), by its data sheet: 3.35 TB/s of HBM3, 50 MB of second-level cache, 67 TFLOP/s in f32, 990 TFLOP/s by matrix
    /// units.
    pub const H100: CostModel = CostModel::gpu(3_350_000, 50 << 20, 67_000_000, 990_000_000);

    /// A GPU of so many bytes of memory and floating-point operations per microsecond, times what kernels of each kind are assumed to
    /// reach; not measured. Contractions that no product of f32 computes go by matrix units. A launch takes 2 us, as in a
    /// recorded graph.
    const fn gpu(bytes_per_us: u64, cache: u64, f32_per_us: u64, matrix_units_per_us: u64) -> CostModel {
        let (memory, product) = (bytes_per_us / 10 * 9, f32_per_us / 10 * 7);
        CostModel {
            levels: [
                CacheLevel { bytes: cache / 4, bytes_per_us: memory * 2 },
                CacheLevel { bytes: cache / 2, bytes_per_us: memory * 2 },
                CacheLevel { bytes: cache, bytes_per_us: memory * 2 },
                CacheLevel { bytes: u64::MAX, bytes_per_us: memory },
            ],
            product_per_us: product,
            convolution_per_us: product / 5 * 4,
            blocked_convolution_per_us: product / 5 * 4,
            coefficient_bytes_per_us: memory,
            depthwise_bytes_per_us: memory / 2,
            blocked_depthwise_bytes_per_us: memory / 2,
            conversion_bytes_per_us: memory / 2,
            direct_per_us: matrix_units_per_us / 2,
            simple_per_us: product / 2,
            division_per_us: product / 16,
            call_per_us: product / 27,
            lookup_per_us: product / 34,
            launch_ns: 2_000,
        }
    }

    /// The text form: a JSON object.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Reads what [`CostModel::to_text`] writes.
    ///
    /// # Errors
    /// The text is no such object, a rate is 0, or levels are not in order of size.
    pub fn from_text(text: &str) -> Result<CostModel> {
        let bad = |why: String| Diagnostic::new(DiagnosticCode::Pipeline, format!("cost model: {why}"));
        let machine: CostModel = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        let rates = [
            machine.product_per_us,
            machine.convolution_per_us,
            machine.blocked_convolution_per_us,
            machine.coefficient_bytes_per_us,
            machine.depthwise_bytes_per_us,
            machine.blocked_depthwise_bytes_per_us,
            machine.conversion_bytes_per_us,
            machine.direct_per_us,
            machine.simple_per_us,
            machine.division_per_us,
            machine.call_per_us,
            machine.lookup_per_us,
        ];
        if rates.contains(&0) || machine.levels.iter().any(|l| l.bytes_per_us == 0) {
            return Err(bad("a rate is 0".into()));
        }
        if !machine.levels.is_sorted_by(|a, b| a.bytes < b.bytes) {
            return Err(bad("levels must be in order of their bytes".into()));
        }
        Ok(machine)
    }

    /// Picoseconds of a kernel: the longer of moving its bytes and computing, and the launch.
    pub fn time(&self, work: &KernelWork) -> u64 {
        let reads = work.reads.iter().map(|r| self.move_time(r.bytes, r.of));
        let writes = work.writes.iter().map(|bytes| self.move_time(*bytes, *bytes));
        let moving = reads.chain(writes).fold(0u64, u64::saturating_add);
        moving.max(self.compute_time(&work.ops)).saturating_add(self.launch_ns.saturating_mul(1000))
    }

    /// Picoseconds of moving some bytes of a tensor.
    pub(crate) fn move_time(&self, bytes: u64, of: u64) -> u64 {
        let level = self.levels.iter().find(|l| of <= l.bytes).unwrap_or(&self.levels[3]);
        scaled(bytes, level.bytes_per_us)
    }

    /// Picoseconds of a convolution with one group, or a depthwise one, in its layouts by an algorithm; `None` if none
    /// of its kernels computes that.
    pub fn convolution_time(&self, conv: &Conv2d, algorithm: ConvAlgorithm) -> Option<u64> {
        let call = Conv2d { pass: ConvPass::Packed(algorithm), ..*conv };
        let element = DType::F32.size() as u64;
        let [x, _, y] = call.sizes().map(|size| size.unwrap_or(u64::MAX).saturating_mul(element));
        if !call.layouts_fit() {
            return None;
        }
        if call.is_depthwise() {
            let rate = if call.in_planes() { self.depthwise_bytes_per_us } else { self.blocked_depthwise_bytes_per_us };
            return Some(scaled(x.saturating_add(y), rate));
        }
        let taps = conv.kernel[0] * conv.kernel[1];
        let [from, to] = call.layouts;
        let is_sum = call.tiles().is_none();
        if is_sum && call.in_planes() {
            return Some(scaled(call.flops(), self.convolution_per_us).saturating_add(self.filter_time(conv, taps)));
        }
        if is_sum && call.is_pointwise() && !call.layouts.contains(&ImageLayout::Nchw16c) {
            return Some(scaled(call.flops(), self.product_per_us).saturating_add(self.filter_time(conv, taps)));
        }
        let blocks = Conv2d { out_channels: call.out_channels.next_multiple_of(CHANNEL_BLOCK), ..call };
        let mut time = scaled(blocks.products().saturating_mul(2), self.blocked_convolution_per_us);
        let mut add = |more: u64| time = time.saturating_add(more);
        match call.tiles() {
            None => add(self.filter_time(conv, taps)),
            Some([tiles, coefficients]) => {
                let channels = conv.in_channels + blocks.out_channels;
                let bytes = [tiles, coefficients, channels, element].into_iter().fold(1, u64::saturating_mul);
                add(scaled(bytes, self.coefficient_bytes_per_us));
                add(self.filter_time(conv, coefficients));
            }
        }
        // Winograd convolution copies planes into blocks, the sum pixels whose channels are last; results in planes
        // or with part of a block are completed beside their place.
        let in_cache = |bytes: u64| scaled(bytes.saturating_mul(2), self.levels[1].bytes_per_us);
        match from {
            ImageLayout::Nchw if !is_sum => add(self.copy_time(x)),
            ImageLayout::Nhwc if is_sum => add(in_cache(x)),
            _ => {}
        }
        match to {
            ImageLayout::Nchw => add(self.copy_time(y)),
            ImageLayout::Nhwc if blocks.out_channels != call.out_channels => add(in_cache(y)),
            _ => {}
        }
        Some(time)
    }

    /// Picoseconds of copying so many bytes of an image between planes and blocks.
    fn copy_time(&self, bytes: u64) -> u64 {
        scaled(bytes, self.conversion_bytes_per_us)
    }

    /// Picoseconds of reading the filters from memory, so many elements for each pair of channels: while other
    /// kernels of a model run they do not stay in a cache.
    fn filter_time(&self, conv: &Conv2d, elements: u64) -> u64 {
        let pairs = conv.groups.saturating_mul(conv.in_channels).saturating_mul(conv.out_channels);
        scaled(pairs.saturating_mul(elements).saturating_mul(DType::F32.size() as u64), self.levels[3].bytes_per_us)
    }

    fn compute_time(&self, ops: &Ops) -> u64 {
        let parts = [
            (ops.product, self.product_per_us),
            (ops.convolution, self.convolution_per_us),
            (ops.blocked_convolution, self.blocked_convolution_per_us),
            (ops.direct, self.direct_per_us),
            (ops.simple, self.simple_per_us),
            (ops.division, self.division_per_us),
            (ops.call, self.call_per_us),
            (ops.lookup, self.lookup_per_us),
        ];
        parts.into_iter().map(|(count, rate)| scaled(count, rate)).fold(0, u64::saturating_add)
    }
}

/// Picoseconds for `count` at `rate` per microsecond.
fn scaled(count: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(count) * u128::from(PS) / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::AVX512_CORE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_is_checked() {
        let mut machine = CostModel { launch_ns: 17, ..CostModel::default() };
        assert_eq!(CostModel::from_text(&machine.to_text()), Ok(machine));
        machine.call_per_us = 0;
        assert!(CostModel::from_text(&machine.to_text()).is_err());
        machine = CostModel::default();
        machine.levels.swap(0, 1);
        assert!(CostModel::from_text(&machine.to_text()).is_err());
        let misspelt = CostModel::default().to_text().replace("launch_ns", "launch");
        assert!(CostModel::from_text(&misspelt).unwrap_err().to_string().contains("launch"));
    }

    #[test]
    fn a_kernel_takes_the_longer_of_moving_and_computing() {
        use crate::cost::work::Read;
        let machine = CostModel::default();
        let bytes = 1 << 20;
        let mut work =
            KernelWork { reads: vec![Read { bytes, of: bytes }], writes: vec![bytes], ..KernelWork::default() };
        let moving = 2 * machine.move_time(bytes, bytes) + machine.launch_ns * 1000;
        work.ops.simple = 1;
        assert_eq!(machine.time(&work), moving);
        work.ops.call = 1 << 30;
        assert!(machine.time(&work) > moving);
        assert!(machine.move_time(64, 1 << 30) > machine.move_time(64, 64));
    }
}
