//! ONNX's recurrent layers: their layouts, gate orders and directions around the entry `recurrent`. What that does not
//! compute (peepholes, clipping, other activations, a reset gate before the product) is written out step by step.

use super::{Mode, flipped, gemm, recurrent, row};
use crate::prelude::*;
use crate::quantize::{BYTES, ROUNDS};
use crate::rules::open_rank_in;

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

fn activated<'g>(x: Tensor<'g>, f: &Activation) -> Tensor<'g> {
    let (alpha, beta) = (f.alpha, f.beta);
    let By::Operator(operator) = f.kind.by else {
        return x.map(|x| match f.kind.by {
            By::Affine => x * alpha + beta,
            _ => (x * beta).tanh() * alpha,
        });
    };
    let mut params = Params::new();
    for (name, default, value) in [("alpha", f.kind.alpha, alpha), ("beta", f.kind.beta, beta)] {
        if default.is_some() {
            params.set(name, ParamValue::Float(value));
        }
    }
    x.graph().op(operator, &[x], params)
}

/// What one step of a layer in one direction computes.
struct OnnxCell {
    mode: Mode,
    hidden: u64,
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// The input gate is one minus the forget gate.
    coupled: bool,
    /// The reset gate multiplies the product with the state.
    reset_after: bool,
}

/// What integers of a matrix of gates stand for: a number for all rows, or one for each.
#[derive(Clone, Copy)]
struct Quantisation<'g> {
    scale: Tensor<'g>,
    zero: Tensor<'g>,
}

impl<'g> Quantisation<'g> {
    fn of_direction(g: GraphScope<'g>, at: [usize; 2], d: u64) -> Result<Quantisation<'g>> {
        Ok(Quantisation { scale: row(g.operand(at[0]), d)?, zero: row(g.operand(at[1]), d)? })
    }

    /// `x · weightᵀ + share`, of `x` quantised by its range.
    fn product(self, x: Tensor<'g>, weight: Tensor<'g>, share: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
        let made = x.graph().op_multi("dynamic_quantize_linear", &[Some(x)], Params::new(), 3);
        let steps = made[0].cast(DType::I32) - made[2].cast(DType::I32);
        let gates = weight.permute(&[1, 0]).cast(DType::I32) - self.zero.cast(DType::I32);
        let y = steps.call("matmul", &[gates]).cast(DType::F32) * (made[1] * self.scale);
        Ok(share.map_or(y, |share| y + share))
    }
}

/// What the steps of a layer have in common.
#[derive(Clone, Copy)]
struct StepOperands<'g> {
    weight: Tensor<'g>,
    quantised: Option<Quantisation<'g>>,
    /// Of the state's share, if the reset gate multiplies it.
    bias: Option<Tensor<'g>>,
    peepholes: Option<Tensor<'g>>,
}

/// A layer in one direction.
struct OnnxLayer<'g> {
    cell: OnnxCell,
    weight: Tensor<'g>,
    recurrent: Tensor<'g>,
    bias: Option<[Tensor<'g>; 2]>,
    peepholes: Option<Tensor<'g>>,
    /// Of the matrices of the input and of the state.
    quantised: Option<[Quantisation<'g>; 2]>,
}

impl<'g> OnnxLayer<'g> {
    /// The mode of `recurrent` that computes this layer.
    fn as_entry(&self) -> Option<Mode> {
        let cell = &self.cell;
        let named = |names: &[&str]| cell.activations.iter().map(|a| a.kind.name).eq(names.iter().copied());
        let plain = cell.clip.is_none() && !cell.coupled && self.peepholes.is_none() && self.quantised.is_none();
        match cell.mode {
            Mode::Lstm if plain && named(&["sigmoid", "tanh", "tanh"]) => Some(Mode::Lstm),
            Mode::Gru if plain && cell.reset_after && named(&["sigmoid", "tanh"]) => Some(Mode::Gru),
            Mode::Relu | Mode::Tanh if plain && named(&["tanh"]) => Some(Mode::Tanh),
            Mode::Relu | Mode::Tanh if plain && named(&["relu"]) => Some(Mode::Relu),
            _ => None,
        }
    }

    /// Rows of a matrix or vector of gates, in the order of `recurrent`. A single number is that of all.
    fn ordered(&self, x: Tensor<'g>) -> Tensor<'g> {
        let order = gate_order(self.cell.mode);
        if order.len() == 1 || x.ty().is_ok_and(|ty| ty.rank() == 0) {
            return x;
        }
        let parts: Vec<_> = order.iter().map(|gate| x.slice(0, gate * self.cell.hidden, self.cell.hidden)).collect();
        x.graph().concat(&parts, 0)
    }

    /// States of all steps over `x: [time, batch, input]`, and those of the cells.
    fn run(
        &self,
        x: Tensor<'g>,
        state: Tensor<'g>,
        cell: Option<Tensor<'g>>,
    ) -> Result<(Tensor<'g>, Option<Tensor<'g>>)> {
        let (g, dims) = (x.graph(), x.dims()?);
        let gates = self.cell.mode.gates() * self.cell.hidden;
        let rows = x.reshape(Extents::of([dims.at(0) * dims.at(1), dims.at(2)]));
        let (weight, states_weight) = (self.ordered(self.weight), self.ordered(self.recurrent));
        let (outer, inner) = match (self.cell.mode, self.bias.map(|bias| bias.map(|x| self.ordered(x)))) {
            (_, None) => (None, None),
            (Mode::Gru, Some([of_input, of_state])) => (Some(of_input), Some(of_state)),
            (_, Some([of_input, of_state])) => (Some(of_input + of_state), None),
        };
        let quantised = self
            .quantised
            .map(|both| both.map(|q| Quantisation { scale: self.ordered(q.scale), zero: self.ordered(q.zero) }));
        let shares = match quantised {
            Some([of_input, _]) => of_input.product(rows, weight, outer)?,
            None => gemm(rows, weight, outer),
        };
        let shares = shares.reshape(Extents::of([dims.at(0), dims.at(1), gates.into()]));
        if let Some(mode) = self.as_entry() {
            return Ok(recurrent(mode, [shares, states_weight, state], cell, inner));
        }
        let carried: Vec<_> = [state].into_iter().chain(cell).collect();
        let of_state = quantised.map(|[_, of_state]| of_state);
        let optional = [inner, self.peepholes, of_state.map(|q| q.scale), of_state.map(|q| q.zero)];
        let fixed: Vec<_> = [states_weight].into_iter().chain(optional.into_iter().flatten()).collect();
        let made = g.repeat(dims.at(0), [&carried, &[shares], &fixed], &|_, [carried, rows, fixed]| {
            let mut rest = fixed[1..].iter().copied();
            let [bias, peepholes, scale, zero] = optional.map(|given| given.and_then(|_| rest.next()));
            let quantised = scale.zip(zero).map(|(scale, zero)| Quantisation { scale, zero });
            let operands = StepOperands { weight: fixed[0], quantised, bias, peepholes };
            let (state, cell) = self.cell.step(rows[0], carried[0], carried.get(1).copied(), operands)?;
            let next: Vec<_> = [state].into_iter().chain(cell).collect();
            Ok([next.clone(), next])
        })?;
        let [_, states] = made;
        Ok((states[0], states.get(1).copied()))
    }
}

impl OnnxCell {
    /// A gate of `[batch, gates · hidden]`.
    fn gate<'g>(&self, z: Tensor<'g>, at: u64) -> Tensor<'g> {
        z.slice(1, at * self.hidden, self.hidden)
    }

    fn activate<'g>(&self, x: Tensor<'g>, which: usize) -> Tensor<'g> {
        let bounded = |limit: f64| x.map(|x| x.max(&x.lit(-limit)).min(&x.lit(limit)));
        activated(self.clip.map_or(x, bounded), &self.activations[which])
    }

    /// A peephole's share: ONNX's order is input, output, forget.
    fn peep<'g>(&self, z: Tensor<'g>, cell: Tensor<'g>, at: u64, peepholes: Option<Tensor<'g>>) -> Tensor<'g> {
        let Some(peepholes) = peepholes else { return z };
        let weight = peepholes.slice(0, at * self.hidden, self.hidden);
        let share = cell * weight;
        z + share
    }

    /// One step, from the share of the input in the gates.
    fn step<'g>(
        &self,
        share: Tensor<'g>,
        state: Tensor<'g>,
        cell: Option<Tensor<'g>>,
        operands: StepOperands<'g>,
    ) -> Result<(Tensor<'g>, Option<Tensor<'g>>)> {
        let StepOperands { weight, quantised, bias, peepholes } = operands;
        Ok(match (self.mode, cell) {
            (Mode::Lstm, Some(cell)) => {
                let z = match quantised {
                    Some(quantised) => quantised.product(state, weight, Some(share))?,
                    None => gemm(state, weight, Some(share)),
                };
                let [zi, zf, zg, zo] = [0, 1, 2, 3].map(|at| self.gate(z, at));
                let f = self.activate(self.peep(zf, cell, 2, peepholes), 0);
                let i = if self.coupled { complement(f) } else { self.activate(self.peep(zi, cell, 0, peepholes), 0) };
                let candidate = self.activate(zg, 1);
                let next = f * cell + i * candidate;
                let o = self.activate(self.peep(zo, next, 1, peepholes), 0);
                (o * activated(next, &self.activations[2]), Some(next))
            }
            (Mode::Gru, _) => (self.gru_step(share, [weight, state], bias), None),
            _ => (self.activate(gemm(state, weight, Some(share)), 0), None),
        })
    }

    fn gru_step<'g>(
        &self,
        share: Tensor<'g>,
        [weight, state]: [Tensor<'g>; 2],
        inner: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let h = self.hidden;
        let (of_gates, of_candidate) = (weight.slice(0, 0, 2 * h), weight.slice(0, 2 * h, h));
        let biases = inner.map(|bias| (bias.slice(0, 0, 2 * h), bias.slice(0, 2 * h, h)));
        let gates = gemm(state, of_gates, biases.map(|(gates, _)| gates));
        let z = share.slice(1, 0, 2 * h) + gates;
        let (zr, zz) = (self.gate(z, 0), self.gate(z, 1));
        let (r, u) = (self.activate(zr, 0), self.activate(zz, 0));
        let bias = biases.map(|(_, candidate)| candidate);
        let candidate = match self.reset_after {
            true => r * gemm(state, of_candidate, bias),
            false => gemm(r * state, of_candidate, bias),
        };
        let own = self.gate(share, 2);
        let candidate = self.activate(own + candidate, 1);
        complement(u) * candidate + u * state
    }
}

fn complement(x: Tensor<'_>) -> Tensor<'_> {
    x.map(|x| 1.0 - x)
}

/// Steps in reverse, those of each sequence alone if lengths are given.
fn reversed<'g>(x: Tensor<'g>, lengths: Option<Tensor<'g>>) -> Tensor<'g> {
    lengths.map_or_else(|| flipped(x), |lengths| x.call("reverse_sequence", &[lengths]))
}

/// Steps beyond the end of a sequence become zero.
fn ended<'g>(x: Tensor<'g>, lengths: Tensor<'g>, only_last: bool) -> Result<Tensor<'g>> {
    let batch = x.dims()?.at(1);
    let lengths = lengths.cast(DType::I64).reshape(Extents::of([Extent::ONE, batch, Extent::ONE]));
    Ok(x.map_with(&[lengths], |s, a| {
        let t = s.coord(0);
        let keep = if only_last { t.eq(&(&a[1] - 1.0)) } else { t.lt(&a[1]) };
        keep.select(&a[0], &a[0].lit(0.0))
    }))
}

/// The state after the last step, `[1, batch, hidden]`.
fn last<'g>(states: Tensor<'g>, lengths: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    match lengths {
        Some(lengths) => Ok(ended(states, lengths, true)?.sum(&[0])),
        None => Ok(states.slice(0, states.dims()?.at(0) - 1, 1)),
    }
}

/// Operand positions.
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const STATE: usize = 5;
const CELL: usize = 6;
const PEEPHOLES: usize = 7;
/// Scale and zero point of the input's matrix and of the state's.
const QUANTISED: [[usize; 2]; 2] = [[8, 9], [10, 11]];

fn is_batch_first(params: &Params) -> bool {
    params.int("layout") == Some(1)
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, mode: Mode, quantised: bool) -> Result<Vec<Tensor<'g>>> {
    let batch_first = is_batch_first(cx.params);
    let swapped = |x: Tensor<'g>| if batch_first { x.permute(&[1, 0, 2]) } else { x };
    // Quantised matrices are stored transposed.
    let [weights, recurrent] = [1, 2].map(|i| if quantised { g.operand(i).permute(&[0, 2, 1]) } else { g.operand(i) });
    let x = swapped(g.operand(0));
    let ty = x.ty()?;
    let (time, batch) = (ty.dims.at(0), ty.dims.at(1));
    let [directions, hidden] = [weights.dims()?.at(0), recurrent.dims()?.at(2)].map(|n| n.fixed().unsigned_abs());
    let lengths = g.maybe(LENGTHS);
    let initial = |at: usize, d: u64| match g.maybe(at) {
        Some(states) => row(swapped(states), d),
        None => Ok(g.filled(&DenseType::new(ty.dtype, Extents::of([batch, hidden.into()])), 0.0)),
    };
    let (mut sides, mut ends, mut cell_ends) = (vec![], vec![], vec![]);
    for d in 0..directions {
        let backwards = d == 1 || cx.params.str("direction") == Some("reverse");
        let n = mode.gates() * hidden;
        let bias = g.maybe(BIAS).map(|bias| row(bias, d)).transpose()?;
        let cell = OnnxCell {
            mode,
            hidden,
            activations: g.build(|b| activations(cx.params, mode, d as usize).or_fail(b))?,
            clip: cx.params.float("clip"),
            coupled: cx.params.int("input_forget") == Some(1),
            reset_after: cx.params.int("linear_before_reset") == Some(1),
        };
        let layer = OnnxLayer {
            cell,
            bias: bias.map(|bias| [bias.slice(0, 0, n), bias.slice(0, n, n)]),
            weight: row(weights, d)?,
            recurrent: row(recurrent, d)?,
            peepholes: g.maybe(PEEPHOLES).map(|p| row(p, d)).transpose()?,
            quantised: match quantised {
                true => Some([
                    Quantisation::of_direction(g, QUANTISED[0], d)?,
                    Quantisation::of_direction(g, QUANTISED[1], d)?,
                ]),
                false => None,
            },
        };
        let input = if backwards { reversed(x, lengths) } else { x };
        let first = initial(STATE, d)?;
        let first_cell = (mode == Mode::Lstm).then(|| initial(CELL, d)).transpose()?;
        let (states, cells) = layer.run(input, first, first_cell)?;
        ends.push(last(states, lengths)?);
        cell_ends.extend(cells.map(|cells| last(cells, lengths)).transpose()?);
        let states = lengths.map_or(Ok(states), |lengths| ended(states, lengths, false))?;
        let states = if backwards { reversed(states, lengths) } else { states };
        sides.push(states.reshape(Extents::of([time, Extent::ONE, batch, hidden.into()])));
    }
    let all = g.concat(&sides, 1);
    let mut out = vec![if batch_first { all.permute(&[2, 0, 1, 3]) } else { all }];
    let ends = [ends, cell_ends].into_iter().filter(|ends| !ends.is_empty());
    out.extend(ends.map(|ends| swapped(g.concat(&ends, 0))));
    out.truncate(cx.outputs.len());
    Ok(out)
}

fn shapes(cx: &mut InferCtx<'_>, mode: Mode) -> Result<(), OpError> {
    let (x, w, r) = (open_ranked(cx, 0, 3)?, open_ranked(cx, 1, 3)?, open_ranked(cx, 2, 3)?);
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
    operands_of_state(cx, mode, &x, w[0], r[2])?;
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    let (d, h) = (Some(w[0]), Some(r[2]));
    let (whole, end) = match is_batch_first(cx.params) {
        true => ([Some(x[0]), Some(x[1]), d, h], [Some(x[0]), d, h]),
        false => ([Some(x[0]), d, Some(x[1]), h], [d, Some(x[1]), h]),
    };
    partial(cx, 0, &whole)?;
    (1..cx.output_count()).try_for_each(|i| partial(cx, i, &end))
}

/// Shapes of the operands that may be absent: biases, lengths, first states and peepholes.
fn operands_of_state(
    cx: &mut InferCtx<'_>,
    mode: Mode,
    x: &[Dim],
    directions: Dim,
    hidden: Dim,
) -> Result<(), OpError> {
    let batch_first = is_batch_first(cx.params);
    let batch = if batch_first { x[0] } else { x[1] };
    let state = if batch_first { [batch, directions, hidden] } else { [directions, batch, hidden] };
    if let Dim::Const(n) = cx.resolve(hidden) {
        let of = |parts: u64| n.checked_mul(parts).map(Dim::Const).ok_or("the state is too large");
        shaped(cx, 3, &[directions, of(2 * mode.gates())?])?;
        if mode == Mode::Lstm {
            shaped(cx, 7, &[directions, of(3)?])?;
        }
    }
    shaped(cx, 4, &[batch])?;
    shaped(cx, 5, &state)?;
    if mode == Mode::Lstm { shaped(cx, 6, &state) } else { Ok(()) }
}

/// The parameters of cells and directions.
fn cell_params(def: OpDef) -> OpDef {
    def.maybe("activation_alpha", ParamKind::Floats, "Constants of activations that have one.")
        .maybe("activation_beta", ParamKind::Floats, "Second constants of activations that have one.")
        .maybe("activations", ParamKind::Strs, "Activations of each direction.")
        .maybe("clip", ParamKind::Float, "Bound of what activations are applied to.")
        .choice("direction", DIRECTIONS, "forward", "The order of the steps.")
        .maybe("hidden_size", ParamKind::Int, "Size of the state.")
}

fn quantised_shapes(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    reject_if(cx.has_input(LENGTHS), || "operand `sequence_lens` is not supported")?;
    (0..cx.output_count()).try_for_each(|i| cx.same_dtype(i, 0))?;
    let (x, w, r) = (open_ranked(cx, 0, 3)?, open_ranked(cx, 1, 3)?, open_ranked(cx, 2, 3)?);
    let directions = if cx.params.str("direction") == Some("bidirectional") { 2 } else { 1 };
    cx.unify_dims(Dim::Const(directions), w[0], "operand `W`, axis 0 (directions)")?;
    cx.unify_dims(w[0], r[0], "operand `R`, axis 0 (directions)")?;
    cx.unify_dims(w[2], r[2], "operand `R`, axis 2 (gates)")?;
    cx.unify_dims(x[2], w[1], "operand `W`, axis 1")?;
    reject_if(cx.resolve(x[0]) == Dim::Const(0), || "operand `X`: no time steps")?;
    activations(cx.params, Mode::Lstm, directions as usize - 1)?;
    let hidden = cx.resolve(r[1]);
    if let Dim::Const(n) = hidden {
        cx.unify_dims(Dim::Const(Mode::Lstm.gates() * n), w[2], "operand `W`, axis 2 (gates)")?;
        reject_if(
            cx.params.int("hidden_size").is_some_and(|size| size != n as i64),
            || "parameter `hidden_size` is not the extent of operand `R`, axis 1",
        )?;
    }
    operands_of_state(cx, Mode::Lstm, &x, w[0], hidden)?;
    for i in QUANTISED.concat() {
        let Some(dims) = open_rank_in(cx, i, 1..=2)? else { continue };
        let expected = [w[0], w[2]];
        shaped(cx, i, &expected[..dims.len()])?;
    }
    partial(cx, 0, &[Some(x[0]), Some(w[0]), Some(x[1]), Some(hidden)])?;
    (1..cx.output_count()).try_for_each(|i| partial(cx, i, &[Some(w[0]), Some(x[1]), Some(hidden)]))
}

/// An LSTM whose matrices are bytes, and whose inputs and states are quantised by their range at every step.
fn dynamic_quantize_lstm() -> OpDef {
    let float = || TypeRule::OneOf(&[DType::F32]);
    let doc = "`lstm` with quantised matrices, which multiply inputs and states that are quantised by their ranges.";
    let compute = formulas(|g, cx| body(g, cx, Mode::Lstm, true));
    let def = define("dynamic_quantize_lstm", doc, compute, rule(quantised_shapes))
        .operand("X", &[DType::F32])
        .operands(&["W", "R"], BYTES)
        .optional("B", float())
        .optional("sequence_lens", TypeRule::OneOf(&[DType::I32]))
        .optional("initial_h", float())
        .optional("initial_c", float())
        .optional("P", float())
        .operand("W_scale", &[DType::F32])
        .operand("W_zero_point", BYTES)
        .operand("R_scale", &[DType::F32])
        .operand("R_zero_point", BYTES);
    cell_params(def)
        .param("input_forget", 0, "1: the input gate is one minus the forget gate.")
        .outputs(1, 3)
        .contrib("DynamicQuantizeLSTM")
        .not_differentiable(ROUNDS)
}

fn layer(name: &'static str, onnx: &'static str, doc: &'static str, mode: Mode) -> OpDef {
    let def = define(name, doc, formulas(move |g, cx| body(g, cx, mode, false)), rule(move |cx| shapes(cx, mode)))
        .groups(&["X", "W", "R"], FLOATS)
        .optional("B", TypeRule::Group(0, FLOATS))
        .optional("sequence_lens", TypeRule::OneOf(INTS))
        .demand(4, |cx| {
            let x = cx.input(0)?;
            Ok(Some(Allowed::up_to(x.dims.at(usize::from(is_batch_first(cx.params))))))
        })
        .optional("initial_h", TypeRule::Group(0, FLOATS));
    let def = cell_params(def)
        .param("layout", 0, "1: the batch is the first axis.")
        .within(0.0, 1.0)
        .outputs(1, if mode == Mode::Lstm { 3 } else { 2 })
        .onnx(onnx, 7)
        .ulp(64.0);
    match mode {
        Mode::Lstm => def
            .optional("initial_c", TypeRule::Group(0, FLOATS))
            .optional("P", TypeRule::Group(0, FLOATS))
            .param("input_forget", 0, "1: the input gate is one minus the forget gate."),
        Mode::Gru => def.param("linear_before_reset", 0, "1: the reset gate comes after the product."),
        Mode::Relu | Mode::Tanh => def,
    }
}

pub fn ops() -> Vec<OpDef> {
    vec![
        layer("rnn", "RNN", "Recurrent layers of simple cells, in one or both directions.", Mode::Tanh),
        layer("lstm", "LSTM", "Recurrent layers of LSTM cells, in one or both directions.", Mode::Lstm),
        layer("gru", "GRU", "Recurrent layers of GRU cells, in one or both directions.", Mode::Gru),
        dynamic_quantize_lstm(),
    ]
}
