//! Recurrent layers and what else walks along a sequence.

use tensorc::DType;

use super::Draw;
use crate::draw::Elements;
use crate::model::{NodeSpec, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("CausalConvWithState", causal_conv),
    ("GRU", recurrent),
    ("LSTM", recurrent),
    ("LinearAttention", linear_attention),
    ("RNN", recurrent),
];

fn recurrent(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F32, DType::F64]);
    let gates = match op {
        "RNN" => 1,
        "GRU" => 3,
        _ => 4,
    };
    let direction = w.word(&["forward", "reverse", "bidirectional"]);
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let (steps, batch, size, hidden) = (1 + w.choice(5), 1 + w.choice(3), 1 + w.choice(5), 1 + w.choice(5));
    let x = w.operand(dtype, &[steps, batch, size], Elements::Any);
    let weight = w.operand(dtype, &[directions, gates * hidden, size], Elements::Any);
    let recurrence = w.operand(dtype, &[directions, gates * hidden, hidden], Elements::Any);
    let bias = w.one_in(2).then(|| w.operand(dtype, &[directions, 2 * gates * hidden], Elements::Any));
    let lengths = w.one_in(3).then(|| w.operand(DType::I32, &[batch], Elements::Between(1, steps as i64)));
    let state = [directions, batch, hidden];
    let first = w.one_in(2).then(|| w.operand(dtype, &state, Elements::Any));
    let mut operands = vec![Some(x), Some(weight), Some(recurrence), bias, lengths, first];
    if op == "LSTM" {
        operands.push(w.one_in(2).then(|| w.operand(dtype, &state, Elements::Any)));
        operands.push(w.one_in(3).then(|| w.operand(dtype, &[directions, 3 * hidden], Elements::Any)));
    }
    let outputs = 1 + w.choice(if op == "LSTM" { 3 } else { 2 }) as usize;
    let mut spec = NodeSpec::new(op, operands).results(outputs).int("hidden_size", hidden as i64);
    if direction != "forward" || w.one_in(2) {
        spec = spec.text("direction", direction);
    }
    if op == "GRU" && w.one_in(2) {
        spec = spec.int("linear_before_reset", 1);
    }
    Some(if w.one_in(5) { spec.float("clip", 0.5) } else { spec })
}

fn causal_conv(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = DType::F32;
    let (batch, channels, steps, taps) = (1 + w.choice(2), 1 + w.choice(4), 1 + w.choice(6), 1 + w.choice(3));
    let x = w.operand(dtype, &[batch, channels, steps], Elements::Any);
    let weight = w.operand(dtype, &[channels, 1, taps], Elements::Any);
    let bias = w.one_in(2).then(|| w.operand(dtype, &[channels], Elements::Any));
    let past = w.one_in(2).then(|| w.operand(dtype, &[batch, channels, taps - 1], Elements::Any));
    let spec = NodeSpec::new(op, vec![Some(x), Some(weight), bias, past]).results(2);
    Some(spec.text("activation", w.word(&["none", "silu", "swish"])))
}

fn linear_attention(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = DType::F32;
    let (batch, heads, steps, size) = (1 + w.choice(2), 1 + w.choice(2), 1 + w.choice(4), 1 + w.choice(4));
    let dims = [batch, steps, heads * size];
    let [q, k, v] = [(); 3].map(|()| Some(w.operand(dtype, &dims, Elements::Unit)));
    let rule = w.word(&["linear", "gated", "delta", "gated_delta"]);
    let past = w.one_in(2).then(|| w.operand(dtype, &[batch, heads, size, size], Elements::Unit));
    let decay = rule.starts_with("gated").then(|| w.operand(dtype, &[batch, steps, heads], Elements::Unit));
    let beta = rule.ends_with("delta").then(|| w.operand(dtype, &[batch, steps, heads], Elements::Unit));
    let spec = NodeSpec::new(op, vec![q, k, v, past, decay, beta]).results(2).text("update_rule", rule);
    Some(spec.int("q_num_heads", heads as i64).int("kv_num_heads", heads as i64))
}
