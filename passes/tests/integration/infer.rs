//! Inference, static operands, binding, decomposition and stages, with operators of the test's own.

use crate::common::*;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::DiagnosticCode;
use tensorc_ir::flow::Flow;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::infer::InferCtx;
use tensorc_ir::interp::{eval_graph, eval_node};
use tensorc_ir::op::{Compute, Infer, InputSpec, NodeCtx, OpDef, OpError, Registry, ScalarCtx, TypeRule};
use tensorc_ir::params::Params;
use tensorc_ir::prim::{Prim, View};
use tensorc_ir::scalar::{Ex, ScalarBuilder};
use tensorc_ir::{DType, DenseType, Dim, Dims, Shape, TensorData, TensorType};
use tensorc_passes::infer::{bind, bind_named, infer_graph};
use tensorc_passes::parts::{PartsRun, Typing, first_part, next_part};
use tensorc_passes::{CompilePhase, PassCx, Pipeline};

fn def(name: &'static str, inputs: usize, static_inputs: &[usize], compute: Compute, infer: Infer) -> OpDef {
    let spec = |i: usize| InputSpec { name: ["a", "b", "c"][i], ty: TypeRule::Any, optional: false };
    OpDef {
        inputs: (0..inputs).map(spec).collect(),
        static_inputs: static_inputs.to_vec(),
        ..OpDef::new(name, "", compute, infer)
    }
}

fn binary(name: &'static str, body: fn(&Ex, &Ex) -> Ex) -> OpDef {
    let compute = move |_: &ScalarBuilder, _: &ScalarCtx<'_>, x: &[Option<Ex>]| match x {
        [Some(a), Some(b)] => Ok(vec![body(a, b)]),
        _ => Err(OpError("two operands".into())),
    };
    def(name, 2, &[], Compute::Scalar(Box::new(compute)), Infer::Derived)
}

fn shape_of() -> OpDef {
    let compute = |b: &mut Builder<'_>, cx: &NodeCtx<'_>, _: &[Option<Value>]| {
        let dims: Vec<i64> = cx.inputs[0].as_ref().unwrap().dims.iter().map(|d| *d as i64).collect();
        Ok(vec![b.i64s(&dims)])
    };
    let infer = |cx: &mut InferCtx<'_>| {
        cx.set_output_dtype(0, DType::I64)?;
        match cx.input_dims(0) {
            Some(dims) => cx.set_output_dims(0, [Dim::Const(dims.len() as u64)]),
            None => Ok(()),
        }
    };
    def("shape", 1, &[], Compute::Composite(Box::new(compute)), Infer::Rule(Box::new(infer)))
}

fn reshape() -> OpDef {
    let compute = |cx: &NodeCtx<'_>| {
        let (from, to) = (&cx.input(0)?.dims, &cx.outputs[0].dims);
        let vars: Vec<Index> = (0..to.len() as u32).map(Index::var).collect();
        Ok(Prim::View(View { map: delinearize(&linearize(&vars, to), from, &to[..]), fill: None }.into()))
    };
    let infer = |cx: &mut InferCtx<'_>| {
        cx.same_dtype(0, 0)?;
        match cx.value(1).map(|v| v.to_i64s()) {
            Some(dims) => cx.set_output_dims(0, dims.into_iter().map(|d| Dim::Const(d as u64))),
            None => Ok(()),
        }
    };
    def("reshape", 2, &[1], Compute::Prim(Box::new(compute)), Infer::Rule(Box::new(infer)))
}

/// The elements that are not zero, on the host.
fn nonzero() -> OpDef {
    let compute = |_: &NodeCtx<'_>, args: &[Option<TensorData>]| {
        let kept: Vec<f32> = args[0].as_ref().unwrap().to_f32s().into_iter().filter(|x| *x != 0.0).collect();
        Ok(vec![TensorData::f32s(&[kept.len() as u64], &kept).unwrap()])
    };
    let infer = |cx: &mut InferCtx<'_>| {
        cx.set_output_dtype(0, DType::F32)?;
        let dim = cx.fresh();
        cx.set_output_dims(0, [dim])
    };
    def("nonzero", 1, &[], Compute::Host(Box::new(compute)), Infer::Rule(Box::new(infer)))
}

/// `a·a + a` through two operators.
fn square_plus() -> OpDef {
    let compute = |b: &mut Builder<'_>, _: &NodeCtx<'_>, x: &[Option<Value>]| {
        let a = x[0].unwrap();
        let square = b.call("mul", &[a, a])?;
        Ok(vec![b.call("add", &[square, a])?])
    };
    let infer = |cx: &mut InferCtx<'_>| {
        cx.same_dtype(0, 0)?;
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        let shape = cx.output(0).shape;
        cx.set_input_shape(0, shape)
    };
    def("square_plus", 1, &[], Compute::Composite(Box::new(compute)), Infer::Rule(Box::new(infer)))
}

fn ops() -> Registry {
    let add = binary("add", |a, b| a + b);
    let mul = binary("mul", |a, b| a * b);
    registry_of(vec![add, mul, shape_of(), reshape(), nonzero(), square_plus()])
}

fn call(g: &mut Graph, r: &Registry, op: &str, args: &[Value]) -> Value {
    let args: Vec<Option<Value>> = args.iter().copied().map(Some).collect();
    Value {
        node: g.add_op(format!("{op}{}", g.node_count()), r.get(op).unwrap(), &args, Params::new(), 1).unwrap(),
        port: 0,
    }
}

fn symbolic(g: &mut Graph, names: &[&str]) -> TensorType {
    let dims: Dims = names.iter().map(|n| g.dims.named(n)).collect();
    TensorType::new(DType::F32, Shape::Ranked(dims))
}

#[test]
fn shapes_computed_from_shapes_are_static() {
    let r = ops();
    let mut g = Graph::new("g");
    let ty = symbolic(&mut g, &["n", "m"]);
    let x = g.add_input("x", ty);
    let s = call(&mut g, &r, "shape", &[x]);
    let swap = g.add_const("swap", TensorData::i64s(&[2], &[1, 1]).unwrap());
    let s = call(&mut g, &r, "mul", &[s, swap]);
    let y = call(&mut g, &r, "reshape", &[x, s]);
    let y = call(&mut g, &r, "square_plus", &[y]);
    g.add_output("y", y);
    let mut open = g.clone();
    infer_graph(&mut open, &r, 1024).unwrap();
    assert!(open.resolved(y).dense().is_none());
    bind(&mut g, &[DenseType::new(DType::F32, [3, 5])]).unwrap();
    assert!(infer_graph(&mut g, &r, 1024).unwrap());
    assert_eq!(g.dense(y).unwrap().dims, [3, 5]);
    assert!(first_part(&mut g.clone(), Typing { registry: &r, static_bytes: 1024 }).unwrap().is_last());
    let mut done = g.clone();
    Pipeline::to(CompilePhase::Fuse).run(&mut done, &mut PassCx::new(&r)).unwrap();
    assert_fused_form(&done);
    let x = [Rng(3).tensor(&ty_of(&[3, 5]), true)];
    let (a, b) = (eval_graph(&g, &r, &x).unwrap(), eval_graph(&done, &r, &x).unwrap());
    assert_eq!(format!("{a:?}"), format!("{b:?}"));
}

fn ty_of(dims: &[u64]) -> DenseType {
    ty(dims)
}

#[test]
fn conflicts_name_the_input_or_node() {
    let r = ops();
    let mut g = Graph::new("g");
    let ty = symbolic(&mut g, &["n", "n"]);
    let x = g.add_input("x", ty);
    g.add_output("y", x);
    let e = bind(&mut g.clone(), &[DenseType::new(DType::F32, [2, 3])]).unwrap_err();
    assert_eq!((e.code, e.node.as_deref()), (DiagnosticCode::TypeConflict, Some("x")));
    let e = bind_named(&mut g.clone(), &[("z", DenseType::new(DType::F32, [2, 2]))]).unwrap_err();
    assert!(e.message.contains("no input `z`") && e.message.contains('x'), "{e}");
    let e = bind(&mut g.clone(), &[DenseType::new(DType::I64, [2, 2])]).unwrap_err();
    assert!(e.message.contains("f32") && e.message.contains("i64"), "{e}");
    let mut g = Graph::new("g");
    let (a, b) = (g.add_input("a", ty_of(&[2]).into()), g.add_input("b", ty_of(&[3]).into()));
    let y = call(&mut g, &r, "add", &[a, b]);
    g.add_output("y", y);
    let e = infer_graph(&mut g, &r, 1024).unwrap_err();
    assert_eq!((e.code, e.node.as_deref()), (DiagnosticCode::TypeConflict, Some("add2")));
}

#[test]
fn long_concrete_chains_take_one_visit_each() {
    let r = ops();
    let mut g = Graph::new("g");
    let x = g.add_input("x", ty_of(&[4, 4]).into());
    let mut y = x;
    for i in 0..10_000 {
        y = call(&mut g, &r, if i % 2 == 0 { "add" } else { "mul" }, &[y, x]);
    }
    g.add_output("y", y);
    let start = std::time::Instant::now();
    infer_graph(&mut g, &r, 1024).unwrap();
    assert_eq!(g.dense(y).unwrap().dims, [4, 4]);
    Pipeline::to(CompilePhase::Fuse).run(&mut g, &mut PassCx::new(&r)).unwrap();
    assert_fused_form(&g);
    // Quadratic behaviour would take minutes.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// Runs a graph part by part on the interpreter; how many there are.
fn run_parts(g: &Graph, r: &Registry, inputs: &[TensorData]) -> (Vec<TensorData>, usize) {
    let typing = Typing { registry: r, static_bytes: 1024 };
    let mut run = PartsRun::new(g, inputs.iter().cloned());
    for count in 1.. {
        let mut part = g.clone();
        let shape = next_part(&mut part, typing, &run.facts().unwrap()).unwrap();
        let results = eval_graph(&part, r, &run.inputs(&shape).unwrap()).unwrap();
        let mut flow = |node, _: &Flow, operands: &[TensorData]| {
            eval_node(g, node, r, &operands.iter().cloned().map(Some).collect::<Vec<_>>())
        };
        run.add(&shape, results, r, &mut flow).unwrap();
        if shape.is_last() {
            return (run.outputs().unwrap(), count);
        }
    }
    unreachable!()
}

#[test]
fn host_operators_and_run_time_shapes_run_in_parts() {
    let r = ops();
    let mut g = Graph::new("g");
    let x = g.add_input("x", ty_of(&[6]).into());
    let unused = g.add_input("unused", ty_of(&[2]).into());
    let s = g.add_input("s", DenseType::new(DType::I64, [2]).into());
    let y = call(&mut g, &r, "square_plus", &[x]);
    let kept = call(&mut g, &r, "nonzero", &[y]);
    let z = call(&mut g, &r, "square_plus", &[kept]);
    let one = g.add_const("one", TensorData::i64s(&[2], &[1, 1]).unwrap());
    let dims = call(&mut g, &r, "mul", &[s, one]);
    let m = call(&mut g, &r, "reshape", &[x, dims]);
    for (name, v) in [("z", z), ("y", y), ("m", m), ("u", unused)] {
        g.add_output(name, v);
    }
    let inputs = vec![
        TensorData::f32s(&[6], &[0.0, 1.0, -1.0, 2.0, 0.0, 3.0]).unwrap(),
        TensorData::f32s(&[2], &[8.0, 9.0]).unwrap(),
        TensorData::i64s(&[2], &[2, 3]).unwrap(),
    ];
    let (results, parts) = run_parts(&g, &r, &inputs);
    assert_eq!(parts, 2);
    assert_eq!(results, eval_graph(&g, &r, &inputs).unwrap());
    assert_eq!(results[0].to_f32s(), [6.0, 42.0, 156.0]);
    assert_eq!(results[2].dims(), [2, 3]);
}

#[test]
fn an_unbound_input_is_named() {
    let r = ops();
    let mut g = Graph::new("g");
    let ty = symbolic(&mut g, &["n"]);
    let x = g.add_input("x", ty);
    let y = call(&mut g, &r, "square_plus", &[x]);
    g.add_output("y", y);
    let e = first_part(&mut g, Typing { registry: &r, static_bytes: 1024 }).unwrap_err();
    assert_eq!((e.code, e.node.as_deref()), (DiagnosticCode::Unresolved, Some("x")));
}
