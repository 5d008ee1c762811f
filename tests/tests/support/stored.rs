//! Stored cases of another implementation, one archive for a family of operators: models with inputs and results, computed by compiled
//! code and by the interpreter.

use std::io::{Cursor, Read};
use std::sync::LazyLock;

use bytes::Bytes;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::{DenseType, TensorData};
use tensorc::passes::infer::infer_graph;
use tensorc::{Compiler, DType, Options, Tensor};
use tensorc_frontend::onnx::tensor::decode_tensor;
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};
use tensorc_tests::compare::{data, tensor as run_time_tensor};
use zip::ZipArchive;

use super::backend::options;

/// The compiler of these tests.
pub static COMPILER: LazyLock<Compiler> =
    LazyLock::new(|| Compiler::new(Options { threads: Some(2), poison: true, ..options() }).unwrap());

/// How far an element may be off, relative to it and to the greatest one, by type and name of the case.
pub type Bound = dyn Fn(DType, &str) -> f64;

/// Says where results of a case differ.
pub fn compare(got: &TensorData, want: &TensorData, case: &str, bound: &Bound) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("got {}, expected {}", got.ty, want.ty));
    }
    let greatest = want.iter().map(|x| x.as_f64().abs()).filter(|x| x.is_finite()).fold(0.1, f64::max);
    let rounds = want.dtype().is_float();
    let close = |g: f64, w: f64| {
        g == w
            || g.is_nan() && w.is_nan()
            || rounds && (g - w).abs() <= bound(want.dtype(), case) * (w.abs() + greatest)
    };
    let pairs = got.iter().zip(want.iter()).map(|(g, w)| (g.as_f64(), w.as_f64()));
    match pairs.enumerate().find(|(_, (g, w))| !close(*g, *w)) {
        None => Ok(()),
        Some((at, (g, w))) => Err(format!("element {at}: got {g:?}, expected {w:?}")),
    }
}

/// A model with inputs and results.
#[derive(Clone)]
pub struct Case<T = TensorData> {
    pub name: String,
    pub model: Bytes,
    pub inputs: Vec<T>,
    pub outputs: Vec<T>,
}

/// The cases of an archive.
pub fn cases(archive: &[u8]) -> Vec<Case> {
    cases_of(archive, |bytes| decode_tensor(bytes).unwrap().1)
}

/// The cases of an archive, whose stored tensors are read by a function.
pub fn cases_of<T>(archive: &[u8], decode: impl Fn(Bytes) -> T) -> Vec<Case<T>> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).unwrap();
    let names: Vec<String> =
        archive.file_names().filter_map(|n| n.strip_suffix("/model.onnx")).map(str::to_owned).collect();
    let mut read = |name: String| -> Option<Bytes> {
        let mut bytes = vec![];
        archive.by_name(&name).ok()?.read_to_end(&mut bytes).ok()?;
        Some(bytes.into())
    };
    let mut case = |name: String| {
        let mut all = |kind: &str| -> Vec<T> {
            (0..).map_while(|i| read(format!("{name}/{kind}_{i}.pb"))).map(&decode).collect()
        };
        let (inputs, outputs) = (all("input"), all("output"));
        Case { model: read(format!("{name}/model.onnx")).unwrap(), name, inputs, outputs }
    };
    names.into_iter().map(&mut case).collect()
}

/// What compiled code and the interpreter compute.
pub fn computed(case: &Case) -> Result<[Vec<TensorData>; 2], String> {
    let compiler = &*COMPILER;
    let model = OnnxModel::decode(case.model.clone(), None).map_err(|e| e.to_string())?;
    let names: Vec<String> = model.graph.input.iter().map(|i| i.name().to_owned()).collect();
    let graph = import(model, compiler.registry(), &ImportOptions::default()).map_err(|e| e.to_string())?.graph;
    let tensors: Vec<(&str, Tensor)> =
        names.iter().zip(&case.inputs).map(|(name, x)| (name.as_str(), run_time_tensor(x))).collect();
    let got = compiler.model(graph.clone()).run(&tensors).map_err(|e| e.to_string())?;
    let compiled: Vec<TensorData> = got.iter().map(|(_, t)| data(t)).collect();
    // The interpreter knows values of operands that decide shapes as constants.
    let known: Vec<(&str, TensorData)> = names.iter().map(String::as_str).zip(case.inputs.iter().cloned()).collect();
    let model = OnnxModel::decode(case.model.clone(), None).map_err(|e| e.to_string())?;
    let given = ImportOptions { values: &known, ..ImportOptions::default() };
    let mut graph = import(model, compiler.registry(), &given).map_err(|e| e.to_string())?.graph;
    infer_graph(&mut graph, compiler.registry(), 1 << 20).map_err(|e| e.to_string())?;
    let interpreted = eval_graph(&graph, compiler.registry(), &[]).map_err(|e| e.to_string())?;
    Ok([compiled, interpreted])
}

/// Fails unless both ways give the results of all cases; how many there are.
#[track_caller]
pub fn check(archive: &[u8], bound: &Bound) -> usize {
    let cases = cases(archive);
    let mut failures = vec![];
    for case in &cases {
        let ways = match computed(case) {
            Ok(ways) => ways,
            Err(why) => {
                failures.push(format!("{}: {why}", case.name));
                continue;
            }
        };
        for (way, results) in ["compiled", "interpreted"].iter().zip(&ways) {
            if results.len() != case.outputs.len() {
                failures.push(format!("{}, {way}: {} results", case.name, results.len()));
            }
            for (i, (got, want)) in results.iter().zip(&case.outputs).enumerate() {
                let why = compare(got, want, &case.name, bound).err();
                failures.extend(why.map(|why| format!("{}, {way}, result {i}: {why}", case.name)));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    cases.len()
}

/// Why a model is refused, when it is read or when it is compiled for the shapes of its inputs.
pub fn why_refused(model: Bytes) -> String {
    let model = match OnnxModel::decode(model, None) {
        Ok(model) => model,
        Err(error) => return error.to_string(),
    };
    let graph = match import(model, COMPILER.registry(), &ImportOptions::default()) {
        Ok(imported) => imported.graph,
        Err(error) => return error.to_string(),
    };
    let model = COMPILER.model(graph);
    let types: Vec<DenseType> = model.inputs().into_iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    model.compile(&types).err().map_or("it is not refused".to_owned(), |error| error.to_string())
}
