//! DenseNet with 121 layers.

use tensorc::symbol::Symbol;

use super::layers::{Layer, batch_norm, concat, conv, data, dense, flatten, pool, relu, softmax};

const GROWTH: u64 = 32;

/// Normalisation and ReLU in front of a convolution.
fn norm_relu(x: &Symbol) -> Layer {
    relu(&batch_norm(x)?)
}

/// Adds channels to those there are.
fn dense_layer(x: &Symbol) -> Layer {
    let y = conv(4 * GROWTH, 1).no_bias().on(&norm_relu(x)?)?;
    let y = conv(GROWTH, 3).pad(1).no_bias().on(&norm_relu(&y)?)?;
    concat(&[x, &y])
}

pub fn densenet121() -> Layer {
    let x = conv(64, 7).stride(2).pad(3).no_bias().norm_relu(&data())?;
    let mut x = pool(&x, "max", 3, 2, 1)?;
    let mut channels = 64;
    for (block, layers) in [6, 12, 24, 16].into_iter().enumerate() {
        if block > 0 {
            channels /= 2;
            x = conv(channels, 1).no_bias().on(&norm_relu(&x)?)?;
            x = pool(&x, "avg", 2, 2, 0)?;
        }
        for _ in 0..layers {
            x = dense_layer(&x)?;
        }
        channels += layers * GROWTH;
    }
    let x = pool(&norm_relu(&x)?, "avg", 7, 7, 0)?;
    softmax(&dense(&flatten(&x)?, 1000)?)
}
