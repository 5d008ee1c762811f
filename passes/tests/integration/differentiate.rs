//! Gradients of primitives: texts of a few, and all against finite differences in f64.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Compute, Grad, Infer, InputSpec, OpDef, Registry, TypeRule};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::text::{PrintOptions, parse_module, print_graph};
use tensorc_ir::verify::{Stage, verify_graph};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_passes::infer::InferTypes;
use tensorc_passes::{Pass, PassCx, differentiate};
use tensorc_random::Rng;

fn parse(text: &str, registry: &Registry) -> Graph {
    let mut graph = parse_module(text, registry).unwrap().graphs.swap_remove(0);
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).unwrap();
    graph
}

fn random(ty: &DenseType, seed: u64) -> TensorData {
    let mut rng = Rng::new(seed);
    TensorData::from_fn(ty.clone(), |_| match ty.dtype {
        d if d.is_float() => rng.element(d),
        d => Scalar::from_i64(d, rng.below(3) as i64),
    })
}

/// Every f64 input of a graph.
fn variables(graph: &Graph) -> Vec<Value> {
    let values = graph.inputs().iter().map(|n| Value { node: *n, port: 0 });
    values.filter(|v| graph.dense(*v).unwrap().dtype == DType::F64).collect()
}

/// The graph with the gradients of `Σ seed · output` with respect to its f64 inputs as its outputs.
fn gradient_graph(graph: &Graph, registry: &Registry) -> Graph {
    let mut graph = graph.clone();
    let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let mut heads = vec![];
    for (i, v) in outputs.into_iter().enumerate() {
        let ty = graph.dense(v).unwrap();
        let seed = ty.dtype.is_float().then(|| graph.add_const(format!("seed{i}"), random(&ty, 900 + i as u64)));
        heads.push((v, seed));
    }
    let wrt = variables(&graph);
    let gradients = differentiate(&mut graph, registry, &heads, &wrt).unwrap();
    let mut outputs = vec![];
    for (v, gradient) in wrt.iter().zip(gradients) {
        let zeros = TensorData::splat(&graph.dense(*v).unwrap().dims, Scalar::zero(DType::F64));
        let gradient = gradient.unwrap_or_else(|| graph.add_const("zeros", zeros));
        outputs.push((format!("d{}", graph.node(v.node).name).into(), gradient));
    }
    graph.set_outputs(outputs);
    graph.remove_dead();
    verify_graph(&graph, Stage::Typed).unwrap();
    graph
}

/// `Σ seed · output`.
fn loss(graph: &Graph, registry: &Registry, inputs: &[TensorData]) -> f64 {
    let outputs = eval_graph(graph, registry, inputs).unwrap();
    let term = |(i, out): (usize, &TensorData)| -> f64 {
        let seed = random(&out.ty, 900 + i as u64);
        let float = out.dtype().is_float();
        if float { out.iter().zip(seed.iter()).map(|(x, s)| x.as_f64() * s.as_f64()).sum() } else { 0.0 }
    };
    outputs.iter().enumerate().map(term).sum()
}

/// Compares the gradient with central differences, and, `orders` times, the gradient of the gradient.
fn check(name: &str, graph: &Graph, registry: &Registry, orders: usize) {
    let gradient = gradient_graph(graph, registry);
    let inputs: Vec<TensorData> = graph
        .inputs()
        .iter()
        .enumerate()
        .map(|(i, n)| random(&graph.dense(Value { node: *n, port: 0 }).unwrap(), 17 + i as u64))
        .collect();
    let found = eval_graph(&gradient, registry, &inputs).unwrap();
    let floats: Vec<usize> = (0..inputs.len()).filter(|i| inputs[*i].dtype() == DType::F64).collect();
    for (i, found) in floats.into_iter().zip(&found) {
        for at in 0..inputs[i].len() {
            let h = 1e-5;
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                let old = inputs[i].clone();
                inputs[i] = TensorData::from_fn(old.ty.clone(), |j| {
                    Scalar::from_f64(DType::F64, old.get(j).as_f64() + if j == at { by } else { 0.0 })
                });
                loss(graph, registry, &inputs)
            };
            let expected = (moved(h) - moved(-h)) / (2.0 * h);
            let found = found.get(at).as_f64();
            let close = (found - expected).abs() <= 1e-6 * (1.0 + expected.abs());
            assert!(close, "{name}, input {i}, element {at}: {found}, expected {expected}\n{}", print(&gradient));
        }
    }
    if orders > 1 {
        check(&format!("{name}, once more"), &gradient, registry, orders - 1);
    }
}

fn print(graph: &Graph) -> String {
    print_graph(graph, &PrintOptions::default())
}

const VIEWS: &[(&str, &str, &str, &str)] = &[
    ("transpose", "f64[3, 4]", "[d1, d0]", "f64[4, 3]"),
    ("slice", "f64[5, 4]", "[d0 + 1, d1 * 2 + 1]", "f64[3, 2]"),
    ("flip", "f64[5]", "[-d0 + 4]", "f64[5]"),
    ("backward stride", "f64[9]", "[d0 * -3 + 7]", "f64[3]"),
    ("pad", "f64[3]", "[d0 - 2] fill f64 0.0", "f64[7]"),
    ("pad with another value", "f64[3, 2]", "[d0 - 1, d1] fill f64 7.0", "f64[5, 2]"),
    ("dilate", "f64[3]", "[floordiv(d0, 2) + mod(d0, 2) * 3] fill f64 0.0", "f64[6]"),
    ("broadcast", "f64[3, 1]", "[d1, 0]", "f64[2, 3, 4]"),
    ("broadcast from a scalar", "f64[]", "[]", "f64[2, 3]"),
    ("repeat one row", "f64[3, 4]", "[2, d1]", "f64[2, 4]"),
    ("one element", "f64[3, 4]", "[2, 1]", "f64[]"),
    ("diagonal", "f64[3, 4]", "[d0, d0]", "f64[3]"),
    ("shifted diagonal", "f64[5, 3]", "[d0 + 2, d0]", "f64[3]"),
    ("windows", "f64[7]", "[d0 + d1]", "f64[5, 3]"),
    ("windows apart", "f64[8]", "[d0 * 3 + d1]", "f64[3, 2]"),
    ("windows with padding, stride and dilation", "f64[7]", "[d0 * 2 + d1 * 3 - 2] fill f64 0.0", "f64[4, 3]"),
    ("windows in two directions", "f64[5, 6]", "[d0 + d2 - 1, d1 * 2 + d3 - 1] fill f64 0.0", "f64[5, 3, 3, 3]"),
    ("reshape", "f64[6, 10]", "[floordiv(d0 * 15 + d1, 10), mod(d0 * 15 + d1, 10)]", "f64[4, 15]"),
    ("reshape of a broadcast", "f64[6]", "[floordiv(d0 * 4 + d1, 2)]", "f64[3, 4]"),
    ("tile", "f64[3]", "[mod(d0, 3)]", "f64[6]"),
    ("tile that does not divide", "f64[3]", "[mod(d0, 3)]", "f64[8]"),
    ("repeat", "f64[4, 2]", "[floordiv(d0, 3), d1]", "f64[12, 2]"),
    ("merge heads", "f64[2, 3, 4, 5]", "[d0, floordiv(d2, 5), d1, mod(d2, 5)]", "f64[2, 4, 15]"),
    (
        "blocks to channels",
        "f64[2, 4, 6]",
        "[floordiv(d0, 4), d1 * 2 + mod(floordiv(d0, 2), 2), d2 * 2 + mod(d0, 2)]",
        "f64[8, 2, 3]",
    ),
    ("edges that repeat", "f64[4]", "[min(max(d0 - 2, 0), 3)]", "f64[8]"),
    ("rotate", "f64[5, 2]", "[mod(d0 + 3, 5), d1]", "f64[5, 2]"),
    ("mirror with fill", "f64[4]", "[max(d0 - 2, -d0 + 2) + floordiv(d0, 5)] fill f64 0.0", "f64[8]"),
    ("one axis read twice", "f64[4, 4]", "[d0, d0 + d1]", "f64[2, 3]"),
    ("empty", "f64[3]", "[d0]", "f64[0]"),
    ("of one element", "f64[1]", "[d0 - 1] fill f64 0.0", "f64[3]"),
];

#[test]
fn views() {
    let registry = tensorc_ops::registry().unwrap();
    for (name, from, map, to) in VIEWS {
        let text = format!("graph @g(%x: {from}) {{ %y = prim.view(%x) {} : {to} return %y }}", map);
        check(name, &parse(&text, &registry), &registry, 2);
    }
}

const CONTRACTIONS: &[(&str, &str, &str, &str)] = &[
    ("matrix product", "f64[3, 4]", "f64[4, 5]", "over [3, 5 | 4] lhs [d0, d2] rhs [d2, d1] : f64[3, 5]"),
    ("dot", "f64[4]", "f64[4]", "over [| 4] lhs [d0] rhs [d0] : f64[]"),
    ("outer product", "f64[3]", "f64[2]", "over [3, 2 |] lhs [d0] rhs [d1] : f64[3, 2]"),
    (
        "shared right operand",
        "f64[2, 3, 4]",
        "f64[4, 5]",
        "over [2, 3, 5 | 4] lhs [d0, d1, d3] rhs [d3, d2] : f64[2, 3, 5]",
    ),
    (
        "broadcast left operand",
        "f64[1, 3, 4]",
        "f64[2, 4, 5]",
        "over [2, 3, 5 | 4] lhs [0, d1, d3] rhs [d0, d3, d2] : f64[2, 3, 5]",
    ),
    ("part of an operand", "f64[5, 6]", "f64[4, 5]", "over [3, 5 | 4] lhs [d0 + 1, d2] rhs [d2, d1] : f64[3, 5]"),
    ("transposed and reversed", "f64[4, 3]", "f64[5, 4]", "over [3, 5 | 4] lhs [-d2 + 3, d0] rhs [d1, d2] : f64[3, 5]"),
    (
        "convolution",
        "f64[2, 3, 5, 6]",
        "f64[4, 3, 3, 2]",
        "over [2, 4, 5, 5 | 3, 3, 2] lhs [d0, d4, d2 + d5 - 1, d3 + d6] rhs [d1, d4, d5, d6] : f64[2, 4, 5, 5]",
    ),
    (
        "convolution with stride and dilation",
        "f64[1, 2, 7, 9]",
        "f64[3, 2, 3, 2]",
        "over [1, 3, 3, 4 | 2, 3, 2] lhs [d0, d4, d2 * 2 + d5 * 2 - 1, d3 * 2 + d6 * 3 - 1] rhs [d1, d4, d5, d6] : f64[1, 3, 3, 4]",
    ),
    (
        "convolution in groups",
        "f64[2, 4, 5]",
        "f64[6, 2, 3]",
        "over [2, 2, 3, 5 | 2, 3] lhs [d0, d1 * 2 + d4, d3 + d5 - 1] rhs [d1 * 3 + d2, d4, d5] : f64[2, 2, 3, 5]",
    ),
    (
        "convolution whose windows tile",
        "f64[2, 3, 6]",
        "f64[4, 3, 2]",
        "over [2, 4, 3 | 3, 2] lhs [d0, d3, d2 * 2 + d4] rhs [d1, d3, d4] : f64[2, 4, 3]",
    ),
    (
        "convolution whose windows are apart",
        "f64[2, 3, 8]",
        "f64[4, 3, 2]",
        "over [2, 4, 3 | 3, 2] lhs [d0, d3, d2 * 3 + d4 - 1] rhs [d1, d3, d4] : f64[2, 4, 3]",
    ),
    (
        "pointwise convolution with stride",
        "f64[2, 3, 7]",
        "f64[4, 3, 1]",
        "over [2, 4, 4 | 3, 1] lhs [d0, d3, d2 * 2 + d4] rhs [d1, d3, d4] : f64[2, 4, 4]",
    ),
    (
        "kernel as large as the operand",
        "f64[1, 3, 5]",
        "f64[4, 3, 5]",
        "over [1, 4, 1 | 3, 5] lhs [d0, d3, d2 + d4] rhs [d1, d3, d4] : f64[1, 4, 1]",
    ),
    (
        "right operand by blocks",
        "f64[3, 4]",
        "f64[2, 2, 5]",
        "over [3, 5 | 4] lhs [d0, d2] rhs [floordiv(d2, 2), mod(d2, 2), d1] : f64[3, 5]",
    ),
];

#[test]
fn contractions() {
    let registry = tensorc_ops::registry().unwrap();
    for (name, lhs, rhs, form) in CONTRACTIONS {
        let text = format!("graph @g(%a: {lhs}, %b: {rhs}) {{ %y = prim.contract(%a, %b) {form} return %y }}");
        check(name, &parse(&text, &registry), &registry, 2);
    }
}

const OTHERS: &[(&str, &str)] = &[
    ("gather", "(%x: f64[4, 5, 3], %i: i64[2, 3]) { %y = prim.gather(%x, %i) axis 1 : f64[4, 2, 3, 3] return %y }"),
    ("concatenation", "(%x: f64[2, 3], %w: f64[2, 1]) { %y = prim.concat(%x, %w, %x) axis 1 : f64[2, 7] return %y }"),
    ("broadcast product", "(%x: f64[4, 1, 3], %w: f64[2, 1]) { %y = mul(%x, %w) return %y }"),
    (
        "square eight times",
        "(%x: f64[3]) { %a = mul(%x, %x) %b = mul(%a, %x) %c = mul(%b, %b) %d = mul(%c, %x) return %d }",
    ),
    (
        "quotient and root",
        "(%x: f64[3], %w: f64[3]) { %a = exp(%x) %b = div(%w, %a) %c = sqrt(%a) %d = add(%b, %c) return %d }",
    ),
    ("sum", "(%x: f64[3, 4, 2]) { %a = const i64[2] [0, 2] %y = reduce_sum(%x, %a) {keepdims=false} return %y }"),
    ("mean", "(%x: f64[3, 4]) { %y = reduce_mean(%x) return %y }"),
    ("norm", "(%x: f64[3, 4]) { %y = reduce_l2(%x) return %y }"),
    ("sum of magnitudes", "(%x: f64[3, 4]) { %y = reduce_l1(%x) return %y }"),
    ("logarithm of a sum", "(%x: f64[3, 4]) { %e = exp(%x) %y = reduce_log_sum(%e) {keepdims=false} return %y }"),
    ("logarithm of a sum of powers", "(%x: f64[3, 4]) { %y = reduce_log_sum_exp(%x) return %y }"),
    ("greatest", "(%x: f64[3, 4]) { %y = reduce_max(%x) return %y }"),
    ("least", "(%x: f64[3, 4]) { %y = reduce_min(%x) {keepdims=false} return %y }"),
    ("product", "(%x: f64[3, 4]) { %y = reduce_prod(%x) return %y }"),
    ("softmax", "(%x: f64[3, 4]) { %y = softmax(%x) return %y }"),
    ("layer normalisation", "(%x: f64[3, 4], %g: f64[4], %b: f64[4]) { %y = layer_norm(%x, %g, %b) return %y }"),
    (
        "several results",
        "(%x: f64[3, 4]) { %y = split(%x) {axis=1, num_outputs=2} : (?, ?) %z = mul(%y, %y:1) return %z, %y:1 }",
    ),
];

#[test]
fn reductions_and_operators() {
    let registry = tensorc_ops::registry().unwrap();
    for (name, text) in OTHERS {
        check(name, &parse(&format!("graph @g{text}"), &registry), &registry, 2);
    }
}

/// A registry with a loss: the identity whose gradient is `x - 1`, whatever that of its result.
fn with_loss() -> Registry {
    let mut registry = tensorc_ops::registry().unwrap();
    let body = Compute::Scalar(Box::new(|_, _, args| Ok(args.iter().flatten().cloned().collect())));
    let mut loss = OpDef::new("test_loss", "x, with a gradient of its own.", body, Infer::Derived);
    loss.inputs.push(InputSpec { name: "x", ty: TypeRule::Any, optional: false });
    loss.is_loss = true;
    loss.grad = Grad::Rule(Box::new(|b, cx| {
        let x = cx.input(0)?;
        let one = b.scalar(Scalar::from_f64(b.ty(x)?.dtype, 1.0));
        Ok(vec![Some(b.call("sub", &[x, one])?)])
    }));
    registry.add(loss).unwrap();
    registry
}

/// The gradients of the outputs with the given seeds, evaluated at x = (1, 2, 3); `None` where there is none.
fn gradients_at(text: &str, seeds: &[Option<f64>]) -> Result<Vec<Option<Vec<f64>>>, Diagnostic> {
    let registry = with_loss();
    let mut graph = parse(text, &registry);
    let outputs: Vec<Value> = graph.outputs().iter().map(|(_, v)| *v).collect();
    let mut heads = vec![];
    for (v, seed) in outputs.into_iter().zip(seeds) {
        let dims = graph.dense(v).unwrap().dims;
        let splat = |x: &f64| TensorData::splat(&dims, Scalar::from_f64(DType::F64, *x));
        heads.push((v, seed.as_ref().map(|x| graph.add_const("seed", splat(x)))));
    }
    let wrt = variables(&graph);
    let gradients = differentiate(&mut graph, &registry, &heads, &wrt)?;
    let x = TensorData::from_fn(DenseType::new(DType::F64, [3]), |i| Scalar::from_f64(DType::F64, i as f64 + 1.0));
    let inputs: Vec<TensorData> = graph.inputs().iter().map(|_| x.clone()).collect();
    let mut found = vec![];
    for gradient in gradients {
        found.push(gradient.map(|v| {
            let mut graph = graph.clone();
            graph.set_outputs([("g".into(), v)]);
            graph.remove_dead();
            eval_graph(&graph, &registry, &inputs).unwrap()[0].to_f64s()
        }));
    }
    Ok(found)
}

#[test]
fn a_loss_sends_its_gradient_without_a_seed_and_nothing_else_does() {
    let text = "graph @g(%x: f64[3]) { %a = mul(%x, %x) %l = test_loss(%a) return %l }";
    // d/dx: (x² - 1) · 2x, whatever the seed.
    let own = vec![Some(vec![0.0, 12.0, 48.0])];
    assert_eq!(gradients_at(text, &[None]).unwrap(), own);
    assert_eq!(gradients_at(text, &[Some(5.0)]).unwrap(), own);
    let behind = "graph @g(%x: f64[3]) { %a = mul(%x, %x) %l = test_loss(%a) %y = exp(%l) return %y }";
    assert_eq!(gradients_at(behind, &[None]).unwrap(), own);
    let blocked = "graph @g(%x: f64[3]) { %l = test_loss(%x) %y = stop_gradient(%l) return %y }";
    assert_eq!(gradients_at(blocked, &[None]).unwrap(), [None]);
    let plain = "graph @g(%x: f64[3]) { %y = mul(%x, %x) return %y }";
    assert_eq!(gradients_at(plain, &[None]).unwrap(), [None]);
}

#[test]
fn what_no_head_depends_on_has_no_gradient() {
    let text = "graph @g(%x: f64[3], %w: f64[3]) { %y = mul(%x, %x) %z = mul(%w, %w) return %y, %z }";
    assert_eq!(gradients_at(text, &[Some(1.0), None]).unwrap(), [Some(vec![2.0, 4.0, 6.0]), None]);
}

#[test]
fn a_missing_gradient_is_an_error_only_where_one_arrives() {
    let text = "graph @g(%x: f64[3], %i: f64[3]) { %u = unique(%x) : f64[3] %y = mul(%i, %i) return %u, %y }";
    let why = gradients_at(text, &[Some(1.0), Some(1.0)]).unwrap_err();
    assert_eq!((why.code, why.node.as_deref()), (DiagnosticCode::Unsupported, Some("u")));
    assert!(why.message.contains("unique has no gradient"), "{why}");
    assert_eq!(gradients_at(text, &[None, Some(1.0)]).unwrap(), [None, Some(vec![2.0, 4.0, 6.0])]);
}

#[test]
fn a_seed_has_the_type_of_its_head() {
    let registry = tensorc_ops::registry().unwrap();
    let mut graph = parse("graph @g(%x: f64[3]) { %y = exp(%x) return %y }", &registry);
    let (y, x) = (graph.outputs()[0].1, Value { node: graph.inputs()[0], port: 0 });
    let seed = graph.add_const("seed", TensorData::splat(&[1], Scalar::from_f64(DType::F64, 1.0)));
    let why = differentiate(&mut graph, &registry, &[(y, Some(seed))], &[x]).unwrap_err();
    assert_eq!((why.code, why.node.as_deref()), (DiagnosticCode::TypeConflict, Some("y")));
}

#[test]
fn gradients_of_values_inside_the_graph() {
    let registry = tensorc_ops::registry().unwrap();
    let mut graph = parse("graph @g(%x: f64[3]) { %a = softplus(%x) %y = mul(%a, %a) return %y, %a }", &registry);
    let (y, a) = (graph.outputs()[0].1, graph.outputs()[1].1);
    let x = Value { node: graph.inputs()[0], port: 0 };
    let seed = graph.add_const("seed", TensorData::splat(&[3], Scalar::from_f64(DType::F64, 1.0)));
    let found = differentiate(&mut graph, &registry, &[(y, Some(seed))], &[a, x]).unwrap();
    graph.set_outputs([("a".into(), a), ("da".into(), found[0].unwrap()), ("dx".into(), found[1].unwrap())]);
    let at = random(&DenseType::new(DType::F64, [3]), 3);
    let out = eval_graph(&graph, &registry, std::slice::from_ref(&at)).unwrap();
    for (i, x) in at.to_f64s().into_iter().enumerate() {
        let (a, da, dx) = (out[0].get(i as u64).as_f64(), out[1].get(i as u64).as_f64(), out[2].get(i as u64).as_f64());
        assert!((da - 2.0 * a).abs() < 1e-12 && (dx - 2.0 * a / (1.0 + (-x).exp())).abs() < 1e-12);
    }
}

/// A recurrence with a weight that every iteration reads, a row of an operand, and the number of the iteration.
const RECURRENT: &str = "graph @g(%h0: f64[2, 3], %xs: f64[5, 2, 3], %w: f64[3, 3]) {
  %r = prim.loop(%h0, %xs, %w) trips 5 carried 1 scanned [WAY] stacked [OTHER] {
    body @step(%i: i64[], %h: f64[2, 3], %x: f64[2, 3], %w: f64[3, 3]) {
      %n = cast(%i) {to = f64}
      %p = matmul(%h, %w)
      %q = mul(%n, %x)
      %s = add(%p, %q)
      %t = tanh(%s)
      %u = mul(%t, %x)
      return row = %u
      update %h = %t
    }
  } : (f64[2, 3], f64[5, 2, 3])
  return last = %r, all = %r:1
}";

#[test]
fn loops() {
    let registry = tensorc_ops::registry().unwrap();
    for (way, other) in [("forward", "forward"), ("backward", "forward"), ("forward", "backward")] {
        let text = RECURRENT.replace("WAY", way).replace("OTHER", other);
        check(&format!("{way} {other}"), &parse(&text, &registry), &registry, 2);
    }
}

#[test]
fn loops_in_loops_and_values_that_are_not_differentiated() {
    let text = "graph @g(%a: f64[3], %k: f64[3], %at: i64[4]) {
      %r = prim.loop(%a, %at, %k) trips 4 carried 1 scanned [backward] {
        body(%i: i64[], %a: f64[3], %at: i64[], %k: f64[3]) {
          %x = gather(%k, %at)
          %e = prim.loop(%a, %x) trips 3 carried 1 {
            body(%j: i64[], %b: f64[3], %x: f64[]) {
              %s = sin(%b)
              %m = mul(%s, %x)
              return
              update %b = %m
            }
          } : f64[3]
          return
          update %a = %e
        }
      } : f64[3]
      return %r
    }";
    let registry = tensorc_ops::registry().unwrap();
    check("nested", &parse(text, &registry), &registry, 1);
}

#[test]
fn branches() {
    let text = |condition: &str| {
        format!(
            "graph @g(%x: f64[4], %y: f64[4]) {{
              %c = const bool[] [{condition}]
              %r = prim.if(%c, %x, %y) {{
                body @then(%x: f64[4], %y: f64[4]) {{
                  %m = mul(%x, %y)
                  %e = exp(%m)
                  return %e, %x
                }}
                body @else(%x: f64[4], %y: f64[4]) {{
                  %s = sin(%x)
                  return %s, %s
                }}
              }} : (f64[4], f64[4])
              return %r, %r:1
            }}"
        )
    };
    let registry = tensorc_ops::registry().unwrap();
    for condition in ["true", "false"] {
        check(condition, &parse(&text(condition), &registry), &registry, 2);
    }
}

#[test]
fn a_loop_that_a_condition_ends_has_no_gradient() {
    let text = "graph @g(%c: bool[], %x: f64[4]) {
      %r = prim.loop(%c, %x) while carried 1 {
        body(%i: i64[], %x: f64[4]) {
          %no = const bool[] [false]
          %y = mul(%x, %x)
          return %no
          update %x = %y
        }
      } : f64[4]
      return %r
    }";
    let registry = tensorc_ops::registry().unwrap();
    let mut graph = parse(text, &registry);
    let (v, seed) = (graph.outputs()[0].1, TensorData::splat(&[4], Scalar::from_f64(DType::F64, 1.0)));
    let seed = graph.add_const("seed", seed);
    let wrt = variables(&graph);
    let error = differentiate(&mut graph, &registry, &[(v, Some(seed))], &wrt).unwrap_err();
    assert_eq!(error.code, DiagnosticCode::Unsupported);
    assert!(error.to_string().contains("node `r`") && error.message.contains("condition"), "{error}");
}
