//! The math library against the f64 functions: sampled arguments, special values, and the kinds
//! of operation its bodies may use. `examples/ulp.rs` tries every argument.

use crate::blocks;
use crate::distance;
use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, MathLibrary, Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ops::math::{MathBodies, budget};

const SPECIAL: [f32; 22] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1e-45,
    -1e-45,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    88.72283,
    -103.9,
    f32::EPSILON,
];

fn evaluate(body: &ScalarFn, args: &[f32]) -> f32 {
    let args: Vec<Scalar> = args.iter().map(|&x| Scalar::f32(x)).collect();
    body.eval(&args, &[])[0].as_f32()
}

fn reference(f: MathFn, args: &[f32]) -> f64 {
    if f == MathFn::Acosh && args[0] < 1.0 {
        return f64::NAN;
    }
    let args: Vec<Scalar> = args.iter().map(|&x| Scalar::f32(x).cast(DType::F64)).collect();
    ScalarOp::Math(f).eval(&args).as_f64()
}

#[test]
fn sampled_arguments_are_within_budget() {
    let library = MathBodies::new().unwrap();
    for f in MathFn::ALL {
        let worst = blocks::sweep(f, library.body(f), 0, 1 << 32, 4099);
        let (ulp, at) = (worst.ulp, worst.input);
        assert!(ulp <= budget(f), "{}{at:?}: {} for {}, {ulp} ulp", f.name(), worst.found, worst.expected);
    }
}

#[test]
fn special_values_follow_c() {
    let library = MathBodies::new().unwrap();
    let check = |f: MathFn, args: &[f32]| {
        let (found, expected) = (evaluate(library.body(f), args), reference(f, args));
        let error = distance::error(found, expected);
        assert!(error <= budget(f), "{}{args:?}: {found:e}, expected {expected:e}", f.name());
    };
    for f in MathFn::ALL {
        for x in SPECIAL {
            match f.arity() {
                1 => check(f, &[x]),
                _ => SPECIAL.iter().for_each(|&y| check(f, &[x, y])),
            }
        }
    }
}

#[test]
fn bodies_use_cheap_operations_only() {
    let library = MathBodies::new().unwrap();
    for f in MathFn::ALL {
        let body = library.body(f);
        for (node, dtype) in body.nodes.iter().zip(&body.dtypes) {
            let ScalarNode::Op(op, _) = node else { continue };
            assert!(!matches!(op, ScalarOp::Math(_) | ScalarOp::Min | ScalarOp::Max | ScalarOp::Rem), "{}", f.name());
            assert!(!matches!(dtype, DType::I64 | DType::U64), "{}: 64-bit integers", f.name());
        }
    }
}

/// With the instruction for powers of two the functions have the bits that they have without: for every 1021st argument,
/// and for all around the bounds of their ranges.
#[test]
fn bodies_that_scale_have_the_same_bits() {
    let library = MathBodies::new().unwrap();
    let bounds =
        [0.0f32, 0.5, 1.0, 86.6, 87.3, 88.4, 88.7228, 89.0, 103.97, 104.0, 126.0, 127.0, 128.0, 129.0, 149.0, 151.0];
    let near = bounds.into_iter().flat_map(|x| (0..4096).map(move |i| (x.to_bits() + i).wrapping_sub(2048)));
    let mut arguments: Vec<u32> = near.flat_map(|x| [x & 0x7fff_ffff, x | 0x8000_0000]).collect();
    arguments.extend((0..=u32::MAX).step_by(1021));
    for f in [MathFn::Exp, MathFn::Exp2] {
        let bodies = [library.body(f), library.scaling_body(f)];
        assert!(bodies[0] != bodies[1], "{}", f.name());
        let mut evaluators = bodies.map(blocks::Evaluator::new);
        for some in arguments.chunks_exact(blocks::LANES) {
            let inputs: Vec<u64> = some.iter().map(|x| u64::from(*x)).collect();
            let [plain, scaling] = evaluators.each_mut().map(|e| e.run(std::slice::from_ref(&inputs)));
            for (x, (a, b)) in some.iter().zip(plain.iter().zip(scaling)) {
                let both_nan = f32::from_bits(*a as u32).is_nan() && f32::from_bits(*b as u32).is_nan();
                assert!(a == b || both_nan, "{}({:e}): {a:x}, {b:x}", f.name(), f32::from_bits(*x));
            }
        }
    }
}

/// The compiled evaluator and the definition agree bit by bit.
#[test]
fn block_evaluation_is_exact() {
    let library = MathBodies::new().unwrap();
    for f in MathFn::ALL.into_iter().filter(|f| f.arity() == 1) {
        let inputs: Vec<u64> = (0..blocks::LANES as u64).map(|i| (i * 4_190_003) & 0xffff_ffff).collect();
        let mut evaluator = blocks::Evaluator::new(library.body(f));
        let found = evaluator.run(std::slice::from_ref(&inputs)).clone();
        for (x, y) in inputs.iter().zip(found) {
            let (x, y) = (f32::from_bits(*x as u32), f32::from_bits(y as u32));
            let exact = evaluate(library.body(f), &[x]);
            assert!(exact.to_bits() == y.to_bits() || exact.is_nan() && y.is_nan(), "{}({x:e})", f.name());
        }
    }
}
