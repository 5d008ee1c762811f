//! Quantised models: what they compute, their scales, what the file has, and what is refused.

use std::path::{Path, PathBuf};

use prost::Message;
use tensorc::quantize::{ActivationType, CalibrationMethod, QuantizeMode, QuantizeOptions, Quantized, Sample};
use tensorc::{Compiler, Error, Options, Tensor, quantize};
use tensorc_frontend::onnx::proto::*;

use crate::support::onnx_models::*;

fn compiler() -> Compiler {
    Compiler::new(Options { threads: Some(2), ..Options::default() }).unwrap()
}

fn random(count: usize, seed: u64, most: f32) -> Vec<f32> {
    let mut rng = tensorc_ir::Rng::new(seed);
    (0..count).map(|_| ((rng.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * most).collect()
}

fn weights(name: &str, dims: &[i64], seed: u64, most: f32) -> TensorProto {
    f32s(name, dims, &random(dims.iter().product::<i64>() as usize, seed, most))
}

fn named(name: &str, node: NodeProto) -> NodeProto {
    NodeProto { name: Some(name.into()), ..node }
}

/// Convolutions with a normalisation, activations that cut off, a residual and a head.
fn conv_net() -> GraphProto {
    let padded = || ints("pads", &[1, 1, 1, 1]);
    let nodes = vec![
        named("first", with(node("Conv", &["x", "w0", "b0"], &["c0"]), vec![padded()])),
        named("norm", node("BatchNormalization", &["c0", "gamma", "beta", "mean", "variance"], &["n0"])),
        named("relu", node("Relu", &["n0"], &["r0"])),
        named(
            "pool",
            with(node("MaxPool", &["r0"], &["p0"]), vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]),
        ),
        named("point", node("Conv", &["p0", "w1"], &["c1"])),
        named("clip", node("Clip", &["c1", "zero", "six"], &["r1"])),
        named("second", with(node("Conv", &["r1", "w2", "b2"], &["c2"]), vec![padded()])),
        named("sum", node("Add", &["c2", "p0"], &["s"])),
        named("sum_relu", node("Relu", &["s"], &["rs"])),
        named("third", with(node("Conv", &["rs", "w3", "b2"], &["c3"]), vec![padded(), int("group", 4)])),
        named("mean", node("GlobalAveragePool", &["c3"], &["m"])),
        named("flat", node("Flatten", &["m"], &["f"])),
        named("head", with(node("Gemm", &["f", "w4", "b4"], &["y"]), vec![int("transB", 1)])),
    ];
    let mut graph = graph(vec![value("x", DataType::Float, &[1, 3, 16, 16])], nodes, &["y"]);
    graph.value_info = vec![value("c0", DataType::Float, &[1, 8, 16, 16]), value("c3", DataType::Float, &[1, 8, 8, 8])];
    graph.initializer = vec![
        weights("w0", &[8, 3, 3, 3], 1, 0.4),
        weights("b0", &[8], 2, 0.2),
        weights("gamma", &[8], 3, 2.0),
        weights("beta", &[8], 4, 0.5),
        weights("mean", &[8], 5, 0.2),
        f32s("variance", &[8], &[0.5, 1.0, 2.0, 0.7, 1.1, 0.9, 0.3, 1.5]),
        weights("w1", &[16, 8, 1, 1], 6, 0.8),
        f32s("zero", &[], &[0.0]),
        f32s("six", &[], &[6.0]),
        weights("w2", &[8, 16, 3, 3], 7, 0.15),
        weights("b2", &[8], 8, 0.5),
        weights("w3", &[8, 2, 3, 3], 9, 0.4),
        weights("w4", &[5, 8], 10, 1.0),
        weights("b4", &[5], 11, 0.3),
    ];
    graph
}

/// Two products with biases, one added, and one of two activations.
fn mlp() -> GraphProto {
    let nodes = vec![
        named("up", node("MatMul", &["x", "w0"], &["p0"])),
        named("bias", node("Add", &["p0", "b0"], &["a0"])),
        named("act", node("Tanh", &["a0"], &["t"])),
        named("down", node("Gemm", &["t", "w1", "b1"], &["d"])),
        named("turn", with(node("Transpose", &["d"], &["dt"]), vec![ints("perm", &[1, 0])])),
        named("gram", node("MatMul", &["d", "dt"], &["g"])),
    ];
    let mut graph = graph(vec![value("x", DataType::Float, &[8, 40])], nodes, &["d", "g"]);
    graph.initializer = vec![
        weights("w0", &[40, 72], 1, 0.3),
        weights("b0", &[72], 2, 0.3),
        weights("w1", &[72, 24], 3, 0.2),
        weights("b1", &[24], 4, 0.2),
    ];
    graph
}

fn samples(dims: &[u64], count: u64) -> Vec<Sample> {
    let total = dims.iter().product::<u64>() as usize;
    let one = |i| vec![("x".to_owned(), Tensor::from_f32(dims, &random(total, 100 + i, 1.5)).unwrap())];
    (0..count).map(one).collect()
}

/// A folder that is removed, and a model in it.
struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn of(model: &ModelProto) -> File {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.onnx"), encoded(model)).unwrap();
        File { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model.onnx")
    }
}

fn quantised(graph: GraphProto, samples: &[Sample], options: &QuantizeOptions) -> Result<Quantized, Error> {
    quantize(&compiler(), File::of(&model(graph)).path(), samples, options)
}

fn of(mode: QuantizeMode) -> QuantizeOptions {
    QuantizeOptions { mode, keep: vec![] }
}

fn decoded(quantised: &Quantized) -> GraphProto {
    ModelProto::decode(quantised.bytes()).unwrap().graph.unwrap()
}

fn ops(graph: &GraphProto, op: &str) -> usize {
    graph.node.iter().filter(|n| n.op_type() == op).count()
}

/// The ratio of signal to noise in decibels, of outputs of a model and of its quantised form.
fn snr(before: &[u8], after: &[u8], samples: &[Sample], output: &str) -> f64 {
    let compiler = compiler();
    let [before, after] = [before, after].map(|bytes| compiler.load_bytes("m.onnx", bytes.to_vec()).unwrap());
    let (mut signal, mut noise) = (0.0, 0.0);
    for sample in samples {
        let inputs: Vec<(&str, Tensor)> = sample.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let [x, y] = [&before, &after].map(|model| {
            let outputs = model.run(&inputs).unwrap();
            outputs.into_iter().find(|(name, _)| name == output).unwrap().1.to_f32().unwrap()
        });
        signal += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        noise += x.iter().zip(&y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum::<f64>();
    }
    10.0 * (signal / noise).log10()
}

#[test]
fn static_convolutions_stay_near_f32() {
    let data = samples(&[1, 3, 16, 16], 6);
    for (method, least) in [
        (CalibrationMethod::MinMax, 30.0),
        (CalibrationMethod::Percentile(99.99), 28.0),
        (CalibrationMethod::Entropy, 20.0),
    ] {
        for activations in [ActivationType::U8, ActivationType::I8] {
            let options = of(QuantizeMode::Static { method, activations });
            let found = quantised(conv_net(), &data, &options).unwrap();
            assert_eq!(found.layers(), ["first", "point", "second", "third", "head"]);
            let measured = snr(&encoded(&model(conv_net())), &found.bytes(), &data, "y");
            assert!(measured > least, "{method:?} {activations:?}: {measured} dB");
            let loss = found.loss(usize::MAX).unwrap();
            assert!((loss.outputs[0].snr - measured).abs() < 1e-6, "{loss:?} {measured}");
            assert_eq!((loss.layers.len(), loss.runs), (5, 6));
            assert!(loss.layers.is_sorted_by(|a, b| a.snr <= b.snr));
            assert!(loss.layers.iter().all(|l| l.snr > least - 5.0 && l.largest > 0.0), "{loss:?}");
        }
    }
}

#[test]
fn nodes_between_products_are_quantised_and_activations_that_cut_off_vanish() {
    let data = samples(&[1, 3, 16, 16], 2);
    let graph = decoded(&quantised(conv_net(), &data, &QuantizeOptions::default()).unwrap());
    assert_eq!((ops(&graph, "BatchNormalization"), ops(&graph, "Relu"), ops(&graph, "Clip")), (0, 0, 0));
    // x, five products, two poolings, the sum and the flat vector.
    assert_eq!(ops(&graph, "QuantizeLinear"), 10);
    // These, five weights and four biases.
    assert_eq!(ops(&graph, "DequantizeLinear"), 19);
    let tensor = |name: &str| graph.initializer.iter().find(|t| t.name() == name);
    assert!(["w0", "b0", "w1", "gamma", "six"].iter().all(|name| tensor(name).is_none()));
    // The maximum of numbers has their scale.
    let scale_of = |output: &str| {
        let node = graph.node.iter().find(|n| n.output == [output]).unwrap();
        assert_eq!(node.op_type(), "DequantizeLinear");
        node.input[1].clone()
    };
    assert_eq!(scale_of("p0"), scale_of("r0"));
    assert_ne!(scale_of("rs"), scale_of("r0"));
    assert_eq!(tensor("w1.quantized").unwrap().dims, [16, 8, 1, 1]);
    assert_eq!(tensor("w1.scale").unwrap().dims, [16]);
    assert!(graph.value_info.iter().all(|info| info.name() == "c3"));
    // Channels of groups have scales of their own, too.
    assert_eq!(tensor("w3.scale").unwrap().dims, [8]);
}

fn floats(graph: &GraphProto, name: &str) -> Vec<f32> {
    let raw = graph.initializer.iter().find(|t| t.name() == name).unwrap().raw_data.clone().unwrap();
    raw.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn scales_are_those_of_the_values() {
    let data = samples(&[8, 40], 5);
    let mut all: Vec<f32> = data.iter().flat_map(|s| s[0].1.to_f32().unwrap()).collect();
    all.sort_by(f32::total_cmp);
    let scale = |method, activations| {
        let options = of(QuantizeMode::Static { method, activations });
        let graph = decoded(&quantised(mlp(), &data, &options).unwrap());
        let zero = graph.initializer.iter().find(|t| t.name() == "x.zero_point").unwrap().raw_data.clone().unwrap();
        (floats(&graph, "x.scale")[0], zero[0])
    };
    let (low, high) = (all[0], all[all.len() - 1]);
    let expected = (high - low) / 255.0;
    let (u8_scale, u8_zero) = scale(CalibrationMethod::MinMax, ActivationType::U8);
    assert!((u8_scale - expected).abs() <= 1e-6 * expected);
    assert_eq!(u8_zero, (-low / expected).round_ties_even() as u8);
    let (i8_scale, i8_zero) = scale(CalibrationMethod::MinMax, ActivationType::I8);
    assert_eq!((i8_scale, i32::from(i8_zero as i8)), (u8_scale, i32::from(u8_zero) - 128));
    // A tenth is cut off at either end.
    let cut = all.len() / 10;
    let expected = (all[all.len() - 1 - cut] - all[cut]) / 255.0;
    let (found, _) = scale(CalibrationMethod::Percentile(80.0), ActivationType::U8);
    assert!((found - expected).abs() < 2.0 * (high - low) / 2048.0 / 255.0, "{found} {expected}");
    let (entropy, _) = scale(CalibrationMethod::Entropy, ActivationType::U8);
    assert!(entropy <= u8_scale * 1.01 && entropy > 0.05 * u8_scale);
    // Weights have the largest magnitude of each column.
    let graph = decoded(&quantised(mlp(), &data, &QuantizeOptions::default()).unwrap());
    let w = random(40 * 72, 1, 0.3);
    for (n, scale) in floats(&graph, "w0.scale").into_iter().enumerate() {
        let largest = (0..40).map(|k| w[k * 72 + n].abs()).fold(0.0, f32::max);
        assert_eq!(scale, largest / 127.0);
    }
}

#[test]
fn every_mode_stays_near_f32() {
    let data = samples(&[8, 40], 6);
    let before = encoded(&model(mlp()));
    for (mode, least) in [
        (QuantizeMode::default(), 30.0),
        (QuantizeMode::Dynamic, 33.0),
        (QuantizeMode::Weights { bits: 8, block: 32 }, 40.0),
        (QuantizeMode::Weights { bits: 4, block: 16 }, 17.0),
    ] {
        let found = quantised(mlp(), &data, &of(mode)).unwrap();
        for output in ["d", "g"] {
            let measured = snr(&before, &found.bytes(), &data, output);
            assert!(measured > least, "{mode:?} {output}: {measured} dB");
        }
        // A product of activations needs scales of both.
        let products: &[&str] = if mode == QuantizeMode::default() { &["up", "down", "gram"] } else { &["up", "down"] };
        assert_eq!(found.layers(), products);
        assert!(found.bytes().len() < before.len() * 3 / 4 || mode == QuantizeMode::default());
    }
}

#[test]
fn dynamic_convolutions_need_no_data() {
    let data = samples(&[1, 3, 16, 16], 3);
    let found = quantised(conv_net(), &[], &of(QuantizeMode::Dynamic)).unwrap();
    assert_eq!(found.layers(), ["first", "point", "second", "third", "head"]);
    let graph = decoded(&found);
    assert_eq!((ops(&graph, "ConvInteger"), ops(&graph, "MatMulInteger")), (4, 1));
    assert_eq!(ops(&graph, "DynamicQuantizeLinear"), 5);
    let measured = snr(&encoded(&model(conv_net())), &found.bytes(), &data, "y");
    assert!(measured > 30.0, "{measured} dB");
    let loss = found.loss(9).unwrap();
    assert_eq!((loss.runs, loss.layers.len(), loss.outputs.len()), (0, 0, 0));
}

#[test]
fn calibration_makes_up_for_the_errors_of_weights() {
    // Inputs of which some follow from others.
    let mix = random(6 * 40, 50, 1.0);
    let sample = |seed| {
        let base = random(8 * 6, seed, 1.0);
        let x: Vec<f32> =
            (0..320).map(|at| (0..6).map(|j| base[at / 40 * 6 + j] * mix[j * 40 + at % 40]).sum()).collect();
        vec![("x".to_owned(), Tensor::from_f32(&[8, 40], &x).unwrap())]
    };
    let data: Vec<Sample> = (0..20).map(|i| sample(200 + i)).collect();
    let mut graph = mlp();
    graph.node.truncate(1);
    graph.output = vec![untyped("p0")];
    let before = encoded(&model(graph.clone()));
    let mode = of(QuantizeMode::Weights { bits: 4, block: 32 });
    let [plain, made_up] = [&[][..], &data[..]].map(|data| quantised(graph.clone(), data, &mode).unwrap());
    let [plain, made_up] = [plain, made_up].map(|found| snr(&before, &found.bytes(), &data, "p0"));
    assert!(made_up > plain + 3.0, "{made_up} dB with data, {plain} dB without");
}

#[test]
fn nodes_that_are_kept_stay_as_they_are() {
    let data = samples(&[1, 3, 16, 16], 2);
    let options = QuantizeOptions { keep: vec!["second".into(), "head".into()], ..QuantizeOptions::default() };
    let found = quantised(conv_net(), &data, &options).unwrap();
    assert_eq!(found.layers(), ["first", "point", "third"]);
    let graph = decoded(&found);
    let node = |name: &str| graph.node.iter().find(|n| n.name() == name).unwrap();
    assert_eq!(node("second").input[1..], ["w2", "b2"]);
    assert_eq!(node("head").input, ["f", "w4", "b4"]);
    let refused = quantised(conv_net(), &data, &QuantizeOptions { keep: vec!["thrid".into()], ..options });
    assert_eq!(refused.err().unwrap().to_string(), "the model has no node `thrid` that could be kept");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let data = samples(&[8, 40], 3);
    for mode in [QuantizeMode::default(), QuantizeMode::Dynamic, QuantizeMode::Weights { bits: 4, block: 16 }] {
        let file = File::of(&model(mlp()));
        let [a, b] = [1, 3].map(|threads| {
            let compiler = Compiler::new(Options { threads: Some(threads), ..Options::default() }).unwrap();
            quantize(&compiler, file.path(), &data, &of(mode)).unwrap().bytes()
        });
        assert_eq!(a, b, "{mode:?}");
    }
}

#[test]
fn what_is_quantised_already_is_left() {
    let data = samples(&[1, 3, 16, 16], 2);
    let once =
        quantised(conv_net(), &data, &QuantizeOptions { keep: vec!["third".into()], ..Default::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("once.onnx");
    once.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), once.bytes());
    let twice = quantize(&compiler(), &path, &data, &QuantizeOptions::default()).unwrap();
    assert_eq!(twice.layers(), ["third"]);
    let saved = folder.path().join("twice.onnx");
    twice.save(&saved).unwrap();
    let nothing = quantize(&compiler(), &saved, &data, &QuantizeOptions::default()).err().unwrap().to_string();
    assert!(nothing.starts_with("there is nothing to quantise"), "{nothing}");
}

/// A model of version 3 of the format and operator set 9, whose weights are inputs.
fn old() -> ModelProto {
    let nodes = vec![
        named("conv", node("Conv", &["x", "w"], &["c"])),
        named("drop", with(node("Dropout", &["c"], &["d"]), vec![float("ratio", 0.5)])),
        named("clip", with(node("Clip", &["d"], &["e"]), vec![float("min", 0.0), float("max", 1.0)])),
        named("point", node("Conv", &["e", "v"], &["f"])),
        named("soft", node("Softmax", &["f"], &["s"])),
        named("more", with(node("Unsqueeze", &["s"], &["y"]), vec![ints("axes", &[0])])),
    ];
    let inputs = [("x", &[2, 3, 6, 6]), ("w", &[4, 3, 3, 3]), ("v", &[4, 4, 1, 1])];
    let mut graph = graph(inputs.map(|(name, dims)| value(name, DataType::Float, dims)).to_vec(), nodes, &["y"]);
    graph.initializer = vec![weights("w", &[4, 3, 3, 3], 1, 0.5), weights("v", &[4, 4, 1, 1], 2, 1.0)];
    ModelProto { ir_version: Some(3), opset_import: vec![opset("", 9)], ..model(graph) }
}

#[test]
fn old_operator_sets_are_raised() {
    let file = File::of(&old());
    // Three batches of two.
    let data = samples(&[6, 3, 6, 6], 1);
    let found = quantize(&compiler(), file.path(), &data, &QuantizeOptions::default()).unwrap();
    let made = ModelProto::decode(found.bytes()).unwrap();
    assert_eq!((made.ir_version, made.opset_import.clone()), (Some(7), vec![opset("", 13)]));
    assert_eq!(made.graph.as_ref().unwrap().input.len(), 1);
    let loss = found.loss(99).unwrap();
    assert_eq!(loss.runs, 3);
    assert!(loss.outputs[0].snr > 35.0, "{loss:?}");
    // Positions of old enlargements are no attribute of later ones.
    let mut enlarged = old();
    let graph = enlarged.graph.as_mut().unwrap();
    graph.node.push(with(node("Upsample", &["f", "factors"], &["u"]), vec![text("mode", "nearest")]));
    graph.initializer.push(f32s("factors", &[4], &[1.0, 1.0, 2.0, 2.0]));
    graph.output.push(untyped("u"));
    let refused = quantize(&compiler(), File::of(&enlarged).path(), &data, &QuantizeOptions::default());
    let message = refused.err().unwrap().to_string();
    assert!(message.starts_with("Upsample `u` of operator set 9 has no form in operator set 13"), "{message}");
}

#[test]
fn branches_stay_as_they_are() {
    let inner = |op: &str, name: &str| graph(vec![], vec![node(op, &["p"], &[name])], &[name]);
    let choice = with(
        node("If", &["flag"], &["y"]),
        vec![branch("then_branch", inner("Neg", "a")), branch("else_branch", inner("Abs", "b"))],
    );
    let nodes = vec![named("up", node("MatMul", &["x", "w"], &["p"])), choice];
    let inputs = vec![value("x", DataType::Float, &[4, 16]), value("flag", DataType::Bool, &[])];
    let mut graph = graph(inputs, nodes, &["y"]);
    graph.initializer = vec![weights("w", &[16, 8], 1, 0.5)];
    let flag = Tensor::from_bytes(tensorc::DType::Bool, &[], vec![1u8]).unwrap();
    let mut data = samples(&[4, 16], 2);
    data.iter_mut().for_each(|s| s.push(("flag".to_owned(), flag.clone())));
    let found = quantised(graph, &data, &QuantizeOptions::default()).unwrap();
    assert_eq!(found.layers(), ["up"]);
    assert!(found.loss(2).unwrap().outputs[0].snr > 30.0);
}

#[test]
fn external_data_is_read_and_large_models_have_it_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut graph = mlp();
    let w = graph.initializer.iter().position(|t| t.name() == "w0").unwrap();
    let raw = graph.initializer[w].raw_data.clone().unwrap();
    std::fs::write(folder.path().join("w.bin"), &raw).unwrap();
    graph.initializer[w] = external("w0", &[40, 72], &[("location", "w.bin")]);
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, encoded(&model(graph))).unwrap();
    let data = samples(&[8, 40], 2);
    let found = quantize(&compiler(), &path, &data, &QuantizeOptions::default()).unwrap();
    let other = quantised(mlp(), &data, &QuantizeOptions::default()).unwrap();
    assert_eq!(found.bytes(), other.bytes());
}

#[track_caller]
fn refusal(samples: &[Sample], options: &QuantizeOptions) -> String {
    quantised(mlp(), samples, options).err().expect("the model is not quantised").to_string()
}

#[test]
fn bad_input_is_refused() {
    let whole = QuantizeOptions::default();
    assert_eq!(refusal(&[], &whole), "scales of activations need calibration data");
    let sample = |name: &str, dims: &[u64], values: &[f32]| {
        vec![vec![(name.to_owned(), Tensor::from_f32(dims, values).unwrap())]]
    };
    let mut values = random(320, 1, 1.0);
    let other = sample("z", &[8, 40], &values);
    assert_eq!(refusal(&other, &whole), "the model has no input `z`; it takes: x");
    assert_eq!(refusal(&[vec![]], &whole), "input `x` is missing; the model takes: x");
    let odd = sample("x", &[10, 32], &values);
    assert_eq!(refusal(&odd, &whole), "input `x` of sample 0 has 10 rows; the model takes 8 at a time");
    assert!(refusal(&sample("x", &[8, 20], &values[..160]), &whole).contains('x'));
    values[7] = f32::NAN;
    assert_eq!(refusal(&sample("x", &[8, 40], &values), &whole), "input `x` of sample 0 holds NaN or an infinity");
    let data = samples(&[8, 40], 1);
    for (mode, message) in [
        (QuantizeMode::Weights { bits: 3, block: 32 }, "weights have 4 or 8 bits, not 3"),
        (QuantizeMode::Weights { bits: 4, block: 24 }, "a block has a power of two of weights from 16 on, not 24"),
        (
            QuantizeMode::Static { method: CalibrationMethod::Percentile(40.0), activations: ActivationType::U8 },
            "a percentile of 40 is not above 50 and at most 100",
        ),
    ] {
        assert_eq!(refusal(&data, &of(mode)), message);
    }
    let mut infinite = mlp();
    infinite.node[2] = named("act", node("Log", &["a0"], &["t"]));
    let message = quantised(infinite, &data, &whole).err().unwrap().to_string();
    assert!(message.starts_with("value `d` is NaN") || message.starts_with("value `t` is NaN"), "{message}");
}

#[test]
fn the_file_is_written_whole_or_not_at_all() {
    let file = File::of(&model(mlp()));
    let found = quantize(&compiler(), file.path(), &samples(&[8, 40], 1), &QuantizeOptions::default()).unwrap();
    let message = |path: &Path| found.save(path).err().unwrap().to_string();
    let before = std::fs::read(file.path()).unwrap();
    assert!(message(&file.path()).ends_with("the quantised model would replace the model that it is made from"));
    assert_eq!(std::fs::read(file.path()).unwrap(), before);
    let missing = file.folder.path().join("no/such/folder.onnx");
    assert!(message(&missing).starts_with(&missing.display().to_string()));
    let out = file.folder.path().join("out.onnx");
    found.save(&out).unwrap();
    let files: Vec<_> = std::fs::read_dir(file.folder.path()).unwrap().collect();
    assert_eq!(files.len(), 2);
    assert!(compiler().load(&out).is_ok());
    let text = quantize(&compiler(), "model.tc", &[], &of(QuantizeMode::Dynamic)).err().unwrap().to_string();
    assert_eq!(text, "model.tc: only ONNX models are quantised");
    assert!(quantize(&compiler(), "missing.onnx", &[], &of(QuantizeMode::Dynamic)).is_err());
}
