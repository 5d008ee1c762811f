//! Properties of every registered operator, found by trying operands: compiled code computes what
//! the reference interpreter does. A new entry is covered without an edit here.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorc::ndarray::{NDArray, Operand, Runtime, RuntimeOptions};
use tensorc::{Compiler, DType, Error, Options, Tensor};
use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{Accuracy, Compute, OpRef, Registry, TypeRule};

use crate::support::backend::options;
use crate::support::cache::visible;
use crate::support::compare::{Tolerance, compare, data, tensor};
use tensorc_ir::testing::{Candidate, candidates, element_types, elementwise};

/// Operators that some candidate fits. An operator that none fits is not tested here; raise the
/// number when candidates are added, never lower it.
const COVERED: usize = 203;

/// Operators whose compiled results have the interpreter's bits: what is one expression, and what is
/// a function of a key.
fn has_defined_bits(op: &OpRef) -> bool {
    elementwise(op) || op.accuracy == Accuracy::Random
}

/// A compiler that rounds as the interpreter does.
fn compiler(threads: usize) -> Compiler {
    let mut options = Options { threads: Some(threads), poison: true, ..options() };
    options.passes.reassociate = false;
    Compiler::new(options).unwrap()
}

/// What the caught panic said.
fn caught<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        format!("{what} panicked: {}", text.unwrap_or_default())
    })
}

fn run(compiler: &Compiler, graph: &Graph, inputs: &[TensorData]) -> Result<Vec<TensorData>, String> {
    let model = compiler.model(graph.clone());
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    let named: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let outputs = caught("compiling or running", || model.run(&named))?.map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|(_, t)| data(t)).collect())
}

/// Bit for bit, any NaN standing for any other.
fn same_bits(got: &TensorData, want: &TensorData) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("got {}, expected {}", got.ty, want.ty));
    }
    let differs = |(_, (g, w)): &(usize, (_, _))| {
        let (g, w): (&tensorc_ir::scalar::Scalar, &tensorc_ir::scalar::Scalar) = (g, w);
        g != w && !(g.as_f64().is_nan() && w.as_f64().is_nan())
    };
    match got.iter().zip(want.iter()).enumerate().find(differs) {
        None => Ok(()),
        Some((at, (g, w))) => Err(format!("element {at}: got {g:?}, expected {w:?}")),
    }
}

/// Equal up to the order of sums: relative to the greatest magnitude expected.
fn nearly_same(got: &TensorData, want: &TensorData) -> Result<(), String> {
    let relative = match want.dtype() {
        DType::F32 => 1e-5,
        DType::F64 => 1e-12,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    };
    let finite = want.to_f64s().into_iter().filter(|x| x.is_finite()).map(f64::abs);
    let greatest = if relative > 0.0 { finite.fold(1.0, f64::max) } else { 0.0 };
    compare(got, want, Tolerance { absolute: relative * greatest, relative })
}

/// How one candidate went.
enum Verdict {
    /// The operator does not take these operands.
    NotTaken,
    Agrees,
    Fails(String),
}

fn judge(compilers: &[Compiler], arrays: &Runtime, registry: &Registry, op: &OpRef, candidate: &Candidate) -> Verdict {
    let Some(graph) = candidate.graph(op) else { return Verdict::NotTaken };
    let inputs = &candidate.inputs;
    let want = match caught("interpreting", || eval_graph(&graph, registry, inputs)) {
        Ok(Ok(want)) => want,
        Ok(Err(_)) => return Verdict::NotTaken,
        Err(panic) => return Verdict::Fails(panic),
    };
    let mut first: Option<Vec<TensorData>> = None;
    for compiler in compilers {
        let got = match run(compiler, &graph, inputs) {
            Ok(got) => got,
            Err(why) => return Verdict::Fails(why),
        };
        if let Some(first) = &first {
            let different = first.iter().zip(&got).any(|(a, b)| a != b);
            if different {
                return Verdict::Fails("results depend on the number of threads".into());
            }
        }
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let checked = match has_defined_bits(op) {
                true => same_bits(got, want),
                false => nearly_same(got, want),
            };
            if let Err(why) = checked {
                return Verdict::Fails(format!("result {i}: {why}"));
            }
        }
        first.get_or_insert(got);
    }
    match imperative(arrays, op, candidate, &first.unwrap_or_default()) {
        Ok(()) => Verdict::Agrees,
        Err(why) => Verdict::Fails(format!("called on arrays: {why}")),
    }
}

/// Calls the operator on arrays.
fn invoke(candidate: &Candidate, rt: &Runtime, op: &OpRef) -> Result<Vec<NDArray>, Error> {
    let device = rt.options().device;
    let arrays: Vec<NDArray> =
        candidate.inputs.iter().map(|data| rt.from_tensor(&tensor(data), device)).collect::<Result<_, _>>()?;
    let mut next = arrays.iter();
    let mut call = rt.op(op.name)?.outputs(candidate.outputs);
    for operand in &candidate.operands {
        call = match operand {
            None => call.arg(Operand::Absent),
            Some((data, true)) => call.arg(tensor(data)),
            Some((_, false)) => call.arg(next.next().expect("an input for every operand")),
        };
    }
    candidate.params.iter().fold(call, |call, (name, value)| call.param(name, value.clone())).invoke_all()
}

/// Called on arrays, the operator gives the bits of the compiled graph.
fn imperative(arrays: &Runtime, op: &OpRef, candidate: &Candidate, want: &[TensorData]) -> Result<(), String> {
    let got = caught("calling", || invoke(candidate, arrays, op))?.map_err(|e| e.to_string())?;
    for (got, want) in got.iter().zip(want) {
        let got = data(&got.to_tensor().map_err(|e| e.to_string())?);
        match op.key_input {
            None => same_bits(&got, want)?,
            // Arrays draw with a key of their own.
            Some(_) if got.ty == want.ty => {}
            Some(_) => return Err(format!("got {}, expected {}", got.ty, want.ty)),
        }
    }
    Ok(())
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
    let compilers = [compiler(1), compiler(2)];
    let arrays = Runtime::with_compiler(compilers[1].clone(), RuntimeOptions::default()).unwrap();
    let mut all = Examined::default();
    for op in ops {
        let (mut agrees, mut fails) = (0, 0);
        for candidate in candidates(op) {
            match judge(&compilers, &arrays, registry, op, &candidate) {
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
    let halves = std::thread::scope(|scope| {
        let half = |first| {
            let ops = ops.iter().copied().skip(first).step_by(2);
            let registry = &registry;
            scope.spawn(move || examine(registry, ops))
        };
        [0, 1].map(half).map(|thread| thread.join().unwrap())
    });
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
