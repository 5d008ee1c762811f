//! Objects of LLVM for every target, and code as text.
#![cfg(feature = "llvm")]

use std::process::Command;

use crate::common;
use tensorc_abi::DType;
use tensorc_codegen::emit::{Math, emit};
use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{Backend, KernelCache, compile_kernels};
use tensorc_codegen::llvm::{assembly, emit_object, ir_text};
use tensorc_ir::DenseType;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::index::Index;
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Ex, MathFn, Scalar, ScalarFn, ScalarOp};
use tensorc_schedule::recipe::Generated;
use tensorc_schedule::target::{Cpu, Target, Vectors};

/// `y = x · x + 1` on `n` elements, in vectors of 16 lanes.
fn square(n: u64) -> Kernel {
    let mut b = KernelBuilder::new("square");
    let (x, y) = (b.param("x", DType::F32, n, false), b.param("y", DType::F32, n, true));
    b.for_loop("i", (Index::default(), Index::constant(n as i64), 16), LoopKind::Serial, |b, i| {
        b.for_range("l", 16, LoopKind::Vector, |b, l| {
            let v = b.load(x, i.add(&l));
            let one = Operand::Const(Scalar::f32(1.0));
            let r = b.op(ScalarOp::Fma, &[v, v, one]);
            b.store(y, i.add(&l), r);
            Ok::<(), ()>(())
        })
    })
    .unwrap();
    b.finish()
}

/// A kernel of each kind of thing that needs help of a library on some target.
fn helped() -> Kernel {
    let mut b = KernelBuilder::new("helped");
    let x = b.param("x", DType::F64, 64, false);
    let (h, y) = (b.param("h", DType::F16, 64, true), b.param("y", DType::F32, 64, true));
    let buffer = b.alloc("row", DType::F32, 64, MemorySpace::Stack);
    b.for_range("i", 64, LoopKind::Serial, |b, i| {
        let v = b.load(x, i.clone());
        let e = b.op(ScalarOp::Math(MathFn::Exp), &[v]);
        let half = b.op(ScalarOp::Cast(DType::F16), &[e]);
        b.store(h, i.clone(), half);
        let single = b.op(ScalarOp::Cast(DType::F32), &[e]);
        let rounded = b.op(ScalarOp::Floor, &[single]);
        b.store(buffer, i, rounded);
        Ok::<(), ()>(())
    })
    .unwrap();
    b.apply_strip(MathFn::Tanh, buffer, Index::default(), Index::constant(64));
    b.for_range("i", 64, LoopKind::Serial, |b, i| {
        let v = b.load(buffer, i.clone());
        b.store(y, i, v);
        Ok::<(), ()>(())
    })
    .unwrap();
    b.finish()
}

fn kernels() -> Vec<(String, Kernel)> {
    vec![("tc_square".into(), square(256)), ("tc_helped".into(), helped())]
}

fn has(bytes: &[u8], name: &str) -> bool {
    bytes.windows(name.len()).any(|w| w == name.as_bytes())
}

#[test]
fn objects_for_every_target() {
    for name in Isa::NAMES {
        let target: Isa = name.parse().unwrap();
        let object = emit_object(&kernels(), &target).unwrap();
        assert_eq!(&object[..6], b"\x7fELF\x02\x01", "{name}: 64 bits, little-endian");
        let kind = |at: usize| u16::from_le_bytes([object[at], object[at + 1]]);
        assert_eq!(kind(16), 1, "{name}: relocatable");
        let machine = match name {
            "aarch64" => 183,
            "riscv64" => 243,
            name if name.starts_with("x86_64") || cfg!(target_arch = "x86_64") => 62,
            _ => kind(18),
        };
        assert_eq!(kind(18), machine, "{name}");
        for symbol in ["tc_square", "tc_helped", "tc_exp_f64", "tc_vtanh_f32", "tc_f64_to_f16"] {
            assert!(has(&object, symbol), "{name} has no {symbol}");
        }
        assert_eq!(object, emit_object(&kernels(), &target).unwrap(), "{name}: other bytes the second time");
    }
}

#[test]
fn vectors_are_as_wide_as_the_level() {
    let text = |name: &str| assembly(&[("square".into(), &square(256))], &name.parse().unwrap()).unwrap();
    assert!(text("x86_64-v4").contains("vfmadd") && text("x86_64-v4").contains("zmm"));
    assert!(text("x86_64-v3").contains("vfmadd") && text("x86_64-v3").contains("ymm"));
    assert!(!text("x86_64-v3").contains("zmm"));
    assert!(text("x86_64").contains("fmaf") && !text("x86_64").contains("ymm"));
    assert!(text("aarch64").contains("fmla"));
    assert!(text("riscv64").contains("fmadd.s"));
    let ir = ir_text(&square(256), &"x86_64-v4".parse().unwrap(), true).unwrap();
    assert!(ir.contains("@llvm.fma.v16f32") && !ir.contains("fast") && !ir.contains("contract"), "{ir}");
}

#[test]
fn objects_link_into_programs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let object = emit_object(&[("tc_square".into(), square(32))], &"native".parse().unwrap()).unwrap();
    std::fs::write(at("kernel.o"), object).unwrap();
    let program = "#include <stdint.h>\n#include <stdio.h>\n\
        void tc_square(uint8_t *const *buffers, const int64_t *scalars);\n\
        int main(void) { float x[32], y[32]; for (int i = 0; i < 32; i++) x[i] = i;\n\
        uint8_t *buffers[] = {(uint8_t *)x, (uint8_t *)y}; tc_square(buffers, 0);\n\
        for (int i = 0; i < 32; i++) printf(\"%g \", y[i]); return 0; }\n";
    std::fs::write(at("main.c"), program).unwrap();
    let cc = Command::new("cc").args(["-o", "main", "main.c", "kernel.o"]).current_dir(folder.path()).status();
    assert!(cc.unwrap().success());
    let output = Command::new(at("main")).output().unwrap();
    let expected: String = (0..32).map(|i| format!("{} ", i * i + 1)).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn wrong_requests_are_errors() {
    let twice = vec![("k".to_owned(), square(16)), ("k".to_owned(), square(32))];
    let error = emit_object(&twice, &Isa::native().unwrap()).unwrap_err().to_string();
    assert!(error.contains("two kernels of the name `k`"), "{error}");
    let mut b = KernelBuilder::new("big");
    b.alloc("huge", DType::F32, 1 << 20, MemorySpace::Stack);
    let error = emit_object(&[("big".into(), b.finish())], &Isa::native().unwrap()).unwrap_err().to_string();
    assert!(error.contains("does not fit the stack") && error.contains("in kernel `big`"), "{error}");
}

#[test]
fn code_is_kept_by_back_end_and_content() {
    let cache = KernelCache::verifying();
    let list = [square(64), square(64), square(128)];
    let compile = |backend| compile_kernels(&list, backend, 2, Interrupt::NEVER, &cache, &common::library).unwrap();
    let llvm = compile(Backend::Llvm);
    assert_eq!(cache.len(), 2);
    let cranelift = compile(Backend::Cranelift);
    assert_eq!(cache.len(), 4);
    // Too little is computed for LLVM to be chosen.
    assert_eq!(compile(Backend::Auto).entry(0).map(|f| f as usize), cranelift.entry(0).map(|f| f as usize));
    drop(cache);
    let buffers = [1.0f32, 2.0, -3.5, 0.25].repeat(32).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for module in [&llvm, &cranelift] {
        common::difference(&list[2], module, 2, &[buffers.clone(), vec![0; 512]], &[]).unwrap();
    }
}

/// Both styles of kernels give the same bits on both back ends.
#[test]
fn styles_and_back_ends_agree() {
    let ty = |dims: &[u64]| DenseType::new(DType::F32, dims);
    for n in [5u64, 33, 100, 1000, 1100] {
        let mut g = Graph::new("g");
        let x = g.add_input("x", ty(&[3, n]).into());
        let map = |g: &mut Graph, args: &[Value], f: &dyn Fn(&[Ex]) -> Ex| {
            let f = ScalarFn::build(&vec![DType::F32; args.len()], |_, x| vec![f(x)]).unwrap();
            Value { node: g.add_prim("map", Prim::Map(f.into()), args, &[ty(&[3, n])]), port: 0 }
        };
        let t = map(&mut g, &[x], &|x| x[0].math(MathFn::Tanh) * &x[0]);
        let combine = ScalarFn::build(&[DType::F32; 2], |_, x| vec![&x[0] + &x[1]]).unwrap();
        let sum = tensorc_ir::prim::Reduction {
            axes: vec![1],
            keep_dims: true,
            map: ScalarFn::identity(DType::F32),
            init: vec![Scalar::f32(0.0)],
            combine,
            finish: ScalarFn::identity(DType::F32),
        };
        let sum = g.add_prim("sum", Prim::Reduce(sum.into()), &[t], &[ty(&[3, 1])]);
        let y = map(&mut g, &[t, Value { node: sum, port: 0 }], &|x| (&x[0] - &x[1]).math(MathFn::Exp));
        g.add_output("y", y);
        let input: Vec<u8> = (0..3 * n).flat_map(|i| ((i * 37 % 101) as f32 * 0.07 - 3.5).to_le_bytes()).collect();
        let run = |vectors, backend| {
            let target = Target::cpu(Cpu { vectors, ..Cpu::default() });
            let math = Math { library: &*common::LIBRARY, target: &target };
            let kernel = emit(&common::spec(Generated::Row, &g), math).unwrap();
            let range = [0, kernel.parallel_extent().fixed()];
            let list = [kernel];
            let module =
                compile_kernels(&list, backend, 1, Interrupt::NEVER, &KernelCache::verifying(), &common::library)
                    .unwrap();
            let mut buffers = vec![input.clone(), vec![0; input.len()]];
            common::call(&module, 0, &mut buffers, &range);
            buffers.swap_remove(1)
        };
        let expected = run(Vectors::Narrow, Backend::Cranelift);
        for vectors in [Vectors::Narrow, Vectors::Wide] {
            for backend in [Backend::Cranelift, Backend::Llvm, Backend::Auto] {
                assert_eq!(run(vectors, backend), expected, "{n}: {vectors:?} {backend:?}");
            }
        }
    }
}
