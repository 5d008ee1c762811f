//! SqueezeNet 1.0.

use tensorc::symbol::Symbol;

use super::layers::{Layer, concat, conv, data, dropout, flatten, pool, pool_full, softmax};

/// Squeezes channels, and expands them by windows of 1x1 and of 3x3.
fn fire(x: &Symbol, squeeze: u64, expand: u64) -> Layer {
    let x = conv(squeeze, 1).relu(x)?;
    concat(&[&conv(expand, 1).relu(&x)?, &conv(expand, 3).pad(1).relu(&x)?])
}

pub fn v1_0() -> Layer {
    let mut x = conv(96, 7).stride(2).relu(&data())?;
    let stages: [&[(u64, u64)]; 3] =
        [&[(16, 64), (16, 64), (32, 128)], &[(32, 128), (48, 192), (48, 192), (64, 256)], &[(64, 256)]];
    for stage in stages {
        x = pool_full(&x, "max", 3, 2)?;
        for (squeeze, expand) in stage {
            x = fire(&x, *squeeze, *expand)?;
        }
    }
    let x = conv(1000, 1).relu(&dropout(&x, 0.5)?)?;
    softmax(&flatten(&pool(&x, "avg", 13, 13, 0)?)?)
}
