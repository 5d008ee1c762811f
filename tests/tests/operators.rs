//! Properties of every registered operator, found by trying operands: compiled code computes what
//! the reference interpreter does. A new entry is covered without an edit here.

use std::collections::BTreeSet;

use tensorc::{Compiler, DType, Options};
use tensorc_ir::TensorData;
use tensorc_ir::graph::NodeKind;
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Compute, OpRef, Registry, TypeRule};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_random::{candidates, element_types, elementwise};
use tensorc_tests::cache::visible;
use tensorc_tests::operators::{Verdict, has_defined_bits, judge, nearly_same, on_two_threads, run};

use crate::support::backend::options;

/// Operators that some candidate fits. An operator that none fits is not tested here; raise the
/// number when candidates are added, never lower it.
const COVERED: usize = 203;

/// A compiler that rounds as the interpreter does.
fn compiler(threads: usize) -> Compiler {
    let mut options = Options { threads: Some(threads), poison: true, ..options() };
    // Operands are drawn without regard to what operators demand of them.
    options.passes.clamp_indices = true;
    options.passes.reassociate = false;
    Compiler::new(options).unwrap()
}

/// What came of the candidates of some operators.
#[derive(Default)]
struct Examined {
    covered: usize,
    runs: usize,
    failures: Vec<String>,
    /// Operators without candidates that they take.
    open: Vec<&'static str>,
}

/// Judges the candidates of operators, with compilers of its own.
fn examine<'r>(registry: &Registry, ops: impl Iterator<Item = &'r OpRef>) -> Examined {
    let one_thread = compiler(1);
    let arrays = Runtime::with_compiler(compiler(2), RuntimeOptions::default()).unwrap();
    let mut all = Examined::default();
    for op in ops {
        let (mut agrees, mut fails) = (0, 0);
        for candidate in candidates(op) {
            match judge(&one_thread, &arrays, registry, op, &candidate, |_| has_defined_bits(op)) {
                Verdict::NotTaken => {}
                Verdict::Agrees => agrees += 1,
                Verdict::Fails(why) => {
                    fails += 1;
                    if fails <= 3 {
                        all.failures.push(format!("{}: {candidate}: {why}", op.name));
                    }
                }
            }
        }
        all.runs += agrees + fails;
        match agrees + fails {
            0 => all.open.push(op.name),
            _ => all.covered += 1,
        }
    }
    all
}

#[test]
fn compiled_operators_agree_with_the_interpreter() {
    let registry = tensorc_ops::registry().unwrap();
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let ops: Vec<&OpRef> = registry.iter().filter(|op| op.name.contains(&only)).collect();
    // The longest test of all: on two threads.
    let halves = on_two_threads(&ops, |half| examine(&registry, half.into_iter().map(|(_, op)| op)));
    let mut all = Examined::default();
    for half in halves {
        all.covered += half.covered;
        all.runs += half.runs;
        all.failures.extend(half.failures);
        all.open.extend(half.open);
    }
    let Examined { covered, runs, failures, mut open } = all;
    open.sort_unstable();
    visible(&format!("operators: {covered} covered in {runs} graphs; no operands found for: {}", open.join(", ")));
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(!only.is_empty() || covered >= COVERED, "{covered} operators covered, {COVERED} before");
}

#[test]
fn element_types_of_a_group_are_those_of_its_rule() {
    let registry = tensorc_ops::registry().unwrap();
    for op in registry.iter().filter(|op| matches!(op.compute, Compute::Scalar(_))) {
        let types: BTreeSet<DType> = element_types(op).into_iter().collect();
        for spec in &op.inputs {
            if let TypeRule::Group(_, list) = spec.ty {
                assert!(list.is_empty() || types.iter().all(|t| list.contains(t)), "{}", op.name);
            }
        }
    }
}

/// Every operator that is one expression has a graph of one node to be tested with.
#[test]
fn candidates_build_one_node() {
    let registry = tensorc_ops::registry().unwrap();
    for op in registry.iter().filter(|op| elementwise(op)) {
        let graph = candidates(op).iter().find_map(|c| c.graph(op)).unwrap_or_else(|| panic!("{}", op.name));
        let nodes = graph.order().into_iter().filter(|n| matches!(graph.node(*n).kind, NodeKind::Op(_)));
        assert_eq!(nodes.count(), 1, "{}", op.name);
    }
}

/// Kernels of operators that take operands of particular values only.
#[test]
fn chosen_operands_agree_with_the_interpreter() {
    let registry = tensorc_ops::registry().unwrap();
    let chosen = [
        "(%k: u32[2]) { %y = mx_sample_unique_zipfian(%k) {range_max=40, shape=[6, 30]} : (?, ?) return a = %y, b = %y:1 }",
        "(%x: f32[2, 8, 9, 7]) { %r = const f32[2, 5] [0.0, 0.5, 1.0, 4.0, 3.5, 1.0, 1.0, 0.0, 5.5, 9.0] \
         %y = mx_psroi_pooling(%x, %r) {output_dim=2, pooled_size=3, group_size=2, spatial_scale=0.5} return %y }",
        "(%w: f32[3, 2], %g: f32[3, 2], %h: f32[3, 1]) { %y = mx_group_adagrad_update(%w, %g, %h) {lr=0.1} : (?, ?) \
         return a = %y, b = %y:1 }",
    ];
    for text in chosen {
        let module = tensorc_ir::text::parse_module(&format!("graph @chosen{text}"), &registry).unwrap();
        let graph = &module.graphs[0];
        let value = |i: u64| 0.1 + (i as f64 * 0.7).sin().abs();
        let inputs: Vec<TensorData> = graph
            .inputs()
            .iter()
            .map(|node| graph.dense(tensorc_ir::graph::Value { node: *node, port: 0 }).unwrap())
            .map(|ty| {
                TensorData::from_fn(ty.clone(), |i| tensorc_ir::scalar::Scalar::from_f64(ty.dtype, value(i) * 9.0))
            })
            .collect();
        let want = eval_graph(graph, &registry, &inputs).unwrap();
        for threads in [1, 2] {
            let got = run(&compiler(threads), graph, &inputs).unwrap();
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(&want) {
                nearly_same(got, want).unwrap_or_else(|why| panic!("{text}: {why}"));
            }
        }
    }
}
