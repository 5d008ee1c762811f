//! Functions of f64, within their budgets, and what stands for calls of the run-time library on a GPU, exactly, against
//! those calls as the interpreter defines them.

use tensorc_ir::DType;
use tensorc_ir::scalar::{MathFn, MathLibrary, Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ops::math::{MathBodies, wide_budget};

/// Arguments of every kind, in turn: any bits, ordinary sizes, near multiples of π/2, small integers.
struct Arguments(u64);

impl Arguments {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0;
        (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29)
    }

    fn next(&mut self) -> f64 {
        let word = self.word();
        let unit = (self.word() >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0;
        match word % 6 {
            0 => f64::from_bits(self.word()),
            1 => unit * 1.5,
            2 => unit * 40.0,
            3 => unit * 760.0,
            4 => ((word >> 8) % 100_000) as f64 * std::f64::consts::FRAC_PI_2,
            _ => ((word >> 8) % 2001) as f64 - 1000.0,
        }
    }
}

const SPECIAL: [f64; 24] = [
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
    5e-324,
    -5e-324,
    f64::MIN_POSITIVE,
    -f64::MIN_POSITIVE,
    f64::MAX,
    f64::MIN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    709.782_712_893_384,
    -745.133,
    1e22,
    f64::EPSILON,
    1e-9,
];

fn f64_of(x: f64) -> Scalar {
    Scalar { dtype: DType::F64, bits: x.to_bits() }
}

/// Units in the last place of the expected value; a change of the kind of number is infinitely far.
fn distance(found: f64, expected: f64) -> f64 {
    if found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan() {
        return 0.0;
    }
    if !found.is_finite() || !expected.is_finite() {
        // An overflow one unit early or late is an error of one.
        let beside = |a: f64, b: f64| a.is_infinite() && b == f64::MAX.copysign(a);
        return if beside(found, expected) || beside(expected, found) { 1.0 } else { f64::INFINITY };
    }
    let exponent = ((expected.to_bits() >> 52) & 0x7ff).max(1);
    let unit = if exponent > 52 { (exponent - 52) << 52 } else { 1 << (exponent - 1) };
    (found - expected).abs() / f64::from_bits(unit)
}

/// The distribution function with what rounding `x/√2` loses, which the reference leaves out.
fn ndtr(x: f64) -> f64 {
    let (high, low) = (std::f64::consts::FRAC_1_SQRT_2, -4.833_646_656_726_457e-17);
    let t = -x * high;
    let lost = (-x).mul_add(high, -t) - x * low;
    let value = |f: MathFn, x: f64| ScalarOp::Math(f).eval(&[f64_of(x)]).as_f64();
    // Φ(x) = (1 - erf(t))/2, of which erf(-t) and 1 are the same on the other side.
    let slope = value(MathFn::Exp, -t * t) / std::f64::consts::PI.sqrt();
    value(MathFn::Ndtr, x) - if lost.is_finite() { slope * lost } else { 0.0 }
}

fn check(f: MathFn, body: &ScalarFn, args: &[f64]) -> f64 {
    let scalars: Vec<Scalar> = args.iter().map(|x| f64_of(*x)).collect();
    let found = body.eval(&scalars, &[])[0].as_f64();
    let expected = match f {
        MathFn::Acosh if args[0] < 1.0 => f64::NAN,
        MathFn::Ndtr => ndtr(args[0]),
        _ => ScalarOp::Math(f).eval(&scalars).as_f64(),
    };
    let error = distance(found, expected);
    // The functions of `libm` have errors of up to a unit of their own.
    assert!(error <= wide_budget(f) + 1.0, "{}{args:?}: {found:e}, expected {expected:e}, {error} ulp", f.name());
    error
}

#[test]
fn functions_are_within_their_budgets() {
    let library = MathBodies::new().unwrap();
    for f in MathFn::ALL {
        let body = library.expansion(ScalarOp::Math(f), DType::F64).unwrap();
        let mut arguments = Arguments(f as u64 + 1);
        let mut worst = (0.0, vec![]);
        for _ in 0..20_000 {
            let args: Vec<f64> = (0..f.arity()).map(|_| arguments.next()).collect();
            let error = check(f, body, &args);
            if error > worst.0 {
                worst = (error, args);
            }
        }
        for x in SPECIAL {
            match f.arity() {
                1 => _ = check(f, body, &[x]),
                _ => SPECIAL.iter().for_each(|&y| _ = check(f, body, &[x, y])),
            }
        }
        let operations = body.nodes.iter().filter(|n| matches!(n, ScalarNode::Op(..))).count();
        println!("{}: {operations} operations, {:.3} ulp at {:?}", f.name(), worst.0, worst.1);
    }
}

/// Expansions are made of what every device has, and there is one for all that is a call elsewhere.
#[test]
fn expansions_call_nothing() {
    let library = MathBodies::new().unwrap();
    let mut found = 0;
    let others = [ScalarOp::Rem, ScalarOp::Scale, ScalarOp::Cast(DType::F16), ScalarOp::Cast(DType::BF16)];
    for op in MathFn::ALL.map(ScalarOp::Math).into_iter().chain(others) {
        for from in DType::COMPUTED {
            let Some(body) = library.expansion(op, from) else { continue };
            found += 1;
            assert_eq!(op.result(&vec![from; op.arity()]).unwrap(), body.output_dtypes()[0]);
            for node in &body.nodes {
                let ScalarNode::Op(op, args) = node else { continue };
                assert!(library.expansion(*op, body.dtype(args[0])).is_none(), "{op:?}");
            }
        }
    }
    assert_eq!(found, MathFn::ALL.len() + 2 + 1 + 10);
}

fn same(a: Scalar, b: Scalar) -> bool {
    a.bits == b.bits || a.is_nan() && b.is_nan()
}

#[test]
fn remainders_are_exact() {
    let library = MathBodies::new().unwrap();
    for dtype in [DType::F32, DType::F64] {
        let body = library.expansion(ScalarOp::Rem, dtype).unwrap();
        let mut arguments = Arguments(7);
        let number = |x: f64| f64_of(x).cast(dtype);
        let special = SPECIAL.iter().flat_map(|x| SPECIAL.iter().map(|y| [number(*x), number(*y)]));
        let any = |arguments: &mut Arguments| match arguments.word() % 2 {
            0 => number(arguments.next()),
            _ => Scalar { dtype, bits: arguments.word() >> (64 - 8 * dtype.size()) },
        };
        let random = (0..50_000).map(|_| [any(&mut arguments), any(&mut arguments)]);
        for args in special.chain(random) {
            let (found, expected) = (body.eval(&args, &[])[0], ScalarOp::Rem.eval(&args));
            let shown = [args[0].as_f64(), args[1].as_f64()];
            assert!(same(found, expected), "{dtype} {shown:?}: {:e}, {:e}", found.as_f64(), expected.as_f64());
        }
    }
}

#[test]
fn roundings_to_16_bits_are_exact() {
    let library = MathBodies::new().unwrap();
    let mut arguments = Arguments(11);
    for to in [DType::F16, DType::BF16] {
        let op = ScalarOp::Cast(to);
        for from in [DType::F64, DType::I32, DType::U32, DType::I64, DType::U64] {
            let body = library.expansion(op, from).unwrap();
            let check = |bits: u64| {
                let x = [Scalar { dtype: from, bits: if from.size() == 4 { bits & 0xffff_ffff } else { bits } }];
                let (found, expected) = (body.eval(&x, &[])[0], op.eval(&x));
                assert!(same(found, expected), "{from} {bits:#x} to {to}: {:#x}, {:#x}", found.bits, expected.bits);
            };
            for _ in 0..20_000 {
                // Of every size, and beside the middle of neighbours.
                let word = arguments.word();
                let short = word >> (word % 64);
                check(word);
                check(short);
                check(short.wrapping_neg());
                let half = Scalar { dtype: to, bits: (word >> 20) & 0x7fff }.as_f64();
                let next = Scalar { dtype: to, bits: ((word >> 20) & 0x7fff) + 1 }.as_f64();
                let middle = (half + next) / 2.0;
                let at = if from.is_float() { middle.to_bits() } else { f64_of(middle).cast(from).bits };
                [at.wrapping_sub(1), at, at.wrapping_add(1)].into_iter().for_each(check);
            }
        }
    }
}

#[test]
fn scalings_are_exact() {
    let library = MathBodies::new().unwrap();
    let body = library.expansion(ScalarOp::Scale, DType::F32).unwrap();
    let mut arguments = Arguments(13);
    let special = SPECIAL.iter().flat_map(|x| SPECIAL.iter().map(|y| [*x, *y]));
    let random: Vec<[f64; 2]> = (0..50_000).map(|_| [arguments.next(), arguments.next()]).collect();
    for args in special.chain(random) {
        let args = args.map(|x| f64_of(x).cast(DType::F32));
        assert!(same(body.eval(&args, &[])[0], ScalarOp::Scale.eval(&args)), "{args:?}");
    }
}
