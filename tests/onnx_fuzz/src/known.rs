//! Differences from ONNX Runtime that are not tensorc's mistakes, each with its reason; `docs/numerics.md` sums them up.

use std::collections::BTreeSet;

use tensorc::DType;
use tensorc_frontend::onnx::proto::NodeProto;

use crate::model::Value;

/// What is known of a node and its operands.
struct Facts<'a> {
    node: &'a NodeProto,
    operands: &'a [Value],
    nan: bool,
    infinite: bool,
}

impl Facts<'_> {
    fn any(&self, f: fn(f64) -> bool) -> bool {
        let floats = self.operands.iter().filter(|v| v.dtype().is_float());
        floats.into_iter().any(|v| v.data.iter().any(|x| f(x.as_f64())))
    }

    /// Products of such elements are not finite in every order.
    fn beyond(&self) -> bool {
        self.nan || self.infinite || self.any(|x| x.abs() > 1e15)
    }

    fn operand(&self, i: usize) -> Option<&Value> {
        self.operands.iter().find(|v| self.node.input.get(i) == Some(&v.name))
    }

    fn is(&self, dtype: DType) -> bool {
        self.operand(0).is_some_and(|v| v.dtype() == dtype)
    }

    fn integers(&self) -> bool {
        self.operand(0).is_some_and(|v| v.dtype().is_int())
    }

    /// Whether 64-bit integers are beyond what f64 holds exactly.
    fn beyond_f64(&self) -> bool {
        let wide = |v: &&Value| matches!(v.dtype(), DType::I64 | DType::U64);
        self.operands.iter().filter(wide).any(|v| v.data.iter().any(|x| x.as_f64().abs() > 2f64.powi(53)))
    }

    /// Whether 64-bit integers with the same upper half have lower halves of both signs.
    fn halves_of_both_signs(&self) -> bool {
        let wide = self.operands.iter().filter(|v| matches!(v.dtype(), DType::I64 | DType::U64));
        let elements: Vec<i64> = wide.flat_map(|v| v.data.iter().map(|x| x.as_i64()).collect::<Vec<_>>()).collect();
        let upper = |negative: bool| -> BTreeSet<i64> {
            elements.iter().filter(|x| ((**x as i32) < 0) == negative).map(|x| x >> 32).collect()
        };
        !upper(true).is_disjoint(&upper(false))
    }

    /// Whether statistics may be of one or two elements, of which nearly nothing is left.
    fn constant(&self) -> bool {
        let Some(x) = self.operand(0) else { return false };
        x.dims().contains(&1) || x.dims().get(2..).is_some_and(|s| s.iter().product::<u64>() <= 2)
    }

    /// Whether elements of the first operand lie within a hundredth of each other along its last axis.
    fn nearly_equal(&self) -> bool {
        let Some(x) = self.operand(0) else { return false };
        let run = x.dims().last().map_or(1, |&n| n.max(1) as usize);
        let values: Vec<f64> = x.data.iter().map(|v| v.as_f64()).collect();
        run > 1
            && values.chunks(run).any(|row| {
                let (lo, hi) = row.iter().fold((f64::MAX, f64::MIN), |(lo, hi), x| (lo.min(*x), hi.max(*x)));
                hi - lo <= 0.01 * hi.abs().max(lo.abs())
            })
    }

    /// Whether a product of some elements of the first operand is not finite.
    fn overflows(&self) -> bool {
        let exponent = |v: &Value| v.data.iter().map(|x| x.as_f64().abs().log2().max(0.0)).sum::<f64>();
        self.operand(0).is_some_and(|v| exponent(v) > 128.0)
    }

    /// Whether an axis is counted from the end.
    fn axis_from_end(&self) -> bool {
        let axes = self.node.attribute.iter().find(|a| a.name() == "axes").map(|a| a.ints.as_slice());
        let listed = axes.unwrap_or_default().iter().chain(self.int("axis").iter()).any(|a| *a < 0);
        listed || self.operand(1).is_some_and(|v| v.data.iter().any(|x| x.as_i64() < 0))
    }

    fn text(&self, name: &str) -> &str {
        let attribute = self.node.attribute.iter().find(|a| a.name() == name);
        attribute.map_or("", |a| std::str::from_utf8(a.s()).unwrap_or_default())
    }

    fn float(&self, name: &str) -> Option<f32> {
        self.node.attribute.iter().find(|a| a.name() == name).map(|a| a.f())
    }

    fn int(&self, name: &str) -> Option<i64> {
        self.node.attribute.iter().find(|a| a.name() == name).map(|a| a.i())
    }
}

/// Why the results of a node on these operands need not agree; `None` where they must.
pub fn known(node: &NodeProto, operands: &[Value]) -> Option<&'static str> {
    let mut f = Facts { node, operands, nan: false, infinite: false };
    (f.nan, f.infinite) = (f.any(f64::is_nan), f.any(f64::is_infinite));
    of_elements(&f).or_else(|| of_integers(&f)).or_else(|| of_accuracy(&f)).or_else(|| of_meaning(&f))
}

/// Elements that are not finite, or are none.
fn of_elements(f: &Facts<'_>) -> Option<&'static str> {
    match f.node.op_type() {
        "ArgMax" | "ArgMin" | "TopK" | "Hardmax" | "MaxPool" | "GlobalMaxPool" | "MaxRoiPool" | "Unique"
        | "ReduceMax" | "ReduceMin" | "Max" | "Min" | "ScatterElements" | "ScatterND" | "RoiAlign"
            if f.nan =>
        {
            Some("where NaN stands in an order is not defined; here it is better than any number")
        }
        "Resize"
        | "GridSample"
        | "DeformConv"
        | "Conv"
        | "ConvTranspose"
        | "LogSoftmax"
        | "Softmax"
        | "CumSum"
        | "Attention"
        | "AveragePool"
        | "ReduceLogSumExp"
        | "SoftmaxCrossEntropyLoss"
        | "NegativeLogLikelihoodLoss"
        | "RoiAlign"
            if f.beyond() =>
        {
            Some("products of an infinity with weights of 0, or overflow")
        }
        "ArgMax" | "ArgMin" | "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax"
        | "ReduceMean" | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare"
            if f.operand(0).is_some_and(|v| v.data.is_empty()) && f.axis_from_end() =>
        {
            Some("of nothing, axes counted from the end are not reduced")
        }
        "ReduceProd" if f.overflows() => Some("the order of factors decides whether an overflow meets a 0"),
        "Gemm" if f.float("alpha") == Some(0.0) => Some("a product by 0 is not computed, which hides NaN"),
        "DynamicQuantizeLinear" if f.nan || f.infinite => Some("the scale is not a number"),
        "Sign" if f.is(DType::F16) && f.nan => Some("the sign of NaN is 0 of f16 alone"),
        "ReduceMean"
        | "Gemm"
        | "MatMul"
        | "MatMulInteger"
        | "QLinearMatMul"
        | "NegativeLogLikelihoodLoss"
        | "SoftmaxCrossEntropyLoss"
            if f.operands.iter().any(|v| v.data.is_empty()) =>
        {
            Some("the mean of nothing, or memory that is not written")
        }
        _ => None,
    }
}

/// Integers that overflow, or that floats become.
fn of_integers(f: &Facts<'_>) -> Option<&'static str> {
    match f.node.op_type() {
        "QuantizeLinear" | "QLinearMatMul" | "QLinearConv" if f.nan || f.infinite || f.any(|x| x.abs() > 100.0) => {
            Some("what is not a number or out of range has no integer")
        }
        "Cast" | "CastLike" if f.operand(0).is_some_and(|v| v.dtype().is_float()) => {
            Some("what is not a number or out of range has no integer")
        }
        "Mod" if f.integers() && f.int("fmod") == Some(1) && f.beyond_f64() => Some("computed in f64"),
        "Max" | "Min" if f.halves_of_both_signs() => {
            Some("where upper halves agree, lower ones are compared as signed")
        }
        "Pow" if f.integers() => Some("the power of a negative number to a fraction has no integer"),
        "ReduceSum" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceL1" | "ReduceL2" | "ReduceProd" | "ReduceMean"
        | "ReduceSumSquare"
            if f.integers() =>
        {
            Some("rounding of roots and logarithms, and overflow, of integers are not defined")
        }
        _ => None,
    }
}

/// How far results may be off there, as a share of the greatest of them or of 1, where functions are computed less exactly.
pub fn inexact(node: &NodeProto, operands: &[Value]) -> f64 {
    match node.op_type() {
        // They subtract 1 from an exponential, or clamp operands, which keeps absolute accuracy only; of f64 constants are of f32.
        "GRU" | "LSTM" | "RNN" => 2e-6 * growth(node, operands),
        "Sigmoid" | "Elu" | "Celu" | "Selu" | "Gelu" | "Mish" | "Softplus" | "HardSwish" => 2e-6,
        // The variance is a difference of squares, which cancel; of f64 all or the small constant is of f32.
        "GroupNormalization" | "InstanceNormalization" | "MeanVarianceNormalization" | "LayerNormalization" => 1e-3,
        "BatchNormalization" | "RMSNormalization" | "Shrink" => 1e-6,
        _ => 0.0,
    }
}

/// By how much an error of an activation may grow through the steps of a recurrent layer: the greatest sum of recurrent
/// weights of a unit for each step, at most 1000 in all.
fn growth(node: &NodeProto, operands: &[Value]) -> f64 {
    let operand = |i: usize| operands.iter().find(|v| node.input.get(i) == Some(&v.name));
    let (Some(x), Some(weights)) = (operand(0), operand(2)) else { return 1.0 };
    let by_batch = node.attribute.iter().any(|a| a.name() == "layout" && a.i() == 1);
    let steps = x.dims().get(usize::from(by_batch)).copied().unwrap_or(1);
    let weights_of_unit = weights.dims().last().map_or(1, |&n| n.max(1) as usize);
    let elements: Vec<f64> = weights.data.iter().map(|w| w.as_f64().abs()).collect();
    let greatest = elements.chunks(weights_of_unit).map(|row| row.iter().sum()).fold(1.0, f64::max);
    greatest.powi(steps.min(100) as i32).min(1000.0)
}

/// Functions that are computed less exactly there, where the loss has no bound.
fn of_accuracy(f: &Facts<'_>) -> Option<&'static str> {
    match f.node.op_type() {
        "GRU" | "LSTM" | "RNN" if f.nan || f.infinite || f.any(|x| x.abs() > 1e3) => {
            Some("activations clamp operands, which hides NaN")
        }
        "Pow" if f.is(DType::F32) && f.operand(1).is_some_and(|v| v.dtype() == DType::F64) => {
            Some("the exponent is rounded to f32")
        }
        "GroupNormalization" | "InstanceNormalization" | "LayerNormalization" | "MeanVarianceNormalization"
            if f.nearly_equal() =>
        {
            Some("of nearly equal elements little is left but how their mean was rounded")
        }
        "BatchNormalization" if f.is(DType::F16) && f.int("training_mode") == Some(1) => {
            Some("statistics of f16 differ from the reference implementation")
        }
        "GroupNormalization"
        | "InstanceNormalization"
        | "MeanVarianceNormalization"
        | "LayerNormalization"
        | "BatchNormalization"
            if f.beyond() || f.any(|x| x.abs() > 1e3) =>
        {
            Some("the variance is a difference of squares, which overflow or cancel")
        }
        "GroupNormalization" | "InstanceNormalization" | "MeanVarianceNormalization" if f.constant() => {
            Some("the variance is a difference of squares, which cancel to less than 0")
        }
        "Shrink" if f.integers() || f.any(|x| x.abs() > f64::from(f32::MAX)) => Some("computed in f32"),
        "Celu" if f.float("alpha") == Some(0.0) => Some("divides by alpha, which is 0"),
        "Einsum" if f.integers() => Some("integers that overflow saturate"),
        "LRN" if f.nan || f.infinite || f.is(DType::F16) || f.any(|x| x.abs() > 1e3) => {
            Some("keeps running sums, which stay infinite or lose small terms, or overflow in f16")
        }
        _ => None,
    }
}

/// Forms that are read in another way, mostly another one than that of the reference implementation.
fn of_meaning(f: &Facts<'_>) -> Option<&'static str> {
    let same = f.text("auto_pad").starts_with("SAME");
    match f.node.op_type() {
        "Squeeze" if f.operand(1).is_some_and(|v| v.data.is_empty()) => {
            Some("takes an empty list of axes for none given")
        }
        "AffineGrid" if f.operand(1).is_some_and(|v| v.data.iter().any(|x| x.as_i64() == 1)) => {
            Some("corners of an axis of extent 1 are not defined when they are aligned")
        }
        "Resize" if f.int("antialias") == Some(1) => Some("antialiasing differs from the reference implementation"),
        "Resize" if f.text("coordinate_transformation_mode") != "asymmetric" => {
            Some("positions differ from the reference implementation: lengths are rounded before they enter")
        }
        "GridSample" if f.text("mode") == "cubic" && f.text("padding_mode") != "zeros" => {
            Some("cubic sampling at borders differs from the reference implementation")
        }
        "Col2Im" if f.operand(1).is_some_and(|v| v.data.len() == 1) => {
            Some("one spatial axis with pads differs from the reference implementation")
        }
        "ConvTranspose" if same => Some("extents differ from the reference implementation: extent times stride"),
        "MaxPool" | "LpPool" | "AveragePool" if same => {
            Some("where windows are farther apart than they are wide, padding is negative there and 0 here")
        }
        "Slice" if f.operand(4).is_some_and(|v| v.data.iter().any(|x| x.as_i64() < 0)) => {
            Some("a negative step with the greatest end takes an element; the reference implementation takes none")
        }
        _ => None,
    }
}
