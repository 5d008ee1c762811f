//! The distributions: their names, parameters and how a value is drawn.

use std::sync::LazyLock;

use super::rejection::{self, KernelSampler};
use super::words::WordSource;
use crate::prelude::*;

/// Which numbers a parameter may be.
#[derive(Clone, Copy)]
pub enum Domain {
    Finite,
    NonNegative,
    Positive,
    /// A probability of an event that does happen.
    Share,
}

impl Domain {
    pub fn contains(self, x: f64) -> bool {
        match self {
            _ if !x.is_finite() => false,
            Domain::Finite => true,
            Domain::NonNegative => x >= 0.0,
            Domain::Positive => x > 0.0,
            Domain::Share => x > 0.0 && x <= 1.0,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Domain::Finite => "a finite number",
            Domain::NonNegative => "a finite number of at least 0",
            Domain::Positive => "a finite number above 0",
            Domain::Share => "a number above 0 and at most 1",
        }
    }

    /// [`Domain::contains`] as an expression.
    fn holds(self, x: &Ex) -> Ex {
        let finite = x.abs().lt(&x.lit(f64::INFINITY));
        match self {
            Domain::Finite => finite,
            Domain::NonNegative => x.ge(&x.lit(0.0)) & finite,
            Domain::Positive => x.gt(&x.lit(0.0)) & finite,
            Domain::Share => x.gt(&x.lit(0.0)) & x.le(&x.lit(1.0)),
        }
    }
}

/// One parameter of a distribution.
pub struct Parameter {
    /// The parameter's name where it is one number, and the operand's where it is an array.
    pub name: &'static str,
    pub operand: &'static str,
    /// Another name of the number, and its documentation.
    pub alias: Option<(&'static str, &'static str)>,
    pub default: ParamValue,
    pub domain: Domain,
    pub doc: &'static str,
}

impl Parameter {
    const fn new(name: &'static str, default: f64, domain: Domain, doc: &'static str) -> Parameter {
        Parameter { name, operand: name, alias: None, default: ParamValue::Float(default), domain, doc }
    }

    /// The number given, or the default.
    ///
    /// # Errors
    /// If it is given under both names, or not in the domain once rounded to `dtype`.
    fn value(&self, params: &Params, dtype: DType) -> Result<f64, OpError> {
        let number = |name: &str| params.float(name).or_else(|| params.int(name).map(|i| i as f64));
        let (name, value) = match (number(self.name), self.alias.and_then(|(a, _)| Some((a, number(a)?)))) {
            (Some(_), Some((alias, _))) => {
                return Err(OpError(format!("parameters `{}` and `{alias}` are the same", self.name)));
            }
            (Some(x), None) => (self.name, x),
            (None, Some((alias, x))) => (alias, x),
            (None, None) => match &self.default {
                ParamValue::Int(i) => (self.name, *i as f64),
                ParamValue::Float(x) => (self.name, *x),
                _ => (self.name, 0.0),
            },
        };
        if !self.domain.contains(value) {
            return Err(OpError(format!("parameter `{name}` is {value}, expected {}", self.domain.text())));
        }
        match self.domain.contains(Scalar::from_f64(dtype, value).as_f64()) {
            true => Ok(value),
            false => Err(OpError(format!("parameter `{name}` is {value}, which {dtype} does not hold"))),
        }
    }
}

/// How one element is drawn, from the parameters in their order.
#[derive(Clone, Copy)]
pub enum Sampler {
    /// By an expression, in the type of its operands.
    Map(fn(&WordSource, &[Ex]) -> Ex),
    /// By loops, in f64.
    Kernel(KernelSampler),
}

pub struct Distribution {
    pub name: &'static str,
    pub parameters: Vec<Parameter>,
    /// The first parameter may not exceed the second, and values lie in between; the second is never
    /// reached unless they are equal.
    pub interval: bool,
    pub sampler: Sampler,
}

impl Distribution {
    /// The parameters as numbers, for results of the given type if it is known.
    ///
    /// # Errors
    /// Names the parameter that is out of range, or out of that of the type, and its value.
    pub fn numbers(&self, params: &Params, dtype: Option<DType>) -> Result<Vec<f64>, OpError> {
        let wide = match self.sampler {
            Sampler::Map(_) => dtype.map_or(DType::F64, compute_type),
            Sampler::Kernel(_) => DType::F64,
        };
        let values = self.parameters.iter().map(|p| p.value(params, wide)).collect::<Result<Vec<_>, _>>()?;
        match values[..] {
            [low, high] if self.interval && low > high => {
                Err(OpError(format!("parameter `low` is {low}, above parameter `high`, {high}")))
            }
            [low, high] if self.interval && !Scalar::from_f64(wide, high - low).as_f64().is_finite() => {
                Err(OpError(format!("parameter `high` is {high}, too far above parameter `low`, {low}, for {wide}")))
            }
            _ => Ok(values),
        }
    }

    /// Whether parameters known at run time are in range.
    pub fn valid(&self, args: &[Ex]) -> Option<Ex> {
        let each = self.parameters.iter().zip(args).map(|(p, a)| p.domain.holds(a));
        let order = args.get(1).filter(|_| self.interval).map(|high| {
            let width = high - &args[0];
            width.ge(&width.lit(0.0)) & width.lt(&width.lit(f64::INFINITY))
        });
        each.chain(order).reduce(|all, one| all & one)
    }
}

fn uniform(source: &WordSource, a: &[Ex]) -> Ex {
    let (low, high) = (&a[0], &a[1]);
    source.unit(0, low.dtype()).fma(&(high - low), low)
}

fn normal(source: &WordSource, a: &[Ex]) -> Ex {
    source.normal(a[0].dtype()).fma(&a[1], &a[0])
}

fn exponential(source: &WordSource, a: &[Ex]) -> Ex {
    -source.positive_unit(0, a[0].dtype()).log() / &a[0]
}

/// Every distribution with parameters that may be arrays.
pub fn all() -> &'static [Distribution] {
    static ALL: LazyLock<Vec<Distribution>> = LazyLock::new(distributions);
    &ALL
}

fn distributions() -> Vec<Distribution> {
    use Domain::{Finite, NonNegative, Positive, Share};
    let p = Parameter::new;
    let of = |name, parameters, sampler| Distribution { name, parameters, interval: false, sampler };
    vec![
        Distribution {
            interval: true,
            ..of(
                "uniform",
                vec![p("low", 0.0, Finite, "lower bound"), p("high", 1.0, Finite, "upper bound")],
                Sampler::Map(uniform),
            )
        },
        of(
            "normal",
            vec![
                Parameter {
                    operand: "mu",
                    alias: Some(("loc", "another name of `mean`")),
                    ..p("mean", 0.0, Finite, "mean; 0 if absent")
                },
                Parameter { operand: "sigma", ..p("scale", 1.0, NonNegative, "standard deviation") },
            ],
            Sampler::Map(normal),
        ),
        of(
            "gamma",
            vec![
                p("alpha", 1.0, NonNegative, "shape; 0: the value is 0"),
                p("beta", 1.0, Positive, "scale: the mean is alpha·beta"),
            ],
            Sampler::Kernel(rejection::gamma),
        ),
        of("exponential", vec![p("lam", 1.0, Positive, "rate: the mean is 1 / lam")], Sampler::Map(exponential)),
        of("poisson", vec![p("lam", 1.0, NonNegative, "rate: the mean")], Sampler::Kernel(rejection::poisson)),
        of(
            "negative_binomial",
            vec![
                Parameter { default: ParamValue::Int(1), ..p("k", 1.0, NonNegative, "successes to reach") },
                p("p", 1.0, Share, "probability of a success: the mean is k·(1 - p) / p"),
            ],
            Sampler::Kernel(rejection::negative_binomial),
        ),
        of(
            "generalized_negative_binomial",
            vec![
                p("mu", 1.0, NonNegative, "mean"),
                p("alpha", 1.0, NonNegative, "dispersion; 0: a Poisson distribution"),
            ],
            Sampler::Kernel(rejection::generalized_negative_binomial),
        ),
    ]
}

/// A value of the uniform distribution as it is stored: below `high` even where rounding to the type
/// would reach it, and `low` if the bounds are equal.
pub fn bounded(value: &Ex, low: &Ex, high: &Ex, stored: DType) -> Ex {
    let bits = match stored.size() {
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    };
    let wide = value.dtype();
    let nearest = high.cast(stored);
    let pattern = nearest.bitcast(bits);
    let number = nearest.cast(wide);
    // The representation of the next number down: magnitudes count up from zero.
    let zero = number.lit(0.0);
    let smallest_negative = sign_bit(&pattern) | pattern.lit(1.0);
    let step = number.gt(&zero).select(&pattern.lit(-1.0), &pattern.lit(1.0));
    let previous = number.eq(&zero).select(&smallest_negative, &(&pattern + &step)).bitcast(stored).cast(wide);
    let limit = number.lt(high).select(&number, &previous);
    value.min(&limit).max(&low.cast(stored).cast(wide))
}

fn sign_bit(pattern: &Ex) -> Ex {
    let width = pattern.dtype().size() * 8;
    pattern.lit(1.0).shl(&pattern.lit(width as f64 - 1.0))
}
