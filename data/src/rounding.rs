//! Rounding of f64 on the way to narrower floating-point types.

/// Rounds to odd: where f32 does not hold the number, of its two neighbours the one with an odd last bit. Rounding that
/// to a narrower type gives what rounding the number itself gives.
///
/// Boldo and Melquiond, "When double rounding is odd", 2005.
pub fn odd(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) == x || x.is_nan() {
        return near;
    }
    let bits = near.to_bits();
    let toward_zero = if f64::from(near).abs() > x.abs() { bits - 1 } else { bits };
    f32::from_bits(toward_zero | 1)
}
