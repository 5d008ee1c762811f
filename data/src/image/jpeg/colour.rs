//! Rows of samples to rows of RGB pixels, in portable code: interpolated chroma, and libjpeg's conversion.
//!
//! Chroma is interpolated by a triangle filter: a sample has weights 3/4 and 1/4 in the pixels around it. First a row
//! of chroma is blended with its neighbour, as sums with two more bits, less 512 (the middle); then columns are.

/// The red that `cr`, less 128, adds: 1.402 * cr, rounded; and so on, as libjpeg's tables say with 16 bits.
#[inline(always)]
fn pixel(y: u8, cb: i16, cr: i16) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb), i32::from(cr));
    let red = y + ((91881 * cr + 32768) >> 16);
    let green = y + ((-22554 * cb - 46802 * cr + 32768) >> 16);
    let blue = y + ((116130 * cb + 32768) >> 16);
    [red, green, blue].map(|v| v.clamp(0, 255) as u8)
}

/// 3 * near + far - 512 + bias for every sample of two rows.
#[inline(always)]
pub(super) fn blend(near: &[u8], far: &[u8], bias: i16, out: &mut [i16]) {
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = 3 * i16::from(near) + i16::from(far) - 512 + bias;
    }
}

/// Pixels of as many bytes of luma, with a blended sample of chroma each.
#[inline(always)]
pub(super) fn rgb(luma: &[u8], cb: &[i16], cr: &[i16], out: &mut [u8]) {
    for (((out, &y), &cb), &cr) in out.as_chunks_mut::<3>().0.iter_mut().zip(luma).zip(cb).zip(cr) {
        *out = pixel(y, cb >> 2, cr >> 2);
    }
}

/// Pixels with one blended sample of chroma for two, from an even pixel to an odd one. `cb` and `cr` begin with the
/// sample before that of the first pixel and end with the one behind that of the last; `odd` is added in odd pixels.
#[inline(always)]
pub(super) fn rgb_wide(luma: &[u8], cb: &[i16], cr: &[i16], odd: i16, out: &mut [u8]) {
    let chroma = |c: &[i16; 3]| [(3 * c[1] + c[0]) >> 4, (3 * c[1] + c[2] + odd) >> 4];
    let samples = cb.array_windows::<3>().zip(cr.array_windows::<3>());
    let pixels = out.as_chunks_mut::<6>().0.iter_mut().zip(luma.as_chunks::<2>().0);
    for ((out, &[first, second]), (cb, cr)) in pixels.zip(samples) {
        let (cb, cr) = (chroma(cb), chroma(cr));
        let ([a, b, c], [d, e, f]) = (pixel(first, cb[0], cr[0]), pixel(second, cb[1], cr[1]));
        *out = [a, b, c, d, e, f];
    }
}
