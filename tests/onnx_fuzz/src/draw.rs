//! Random shapes and elements, ordinary and extreme.

use tensorc::DType;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, Rng, TensorData};

/// What the elements of a tensor must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elements {
    /// Ordinary or extreme ones.
    Any,
    /// As [`Elements::Any`], no zeros: divisors of integers.
    Nonzero,
    /// Ordinary positive numbers: scales, variances.
    Positive,
    /// From 0 to 1.
    Unit,
    /// Positions of an axis of this extent; negative ones count from its end if the flag says so.
    Index(u64, bool),
    /// Integers from the first up to the second, that one included.
    Between(i64, i64),
}

/// Most elements of a tensor that is drawn.
pub const MOST: u64 = 6000;

const EXTENTS: [u64; 20] = [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 5, 5, 7, 8, 11, 16, 17, 33, 65];

/// The element types drawn, by how often.
pub fn dtype(rng: &mut Rng, allowed: &[DType]) -> DType {
    let weight = |d: &DType| match d {
        DType::F32 => 8,
        DType::F64 | DType::I64 => 3,
        DType::F16 | DType::I32 | DType::U8 | DType::I8 | DType::Bool => 2,
        DType::BF16 => 0,
        _ => 1,
    };
    let total: u64 = allowed.iter().map(weight).sum();
    let mut at = rng.below(total.max(1));
    for d in allowed {
        let w = weight(d);
        if at < w {
            return *d;
        }
        at -= w;
    }
    allowed.first().copied().unwrap_or(DType::F32)
}

/// An extent: mostly small, now and then 0, or longer than vectors.
pub fn extent(rng: &mut Rng) -> u64 {
    match *rng.pick(&EXTENTS) {
        0 if !rng.one_in(3) => 2,
        n => n,
    }
}

/// Extents of a tensor of at most [`MOST`] elements.
pub fn shape(rng: &mut Rng, least: usize, most: usize) -> Vec<u64> {
    let rank = least + rng.below((most - least + 1) as u64) as usize;
    loop {
        let dims: Vec<u64> = (0..rank).map(|_| extent(rng)).collect();
        if dims.iter().map(|d| (*d).max(1)).product::<u64>() <= MOST {
            return dims;
        }
    }
}

/// A shape that broadcasts with `dims`, both ways.
pub fn broadcast(rng: &mut Rng, dims: &[u64]) -> Vec<u64> {
    let mut out: Vec<u64> = dims.to_vec();
    for d in &mut out {
        match rng.below(6) {
            0 => *d = 1,
            1 if *d == 1 => *d = *rng.pick(&[0, 2, 3, 5]),
            _ => {}
        }
    }
    match rng.below(5) {
        0 => {
            let gone = rng.below(out.len() as u64 + 1) as usize;
            out.drain(..gone);
        }
        1 if out.len() < 6 => out.insert(0, *rng.pick(&[1, 2, 3])),
        _ => {}
    }
    if out.iter().map(|d| (*d).max(1)).product::<u64>() > MOST { dims.to_vec() } else { out }
}

const CORNERS: [f64; 16] =
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, -2.5, 1.5, 2.5, 1e-40, -1e-45, 1e-7, 88.8, -104.0, 65504.0, 16_777_217.0];
const BEYOND: [f64; 5] = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e30];

/// A corner of the range; of floats one that is not finite, or of a magnitude whose square is not, if `beyond`.
fn extreme(rng: &mut Rng, dtype: DType, beyond: bool) -> Scalar {
    match dtype {
        d if d.is_float() && beyond => Scalar::from_f64(d, *rng.pick(&BEYOND)),
        d if d.is_float() => Scalar::from_f64(d, *rng.pick(&CORNERS)),
        DType::Bool => Scalar::bool(rng.one_in(2)),
        d => {
            let least = if d.is_signed_int() { -1i64 << (8 * d.size() - 1) } else { 0 };
            let most = if d.is_signed_int() { !least } else { -1 };
            Scalar::from_i64(d, *rng.pick(&[0, 1, -1, 2, -2, least, most, 63, 100]))
        }
    }
}

/// A tensor of such elements. A fifth of those of any elements have extreme ones.
pub fn tensor(rng: &mut Rng, dtype: DType, dims: &[u64], elements: Elements) -> TensorData {
    let ty = DenseType::new(dtype, dims);
    let (wild, scale) = (rng.below(20), *rng.pick(&[1.0, 1.0, 4.0, 30.0, 0.01]));
    let (wild, beyond) = (wild < 4, wild == 0);
    let ordinary = |rng: &mut Rng| match dtype {
        d if d.is_float() => Scalar::from_f64(d, rng.element(DType::F64).as_f64() * scale),
        d => rng.element(d),
    };
    TensorData::from_fn(ty, |_| match elements {
        Elements::Any if wild && rng.one_in(4) => {
            let far = beyond && rng.one_in(3);
            extreme(rng, dtype, far)
        }
        Elements::Any => ordinary(rng),
        Elements::Nonzero => {
            let x = if wild && rng.one_in(4) { extreme(rng, dtype, beyond) } else { ordinary(rng) };
            if x.as_f64() == 0.0 { Scalar::from_i64(dtype, 3) } else { x }
        }
        Elements::Positive => match dtype {
            d if d.is_float() => Scalar::from_f64(d, 0.01 + rng.element(DType::F64).as_f64().abs()),
            d => Scalar::from_i64(d, 1 + rng.below(5) as i64),
        },
        Elements::Unit => Scalar::from_f64(dtype, rng.element(DType::F64).as_f64().abs()),
        Elements::Index(n, negative) => {
            let at = rng.below(n) as i64;
            Scalar::from_i64(dtype, if negative && rng.one_in(3) { at - n as i64 } else { at })
        }
        Elements::Between(low, high) => {
            let x = low + rng.below((high - low + 1) as u64) as i64;
            if dtype.is_float() { Scalar::from_f64(dtype, x as f64) } else { Scalar::from_i64(dtype, x) }
        }
    })
}
