//! Recurrent layers: the part that goes step by step, as one operator with a derivative of its own.
//!
//! Everything that is not recurrent is one product over all steps: the input's share of the gates before, and in
//! the derivative the gates again and the gradient of the weights. What remains for each step is one product with
//! the recurrent weights and element-wise functions.

mod backward;
mod forward;
mod onnx;

use crate::prelude::*;

pub const MODES: &[&str] = &["rnn_relu", "rnn_tanh", "lstm", "gru"];

/// What a cell computes from its gates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Relu,
    Tanh,
    /// Gates: input, forget, candidate, output.
    Lstm,
    /// Gates: reset, update, candidate; the reset gate multiplies the recurrent share of the candidate.
    Gru,
}

impl Mode {
    pub fn of(params: &Params) -> Mode {
        match params.str("mode") {
            Some("rnn_relu") => Mode::Relu,
            Some("lstm") => Mode::Lstm,
            Some("gru") => Mode::Gru,
            _ => Mode::Tanh,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Relu => "rnn_relu",
            Mode::Tanh => "rnn_tanh",
            Mode::Lstm => "lstm",
            Mode::Gru => "gru",
        }
    }

    pub fn gates(self) -> u64 {
        match self {
            Mode::Relu | Mode::Tanh => 1,
            Mode::Lstm => 4,
            Mode::Gru => 3,
        }
    }
}

/// `a · b` (transposed if asked) `+ c`, on matrices.
fn product<'g>([x, y]: [Tensor<'g>; 2], c: Option<Tensor<'g>>, [ta, tb]: [bool; 2]) -> Tensor<'g> {
    let params = Params::new().with("transA", ta).with("transB", tb);
    x.graph().op_multi("gemm", &[Some(x), Some(y), c], params, 1)[0]
}

/// `a · bᵀ + c`, on matrices.
pub fn gemm<'g>(x: Tensor<'g>, y: Tensor<'g>, c: Option<Tensor<'g>>) -> Tensor<'g> {
    product([x, y], c, [false, true])
}

/// A step, direction or layer: row `at` of the first axis, without it.
pub fn row(x: Tensor<'_>, at: u64) -> Result<Tensor<'_>> {
    Ok(x.slice(0, at, 1).reshape(x.dims()?.range(1..)))
}

/// Steps in reverse.
pub fn flipped(x: Tensor<'_>) -> Tensor<'_> {
    x.graph().op("flip", &[x], Params::new().with("axis", vec![0]))
}

/// The operator `recurrent` of the input's share of the gates, weight, state, cell and bias: states, and cells of an LSTM.
pub fn recurrent<'g>(
    mode: Mode,
    [shares, weight, state]: [Tensor<'g>; 3],
    cell: Option<Tensor<'g>>,
    bias: Option<Tensor<'g>>,
) -> (Tensor<'g>, Option<Tensor<'g>>) {
    let operands = [Some(shares), Some(weight), Some(state), cell, bias];
    let params = Params::new().with("mode", mode.name().to_owned());
    let count = if mode == Mode::Lstm { 2 } else { 1 };
    let made = shares.graph().op_multi("recurrent", &operands, params, count);
    (made[0], made.get(1).copied())
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let mode = Mode::of(cx.params);
    let gates = mode.gates();
    let (x, w) = (open_ranked(cx, 0, 3)?, open_ranked(cx, 1, 2)?);
    cx.unify_dims(x[2], w[0], "operand `weight`, axis 0")?;
    if let Dim::Const(n) = cx.resolve(w[1]) {
        cx.unify_dims(Dim::Const(gates * n), w[0], "operand `weight`, axis 0 (gates)")?;
    }
    cx.set_input_dims(2, [x[1], w[1]])?;
    reject_if(cx.has_input(3) != (mode == Mode::Lstm), || "operand `cell`: an LSTM has one, other cells have none")?;
    cx.set_input_dims(3, [x[1], w[1]])?;
    cx.set_input_dims(4, [w[0]])?;
    reject_if(cx.output_count() > 1 && mode != Mode::Lstm, || "results: only an LSTM has a second one")?;
    for i in 0..cx.output_count() {
        cx.same_dtype(i, 0)?;
        cx.set_output_dims(i, [x[0], x[1], w[1]])?;
    }
    Ok(())
}

pub fn ops() -> Vec<OpDef> {
    let compute = formulas(forward::run);
    let doc = "A recurrent layer in one direction over [time, batch, gates · hidden], the input's share of the gates; \
               `weight` is the recurrent one, [gates · hidden, hidden]. Results: the hidden states of all steps, and \
               those of the cells of an LSTM.";
    let def = define("recurrent", doc, compute, rule(shapes))
        .groups(&["input", "weight", "state"], FLOATS)
        .optional("cell", TypeRule::Group(0, FLOATS))
        .optional("bias", TypeRule::Group(0, FLOATS))
        .choice("mode", MODES, "rnn_tanh", "the cell; gates in the order of MXNet")
        .outputs(1, 2)
        .gradient(derivative(backward::run))
        .ulp(64.0);
    [vec![def], onnx::ops()].into_iter().flatten().collect()
}
