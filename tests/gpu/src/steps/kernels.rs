//! Every kernel of the corpus against the interpreter's stored bits. Matrix units round sums in a way of their own, which NVIDIA does
//! not document: kernels that use them may differ as far as the type of their results allows.

use tensorc::ir::TensorData;
use tensorc::ir::kir::Kernel;
use tensorc::ir::text::print_kernel;
use tensorc::runtime::Device;
use tensorc::schedule::target::Capability;
use tensorc_tests::corpus::{self, compiler, kernels};

use super::{Case, Ended};
use crate::context::Fault;
use crate::digest::digest;
use crate::reproduce::investigate;
use crate::stored::Stored;

fn section(capability: Capability) -> String {
    format!("kernels {}", capability.processor())
}

fn digests(results: &[TensorData]) -> Vec<String> {
    results.iter().map(digest).collect()
}

pub fn cases(capability: Capability) -> Result<Vec<Case>, Fault> {
    let stored = std::rc::Rc::new(Stored::load()?);
    let case = |program: corpus::Case| {
        let stored = stored.clone();
        Case::new(program.name.clone(), move |cx| {
            let Some(driver) = cx.of_capability(capability)? else {
                return Ok(Ended::skipped(format!("the device does not execute {}", capability.processor())));
            };
            let expected = stored.of(&section(capability), &program.name)?;
            let compiler = compiler(Some(driver.clone()), program.tf32)?;
            let why = match program.run(&compiler) {
                Ok(found) if digests(&found) == expected => return Ok(Ended::passed()),
                Ok(_) if cx.is_interpreted() => return Err("other bits than stored".into()),
                Ok(found) if has_matrix_units(&kernels(&compiler, &program.graph)?) => {
                    match program.largest_error(&interpreted(&program, capability)?, &found) {
                        Ok(error) => return Ok(Ended::passed().figure("largest error", error * 1e6, "10⁻⁶")),
                        Err(why) => why,
                    }
                }
                Ok(_) => "other bits".to_owned(),
                Err(error) if cx.is_interpreted() => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            let alive = (!cx.is_lost()).then_some(&driver);
            Err(format!("{why}; {}", investigate(cx, alive, &program, capability)?).into())
        })
    };
    Ok(corpus::all(&tensorc::ops::registry()?).into_iter().map(case).collect())
}

/// Results of the interpreter.
fn interpreted(program: &corpus::Case, capability: Capability) -> Result<Vec<TensorData>, Fault> {
    let driver = tensorc_simulator::interpreted_as(Device::accelerator(0), capability);
    Ok(program.run(&compiler(Some(driver), program.tf32)?)?)
}

fn has_matrix_units(kernels: &[Kernel]) -> bool {
    let multiplies = |line: &str| ["mma ", "group_mma "].iter().any(|name| line.trim_start().starts_with(name));
    kernels.iter().any(|kernel| print_kernel(kernel).lines().any(multiplies))
}

/// The interpreter's results.
pub fn store(capability: Capability, stored: &mut Stored) -> Result<(), Fault> {
    let driver = tensorc_simulator::interpreted_as(Device::accelerator(0), capability);
    for case in corpus::all(&tensorc::ops::registry()?) {
        let compiler = compiler(Some(driver.clone()), case.tf32)?;
        let results = case.run(&compiler).map_err(|e| format!("{}: {e}", case.name))?;
        stored.add(&section(capability), &case.name, digests(&results));
    }
    Ok(())
}
