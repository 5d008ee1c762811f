//! The fused recurrent layer: all weights in one vector, layers one upon the other, both directions.
//!
//! The vector holds, for each layer and direction, the weights of the input and of the state, and then in the same
//! order the two biases.

use crate::prelude::*;
use crate::rnn::{MODES, Mode, product};

/// Formal position of the random key.
const KEY: usize = 5;

pub fn ops() -> Vec<OpDef> {
    vec![rnn()]
}

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

/// The vector cut into its parts.
fn cut(b: &mut Builder<'_>, vector: Value, sizes: &[u64]) -> Result<Vec<Value>> {
    let list: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
    let list = b.i64s(&list);
    Ok(b.op_multi("split", &[Some(vector), Some(list)], Params::new(), sizes.len())?.to_vec())
}

fn flipped(b: &mut Builder<'_>, x: Value) -> Result<Value> {
    b.op("flip", &[x], Params::new().with("axis", vec![0]))
}

/// What a layer in one direction starts from.
struct InitialState {
    input: Value,
    state: Value,
    input_bias: Value,
    state_bias: Value,
}

/// States of all steps, and the last state and cell, [1, batch, hidden].
fn direction(
    b: &mut Builder<'_>,
    stack: &Stack,
    x: Value,
    w: &InitialState,
    (first, reversed): ([Option<Value>; 2], bool),
) -> Result<(Value, Value, Option<Value>)> {
    let dims = b.dims(x)?;
    let rows = b.reshaped(x, &[dims[0] * dims[1], dims[2]])?;
    let input = b.reshaped(w.input, &[stack.gates(), dims[2]])?;
    let weight = b.reshaped(w.state, &[stack.gates(), stack.hidden])?;
    // Only a GRU tells the biases apart.
    let (outer, inner) = match stack.mode {
        Mode::Gru => (w.input_bias, Some(w.state_bias)),
        _ => (b.call("add", &[w.input_bias, w.state_bias])?, None),
    };
    let shares = product(b, [rows, input], Some(outer), [false, true])?;
    let mut shares = b.reshaped(shares, &[dims[0], dims[1], stack.gates()])?;
    if reversed {
        shares = flipped(b, shares)?;
    }
    let count = if stack.mode == Mode::Lstm { 2 } else { 1 };
    let params = Params::new().with("mode", stack.mode.name().to_owned());
    let made = b.op_multi("recurrent", &[Some(shares), Some(weight), first[0], first[1], inner], params, count)?;
    let last = b.slice_axis(made[0], 0, dims[0] - 1, 1)?;
    let last_cell = match made.get(1) {
        Some(cells) => Some(b.slice_axis(*cells, 0, dims[0] - 1, 1)?),
        None => None,
    };
    let states = if reversed { flipped(b, made[0])? } else { made[0] };
    Ok((states, last, last_cell))
}

/// A state of a layer and direction: row `at` of [layers · directions, batch, hidden].
fn initial(b: &mut Builder<'_>, states: Value, at: u64) -> Result<Value> {
    let dims = b.dims(states)?;
    let row = b.slice_axis(states, 0, at, 1)?;
    b.reshaped(row, &dims[1..])
}

/// Dropout between layers, with a mask of its own for each.
fn dropped(b: &mut Builder<'_>, cx: &NodeCtx<'_>, x: Value, layer: u64, key: Option<Value>) -> Result<Value> {
    let p = cx.params.float("p").unwrap_or(0.0);
    if p == 0.0 || !cx.params.flag(OpDef::TRAINING) {
        return Ok(x);
    }
    let key = match key {
        None => None,
        Some(key) => {
            // Words of a key of its own: the second differs by the layer.
            let shift = b.constant(TensorData::from_fn(DenseType::new(DType::U32, &[2]), |i| Scalar {
                dtype: DType::U32,
                bits: i * layer,
            }));
            Some(b.call("add", &[key, shift])?)
        }
    };
    let ratio = b.scalar(Scalar::f32(p as f32));
    let seed = cx.params.float("seed").unwrap_or(0.0) + layer as f64;
    let params = Params::new().with("seed", seed);
    let mask = b.op_multi("dropout_mask", &[Some(x), Some(ratio), key], params, 1)?[0];
    let zero = number(b, x, 0.0)?;
    let kept = b.call("where", &[mask, x, zero])?;
    with_number(b, "mul", kept, 1.0 / (1.0 - p))
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let stack = Stack::of(cx.params);
    let (mut x, vector) = (operand(b, args, 0)?, operand(b, args, 1)?);
    let state = operand(b, args, 2)?;
    let cell = if stack.mode == Mode::Lstm { Some(operand(b, args, 3)?) } else { None };
    let input = b.dims(x)?[2];
    let parts = cut(b, vector, &stack.parts(input))?;
    let units = stack.layers * stack.directions;
    let (mut last, mut last_cells) = (vec![], vec![]);
    for layer in 0..stack.layers {
        if layer > 0 {
            x = dropped(b, cx, x, layer, maybe(args, KEY))?;
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
            };
            let first = initial(b, state, unit)?;
            let first_cell = cell.map(|c| initial(b, c, unit)).transpose()?;
            let (states, end, end_cell) = direction(b, &stack, x, &w, ([Some(first), first_cell], d == 1))?;
            sides.push(states);
            last.push(end);
            last_cells.extend(end_cell);
        }
        x = b.concat(&sides, 2)?;
    }
    let mut out = vec![x];
    if cx.outputs.len() > 1 {
        out.push(b.concat(&last, 0)?);
    }
    if cx.outputs.len() > 2 {
        out.push(b.concat(&last_cells, 0)?);
    }
    Ok(out)
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
    let x = ranked(cx, 0, 3)?;
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

fn rnn() -> OpDef {
    let doc = "Recurrent layers over [time, batch, feature], with all weights in one vector. Results: the states of \
               the last layer, and with `state_outputs` the last state (and cell) of every layer and direction.";
    define("mx_rnn", doc, Compute::Composite(Box::new(body)), rule(shapes))
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
