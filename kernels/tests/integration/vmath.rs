//! Strips of the math library: generated from its expressions, and equal to them in every bit.

use std::sync::LazyLock;

use crate::generate;
use tensorc_ir::scalar::{MathFn, Scalar, ScalarFn};
use tensorc_kernels::{Isa, vmath};
use tensorc_ops::math::MathBodies;

static LIBRARY: LazyLock<MathBodies> = LazyLock::new(|| MathBodies::new().unwrap());

fn functions() -> impl Iterator<Item = (MathFn, &'static ScalarFn)> {
    generate::functions(&*LIBRARY)
}

#[test]
fn the_generated_code_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/vmath/generated.rs");
    let text = generate::file(&*LIBRARY);
    if std::env::var_os("TENSORC_GENERATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap() == text, "set TENSORC_GENERATE and run this test again");
    assert_eq!(vmath::NAMES, functions().map(|(f, _)| f.name()).collect::<Vec<_>>());
}

/// Values around which functions change their behaviour, and their neighbours.
fn edges() -> Vec<f32> {
    let points = [
        0.0f32,
        f32::MIN_POSITIVE,
        1e-40,
        1.0,
        0.5,
        1.25,
        2.0,
        9.0,
        20.0,
        86.99,
        87.336_55,
        88.722_84,
        89.416,
        103.97,
        104.0,
        126.0,
        127.0,
        128.0,
        150.0,
        1e15,
        3e38,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let near = |x: f32| [-2, -1, 0, 1, 2].map(|d| f32::from_bits(x.to_bits().wrapping_add_signed(d)));
    points.into_iter().flat_map(near).flat_map(|x| [x, -x]).collect()
}

fn apply(isa: Isa, f: MathFn, data: &mut [f32]) {
    let strip = vmath::vector_math_for(isa, &format!("tc_v{}_f32", f.name())).unwrap();
    // SAFETY: the slice is valid, and only available ISA levels are tested.
    unsafe { strip(data.as_mut_ptr(), data.len() as i64) };
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn strips_equal_the_expressions() {
    let sample: Vec<f32> = (0..=u32::MAX).step_by(123_457).map(f32::from_bits).chain(edges()).collect();
    for (f, body) in functions() {
        let expected: Vec<f32> = sample.iter().map(|x| body.eval(&[Scalar::f32(*x)], &[])[0].as_f32()).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut found = sample.clone();
            apply(isa, f, &mut found);
            for ((x, e), y) in sample.iter().zip(&expected).zip(&found) {
                assert!(same(*e, *y), "{} of {x:e} ({isa:?}): {y:e}, expected {e:e}", f.name());
            }
        }
    }
}

#[test]
fn strips_of_every_length_touch_nothing_else() {
    for (f, body) in functions() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for len in (0..67).chain([127, 129, 1000]) {
                let x = |i: usize| 0.013 * i as f32;
                let mut data: Vec<f32> = (0..len + 1).map(x).collect();
                apply(isa, f, &mut data[..len]);
                for (i, y) in data.iter().enumerate() {
                    let e = if i < len { body.eval(&[Scalar::f32(x(i))], &[])[0].as_f32() } else { x(i) };
                    assert!(same(*y, e), "{} ({isa:?}), element {i} of {len}: {y}, expected {e}", f.name());
                }
            }
        }
    }
}
