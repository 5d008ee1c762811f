//! Properties of every registered operator; a new entry is covered without an edit here.

use crate::distance;
use std::collections::BTreeSet;

use tensorc_ir::infer::scalar_fn;
use tensorc_ir::op::{Accuracy, Compute, OpDef, TypeRule};
use tensorc_ir::params::{ParamKind, ParamValue, Params};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::{DType, Extents};
use tensorc_ops::{all, registry};

const EXTREMES: [f32; 29] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    -0.3,
    0.75,
    -0.75,
    2.5,
    -2.5,
    -5.5,
    7.0,
    -9.0,
    13.0,
    21.0,
    -30.0,
    60.0,
    -87.0,
    88.0,
    -100.0,
    1e-20,
    -1e-20,
    1e-45,
    f32::MIN_POSITIVE,
    1e10,
    -1e10,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
];

#[test]
fn names_are_unique_and_documented() {
    let registry = registry().unwrap();
    let (mut onnx, mut mxnet) = (BTreeSet::new(), BTreeSet::new());
    for def in registry.iter() {
        assert!(!def.doc.is_empty(), "{} has no documentation", def.name);
        assert!(def.outputs.0 <= def.outputs.1, "{}", def.name);
        assert!(def.static_inputs.iter().all(|&i| i < def.inputs.len()), "{}", def.name);
        let params: BTreeSet<_> = def.params.iter().map(|p| p.name).collect();
        assert_eq!(params.len(), def.params.len(), "{} has two parameters of one name", def.name);
        for name in &def.names.onnx {
            assert!(onnx.insert(*name), "{}: ONNX {name:?} is taken", def.name);
        }
        for name in &def.names.mxnet {
            assert!(mxnet.insert(*name), "{}: MXNet {name} is taken", def.name);
        }
    }
}

/// Defaults, and some value for each required parameter.
fn some_params(def: &OpDef) -> Params {
    let mut params = Params::new();
    for spec in &def.params {
        let value = match (&spec.default, spec.required, spec.kind) {
            (Some(default), ..) => default.clone(),
            (None, false, _) => continue,
            (None, true, ParamKind::Str) => ParamValue::Str("LEFT".into()),
            (None, true, ParamKind::Choice(of)) => ParamValue::Str(of[0].to_owned()),
            (None, true, ParamKind::DType) => ParamValue::DType(DType::I32),
            (None, true, ParamKind::Ints) => ParamValue::Ints(vec![2]),
            (None, true, ParamKind::Float) => ParamValue::Float(0.5),
            (None, true, _) => ParamValue::Int(1),
        };
        params.set(spec.name, value);
    }
    params
}

/// The expression with every operand of the grouped type given as `dtype`.
fn expression(def: &OpDef, dtype: DType) -> Option<ScalarFn> {
    let Compute::Scalar(_) = def.compute else { return None };
    let admits = |list: &[DType]| list.is_empty() || list.contains(&dtype);
    let inputs: Vec<Option<DType>> = def
        .inputs
        .iter()
        .map(|spec| match spec.ty {
            _ if spec.optional => None,
            TypeRule::Any => Some(dtype),
            TypeRule::Group(_, list) => admits(list).then_some(dtype),
            TypeRule::OneOf(list) => Some(if admits(list) { dtype } else { list[0] }),
        })
        .collect();
    let possible = def.inputs.iter().zip(&inputs).all(|(spec, i)| spec.optional || i.is_some());
    possible.then(|| scalar_fn(def, &some_params(def), &inputs, 2, Some(&Extents::from([3, 5]))).ok()).flatten()
}

#[test]
fn every_scalar_operator_builds_on_its_types() {
    for def in all() {
        let Compute::Scalar(_) = def.compute else { continue };
        let types = def.inputs.first().map_or(vec![DType::F32], |spec| match spec.ty {
            TypeRule::Any => vec![DType::F32],
            TypeRule::Group(_, list) | TypeRule::OneOf(list) if list.is_empty() => vec![DType::F32, DType::Bool],
            TypeRule::Group(_, list) | TypeRule::OneOf(list) => list.to_vec(),
        });
        for dtype in types {
            assert!(expression(&def, dtype).is_some(), "{} on {dtype}", def.name);
        }
    }
}

#[test]
fn expansion_leaves_no_f32_library_call() {
    let registry = registry().unwrap();
    for def in registry.iter() {
        for dtype in [DType::F32, DType::F16] {
            let Some(f) = expression(def, dtype) else { continue };
            let f = f.expand_math(registry.math()).unwrap();
            for (node, dtype) in f.nodes.iter().zip(&f.dtypes) {
                let call = matches!(node, ScalarNode::Op(ScalarOp::Math(_), _)) && *dtype == DType::F32;
                assert!(!call, "{} keeps a library call", def.name);
            }
        }
    }
}

fn grid(arity: usize) -> Vec<Vec<f32>> {
    (0..arity).fold(vec![vec![]], |rows, _| {
        rows.iter().flat_map(|row| EXTREMES.iter().map(move |&x| [&row[..], &[x]].concat())).collect()
    })
}

/// Results below the normal range keep only absolute accuracy, zeros have no promised sign, and the
/// f64 formula has a rounding error of its own.
fn agrees_absolutely(args: &[f32], found: f32, expected: f64) -> bool {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let moderate = args.iter().fold(0f64, |m, x| m.max(f64::from(x.abs()))).min(100.0);
    let distance = (f64::from(found) - expected).abs();
    expected.abs() < tiny && distance < tiny || distance < moderate * f64::EPSILON
}

/// The f32 expression against the same operator in f64 on the same arguments.
#[test]
fn scalar_operators_hold_their_accuracy_on_extremes() {
    let registry = registry().unwrap();
    let (mut covered, mut misses) = (0, vec![]);
    for def in registry.iter() {
        let budget = match def.accuracy {
            Accuracy::Exact => 0.5,
            Accuracy::Ulp(n) => n,
            Accuracy::Random => continue,
        };
        let (Some(narrow), Some(wide)) = (expression(def, DType::F32), expression(def, DType::F64)) else { continue };
        let all_f32 = narrow.inputs.iter().all(|&d| d == DType::F32) && narrow.output_dtypes() == [DType::F32];
        if !all_f32 || wide.output_dtypes() != [DType::F64] || narrow.inputs.is_empty() || narrow.inputs.len() > 2 {
            continue;
        }
        covered += 1;
        let narrow = narrow.expand_math(registry.math()).unwrap();
        for args in grid(narrow.inputs.len()) {
            let at = |dtype| args.iter().map(|&x| Scalar::f32(x).cast(dtype)).collect::<Vec<_>>();
            let expected = wide.eval(&at(DType::F64), &[1, 2])[0].as_f64();
            if expected.is_nan() {
                continue;
            }
            let found = narrow.eval(&at(DType::F32), &[1, 2])[0].as_f32();
            if agrees_absolutely(&args, found, expected) {
                continue;
            }
            let error = distance::error(found, expected);
            if error > budget + 1e-6 {
                misses.push(format!("{}{args:?}: {found:e} for {expected:e}, {error} ulp", def.name));
            }
        }
    }
    assert!(misses.is_empty(), "{}", misses.join("\n"));
    assert!(covered > 40, "only {covered} operators were compared");
}
