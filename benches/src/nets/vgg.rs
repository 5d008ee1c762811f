//! VGG with 16 layers.

use super::layers::{Layer, conv, data, dense, dropout, pool, relu, softmax};

pub fn vgg16() -> Layer {
    let mut x = data();
    for (layers, filters) in [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)] {
        for _ in 0..layers {
            x = conv(filters, 3).pad(1).relu(&x)?;
        }
        x = pool(&x, "max", 2, 2, 0)?;
    }
    for _ in 0..2 {
        x = dropout(&relu(&dense(&x, 4096)?)?, 0.5)?;
    }
    softmax(&dense(&x, 1000)?)
}
