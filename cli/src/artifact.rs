//! What `tensorc inspect` shows of a compiled model.

use std::fmt::Write;
use std::path::Path;

use tensorc::runtime::artifact::{ArtifactError, LaunchInfo, Manifest, TensorInfo};

use super::failure::CliFailure;

/// The manifest of a file that is a compiled model; `None` if it is something else.
///
/// # Errors
/// It is a compiled model that is damaged, or of a version that this one does not know.
pub fn manifest(path: &Path) -> Result<Option<Manifest>, CliFailure> {
    let mut head = [0u8; 4];
    let elf = std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head)).is_ok()
        && head == *b"\x7fELF";
    let json = path.extension().is_some_and(|e| e == "json");
    if !elf && !json {
        return Ok(None);
    }
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let bytes = std::fs::read(path).map_err(|e| named(&e))?;
    let found = if elf { Manifest::of_elf(&bytes) } else { Manifest::from_json(&bytes) };
    match found {
        Ok(manifest) => Ok(Some(manifest)),
        // A symbol of MXNet is JSON, too.
        Err(ArtifactError::NoArtifact) if json => Ok(None),
        Err(error) => Err(named(&error).into()),
    }
}

/// The manifest for people: signature, parts with their sizes, kernels; with the text of the kernels if asked.
pub fn table(manifest: &Manifest, kernels: bool) -> Result<String, CliFailure> {
    let mut out = String::new();
    let (major, minor) = manifest.format;
    writeln!(out, "compiled model `{}` for {}", manifest.name, manifest.target)?;
    writeln!(out, "format       {major}.{minor}, by tensorc {}", manifest.compiler)?;
    for (side, tensors) in [("inputs", &manifest.inputs), ("outputs", &manifest.outputs)] {
        writeln!(out, "{side}")?;
        let width = tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for TensorInfo { name, dtype, dims } in tensors {
            writeln!(out, "  {name:width$}  {dtype}[{}]", dims.join(", "))?;
        }
    }
    for (name, min, max, step) in manifest.ranges() {
        let by = if step == 1 { String::new() } else { format!(" by {step}") };
        writeln!(out, "  {name} from {min} to {max}{by}")?;
    }
    for (name, min, max) in &manifest.found {
        writeln!(out, "  {name} from {min} to {max}, known in a run")?;
    }
    let code: u64 = manifest.kernels.iter().map(|k| k.code_bytes).sum();
    let place = if manifest.weights.embedded { "inside" } else { "in a file" };
    match &manifest.gpu {
        None => writeln!(out, "code         {code} B in {} kernels", manifest.kernels.len())?,
        Some(gpu) => {
            let cubin = match gpu.cubin_bytes {
                0 => "no machine code".to_owned(),
                bytes => format!("{bytes} B of machine code"),
            };
            let kernels = manifest.kernels.len();
            writeln!(out, "GPU          {}, {kernels} kernels, {} B of PTX, {cubin}", gpu.architecture, gpu.ptx_bytes)?;
        }
    }
    let many = manifest.variants.iter().filter(|variant| variant.many).count();
    writeln!(
        out,
        "plans        {} B, {} plans, {many} for many shapes",
        manifest.image_bytes,
        manifest.variants.len()
    )?;
    writeln!(out, "weights      {} B {place}, XXH3 {}", manifest.weights.bytes, manifest.weights.hash)?;
    let (one, more) = (manifest.run_bytes(1), manifest.scratch_bytes());
    writeln!(out, "memory       at most {one} B with one worker, at most {more} B for each further one")?;
    writeln!(out, "kernels")?;
    for (number, kernel) in manifest.kernels.iter().enumerate() {
        writeln!(out, "  {number:>4} {:>8} B  {}", kernel.code_bytes, kernel.name)?;
        if let Some(launch) = &kernel.launch {
            writeln!(out, "       {}", launched(launch))?;
        }
        if kernels {
            writeln!(out, "{}", kernel.kir)?;
        }
    }
    Ok(out)
}

/// What a kernel takes of a GPU.
fn launched(launch: &LaunchInfo) -> String {
    let LaunchInfo { blocks, threads, shared_bytes, registers, spilled_bytes } = launch;
    let mut text = format!("{blocks} blocks of {threads} threads");
    if *shared_bytes > 0 {
        text += &format!(", {shared_bytes} B shared");
    }
    if let Some(registers) = registers {
        text += &format!(", {registers} registers");
    }
    if let Some(bytes) = spilled_bytes.filter(|bytes| *bytes > 0) {
        text += &format!(", {bytes} B spilled");
    }
    text
}
