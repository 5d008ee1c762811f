//! Kernels compiled to object files for every target, linked with the run-time library by a C compiler, run (in an
//! emulator where the processor is another), and compared with the interpreter.
//!
//! `tests/cross.sh` names what is needed in the environment; without, a target is left out, which is printed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use crate::common::operations;
use crate::common::random::{contents, random_kernel};
use tensorc_codegen::cranelift::emit_kernels;
use tensorc_codegen::isa::Isa;
use tensorc_ir::interp::run_kernel;
use tensorc_ir::kir::Kernel;

/// Random kernels for each target.
const RANDOM: u64 = 1500;

/// One call of a kernel.
struct Call {
    kernel: Kernel,
    scalars: Vec<i64>,
    buffers: Vec<Vec<u8>>,
}

/// What a target's programs are built and run with: for x86-64 `TENSORC_CROSS_X86_64` and so on, words separated by
/// spaces. First the run-time library, then the C compiler, then the command that runs programs, if there is one.
fn tools(architecture: &str) -> Option<Vec<String>> {
    let words = std::env::var(format!("TENSORC_CROSS_{}", architecture.to_uppercase())).ok()?;
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// The text of a command that must succeed, if it does not.
fn succeed(command: &mut Command) {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// All buffers after the calls, run by one program on the target.
fn run(target: Isa, tools: &[String], calls: &[Call], folder: &Path) -> Vec<Vec<Vec<u8>>> {
    let kernels: Vec<Kernel> = calls.iter().map(|c| c.kernel.clone()).collect();
    let names: Vec<String> = (0..calls.len()).map(|i| format!("kernel{i}")).collect();
    let object = emit_kernels(&kernels, &names, target).unwrap();
    assert!(object == emit_kernels(&kernels, &names, target).unwrap(), "{target}: objects differ");
    let [code, table, input, program] =
        ["kernels.o", "table.c", "input", "program"].map(|name| folder.join(format!("{target}.{name}")));
    std::fs::write(&code, object).unwrap();
    let declared: String = names.iter().map(|n| format!("kernel {n};\n")).collect();
    let list = names.join(", ");
    let text =
        format!("typedef void kernel(void *const *, const long *);\n{declared}kernel *const kernels[] = {{{list}}};\n");
    std::fs::write(&table, text).unwrap();
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/driver.c");
    let mut compile = Command::new(&tools[1]);
    compile
        .args(["-O1", "-Wall", "-Werror", "-Wl,--gc-sections", driver])
        .arg(&table)
        .arg(&code)
        .arg(&tools[0])
        .args(["-lm", "-o"]);
    succeed(compile.arg(&program));
    let mut bytes: Vec<u8> = vec![];
    for (i, call) in calls.iter().enumerate() {
        let mut numbers = vec![i as i64, call.scalars.len() as i64];
        numbers.extend(&call.scalars);
        numbers.push(call.buffers.len() as i64);
        bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        for (info, buffer) in call.kernel.buffers.iter().zip(&call.buffers) {
            bytes.extend([info.dtype.size() as i64, buffer.len() as i64].iter().flat_map(|n| n.to_le_bytes()));
            bytes.extend(buffer);
        }
    }
    std::fs::write(&input, bytes).unwrap();
    let mut words = tools[2..].iter().cloned().chain([program.display().to_string()]);
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).stdin(std::fs::File::open(&input).unwrap()).stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{target}: {}", output.status);
    let mut rest = &output.stdout[..];
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head.to_vec()
    };
    let found = calls.iter().map(|call| call.buffers.iter().map(|b| take(b.len())).collect()).collect();
    assert!(rest.is_empty(), "{target}: {} bytes more", rest.len());
    found
}

/// Random kernels that the interpreter runs, with what it computes.
fn random_calls(first: u64) -> (Vec<Call>, Vec<Vec<Vec<u8>>>) {
    let mut out = (vec![], vec![]);
    for seed in first..first + RANDOM {
        let (kernel, scalars) = random_kernel(seed);
        let buffers = contents(&kernel, seed);
        let mut expected = buffers.clone();
        if run_kernel(&kernel, &mut expected, &scalars, &*common::LIBRARY).is_ok() {
            out.0.push(Call { kernel, scalars, buffers });
            out.1.push(expected);
        }
    }
    assert!(out.0.len() as u64 * 10 >= RANDOM * 9, "only {} of {RANDOM} programs are valid", out.0.len());
    out
}

/// Every operation on every type as scalars and as vectors, some with operands that are known.
fn operation_cases() -> Vec<operations::Case> {
    let known = |case: &operations::Case| case.constants.iter().any(Option::is_some);
    let cases = operations::cases().into_iter().filter(|case| matches!(case.lanes, 1 | 8)).enumerate();
    cases.filter(|(i, case)| !known(case) || i % 7 == 0).map(|(_, case)| case).collect()
}

fn check(target: &str, random: u64) {
    let target: Isa = target.parse().unwrap();
    let Some(tools) = tools(&format!("{:?}", target.arch())) else {
        println!("{target} is left out: tests/cross.sh has not prepared it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (calls, expected) = random_calls(random);
    let found = run(target, &tools, &calls, folder.path());
    for ((call, expected), found) in calls.iter().zip(&expected).zip(&found) {
        if let Err(why) = common::compare(&call.kernel, expected, found) {
            panic!("{target}, {}: {why}", call.kernel.name);
        }
    }
    let cases = operation_cases();
    assert!(cases.len() > 1000, "only {} operations", cases.len());
    let calls: Vec<Call> =
        cases.iter().map(|c| Call { kernel: c.kernel(), scalars: vec![], buffers: c.buffers() }).collect();
    let found = run(target, &tools, &calls, folder.path());
    for (case, buffers) in cases.iter().zip(&found) {
        case.check(buffers.last().unwrap());
    }
    println!("{target}: {} operations and {} random kernels", cases.len(), expected.len());
}

#[test]
fn x86_64() {
    check("x86_64", 10_000);
}

#[test]
fn x86_64_v3() {
    check("x86_64-v3", 20_000);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn x86_64_v4() {
    match std::is_x86_feature_detected!("avx512dq") && std::is_x86_feature_detected!("avx512vl") {
        true => check("x86_64-v4", 30_000),
        false => println!("x86_64-v4 is left out: this machine does not have it"),
    }
}

#[test]
fn aarch64() {
    check("aarch64", 40_000);
}

#[test]
fn riscv64() {
    check("riscv64", 50_000);
}
