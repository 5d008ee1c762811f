//! Weights of a few bits in blocks: products with them agree with the interpreter, they stay packed in plans and artifacts, and
//! where they cannot stay packed the results are right all the same.

use tensorc::abi::{DType, GemmElements, StepOp};
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Registry;
use tensorc::ir::params::Params;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc::runtime::Pool;
use tensorc::runtime::plan::verify;
use tensorc::{Compiler, Options};
use tensorc_tests::cache::visible;
use tensorc_tests::compare::tensor;

use crate::aot::ranges::{library, run};
use crate::aot::{exists, request};
use crate::support::backend::options;

/// A product with weights of a few bits.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: u64,
    n: u64,
    k: u64,
    bits: u64,
    block: u64,
    zeros: bool,
    /// Blocks of `DequantizeLinear`, of elements of this type and along this axis of the matrix; else `MatMulNBits`.
    linear: Option<(DType, u64)>,
}

impl Case {
    const fn nbits(rows: u64, [n, k]: [u64; 2], bits: u64, block: u64, zeros: bool) -> Case {
        Case { rows, n, k, bits, block, zeros, linear: None }
    }

    const fn linear(rows: u64, [n, k]: [u64; 2], dtype: DType, block: u64, axis: u64) -> Case {
        Case { rows, n, k, bits: dtype.bits() as u64, block, zeros: true, linear: Some((dtype, axis)) }
    }

    fn graph(&self, registry: &Registry) -> Graph {
        let mut graph = Graph::new("weights");
        let x = graph.add_input("x", DenseType::new(DType::F32, [self.rows, self.k]).into());
        let result = match self.linear {
            None => self.nbits_product(&mut graph, registry, x),
            Some((dtype, axis)) => self.linear_product(&mut graph, registry, x, dtype, axis),
        };
        // An epilogue.
        let result = op(&mut graph, registry, "relu", &[Some(result)], Params::new());
        graph.add_output("y", result);
        graph
    }

    fn nbits_product(&self, graph: &mut Graph, registry: &Registry, x: Value) -> Value {
        let Case { n, k, bits, block, zeros, .. } = *self;
        let blocks = k.div_ceil(block);
        let codes = graph.add_const("codes", numbers(DType::U8, &[n, blocks, block * bits / 8], 1));
        let scales = graph.add_const("scales", scales(&[n * blocks]));
        let zeros = zeros.then(|| numbers(DType::U8, &[n * (blocks * bits).div_ceil(8)], 2));
        let zeros = zeros.map(|zeros| graph.add_const("zeros", zeros));
        let int = |n: u64| n as i64;
        let params = Params::new().with("K", int(k)).with("N", int(n));
        let params = params.with("bits", int(bits)).with("block_size", int(block));
        op(graph, registry, "matmul_nbits", &[Some(x), Some(codes), Some(scales), zeros], params)
    }

    fn linear_product(&self, graph: &mut Graph, registry: &Registry, x: Value, dtype: DType, axis: u64) -> Value {
        let Case { n, k, block, .. } = *self;
        let blocks = k.div_ceil(block);
        let dims = |k: u64| if axis == 0 { [k, n] } else { [n, k] };
        let codes = graph.add_const("codes", numbers(dtype, &dims(k), 1));
        let scales = graph.add_const("scales", scales(&dims(blocks)));
        let zeros = graph.add_const("zeros", numbers(dtype, &dims(blocks), 2));
        let params = Params::new().with("axis", axis as i64).with("block_size", block as i64);
        let operands = [Some(codes), Some(scales), Some(zeros)];
        let mut weights = op(graph, registry, "dequantize_linear", &operands, params);
        if axis == 1 {
            let params = Params::new().with("perm", vec![1i64, 0]);
            weights = op(graph, registry, "transpose", &[Some(weights)], params);
        }
        op(graph, registry, "matmul", &[Some(x), Some(weights)], Params::new())
    }

    fn input(&self) -> TensorData {
        let wave = |i: u64| Scalar::f32(((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 1.5);
        TensorData::from_fn(DenseType::new(DType::F32, [self.rows, self.k]), wave)
    }

    /// Bytes of codes in the packed form.
    fn code_bytes(&self) -> u64 {
        let chunk = 512 / self.bits;
        self.n.next_multiple_of(4) * self.k.div_ceil(chunk) * 64
    }
}

fn op(graph: &mut Graph, registry: &Registry, name: &str, operands: &[Option<Value>], params: Params) -> Value {
    let def = registry.get(name).unwrap();
    Value { node: graph.add_op(name, def, operands, params, 1).unwrap(), port: 0 }
}

/// Numbers that use all bits of a type.
fn numbers(dtype: DType, dims: &[u64], seed: u64) -> TensorData {
    TensorData::from_fn(DenseType::new(dtype, dims), |i| {
        let mixed = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = (mixed ^ mixed >> 29) >> 20 & 0xff;
        let signed = matches!(dtype, DType::I8 | DType::I4 | DType::I2);
        let range = 1i64 << dtype.bits();
        let low = if signed { range / 2 } else { 0 };
        Scalar::from_i64(dtype, bits as i64 % range - low)
    })
}

fn scales(dims: &[u64]) -> TensorData {
    TensorData::from_fn(DenseType::new(DType::F32, dims), |i| Scalar::f32((i * 31 % 101) as f32 / 700.0 - 0.05))
}

const CASES: &[Case] = &[
    Case::nbits(1, [96, 256], 4, 32, false),
    Case::nbits(1, [96, 256], 4, 32, true),
    Case::nbits(3, [130, 200], 4, 16, true),
    Case::nbits(8, [64, 320], 4, 128, false),
    Case::nbits(20, [70, 300], 4, 64, true),
    Case::nbits(1, [64, 256], 8, 32, false),
    Case::nbits(40, [65, 256], 8, 128, true),
    Case::nbits(2, [128, 256], 2, 32, true),
    Case::nbits(1, [600, 1024], 4, 32, false),
    Case::linear(1, [96, 256], DType::I4, 32, 0),
    Case::linear(9, [96, 256], DType::I4, 32, 1),
    Case::linear(1, [80, 256], DType::U4, 64, 0),
    Case::linear(5, [80, 256], DType::I8, 32, 1),
    Case::linear(1, [80, 256], DType::U8, 16, 0),
    Case::linear(1, [80, 256], DType::I2, 32, 0),
];

/// Results by the interpreter.
fn expected(graph: &Graph, registry: &Registry, case: &Case) -> Vec<f32> {
    eval_graph(graph, registry, &[case.input()]).unwrap().swap_remove(0).to_f32s()
}

#[track_caller]
fn agrees(found: &[f32], expected: &[f32], case: &Case) {
    let largest = expected.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-5 * largest, "{case:?}, element {i}: {a}, not {b}");
    }
    assert_eq!(found.len(), expected.len(), "{case:?}");
}

#[test]
fn products_agree_with_the_interpreter_and_weights_stay_packed() {
    for case in CASES {
        let mut bits = vec![];
        for threads in [1, 2] {
            let compiler = Compiler::new(Options { threads: Some(threads), ..options() }).unwrap();
            let graph = case.graph(compiler.registry());
            let expected = expected(&graph, compiler.registry(), case);
            let mut session = compiler.model(graph).compile(&[case.input().ty]).unwrap();
            let plan = session.plan();
            verify(plan).unwrap();
            let blocked = |op: &StepOp| matches!(op, StepOp::Gemm { call, .. } if matches!(call.elements, GemmElements::Blocked(_)));
            let [step] = &plan.steps[..] else { panic!("{case:?}: {} steps", plan.steps.len()) };
            assert!(blocked(&step.op), "{case:?}: {:?}", step.op);
            // Codes, f32 scales and zero points in whole chunks.
            let (bytes, codes) = (plan.weight_bytes(), case.code_bytes());
            let blocks =
                case.n.next_multiple_of(4) * case.k.next_multiple_of(512 / case.bits) / case.block.min(512 / case.bits);
            assert!(bytes <= codes + 5 * blocks + 256, "{case:?}: {bytes} bytes of weights, {codes} of codes");
            let found = session.run(&[tensor(&case.input())]).unwrap()[0].to_f32().unwrap();
            agrees(&found, &expected, case);
            bits.push(found.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
        }
        assert_eq!(bits[0], bits[1], "{case:?}: other bits with more threads");
    }
}

/// What is not packed is computed as before: exactly, of small weights, of blocks that are no powers of 2.
#[test]
fn other_weights_are_floats() {
    let exact = || {
        let mut options = options();
        options.passes.reassociate = false;
        options
    };
    let small = Case::nbits(1, [8, 64], 4, 32, false);
    let cases = [
        (exact(), CASES[1]),
        (exact(), CASES[9]),
        (options(), small),
        (options(), Case::linear(1, [96, 240], DType::I4, 24, 0)),
    ];
    for (options, case) in cases {
        let compiler = Compiler::new(Options { threads: Some(1), ..options }).unwrap();
        let graph = case.graph(compiler.registry());
        let expected = expected(&graph, compiler.registry(), &case);
        let mut session = compiler.model(graph).compile(&[case.input().ty]).unwrap();
        let blocked = |step: &tensorc::abi::Step| matches!(&step.op, StepOp::Gemm { call, .. } if matches!(call.elements, GemmElements::Blocked(_)));
        assert!(!session.plan().steps.iter().any(blocked), "{case:?}");
        let found = session.run(&[tensor(&case.input())]).unwrap()[0].to_f32().unwrap();
        agrees(&found, &expected, &case);
    }
}

#[test]
fn artifacts_have_packed_weights_and_the_same_bits() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let compiler = Compiler::new(Options { threads: Some(2), ..options() }).unwrap();
    let pool = Pool::new(2).unwrap();
    for case in [CASES[1], CASES[4], CASES[8], CASES[9]] {
        let model = compiler.model(case.graph(compiler.registry()));
        let (_dir, artifact, made) = library(&model, request("m", "native"));
        let bytes = made.weights.map_or(0, |weights| weights.len() as u64);
        assert!(bytes < 2 * case.code_bytes() + 4096, "{case:?}: {bytes} bytes of weights");
        let found = run(&mut artifact.context(&pool).unwrap(), &[case.input()]).unwrap();
        let expected = model.run(&[("x", tensor(&case.input()))]).unwrap();
        assert_eq!(found[0].2, expected[0].1.bytes(), "{case:?}");
    }
}

/// Slices are gathered before they are unpacked.
#[test]
fn gathered_weights_stay_packed() {
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let registry = compiler.registry();
    let mut graph = Graph::new("table");
    let indices = graph.add_input("indices", DenseType::new(DType::I64, [3]).into());
    let (rows, n) = (500, 256);
    let data = graph.add_const("data", numbers(DType::U8, &[rows, n / 2], 1));
    let scales = graph.add_const("scales", scales(&[rows, n / 32]));
    let params = Params::new().with("bits", 4i64).with("block_size", 32i64);
    let operands = [Some(data), Some(indices), Some(scales), None];
    let result = op(&mut graph, registry, "gather_block_quantized", &operands, params);
    graph.add_output("y", result);
    let input = TensorData::i64s(&[3], &[7, 499, 0]).unwrap();
    let expected = eval_graph(&graph, registry, std::slice::from_ref(&input)).unwrap().swap_remove(0);
    let mut session = compiler.model(graph).compile(std::slice::from_ref(&input.ty)).unwrap();
    assert!(
        session.plan().weight_bytes() <= rows * n / 2 + rows * n / 32 * 4 + 64,
        "{}",
        session.plan().weight_bytes()
    );
    let found = session.run(&[tensor(&input)]).unwrap();
    assert_eq!(found[0].bytes(), &expected.bytes()[..]);
}
