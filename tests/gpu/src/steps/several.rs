//! Several devices: copies between them, training shared out, and exchanges by NCCL.

use std::sync::Arc;

use tensorc::runtime::Device;
use tensorc::runtime::gpu::Driver;
use tensorc::{Compiler, DType, Options};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_train::Sums;

use super::training::shared_out;
use super::{Case, Ended};
use crate::context::{Context, Fault};

/// A runtime with the first devices; none if there are fewer.
fn on(cx: &Context, count: u16) -> Option<(Runtime, Vec<Device>)> {
    let gpus: Vec<Arc<dyn Driver>> = cx.drivers(count).ok()?;
    let devices: Vec<Device> = gpus.iter().map(|driver| driver.device()).collect();
    let compiler = Compiler::new(Options { gpus, ..Options::default() }).ok()?;
    let options = RuntimeOptions { device: devices[0], ..RuntimeOptions::default() };
    Some((Runtime::with_compiler(compiler, options).ok()?, devices))
}

/// A case on two devices.
fn case(name: &'static str, run: fn(&Context, &Runtime, &[Device]) -> Result<Ended, Fault>) -> Case {
    Case::new(name, move |cx| match on(cx, 2) {
        Some((rt, devices)) => run(cx, &rt, &devices),
        None => Ok(Ended::skipped("there is one device")),
    })
}

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    Ok(vec![
        case("copies back and forth", copies),
        case("training on two has the bits of one", |cx, rt, devices| {
            let one = on(cx, 2).ok_or("the devices are gone")?.0;
            let same = shared_out(&one, &devices[..1], Sums::Tree)? == shared_out(rt, devices, Sums::Tree)?;
            if same { Ok(Ended::passed()) } else { Err("other parameters than on one device".into()) }
        }),
        case("training with sums by NCCL", |_, rt, devices| match rt.join(devices) {
            Ok(_) => shared_out(rt, devices, Sums::Nccl).map(|_| Ended::passed()),
            Err(why) => Ok(Ended::skipped(why.to_string())),
        }),
        case("sums by NCCL", |_, rt, devices| exchange(rt, devices)),
    ])
}

fn copies(_: &Context, rt: &Runtime, devices: &[Device]) -> Result<Ended, Fault> {
    let values: Vec<f32> = (0..1 << 16).map(|i| (i % 997) as f32).collect();
    let mut x = rt.array(&[1 << 16], &values)?;
    for round in 0..6 {
        x = (&x.copy_to(devices[1 - round % 2])? * 2.0)?;
    }
    let same = x.to_vec::<f32>()?.iter().zip(&values).all(|(x, v)| *x == v * 64.0);
    if same { Ok(Ended::passed()) } else { Err("what came back is something else".into()) }
}

/// All-reduce of every element type that NCCL sums.
fn exchange(rt: &Runtime, devices: &[Device]) -> Result<Ended, Fault> {
    let joined = match rt.join(devices) {
        Ok(joined) => joined,
        Err(why) => return Ok(Ended::skipped(why.to_string())),
    };
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32] {
        let parts: Vec<NDArray> = devices
            .iter()
            .zip([1.0, 2.0])
            .map(|(device, value)| rt.full(*device, dtype, &[1000], value))
            .collect::<Result<_, _>>()?;
        joined.all_reduce(&parts.iter().collect::<Vec<_>>())?;
        for part in &parts {
            if part.cast(DType::F32)?.to_vec::<f32>()?.iter().any(|x| *x != 3.0) {
                return Err(format!("a wrong sum of {}", dtype.name()).into());
            }
        }
    }
    Ok(Ended::passed())
}
