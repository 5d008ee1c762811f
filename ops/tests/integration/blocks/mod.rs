//! A compiled evaluator of scalar bodies over blocks of arguments, and the error of the math
//! library's functions measured with it.

use tensorc_ir::DType;
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarFn, ScalarNode, ScalarOp};

use super::distance::error;

pub const LANES: usize = 1024;

/// The values of one node for a block of arguments, as raw bits.
pub type Block = Vec<u64>;

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// Evaluates a body on blocks, one tight loop for each node.
pub struct Evaluator<'a> {
    body: &'a ScalarFn,
    values: Vec<Block>,
}

macro_rules! each {
    ($out:expr, [$($x:ident: $block:expr),*] => $e:expr) => {
        for (i, out) in $out.iter_mut().enumerate() {
            $(let $x = $block[i];)*
            *out = $e;
        }
    };
}

impl<'a> Evaluator<'a> {
    pub fn new(body: &'a ScalarFn) -> Evaluator<'a> {
        let block = |node: &ScalarNode| match node {
            ScalarNode::Const(c) => vec![c.bits; LANES],
            _ => vec![0; LANES],
        };
        Evaluator { body, values: body.nodes.iter().map(block).collect() }
    }

    pub fn run(&mut self, inputs: &[Block]) -> &Block {
        for (n, node) in self.body.nodes.iter().enumerate() {
            let (before, rest) = self.values.split_at_mut(n);
            let out = &mut rest[0];
            match node {
                ScalarNode::Input(i) => out.copy_from_slice(&inputs[*i as usize]),
                ScalarNode::Op(op, args) => {
                    let args: Vec<&Block> = args.iter().map(|a| &before[a.0 as usize]).collect();
                    let from = self.body.dtype(match node {
                        ScalarNode::Op(_, ids) => ids[ids.len() - 1],
                        _ => self.body.outputs[0],
                    });
                    apply(*op, from, &args, out);
                }
                _ => {}
            }
        }
        &self.values[self.body.outputs[0].0 as usize]
    }
}

/// One operation on blocks; what has no loop of its own here goes through [`ScalarOp::eval`].
fn apply(op: ScalarOp, from: DType, args: &[&Block], out: &mut Block) {
    let m = |x: f32| u64::from(x.to_bits());
    let w = |x: i32| u64::from(x as u32);
    let s = |x: u64| x as u32 as i32;
    match (op, from) {
        (ScalarOp::Fma, DType::F32) => each!(out, [a: args[0], b: args[1], c: args[2]] => m(f(a).mul_add(f(b), f(c)))),
        (ScalarOp::Add, DType::F32) => each!(out, [a: args[0], b: args[1]] => m(f(a) + f(b))),
        (ScalarOp::Sub, DType::F32) => each!(out, [a: args[0], b: args[1]] => m(f(a) - f(b))),
        (ScalarOp::Mul, DType::F32) => each!(out, [a: args[0], b: args[1]] => m(f(a) * f(b))),
        (ScalarOp::Div, DType::F32) => each!(out, [a: args[0], b: args[1]] => m(f(a) / f(b))),
        (ScalarOp::Abs, DType::F32) => each!(out, [a: args[0]] => m(f(a).abs())),
        (ScalarOp::Sqrt, DType::F32) => each!(out, [a: args[0]] => m(f(a).sqrt())),
        (ScalarOp::Cmp(CmpOp::Lt), DType::F32) => each!(out, [a: args[0], b: args[1]] => u64::from(f(a) < f(b))),
        (ScalarOp::Cmp(CmpOp::Gt), DType::F32) => each!(out, [a: args[0], b: args[1]] => u64::from(f(a) > f(b))),
        (ScalarOp::Cmp(CmpOp::Le), DType::F32) => each!(out, [a: args[0], b: args[1]] => u64::from(f(a) <= f(b))),
        (ScalarOp::Cmp(CmpOp::Eq), DType::F32) => each!(out, [a: args[0], b: args[1]] => u64::from(f(a) == f(b))),
        (ScalarOp::Fma, DType::F64) => {
            each!(out, [a: args[0], b: args[1], c: args[2]] => d(a).mul_add(d(b), d(c)).to_bits());
        }
        (ScalarOp::Add, DType::F64) => each!(out, [a: args[0], b: args[1]] => (d(a) + d(b)).to_bits()),
        (ScalarOp::Sub, DType::F64) => each!(out, [a: args[0], b: args[1]] => (d(a) - d(b)).to_bits()),
        (ScalarOp::Mul, DType::F64) => each!(out, [a: args[0], b: args[1]] => (d(a) * d(b)).to_bits()),
        (ScalarOp::Round, DType::F64) => each!(out, [a: args[0]] => d(a).round_ties_even().to_bits()),
        (ScalarOp::Add, DType::I32) => each!(out, [a: args[0], b: args[1]] => w(s(a).wrapping_add(s(b)))),
        (ScalarOp::Sub, DType::I32) => each!(out, [a: args[0], b: args[1]] => w(s(a).wrapping_sub(s(b)))),
        (ScalarOp::And, DType::I32) => each!(out, [a: args[0], b: args[1]] => a & b),
        (ScalarOp::Or, DType::I32) => each!(out, [a: args[0], b: args[1]] => a | b),
        (ScalarOp::Shl, DType::I32) => each!(out, [a: args[0], b: args[1]] => w(s(a) << b)),
        (ScalarOp::Shr, DType::I32) => each!(out, [a: args[0], b: args[1]] => w(s(a) >> b)),
        (ScalarOp::Select, _) => each!(out, [c: args[0], a: args[1], b: args[2]] => if c != 0 { a } else { b }),
        (ScalarOp::Bitcast(_), _) => out.copy_from_slice(args[0]),
        (ScalarOp::Cast(DType::F32), DType::I32) => each!(out, [a: args[0]] => m(s(a) as f32)),
        (ScalarOp::Cast(DType::F64), DType::F32) => each!(out, [a: args[0]] => f64::from(f(a)).to_bits()),
        (ScalarOp::Cast(DType::F32), DType::F64) => each!(out, [a: args[0]] => m(d(a) as f32)),
        _ => {
            for i in 0..LANES {
                let scalars: Vec<Scalar> = args.iter().map(|a| Scalar { dtype: from, bits: a[i] }).collect();
                out[i] = op.eval(&scalars).bits;
            }
        }
    }
}

/// The greatest error found, and where.
#[derive(Clone, Copy)]
pub struct Worst {
    pub ulp: f64,
    pub input: [f32; 2],
    pub found: f32,
    pub expected: f64,
}

pub fn sweep(function: MathFn, body: &ScalarFn, begin: u64, end: u64, stride: u64) -> Worst {
    let mut evaluator = Evaluator::new(body);
    let mut worst = Worst { ulp: 0.0, input: [0.0; 2], found: 0.0, expected: 0.0 };
    let mut inputs = vec![vec![0u64; LANES]; function.arity()];
    let mut base = begin;
    while base < end {
        for i in 0..LANES {
            let x = (base + i as u64 * stride).min(u64::from(u32::MAX)) as u32;
            inputs[0][i] = u64::from(x);
            if let Some(second) = inputs.get_mut(1) {
                second[i] = u64::from(exponent_for(x));
            }
        }
        let found = evaluator.run(&inputs);
        for i in 0..LANES {
            let wide = |b: &Block| Scalar { dtype: DType::F64, bits: f64::from(f(b[i])).to_bits() };
            let args = [wide(&inputs[0]), wide(&inputs[inputs.len() - 1])];
            let expected = match function {
                // The reference is not NaN everywhere below the domain.
                MathFn::Acosh if f(inputs[0][i]) < 1.0 => f64::NAN,
                _ => d(ScalarOp::Math(function).eval(&args[..inputs.len()]).bits),
            };
            let ulp = error(f(found[i]), expected);
            if ulp > worst.ulp {
                let second = inputs.get(1).map_or(0.0, |b| f(b[i]));
                worst = Worst { ulp, input: [f(inputs[0][i]), second], found: f(found[i]), expected };
            }
        }
        base += LANES as u64 * stride;
    }
    worst
}

/// An exponent for a base: mostly such that the power is neither 0 nor infinite.
fn exponent_for(x: u32) -> u32 {
    let random = x.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519);
    let log = f32::from_bits(x & 0x7fff_ffff).log2().abs().max(1e-7);
    let wide = (random >> 8) as f32 / (1 << 23) as f32 - 1.0;
    match random & 3 {
        0 => random,
        1 => (wide * 8.0).round().to_bits(),
        _ => (wide * 150.0 / log).to_bits(),
    }
}
