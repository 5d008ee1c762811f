//! Attention in one kernel: many queries, and one query with many keys as in decoding.

use tensorc::ir::scalar::Scalar;

use super::chain::{ChainLayer, LayerChain};
use super::products::transposed;
use super::{Case, Precision, Size};

/// Heads of all samples together, queries of each, keys of each, and elements of a head.
type AttentionShape = [u64; 4];

/// Layers whose results are the queries of the next one.
fn layers(precision: Precision, [heads, queries, keys, depth]: AttentionShape) -> LayerChain {
    let operand = (vec![heads, keys, depth], 1.0);
    let scale = 1.0 / (depth as f64).sqrt();
    let layer: Box<ChainLayer> = Box::new(move |b, q, others| {
        let k = transposed(b, others[0], vec![0, 2, 1])?;
        let scores = b.call("matmul", &[q, k])?;
        let scale = b.scalar(Scalar::from_f64(precision.dtype(), scale));
        let scaled = b.call("mul", &[scores, scale])?;
        let weights = b.call("softmax", &[scaled])?;
        Ok(b.call("matmul", &[weights, others[1]])?)
    });
    // Two products.
    let flops = 4.0 * (heads * queries * keys * depth) as f64;
    LayerChain { precision, dims: vec![heads, queries, depth], operands: vec![operand.clone(), operand], layer, flops }
}

const DEVICE: [AttentionShape; 14] = [
    [256, 512, 512, 64],
    [96, 1024, 1024, 64],
    [64, 2048, 2048, 64],
    [16, 8192, 8192, 64],
    [256, 512, 512, 128],
    [64, 2048, 2048, 128],
    [16, 8192, 8192, 128],
    // Samples of BERT-base.
    [12, 128, 128, 64],
    [384, 128, 128, 64],
    [32, 1, 2048, 128],
    [32, 1, 8192, 128],
    [256, 1, 2048, 128],
    [256, 1, 8192, 128],
    [256, 1, 8192, 64],
];

const SMALL: [AttentionShape; 2] = [[2, 32, 32, 16], [1, 1, 128, 16]];

pub(super) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[AttentionShape] = match size {
        Size::Device => &DEVICE,
        Size::Small => &SMALL,
    };
    let mut all = vec![];
    for precision in Precision::ALL {
        for &shape in shapes {
            let [heads, queries, keys, depth] = shape;
            let name = format!("{} {heads} heads of {depth}, {queries} × {keys}", precision.name());
            let chain = layers(precision, shape);
            all.push(Case::new(name, move |setup| chain.report(setup, None)));
        }
    }
    all
}
