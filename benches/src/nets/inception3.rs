//! Inception, third version, for images of 299².

use tensorc::symbol::Symbol;

use super::layers::{Conv, Layer, batch_norm_eps, concat, conv, data, dense, dropout, flatten, pool, relu, softmax};

const fn square(filters: u64, kernel: u64) -> Conv {
    conv(filters, kernel).no_bias()
}

/// A convolution with normalisation and ReLU behind it.
fn unit(c: Conv, x: &Symbol) -> Layer {
    relu(&batch_norm_eps(&c.no_bias().on(x)?, 1e-3)?)
}

/// Units one after another.
fn chain(units: &[Conv], x: &Symbol) -> Layer {
    units.iter().try_fold(x.clone(), |x, c| unit(*c, &x))
}

/// Windows of 1×`n` and `n`×1, the extent kept.
const fn row(filters: u64, n: u64) -> Conv {
    conv(filters, 1).window([1, n]).pads([0, n / 2])
}

const fn column(filters: u64, n: u64) -> Conv {
    conv(filters, 1).window([n, 1]).pads([n / 2, 0])
}

fn pooled(filters: u64, x: &Symbol) -> Layer {
    unit(square(filters, 1), &pool(x, "avg", 3, 1, 1)?)
}

fn block_a(x: &Symbol, features: u64) -> Layer {
    let three = chain(&[square(64, 1), square(96, 3).pad(1), square(96, 3).pad(1)], x)?;
    let five = chain(&[square(48, 1), square(64, 5).pad(2)], x)?;
    concat(&[&unit(square(64, 1), x)?, &five, &three, &pooled(features, x)?])
}

fn block_b(x: &Symbol) -> Layer {
    let double = chain(&[square(64, 1), square(96, 3).pad(1), square(96, 3).stride(2)], x)?;
    concat(&[&unit(square(384, 3).stride(2), x)?, &double, &pool(x, "max", 3, 2, 0)?])
}

fn block_c(x: &Symbol, n: u64) -> Layer {
    let seven = chain(&[square(n, 1), row(n, 7), column(192, 7)], x)?;
    let double = chain(&[square(n, 1), column(n, 7), row(n, 7), column(n, 7), row(192, 7)], x)?;
    concat(&[&unit(square(192, 1), x)?, &seven, &double, &pooled(192, x)?])
}

fn block_d(x: &Symbol) -> Layer {
    let three = chain(&[square(192, 1), square(320, 3).stride(2)], x)?;
    let seven = chain(&[square(192, 1), row(192, 7), column(192, 7), square(192, 3).stride(2)], x)?;
    concat(&[&three, &seven, &pool(x, "max", 3, 2, 0)?])
}

fn block_e(x: &Symbol) -> Layer {
    let fork = |x: &Symbol| concat(&[&unit(row(384, 3), x)?, &unit(column(384, 3), x)?]);
    let three = fork(&unit(square(384, 1), x)?)?;
    let double = fork(&chain(&[square(448, 1), square(384, 3).pad(1)], x)?)?;
    concat(&[&unit(square(320, 1), x)?, &three, &double, &pooled(192, x)?])
}

pub fn v3() -> Layer {
    let stem = [square(32, 3).stride(2), square(32, 3), square(64, 3).pad(1)];
    let x = pool(&chain(&stem, &data())?, "max", 3, 2, 0)?;
    let mut x = pool(&chain(&[square(80, 1), square(192, 3)], &x)?, "max", 3, 2, 0)?;
    for features in [32, 64, 64] {
        x = block_a(&x, features)?;
    }
    x = block_b(&x)?;
    for n in [128, 160, 160, 192] {
        x = block_c(&x, n)?;
    }
    x = block_d(&x)?;
    for _ in 0..2 {
        x = block_e(&x)?;
    }
    softmax(&dense(&flatten(&dropout(&pool(&x, "avg", 8, 1, 0)?, 0.5)?)?, 1000)?)
}
