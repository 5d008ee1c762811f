//! Whether strided accesses stay inside a buffer.

use tensorc_abi::Packing;

/// Whether `offset + Σ index·stride` lies in `0..elements` for all indices below the extents.
pub fn strided_fits(offset: i64, axes: &[(u64, i64)], elements: u64) -> bool {
    if axes.iter().any(|&(extent, _)| extent == 0) {
        return true;
    }
    let (mut low, mut high) = (i128::from(offset), i128::from(offset));
    for &(extent, stride) in axes {
        // A product of 64 and 63 bits fits.
        let reach = i128::from(extent - 1) * i128::from(stride);
        low = low.saturating_add(reach.min(0));
        high = high.saturating_add(reach.max(0));
    }
    low >= 0 && high < i128::from(elements)
}

/// Whether packing a constant of that many f32 elements stays inside the constant.
pub fn packing_fits(packing: &Packing, elements: u64) -> bool {
    match packing {
        Packing::Plain => true,
        Packing::GemmB { k, n, offset, row_stride, col_stride, .. } => {
            strided_fits(*offset, &[(*k, *row_stride), (*n, *col_stride)], elements)
        }
        Packing::Conv(call) => call.pass.is_packed() && call.layouts_fit() && call.sizes()[1] == Some(elements),
    }
}
