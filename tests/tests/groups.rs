//! Products by groups of warps: in the interpreter against the reference, and as machine code.
//!
//! The disassembler comes from a pinned package, as the assembler does.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::parse_module;
use tensorc::runtime::Device;
use tensorc::runtime::gpu::Driver;
use tensorc::schedule::target::Capability;
use tensorc::{Backend, Compiler};
use tensorc_codegen::lower::lower_with;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::verify::verify_kernel;
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_random::Rng;
use tensorc_simulator::run_launch;
use tensorc_tests::cache::{Package, visible};
use tensorc_tests::compare::tensor;
use tensorc_tests::corpus;
use tensorc_tests::launches::{Recorder, Repeated, entry, execute, unnoticed};
use tensorc_tests::ptx::Module;

use crate::gpu::{ptxas, tool};
use crate::support::agrees;

/// Instructions that order threads, the copy engine and matrix units.
const ORDERING: [&str; 7] = [
    "bar.sync",
    "@!p bra AGAIN",
    "mbarrier.arrive",
    "mbarrier.init",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
];

fn compiler() -> Compiler {
    compiler_for(interpreted(), false)
}

fn interpreted() -> Arc<dyn Driver> {
    tensorc_simulator::interpreted_as(Device::accelerator(0), Capability::Sm90a)
}

fn compiler_for(gpu: Arc<dyn Driver>, tf32: bool) -> Compiler {
    corpus::compiler(Some(gpu), tf32).unwrap()
}

fn graph(compiler: &Compiler, inputs: &str, body: &str, dtype: DType) -> Graph {
    corpus::graph(compiler.registry(), inputs, body, dtype)
}

fn kernels(compiler: &Compiler, graph: &Graph) -> Vec<Kernel> {
    corpus::kernels(compiler, graph).unwrap()
}

/// In KIR against the reference; with LLVM also as PTX, which has the same bits in any order of threads.
#[test]
fn products_agree_with_the_interpreter() {
    let recorder = Recorder::new(interpreted());
    let compilers = [false, true].map(|tf32| compiler_for(recorder.clone(), tf32));
    for (case, grouped) in corpus::groups::cases(compilers[0].registry()) {
        let (name, compiler) = (&case.name, &compilers[usize::from(case.tf32)]);
        let kernels = kernels(compiler, &case.graph);
        let by_groups = kernels.iter().any(|kernel| !kernel.tensor_maps().is_empty());
        assert_eq!(by_groups, grouped, "{name}");
        let outputs = case.run(compiler).unwrap_or_else(|e| panic!("{name}: {e}"));
        agrees(&case, compiler.registry(), &outputs);
        let launches = recorder.take();
        assert_eq!(launches.len(), kernels.len(), "{name}");
        if Backend::has_llvm() {
            let ptx = Repeated::new(&kernels, &[Capability::Sm90a]).unwrap();
            for (seed, launch) in (0..8).flat_map(|seed| launches.iter().map(move |launch| (seed, launch))) {
                ptx.check(name, &kernels, launch, seed);
            }
        }
    }
}

/// A function of an input is computed where its tiles are stored, if it is part of the product's cluster.
#[test]
fn operands_are_computed_for_tiles() {
    let compiler = compiler();
    for side in ["x", "w"] {
        let (dims, operands) = if side == "x" { ("70, 136", "%r, %w") } else { ("136, 72", "%x, %r") };
        let text = format!(
            "tensorc-ir 1\ngraph @main(%x: f16[70, 136], %w: f16[136, 72]) {{\n  \
             %y = fused.contract(%x, %w) (%x: f16[70, 136], %w: f16[136, 72]) {{\n    \
             %r = prim.map(%{side}) (%x0: f16) {{ %0 = cast.f32 %x0 %1 = abs.f32 %0 %2 = sub.f32 %1, 0.5 %3 = cast.f16 %2 \
             yield %3 }} : f16[{dims}]\n    \
             %p = prim.contract({operands}) over [70, 72 | 136] lhs [d0, d2] rhs [d2, d1] : f16[70, 72]\n    \
             return %p\n  }} : f16[70, 72]\n  return %y\n}}\n"
        );
        let graph = parse_module(&text, compiler.registry()).unwrap_or_else(|e| panic!("{e}")).graphs.swap_remove(0);
        let kernel =
            lower_with(&graph, compiler.registry().math(), compiler.choices(), 1).unwrap().kernels.swap_remove(0);
        verify_kernel(&kernel).unwrap();
        assert_eq!(kernel.tensor_maps().len(), 1, "one operand comes by the copy engine");
        let mut rng = Rng::new(4);
        let values = [[70, 136], [136, 72]].map(|dims| {
            let ty = DenseType::new(DType::F16, dims);
            TensorData::from_fn(ty, |_| Scalar::from_f64(DType::F16, rng.below(401) as f64 / 100.0 - 2.0))
        });
        let expected = eval_graph(&graph, compiler.registry(), &values).unwrap().swap_remove(0);
        let bytes =
            |data: &TensorData| -> Vec<u8> { data.iter().flat_map(|x| (x.bits as u16).to_le_bytes()).collect() };
        let mut buffers = [bytes(&values[0]), bytes(&values[1]), vec![0; 70 * 72 * 2]];
        run_launch(&kernel, &mut buffers).unwrap_or_else(|e| panic!("{side}: {e}"));
        let found: Vec<f64> = buffers[2].chunks_exact(2).map(|b| Scalar::read(DType::F16, b).as_f64()).collect();
        let largest = expected.iter().map(|x| x.as_f64().abs()).fold(1e-30, f64::max);
        for (at, (a, b)) in expected.iter().map(|x| x.as_f64()).zip(&found).enumerate() {
            assert!((a - b).abs() <= 2e-3 * largest, "{side}, element {at}: {a} expected, {b} found");
        }
        if Backend::has_llvm() {
            let entry = entry(&kernel);
            let module = Module::parse(&tensorc::gpu::ptx(&[kernel], Capability::Sm90a).unwrap()).unwrap();
            let right = buffers[2].clone();
            for seed in 0..4 {
                buffers[2].fill(0);
                let outcome = execute(&module, &entry, &mut buffers, &[false, false, true], seed);
                outcome.unwrap_or_else(|fault| panic!("{side}: {fault}"));
                assert!(right == buffers[2], "{side}: PTX gives other sums");
            }
        }
    }
}

/// Nothing that orders threads, the copy engine and matrix units may be left out of a kernel, but for the news that tiles may be
/// fetched again which are not.
#[test]
fn order_that_is_left_out_is_found() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let recorder = Recorder::new(interpreted());
    let gpu = compiler_for(recorder.clone(), true);
    // Of f32 the right operand is turned by threads.
    for (dtype, computed) in [(DType::BF16, false), (DType::F32, true)] {
        let graph = graph(&gpu, "%x: T[64, 320], %w: T[320, 64]", "%y = matmul(%x, %w)", dtype);
        let mut rng = Rng::new(2);
        let mut given = |name: &'static str| {
            let ty = DenseType::new(dtype, if name == "x" { &[64, 320] } else { &[320, 64] });
            (name, tensor(&TensorData::from_fn(ty, |_| Scalar::from_f64(dtype, rng.below(9) as f64 - 4.0))))
        };
        gpu.model(graph.clone()).run(&[given("x"), given("w")]).unwrap();
        let launches = recorder.take();
        let kernels = kernels(&gpu, &graph);
        let (left, count) = unnoticed(&kernels, Capability::Sm90a, &launches[0], &ORDERING);
        let last = |line: &&String| line.contains("mbarrier.arrive.shared::cta");
        assert!(left.iter().filter(|line| !last(line)).count() == 0 && left.len() < count / 4, "{left:#?} of {count}");
        // What is stored to tiles is shown by one fence; the others are for nothing but barriers.
        let (left, count) = unnoticed(&kernels, Capability::Sm90a, &launches[0], &["fence.proxy.async"]);
        assert_eq!(count - left.len(), usize::from(computed), "{left:#?}");
    }
}

/// More tiles than blocks: each block computes some in turn, through barriers that go on counting.
#[test]
fn blocks_compute_tiles_in_turn() {
    const SHAPE: [usize; 3] = [1536, 72, 768];
    let [rows, terms, columns] = SHAPE;
    let compiler = compiler();
    let inputs = format!("%x: T[{rows}, {terms}], %w: T[{terms}, {columns}]");
    let kernel = kernels(&compiler, &graph(&compiler, &inputs, "%y = matmul(%x, %w)", DType::BF16)).swap_remove(0);
    assert_eq!(kernel.launch().map(|launch| (launch.blocks, launch.threads)), Some((132, 384)), "for 144 tiles");
    let mut rng = Rng::new(1);
    let mut small = |n: usize| (0..n).map(|_| rng.below(9) as f32 - 4.0).collect::<Vec<f32>>();
    let (x, w) = (small(rows * terms), small(terms * columns));
    let bytes = |values: &[f32]| -> Vec<u8> {
        let mut bytes = vec![0; values.len() * 2];
        let each = bytes.chunks_exact_mut(2).zip(values);
        each.for_each(|(to, x)| Scalar::from_f64(DType::BF16, f64::from(*x)).write(to));
        bytes
    };
    let mut buffers = [bytes(&x), bytes(&w), vec![0; rows * columns * 2]];
    let counts = run_launch(&kernel, &mut buffers).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(counts.group_products, 144 * 2 * 2, "of two groups, two steps");
    let mut sums = vec![0f32; rows * columns];
    for (row, sums) in sums.chunks_exact_mut(columns).enumerate() {
        for (x, w) in x[row * terms..(row + 1) * terms].iter().zip(w.chunks_exact(columns)) {
            sums.iter_mut().zip(w).for_each(|(sum, w)| *sum += x * w);
        }
    }
    assert_eq!(bytes(&sums), buffers[2]);
    if Backend::has_llvm() {
        let entry = entry(&kernel);
        let module = Module::parse(&tensorc::gpu::ptx(&[kernel], Capability::Sm90a).unwrap()).unwrap();
        buffers[2].fill(0);
        execute(&module, &entry, &mut buffers, &[false, false, true], 3).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(bytes(&sums) == buffers[2], "PTX gives other sums");
    }
}

/// A layer of a usual size, in all four orders of its operands, becomes the instructions it should, without a spilled
/// register and without products that the assembler makes wait for each other.
#[test]
fn the_machine_code_multiplies_by_groups() {
    const DISASSEMBLER: Package = Package {
        spec: "nvidia-cuda-nvdisasm==13.2.86",
        options: &["--only-binary=:all:", "--platform=manylinux2014_x86_64"],
        sha256: "53606e719ecae07a2335f95902d5a1393a0cc1c317499ee7ffcf628a44385f2c",
    };
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let (Some(ptxas), Some(nvdisasm)) = (ptxas(), tool("nvdisasm", DISASSEMBLER)) else { return };
    let (compiler, rounding) = (compiler(), compiler_for(interpreted(), true));
    let scratch = tempfile::tempdir().unwrap();
    let (source, code) = (scratch.path().join("k.ptx"), scratch.path().join("k.cubin"));
    let usual = "%x: T[4096, 4096], %w: T[4096, 4096], %b: T[4096]";
    let heads = "%x: T[2, 8, 4096, 128], %w: T[2, 8, 128, 4096], %b: T[4096]";
    let turned = [(usual, "x", "w"), (usual, "x", "v"), (usual, "t", "w"), (usual, "t", "v"), (heads, "x", "w")];
    let all = turned.into_iter().map(|case| (case, DType::BF16)).chain([((usual, "x", "v"), DType::F32)]);
    // One operand comes by threads: to be turned, or since its rows are at odd distances.
    let odd = "%x: T[4096, 4095], %w: T[4095, 4096], %b: T[4096]";
    let computed = [((usual, "x", "w"), DType::F32), ((odd, "x", "w"), DType::BF16)];
    for ((inputs, x, w), dtype) in all.chain(computed) {
        let compiler = if dtype == DType::F32 { &rounding } else { &compiler };
        let t = if x == "t" { "%t = transpose(%x) {perm = [1, 0]}" } else { "" };
        let v = if w == "v" { "%v = transpose(%w) {perm = [1, 0]}" } else { "" };
        let body = format!("{t} {v} %p = matmul(%{x}, %{w}) %s = add(%p, %b) %y = gelu(%s)");
        let kernels = kernels(compiler, &graph(compiler, inputs, &body, dtype));
        fs::write(&source, tensorc::gpu::ptx(&kernels, Capability::Sm90a).unwrap()).unwrap();
        let output = Command::new(&ptxas).args(["-v", "-arch=sm_90a", "-o"]).arg(&code).arg(&source).output().unwrap();
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{report}");
        assert!(report.contains(" 0 bytes spill stores"), "{report}");
        let complaints = ["warning", "wgmma", "setmaxnreg", "Performance"];
        assert!(!complaints.iter().any(|word| report.contains(word)), "{report}");
        let output = Command::new(&nvdisasm).arg(&code).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let count = |word: &str| text.matches(word).count();
        let products = if dtype == DType::F32 { "HGMMA.64x256x8.F32.TF32" } else { "HGMMA.64x256x16.F32.BF16" };
        assert_eq!(count(products), 8, "the first step and one of the loop, four times 32 bytes of terms each");
        let copies = if inputs == heads { "UTMALDG.3D" } else { "UTMALDG.2D" };
        let fetched = if computed.contains(&((inputs, x, w), dtype)) { 1 } else { 2 };
        assert!(count(copies) >= fetched, "operands are fetched by the copy engine");
        assert_eq!(count("USETMAXREG"), 2, "registers go from one role to the other");
        assert_eq!((count("LDL"), count("STL")), (0, 0), "no memory of a thread's own");
    }
    let kernel =
        kernels(&compiler, &graph(&compiler, "%x: T[64, 64], %w: T[64, 64]", "%y = matmul(%x, %w)", DType::F16));
    let refused = tensorc::gpu::ptx(&kernel, Capability::Sm80).unwrap_err().to_string();
    assert!(refused.contains("products of groups of warps need compute capability 9.0a"), "{refused}");
}
