//! MXNet's operators against MXNet 1.9.1: outputs in inference and in training, and gradients, of stored cases
//! with one operator or a few each.
//!
//! `TENSORC_MXNET_OPS` names another pack of cases (`mxnet/pack_operators.py` makes it), and `TENSORC_MXNET_OP`
//! restricts the test to cases whose name contains its text.

mod named;
mod products;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tensorc::Tensor;
use tensorc::symbol::{Symbol, op};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use crate::support::backend::new_runtime;
use crate::support::npz;
use tensorc_tests::compare::{Tolerance, compare, data};

const TOLERANCE: Tolerance = Tolerance { absolute: 2e-5, relative: 1e-3 };

/// Cases whose gradient is another here, with the reason; all else about them agrees.
const OTHER_GRADIENT: [(&str, &str); 3] = [
    ("foreach2", "MXNet's gradient of a loop whose output is part of its state is not the slope that differences show"),
    ("leaky_selu", "MXNet's slope below zero is λ(α + y), the derivative is λα + y"),
    ("cast_int32", "integers carry no gradient"),
];

/// Cases with random results in training: there only shapes are compared.
const RANDOM: [&str; 1] = ["dropout_eval"];

/// Arrays by name.
type Arrays = BTreeMap<String, Tensor>;

#[derive(Default)]
struct Case {
    symbol: String,
    inputs: Arrays,
    /// Names begin with `arg:` or `aux:`.
    params: Arrays,
    expected: Arrays,
    /// Outputs in training; names of auxiliary states begin with `aux:`.
    train: Arrays,
    grads: Arrays,
}

fn cases() -> BTreeMap<String, Case> {
    let pack = match std::env::var_os("TENSORC_MXNET_OPS") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("mxnet/operators.npz"),
    };
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for (member, array) in npz::read(&pack) {
        let mut parts = member.splitn(3, '/');
        let (Some(case), Some(kind), name) = (parts.next(), parts.next(), parts.next()) else { panic!("{member}") };
        let case = cases.entry(case.to_owned()).or_default();
        let slot = match kind {
            "symbol" => {
                case.symbol = String::from_utf8(array.bytes().to_vec()).unwrap();
                continue;
            }
            "input" => &mut case.inputs,
            "param" => &mut case.params,
            "expected" => &mut case.expected,
            "train" => &mut case.train,
            "grad" => &mut case.grads,
            other => panic!("{member}: kind {other}"),
        };
        slot.insert(name.unwrap().to_owned(), array);
    }
    cases
}

fn agrees(what: &str, found: &NDArray, want: &Tensor) -> Result<(), String> {
    let found = found.to_tensor().map_err(|e| format!("{what}: {e}"))?;
    compare(&data(&found), &data(want), TOLERANCE).map_err(|why| format!("{what}: {why}"))
}

/// The outputs of one forward pass, by name.
fn outputs_agree(executor: &mut Executor, training: bool, want: &Arrays, values: bool) -> Result<(), String> {
    let mode = if training { "training" } else { "inference" };
    let found: Vec<NDArray> = executor.forward(training).map_err(|e| format!("{mode}: {e}"))?.to_vec();
    let names: Vec<String> = executor.output_types().iter().map(|(name, _)| name.clone()).collect();
    for (name, want) in want.iter().filter(|(name, _)| !name.starts_with("aux:")) {
        let at = names.iter().position(|n| n == name).ok_or_else(|| format!("no output `{name}`, but {names:?}"))?;
        match values {
            true => agrees(&format!("{mode}, {name}"), &found[at], want)?,
            false if found[at].dims() == want.dims() => found[at].wait_to_read().map_err(|e| e.to_string())?,
            false => return Err(format!("{name}: {:?}, expected {:?}", found[at].dims(), want.dims())),
        }
    }
    Ok(())
}

fn check(rt: &Runtime, name: &str, case: &Case) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| e.to_string();
    let symbol = Symbol::from_json(&case.symbol).map_err(|e| fail(&e))?;
    let mut binder = Executor::simple_bind(rt, &symbol).grad_req(GradReq::Null);
    let device = rt.options().device;
    let params = case.params.iter().map(|(name, t)| (&name[4..], t));
    for (name, tensor) in case.inputs.iter().map(|(name, t)| (name.as_str(), t)).chain(params) {
        let array = rt.from_tensor(tensor, device).map_err(|e| fail(&e))?;
        binder = binder.array(name, &array);
    }
    for name in case.grads.keys() {
        binder = binder.grad_req_of(name, GradReq::Write);
    }
    let mut executor = binder.build().map_err(|e| fail(&e))?;
    outputs_agree(&mut executor, false, &case.expected, true)?;
    if case.train.is_empty() {
        return Ok(());
    }
    let fixed = !RANDOM.contains(&name);
    outputs_agree(&mut executor, true, &case.train, fixed)?;
    for (name, want) in case.train.iter().filter_map(|(name, want)| Some((name.strip_prefix("aux:")?, want))) {
        let state = executor.auxiliary(name).map_err(|e| fail(&e))?;
        agrees(&format!("state {name} after the forward pass"), state, want)?;
    }
    let heads: Vec<NDArray> = executor
        .outputs()
        .iter()
        .map(|output| rt.ones(output.dims(), output.dtype()))
        .collect::<Result<_, _>>()
        .map_err(|e| fail(&e))?;
    executor.backward(&heads.iter().collect::<Vec<_>>()).map_err(|e| format!("backward: {e}"))?;
    for (name, want) in case.grads.iter().filter(|_| fixed) {
        let found = executor.gradient(name).map_err(|e| fail(&e))?;
        agrees(&format!("gradient of {name}"), found, want)?;
    }
    Ok(())
}

/// Among them A056–A064, A066, A069–A073 and A077.
#[test]
fn stored_cases_agree_in_inference_training_and_gradients() {
    let rt = new_runtime(RuntimeOptions::default());
    let filter = std::env::var("TENSORC_MXNET_OP").unwrap_or_default();
    let mut wrong = vec![];
    let mut count = 0;
    for (name, case) in cases().iter().filter(|(name, _)| name.contains(&filter)) {
        count += 1;
        let other = OTHER_GRADIENT.iter().any(|(n, _)| n == name);
        match (other, check(&rt, name, case)) {
            (true, Ok(())) => wrong.push(format!("{name}: the gradient agrees, but is listed as another")),
            (true, Err(why)) if why.starts_with("gradient of") => {}
            (_, Err(why)) => wrong.push(format!("{name}: {why}")),
            (false, Ok(())) => {}
        }
    }
    println!("{count} cases, {} of them wrong", wrong.len());
    assert!(count > 200 || !filter.is_empty(), "only {count} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An array of f32.
fn array(rt: &Runtime, dims: &[u64], values: &[f32]) -> NDArray {
    rt.array(dims, values).unwrap()
}
