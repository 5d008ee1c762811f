//! The math library against the f64 functions: sampled arguments, special values, and the kinds
//! of operation its bodies may use. `examples/ulp.rs` tries every argument.

mod blocks;
mod distance;

use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, MathLibrary, Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ops::math::{Library, budget};

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
    let library = Library::new().unwrap();
    for f in MathFn::ALL {
        let worst = blocks::sweep(f, library.body(f), 0, 1 << 32, 4099);
        let (ulp, at) = (worst.ulp, worst.input);
        assert!(ulp <= budget(f), "{}{at:?}: {} for {}, {ulp} ulp", f.name(), worst.found, worst.expected);
    }
}

#[test]
fn special_values_follow_c() {
    let library = Library::new().unwrap();
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
    let library = Library::new().unwrap();
    for f in MathFn::ALL {
        let body = library.body(f);
        for (node, dtype) in body.nodes.iter().zip(&body.dtypes) {
            let ScalarNode::Op(op, _) = node else { continue };
            assert!(!matches!(op, ScalarOp::Math(_) | ScalarOp::Min | ScalarOp::Max | ScalarOp::Rem), "{}", f.name());
            assert!(!matches!(dtype, DType::I64 | DType::U64), "{}: 64-bit integers", f.name());
        }
    }
}

/// The compiled evaluator and the definition agree bit by bit.
#[test]
fn block_evaluation_is_exact() {
    let library = Library::new().unwrap();
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
