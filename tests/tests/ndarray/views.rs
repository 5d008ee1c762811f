//! Handles to the same memory, and slices.

use ::ndarray::{Array, IxDyn, SliceInfoElem};
use tensorc::DType;
use tensorc::runtime::Device;
use tensorc_nd::{NDArray, Runtime, Slice};

use super::runtimes;

fn counting(rt: &Runtime, dims: &[u64]) -> NDArray {
    let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|i| i as f32).collect();
    rt.array(dims, &values).unwrap()
}

#[test]
fn rows_and_reshapes_share_memory_both_ways() {
    for rt in runtimes() {
        let a = counting(&rt, &[4, 2]);
        let (mut part, flat) = (a.rows(1, 3).unwrap(), a.reshape(&[-1]).unwrap());
        part += 100.0;
        assert_eq!(a.to_vec::<f32>().unwrap(), [0.0, 1.0, 102.0, 103.0, 104.0, 105.0, 6.0, 7.0]);
        let mut all = a.clone();
        all *= 2.0;
        assert_eq!(flat.to_vec::<f32>().unwrap(), [0.0, 2.0, 204.0, 206.0, 208.0, 210.0, 12.0, 14.0]);
        assert_eq!(part.to_vec::<f32>().unwrap(), [204.0, 206.0, 208.0, 210.0]);
        assert_eq!(a.row(3).unwrap().dims(), [2]);
    }
}

/// Views of a chunk that waits for a deferred call see its result.
#[test]
fn views_of_deferred_results_are_right() {
    for rt in runtimes() {
        let a = (counting(&rt, &[4, 2]) + 1.0).unwrap();
        let flat = a.reshape(&[8]).unwrap();
        let sum = (&flat + &flat).unwrap();
        let mut tail = a.rows(3, 4).unwrap();
        tail += 50.0;
        assert_eq!(sum.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
        assert_eq!(flat.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 57.0, 58.0]);
    }
}

#[test]
fn impossible_views_are_errors() {
    let rt = &runtimes()[0];
    let a = counting(rt, &[4, 2]);
    for wrong in [a.rows(3, 2), a.rows(0, 5), a.row(4), a.reshape(&[3, 3]), a.reshape(&[-1, -1]), a.reshape(&[-2, -4])]
    {
        assert!(wrong.is_err());
    }
    assert!(a.reshape(&[-1, 0]).is_err());
    assert!(a.reshape(&[i64::MAX, 4]).is_err());
    assert!(rt.zeros(&[], DType::F32).unwrap().rows(0, 0).is_err());
    assert_eq!(rt.zeros(&[0, 3], DType::F32).unwrap().reshape(&[3, 0]).unwrap().dims(), [3, 0]);
}

/// A slice as `ndarray` writes it.
fn element(begin: Option<i64>, end: Option<i64>, step: i64) -> SliceInfoElem {
    SliceInfoElem::Slice { start: begin.unwrap_or(0) as isize, end: end.map(|e| e as isize), step: step as isize }
}

#[test]
fn slices_read_and_write_what_ndarrays_do() {
    for rt in runtimes() {
        let dims = [3u64, 4, 2];
        let a = counting(&rt, &dims);
        let reference = Array::from_shape_vec(IxDyn(&[3, 4, 2]), a.to_vec::<f32>().unwrap()).unwrap();
        let cases: [([Slice; 3], [SliceInfoElem; 3]); 4] = [
            (
                [(1..3).into(), Slice::ALL, Slice::ALL],
                [element(Some(1), Some(3), 1), element(None, None, 1), element(None, None, 1)],
            ),
            (
                [Slice::ALL, (0..3).into(), Slice::ALL],
                [element(None, None, 1), element(None, Some(3), 1), element(None, None, 1)],
            ),
            (
                [Slice::ALL.step(2), Slice::from(1..), 1.into()],
                [element(None, None, 2), element(Some(1), None, 1), SliceInfoElem::Index(1)],
            ),
            (
                [2.into(), Slice::from(-3..-1), Slice::ALL],
                [SliceInfoElem::Index(2), element(Some(-3), Some(-1), 1), element(None, None, 1)],
            ),
        ];
        for (slices, elements) in cases {
            let got = a.slice(&slices).unwrap();
            let want = reference.slice(&elements[..]);
            assert_eq!(got.dims().iter().map(|d| *d as usize).collect::<Vec<_>>(), want.shape());
            assert_eq!(got.to_vec::<f32>().unwrap(), want.iter().copied().collect::<Vec<_>>());

            let (target, mut model) = (a.copy().unwrap(), reference.clone());
            let value = (&got + 1000.0).unwrap();
            target.set(&slices, &value).unwrap();
            model.slice_mut(&elements[..]).mapv_inplace(|x| x + 1000.0);
            assert_eq!(target.to_vec::<f32>().unwrap(), model.iter().copied().collect::<Vec<_>>());
            target.set(&slices, -1.0).unwrap();
            model.slice_mut(&elements[..]).fill(-1.0);
            assert_eq!(target.to_vec::<f32>().unwrap(), model.iter().copied().collect::<Vec<_>>());
        }
        // A backward slice that reaches the first element.
        let backward = a.row(0).unwrap().slice(&[Slice::ALL.step(-1), Slice::from(..1)]).unwrap();
        assert_eq!(backward.to_vec::<f32>().unwrap(), [6.0, 4.0, 2.0, 0.0]);
    }
}

#[test]
fn a_slice_of_leading_rows_is_a_view_and_any_other_a_copy() {
    for rt in runtimes() {
        let a = rt.zeros(&[3, 2], DType::F32).unwrap();
        let (view, copy) = (a.slice(&[(1..2).into()]).unwrap(), a.slice(&[Slice::ALL, 0.into()]).unwrap());
        view.fill(1.0).unwrap();
        copy.fill(5.0).unwrap();
        assert_eq!(a.to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }
}

#[test]
fn values_to_assign_are_broadcast_and_must_fit() {
    for rt in runtimes() {
        let a = rt.zeros(&[3, 2], DType::F32).unwrap();
        a.set(&[], &rt.array(&[2], &[1f32, 2.0]).unwrap()).unwrap();
        assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        assert!(a.set(&[], &rt.array(&[3], &[1f32, 2.0, 3.0]).unwrap()).is_err());
        assert!(a.set(&[], &rt.array(&[2], &[1i32, 2]).unwrap()).is_err());
        assert!(a.set(&[5.into()], 1.0).is_err());
        assert!(a.set(&[Slice::ALL; 3], 1.0).is_err());
    }
}

/// Memory is taken when something is written, and given back after the last handle is gone.
#[test]
fn memory_comes_late_and_goes() {
    for rt in runtimes() {
        let device = Device::cpu(0);
        let a = rt.empty(device, DType::F32, &[1 << 16]).unwrap();
        rt.wait_all().unwrap();
        assert_eq!(rt.memory(device).in_use, 0);
        a.fill(1.0).unwrap();
        let b = (&a + 1.0).unwrap();
        b.wait_to_read().unwrap();
        assert!(rt.memory(device).in_use >= 2 << 18);
        drop((a, b));
        rt.wait_all().unwrap();
        assert_eq!(rt.memory(device).in_use, 0);
        rt.release_memory(device);
        assert_eq!(rt.memory(device).held, 0);
    }
}
