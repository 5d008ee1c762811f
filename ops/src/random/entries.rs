//! The entries of the distributions. Each distribution comes in three forms: parameters as numbers,
//! with the shape a parameter or that of an operand, and parameters as arrays.

use std::sync::Arc;

use tensorc_ir::kir::{Buf, KernelBuilder, LoopKind, Operand};

use super::distribution::{self, Distribution, Sampler, bounded};
use super::rejection::WordStream;
use super::{RandomKey, draw, random, shape_param};
use crate::nest::Scalars;
use crate::prelude::*;

/// What one distribution's entries are called and what they say.
struct DistributionNames {
    distribution: &'static str,
    scalar: EntryName,
    like: EntryName,
    array: EntryName,
}

struct EntryName {
    own: &'static str,
    doc: &'static str,
    mxnet: &'static [&'static str],
    onnx: Option<&'static str>,
}

impl EntryName {
    fn define(&self, compute: Compute, infer: Infer) -> OpDef {
        let def = self.mxnet.iter().fold(define(self.own, self.doc, compute, infer), |def, n| def.mxnet(n));
        self.onnx.into_iter().fold(def, |def, n| def.onnx(n, 1))
    }
}

macro_rules! names {
    ($($name:literal, $doc:literal, [$($alias:literal)?], $onnx:expr, $onnx_like:expr;)*) => {
        [$(DistributionNames {
            distribution: $name,
            scalar: EntryName {
                own: concat!("random_", $name),
                doc: $doc,
                mxnet: &[concat!("_random_", $name), concat!("random_", $name) $(, $alias)?],
                onnx: $onnx,
            },
            like: EntryName {
                own: concat!("random_", $name, "_like"),
                doc: concat!($doc, " Shaped like the operand."),
                mxnet: &[concat!("_random_", $name, "_like")],
                onnx: $onnx_like,
            },
            array: EntryName {
                own: concat!("sample_", $name),
                doc: concat!($doc, " Draws for each element of the operands; NaN where they are out of range."),
                mxnet: &[concat!("_sample_", $name), concat!("sample_", $name)],
                onnx: None,
            },
        }),*]
    };
}

const NAMES: [DistributionNames; 7] = names! {
    "uniform", "Uniform in [low, high).", ["uniform"], Some("RandomUniform"), Some("RandomUniformLike");
    "normal", "Normal with a mean and a deviation.", ["normal"], Some("RandomNormal"), Some("RandomNormalLike");
    "gamma", "Gamma with shape alpha and scale beta.", [], None, None;
    "exponential", "Exponential with a rate.", [], None, None;
    "poisson", "Poisson with a rate.", [], None, None;
    "negative_binomial", "Failures before the k-th success, of probability p each.", [], None, None;
    "generalized_negative_binomial", "Negative binomial with mean mu and dispersion alpha: the variance is mu + alpha·mu².", [], None, None;
};

pub fn ops() -> Vec<OpDef> {
    let mut found = vec![];
    for d in distribution::all() {
        let d = Arc::new(d);
        for names in NAMES.iter().filter(|n| n.distribution == d.name) {
            found.extend([scalar(&d, names), like(&d, names), array(&d, names)]);
        }
    }
    found
}

fn float_type(what: &str, dtype: DType) -> Result<DType, OpError> {
    match FLOATS.contains(&dtype) {
        true => Ok(dtype),
        false => Err(OpError(format!("{what} is {dtype}, expected a floating-point type"))),
    }
}

fn with_parameters(def: OpDef, d: &Distribution) -> OpDef {
    d.parameters.iter().fold(def, |def, p| match p.alias {
        None => def.param(p.name, p.default.clone(), p.doc),
        Some((alias, doc)) => def.maybe(p.name, p.default.kind(), p.doc).maybe(alias, p.default.kind(), doc),
    })
}

fn scalar(d: &Arc<Distribution>, names: &DistributionNames) -> OpDef {
    let body = {
        let d = d.clone();
        composite(move |b, cx, args| constant(b, cx, &d, &RandomKey::of(cx, args, 0)))
    };
    let checked = d.clone();
    let infer = rule(move |cx| {
        let dtype = float_type("parameter `dtype`", cx.params.dtype("dtype").unwrap_or(DType::F32))?;
        checked.numbers(cx.params, Some(dtype))?;
        cx.set_output_dtype(0, dtype)?;
        let dims = shape_param(cx)?;
        cx.set_output_dims(0, dims)
    });
    let def = with_parameters(names.scalar.define(body, infer), d)
        .required("shape", ParamKind::Ints, "the result's shape")
        .param("dtype", ParamValue::DType(DType::F32), "the result's type")
        .maybe("ctx", ParamKind::Str, "No effect: whoever runs a graph says where.");
    random(def)
}

fn like(d: &Arc<Distribution>, names: &DistributionNames) -> OpDef {
    let body = {
        let d = d.clone();
        composite(move |b, cx, args| constant(b, cx, &d, &RandomKey::of(cx, args, 1)))
    };
    let checked = d.clone();
    let infer = rule(move |cx| {
        checked.numbers(cx.params, cx.params.dtype("dtype").or(cx.input(0).dtype))?;
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        match (cx.params.dtype("dtype"), cx.input(0).dtype) {
            (Some(dtype), _) => cx.set_output_dtype(0, float_type("parameter `dtype`", dtype)?),
            (None, Some(dtype)) => {
                float_type("without parameter `dtype`, operand `like`", dtype)?;
                cx.same_dtype(0, 0)
            }
            (None, None) => Ok(()),
        }
    });
    let def = with_parameters(names.like.define(body, infer), d).operand("like", NUMBERS).maybe(
        "dtype",
        ParamKind::DType,
        "the result's type, if not the operand's",
    );
    random(def)
}

fn array(d: &Arc<Distribution>, names: &DistributionNames) -> OpDef {
    let count = d.parameters.len();
    let body = {
        let d = d.clone();
        composite(move |b, cx, args| {
            let key = RandomKey::of(cx, args, count);
            let parameters = (0..count).map(|i| operand(b, args, i)).collect::<Result<Vec<_>, _>>()?;
            arrays(b, cx, &d, &parameters, &key)
        })
    };
    let infer = rule(move |cx| {
        for i in 1..count {
            let (first, other) = (cx.input(0).shape, cx.input(i).shape);
            cx.set_input_shape(i, first)?;
            cx.set_input_shape(0, other)?;
        }
        match cx.params.dtype("dtype") {
            Some(dtype) => cx.set_output_dtype(0, float_type("parameter `dtype`", dtype)?)?,
            None => cx.same_dtype(0, 0)?,
        }
        let draws = shape_param(cx)?;
        match cx.input_dims(0) {
            Some(dims) => cx.set_output_dims(0, dims.into_iter().chain(draws)),
            None => Ok(()),
        }
    });
    let def = d.parameters.iter().fold(names.array.define(body, infer), |def, p| def.group(p.operand, FLOATS));
    let def = def
        .param("shape", ParamValue::Ints(vec![]), "the shape of the draws from each element of the parameters")
        .maybe("dtype", ParamKind::DType, "the result's type, if not the operands'");
    random(def)
}

/// A draw with parameters that are numbers.
fn constant(b: &mut Builder<'_>, cx: &NodeCtx<'_>, d: &Distribution, key: &RandomKey) -> Result<Value, Diagnostic> {
    let numbers = d.numbers(cx.params, Some(cx.outputs[0].dtype)).or_fail(b)?;
    let out = &cx.outputs[0];
    match d.sampler {
        Sampler::Map(sample) => draw(b, key, &[], out, |source, _| {
            let wide = compute_type(out.dtype);
            let a: Vec<Ex> = numbers.iter().map(|&x| source.position.builder().number(wide, x)).collect();
            finished(d, sample(source, &a), &a, out.dtype)
        }),
        Sampler::Kernel(sample) => {
            let values: Vec<KernelParameter> = numbers.into_iter().map(KernelParameter::Number).collect();
            kernel(b, d, sample, &values, (key, out))
        }
    }
}

/// A draw with parameters that are arrays: NaN where they are out of range.
fn arrays(
    b: &mut Builder<'_>,
    cx: &NodeCtx<'_>,
    d: &Distribution,
    parameters: &[Value],
    key: &RandomKey,
) -> Result<Value, Diagnostic> {
    let out = &cx.outputs[0];
    let sample = match d.sampler {
        Sampler::Map(sample) => sample,
        Sampler::Kernel(sample) => {
            let values: Vec<KernelParameter> = parameters.iter().copied().map(KernelParameter::Array).collect();
            return kernel(b, d, sample, &values, (key, out));
        }
    };
    let mut operands = vec![];
    for &p in parameters {
        let mut dims = b.dims(p)?;
        dims.resize(out.rank(), 1);
        operands.push(b.reshaped(p, &dims)?);
    }
    draw(b, key, &operands, out, |source, a| {
        let wide = compute_type(out.dtype);
        let a: Vec<Ex> = a.iter().map(|x| x.cast(wide)).collect();
        let value = finished(d, sample(source, &a), &a, out.dtype);
        match d.valid(&a) {
            Some(valid) => valid.select(&value, &value.lit(f64::NAN)),
            None => value,
        }
    })
}

fn finished(d: &Distribution, value: Ex, a: &[Ex], stored: DType) -> Ex {
    match a {
        [low, high] if d.interval => bounded(&value, low, high, stored),
        _ => value,
    }
}

/// One parameter of a kernel.
enum KernelParameter {
    Number(f64),
    Array(Value),
}

/// Where a kernel finds a parameter.
enum ParameterPlace {
    Constant(Operand),
    /// A buffer, and how many elements of the result share one of its elements.
    Buffer(Buf, i64),
}

/// A draw by a kernel of its own, one parallel iteration for each element.
fn kernel(
    b: &mut Builder<'_>,
    d: &Distribution,
    sample: fn(&mut KernelBuilder, &WordStream, &[Operand]) -> Result<Operand, OpError>,
    arguments: &[KernelParameter],
    (key, out): (&RandomKey, &DenseType),
) -> Result<Value, Diagnostic> {
    let mut k = KernelBuilder::new(d.name);
    let (mut inputs, mut places) = (vec![], vec![]);
    let n = out.len();
    for argument in arguments {
        places.push(match argument {
            KernelParameter::Number(x) => ParameterPlace::Constant(Operand::Const(Scalar::from_f64(DType::F64, *x))),
            KernelParameter::Array(value) => {
                inputs.push(*value);
                let ty = b.ty(*value)?;
                let buf = k.param("parameter", ty.dtype, ty.len(), false);
                ParameterPlace::Buffer(buf, (n / ty.len().max(1)).max(1) as i64)
            }
        });
    }
    let key = super::kernel_key(&mut k, key, &mut inputs);
    let result = k.param("out", out.dtype, n, true);
    let body = k.for_range("p", n, LoopKind::Parallel, |k, p| {
        let mut values = vec![];
        for place in &places {
            values.push(match place {
                ParameterPlace::Constant(number) => *number,
                ParameterPlace::Buffer(buf, each) => {
                    let at = p.floor_div(*each, &|_: u32| (0, (n as i64 - 1).max(0)));
                    let value = k.load(*buf, at);
                    k.cast(value, DType::F64)
                }
            });
        }
        let stream = WordStream { key: key.load(k), position: k.index_value(p.clone()), short: n <= 1 << 32 };
        let mut value = sample(k, &stream, &values)?;
        if places.iter().any(|p| matches!(p, ParameterPlace::Buffer(..))) {
            let types = vec![DType::F64; values.len()];
            let valid =
                ScalarFn::build(&types, |s, a| vec![d.valid(a).unwrap_or_else(|| s.constant(Scalar::bool(true)))])?;
            let valid = k.apply(&valid, &values, &[])[0];
            value = k.select(valid, value, Operand::Const(Scalar::from_f64(DType::F64, f64::NAN)));
        }
        let value = k.cast(value, out.dtype);
        k.store(result, p, value);
        Ok::<(), OpError>(())
    });
    body.or_fail(b)?;
    Ok(b.kernel(k.finish(), &inputs, std::slice::from_ref(out))[0])
}
