//! ONNX's cases of its newest IR version (`tests/newest/make.py`), by compiled code and by the interpreter.

use tensorc::DType;

use crate::support::stored::check;

const CASES: &[u8] = include_bytes!("../newest/cases.zip");

/// The precision of the type, and sums in another order.
fn bound(dtype: DType, _: &str) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 2e-2,
        _ => 1e-5,
    }
}

#[test]
fn cases_of_the_newest_operator_set() {
    let count = check(CASES, &bound);
    assert!(count >= 130, "{count} cases");
}
