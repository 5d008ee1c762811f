//! Conversions of narrow types (`docs/numerics.md`): the codes that ONNX's reference gives (`tests/narrow/make.py`), by definition,
//! by the interpreter and by compiled code; and narrow tensors in models, files and operators.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use tensorc::ir::interp::eval_graph;
use tensorc::ir::scalar::{NarrowRounding, Scalar, ScaleRounding};
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, DType, Options, Session};
use tensorc_tests::compare::{data, tensor};
use tensorc_tests::operators::same_bits;
use zip::ZipArchive;

use crate::support::backend::options;
use crate::support::stored::COMPILER;

const RESULTS: &[u8] = include_bytes!("../narrow/results.zip");
/// Distance of the bits of stored f32 numbers.
const STRIDE: u32 = 65521;

fn narrow_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_narrow())
}

/// The bytes that are elements of a type.
fn codes(dtype: DType) -> TensorData {
    let all: Vec<u8> = (0..=u8::MAX).filter(|byte| dtype.holds(*byte)).collect();
    TensorData::new(DenseType::new(dtype, [all.len() as u64]), all.into()).unwrap()
}

/// The results of the reference, by name.
fn stored() -> BTreeMap<String, Vec<u8>> {
    let mut archive = ZipArchive::new(Cursor::new(RESULTS)).unwrap();
    let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let mut read = |name: String| {
        let mut bytes = vec![];
        archive.by_name(&name).unwrap().read_to_end(&mut bytes).unwrap();
        (name, bytes)
    };
    names.into_iter().map(&mut read).collect()
}

/// The numbers that results are stored of.
fn numbers(source: &str) -> TensorData {
    let single = |i: u64| f32::from_bits(i as u32 * STRIDE);
    let above = |x: f64| Scalar { dtype: DType::F64, bits: (x * (1.0 + 2f64.powi(-40))).to_bits() };
    let dense = |dtype: DType, count: u64| DenseType::new(dtype, [count]);
    let count = (1 << 32) / u64::from(STRIDE);
    match source {
        "f16" => TensorData::from_fn(dense(DType::F16, 1 << 16), |i| Scalar { dtype: DType::F16, bits: i }),
        "f32" => TensorData::from_fn(dense(DType::F32, count), |i| Scalar::f32(single(i))),
        "f64" => TensorData::from_fn(dense(DType::F64, count), |i| above(f64::from(single(i)))),
        _ => TensorData::from_fn(dense(DType::F64, 254), |i| above(2f64.powi(i as i32 - 127))),
    }
}

/// What the name of a result says of the conversion.
fn rounding(how: &[&str]) -> NarrowRounding {
    let scale = match how {
        [_, "down"] => ScaleRounding::Down,
        [_, "nearest"] => ScaleRounding::Nearest,
        _ => ScaleRounding::Up,
    };
    NarrowRounding { saturate: how[0] != "beyond", scale }
}

/// A graph of conversions of one input, computed by the interpreter and by compiled code, which must agree.
fn converted(compiler: &Compiler, x: &TensorData, casts: &[(DType, NarrowRounding)]) -> Vec<TensorData> {
    let cast = |(i, (to, how)): (usize, &(DType, NarrowRounding))| {
        let mode = format!("{:?}", how.scale).to_lowercase();
        format!("  %y{i} = cast(%x) {{to = {to}, saturate = {}, round_mode = \"{mode}\"}}\n", how.saturate)
    };
    let body: String = casts.iter().enumerate().map(cast).collect();
    let results: Vec<String> = (0..casts.len()).map(|i| format!("%y{i}")).collect();
    let text = format!("graph @main(%x: {}) {{\n{body}  return {}\n}}\n", x.ty, results.join(", "));
    computed(compiler, &text, std::slice::from_ref(x))
}

/// What the interpreter and compiled code make of a graph.
fn computed(compiler: &Compiler, text: &str, inputs: &[TensorData]) -> Vec<TensorData> {
    let module = parse_module(text, compiler.registry()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut graph = module.graphs.into_iter().next().unwrap();
    let mut session = Session::new(compiler, graph.clone()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let given: Vec<_> = inputs.iter().map(tensor).collect();
    let compiled: Vec<TensorData> = session.run(&given).unwrap().iter().map(data).collect();
    tensorc::passes::infer::infer_graph(&mut graph, compiler.registry(), 1 << 20).unwrap();
    let interpreted = eval_graph(&graph, compiler.registry(), inputs).unwrap();
    for (one, other) in compiled.iter().zip(&interpreted) {
        same_bits(one, other).unwrap_or_else(|why| panic!("{text}\n{why}"));
    }
    compiled
}

#[test]
fn numbers_get_the_codes_of_the_reference() {
    let stored = stored();
    for source in ["f16", "f32", "f64", "powers"] {
        let x = numbers(source);
        let of_source = stored.iter().filter_map(|(name, codes)| {
            let parts: Vec<&str> = name.split('.').collect();
            let [dtype, found, how @ ..] = &parts[..] else { return None };
            (*found == source).then(|| (DType::from_name(dtype).unwrap(), rounding(how), name, codes))
        });
        let of_source: Vec<_> = of_source.collect();
        let casts: Vec<_> = of_source.iter().map(|(to, how, ..)| (*to, *how)).collect();
        let results = converted(&COMPILER, &x, &casts);
        assert_eq!(results.len(), if source == "powers" { 10 } else { 21 }, "{source}");
        for ((to, how, name, codes), result) in of_source.iter().zip(&results) {
            assert_eq!(x.len(), codes.len() as u64, "{name}");
            for ((from, code), got) in x.iter().zip(codes.iter()).zip(result.iter()) {
                let defined = from.narrowed(*to, *how);
                assert_eq!(got, defined, "{name}: {from:?}");
                // The reference gives types without NaN a zero whose sign is not that of the NaN.
                let expected = if from.is_nan() && to.bits() < 8 { got.bits } else { u64::from(*code) };
                let whole = to.is_narrow_float() || from.as_f64().abs() < 2f64.powi(31);
                assert_eq!(got.bits, if whole { expected } else { 0 }, "{name}: {from:?}");
            }
        }
    }
}

#[test]
fn codes_stand_for_the_numbers_of_the_reference() {
    let stored = stored();
    let to =
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::U64, DType::Bool];
    let casts: Vec<_> = to.into_iter().chain(narrow_types()).map(|to| (to, NarrowRounding::default())).collect();
    for dtype in narrow_types() {
        let x = codes(dtype);
        let results = converted(&COMPILER, &x, &casts);
        for ((to, _), result) in casts.iter().zip(&results) {
            for (from, got) in x.iter().zip(result.iter()) {
                let defined = from.cast(*to);
                assert!(got == defined || got.is_nan() && defined.is_nan(), "{from:?} is {got:?}, not {defined:?}");
            }
        }
        let Some(expected) = stored.get(&format!("{dtype}.decoded")) else { continue };
        let (expected, found) = (expected.as_chunks::<4>().0, results[0].to_f32s());
        assert_eq!(expected.len(), found.len(), "{dtype}");
        for (i, (want, got)) in expected.iter().zip(found).enumerate() {
            let want = f32::from_le_bytes(*want);
            assert!(want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan(), "{dtype} {i:#x}: {got} {want}");
        }
    }
}

/// Every back end gives what the interpreter gives, which is compared with the definition above.
#[test]
fn integers_are_converted_by_definition() {
    let integers = [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];
    let casts: Vec<_> = narrow_types().map(|to| (to, NarrowRounding::default())).collect();
    for dtype in integers.into_iter().chain([DType::Bool, DType::BF16]) {
        let mut state = 1u64;
        let x = TensorData::from_fn(DenseType::new(dtype, [3000]), |i| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match dtype {
                DType::Bool => Scalar::bool(i % 2 == 0),
                _ => Scalar::i64(if i < 300 { i as i64 - 150 } else { (state as i64) >> (i % 64) }).cast(dtype),
            }
        });
        for ((to, how), result) in casts.iter().zip(converted(&COMPILER, &x, &casts)) {
            for (from, got) in x.iter().zip(result.iter()) {
                assert_eq!(got, from.narrowed(*to, *how), "{from:?}");
            }
        }
    }
}

#[test]
fn data_is_moved_as_it_is() {
    for dtype in narrow_types() {
        let x = TensorData::from_fn(DenseType::new(dtype, [3, 5]), |i| {
            let codes = codes(dtype);
            codes.get(i * 7 % codes.len())
        });
        let text = format!(
            "graph @main(%x: {dtype}[3, 5], %i: i64[2], %b: bool[5]) {{
              %t = transpose(%x) {{perm = [1, 0]}}
              %c = concat(%x, %x) {{axis = 0}}
              %g = gather(%x, %i) {{axis = 1}}
              %w = where(%b, %x, %x)
              %same = identity(%x)
              return %t, %c, %g, %w, %same
            }}"
        );
        let positions = TensorData::i64s(&[2], &[4, 0]).unwrap();
        let holds = TensorData::from_fn(DenseType::new(DType::Bool, [5]), |i| Scalar::bool(i % 2 == 0));
        let [t, c, g, w, same] = &computed(&COMPILER, &text, &[x.clone(), positions, holds])[..] else {
            panic!("results")
        };
        assert_eq!((t.get(3), c.get(15), g.get(2)), (x.get(1), x.get(0), x.get(9)), "{dtype}");
        assert_eq!((w, same), (&x, &x), "{dtype}");
    }
}

/// A graph with all conversions from f32 and back, by every back end that this build has and by kernels of a GPU.
#[test]
fn all_back_ends_agree() {
    let x =
        TensorData::from_fn(DenseType::new(DType::F32, [8192]), |i| Scalar::f32(f32::from_bits(i as u32 * 524_287)));
    let casts: Vec<_> = narrow_types().map(|to| (to, NarrowRounding::default())).collect();
    let gpu =
        Options { gpus: vec![tensorc_simulator::interpreted(crate::support::backend::GPU)], ..Options::default() };
    let mut all: Vec<Compiler> =
        vec![Compiler::new(gpu).unwrap(), Compiler::new(Options { threads: Some(1), ..options() }).unwrap()];
    let llvm =
        tensorc::Backend::from_name("llvm").map(|backend| Compiler::new(Options { backend, ..Options::default() }));
    all.extend(llvm.and_then(Result::ok));
    for compiler in &all {
        let narrowed = converted(compiler, &x, &casts);
        for narrow in &narrowed {
            converted(compiler, narrow, &[(DType::F32, NarrowRounding::default())]);
        }
    }
}

/// Quantised numbers, and what they stand for.
#[test]
fn quantised_values_are_clipped_and_rounded() {
    let x = TensorData::f32s(&[8], &[-100.0, -3.5, -0.5, -0.0, 0.5, 1.5, 6.4, 1000.0]).unwrap();
    let quantised = |to: &str, with: &str| {
        let text = format!(
            "graph @main(%x: f32[8]) {{
              %scale = const f32[] [0.5]
              %q = quantize_linear(%x, %scale) {{output_dtype = {to}{with}}}
              %y = dequantize_linear(%q, %scale)
              return %y
            }}"
        );
        computed(&COMPILER, &text, std::slice::from_ref(&x))[0].to_f32s()
    };
    assert_eq!(quantised("i4", ""), [-4.0, -3.5, -0.5, 0.0, 0.5, 1.5, 3.5, 3.5]);
    assert_eq!(quantised("u4", ""), [0.0, 0.0, 0.0, 0.0, 0.5, 1.5, 6.5, 7.5]);
    assert_eq!(quantised("i2", ""), [-1.0, -1.0, -0.5, 0.0, 0.5, 0.5, 0.5, 0.5]);
    assert_eq!(quantised("f4e2m1", ""), [-3.0, -3.0, -0.5, 0.0, 0.5, 1.5, 3.0, 3.0]);
    assert_eq!(quantised("f8e4m3fn", ""), [-96.0, -3.5, -0.5, 0.0, 0.5, 1.5, 6.5, 224.0]);
    let open = quantised("f8e4m3fn", ", saturate = false");
    assert!(open[7].is_nan() && open[0] == -96.0, "{open:?}");
}

#[test]
fn arithmetic_is_refused() {
    for node in ["add(%x, %x)", "relu(%x)", "matmul(%x, %x)", "exp(%x)", "equal(%x, %x)", "nonzero(%x)"] {
        let text = format!("graph @main(%x: f8e5m2[2, 2]) {{\n  %node = {node}\n  return %node\n}}\n");
        let module = parse_module(&text, COMPILER.registry()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let error = Session::new(&COMPILER, module.graphs.into_iter().next().unwrap()).err();
        let message = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(message.contains("f8e5m2") && message.contains("node"), "{node}: {message}");
    }
}
