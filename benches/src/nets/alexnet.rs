//! AlexNet, as in MXNet's model zoo.

use super::layers::{Layer, conv, data, dense, dropout, flatten, pool, relu, softmax};

pub fn alexnet() -> Layer {
    let mut x = pool(&conv(64, 11).stride(4).pad(2).relu(&data())?, "max", 3, 2, 0)?;
    x = pool(&conv(192, 5).pad(2).relu(&x)?, "max", 3, 2, 0)?;
    for filters in [384, 256, 256] {
        x = conv(filters, 3).pad(1).relu(&x)?;
    }
    x = flatten(&pool(&x, "max", 3, 2, 0)?)?;
    for _ in 0..2 {
        x = dropout(&relu(&dense(&x, 4096)?)?, 0.5)?;
    }
    softmax(&dense(&x, 1000)?)
}
