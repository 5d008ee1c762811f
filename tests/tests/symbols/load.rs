//! Saved symbols with their parameters, run for inference, against outputs of MXNet.

use std::fs;
use std::path::{Path, PathBuf};

use tensorc::{Compiler, Error, Tensor};
use tensorc_frontend::mxnet::params::{ArrayList, ArrayVersion, SavedArray, load, save};

use crate::support::backend::options;
use crate::support::npz;
use tensorc_tests::compare::{Tolerance, compare, data, tensor};

const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-3 };

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mxnet").join(name)
}

fn compiler() -> Compiler {
    Compiler::new(options()).unwrap()
}

fn array(list: &ArrayList, name: &str) -> Tensor {
    tensor(&list.get(name).unwrap().to_dense().unwrap())
}

/// A label may be given and has no effect.
#[test]
fn a_symbol_and_its_parameters_are_a_model() {
    let values = load(&stored("small-values.params")).unwrap();
    let model = compiler().load_with(stored("small-symbol.json"), Some(&stored("small.params"))).unwrap();
    let inputs: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    assert_eq!(inputs, ["data"]);
    let input = array(&values, "data");
    let label = Tensor::from_f32(&[2], &[0.0, 1.0]).unwrap();
    for given in [vec![("data", input.clone())], vec![("data", input), ("softmax_label", label)]] {
        let outputs = model.run(&given).unwrap();
        assert_eq!(outputs[0].0, "softmax_output");
        compare(&data(&outputs[0].1), &data(&array(&values, "softmax_output")), TOLERANCE).unwrap();
    }
}

/// The error of loading the small net with its parameters changed.
fn refused(change: impl FnOnce(&mut Vec<(Option<String>, SavedArray)>)) -> Error {
    let mut list = load(&stored("small.params")).unwrap();
    change(&mut list.arrays);
    let folder = std::env::temp_dir().join(format!("tensorc-symbols-{:?}", std::thread::current().id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("changed.params");
    save(&path, &list, ArrayVersion::V2).unwrap();
    let error = match compiler().load_with(stored("small-symbol.json"), Some(&path)) {
        Ok(model) => model.run(&[("data", Tensor::from_f32(&[1, 3, 6, 6], &[0.0; 108]).unwrap())]).unwrap_err(),
        Err(error) => error,
    };
    fs::remove_dir_all(folder).unwrap();
    error
}

#[test]
fn parameters_must_be_those_of_the_symbol() {
    for name in ["arg:fc_weight", "aux:bn_moving_var"] {
        let error = refused(|arrays| arrays.retain(|(n, _)| n.as_deref() != Some(name)));
        assert!(matches!(&error, Error::MissingParameter { name: n } if name.ends_with(n)), "{error}");
    }
    let extra = |arrays: &mut Vec<(Option<String>, SavedArray)>| {
        let array = arrays[0].1.clone();
        arrays.push((Some("arg:other".into()), array));
    };
    let error = refused(extra);
    assert!(matches!(&error, Error::UnknownVariable { name } if name == "other"), "{error}");
    let error = refused(|arrays| {
        let bias = arrays.iter().find(|(n, _)| n.as_deref() == Some("arg:fc_bias")).unwrap().1.clone();
        arrays.iter_mut().find(|(n, _)| n.as_deref() == Some("arg:conv_bias")).unwrap().1 = bias;
    });
    assert!(error.to_string().contains("`conv`") && error.to_string().contains("bias"), "{error}");
    let error = compiler().load_with(stored("small.params"), None).map(drop).unwrap_err();
    assert!(matches!(error, Error::Onnx { .. }), "{error}");
    let error = compiler().load_with("x.onnx", Some(Path::new("x.params"))).map(drop).unwrap_err();
    assert!(matches!(error, Error::NoSymbol { .. }), "{error}");
}

/// Runs `symbol` on the arrays of one file and compares with those of another.
fn check(symbol: &Path, parameters: &Path, inputs: &Path, expected: &Path) -> Result<usize, String> {
    let fail = |e: Error| e.to_string();
    let model = compiler().load_with(symbol, parameters.exists().then_some(parameters)).map_err(fail)?;
    let inputs = npz::read(inputs);
    let named: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let outputs = model.run(&named).map_err(fail)?;
    let expected = npz::read(expected);
    for (name, want) in &expected {
        let got = outputs.iter().find(|(n, _)| n == name).ok_or_else(|| format!("there is no output `{name}`"))?;
        compare(&data(&got.1), &data(want), TOLERANCE).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(expected.len())
}

#[track_caller]
fn assert_all(results: &[(String, Result<usize, String>)]) {
    let wrong: Vec<String> =
        results.iter().filter_map(|(name, r)| r.as_ref().err().map(|why| format!("{name}: {why}"))).collect();
    println!("{} models, {} of them wrong", results.len(), wrong.len());
    assert!(!results.is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Networks of MXNet 1.9.1 below the folder `TENSORC_MXNET_MODELS`.
#[test]
fn networks_of_mxnet_give_its_outputs() {
    let Some(folder) = std::env::var_os("TENSORC_MXNET_MODELS") else {
        return println!("skipped: TENSORC_MXNET_MODELS names no folder with networks of MXNet");
    };
    let mut folders: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    folders.retain(|f| f.join("model-symbol.json").exists());
    folders.sort();
    let run = |f: &PathBuf| {
        let set = f.join("set_0");
        let result = check(
            &f.join("model-symbol.json"),
            &f.join("model.params"),
            &set.join("inputs.npz"),
            &set.join("expected.npz"),
        );
        (f.file_name().unwrap().to_string_lossy().into_owned(), result)
    };
    assert_all(&folders.iter().map(run).collect::<Vec<_>>());
}

/// Networks saved by MXNet 0.11 in the folder `v011` below `TENSORC_MXNET_FORMATS`.
#[test]
fn networks_of_mxnet_0_11_give_its_outputs() {
    let Some(folder) = std::env::var_os("TENSORC_MXNET_FORMATS") else {
        return println!("skipped: TENSORC_MXNET_FORMATS names no folder with files of MXNet");
    };
    let folder = PathBuf::from(folder).join("v011");
    let run = |name: &str| {
        let file = |end: &str| folder.join(format!("{name}-{end}"));
        let result = check(&file("symbol.json"), &file("0001.params"), &file("inputs.npz"), &file("expected.npz"));
        (name.to_owned(), result)
    };
    assert_all(&["lenet", "mlp"].map(run));
}
