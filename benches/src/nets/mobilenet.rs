//! MobileNet 1.0.

use super::layers::{Layer, conv, data, dense, flatten, global_pool, softmax};

pub fn v1() -> Layer {
    let mut x = conv(32, 3).stride(2).pad(1).no_bias().norm_relu(&data())?;
    let mut from = 32;
    let pairs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)];
    let rest = [(512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)];
    for (to, stride) in pairs.into_iter().chain(rest) {
        x = conv(from, 3).stride(stride).pad(1).groups(from).no_bias().norm_relu(&x)?;
        x = conv(to, 1).no_bias().norm_relu(&x)?;
        from = to;
    }
    softmax(&dense(&flatten(&global_pool(&x)?)?, 1000)?)
}
