//! Matrix products: square ones, few rows as in decoding, many rows, and batches, alone and with a bias and gelu.

use tensorc::Error;
use tensorc::ir::build::Builder;
use tensorc::ir::graph::Value;
use tensorc::ir::params::{ParamValue, Params};

use super::chain::{ChainLayer, LayerChain};
use super::{Case, Peer, Precision, Size};

/// What follows a product, and how its right operand lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProductForm {
    /// `x · w`, w with a row for each term.
    Plain,
    /// `gelu(x · wᵀ + b)`, w with a row for each result, as layers of models have it.
    Gelu,
}

impl ProductForm {
    fn name(self) -> &'static str {
        match self {
            ProductForm::Plain => "x·w",
            ProductForm::Gelu => "gelu(x·wᵀ + b)",
        }
    }

    /// By how much results are smaller than the operand, roughly: numbers that vanish make a GPU draw less power.
    fn gain(self) -> f64 {
        match self {
            ProductForm::Plain => 1.0,
            ProductForm::Gelu => 1.5,
        }
    }
}

pub(super) fn transposed(b: &mut Builder<'_>, x: Value, axes: Vec<i64>) -> Result<Value, Error> {
    Ok(b.op("transpose", &[x], Params::new().with("perm", ParamValue::Ints(axes)))?)
}

/// Of `rows` × `terms` by `terms` × `columns`, and back if these differ.
fn layers(precision: Precision, form: ProductForm, [rows, terms, columns]: [u64; 3]) -> LayerChain {
    let ways = if terms == columns { vec![(terms, columns)] } else { vec![(terms, columns), (columns, terms)] };
    let mut operands = vec![];
    for (k, n) in &ways {
        let deviation = form.gain() / (*k as f64).sqrt();
        match form {
            ProductForm::Plain => operands.push((vec![*k, *n], deviation)),
            ProductForm::Gelu => operands.extend([(vec![*n, *k], deviation), (vec![*n], 0.1)]),
        }
    }
    let layer: Box<ChainLayer> = match form {
        ProductForm::Plain => {
            Box::new(|b, x, others| others.iter().try_fold(x, |y, w| Ok(b.call("matmul", &[y, *w])?)))
        }
        ProductForm::Gelu => Box::new(|b, x, others| {
            others.chunks_exact(2).try_fold(x, |y, pair| {
                let w = transposed(b, pair[0], vec![1, 0])?;
                let product = b.call("matmul", &[y, w])?;
                let sum = b.call("add", &[product, pair[1]])?;
                Ok(b.call("gelu", &[sum])?)
            })
        }),
    };
    let flops = 2.0 * (rows * terms * columns) as f64 * ways.len() as f64;
    LayerChain { precision, dims: vec![rows, terms], operands, layer, flops }
}

/// `count` products of `rows` × `terms` by `terms` × `terms`.
fn batch(precision: Precision, [count, rows, terms]: [u64; 3]) -> LayerChain {
    let operands = vec![(vec![count, terms, terms], 1.0 / (terms as f64).sqrt())];
    let layer: Box<ChainLayer> = Box::new(|b, x, others| Ok(b.call("matmul", &[x, others[0]])?));
    let flops = 2.0 * (count * rows * terms * terms) as f64;
    LayerChain { precision, dims: vec![count, rows, terms], operands, layer, flops }
}

fn case(name: String, chain: LayerChain) -> Case {
    Case::new(name, move |setup| chain.report(setup, Some(Peer::CuBlasLt)))
}

/// Sizes of square products; rows, terms and columns of others; and batches.
struct Shapes {
    squares: &'static [u64],
    wide: &'static [[u64; 3]],
    decoding: &'static [[u64; 3]],
    batches: &'static [[u64; 3]],
}

const DEVICE: Shapes = Shapes {
    squares: &[8192, 4096, 2048, 1024],
    wide: &[[4096, 768, 3072], [32768, 1024, 1024], [256, 4096, 11008], [128, 16384, 1024]],
    decoding: &[
        [1, 4096, 4096],
        [8, 4096, 4096],
        [16, 4096, 4096],
        [64, 4096, 4096],
        [1, 4096, 11008],
        [8, 4096, 11008],
        [16, 4096, 11008],
        [64, 4096, 11008],
    ],
    batches: &[[32, 1024, 1024], [384, 512, 64], [384, 128, 128]],
};

const SMALL: Shapes =
    Shapes { squares: &[64], wide: &[[64, 32, 48]], decoding: &[[1, 64, 96]], batches: &[[2, 32, 32]] };

pub(super) fn cases(size: Size) -> Vec<Case> {
    let shapes = match size {
        Size::Device => DEVICE,
        Size::Small => SMALL,
    };
    let mut all = vec![];
    for precision in Precision::ALL {
        let name = precision.name();
        for &n in shapes.squares {
            for form in [ProductForm::Plain, ProductForm::Gelu] {
                all.push(case(format!("{name} {n}³ {}", form.name()), layers(precision, form, [n; 3])));
            }
        }
    }
    for precision in Precision::ALL {
        let name = precision.name();
        for &[m, k, n] in shapes.wide {
            all.push(case(
                format!("{name} {m}×{k}×{n} and back, gelu(x·wᵀ + b)"),
                layers(precision, ProductForm::Gelu, [m, k, n]),
            ));
        }
        for &[m, k, n] in shapes.decoding {
            let back = if k == n { "" } else { " and back" };
            all.push(case(format!("{name} {m}×{k}×{n}{back}, x·w"), layers(precision, ProductForm::Plain, [m, k, n])));
        }
        for &[count, m, k] in shapes.batches {
            all.push(case(format!("{name} {count} × {m}×{k}×{k}"), batch(precision, [count, m, k])));
        }
    }
    all
}
