//! Failures of kernels on a device: which launch has other bits than the interpreter's, and files with which anybody repeats it
//! without a device.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tensorc::Backend;
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::{PrintOptions, parse_module, print_graph, print_kernel};
use tensorc::runtime::Device;
use tensorc::runtime::gpu::Driver;
use tensorc::schedule::target::Capability;
use tensorc_simulator::run_launch;
use tensorc_tests::corpus::{Case, compiler, kernels};
use tensorc_tests::launches::{Recorded, Recorder, entry, execute, first_difference};
use tensorc_tests::ptx::Module;

use crate::context::{Context, Fault};
use crate::launch;

/// The launches of a case as the interpreter executes them, each with its kernel.
fn interpreted(case: &Case, capability: Capability) -> Result<Vec<(Kernel, Recorded)>, Fault> {
    let recorder = Recorder::new(tensorc_simulator::interpreted_as(Device::accelerator(0), capability));
    let compiler = compiler(Some(recorder.clone()), case.tf32)?;
    let kernels = kernels(&compiler, &case.graph)?;
    let names = tensorc_codegen::ptx::entry_names(&kernels);
    case.run(&compiler)?;
    let with_kernel = |launch: Recorded| {
        let place = names.iter().position(|name| *name == launch.entry.name);
        let place = place.ok_or_else(|| format!("no kernel `{}`", launch.entry.name))?;
        Ok((kernels[place].clone(), launch))
    };
    recorder.take().into_iter().map(with_kernel).collect()
}

/// The first buffer and element with other bits.
fn difference(kernel: &Kernel, found: &[Vec<u8>], expected: &[Vec<u8>]) -> Option<(usize, usize)> {
    let differs = |(i, (found, expected)): (usize, (&Vec<u8>, &Vec<u8>))| {
        Some((i, first_difference(kernel.buffers[i].dtype, found, expected)?))
    };
    found.iter().zip(expected).enumerate().find_map(differs)
}

/// Finds the launch of a case that goes wrong on a device by launching its kernels one by one, and writes it down; one line that says
/// it. Without a device, after its context was lost, all launches are written, each to a folder of its own.
///
/// # Errors
/// The case fails in the interpreter too, or nothing can be written.
pub fn investigate(
    cx: &Context,
    driver: Option<&Arc<dyn Driver>>,
    case: &Case,
    capability: Capability,
) -> Result<String, Fault> {
    let folder = cx.failure_folder(&case.name)?;
    fs::write(folder.join("graph.tc"), print_graph(&case.graph, &PrintOptions::exact()))?;
    for (node, input) in case.graph.inputs().iter().zip(&case.inputs) {
        fs::write(folder.join(format!("input-{}.bin", case.graph.node(*node).name)), input.bytes())?;
    }
    for (number, (kernel, launch)) in interpreted(case, capability)?.into_iter().enumerate() {
        let Some(driver) = driver else {
            let own = folder.join(format!("launch-{number}"));
            fs::create_dir_all(&own)?;
            write(&own, &kernel, &launch, None, capability)?;
            continue;
        };
        let function = launch::compiled(driver, &kernel, capability)?;
        let outcome = launch::once(&**driver, &function, &launch.before);
        let why = match &outcome {
            Err(error) => error.to_string(),
            Ok(found) => match difference(&kernel, found, &launch.after) {
                None => continue,
                Some((buffer, element)) => {
                    format!("element {element} of `{}` has other bits", kernel.buffers[buffer].name)
                }
            },
        };
        write(&folder, &kernel, &launch, outcome.ok().as_deref(), capability)?;
        return Ok(format!("launch {number}, kernel `{}`: {why}; {}", kernel.name, folder.display()));
    }
    let why = match driver {
        Some(_) => "each launch by itself has the right bits, so the plan or its streams are wrong",
        None => "the context is lost, and each launch is written down",
    };
    Ok(format!("{why}; {}", folder.display()))
}

/// Writes a launch down for [`reproduce`].
fn write(
    folder: &Path,
    kernel: &Kernel,
    launch: &Recorded,
    found: Option<&[Vec<u8>]>,
    capability: Capability,
) -> Result<(), Fault> {
    fs::write(folder.join("capability"), capability.processor())?;
    fs::write(folder.join("kernel.tc"), format!("tensorc-ir 1\n{}", print_kernel(kernel)))?;
    fs::write(folder.join("kernel.ptx"), tensorc::gpu::ptx(std::slice::from_ref(kernel), capability)?)?;
    for (i, bytes) in launch.before.iter().enumerate() {
        fs::write(folder.join(format!("{i}.before")), bytes)?;
        fs::write(folder.join(format!("{i}.expected")), &launch.after[i])?;
        if let Some(found) = found {
            fs::write(folder.join(format!("{i}.found")), &found[i])?;
        }
    }
    Ok(())
}

/// Repeats a launch that was written down in the interpreters, and says how each buffer compares with what was expected and with what
/// the device gave.
///
/// # Errors
/// The folder holds no launch, or it is damaged.
pub fn reproduce(folder: &Path) -> Result<String, Fault> {
    let read = |name: &str| fs::read(folder.join(name)).map_err(|e| format!("{}: {e}", folder.join(name).display()));
    let text = String::from_utf8(read("kernel.tc")?)?;
    let registry = tensorc::ops::registry()?;
    let kernel = parse_module(&text, &registry)?.kernels.into_iter().next().ok_or("kernel.tc holds no kernel")?;
    let named = String::from_utf8(read("capability")?)?;
    let capability = Capability::ALL.into_iter().find(|c| c.processor() == named.trim());
    let capability = capability.ok_or_else(|| format!("`{named}` is no capability"))?;
    let buffers = |what: &str| -> Result<Vec<Vec<u8>>, String> {
        (0..kernel.params).map(|i| read(&format!("{i}.{what}"))).collect()
    };
    let (before, expected) = (buffers("before")?, buffers("expected")?);
    let mut results = vec![];
    let mut after = before.clone();
    let outcome = run_launch(&kernel, &mut after).map(|_| after).map_err(|e| e.to_string());
    results.push(("interpreter of KIR", outcome));
    if Backend::has_llvm() {
        let module = Module::parse(&tensorc::gpu::ptx(std::slice::from_ref(&kernel), capability)?)?;
        let writable: Vec<bool> = kernel.buffers[..kernel.params].iter().map(|b| b.writable).collect();
        let mut after = before;
        let outcome = execute(&module, &entry(&kernel), &mut after, &writable, 0).map(|_| after);
        results.push(("interpreter of PTX", outcome));
    }
    results.push(("device", buffers("found")));
    let mut text = String::new();
    for (who, outcome) in results {
        let verdict = match outcome {
            Err(why) => why,
            Ok(found) => match difference(&kernel, &found, &expected) {
                None => "the expected bits".into(),
                Some((buffer, element)) => {
                    format!("other bits in element {element} of `{}`", kernel.buffers[buffer].name)
                }
            },
        };
        writeln!(text, "{who:20} {verdict}")?;
    }
    Ok(text)
}
