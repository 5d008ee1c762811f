//! A transformer encoder with normalisation behind each sublayer, and a classifier on the mean.

use tensorc::symbol::{Symbol, op};

use super::layers::{Layer, dense, dense_last, softmax};

const LAYERS: usize = 2;
const WORDS: u64 = 1000;
const WIDTH: u64 = 128;
const HEADS: i64 = 4;
const CLASSES: u64 = 4;

fn reshape(x: &Symbol, codes: &[i64]) -> Layer {
    op("Reshape").input(x).param("shape", codes).build()
}

fn swap_middle(x: &Symbol) -> Layer {
    op("transpose").input(x).param("axes", [0, 2, 1, 3]).build()
}

fn normed_sum(x: &Symbol, y: &Symbol) -> Layer {
    op("LayerNorm").input(&(x + y)?).build()
}

/// (batch, steps, width) to (batch · heads, steps, width / heads).
fn heads(x: &Symbol) -> Layer {
    reshape(&swap_middle(&reshape(x, &[0, 0, -4, HEADS, -1])?)?, &[-3, 0, 0])
}

fn attention(x: &Symbol) -> Layer {
    let all = dense_last(x, 3 * WIDTH)?;
    let parts = op("SliceChannel").input(&all).param("num_outputs", 3).param("axis", 2).build()?;
    let part = |i| heads(&parts.output(i)?);
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let scores = op("batch_dot").input(&q).input(&k).param("transpose_b", true).build()?;
    let scores = (&scores / (WIDTH as f64 / HEADS as f64).sqrt())?;
    let weights = op("softmax").input(&scores).build()?;
    let mixed = op("batch_dot").input(&weights).input(&v).build()?;
    let mixed = swap_middle(&reshape(&mixed, &[-4, -1, HEADS, 0, 0])?)?;
    dense_last(&reshape(&mixed, &[0, 0, -3])?, WIDTH)
}

fn feed_forward(x: &Symbol) -> Layer {
    let wide = op("LeakyReLU").input(&dense_last(x, 4 * WIDTH)?).param("act_type", "gelu").build()?;
    dense_last(&wide, WIDTH)
}

pub fn encoder() -> Layer {
    let data = Symbol::variable("data");
    let mut x = op("Embedding").input(&data).param("input_dim", WORDS).param("output_dim", WIDTH).build()?;
    for _ in 0..LAYERS {
        x = normed_sum(&x, &attention(&x)?)?;
        x = normed_sum(&x, &feed_forward(&x)?)?;
    }
    let mean = op("mean").input(&x).param("axis", 1).build()?;
    softmax(&dense(&mean, CLASSES)?)
}
