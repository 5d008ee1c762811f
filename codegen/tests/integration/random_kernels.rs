//! Random kernels, run by the interpreter and as machine code. A failing one is reduced by deleting
//! statements before it is shown.

use crate::common;
use crate::common::random::{contents, random_kernel};
use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{KernelCache, compile_kernels};
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::{Kernel, Operand, Stmt};

/// Whether the kernel runs in the interpreter and differs as machine code.
fn fails(kernel: &Kernel, buffers: &[Vec<u8>], scalars: &[i64], isa: Isa) -> Option<String> {
    tensorc_ir::interp::run_kernel(kernel, &mut buffers.to_vec(), scalars, &*common::LIBRARY).ok()?;
    let kernels = std::slice::from_ref(kernel);
    let cache = KernelCache::verifying().for_isa(isa);
    match compile_kernels(kernels, common::backend(), 1, Interrupt::NEVER, &cache, &common::library) {
        Err(e) => (!e.message.contains("before")).then(|| e.to_string()),
        Ok(module) => common::difference(kernel, &module, 0, buffers, scalars).err(),
    }
}

/// All ways to delete one statement, or to replace a loop or branch by less.
fn smaller(body: &[Stmt]) -> Vec<Vec<Stmt>> {
    let mut out = vec![];
    for (i, stmt) in body.iter().enumerate() {
        let with = |replacement: &[Stmt]| [&body[..i], replacement, &body[i + 1..]].concat();
        out.push(with(&[]));
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let (var, lo, hi, step, kind) = (*var, lo.clone(), hi.clone(), *step, *kind);
                let rebuilt = smaller(body).into_iter().map(|body| Stmt::For {
                    var,
                    lo: lo.clone(),
                    hi: hi.clone(),
                    step,
                    kind,
                    body,
                });
                out.extend(rebuilt.map(|s| with(&[s])));
            }
            Stmt::If { cond, then, .. } => {
                out.push(with(then));
                let rebuilt = smaller(then).into_iter().map(|then| Stmt::If { cond: *cond, then, otherwise: vec![] });
                out.extend(rebuilt.map(|s| with(&[s])));
            }
            _ => {}
        }
    }
    out
}

fn reduce(kernel: &Kernel, buffers: &[Vec<u8>], scalars: &[i64], isa: Isa) -> Kernel {
    let mut best = kernel.clone();
    'again: loop {
        for body in smaller(&best.body) {
            let candidate = Kernel { body, ..best.clone() };
            if candidate.is_parallel() == kernel.is_parallel() && fails(&candidate, buffers, scalars, isa).is_some() {
                best = candidate;
                continue 'again;
            }
        }
        return best;
    }
}

#[test]
fn machine_code_matches_the_interpreter() {
    let count = std::env::var("TENSORC_RANDOM_KERNELS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000u64);
    let first = std::env::var("TENSORC_FIRST_KERNEL").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let (mut ran, mut vectors) = (0, 0);
    for group in (first..first + count).collect::<Vec<_>>().chunks(100) {
        let programs: Vec<(u64, Kernel, Vec<i64>)> = group
            .iter()
            .map(|&seed| {
                let (kernel, scalars) = random_kernel(seed);
                (seed, kernel, scalars)
            })
            .collect();
        let kernels: Vec<Kernel> = programs.iter().map(|(_, k, _)| k.clone()).collect();
        for isa in common::isas() {
            let module = common::compile_for(&kernels, isa);
            for (i, (seed, kernel, scalars)) in programs.iter().enumerate() {
                let buffers = contents(kernel, *seed);
                match common::difference(kernel, &module, i, &buffers, scalars) {
                    Ok(()) => ran += 1,
                    // The generator does not know every rule of the language.
                    Err(why) if why.starts_with("interpreter") => {}
                    Err(why) => {
                        let small = reduce(kernel, &buffers, scalars, isa);
                        let why = fails(&small, &buffers, scalars, isa).unwrap_or(why);
                        panic!("seed {seed}, {isa}: {why}\n{}", show(&small));
                    }
                }
                vectors += usize::from(format!("{:?}", kernel.body).contains("Vector"));
            }
        }
    }
    let count = count * common::isas().len() as u64;
    assert!(ran * 10 >= count * 9, "only {ran} of {count} programs were valid");
    assert!(vectors * 3 >= count as usize, "only {vectors} of {count} programs had vector loops");
}

fn show(kernel: &Kernel) -> String {
    let buffers: Vec<String> = kernel
        .buffers
        .iter()
        .enumerate()
        .map(|(i, b)| format!("b{i}: {} x {} {:?}", b.dtype, b.len, b.space))
        .collect();
    let mut out = format!("{}\n", buffers.join(", "));
    lines(&kernel.body, 1, &mut out);
    out
}

fn operand(o: &Operand) -> String {
    match o {
        Operand::Var(v) => format!("d{}", v.0),
        Operand::Const(c) => format!("{}:{:#x}", c.dtype, c.bits),
    }
}

fn lines(body: &[Stmt], depth: usize, out: &mut String) {
    for stmt in body {
        out.push_str(&"  ".repeat(depth));
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                out.push_str(&format!("for d{} in {lo}..{hi} by {step} {kind:?}\n", var.0));
                lines(body, depth + 1, out);
            }
            Stmt::Let { var, op, args } => {
                let args: Vec<String> = args.iter().map(operand).collect();
                out.push_str(&format!("d{} = {op:?}({})\n", var.0, args.join(", ")));
            }
            Stmt::LetIndex { var, index } => out.push_str(&format!("d{} = index {index}\n", var.0)),
            Stmt::Load { var, buf, index, guard } => {
                let guard = guard.map(|(c, f)| format!(" if {} else {:#x}", operand(&c), f.bits)).unwrap_or_default();
                out.push_str(&format!("d{} = b{}[{index}]{guard}\n", var.0, buf.0));
            }
            Stmt::Store { buf, index, value } => out.push_str(&format!("b{}[{index}] = {}\n", buf.0, operand(value))),
            Stmt::VectorMath { f, buf, start, len } => {
                out.push_str(&format!("b{}[{start}..+{len}] = {}\n", buf.0, f.name()));
            }
            Stmt::Alloc { buf } => out.push_str(&format!("alloc b{}\n", buf.0)),
            Stmt::If { cond, then, .. } => {
                out.push_str(&format!("if {}\n", operand(cond)));
                lines(then, depth + 1, out);
            }
            // Random kernels are not for a GPU.
            other => out.push_str(&format!("{other:?}\n")),
        }
    }
}
