//! Codes of one and two bits a value, in words of four bytes; without branches, so that compilers vectorise them.

/// Values of a word of 2 bit codes.
const TWO: usize = 16;
/// Values of a word of 1 bit codes.
const ONE: usize = 32;

/// The bits of value `i` in a word that is stored little-endian: bytes in order, from the most significant bit of each.
const fn place(code: u32, bits: usize, i: usize) -> u32 {
    let in_byte = 8 / bits;
    (code << (8 - bits - bits * (i % in_byte))) << (8 * (i / in_byte))
}

/// [`place`] for each value of a word.
const fn places<const N: usize>(code: u32) -> [u32; N] {
    let mut places = [0; N];
    let mut i = 0;
    while i < N {
        places[i] = place(code, 32 / N, i);
        i += 1;
    }
    places
}

const POSITIVE: [u32; TWO] = places(0b11);
const NEGATIVE: [u32; TWO] = places(0b10);
const ABOVE: [u32; ONE] = places(1);

/// All bits, or none.
fn mask(condition: bool) -> u32 {
    u32::from(condition).wrapping_neg()
}

/// Encodes words of `N` values; `sent` gives the bits of a sent value and its code in a word, of a sum and a place.
fn encode<const N: usize>(
    gradient: &[[u8; 4]],
    residual: &mut [f32],
    codes: &mut [u8],
    sent: impl Fn(f32, usize) -> (u32, u32),
) {
    let word = |gradient: &[[u8; 4]; N], residual: &mut [f32; N]| {
        let mut codes = [0; N];
        for i in 0..N {
            let sum = residual[i] + f32::from_le_bytes(gradient[i]);
            let (value, code) = sent(sum, i);
            residual[i] = sum - f32::from_bits(value);
            codes[i] = code;
        }
        codes.iter().fold(0, |word, code| word | code).to_le_bytes()
    };
    let (gradients, gradient_rest) = gradient.as_chunks::<N>();
    let (residuals, residual_rest) = residual.as_chunks_mut::<N>();
    let words = codes.as_chunks_mut().0;
    for ((gradient, residual), out) in gradients.iter().zip(residuals).zip(words.iter_mut()) {
        *out = word(gradient, residual);
    }
    if let (false, Some(out)) = (gradient_rest.is_empty(), words.last_mut()) {
        // The code of NaN is 0 in both codes.
        let (mut gradient, mut residual) = ([f32::NAN.to_le_bytes(); N], [0.0; N]);
        gradient[..gradient_rest.len()].copy_from_slice(gradient_rest);
        residual[..residual_rest.len()].copy_from_slice(residual_rest);
        *out = word(&gradient, &mut residual);
        residual_rest.copy_from_slice(&residual[..residual_rest.len()]);
    }
}

/// Decodes words of `N` values; `value` gives the bits of a value, of a word and the place in it.
fn decode<const N: usize>(
    codes: &[u8],
    out: &mut [f32],
    value: impl Fn(u32, usize) -> u32,
    put: impl Fn(&mut f32, f32),
) {
    let (chunks, rest) = out.as_chunks_mut::<N>();
    let words = codes.as_chunks().0;
    for (word, chunk) in words.iter().zip(chunks) {
        let word = u32::from_le_bytes(*word);
        for (i, out) in chunk.iter_mut().enumerate() {
            put(out, f32::from_bits(value(word, i)));
        }
    }
    if let Some(word) = words.last() {
        let word = u32::from_le_bytes(*word);
        for (i, out) in rest.iter_mut().enumerate() {
            put(out, f32::from_bits(value(word, i)));
        }
    }
}

pub(super) fn encode_two(threshold: f32, gradient: &[[u8; 4]], residual: &mut [f32], codes: &mut [u8]) {
    let (plus, minus) = (threshold.to_bits(), (-threshold).to_bits());
    encode::<TWO>(gradient, residual, codes, |sum, i| {
        let (above, below) = (mask(sum >= threshold), mask(sum <= -threshold));
        ((above & plus) | (below & minus), (above & POSITIVE[i]) | (below & NEGATIVE[i]))
    });
}

pub(super) fn decode_two(threshold: f32, codes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    let (plus, minus) = (threshold.to_bits(), (-threshold).to_bits());
    let value = |word: u32, i: usize| {
        let code = word & POSITIVE[i];
        (mask(code == POSITIVE[i]) & plus) | (mask(code == NEGATIVE[i]) & minus)
    };
    decode::<TWO>(codes, out, value, put);
}

/// The sign of a value whose code in a word is left: plus one where there is one, otherwise minus one.
fn unit(above: u32) -> u32 {
    (-1.0_f32).to_bits() ^ (above & (1 << 31))
}

pub(super) fn encode_one(threshold: f32, gradient: &[[u8; 4]], residual: &mut [f32], codes: &mut [u8]) {
    encode::<ONE>(gradient, residual, codes, |sum, i| {
        let above = mask(sum > threshold);
        (unit(above), above & ABOVE[i])
    });
}

pub(super) fn decode_one(codes: &[u8], out: &mut [f32], put: impl Fn(&mut f32, f32)) {
    decode::<ONE>(codes, out, |word, i| unit(mask(word & ABOVE[i] != 0)), put);
}
