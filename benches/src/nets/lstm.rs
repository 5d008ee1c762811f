//! A language model of two LSTM layers, unrolled.

use tensorc::symbol::{Symbol, op};

use super::layers::{Layer, activation};

/// Its extents.
#[derive(Clone, Copy, Debug)]
pub struct Language {
    /// Time steps of a sequence.
    pub steps: u64,
    /// Words of the vocabulary.
    pub words: u64,
    /// Width of the hidden state.
    pub hidden: u64,
}

/// For the Penn Treebank.
pub(crate) const MEDIUM: Language = Language { steps: 35, words: 10_000, hidden: 200 };

/// The state of each layer before the first step: output and cell.
pub(crate) const STATES: [&str; 4] = ["l0_h", "l0_c", "l1_h", "l1_c"];

/// A layer: its weights, used in every step, and its state.
struct Cell {
    name: String,
    hidden: u64,
    weights: [Symbol; 4],
    output: Symbol,
    cell: Symbol,
}

impl Cell {
    fn new(layer: usize, hidden: u64) -> Cell {
        let name = format!("l{layer}");
        let variable = |what: &str| Symbol::variable(&format!("{name}_{what}"));
        let weights = ["i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias"].map(variable);
        let (output, cell) = (variable("h"), variable("c"));
        Cell { name, hidden, weights, output, cell }
    }

    fn step(&mut self, x: &Symbol, t: u64) -> Layer {
        let dense = |x: &Symbol, weight: usize, what: &str| {
            op("FullyConnected")
                .input(x)
                .arg("weight", &self.weights[weight])
                .arg("bias", &self.weights[weight + 1])
                .param("num_hidden", 4 * self.hidden)
                .name(&format!("{}_t{t}_{what}", self.name))
                .build()
        };
        let gates = (&dense(x, 0, "i2h")? + &dense(&self.output, 2, "h2h")?)?;
        let gates = op("SliceChannel").input(&gates).param("num_outputs", 4).build()?;
        let gate = |i, kind| activation(&gates.output(i)?, kind);
        let (admit, keep, fresh, show) =
            (gate(0, "sigmoid")?, gate(1, "sigmoid")?, gate(2, "tanh")?, gate(3, "sigmoid")?);
        self.cell = (&(&keep * &self.cell)? + &(&admit * &fresh)?)?;
        self.output = (&show * &activation(&self.cell, "tanh")?)?;
        Ok(self.output.clone())
    }
}

impl Language {
    pub fn symbol(&self) -> Layer {
        let Language { steps: count, words: vocabulary, hidden } = *self;
        let data = Symbol::variable("data");
        let words = op("Embedding")
            .input(&data)
            .param("input_dim", vocabulary)
            .param("output_dim", hidden)
            .name("embed")
            .build()?;
        let steps =
            op("SliceChannel").input(&words).param("num_outputs", count).param("axis", 1).param("squeeze_axis", true);
        let steps = steps.build()?;
        let mut cells = [Cell::new(0, hidden), Cell::new(1, hidden)];
        let mut outputs = vec![];
        for t in 0..count {
            let mut x = steps.output(t as usize)?;
            for cell in &mut cells {
                x = cell.step(&x, t)?;
            }
            outputs.push(op("expand_dims").input(&x).param("axis", 1).build()?);
        }
        let all = op("Concat").inputs(&outputs).param("dim", 1).build()?;
        let rows = op("Reshape").input(&all).param("shape", [-1, hidden as i64]).build()?;
        let scores = op("FullyConnected").input(&rows).param("num_hidden", vocabulary).name("pred").build()?;
        let label = op("Reshape").input(&Symbol::variable("softmax_label")).param("shape", [-1]).build()?;
        op("SoftmaxOutput").input(&scores).input(&label).name("softmax").build()
    }
}
