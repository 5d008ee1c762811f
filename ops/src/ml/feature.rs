//! What prepares features: scaling, normalisation, thresholds, missing values, selection.

use super::{DOMAIN, NUMBERS_READ, f32s};
use crate::prelude::*;

pub(super) fn ops() -> Vec<OpDef> {
    vec![scaler(), normalizer(), binarizer(), imputer(), vectorizer(), extractor(), zip_map()]
}

/// The result has the shape of the operand, and this type.
fn shape_of_first(dtype: DType) -> Infer {
    rule(move |cx| {
        cx.set_output_dtype(0, dtype)?;
        cx.copy_shape(0, 0)
    })
}

/// A list as a tensor that broadcasts along the last axis: one number, or one for each feature.
fn per_feature<'g>(x: Tensor<'g>, name: &str, list: &[f64]) -> Result<Tensor<'g>> {
    let (g, dims) = (x.graph(), x.dims()?);
    let features = dims.len().checked_sub(1).map_or(Extent::ONE, |last| dims.at(last));
    if list.len() != 1 && !features.is_surely(list.len() as i64) {
        return Err(g.fail(format!(
            "parameter `{name}` has {} entries for the features of {:?}",
            list.len(),
            dims.example()
        )));
    }
    f32s(g, &[list.len()], list)
}

fn scaler() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0).convert(DType::F32);
        let list = |name: &str| cx.params.floats(name).unwrap_or(&[]).to_vec();
        let (offset, scale) = (list("offset"), list("scale"));
        let moved = if offset.is_empty() { x } else { x - per_feature(x, "offset", &offset)? };
        Ok(if scale.is_empty() { moved } else { moved * per_feature(x, "scale", &scale)? })
    });
    define("feature_scaler", "(x - offset) · scale, for each feature.", compute, shape_of_first(DType::F32))
        .operand("X", NUMBERS_READ)
        .maybe("offset", ParamKind::Floats, "one for each feature, or one for all")
        .maybe("scale", ParamKind::Floats, "one for each feature, or one for all")
        .onnx_of(DOMAIN, "Scaler", 1)
        .no_gradient()
        .ulp(1.0)
}

fn normalizer() -> OpDef {
    let compute = formula(|g, cx| {
        let x = g.operand(0).convert(DType::F32);
        let last = x.dims()?.len() - 1;
        let divisor = match cx.params.str("norm").unwrap_or("MAX") {
            "MAX" => x.reduce("reduce_max", &[last]),
            "L1" => x.map(Ex::abs).sum(&[last]),
            _ => (x * x).sum(&[last]).sqrt(),
        };
        Ok(x.map_with(&[divisor], |_, a| a[1].eq(&a[1].lit(0.0)).select(&a[0], &(&a[0] / &a[1]))))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        crate::rules::open_rank_in(cx, 0, 1..=2)?;
        cx.copy_shape(0, 0)
    });
    define("feature_normalizer", "Rows, divided by their norms; rows of zeros stay.", compute, infer)
        .operand("X", NUMBERS_READ)
        .choice("norm", &["MAX", "L1", "L2"], "MAX", "greatest element, sum of magnitudes, or Euclidean norm")
        .onnx_of(DOMAIN, "Normalizer", 1)
        .no_gradient()
        .ulp(4.0)
}

fn binarizer() -> OpDef {
    let compute = scalar(|_, cx, args| {
        let Some(Some(x)) = args.first() else { return Err("operand `X` is missing".into()) };
        let threshold = cx.params.float("threshold").unwrap_or(0.0);
        let number = if x.dtype().is_float() { x.clone() } else { x.cast(DType::F32) };
        Ok(number.gt(&number.lit(threshold)).select(&x.lit(1.0), &x.lit(0.0)))
    });
    define("binarizer", "1 where an element is above the threshold, 0 elsewhere.", compute, Infer::Derived)
        .group("X", NUMBERS_READ)
        .param("threshold", 0.0, "bound that is not above itself")
        .onnx_of(DOMAIN, "Binarizer", 1)
        .no_gradient()
}

fn imputer() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, params) = (g.operand(0), cx.params);
        let (dtype, dims) = (x.ty()?.dtype, x.dims()?);
        let (list, replaced): (Vec<Scalar>, Scalar) = if dtype == DType::I64 {
            let list = params.ints("imputed_value_int64s").unwrap_or(&[]).iter().map(|n| Scalar::i64(*n)).collect();
            (list, Scalar::i64(params.int("replaced_value_int64").unwrap_or(0)))
        } else {
            let list = params.floats("imputed_value_floats").unwrap_or(&[]);
            let replaced = params.float("replaced_value_float").unwrap_or(0.0);
            (list.iter().map(|x| Scalar::from_f64(dtype, *x)).collect(), Scalar::from_f64(dtype, replaced))
        };
        let features = dims.len().checked_sub(1).map_or(Extent::ONE, |last| dims.at(last));
        if list.is_empty() || list.len() != 1 && !features.is_surely(list.len() as i64) {
            return Err(g.fail(format!(
                "there are {} imputed values for the features of {:?}",
                list.len(),
                dims.example()
            )));
        }
        let values = g.constant(TensorData::from_fn(DenseType::new(dtype, [list.len() as u64]), |i| list[i as usize]));
        Ok(x.map_with(&[values], |s, a| {
            let is_missing = if replaced.is_nan() { a[0].ne(&a[0]) } else { a[0].eq(&s.constant(replaced)) };
            is_missing.select(&a[1], &a[0])
        }))
    });
    define("imputer", "Elements, with others in place of those that are missing.", compute, rule(|cx| same(cx, 0, 0)))
        .operand("X", &[DType::F32, DType::I64])
        .maybe("imputed_value_floats", ParamKind::Floats, "one for each feature, or one for all")
        .maybe("imputed_value_int64s", ParamKind::Ints, "the same of integers")
        .param("replaced_value_float", 0.0, "what stands for a missing value, may be NaN")
        .param("replaced_value_int64", 0, "the same of integers")
        .onnx_of(DOMAIN, "Imputer", 1)
        .no_gradient()
}

/// The widths of the operands of `FeatureVectorizer`.
fn widths(params: &Params, operands: usize) -> Result<&[i64], OpError> {
    let list = params.ints("inputdimensions").unwrap_or(&[]);
    reject_if(list.len() != operands || list.iter().any(|n| *n < 0), || {
        format!("parameter `inputdimensions` is {list:?} for {operands} operands")
    })?;
    Ok(list)
}

fn vectorizer() -> OpDef {
    let compute = formula(|g, cx| {
        let given = g.given();
        let mut parts = vec![];
        for (x, width) in given.iter().zip(widths(cx.params, given.len()).or_fail(&g)?) {
            let dims = x.dims()?;
            let (rows, features) = match dims.len() {
                1 => (Extent::ONE, dims.at(0)),
                _ => (dims.at(0), dims.range(1..).count()),
            };
            let flat = x.convert(DType::F32).reshape(Extents::of([rows, features]));
            // What is wider is cut, what is narrower is followed by zeros.
            let kept = features.least(*width);
            let cut = flat.slice(1, 0i64, kept);
            let zeros = Extents::of([rows, Extent::from(*width) - kept]);
            parts.push(cut);
            if !kept.is_surely(*width) {
                parts.push(g.filled(&DenseType::new(DType::F32, zeros), 0.0));
            }
        }
        Ok(g.concat(&parts, 1))
    });
    let infer = rule(|cx| {
        cx.set_output_dtype(0, DType::F32)?;
        let width = widths(cx.params, cx.input_count())?.iter().sum::<i64>() as u64;
        let mut rows = None;
        for i in 0..cx.input_count() {
            let Some(dims) = cx.open_dims(i) else { continue };
            let own = if dims.len() > 1 { dims[0] } else { Dim::Const(1) };
            match rows {
                Some(rows) => cx.unify_dims(rows, own, "operands, axis 0")?,
                None => rows = Some(own),
            }
        }
        partial(cx, 0, &[rows, Some(Dim::Const(width))])
    });
    define("feature_vectorizer", "Features of all operands side by side, cut or filled with zeros.", compute, infer)
        .operand("X", NUMBERS_READ)
        .variadic()
        .maybe("inputdimensions", ParamKind::Ints, "features that each operand has in the result")
        .onnx_of(DOMAIN, "FeatureVectorizer", 1)
        .no_gradient()
}

fn extractor() -> OpDef {
    let compute = formula(|g, cx| {
        let [x, at] = g.operands();
        let last = x.dims()?.len() - 1;
        let taken = x.gather(at.reshape(Extents::of([at.dims()?.count()])), last);
        Ok(taken.reshape(&cx.outputs[0].dims))
    });
    let infer = shape_rule(|cx| {
        let Some(x) = crate::rules::open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let taken = cx.open_dims(1).and_then(|at| at.iter().map(|dim| dim.as_extent()).product::<Option<Extent>>());
        let lead = if x.len() == 1 { vec![Dim::Const(1)] } else { x[..x.len() - 1].to_vec() };
        let dims: Vec<Option<Dim>> = lead.into_iter().map(Some).chain([taken.map(Dim::of)]).collect();
        partial(cx, 0, &dims)
    });
    define("array_feature_extractor", "The elements at some positions of the last axis.", compute, infer)
        .operand("X", &[DType::F32, DType::F64, DType::I64, DType::I32])
        .operand("Y", &[DType::I64])
        .demand(1, |cx| {
            let x = cx.input(0)?;
            Ok(Some(Allowed::below(x.dims.at(x.rank() - 1))))
        })
        .onnx_of(DOMAIN, "ArrayFeatureExtractor", 1)
        .no_gradient()
}

fn zip_map() -> OpDef {
    let compute = formula(|g, _| Ok(g.operand(0).then(|_, x| Ok(x))));
    let doc = "The values of a map of each row as a tensor, in the order of the keys.";
    define("zip_map", doc, compute, rule(|cx| same(cx, 0, 0)))
        .operand("X", &[DType::F32])
        .maybe("classlabels_int64s", ParamKind::Ints, "keys; not part of the result")
        .onnx_of(DOMAIN, "ZipMap", 1)
        .no_gradient()
}
