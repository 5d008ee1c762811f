//! ModelCode of models whose kernels run on a GPU: PTX, and machine code where NVIDIA's assembler is at hand.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorc_abi::image::matrix;
use tensorc_codegen::object::kernel_name;
use tensorc_ir::kir::Kernel;
use tensorc_runtime::artifact::{GpuInfo, LaunchInfo};
use tensorc_runtime::gpu::LaunchConfig;
use tensorc_schedule::target::Capability;
use xxhash_rust::xxh3::xxh3_128;

use super::variants::Variant;
use crate::error::Error;
use crate::gpu::{distinct, entry, module};

/// The GPU that a model is compiled for.
#[derive(Clone, Debug)]
pub struct GpuTarget {
    /// The generation of the GPU.
    pub capability: Capability,
    /// NVIDIA's assembler, `ptxas`, which makes machine code for the capability; without it the artifact holds PTX alone,
    /// which the driver translates when the model is loaded.
    pub assembler: Option<PathBuf>,
}

/// Names the assembler ([`find_assembler`]).
const VARIABLE: &str = "TENSORC_PTXAS";
/// Most blocks of a launch.
const MAX_GRID_BLOCKS: u64 = (1 << 31) - 1;

/// The assembler that `TENSORC_PTXAS` names, or `ptxas` where programs are looked for; `None` without one.
pub fn find_assembler() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join("ptxas")).find(|path| path.is_file())
}

/// The code of a model.
pub(super) struct ModelCode {
    /// The generation of the GPU.
    pub capability: Capability,
    /// It ends with a zero.
    pub ptx: Vec<u8>,
    pub cubin: Option<Vec<u8>>,
    /// How each kernel is launched.
    pub entries: Vec<LaunchConfig>,
    /// What the assembler says of each kernel: registers of a thread, and bytes of them that it keeps in memory.
    registers: BTreeMap<String, (u32, u32)>,
}

impl ModelCode {
    /// Makes the code of kernels; `numbers` are those of each variant among them.
    pub fn new(
        name: &str,
        kernels: &[Kernel],
        variants: &[Variant],
        numbers: &[Vec<u32>],
        gpu: &GpuTarget,
    ) -> Result<ModelCode, Error> {
        let named = kernels.iter().enumerate().map(|(i, kernel)| entry(kernel, kernel_name(name, i)));
        let entries = named.collect::<Result<Vec<LaunchConfig>, Error>>()?;
        if let Some(entry) = entries.iter().find(|entry| entry.blocks > MAX_GRID_BLOCKS) {
            let why = format!("kernel `{}` has {} blocks, a GPU has up to {MAX_GRID_BLOCKS}", entry.name, entry.blocks);
            return Err(Error::Artifact(why));
        }
        // What holds in every launch of every variant.
        let mut apart = vec![true; kernels.len()];
        for (variant, numbers) in variants.iter().zip(numbers) {
            for (distinct, number) in distinct(&variant.plan).into_iter().zip(numbers) {
                apart[*number as usize] &= distinct;
            }
        }
        let text = module(kernels, &entries, &apart, gpu.capability)?;
        if let Some(entry) = entries.iter().find(|entry| entry.matrices.len() > matrix::MAX) {
            let most = matrix::MAX;
            let why = format!("kernel `{}` has the copy engine read more matrices than {most}", entry.name);
            return Err(Error::Artifact(why));
        }
        let mut ptx = text.into_bytes();
        let mut code =
            ModelCode { capability: gpu.capability, ptx: vec![], cubin: None, entries, registers: BTreeMap::new() };
        if let Some(assembler) = &gpu.assembler {
            let (cubin, report) = assemble(assembler, &ptx, gpu.capability)?;
            code.cubin = Some(cubin);
            code.registers = registers(&report);
        }
        ptx.push(0);
        code.ptx = ptx;
        Ok(code)
    }

    /// Length and hash of PTX and machine code, as an image has them.
    pub fn hashes(&self) -> [u64; 6] {
        let [ptx, cubin] = [Some(&self.ptx), self.cubin.as_ref()].map(|code| match code {
            None => [0; 3],
            Some(code) => {
                let hash = xxh3_128(code);
                [code.len() as u64, hash as u64, (hash >> 64) as u64]
            }
        });
        std::array::from_fn(|i| if i < 3 { ptx[i] } else { cubin[i - 3] })
    }

    /// The PTX.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.ptx[..self.ptx.len() - 1]).into_owned()
    }

    /// What the manifest says of the code.
    pub fn describe(&self) -> GpuInfo {
        GpuInfo {
            architecture: self.capability.processor().to_owned(),
            ptx_bytes: self.ptx.len() as u64,
            cubin_bytes: self.cubin.as_ref().map_or(0, |cubin| cubin.len() as u64),
        }
    }

    /// What the manifest says of a kernel.
    pub fn launch(&self, number: usize) -> LaunchInfo {
        let LaunchConfig { name, blocks, threads, shared_bytes, sizes: _, matrices: _ } = &self.entries[number];
        let known = self.registers.get(name);
        LaunchInfo {
            blocks: *blocks,
            threads: *threads,
            shared_bytes: *shared_bytes,
            registers: known.map(|(registers, _)| *registers),
            spilled_bytes: known.map(|(_, spilled)| *spilled),
        }
    }

    /// Bytes of the PTX of each kernel.
    pub fn ptx_bytes(&self) -> Vec<u64> {
        let text = self.text();
        let start = |entry: &LaunchConfig| text.find(&format!(".entry {}(", entry.name)).unwrap_or(text.len());
        let starts: Vec<usize> = self.entries.iter().map(start).collect();
        let end = |at: &usize| starts.iter().filter(|other| *other > at).min().copied().unwrap_or(text.len());
        starts.iter().map(|at| (end(at) - at) as u64).collect()
    }
}

/// Machine code of PTX, and what the assembler says of it.
fn assemble(assembler: &Path, ptx: &[u8], capability: Capability) -> Result<(Vec<u8>, String), Error> {
    let shown = assembler.display();
    let fail = |what: &dyn std::fmt::Display| Error::Artifact(format!("the assembler {shown}: {what}"));
    let dir = tempfile::tempdir().map_err(|e| fail(&e))?;
    // The names of the files are the same every time, in case machine code holds them.
    let [source, made] = ["kernels.ptx", "kernels.cubin"];
    std::fs::write(dir.path().join(source), ptx).map_err(|e| fail(&e))?;
    // A path is one from here, a name is looked for.
    let program = match assembler.parent() {
        Some(folder) if folder != OsStr::new("") => std::path::absolute(assembler).map_err(|e| fail(&e))?,
        _ => assembler.to_owned(),
    };
    let mut command = Command::new(program);
    command.current_dir(dir.path()).args(["-v", &format!("-arch={}", capability.processor()), "-o", made, source]);
    let output = command.output().map_err(|e| fail(&e))?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(fail(&format!("{}: {}", output.status, report.trim())));
    }
    Ok((std::fs::read(dir.path().join(made)).map_err(|e| fail(&e))?, report))
}

/// Registers and spilled bytes of each kernel in a report of the assembler.
fn registers(report: &str) -> BTreeMap<String, (u32, u32)> {
    let number_before =
        |line: &str, words: &str| -> Option<u32> { line.split(words).next()?.split(' ').next_back()?.parse().ok() };
    let mut all = BTreeMap::new();
    let (mut name, mut spilled) = (String::new(), 0);
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("entry function '") {
            (name, spilled) = (rest.split('\'').next().unwrap_or_default().to_owned(), 0);
        } else if line.contains(" bytes spill stores") {
            spilled = number_before(line, " bytes spill stores").unwrap_or(0);
        } else if line.contains(" registers") && line.contains("Used ") {
            all.extend(number_before(line, " registers").map(|used| (std::mem::take(&mut name), (used, spilled))));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_the_assembler_are_read() {
        let report = "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'm_kernel0' for 'sm_80'\n\
             ptxas info    : Function properties for m_kernel0\n    \
             0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 40 registers, used 1 barriers, 376 bytes cmem[0]\n\
             ptxas info    : Compiling entry function 'm_kernel1' for 'sm_80'\n    \
             16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
             ptxas info    : Used 255 registers, 376 bytes cmem[0]\n";
        let read = registers(report);
        assert_eq!(read, BTreeMap::from([("m_kernel0".into(), (40, 0)), ("m_kernel1".into(), (255, 12))]));
    }
}
