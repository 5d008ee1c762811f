//! The processor and its caches, cores, memory, and the folder of the code cache.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorc::Isa;
use tensorc::runtime::{ThreadLimits, available_threads, memory_limit, thread_limits};
use tensorc::schedule::target::VectorLevel;

use super::Check;
use crate::args::default_code_cache;
use crate::limits::memory_info;

pub fn checks() -> Vec<Check> {
    vec![processor(), caches(), cores(), memory(), code_cache()]
}

/// Defines a function that gives the extensions among these that the processor has.
macro_rules! extensions {
    ($detect:path: $($name:tt)*) => {
        fn extensions() -> Vec<&'static str> {
            use $detect as detected;
            [$(($name, detected!($name))),*].into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
        }
    };
}

#[cfg(target_arch = "x86_64")]
extensions!(std::arch::is_x86_feature_detected:
    "sse4.2" "avx" "f16c" "fma" "avx2" "bmi1" "bmi2" "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx512vnni"
    "avx512bf16" "avx512fp16");
#[cfg(target_arch = "aarch64")]
extensions!(std::arch::is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn extensions() -> Vec<&'static str> {
    vec![]
}

fn processor() -> Check {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown model", |(_, name)| name.trim());
    let extensions = extensions();
    let found = format!("{model}, {}: {}", std::env::consts::ARCH, extensions.join(" "));
    let library = match tensorc_kernels::isa() {
        tensorc_kernels::Isa::Amx => "AVX-512 and AMX",
        tensorc_kernels::Isa::Avx512 => "AVX-512",
        tensorc_kernels::Isa::Avx2 => "AVX2",
        tensorc_kernels::Isa::Neon => "NEON",
        tensorc_kernels::Isa::Portable => "portable code",
    };
    let facts =
        json!({"model": model, "architecture": std::env::consts::ARCH, "extensions": extensions, "library": library});
    let Ok(isa) = Isa::native() else {
        let means = "no code is generated for this architecture";
        return Check::lacks("processor", found, means, "a processor of x86-64, aarch64 or riscv64").facts(facts);
    };
    let loops = match isa.vector_level() {
        Some(VectorLevel::Avx512) => "512 bits",
        Some(VectorLevel::Avx2) => "256 bits",
        None => "128 bits",
    };
    let bf16 = if tensorc_kernels::has_bf16_products() { ", --precision bf16 works" } else { "" };
    let means = format!("library kernels use the ISA level {library}, generated loops vectors of {loops}{bf16}");
    Check::works("processor", found, means).facts(facts)
}

fn caches() -> Check {
    let folder = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let read = |index: usize, file: &str| {
        let text = fs::read_to_string(folder.join(format!("index{index}")).join(file)).ok()?;
        Some(text.trim().to_owned())
    };
    let one = |index: usize| {
        let kind = match read(index, "type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some((format!("L{}{kind}", read(index, "level")?), read(index, "size")?))
    };
    let all: Vec<(String, String)> = (0..8).map_while(one).collect();
    if all.is_empty() {
        return Check::works("caches", "the system does not tell", "nothing depends on it");
    }
    let listed: Vec<String> = all.iter().map(|(name, size)| format!("{name} {size}")).collect();
    let facts = all.into_iter().map(|(name, size)| (name, json!(size))).collect::<serde_json::Map<_, _>>();
    let means = "blocks of library kernels have fixed sizes, so that results do not depend on caches";
    Check::works("caches", listed.join(", "), means).facts(facts.into())
}

fn cores() -> Check {
    let ThreadLimits { affinity, quota } = thread_limits();
    let (all, used) = (std::thread::available_parallelism().map_or(0, |n| n.get()), available_threads());
    let shown = |limit: Option<usize>| limit.map_or("none".to_owned(), |n| n.to_string());
    let found = format!("by affinity {}, by control-group quota {}", shown(affinity), shown(quota));
    let means = format!("commands use {used} threads; --threads N takes fewer");
    let facts = json!({"affinity": affinity, "quota": quota, "parallelism": all, "threads": used});
    Check::works("cores", found, means).facts(facts)
}

fn memory() -> Check {
    let (total, free, limit) = (memory_info("MemTotal:"), memory_info("MemAvailable:"), memory_limit());
    let shown = |bytes: Option<u64>| {
        bytes.map_or("unknown".to_owned(), |n| format!("{:.1} GiB", n as f64 / (1u64 << 30) as f64))
    };
    let group = limit.map_or("none".to_owned(), |bytes| shown(Some(bytes)));
    let found = format!("{} in all, {} available, control-group limit {group}", shown(total), shown(free));
    let most = crate::limits::default().memory;
    let means = match most {
        Some(bytes) => {
            format!("models that take more than {} are refused; --limit memory=… changes that", shown(Some(bytes)))
        }
        None => "models are refused by no limit of memory; --limit memory=… sets one".to_owned(),
    };
    let facts =
        json!({"total_bytes": total, "available_bytes": free, "group_bytes": limit, "default_limit_bytes": most});
    Check::works("memory", found, means).facts(facts)
}

fn code_cache() -> Check {
    let lacks = |found: String, remedy: &str| {
        Check::lacks("code cache", found, "every process generates the machine code of its models anew", remedy)
    };
    let Some(folder) = default_code_cache() else {
        let remedy = "set TENSORC_CODE_CACHE to a folder, or give --code-cache DIR";
        return lacks("TENSORC_CODE_CACHE is not set".to_owned(), remedy).facts(json!({"folder": null}));
    };
    let facts = json!({"folder": folder.display().to_string()});
    match writable(&folder) {
        Ok(()) => {
            let means = "machine code is kept for later processes (run, bench)";
            Check::works("code cache", folder.display().to_string(), means).facts(facts)
        }
        Err(error) => lacks(format!("{}: {error}", folder.display()), "make the folder writable").facts(facts),
    }
}

/// Whether files can be made in a folder, or in the one above it that exists.
fn writable(folder: &Path) -> std::io::Result<()> {
    let existing = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
    let probe = existing.join(format!(".tensorc-doctor-{}", std::process::id()));
    fs::write(&probe, [])?;
    fs::remove_file(probe)
}
