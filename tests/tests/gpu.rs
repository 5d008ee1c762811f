//! Kernels for GPUs: every emitter on awkward shapes, in the interpreter against the reference, and through NVIDIA's
//! assembler.
//!
//! The assembler comes from a pinned package; without a package index, or in a build without LLVM, that test says that it is
//! skipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use tensorc::ir::kir::Kernel;
use tensorc::runtime::Device as Place;
use tensorc::schedule::target::Capability;
use tensorc::{Backend, Compiler, DType};
use tensorc_tests::cache::{Package, fetch, folder, member, visible};
use tensorc_tests::corpus::{self, Case, compiler, draws, emitters, groups, kernels};
use tensorc_tests::launches::{Recorder, Repeated, unnoticed};

use crate::support::agrees;

/// A GPU of the interpreter whose launches are recorded, and compilers for it, without and with tf32.
fn recorded() -> (Arc<Recorder>, [Compiler; 2]) {
    let recorder = Recorder::new(tensorc_simulator::interpreted(Place::accelerator(0)));
    let compilers = [false, true].map(|tf32| compiler(Some(recorder.clone()), tf32).unwrap());
    (recorder, compilers)
}

/// Kernels are executed as they are written, in KIR, against the reference; with LLVM also what it makes of them, in PTX, which has the
/// same bits.
#[test]
fn every_emitter_agrees_with_the_interpreter() {
    let (recorder, compilers) = recorded();
    let (mut compared, mut repeated, mut steps) = (0, 0, 0);
    for case in emitters::cases(compilers[0].registry()) {
        let compiler = &compilers[usize::from(case.tf32)];
        let outputs = case.run(compiler).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        agrees(&case, compiler.registry(), &outputs);
        let launches = recorder.take();
        if Backend::has_llvm() {
            let kernels = kernels(compiler, &case.graph).unwrap();
            let ptx = Repeated::new(&kernels, &Capability::ALL).unwrap();
            steps += launches.iter().map(|launch| ptx.check(&case.name, &kernels, launch, compared)).sum::<u64>();
            repeated += launches.len();
        }
        compared += 1;
    }
    visible(&format!("gpu: {compared} programs agree with the interpreter"));
    visible(&format!("gpu: {repeated} launches have the same bits as PTX, in {steps} instructions of threads"));
}

/// Random numbers of a GPU are those of a processor, bit by bit: a draw depends on its key and position alone.
#[test]
fn random_numbers_have_the_bits_of_a_processor() {
    let (recorder, [gpu, _]) = recorded();
    let cpu = compiler(None, false).unwrap();
    let mut without_code = vec![];
    for case in draws::cases(gpu.registry()) {
        let name = &case.name;
        let run = |compiler: &Compiler| case.run(compiler).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (expected, found) in run(&cpu).iter().zip(&run(&gpu)) {
            assert_eq!(expected, found, "{name}");
        }
        let launches = recorder.take();
        if Backend::has_llvm() {
            let kernels = kernels(&gpu, &case.graph).unwrap();
            match Repeated::new(&kernels, &Capability::ALL) {
                Ok(ptx) => assert!(launches.iter().all(|launch| ptx.check(name, &kernels, launch, 1) > 0)),
                Err(why) => without_code.push(format!("{name}: {why}")),
            }
        }
    }
    let of_f64 = |why: &String| why.contains(" on f64 has no code for a GPU");
    assert!(without_code.len() <= 4 && without_code.iter().all(of_f64), "{without_code:#?}");
}

/// Nothing that orders threads may be left out of a kernel: the interpreter of PTX finds the race, or other bits.
#[test]
fn synchronisation_that_is_left_out_is_found() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let (recorder, [compiler, _]) = recorded();
    let opcodes = ["bar.sync", "cp.async.commit_group", "cp.async.wait_group"];
    let names = ["transpose and more of f32", "long softmax of f32", "aligned product of f16", "column sum of f32"];
    let (mut removed, mut unseen) = (0, vec![]);
    for case in emitters::cases(compiler.registry()).into_iter().filter(|case| names.contains(&case.name.as_str())) {
        case.run(&compiler).unwrap();
        let kernels = kernels(&compiler, &case.graph).unwrap();
        for launch in recorder.take() {
            let (left, count) = unnoticed(&kernels, Capability::Sm80, &launch, &opcodes);
            removed += count;
            unseen.extend(left.into_iter().map(|line| format!("{}, {}: {line}", case.name, launch.entry.name)));
        }
    }
    assert!(unseen.is_empty() && removed >= 8, "{unseen:#?} of {removed}");
}

/// The assembler; `None`, after a visible line, where it cannot be had.
pub fn ptxas() -> Option<PathBuf> {
    const PACKAGE: Package = Package {
        spec: "nvidia-cuda-nvcc==13.0.88",
        options: &["--only-binary=:all:", "--platform=manylinux2014_x86_64"],
        sha256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    };
    tool("ptxas", PACKAGE)
}

/// A program of NVIDIA's from a package; `None`, after a visible line, where it cannot be had.
pub fn tool(name: &str, package: Package) -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        visible(&format!("skipped: {name} is for x86-64 Linux"));
        return None;
    }
    let version = package.spec.split("==").last().unwrap_or_default();
    let place = folder().join(format!("{name}-{version}"));
    if !place.exists() {
        let bytes = member(&fetch(package)?, &format!("nvidia/cu13/bin/{name}")).unwrap();
        let part = folder().join(format!("{name}.part-{}", std::process::id()));
        fs::write(&part, &bytes).unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&part, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&part, &place).unwrap();
    }
    Some(place)
}

#[test]
fn the_assembler_takes_every_kernel() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let Some(ptxas) = ptxas() else { return };
    let (_, compilers) = recorded();
    // Of the kernel that sorts, which an operator brings along, the assembler keeps 32 registers and spills a few bytes.
    let mut cases = emitters::cases(compilers[0].registry());
    cases.retain(|case| !case.name.starts_with("sorted rows"));
    let written = |case: &Case| kernels(&compilers[usize::from(case.tf32)], &case.graph).unwrap();
    let all: Vec<Kernel> = cases.iter().flat_map(written).collect();
    // Sums of heads of more than 128 elements take more.
    let wide = cases.iter().filter(|case| case.name.contains("very wide") || case.name.contains("different widths"));
    let wide = wide.count();
    let scratch = tempfile::tempdir().unwrap();
    for capability in Capability::ALL {
        let text = tensorc::gpu::ptx(&all, capability).unwrap_or_else(|e| panic!("{e}"));
        let file = scratch.path().join("kernels.ptx");
        fs::write(&file, &text).unwrap();
        let output = Command::new(&ptxas)
            .args(["-v", &format!("-arch={}", capability.processor()), "-o"])
            .arg(scratch.path().join("kernels.cubin"))
            .arg(&file)
            .output()
            .unwrap();
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{report}");
        // Of a convolution the assembler spills one register, though it may use more of them.
        let spilled = |line: &str| line.split_once(" bytes spill stores")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        assert!(report.lines().filter_map(spilled).sum::<u64>() <= 4, "registers are spilled:\n{report}");
        let registers = report.lines().filter_map(|l| l.split("Used ").nth(1)?.split(' ').next()?.parse::<u32>().ok());
        let registers: Vec<u32> = registers.collect();
        assert_eq!(registers.len(), all.len(), "a report for every kernel:\n{report}");
        let most = registers.iter().max().copied().unwrap_or(0);
        // Three blocks of 128 threads, which is what kernels with so many have.
        let more: Vec<u32> = registers.into_iter().filter(|n| *n > 168).collect();
        assert!(more.len() <= wide, "{more:?} registers");
        let name = capability.processor();
        visible(&format!("gpu: {} kernels for {name}: {most} registers at most", all.len()));
    }
}

/// The assembler loses the borrow of such a subtraction where nothing is subtracted (ptxas 13.0 for sm_90): addresses of the first
/// elements get ones in their upper halves.
#[test]
fn no_index_is_64_bits_less_than_the_high_half_of_a_product() {
    if !Backend::has_llvm() {
        visible("skipped: PTX needs a build with the feature `llvm`");
        return;
    }
    let (_, [compiler, _]) = recorded();
    let concat = corpus::graph(
        compiler.registry(),
        "%a: T[2, 3, 5, 8], %b: T[2, 3, 7, 8]",
        "%y = concat(%a, %b) {axis = 2} : ?",
        DType::F32,
    );
    let heads = groups::cases(compiler.registry()).into_iter().map(|(case, _)| case.graph);
    let graphs: Vec<_> = [concat].into_iter().chain(heads).collect();
    let all: Vec<Kernel> = graphs.iter().flat_map(|graph| kernels(&compiler, graph).unwrap()).collect();
    let text = tensorc::gpu::ptx(&all, Capability::Sm80).unwrap();
    let mut high: BTreeSet<&str> = BTreeSet::new();
    let mut products = 0;
    for line in text.lines() {
        let words: Vec<&str> = line.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()).collect();
        match words[..] {
            [".visible", ".entry", ..] => high.clear(),
            ["mul.hi.u32", to, ..] => products += usize::from(high.insert(to)),
            ["cvt.u64.u32", to, from] if high.contains(from) => assert!(high.insert(to)),
            ["sub.s64", _, from, _] => assert!(!high.contains(from), "{line}"),
            _ => {}
        }
    }
    assert!(products > 10, "{products}");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let error = tensorc::gpu::cuda(999).map(drop).unwrap_err().to_string();
    let known = ["this build has no driver for CUDA", "no CUDA driver is installed here", "numbered from 0"];
    assert!(error.starts_with("gpu:999: ") && known.iter().any(|text| error.contains(text)), "{error}");
}
