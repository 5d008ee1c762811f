//! ONNX's recurrent layers: their layouts, gate orders and directions around the entry `recurrent`. What that does not
//! compute (peepholes, clipping, other activations, a reset gate before the product) is written out step by step.

use super::{Mode, product};
use crate::prelude::*;

const DIRECTIONS: &[&str] = &["forward", "reverse", "bidirectional"];

/// ONNX's order of the gates: where each gate of `recurrent` is.
fn gate_order(mode: Mode) -> &'static [u64] {
    match mode {
        Mode::Lstm => &[0, 2, 3, 1],
        Mode::Gru => &[1, 0, 2],
        Mode::Relu | Mode::Tanh => &[0],
    }
}

/// An activation with its constants.
#[derive(Clone, PartialEq)]
struct Activation {
    kind: &'static OnnxActivation,
    alpha: f64,
    beta: f64,
}

/// What computes an activation.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// An operator, without its constants or with `alpha`, or `alpha` and `beta`.
    Operator(&'static str),
    /// `alpha·x + beta`.
    Affine,
    /// `alpha·tanh(beta·x)`.
    ScaledTanh,
}

/// An activation of ONNX's recurrent layers.
#[derive(PartialEq)]
struct OnnxActivation {
    /// In lower case.
    name: &'static str,
    by: By,
    /// The constants that it takes, with their defaults.
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl OnnxActivation {
    const fn plain(name: &'static str) -> OnnxActivation {
        OnnxActivation { name, by: By::Operator(name), alpha: None, beta: None }
    }

    const fn with_alpha(name: &'static str, operator: &'static str, alpha: f64) -> OnnxActivation {
        OnnxActivation { name, by: By::Operator(operator), alpha: Some(alpha), beta: None }
    }
}

const KINDS: [OnnxActivation; 11] = [
    OnnxActivation::plain("relu"),
    OnnxActivation::plain("tanh"),
    OnnxActivation::plain("sigmoid"),
    OnnxActivation::plain("softsign"),
    OnnxActivation::plain("softplus"),
    OnnxActivation::with_alpha("leakyrelu", "leaky_relu", 0.01),
    OnnxActivation::with_alpha("thresholdedrelu", "thresholded_relu", 1.0),
    OnnxActivation::with_alpha("elu", "elu", 1.0),
    OnnxActivation { name: "hardsigmoid", by: By::Operator("hard_sigmoid"), alpha: Some(0.2), beta: Some(0.5) },
    OnnxActivation { name: "affine", by: By::Affine, alpha: Some(1.0), beta: Some(0.0) },
    OnnxActivation { name: "scaledtanh", by: By::ScaledTanh, alpha: Some(1.0), beta: Some(1.0) },
];

fn defaults(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        Mode::Gru => &["Sigmoid", "Tanh"],
        Mode::Relu | Mode::Tanh => &["Tanh"],
    }
}

/// The activations of a direction. Lists of constants hold only those of activations that have some.
fn activations(params: &Params, mode: Mode, direction: usize) -> Result<Vec<Activation>, OpError> {
    let count = defaults(mode).len();
    let given = params.strs("activations").unwrap_or_default();
    let names: Vec<String> = match given.is_empty() {
        true => defaults(mode).iter().cycle().take(count * (direction + 1)).map(|s| s.to_lowercase()).collect(),
        false => given.iter().map(|s| s.to_lowercase()).collect(),
    };
    let [mut alphas, mut betas] =
        ["activation_alpha", "activation_beta"].map(|n| params.floats(n).unwrap_or_default().iter().copied());
    let mut found = vec![];
    for name in &names {
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| OpError(format!("parameter `activations`: `{name}` is unknown")))?;
        let given = |default: Option<f64>, list: &mut dyn Iterator<Item = f64>| match default {
            Some(default) => list.next().unwrap_or(default),
            None => 0.0,
        };
        found.push(Activation { kind, alpha: given(kind.alpha, &mut alphas), beta: given(kind.beta, &mut betas) });
    }
    let own = found.get(direction * count..(direction + 1) * count).map(<[Activation]>::to_vec);
    own.ok_or_else(|| {
        OpError(format!("parameter `activations`: {} names, {count} per direction are needed", names.len()))
    })
}

fn activated(b: &mut Builder<'_>, x: Value, f: &Activation) -> Result<Value> {
    let (alpha, beta) = (f.alpha, f.beta);
    let By::Operator(operator) = f.kind.by else {
        let ty = b.ty(x)?;
        return b.map_as(&[x], ty.dtype, &ty.dims, |_, a| match f.kind.by {
            By::Affine => &a[0] * alpha + beta,
            _ => (&a[0] * beta).tanh() * alpha,
        });
    };
    let mut params = Params::new();
    for (name, default, value) in [("alpha", f.kind.alpha, alpha), ("beta", f.kind.beta, beta)] {
        if default.is_some() {
            params.set(name, ParamValue::Float(value));
        }
    }
    b.op(operator, &[x], params)
}

/// A layer in one direction.
struct OnnxLayer {
    mode: Mode,
    hidden: u64,
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// The input gate is one minus the forget gate.
    coupled: bool,
    /// The reset gate multiplies the product with the state.
    reset_after: bool,
    weight: Value,
    recurrent: Value,
    bias: Option<[Value; 2]>,
    peepholes: Option<Value>,
}

impl OnnxLayer {
    /// The mode of `recurrent` that computes this layer.
    fn as_entry(&self) -> Option<Mode> {
        let named = |names: &[&str]| self.activations.iter().map(|a| a.kind.name).eq(names.iter().copied());
        let plain = self.clip.is_none() && !self.coupled && self.peepholes.is_none();
        match self.mode {
            Mode::Lstm if plain && named(&["sigmoid", "tanh", "tanh"]) => Some(Mode::Lstm),
            Mode::Gru if plain && self.reset_after && named(&["sigmoid", "tanh"]) => Some(Mode::Gru),
            Mode::Relu | Mode::Tanh if plain && named(&["tanh"]) => Some(Mode::Tanh),
            Mode::Relu | Mode::Tanh if plain && named(&["relu"]) => Some(Mode::Relu),
            _ => None,
        }
    }

    /// Rows of a matrix or vector of gates, in the order of `recurrent`.
    fn ordered(&self, b: &mut Builder<'_>, x: Value) -> Result<Value> {
        let order = gate_order(self.mode);
        if order.len() == 1 {
            return Ok(x);
        }
        let mut parts = vec![];
        for &gate in order {
            parts.push(b.slice_axis(x, 0, gate * self.hidden, self.hidden)?);
        }
        b.concat(&parts, 0)
    }

    /// States of all steps over `x: [time, batch, input]`, and those of the cells.
    fn run(&self, b: &mut Builder<'_>, x: Value, state: Value, cell: Option<Value>) -> Result<(Value, Option<Value>)> {
        let dims = b.dims(x)?;
        let gates = self.mode.gates() * self.hidden;
        let rows = b.reshaped(x, &[dims[0] * dims[1], dims[2]])?;
        let weight = self.ordered(b, self.weight)?;
        let recurrent = self.ordered(b, self.recurrent)?;
        let (mut outer, mut inner) = (None, None);
        if let Some([of_input, of_state]) = self.bias {
            let (of_input, of_state) = (self.ordered(b, of_input)?, self.ordered(b, of_state)?);
            (outer, inner) = match self.mode {
                Mode::Gru => (Some(of_input), Some(of_state)),
                _ => (Some(b.call("add", &[of_input, of_state])?), None),
            };
        }
        let shares = product(b, [rows, weight], outer, [false, true])?;
        let shares = b.reshaped(shares, &[dims[0], dims[1], gates])?;
        if let Some(mode) = self.as_entry() {
            let params = Params::new().with("mode", ParamValue::Str(mode.name().to_owned()));
            let count = if mode == Mode::Lstm { 2 } else { 1 };
            let operands = [Some(shares), Some(recurrent), Some(state), cell, inner];
            let made = b.op_multi("recurrent", &operands, params, count)?;
            return Ok((made[0], made.get(1).copied()));
        }
        let (mut state, mut cell) = (state, cell);
        let (mut states, mut cells) = (vec![], vec![]);
        for t in 0..dims[0] {
            let share = b.slice_axis(shares, 0, t, 1)?;
            let share = b.reshaped(share, &[dims[1], gates])?;
            (state, cell) = self.step(b, share, [recurrent, state], cell, inner)?;
            let lifted = [1, dims[1], self.hidden];
            states.push(b.reshaped(state, &lifted)?);
            if let Some(cell) = cell {
                cells.push(b.reshaped(cell, &lifted)?);
            }
        }
        let cells = if cells.is_empty() { None } else { Some(b.concat(&cells, 0)?) };
        Ok((b.concat(&states, 0)?, cells))
    }

    /// A gate of `[batch, gates · hidden]`.
    fn gate(&self, b: &mut Builder<'_>, z: Value, at: u64) -> Result<Value> {
        b.slice_axis(z, 1, at * self.hidden, self.hidden)
    }

    fn bounded(&self, b: &mut Builder<'_>, x: Value) -> Result<Value> {
        let Some(limit) = self.clip else { return Ok(x) };
        let ty = b.ty(x)?;
        b.map_as(&[x], ty.dtype, &ty.dims, |_, a| a[0].max(&a[0].lit(-limit)).min(&a[0].lit(limit)))
    }

    fn activate(&self, b: &mut Builder<'_>, x: Value, which: usize) -> Result<Value> {
        let x = self.bounded(b, x)?;
        activated(b, x, &self.activations[which])
    }

    /// A peephole's share: ONNX's order is input, output, forget.
    fn peep(&self, b: &mut Builder<'_>, z: Value, cell: Value, at: u64) -> Result<Value> {
        let Some(peepholes) = self.peepholes else { return Ok(z) };
        let weight = b.slice_axis(peepholes, 0, at * self.hidden, self.hidden)?;
        let share = b.call("mul", &[cell, weight])?;
        b.call("add", &[z, share])
    }

    /// One step, from the share of the input in the gates.
    fn step(
        &self,
        b: &mut Builder<'_>,
        share: Value,
        [weight, state]: [Value; 2],
        cell: Option<Value>,
        inner: Option<Value>,
    ) -> Result<(Value, Option<Value>)> {
        match (self.mode, cell) {
            (Mode::Lstm, Some(cell)) => {
                let z = product(b, [state, weight], Some(share), [false, true])?;
                let (zi, zf, zg, zo) =
                    (self.gate(b, z, 0)?, self.gate(b, z, 1)?, self.gate(b, z, 2)?, self.gate(b, z, 3)?);
                let zf = self.peep(b, zf, cell, 2)?;
                let f = self.activate(b, zf, 0)?;
                let i = match self.coupled {
                    true => complement(b, f)?,
                    false => {
                        let zi = self.peep(b, zi, cell, 0)?;
                        self.activate(b, zi, 0)?
                    }
                };
                let g = self.activate(b, zg, 1)?;
                let (kept, added) = (b.call("mul", &[f, cell])?, b.call("mul", &[i, g])?);
                let next = b.call("add", &[kept, added])?;
                let zo = self.peep(b, zo, next, 1)?;
                let (o, shown) = (self.activate(b, zo, 0)?, activated(b, next, &self.activations[2])?);
                Ok((b.call("mul", &[o, shown])?, Some(next)))
            }
            (Mode::Gru, _) => Ok((self.gru_step(b, share, [weight, state], inner)?, None)),
            _ => {
                let z = product(b, [state, weight], Some(share), [false, true])?;
                Ok((self.activate(b, z, 0)?, None))
            }
        }
    }

    fn gru_step(
        &self,
        b: &mut Builder<'_>,
        share: Value,
        [weight, state]: [Value; 2],
        inner: Option<Value>,
    ) -> Result<Value> {
        let h = self.hidden;
        let (of_gates, of_candidate) = (b.slice_axis(weight, 0, 0, 2 * h)?, b.slice_axis(weight, 0, 2 * h, h)?);
        let biases = match inner {
            Some(bias) => Some((b.slice_axis(bias, 0, 0, 2 * h)?, b.slice_axis(bias, 0, 2 * h, h)?)),
            None => None,
        };
        let gates = product(b, [state, of_gates], biases.map(|(gates, _)| gates), [false, true])?;
        let shares = b.slice_axis(share, 1, 0, 2 * h)?;
        let z = b.call("add", &[shares, gates])?;
        let (zr, zz) = (self.gate(b, z, 0)?, self.gate(b, z, 1)?);
        let (r, u) = (self.activate(b, zr, 0)?, self.activate(b, zz, 0)?);
        let bias = biases.map(|(_, candidate)| candidate);
        let candidate = match self.reset_after {
            true => {
                let whole = product(b, [state, of_candidate], bias, [false, true])?;
                b.call("mul", &[r, whole])?
            }
            false => {
                let kept = b.call("mul", &[r, state])?;
                product(b, [kept, of_candidate], bias, [false, true])?
            }
        };
        let own = self.gate(b, share, 2)?;
        let z = b.call("add", &[own, candidate])?;
        let candidate = self.activate(b, z, 1)?;
        let rest = complement(b, u)?;
        let (new, old) = (b.call("mul", &[rest, candidate])?, b.call("mul", &[u, state])?);
        b.call("add", &[new, old])
    }
}

fn complement(b: &mut Builder<'_>, x: Value) -> Result<Value> {
    let ty = b.ty(x)?;
    b.map_as(&[x], ty.dtype, &ty.dims, |_, a| 1.0 - &a[0])
}

/// Steps in reverse, those of each sequence alone if lengths are given.
fn reversed(b: &mut Builder<'_>, x: Value, lengths: Option<Value>) -> Result<Value> {
    match lengths {
        Some(lengths) => b.call("reverse_sequence", &[x, lengths]),
        None => b.op("flip", &[x], Params::new().with("axis", ParamValue::Ints(vec![0]))),
    }
}

/// Steps beyond the end of a sequence become zero.
fn ended(b: &mut Builder<'_>, x: Value, lengths: Value, only_last: bool) -> Result<Value> {
    let ty = b.ty(x)?;
    let lengths = b.converted(lengths, DType::I64)?;
    let lengths = b.reshaped(lengths, &[1, ty.dims[1], 1])?;
    b.map_as(&[x, lengths], ty.dtype, &ty.dims, |s, a| {
        let t = s.coord(0);
        let keep = if only_last { t.eq(&(&a[1] - 1.0)) } else { t.lt(&a[1]) };
        keep.select(&a[0], &a[0].lit(0.0))
    })
}

/// The state after the last step, `[1, batch, hidden]`.
fn last(b: &mut Builder<'_>, states: Value, lengths: Option<Value>) -> Result<Value> {
    let Some(lengths) = lengths else {
        let steps = b.dims(states)?[0];
        return b.slice_axis(states, 0, steps - 1, 1);
    };
    let chosen = ended(b, states, lengths, true)?;
    reduce(b, "reduce_sum", chosen, &[0])
}

/// Operand positions.
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const STATE: usize = 5;
const CELL: usize = 6;
const PEEPHOLES: usize = 7;

fn is_batch_first(params: &Params) -> bool {
    params.int("layout") == Some(1)
}

/// The row of an operand for one direction, without its first axis.
fn of_direction(b: &mut Builder<'_>, x: Value, at: u64) -> Result<Value> {
    let dims = b.dims(x)?;
    let row = b.slice_axis(x, 0, at, 1)?;
    b.reshaped(row, &dims[1..])
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>], mode: Mode) -> Result<Vec<Value>> {
    let batch_first = is_batch_first(cx.params);
    let swapped = |b: &mut Builder<'_>, x: Value| if batch_first { b.permuted(x, &[1, 0, 2]) } else { Ok(x) };
    let (x, weights, recurrent) = (operand(b, args, 0)?, operand(b, args, 1)?, operand(b, args, 2)?);
    let x = swapped(b, x)?;
    let (dims, ty) = (b.dims(x)?, b.ty(x)?);
    let (directions, hidden) = (b.dims(weights)?[0], b.dims(recurrent)?[2]);
    let lengths = maybe(args, LENGTHS);
    let initial = |b: &mut Builder<'_>, at: usize, d: u64| match maybe(args, at) {
        Some(states) => {
            let states = swapped(b, states)?;
            of_direction(b, states, d)
        }
        None => b.filled(&DenseType::new(ty.dtype, &[dims[1], hidden]), 0.0),
    };
    let (mut sides, mut ends, mut cell_ends) = (vec![], vec![], vec![]);
    for d in 0..directions {
        let backwards = d == 1 || cx.params.str("direction") == Some("reverse");
        let bias = match maybe(args, BIAS) {
            Some(bias) => {
                let (bias, n) = (of_direction(b, bias, d)?, mode.gates() * hidden);
                Some([b.slice_axis(bias, 0, 0, n)?, b.slice_axis(bias, 0, n, n)?])
            }
            None => None,
        };
        let layer = OnnxLayer {
            mode,
            hidden,
            activations: activations(cx.params, mode, d as usize).map_err(|e| b.fail(e.0))?,
            clip: cx.params.float("clip"),
            coupled: cx.params.int("input_forget") == Some(1),
            reset_after: cx.params.int("linear_before_reset") == Some(1),
            weight: of_direction(b, weights, d)?,
            recurrent: of_direction(b, recurrent, d)?,
            bias,
            peepholes: maybe(args, PEEPHOLES).map(|p| of_direction(b, p, d)).transpose()?,
        };
        let input = if backwards { reversed(b, x, lengths)? } else { x };
        let first = initial(b, STATE, d)?;
        let first_cell = if mode == Mode::Lstm { Some(initial(b, CELL, d)?) } else { None };
        let (states, cells) = layer.run(b, input, first, first_cell)?;
        ends.push(last(b, states, lengths)?);
        if let Some(cells) = cells {
            cell_ends.push(last(b, cells, lengths)?);
        }
        let states = match lengths {
            Some(lengths) => ended(b, states, lengths, false)?,
            None => states,
        };
        let states = if backwards { reversed(b, states, lengths)? } else { states };
        sides.push(b.reshaped(states, &[dims[0], 1, dims[1], hidden])?);
    }
    let all = b.concat(&sides, 1)?;
    let mut out = vec![if batch_first { b.permuted(all, &[2, 0, 1, 3])? } else { all }];
    for ends in [ends, cell_ends].iter().filter(|ends| !ends.is_empty()) {
        let ends = b.concat(ends, 0)?;
        out.push(swapped(b, ends)?);
    }
    out.truncate(cx.outputs.len());
    Ok(out)
}

fn shapes(cx: &mut InferCtx<'_>, mode: Mode) -> Result<(), OpError> {
    let (x, w, r) = (ranked(cx, 0, 3)?, ranked(cx, 1, 3)?, ranked(cx, 2, 3)?);
    let directions = if cx.params.str("direction") == Some("bidirectional") { 2 } else { 1 };
    cx.unify_dims(Dim::Const(directions), w[0], "operand `W`, axis 0 (directions)")?;
    cx.unify_dims(w[0], r[0], "operand `R`, axis 0 (directions)")?;
    cx.unify_dims(w[1], r[1], "operand `R`, axis 1 (gates)")?;
    cx.unify_dims(x[2], w[2], "operand `W`, axis 2")?;
    if let Dim::Const(n) = cx.resolve(r[2]) {
        cx.unify_dims(Dim::Const(mode.gates() * n), w[1], "operand `W`, axis 1 (gates)")?;
    }
    if cx.params.int("hidden_size").is_some_and(|n| cx.resolve(r[2]) != Dim::Const(n.max(0) as u64)) {
        return Err("parameter `hidden_size` is not the extent of operand `R`, axis 2".into());
    }
    if cx.resolve(if is_batch_first(cx.params) { x[1] } else { x[0] }) == Dim::Const(0) {
        return Err("operand `X`: no time steps".into());
    }
    activations(cx.params, mode, directions as usize - 1)?;
    for i in 0..cx.output_count() {
        cx.same_dtype(i, 0)?;
    }
    let (d, h) = (Some(w[0]), Some(r[2]));
    let (whole, end) = match is_batch_first(cx.params) {
        true => ([Some(x[0]), Some(x[1]), d, h], [Some(x[0]), d, h]),
        false => ([Some(x[0]), d, Some(x[1]), h], [d, Some(x[1]), h]),
    };
    partial(cx, 0, &whole)?;
    (1..cx.output_count()).try_for_each(|i| partial(cx, i, &end))
}

fn layer(name: &'static str, onnx: &'static str, doc: &'static str, mode: Mode) -> OpDef {
    let compute = Compute::Composite(Box::new(move |b, cx, args| body(b, cx, args, mode)));
    let def = define(name, doc, compute, rule(move |cx| shapes(cx, mode)))
        .groups(&["X", "W", "R"], FLOATS)
        .optional("B", TypeRule::Group(0, FLOATS))
        .optional("sequence_lens", TypeRule::OneOf(INTS))
        .optional("initial_h", TypeRule::Group(0, FLOATS))
        .maybe("activation_alpha", ParamKind::Floats, "Constants of activations that have one.")
        .maybe("activation_beta", ParamKind::Floats, "Second constants of activations that have one.")
        .maybe("activations", ParamKind::Strs, "Activations of each direction.")
        .maybe("clip", ParamKind::Float, "Bound of what activations are applied to.")
        .choice("direction", DIRECTIONS, "forward", "The order of the steps.")
        .maybe("hidden_size", ParamKind::Int, "Size of the state.")
        .param("layout", ParamValue::Int(0), "1: the batch is the first axis.")
        .within(0.0, 1.0)
        .outputs(1, if mode == Mode::Lstm { 3 } else { 2 })
        .onnx(onnx, 7)
        .ulp(64.0);
    match mode {
        Mode::Lstm => def
            .optional("initial_c", TypeRule::Group(0, FLOATS))
            .optional("P", TypeRule::Group(0, FLOATS))
            .param("input_forget", ParamValue::Int(0), "1: the input gate is one minus the forget gate."),
        Mode::Gru => def.param("linear_before_reset", ParamValue::Int(0), "1: the reset gate comes after the product."),
        Mode::Relu | Mode::Tanh => def,
    }
}

pub fn ops() -> Vec<OpDef> {
    vec![
        layer("rnn", "RNN", "Recurrent layers of simple cells, in one or both directions.", Mode::Tanh),
        layer("lstm", "LSTM", "Recurrent layers of LSTM cells, in one or both directions.", Mode::Lstm),
        layer("gru", "GRU", "Recurrent layers of GRU cells, in one or both directions.", Mode::Gru),
    ]
}
