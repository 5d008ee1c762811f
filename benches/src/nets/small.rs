//! A perceptron and LeNet, for digits.

use super::layers::{Layer, activation, conv, data, dense, flatten, pool, relu, softmax};

/// 784-512-512-10 with ReLU.
pub fn mlp() -> Layer {
    let x = relu(&dense(&data(), 512)?)?;
    softmax(&dense(&relu(&dense(&x, 512)?)?, 10)?)
}

/// Two convolutions of 5x5 and two dense layers, tanh.
pub fn lenet() -> Layer {
    let mut x = data();
    for filters in [20, 50] {
        x = activation(&conv(filters, 5).on(&x)?, "tanh")?;
        x = pool(&x, "max", 2, 2, 0)?;
    }
    let x = activation(&dense(&flatten(&x)?, 500)?, "tanh")?;
    softmax(&dense(&x, 10)?)
}
