//! The f32 math library as machine code, bit for bit as its expressions evaluate.

use crate::common;
use tensorc_abi::DType;
use tensorc_ir::kir::{KernelBuilder, LoopKind, Operand};
use tensorc_ir::scalar::{MathFn, MathLibrary, Scalar};
use tensorc_ops::math::MathBodies;

#[test]
fn functions_match_their_expressions() {
    let library = MathBodies::new().unwrap();
    let n = 20_000u64;
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 32) as u32
    };
    // Half of the arguments are any bit pattern, half are of ordinary size.
    let mut value = |i: u64| match i % 2 {
        0 => Scalar::f32(f32::from_bits(next())),
        _ => Scalar::f32((next() as f32 / 4e9 - 0.5) * if i % 4 == 1 { 4.0 } else { 200.0 }),
    };
    let inputs: Vec<Vec<Scalar>> = (0..2).map(|_| (0..n).map(&mut value).collect()).collect();
    for f in MathFn::ALL {
        let body = library.body(f);
        let mut kernels = vec![];
        for lanes in [1u64, 4, 8, 16] {
            let mut b = KernelBuilder::new(f.name());
            let params: Vec<_> = inputs.iter().map(|_| b.param("in", DType::F32, n, false)).collect();
            let out = b.param("out", DType::F32, n, true);
            b.for_range("i", n / lanes, LoopKind::Serial, |b, i| {
                let kind = if lanes == 1 { LoopKind::Unroll } else { LoopKind::Vector };
                b.for_range("l", lanes, kind, |b, l| {
                    let at = i.scale(lanes as i64).add(&l);
                    let args: Vec<Operand> = params[..f.arity()].iter().map(|p| b.load(*p, at.clone())).collect();
                    let r = b.apply(body, &args, &[]);
                    b.store(out, at, r[0]);
                    Ok::<(), ()>(())
                })
            })
            .unwrap();
            kernels.push(b.finish());
        }
        let expected: Vec<Scalar> = (0..n as usize)
            .map(|i| {
                let args: Vec<Scalar> = inputs[..f.arity()].iter().map(|v| v[i]).collect();
                body.eval(&args, &[])[0]
            })
            .collect();
        let module = common::compile(&kernels);
        for k in 0..kernels.len() {
            let bytes = |v: &Vec<Scalar>| v.iter().flat_map(|s| (s.bits as u32).to_le_bytes()).collect::<Vec<u8>>();
            let mut buffers: Vec<Vec<u8>> = inputs.iter().map(bytes).collect();
            buffers.push(vec![0; n as usize * 4]);
            common::call(&module, k, &mut buffers, &[]);
            for (i, found) in common::elements(DType::F32, &buffers[2]).into_iter().enumerate() {
                let (e, x) = (expected[i], inputs[0][i].as_f32());
                assert!(common::same(e, found), "{}({x}) kernel {k}: {} is {}", f.name(), found.as_f32(), e.as_f32());
            }
        }
    }
}
