//! Random operators through the reference interpreter: the words they are made of, against a second
//! implementation; what selects a sequence; limits and mistakes of parameters.

use std::collections::BTreeSet;

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Accuracy, TypeRule};
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

/// Evaluates one operator on constants.
fn run_all(
    op: &str,
    operands: &[Option<TensorData>],
    params: Params,
    outputs: usize,
) -> Result<Vec<TensorData>, String> {
    let registry = tensorc_ops::registry().unwrap();
    let mut graph = Graph::new("test");
    let args: Vec<Option<Value>> =
        operands.iter().map(|o| o.as_ref().map(|t| graph.add_const("c", t.clone()))).collect();
    let def = registry.get(op).unwrap();
    let node = graph.add_op("n", def, &args, params, outputs).map_err(|d| d.to_string())?;
    for port in 0..outputs as u16 {
        graph.add_output(format!("{port}"), Value { node, port });
    }
    eval_graph(&graph, &registry, &[]).map_err(|d| d.to_string())
}

fn run(op: &str, operands: &[Option<TensorData>], params: Params) -> TensorData {
    run_all(op, operands, params, 1).unwrap().remove(0)
}

fn fails(op: &str, operands: &[Option<TensorData>], params: Params, part: &str) {
    let why = run_all(op, operands, params, 1).unwrap_err();
    assert!(why.contains(part) && why.contains(op), "{why}");
}

fn key(words: [u32; 2]) -> Option<TensorData> {
    let ty = DenseType::new(DType::U32, [2]);
    Some(TensorData::from_fn(ty, |i| Scalar { dtype: DType::U32, bits: u64::from(words[i as usize]) }))
}

fn floats(dtype: DType, dims: &[u64], values: &[f64]) -> Option<TensorData> {
    Some(TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::from_f64(dtype, values[i as usize])))
}

fn float(x: f64) -> ParamValue {
    ParamValue::Float(x)
}

fn shape(dims: &[i64]) -> Params {
    Params::new().with("shape", ParamValue::Ints(dims.to_vec()))
}

fn typed(params: Params, dtype: DType) -> Params {
    params.with("dtype", ParamValue::DType(dtype))
}

/// Threefry-2x32 with 20 rounds, written from the paper.
fn threefry(counter: [u32; 2], key: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(key[0]), counter[1].wrapping_add(key[1])];
    for round in 0..20 {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left([13, 15, 26, 6, 17, 29, 16, 24][round % 8]) ^ x[0];
        if round % 4 == 3 {
            let n = round / 4 + 1;
            x[0] = x[0].wrapping_add(schedule[n % 3]);
            x[1] = x[1].wrapping_add(schedule[(n + 1) % 3]).wrapping_add(n as u32);
        }
    }
    x
}

/// Block `block` of element `position`.
fn words(key: [u32; 2], position: u64, block: u64) -> [u32; 2] {
    let counter = position + (block << 48);
    threefry([counter as u32, (counter >> 32) as u32], key)
}

const PI_WORDS: [u32; 2] = [0x1319_8a2e, 0x0370_7344];

/// The answers published with the reference implementation, Random123.
#[test]
fn threefry_gives_the_known_answers() {
    let all = [u32::MAX; 2];
    assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
    assert_eq!(threefry(all, all), [0x1cb9_96fc, 0xbb00_2be7]);
    assert_eq!(threefry([0x243f_6a88, 0x85a3_08d3], PI_WORDS), [0xc492_3a9c, 0x483d_f7a0]);
}

/// Each word of an element, as the operators make numbers of it.
#[test]
fn operators_use_these_words() {
    for k in [[0, 0], [u32::MAX; 2], PI_WORDS] {
        let whole =
            typed(shape(&[3, 5]), DType::U32).with("low", ParamValue::Int(0)).with("high", ParamValue::Int(1 << 32));
        for (i, found) in run("random_randint", &[key(k)], whole).iter().enumerate() {
            assert_eq!(found.bits, u64::from(words(k, i as u64, 0)[0]));
        }
        for (i, found) in run("random_uniform", &[key(k)], shape(&[15])).iter().enumerate() {
            let word = words(k, i as u64, 0)[0];
            assert_eq!(found.as_f32(), ((word >> 9) as f32 + 0.5) / 8_388_608.0);
        }
        let wide = typed(shape(&[15]), DType::F64);
        for (i, found) in run("random_uniform", &[key(k)], wide.clone()).iter().enumerate() {
            let [a, b] = words(k, i as u64, 0).map(u64::from);
            assert_eq!(found.as_f64(), (((a >> 5) << 26) + (b >> 6)) as f64 / 2f64.powi(53));
        }
        for (i, found) in run("random_normal", &[key(k)], wide).iter().enumerate() {
            let number = |block| {
                let [a, b] = words(k, i as u64, block).map(u64::from);
                ((a >> 5) << 26) + (b >> 6)
            };
            let radius = (-2.0 * ((number(0) + 1) as f64 / 2f64.powi(53)).ln()).sqrt();
            let expected = radius * (2.0 * std::f64::consts::PI * (number(1) as f64 / 2f64.powi(53))).cos();
            assert!((found.as_f64() - expected).abs() < 1e-14, "{found:?} {expected}");
        }
    }
    assert_eq!(run("random_uniform", &[key([0, 0])], shape(&[])).item().unwrap().as_f32(), 0.418_457_1);
}

#[test]
fn integers_are_the_high_part_of_a_product() {
    let k = PI_WORDS;
    let cases = [
        (0, 10, DType::I32),
        (-128, 128, DType::I8),
        (0, 256, DType::U8),
        (-7, -6, DType::I16),
        (i64::from(i32::MIN), i64::from(i32::MAX) + 1, DType::I32),
        (-3, 1 << 33, DType::I64),
        (i64::MIN, i64::MAX, DType::I64),
        (1, i64::MAX, DType::U64),
    ];
    for (low, high, dtype) in cases {
        let params = typed(shape(&[200]), dtype).with("low", ParamValue::Int(low)).with("high", ParamValue::Int(high));
        let n = high.wrapping_sub(low) as u64;
        for (i, found) in run("random_randint", &[key(k)], params).iter().enumerate() {
            let block = |b| words(k, i as u64, b).into_iter().fold(0u128, |x, w| x << 32 | u128::from(w));
            let offset = match n <= 1 << 32 {
                true => (block(0) * u128::from(n)) >> 64,
                false => (block(0) * u128::from(n) + ((block(1) * u128::from(n)) >> 64)) >> 64,
            };
            assert_eq!(found.as_i64(), low.wrapping_add(offset as i64), "{low}..{high}");
        }
    }
}

/// Every random operator says where its key goes, and has it as its last operand.
#[test]
fn random_operators_take_a_key() {
    let registry = tensorc_ops::registry().unwrap();
    let mut found = 0;
    for def in registry.iter() {
        let random = def.accuracy == Accuracy::Random;
        // Those that draw in training only are exact otherwise.
        let trains = def.params.iter().any(|p| p.name == tensorc_ir::op::OpDef::TRAINING);
        assert!(def.key_input.is_some() == random || trains, "{}", def.name);
        let Some(at) = def.key_input else { continue };
        assert_eq!(at + 1, def.inputs.len(), "{}", def.name);
        let spec = &def.inputs[at];
        assert!(spec.name == "key" && spec.optional && spec.ty == TypeRule::OneOf(&[DType::U32]), "{}", def.name);
        found += u32::from(random);
    }
    assert!(found >= 3 * 7 + 4 + 3, "{found}");
}

/// Parameters with which each entry gives 40 values; arrays are of 8 equal elements.
fn draws() -> Vec<(&'static str, Vec<Option<TensorData>>, Params)> {
    let array = |x: f64| floats(DType::F32, &[8], &[x; 8]);
    let x = || floats(DType::F32, &[8, 5], &[0.5; 40]);
    let five = || shape(&[5]);
    vec![
        ("random_uniform", vec![], shape(&[8, 5])),
        ("random_normal", vec![], shape(&[8, 5])),
        ("random_gamma", vec![], shape(&[8, 5]).with("alpha", float(0.4))),
        ("random_exponential", vec![], shape(&[8, 5])),
        ("random_poisson", vec![], shape(&[8, 5]).with("lam", float(30.0))),
        ("random_negative_binomial", vec![], shape(&[8, 5]).with("p", float(0.05))),
        ("random_generalized_negative_binomial", vec![], shape(&[8, 5]).with("mu", float(9.0))),
        ("random_randint", vec![], shape(&[8, 5]).with("low", ParamValue::Int(0)).with("high", ParamValue::Int(99))),
        ("random_uniform_like", vec![x()], Params::new()),
        ("random_poisson_like", vec![x()], Params::new().with("lam", float(4.0))),
        ("sample_uniform", vec![array(0.0), array(1.0)], five()),
        ("sample_normal", vec![array(0.0), array(1.0)], five()),
        ("sample_gamma", vec![array(0.4), array(1.0)], five()),
        ("sample_exponential", vec![array(1.0)], five()),
        ("sample_poisson", vec![array(30.0)], five()),
        ("sample_negative_binomial", vec![array(1.0), array(0.05)], five()),
        ("sample_generalized_negative_binomial", vec![array(9.0), array(1.0)], five()),
        ("sample_multinomial", vec![x()], five()),
        ("multinomial", vec![x()], Params::new().with("sample_size", ParamValue::Int(5))),
        ("shuffle", vec![floats(DType::F32, &[40], &std::array::from_fn::<f64, 40, _>(|i| i as f64))], Params::new()),
        ("bernoulli", vec![x()], Params::new()),
        ("dropout_mask", vec![x(), floats(DType::F32, &[], &[0.5])], Params::new()),
    ]
}

#[test]
fn the_key_selects_the_sequence() {
    for (op, operands, params) in draws() {
        let with = |k: [u32; 2]| run(op, &[&operands[..], &[key(k)]].concat(), params.clone());
        let seeded = |seed: f64| run(op, &operands, params.clone().with("seed", float(seed)));
        assert_eq!(with(PI_WORDS), with(PI_WORDS), "{op}");
        let all = [with([0, 0]), with([0, 1]), with([1, 0]), with(PI_WORDS), seeded(0.0), seeded(1.5)];
        for (i, a) in all.iter().enumerate() {
            assert_eq!(a.len(), 40, "{op}");
            assert!(all[..i].iter().all(|b| a != b), "{op}: two keys give the same values");
        }
        // Without the operand, the seed is the key.
        assert_eq!(seeded(1.5), with([1.5f32.to_bits(), 0x7463_5f72]), "{op}");
    }
}

/// Equal parameters give the same values as numbers and as arrays.
#[test]
fn the_three_forms_agree() {
    for name in ["uniform", "normal", "exponential"] {
        let scalar = run(&format!("random_{name}"), &[key(PI_WORDS)], shape(&[8, 5]));
        let like = [floats(DType::F32, &[8, 5], &[0.0; 40]), key(PI_WORDS)];
        assert_eq!(scalar, run(&format!("random_{name}_like"), &like, Params::new()), "{name}");
    }
    let equal = |name: &str, numbers: &[(&'static str, f64)]| {
        let params = numbers.iter().fold(shape(&[8, 5]), |p, (n, x)| p.with(n, float(*x)));
        let scalar = run(&format!("random_{name}"), &[key(PI_WORDS)], params);
        let mut operands: Vec<_> = numbers.iter().map(|(_, x)| floats(DType::F32, &[8], &[*x; 8])).collect();
        operands.push(key(PI_WORDS));
        assert_eq!(scalar, run(&format!("sample_{name}"), &operands, shape(&[5])), "{name}");
    };
    equal("uniform", &[("low", -2.0), ("high", 3.5)]);
    equal("normal", &[("loc", 1.0), ("scale", 0.5)]);
    equal("gamma", &[("alpha", 0.5), ("beta", 2.0)]);
    equal("gamma", &[("alpha", 3.0), ("beta", 1.0)]);
    equal("exponential", &[("lam", 4.0)]);
    equal("poisson", &[("lam", 2.0)]);
    equal("poisson", &[("lam", 200.0)]);
    equal("generalized_negative_binomial", &[("mu", 2.0), ("alpha", 0.5)]);
}

#[test]
fn parameters_out_of_range_are_named() {
    let s = || shape(&[3]);
    let bad = |op: &str, name: &'static str, value: f64| {
        fails(op, &[], s().with(name, float(value)), &format!("parameter `{name}` is {value}"));
    };
    bad("random_normal", "scale", -1.0);
    bad("random_normal", "scale", f64::NAN);
    bad("random_normal", "mean", f64::INFINITY);
    bad("random_normal", "loc", f64::INFINITY);
    bad("random_normal", "scale", 1e300);
    bad("random_uniform", "low", 2.0);
    bad("random_gamma", "alpha", -0.5);
    bad("random_gamma", "beta", 0.0);
    bad("random_exponential", "lam", 0.0);
    bad("random_poisson", "lam", -1.0);
    bad("random_negative_binomial", "p", 0.0);
    bad("random_negative_binomial", "p", 1.5);
    bad("random_generalized_negative_binomial", "mu", -1.0);
    bad("random_generalized_negative_binomial", "alpha", -1.0);
    fails("random_negative_binomial", &[], s().with("k", ParamValue::Int(-2)), "parameter `k` is -2");
    let like = [floats(DType::F32, &[3], &[0.0; 3])];
    fails("random_normal_like", &like, Params::new().with("scale", float(-1.0)), "parameter `scale` is -1");
    fails("random_uniform", &[], s().with("low", float(-3e38)).with("high", float(3e38)), "too far above");
    fails("random_normal", &[], s().with("loc", float(1.0)).with("mean", float(1.0)), "are the same");
    fails("random_uniform", &[], shape(&[2, -1]), "negative extent -1");
    fails("random_gamma", &[], typed(s(), DType::I32), "parameter `dtype` is i32");
    let range = |low, high| s().with("low", ParamValue::Int(low)).with("high", ParamValue::Int(high));
    fails("random_randint", &[], range(5, 5), "parameter `low` is 5");
    fails("random_randint", &[], range(6, 5), "parameter `low` is 6");
    fails("random_randint", &[], range(0, 1 << 40), "does not fit i32");
    fails("random_randint", &[], typed(range(-1, 4), DType::U8), "parameter `low` is -1");
    fails("random_randint", &[], typed(range(0, 1), DType::F32), "parameter `dtype` is f32");
    fails("sample_multinomial", &[floats(DType::F32, &[2, 0], &[])], Params::new(), "no categories");
    fails("sample_multinomial", &[floats(DType::F32, &[], &[1.0])], Params::new(), "rank 0");
    let asked = Params::new().with("get_prob", ParamValue::Bool(true));
    fails("sample_multinomial", &[floats(DType::F32, &[2], &[1.0; 2])], asked, "get_prob");
    let many = Params::new().with("sample_size", ParamValue::Int(-1));
    fails("multinomial", &[floats(DType::F32, &[1, 2], &[1.0; 2])], many, "sample_size");
    fails("shuffle", &[floats(DType::F32, &[], &[1.0])], Params::new(), "rank 0");
    fails("random_uniform", &[floats(DType::F32, &[2], &[1.0; 2])], s(), "operand `key`: expected one of u32");
    let three = TensorData::from_fn(DenseType::new(DType::U32, [3]), |_| Scalar::zero(DType::U32));
    fails("random_uniform", &[Some(three)], s(), "operand `key`, axis 0");
}

#[test]
fn elements_of_arrays_out_of_range_give_nan() {
    let check = |op: &str, operands: &[&[f64]], good: &[bool]| {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let n = good.len() as u64;
            let mut args: Vec<_> = operands.iter().map(|v| floats(dtype, &[n], v)).collect();
            args.push(key(PI_WORDS));
            let found = run(op, &args, shape(&[4]));
            assert_eq!(found.dims(), [n, 4]);
            for (i, x) in found.iter().enumerate() {
                assert_eq!(x.as_f64().is_finite(), good[i / 4], "{op} {dtype} {i}: {x:?}");
                assert_eq!(x.is_nan(), !good[i / 4], "{op} {dtype} {i}: {x:?}");
            }
        }
    };
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    check("sample_uniform", &[&[0., 1., 2., nan, -inf], &[1., 1., 1., 2., 0.]], &[true, true, false, false, false]);
    check("sample_normal", &[&[0., 1., 2., nan], &[1., 0., -1., 1.]], &[true, true, false, false]);
    check("sample_exponential", &[&[1., 0., -1., inf, nan]], &[true, false, false, false, false]);
    check("sample_gamma", &[&[0.5, 0., -1., 2., inf], &[1., 1., 1., 0., 1.]], &[true, true, false, false, false]);
    check("sample_poisson", &[&[0., 3., 50., -1., nan, inf]], &[true, true, true, false, false, false]);
    check("sample_negative_binomial", &[&[1., 0., 2., 2.], &[0.5, 0.5, 0., 1.5]], &[true, true, false, false]);
    check(
        "sample_generalized_negative_binomial",
        &[&[2., 2., 0., -1.], &[0., 1e-3, 1., 1.]],
        &[true, true, true, false],
    );
}

#[test]
fn limits_of_parameters() {
    let all = |op: &str, params: Params, expected: f64| {
        for x in run(op, &[key(PI_WORDS)], params.with("shape", ParamValue::Ints(vec![50]))).to_f64s() {
            assert_eq!(x, expected, "{op}");
        }
    };
    let one = |name: &'static str, x: f64| Params::new().with(name, float(x));
    all("random_poisson", one("lam", 0.0), 0.0);
    all("random_poisson", one("lam", 1e-300), 0.0);
    all("random_gamma", one("alpha", 0.0), 0.0);
    all("random_gamma", one("alpha", 1e-300), 0.0);
    all("random_normal", one("mean", 2.5).with("scale", float(0.0)), 2.5);
    all("random_uniform", one("low", 2.5).with("high", float(2.5)), 2.5);
    all("random_negative_binomial", one("p", 1.0), 0.0);
    all("random_negative_binomial", one("p", 0.5).with("k", ParamValue::Int(0)), 0.0);
    all("random_generalized_negative_binomial", one("mu", 0.0), 0.0);
    // Tiny shapes underflow more often than not, but not to anything else than small numbers.
    let tiny = run("random_gamma", &[key(PI_WORDS)], shape(&[200]).with("alpha", float(0.01))).to_f64s();
    assert!(tiny.iter().all(|x| (0.0..20.0).contains(x)) && tiny.iter().any(|x| *x > 0.0));
    // Great rates stay within a few deviations.
    for rate in [1e6, 1e12, 1e15] {
        let params = typed(shape(&[200]), DType::F64).with("lam", float(rate));
        let found = run("random_poisson", &[key(PI_WORDS)], params).to_f64s();
        assert!(found.iter().all(|x| ((x - rate) / rate.sqrt()).abs() < 5.0 && x.fract() == 0.0), "{rate}");
        assert!(found.iter().any(|x| x > &rate) && found.iter().any(|x| x < &rate), "{rate}");
    }
}

/// Rounding to a narrow type never reaches the upper bound.
#[test]
fn uniform_values_stay_below_the_upper_bound() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (low, high) in
            [(0.0, 1.0), (-1.0, 0.0), (-3.0, -2.0), (1.0, 1.0 + 2.0 * f64::from(f32::EPSILON)), (0.0, 0.1)]
        {
            let params = typed(shape(&[3000]), dtype).with("low", float(low)).with("high", float(high));
            let found = run("random_uniform", &[key(PI_WORDS)], params);
            let rounded = Scalar::from_f64(dtype, low).as_f64();
            for x in found.to_f64s() {
                assert!(x >= rounded && (x < high || x == rounded), "{dtype} [{low}, {high}): {x}");
            }
            let ends = [floats(dtype, &[1], &[low]), floats(dtype, &[1], &[high]), key(PI_WORDS)];
            let top = Scalar::from_f64(dtype, high).as_f64();
            for x in run("sample_uniform", &ends, shape(&[3000])).to_f64s() {
                assert!(x >= rounded && (x < top || x == rounded), "{dtype} [{low}, {high}): {x}");
            }
        }
    }
}

#[test]
fn masks_at_the_ends() {
    let x = |p: f64| floats(DType::F32, &[500], &[p; 500]);
    let count = |p: f64| run("bernoulli", &[x(p), key(PI_WORDS)], Params::new()).to_f64s().iter().sum::<f64>();
    assert_eq!([count(0.0), count(1.0), count(-1.0), count(2.0), count(f64::NAN)], [0.0, 500.0, 0.0, 500.0, 0.0]);
    assert!((150.0..350.0).contains(&count(0.5)));
    let kept = |ratio: f64| {
        let mask = run("dropout_mask", &[x(1.0), floats(DType::F32, &[], &[ratio]), key(PI_WORDS)], Params::new());
        mask.iter().filter(|m| m.as_bool()).count()
    };
    assert_eq!([kept(0.0), kept(1.0)], [500, 0]);
    let training = Some(TensorData::scalar(Scalar::bool(true)));
    let half = [x(1.0), floats(DType::F32, &[], &[0.5]), training, key(PI_WORDS)];
    let both = run_all("dropout", &half, Params::new(), 2).unwrap();
    let pairs: Vec<_> = both[0].to_f64s().into_iter().zip(both[1].iter()).collect();
    assert!(pairs.iter().all(|(y, m)| *y == if m.as_bool() { 2.0 } else { 0.0 }));
    assert!((150..350).contains(&pairs.iter().filter(|(_, m)| m.as_bool()).count()));
    let other = [half[0].clone(), half[1].clone(), half[2].clone(), key([0, 0])];
    assert_ne!(both[1], run_all("dropout", &other, Params::new(), 2).unwrap()[1]);
}

#[test]
fn categories() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let rows = [
        [0.0, 0.25, 0.0, 0.75, 0.0],
        [0.0, 0.0, 0.0, 0.0, 5.0],
        [-1.0, 3.0, -2.0, 0.0, 0.0],
        [0.0; 5],
        [nan, 1.0, 1.0, 1.0, 1.0],
        [inf, 1.0, 1.0, 1.0, 1.0],
    ];
    let data = floats(DType::F32, &[2, 3, 5], rows.as_flattened());
    let out = run_all("sample_multinomial", &[data, key(PI_WORDS)], shape(&[4, 100]), 2).unwrap();
    assert_eq!(out[0].ty, DenseType::new(DType::I32, [2, 3, 4, 100]));
    assert_eq!(out[1].ty, DenseType::new(DType::F32, [2, 3, 4, 100]));
    let found: Vec<(i64, f64)> = out[0].to_i64s().into_iter().zip(out[1].to_f64s()).collect();
    let row = |i: usize| &found[400 * i..400 * (i + 1)];
    for (category, log) in row(0) {
        let expected = [nan, 0.25, nan, 0.75, nan][*category as usize];
        assert!((log - f64::ln(expected)).abs() < 1e-6, "{category} {log}");
    }
    assert!(row(0).iter().any(|r| r.0 == 1) && row(0).iter().any(|r| r.0 == 3));
    assert!(row(1).iter().all(|r| *r == (4, 0.0)));
    assert!(row(2).iter().all(|r| *r == (1, 0.0)));
    assert!((3..6).all(|i| row(i).iter().all(|r| r.0 == -1 && r.1.is_nan())));
    // Unnormalised logarithms, far from 0.
    let low = f64::NEG_INFINITY;
    let logs = floats(DType::F64, &[3, 3], &[-1e3, low, -1e3 + 1.0, low, low, low, 0.0, nan, 0.0]);
    let params = Params::new().with("sample_size", ParamValue::Int(1000)).with("dtype", ParamValue::DType(DType::I64));
    let found = run("multinomial", &[logs, key(PI_WORDS)], params);
    assert_eq!(found.ty, DenseType::new(DType::I64, [3, 1000]));
    let found = found.to_i64s();
    let share = found[..1000].iter().filter(|c| **c == 2).count() as f64 / 1000.0;
    assert!((share - 1.0 / (1.0 + (-1f64).exp())).abs() < 0.06 && !found[..1000].contains(&1), "{share}");
    assert!(found[1000..].iter().all(|c| *c == -1));
    // One category, and a vector of probabilities.
    assert_eq!(run("sample_multinomial", &[floats(DType::F32, &[1], &[0.3])], Params::new()).to_i64s(), [0]);
}

/// The order is that of a 64-bit number for each slice.
#[test]
fn shuffling_sorts_by_random_words() {
    for n in [0, 1, 2, 10, 100u64] {
        let ids: Vec<f64> = (0..2 * n).map(|i| i as f64).collect();
        let found = run("shuffle", &[floats(DType::F64, &[n, 2], &ids), key(PI_WORDS)], Params::new()).to_f64s();
        let mut order: Vec<u64> = (0..n).collect();
        order.sort_by_key(|&i| words(PI_WORDS, i, 0));
        let expected: Vec<f64> = order.iter().flat_map(|&i| [2 * i, 2 * i + 1]).map(|i| i as f64).collect();
        assert_eq!(found, expected);
    }
    let ids = floats(DType::F32, &[3], &[0.0, 1.0, 2.0]);
    let orders: BTreeSet<Vec<i64>> =
        (0..100).map(|i| run("shuffle", &[ids.clone(), key([i, 0])], Params::new()).to_i64s()).collect();
    assert_eq!(orders.len(), 6);
}

/// Distinct classes, as likely as the formula says, and as many draws as that takes.
#[test]
fn unique_classes_are_log_uniform() {
    let range = 10;
    let call = |rows: i64, wanted: i64, words: [u32; 2], outputs: usize| {
        let params = shape(&[rows, wanted]).with("range_max", ParamValue::Int(range));
        run_all("mx_sample_unique_zipfian", &[key(words)], params, outputs).unwrap()
    };
    let rows = 2000;
    let one = call(rows, 1, PI_WORDS, 2);
    assert_eq!((one[0].dims(), one[1].dims()), (&[2000, 1][..], &[2000][..]));
    assert!(one[1].to_f64s().iter().all(|tries| *tries == 1.0));
    let bound = |x: f64| x.max(1.0).min(range as f64).ln() / (range as f64).ln();
    for class in 0..range {
        let found = one[0].to_f64s().iter().filter(|c| **c == class as f64).count() as f64;
        let share = bound(class as f64 + 1.5) - bound(class as f64 + 0.5);
        // Five standard errors.
        let error = 5.0 * (rows as f64 * share * (1.0 - share)).sqrt();
        assert!((found - rows as f64 * share).abs() < error, "class {class}: {found} of {rows}, expected {share}");
    }
    let all = call(20, range, [1, 2], 2);
    for (row, tries) in all[0].to_f64s().chunks(range as usize).zip(all[1].to_f64s()) {
        let classes: BTreeSet<i64> = row.iter().map(|c| *c as i64).collect();
        assert_eq!(classes, (0..range).collect());
        assert!(tries >= range as f64);
    }
    assert_eq!(call(20, range, [1, 2], 2)[0].to_f64s(), all[0].to_f64s());
    assert_ne!(call(20, range, [1, 3], 2)[0].to_f64s(), all[0].to_f64s());
    let refused = |dims: &[i64], range: i64, part: &str| {
        let params = shape(dims).with("range_max", ParamValue::Int(range));
        let why = run_all("mx_sample_unique_zipfian", &[key([0, 0])], params, 2).unwrap_err();
        assert!(why.contains("mx_sample_unique_zipfian") && why.contains(part), "{why}");
    };
    refused(&[3, 11], 10, "11 classes are wanted, there are 10");
    refused(&[3], 10, "`shape` has 1 extents");
    refused(&[3, 1], 0, "`range_max` is 0");
}
