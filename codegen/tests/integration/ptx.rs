//! PTX, executed by the interpreter of `tests/src/ptx`: every scalar operation on every type and the edge values of it, against its
//! definition; random kernels against the interpreter of KIR.
#![cfg(feature = "llvm")]

use std::sync::Arc;

use crate::common;
use crate::common::operations::{Case, cases};
use crate::common::random::{contents, random_kernel};
use crate::common::records::Records;
use tensorc_codegen::ptx::{self, PtxCache};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, LoopKind, Stmt, Var};
use tensorc_schedule::target::Capability;
use tensorc_simulator::run_launch;
use tensorc_tests::ptx::{Argument, Launch, Module};

/// The body of a kernel for one thread of each of some blocks.
fn for_a_gpu(kernel: &Kernel, scalars: &[i64]) -> Kernel {
    let mut kernel = kernel.clone();
    let fresh = |kernel: &mut Kernel, name: &str| {
        let like = tensorc_ir::kir::VarInfo { name: name.into(), dtype: tensorc_abi::DType::I64 };
        kernel.vars.push(like);
        Var(kernel.vars.len() as u32 - 1)
    };
    let values = kernel.scalars.clone().into_iter().zip(scalars);
    let mut body: Vec<Stmt> =
        values.map(|(var, value)| Stmt::LetIndex { var, index: Index::constant(*value) }).collect();
    kernel.scalars.clear();
    let (block, blocks, own) = match std::mem::take(&mut kernel.body) {
        mut whole if matches!(whole[..], [Stmt::For { kind: LoopKind::Parallel, .. }]) => match whole.pop() {
            Some(Stmt::For { var, hi, body, .. }) => (var, hi, body),
            _ => unreachable!("it is a loop"),
        },
        whole => (fresh(&mut kernel, "block"), Index::constant(1), whole),
    };
    body.extend(own);
    let thread = fresh(&mut kernel, "thread");
    let lo = Index::default();
    let threads =
        Stmt::For { var: thread, lo: lo.clone(), hi: Index::constant(1), step: 1, kind: LoopKind::Threads, body };
    kernel.body = vec![Stmt::For { var: block, lo, hi: blocks, step: 1, kind: LoopKind::Grid, body: vec![threads] }];
    kernel
}

/// Kernels as one module, named by their position.
fn module(kernels: &[Kernel], capability: Capability) -> Result<Module, String> {
    let names: Vec<String> = (0..kernels.len()).map(|i| format!("k{i}")).collect();
    let named: Vec<(&str, &Kernel)> = names.iter().map(String::as_str).zip(kernels).collect();
    let text = ptx::module(&named, &vec![true; kernels.len()], capability).map_err(|e| e.to_string())?;
    Ok(Module::parse(&text).unwrap_or_else(|fault| panic!("{fault}")))
}

fn execute(module: &Module, i: usize, kernel: &Kernel, buffers: &mut [Vec<u8>], seed: u64) -> Result<u64, String> {
    let launch = kernel.launch().unwrap();
    let info = kernel.buffers[..kernel.params].iter();
    let mut arguments: Vec<Argument<'_>> =
        buffers.iter_mut().zip(info).map(|(bytes, info)| Argument::Buffer { bytes, writable: info.writable }).collect();
    let shape = Launch { blocks: launch.blocks, threads: launch.threads, shared_bytes: 0, seed };
    module.launch(&format!("k{i}"), shape, &mut arguments).map_err(|fault| fault.to_string())
}

/// What has no code for a GPU is an error that says so, for all its cases or none.
#[test]
fn operations_match_their_definition() {
    let all = cases();
    let alike = |a: &&Case, b: &&Case| a.op == b.op && a.types == b.types;
    let (mut checked, mut without_code) = (0, vec![]);
    let plain = |case: &Case| case.constants.iter().all(Option::is_none);
    // Vectors and constants change what LLVM makes of an operation, the generation how types of 16 bits are computed.
    let wanted = |case: &&Case, capability| {
        case.lanes == 1 && (plain(case) || capability == Capability::Sm90a) || case.lanes == 4 && plain(case)
    };
    for capability in Capability::ALL {
        let wanted: Vec<&Case> = all.iter().filter(|case| wanted(case, capability)).collect();
        for group in wanted.chunk_by(alike) {
            let kernels: Vec<Kernel> = group.iter().map(|case| for_a_gpu(&case.kernel(), &[])).collect();
            let module = match module(&kernels, capability) {
                Ok(module) => module,
                Err(why) => {
                    assert!(why.contains("has no code for a GPU"), "{why}");
                    without_code.push(format!("{} on {}", group[0].op.name(), group[0].types[0]));
                    continue;
                }
            };
            for (i, (case, kernel)) in group.iter().zip(&kernels).enumerate() {
                let mut buffers = case.buffers();
                let outcome = execute(&module, i, kernel, &mut buffers, 0);
                outcome.unwrap_or_else(|fault| panic!("{:?} on {:?}: {fault}", case.op, case.types));
                case.check(buffers.last().unwrap());
                checked += 1;
            }
        }
    }
    assert!(checked > 1000, "only {checked} cases");
    without_code.sort();
    without_code.dedup();
    println!("{checked} cases; no code for {}", without_code.join(", "));
}

#[test]
fn random_kernels_match_the_interpreter() {
    const COUNT: u64 = 400;
    let (mut ran, mut refused) = (0, 0);
    for seed in 0..COUNT {
        let (kernel, scalars) = random_kernel(seed);
        let kernel = for_a_gpu(&kernel, &scalars);
        let before = contents(&kernel, seed);
        let mut expected = before.clone();
        // The generator does not know every rule of the language.
        if run_launch(&kernel, &mut expected).is_err() {
            continue;
        }
        let module = match module(std::slice::from_ref(&kernel), Capability::ALL[seed as usize % 2]) {
            Ok(module) => module,
            Err(why) => {
                assert!(why.contains("has no code for a GPU"), "{why}");
                refused += 1;
                continue;
            }
        };
        let mut found = before;
        execute(&module, 0, &kernel, &mut found, seed).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        common::compare(&kernel, &expected, &found).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        ran += 1;
    }
    println!("{ran} kernels, {refused} without code");
    assert!(ran * 2 >= COUNT, "only {ran} of {COUNT} programs were valid, {refused} have no code");
}

/// Equal kernels are translated once, by one process and by later ones, whatever their names; what was kept for other GPUs or was
/// damaged is not taken.
#[test]
fn ptx_is_kept() {
    let (kernel, scalars) = random_kernel(3);
    let kernel = for_a_gpu(&kernel, &scalars);
    let other = Kernel { name: "other".into(), ..kernel.clone() };
    let (store, [old, new]) = (Arc::new(Records::default()), Capability::ALL);
    let process = || PtxCache::default().storing(store.clone());
    let stored = || (store.put.lock().unwrap().len(), *store.found.lock().unwrap());
    let expected = ptx::module(&[("k0", &kernel)], &[true], old).unwrap();

    let first = process();
    assert_eq!(first.translate(&kernel, "k0", true, old).unwrap(), expected);
    let renamed = first.translate(&other, "another", true, old).unwrap();
    assert_eq!(renamed, ptx::module(&[("another", &other)], &[true], old).unwrap());
    assert_eq!((first.len(), stored()), (1, (1, 0)));
    first.translate(&kernel, "k0", false, old).unwrap();
    first.translate(&kernel, "k0", true, new).unwrap();
    assert_eq!((first.len(), stored()), (3, (3, 0)));

    assert_eq!(process().translate(&other, "k0", true, old).unwrap(), expected);
    assert_eq!(stored(), (3, 1));
    for record in store.held.lock().unwrap().values_mut() {
        let middle = record.len() / 2;
        record[middle] ^= 1;
    }
    assert_eq!(process().translate(&kernel, "k0", true, old).unwrap(), expected);
    assert_eq!(stored(), (4, 2), "a damaged record is replaced");
    assert_eq!(process().translate(&kernel, "k0", true, old).unwrap(), expected);
    assert_eq!(stored(), (4, 3));
}
