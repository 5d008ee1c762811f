//! Reading and writing at positions that are data.
//!
//! Positions may have any numeric type and are truncated to integers. One that is out of range is moved into
//! range, clamped or taken modulo the extent: nothing fails while a program runs.

mod axis;
mod sketch;
mod tuples;

use tensorc_ir::op::OpDef;
use tensorc_ir::scalar::Ex;

pub fn ops() -> Vec<OpDef> {
    axis::ops().into_iter().chain(tuples::ops()).chain([sketch::count_sketch()]).collect()
}

/// A position in `0..n` from an i64: modulo n, or the nearest.
pub(super) fn in_range(i: &Ex, n: u64, wrap: bool) -> Ex {
    let (zero, extent) = (i.lit(0.0), i.lit(n as f64));
    match wrap {
        true => {
            let r = i % &extent;
            r.lt(&zero).select(&(&r + &extent), &r)
        }
        false => i.max(&zero).min(&i.lit(n.saturating_sub(1) as f64)),
    }
}
