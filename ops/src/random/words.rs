//! Random words, and uniform numbers made of them.
//!
//! Block `b` of element `i` of a draw is Threefry-2x32 with 20 rounds of the 64-bit counter
//! `i + b·2⁴⁸`, low word first, under the draw's key. Element-wise expressions and kernels use the
//! same blocks, so nothing depends on the order or the thread in which elements are computed.

use crate::prelude::*;

/// Two words for a counter and a key. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// 2011, with its rotation constants.
fn threefry(counter: [Ex; 2], key: &[Ex; 2]) -> [Ex; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let last = &key[0] ^ &key[1] ^ key[0].lit(f64::from(0x1bd1_1bda_u32));
    let keys = [&key[0], &key[1], &last];
    let [mut a, mut b] = counter;
    let word = |x: &Ex, w: u32| x.lit(f64::from(w));
    a = &a + keys[0];
    b = &b + keys[1];
    for block in 0..5usize {
        for r in ROTATIONS[block % 2] {
            a = &a + &b;
            let rotated = b.shl(&word(&b, r)) | b.shr(&word(&b, 32 - r));
            b = rotated ^ &a;
        }
        a = &a + keys[(block + 1) % 3];
        b = &b + (keys[(block + 2) % 3] + &word(&b, block as u32 + 1));
    }
    [a, b]
}

/// The words of one element of a draw.
pub struct WordSource {
    pub key: [Ex; 2],
    /// Row-major position of the element, i64.
    pub position: Ex,
    /// Whether every position of the draw is below 2³².
    pub short: bool,
}

impl WordSource {
    /// The two u32 words of a block.
    pub fn words(&self, block: u16) -> [Ex; 2] {
        let high = self.high();
        let high = if block == 0 { high } else { &high ^ high.lit(f64::from(block) * 65536.0) };
        threefry([self.position.cast(DType::U32), high], &self.key)
    }

    /// The two u32 words of a block known at run time, i64 below 2¹⁶.
    pub fn words_at(&self, block: &Ex) -> [Ex; 2] {
        let block = block.cast(DType::U32);
        let high = self.high() ^ block.shl(&block.lit(16.0));
        threefry([self.position.cast(DType::U32), high], &self.key)
    }

    fn high(&self) -> Ex {
        if self.short {
            return self.key[0].lit(0.0);
        }
        self.position.shr(&self.position.lit(32.0)).cast(DType::U32)
    }

    /// Uniform in `[0, 1)`, of a float type arithmetic is done in: 23 bits and a half in f32, 53
    /// bits in f64.
    pub fn unit(&self, block: u16, dtype: DType) -> Ex {
        let words = self.words(block);
        match dtype {
            DType::F64 => unit53(&words),
            _ => unit23(&words[0]),
        }
    }

    /// Uniform in `(0, 1]` with resolution near 0, where a logarithm needs it: 32 bits and a half in
    /// f32, 53 bits in f64.
    pub fn positive_unit(&self, block: u16, dtype: DType) -> Ex {
        let words = self.words(block);
        match dtype {
            DType::F64 => positive_unit53(&words),
            _ => unit32(&words[0]),
        }
    }

    /// The words of a block as one u64, the first on top.
    pub fn u64(&self, block: u16) -> Ex {
        let [high, low] = self.words(block).map(|w| w.cast(DType::U64));
        high.shl(&high.lit(32.0)) | low
    }

    /// Standard normal, by Box and Muller. f32 takes both words of block 0, f64 the blocks 0 and 1.
    pub fn normal(&self, dtype: DType) -> Ex {
        match dtype {
            DType::F64 => normal64(&self.words(0), &self.words(1)),
            _ => {
                let [first, second] = self.words(0);
                box_muller(&unit32(&first), &unit23(&second))
            }
        }
    }
}

/// `(⌊w / 2⁹⌋ + ½) · 2⁻²³`, exact in f32, in (0, 1).
fn unit23(word: &Ex) -> Ex {
    (word.shr(&word.lit(9.0)).cast(DType::F32) + 0.5) * 2f64.powi(-23)
}

/// `(w + ½) · 2⁻³²` in f32: the conversion and the sum are rounded, so 1 is possible and 0 is not.
fn unit32(word: &Ex) -> Ex {
    (word.cast(DType::F32) + 0.5) * 2f64.powi(-32)
}

/// `n = ⌊w₀ / 2⁵⌋ · 2²⁶ + ⌊w₁ / 2⁶⌋`, below 2⁵³, as f64.
fn bits53(words: &[Ex; 2]) -> Ex {
    let high = words[0].shr(&words[0].lit(5.0)).cast(DType::F64);
    let low = words[1].shr(&words[1].lit(6.0)).cast(DType::F64);
    high * 2f64.powi(26) + low
}

/// `n · 2⁻⁵³`, in [0, 1).
pub fn unit53(words: &[Ex; 2]) -> Ex {
    bits53(words) * 2f64.powi(-53)
}

/// `(n + 1) · 2⁻⁵³`, in (0, 1].
pub fn positive_unit53(words: &[Ex; 2]) -> Ex {
    (bits53(words) + 1.0) * 2f64.powi(-53)
}

fn box_muller(radius: &Ex, angle: &Ex) -> Ex {
    (radius.log() * -2.0).sqrt() * (angle * (2.0 * std::f64::consts::PI)).cos()
}

/// Standard normal in f64 from two blocks.
pub fn normal64(first: &[Ex; 2], second: &[Ex; 2]) -> Ex {
    box_muller(&positive_unit53(first), &unit53(second))
}

/// The upper 64 bits of the product of two u64.
fn high_product(a: &Ex, b: &Ex) -> Ex {
    let half = a.lit(32.0);
    let split = |x: &Ex| (x.shr(&half), x & x.lit(f64::from(u32::MAX)));
    let ((a1, a0), (b1, b0)) = (split(a), split(b));
    let (low, cross, other) = (&a0 * &b0, &a0 * &b1, &a1 * &b0);
    let middle = low.shr(&half) + split(&cross).1 + split(&other).1;
    &a1 * &b1 + cross.shr(&half) + other.shr(&half) + middle.shr(&half)
}

impl WordSource {
    /// Uniform in `0..n` as u64, `n ≥ 1`: `⌊X·n / 2ᵏ⌋` of a k-bit word X. For `n ≤ 2³²` X is block 0
    /// and k is 64, otherwise X is blocks 0 and 1 and k is 128; so no probability differs from `1/n`
    /// by a share of more than `n / 2ᵏ ≤ 2⁻³²`, or `2⁻⁶⁴`.
    pub fn below(&self, n: u64) -> Ex {
        let high = self.u64(0);
        let n_lit = high.builder().constant(Scalar { dtype: DType::U64, bits: n });
        if n <= 1 << 32 {
            return high_product(&high, &n_lit);
        }
        let carried = high_product(&self.u64(1), &n_lit);
        let sum = &high * &n_lit + &carried;
        let carry = sum.lt(&carried).cast(DType::U64);
        high_product(&high, &n_lit) + carry
    }
}
