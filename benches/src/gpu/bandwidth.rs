//! Memory-bound kernels on device arrays, each as a share of a device-to-device copy; and host-device copies.
//!
//! Calls are enqueued without waiting, so that host overhead overlaps with earlier kernels. Bandwidth counts each operand and the
//! result once; for a reduction, the operand only.

use tensorc::runtime::Device;
use tensorc::{DType, VendorLibraries};
use tensorc_nd::Error;
use tensorc_nd::{NDArray, Runtime};

use super::clock::{Clock, TimedWork};
use super::copies::{Copies, Way};
use super::{Case, MeasurementFailure, Precision, Setup, Size};
use crate::figures::Report;

/// Operands and results.
struct DeviceArrays {
    x: NDArray,
    y: NDArray,
    out: NDArray,
    /// Of a row and of a column.
    row: NDArray,
    column: NDArray,
    turned: NDArray,
}

type KernelCall = fn(&Runtime, &DeviceArrays) -> Result<(), Error>;

/// How many times the bytes of a matrix are read or written, and the call.
const COPY: (f64, KernelCall) = (2.0, |_, a| a.x.copy_into(&a.out));

/// As [`COPY`], with names.
const CALLS: [(&str, f64, KernelCall); 8] = [
    ("add", 3.0, |rt, a| rt.op("add")?.arg(&a.x).arg(&a.y).into(&[&a.out])),
    ("gelu", 2.0, |rt, a| rt.op("gelu")?.arg(&a.x).into(&[&a.out])),
    ("tanh", 2.0, |rt, a| rt.op("tanh")?.arg(&a.x).into(&[&a.out])),
    ("softmax", 2.0, |rt, a| rt.op("softmax")?.arg(&a.x).param("axis", -1).into(&[&a.out])),
    ("layer_norm", 2.0, |rt, a| {
        rt.op("layer_norm")?.arg(&a.x).arg(&a.row).arg(&a.row).param("axis", -1).into(&[&a.out])
    }),
    ("sum of rows", 1.0, |rt, a| {
        rt.op("reduce_sum")?.arg(&a.x).arg(&[1][..]).param("keepdims", false).into(&[&a.column])
    }),
    ("sum of columns", 1.0, |rt, a| {
        rt.op("reduce_sum")?.arg(&a.x).arg(&[0][..]).param("keepdims", false).into(&[&a.row])
    }),
    ("transpose", 2.0, |rt, a| rt.op("transpose")?.arg(&a.x).param("perm", vec![1, 0]).into(&[&a.turned])),
];

/// Rows and columns, and calls of a measurement.
fn extent(size: Size) -> ([u64; 2], u32) {
    match size {
        Size::Device => ([16384, 8192], 20),
        Size::Small => ([48, 128], 1),
    }
}

fn arrays(rt: &Runtime, [rows, columns]: [u64; 2], dtype: DType) -> Result<DeviceArrays, Error> {
    let zeros = |dims: &[u64]| rt.zeros(dims, dtype);
    let random = || rt.normal(&[rows, columns], dtype, 0.0, 1.0);
    Ok(DeviceArrays {
        x: random()?,
        y: random()?,
        out: zeros(&[rows, columns])?,
        row: zeros(&[columns])?,
        column: zeros(&[rows])?,
        turned: zeros(&[columns, rows])?,
    })
}

fn measure(
    setup: &Setup,
    precision: Precision,
    (moved, call): (f64, KernelCall),
) -> Result<Report, MeasurementFailure> {
    let rt = setup.runtime(precision, VendorLibraries::default())?;
    let (dims, calls) = extent(setup.size);
    let arrays = arrays(&rt, dims, precision.dtype())?;
    let run = |call: KernelCall| {
        let (rt, arrays) = (&rt, &arrays);
        let work = move || {
            (0..calls).try_for_each(|_| call(rt, arrays))?;
            Ok(rt.wait_all()?)
        };
        Box::new(work) as TimedWork<'_>
    };
    let medians = Clock::new(setup).medians(&mut [run(COPY.1), run(call)])?;
    let bytes = (dims[0] * dims[1] * precision.dtype().size() as u64) as f64 * f64::from(calls);
    let [copy, own] = [COPY.0 * bytes / medians[0], moved * bytes / medians[1]];
    let report = Report::default().with("rate", own / 1e9, "GB/s").with("copy", copy / 1e9, "GB/s");
    Ok(report.with("share of copy", 100.0 * own / copy, "%"))
}

/// Bytes that go one way in page-locked memory, and between arrays of the host and the device.
fn across(setup: &Setup, way: Way) -> Result<Report, MeasurementFailure> {
    let elements: u64 = match setup.size {
        Size::Device => 64 << 20,
        Size::Small => 4096,
    };
    let (times, bytes) = (2, elements * 4);
    let copies = Copies::new(&*setup.driver, bytes)?;
    let rt = setup.runtime(Precision::F32, VendorLibraries::default())?;
    let (here, there) = (Device::cpu(0), setup.driver.device());
    let (from, to) = match way {
        Way::ToDevice => (here, there),
        Way::FromDevice => (there, here),
    };
    let (source, target) = (rt.full(from, DType::F32, &[elements], 1.0)?, rt.full(to, DType::F32, &[elements], 0.0)?);
    let mut contenders: [TimedWork<'_>; 2] = [
        Box::new(|| Ok(copies.run(way, times)?)),
        Box::new(|| {
            (0..times).try_for_each(|_| source.copy_into(&target))?;
            Ok(rt.wait_all()?)
        }),
    ];
    let medians = Clock::new(setup).medians(&mut contenders)?;
    let rate = |seconds: f64| f64::from(times) * bytes as f64 / seconds / 1e9;
    Ok(Report::default().with("page-locked", rate(medians[0]), "GB/s").with("arrays", rate(medians[1]), "GB/s"))
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    let ([rows, columns], _) = extent(size);
    let mut all = vec![];
    for precision in [Precision::F32, Precision::Bf16] {
        for (name, moved, call) in CALLS {
            let name = format!("{} {rows}×{columns} {name}", precision.name());
            all.push(Case::new(name, move |setup| measure(setup, precision, (moved, call))));
        }
    }
    all.push(Case::new("copies to the device".into(), |setup| across(setup, Way::ToDevice)));
    all.push(Case::new("copies from the device".into(), |setup| across(setup, Way::FromDevice)));
    all
}
