//! `tensorc quantize` as a shell calls it: files and folders of data, the report, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tensorc::runtime::TensorRef;
use tensorc_data::formats::write_arrays;

fn tensorc(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensorc")).args(arguments).output().unwrap()
}

#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = tensorc(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], status: i32, message: &str) {
    let output = tensorc(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.starts_with("tensorc: ") && text.lines().next().unwrap().contains(message), "{text}");
    assert!(text.lines().count() <= 2, "{text}");
}

fn digits() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples/digits/digits.onnx");
    path.to_str().unwrap().to_owned()
}

/// Writes images; of the count given, the brightness differs from file to file.
fn images(path: &Path, name: &str, count: u64, seed: u32) {
    let pixels: Vec<f32> = (0..count as u32 * 64).map(|i| ((i * 37 + seed * 11) % 17) as f32 / 16.0).collect();
    write_arrays(path, [(name, TensorRef::from_slice(&[count, 1, 8, 8], &pixels))]).unwrap();
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path("data")).unwrap();
        images(&folder.path("data/a.npz"), "image", 4, 1);
        images(&folder.path("data/b.npz"), "image", 2, 2);
        std::fs::write(folder.path("data/notes.txt"), "no arrays").unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn every_mode_writes_a_model_that_runs() {
    let folder = Folder::new();
    let (model, data, out) = (digits(), folder.text("data"), folder.text("out.onnx"));
    for mode in ["static", "dynamic", "weights"] {
        let text = printed(&["quantize", &model, "--calibrate", &data, "-o", &out, "--mode", mode]);
        assert!(text.contains("SNR dB") && text.contains("compared with f32 in 2 runs"), "{text}");
        let input = folder.text("data/a.npz");
        assert!(!printed(&["run", &out, "--input", &input]).is_empty());
        let line = printed(&["quantize", &model, "--calibrate", &data, "-o", &out, "--mode", mode, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["runs"], 2);
        assert_eq!(json["quantized"].as_array().unwrap().len(), json["layers"].as_array().unwrap().len());
        assert!(json["outputs"][0]["snr_db"].as_f64().unwrap() > 15.0, "{json}");
        assert_eq!(json["bytes_after"], std::fs::metadata(&out).unwrap().len());
        assert!(json["bytes_after"].as_u64() < json["bytes_before"].as_u64(), "{json}");
    }
    let none = printed(&["quantize", &model, "-o", &out, "--mode", "dynamic"]);
    assert!(none.contains("not compared with f32") && !none.contains("SNR"), "{none}");
    let one = folder.text("data/b.npz");
    let methods = ["--method=entropy", "--method=percentile"];
    for method in methods {
        let kept = printed(&["quantize", &model, "--calibrate", &one, "-o", &out, method, "--activations=s8"]);
        assert!(kept.contains("in 1 runs"), "{kept}");
    }
}

#[test]
fn bad_input_is_one_clear_error() {
    let folder = Folder::new();
    let (model, data, out) = (digits(), folder.text("data"), folder.text("out.onnx"));
    let fails_on = |rest: &[&str], status: i32, message: &str| {
        fails(&[&["quantize", &model, "-o", &out][..], rest].concat(), status, message);
    };
    fails_on(&[], 2, "static quantisation needs data");
    fails_on(&["--calibrate", "missing.npz"], 1, "missing.npz");
    fails_on(&["--calibrate", &data, "--keep", "nothing"], 1, "no node `nothing`");
    fails_on(&["--calibrate", &data, "--method", "percentile", "--percentile", "20"], 2, "percentile");
    fails_on(&["--mode", "weights", "--bits", "5"], 2, "4 or 8 bits");
    let empty = folder.text("none");
    std::fs::create_dir(&empty).unwrap();
    fails_on(&["--calibrate", &empty], 1, "no .npz file");
    images(&folder.path("other.npz"), "picture", 2, 1);
    fails_on(&["--calibrate", &folder.text("other.npz")], 1, "other.npz: the model has no input `picture`");
    let text = folder.text("data/notes.txt");
    fails_on(&["--calibrate", &text], 1, "notes.txt");
    let nan = [f32::NAN; 64];
    let file = folder.path("nan.npz");
    write_arrays(&file, [("image", TensorRef::from_slice(&[1, 1, 8, 8], &nan))]).unwrap();
    fails_on(&["--calibrate", &folder.text("nan.npz")], 1, "NaN");
    fails(&["quantize", "missing.onnx", "-o", &out, "--mode", "dynamic"], 1, "missing.onnx");
    let copy = folder.text("copy.onnx");
    std::fs::copy(&model, &copy).unwrap();
    fails(&["quantize", &copy, "-o", &copy, "--mode", "dynamic"], 1, "would replace");
    fails(&["quantize", &model, "-o", "/proc/no/out.onnx", "--mode", "dynamic"], 1, "/proc/no/out.onnx");
    assert!(!folder.path("out.onnx").exists());
}

/// What is written when there is no room for all of it is removed again.
#[test]
fn a_file_without_room_is_not_left_behind() {
    let folder = Folder::new();
    let before = std::fs::read_dir(folder.path("")).unwrap().count();
    let out = folder.text("out.onnx");
    let line = "trap '' XFSZ; ulimit -f 16; exec \"$@\"";
    let arguments =
        ["-c", line, "sh", env!("CARGO_BIN_EXE_tensorc"), "quantize", &digits(), "-o", &out, "--mode=dynamic"];
    let output = Command::new("sh").args(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with(&format!("tensorc: {out}: ")), "{text}");
    assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), before);
}
