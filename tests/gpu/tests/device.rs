//! The program on devices: the interpreter's, one that is not there, and an imaginary one on which things go wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value as Json;
use tensorc_tests::imaginary;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tensorc-gpu");

/// The data that a bundle has, but for models and cases of ONNX: made once.
fn data() -> &'static Path {
    static DATA: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = DATA.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(PROGRAM).args(["collect", "--only-stored"]).arg(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(folder.path().join("identity"), "test").unwrap();
        folder
    });
    made.path()
}

/// A folder with imaginary libraries, or none, and one for results.
struct Machine {
    libraries: tempfile::TempDir,
    out: tempfile::TempDir,
    fault: &'static str,
    imaginary: bool,
}

impl Machine {
    fn without_driver() -> Machine {
        let folder = || tempfile::tempdir().unwrap();
        Machine { libraries: folder(), out: folder(), fault: "", imaginary: false }
    }

    /// `None`, after a line, where there is no C compiler or the program has no driver for CUDA.
    fn imaginary(fault: &'static str) -> Option<Machine> {
        let has_driver =
            tensorc::gpu::cuda(0).map_or_else(|e| !e.to_string().contains("this build has no driver"), |_| true);
        if !has_driver || !imaginary::can_build() {
            eprintln!("skipped: an imaginary GPU needs a build with the feature `cuda` and the C compiler `cc`");
            return None;
        }
        let machine = Machine { fault, imaginary: true, ..Machine::without_driver() };
        imaginary::build(machine.libraries.path(), (8, 0));
        Some(machine)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.env("LD_LIBRARY_PATH", self.libraries.path()).env("TENSORC_GPU_DATA", data());
        command.env("IMAGINARY_FAULT", self.fault).env("TENSORC_GPU_SMALL", "1");
        if self.imaginary {
            command.env(imaginary::VARIABLE, self.libraries.path());
        }
        command
    }

    fn run(&self, device: &str, only: &str) -> (Output, Json) {
        self.run_some(device, only, "")
    }

    /// Runs the cases of steps whose names contain a text.
    fn run_some(&self, device: &str, only: &str, part: &str) -> (Output, Json) {
        let mut command = self.command();
        command.env("TENSORC_GPU_ONLY", part);
        command.args(["run", "--device", device, "--only", only, "--out"]).arg(self.out.path());
        let output = command.output().unwrap();
        let results = fs::read_to_string(self.out.path().join("results.json"));
        (output, serde_json::from_str(&results.unwrap_or_else(|e| panic!("{e}"))).unwrap())
    }
}

fn step<'j>(results: &'j Json, name: &str) -> &'j Json {
    let steps = results["steps"].as_array().unwrap();
    steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no step {name} in {results}"))
}

/// Cases of a step with an outcome.
fn cases<'j>(results: &'j Json, name: &str, outcome: &str) -> Vec<&'j Json> {
    let all = step(results, name)["cases"].as_array().unwrap();
    all.iter().filter(|case| case["outcome"] == outcome).collect()
}

fn note(json: &Json) -> &str {
    json["note"].as_str().unwrap()
}

#[test]
fn the_interpreter_is_a_device() {
    let machine = Machine::without_driver();
    let (output, results) = machine.run("interpreted", "device,clock,kernels-sm_90a,arrays,several,launches");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(cases(&results, "kernels-sm_90a", "passed").len() > 300);
    assert_eq!(note(cases(&results, "clock", "skipped")[0]), "the interpreter has no clock");
    for case in cases(&results, "launches", "passed") {
        assert_eq!(note(case), "runs; times mean nothing in the interpreter");
        assert!(case["figures"].as_array().is_none_or(Vec::is_empty), "{case}");
    }
}

/// Bits that are not those stored are failures.
#[test]
fn stored_bits_count() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(data().join("stored.json")).unwrap();
    let mut stored: Json = serde_json::from_str(&text).unwrap();
    stored["kernels sm_80"]["map of f32"][0] = "0".into();
    fs::write(folder.path().join("stored.json"), stored.to_string()).unwrap();
    fs::write(folder.path().join("identity"), "test").unwrap();
    let out = folder.path().join("out");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--device=interpreted", "--only=kernels-sm_80", "--out"]).arg(&out);
    command.env("TENSORC_GPU_ONLY", "map of");
    let output = command.env("TENSORC_GPU_DATA", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let results: Json = serde_json::from_str(&fs::read_to_string(out.join("results.json")).unwrap()).unwrap();
    let failed = cases(&results, "kernels-sm_80", "failed");
    assert_eq!((failed.len(), &failed[0]["case"]), (1, &Json::from("map of f32")));
}

/// One line says what is wrong with a device, and what needs none runs.
#[test]
fn devices_that_cannot_be_used_cost_one_line() {
    let mut machines =
        vec![(Some(Machine::without_driver()), ["no CUDA driver is installed here", "this build has no driver"])];
    let faults = [
        ("absent", "CUDA_ERROR_NO_DEVICE"),
        ("busy", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("old", "has compute capability 7.0; 8.0 is the least"),
    ];
    machines.extend(faults.map(|(fault, text)| (Machine::imaginary(fault), [text; 2])));
    for (machine, texts) in machines {
        let Some(machine) = machine else { continue };
        let (output, results) = machine.run("0", "device,kernels-sm_80,training,peers");
        let (fault, said) = (machine.fault, String::from_utf8_lossy(&output.stdout));
        assert_eq!(output.status.code(), Some(1), "{fault}: {said}");
        let why = note(cases(&results, "device", "failed")[0]);
        assert!(texts.iter().any(|text| why.contains(text)), "{fault}: {why}");
        for name in ["kernels-sm_80", "training"] {
            assert_eq!(step(&results, name)["outcome"], "skipped", "{fault}");
            assert!(note(step(&results, name)).starts_with("no device: "), "{fault}: {}", note(step(&results, name)));
        }
        assert!(!cases(&results, "peers", "skipped").is_empty() || !cases(&results, "peers", "failed").is_empty());
    }
}

/// All of CUDA's driver, from PTX to recorded launches, on a device that is none.
#[test]
fn an_imaginary_device_passes() {
    let Some(machine) = Machine::imaginary("") else { return };
    let (output, results) = machine.run("0", "device,bandwidth,kernels-sm_80,kernels-sm_90a,arrays,several,launches");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(cases(&results, "kernels-sm_80", "passed").len() > 300);
    assert_eq!(note(cases(&results, "kernels-sm_90a", "skipped")[0]), "the device does not execute sm_90a");
    let figures = cases(&results, "bandwidth", "passed")[0]["figures"].as_array().unwrap();
    assert!(figures.iter().all(|figure| figure["value"].as_f64().is_some_and(|value| value > 0.0)), "{figures:?}");
}

/// A kernel with other bits on the device is written down, and what is written down can be repeated without it.
#[test]
fn wrong_bits_are_found_and_reproduced() {
    let Some(machine) = Machine::imaginary("wrong:k_y") else { return };
    let (output, results) = machine.run_some("0", "kernels-sm_80", "softmax");
    assert_eq!(output.status.code(), Some(1));
    let failed = cases(&results, "kernels-sm_80", "failed");
    for case in &failed {
        assert!(note(case).contains("launch ") && note(case).contains("has other bits"), "{case}");
    }
    let case = failed.iter().find(|case| case["case"] == "softmax of f32").unwrap_or_else(|| panic!("{failed:?}"));
    let folder = PathBuf::from(note(case).rsplit("; ").next().unwrap());
    let output = machine.command().arg("reproduce").arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}{}", String::from_utf8_lossy(&output.stderr));
    for (line, (who, verdict)) in lines.iter().zip([
        ("interpreter of KIR", "the expected bits"),
        ("interpreter of PTX", "the expected bits"),
        ("device", "other bits in element 0 of "),
    ]) {
        assert!(line.starts_with(who) && line.contains(verdict), "{said}");
    }
}

/// After an illegal access or a crash the step is begun anew behind the case, and the others run.
#[test]
fn a_lost_device_costs_a_case() {
    for (fault, why) in [("illegal:cumsum", "CUDA_ERROR_ILLEGAL_ADDRESS"), ("crash:cumsum", "signal 6")] {
        let Some(machine) = Machine::imaginary(fault) else { return };
        // Random choices add up probabilities; there are cases before and behind.
        let (output, results) = machine.run_some("0", "kernels-sm_80", "bernoulli,multinomial,shuffle");
        assert_eq!(output.status.code(), Some(1), "{fault}: {results}");
        let failed = cases(&results, "kernels-sm_80", "failed");
        assert!(failed.len() == 1 && failed[0]["case"] == "multinomial", "{fault}: {failed:?}");
        assert!(note(failed[0]).contains(why), "{fault}: {failed:?}");
        if fault.starts_with("illegal") {
            let launch = PathBuf::from(note(failed[0]).rsplit("; ").next().unwrap()).join("launch-0");
            let output = machine.command().arg("reproduce").arg(launch).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).matches("the expected bits").count(), 2);
        }
        let all = step(&results, "kernels-sm_80")["cases"].as_array().unwrap();
        let at = all.iter().position(|case| case["case"] == "multinomial").unwrap();
        assert!(
            all[at + 1..].iter().all(|case| case["outcome"] == "passed") && at > 0 && at + 1 < all.len(),
            "{fault}: {all:?}"
        );
    }
}

/// A device that is short of memory fails what does not fit, and nothing else.
#[test]
fn short_memory_costs_what_does_not_fit() {
    let Some(machine) = Machine::imaginary("memory") else { return };
    let (output, results) = machine.run("0", "device,arrays");
    assert_eq!(output.status.code(), Some(1));
    assert!(!cases(&results, "arrays", "passed").is_empty());
    let failed = cases(&results, "arrays", "failed");
    assert!(!failed.is_empty());
    assert!(failed.iter().all(|case| note(case).contains("memory")), "{failed:?}");
}
