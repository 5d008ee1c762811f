//! A transformer encoder with normalisation behind each sublayer, and a classifier on the mean.

use tensorc::symbol::{Symbol, op};

use super::layers::{Layer, dense, dense_last, softmax};

/// Its extents.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Number of encoder layers.
    pub layers: usize,
    /// Words of the vocabulary.
    pub words: u64,
    /// Width of the model.
    pub width: u64,
    /// Attention heads of a layer.
    pub heads: u64,
    /// Number of classes.
    pub classes: u64,
}

/// For training on a processor.
pub const SMALL: Encoder = Encoder { layers: 2, words: 1000, width: 128, heads: 4, classes: 4 };
/// As large as BERT-base, without positions.
pub(crate) const BERT_BASE: Encoder = Encoder { layers: 12, words: 30_522, width: 768, heads: 12, classes: 2 };

fn reshape(x: &Symbol, codes: &[i64]) -> Layer {
    op("Reshape").input(x).param("shape", codes).build()
}

fn swap_middle(x: &Symbol) -> Layer {
    op("transpose").input(x).param("axes", [0, 2, 1, 3]).build()
}

fn normed_sum(x: &Symbol, y: &Symbol) -> Layer {
    op("LayerNorm").input(&(x + y)?).build()
}

impl Encoder {
    /// (batch, steps, width) to (batch · heads, steps, width / heads).
    fn heads(&self, x: &Symbol) -> Layer {
        reshape(&swap_middle(&reshape(x, &[0, 0, -4, self.heads as i64, -1])?)?, &[-3, 0, 0])
    }

    fn attention(&self, x: &Symbol) -> Layer {
        let all = dense_last(x, 3 * self.width)?;
        let parts = op("SliceChannel").input(&all).param("num_outputs", 3).param("axis", 2).build()?;
        let part = |i| self.heads(&parts.output(i)?);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = op("batch_dot").input(&q).input(&k).param("transpose_b", true).build()?;
        let scores = (&scores / (self.width as f64 / self.heads as f64).sqrt())?;
        let weights = op("softmax").input(&scores).build()?;
        let mixed = op("batch_dot").input(&weights).input(&v).build()?;
        let mixed = swap_middle(&reshape(&mixed, &[-4, -1, self.heads as i64, 0, 0])?)?;
        dense_last(&reshape(&mixed, &[0, 0, -3])?, self.width)
    }

    fn feed_forward(&self, x: &Symbol) -> Layer {
        let wide = op("LeakyReLU").input(&dense_last(x, 4 * self.width)?).param("act_type", "gelu").build()?;
        dense_last(&wide, self.width)
    }

    pub fn symbol(&self) -> Layer {
        let data = Symbol::variable("data");
        let words = op("Embedding").input(&data).param("input_dim", self.words).param("output_dim", self.width);
        let mut x = words.build()?;
        for _ in 0..self.layers {
            x = normed_sum(&x, &self.attention(&x)?)?;
            x = normed_sum(&x, &self.feed_forward(&x)?)?;
        }
        let mean = op("mean").input(&x).param("axis", 1).build()?;
        softmax(&dense(&mean, self.classes)?)
    }
}
