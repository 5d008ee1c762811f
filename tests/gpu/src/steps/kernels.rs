//! Every kernel of the corpus against the interpreter's stored bits.

use tensorc::ir::TensorData;
use tensorc::runtime::Device;
use tensorc::schedule::target::Capability;
use tensorc_tests::corpus::{self, compiler};

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
            let found = program.run(&compiler).map(|found| digests(&found));
            let why = match found {
                Ok(found) if found == expected => return Ok(Ended::passed()),
                Ok(_) if cx.is_interpreted() => return Err("other bits than stored".into()),
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
