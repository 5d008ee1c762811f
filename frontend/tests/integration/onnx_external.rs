//! External data: which files a model may read, and which bytes of them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;
use tensorc_frontend::onnx::error::{ExternalProblem, OnnxError, TensorSite};
use tensorc_frontend::onnx::files::ModelFiles;
use tensorc_frontend::onnx::limits::OverLimit;
use tensorc_frontend::onnx::proto::*;
use tensorc_frontend::onnx::tensor::read_tensor;
use tensorc_frontend::onnx::{ImportLimits, OnnxModel, ReadOptions};
use tensorc_ir::diag::DiagnosticCode;
use tensorc_ir::graph::Value;
use tensorc_ir::interp::eval_graph;

const LINKED: ReadOptions = ReadOptions { linked_data: true, limits: ImportLimits { nodes: None, bytes: None } };

fn files(folder: &Path, options: ReadOptions) -> ModelFiles {
    ModelFiles::new(Some(folder.to_owned()), options)
}

/// The first eight bytes of a file, as a tensor wants them.
fn first(location: &str) -> [StringStringEntryProto; 2] {
    [entry("location", location), entry("length", "8")]
}

#[test]
fn external_data_is_a_range_of_a_file() {
    let folder = folder("external_ok");
    let mut files = files(&folder, ReadOptions::default());
    let at = |o: &str, l: &str| [entry("location", "weights.bin"), entry("offset", o), entry("length", l)];
    assert_eq!(*files.external(&at("8", "4"), 4).unwrap().bytes(), [8, 9, 10, 11][..]);
    // It is open: another file of its name changes nothing.
    std::fs::remove_file(folder.join("weights.bin")).unwrap();
    std::fs::write(folder.join("weights.bin"), [0; 64]).unwrap();
    assert_eq!(*files.external(&at("16", "4"), 4).unwrap().bytes(), [16, 17, 18, 19][..]);
    assert_eq!(files.external(&[entry("location", "weights.bin")], 64).unwrap().len(), 64);
    assert_eq!(*files.external(&[entry("location", "./sub//more.bin")], 8).unwrap().bytes(), [7; 8][..]);
}

#[test]
fn a_model_file_finds_its_external_data() {
    let folder = folder("external_model");
    let w = external("w", &[3, 2], &[("location", "weights.bin"), ("length", "24"), ("checksum", "0"), ("other", "x")]);
    let graph = GraphProto { initializer: vec![w], ..graph(vec![], vec![node("Neg", &["w"], &["y"])], &["y"]) };
    std::fs::write(folder.join("m.onnx"), encoded(&model(graph))).unwrap();
    let mut model = OnnxModel::open(&folder.join("m.onnx")).unwrap();
    let w = read_tensor(&model.graph.initializer[0], TensorSite::File, &mut model.files).unwrap();
    assert_eq!(w.bytes()[..4], [0, 1, 2, 3]);
    import_file(&folder.join("m.onnx"), ReadOptions::default()).unwrap();
    // The model itself may be reached by a link: the user names it. Its data lies beside the link.
    let elsewhere = folder.parent().unwrap().join("other");
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(folder.join("m.onnx"), elsewhere.join("m.onnx")).unwrap();
    let error = import_file(&elsewhere.join("m.onnx"), ReadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("initializer `w`: external data: cannot open `weights.bin`"), "{error}");
    std::fs::copy(folder.join("weights.bin"), elsewhere.join("weights.bin")).unwrap();
    import_file(&elsewhere.join("m.onnx"), ReadOptions::default()).unwrap();
}

#[test]
fn paths_lead_downwards() {
    use ExternalProblem as P;
    let folder = folder("external_paths");
    let secret = folder.parent().unwrap().join("secret.bin");
    let mut files = files(&folder, ReadOptions::default());
    let mut get = |location: &str| files.external(&first(location), 8);
    assert!(matches!(get(secret.to_str().unwrap()), Err(P::Absolute(_))));
    for up in ["../secret.bin", "sub/../../secret.bin", "sub/..", "..", "./../secret.bin", "sub/../weights.bin"] {
        assert!(matches!(get(up), Err(P::Outside(_))), "{up}");
    }
    for odd in ["weights.bin\0", "sub\\more.bin", "..\\secret.bin", "\\weights.bin"] {
        assert!(matches!(get(odd), Err(P::BadPath(_))), "{odd}");
    }
    for folder in ["sub", "sub/", ".", "./", "weights.bin/"] {
        assert!(matches!(get(folder), Err(P::NotAFile(_))), "{folder}");
    }
    assert!(matches!(get("absent.bin"), Err(P::Open { .. })));
    assert!(matches!(get("weights.bin/more"), Err(P::Open { .. })));
    assert!(matches!(get(&"x".repeat(1 << 20)), Err(P::Open { .. })));
    assert!(matches!(get(""), Err(P::NoLocation)));
    let error = ModelFiles::new(None, ReadOptions::default()).external(&first("weights.bin"), 8).unwrap_err();
    assert!(matches!(error, P::NoFolder));
}

#[test]
fn links_are_not_followed_unless_allowed() {
    use ExternalProblem as P;
    let folder = folder("external_links");
    let parent = folder.parent().unwrap();
    symlink(parent.join("secret.bin"), folder.join("link.bin")).unwrap();
    symlink(parent, folder.join("up")).unwrap();
    symlink("weights.bin", folder.join("inner.bin")).unwrap();
    symlink("sub", folder.join("folder")).unwrap();
    std::fs::hard_link(parent.join("secret.bin"), folder.join("hard.bin")).unwrap();
    let mut strict = files(&folder, ReadOptions::default());
    let mut get = |location: &str| strict.external(&first(location), 8);
    for link in ["link.bin", "up/secret.bin", "inner.bin", "folder/more.bin"] {
        assert!(matches!(get(link), Err(P::Link(_))), "{link}");
    }
    assert!(matches!(get("hard.bin"), Err(P::HardLink { names: 2, .. })));
    let mut trusting = files(&folder, LINKED);
    for (link, byte) in
        [("link.bin", 9), ("up/secret.bin", 9), ("inner.bin", 0), ("folder/more.bin", 7), ("hard.bin", 9)]
    {
        assert_eq!(trusting.external(&first(link), 8).unwrap().bytes()[0], byte, "{link}");
    }
    // What is not allowed is a path that itself leads out.
    assert!(matches!(trusting.external(&first("../secret.bin"), 8), Err(P::Outside(_))));
}

#[test]
fn pipes_and_devices_are_refused_at_once() {
    use ExternalProblem as P;
    let folder = folder("external_pipes");
    let made = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
    assert!(made.success());
    symlink("/dev/zero", folder.join("device")).unwrap();
    // Opening a pipe that nobody writes to would wait for ever.
    assert!(matches!(files(&folder, ReadOptions::default()).external(&first("pipe"), 8), Err(P::NotAFile(_))));
    assert!(matches!(files(&folder, LINKED).external(&first("pipe"), 8), Err(P::NotAFile(_))));
    assert!(matches!(files(&folder, LINKED).external(&first("device"), 8), Err(P::NotAFile(_))));
    for model in ["pipe", "device", "sub"] {
        let error = OnnxModel::open(&folder.join(model)).unwrap_err().to_string();
        assert!(error.ends_with("not a regular file"), "{error}");
    }
}

#[test]
fn ranges_are_inside_of_the_file_and_fit_the_tensor() {
    use ExternalProblem as P;
    let folder = folder("external_ranges");
    let mut files = files(&folder, ReadOptions::default());
    let mut slice = |o: &str, l: &str| {
        files.external(&[entry("location", "weights.bin"), entry("offset", o), entry("length", l)], 8)
    };
    assert_eq!(*slice("56", "8").unwrap().bytes(), [56, 57, 58, 59, 60, 61, 62, 63][..]);
    assert!(matches!(slice("60", "8"), Err(P::OutOfBounds { end: 68, size: 64, .. })));
    assert!(matches!(slice("65", "0"), Err(P::OutOfBounds { .. })));
    assert!(matches!(slice("18446744073709551615", "8"), Err(P::OutOfBounds { .. })));
    assert!(matches!(slice("8", "18446744073709551615"), Err(P::OutOfBounds { .. })));
    assert!(matches!(slice("0", "12"), Err(P::WrongLength { found: 12, needed: 8, .. })));
    for number in ["-4", "+4", "", "4.0", "0x4", " 4", "18446744073709551616"] {
        assert!(matches!(slice(number, "8"), Err(P::BadNumber { key: "offset", .. })), "{number}");
    }
    assert!(matches!(files.external(&[entry("location", "weights.bin")], 8), Err(P::WrongLength { found: 64, .. })));
    let past = [entry("location", "weights.bin"), entry("offset", "65")];
    assert!(matches!(files.external(&past, 8), Err(P::OutOfBounds { .. })));
    let twice = [entry("location", "weights.bin"), entry("location", "sub/more.bin"), entry("length", "8")];
    assert!(matches!(files.external(&twice, 8), Err(P::Twice("location"))));
}

#[test]
fn bytes_of_files_are_limited() {
    let folder = folder("external_limits");
    let limits =
        |bytes| ReadOptions { limits: ImportLimits { bytes: Some(bytes), nodes: None }, ..ReadOptions::default() };
    let mut within = files(&folder, limits(72));
    within.external(&[entry("location", "weights.bin")], 64).unwrap();
    within.external(&first("weights.bin"), 8).unwrap();
    within.external(&first("sub/more.bin"), 8).unwrap();
    let error = files(&folder, limits(63)).external(&first("weights.bin"), 8).unwrap_err();
    assert!(matches!(error, ExternalProblem::Limit(OverLimit::Bytes(63))));
    let error = OnnxModel::open_with(&folder.join("weights.bin"), limits(63)).unwrap_err();
    assert!(matches!(error, OnnxError::Limit(OverLimit::Bytes(63))), "{error}");
}

/// Mapped data would end the process here.
#[test]
fn files_may_become_shorter_after_they_are_opened() {
    let folder = folder("external_shorter");
    let w = external("w", &[2], &[("location", "weights.bin"), ("length", "8")]);
    let small = f32s("b", &[4096], &[1.0; 4096]);
    let large = f32s("c", &[32768], &[1.0; 32768]);
    let negations = [("w", "x"), ("b", "y"), ("c", "z")].map(|(from, to)| node("Neg", &[from], &[to]));
    let graph =
        GraphProto { initializer: vec![w, small, large], ..graph(vec![], negations.to_vec(), &["x", "y", "z"]) };
    let path = folder.join("m.onnx");
    std::fs::write(&path, encoded(&model(graph))).unwrap();
    let imported = import_file(&path, ReadOptions::default()).unwrap().graph;
    for file in [&path, &folder.join("weights.bin")] {
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
    }
    let nodes = imported.node_ids();
    let constants: Vec<_> = nodes.iter().filter_map(|node| imported.constant(Value { node: *node, port: 0 })).collect();
    let [w, small, large] = constants[..] else { panic!("{} constants", constants.len()) };
    assert_eq!((w.to_f32s()[0], small.to_f32s()[0]), (f32::from_le_bytes([0, 1, 2, 3]), 1.0));
    // What is large was not read yet.
    assert!(large.content().whole().is_err());
    let error = eval_graph(&imported, &REGISTRY, &[]).unwrap_err();
    assert!(error.code == DiagnosticCode::File && error.message.contains("it became shorter than"), "{error}");
}

/// One name is a file of the model and a link to another in turns: whatever the moment, it is the file or nothing.
#[test]
fn a_link_that_comes_and_goes_is_never_followed() {
    let folder = folder("external_race");
    let (name, spare) = (folder.join("turn.bin"), folder.join("spare.bin"));
    std::fs::write(&name, [1; 64]).unwrap();
    let done = AtomicBool::new(false);
    let (mut read, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                symlink("../secret.bin", &spare).unwrap();
                std::fs::rename(&spare, &name).unwrap();
                std::fs::write(&spare, [1; 64]).unwrap();
                std::fs::rename(&spare, &name).unwrap();
            }
        });
        for _ in 0..2000 {
            match files(&folder, ReadOptions::default()).external(&first("turn.bin"), 8) {
                Ok(content) => {
                    assert_eq!(*content.bytes(), [1; 8][..]);
                    read += 1;
                }
                Err(ExternalProblem::Link(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(read + refused, 2000);
}
