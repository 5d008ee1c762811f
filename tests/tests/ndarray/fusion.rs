//! Deferred calls compute what immediate ones do, whatever the program.

use tensorc::DType;
use tensorc_nd::{NDArray, Runtime};
use tensorc_random::Rng;

use super::{runtime, runtimes};
use tensorc::runtime::engine::EngineKind;

const UNARY: [&str; 6] = ["neg", "abs", "exp", "tanh", "sqrt", "floor"];
const BINARY: [&str; 6] = ["add", "sub", "mul", "div", "max", "min"];

/// A random program over arrays of three shapes that broadcast; what reading each array gives at its
/// end: the bits of the elements, or an error.
fn program(rt: &Runtime, seed: u64) -> Vec<Result<Vec<u32>, ()>> {
    let mut rng = Rng::new(seed);
    let below = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
    let dims: [&[u64]; 3] = [&[4, 3], &[3], &[]];
    let mut arrays: Vec<NDArray> = (0..6)
        .map(|i| {
            let shape = dims[i % 3];
            let count = shape.iter().product::<u64>();
            let values: Vec<f32> = (0..count).map(|_| rng.below(2000) as f32 / 100.0 - 10.0).collect();
            rt.array(shape, &values).unwrap()
        })
        .collect();
    for _ in 0..60 {
        let (i, j) = (below(&mut rng, arrays.len()), below(&mut rng, arrays.len()));
        let (a, b) = (arrays[i].clone(), arrays[j].clone());
        match rng.below(14) {
            0..3 => arrays.push(a.apply(UNARY[below(&mut rng, UNARY.len())]).unwrap()),
            // Some shapes do not fit; then the program goes on without the result.
            3..6 => arrays.extend(rt.op(BINARY[below(&mut rng, BINARY.len())]).unwrap().arg(&a).arg(&b).invoke()),
            6 => drop(arrays.swap_remove(i)),
            7 => {
                // In place, where the shapes allow it.
                let op = rt.op(BINARY[below(&mut rng, BINARY.len())]).unwrap();
                let _ = op.arg(&a).arg(&b).into(&[&a]);
            }
            8 if a.dims() == [4, 3] => arrays[i] = a.rows(1, 3).unwrap().reshape(&[2, 3]).unwrap(),
            8 => arrays[i] = (&a + 0.5).unwrap(),
            9 if a.rank() == 2 => a.set(&[0.into()], 2.0).unwrap(),
            9 => arrays[i] = (2.0 - &a).unwrap(),
            // Into a part of an array.
            10 if a.dims() == [4, 3] && b.dims() == [3] => {
                rt.op("mul").unwrap().arg(&b).arg(&b).into(&[&a.row(2).unwrap()]).unwrap();
            }
            10 => rt.flush().unwrap(),
            11 => a.fill(1.5).unwrap(),
            // From here on an error, until something overwrites it.
            12 if rng.one_in(3) => {
                let mut wrong = a.clone();
                wrong += &rt.zeros(&[5], DType::F32).unwrap();
            }
            12 => arrays.push(a.sum(&[], false).unwrap()),
            _ => arrays[i] = a.copy().unwrap(),
        }
        if arrays.len() < 3 || arrays.len() > 12 {
            arrays.truncate(8);
            arrays.push(rt.ones(&[3], DType::F32).unwrap());
            arrays.push(rt.ones(&[4, 3], DType::F32).unwrap());
        }
    }
    let bits = |x: &f32| if x.is_nan() { 0 } else { x.to_bits() };
    let read = |a: &NDArray| a.to_vec::<f32>().map(|values| values.iter().map(bits).collect()).map_err(drop);
    arrays.iter().map(read).collect()
}

#[test]
fn random_programs_give_the_same_bits() {
    let all = runtimes();
    let (mut good, mut bad) = (0, 0);
    for seed in 0..100 {
        // Without workers and without deferral, calls run one after the other.
        let want = program(&runtime(EngineKind::Naive, false), seed);
        good += want.iter().filter(|result| result.is_ok()).count();
        bad += want.iter().filter(|result| result.is_err()).count();
        for (i, rt) in all.iter().enumerate() {
            assert_eq!(program(rt, seed), want, "program {seed}, runtime {i}");
        }
    }
    assert!(good > 200 && bad > 50, "{good} arrays and {bad} errors");
}

/// A chain nobody reads is one operation of the engine; without deferral it is as many as calls.
#[test]
fn a_chain_is_one_operation() {
    let operations = |fuse: bool| {
        let rt = runtime(EngineKind::PerDevice, fuse);
        let a = rt.ones(&[64], DType::F32).unwrap();
        rt.wait_all().unwrap();
        let before = rt.engine().stats().pushed;
        let x = (&a * 2.0).unwrap();
        let mut y = x.apply("exp").unwrap();
        y += &a;
        let z = (&y / &x).unwrap();
        rt.flush().unwrap();
        // While all handles live, nothing but the calls is pushed.
        let pushed = rt.engine().stats().pushed - before;
        assert!((z.to_vec::<f32>().unwrap()[0] - (2f32.exp() + 1.0) / 2.0).abs() < 1e-5);
        pushed
    };
    assert_eq!((operations(true), operations(false)), (1, 4));
}

/// More calls than a window holds, and more arrays than it reads.
#[test]
fn long_and_wide_programs_are_cut() {
    for rt in runtimes() {
        let mut x = rt.zeros(&[5], DType::F32).unwrap();
        for i in 0..500 {
            x += f64::from(i);
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [124_750.0; 5]);
        let many: Vec<NDArray> = (0..100).map(|i| rt.array(&[2], &[i as f32, 1.0]).unwrap()).collect();
        let sum = many.iter().skip(1).fold(many[0].clone(), |sum, x| (&sum + x).unwrap());
        assert_eq!(sum.to_vec::<f32>().unwrap(), [4950.0, 100.0]);
    }
}

/// Calls from several threads keep their order in each, also on arrays that they share.
#[test]
fn threads_call_at_the_same_time() {
    for rt in runtimes() {
        let shared = (rt.ones(&[8], DType::F32).unwrap() + 1.0).unwrap();
        std::thread::scope(|scope| {
            let run = |k: u32| {
                let (rt, shared) = (rt.clone(), shared.clone());
                move || {
                    let mut x = rt.zeros(&[8], DType::F32).unwrap();
                    for i in 0..50 {
                        x += f64::from(k);
                        x += &shared;
                        if i % 7 == 0 {
                            x = (&x * 1.0).unwrap();
                        }
                    }
                    assert_eq!(x.to_vec::<f32>().unwrap(), [50.0 * (k + 2) as f32; 8]);
                }
            };
            (0..4).for_each(|k| drop(scope.spawn(run(k))));
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(shared.apply("nonzero").unwrap().dims(), [1, 8])));
            scope.spawn(|| (0..20).for_each(|_| rt.wait_all().unwrap()));
        });
    }
}
