//! Categories: numbers that stand for others, and one column for each.

use super::tree::Width;
use super::{DOMAIN, NUMBERS_READ};
use crate::prelude::*;

pub(super) fn ops() -> Vec<OpDef> {
    vec![
        label_encoder("label_encoder", 4, true),
        // Before version 4, NaN was no key.
        label_encoder("label_encoder_2", 1, false),
        one_hot_encoder(),
    ]
}

/// Numbers, i64 or f64, of one of three parameters.
fn given(params: &Params, [ints, floats, tensor]: [&str; 3]) -> Result<Option<TensorData>, OpError> {
    let ints = params.ints(ints).filter(|list| !list.is_empty()).map(|list| {
        TensorData::from_fn(DenseType::new(DType::I64, [list.len() as u64]), |i| Scalar::i64(list[i as usize]))
    });
    let floats = params.floats(floats).filter(|list| !list.is_empty()).map(|list| {
        TensorData::from_fn(DenseType::new(DType::F32, [list.len() as u64]), |i| Scalar::f32(list[i as usize] as f32))
    });
    let mut found = [ints, floats, params.tensor(tensor).cloned()].into_iter().flatten();
    let first = found.next();
    reject_if(found.next().is_some(), || format!("parameter `{tensor}` is not the only one of its kind"))?;
    Ok(first)
}

/// The numbers that are looked up, and what stands for each.
struct Codes {
    keys: TensorData,
    values: TensorData,
    /// What stands for others.
    other: Scalar,
}

impl Codes {
    fn of(params: &Params) -> Result<Codes, OpError> {
        let keys = given(params, ["keys_int64s", "keys_floats", "keys_tensor"])?;
        let values = given(params, ["values_int64s", "values_floats", "values_tensor"])?;
        let (Some(keys), Some(values)) = (keys, values) else { return Err("there are no keys, or no values".into()) };
        reject_if(keys.len() != values.len(), || format!("there are {} keys for {} values", keys.len(), values.len()))?;
        let dtype = values.dtype();
        let other = match params.tensor("default_tensor") {
            Some(tensor) => tensor.item().map(|x| x.cast(dtype)).ok_or("`default_tensor` must have one element")?,
            None if dtype.is_float() => Scalar::from_f64(dtype, params.float("default_float").unwrap_or(-0.0)),
            None => Scalar::from_i64(dtype, params.int("default_int64").unwrap_or(-1)),
        };
        Ok(Codes { keys, values, other })
    }

    /// The keys as integers in ascending order, each once, with its first value; `nan`: NaN is a key.
    fn sorted(&self, nan: bool) -> (Vec<i64>, Vec<Scalar>) {
        let width = width(self.keys.dtype());
        let number = |x: Scalar| match width {
            Some(width) if x.is_nan() => width.ends()[1],
            Some(width) => width.key(x.as_f64() + 0.0),
            None => x.as_i64(),
        };
        let pairs = self.keys.iter().zip(self.values.iter()).filter(|(key, _)| nan || !key.is_nan());
        let mut pairs: Vec<(i64, Scalar)> = pairs.map(|(key, value)| (number(key), value)).collect();
        pairs.sort_by_key(|(key, _)| *key);
        pairs.dedup_by_key(|(key, _)| *key);
        pairs.into_iter().unzip()
    }
}

fn width(dtype: DType) -> Option<Width> {
    match dtype {
        DType::F32 => Some(Width::F32),
        DType::F64 => Some(Width::F64),
        _ => None,
    }
}

/// Elements as i64 in the order of the numbers.
fn numbered(x: Tensor<'_>) -> Result<Tensor<'_>> {
    let (g, ty) = (x.graph(), x.ty()?);
    let Some(width) = width(ty.dtype) else { return Ok(x.convert(DType::I64)) };
    let greatest = width.ends()[1];
    Ok(g.map(&[x], DType::I64, &ty.dims, |s, a| {
        // -0 is 0.
        let x = a[0].eq(&a[0].lit(0.0)).select(&a[0].lit(0.0), &a[0]);
        width.key_of(s, &x, &s.constant(Scalar::from_i64(width.word(), greatest))).cast(DType::I64)
    }))
}

/// Looks up elements among sorted keys: by halves, as many as there are.
fn looked_up(numbers: &DenseType, codes: &Codes, keys: &DenseType, made: &DenseType) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("look_up");
    let [numbers, keys] = k.inputs(["numbers", "keys"], [numbers, keys]);
    let values = k.input("values", &DenseType::new(made.dtype, keys.dims()));
    let (result, count) = (k.output("result", made), keys.dims().count());
    let last = count - 1;
    let steps = last.example().checked_ilog2().map_or(0, |n| n + 1);
    crate::blocks::in_blocks(k, (Extent::ONE, made.dims.count()), 256, |_, first, many| {
        k.each("i", many, |i| {
            let at = first.add(i);
            let number = numbers.get(&at);
            let below = k.register("below", DType::I64).holding(0);
            for step in (0..steps).rev() {
                let next = below.get() + (1i64 << step);
                let reaches = keys.get(&bounded(&next.index(), last)).le(number) & next.le(last);
                below.update(reaches, next);
            }
            let found = bounded(&below.get().index(), last);
            let is_key = keys.get(&found).eq(number);
            result.set(&at, is_key.select(values.get(&found), codes.other));
        });
    });
    k.finish()
}

fn label_encoder(name: &'static str, since: u32, nan: bool) -> OpDef {
    let compute = formula(move |g, cx| {
        let codes = Codes::of(cx.params).or_fail(&g)?;
        let x = g.operand(0);
        if x.ty()?.dtype != codes.keys.dtype() {
            return Err(g.fail(format!("keys are {}, the operand is {}", codes.keys.dtype(), x.ty()?.dtype)));
        }
        let (keys, values) = codes.sorted(nan);
        if keys.is_empty() {
            return Ok(g.filled(&cx.outputs[0], 0.0).map(|x| x.builder().constant(codes.other)));
        }
        let values =
            TensorData::from_fn(DenseType::new(codes.values.dtype(), [values.len() as u64]), |i| values[i as usize]);
        let operands = [numbered(x)?, g.i64s(&keys), g.constant(values)];
        let (numbers, keys, made) = (operands[0].ty()?, operands[1].ty()?, cx.outputs[0].clone());
        Ok(g.kernel(looked_up(&numbers, &codes, &keys, &made), &operands, &[made])?[0])
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, Codes::of(cx.params)?.values.dtype())?;
        cx.copy_shape(0, 0)
    });
    define(name, "The value that stands for each element, found by its key.", compute, infer)
        .operand("X", &[])
        .maybe("keys_int64s", ParamKind::Ints, "keys")
        .maybe("keys_floats", ParamKind::Floats, "the same of floats")
        .maybe("keys_tensor", ParamKind::Tensor, "the same of any type")
        .maybe("values_int64s", ParamKind::Ints, "values")
        .maybe("values_floats", ParamKind::Floats, "the same of floats")
        .maybe("values_tensor", ParamKind::Tensor, "the same of any type")
        .param("default_int64", -1, "what stands for other elements")
        .param("default_float", -0.0, "what stands for other elements")
        .maybe("default_string", ParamKind::Str, "No effect.")
        .maybe("default_tensor", ParamKind::Tensor, "what stands for other elements")
        .onnx_of(DOMAIN, "LabelEncoder", since)
        .no_gradient()
}

fn one_hot_encoder() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0).convert(DType::I64);
        let (dims, out) = (x.dims()?, &cx.outputs[0]);
        let cats = cx.params.ints("cats_int64s").unwrap_or(&[]);
        let spread = x.reshape(dims.all().chain([Extent::ONE]).collect::<Extents>());
        Ok(g.map(&[spread, g.i64s(cats)], DType::F32, &out.dims, |s, a| {
            let [one, zero] = [1.0, 0.0].map(|x| s.number(DType::F32, x));
            a[0].eq(&a[1]).select(&one, &zero)
        }))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        let cats = cx.params.ints("cats_int64s").unwrap_or(&[]).len();
        reject_if(cats == 0, || "parameter `cats_int64s` is empty")?;
        let zeros = cx.params.int("zeros").unwrap_or(1);
        reject_if(zeros == 0, || "parameter `zeros` = 0 is not supported: other elements give zeros")?;
        match cx.open_dims(0) {
            Some(dims) => cx.set_output_dims(0, dims.iter().copied().chain([Dim::Const(cats as u64)])),
            None => Ok(()),
        }
    });
    define("one_hot_encoder", "For each category 1 where an element is it, 0 elsewhere.", compute, infer)
        .operand("X", NUMBERS_READ)
        .maybe("cats_int64s", ParamKind::Ints, "categories")
        .param("zeros", 1, "Only 1 is supported.")
        .onnx_of(DOMAIN, "OneHotEncoder", 1)
        .no_gradient()
}
