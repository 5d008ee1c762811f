//! Steps of optimizers against values stored from MXNet 1.9.1.

#![allow(clippy::excessive_precision)]

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, DenseType, TensorData};

/// Evaluates the operator that MXNet calls `name`, or ours of that name.
fn run(name: &str, operands: &[TensorData], params: &[(&'static str, ParamValue)], results: usize) -> Vec<TensorData> {
    let registry = tensorc_ops::registry().unwrap();
    let def = registry.mxnet(name).or_else(|| registry.get(name)).unwrap();
    let mut graph = Graph::new("step");
    let args: Vec<Option<Value>> = operands.iter().map(|t| Some(graph.add_input("x", t.ty.clone().into()))).collect();
    let params = params.iter().fold(Params::new(), |p, (name, value)| p.with(name, value.clone()));
    let node = graph.add_op("n", def, &args, params, results).unwrap();
    for port in 0..results as u16 {
        graph.add_output(format!("{port}"), Value { node, port });
    }
    eval_graph(&graph, &registry, operands).unwrap()
}

fn f32s(values: &[f32]) -> TensorData {
    TensorData::f32s(&[values.len() as u64], values).unwrap()
}

fn f16s(values: &[f32]) -> TensorData {
    let ty = DenseType::new(DType::F16, [values.len() as u64]);
    TensorData::from_fn(ty, |i| Scalar::from_f64(DType::F16, f64::from(values[i as usize])))
}

fn close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance * e.abs().max(0.1), "{name}: {found:?}, expected {expected:?}");
    }
}

/// `half`: weight and gradient are f16. Results are the weight and what else the operator changes, in order.
fn check(name: &str, half: bool, operands: &[&[f32]], params: &[(&'static str, ParamValue)], expected: &[&[f32]]) {
    let operands: Vec<TensorData> =
        operands.iter().enumerate().map(|(i, x)| if half && i < 2 { f16s(x) } else { f32s(x) }).collect();
    let found = run(name, &operands, params, expected.len());
    for (f, e) in found.iter().zip(expected) {
        let tolerance = if f.dtype() == DType::F16 { 1e-3 } else { 3e-6 };
        close(name, &f.to_f32s(), e, tolerance);
    }
}

#[test]
fn gradient_descent_agrees_with_mxnet() {
    check(
        "sgd_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.03)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[&[0.972000003, -1.954, 0.458499998, 0.249749988]],
    );
    check(
        "sgd_mom_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.03)),
            ("momentum", ParamValue::Float(0.9)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[1.06200004, -2.13400006, 0.728500009, 0.249750003],
            &[0.061999999, -0.133999988, 0.228499994, -0.000249999983],
        ],
    );
    check(
        "nag_mom_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.03)),
            ("momentum", ParamValue::Float(0.9)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[1.02779996, -2.07459998, 0.66415, 0.249524996],
            &[0.0619999953, -0.133999988, 0.228500009, -0.000250000012],
        ],
    );
}

#[test]
fn signs_agree_with_mxnet() {
    check(
        "signsgd_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[&[0.870000005, -1.84000003, 0.38500002, 0.342500001]],
    );
    check(
        "signum_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("momentum", ParamValue::Float(0.8)),
            ("wd_lh", ParamValue::Float(0.02)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[0.898000002, -1.89600003, 0.599000037, 0.149500012],
            &[-0.02999999, 0.0399999842, 0.13000001, -0.0139999995],
        ],
    );
}

#[test]
fn adam_agrees_with_mxnet() {
    check(
        "adam_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[0.4, 0.9, 0.2, 0.01]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
            ("epsilon", ParamValue::Float(0.001)),
        ],
        &[
            &[0.979471505, -1.97682488, 0.430829644, 0.243067563],
            &[0.13000001, -0.219999999, 0.310000032, 0.00700000161],
            &[0.399760008, 0.899259984, 0.199959993, 0.00999489985],
        ],
    );
    check(
        "_adamw_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[0.4, 0.9, 0.2, 0.01], &[0.5]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("eta", ParamValue::Float(0.7)),
            ("wd", ParamValue::Float(0.3)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[0.777266443, -1.56376028, 0.346472442, 0.197850168],
            &[0.115000002, -0.219999999, 0.310000032, -0.000500000082],
            &[0.399662495, 0.899259984, 0.199959993, 0.00999002531],
        ],
    );
    check(
        "_adamw_update",
        false,
        &[
            &[1., -2., 0.5, 0.25],
            &[0.5, -1., 2., -0.01],
            &[0.1, -0.2, 0.3, 0.],
            &[0.4, 0.9, 0.2, 0.01],
            &[f32::INFINITY],
        ],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("eta", ParamValue::Float(0.7)),
            ("wd", ParamValue::Float(0.3)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[1.0, -2.0, 0.5, 0.25],
            &[0.100000001, -0.200000003, 0.300000012, 0.],
            &[0.400000006, 0.899999976, 0.200000003, 0.00999999978],
        ],
    );
}

#[test]
fn running_mean_of_squares_agrees_with_mxnet() {
    check(
        "rmsprop_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.4, 0.9, 0.2, 0.01]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
            ("epsilon", ParamValue::Float(0.001)),
            ("clip_weights", ParamValue::Float(1.5)),
        ],
        &[&[0.935866475, -1.5, 0.410332829, 0.182470292], &[0.388000011, 0.862999976, 0.197999999, 0.00974499993]],
    );
    check(
        "rmspropalex_update",
        false,
        &[
            &[1., -2., 0.5, 0.25],
            &[0.5, -1., 2., -0.01],
            &[0.4, 0.9, 0.2, 0.01],
            &[0.1, -0.2, 0.3, 0.],
            &[0.05, -0.6, 0.7, 0.3],
        ],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
            ("epsilon", ParamValue::Float(0.1)),
            ("clip_weights", ParamValue::Float(1.5)),
        ],
        &[
            &[0.986948133, -1.5, 1.04164934, 0.498868525],
            &[0.388000011, 0.862999976, 0.197999999, 0.00974499993],
            &[0.115000002, -0.210000008, 0.305000007, 0.00350000081],
            &[-0.0130518563, -0.498272181, 0.541649401, 0.248868525],
        ],
    );
}

#[test]
fn regularised_leaders_agree_with_mxnet() {
    check(
        "ftrl_update",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.05, -0.6, 0.7, 0.3], &[0.4, 0.9, 0.2, 0.01]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
            ("lamda1", ParamValue::Float(0.2)),
        ],
        &[
            &[-0., -0.0202758443, -0.00834771991, -0.00837851502],
            &[-0.176180318, 0.617593765, 0.336067826, 0.294687688],
            &[0.462500006, 1.05999994, 0.360000014, 0.0100250002],
        ],
    );
    check(
        "ftml_update",
        false,
        &[
            &[1., -2., 0.5, 0.25],
            &[0.5, -1., 2., -0.01],
            &[0.4, 0.9, 0.2, 0.01],
            &[0.4, 0.9, 0.2, 0.01],
            &[0.1, -0.2, 0.3, 0.],
        ],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_grad", ParamValue::Float(0.4)),
            ("epsilon", ParamValue::Float(0.001)),
            ("t", ParamValue::Int(3)),
        ],
        &[
            &[0.994920194, -1.9899863, 0.493754596, 0.247940689],
            &[90.5547714, 135.813126, 64.0470047, 14.3252115],
            &[0.399760008, 0.899259984, 0.199959993, 0.00999489985],
            &[-90.0947723, 270.266266, -31.6235027, -3.55180287],
        ],
    );
}

#[test]
fn lamb_and_lars_agree_with_mxnet() {
    check(
        "lamb_update_phase1",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[0.4, 0.9, 0.2, 0.01]],
        &[
            ("t", ParamValue::Int(2)),
            ("wd", ParamValue::Float(0.3)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[
            &[0.342805505, -0.654591918, 0.313131779, 0.073822841],
            &[0.115000002, -0.219999999, 0.310000032, -0.000500000082],
            &[0.399662495, 0.899259984, 0.199959993, 0.00999002531],
        ],
    );
    check(
        "lamb_update_phase1",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[0.4, 0.9, 0.2, 0.01]],
        &[("t", ParamValue::Int(2)), ("wd", ParamValue::Float(0.3)), ("bias_correction", ParamValue::Bool(false))],
        &[
            &[0.52140063, -0.895129263, 1.19110584, 0.0649951473],
            &[0.140000015, -0.280000031, 0.470000058, -0.00100000016],
            &[0.399850011, 0.900099993, 0.203799948, 0.00999009982],
        ],
    );
    check(
        "lamb_update_phase2",
        false,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[2.5], &[1.25]],
        &[("lr", ParamValue::Float(0.1)), ("upper_bound", ParamValue::Float(2.0))],
        &[&[0.920000017, -1.84000003, 0.180000007, 0.251599997]],
    );
    check(
        "multi_lars",
        false,
        &[&[0.1, 0.2, 0.3], &[4., 0., 9.], &[1., 4., 16.], &[0.01, 0.02, 0.03]],
        &[("eta", ParamValue::Float(0.5)), ("eps", ParamValue::Float(0.001)), ("rescale_grad", ParamValue::Float(0.5))],
        &[&[0.191938594, 0.200000003, 0.215208054]],
    );
}

#[test]
fn half_precision_descent_agrees_with_mxnet() {
    check(
        "mp_sgd_update",
        true,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[1., -2., 0.5, 0.25]],
        &[
            ("lr", ParamValue::Float(0.1)),
            ("wd", ParamValue::Float(0.03)),
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
        ],
        &[&[0.972167969, -1.95410156, 0.458496094, 0.249755859], &[0.972000003, -1.954, 0.458499998, 0.249750108]],
    );
    check(
        "mp_sgd_mom_update",
        true,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[1., -2., 0.5, 0.25]],
        &[("lr", ParamValue::Float(0.1)), ("wd", ParamValue::Float(0.03)), ("momentum", ParamValue::Float(0.9))],
        &[
            &[1.03710938, -2.07421875, 0.568359375, 0.250244141],
            &[0.0369999968, -0.0739999935, 0.0684999973, 0.000250213663],
            &[1.03699994, -2.07399988, 0.568499982, 0.25025022],
        ],
    );
    check(
        "mp_nag_mom_update",
        true,
        &[&[1., -2., 0.5, 0.25], &[0.5, -1., 2., -0.01], &[0.1, -0.2, 0.3, 0.], &[1., -2., 0.5, 0.25]],
        &[("lr", ParamValue::Float(0.1)), ("wd", ParamValue::Float(0.03)), ("momentum", ParamValue::Float(0.9))],
        &[
            &[0.98046875, -1.9609375, 0.360107422, 0.250488281],
            // MXNet 1.9.1 computes this one from the weight it has just written: here from the old one.
            &[0.037, -0.074, 0.0685, 0.000250213663],
            &[0.980300009, -1.96060002, 0.36014998, 0.250475407],
        ],
    );
}

#[test]
fn half_precision_adam_and_lamb_agree_with_mxnet() {
    check(
        "mp_lamb_update_phase1",
        true,
        &[
            &[1., -2., 0.5, 0.25],
            &[0.5, -1., 2., -0.01],
            &[0.1, -0.2, 0.3, 0.],
            &[0.4, 0.9, 0.2, 0.01],
            &[1., -2., 0.5, 0.25],
        ],
        &[("t", ParamValue::Int(2)), ("wd", ParamValue::Float(0.3))],
        &[
            &[0.352098823, -0.669448256, 0.394987702, 0.0726451874],
            &[0.140000015, -0.280000031, 0.470000058, -0.0010002139],
            &[0.399850011, 0.900099993, 0.203799948, 0.00999009982],
        ],
    );
    check(
        "_mp_adamw_update",
        true,
        &[
            &[1., -2., 0.5, 0.25],
            &[0.5, -1., 2., -0.01],
            &[0.1, -0.2, 0.3, 0.],
            &[0.4, 0.9, 0.2, 0.01],
            &[1., -2., 0.5, 0.25],
            &[0.5],
        ],
        &[("lr", ParamValue::Float(0.1)), ("eta", ParamValue::Float(0.7)), ("wd", ParamValue::Float(0.3))],
        &[
            &[0.77734375, -1.56347656, 0.337158203, 0.197875977],
            &[0.115000002, -0.230000004, 0.370000035, -0.000500106951],
            &[0.399662495, 0.899349988, 0.200799987, 0.00999002531],
            &[0.777266443, -1.56302297, 0.337201297, 0.197850257],
        ],
    );
}

/// Weights of two shapes, with gradients, momenta and master copies, in one operator: MXNet's values.
#[test]
fn steps_of_many_weights_agree_with_mxnet() {
    let shaped = |dtype: DType, values: &[f32]| {
        let dims: &[u64] = if values.len() == 2 { &[1, 2] } else { &[4] };
        TensorData::from_fn(DenseType::new(dtype, dims), |i| Scalar::from_f64(dtype, f64::from(values[i as usize])))
    };
    let weights: [&[f32]; 2] = [&[1., -2., 0.5, 0.25], &[0.3, -0.4]];
    let grads: [&[f32]; 2] = [&[0.5, -1., 2., -0.01], &[0.2, 0.7]];
    let momenta: [&[f32]; 2] = [&[0.1, -0.2, 0.3, 0.], &[-0.5, 0.25]];
    let plain: [&[f32]; 2] = [&[0.972000003, -1.954, 0.458499998, 0.249750003], &[0.279400021, -0.469200015]];
    let moved: [&[f32]; 2] = [&[1.06200004, -2.13400006, 0.728500009, 0.249750003], &[-0.170599997, -0.244200021]];
    let next: [&[f32]; 2] = [&[0.061999999, -0.133999988, 0.228499994, -0.000249999983], &[-0.470600009, 0.155799985]];
    let halves: [&[f32]; 2] = [&[0.972167969, -1.95410156, 0.458496094, 0.249755859], &[0.279296875, -0.469238281]];
    let masters: [&[f32]; 2] = [&[0.972000003, -1.954, 0.458499998, 0.249750108], &[0.279404879, -0.469219536]];
    let half_moved: [&[f32]; 2] = [&[1.06152344, -2.13476562, 0.728515625, 0.249755859], &[-0.170654297, -0.244262695]];
    let half_next: [&[f32]; 2] =
        [&[0.061999999, -0.133999988, 0.228499994, -0.000249893172], &[-0.470595121, 0.155780464]];
    let half_masters: [&[f32]; 2] =
        [&[1.06200004, -2.13400006, 0.728500009, 0.249750108], &[-0.170595109, -0.244219542]];
    let pairs = |states: &[[&[f32]; 2]]| -> Vec<Vec<f32>> {
        (0..2).flat_map(|i| states.iter().map(move |state| state[i].to_vec())).collect()
    };
    for (name, mp, with_momentum, expected, states) in [
        ("multi_sgd_update", false, false, plain, vec![]),
        ("multi_sgd_mom_update", false, true, moved, vec![next]),
        ("multi_mp_sgd_update", true, false, halves, vec![masters]),
        ("multi_mp_sgd_mom_update", true, true, half_moved, vec![half_next, half_masters]),
    ] {
        let stored = if mp { DType::F16 } else { DType::F32 };
        let mut operands = vec![];
        for i in 0..2 {
            operands.extend([shaped(stored, weights[i]), shaped(stored, grads[i])]);
            operands.extend(with_momentum.then(|| shaped(DType::F32, momenta[i])));
            operands.extend(mp.then(|| shaped(DType::F32, weights[i])));
        }
        let mut params = vec![
            ("rescale_grad", ParamValue::Float(0.5)),
            ("clip_gradient", ParamValue::Float(0.4)),
            ("num_weights", ParamValue::Int(2)),
        ];
        if with_momentum {
            params.push(("momentum", ParamValue::Float(0.9)));
        }
        let lists = [("lrs", vec![0.1, 0.2]), ("wds", vec![0.03, 0.01])];
        let numbers = lists.clone().map(|(name, list)| (name, ParamValue::Floats(list)));
        let given = [&params[..], &numbers[..]].concat();
        let preloaded = lists.map(|(_, list)| f32s(&list.iter().map(|x| *x as f32).collect::<Vec<_>>()));
        let expected: Vec<Vec<f32>> = expected.iter().map(|e| e.to_vec()).chain(pairs(&states)).collect();
        let by_parameters = run(name, &operands, &given, expected.len());
        let by_operands =
            run(&format!("preloaded_{name}"), &[&operands[..], &preloaded].concat(), &params, expected.len());
        for found in [by_parameters, by_operands] {
            for (f, e) in found.iter().zip(&expected) {
                let tolerance = if f.dtype() == DType::F16 { 1e-3 } else { 3e-6 };
                close(name, &f.to_f32s(), e, tolerance);
            }
        }
        // Every state is an operand, and the result that follows the weights in its place.
        let registry = tensorc_ops::registry().unwrap();
        let def = registry.mxnet(name).unwrap();
        let params = given.iter().fold(Params::new(), |p, (name, value)| p.with(name, value.clone()));
        let group = 2 + states.len();
        let each = (0..2).flat_map(|i| (2..group).map(move |at| i * group + at)).zip(2..);
        assert_eq!(def.states(&params).to_vec(), each.collect::<Vec<_>>(), "{name}");
        assert_eq!(def.result_count(&params).visible, 2);
    }
}

/// What does not fit is said by name.
#[test]
fn many_weights_need_as_many_numbers() {
    let registry = tensorc_ops::registry().unwrap();
    let def = registry.mxnet("multi_sgd_mom_update").unwrap();
    let why = |operands: usize, rates: &[f64]| {
        let mut graph = Graph::new("step");
        let ty = DenseType::new(DType::F32, [2]);
        let args: Vec<_> = (0..operands).map(|_| Some(graph.add_input("x", ty.clone().into()))).collect();
        let params = Params::new()
            .with("lrs", ParamValue::Floats(rates.to_vec()))
            .with("wds", ParamValue::Floats(vec![0.0, 0.0]))
            .with("num_weights", ParamValue::Int(2));
        let node = graph.add_op("n", def, &args, params, 2).unwrap();
        graph.add_output("w", Value { node, port: 0 });
        eval_graph(&graph, &registry, &vec![f32s(&[0.0; 2]); operands]).unwrap_err().to_string()
    };
    let message = why(5, &[0.1, 0.1]);
    assert!(message.contains("mx_multi_sgd_mom_update") && message.contains("2 weights need 6 operands"), "{message}");
    let message = why(6, &[0.1]);
    assert!(message.contains("`lrs` has 1 numbers, expected 2"), "{message}");
}

/// The dense step of MXNet's GroupAdaGrad: its operator runs on sparse gradients only.
#[test]
fn adagrad_by_rows_agrees_with_mxnet() {
    let table = |dims: &[u64], values: &[f32]| TensorData::f32s(dims, values).unwrap();
    let operands = [
        table(&[3, 2], &[1., -2., 0.5, 0.25, 0., 3.]),
        table(&[3, 2], &[0.5, -1., 2., -0.01, 0.3, 0.2]),
        table(&[3, 1], &[0.1, 0.2, 0.]),
    ];
    let params = [
        ("lr", ParamValue::Float(0.1)),
        ("rescale_grad", ParamValue::Float(0.5)),
        ("clip_gradient", ParamValue::Float(0.4)),
    ];
    let found = run("_contrib_group_adagrad_update", &operands, &params, 2);
    let expected = [0.945608437, -1.91297352, 0.424410135, 0.250944883, -0.117633499, 2.92157769];
    close("weight", &found[0].to_f32s(), &expected, 3e-6);
    close("history", &found[1].to_f32s(), &[0.211250007, 0.280012518, 0.0162500013], 3e-6);
}

fn scalars(values: &[f32]) -> Vec<TensorData> {
    values.iter().map(|&x| TensorData::f32s(&[], &[x]).unwrap()).collect()
}

/// A087: three steps each of gradient descent, of the same with momentum, and of Adam, with the learning rate as
/// an operand.
#[test]
fn a087_three_steps() {
    let gradients = [[0.5, -1.0, 2.0], [0.1, 0.3, -0.2], [0.0; 3]];
    let train = |name: &str, states: usize, wd: f32, params: &[(&'static str, ParamValue)], expected: [[f32; 3]; 3]| {
        let mut held = vec![f32s(&[1.0, -2.0, 0.5])];
        held.extend((0..states).map(|_| f32s(&[0.0; 3])));
        for (t, (g, e)) in gradients.iter().zip(&expected).enumerate() {
            let correction = match states {
                2 => (1.0 - 0.999f64.powi(t as i32 + 1)).sqrt() / (1.0 - 0.9f64.powi(t as i32 + 1)),
                _ => 1.0,
            };
            let mut operands = vec![held[0].clone(), f32s(g)];
            operands.extend(held[1..].iter().cloned());
            operands.extend(scalars(&[(0.1 * correction) as f32, wd]));
            held = run(name, &operands, params, states + 1);
            close(name, &held[0].to_f32s(), e, 1e-5);
        }
    };
    train("update_sgd", 0, 0.0, &[], [[0.95, -1.9, 0.3], [0.94, -1.93, 0.32], [0.94, -1.93, 0.32]]);
    train(
        "update_sgd_mom",
        1,
        0.01,
        &[("momentum", ParamValue::Float(0.9))],
        [[0.949, -1.898, 0.2995], [0.892151, -1.834302, 0.13875], [0.840095, -1.775139, -0.006063]],
    );
    train(
        "update_adam",
        2,
        0.0,
        &[],
        [[0.899999, -1.899999, 0.399999], [0.819695, -1.857214, 0.340734], [0.757619, -1.824141, 0.294922]],
    );
}
