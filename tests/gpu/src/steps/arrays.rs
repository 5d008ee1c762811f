//! Arrays on the device: chains of calls, slices, draws, and copies to the host and back.

use tensorc::DType;
use tensorc_nd::Error;
use tensorc_nd::executor::GradReq;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions, Slice, autograd};

use super::{Case, Ended};
use crate::context::{Context, Fault};

/// Values of a program that computes with arrays of a runtime.
type Program = fn(&Runtime) -> Result<Vec<f32>, Error>;

/// Name, program, and the greatest difference from a processor's values, relative from one on and absolute below.
const PROGRAMS: [(&str, Program, f32); 6] = [
    ("chain", chain, 1e-5),
    ("slices", slices, 0.0),
    ("draws", draws, 0.0),
    ("recorded gradients", gradients, 1e-4),
    ("many operations in flight", in_flight, 1e-5),
    ("copies", copies, 0.0),
];

fn numbers(rt: &Runtime, dims: &[u64], seed: u64) -> Result<NDArray, Error> {
    let count: u64 = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 401) as f32 / 100.0 - 2.0).collect();
    rt.array(dims, &values)
}

fn all(arrays: &[&NDArray]) -> Result<Vec<f32>, Error> {
    let mut values = vec![];
    for array in arrays {
        values.extend(array.to_vec::<f32>()?);
    }
    Ok(values)
}

fn chain(rt: &Runtime) -> Result<Vec<f32>, Error> {
    let (a, b) = (numbers(rt, &[60, 80], 1)?, numbers(rt, &[80], 2)?);
    let mut c = ((&a + &b)? * 2.0)?;
    c += 1.0;
    let p = c.matmul(&a.transpose(&[1, 0])?)?;
    let s = rt.op("softmax")?.arg(&p).param("axis", -1).invoke()?;
    let m = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?;
    rt.op("matmul")?.arg(&m).arg(&m).into(&[&m])?;
    all(&[&c, &s, &s.sum(&[0], false)?, &m])
}

fn slices(rt: &Runtime) -> Result<Vec<f32>, Error> {
    let x = numbers(rt, &[50, 33], 3)?;
    let part = x.slice(&[Slice::ALL, Slice::new(Some(1), None, 2)])?;
    let row = x.rows(1, 2)?;
    let twice = (&row + &row)?;
    let (first, fourth) = (x.row(0)?, x.row(3)?);
    rt.op("neg")?.arg(&first).into(&[&fourth])?;
    x.set(&[Slice::from(40..), Slice::from(1..)], 7.0)?;
    all(&[&part, &twice, &x])
}

fn draws(rt: &Runtime) -> Result<Vec<f32>, Error> {
    rt.seed(11);
    let uniform = rt.uniform(&[1000], DType::F32, -1.0, 1.0)?;
    let normal = rt.normal(&[33, 31], DType::F32, 0.0, 1.0)?;
    all(&[&uniform, &normal])
}

fn gradients(rt: &Runtime) -> Result<Vec<f32>, Error> {
    let (x, mut w) = (numbers(rt, &[20, 30], 4)?, numbers(rt, &[30, 10], 5)?);
    w.attach_grad(GradReq::Write)?;
    let loss = {
        let _recording = autograd::record();
        let product = (x.matmul(&w)? * 0.1)?;
        let y = rt.op("tanh")?.arg(&product).invoke()?;
        (&y * &y)?.sum(&[0, 1], false)?
    };
    loss.backward()?;
    let gradient = w.grad().ok_or_else(|| Error::Internal("no gradient was attached".into()))?;
    all(&[&loss, &gradient])
}

fn in_flight(rt: &Runtime) -> Result<Vec<f32>, Error> {
    let mut x = numbers(rt, &[64, 64], 6)?;
    let y = numbers(rt, &[64, 64], 7)?;
    for _ in 0..500 {
        x = ((&x * 0.99)? + &y)?;
    }
    all(&[&x])
}

fn copies(rt: &Runtime) -> Result<Vec<f32>, Error> {
    let large = numbers(rt, &[300, 1001], 8)?;
    let back = large.copy()?;
    back.row(7)?.copy_into(&large.row(9)?)?;
    let half = large.cast(DType::F16)?.cast(DType::F32)?;
    all(&[&large, &back, &half])
}

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    let case = |(name, program, tolerance): (&'static str, Program, f32)| {
        Case::new(name, move |cx| {
            let device = cx.driver()?.device();
            let there = RuntimeOptions { device, ..RuntimeOptions::default() };
            let found = program(&Runtime::with_compiler(cx.compiler()?, there)?)?;
            let expected = program(&Runtime::new(RuntimeOptions::default())?)?;
            if found.len() != expected.len() {
                return Err("other shapes than on a processor".into());
            }
            let close = |(f, e): (&f32, &f32)| f == e || (f - e).abs() <= tolerance * (1.0 + e.abs());
            match found.iter().zip(&expected).position(|pair| !close(pair)) {
                None => Ok(Ended::passed()),
                Some(at) => Err(format!("element {at}: {}, a processor has {}", found[at], expected[at]).into()),
            }
        })
    };
    Ok(PROGRAMS.into_iter().map(case).collect())
}
