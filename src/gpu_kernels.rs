//! Kernels of a plan, loaded by the driver of a GPU.

use std::collections::HashMap;
use std::sync::Arc;

use tensorc_abi::KernelSignature;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::kir::{Kernel, MAX_BLOCKS};
use tensorc_ir::verify::verify_kernel;
use tensorc_runtime::gpu::{CodeForm, Driver, KernelCode, LaunchConfig, LoadedKernel};

use crate::compiler::Compiler;
use crate::error::Error;
use crate::gpu::{capability_of, entries};

/// Loads a plan's kernels, on all threads. Equal ones are loaded once. `distinct` says of each whether its arguments lie in memory of
/// their own.
pub(crate) fn load(
    compiler: &Compiler,
    driver: &Arc<dyn Driver>,
    kernels: &[Kernel],
    distinct: &[bool],
) -> Result<Vec<LoadedKernel>, Error> {
    let entries = entries(kernels)?;
    let mut numbers = HashMap::new();
    let mut unique = vec![];
    let mut of = vec![];
    for (i, kernel) in kernels.iter().enumerate() {
        let number = *numbers.entry((kernel.canonical(), distinct[i])).or_insert(unique.len());
        if number == unique.len() {
            unique.push(i);
        }
        of.push(number);
    }
    let load = |number: usize| {
        let (entry, kernel) = (entries[unique[number]].clone(), &kernels[unique[number]]);
        let code = match driver.form() {
            CodeForm::Ir { .. } => {
                verify_kernel(kernel)?;
                KernelCode::Ir(vec![(entry, Arc::new(kernel.clone()))])
            }
            CodeForm::Ptx { capability } => {
                let (distinct, capability) = (distinct[unique[number]], capability_of(capability)?);
                let text = compiler.ptx().translate(kernel, &entry.name, distinct, capability)?;
                KernelCode::Ptx { text, entries: vec![entry] }
            }
        };
        let function = driver.load(code)?.pop();
        function.ok_or_else(|| Error::Internal("the driver loaded no kernel".into()))
    };
    let loaded = compiler.side_by_side(unique.len(), "loading kernels", load)?;
    compiler.ptx().finish();
    // A failure names the kernel that was launched.
    let named = |(entry, number): (LaunchConfig, usize)| LoadedKernel {
        entry: Arc::new(entry),
        code: loaded[number].code.clone(),
    };
    Ok(entries.into_iter().zip(of).map(named).collect())
}

/// Loaded kernels of a plan for many shapes as a shape launches them: `signatures` have its numbers.
///
/// # Errors
/// A launch has more blocks than a GPU takes.
pub(crate) fn relaunched(
    driver: &Arc<dyn Driver>,
    kernels: &[LoadedKernel],
    signatures: &[KernelSignature],
) -> Result<Vec<LoadedKernel>, Error> {
    let one = |(kernel, signature): (&LoadedKernel, &KernelSignature)| {
        let blocks = signature.extent;
        if blocks > MAX_BLOCKS {
            let why = format!("kernel `{}` on {blocks} blocks, more than {MAX_BLOCKS}", kernel.entry.name);
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why).into());
        }
        let launch = LaunchConfig { blocks, sizes: signature.sizes.clone(), ..LaunchConfig::clone(&kernel.entry) };
        let spans: Vec<u64> = signature.parameters.iter().map(|parameter| parameter.span).collect();
        Ok(driver.relaunched(kernel, launch, &spans))
    };
    kernels.iter().zip(signatures).map(one).collect()
}
