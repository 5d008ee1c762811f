//! Residual networks: 18 layers for CIFAR, 50 layers (v1) for ImageNet.

use tensorc::symbol::Symbol;

use super::layers::{Layer, conv, data, dense, flatten, global_pool, pool, relu, softmax};

/// Two convolutions of 3x3; a projection where the shape changes.
fn basic(x: &Symbol, from: u64, to: u64, stride: u64) -> Layer {
    let y = conv(to, 3).stride(stride).pad(1).no_bias().norm_relu(x)?;
    let y = conv(to, 3).pad(1).no_bias().norm(&y)?;
    let short = match stride > 1 || from != to {
        true => conv(to, 1).stride(stride).no_bias().norm(x)?,
        false => x.clone(),
    };
    relu(&(&y + &short)?)
}

pub fn cifar18() -> Layer {
    let mut x = conv(64, 3).pad(1).no_bias().norm_relu(&data())?;
    let mut from = 64;
    for (stage, to) in [64, 128, 256, 512].into_iter().enumerate() {
        x = basic(&x, from, to, if stage == 0 { 1 } else { 2 })?;
        x = basic(&x, to, to, 1)?;
        from = to;
    }
    softmax(&dense(&flatten(&global_pool(&x)?)?, 10)?)
}

/// 1x1, 3x3, 1x1, the stride in the first.
fn bottleneck(x: &Symbol, channels: u64, stride: u64, project: bool) -> Layer {
    let y = conv(channels / 4, 1).stride(stride).norm_relu(x)?;
    let y = conv(channels / 4, 3).pad(1).no_bias().norm_relu(&y)?;
    let y = conv(channels, 1).norm(&y)?;
    let short = match project {
        true => conv(channels, 1).stride(stride).no_bias().norm(x)?,
        false => x.clone(),
    };
    relu(&(&y + &short)?)
}

pub fn v1_50() -> Layer {
    let x = conv(64, 7).stride(2).pad(3).no_bias().norm_relu(&data())?;
    let mut x = pool(&x, "max", 3, 2, 1)?;
    for (stage, (blocks, channels)) in [(3, 256), (4, 512), (6, 1024), (3, 2048)].into_iter().enumerate() {
        x = bottleneck(&x, channels, if stage == 0 { 1 } else { 2 }, true)?;
        for _ in 1..blocks {
            x = bottleneck(&x, channels, 1, false)?;
        }
    }
    softmax(&dense(&global_pool(&x)?, 1000)?)
}
