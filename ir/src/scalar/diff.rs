//! Symbolic reverse-mode differentiation of scalar functions.

use tensorc_abi::DType;

use super::build::{Ex, ScalarBuilder};
use super::expr::{ScalarFn, ScalarNode};
use super::op::{CmpOp, MathFn, ScalarOp};

impl ScalarFn {
    /// What operand `of` receives when the outputs marked in `heads` are given gradients: a function of the
    /// operands, then the values of the outputs, then the gradients of the outputs, each of its output's type.
    /// Its result has the operand's type; with `wide`, what is computed for a 16-bit operand stays f32. `None`:
    /// nothing flows back.
    ///
    /// With `reuse` it takes values of outputs as given where a derivative needs them, else it computes them
    /// again. Ties of minimum and maximum go to the first operand; |x| has slope 0 at 0; rounding, comparisons
    /// and integers pass no gradient. Fails on operations on bits.
    pub fn vjp(&self, of: usize, heads: &[bool], reuse: bool, wide: bool) -> Result<Option<ScalarFn>, String> {
        let b = ScalarBuilder::new();
        let inputs: Vec<Ex> = self.inputs.iter().map(|d| b.input(*d)).collect();
        let results: Vec<Ex> = self.outputs.iter().map(|o| b.input(self.dtype(*o))).collect();
        let gradients: Vec<Ex> = self.outputs.iter().map(|o| b.input(self.dtype(*o))).collect();
        let values = self.values_from(&b, &inputs, if reuse { &results } else { &[] });
        let mut adjoints: Vec<Option<Ex>> = vec![None; self.nodes.len()];
        for (j, out) in self.outputs.iter().enumerate().filter(|(j, o)| heads[*j] && self.dtype(**o).is_float()) {
            receive(&mut adjoints[out.0 as usize], gradients[j].cast(computed_in(self.dtype(*out))));
        }
        let leads = self.depends_on(of);
        for (i, node) in self.nodes.iter().enumerate().rev().filter(|(i, _)| leads[*i]) {
            let (ScalarNode::Op(op, args), Some(g)) = (node, adjoints[i].clone()) else { continue };
            let operands: Vec<Ex> = args.iter().map(|a| values[a.0 as usize].clone()).collect();
            for (arg, part) in args.iter().zip(partials(*op, &operands, &values[i], &g)?) {
                let Some(part) = part.filter(|_| leads[arg.0 as usize] && self.dtype(*arg).is_float()) else {
                    continue;
                };
                receive(&mut adjoints[arg.0 as usize], part);
            }
        }
        let node = self.nodes.iter().position(|n| *n == ScalarNode::Input(of as u32));
        let Some(adjoint) = node.and_then(|n| adjoints[n].take()) else { return Ok(None) };
        let (own, arithmetic) = (self.inputs[of], computed_in(self.inputs[of]));
        let to = if wide { arithmetic } else { own };
        // A gradient passed on unchanged is not widened and rounded again.
        let passed = gradients.iter().find(|g| g.dtype() == own && g.cast(arithmetic).same(&adjoint));
        let result = passed.cloned().unwrap_or_else(|| adjoint.cast(to));
        if result.constant_value().is_some_and(|c| c.as_f64() == 0.0) {
            return Ok(None);
        }
        b.finish(&[&result]).map(Some)
    }

    /// The value of every node, outputs and what they are roundings of taken from `results` if given.
    fn values_from(&self, b: &ScalarBuilder, inputs: &[Ex], results: &[Ex]) -> Vec<Ex> {
        let mut values: Vec<Ex> = Vec::with_capacity(self.nodes.len());
        let mut given: Vec<Option<Ex>> = vec![None; self.nodes.len()];
        for (out, value) in self.outputs.iter().zip(results) {
            given[out.0 as usize] = Some(value.clone());
            if let ScalarNode::Op(ScalarOp::Cast(to), args) = &self.nodes[out.0 as usize]
                && *to != computed_in(*to)
                && self.dtype(args[0]) == computed_in(*to)
            {
                given[args[0].0 as usize] = Some(value.cast(computed_in(*to)));
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            let value = match (node, &given[i]) {
                (ScalarNode::Input(i), _) => inputs[*i as usize].clone(),
                (ScalarNode::Const(c), _) => b.constant(*c),
                (ScalarNode::Coord(axis), _) => b.coord(*axis as usize),
                (ScalarNode::Op(..), Some(given)) => given.clone(),
                (ScalarNode::Op(op, args), None) => {
                    let args: Vec<&Ex> = args.iter().map(|a| &values[a.0 as usize]).collect();
                    b.op(*op, &args)
                }
            };
            values.push(value);
        }
        values
    }

    /// Which nodes are computed from an operand.
    fn depends_on(&self, operand: usize) -> Vec<bool> {
        let mut depends = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            depends[i] = match node {
                ScalarNode::Input(i) => *i as usize == operand,
                ScalarNode::Op(_, args) => args.iter().any(|a| depends[a.0 as usize]),
                _ => false,
            };
        }
        depends
    }
}

/// The type arithmetic on stored elements of `dtype` is done in; adjoints have it.
fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

fn receive(slot: &mut Option<Ex>, part: Ex) {
    *slot = Some(match slot.take() {
        Some(sum) => sum + part,
        None => part,
    });
}

/// What each operand receives of the gradient `g` of `y = op(a)`; `None` for nothing.
fn partials(op: ScalarOp, a: &[Ex], y: &Ex, g: &Ex) -> Result<Vec<Option<Ex>>, String> {
    let zero = || g.lit(0.0);
    let one = |ex: Ex| Ok(vec![Some(ex)]);
    let two = |x: Ex, y: Ex| Ok(vec![Some(x), Some(y)]);
    match op {
        ScalarOp::Neg => one(-g),
        ScalarOp::Abs => {
            let (x, z) = (&a[0], a[0].lit(0.0));
            one(x.lt(&z).select(&-g, &x.gt(&z).select(g, &zero())))
        }
        ScalarOp::Sqrt => one(g / (y * 2.0)),
        ScalarOp::Add => two(g.clone(), g.clone()),
        ScalarOp::Sub => two(g.clone(), -g),
        ScalarOp::Mul => two(g * &a[1], g * &a[0]),
        ScalarOp::Div => two(g / &a[1], -(g * y) / &a[1]),
        ScalarOp::Rem => two(g.clone(), -(g * (&a[0] / &a[1]).trunc())),
        ScalarOp::Scale => Ok(vec![Some(g.scale(&a[1])), None]),
        ScalarOp::Min => {
            let first = a[0].cmp(CmpOp::Le, &a[1]);
            two(first.select(g, &zero()), first.select(&zero(), g))
        }
        ScalarOp::Max => {
            let first = a[0].cmp(CmpOp::Ge, &a[1]);
            two(first.select(g, &zero()), first.select(&zero(), g))
        }
        ScalarOp::Fma => Ok(vec![Some(g * &a[1]), Some(g * &a[0]), Some(g.clone())]),
        ScalarOp::Select => Ok(vec![None, Some(a[0].select(g, &zero())), Some(a[0].select(&zero(), g))]),
        ScalarOp::Cast(_) if a[0].dtype().is_float() && y.dtype().is_float() => one(g.cast(computed_in(a[0].dtype()))),
        ScalarOp::Math(MathFn::Pow) => {
            let by_base = g * (&a[1] * a[0].pow(&(&a[1] - 1.0)));
            two(by_base, g * (y * a[0].log()))
        }
        ScalarOp::Math(f) => one(slope(f, &a[0], y, g)),
        ScalarOp::Floor
        | ScalarOp::Ceil
        | ScalarOp::Trunc
        | ScalarOp::Round
        | ScalarOp::Cmp(_)
        | ScalarOp::Cast(_)
        | ScalarOp::Not
        | ScalarOp::And
        | ScalarOp::Or
        | ScalarOp::Xor => Ok(vec![None; a.len()]),
        ScalarOp::Shl | ScalarOp::Shr | ScalarOp::Bitcast(_) => Err(format!("{} has no derivative", op.name())),
    }
}

/// `g · f'(x)`, in terms of `y = f(x)` where that is shorter and as accurate.
fn slope(f: MathFn, x: &Ex, y: &Ex, g: &Ex) -> Ex {
    let square = |e: &Ex| e * e;
    let one_minus_square = |e: &Ex| -(square(e) - 1.0);
    match f {
        MathFn::Exp => g * y,
        MathFn::Exp2 => g * (y * std::f64::consts::LN_2),
        MathFn::Expm1 => g * x.exp(),
        MathFn::Log => g / x,
        MathFn::Log2 => g / (x * std::f64::consts::LN_2),
        MathFn::Log1p => g / (x + 1.0),
        MathFn::Sin => g * x.cos(),
        MathFn::Cos => -(g * x.sin()),
        MathFn::Tan => g * (square(y) + 1.0),
        MathFn::Asin => g / one_minus_square(x).sqrt(),
        MathFn::Acos => -(g / one_minus_square(x).sqrt()),
        MathFn::Atan => g / (square(x) + 1.0),
        MathFn::Sinh => g * x.math(MathFn::Cosh),
        MathFn::Cosh => g * x.math(MathFn::Sinh),
        // 1 - y² cancels as |y| nears 1; 1/cosh² does not.
        MathFn::Tanh => g / square(&x.math(MathFn::Cosh)),
        MathFn::Asinh => g / (square(x) + 1.0).sqrt(),
        MathFn::Acosh => g / (square(x) - 1.0).sqrt(),
        MathFn::Atanh => g / one_minus_square(x),
        MathFn::Erf => g * ((-square(x)).exp() * std::f64::consts::FRAC_2_SQRT_PI),
        // The density of the normal distribution, e^(-x²/2)/√(2π).
        MathFn::Ndtr => g * ((square(x) * -0.5).exp() * (1.0 / std::f64::consts::TAU.sqrt())),
        MathFn::Pow => g * y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::{Dual, Scalar};

    /// Compares the symbolic gradient, evaluated in f64, with dual numbers over a grid.
    fn check(name: &str, arity: usize, range: (f64, f64), body: impl Fn(&[Ex]) -> Ex) {
        let f = ScalarFn::build(&vec![DType::F64; arity], |_, a| vec![body(a)]).unwrap();
        let gradients: Vec<_> = [false, true]
            .into_iter()
            .flat_map(|reuse| (0..arity).map(move |k| (reuse, k)))
            .map(|(reuse, k)| (k, f.vjp(k, &[true], reuse, false).unwrap()))
            .collect();
        let at = |i: i32| range.0 + (range.1 - range.0) * f64::from(i) / 40.0;
        for (i, j) in (0..=40).flat_map(|i| (0..=if arity > 1 { 40 } else { 0 }).map(move |j| (i, j))) {
            let point = [at(i) + 0.003, at(j) - 0.007];
            let mut args: Vec<Scalar> = point[..arity].iter().map(|x| Scalar::from_f64(DType::F64, *x)).collect();
            args.extend(f.eval(&args, &[]));
            args.push(Scalar::from_f64(DType::F64, 1.5));
            for (k, gradient) in &gradients {
                let k = *k;
                let dual = |l: usize| if l == k { Dual::variable(point[l]) } else { Dual::constant(point[l]) };
                let expected = 1.5 * f.eval_dual(&(0..arity).map(dual).collect::<Vec<_>>(), &[])[0].tangent;
                let found = gradient.as_ref().map_or(0.0, |g| g.eval(&args, &[])[0].as_f64());
                let close = (found - expected).abs() <= 1e-11 * (1.0 + expected.abs());
                assert!(
                    close || found.is_nan() && expected.is_nan(),
                    "{name} at {point:?}: {found}, expected {expected}"
                );
            }
        }
    }

    #[test]
    fn every_function_of_one_argument() {
        for f in MathFn::ALL.into_iter().filter(|f| *f != MathFn::Pow) {
            let range = match f {
                MathFn::Log | MathFn::Log2 | MathFn::Log1p => (0.1, 9.0),
                MathFn::Acosh => (1.1, 9.0),
                MathFn::Asin | MathFn::Acos | MathFn::Atanh => (-0.9, 0.9),
                _ => (-3.0, 3.0),
            };
            check(f.name(), 1, range, |a| a[0].math(f));
        }
    }

    #[test]
    fn arithmetic_and_compositions() {
        check("pow", 2, (0.2, 3.0), |a| a[0].pow(&a[1]));
        check("rational", 2, (0.5, 3.0), |a| (&a[0] * &a[1] - &a[0]) / (&a[1] + 2.0));
        check("fma", 2, (-2.0, 2.0), |a| a[0].fma(&a[1], &(&a[0] * 3.0)));
        check("extremes", 2, (-2.0, 2.0), |a| a[0].max(&a[1]) * a[0].min(&a[1]) + a[0].abs().sqrt());
        check("softplus", 1, (-20.0, 20.0), |a| a[0].max(&a[0].lit(0.0)) + (-a[0].abs()).exp().log1p());
        check("select", 2, (-2.0, 2.0), |a| a[0].gt(&a[1]).select(&(&a[0] * &a[0]), &(&a[1] + a[0].floor())));
        check("remainder", 2, (0.7, 3.0), |a| &a[0] % &a[1]);
    }

    #[test]
    fn bits_have_no_gradient() {
        let f = ScalarFn::build(&[DType::F32], |_, a| vec![a[0].bitcast(DType::I32).bitcast(DType::F32)]).unwrap();
        assert!(f.vjp(0, &[true], false, false).unwrap_err().contains("bitcast"));
    }
}
