//! `--limit`: what a model may take, and what that is if nothing is said.

use std::fs;
use std::time::Duration;

use tensorc::Limits;
use tensorc::runtime::memory_limit;

/// The limits of models that are read from files: what a mistake or malice in them may cost.
pub fn default() -> Limits {
    Limits { memory: memory(), time: Some(Duration::from_secs(3600)), nodes: Some(10_000_000), code: Some(4 << 30) }
}

/// `memory=2GiB,time=60s`: what is not named keeps its default; `none`: nothing is bounded.
pub fn parse(text: &str) -> Result<Limits, String> {
    if text == "none" {
        return Ok(Limits::default());
    }
    let mut limits = default();
    for part in text.split(',') {
        let Some((name, value)) = part.split_once('=') else {
            return Err(format!("`{part}`: write NAME=VALUE"));
        };
        match name {
            "memory" => limits.memory = Some(bytes(value)?),
            "time" => limits.time = Some(seconds(value)?),
            "nodes" => limits.nodes = Some(value.parse().map_err(|_| format!("`{value}` is not a number"))?),
            "code" => limits.code = Some(bytes(value)?),
            _ => return Err(format!("`{name}`: there are the limits memory, time, nodes and code")),
        }
    }
    Ok(limits)
}

/// `64MiB`, `2GiB`, `1000`.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("", 0)];
    let split = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let found = split.and_then(|(digits, shift)| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    found.ok_or_else(|| format!("`{text}` is not a size such as 64MiB or 2GiB"))
}

/// `60s`, `0.5s`, `10min`, `2h`.
fn seconds(text: &str) -> Result<Duration, String> {
    let units = [("min", 60.0), ("ms", 1e-3), ("s", 1.0), ("h", 3600.0)];
    let split = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let found = split.and_then(|(number, scale)| Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok());
    found.ok_or_else(|| format!("`{text}` is not a time such as 60s or 10min"))
}

/// Bytes of memory of this machine, if it says, or that this process may have.
fn memory() -> Option<u64> {
    [memory_info("MemTotal:"), memory_limit()].into_iter().flatten().min()
}

/// A number of bytes that the system states of memory.
pub fn memory_info(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_names_and_values() {
        let limits = parse("memory=2GiB,time=1.5s,nodes=10,code=3KiB").unwrap();
        let expected = (Some(2 << 30), Some(Duration::from_millis(1500)), Some(10), Some(3072));
        assert_eq!((limits.memory, limits.time, limits.nodes, limits.code), expected);
        assert_eq!(parse("time=10min").unwrap(), Limits { time: Some(Duration::from_secs(600)), ..default() });
        assert_eq!(parse("none").unwrap(), Limits::default());
        for wrong in ["", "memory", "memory=2GB", "memory=99999999999TiB", "time=1", "time=-1s", "time=nans", "disk=1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
