//! Element types, and f32 with matrix units.

use tensorc::DType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    F32,
    /// f32 whose products are rounded to tf32.
    Tf32,
    F16,
    Bf16,
}

impl Precision {
    /// The most telling first.
    pub const ALL: [Precision; 4] = [Precision::Bf16, Precision::Tf32, Precision::F16, Precision::F32];

    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::F16 => DType::F16,
            Precision::Bf16 => DType::BF16,
        }
    }

    /// Operations in a second that a large GPU may be expected to do, to choose how much is measured at a time.
    pub fn expected_rate(self) -> f64 {
        match self {
            Precision::F32 => 3e13,
            Precision::Tf32 => 2e14,
            Precision::F16 | Precision::Bf16 => 4e14,
        }
    }
}
