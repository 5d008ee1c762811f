//! Requests of gradients for every registered operator: what is written, what is added, what is left alone, with
//! the forward pass in place or not. The witness is the interpreter's gradient in f64, which the tests of
//! `differentiate` compare with differences.

#[path = "../../../passes/tests/integration/gradients/cases.rs"]
#[expect(dead_code, reason = "shared with the tests of `differentiate`, which need more of it")]
mod cases;
#[path = "../../../passes/tests/integration/gradients/function.rs"]
pub mod function;

use std::sync::Arc;

use cases::{CASES, CONVENTIONS};
use function::{Function, RANGES, case, cast, evaluate, function, has_variables, inputs, is_tame, precision, tensor};
use tensorc::ir::graph::{Graph, NodeKind, Value};
use tensorc::ir::op::{Compute, Grad, OpDef, OpRef, Registry, TypeRule};
use tensorc::ir::params::Params;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, TensorData};
use tensorc::op::{Define, InputSpec, types};
use tensorc::passes::infer::InferTypes;
use tensorc::passes::{Pass, PassCx};
use tensorc::symbol::op_in;
use tensorc::{Compiler, DType};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};
use tensorc_random::{Candidate, candidates_of};

use super::var;
use crate::support::backend::options;

/// Most elements of an operand.
const LARGEST: u64 = 300;

/// What gradient arrays hold before.
const BEFORE: f64 = 3.0;

/// A function as an operator of its own, with operands and the gradients of their results.
struct Subject {
    title: String,
    /// The entry that computes it.
    name: &'static str,
    function: Function,
    inputs: Vec<TensorData>,
    /// By operand differentiated by, in f64.
    expected: Vec<TensorData>,
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A function as one entry, so that symbols can have it whatever constants it takes.
fn entry(name: &'static str, function: &Function) -> OpDef {
    let graph = Arc::new(function.graph.clone());
    let heads = function.heads;
    let of = |v: Value| graph.dense(v).unwrap();
    let outputs: Vec<DenseType> = graph.outputs()[..heads].iter().map(|(_, v)| of(*v)).collect();
    let operands: Vec<DenseType> = graph.inputs().iter().map(|n| of(Value { node: *n, port: 0 })).collect();
    let body = graph.clone();
    let compute = Compute::Composite(Box::new(move |b, _, args| {
        let mut made: Vec<(Value, Value)> = vec![];
        let inputs = body.inputs().iter().zip(args);
        made.extend(inputs.filter_map(|(node, arg)| Some((Value { node: *node, port: 0 }, (*arg)?))));
        for id in body.order() {
            let node = body.node(id);
            let results = match &node.kind {
                NodeKind::Const(data) => vec![b.constant(data.clone())],
                NodeKind::Op(op) => {
                    let operand = |v: &Option<Value>| v.map(|v| made.iter().find(|(old, _)| *old == v).unwrap().1);
                    let operands: Vec<Option<Value>> = body.operands(id).iter().map(operand).collect();
                    b.op_multi(op.def.name, &operands, op.params.clone(), node.types.len())?.to_vec()
                }
                _ => vec![],
            };
            made.extend(results.iter().enumerate().map(|(port, v)| (Value { node: id, port: port as u16 }, *v)));
        }
        let result = |(_, v): &(Arc<str>, Value)| made.iter().find(|(old, _)| old == v).unwrap().1;
        Ok(body.outputs()[..heads].iter().map(result).collect())
    }));
    let infer = types(move |_, _| Ok(outputs.clone()));
    let def = OpDef::new(name, "A case.", compute, infer).outputs(heads, heads);
    operands.iter().enumerate().fold(def, |def, (i, ty)| {
        let only: &'static [DType] = Box::leak(Box::new([ty.dtype]));
        let spec = InputSpec { name: leaked(format!("x{i}")), ty: TypeRule::OneOf(only), optional: false };
        def.edit(|d| d.inputs.push(spec))
    })
}

/// Whether a running sum along the last axis can stand before or after a value.
fn is_summed(ty: &DenseType) -> bool {
    ty.dtype.is_float() && ty.rank() > 0 && !ty.is_empty()
}

/// The function between running sums: these are kernels of their own, so what lies between them computes from
/// memory to memory, in place where it can.
fn surrounded(function: &Function, registry: &Registry) -> Function {
    let mut graph = function.graph.clone();
    let sum = |graph: &mut Graph, v: Value| {
        let axis = graph.dense(v).unwrap().rank() as i64 - 1;
        let axis = graph.add_const("axis", TensorData::scalar(Scalar::i64(axis)));
        let def = registry.get("cumsum").unwrap();
        let node = graph.add_op("sum", def, &[Some(v), Some(axis)], Params::new(), 1).unwrap();
        Value { node, port: 0 }
    };
    for &i in &function.by {
        let input = Value { node: graph.inputs()[i], port: 0 };
        if is_summed(&graph.dense(input).unwrap()) {
            let sums = sum(&mut graph, input);
            graph.replace_uses(input, sums);
            graph.set_arg(sums.node, 0, input);
        }
    }
    let mut outputs = graph.outputs().to_vec();
    for (_, v) in outputs[..function.heads].iter_mut() {
        if is_summed(&graph.dense(*v).unwrap()) {
            *v = sum(&mut graph, *v);
        }
    }
    graph.set_outputs(outputs);
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).unwrap();
    Function { graph, ..function.clone() }
}

/// Operands whose running sums are these.
fn differences(function: &Function, inputs: &[TensorData]) -> Vec<TensorData> {
    let mut inputs = inputs.to_vec();
    for &i in function
        .by
        .iter()
        .filter(|i| is_summed(&function.graph.dense(Value { node: function.graph.inputs()[**i], port: 0 }).unwrap()))
    {
        let (x, last) = (inputs[i].clone(), *inputs[i].dims().last().unwrap());
        inputs[i] = TensorData::from_fn(x.ty.clone(), |at| match at % last {
            0 => x.get(at),
            _ => Scalar::from_f64(x.dtype(), x.get(at).as_f64() - x.get(at - 1).as_f64()),
        });
    }
    inputs
}

fn widened(inputs: &[TensorData]) -> Vec<TensorData> {
    inputs.iter().map(|x| if x.dtype().is_float() { cast(x, DType::F64) } else { x.clone() }).collect()
}

/// Whether two candidates differ in the type of floats only.
fn is_twin(wide: &Candidate, narrow: &Candidate) -> bool {
    let dims = |c: &Candidate| -> Vec<Option<Vec<u64>>> {
        c.operands.iter().map(|o| o.as_ref().map(|(data, _)| data.dims().to_vec())).collect()
    };
    let fixed = |c: &Candidate| -> Vec<Vec<f64>> {
        c.operands.iter().flatten().filter(|(_, fixed)| *fixed).map(|(data, _)| data.to_f64s()).collect()
    };
    wide.params == narrow.params
        && wide.outputs == narrow.outputs
        && dims(wide) == dims(narrow)
        && fixed(wide) == fixed(narrow)
}

/// An operator with guessed operands at which its gradient in f64 is tame; `None` if there are none.
fn guessed(op: &OpRef, registry: &Registry) -> Option<(Function, Function, Vec<TensorData>)> {
    let narrow = candidates_of(op, DType::F32);
    for wide in &candidates_of(op, DType::F64) {
        let fits = wide.inputs.iter().all(|x| x.len() <= LARGEST) && wide.inputs.iter().any(|x| !x.is_empty());
        let Some(narrow) = narrow.iter().find(|narrow| fits && is_twin(wide, narrow)) else { continue };
        let (Some(exact), Some(f)) = (function(wide, op, registry), function(narrow, op, registry)) else { continue };
        let Ok(gradient) = exact.gradient(registry) else { continue };
        if exact.by.is_empty() {
            continue;
        }
        let at = |range| {
            let data = inputs(narrow, range);
            let exact_data = widened(&data);
            let tame = evaluate(&exact.graph, registry, &exact_data).is_ok_and(|out| out.iter().all(is_tame))
                && evaluate(&gradient.graph, registry, &exact_data).is_ok_and(|out| out.iter().all(is_tame));
            tame.then_some(data)
        };
        if let Some(data) = RANGES.into_iter().find_map(at) {
            return Some((exact, f, data));
        }
    }
    None
}

/// Operators and cases, each as it is and between running sums.
fn subjects(registry: &Registry) -> (Vec<Subject>, Vec<&'static str>) {
    let only = std::env::var("TENSORC_OPERATORS_ONLY").unwrap_or_default();
    let (mut found, mut open, mut in_cases) = (vec![], vec![], vec![]);
    for (title, text) in CASES {
        let (exact, narrow) = (case(text, "f64", registry).unwrap(), case(text, "f32", registry).unwrap());
        in_cases.extend(exact.graph.node_ids().into_iter().filter_map(|n| match &exact.graph.node(n).kind {
            NodeKind::Op(op) => Some(op.def.name),
            _ => None,
        }));
        let types = narrow.graph.inputs().iter().map(|n| narrow.graph.dense(Value { node: *n, port: 0 }).unwrap());
        let data = types.enumerate().map(|(i, ty)| tensor(&ty, (-0.95, 0.95), 31 * i as u64 + 7)).collect();
        found.push(((*title).to_owned(), exact, narrow, data));
    }
    for op in registry
        .iter()
        .filter(|op| has_variables(op) && !matches!(op.grad, Grad::Zero | Grad::Found(_) | Grad::None(_)))
    {
        match guessed(op, registry) {
            Some((exact, narrow, data)) => found.push((op.name.to_owned(), exact, narrow, data)),
            // Conventions that take more than guesses are parts of operators in the cases.
            None if !in_cases.contains(&op.name) && !CONVENTIONS.iter().any(|(name, _)| *name == op.name) => {
                open.push(op.name);
            }
            None => {}
        }
    }
    let mut subjects = vec![];
    for (title, exact, narrow, data) in found.into_iter().filter(|(title, ..)| title.contains(&only)) {
        let variants = [
            (title.clone(), exact.clone(), narrow.clone(), data.clone()),
            (
                format!("{title}, surrounded"),
                surrounded(&exact, registry),
                surrounded(&narrow, registry),
                differences(&narrow, &data),
            ),
        ];
        for (title, exact, function, inputs) in variants {
            let gradient = exact.gradient(registry).unwrap();
            let expected = evaluate(&gradient.graph, registry, &widened(&inputs)).unwrap();
            let name = leaked(format!("case_{}", subjects.len()));
            subjects.push(Subject { title, name, function, inputs, expected });
        }
    }
    (subjects, open)
}

/// What an array of gradients holds after a request, and what it should.
fn compare(subject: &Subject, at: usize, request: GradReq, found: &NDArray) -> Result<(), String> {
    let got: Vec<f64> = found.cast(DType::F64).unwrap().to_vec().unwrap();
    let gradient = subject.expected[at].to_f64s();
    let size = gradient.iter().map(|x| x.abs()).fold(1.0, f64::max);
    let expected = |g: f64| match request {
        GradReq::Null => BEFORE,
        GradReq::Write => g,
        GradReq::Add => BEFORE + g,
    };
    let tolerance = if request == GradReq::Null { 0.0 } else { 2.0 * precision(DType::F32) * size };
    for (i, (g, w)) in got.iter().zip(gradient.iter().map(|g| expected(*g))).enumerate() {
        let near = (g - w).abs() <= tolerance;
        if !near {
            let title = &subject.title;
            return Err(format!(
                "{title}: {request:?}, operand {}, element {i}: {g}, expected {w}",
                subject.function.by[at]
            ));
        }
    }
    Ok(())
}

/// Binds a subject with a request for each operand differentiated by, runs it, and compares. Returns the number
/// of steps in place.
fn check(rt: &Runtime, subject: &Subject, request: impl Fn(usize) -> GradReq) -> Result<usize, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", subject.title);
    let array =
        |data: &TensorData| rt.from_bytes(rt.options().device, data.dtype(), data.dims(), data.bytes()).unwrap();
    let names: Vec<String> = (0..subject.inputs.len()).map(|i| format!("in{i}")).collect();
    let variables: Vec<_> = names.iter().map(|n| var(n)).collect();
    let net = op_in(rt.compiler().registry(), subject.name).inputs(&variables).build().map_err(|e| fail(&e))?;
    let mut binder = Executor::bind(rt, &net);
    for (name, data) in names.iter().zip(&subject.inputs) {
        binder = binder.array(name, &array(data));
    }
    let mut held = vec![];
    for (at, &i) in subject.function.by.iter().enumerate() {
        let ty = &subject.inputs[i].ty;
        let gradient = rt.full(rt.options().device, ty.dtype, &ty.dims, BEFORE).unwrap();
        binder = binder.gradient(&names[i], &gradient).grad_req_of(&names[i], request(at));
        held.push(gradient);
    }
    let mut executor = binder.build().map_err(|e| fail(&e))?;
    executor.forward(true).map_err(|e| fail(&e))?;
    let seeds = subject.function.seeds();
    let head = |(seed, out): (&Option<TensorData>, &NDArray)| match seed {
        Some(seed) => array(seed),
        None => rt.zeros(out.dims(), out.dtype()).unwrap(),
    };
    let heads: Vec<NDArray> = seeds.iter().zip(executor.outputs()).map(head).collect();
    executor.backward(&heads.iter().collect::<Vec<_>>()).map_err(|e| fail(&e))?;
    for (at, gradient) in held.iter().enumerate() {
        compare(subject, at, request(at), gradient)?;
    }
    Ok(executor.planned_memory().map_err(|e| fail(&e))?.in_place)
}

#[test]
fn gradients_are_written_added_or_left_alone() {
    let registry = tensorc::ops::registry().unwrap();
    let (subjects, open) = subjects(&registry);
    assert!(open.is_empty(), "no operands found for {}: add a case to CASES", open.join(", "));
    let entries: Vec<OpDef> = subjects.iter().map(|s| entry(s.name, &s.function)).collect();
    let compiler = Compiler::with_operators(options(), entries).unwrap();
    let rt = Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap();
    let (mut failures, mut in_place) = (vec![], 0);
    for subject in &subjects {
        let every_other = |at: usize| if at.is_multiple_of(2) { GradReq::Null } else { GradReq::Add };
        let outcome = check(&rt, subject, |_| GradReq::Write).and_then(|steps| {
            check(&rt, subject, |_| GradReq::Add)?;
            check(&rt, subject, every_other)?;
            Ok(steps)
        });
        match outcome {
            Ok(steps) => in_place += usize::from(steps > 0),
            Err(why) => failures.push(why),
        }
    }
    println!("{} subjects, {in_place} of them in place", subjects.len());
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
    assert!(in_place * 10 > subjects.len() || subjects.len() < 100, "{in_place} of {} in place", subjects.len());
}
