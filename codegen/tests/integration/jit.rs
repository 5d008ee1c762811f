//! Sets of kernels: sharing, threads, missing library functions, text of the code.

use crate::common;
use tensorc_abi::DType;
use tensorc_codegen::cranelift::dump;
use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{Backend, KernelCache, compile_kernels};
use tensorc_ir::diag::DiagnosticCode;
use tensorc_ir::index::Index;
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{MathFn, Scalar, ScalarOp};

/// `y[i] = op(x[i], c)` over 64 elements.
fn map(name: &str, dtype: DType, op: ScalarOp, c: f64) -> Kernel {
    let mut b = KernelBuilder::new(name);
    let (x, y) = (b.param("x", dtype, 64, false), b.param("y", dtype, 64, true));
    b.for_range("i", 8, LoopKind::Parallel, |b, i| {
        b.for_range("l", 8, LoopKind::Vector, |b, l| {
            let at = i.scale(8).add(&l);
            let v = b.load(x, at.clone());
            let args = [v, Operand::Const(Scalar::from_f64(dtype, c))];
            let r = b.op(op, &args[..op.arity()]);
            b.store(y, at, r);
            Ok::<(), ()>(())
        })
    })
    .unwrap();
    b.finish()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn equal_kernels_are_compiled_once() {
    let add = |name: &str, c| map(name, DType::F32, ScalarOp::Add, c);
    let cache = KernelCache::verifying();
    let list = [add("a", 1.0), add("b", 2.0), add("c", 1.0)];
    let first = compile_kernels(&list, Backend::Cranelift, 2, Interrupt::NEVER, &cache, &|_| None).unwrap();
    assert_eq!((first.len(), cache.len()), (3, 2));
    assert_eq!(first.entry(0).unwrap() as usize, first.entry(2).unwrap() as usize);
    assert_ne!(first.entry(0).unwrap() as usize, first.entry(1).unwrap() as usize);
    assert!(first.entry(3).is_none());
    let second = compile_kernels(&[add("d", 2.0)], Backend::Cranelift, 1, Interrupt::NEVER, &cache, &|_| None).unwrap();
    assert_eq!(second.entry(0).unwrap() as usize, first.entry(1).unwrap() as usize);
    // DiagnosticCode outlives the cache and the module that caused it.
    drop((cache, first));
    let mut buffers = [bytes(&[0.5; 64]), bytes(&[0.0; 64])];
    common::call(&second, 0, &mut buffers, &[2, 4]);
    let mut expected = [0.0f32; 64];
    expected[16..32].fill(2.5);
    assert_eq!(buffers[1], bytes(&expected));
}

#[test]
fn kernels_that_nothing_uses_are_forgotten_when_there_are_many() {
    let list =
        |from: i32| (from..from + 3).map(|c| map("k", DType::F32, ScalarOp::Add, f64::from(c))).collect::<Vec<_>>();
    let cache = KernelCache::of_at_most(5);
    let compile =
        |from| compile_kernels(&list(from), Backend::Cranelift, 1, Interrupt::NEVER, &cache, &|_| None).unwrap();
    let used = compile(0);
    drop(compile(10));
    assert_eq!(cache.len(), 6, "all were in use");
    let later = compile(20);
    assert_eq!(cache.len(), 6, "the second list is not");
    drop(later);
    let again = compile(0);
    assert_eq!((cache.len(), again.entry(1)), (3, used.entry(1)));
    let mut buffers = [bytes(&[0.5; 64]), bytes(&[0.0; 64])];
    common::call(&again, 2, &mut buffers, &[0, 8]);
    assert_eq!(buffers[1], bytes(&[2.5; 64]));
}

#[test]
fn kernels_run_on_many_threads() {
    let kernels: Vec<Kernel> = (0..40).map(|c| map("k", DType::F32, ScalarOp::Mul, f64::from(c))).collect();
    let module =
        compile_kernels(&kernels, Backend::Cranelift, 4, Interrupt::NEVER, &KernelCache::new(), &|_| None).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let module = &module;
            scope.spawn(move || {
                for c in (t..40).step_by(4) {
                    let mut buffers = [bytes(&[3.0; 64]), bytes(&[0.0; 64])];
                    common::call(module, c, &mut buffers, &[0, 8]);
                    assert_eq!(buffers[1], bytes(&[3.0 * c as f32; 64]));
                }
            });
        }
    });
}

#[test]
fn a_missing_library_function_is_named() {
    let kernel = map("k", DType::F64, ScalarOp::Math(MathFn::Exp), 0.0);
    let error = compile_kernels(&[kernel], Backend::Cranelift, 1, Interrupt::NEVER, &KernelCache::new(), &|_| None)
        .err()
        .unwrap();
    assert_eq!(error.code, DiagnosticCode::Unsupported);
    assert!(error.to_string().contains("tc_exp_f64") && error.to_string().contains("kernel `k`"), "{error}");
}

#[test]
fn unexpanded_mathematics_and_huge_arrays_are_refused() {
    let exp = map("k", DType::F32, ScalarOp::Math(MathFn::Exp), 0.0);
    let error =
        compile_kernels(&[exp], Backend::Cranelift, 1, Interrupt::NEVER, &KernelCache::new(), &|_| None).err().unwrap();
    assert!(error.message.contains("not expanded"), "{error}");
    let mut b = KernelBuilder::new("stack");
    let buf = b.alloc("big", DType::F64, 1 << 20, MemorySpace::Stack);
    b.store(buf, Index::constant(0), Operand::Const(Scalar::from_f64(DType::F64, 0.0)));
    let error = compile_kernels(&[b.finish()], Backend::Cranelift, 1, Interrupt::NEVER, &KernelCache::new(), &|_| None)
        .err()
        .unwrap();
    assert!(error.message.contains("`big`"), "{error}");
}

#[test]
fn the_code_of_a_kernel_can_be_read() {
    let code = dump(&map("k", DType::F32, ScalarOp::Add, 1.0), Isa::native().unwrap()).unwrap();
    assert_eq!(code.clif.matches("fadd").count(), 2, "two chunks of four lanes:\n{}", code.clif);
    assert!(code.assembly.contains("addps") || !cfg!(target_arch = "x86_64"), "{}", code.assembly);
    assert!(code.bytes > 0);
}

#[test]
fn a_maximum_by_comparison_is_one_instruction() {
    let mut b = KernelBuilder::new("relu");
    let (x, y) = (b.param("x", DType::F32, 4, false), b.param("y", DType::F32, 4, true));
    b.for_range("l", 4, LoopKind::Vector, |b, l| {
        let v = b.load(x, l.clone());
        let zero = Operand::Const(Scalar::f32(0.0));
        let positive = b.op(ScalarOp::Cmp(tensorc_ir::scalar::CmpOp::Gt), &[v, zero]);
        let r = b.op(ScalarOp::Select, &[positive, v, zero]);
        b.store(y, l, r);
        Ok::<(), ()>(())
    })
    .unwrap();
    let code = dump(&b.finish(), Isa::native().unwrap()).unwrap();
    assert!(code.assembly.contains("maxps") || !cfg!(target_arch = "x86_64"), "{}", code.assembly);
}

/// Quotient and remainder of 64 consecutive indices from `lo`.
fn division(lo: i64, d: i64) -> Kernel {
    let range = move |_: u32| (lo, lo + 63);
    let mut b = KernelBuilder::new("division");
    let out = b.param("out", DType::I64, 128, true);
    b.for_loop("i", (Index::constant(lo), Index::constant(lo + 64), 1), LoopKind::Serial, |b, i| {
        let at = i.offset(-lo).scale(2);
        let quotient = b.index_value(i.floor_div(d, &range));
        b.store(out, at.clone(), quotient);
        let remainder = b.index_value(i.modulo(d, &range));
        b.store(out, at.offset(1), remainder);
        Ok::<(), ()>(())
    })
    .unwrap();
    b.finish()
}

#[test]
fn index_divisions_are_exact_at_the_ends_of_their_range() {
    let mut kernels = vec![];
    for d in [2, 3, 5, 7, 10, 64, 641, 1000, 65537, 1 << 20, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, (1 << 33) + 3] {
        let largest_multiple = ((1 << 31) - 1) / d * d;
        for lo in [0, -40, (1 << 31) - 64, (1 << 31) - 10, (largest_multiple - 32).max(0), -(1 << 40), 1 << 40] {
            kernels.push(division(lo, d));
        }
    }
    let module = common::compile(&kernels);
    for (i, kernel) in kernels.iter().enumerate() {
        if let Err(why) = common::difference(kernel, &module, i, &[vec![0; 1024]], &[]) {
            panic!("{why}: {:?}", kernel.body);
        }
    }
}

#[test]
fn padded_rows_read_whole_vectors_or_single_lanes() {
    let mut b = KernelBuilder::new("padded");
    let (x, y) = (b.param("x", DType::F32, 30, false), b.param("y", DType::F32, 40, true));
    b.for_range("i", 5, LoopKind::Serial, |b, i| {
        b.for_range("l", 8, LoopKind::Vector, |b, l| {
            let at = i.scale(8).add(&l);
            let from = at.offset(-5);
            let inside = b.in_range(&from, 0, 30);
            let v = b.load_guarded(x, from, Some((inside, Scalar::f32(-1.0))));
            b.store(y, at, v);
            Ok::<(), ()>(())
        })
    })
    .unwrap();
    let kernel = b.finish();
    let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
    let buffers = [bytes(&values), bytes(&[0.0; 40])];
    let module = common::compile(std::slice::from_ref(&kernel));
    assert_eq!(common::difference(&kernel, &module, 0, &buffers, &[]), Ok(()));
    let mut buffers = buffers;
    common::call(&module, 0, &mut buffers, &[]);
    let expected: Vec<f32> = (0..40).map(|i| if (5..35).contains(&i) { (i - 5) as f32 } else { -1.0 }).collect();
    assert_eq!(buffers[1], bytes(&expected));
}

/// An index is computed of what a register holds when the loop that wrote it has ended.
#[test]
fn registers_written_in_a_loop_make_indices_behind_it() {
    let mut b = KernelBuilder::new("k");
    let (x, y) = (b.param("x", DType::I64, 4, false), b.param("y", DType::I64, 64, true));
    let sum = b.alloc("sum", DType::I64, 1, MemorySpace::Register);
    let cell = Index::default();
    b.store(sum, cell.clone(), Operand::Const(Scalar::i64(0)));
    b.for_range("i", 4, LoopKind::Serial, |b, i| {
        let (old, term) = (b.load(sum, cell.clone()), b.load(x, i));
        let new = b.op(ScalarOp::Add, &[old, term]);
        b.store(sum, cell.clone(), new);
        Ok::<(), ()>(())
    })
    .unwrap();
    let at = b.load(sum, cell);
    let at = b.as_index(at).scale(3).offset(2);
    b.store(y, at.clone(), Operand::Const(Scalar::i64(7)));
    b.for_range("i", 3, LoopKind::Serial, |b, i| {
        b.store(y, at.add(&i).offset(1), Operand::Const(Scalar::i64(9)));
        Ok::<(), ()>(())
    })
    .unwrap();
    let kernel = b.finish();
    let words = |values: &[i64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let buffers = [words(&[1, 5, 2, 3]), words(&[0; 64])];
    common::difference(&kernel, &common::compile(std::slice::from_ref(&kernel)), 0, &buffers, &[]).unwrap();
}
