//! Random values. Every element is a function of the seed and its position alone (Threefry-2x32,
//! 20 rounds), so results do not depend on order, threads or device.

use tensorc_ir::DType;
use tensorc_ir::Dim;
use tensorc_ir::op::{Compute, Infer, OpDef, OpError, ScalarCtx, TypeRule};
use tensorc_ir::params::{ParamKind, ParamValue, Params};
use tensorc_ir::scalar::{Ex, ScalarBuilder};

use crate::compose::{number, with_number};
use crate::def::{BOOLS, Define, FLOATS, NUMBERS, define, operand, rule, scalar, widen};
use crate::rules::broadcasts_to;

pub fn ops() -> Vec<OpDef> {
    [generators(), like(), vec![bernoulli(), dropout_mask(), dropout()]].into_iter().flatten().collect()
}

/// Two words for a counter and a key. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// 2011, with its rotation constants.
fn threefry(counter: [Ex; 2], key: [u32; 2]) -> [Ex; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let [mut a, mut b] = counter;
    let word = |x: &Ex, w: u32| x.lit(f64::from(w));
    a = &a + word(&a, keys[0]);
    b = &b + word(&b, keys[1]);
    for block in 0..5usize {
        for r in ROTATIONS[block % 2] {
            a = &a + &b;
            let rotated = b.shl(&word(&b, r)) | b.shr(&word(&b, 32 - r));
            b = rotated ^ &a;
        }
        a = &a + word(&a, keys[(block + 1) % 3]);
        b = &b + word(&b, keys[(block + 2) % 3].wrapping_add(block as u32 + 1));
    }
    [a, b]
}

/// The two words of the current element.
fn words(b: &ScalarBuilder, cx: &ScalarCtx<'_>) -> [Ex; 2] {
    let seed = (cx.params.float("seed").unwrap_or(0.0) as f32).to_bits();
    let extent = |axis: usize| cx.dims.and_then(|d| d.get(axis)).map_or(1, |&n| n);
    let position = (0..cx.rank).fold(b.number(DType::I64, 0.0), |at, axis| at * extent(axis) as f64 + b.coord(axis));
    let high = position.shr(&position.lit(32.0)).cast(DType::U32);
    threefry([position.cast(DType::U32), high], [seed, 0x7463_5f72])
}

/// Uniform in (0, 1): 23 random bits and a half, exact in f32.
fn unit(word: &Ex) -> Ex {
    (word.shr(&word.lit(9.0)).cast(DType::F32) + 0.5) * 2f64.powi(-23)
}

fn uniform(b: &ScalarBuilder, cx: &ScalarCtx<'_>) -> Ex {
    unit(&words(b, cx)[0])
}

/// Standard normal, by Box and Muller.
fn normal(b: &ScalarBuilder, cx: &ScalarCtx<'_>) -> Ex {
    let [first, second] = words(b, cx);
    let radius = (unit(&first).log() * -2.0).sqrt();
    radius * (unit(&second) * (2.0 * std::f64::consts::PI)).cos()
}

#[derive(Clone, Copy)]
enum Distribution {
    Uniform,
    Normal,
}

fn sample(b: &ScalarBuilder, cx: &ScalarCtx<'_>, distribution: Distribution, dtype: DType) -> Ex {
    let float = |name, default| cx.params.float(name).unwrap_or(default);
    let value = match distribution {
        Distribution::Uniform => {
            let (low, high) = (float("low", 0.0), float("high", 1.0));
            let u = uniform(b, cx);
            u.fma(&u.lit(high - low), &u.lit(low))
        }
        Distribution::Normal => {
            let z = normal(b, cx);
            z.fma(&z.lit(float("scale", 1.0)), &z.lit(float("mean", 0.0)))
        }
    };
    value.cast(dtype)
}

fn parameters(def: OpDef, distribution: Distribution) -> OpDef {
    let def = match distribution {
        Distribution::Uniform => {
            def.param("low", ParamValue::Float(0.0), "lower bound").param("high", ParamValue::Float(1.0), "upper bound")
        }
        Distribution::Normal => def.param("mean", ParamValue::Float(0.0), "mean").param(
            "scale",
            ParamValue::Float(1.0),
            "standard deviation",
        ),
    };
    random(def)
}

/// The seed; without one, every run draws the same values.
fn random(def: OpDef) -> OpDef {
    def.param("seed", ParamValue::Float(0.0), "selects the sequence")
        .edit(|d| d.accuracy = tensorc_ir::op::Accuracy::Random)
}

fn generators() -> Vec<OpDef> {
    let entry = |name, doc, distribution, onnx| {
        let dtype = |p: &Params| p.dtype("dtype").unwrap_or(DType::F32);
        let body = scalar(move |b, cx, _| Ok(sample(b, cx, distribution, dtype(cx.params))));
        let infer = rule(move |cx| {
            cx.set_output_dtype(0, dtype(cx.params))?;
            let shape = cx.params.ints("shape").unwrap_or_default().to_vec();
            let dims: Option<Vec<Dim>> = shape.iter().map(|&d| u64::try_from(d).ok().map(Dim::Const)).collect();
            cx.set_output_dims(0, dims.ok_or("parameter `shape` has a negative extent")?)
        });
        parameters(define(name, doc, body, infer), distribution)
            .required("shape", ParamKind::Ints, "the result's shape")
            .param("dtype", ParamValue::DType(DType::F32), "the result's type")
            .onnx(onnx, 1)
    };
    vec![
        entry("random_uniform", "Uniform in [low, high).", Distribution::Uniform, "RandomUniform"),
        entry("random_normal", "Normal with a mean and a deviation.", Distribution::Normal, "RandomNormal"),
    ]
}

/// The result has the operand's shape and the type of parameter `dtype`, else the operand's.
fn shaped_like() -> Infer {
    rule(|cx| {
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        match cx.params.dtype("dtype") {
            Some(dtype) => cx.set_output_dtype(0, dtype),
            None => cx.same_dtype(0, 0),
        }
    })
}

fn stored_type(cx: &ScalarCtx<'_>) -> Result<DType, OpError> {
    let like = cx.inputs.first().copied().flatten();
    cx.params.dtype("dtype").or(like).ok_or_else(|| OpError::from("the operand is missing"))
}

fn like() -> Vec<OpDef> {
    let entry = |name, doc, distribution, onnx| {
        let body = scalar(move |b, cx, _| Ok(sample(b, cx, distribution, stored_type(cx)?)));
        parameters(define(name, doc, body, shaped_like()), distribution)
            .operand("like", NUMBERS)
            .maybe("dtype", ParamKind::DType, "the result's type, if not the operand's")
            .onnx(onnx, 1)
    };
    vec![
        entry("random_uniform_like", "Uniform in [low, high).", Distribution::Uniform, "RandomUniformLike"),
        entry("random_normal_like", "Normal with a mean and a deviation.", Distribution::Normal, "RandomNormalLike"),
    ]
}

fn bernoulli() -> OpDef {
    let body = scalar(|b, cx, args| {
        let Some(Some(p)) = args.first() else { return Err(OpError::from("operand `x` is missing")) };
        let hit = uniform(b, cx).lt(&widen(p).cast(DType::F32));
        Ok(hit.cast(stored_type(cx)?))
    });
    random(define("bernoulli", "1 with probability x, else 0.", body, shaped_like()))
        .operand("x", FLOATS)
        .maybe("dtype", ParamKind::DType, "the result's type, if not the operand's")
        .onnx("Bernoulli", 15)
}

fn dropout_mask() -> OpDef {
    let body = scalar(|b, cx, args| {
        let [Some(_), Some(ratio)] = args else { return Err(OpError::from("two operands expected")) };
        Ok(uniform(b, cx).ge(&widen(ratio).cast(DType::F32)))
    });
    let infer = rule(|cx| {
        if let Some(x) = cx.input_dims(0) {
            broadcasts_to(cx, 1, &x)?;
        }
        let shape = cx.input(0).shape;
        cx.set_output_shape(0, shape)?;
        cx.set_output_dtype(0, DType::Bool)
    });
    random(define("dropout_mask", "False with probability `ratio`; shaped like x.", body, infer))
        .operand("x", FLOATS)
        .operand("ratio", FLOATS)
}

fn dropout() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let x = operand(b, args, 0)?;
        let training = cx.value(2).and_then(|v| v.item()).is_some_and(|v| v.as_bool());
        let ratio = match args.get(1).copied().flatten() {
            Some(ratio) => crate::compose::cast(b, ratio, cx.outputs[0].dtype)?,
            None => number(b, x, 0.5)?,
        };
        let ratio = if training { ratio } else { number(b, x, 0.0)? };
        let seed = Params::new().with("seed", ParamValue::Float(cx.params.float("seed").unwrap_or(0.0)));
        let mask = b.op("dropout_mask", &[x, ratio], seed)?;
        if !training {
            return Ok(vec![b.call("identity", &[x])?, mask]);
        }
        let zero = number(b, x, 0.0)?;
        let kept = b.call("where", &[mask, x, zero])?;
        let dropped = b.call("neg", &[ratio])?;
        let share = with_number(b, "add", dropped, 1.0)?;
        Ok(vec![b.call("div", &[kept, share])?, mask])
    }));
    let infer = rule(|cx| {
        let shape = cx.input(0).shape;
        cx.same_dtype(0, 0)?;
        if cx.output_count() > 1 {
            cx.set_output_dtype(1, DType::Bool)?;
        }
        (0..cx.output_count()).try_for_each(|i| cx.set_output_shape(i, shape.clone()))
    });
    random(define(
        "dropout",
        "x; in training, elements survive with probability 1 - ratio and are scaled.",
        compute,
        infer,
    ))
    .operand("x", FLOATS)
    .optional("ratio", TypeRule::OneOf(FLOATS))
    .optional("training_mode", TypeRule::OneOf(BOOLS))
    .static_value()
    .outputs(1, 2)
    .onnx("Dropout", 12)
    .mxnet("Dropout")
}
