//! MurmurHash3 of elements, by the algorithm of 32 bits that Austin Appleby placed in the public domain.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![murmur_hash3()]
}

/// Elements of one or two words.
const WORDS: &[DType] = &[DType::I32, DType::U32, DType::I64, DType::U64, DType::F32, DType::F64];

/// The 32-bit words of an element, the low one first.
fn words(x: &Ex) -> Vec<Ex> {
    let bits = match x.dtype() {
        DType::F32 => x.bitcast(DType::U32),
        DType::F64 => x.bitcast(DType::U64),
        _ => x.clone(),
    };
    match bits.dtype().size() {
        4 => vec![bits.cast(DType::U32)],
        _ => vec![bits.cast(DType::U32), bits.shr(&bits.lit(32.0)).cast(DType::U32)],
    }
}

fn hashed(s: &ScalarBuilder, x: &Ex, seed: i64) -> Ex {
    let number = |n: u32| s.constant(Scalar::from_i64(DType::U32, n.into()));
    let xor = |a: &Ex, b: &Ex| s.op(ScalarOp::Xor, &[a, b]);
    let rotated = |x: &Ex, by: u32| s.op(ScalarOp::Or, &[&x.shl(&number(by)), &x.shr(&number(32 - by))]);
    let words = words(x);
    let mut h = number(seed as u32);
    for word in &words {
        let k = rotated(&(word * number(0xcc9e_2d51)), 15) * number(0x1b87_3593);
        h = rotated(&xor(&h, &k), 13) * number(5) + number(0xe654_6b64);
    }
    h = xor(&h, &number(4 * words.len() as u32));
    for (shift, factor) in [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)] {
        h = xor(&h, &h.shr(&number(shift))) * number(factor);
    }
    xor(&h, &h.shr(&number(16)))
}

fn murmur_hash3() -> OpDef {
    let compute = scalar(|s, cx, args| {
        let Some(Some(x)) = args.first() else { return Err("operand `X` is missing".into()) };
        let hash = hashed(s, x, cx.params.int("seed").unwrap_or(0));
        let signed = cx.params.int("positive") == Some(0);
        Ok(if signed { hash.cast(DType::I32) } else { hash })
    });
    define("murmur_hash3", "The MurmurHash3 of the bytes of each element, in 32 bits.", compute, Infer::Derived)
        .group("X", WORDS)
        .param("seed", 0, "first value of the hash")
        .param("positive", 1, "0: the result is an i32 rather than a u32")
        .contrib("MurmurHash3")
        .no_gradient()
}
