//! The error of an f32 result in units in the last place.

/// The distance in units of the last place of the f32 nearest to the exact result.
pub fn error(found: f32, expected: f64) -> f64 {
    let nearest = expected as f32;
    if nearest.is_nan() || nearest.is_infinite() || nearest == 0.0 {
        let same = nearest.to_bits() == found.to_bits() || nearest.is_nan() && found.is_nan();
        // An overflow one unit early, or a least subnormal for zero, is an error of one unit.
        let edge = nearest.is_infinite() && found == f32::MAX.copysign(nearest) || found.abs() == f32::from_bits(1);
        return match (same, edge) {
            (true, _) => 0.0,
            (false, true) => 1.0,
            (false, false) => f64::INFINITY,
        };
    }
    if found.is_nan() || found.is_infinite() {
        return if expected.abs() > f64::from(f32::MAX) { 1.0 } else { f64::INFINITY };
    }
    let exponent = ((nearest.to_bits() >> 23) & 0xff).max(1) as i32;
    (f64::from(found) - expected).abs() / 2f64.powi(exponent - 150)
}
