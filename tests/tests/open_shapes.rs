//! Graphs whose open dimensions are symbols: passes run once, and what they make is right for every shape that the
//! conditions admit.

use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::verify::{Stage, verify_graph};
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::passes::infer::bind;
use tensorc::passes::template::Template;
use tensorc::passes::{CompilePhase, PassCx, Pipeline};
use tensorc::schedule::target::{Processor, Vectors};
use tensorc::{Compiler, Options, Session, Specialize};
use tensorc_tests::compare::{data, tensor};

use crate::support::backend::options;

/// A graph of f32, extents of open dimensions in the order of inputs, and whether the template of the first holds for all.
pub struct OpenCase {
    pub name: &'static str,
    pub text: &'static str,
    pub extents: &'static [&'static [u64]],
    pub all: bool,
    /// How many of them a plan is made for with vectors of 128 bits. Wider ones cut the ends of rows differently.
    plans: usize,
}

const LENGTHS: &[&[u64]] = &[&[2], &[3], &[7], &[15], &[16], &[17], &[31], &[32], &[33], &[127], &[128], &[129]];
const TRIPLES: &[&[u64]] = &[&[2, 3, 2], &[15, 16, 31], &[17, 127, 33], &[3, 128, 129], &[33, 2, 17], &[7, 31, 128]];
const PAIRS: &[&[u64]] = &[&[2, 3], &[3, 16], &[5, 17], &[2, 64], &[7, 2], &[33, 31]];
const IMAGES: &[&[u64]] = &[&[2, 32, 64], &[3, 64, 32], &[2, 96, 128], &[5, 32, 32]];

pub const CASES: &[OpenCase] = &[
    OpenCase {
        name: "normalised products",
        text: "graph @main(%x: f32[?n, 24], %w: f32[24, 40], %g: f32[40], %b: f32[40]) {
  %p = matmul(%x, %w)
  %l = layer_norm(%p, %g, %b)
  %y = gelu(%l)
  return %y
}",
        extents: LENGTHS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "attention with shapes computed",
        text: "graph @main(%x: f32[?b, ?l, 32], %w: f32[32, 32]) {
  %s = shape(%x)
  %zero = const i64[] [0]
  %one = const i64[] [1]
  %b = gather(%s, %zero)
  %l = gather(%s, %one)
  %axis = const i64[1] [0]
  %b1 = unsqueeze(%b, %axis)
  %l1 = unsqueeze(%l, %axis)
  %heads = const i64[2] [4, 8]
  %to = concat(%b1, %l1, %heads) {axis = 0}
  %q = matmul(%x, %w)
  %qr = reshape(%q, %to)
  %qt = transpose(%qr) {perm = [0, 2, 1, 3]}
  %kt = transpose(%qr) {perm = [0, 2, 3, 1]}
  %scores = matmul(%qt, %kt)
  %p = softmax(%scores)
  %c = matmul(%p, %qt)
  %ct = transpose(%c) {perm = [0, 2, 1, 3]}
  %whole = const i64[3] [0, 0, 32]
  %y = reshape(%ct, %whole)
  return %y
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "slices, joins and broadcasts",
        text: "graph @main(%x: f32[?b, ?l, 6], %v: f32[?l, 6]) {
  %from = const i64[1] [1]
  %end = const i64[1] [9223372036854775807]
  %axis = const i64[1] [1]
  %tail = slice(%x, %from, %end, %axis)
  %j = concat(%x, %tail) {axis = 1}
  %a = add(%x, %v)
  %m = reduce_sum(%a, %axis)
  %s = shape(%x)
  %e = expand(%m, %s)
  %d = sub(%e, %x)
  return %j, %d
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "convolutions between images of two sizes",
        text:
            "graph @main(%x: f32[?n, 3, ?h, ?w], %f: f32[32, 3, 3, 3], %d: f32[32, 32, 3, 3], %u: f32[32, 16, 2, 2]) {
  %c = conv(%x, %f) {strides = [2, 2], pads = [1, 1, 1, 1]}
  %r = relu(%c)
  %e = conv(%r, %d) {strides = [2, 2], pads = [1, 1, 1, 1]}
  %roi = const f32[0] []
  %scales = const f32[4] [1.0, 1.0, 2.0, 2.0]
  %up = resize(%e, %roi, %scales) {coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"}
  %sum = add(%r, %up)
  %p = max_pool(%sum) {kernel_shape = [2, 2], strides = [2, 2]}
  %g = global_average_pool(%p)
  %scaled = mul(%p, %g)
  %y = conv_transpose(%scaled, %u) {strides = [2, 2]}
  return %y
}",
        extents: IMAGES,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "recurrent layers",
        text: "graph @main(%x: f32[?t, ?b, 6], %wg: f32[2, 24, 6], %rg: f32[2, 24, 8], %wl: f32[1, 32, 6],
    %rl: f32[1, 32, 8], %p: f32[1, 24]) {
  %g = gru(%x, %wg, %rg) {direction = \"bidirectional\", hidden_size = 8, linear_before_reset = 1} : (?, ?)
  %l = lstm(%x, %wl, %rl, _, _, _, _, %p) {direction = \"reverse\", hidden_size = 8} : (?, ?, ?)
  return %g, %l, %g:1, %l:2
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "folds of rows and columns",
        text: "graph @main(%x: f32[?n, ?m]) {
  %rows = const i64[1] [1]
  %columns = const i64[1] [0]
  %p = softmax(%x) {axis = 1}
  %s = reduce_sum(%p, %columns)
  %m = reduce_max(%x, %columns)
  %q = reduce_sum(%x, %rows)
  %n = neg(%x)
  %l = reduce_min(%n, %rows)
  %t = transpose(%x) {perm = [1, 0]}
  return %p, %s, %m, %q, %l, %t
}",
        extents: &[
            &[3, 2],
            &[17, 15],
            &[5, 16],
            &[2, 31],
            &[33, 33],
            &[4, 127],
            &[7, 129],
            &[2, 300],
            &[3, 416],
            &[2, 431],
        ],
        all: true,
        plans: 2,
    },
    OpenCase {
        name: "tables, shifts and selections",
        text: "graph @main(%ids: i64[?b, ?l], %t: f32[50, 12], %x: f32[?b, ?l, 12]) {
  %e = gather(%t, %ids)
  %a = add(%e, %x)
  %z = const f32[] [0.0]
  %c = less(%a, %z)
  %r = relu(%a)
  %w = where(%c, %x, %r)
  %pads = const i64[6] [0, 1, 0, 0, 2, 3]
  %p = pad(%w, %pads)
  %y = transpose(%p) {perm = [1, 0, 2]}
  return %w, %y
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "windows over images of two sizes",
        text: "graph @main(%x: f32[?n, 4, ?h, ?w], %d: f32[4, 1, 3, 3]) {
  %c = conv(%x, %d) {group = 4, pads = [1, 1, 1, 1]}
  %m = max_pool(%c) {kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]}
  %a = average_pool(%x) {kernel_shape = [2, 2], strides = [2, 2]}
  %g = global_average_pool(%m)
  return %m, %a, %g
}",
        extents: IMAGES,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "the end of rows, by plans that are made from shapes",
        text: "graph @main(%x: f32[?n, ?m]) {
  %p = softmax(%x) {axis = 1}
  %from = const i64[1] [-3]
  %end = const i64[1] [9223372036854775807]
  %axis = const i64[1] [1]
  %t = slice(%p, %from, %end, %axis)
  %y = relu(%t)
  return %y
}",
        extents: &[&[2, 40], &[2, 9], &[2, 12], &[3, 8], &[5, 15], &[2, 11], &[4, 33]],
        all: true,
        plans: 2,
    },
    OpenCase {
        name: "padding that depends on extents",
        text: "graph @main(%x: f32[?n, 16, ?h, ?w], %f: f32[32, 16, 3, 3], %g: f32[32, 32, 3, 3]) {
  %c = conv(%x, %f) {strides = [2, 2], auto_pad = \"SAME_UPPER\"}
  %r = relu(%c)
  %y = conv(%r, %g) {auto_pad = \"SAME_UPPER\"}
  return %y
}",
        extents: &[&[2, 32, 64], &[2, 33, 64], &[3, 34, 35], &[2, 17, 31]],
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "sums of many functions over rows",
        text: "graph @main(%x: f32[?n, ?m]) {
  %rows = const i64[1] [1]
  %a = sin(%x)
  %b = cos(%x)
  %c = exp(%x)
  %d = tanh(%x)
  %e = erf(%x)
  %ab = add(%a, %b)
  %cd = add(%c, %d)
  %abcd = add(%ab, %cd)
  %all = add(%abcd, %e)
  %y = reduce_sum(%all, %rows)
  return %y
}",
        extents: &[&[3, 7000], &[3, 300], &[2, 33], &[2, 7]],
        all: true,
        plans: 2,
    },
    OpenCase {
        name: "means over open axes",
        text: "graph @main(%x: f32[?n, ?m]) {
  %rows = const i64[1] [0]
  %all = const i64[2] [0, 1]
  %y = reduce_mean(%x, %rows)
  %d = sub(%x, %y)
  %s = mul(%d, %d)
  %v = reduce_mean(%s, %all)
  %z = mul(%d, %v)
  return %z
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "gathers along open axes",
        text: "graph @main(%x: f32[?n, ?m, 6], %i: i64[?k]) {
  %y = gather(%x, %i) {axis = 1}
  %last = const i64[1] [-1]
  %z = gather(%y, %last) {axis = 0}
  return %z
}",
        extents: &[&[2, 3, 4], &[5, 17, 2], &[33, 2, 9], &[4, 64, 31]],
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "gathers and scatters of tuples",
        text: "graph @main(%x: f32[?n, 6, ?m], %i: i64[?k, 2], %u: f32[?k, ?m]) {
  %g = gather_nd(%x, %i)
  %v = mul(%g, %u)
  %a = scatter_nd(%x, %i, %v) {reduction = \"add\"}
  %b = scatter_nd(%a, %i, %u) {reduction = \"max\"}
  %r = relu(%b)
  %y = scatter_nd(%r, %i, %g)
  return %v, %b, %y
}",
        extents: TRIPLES,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "elements by the order of lines",
        text: "graph @main(%x: f32[?n, ?m]) {
  %s = shape(%x) {start = 1}
  %t = topk(%x, %s)
  %g = gather_elements(%x, %t:1) {axis = 1}
  %p = scatter_elements(%x, %t:1, %g) {axis = 1, reduction = \"mul\"}
  %k = const i64[1] [2]
  %b = topk(%p, %k) {axis = 0, largest = false}
  %y = scatter_elements(%x, %b:1, %b) {axis = 0, reduction = \"min\"}
  return %t, %t:1, %g, %b, %b:1, %y
}",
        extents: &[&[2, 33], &[3, 17], &[15, 16], &[16, 31], &[31, 15], &[33, 2], &[2, 127], &[17, 128], &[5, 129]],
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "scatters of fewer elements and sums of rows",
        text: "graph @main(%x: f32[?b, 200, 6], %i: i64[?b, ?k, 4], %u: f32[?b, ?k, 4], %j: i64[?k]) {
  %a = scatter_elements(%x, %i, %u) {axis = 1, reduction = \"add\"}
  %nine = const i64[1] [9]
  %s = scatter_sum(%u, %j, %nine) {axis = 1}
  %y = scatter_elements(%a, %i, %u) {axis = 1}
  return %a, %s, %y
}",
        extents: &[&[2, 2], &[3, 15], &[15, 16], &[16, 17], &[2, 31], &[31, 33], &[2, 127], &[3, 128], &[7, 129]],
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "orders of whole lines",
        text: "graph @main(%x: f32[?n, ?m]) {
  %s = sort(%x) {axis = 0}
  %a = argsort(%x) {is_ascend = false}
  %o = mx_topk(%x) {k = 2, ret_typ = \"value\"}
  %f = mx_sort(%x) {axis = -1}
  %y = mul(%s, %a)
  return %y, %o, %f
}",
        extents: &[&[2, 33], &[3, 17], &[15, 16], &[16, 31], &[31, 15], &[33, 2], &[127, 2], &[128, 3], &[129, 5]],
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "running sums, counts and repetitions",
        text: "graph @main(%x: f32[?n, ?m], %i: i64[?n]) {
  %one = const i64[] [1]
  %zero = const i64[] [0]
  %c = cumsum(%x, %one) {reverse = true}
  %d = cumsum(%c, %zero) {exclusive = true}
  %s = shape(%x)
  %l = gather(%s, %one)
  %r = range(%zero, %l, %one)
  %f = cast(%r) {to = f32}
  %e = add(%d, %f)
  %depth = const i64[] [5]
  %values = const f32[2] [0.5, 2.0]
  %h = one_hot(%i, %depth, %values)
  %twice = const i64[2] [2, 1]
  %t = tile(%e, %twice)
  %z = const i64[2] [0, 0]
  %pads = concat(%z, %s) {axis = 0}
  %p = pad(%x, %pads)
  return %e, %h, %t, %p
}",
        extents: PAIRS,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "regions, caches and sequences",
        text: "graph @main(%x: f32[?n, ?c, 9, 11], %rois: f32[?k, 4], %i: i64[?k], %u: f32[?k, ?c, 3, 2], %v: f32[?k, ?c, 2, 2]) {
  %a = abs(%i)
  %one = const i64[] [1]
  %b = min(%a, %one)
  %r = roi_align(%x, %rois, %b) {output_height = 3, output_width = 2, sampling_ratio = 2}
  %s = add(%r, %u)
  %w = tensor_scatter(%s, %v, %b)
  %y = reverse_sequence(%w, %b) {batch_axis = 0, time_axis = 1}
  return %w, %y
}",
        extents: TRIPLES,
        all: true,
        plans: 1,
    },
    OpenCase {
        name: "sums over neighbouring channels are compiled for each number of them",
        text: "graph @main(%x: f32[2, ?n, 3]) {
  %y = lrn(%x) {size = 3}
  return %y
}",
        extents: LENGTHS,
        all: false,
        plans: 0,
    },
];

pub fn types(graph: &Graph, extents: &[u64]) -> Vec<DenseType> {
    let mut known = vec![];
    let mut extent = |dim: &tensorc::ir::Dim| match *dim {
        tensorc::ir::Dim::Const(n) => n,
        dim => {
            let at = known.iter().position(|k| *k == dim).unwrap_or_else(|| {
                known.push(dim);
                known.len() - 1
            });
            extents[at]
        }
    };
    let one = |node| {
        let ty = graph.resolved(tensorc::ir::graph::Value { node, port: 0 });
        let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(&mut extent).collect();
        DenseType::new(ty.dtype.unwrap(), dims)
    };
    graph.inputs().iter().copied().map(one).collect()
}

pub fn values(types: &[DenseType], seed: u64) -> Vec<TensorData> {
    let mut rng = Rng::new(seed);
    // Integers are positions along axes of two elements and more.
    let mut one = |ty: &DenseType| {
        let mut value = || match ty.dtype.is_float() {
            true => rng.below(1000) as f64 / 500.0 - 1.0,
            false => rng.below(4) as f64 - 2.0,
        };
        TensorData::from_fn(ty.clone(), |_| Scalar::from_f64(ty.dtype, value()))
    };
    types.iter().map(&mut one).collect()
}

fn close(a: &TensorData, b: &TensorData) -> bool {
    let far = |(x, y): (f64, f64)| (x - y).abs() > 1e-4 * (1.0 + x.abs().max(y.abs()));
    a.ty == b.ty && !a.to_f64s().into_iter().zip(b.to_f64s()).any(far)
}

#[test]
fn what_passes_make_once_is_right_for_every_shape() {
    let compiler = Compiler::new(Options { poison: true, ..options() }).unwrap();
    let registry = compiler.registry();
    for case in CASES {
        let text = format!("tensorc-ir 1\n{}", case.text);
        let graph = parse_module(&text, registry).unwrap().graphs.remove(0);
        let first = types(&graph, case.extents[0]);
        let mut template = Template::of(&graph, Some(&first)).unwrap();
        let mut cx = PassCx::new(registry).with_options(compiler.options().passes.clone());
        template.change(|graph| Pipeline::open(CompilePhase::Plan).run(graph, &mut cx)).unwrap();
        let mut held = 0;
        for (seed, extents) in case.extents.iter().enumerate() {
            let types = types(&graph, extents);
            let inputs = values(&types, seed as u64);
            let mut bound = graph.clone();
            bind(&mut bound, &types).unwrap();
            let expected = eval_graph(&typed(bound, &compiler), registry, &inputs).unwrap();
            let Some(fused) = template.graph_for(&types) else { continue };
            held += 1;
            verify_graph(&fused, Stage::Fused).unwrap_or_else(|e| panic!("{} {extents:?}: {e}", case.name));
            let found = eval_graph(&fused, registry, &inputs).unwrap();
            for (a, b) in expected.iter().zip(&found) {
                assert!(close(a, b), "{} {extents:?}:\n{:?}\n{:?}", case.name, a.to_f64s(), b.to_f64s());
            }
        }
        let conditions = template.trace.guards();
        assert_eq!(held == case.extents.len(), case.all, "{}: {held} {conditions:?}", case.name);
    }
}

/// With the types that follow from those of inputs.
fn typed(mut graph: Graph, compiler: &Compiler) -> Graph {
    let static_bytes = compiler.options().passes.static_bytes;
    tensorc::passes::infer::infer_graph(&mut graph, compiler.registry(), static_bytes).unwrap();
    graph
}

#[test]
fn models_run_alike_whatever_was_compiled_before() {
    let compiler = Compiler::new(Options { poison: true, ..options() }).unwrap();
    let specializing = Compiler::new(Options { poison: true, specialize: Specialize::Always, ..options() }).unwrap();
    for case in CASES {
        let text = format!("tensorc-ir 1\n{}", case.text);
        let graph = parse_module(&text, compiler.registry()).unwrap().graphs.remove(0);
        let names: Vec<String> = graph.inputs().iter().map(|n| graph.node(*n).name.to_string()).collect();
        let run = |model: &tensorc::Model, extents: &[u64], seed: u64| -> Vec<TensorData> {
            let inputs = values(&types(&graph, extents), seed);
            let named: Vec<_> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
            model.run(&named).unwrap().iter().map(|(_, t)| data(t)).collect()
        };
        let all = compiler.model(graph.clone());
        for (seed, extents) in case.extents.iter().enumerate() {
            let seed = seed as u64;
            let found = run(&all, extents, seed);
            // Alone, and compiled for this shape only.
            assert_eq!(found, run(&compiler.model(graph.clone()), extents, seed), "{} {extents:?}", case.name);
            // With kernels that know their extents.
            assert_eq!(found, run(&specializing.model(graph.clone()), extents, seed), "{} {extents:?}", case.name);
            let types = types(&graph, extents);
            let mut alone = Session::new(&compiler, all.graph_for(&types).unwrap()).unwrap();
            let inputs: Vec<_> = values(&types, seed).iter().map(tensor).collect();
            let expected: Vec<TensorData> = alone.run(&inputs).unwrap().iter().map(data).collect();
            assert!(expected.iter().zip(&found).all(|(a, b)| close(a, b)), "{} {extents:?}", case.name);
        }
        // One and none: compiled as another form of the model.
        for n in [1, 0] {
            let extents = vec![n; case.extents[0].len()];
            let Ok(mut alone) = Session::new(&compiler, all.graph_for(&types(&graph, &extents)).unwrap()) else {
                continue;
            };
            let inputs: Vec<_> = values(&types(&graph, &extents), 5).iter().map(tensor).collect();
            let Ok(expected) = alone.run(&inputs) else { continue };
            let found = run(&all, &extents, 5);
            assert!(expected.iter().map(data).zip(&found).all(|(a, b)| close(&a, b)), "{} {extents:?}", case.name);
        }
    }
}

/// A further shape generates no code, writes no kernel and runs no pass.
#[test]
fn further_shapes_put_numbers_into_a_plan() {
    let compiler = Compiler::new(options()).unwrap();
    let (mut found, mut expected) = (vec![], vec![]);
    for case in CASES.iter().filter(|case| case.all) {
        let text = format!("tensorc-ir 1\n{}", case.text);
        let graph = parse_module(&text, compiler.registry()).unwrap().graphs.remove(0);
        let model = compiler.model(graph.clone());
        let mut made = 0;
        for extents in case.extents {
            let session = model.compile(&types(&graph, extents)).unwrap();
            let steps = session.report().timings.iter().map(|(name, _)| name.as_str());
            let steps: Vec<&str> = steps.filter(|name| !["plan-memory", "load"].contains(name)).collect();
            made += usize::from(!steps.is_empty());
        }
        found.push((case.name, made));
        expected.push((case.name, case.plans));
    }
    // A GPU has other conditions, such as that windows stay inside of images, and so have kernels for wide vectors.
    let more = match compiler.target().processor {
        Processor::Gpu(_) => 2,
        Processor::Cpu(cpu) => usize::from(cpu.vectors == Vectors::Wide || cpu.loops.is_some()),
    };
    let fits = |(a, b): (&(&str, usize), &(&str, usize))| a.1 == b.1 || more > 0 && a.1 <= b.1 + more;
    assert!(found.iter().zip(&expected).all(fits), "{found:?}");
}

#[test]
fn a_shape_that_does_not_fit_is_refused_as_ever() {
    let compiler = Compiler::new(options()).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n, 4], %y: f32[?n, 4]) {\n  %z = add(%x, %y)\n  return %z\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let zeros = |n: u64| tensor(&TensorData::splat(&[n, 4], Scalar::f32(0.0)));
    assert!(model.run(&[("x", zeros(5)), ("y", zeros(5))]).is_ok());
    let error = model.run(&[("x", zeros(5)), ("y", zeros(6))]).unwrap_err().to_string();
    assert!(error.contains("expected 5") && error.contains("6 given"), "{error}");
}

#[test]
fn positions_along_open_axes_are_checked() {
    let compiler = Compiler::new(options()).unwrap();
    let text = "tensorc-ir 1\ngraph @main(%x: f32[?n, 4], %i: i64[?k]) {\n  %y = gather(%x, %i)\n  return %y\n}\n";
    let model = compiler.model(parse_module(text, compiler.registry()).unwrap().graphs.remove(0));
    let run = |n: u64, at: i64| {
        let x = TensorData::splat(&[n, 4], Scalar::f32(1.0));
        let i = TensorData::from_fn(DenseType::new(tensorc::abi::DType::I64, [3]), |i| {
            Scalar::i64(if i == 1 { at } else { 0 })
        });
        model.run(&[("x", tensor(&x)), ("i", tensor(&i))]).map(drop).map_err(|e| e.to_string())
    };
    for n in [5, 9, 2] {
        assert_eq!(run(n, n as i64 - 1), Ok(()));
        assert_eq!(run(n, -(n as i64)), Ok(()));
        for at in [n as i64, -(n as i64) - 1] {
            let error = run(n, at).unwrap_err();
            assert!(error.contains(&format!("holds {at}, which is outside of -n to n - 1")), "{error}");
        }
    }
}

/// Whether the passes of a template ran for a session.
fn was_optimized(session: &Session) -> bool {
    session.report().timings.iter().any(|(step, _)| step == "fuse")
}

#[test]
fn dimensions_that_need_a_number_leave_others_open() {
    let compiler = Compiler::new(Options { poison: true, ..options() }).unwrap();
    // A number that an operand asks for; a number that an operator computes with; then other ones of what is open.
    let by_operand = "graph @main(%x: f32[?n, ?h, ?w], %v: f32[12, 1]) {
  %y = add(%x, %v)
  return %y
}";
    // What a pool leaves of the height must be 1: it may be 4 to 7.
    let by_shape = "graph @main(%x: f32[?n, 3, ?h, ?w]) {
  %p = max_pool(%x) {kernel_shape = [4, 1], strides = [4, 1]}
  %axis = const i64[1] [2]
  %y = squeeze(%p, %axis)
  return %y
}";
    let by_operator = "graph @main(%x: f32[?w, ?n, 12]) {
  %y = lrn(%x) {size = 3}
  %z = sub(%x, %y)
  return %z
}";
    let cases = [
        (by_operand, [(&[2u64, 12, 5][..], true), (&[3, 12, 5][..], false), (&[7, 12, 40][..], false)]),
        (by_shape, [(&[2, 4, 5][..], true), (&[3, 4, 9][..], false), (&[3, 5, 9][..], true)]),
        (by_operator, [(&[5, 3][..], true), (&[40, 3][..], false), (&[40, 4][..], true)]),
    ];
    for (text, shapes) in cases {
        let graph = parse_module(&format!("tensorc-ir 1\n{text}"), compiler.registry()).unwrap().graphs.remove(0);
        let model = compiler.model(graph.clone());
        for (seed, (extents, is_first)) in shapes.into_iter().enumerate() {
            let types = types(&graph, extents);
            let mut session = model.compile(&types).unwrap();
            assert_eq!(was_optimized(&session), is_first, "{extents:?}: {:?}", session.report().timings);
            let values = values(&types, seed as u64);
            let inputs: Vec<_> = values.iter().map(tensor).collect();
            let found: Vec<TensorData> = session.run(&inputs).unwrap().iter().map(data).collect();
            let mut bound = graph.clone();
            bind(&mut bound, &types).unwrap();
            let expected = eval_graph(&typed(bound, &compiler), compiler.registry(), &values).unwrap();
            assert!(expected.iter().zip(&found).all(|(a, b)| close(a, b)), "{extents:?}");
        }
    }
}
