//! Fitting the cost model to the machine: small programs, each bound by one thing, on one thread.

use std::error::Error;
use std::fmt::Write;
use std::time::Instant;

use tensorc::ir::text::parse_module;
use tensorc::ir::{DType, DenseType};
use tensorc::runtime::{TensorMut, TensorRef};
use tensorc::schedule::cost::{CacheLevel, CostModel};
use tensorc::{Compiler, Options};

/// Prints a cost model of this machine, for `--cost-model`.
#[derive(clap::Args)]
pub struct FitMachineArgs {
    /// Timed runs of each program; the fastest counts
    #[arg(long, default_value_t = 200)]
    repeat: u32,
}

/// Elements of the programs that are bound by arithmetic: they stay in the second cache.
const ELEMENTS: u64 = 16 << 10;

pub fn run(arguments: &FitMachineArgs) -> Result<(), Box<dyn Error>> {
    let mut options = Options { threads: Some(1), ..Options::default() };
    // Chains of additions must stay what they are.
    options.passes.reassociate = false;
    let fit = Fit { compiler: Compiler::new(options)?, repeat: arguments.repeat };
    let launch = fit.seconds(&chain(16, 1, "add.f32 %x, 1.5"), &[], 1.0)?;
    let net = |seconds: f64| (seconds - launch).max(1e-9);
    let mut levels = CostModel::AVX512_CORE.levels;
    let mut below = 0;
    for level in &mut levels {
        // Both sides of an addition take up most of this level and do not fit into the one below.
        let tensor = match level.bytes {
            u64::MAX => below * 4,
            bytes => (bytes / 4).max(below / 2),
        };
        let seconds = net(fit.seconds(&chain(tensor / 4, 1, "add.f32 %x, 1.5"), &[], 1.0)?);
        *level = CacheLevel { bytes: level.bytes, bytes_per_us: rate(2 * tensor, seconds) };
        below = level.bytes;
    }
    let base = net(fit.seconds(&chain(ELEMENTS, 1, "add.f32 %x, 1.5"), &[], 1.0)?);
    let chained = |steps: u64, op: &str| -> Result<u64, Box<dyn Error>> {
        let seconds = net(fit.seconds(&chain(ELEMENTS, steps, op), &[], 1.0)?);
        Ok(rate(ELEMENTS * steps, (seconds - base).max(1e-9)))
    };
    let product = "graph @g(%x: f32[256, 512]) { %w = const f32[512, 512] random(1)
        %y = prim.contract(%x, %w) over [256, 512 | 512] lhs [d0, d2] rhs [d2, d1] : f32[256, 512] return %y }";
    let direct = "graph @g(%x: f64[64, 64], %w: f64[64, 64]) {
        %y = prim.contract(%x, %w) over [64, 64 | 64] lhs [d0, d2] rhs [d2, d1] : f64[64, 64] return %y }";
    let gather = format!(
        "graph @g(%x: f32[{ELEMENTS}], %i: i64[{ELEMENTS}]) {{ %y = prim.gather(%x, %i) axis 0 : f32[{ELEMENTS}] return %y }}"
    );
    let layouts = LayoutTimes::measure(arguments.repeat)?;
    let machine = CostModel {
        levels,
        product_per_us: rate(2 * 256 * 512 * 512, net(fit.seconds(product, &[], 1.0)?)),
        convolution_per_us: rate(layouts.flops(), layouts.dense[0]),
        blocked_convolution_per_us: rate(layouts.flops(), layouts.dense[1]),
        coefficient_bytes_per_us: rate(layouts.coefficients(), layouts.transforms()),
        depthwise_bytes_per_us: rate(layouts.image() * 2, layouts.depthwise[0]),
        blocked_depthwise_bytes_per_us: rate(layouts.image() * 2, layouts.depthwise[1]),
        conversion_bytes_per_us: rate(layouts.image(), layouts.conversion),
        direct_per_us: rate(2 * 64 * 64 * 64, net(fit.seconds(direct, &[], 1.0)?)),
        simple_per_us: chained(64, "add.f32 %x, 1.5")?,
        division_per_us: chained(16, "div.f32 %x, 1.5")?,
        call_per_us: chained(4, "exp.f32 %x")?,
        lookup_per_us: rate(ELEMENTS, net(fit.seconds(&gather, &positions(), 1.0)?)),
        launch_ns: (launch * 1e9) as u64,
    };
    print!("{}", machine.to_text());
    Ok(())
}

/// Seconds of one convolution over planes and over blocks of channels, and of moving a result from there to planes.
struct LayoutTimes {
    dense: [f64; 2],
    depthwise: [f64; 2],
    /// Of the dense one by Winograd convolution of tiles of 4 × 4.
    minimal: f64,
    conversion: f64,
}

impl LayoutTimes {
    const CHANNELS: u64 = 64;
    const SIDE: u64 = 28;

    /// Chains of convolutions, so that what happens at both ends counts once.
    fn measure(repeat: u32) -> Result<LayoutTimes, Box<dyn Error>> {
        let mut times = [[0.0; 2]; 2];
        let mut conversion = 0.0;
        for (blocks, reassociate) in [(0, false), (1, true)] {
            let mut options = Options { threads: Some(1), ..Options::default() };
            options.passes.reassociate = reassociate;
            // Whatever a conversion costs, the chains are laid out in blocks.
            options.passes.target.costs = Some(CostModel {
                blocked_convolution_per_us: u64::MAX,
                blocked_depthwise_bytes_per_us: u64::MAX,
                conversion_bytes_per_us: u64::MAX,
                ..CostModel::AVX512_CORE
            });
            let fit = Fit { compiler: Compiler::new(options)?, repeat };
            for (kind, dense) in [(0, true), (1, false)] {
                let [short, long] = [2, 6].map(|steps| fit.seconds(&convolutions(steps, dense), &[], 1.0));
                let (short, long) = (short?, long?);
                times[kind][blocks] = ((long - short) / 4.0).max(1e-9);
                if blocks == 1 && dense {
                    conversion = (short - 2.0 * times[kind][blocks]).max(1e-9);
                }
            }
        }
        let mut options = Options { threads: Some(1), ..Options::default() };
        options.passes.target.costs = Some(CostModel {
            coefficient_bytes_per_us: u64::MAX,
            conversion_bytes_per_us: u64::MAX,
            ..CostModel::AVX512_CORE
        });
        let fit = Fit { compiler: Compiler::new(options)?, repeat };
        let [short, long] = [2, 6].map(|steps| fit.seconds(&convolutions(steps, true), &[], 1.0));
        Ok(LayoutTimes { dense: times[0], depthwise: times[1], minimal: (long? - short?) / 4.0, conversion })
    }

    /// Bytes of coefficients of patches and tiles in Winograd convolution.
    const fn coefficients(&self) -> u64 {
        4 * 36 * (Self::SIDE / 4).pow(2) * 2 * Self::CHANNELS
    }

    /// Seconds that Winograd convolution takes beside its products, a quarter of the convolution's.
    fn transforms(&self) -> f64 {
        (self.minimal - self.dense[1] / 4.0).max(1e-9)
    }

    /// Floating-point operations of one dense convolution.
    const fn flops(&self) -> u64 {
        2 * Self::CHANNELS * Self::CHANNELS * 9 * Self::SIDE * Self::SIDE
    }

    /// Bytes of an image.
    const fn image(&self) -> u64 {
        4 * Self::CHANNELS * Self::SIDE * Self::SIDE
    }
}

/// Convolutions of 3 × 3, one after the other; between pointwise ones, which read and write planes, if they are
/// depthwise.
fn convolutions(steps: u64, dense: bool) -> String {
    let (c, n) = (LayoutTimes::CHANNELS, LayoutTimes::SIDE);
    let mut text = format!("graph @g(%v: f32[1, {c}, {n}, {n}]) {{\n");
    let mut kinds = vec![(if dense { 1 } else { c }, 3); steps as usize];
    if !dense {
        kinds.insert(0, (1, 1));
        kinds.push((1, 1));
    }
    for (i, (group, kernel)) in kinds.iter().enumerate() {
        let x = if i == 0 { "%v".to_owned() } else { format!("%y{}", i - 1) };
        let (inputs, pad) = (c / group, kernel / 2);
        // Writing to a string does not fail.
        let _ = writeln!(text, "%w{i} = const f32[{c}, {inputs}, {kernel}, {kernel}] random({i})");
        let pads = format!("pads = [{pad}, {pad}, {pad}, {pad}]");
        let _ = writeln!(text, "%y{i} = conv({x}, %w{i}) {{group = {group}, {pads}}} : f32[1, {c}, {n}, {n}]");
    }
    let _ = write!(text, "return %y{} }}", kinds.len() - 1);
    text
}

/// Operations per microsecond.
fn rate(count: u64, seconds: f64) -> u64 {
    ((count as f64 / (seconds * 1e6)) as u64).max(1)
}

/// One map of `n` elements that does `op` over and over.
fn chain(n: u64, steps: u64, op: &str) -> String {
    let mut text = format!("graph @g(%v: f32[{n}]) {{ %y = prim.map(%v) (%x: f32) {{\n");
    for i in 0..steps {
        let x = if i == 0 { "%x".to_owned() } else { format!("%t{}", i - 1) };
        // Writing to a string does not fail.
        let _ = writeln!(text, "%t{i} = {}", op.replace("%x", &x));
    }
    let _ = write!(text, "yield %t{} }} : f32[{n}] return %y }}", steps - 1);
    text
}

/// Positions all over the operand, far from each other.
fn positions() -> Vec<u8> {
    (0..ELEMENTS).flat_map(|i| (i * 2_654_435_761 % ELEMENTS).to_le_bytes()).collect()
}

struct Fit {
    compiler: Compiler,
    repeat: u32,
}

impl Fit {
    /// The fastest run of a graph with inputs of one value, and the last input as given if it is.
    fn seconds(&self, text: &str, last: &[u8], value: f32) -> Result<f64, Box<dyn Error>> {
        let module = parse_module(text, self.compiler.registry())?;
        let graph = module.graphs.into_iter().next().ok_or("no graph")?;
        let types: Vec<DenseType> = graph
            .inputs()
            .iter()
            .map(|&node| graph.dense(tensorc::ir::graph::Value { node, port: 0 }))
            .collect::<Result<_, _>>()?;
        let results: Vec<DenseType> = graph.outputs().iter().map(|(_, v)| graph.dense(*v)).collect::<Result<_, _>>()?;
        let mut session = self.compiler.model(graph).compile(&types)?;
        let fill = |ty: &DenseType| -> Vec<u8> {
            match ty.dtype {
                DType::I64 => last.to_vec(),
                DType::F64 => (0..ty.len()).flat_map(|_| f64::from(value).to_le_bytes()).collect(),
                _ => (0..ty.len()).flat_map(|_| value.to_le_bytes()).collect(),
            }
        };
        let inputs: Vec<Vec<u8>> = types.iter().map(fill).collect();
        let refs: Vec<TensorRef<'_>> =
            types.iter().zip(&inputs).map(|(t, b)| TensorRef::new(t.dtype, &t.dims, b)).collect();
        let mut buffers: Vec<Vec<u8>> = results.iter().map(|t| vec![0; t.bytes() as usize]).collect();
        let mut best = f64::INFINITY;
        for _ in 0..self.repeat.max(1) {
            let mut outputs: Vec<TensorMut<'_>> =
                results.iter().zip(&mut buffers).map(|(t, b)| TensorMut::new(t.dtype, &t.dims, b)).collect();
            let start = Instant::now();
            session.run_into(&refs, &mut outputs)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    }
}
