//! Prints the speed of the library kernels on one thread, in GFLOP/s and as a share of the
//! machine's measured multiply-add peak.
//!
//! `cargo run --release -p tensorc-bench --example bench_kernels [FILTER [avx512|avx2|neon|portable]]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use tensorc_abi::{
    BatchedGemm, CHANNEL_BLOCK, Conv2d, ConvAlgorithm, ConvPass, GemmElements, ImageLayout, MatrixLayout,
    PackedElements, Packing,
};
use tensorc_kernels::{
    Isa, conv_run_with, conv_scratch, conv_tasks, gemm_run_with, gemm_scratch, gemm_tasks, isa, pack, packed_len,
};
use tensorc_runtime::roofline::multiply_adds;

/// Shortest time of one call, in seconds.
fn best(mut call: impl FnMut()) -> f64 {
    call();
    let once = Instant::now();
    call();
    let repeats = (2e-4 / once.elapsed().as_secs_f64().max(1e-8)).clamp(1.0, 10_000.0) as u32;
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        for _ in 0..repeats {
            call();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(repeats));
    }
    best
}

/// Multiply-add peak of one core in FLOP/s, where it is measured.
fn peak(isa: Isa) -> f64 {
    const ROUNDS: u64 = 100_000;
    let mut call = || {
        black_box(multiply_adds(isa, ROUNDS));
    };
    multiply_adds(isa, ROUNDS).map_or(f64::NAN, |flops| flops as f64 / best(&mut call))
}

/// Numbers that start at a cache line, as the run time lays them out.
struct Aligned(Vec<f32>, usize);
impl Aligned {
    fn of(v: &[f32]) -> Aligned {
        let mut all = vec![0.0f32; v.len() + 16];
        let skip = all.as_ptr().align_offset(64);
        all[skip..skip + v.len()].copy_from_slice(v);
        Aligned(all, skip)
    }
    fn as_ptr(&self) -> *const f32 {
        self.0[self.1..].as_ptr()
    }
    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0[self.1..].as_mut_ptr()
    }
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect()
}

struct Report {
    isa: Isa,
    peak: f64,
    filter: String,
}

impl Report {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn line(&self, name: &str, flops: f64, bytes: f64, seconds: f64, tasks: u64) {
        println!(
            "{name:<34} {:>10.1} us {:>7.1} GFLOP/s {:>5.1} % {:>7.1} GB/s {tasks:>5} tasks",
            seconds * 1e6,
            flops / seconds / 1e9,
            100.0 * flops / seconds / self.peak,
            bytes / seconds / 1e9,
        );
    }

    /// `form`: 'p' prepacked B, 'n' row-major B, 't' column-major B, 'g' column-major A.
    fn gemm(&self, batch: u64, [m, n, k]: [u64; 3], form: char) {
        let name = format!("gemm {batch}x{m}x{n}x{k} {form}");
        if !self.wants(&name) {
            return;
        }
        let layout = |rows: u64, cols: u64| MatrixLayout {
            offset: 0,
            batch_strides: [0, 0, (rows * cols) as i64],
            row_stride: cols as i64,
            col_stride: 1,
        };
        let mut b = layout(k, n);
        if form == 't' {
            (b.row_stride, b.col_stride) = (1, k as i64);
        }
        let mut a = layout(m, k);
        if form == 'g' {
            (a.row_stride, a.col_stride) = (1, m as i64);
        }
        let call = BatchedGemm {
            batch: [1, 1, batch],
            m,
            n,
            k,
            a,
            b,
            c: layout(m, n),
            b_packed: form == 'p',
            elements: GemmElements::F32,
        };
        let a = numbers((batch * m * k) as usize);
        let mut b = numbers((batch * k * n) as usize);
        let c = vec![0.0f32; (batch * m * n) as usize];
        if call.b_packed {
            let packing =
                Packing::GemmB { k, n, offset: 0, row_stride: n as i64, col_stride: 1, elements: PackedElements::F32 };
            let mut packed = vec![0.0; packed_len(&packing)];
            // SAFETY: `b` is the k×n matrix.
            unsafe { pack(&packing, b.as_ptr().cast(), &mut packed) };
            b = packed;
        }
        let mut scratch = Aligned::of(&vec![0.0f32; gemm_scratch(&call, None) / 4 + 1]);
        let (a, b, mut c) = (Aligned::of(&a), Aligned::of(&b), Aligned::of(&c));
        let tasks = gemm_tasks(&call);
        let seconds = best(|| {
            // SAFETY: the buffers have the sizes the call states.
            unsafe {
                gemm_run_with(
                    self.isa,
                    &call,
                    a.as_ptr(),
                    b.as_ptr(),
                    c.as_mut_ptr(),
                    None,
                    0..tasks,
                    scratch.as_mut_ptr().cast(),
                );
            }
        });
        let bytes = 4.0 * (batch * (m * k + k * n + m * n)) as f64;
        self.line(&name, 2.0 * (batch * m * n * k) as f64, bytes, seconds, tasks);
    }

    /// Square image, "same" padding; `groups == in_channels == out_channels` for depthwise.
    fn conv(&self, net: &str, [inputs, outputs, groups]: [u64; 3], size: u64, kernel: u64, stride: u64) {
        let call = Conv2d {
            batch: 1,
            groups,
            in_channels: inputs / groups,
            out_channels: outputs / groups,
            input: [size; 2],
            output: [(size - 1) / stride + 1; 2],
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [1; 2],
            pads: [kernel / 2; 2],
            pass: ConvPass::Packed(ConvAlgorithm::Direct),
            images: [0; 2],
            layouts: [ImageLayout::Nchw; 2],
        };
        let name = format!("{net} {kernel}x{kernel}s{stride} {inputs}-{outputs} {size}");
        self.pass(&name, call);
        let whole = |channels: u64| channels.is_multiple_of(CHANNEL_BLOCK);
        if whole(outputs) && (groups == 1 || groups == inputs) {
            use ImageLayout::{Nchw, Nchw16c, Nhwc};
            let from = if whole(inputs) { Nchw16c } else { Nchw };
            let sides = [("blocks", [from, Nchw16c]), ("last", [Nhwc; 2]), ("to planes", [from, Nchw])];
            let calls = sides.map(|(sides, layouts)| (sides, Conv2d { layouts, ..call }));
            for (sides, call) in calls.into_iter().filter(|(_, call)| !call.in_planes() && call.layouts_fit()) {
                self.pass(&format!("{name} {sides}"), call);
                if call.allows(ConvAlgorithm::WinogradF2) {
                    for (size, pass) in [
                        (2, ConvPass::Packed(ConvAlgorithm::WinogradF2)),
                        (4, ConvPass::Packed(ConvAlgorithm::WinogradF4)),
                    ] {
                        self.pass(&format!("{name} {sides} winograd{size}"), Conv2d { pass, ..call });
                    }
                }
            }
        }
    }

    /// The three products of a layer in training.
    fn training(&self, net: &str, call: Conv2d) {
        let Conv2d { batch, in_channels, out_channels, input, kernel, strides, .. } = call;
        let layer =
            format!("{net} {}x{}s{} {in_channels}-{out_channels} {}", kernel[0], kernel[1], strides[0], input[0]);
        for (what, pass) in [("y", ConvPass::Forward), ("dx", ConvPass::DataGradient), ("dw", ConvPass::FilterGradient)]
        {
            self.pass(&format!("{layer} b{batch} {what}"), Conv2d { pass, ..call });
        }
    }

    fn pass(&self, name: &str, call: Conv2d) {
        if !self.wants(name) {
            return;
        }
        let [x, w, y] = call.sizes().map(|size| numbers(size.unwrap_or(0) as usize));
        let packing = Packing::Conv(call);
        let mut packed = vec![0.0; packed_len(&packing)];
        // SAFETY: `w` has as many filters as the call.
        unsafe { pack(&packing, w.as_ptr().cast(), &mut packed) };
        let bytes = 4.0 * (x.len() + w.len() + y.len()) as f64;
        let (x, packed, y) = match call.pass {
            ConvPass::Packed(_) | ConvPass::PackedBytes => (x, packed, y),
            ConvPass::Forward | ConvPass::Bytes => (x, w, y),
            ConvPass::DataGradient => (y, w, x),
            ConvPass::FilterGradient => (x, y, w),
        };
        let mut scratch = Aligned::of(&vec![0.0f32; conv_scratch(&call, None) / 4 + 1]);
        let (x, packed, mut y) = (Aligned::of(&x), Aligned::of(&packed), Aligned::of(&y));
        let tasks = conv_tasks(&call);
        let seconds = best(|| {
            // SAFETY: the buffers have the sizes the call states.
            unsafe {
                conv_run_with(
                    self.isa,
                    &call,
                    x.as_ptr(),
                    packed.as_ptr(),
                    y.as_mut_ptr(),
                    None,
                    0..tasks,
                    scratch.as_mut_ptr().cast(),
                );
            }
        });
        self.line(name, call.flops() as f64, bytes, seconds, tasks);
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let filter = args.next().unwrap_or_default();
    let isa = match args.next().as_deref() {
        Some("amx") => Isa::Amx,
        Some("avx512") => Isa::Avx512,
        Some("avx2") => Isa::Avx2,
        Some("neon") => Isa::Neon,
        Some("portable") => Isa::Portable,
        _ => isa(),
    };
    let report = Report { isa, peak: peak(isa), filter };
    println!("{isa:?}, peak {:.1} GFLOP/s", report.peak / 1e9);
    for mnk in [
        [128, 768, 768],
        [128, 3072, 768],
        [128, 768, 3072],
        [1024, 1024, 1024],
        [2048, 2048, 2048],
        [1, 4096, 4096],
        [1, 1000, 2048],
        [4, 1024, 1024],
        [8, 1024, 1024],
        [1, 10, 16],
        [200, 200, 200],
    ] {
        report.gemm(1, mnk, 'p');
    }
    for mnk in [[256, 4096, 4096], [1024, 1024, 1024], [128, 768, 768], [4, 1024, 1024], [1, 1024, 1024], [1, 10, 16]] {
        report.gemm(1, mnk, 'n');
        report.gemm(1, mnk, 't');
    }
    report.gemm(12, [128, 128, 64], 't');
    report.gemm(12, [128, 64, 128], 'n');
    report.gemm(12, [128, 32, 128], 'n');
    report.gemm(64, [64, 64, 32], 't');
    report.gemm(64, [64, 32, 64], 'n');
    report.gemm(64, [64, 32, 64], 'g');
    report.gemm(64, [16, 16, 16], 'n');
    report.gemm(1, [4096, 1, 1024], 'n');
    report.conv("resnet", [3, 64, 1], 224, 7, 2);
    for (inputs, outputs, size, kernel, stride) in [
        (64, 64, 56, 1, 1),
        (64, 64, 56, 3, 1),
        (64, 256, 56, 1, 1),
        (256, 64, 56, 1, 1),
        (128, 128, 56, 3, 2),
        (256, 512, 56, 1, 2),
        (128, 128, 28, 3, 1),
        (128, 512, 28, 1, 1),
        (512, 128, 28, 1, 1),
        (256, 256, 14, 3, 1),
        (256, 1024, 14, 1, 1),
        (1024, 256, 14, 1, 1),
        (1024, 2048, 14, 1, 2),
        (512, 512, 14, 3, 2),
        (512, 512, 7, 3, 1),
        (512, 2048, 7, 1, 1),
        (2048, 512, 7, 1, 1),
    ] {
        report.conv("resnet", [inputs, outputs, 1], size, kernel, stride);
    }
    for (inputs, outputs, size) in [
        (64, 64, 224),
        (64, 128, 112),
        (128, 128, 112),
        (128, 256, 56),
        (256, 256, 56),
        (256, 512, 28),
        (512, 512, 28),
        (512, 512, 14),
    ] {
        report.conv("vgg", [inputs, outputs, 1], size, 3, 1);
    }
    report.conv("mobilenet", [3, 32, 1], 224, 3, 2);
    for (channels, size, stride) in [
        (32, 112, 1),
        (96, 112, 2),
        (144, 56, 1),
        (144, 56, 2),
        (192, 28, 1),
        (192, 28, 2),
        (384, 14, 1),
        (576, 14, 2),
        (960, 7, 1),
    ] {
        report.conv("mobilenet-dw", [channels; 3], size, 3, stride);
    }
    report.conv("depthwise", [240, 240, 240], 28, 5, 1);
    report.conv("depthwise", [240, 240, 240], 28, 5, 2);
    for (inputs, outputs, size) in [
        (32, 16, 112),
        (16, 96, 112),
        (144, 24, 56),
        (192, 32, 28),
        (384, 64, 14),
        (64, 384, 14),
        (160, 960, 7),
        (960, 320, 7),
        (320, 1280, 7),
    ] {
        report.conv("mobilenet", [inputs, outputs, 1], size, 1, 1);
    }
    report.conv("unet", [256, 256, 1], 64, 1, 1);
    report.conv("unet", [64, 64, 1], 128, 3, 1);
    report.conv("grouped", [128, 128, 32], 56, 3, 1);
    training(&report);
}

/// The products of an MLP, LeNet, ResNet-18 on 32×32 images and a small transformer in training.
fn training(report: &Report) {
    for [batch, inputs, outputs] in [
        [64, 784, 512],
        [64, 512, 512],
        [64, 512, 10],
        [64, 800, 500],
        [1024, 128, 384],
        [1024, 128, 512],
        [1024, 512, 128],
    ] {
        report.gemm(1, [batch, outputs, inputs], 't');
        report.gemm(1, [batch, inputs, outputs], 'n');
        report.gemm(1, [outputs, inputs, batch], 'g');
    }
    let layer = |batch, [inputs, outputs]: [u64; 2], size: u64, kernel: u64, stride: u64, pad: u64| Conv2d {
        batch,
        groups: 1,
        in_channels: inputs,
        out_channels: outputs,
        input: [size; 2],
        output: [(size + 2 * pad - kernel) / stride + 1; 2],
        kernel: [kernel; 2],
        strides: [stride; 2],
        dilations: [1; 2],
        pads: [pad; 2],
        pass: ConvPass::Forward,
        images: [0; 2],
        layouts: [ImageLayout::Nchw; 2],
    };
    report.training("lenet", layer(64, [1, 20], 28, 5, 1, 0));
    report.training("lenet", layer(64, [20, 50], 12, 5, 1, 0));
    report.training("cifar", layer(8, [3, 64], 32, 3, 1, 1));
    for (channels, size) in [(64, 32), (128, 16), (256, 8), (512, 4)] {
        report.training("cifar", layer(8, [channels, channels], size, 3, 1, 1));
        if channels > 64 {
            report.training("cifar", layer(8, [channels / 2, channels], 2 * size, 3, 2, 1));
            report.training("cifar", layer(8, [channels / 2, channels], 2 * size, 1, 2, 0));
        }
    }
}
