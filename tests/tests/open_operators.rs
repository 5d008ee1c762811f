//! Operators with open extents. The results for many extents are compared with the reference interpreter. The cases in this file
//! also have one plan for all extents. `TENSORC_OPERATORS_ONLY` selects operators by a part of their names.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::OpRef;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::parse_module;
use tensorc::ir::{DenseType, Rng, TensorData};
use tensorc::{Compiler, DType, Options};
use tensorc_random::{candidates_of, element_types};
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{Tolerance, compare, data, tensor};
use tensorc_tests::opened::Opened;
use tensorc_tests::operators::on_two_threads;

use crate::support::backend::options;
use crate::support::plan_counter;

/// An operator on inputs of which `?n`, `?m` and `?p` are open. Other names have the number of their first letter.
struct Case {
    name: &'static str,
    text: &'static str,
    /// Integers are below it.
    below: u64,
}

const CASES: &[Case] = &[
    Case {
        name: "attention by rows, causal",
        text: "graph @main(%q: f32[2, ?n, 24], %k: f32[2, ?n, 12], %v: f32[2, ?n, 12]) {
  %y = attention(%q, %k, %v) {q_num_heads = 6, kv_num_heads = 3, is_causal = true}
  return %y
}",
        below: 1,
    },
    Case {
        name: "attention by heads with a cache and a mask",
        text: "graph @main(%q: f32[?m, 3, ?n, 8], %k: f32[?m, 3, ?n, 8], %mask: f32[?n, 1], %pk: f32[?m, 3, ?p, 8]) {
  %y = attention(%q, %k, %k, %mask, %pk, %pk) {is_causal = true} : (f32[*], f32[*], f32[*])
  return %y, %y:1, %y:2
}",
        below: 1,
    },
    Case {
        name: "rotary embedding",
        text: "graph @main(%x: f32[?m, ?n, 16], %c: f32[64, 4], %s: f32[64, 4], %ids: i64[?m, ?n]) {
  %y = rotary_embedding(%x, %c, %s, %ids) {num_heads = 2}
  %z = rotary_embedding(%x, %c, %s, %ids) {num_heads = 2, interleaved = true}
  return %y, %z
}",
        below: 64,
    },
    Case {
        name: "normalisation of groups",
        text: "graph @main(%x: f32[?m, 6, ?n, 5], %g: f32[6], %b: f32[6]) {
  %y = group_norm(%x, %g, %b) {num_groups = 3}
  return %y
}",
        below: 1,
    },
    Case {
        name: "means of windows without padding",
        text: "graph @main(%x: f32[?m, 3, ?n, 9]) {
  %a = average_pool(%x) {kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 2]}
  %b = average_pool(%x) {kernel_shape = [3, 2], auto_pad = \"SAME_UPPER\", strides = [1, 2]}
  return %a, %b
}",
        below: 1,
    },
    Case {
        name: "sums over subscripts",
        text: "graph @main(%a: f32[?m, ?n, 8], %b: f32[?m, 8, ?n], %d: f32[?n, ?n]) {
  %p = einsum(%a, %b) {equation = \"bij,bjk->bik\"}
  %t = einsum(%d) {equation = \"ii->i\"}
  %s = einsum(%a, %d) {equation = \"bij,ik->bkj\"}
  return %p, %t, %s
}",
        below: 1,
    },
    Case {
        name: "blocks of channels and space",
        text: "graph @main(%x: f32[?m, 8, ?n, 3]) {
  %d = depth_to_space(%x) {blocksize = 2}
  %c = depth_to_space(%x) {blocksize = 2, mode = \"CRD\"}
  %s = space_to_depth(%d) {blocksize = 2}
  return %d, %c, %s
}",
        below: 1,
    },
    Case {
        name: "losses",
        text: "graph @main(%x: f32[?m, 5, ?n], %t: i64[?m, ?n], %w: f32[5]) {
  %a = nll_loss(%x, %t, %w)
  %b = nll_loss(%x, %t) {reduction = \"none\"}
  %c = softmax_cross_entropy_loss(%x, %t, %w) : (f32[*], f32[*])
  return %a, %b, %c, %c:1
}",
        below: 5,
    },
    Case {
        name: "means of everything",
        text: "graph @main(%x: f32[?n, ?m]) {
  %y = reduce_mean(%x) {keepdims = false}
  %z = sub(%x, %y)
  return %y, %z
}",
        below: 1,
    },
    Case {
        name: "bytes by the range of a tensor",
        text: "graph @main(%x: f32[?n, 24]) {
  %y = dynamic_quantize_linear(%x) : (u8[*], f32[*], u8[*])
  return %y, %y:1, %y:2
}",
        below: 1,
    },
    Case {
        name: "products of MXNet",
        text: "graph @main(%a: f32[?m, ?n, 6], %b: f32[?m, 6, 7], %c: f32[6, ?n]) {
  %p = batch_dot(%a, %b)
  %q = dot(%a, %c)
  return %p, %q
}",
        below: 1,
    },
    Case {
        name: "extents that are equal without saying so",
        text: "graph @main(%x: f32[?n_left, ?m], %y: f32[?n_right, ?m_other], %z: f32[?n_third, 1]) {
  %a = add(%x, %y)
  %b = mul(%a, %z)
  return %b
}",
        below: 1,
    },
    Case {
        name: "equal extents beside a number that a model demands",
        text: "graph @main(%x: f32[?m_left, ?p], %y: f32[?m_right, ?n]) {
  %axis = const i64[1] [1]
  %s = reduce_sum(%y, %axis)
  %a = mul(%x, %s)
  return %a
}",
        below: 1,
    },
    Case {
        name: "random numbers",
        text: "graph @main(%x: f32[?n, ?m], %p: f32[?n, 5]) {
  %a = random_normal_like(%x)
  %b = bernoulli(%x)
  %c = multinomial(%p) {sample_size = 4}
  return %a, %b, %c
}",
        below: 1,
    },
    Case {
        name: "regions of images",
        text: "graph @main(%x: f32[?m, 3, ?n, ?p], %r: f32[?n, 4], %i: i64[?n]) {
  %a = roi_align(%x, %r, %i) {output_height = 2, output_width = 3}
  return %a
}",
        below: 2,
    },
    Case {
        name: "samples between elements",
        text: "graph @main(%x: f32[?m, 3, ?n, ?p], %g: f32[?m, 4, ?p, 2]) {
  %a = grid_sample(%x, %g)
  %b = grid_sample(%x, %g) {mode = \"cubic\", padding_mode = \"reflection\", align_corners = true}
  return %a, %b
}",
        below: 1,
    },
    Case {
        name: "MXNet's layers of images",
        text: "graph @main(%x: f32[?m, 4, 9, 11]) {
  %w = const f32[8, 4, 3, 3] random(1)
  %t = const f32[8, 4, 2, 2] random(2)
  %b = const f32[8] random(3)
  %v = const f32[8] splat(1.0)
  %h = const f32[2] random(4)
  %c = mx_convolution(%x, %w, %b) {kernel = [3, 3], pad = [1, 1], num_filter = 8}
  %n = mx_batch_norm(%c, %b, %b, %b, %v)
  %g = mx_group_norm(%n, %h, %h) {num_groups = 2}
  %a = mx_leaky_relu(%g, %b) {act_type = \"prelu\"}
  %s = mx_pooling(%a) {kernel = [2, 2], stride = [2, 2], pool_type = \"max\"}
  %f = mx_pooling(%a) {kernel = [3, 3], pad = [1, 1], stride = [2, 2], pool_type = \"avg\", pooling_convention = \"full\"}
  %d = mx_deconvolution(%s, %t) {kernel = [2, 2], stride = [2, 2], num_filter = 4}
  %u = mx_up_sampling(%s) {scale = 2, sample_type = \"nearest\"}
  %e = mx_pad(%s) {mode = \"edge\", pad_width = [0, 0, 0, 0, 1, 2, 2, 1]}
  %o = mx_softmax_activation(%s) {mode = \"channel\"}
  return %f, %d, %u, %e, %o
}",
        below: 1,
    },
    Case {
        name: "MXNet's positions and repetitions",
        text: "graph @main(%i: i64[?m, ?n], %x: f32[?m, ?n, 6], %l: f32[?n], %k: f32[?m, 1, 6]) {
  %w = const f32[6, 8] random(1)
  %e = mx_embedding(%i, %w) {input_dim = 6, output_dim = 8}
  %t = mx_take(%w, %i)
  %p = mx_pick(%x, %i) {axis = 2}
  %o = mx_one_hot(%i) {depth = 5}
  %r = mx_tile(%x) {reps = [1, 2, 1]}
  %s = mx_repeat(%x) {repeats = 3, axis = 0}
  %c = mx_where(%x, %x, %x)
  %b = mx_broadcast_like(%k, %x)
  %q = mx_sequence_mask(%x, %l) {use_sequence_length = true}
  return %e, %t, %p, %o, %r, %s, %c, %b, %q
}",
        below: 6,
    },
    Case {
        name: "MXNet's sequences",
        text: "graph @main(%x: f32[?n, ?m, 6], %l: f32[?m]) {
  %a = mx_sequence_last(%x, %l) {use_sequence_length = true}
  %b = mx_sequence_last(%x)
  %c = mx_sequence_reverse(%x, %l) {use_sequence_length = true}
  %d = mx_sequence_reverse(%x)
  return %a, %b, %c, %d
}",
        below: 1,
    },
    Case {
        name: "MXNet's assignments to parts, and patches",
        text: "graph @main(%x: f32[?n, ?p], %y: f32[2, 4], %i: f32[?m, 2, 7, 9]) {
  %a = mx_slice_assign(%x, %y) {begin = [1, -1], end = [3, -5], step = [1, -1]}
  %b = mx_slice_assign_scalar(%x) {begin = [1, 1], end = [5, 4], step = [2, 1], scalar = 7.5}
  %c = mx_im2col(%i) {kernel = [3, 2], stride = [2, 1], pad = [1, 0]}
  %d = mx_col2im(%c) {kernel = [3, 2], stride = [2, 1], pad = [1, 0], output_size = [7, 9]}
  return %a, %b, %c, %d
}",
        below: 1,
    },
    Case {
        name: "MXNet's attention on interleaved heads",
        text: "graph @main(%x: f32[?n, ?m, 24]) {
  %a = mx_interleaved_matmul_selfatt_qk(%x) {heads = 2}
  %y = mx_interleaved_matmul_selfatt_valatt(%x, %a) {heads = 2}
  return %y
}",
        below: 1,
    },
    Case {
        name: "positions as bits",
        text: "graph @main(%i: i64[?n], %v: f32[2], %a: f32[?n, 5], %b: f32[?m, 5]) {
  %depth = const i64[] [7]
  %o = one_hot(%i, %depth, %v)
  %d = cdist(%a, %b)
  return %o, %d
}",
        below: 7,
    },
];

/// Extents of `?n`, `?m` and `?p`. Short rows have plans of their own.
const SIZES: [[u64; 3]; 5] = [[9, 3, 11], [16, 2, 5], [17, 5, 33], [40, 3, 12], [31, 7, 8]];

plan_counter!(PLANNED, count);

#[test]
fn one_plan_is_made_for_all_extents() {
    let mut failures = vec![];
    for case in CASES {
        let compiler = Compiler::new(Options { progress: Some(count), poison: true, ..options() }).unwrap();
        let graph = parse_module(case.text, compiler.registry()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let graph = graph.graphs.into_iter().next().unwrap();
        let model = compiler.model(graph.clone());
        let mut rng = Rng::new(5);
        let mut plans = vec![];
        for [n, m, p] in SIZES {
            let extent = |dim: &tensorc::ir::Dim| match dim {
                tensorc::ir::Dim::Sym(id) => match &*graph.dims.name(*id) {
                    name if name.starts_with('n') => n,
                    name if name.starts_with('m') => m,
                    _ => p,
                },
                dim => dim.as_const().unwrap(),
            };
            let input = |(_, ty): &(String, tensorc::ir::TensorType)| {
                let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(extent).collect();
                TensorData::from_fn(DenseType::new(ty.dtype.unwrap(), dims), |_| match ty.dtype {
                    Some(DType::I64) => Scalar::i64(rng.below(case.below) as i64),
                    _ => rng.element(DType::F32),
                })
            };
            let signature = model.inputs();
            let inputs: Vec<TensorData> = signature.iter().map(input).collect();
            let named: Vec<_> = signature.iter().map(|(name, _)| &**name).zip(inputs.iter().map(tensor)).collect();
            let results = model.run(&named).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let expected = eval_graph(&graph, compiler.registry(), &inputs).unwrap();
            for ((name, got), want) in results.iter().zip(&expected) {
                let tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };
                compare(&data(got), want, tolerance)
                    .unwrap_or_else(|e| panic!("{} {n} {m} {p}, output {name}: {e}", case.name));
            }
            plans.push(PLANNED.load(Ordering::Relaxed));
        }
        if plans[0] != plans[SIZES.len() - 1] {
            failures.push(format!("{}: {plans:?} plans", case.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Operators that some candidate with open extents fits. Raise the number when candidates are added, never lower it.
const COVERED: usize = 439;

/// Candidates of an operator that are tried, and extents for each.
const CANDIDATES: usize = 4;
const CHOICES: usize = 10;

/// Judges candidates of operators with open extents: how many operators had some that they take, and what failed.
fn judged(ops: Vec<(usize, &OpRef)>) -> (usize, Vec<String>) {
    let mut options = Options { threads: Some(1), poison: true, ..options() };
    // Operands are drawn without regard to what operators demand of them.
    options.passes.clamp_indices = true;
    options.passes.reassociate = false;
    let compiler = Compiler::new(options).unwrap();
    let (mut covered, mut failures) = (0, vec![]);
    for (number, op) in ops {
        let mut seen = BTreeSet::new();
        let opened = candidates_of(op, element_types(op)[0]).into_iter().filter_map(|candidate| {
            let graph = candidate.graph(op)?;
            // What differs in extents alone is one graph.
            let ranks = candidate.inputs.iter().map(|data| data.ty.rank());
            let fixed = candidate.operands.iter().flatten().filter(|(_, fixed)| *fixed).map(|(data, _)| data.to_f64s());
            let of_kind =
                format!("{:?} {:?} {:?}", ranks.collect::<Vec<_>>(), fixed.collect::<Vec<_>>(), candidate.params);
            let opened = Opened::of(&graph, &candidate.inputs, compiler.registry())?;
            seen.insert(of_kind).then_some((candidate, opened))
        });
        let mut taken = 0;
        for (i, (candidate, opened)) in opened.take(CANDIDATES).enumerate() {
            let first = number + i * CHOICES;
            match opened.judge(&compiler, first..first + CHOICES) {
                Ok(shapes) => taken += shapes,
                Err(why) => failures.push(format!("{}: {candidate} as {why}", op.name)),
            }
        }
        covered += usize::from(taken > 0);
    }
    (covered, failures)
}

#[test]
fn every_operator_takes_other_extents() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let ops: Vec<&OpRef> = registry.iter().filter(|op| op.name.contains(&only)).collect();
    let [(left, mut failures), (right, others)] = on_two_threads(&ops, judged);
    failures.extend(others);
    let covered = left + right;
    visible(&format!("operators for other extents: {covered} covered"));
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(!only.is_empty() || covered >= COVERED, "{covered} operators covered, {COVERED} before");
}
