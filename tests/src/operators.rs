//! Trials of operators: compiled code computes what the reference interpreter does, as a graph and called on arrays.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorc::ir::TensorData;
use tensorc::ir::graph::Graph;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::{Accuracy, OpRef, Registry};
use tensorc::ir::scalar::Scalar;
use tensorc::{Compiler, DType, Tensor};
use tensorc_nd::Error;
use tensorc_nd::{CallOperand, NDArray, Runtime};
use tensorc_random::{Candidate, elementwise};

use crate::compare::{Tolerance, compare, data, tensor};

/// Operators whose compiled results have the interpreter's bits: what is one expression, and what is
/// a function of a key.
pub fn has_defined_bits(op: &OpRef) -> bool {
    elementwise(op) || op.accuracy == Accuracy::Random
}

/// What the caught panic said.
pub fn caught<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        format!("{what} panicked: {}", text.unwrap_or_default())
    })
}

/// Results for every second operator, beginning with the first and with the second, on a thread each. Operators come with their number.
pub fn on_two_threads<R: Send>(ops: &[&OpRef], f: impl Fn(Vec<(usize, &OpRef)>) -> R + Sync) -> [R; 2] {
    std::thread::scope(|scope| {
        let half = |first| {
            let ops = ops.iter().copied().enumerate().skip(first).step_by(2).collect();
            let f = &f;
            scope.spawn(move || f(ops))
        };
        [0, 1].map(half).map(|thread| thread.join().expect("a test fails by panicking"))
    })
}

pub fn run(compiler: &Compiler, graph: &Graph, inputs: &[TensorData]) -> Result<Vec<TensorData>, String> {
    let model = compiler.model(graph.clone());
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    let named: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let outputs = caught("compiling or running", || model.run(&named))?.map_err(|e| e.to_string())?;
    Ok(outputs.iter().map(|(_, t)| data(t)).collect())
}

/// Bit for bit, any NaN standing for any other.
pub fn same_bits(got: &TensorData, want: &TensorData) -> Result<(), String> {
    if got.ty != want.ty {
        return Err(format!("got {}, expected {}", got.ty, want.ty));
    }
    let differs = |(_, (g, w)): &(usize, (_, _))| {
        let (g, w): (&Scalar, &Scalar) = (g, w);
        g != w && !(g.as_f64().is_nan() && w.as_f64().is_nan())
    };
    match got.iter().zip(want.iter()).enumerate().find(differs) {
        None => Ok(()),
        Some((at, (g, w))) => Err(format!("element {at}: got {g:?}, expected {w:?}")),
    }
}

/// Equal up to the order of sums: relative to the greatest magnitude expected.
pub fn nearly_same(got: &TensorData, want: &TensorData) -> Result<(), String> {
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
pub enum Verdict {
    /// The operator does not take these operands.
    NotTaken,
    Agrees,
    Fails(String),
}

/// Compares what a compiler and a runtime make of an operator with the reference: bit by bit where `bits` says so of the
/// result's type. The runtime's compiler may have another number of threads: its results have the same bits.
pub fn judge(
    compiler: &Compiler,
    arrays: &Runtime,
    registry: &Registry,
    op: &OpRef,
    candidate: &Candidate,
    bits: impl Fn(DType) -> bool,
) -> Verdict {
    let Some(graph) = candidate.graph(op) else { return Verdict::NotTaken };
    let inputs = &candidate.inputs;
    let want = match caught("interpreting", || eval_graph(&graph, registry, inputs)) {
        Ok(Ok(want)) => want,
        Ok(Err(_)) => return Verdict::NotTaken,
        Err(panic) => return Verdict::Fails(panic),
    };
    let got = match run(compiler, &graph, inputs) {
        Ok(got) => got,
        Err(why) => return Verdict::Fails(why),
    };
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let checked = match bits(got.dtype()) {
            true => same_bits(got, want),
            false => nearly_same(got, want),
        };
        if let Err(why) = checked {
            return Verdict::Fails(format!("result {i}: {why}"));
        }
    }
    match imperative(arrays, op, candidate, &got) {
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
            None => call.arg(CallOperand::Absent),
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
