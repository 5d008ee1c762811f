//! The entries of the distributions. Each distribution comes in three forms: parameters as numbers,
//! with the shape a parameter or that of an operand, and parameters as arrays.

use super::distribution::{self, Distribution, Sampler, bounded};
use super::rejection::{KernelSampler, WordStream};
use super::{Random, RandomKey, draw, shape_param};
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
        for names in NAMES.iter().filter(|n| n.distribution == d.name) {
            found.extend([scalar(d, names), like(d, names), array(d, names)]);
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

fn scalar(d: &'static Distribution, names: &DistributionNames) -> OpDef {
    let body = formula(move |g, cx| constant(g, cx, d, RandomKey::of(g, cx, 0)));
    let infer = rule(move |cx| {
        let dtype = float_type("parameter `dtype`", cx.params.dtype("dtype").unwrap_or(DType::F32))?;
        d.numbers(cx.params, Some(dtype))?;
        cx.set_output_dtype(0, dtype)?;
        let dims = shape_param(cx)?;
        cx.set_output_dims(0, dims)
    });
    with_parameters(names.scalar.define(body, infer), d)
        .required("shape", ParamKind::Ints, "the result's shape")
        .param("dtype", DType::F32, "the result's type")
        .maybe("ctx", ParamKind::Str, "No effect: whoever runs a graph says where.")
        .random()
}

fn like(d: &'static Distribution, names: &DistributionNames) -> OpDef {
    let body = formula(move |g, cx| constant(g, cx, d, RandomKey::of(g, cx, 1)));
    let infer = rule(move |cx| {
        d.numbers(cx.params, cx.params.dtype("dtype").or(cx.input_dtype(0)))?;
        cx.copy_shape(0, 0)?;
        match (cx.params.dtype("dtype"), cx.input_dtype(0)) {
            (Some(dtype), _) => cx.set_output_dtype(0, float_type("parameter `dtype`", dtype)?),
            (None, Some(dtype)) => {
                float_type("without parameter `dtype`, operand `like`", dtype)?;
                cx.same_dtype(0, 0)
            }
            (None, None) => Ok(()),
        }
    });
    with_parameters(names.like.define(body, infer), d)
        .operand("like", NUMBERS)
        .maybe("dtype", ParamKind::DType, "the result's type, if not the operand's")
        .random()
}

fn array(d: &'static Distribution, names: &DistributionNames) -> OpDef {
    let count = d.parameters.len();
    let body = formula(move |g, cx| arrays(g, cx, d));
    let infer = rule(move |cx| {
        agree_shapes(cx, &(0..count).collect::<Vec<_>>(), &[])?;
        match cx.params.dtype("dtype") {
            Some(dtype) => cx.set_output_dtype(0, float_type("parameter `dtype`", dtype)?)?,
            None => cx.same_dtype(0, 0)?,
        }
        let draws = shape_param(cx)?;
        match cx.open_dims(0) {
            Some(dims) => cx.set_output_dims(0, dims.into_iter().chain(draws)),
            None => Ok(()),
        }
    });
    let def = d.parameters.iter().fold(names.array.define(body, infer), |def, p| def.group(p.operand, FLOATS));
    def.param("shape", ParamValue::Ints(vec![]), "the shape of the draws from each element of the parameters")
        .maybe("dtype", ParamKind::DType, "the result's type, if not the operands'")
        .random()
}

/// A draw with parameters that are numbers.
fn constant<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, d: &Distribution, key: RandomKey<'g>) -> Result<Tensor<'g>> {
    let out = &cx.outputs[0];
    let numbers = d.numbers(cx.params, Some(out.dtype)).or_fail(&g)?;
    match d.sampler {
        Sampler::Map(sample) => Ok(draw(g, key, &[], out, |source, _| {
            let wide = compute_type(out.dtype);
            let a: Vec<Ex> = numbers.iter().map(|&x| source.position.builder().number(wide, x)).collect();
            finished(d, sample(source, &a), &a, out.dtype)
        })),
        Sampler::Kernel(sample) => kernel(g, (d, sample), (&numbers, &[]), (key, out)),
    }
}

/// A draw with parameters that are arrays: NaN where they are out of range.
fn arrays<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, d: &Distribution) -> Result<Tensor<'g>> {
    let (out, count) = (&cx.outputs[0], d.parameters.len());
    let key = RandomKey::of(g, cx, count);
    let mut parameters: Vec<_> = (0..count).map(|i| g.operand(i)).collect();
    let sample = match d.sampler {
        Sampler::Map(sample) => sample,
        Sampler::Kernel(sample) => return kernel(g, (d, sample), (&[], &parameters), (key, out)),
    };
    for p in &mut parameters {
        let dims = p.dims()?;
        let ones = vec![Extent::ONE; out.rank() - dims.len()];
        *p = p.reshape(dims.all().chain(ones).collect::<Extents>());
    }
    Ok(draw(g, key, &parameters, out, |source, a| {
        let wide = compute_type(out.dtype);
        let a: Vec<Ex> = a.iter().map(|x| x.cast(wide)).collect();
        let value = finished(d, sample(source, &a), &a, out.dtype);
        match d.valid(&a) {
            Some(valid) => valid.select(&value, &value.lit(f64::NAN)),
            None => value,
        }
    }))
}

fn finished(d: &Distribution, value: Ex, a: &[Ex], stored: DType) -> Ex {
    match a {
        [low, high] if d.interval => bounded(&value, low, high, stored),
        _ => value,
    }
}

/// A draw by a kernel of its own, one parallel iteration for each element. Parameters are numbers or arrays: NaN where
/// arrays are out of range.
fn kernel<'g>(
    g: GraphScope<'g>,
    (d, sample): (&Distribution, KernelSampler),
    (numbers, arrays): (&[f64], &[Tensor<'g>]),
    (key, out): (RandomKey<'g>, &DenseType),
) -> Result<Tensor<'g>> {
    let types = arrays.iter().map(|array| array.ty()).collect::<Result<Vec<_>>>()?;
    let (k, n) = (&KernelScope::new(d.name), out.dims.count());
    let mut inputs = arrays.to_vec();
    let arrays: Vec<_> = types.iter().map(|ty| k.input("parameter", ty)).collect();
    let key = super::kernel_key(k, key, &mut inputs);
    let result = k.output("out", out);
    k.parallel_each("p", n, |p| {
        // So many elements of the result share one of an array.
        let share = |ty: &DenseType| out.dims.range(ty.rank()..).count().as_divisor();
        let mut values: Vec<_> = numbers.iter().map(|&x| k.number(DType::F64, x)).collect();
        for (array, ty) in arrays.iter().zip(&types) {
            let at = p.floor_div(share(ty), &|_: u32| (Extent::ZERO, n.last_position()));
            values.push(array.get_as(&at, DType::F64));
        }
        let stream = WordStream { k, key: key.load(), position: k.position(p), short: super::is_short(n) };
        let mut value = sample(&stream, &values);
        if !arrays.is_empty() {
            let [valid] =
                k.eval(&values, |a| [d.valid(a).unwrap_or_else(|| a[0].builder().constant(Scalar::bool(true)))]);
            value = valid.select(value, f64::NAN);
        }
        result.set_cast(p, value);
    });
    Ok(g.kernel(k.finish(), &inputs, std::slice::from_ref(out))?[0])
}
