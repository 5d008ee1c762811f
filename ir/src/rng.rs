//! A seeded generator of numbers and elements.

use tensorc_abi::DType;

use crate::scalar::Scalar;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n` (0 for `n == 0`), up to a bias of n/2⁶⁴.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `1 / n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the items, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Floats uniform in [-1, 1), signed integers in -8..8, unsigned ones in 0..16 (narrow ones: all), bools.
    pub fn element(&mut self, dtype: DType) -> Scalar {
        let bits = self.next_u64();
        match dtype {
            DType::Bool => Scalar::bool(bits >> 63 == 1),
            d if d.is_float() || d.is_narrow_float() => {
                Scalar::from_f64(d, (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
            }
            d if d.is_signed_int() => Scalar::from_i64(d, (bits >> 60) as i64 - 8),
            d => Scalar::from_i64(d, (bits >> 60) as i64),
        }
    }
}
