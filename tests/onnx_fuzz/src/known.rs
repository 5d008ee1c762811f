//! Differences from ONNX Runtime that are not tensorc's mistakes, each with its reason.

use tensorc::DType;
use tensorc_frontend::onnx::proto::NodeProto;

use crate::model::Value;

/// Why the results of a node on these operands need not agree; `None` where they must.
pub fn known(node: &NodeProto, operands: &[Value]) -> Option<&'static str> {
    let floats = || operands.iter().filter(|v| v.dtype().is_float());
    let any = |f: fn(f64) -> bool| floats().any(|v| v.data.iter().any(|x| f(x.as_f64())));
    let (nan, infinite) = (any(f64::is_nan), any(f64::is_infinite));
    let large = any(|x| x.abs() > 1e15);
    let first = operands.iter().find(|v| node.input.first() == Some(&v.name));
    let integers = first.is_some_and(|v| v.dtype().is_int());
    let wide = first.is_some_and(|v| v.dtype() == DType::F64);
    let half = first.is_some_and(|v| v.dtype() == DType::F16);
    let empty = operands.iter().any(|v| v.data.is_empty());
    let text = |name: &str| {
        let attribute = node.attribute.iter().find(|a| a.name() == name);
        attribute.map_or("", |a| std::str::from_utf8(a.s()).unwrap_or_default())
    };
    let int = |name: &str| node.attribute.iter().find(|a| a.name() == name).map(|a| a.i());
    let second = operands.iter().find(|v| node.input.get(1) == Some(&v.name));
    match node.op_type() {
        "ArgMax" | "ArgMin" | "TopK" | "Hardmax" | "MaxPool" | "GlobalMaxPool" | "MaxRoiPool" | "Unique"
        | "ReduceMax" | "ReduceMin" | "Max" | "Min" | "ScatterElements" | "ScatterND" | "RoiAlign"
            if nan =>
        {
            Some("where NaN stands in an order is not defined; here it is better than any number")
        }
        "GRU" | "LSTM" | "RNN" | "Sigmoid" | "Elu" | "Celu" | "Selu" | "Gelu" | "Mish" | "Softplus" | "HardSwish" => {
            Some("keeps absolute accuracy only: subtracts 1 from an exponential, clamps operands, or rounds constants")
        }
        "Squeeze" if second.is_some_and(|v| v.data.is_empty()) => Some("takes an empty list of axes for none given"),
        "AffineGrid" if second.is_some_and(|v| v.data.iter().any(|x| x.as_i64() == 1)) => {
            Some("corners of an axis of extent 1 are not defined when they are aligned")
        }
        "DynamicQuantizeLinear" if nan || infinite => Some("the scale is not a number"),
        "QuantizeLinear" | "QLinearMatMul" | "QLinearConv" | "Cast" | "CastLike"
            if nan || infinite || large || any(|x| x.abs() > 100.0) =>
        {
            Some("what is not a number or out of range has no integer")
        }
        "Pow" if integers => Some("the power of a negative number to a fraction has no integer"),
        "ReduceLogSum" | "ReduceLogSumExp" | "ReduceL1" | "ReduceL2" | "ReduceProd" | "ReduceMean"
        | "ReduceSumSquare"
            if integers =>
        {
            Some("rounding of roots and logarithms, and overflow, of integers are not defined")
        }
        "ReduceMean" | "MatMulInteger" if empty => Some("the mean of nothing, or memory that is not written"),
        "BatchNormalization" if half && int("training_mode") == Some(1) => Some("statistics of f16 are wrong"),
        "BatchNormalization" | "RMSNormalization" | "LayerNormalization" if wide => {
            Some("the small constant is rounded to f32, or all is computed in f32")
        }
        "GroupNormalization" | "InstanceNormalization" | "MeanVarianceNormalization" | "LayerNormalization" => {
            Some("the variance is a difference of squares, which overflow or cancel, and of f64 computed in f32")
        }
        "Shrink" if wide => Some("computed in f32"),
        "LRN" if nan || infinite || large || half => {
            Some("keeps running sums, which stay infinite, or overflow in f16")
        }
        "Resize" if int("antialias") == Some(1) => Some("antialiasing differs from the reference implementation"),
        "Resize" | "GridSample" | "DeformConv" | "Conv" | "ConvTranspose" | "LogSoftmax" | "Softmax" | "CumSum"
        | "Attention" | "AveragePool"
            if nan || infinite || large =>
        {
            Some("products of an infinity with weights of 0, or overflow")
        }
        "GridSample" if text("mode") == "cubic" && text("padding_mode") != "zeros" => {
            Some("cubic sampling at borders differs from the reference implementation")
        }
        "Col2Im" if second.is_some_and(|v| v.data.len() == 1) => {
            Some("one spatial axis with pads differs from the reference implementation")
        }
        "ConvTranspose" if text("auto_pad").starts_with("SAME") => {
            Some("extents differ from those of the reference implementation: results are as large as the stride says")
        }
        "Attention" => Some("OPEN rows of which every key is masked"),
        _ => None,
    }
}
