//! Calls on arrays whose first axis has another extent each time: a product, an activation, a softmax and a sum, or with `train` as
//! a first argument also their gradient.
//!
//! Prints as JSON the microseconds that a new shape takes, from the third on, and those that a known one takes, both as medians.
//! `benches/compare_array_shapes.py` runs it beside PyTorch.

use std::time::Instant;

use tensorc_nd::autograd::{self, GradReq};
use tensorc_nd::{Error, NDArray, Runtime, RuntimeOptions};

const FIRST: u64 = 10;
const SHAPES: usize = 200;

fn main() -> Result<(), Error> {
    let train = std::env::args().nth(1).as_deref() == Some("train");
    let rt = Runtime::new(RuntimeOptions::default())?;
    let mut w = rt.array(&[64, 64], &[0.01f32; 64 * 64])?;
    w.attach_grad(GradReq::Write)?;
    let mut medians = vec![];
    for _ in 0..2 {
        let mut times = vec![];
        for n in FIRST..FIRST + SHAPES as u64 {
            let x = rt.array(&[n, 64], &vec![0.5f32; 64 * n as usize])?;
            rt.wait_all()?;
            let begin = Instant::now();
            step(&x, &w, train)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        times.drain(..2);
        times.sort_by(f64::total_cmp);
        medians.push(times[times.len() / 2]);
    }
    println!("{{\"new\": {:.1}, \"known\": {:.1}}}", medians[0], medians[1]);
    Ok(())
}

fn step(x: &NDArray, w: &NDArray, train: bool) -> Result<(), Error> {
    let loss = {
        let _scope = train.then(autograd::record);
        let h = x.matmul(w)?.apply("tanh")?;
        (&h.apply("softmax")? * &h)?.sum(&[], false)?
    };
    if train {
        loss.backward()?;
        w.grad().map(|gradient| gradient.to_vec::<f32>()).transpose()?;
    }
    loss.to_vec::<f32>().map(drop)
}
