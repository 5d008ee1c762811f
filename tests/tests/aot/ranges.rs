//! Artifacts for ranges of extents: one plan for many shapes, with the bits of the model compiled in this process.

use std::collections::BTreeMap;

use tensorc::abi::DType;
use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest, ExtentRange};
use tensorc::ir::TensorData;
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::text::parse_module;
use tensorc::runtime::artifact::{Artifact, LoadOptions, ModelContext};
use tensorc::runtime::{Pool, TensorMut, TensorRef};
use tensorc::{Compiler, Model, Options};
use tensorc_ir::Dim;
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{data, tensor};

use super::{exists, request};
use crate::open_shapes::{CASES, types, values};
use crate::support::backend::options;

/// The names of the open dimensions of the inputs, in order.
fn names(graph: &Graph) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for node in graph.inputs() {
        for dim in graph.resolved(Value { node: *node, port: 0 }).shape.dims().unwrap() {
            if let Dim::Sym(id) = dim
                && !names.iter().any(|name| **name == *graph.dims.name(*id))
            {
                names.push(graph.dims.name(*id).to_string());
            }
        }
    }
    names
}

/// The least range that has some extents, with the greatest step.
fn range_of(extents: Vec<u64>) -> ExtentRange {
    let (first, last) = (extents.iter().min().unwrap(), extents.iter().max().unwrap());
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let step = extents.iter().fold(0, |step, n| gcd(step, n - first)).max(1);
    ExtentRange { first: *first, last: *last, step }
}

/// The model as a library.
pub fn library(model: &Model, request: AotRequest) -> (tempfile::TempDir, Artifact, aot::Artifact) {
    let made = aot::compile(model, &request).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.so");
    link(LinkOutput::SharedLibrary, "m", &made.object, request.target, &Tools::default(), &path).unwrap();
    std::fs::write(dir.path().join("m.weights"), made.weights.as_deref().unwrap()).unwrap();
    let loaded = Artifact::load(&path, &LoadOptions::default()).unwrap();
    (dir, loaded, made)
}

/// Type, shape and bytes of a tensor.
pub type Output = (DType, Vec<u64>, Vec<u8>);

/// What a context gives for some inputs.
pub fn run(context: &mut ModelContext<'_>, inputs: &[TensorData]) -> Result<Vec<Output>, String> {
    let described: Vec<(DType, &[u64])> = inputs.iter().map(|data| (data.dtype(), data.dims())).collect();
    let outputs = context.outputs(&described).map_err(|e| e.to_string())?;
    let room = |(dtype, dims): &(DType, Vec<u64>)| vec![0u8; dims.iter().product::<u64>() as usize * dtype.size()];
    let mut memory: Vec<Vec<u8>> = outputs.iter().map(room).collect();
    let reads: Vec<TensorRef<'_>> =
        inputs.iter().map(|data| TensorRef::new(data.dtype(), data.dims(), data.bytes())).collect();
    let types = outputs.iter().zip(&mut memory);
    let mut writes: Vec<TensorMut<'_>> =
        types.map(|((dtype, dims), bytes)| TensorMut::new(*dtype, dims, bytes)).collect();
    context.run(&reads, &mut writes).map_err(|e| e.to_string())?;
    let mut outputs = outputs;
    for (((dtype, dims), memory), found) in outputs.iter_mut().zip(&mut memory).zip(context.found_shapes()) {
        memory.truncate(found.iter().product::<u64>() as usize * dtype.size());
        dims.clone_from(found);
    }
    Ok(outputs.into_iter().zip(memory).map(|((dtype, dims), bytes)| (dtype, dims, bytes)).collect())
}

#[test]
fn one_artifact_has_the_bits_of_every_shape() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(2), ..options() }).unwrap();
    let pool = Pool::new(2).unwrap();
    for case in CASES {
        let text = format!("tensorc-ir 1\n{}", case.text);
        let graph = parse_module(&text, compiler.registry()).unwrap().graphs.remove(0);
        let model = compiler.model(graph.clone());
        let range = |i: usize| range_of(case.extents.iter().map(|extents| extents[i]).collect());
        let ranges = names(&graph).into_iter().enumerate().map(|(i, name)| (name, range(i))).collect();
        let (_dir, artifact, made) = library(&model, AotRequest { ranges, ..request("m", "native") });
        assert_eq!(made.manifest.variants[0].many, case.all, "{}", case.name);
        let mut context = artifact.context(&pool).unwrap();
        for (seed, extents) in case.extents.iter().enumerate() {
            let inputs = values(&types(&graph, extents), seed as u64);
            let shapes: Vec<&[u64]> = inputs.iter().map(TensorData::dims).collect();
            let found = run(&mut context, &inputs).unwrap_or_else(|e| panic!("{} {extents:?}: {e}", case.name));
            let given: Vec<(String, tensorc::Tensor)> =
                graph.inputs().iter().map(|n| graph.node(*n).name.to_string()).zip(inputs.iter().map(tensor)).collect();
            let given: Vec<_> = given.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
            let expected = model.run(&given).unwrap();
            assert_eq!(found.len(), expected.len());
            for ((dtype, dims, bytes), (name, expected)) in found.iter().zip(&expected) {
                let expected = data(expected);
                assert_eq!((*dtype, &dims[..]), (expected.dtype(), expected.dims()), "{} {name}", case.name);
                assert!(bytes[..] == expected.bytes()[..], "{} {name} {extents:?}: other bits", case.name);
            }
            // In as much memory as the shape takes.
            let needed = artifact.memory_for(&shapes, 2).unwrap();
            assert!(needed <= artifact.memory_bytes(2), "{} {extents:?}", case.name);
            let mut memory = vec![[0u8; 64]; (needed as usize).div_ceil(64) + 1];
            let whole = memory.as_flattened_mut();
            let skip = whole.as_ptr().align_offset(64);
            let own = &mut whole[skip..skip + needed as usize];
            let mut own = artifact.context_in(&pool, own).unwrap();
            assert!(run(&mut own, &inputs).unwrap() == found, "{} {extents:?} in {needed} B", case.name);
        }
    }
}

/// Integers of 32 bits that depend on extents, and a dimension that the request fixes.
#[test]
fn constants_depend_on_extents() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n, ?m, 8]) {\n  %s = shape(%x)\n  %c = cast(%s) {to = i32}\n  \
                %y = add(%x, %x)\n  return %c, %s, %y\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let graph = model.graph().clone();
    let ranges = BTreeMap::from([("n".into(), (2, 40).into())]);
    let fixed = BTreeMap::from([("m".into(), vec![6])]);
    let request = AotRequest { ranges, shapes: fixed, ..request("m", "native") };
    let (_dir, artifact, made) = library(&model, request);
    let dims = |i: usize| made.manifest.outputs[i].dims.join(", ");
    assert_eq!((made.manifest.inputs[0].dims.join(", "), dims(2)), ("n, 6, 8".into(), "n, 6, 8".into()));
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for n in [2, 40, 7] {
        let found = run(&mut context, &values(&types(&graph, &[n, 6]), n)).unwrap();
        let words: Vec<u8> = [n as i32, 6, 8].into_iter().flat_map(i32::to_le_bytes).collect();
        assert_eq!(found[0], (DType::I32, vec![3], words));
    }
    let error = run(&mut context, &values(&types(&graph, &[7, 5]), 1)).unwrap_err();
    assert!(error.contains("no variant"), "{error}");
}

/// A range may have the name of an input with one axis.
#[test]
fn ranges_can_be_those_of_inputs() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n]) {\n  %y = add(%x, %x)\n  return %y\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let graph = model.graph().clone();
    let ranges = BTreeMap::from([("x".into(), (2, 90).into())]);
    let (_dir, artifact, made) = library(&model, AotRequest { ranges, ..request("m", "native") });
    assert_eq!(made.manifest.variants.len(), 1);
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for n in [2, 90, 31] {
        assert_eq!(run(&mut context, &values(&types(&graph, &[n]), 1)).unwrap()[0].1, [n]);
    }
}

/// A dimension with one element or none is told apart before a long one is divided.
#[test]
fn short_ranges_beside_long_ones_take_few_plans() {
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n, ?m]) {\n  %y = softmax(%x)\n  return %y\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let ranges = BTreeMap::from([("n".into(), (1, 2).into()), ("m".into(), (2, 1_000_000).into())]);
    let made = aot::compile(&model, &AotRequest { ranges, ..request("m", "native") }).unwrap();
    assert!(made.manifest.variants.len() <= 40, "{} plans", made.manifest.variants.len());
}

#[test]
fn ranges_have_steps() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    // Halves and twice that fit only even extents.
    let text = "tensorc-ir 1\ngraph @main(%x: f32[1, 2, ?h, 6]) {\n  \
                %p = max_pool(%x) {kernel_shape = [2, 1], strides = [2, 1]}\n  %roi = const f32[0] []\n  \
                %scales = const f32[4] [1.0, 1.0, 2.0, 1.0]\n  \
                %u = resize(%p, %roi, %scales) {coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"}\n  \
                %y = add(%u, %x)\n  return %y\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let graph = model.graph().clone();
    let range = ExtentRange { first: 4, last: 40, step: 4 };
    let (_dir, artifact, made) =
        library(&model, AotRequest { ranges: BTreeMap::from([("h".into(), range)]), ..request("m", "native") });
    assert_eq!(made.manifest.ranges().collect::<Vec<_>>(), [("h", 4, 40, 4)]);
    assert!(made.header.contains("h is 4 to 40, in steps of 4"), "{}", made.header);
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let inputs = |h: u64| values(&types(&graph, &[h]), h);
    for h in (4..=40).step_by(4) {
        let found = run(&mut context, &inputs(h)).unwrap();
        let expected = model.run(&[("x", tensor(&inputs(h)[0]))]).unwrap();
        assert!(found[0].2[..] == data(&expected[0].1).bytes()[..], "{h}");
    }
    for h in [2, 6, 10, 44] {
        let error = run(&mut context, &inputs(h)).unwrap_err();
        assert!(error.contains("compiled for h = 4..=40/4"), "{error}");
    }
    let odd = AotRequest { ranges: BTreeMap::from([("h".into(), (4, 40).into())]), ..request("m", "native") };
    let error = aot::compile(&model, &odd).err().unwrap().to_string();
    assert!(error.contains("with h = 5"), "{error}");
}

#[test]
fn shapes_and_memory_that_do_not_fit_are_errors() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n, 64], %w: f32[64, 32]) {\n  %y = matmul(%x, %w)\n  \
                %axes = const i64[1] [1]\n  %z = softmax(%y) {axis = 0}\n  %s = reduce_sum(%z, %axes)\n  return %s\n}\n";
    let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    let (_dir, artifact, made) = library(
        &compiler.model(graph.clone()),
        AotRequest { ranges: BTreeMap::from([("n".into(), (3, 500).into())]), ..request("m", "native") },
    );
    assert_eq!(made.manifest.variants.len(), 1);
    assert!(made.manifest.variants[0].many);
    assert_eq!(made.manifest.variants[0].extents, [500]);
    let pool = Pool::new(1).unwrap();
    let inputs = |n: u64| values(&types(&graph, &[n]), 1);
    let mut context = artifact.context(&pool).unwrap();
    let right = run(&mut context, &inputs(7)).unwrap();
    for n in [0, 1, 2, 501] {
        let error = run(&mut context, &inputs(n)).unwrap_err();
        assert!(error.contains("no variant for `x`") && error.contains("compiled for n = 3..=500"), "{error}");
        assert_eq!(artifact.memory_for(&[&[n, 64], &[64, 32]], 1), None);
    }
    assert!(run(&mut context, &inputs(7)).unwrap() == right, "after errors");
    let few = artifact.memory_for(&[&[7, 64], &[64, 32]], 1).unwrap();
    let most = artifact.memory_for(&[&[500, 64], &[64, 32]], 1).unwrap();
    assert!(few < most && most <= artifact.memory_bytes(1), "{few} {most}");
    let mut memory = vec![0u8; few as usize + 64];
    let skip = memory.as_ptr().align_offset(64);
    let mut small = artifact.context_in(&pool, &mut memory[skip..skip + few as usize]).unwrap();
    assert!(run(&mut small, &inputs(7)).unwrap() == right);
    let error = run(&mut small, &inputs(500)).unwrap_err();
    assert!(error.contains(&format!("takes {most} bytes of memory, the context has {few}")), "{error}");
    assert!(run(&mut small, &inputs(7)).unwrap() == right, "after an error");
}
