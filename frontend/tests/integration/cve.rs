//! Models made after the public reports of what others' readers of models did with such files: one test for each report, by
//! its number. Those about operators that are compiled are in `tests/tests/reports.rs`.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::*;
use tensorc_frontend::onnx::ReadOptions;
use tensorc_frontend::onnx::proto::*;
use tensorc_ir::graph::NodeKind;
use tensorc_ir::infer::infer_node;

/// The refusal of a model file in `folder` whose only weight, of 16 elements, lies where the entries say.
#[track_caller]
fn weight_refusal(folder: &Path, entries: &[(&str, &str)]) -> String {
    let mut graph = graph(vec![], vec![node("Neg", &["w"], &["y"])], &["y"]);
    graph.initializer = vec![external("w", &[16], entries)];
    let path = folder.join("model.onnx");
    std::fs::write(&path, encoded(&model(graph))).unwrap();
    match import_file(&path, ReadOptions::default()) {
        Ok(_) => panic!("{entries:?} are read"),
        Err(error) => error.to_string(),
    }
}

const START: &str = "initializer `w`: external data: ";

/// ONNX: `external_data` with a path like `../../../etc/passwd` was read.
#[test]
fn cve_2022_25882_paths_that_lead_upwards() {
    let folder = folder("cve_2022_25882");
    let refused = |location: &str| weight_refusal(&folder, &[("location", location)]);
    assert_eq!(refused("../secret.bin"), format!("{START}the path `../secret.bin` leaves the model's folder"));
    let absolute = folder.parent().unwrap().join("secret.bin");
    let absolute = absolute.to_str().unwrap();
    let why = "is absolute; it must be inside the model's folder";
    assert_eq!(refused(absolute), format!("{START}the path `{absolute}` {why}"));
}

/// ONNX: the check against that looked at the beginning of the path only.
#[test]
fn cve_2024_27318_paths_that_lead_upwards_further_on() {
    let folder = folder("cve_2024_27318");
    for location in
        ["sub/../../secret.bin", "./../secret.bin", "sub/./../../secret.bin", "..//secret.bin", "sub//../../secret.bin"]
    {
        let refusal = weight_refusal(&folder, &[("location", location)]);
        assert_eq!(refusal, format!("{START}the path `{location}` leaves the model's folder"));
    }
    let refusal = weight_refusal(&folder, &[("location", "..\\secret.bin")]);
    assert_eq!(refusal, format!("{START}the path `..\\secret.bin` has a backslash or a NUL"));
}

/// ONNX: a folder on the path was a symbolic link to one outside.
#[test]
fn cve_2026_27489_folders_that_are_links() {
    let folder = folder("cve_2026_27489");
    symlink("..", folder.join("data")).unwrap();
    symlink("../..", folder.join("sub/data")).unwrap();
    for location in ["data/secret.bin", "sub/data/secret.bin", "data/model/weights.bin"] {
        let refusal = weight_refusal(&folder, &[("location", location)]);
        assert!(
            refusal.starts_with(&format!("{START}`{location}` is a symbolic link or lies behind one")),
            "{refusal}"
        );
    }
}

/// ONNX: the file was a hard link to one outside, which no look at paths tells.
#[test]
fn cve_2026_34446_files_that_are_hard_links() {
    let folder = folder("cve_2026_34446");
    std::fs::hard_link(folder.join("../secret.bin"), folder.join("data.bin")).unwrap();
    let refusal = weight_refusal(&folder, &[("location", "data.bin")]);
    assert!(refusal.starts_with(&format!("{START}`data.bin` is one of 2 names (hard links) of a file")), "{refusal}");
}

/// ONNX: the file was a symbolic link to one outside.
#[test]
fn cve_2026_34447_files_that_are_links() {
    let folder = folder("cve_2026_34447");
    symlink("../secret.bin", folder.join("data.bin")).unwrap();
    let refusal = weight_refusal(&folder, &[("location", "data.bin")]);
    assert!(refusal.starts_with(&format!("{START}`data.bin` is a symbolic link or lies behind one")), "{refusal}");
}

/// ONNX: keys of `external_data` became members of an object, and a length of petabytes was allocated.
#[test]
fn cve_2026_34445_keys_and_lengths_of_external_data() {
    let folder = folder("cve_2026_34445");
    let at = |more: &[(&'static str, &'static str)]| [&[("location", "weights.bin")], more].concat();
    let huge = weight_refusal(&folder, &at(&[("length", "9007199254740992")]));
    assert_eq!(huge, format!("{START}bytes 0 to 9007199254740992 of `weights.bin` are wanted, but the file has 64"));
    let negative = weight_refusal(&folder, &at(&[("offset", "-1")]));
    assert_eq!(negative, format!("{START}offset `-1` is not a number of bytes"));
    let wraps = weight_refusal(&folder, &at(&[("offset", "18446744073709551600"), ("length", "64")]));
    assert!(wraps.ends_with("are wanted, but the file has 64"), "{wraps}");
    let twice = weight_refusal(&folder, &at(&[("location", "sub/more.bin")]));
    assert_eq!(twice, format!("{START}location is given twice"));
    // Other keys say nothing: they stand for no place.
    let keys = at(&[("__class__", "x"), ("basepath", "/etc"), ("length", "63")]);
    assert_eq!(
        weight_refusal(&folder, &keys),
        format!("{START}63 bytes of `weights.bin` are meant, the type and shape need 64")
    );
}

/// ONNX: a hub fetched models from anywhere without a warning. Here no name of a place is more than a path.
#[test]
fn cve_2026_28500_nothing_is_fetched() {
    let folder = folder("cve_2026_28500");
    for location in ["https://example.org/weights.bin", "file:///etc/passwd", "hf:owner/model"] {
        let refusal = weight_refusal(&folder, &[("location", location)]);
        assert!(refusal.starts_with(&format!("{START}cannot open `")), "{refusal}");
    }
}

/// ONNX (GHSA-q56x): between looking at a path and opening it, a link took its place. Here a file is opened once, and what is
/// looked at is the open file; see also `a_link_that_comes_and_goes_is_never_followed`.
#[test]
fn ghsa_q56x_the_open_file_is_looked_at() {
    let folder = folder("ghsa_q56x");
    let path = folder.join("model.onnx");
    let mut graph = graph(vec![], vec![node("Neg", &["w"], &["y"])], &["y"]);
    graph.initializer = vec![external("w", &[16], &[("location", "weights.bin")])];
    std::fs::write(&path, encoded(&model(graph))).unwrap();
    let model = tensorc_frontend::onnx::OnnxModel::open(&path).unwrap();
    std::fs::remove_file(folder.join("weights.bin")).unwrap();
    symlink("../secret.bin", folder.join("weights.bin")).unwrap();
    let error = tensorc_frontend::onnx::import(model, &REGISTRY, &Default::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{START}`weights.bin` is a symbolic link")), "{error}");
}

/// ONNX Runtime, pulls 27699, 27901, 27950 and 27952: numbers of support vectors, coefficients and classes that do not fit
/// together led out of their lists.
#[test]
fn onnx_runtime_27699_and_27950_support_vectors_out_of_bounds() {
    let machine = || {
        vec![
            ints("vectors_per_class", &[i64::MAX, -1]),
            floats("support_vectors", &[1.0]),
            floats("coefficients", &[]),
            floats("rho", &[1.0]),
            ints("classlabels_ints", &[0]),
        ]
    };
    let of_class = |counts: &[i64]| [vec![ints("vectors_per_class", counts)], machine().split_off(1)].concat();
    let cases = [
        ("SVMClassifier", machine(), "a negative number of vectors"),
        ("SVMClassifier", of_class(&[i64::MAX, i64::MAX, 2]), "too many vectors"),
        ("SVMClassifier", of_class(&[9]), "1 entries for 1 classes"),
        (
            "SVMRegressor",
            [machine().split_off(1)[..3].to_vec(), vec![int("n_supports", i64::MAX)]].concat(),
            "`coefficients`",
        ),
        ("SVMRegressor", machine()[1..4].to_vec(), "`coefficients` has 0 entries"),
        ("LinearClassifier", vec![floats("coefficients", &[]), ints("classlabels_ints", &[0])], "`coefficients`"),
    ];
    for (op, attributes, expected) in cases {
        let mut svm = with(node(op, &["x"], &["y", "z"]), attributes);
        svm.domain = Some("ai.onnx.ml".into());
        if op == "SVMRegressor" {
            svm.output.truncate(1);
        }
        let graph = graph(vec![value("x", DataType::Float, &[1, 4])], vec![svm], &["y"]);
        let opset_import = vec![opset("", 17), opset("ai.onnx.ml", 3)];
        let bytes = encoded(&ModelProto { opset_import, ..model(graph) });
        let mut graph = import_bytes(bytes, ReadOptions::default()).unwrap().graph;
        let node = graph.order().into_iter().find(|n| matches!(graph.node(*n).kind, NodeKind::Op(_))).unwrap();
        let refusal = infer_node(&mut graph, node, &|_, _| None).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{op}: expected {expected:?}, found {refusal:?}");
    }
}

/// tract (CVE-2026-55093, RUSTSEC-2026-0217): the product of the dimensions wrapped around to the length of the data.
#[test]
fn cve_2026_55093_dimensions_whose_product_wraps() {
    let refused = |dims: &[i64], data: &[u8]| {
        let mut graph = graph(vec![], vec![node("Neg", &["w"], &["y"])], &["y"]);
        graph.initializer = vec![raw("w", DataType::Float, dims, data)];
        graph_refusal(graph)
    };
    // Elements wrap to 0, bytes to 0 and to 32; and elements to 1.
    let odd = [7, 7_905_747_460_161_236_407];
    for (dims, len) in [(&[1 << 32, 1 << 32][..], 0), (&[1 << 62], 0), (&[(1 << 62) + 8], 32), (&odd, 4)] {
        assert_eq!(refused(dims, &vec![0; len]), format!("initializer `w`: the shape {dims:?} is too large"));
    }
}

/// tract, pull 2766: three bytes that state a text of 128 MiB allocated it.
#[test]
fn tract_2766_lengths_of_texts_that_are_not_there() {
    // Field 7 (graph) of four bytes: field 2 (its name) of 128 MiB, then of 2^63 bytes.
    for length in [&b"\x80\x80\x80\x40"[..], b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"] {
        let graph = [b"\x12", length].concat();
        let file = [b"\x08\x08\x3a".to_vec(), vec![graph.len() as u8], graph].concat();
        let error = import_bytes(file.into(), ReadOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with("not an ONNX model: it is damaged, or of another format"), "{error}");
    }
    let strings = TensorProto { string_data: vec!["s".into()], ..empty("w", DataType::String, &[1 << 40]) };
    let mut graph = graph(vec![], vec![node("Identity", &["w"], &["y"])], &["y"]);
    graph.initializer = vec![strings];
    let refusal = graph_refusal(graph);
    assert!(refusal.contains("initializer `w`: its shape [1099511627776] does not hold 1 texts"), "{refusal}");
}

/// tract, issue 2390: `raw_data` that is no whole number of elements was a panic.
#[test]
fn tract_2390_raw_data_of_a_wrong_length() {
    for (data_type, len) in [(DataType::Float, 7), (DataType::Double, 7), (DataType::Float16, 5), (DataType::Int64, 0)]
    {
        let mut graph = graph(vec![], vec![node("Identity", &["w"], &["y"])], &["y"]);
        graph.initializer = vec![raw("w", data_type, &[2], &vec![0; len])];
        let refusal = graph_refusal(graph);
        assert!(refusal.starts_with("initializer `w`: the shape [2] of"), "{refusal}");
    }
}

/// Reported for files on a model hub: weights in `raw_data` and others in `float_data`. Viewers showed one, ONNX Runtime
/// computed with the other, and the checker did not look into functions.
#[test]
fn two_data_fields_in_one_tensor() {
    let both = || TensorProto { float_data: vec![2.0; 4], ..f32s("w", &[4], &[1.0; 4]) };
    let x = || vec![value("x", DataType::Float, &[4])];
    let stated = "its data is given more than once: raw_data, float_data";
    let mut plain = graph(x(), vec![node("Add", &["x", "w"], &["y"])], &["y"]);
    plain.initializer = vec![both()];
    assert_eq!(graph_refusal(plain), format!("initializer `w`: {stated}"));
    let constant = with(node("Constant", &[], &["c"]), vec![tensor("value", both())]);
    let f = function("F", &["a"], &["r"], vec![constant, node("Add", &["a", "c"], &["r"])]);
    let called = model(graph(x(), vec![call("F", &["x"], &["y"])], &["y"]));
    let refusal = refusal(&ModelProto { functions: vec![f], ..called });
    assert_eq!(refusal, format!("attribute `value` of Constant node computing `c`: {stated}"));
}
