//! Artifacts of models whose shapes depend on values: parts, and the host between them.

use std::path::Path;
use std::process::Command;

use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest, ExtentRange, bindings};
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::runtime::artifact::{Artifact, LoadOptions};
use tensorc::runtime::{Pool, TensorMut, TensorRef};
use tensorc::{Compiler, DType, Model, Options};
use tensorc_abi::image::MAGIC;
use tensorc_data::formats::read_arrays;
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{data, tensor};

use super::ranges::{Output, library, run};
use super::{checked, exists, request};
use crate::parts::{CASES, SIZES};
use crate::support::backend::options;

/// The ranges of open dimensions, and of numbers that are given or computed.
fn ranges(case: &str) -> Vec<(&'static str, (u64, u64))> {
    match case {
        "rows of open tensors" => vec![("rows", (3, 103))],
        "inputs that decide shapes" => vec![("count.0", (0, 100)), ("to.0", (1, 101)), ("to.1", (0, 100))],
        "ends without a limit" => vec![("from.0", (1, 1))],
        _ => vec![],
    }
}

fn model(text: &str, threads: usize) -> Model {
    let compiler = Compiler::new(Options { threads: Some(threads), ..options() }).unwrap();
    let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    compiler.model(graph)
}

/// A name, and the least and the greatest of its range.
pub type Stated<'a> = (&'a str, (u64, u64));

pub fn with(ranges: &[Stated<'_>]) -> AotRequest {
    let ranges = ranges.iter().map(|(name, range)| (String::from(*name), ExtentRange::from(*range))).collect();
    AotRequest { ranges, ..request("m", "native") }
}

fn shapes(outputs: &[Output]) -> Vec<&[u64]> {
    outputs.iter().map(|(_, dims, _)| &dims[..]).collect()
}

/// What the model gives when it is compiled in this process.
pub fn expected(model: &Model, inputs: &[TensorData]) -> Vec<Output> {
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    let named: Vec<_> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let results = model.run(&named).unwrap();
    let one = |(_, tensor)| {
        let data = data(&tensor);
        (data.dtype(), data.dims().to_vec(), data.bytes().to_vec())
    };
    results.into_iter().map(one).collect()
}

#[test]
fn parts_have_the_bits_of_every_size() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(2).unwrap();
    let mut failures = vec![];
    for case in CASES {
        // An end that is computed beside an open extent takes more plans than an artifact has.
        let (text, sizes) = match case.name {
            "ends without a limit" => (case.text.replace("?rows", "66"), &[64][..]),
            _ => (case.text.to_owned(), &SIZES[..]),
        };
        let model = model(&text, 2);
        let made = aot::compile(&model, &with(&ranges(case.name)));
        if let Err(error) = made {
            failures.push(format!("{}: {error}", case.name));
            continue;
        }
        let (_dir, artifact, made) = library(&model, with(&ranges(case.name)));
        assert!(!made.manifest.found.is_empty(), "{}", case.name);
        let mut context = artifact.context(&pool).unwrap();
        let mut memory = vec![[0u8; 64]; artifact.memory_bytes(2) as usize / 64 + 2];
        let whole = memory.as_flattened_mut();
        let (skip, needed) = (whole.as_ptr().align_offset(64), artifact.memory_bytes(2) as usize);
        let mut own = artifact.context_in(&pool, &mut whole[skip..skip + needed]).unwrap();
        let mut rng = Rng::new(7);
        for size in sizes.iter().copied() {
            let inputs = (case.inputs)(size, &mut rng);
            let expected = expected(&model, &inputs);
            for found in [run(&mut context, &inputs), run(&mut own, &inputs)] {
                match found {
                    Ok(found) if found == expected => {}
                    Ok(found) => {
                        let (found, expected) = (shapes(&found), shapes(&expected));
                        failures.push(format!("{} {size}: other bits, {found:?} {expected:?}", case.name));
                    }
                    Err(error) => failures.push(format!("{} {size}: {error}", case.name)),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn f32s(dims: &[u64], values: &[f32]) -> TensorData {
    let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
    TensorData::new(DenseType::new(DType::F32, dims), bytes.into()).unwrap()
}

const BEST: &str = "graph @main(%x: f32[?n, 16], %k: i64[1]) {
  %y = topk(%x, %k) {axis = 1} : (f32[?n, ?k], i64[?n, ?k])
  %s = reduce_sum(%x)
  return %y, %y:1, %s
}";

/// The range of a number follows from the axis that it is taken of; what lies beyond is an error before the part runs.
#[test]
fn numbers_out_of_range_are_named() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let model = model(BEST, 1);
    let (_dir, artifact, made) = library(&model, with(&[("n", (1, 40))]));
    assert_eq!(made.manifest.found, [("k.0".to_owned(), 0, 16)]);
    assert!(made.header.contains("k.0 is 0 to 16, known in a run"), "{}", made.header);
    assert_eq!(made.manifest.outputs[0].dims, ["n", "k.0"]);
    assert!(bindings::write(&made.manifest).contains("pub fn found_shapes(&self)"));
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let inputs = |n: u64, k: i64| {
        let values: Vec<f32> = (0..n * 16).map(|i| (i * 37 % 101) as f32).collect();
        vec![f32s(&[n, 16], &values), TensorData::i64s(&[1], &[k]).unwrap()]
    };
    for (n, k) in [(1, 0), (1, 1), (40, 16), (7, 5), (7, 1), (2, 16), (3, 0)] {
        assert!(run(&mut context, &inputs(n, k)).unwrap() == expected(&model, &inputs(n, k)), "{n} {k}");
    }
    for (k, said) in [(17, "17"), (-1, "-1"), (i64::MIN, "-9223372036854775808"), (1 << 40, "1099511627776")] {
        let error = run(&mut context, &inputs(7, k)).unwrap_err();
        assert_eq!(error, format!("`k.0` is {said}, the model was compiled for 0..=16"));
        assert!(run(&mut context, &inputs(7, 5)).unwrap() == expected(&model, &inputs(7, 5)), "after an error");
    }
    let error = run(&mut context, &inputs(41, 5)).unwrap_err();
    assert!(error.contains("compiled for n = 1..=40"), "{error}");
    assert_eq!(artifact.memory_for(&[&[41, 16], &[1]], 1), None);
    assert_eq!(artifact.memory_for(&[&[4, 16], &[1]], 1), Some(artifact.memory_bytes(1)));
    // The memory of an output is too small for what is found.
    let (x, k) = (&inputs(7, 5)[0], &inputs(7, 5)[1]);
    let reads = [TensorRef::new(DType::F32, x.dims(), x.bytes()), TensorRef::new(DType::I64, k.dims(), k.bytes())];
    let mut memory = [vec![0u8; 7 * 5 * 4], vec![0; 7 * 5 * 8 - 1], vec![0; 4]];
    let [a, b, c] = &mut memory;
    let mut writes =
        [TensorMut::new(DType::F32, &[], a), TensorMut::new(DType::I64, &[], b), TensorMut::new(DType::F32, &[], c)];
    let error = context.run(&reads, &mut writes).unwrap_err().to_string();
    assert!(error.contains("needs 280 bytes"), "{error}");
    let small = artifact.context_in(&pool, &mut []).err().unwrap().to_string();
    assert!(small.contains("memory"), "{small}");
}

/// Where a condition relates a number that is found to an extent, what no model takes costs no plans.
#[test]
fn numbers_may_be_bounded_by_open_extents() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let text = BEST.replace("?n, 16", "16, ?n").replace("[?n, ?k]", "[16, ?k]");
    let model = model(&text, 1);
    let (_dir, artifact, made) = library(&model, with(&[("n", (1, 300))]));
    assert_eq!(made.manifest.found, [("k.0".to_owned(), 0, 300)]);
    assert!(made.manifest.variants.len() < 20, "{} plans", made.manifest.variants.len());
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let inputs = |n: u64, k: i64| {
        let values: Vec<f32> = (0..n * 16).map(|i| (i * 37 % 101) as f32).collect();
        vec![f32s(&[16, n], &values), TensorData::i64s(&[1], &[k]).unwrap()]
    };
    for (n, k) in [(1, 0), (1, 1), (300, 300), (300, 7), (7, 7), (7, 1), (2, 2)] {
        assert!(run(&mut context, &inputs(n, k)).unwrap() == expected(&model, &inputs(n, k)), "{n} {k}");
    }
    let error = run(&mut context, &inputs(7, 8)).unwrap_err();
    assert!(error.contains("no variant for `n` [7], `k.0` [8]"), "{error}");
}

/// Values that go around parts: inputs and what the host finds as outputs, one twice, a constant, and extents of which alone use is
/// made.
#[test]
fn outputs_are_of_any_origin() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let text = "graph @main(%x: f32[?n, 2], %mask: i8[?n]) {
  %found = nonzero(%mask)
  %u = unique(%mask) {sorted = false} : (i8[?u], i64[?u], i64[?n], i64[?u])
  %c = const i16[3] [1, -2, 3]
  %mask_b = cast(%mask) {to = bool}
  %some = compress(%c, %mask_b)
  %few = compress(%x, %mask_b) {axis = 0}
  %shape = shape(%found)
  return %x, %found, %u:2, %found, %c, %some, %few, %shape
}";
    let model = model(text, 1);
    let (_dir, artifact, _) = library(&model, with(&[("n", (0, 20))]));
    let pool = Pool::new(1).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    for n in [0, 1, 2, 20] {
        let values: Vec<f32> = (0..n * 2).map(|i| i as f32).collect();
        let marks =
            TensorData::new(DenseType::new(DType::I8, [n]), (0..n).map(|i| (i % 3) as u8).collect::<Vec<_>>().into());
        let inputs = vec![f32s(&[n, 2], &values), marks.unwrap()];
        let (found, expected) = (run(&mut context, &inputs).unwrap(), expected(&model, &inputs));
        assert_eq!(shapes(&found), shapes(&expected));
        assert!(found == expected, "{n}");
    }
}

/// What has no form in an artifact is named.
#[test]
fn what_artifacts_do_not_know_is_named() {
    let reshape = "graph @main(%x: f32[4, 6], %k: i64[2]) {
  %y = reshape(%x, %k)
  return %y
}";
    let range = "graph @main(%n: i64[]) {
  %zero = const i64[] [0]
  %one = const i64[] [1]
  %y = range(%zero, %n, %one)
  return %y
}";
    let resize = "graph @main(%x: f32[1, 1, 4, 4], %scales: f32[4]) {
  %roi = const f32[0] []
  %y = resize(%x, %roi, %scales)
  return %y
}";
    let cases: [(&str, &[Stated<'_>], &str); 4] = [
        (
            reshape,
            &[],
            "`k` decides shapes, and which numbers the operators behind it take does not follow from the model: give --shape k.0=FIRST..LAST",
        ),
        (range, &[], "`n` decides shapes, and tensors grow with it without limit: give --shape n.0=FIRST..LAST"),
        (resize, &[], "`scales` decides shapes by floats"),
        (range, &[("n.0", (0, 9)), ("m", (1, 2))], "shape of `m`: no such input or open dimension"),
    ];
    for (text, ranges, said) in cases {
        let error = aot::compile(&model(text, 1), &with(ranges)).err().unwrap().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

/// The image of a part, or of the whole, with another word is refused before anything runs.
#[test]
fn damaged_images_are_refused() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let request = with(&[("n", (1, 40))]);
    let made = aot::compile(&model(BEST, 1), &request).unwrap();
    let magic = MAGIC.to_le_bytes();
    let images: Vec<usize> =
        made.object.windows(8).enumerate().filter(|(_, word)| **word == magic).map(|(at, _)| at).collect();
    assert_eq!(images.len(), 3, "the whole and two parts");
    let pool = Pool::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (case, at) in images.iter().flat_map(|at| [at + 8 * 2, at + 8 * 10, at + 8 * 18, at + 8 * 40]).enumerate() {
        let mut object = made.object.clone();
        object[at] ^= 1;
        let path = dir.path().join(format!("m{case}.so"));
        link(LinkOutput::SharedLibrary, "m", &object, request.target, &Tools::default(), &path).unwrap();
        std::fs::write(path.with_extension("weights"), made.weights.as_deref().unwrap()).unwrap();
        let loaded = Artifact::load(&path, &LoadOptions::default());
        let error = match &loaded {
            Ok(artifact) => artifact.context(&pool).err().unwrap().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("damaged"), "case {case}: {error}");
    }
}

fn npy(path: &Path, dims: &[u64], dtype: &str, bytes: &[u8]) {
    let shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}");
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{header:117}\n").into_bytes());
    npy.extend(bytes);
    std::fs::write(path, npy).unwrap();
}

/// A program prints and saves as much as was found.
#[test]
fn programs_save_what_was_found() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let case = &CASES[0];
    let model = model(case.text, 1);
    let request = AotRequest { program: true, embed_weights: true, ..with(&[]) };
    let made = aot::compile(&model, &request).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("m");
    link(LinkOutput::Program, "m", &made.object, request.target, &Tools::default(), &program).unwrap();
    let mut rng = Rng::new(3);
    for size in [17, 0, 1] {
        let inputs = (case.inputs)(size, &mut rng);
        let mut command = Command::new(&program);
        command.args(["--repeat", "2", "--threads", "2", "-o"]).arg(dir.path());
        for (i, data) in inputs.iter().enumerate() {
            let path = dir.path().join(format!("{i}.npy"));
            npy(&path, data.dims(), "<f4", data.bytes());
            command.arg(path);
        }
        let printed = String::from_utf8(checked(&mut command).stdout).unwrap();
        assert!(printed.contains(&format!("y: f4[{size}, 24] =")), "{printed}");
        for ((name, _), (dtype, dims, bytes)) in model.outputs().iter().zip(expected(&model, &inputs)) {
            let (_, array) = read_arrays(dir.path().join(format!("{name}.npy"))).unwrap().remove(0);
            assert_eq!((array.dtype(), array.dims()), (dtype, &dims[..]), "{name}");
            assert!(array.bytes()[..] == bytes[..], "{name}");
        }
    }
}

/// A program in C learns from the calls how much was found, in memory of its own.
#[test]
fn a_c_program_learns_what_was_found() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let model = model(BEST, 1);
    let request = AotRequest { embed_weights: true, ..with(&[("n", (1, 40))]) };
    let made = aot::compile(&model, &request).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (library, program) = (dir.path().join("m.a"), dir.path().join("found"));
    link(LinkOutput::StaticLibrary, "m", &made.object, request.target, &Tools::default(), &library).unwrap();
    std::fs::write(dir.path().join("m.h"), &made.header).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aot/found.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-std=c11", "-o"]).arg(&program).arg("-I").arg(dir.path());
    checked(cc.arg(source).arg(library).args(["-lm", "-lpthread"]));
    let printed = String::from_utf8(checked(Command::new(&program).args(["5", "17", "0", "1"])).stdout).unwrap();
    let values: Vec<f32> = (0..7 * 16).map(|i| (i * 37 % 101) as f32).collect();
    let line = |k: i64| {
        let outputs = expected(&model, &[f32s(&[7, 16], &values), TensorData::i64s(&[1], &[k]).unwrap()]);
        let indices = outputs[1].2.chunks(8).map(|b| format!(" {}", i64::from_le_bytes(b.try_into().unwrap())));
        format!("most 16 of 5120 bytes; 2: 7, {k}:{}", indices.collect::<String>())
    };
    let refused = "most 16 of 5120 bytes; 13: `k.0` is 17, the model was compiled for 0..=16".to_owned();
    assert_eq!(printed.lines().collect::<Vec<_>>(), [line(5), refused, line(0), line(1)]);
}
