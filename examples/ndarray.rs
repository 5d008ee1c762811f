//! Arrays without a model: a linear regression by gradient descent, one call at a time.
//!
//! `cargo run --release --example ndarray`

use tensorc::DType;
use tensorc::runtime::Device;
use tensorc_nd::{NDArray, Runtime, RuntimeOptions, Slice};

fn main() -> Result<(), tensorc_nd::Error> {
    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let (x, y) = data(&rt)?;
    let (w, loss) = descend(&rt, &x, &y)?;
    println!("weights {:?}, loss {:.6}", w.to_vec::<f32>()?, loss.item()?);

    // Memory is shared with leading rows, and copied for any other slice.
    let column = w.slice(&[Slice::ALL, 0.into()])?;
    println!("{column:?}, {} bytes in use", rt.memory(Device::cpu(0)).in_use);

    // An error waits with the array, and every reader gets it.
    let mut wrong = w.clone();
    wrong += &rt.zeros(&[7], DType::F32)?;
    println!("{}", wrong.to_vec::<f32>().err().map_or_else(String::new, |e| e.to_string()));
    Ok(())
}

/// 1000 points of `y = 2·a - 3·b + noise`.
fn data(rt: &Runtime) -> Result<(NDArray, NDArray), tensorc_nd::Error> {
    let x = rt.normal(&[1000, 2], DType::F32, 0.0, 1.0)?;
    let w = rt.array(&[2, 1], &[2f32, -3.0])?;
    let noise = rt.normal(&[1000, 1], DType::F32, 0.0, 0.01)?;
    let y = (x.matmul(&w)? + noise)?;
    Ok((x, y))
}

/// Nothing in the loop waits; the element-wise calls of each step become one kernel.
fn descend(rt: &Runtime, x: &NDArray, y: &NDArray) -> Result<(NDArray, NDArray), tensorc_nd::Error> {
    let mut w = rt.zeros(&[2, 1], DType::F32)?;
    let transposed = x.transpose(&[1, 0])?;
    for _ in 0..100 {
        let error = (x.matmul(&w)? - y)?;
        w -= &(transposed.matmul(&error)? * (0.1 / 1000.0))?;
    }
    let error = (x.matmul(&w)? - y)?;
    Ok((w, (&error * &error)?.mean(&[], false)?))
}
