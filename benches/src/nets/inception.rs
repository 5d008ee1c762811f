//! Inception with batch normalisation.

use tensorc::symbol::Symbol;

use super::layers::{Conv, Layer, concat, conv, data, dense, flatten, pool, softmax};

/// Filters of one block: `one` of 1x1; a reduction and 3x3; a reduction and twice 3x3; behind a pool.
struct InceptionBlock {
    one: u64,
    three: [u64; 2],
    double: [u64; 2],
    pool: &'static str,
    project: u64,
}

const fn block(one: u64, three: [u64; 2], double: [u64; 2], pool: &'static str, project: u64) -> InceptionBlock {
    InceptionBlock { one, three, double, pool, project }
}

const fn three(filters: u64) -> Conv {
    conv(filters, 3).pad(1)
}

impl InceptionBlock {
    fn on(&self, x: &Symbol) -> Layer {
        let one = conv(self.one, 1).norm_relu(x)?;
        let single = three(self.three[1]).norm_relu(&conv(self.three[0], 1).norm_relu(x)?)?;
        let double = three(self.double[1]).norm_relu(&conv(self.double[0], 1).norm_relu(x)?)?;
        let double = three(self.double[1]).norm_relu(&double)?;
        let pooled = conv(self.project, 1).norm_relu(&pool(x, self.pool, 3, 1, 1)?)?;
        concat(&[&one, &single, &double, &pooled])
    }
}

/// A block that halves the extents.
fn halve(x: &Symbol, single: [u64; 2], double: [u64; 2]) -> Layer {
    let a = three(single[1]).stride(2).norm_relu(&conv(single[0], 1).norm_relu(x)?)?;
    let b = three(double[1]).norm_relu(&conv(double[0], 1).norm_relu(x)?)?;
    let b = three(double[1]).stride(2).norm_relu(&b)?;
    concat(&[&a, &b, &pool(x, "max", 3, 2, 1)?])
}

pub fn bn() -> Layer {
    let x = pool(&conv(64, 7).stride(2).pad(3).norm_relu(&data())?, "max", 3, 2, 0)?;
    let x = three(192).norm_relu(&conv(64, 1).norm_relu(&x)?)?;
    let mut x = pool(&x, "max", 3, 2, 0)?;
    for b in [block(64, [64, 64], [64, 96], "avg", 32), block(64, [64, 96], [64, 96], "avg", 64)] {
        x = b.on(&x)?;
    }
    x = halve(&x, [128, 160], [64, 96])?;
    let fourth = [
        block(224, [64, 96], [96, 128], "avg", 128),
        block(192, [96, 128], [96, 128], "avg", 128),
        block(160, [128, 160], [128, 160], "avg", 128),
        block(96, [128, 192], [160, 192], "avg", 128),
    ];
    for b in fourth {
        x = b.on(&x)?;
    }
    x = halve(&x, [128, 192], [192, 256])?;
    for b in [block(352, [192, 320], [160, 224], "avg", 128), block(352, [192, 320], [192, 224], "max", 128)] {
        x = b.on(&x)?;
    }
    softmax(&dense(&flatten(&pool(&x, "avg", 7, 1, 0)?)?, 1000)?)
}
