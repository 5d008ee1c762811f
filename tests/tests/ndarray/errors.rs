//! Failures stay with the arrays they concern and reach every reader.

use tensorc::DType;
use tensorc_nd::Error;
use tensorc_nd::{NDArray, Runtime};

use super::runtimes;

/// An array whose value is an error: an in-place call of a wrong shape reports at the next read.
fn failed(rt: &Runtime) -> NDArray {
    let mut x = rt.ones(&[2, 2], DType::F32).unwrap();
    x += &rt.ones(&[3], DType::F32).unwrap();
    x
}

fn message(result: Result<Vec<f32>, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn every_read_reports_until_the_array_is_overwritten() {
    for rt in runtimes() {
        let x = failed(&rt);
        for _ in 0..2 {
            let why = message(x.to_vec::<f32>());
            let device = rt.options().device.to_string();
            assert!(why.contains(&device) && why.contains("add"), "{why}");
            assert!(x.wait_to_read().is_err() && x.wait_to_write().is_err());
        }
        x.fill(5.0).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [5.0; 4]);
    }
}

/// All views of the array, all results that depend on it, and nothing else.
#[test]
fn errors_spread_to_what_depends_on_them() {
    for rt in runtimes() {
        let (bad, good) = (failed(&rt), rt.ones(&[2, 2], DType::F32).unwrap());
        let fine = (&good * 3.0).unwrap();
        let mixed = (&fine + &bad).unwrap();
        let product = mixed.matmul(&good).unwrap();
        let also_fine = (&fine + &good).unwrap();
        let mut own = bad.clone();
        rt.op("matmul").unwrap().arg(&bad).arg(&bad).into(&[&bad]).unwrap();
        own += 1.0;
        for array in [&bad, &own, &mixed, &product, &bad.row(0).unwrap(), &bad.reshape(&[4]).unwrap()] {
            assert!(message(array.to_vec::<f32>()).contains("add"));
        }
        assert_eq!(fine.to_vec::<f32>().unwrap(), [3.0; 4]);
        assert_eq!(also_fine.to_vec::<f32>().unwrap(), [4.0; 4]);
    }
}

/// Results that share a window but not their operands do not share errors, whatever overwrites what.
#[test]
fn in_place_results_are_as_good_as_their_operands() {
    for rt in runtimes() {
        let (bad, mut x) = (failed(&rt), rt.ones(&[2, 2], DType::F32).unwrap());
        let old = (&x * 2.0).unwrap();
        x += 1.0;
        let z = (&x + &bad).unwrap();
        let fine = (&old + &x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0; 4]);
        assert_eq!(fine.to_vec::<f32>().unwrap(), [4.0; 4]);
        assert!(message(z.to_vec::<f32>()).contains("add"));
    }
}

/// Waiting where nothing can finish is an error and no hang.
#[test]
fn a_stopped_engine_is_an_error_of_reading() {
    for rt in runtimes() {
        let x = rt.ones(&[2], DType::F32).unwrap();
        rt.wait_all().unwrap();
        rt.engine().stop().unwrap();
        let read = (&x + 1.0).unwrap().to_vec::<f32>();
        rt.engine().start().unwrap();
        assert!(read.unwrap_err().to_string().contains("stopped"));
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 2]);
    }
}

#[test]
fn waiting_for_everything_reports_once() {
    for rt in runtimes() {
        let x = failed(&rt);
        assert!(rt.wait_all().is_err());
        rt.wait_all().unwrap();
        assert!(x.to_vec::<f32>().is_err(), "the array still knows");
    }
}

#[test]
fn an_impossible_distribution_is_refused_and_named() {
    for rt in runtimes() {
        let error = rt.normal(&[3, 3], DType::F32, 0.0, -1.0).unwrap_err().to_string();
        assert!(error.contains("scale") && error.contains("-1"), "{error}");
    }
}

/// A part of a failed array cannot be made good; the whole can.
#[test]
fn a_partial_overwrite_keeps_the_error() {
    for rt in runtimes() {
        let x = failed(&rt);
        x.row(0).unwrap().fill(1.0).unwrap();
        assert!(x.to_vec::<f32>().is_err());
        rt.ones(&[2, 2], DType::F32).unwrap().copy_into(&x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 4]);
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_array() {
    for rt in runtimes() {
        let huge = rt.zeros(&[1 << 45], DType::F32).unwrap();
        let why = huge.wait_to_read().unwrap_err().to_string();
        assert!(why.contains("fill") && why.contains(&(1u64 << 47).to_string()), "{why}");
        // Memory that was never written has to be there as well to be read.
        assert!(rt.empty(rt.options().device, DType::F32, &[1 << 45]).unwrap().to_bytes().is_err());
        assert!(rt.wait_all().is_err());
    }
}
