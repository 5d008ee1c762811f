//! Every rule of scalar bodies is proved by interpreting both sides: for every assignment of element types that is
//! well typed, on special values, constants that conditions ask for, and random values.

use tensorc_ir::DType;
use tensorc_ir::scalar::{MathLibrary, Scalar, ScalarFn, ScalarOp};
use tensorc_ops::math::MathBodies;
use tensorc_passes::Label;
use tensorc_passes::simplify::scalar::{Rewriter, ScalarFacts, ScalarRule, TermBuilder, build_term, rules};
use tensorc_random::{Rng, random_scalar_fn};

/// Computes terms of rules on values; f32 functions by the math library.
struct Values<'a>(&'a MathBodies);

impl TermBuilder for Values<'_> {
    type Value = Scalar;

    fn dtype(&self, v: &Scalar) -> DType {
        v.dtype
    }

    fn constant(&mut self, c: Scalar) -> Scalar {
        c
    }

    fn constant_of(&self, v: &Scalar) -> Option<Scalar> {
        Some(*v)
    }

    fn op(&mut self, op: ScalarOp, args: &[Scalar]) -> Scalar {
        match op {
            ScalarOp::Math(f) if args[0].dtype == DType::F32 => self.0.body(f).eval(args, &[])[0],
            _ => op.eval(args),
        }
    }
}

/// Values at which arithmetic of a type is special.
fn specials(dtype: DType) -> Vec<Scalar> {
    let size = dtype.size() as u32 * 8;
    let bits: Vec<u64> = match dtype {
        DType::Bool => vec![0, 1],
        DType::F32 => [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE]
            .into_iter()
            .chain([f32::from_bits(1), -f32::from_bits(3), 0.5, 2.0, -2.5, 3.0, f32::from_bits(0x007f_ffff)])
            .map(|x| u64::from(x.to_bits()))
            .collect(),
        DType::F64 => [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX, f64::MIN_POSITIVE]
            .into_iter()
            .chain([f64::from_bits(1), -f64::from_bits(3), 0.5, 2.0, -2.5, 3.0])
            .map(f64::to_bits)
            .collect(),
        DType::F16 => vec![0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 1, 0x03ff, 0x7bff],
        DType::BF16 => vec![0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 1, 0x007f, 0x7f7f],
        _ => {
            let mask = if size == 64 { u64::MAX } else { (1 << size) - 1 };
            vec![0, 1, 2, 3, mask, mask - 1, 1 << (size - 1), (1 << (size - 1)) - 1, 7, 1 << (size - 2)]
        }
    };
    bits.into_iter().map(|bits| Scalar { dtype, bits }).collect()
}

/// Powers of two and others of moderate size, for conditions on constants.
fn constants(dtype: DType) -> Vec<Scalar> {
    let numbers = [1.0, 2.0, 4.0, 8.0, 64.0, 0.5, 0.125, -4.0, -0.25, 3.0, -3.0, 5.0, 0.1, 1024.0, 768.0];
    let all = numbers.into_iter().map(|x| Scalar::from_f64(dtype, x));
    all.filter(|c| !dtype.is_float() || c.as_f64() != 0.0).collect()
}

fn random(rng: &mut Rng, dtype: DType, wild: bool) -> Scalar {
    if wild {
        let mask = if dtype.size() == 8 { u64::MAX } else { (1 << (8 * dtype.size())) - 1 };
        let bits = if dtype == DType::Bool { rng.below(2) } else { rng.next_u64() & mask };
        return Scalar { dtype, bits };
    }
    let x = rng.element(dtype);
    let scale = Scalar::from_f64(dtype, [1.0, 1.0, 4.0, 16.0][rng.below(4) as usize]);
    match dtype {
        DType::F32 | DType::F64 => ScalarOp::Mul.eval(&[x, scale]),
        _ => x,
    }
}

/// Every assignment of types to variables and type variables.
fn assignments(n: usize) -> Vec<Vec<DType>> {
    (0..n).fold(vec![vec![]], |all, _| {
        let longer = |a: &Vec<DType>, d: DType| [&a[..], &[d]].concat();
        all.iter().flat_map(|a| DType::COMPUTED.into_iter().map(move |d| longer(a, d))).collect()
    })
}

/// How far two results may be apart that are equal in real arithmetic, in units of the last place of the
/// largest value on the way: a few roundings, and two library functions.
const UNITS: f64 = 16.0;

fn agrees(rule: &ScalarRule, left: Scalar, right: Scalar, largest: f64) -> bool {
    if left == right || left.is_nan() && right.is_nan() {
        return true;
    }
    let epsilon = if left.dtype == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
    let close = (left.as_f64() - right.as_f64()).abs() <= UNITS * epsilon * largest;
    rule.label != Label::Exact && left.dtype.is_float() && close
}

/// Computes terms and remembers the largest value on the way; `tame` while every value is a normal number.
struct Largest<'a>(Values<'a>, f64, bool);

impl TermBuilder for Largest<'_> {
    type Value = Scalar;

    fn dtype(&self, v: &Scalar) -> DType {
        v.dtype
    }

    fn constant(&mut self, c: Scalar) -> Scalar {
        c
    }

    fn constant_of(&self, v: &Scalar) -> Option<Scalar> {
        Some(*v)
    }

    fn op(&mut self, op: ScalarOp, args: &[Scalar]) -> Scalar {
        let result = self.0.op(op, args);
        let x = result.as_f64().abs();
        // Zero is exact unless it is what is left of a product.
        let vanished =
            x == 0.0 && matches!(op, ScalarOp::Mul | ScalarOp::Div) && args.iter().all(|a| a.as_f64() != 0.0);
        self.2 &= !vanished && (x == 0.0 || (1e-30..1e30).contains(&x));
        self.1 = self.1.max(x);
        result
    }
}

/// Proves a rule for one assignment of types; returns the number of cases in which it applied.
fn prove(rule: &ScalarRule, types: &[DType], library: &MathBodies) -> u64 {
    let (vars, targets) = types.split_at(rule.vars.len());
    let mut rng = Rng::new(7);
    let pools: Vec<Vec<Scalar>> = vars.iter().map(|d| [specials(*d), constants(*d)].concat()).collect();
    let all: usize = pools.iter().map(Vec::len).product();
    let mut cases = 0;
    for case in 0..all.min(6000) + 600 {
        let mut number = if all <= 6000 { case } else { rng.next_u64() as usize % all };
        let values: Vec<Scalar> = pools
            .iter()
            .map(|pool| {
                let chosen = pool[number % pool.len()];
                number /= pool.len();
                match case < all.min(6000) || rng.one_in(3) {
                    true => chosen,
                    false => random(&mut rng, chosen.dtype, case % 2 == 0),
                }
            })
            .collect();
        let facts: Vec<ScalarFacts> = values.iter().map(|v| ScalarFacts::of(*v)).collect();
        if !rule.holds(&facts, targets) {
            continue;
        }
        let mut left = Largest(Values(library), 0.0, true);
        let Some(l) = build_term(&mut left, &rule.pattern, &values, targets, None) else { return cases };
        let mut right = Largest(Values(library), 0.0, true);
        let Some(r) = build_term(&mut right, &rule.replacement, &values, targets, Some(l.dtype)) else { continue };
        assert_eq!(l.dtype, r.dtype, "{}: types of {types:?}", rule.name);
        let tame =
            left.2 && right.2 && values.iter().all(|v| v.as_f64() == 0.0 || (1e-30..1e4).contains(&v.as_f64().abs()));
        if rule.label == Label::Exact || tame {
            let largest = values.iter().fold(left.1.max(right.1), |m, v| m.max(v.as_f64().abs()));
            let what = format!("{}: {:?} gives {l:?} and {r:?}", rule.text, values);
            assert!(agrees(rule, l, r, largest.max(1e-30)), "{what}");
            cases += 1;
        }
    }
    cases
}

#[test]
fn every_rule_keeps_values_on_every_type_it_applies_to() {
    let library = MathBodies::new().unwrap();
    let mut total = 0;
    for rule in rules().unwrap() {
        let n = rule.vars.len() + rule.types.len();
        let mut applied: Vec<String> = vec![];
        let mut cases = 0;
        for types in assignments(n.min(3)) {
            // More variables than three repeat the type of the last.
            let types: Vec<DType> = (0..n).map(|i| types[i.min(types.len() - 1)]).collect();
            let found = prove(rule, &types, &library);
            cases += found;
            if found > 0 && applied.len() < 13 {
                applied.push(types[0].to_string());
            }
        }
        applied.dedup();
        println!("{:8} {:26} {cases:9} cases on {}", rule.label.name(), rule.name, applied.join(" "));
        assert!(cases > 0, "{} never applies", rule.name);
        total += cases;
    }
    println!("{} rules, {total} cases", rules().unwrap().len());
}

#[test]
fn exact_rewriting_of_random_bodies_keeps_their_bits() {
    let library = MathBodies::new().unwrap();
    let (mut changed, mut fired) = (0, 0);
    let mut rewriter = Rewriter::new(|l| l == Label::Exact).unwrap();
    for seed in 0..1500 {
        let mut rng = Rng::new(seed);
        let types = [DType::F32, DType::F64, DType::I32, DType::U8, DType::I64, DType::Bool];
        let inputs: Vec<DType> = (0..1 + rng.below(3)).map(|_| *rng.pick(&types)).collect();
        let result = *rng.pick(&types[..5]);
        let f = random_scalar_fn(&mut rng, &inputs, 0, result);
        let Some(better) = rewriter.rewrite(&f).unwrap() else { continue };
        assert!(better.after < better.before);
        (changed, fired) = (changed + 1, fired + better.fired.len());
        let expand = |f: &ScalarFn| f.expand_math(&library).unwrap();
        let (before, after) = (expand(&f), expand(&better.body));
        for case in 0..40 {
            let values: Vec<Scalar> = inputs.iter().map(|d| random(&mut rng, *d, case % 2 == 0)).collect();
            for (x, y) in before.eval(&values, &[]).into_iter().zip(after.eval(&values, &[])) {
                assert!(x == y || x.is_nan() && y.is_nan(), "seed {seed}: {x:?} and {y:?} of {values:?}\n{f:?}");
            }
        }
    }
    println!("{changed} of 1500 bodies became cheaper, by {fired} rules");
    assert!(changed > 100);
}

#[test]
fn rewriting_is_bounded_and_the_same_each_time() {
    let sum = |n: usize| {
        ScalarFn::build(&[DType::F32; 2], |_, x| {
            vec![(0..n).fold(&x[0] * &x[1], |acc, i| if i % 2 == 0 { &acc * &x[0] } else { &acc + &x[1] })]
        })
        .unwrap()
    };
    for n in [10, 100, 1000] {
        let run = || Rewriter::new(|_| true).unwrap().rewrite(&sum(n)).unwrap().map(|r| (r.body, r.fired, r.after));
        assert_eq!(run(), run());
    }
}
