//! The fused recurrent layer: all weights in one vector, layers one upon the other, both directions.
//!
//! The vector holds, for each layer and direction, the weights of the input and of the state, and then in the same
//! order the two biases.

use crate::prelude::*;
use crate::rnn::{MODES, Mode, flipped, gemm, recurrent, row};

/// Formal position of the random key.
const KEY: usize = 5;

/// Extents of a stack of layers.
#[derive(Clone, Copy)]
struct Stack {
    mode: Mode,
    layers: u64,
    directions: u64,
    hidden: u64,
}

impl Stack {
    fn of(params: &Params) -> Stack {
        let positive = |name: &str| params.int(name).unwrap_or(1).max(1) as u64;
        Stack {
            mode: Mode::of(params),
            layers: positive("num_layers"),
            directions: if params.flag("bidirectional") { 2 } else { 1 },
            hidden: positive("state_size"),
        }
    }

    fn gates(&self) -> u64 {
        self.mode.gates() * self.hidden
    }

    fn width(&self, layer: u64, input: u64) -> u64 {
        if layer == 0 { input } else { self.hidden * self.directions }
    }

    /// Sizes of the parts of the vector, in order.
    fn parts(&self, input: u64) -> Vec<u64> {
        let weights = (0..self.layers).flat_map(|layer| {
            let pair = [self.gates() * self.width(layer, input), self.gates() * self.hidden];
            (0..self.directions).flat_map(move |_| pair)
        });
        weights.chain((0..2 * self.layers * self.directions).map(|_| self.gates())).collect()
    }
}

/// What a layer in one direction starts from.
struct InitialState<'g> {
    input: Tensor<'g>,
    state: Tensor<'g>,
    input_bias: Tensor<'g>,
    state_bias: Tensor<'g>,
    first: Tensor<'g>,
    first_cell: Option<Tensor<'g>>,
    reversed: bool,
}

/// States of all steps, and the last state and cell, [1, batch, hidden].
fn direction<'g>(
    stack: &Stack,
    x: Tensor<'g>,
    w: &InitialState<'g>,
) -> Result<(Tensor<'g>, Tensor<'g>, Option<Tensor<'g>>)> {
    let dims = x.dims()?;
    let (time, batch, width) = (dims.at(0), dims.at(1), dims.at(2));
    let rows = x.reshape(Extents::of([time * batch, width]));
    let input = w.input.reshape(Extents::of([stack.gates().into(), width]));
    let weight = w.state.reshape([stack.gates(), stack.hidden]);
    // Only a GRU tells the biases apart.
    let (outer, inner) = match stack.mode {
        Mode::Gru => (w.input_bias, Some(w.state_bias)),
        _ => (w.input_bias + w.state_bias, None),
    };
    let shares = gemm(rows, input, Some(outer)).reshape(Extents::of([time, batch, stack.gates().into()]));
    let in_order = |x: Tensor<'g>| if w.reversed { flipped(x) } else { x };
    let (states, cells) = recurrent(stack.mode, [in_order(shares), weight, w.first], w.first_cell, inner);
    let last = |all: Tensor<'g>| all.slice(0, time - 1, 1);
    let (end, end_cell) = (last(states), cells.map(last));
    Ok((in_order(states), end, end_cell))
}

/// Dropout between layers, with a mask of its own for each.
fn dropped<'g>(cx: &NodeCtx<'_>, x: Tensor<'g>, layer: u64) -> Tensor<'g> {
    let p = cx.params.float("p").unwrap_or(0.0);
    if p == 0.0 || !cx.params.flag(OpDef::TRAINING) {
        return x;
    }
    let g = x.graph();
    // Words of a key of its own: the second differs by the layer.
    let word = |i| Scalar { dtype: DType::U32, bits: i * layer };
    let shift = |key| key + g.constant(TensorData::from_fn(DenseType::new(DType::U32, [2]), word));
    let key = g.maybe(KEY).map(shift);
    let ratio = g.scalar(Scalar::f32(p as f32));
    let seed = cx.params.float("seed").unwrap_or(0.0) + layer as f64;
    let mask = g.op_multi("dropout_mask", &[Some(x), Some(ratio), key], Params::new().with("seed", seed), 1)[0];
    mask.call("where", &[x, x.number(0.0)]) * (1.0 / (1.0 - p))
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let stack = Stack::of(cx.params);
    let [mut x, vector, state] = g.operands();
    let cell = (stack.mode == Mode::Lstm).then(|| g.operand(3));
    let sizes = stack.parts(x.dims()?.at(2).fixed().unsigned_abs());
    let list = g.i64s(&sizes.iter().map(|&n| n as i64).collect::<Vec<_>>());
    let parts = g.op_multi("split", &[Some(vector), Some(list)], Params::new(), sizes.len());
    let units = stack.layers * stack.directions;
    let (mut last, mut last_cells) = (vec![], vec![]);
    for layer in 0..stack.layers {
        if layer > 0 {
            x = dropped(cx, x, layer);
        }
        let mut sides = vec![];
        for d in 0..stack.directions {
            let unit = layer * stack.directions + d;
            let part = |i: u64| parts[i as usize];
            let w = InitialState {
                input: part(2 * unit),
                state: part(2 * unit + 1),
                input_bias: part(2 * units + 2 * unit),
                state_bias: part(2 * units + 2 * unit + 1),
                first: row(state, unit)?,
                first_cell: cell.map(|c| row(c, unit)).transpose()?,
                reversed: d == 1,
            };
            let (states, end, end_cell) = direction(&stack, x, &w)?;
            sides.push(states);
            last.push(end);
            last_cells.extend(end_cell);
        }
        x = g.concat(&sides, 2);
    }
    let ends = [last, last_cells].into_iter().take(cx.outputs.len() - 1).map(|ends| g.concat(&ends, 0));
    Ok([x].into_iter().chain(ends).collect())
}

fn refused(cx: &InferCtx<'_>) -> Result<(), OpError> {
    for name in ["projection_size", "lstm_state_clip_min", "lstm_state_clip_max"] {
        reject_if(cx.params.get(name).is_some(), || format!("parameter `{name}` is not supported"))?;
    }
    match cx.params.bool("use_sequence_length") {
        Some(true) => Err("parameter `use_sequence_length`: sequences of different lengths are not supported".into()),
        _ => Ok(()),
    }
}

fn shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    refused(cx)?;
    let stack = Stack::of(cx.params);
    let x = open_ranked(cx, 0, 3)?;
    reject_if(x[0] == Dim::Const(0), || "operand `data`: no time steps")?;
    if let Dim::Const(input) = x[2] {
        let size = stack.parts(input).iter().sum();
        cx.set_input_dims(1, [Dim::Const(size)])?;
    }
    let state = [Dim::Const(stack.layers * stack.directions), x[1], Dim::Const(stack.hidden)];
    cx.set_input_dims(2, state)?;
    let lstm = stack.mode == Mode::Lstm;
    reject_if(lstm != cx.has_input(3), || "operand `state_cell`: an LSTM has one, other cells have none")?;
    cx.set_input_dims(3, state)?;
    let most = results(cx.params).visible;
    reject_if(cx.output_count() > most, || format!("{} results asked for, there are {most}", cx.output_count()))?;
    cx.set_output_dims(0, [x[0], x[1], Dim::Const(stack.hidden * stack.directions)])?;
    cx.same_dtype(0, 0)?;
    for i in 1..cx.output_count() {
        cx.same_dtype(i, 0)?;
        cx.set_output_dims(i, state)?;
    }
    Ok(())
}

fn results(params: &Params) -> ResultCount {
    let n = match (params.bool("state_outputs"), params.str("mode")) {
        (Some(true), Some("lstm")) => 3,
        (Some(true), _) => 2,
        _ => 1,
    };
    ResultCount { visible: n, listed: n }
}

pub fn rnn() -> OpDef {
    let doc = "Recurrent layers over [time, batch, feature], with all weights in one vector. Results: the states of \
               the last layer, and with `state_outputs` the last state (and cell) of every layer and direction.";
    define("mx_rnn", doc, formulas(body), rule(shapes))
        .groups(&["data", "parameters", "state"], FLOATS)
        .optional("state_cell", TypeRule::Group(0, FLOATS))
        .optional("sequence_length", TypeRule::OneOf(NUMBERS))
        .required("state_size", ParamKind::Int, "size of the state")
        .within(1.0, f64::from(i32::MAX))
        .required("num_layers", ParamKind::Int, "number of layers")
        .within(1.0, 1024.0)
        .param("bidirectional", false, "whether every layer also runs backwards")
        .required("mode", ParamKind::Choice(MODES), "the cell")
        .share("p", 0.0, "share of the inputs of all layers but the first dropped in training")
        .param("state_outputs", false, "whether the last states are results")
        .maybe("projection_size", ParamKind::Int, "Not supported.")
        .maybe("lstm_state_clip_min", ParamKind::Float, "Not supported.")
        .maybe("lstm_state_clip_max", ParamKind::Float, "Not supported.")
        .param("lstm_state_clip_nan", false, "No effect.")
        .param("use_sequence_length", false, "Not supported.")
        .param(OpDef::TRAINING, false, "whether dropout takes place")
        .param("seed", 0.0, "selects the mask, unless `key` is given")
        .key()
        .present(|params, i| match i {
            3 => params.str("mode") == Some("lstm"),
            4 => params.flag("use_sequence_length"),
            _ => false,
        })
        .outputs(1, 3)
        .results(results)
        .result_names(&["output", "state_output", "statecell_output"])
        .ulp(256.0)
        .mxnet("RNN")
}
