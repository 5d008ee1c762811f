//! Clusters whose library functions are applied to strips: the kernels are what the graph says, in
//! the interpreter and as machine code.

use crate::common;
use tensorc_codegen::emit::{Math, emit};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::{eval_graph, run_kernel};
use tensorc_ir::kir::{Kernel, Stmt};
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::{Ex, MathFn, Scalar, ScalarFn, ScalarOp};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_schedule::Target;
use tensorc_schedule::recipe::Generated;

fn f32s(dims: &[u64]) -> DenseType {
    DenseType::new(DType::F32, dims)
}

fn map(g: &mut Graph, args: &[Value], dims: &[u64], f: impl FnOnce(&[Ex]) -> Ex) -> Value {
    let f = ScalarFn::build(&vec![DType::F32; args.len()], |_, x| vec![f(x)]).unwrap();
    Value { node: g.add_prim("map", Prim::Map(f.into()), args, &[f32s(dims)]), port: 0 }
}

/// A fold of the last axis, which is kept with extent 1.
fn fold(g: &mut Graph, x: Value, dims: &[u64], init: f32, op: ScalarOp) -> Value {
    let two = [DType::F32; 2];
    let combine = ScalarFn::build(&two, |b, x| vec![b.op(op, &[&x[0], &x[1]])]).unwrap();
    let identity = || ScalarFn::identity(DType::F32);
    let r = Reduction {
        axes: vec![dims.len() - 1],
        keep_dims: true,
        map: identity(),
        init: vec![Scalar::f32(init)],
        combine,
        finish: identity(),
    };
    let mut folded = dims.to_vec();
    *folded.last_mut().unwrap() = 1;
    Value { node: g.add_prim("fold", Prim::Reduce(r.into()), &[x], &[f32s(&folded)]), port: 0 }
}

/// How many strips a kernel applies, anywhere.
fn strips(body: &[Stmt]) -> usize {
    body.iter()
        .map(|s| match s {
            Stmt::VectorMath { .. } => 1,
            Stmt::For { body, .. } => strips(body),
            _ => 0,
        })
        .sum()
}

fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

/// Emits and runs the cluster; the largest deviation from the graph, relative to 1.
fn check(g: &Graph, recipe: Generated, expected_strips: usize) -> f64 {
    let registry = tensorc_ops::registry().unwrap();
    let math = Math { library: &*common::LIBRARY, target: &Target::default() };
    let kernel: Kernel = emit(&common::spec(recipe, g), math).unwrap();
    tensorc_ir::verify::verify_kernel(&kernel).unwrap();
    assert_eq!(strips(&kernel.body), expected_strips);
    let inputs: Vec<TensorData> = g
        .inputs()
        .iter()
        .map(|n| {
            let ty = g.dense(Value { node: *n, port: 0 }).unwrap();
            let data = bytes((0..ty.len()).map(|i| (i * 37 % 101) as f32 * 0.07 - 3.5));
            TensorData::new(ty, data.into()).unwrap()
        })
        .collect();
    let expected = eval_graph(g, &registry, &inputs).unwrap();
    let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|t| t.bytes().to_vec()).collect();
    buffers.extend(expected.iter().map(|t| vec![0; t.bytes().len()]));
    let range = [0, kernel.parallel_extent().fixed()];
    let module = common::compile(std::slice::from_ref(&kernel));
    common::difference(&kernel, &module, 0, &buffers, &range).unwrap();
    run_kernel(&kernel, &mut buffers, &range, &*common::LIBRARY).unwrap();
    let mut worst = 0.0f64;
    for (data, bytes) in expected.iter().zip(&buffers[inputs.len()..]) {
        let found = common::elements(DType::F32, bytes);
        for (e, f) in common::elements(DType::F32, data.bytes()).iter().zip(found) {
            worst = worst.max((e.as_f64() - f.as_f64()).abs());
        }
    }
    worst
}

#[test]
fn maps_of_every_length() {
    for (n, strips) in [(7, 0), (33, 3), (1000, 3), (1025, 3), (2500, 3), (9001, 3)] {
        let mut g = Graph::new("map");
        let x = g.add_input("x", f32s(&[3, n]).into());
        let scale = g.add_input("scale", f32s(&[3, 1]).into());
        let gelu = map(&mut g, &[x, scale], &[3, n], |x| {
            let phi = (&x[0] * 0.707).math(MathFn::Erf) + 1.0;
            &x[0] * phi * &x[1]
        });
        let y = map(&mut g, &[gelu, x], &[3, n], |x| (x[0].math(MathFn::Tanh) - &x[1]).math(MathFn::Exp));
        g.add_output("y", y);
        g.add_output("gelu", gelu);
        assert_eq!(check(&g, Generated::Map, strips), 0.0, "length {n}");
    }
}

#[test]
fn rows_of_every_length() {
    for (n, strips) in [(20, 0), (40, 2), (128, 2), (1000, 2), (9000, 0)] {
        let dims = [3, n];
        let mut g = Graph::new("softmax");
        let x = g.add_input("x", f32s(&dims).into());
        let t = map(&mut g, &[x], &dims, |x| x[0].math(MathFn::Tanh));
        let max = fold(&mut g, t, &dims, f32::NEG_INFINITY, ScalarOp::Max);
        let e = map(&mut g, &[t, max], &dims, |x| (&x[0] - &x[1]).math(MathFn::Exp));
        let sum = fold(&mut g, e, &dims, 0.0, ScalarOp::Add);
        let y = map(&mut g, &[e, sum], &dims, |x| &x[0] / &x[1]);
        g.add_output("y", y);
        assert!(check(&g, Generated::Row, strips) < 1e-6, "length {n}");
    }
}
