//! Throughput of generated code on one thread: element-wise functions and a row kernel, in the
//! first and second level cache and in memory. Prints billions of elements per second.

use std::time::Instant;

use tensorc_codegen::cranelift::dump;
use tensorc_codegen::isa::Isa;
use tensorc_codegen::jit::{Backend, KernelCache, compile_kernels};
use tensorc_ir::DType;
use tensorc_ir::index::Index;
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{Ex, MathFn, Scalar, ScalarFn, ScalarOp};
use tensorc_ops::math::MathBodies;

type Error = Box<dyn std::error::Error>;

fn function(library: &MathBodies, body: impl Fn(&Ex, &Ex) -> Ex) -> Result<ScalarFn, Error> {
    let f = ScalarFn::build(&[DType::F32, DType::F32], |_, args| vec![body(&args[0], &args[1])])?;
    Ok(f.expand_math(library)?)
}

/// `out[i] = f(x[i], y[i])` for `blocks` blocks of `n` elements in the same memory.
fn map(f: &ScalarFn, n: u64, blocks: u64, lanes: u64) -> Result<Kernel, Error> {
    let mut b = KernelBuilder::new("map");
    let inputs = [b.param("x", DType::F32, n, false), b.param("y", DType::F32, n, false)];
    let out = b.param("out", DType::F32, n, true);
    b.for_range("r", blocks, LoopKind::Serial, |b, _| {
        b.for_range("i", n / lanes, LoopKind::Serial, |b, i| {
            b.for_range("l", lanes, LoopKind::Vector, |b, l| {
                let at = i.scale(lanes as i64).add(&l);
                let args: Vec<Operand> = inputs.iter().map(|buf| b.load(*buf, at.clone())).collect();
                let r = b.apply(f, &args, &[]);
                b.store(out, at, r[0]);
                Ok::<(), Error>(())
            })
        })
    })?;
    Ok(b.finish())
}

/// Softmax of each of `rows` rows of `n` elements.
fn softmax(exp: &ScalarFn, rows: u64, n: u64, lanes: u64) -> Result<Kernel, Error> {
    let mut b = KernelBuilder::new("softmax");
    let x = b.param("x", DType::F32, rows * n, false);
    let y = b.param("y", DType::F32, rows * n, true);
    b.for_range("row", rows, LoopKind::Parallel, |b, row| {
        let acc = b.alloc("acc", DType::F32, lanes, MemorySpace::Register);
        let start = row.scale(n as i64);
        let each = |b: &mut KernelBuilder, value: Operand| {
            b.for_range("l", lanes, LoopKind::Vector, |b, l| {
                b.store(acc, l, value);
                Ok::<(), Error>(())
            })
        };
        let fold = |b: &mut KernelBuilder, op: ScalarOp| {
            let mut total = b.load(acc, Index::constant(0));
            for i in 1..lanes {
                let v = b.load(acc, Index::constant(i as i64));
                total = b.op(op, &[total, v]);
            }
            total
        };
        let columns = |b: &mut KernelBuilder, body: &dyn Fn(&mut KernelBuilder, Index, Index)| {
            b.for_range("i", n / lanes, LoopKind::Serial, |b, i| {
                b.for_range("l", lanes, LoopKind::Vector, |b, l| {
                    body(b, start.add(&i.scale(lanes as i64)).add(&l), l);
                    Ok::<(), Error>(())
                })
            })
        };
        each(b, Operand::Const(Scalar::f32(f32::NEG_INFINITY)))?;
        columns(b, &|b, at, l| {
            let v = b.load(x, at);
            let m = b.load(acc, l.clone());
            let m = b.op(ScalarOp::Max, &[m, v]);
            b.store(acc, l, m);
        })?;
        let top = fold(b, ScalarOp::Max);
        each(b, Operand::Const(Scalar::f32(0.0)))?;
        columns(b, &|b, at, l| {
            let v = b.load(x, at.clone());
            let v = b.op(ScalarOp::Sub, &[v, top]);
            let e = b.apply(exp, &[v], &[])[0];
            b.store(y, at, e);
            let s = b.load(acc, l.clone());
            let s = b.op(ScalarOp::Add, &[s, e]);
            b.store(acc, l, s);
        })?;
        let sum = fold(b, ScalarOp::Add);
        let scale = b.op(ScalarOp::Div, &[Operand::Const(Scalar::f32(1.0)), sum]);
        columns(b, &|b, at, _| {
            let e = b.load(y, at.clone());
            let r = b.op(ScalarOp::Mul, &[e, scale]);
            b.store(y, at, r);
        })
    })?;
    Ok(b.finish())
}

/// Best of several runs, in billions of elements per second, and the time to compile in µs.
fn measure(kernel: Kernel, lens: &[u64], elements: u64, scalars: &[i64]) -> Result<(f64, f64), Error> {
    let mut buffers: Vec<Vec<f32>> =
        lens.iter().map(|&n| (0..n).map(|i| (i % 1000) as f32 * 0.004 - 2.0).collect()).collect();
    let start = Instant::now();
    let module = compile_kernels(&[kernel], Backend::Cranelift, 1, Interrupt::NEVER, &KernelCache::new(), &|_| None)?;
    let compile = start.elapsed().as_secs_f64() * 1e6;
    let entry = module.entry(0).ok_or("no kernel")?;
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr().cast()).collect();
    let mut best = f64::INFINITY;
    for _ in 0..15 {
        let start = Instant::now();
        // SAFETY: the buffers have the lengths that the kernel was built for.
        unsafe { entry(pointers.as_ptr(), scalars.as_ptr()) };
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((elements as f64 / best / 1e9, compile))
}

fn main() -> Result<(), Error> {
    let library = MathBodies::new()?;
    let functions = [
        ("relu(x*y+x), max", function(&library, |x, y| (x * y + x).max(&x.lit(0.0)))?),
        (
            "relu(x*y+x), select",
            function(&library, |x, y| {
                let v = x * y + x;
                v.gt(&x.lit(0.0)).select(&v, &x.lit(0.0))
            })?,
        ),
        ("exp", function(&library, |x, _| x.math(MathFn::Exp))?),
        ("tanh", function(&library, |x, _| x.math(MathFn::Tanh))?),
        (
            "gelu(x)",
            function(&library, |x, _| {
                let e = (x * &x.lit(std::f64::consts::FRAC_1_SQRT_2)).math(MathFn::Erf);
                x * &x.lit(0.5) * (e + x.lit(1.0))
            })?,
        ),
    ];
    if let Some(which) = std::env::args().nth(1) {
        for (name, f) in functions.iter().filter(|(name, _)| name.contains(&which)) {
            let d = dump(&map(f, 4096, 1, 8)?, Isa::native()?)?;
            println!("{name}: {} bytes\n{}\n{}", d.bytes, d.clif, d.assembly);
        }
        return Ok(());
    }
    println!("{:<22} {:>5} {:>8} {:>8} {:>8} {:>10}", "kernel", "lanes", "2 Ki", "64 Ki", "16 Mi", "compile µs");
    for (name, f) in &functions {
        for lanes in [4, 8, 16, 32] {
            let mut row = vec![];
            let mut compile = 0.0;
            for (n, blocks) in [(2048, 4096), (65536, 128), (1 << 24, 1)] {
                let (rate, us) = measure(map(f, n, blocks, lanes)?, &[n, n, n], n * blocks, &[])?;
                row.push(rate);
                compile = us;
            }
            println!("{name:<22} {lanes:>5} {:>8.2} {:>8.2} {:>8.2} {compile:>10.0}", row[0], row[1], row[2]);
        }
    }
    let exp = ScalarFn::build(&[DType::F32], |_, args| vec![args[0].math(MathFn::Exp)])?.expand_math(&library)?;
    for lanes in [4, 8, 16, 32] {
        let (rows, n) = (1024, 1024);
        let (rate, us) = measure(softmax(&exp, rows, n, lanes)?, &[rows * n, rows * n], rows * n, &[0, rows as i64])?;
        println!("{:<22} {lanes:>5} {rate:>8.2} {:>8} {:>8} {us:>10.0}", "softmax 1024x1024", "", "");
    }
    Ok(())
}
