//! Schedules, metrics and initial values.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tensorc::runtime::Device;
use tensorc::{DType, Tensor};
use tensorc_nd::NDArray;
use tensorc_train::Error;
use tensorc_train::metric::{self, Average, Binary, BinaryScore, Pearson, Perplexity};
use tensorc_train::{FanFactor, FusedRnn, Initializer, LrSchedule, Metric, RandomKind, RnnMode, Variable};

use super::{assert_close, floats, reference, runtime};

#[test]
fn schedules_give_mxnets_rates() {
    for case in reference()["schedules"].as_array().unwrap() {
        let schedule: LrSchedule = serde_json::from_value(case["schedule"].clone()).unwrap();
        schedule.check().unwrap();
        let rates: Vec<f64> = floats(&case["updates"]).iter().map(|u| schedule.rate(*u as u64)).collect();
        assert_close(&case["schedule"].to_string(), &rates, &floats(&case["rates"]), 1e-12);
    }
    // The rate depends on the number of updates only, and may be asked in any order.
    let schedule = LrSchedule::cosine(1.0, 10).warm_up(2, 0.0);
    assert_eq!([schedule.rate(10), schedule.rate(0), schedule.rate(1), schedule.rate(2)], [0.0, 0.0, 0.5, 1.0]);
    for (wrong, why) in [
        (LrSchedule::factor(0.1, 0, 0.5), "a step of 0 updates"),
        (LrSchedule::factor(0.1, 1, 2.0), "factor 2 is above 1"),
        (LrSchedule::multi_factor(0.1, [3, 3], 0.5), "steps [3, 3] do not increase from 1"),
        (LrSchedule::poly(0.1, 5, 1.0).warm_up(5, 0.0), "it ends at update 5, warm-up at 5"),
        (LrSchedule::constant(0.1).warm_up(5, 0.2), "warm-up begins above the base rate"),
    ] {
        assert_eq!(wrong.check().unwrap_err().to_string(), format!("learning rate schedule: {why}"));
    }
}

fn tensor(value: &Json) -> Tensor {
    let dims: Vec<u64> = value["dims"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
    Tensor::from_f32(&dims, &floats(&value["values"]).iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn metrics_follow_mxnets_definitions() {
    for case in reference()["metrics"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let mut metric: Box<dyn Metric> = match name {
            "f1 micro" => Box::new(Binary::new(BinaryScore::F1, Average::Micro)),
            "mcc micro" => Box::new(Binary::new(BinaryScore::Matthews, Average::Micro)),
            "pearsonr micro" => Box::new(Pearson::new(Average::Micro)),
            "perplexity ignore" => Box::new(Perplexity::new(Some(2.0))),
            name => metric::create(name).unwrap(),
        };
        // Twice: after a reset nothing is left of the first time.
        for _ in 0..2 {
            assert!(metric.values()[0].1.is_nan(), "{name}");
            for (batch, expected) in case["batches"].as_array().unwrap().iter().zip(floats(&case["values"])) {
                metric.update(&[tensor(&batch["label"])], &[tensor(&batch["output"])]).unwrap();
                let [(reported, value)] = &metric.values()[..] else { panic!("{name}") };
                assert_eq!(reported, case["reported"].as_str().unwrap());
                assert_close(name, &[*value], &[expected], 1e-5);
            }
            metric.reset();
        }
    }
}

#[test]
fn metrics_compose_and_refuse_what_does_not_fit() {
    let (label, output) =
        (Tensor::from_f32(&[2], &[1.0, 0.0]).unwrap(), Tensor::from_f32(&[2, 2], &[0.2, 0.8, 0.4, 0.6]).unwrap());
    let mut both = metric::create("acc, ce").unwrap();
    both.update(std::slice::from_ref(&label), std::slice::from_ref(&output)).unwrap();
    let names: Vec<String> = both.values().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["accuracy", "cross-entropy"]);
    assert_close("both", &[both.values()[0].1, both.values()[1].1], &[0.5, -(0.8f64.ln() + 0.4f64.ln()) / 2.0], 1e-6);
    let mut halves = metric::Custom::new("halves", |label, _| {
        Ok(metric::MetricSum { total: label.to_f32()?.iter().map(|x| f64::from(*x) / 2.0).sum(), count: 1.0 })
    });
    halves.update(std::slice::from_ref(&label), std::slice::from_ref(&output)).unwrap();
    assert_eq!(halves.values(), [("halves".to_owned(), 0.5)]);
    let why = |name: &str, label: &Tensor, outputs: &[Tensor]| {
        metric::create(name)
            .map(|mut m| m.update(std::slice::from_ref(label), outputs).unwrap_err().to_string())
            .unwrap()
    };
    let three = Tensor::from_f32(&[3], &[0.0, 1.0, 2.0]).unwrap();
    let one = &[output.clone()][..];
    assert_eq!(why("acc", &three, one), "metric `accuracy`: labels [3] do not fit outputs [2, 2]");
    assert_eq!(why("mse", &three, one), "metric `mse`: labels [3] do not fit outputs [2, 2]");
    assert_eq!(why("ce", &label, &[]), "metric `cross-entropy`: 1 labels and 0 outputs");
    let far = Tensor::from_f32(&[2], &[1.0, 5.0]).unwrap();
    assert_eq!(why("ce", &far, one), "metric `cross-entropy`: label 5 of 2 classes");
    let six = Tensor::from_f32(&[3, 2], &[0.0; 6]).unwrap();
    assert_eq!(why("f1", &three, &[six]), "metric `f1`: labels [0, 1, 2] are more than two classes");
    assert!(metric::create("accuracies").unwrap_err().to_string().starts_with("unknown metric `accuracies`"));
}

fn init(initializer: &Initializer, name: &str, dims: &[u64]) -> Result<NDArray, Error> {
    let rt = runtime();
    rt.seed(11);
    initializer.init(&rt, Device::cpu(0), Variable { name, init: None, dims, dtype: DType::F32 })
}

fn drawn(initializer: &Initializer, dims: &[u64]) -> Vec<f64> {
    let values = init(initializer, "x_weight", dims).unwrap().to_vec::<f32>().unwrap();
    values.into_iter().map(f64::from).collect()
}

fn deviation(values: &[f64]) -> f64 {
    (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn random_weights_have_the_scale_asked_for() {
    let dims = [60, 40, 3, 3];
    let (inputs, outputs) = (40.0 * 9.0, 60.0 * 9.0);
    let uniform = |factor_type, fan: f64| {
        let c = (2.0 / fan).sqrt();
        (Initializer::Xavier { rnd_type: RandomKind::Uniform, factor_type, magnitude: 2.0 }, c, c / 3f64.sqrt())
    };
    let infinite = f64::INFINITY;
    for (initializer, bound, expected) in [
        uniform(FanFactor::Avg, (inputs + outputs) / 2.0),
        uniform(FanFactor::In, inputs),
        uniform(FanFactor::Out, outputs),
        (Initializer::uniform(0.07), 0.07, 0.07 / 3f64.sqrt()),
        (Initializer::normal(0.3), infinite, 0.3),
        (Initializer::MsraPrelu { factor_type: FanFactor::In, slope: 0.25 }, infinite, (2.0 / 1.0625 / inputs).sqrt()),
    ] {
        let values = drawn(&initializer, &dims);
        assert!(values.iter().all(|x| x.abs() <= bound), "{initializer:?}");
        // Five standard errors of a standard deviation.
        let error = 5.0 * expected / (2.0 * values.len() as f64).sqrt();
        assert!((deviation(&values) - expected).abs() < error, "{initializer:?}: {}", deviation(&values));
        assert_eq!(drawn(&initializer, &dims), values, "the same seed gives the same numbers");
    }
    let wrong = init(&Initializer::xavier(3.0), "fc_weight", &[7]).unwrap_err();
    assert_eq!(wrong.to_string(), "variable `fc_weight`: it has shape [7], Xavier needs two axes");
}

#[test]
fn orthogonal_rows_or_columns() {
    for (dims, vectors) in [(&[6u64, 4, 3][..], 6), (&[12, 2, 2], 4)] {
        let initializer = Initializer::Orthogonal { scale: 1.5, rand_type: RandomKind::Gaussian };
        let values = drawn(&initializer, dims);
        let columns = values.len() / dims[0] as usize;
        let at = |v: usize, i: usize| {
            if dims[0] as usize <= columns { values[v * columns + i] } else { values[i * columns + v] }
        };
        for a in 0..vectors {
            for b in 0..vectors {
                let product: f64 = (0..values.len() / vectors).map(|i| at(a, i) * at(b, i)).sum();
                assert!((product - if a == b { 2.25 } else { 0.0 }).abs() < 1e-5, "{dims:?} {a} {b}: {product}");
            }
        }
    }
}

#[test]
fn fixed_patterns() {
    // Values of MXNet's Bilinear for a kernel of 4 by 4.
    let kernel = drawn(&Initializer::Bilinear {}, &[1, 1, 4, 4]);
    let row = [0.25, 0.75, 0.75, 0.25];
    let expected: Vec<f64> = row.iter().flat_map(|a| row.map(|b| a * b)).collect();
    assert_close("bilinear", &kernel, &expected, 1e-6);
    assert_eq!(drawn(&Initializer::LstmBias { forget_bias: 1.0 }, &[8]), [0., 0., 1., 1., 0., 0., 0., 0.]);
    let listed = Initializer::parse(r#"["constant", {"value": [[1, 2], [3, 4]]}]"#).unwrap();
    assert_eq!(drawn(&listed, &[2, 2]), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(drawn(&Initializer::parse("Ones").unwrap(), &[2]), [1.0, 1.0]);
}

#[test]
fn names_and_attributes_choose_the_initial_value() {
    let rt = runtime();
    let value = |initializer: &Initializer, name: &str, init: Option<&str>| {
        let variable = Variable { name, init, dims: &[1], dtype: DType::F32 };
        initializer.init(&rt, Device::cpu(0), variable).map(|array| array.item().unwrap()).map_err(|e| e.to_string())
    };
    let seven = Initializer::constant(7.0);
    for (name, expected) in [
        ("fc_weight", 7.0),
        ("fc_bias", 0.0),
        ("bn_gamma", 1.0),
        ("bn_beta", 0.0),
        ("bn_moving_mean", 0.0),
        ("bn_moving_var", 1.0),
        ("x_min", 0.0),
        ("x_max", 1.0),
    ] {
        assert_eq!(value(&seven, name, None), Ok(expected), "{name}");
        assert_eq!(value(&seven, name, Some(r#"["Constant", {"value": 0.25}]"#)), Ok(0.25), "{name}");
    }
    let unknown = value(&seven, "embedding", None).unwrap_err();
    assert!(unknown.starts_with("variable `embedding`: its name ends with none of weight, bias, gamma"), "{unknown}");
    let wrong = value(&seven, "a", Some(r#"["xaver", {}]"#)).unwrap_err();
    assert!(wrong.starts_with(r#"`["xaver", {}]` names no initialiser: unknown variant `xaver`"#), "{wrong}");

    let saved = Tensor::from_f32(&[1], &[3.5]).unwrap();
    let arrays = BTreeMap::from([("arg:fc_weight".to_owned(), saved)]);
    let load = Initializer::Load { arrays: arrays.clone(), default: Some(Box::new(seven.clone())) };
    assert_eq!([value(&load, "fc_weight", None), value(&load, "b_weight", None)], [Ok(3.5), Ok(7.0)]);
    let alone = Initializer::Load { arrays, default: None };
    assert_eq!(value(&alone, "b_weight", None).unwrap_err(), "variable `b_weight`: it is not among the saved arrays");

    let mixed = Initializer::Mixed(vec![("fc*_weight".into(), Initializer::constant(1.0)), ("conv*".into(), seven)]);
    assert_eq!([value(&mixed, "fc12_weight", None), value(&mixed, "conv_weight", None)], [Ok(1.0), Ok(7.0)]);
    let none = value(&mixed, "x_weight", None).unwrap_err();
    assert_eq!(none, "variable `x_weight`: no pattern fits its name; add `*` at the end");
}

#[test]
fn initialisers_have_mxnets_text() {
    for text in [
        r#"["normal",{"sigma":0.5}]"#,
        r#"["xavier",{"factor_type":"in","magnitude":2.34,"rnd_type":"gaussian"}]"#,
        r#"["zero",{}]"#,
        r#"["lstmbias",{"forget_bias":1.0}]"#,
        r#"["msraprelu",{"factor_type":"avg","slope":0.25}]"#,
        concat!(
            r#"["fusedrnn",{"bidirectional":true,"forget_bias":1.0,"init":"[\"normal\",{\"sigma\":0.5}]","#,
            r#""mode":"rnn_tanh","num_hidden":3,"num_layers":2}]"#
        ),
    ] {
        assert_eq!(Initializer::parse(text).unwrap().to_text().unwrap(), text);
    }
    assert_eq!(Initializer::parse("uniform").unwrap(), Initializer::uniform(0.07));
}

/// The vector of a recurrent layer: matrices by the inner initialiser, biases zero but those of the forget gate. Its
/// lengths are those MXNet gives for 3 inputs and 5 units.
#[test]
fn parameters_of_recurrent_layers_begin_gate_by_gate() {
    let rt = runtime();
    let begin = |init: Option<Initializer>, mode: RnnMode, (num_layers, bidirectional): (u64, bool), len: u64| {
        let parts =
            FusedRnn { init: init.map(Box::new), num_hidden: 5, num_layers, mode, bidirectional, forget_bias: 2.0 };
        let text = Initializer::FusedRnn(parts).to_text().unwrap();
        let variable = Variable { name: "rnn_parameters", init: Some(&text), dims: &[len], dtype: DType::F32 };
        let made = Initializer::constant(7.0).init(&rt, Device::cpu(0), variable).map_err(|e| e.to_string())?;
        Ok::<Vec<f32>, String>(made.to_vec::<f32>().unwrap())
    };
    let one = || Some(Initializer::constant(3.0));
    for (mode, gates, lengths) in [
        (RnnMode::RnnRelu, 1, [50, 110, 270]),
        (RnnMode::RnnTanh, 1, [50, 110, 270]),
        (RnnMode::Gru, 3, [150, 330, 810]),
        (RnnMode::Lstm, 4, [200, 440, 1080]),
    ] {
        for (form, len) in [(1, false), (2, false), (2, true)].into_iter().zip(lengths) {
            let directions = if form.1 { 2 } else { 1 };
            let biases = (gates * 5 * 2 * form.0 * directions) as usize;
            let found = begin(one(), mode, form, len).unwrap();
            let (matrices, bias) = found.split_at(len as usize - biases);
            assert!(matrices.iter().all(|x| *x == 3.0), "{mode:?}");
            for (i, x) in bias.iter().enumerate() {
                let forget = mode == RnnMode::Lstm && i / 5 % 4 == 1;
                assert_eq!(*x, if forget { 2.0 } else { 0.0 }, "{mode:?}, bias {i}");
            }
            assert_eq!(begin(None, mode, form, len).unwrap()[0], 7.0, "the initialiser of all other weights");
        }
    }
    // Orthogonal rows: each gate's matrix by itself.
    let orthogonal = Initializer::Orthogonal { scale: 1.0, rand_type: RandomKind::Gaussian };
    let found = begin(Some(orthogonal), RnnMode::Lstm, (1, false), 200).unwrap();
    for gate in found[60..160].chunks(25) {
        let length: f32 = gate[..5].iter().map(|x| x * x).sum();
        let overlap: f32 = gate[..5].iter().zip(&gate[5..10]).map(|(a, b)| a * b).sum();
        assert!((length - 1.0).abs() < 1e-5 && overlap.abs() < 1e-5, "{gate:?}");
    }
    let why = begin(one(), RnnMode::Lstm, (1, false), 201).unwrap_err();
    assert!(why.contains("`rnn_parameters`: shape [201] does not fit the parameters of 1 Lstm layers"), "{why}");
}
