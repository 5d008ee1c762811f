//! What the device is, that it executes code, and how fast it is clocked while it does.

use std::process::Command;

use tensorc::DType;
use tensorc::runtime::gpu::{CodeForm, LaunchConfig};
use tensorc_tests::corpus::{self, compiler};

use super::{Case, Ended};
use crate::context::{Context, Fault};
use crate::launch;

pub fn cases(_: &Context) -> Result<Vec<Case>, Fault> {
    Ok(vec![Case::new("what it is", describe), Case::new("a kernel", run_kernel)])
}

/// Cases of the step that measures clocks.
pub fn clocks(_: &Context) -> Result<Vec<Case>, Fault> {
    Ok(vec![Case::new("under load", clock), Case::new("nvidia-smi", ask_tool)])
}

fn describe(cx: &Context) -> Result<Ended, Fault> {
    let driver = cx.driver()?;
    let Some(p) = driver.properties()? else {
        return Ok(Ended::passed().note("kernels are executed by the interpreter"));
    };
    if p.capability < 80 {
        let (major, minor) = (p.capability / 10, p.capability % 10);
        return Err(format!("{} has compute capability {major}.{minor}; 8.0 is the least", driver.name()).into());
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    // Memory transfers twice in a clock.
    let peak = 2.0 * f64::from(p.memory_clock_khz) * 1e3 * f64::from(p.memory_bus_bits / 8) / 1e9;
    Ok(Ended::passed()
        .note(driver.name())
        .figure("compute capability", f64::from(p.capability) / 10.0, "")
        .figure("multiprocessors", p.multiprocessors.into(), "")
        .figure("greatest clock", f64::from(p.clock_khz) / 1e3, "MHz")
        .figure("memory", gib(p.memory_bytes), "GiB")
        .figure("free", gib(p.free_bytes), "GiB")
        .figure("memory at its clock", peak, "GB/s")
        .figure("second-level cache", p.cache_bytes as f64 / f64::from(1 << 20), "MiB")
        .figure("CUDA of the driver", f64::from(p.driver_version / 10) / 100.0, ""))
}

fn run_kernel(cx: &Context) -> Result<Ended, Fault> {
    let compiler = compiler(Some(cx.driver()?), false)?;
    let graph = corpus::graph(compiler.registry(), "%x: T[1000]", "%y = add(%x, %x)", DType::F32);
    let case = corpus::Case { name: "sum".into(), inputs: corpus::inputs(&graph, 1), graph, tf32: false };
    let found = case.run(&compiler)?;
    let same = found[0].iter().zip(case.inputs[0].iter()).all(|(y, x)| y.as_f64() == 2.0 * x.as_f64());
    if same { Ok(Ended::passed()) } else { Err("wrong sums".into()) }
}

/// Cycles and nanoseconds of a thread that multiplies in turn.
const CLOCK: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry clock(.param .u64 out, .param .u64 turns) {
    .reg .b64 %a, %t, %n, %c0, %c1, %n0, %n1, %i;
    .reg .f32 %x;
    .reg .pred %p;
    ld.param.u64 %a, [out];
    ld.param.u64 %t, [turns];
    cvta.to.global.u64 %a, %a;
    cvta.to.global.u64 %t, %t;
    ld.global.u64 %n, [%t];
    mov.f32 %x, 0f3F800000;
    mov.u64 %i, 0;
    mov.u64 %c0, %clock64;
    mov.u64 %n0, %globaltimer;
TURN:
    fma.rn.f32 %x, %x, %x, %x;
    fma.rn.f32 %x, %x, %x, %x;
    fma.rn.f32 %x, %x, %x, %x;
    fma.rn.f32 %x, %x, %x, %x;
    add.u64 %i, %i, 1;
    setp.lt.u64 %p, %i, %n;
    @%p bra TURN;
    mov.u64 %c1, %clock64;
    mov.u64 %n1, %globaltimer;
    sub.u64 %c1, %c1, %c0;
    sub.u64 %n1, %n1, %n0;
    st.global.u64 [%a], %c1;
    st.global.u64 [%a+8], %n1;
    st.global.f32 [%a+16], %x;
    ret;
}
";
/// Turns of the loop: some tenths of a second.
const TURNS: u64 = 20_000_000;

/// The clock of multiprocessors of which each has a block that multiplies.
fn clock(cx: &Context) -> Result<Ended, Fault> {
    let driver = cx.driver()?;
    let (CodeForm::Ptx { .. }, Some(properties)) = (driver.form(), driver.properties()?) else {
        return Ok(Ended::skipped("the interpreter has no clock"));
    };
    let blocks = u64::from(properties.multiprocessors) * 8;
    let entry = LaunchConfig { name: "clock".into(), blocks, threads: 128, ..LaunchConfig::default() };
    let function = launch::load(&*driver, CLOCK.into(), entry)?;
    let after = launch::once(&*driver, &function, &[vec![0; 24], TURNS.to_le_bytes().to_vec()])?;
    let number = |at: usize| after[0][at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as f64;
    let (cycles, nanoseconds) = (number(0), number(8));
    if nanoseconds < 1e6 {
        return Err("the device's clock does not run".into());
    }
    let of_greatest = 100.0 * cycles / nanoseconds * 1e6 / f64::from(properties.clock_khz);
    Ok(Ended::passed().figure("clock under load", cycles / nanoseconds * 1e3, "MHz").figure(
        "of the greatest",
        of_greatest,
        "%",
    ))
}

/// What the tool of the driver says, kept beside the results.
fn ask_tool(cx: &Context) -> Result<Ended, Fault> {
    if cx.is_interpreted() {
        return Ok(Ended::skipped("the interpreter is no device of NVIDIA's"));
    }
    let fields = "name,driver_version,pstate,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu,\
                  clocks_throttle_reasons.active,ecc.mode.current,mig.mode.current,compute_mode";
    let query = [format!("--id={}", cx.name()), format!("--query-gpu={fields}"), "--format=csv,noheader".into()];
    match Command::new("nvidia-smi").args(query).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(Ended::passed().note(format!("{fields}: {text}")))
        }
        Ok(output) => Ok(Ended::skipped(format!("nvidia-smi: {}", String::from_utf8_lossy(&output.stdout)))),
        Err(_) => Ok(Ended::skipped("nvidia-smi is not installed")),
    }
}
